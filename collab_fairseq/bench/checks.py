"""Whether contestants compute the same: asked before anything is timed."""

import copy
import logging
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention.reference import reference_attention

from .baselines import Contestant, Shape

logger = logging.getLogger(__name__)

#: largest difference relative to the largest number, of output and input gradient; float64 allows for the softmax in
#: float32 that fairseq has in any type
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


class MismatchError(RuntimeError):
    """A contestant does not compute what it is timed for."""

    user_error = True


def compare(what: str, got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Two tensors that must agree to the rounding of a type.

    Raises:
        MismatchError: with the difference.
    """
    scale = max(float(expected.detach().abs().max()), 1e-30)
    difference = float((got.detach().double() - expected.detach().double()).abs().max()) / scale
    if not difference <= TOLERANCE[dtype]:
        raise MismatchError(
            f"{what} differs by {difference:.2g} of the largest value, allowed are {TOLERANCE[dtype]:.2g}: "
            "nothing is timed"
        )


def able(name: str, attempt: Callable[[], Any]) -> bool:
    """Whether a kernel that we insist on (``ours-KERNEL``) can compute something; what it says goes to the log."""
    try:
        attempt()
    except ValueError as error:
        if not name.startswith("ours-"):
            raise
        logger.info("left out: %s: %s", name, error)
        return False
    return True


def result(contestant: Contestant, inputs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """Output and gradient of the query input, in evaluation mode (no dropout)."""
    module = contestant.module
    training = module.training
    module.eval()
    query = inputs["query"].detach().requires_grad_()
    key = query if inputs["key"] is inputs["query"] else inputs["key"]
    output = contestant(query, key, inputs["padding"], inputs["mask"])
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
    (gradient,) = torch.autograd.grad(output, query, weights)
    module.train(training)
    return output, gradient


def against_each_other(contestants: Dict[str, Contestant], inputs: Dict[str, Any]) -> None:
    """Contestants of one function give the same output and input gradient at the size at which they are timed.

    Kernels that cannot compute these inputs are removed from ``contestants``.

    Raises:
        MismatchError: one of them does not.
    """
    first: Dict[str, Tuple[str, Tuple[Tensor, Tensor]]] = {}
    for name, contestant in list(contestants.items()):
        if not able(name, lambda contestant=contestant: result(contestant, inputs)):  # type: ignore[misc]
            del contestants[name]
            continue
        found = result(contestant, inputs)
        reference, expected = first.setdefault(contestant.function, (name, found))
        for part, got, wanted in zip(("output", "input gradient"), found, expected, strict=True):
            compare(f"{part} of {name}, compared with {reference},", got, wanted, found[0].dtype)


def against_reference(contestants: Dict[str, Contestant], shape: Shape) -> None:
    """Every contestant in float64 against the per-head loop of ``attention/reference.py``, on a batch small enough.

    Raises:
        MismatchError: one of them differs.
    """
    random = torch.Generator().manual_seed(0)
    rows, queries = 2, 4
    keys = queries if shape.site != "cross" else 5
    query = torch.randn(queries, rows, shape.embed_dim, generator=random, dtype=torch.float64)
    key = torch.randn(keys, rows, shape.embed_dim, generator=random, dtype=torch.float64)
    padding = torch.zeros(rows, keys, dtype=torch.bool)
    causal: Optional[Tensor] = None
    if shape.site == "decoder":
        padding[1, -1:] = True  # targets are padded on the right
        causal = torch.full((queries, queries), -torch.inf, dtype=torch.float64).triu(1)
    else:
        padding[1, :2] = True
    inputs = {"query": query, "key": key if shape.site == "cross" else query, "padding": padding, "mask": causal}
    known: Dict[str, List[Tensor]] = {}
    for name, contestant in contestants.items():
        module = copy.deepcopy(contestant.module).double().cpu()
        module.beam_size = 1  # type: ignore[assignment]  # these rows are sentences, not beams
        exact = Contestant(module, contestant.function, contestant.static)
        if not able(name, lambda exact=exact: result(exact, inputs)):  # type: ignore[misc]
            continue
        got = result(exact, inputs)
        if contestant.function not in known:
            known[contestant.function] = _reference(module, inputs, shape, causal)
        for part, mine, wanted in zip(("output", "input gradient"), got, known[contestant.function], strict=True):
            compare(f"{part} of {name}, compared with attention/reference.py,", mine, wanted, torch.float64)


def _reference(
    module: torch.nn.Module, inputs: Dict[str, Any], shape: Shape, causal: Optional[Tensor]
) -> List[Tensor]:
    query = inputs["query"].transpose(0, 1).detach().requires_grad_()
    key = query if shape.site != "cross" else inputs["key"].transpose(0, 1)
    output = reference_attention(
        dict(module.named_parameters()),
        query,
        key,
        key,
        num_heads=shape.num_heads,
        scale=(shape.embed_dim // shape.num_heads) ** -0.5,
        key_padding_mask=inputs["padding"],
        attn_mask=causal,
    ).output.transpose(0, 1)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    (gradient,) = torch.autograd.grad(output, query, weights)
    return [output, gradient.transpose(0, 1)]
