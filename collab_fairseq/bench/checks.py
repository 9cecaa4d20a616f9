"""Whether contestants compute the same: asked before anything is timed."""

import logging
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .baselines import Contestant, Shape
from .cases import padding_mask

logger = logging.getLogger(__name__)

#: largest difference relative to the largest number, of output and input gradient; float64 allows for the softmax in
#: float32 that fairseq has in any type
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


class Inputs(NamedTuple):
    """query (T, N, E), key (S, N, E), padding mask (N, S), causal mask (T, T) or None, gradient (T, N, E) of output."""

    query: Tensor
    key: Tensor
    padding: Tensor
    mask: Optional[Tensor]
    gradient: Tensor


def make_inputs(
    shape: Shape, queries: int, lengths: Sequence[int], device: str, dtype: torch.dtype, seed: int
) -> Inputs:
    """Random inputs of N sentences with ``queries`` positions and keys of these ``lengths``, N numbers."""
    random = torch.Generator().manual_seed(seed)

    def normal(length: int) -> Tensor:
        return torch.randn(length, len(lengths), shape.embed_dim, generator=random).to(device, dtype)

    query, gradient = normal(queries), normal(queries)
    key = normal(max(lengths)) if shape.site == "cross" else query
    padding, mask = padding_mask(lengths, shape.site != "decoder", device), None
    if shape.site == "decoder":
        mask = torch.full((queries, queries), -torch.inf, device=device, dtype=dtype).triu(1)
    return Inputs(query, key, padding, mask, gradient)


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


def attempt(name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` gives; None where a kernel that we insist on (``ours-KERNEL``) cannot, which the log says."""
    try:
        return compute()
    except ValueError as error:
        if not name.startswith("ours-"):
            raise
        logger.info("left out: %s: %s", name, error)
        return None


def check(contestants: Dict[str, Contestant], inputs: Inputs) -> None:
    """Contestants of one function give the same output and the same gradient of the query, without dropout.

    Kernels that cannot compute these inputs are removed from ``contestants``; modules stay in evaluation mode.

    Raises:
        MismatchError: one of them differs from the first of its function.
    """
    first: Dict[str, Tuple[str, Tuple[Tensor, Tensor]]] = {}
    for name, contestant in list(contestants.items()):
        contestant.module.eval()
        found = attempt(name, lambda contestant=contestant: _with_gradient(contestant, inputs))  # type: ignore[misc]
        if found is None:
            del contestants[name]
            continue
        reference, expected = first.setdefault(contestant.function, (name, found))
        for part, got, wanted in zip(("output", "input gradient"), found, expected, strict=True):
            compare(f"{part} of {name}, compared with {reference},", got, wanted, got.dtype)


def _with_gradient(contestant: Contestant, inputs: Inputs) -> Tuple[Tensor, Tensor]:
    query = inputs.query.detach().requires_grad_()
    output = contestant(query, query if inputs.key is inputs.query else inputs.key, inputs.padding, inputs.mask)
    return output, torch.autograd.grad(output, query, inputs.gradient)[0]
