"""Whether contestants compute the same: asked before anything is timed."""

import copy
import logging
from dataclasses import replace
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention.reference import reference_attention

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


class _Reference(nn.Module):
    """The per-head loop of ``attention/reference.py`` with the parameters of a module."""

    def __init__(self, module: nn.Module, shape: Shape) -> None:
        super().__init__()
        self.module = module
        self.sizes: Any = {"num_heads": shape.num_heads, "scale": (shape.embed_dim // shape.num_heads) ** -0.5}
        self.sizes.update({name: getattr(module, name, None) for name in ("key_heads", "value_heads")})

    def forward(self, query: Tensor, key: Tensor, value: Tensor, padding: Any, *rest: Any) -> Any:
        queries, keys, parameters = query.transpose(0, 1), key.transpose(0, 1), dict(self.module.named_parameters())
        masks = {"key_padding_mask": padding, "attn_mask": rest[-1]}
        return reference_attention(parameters, queries, keys, keys, **self.sizes, **masks).output.transpose(0, 1), None


def check_against_reference(contestants: Dict[str, Contestant], shape: Shape) -> None:
    """Copies in float64 on the CPU give what the reference gives, on a small batch with padding.

    Raises:
        MismatchError: one of them does not.
    """
    exact: Dict[str, Contestant] = {}
    for name, contestant in contestants.items():
        module = copy.deepcopy(contestant.module).double().cpu()
        module.beam_size = 1  # type: ignore[assignment]  # these rows are sentences, not beams
        reference = f"attention/reference.py ({contestant.function})"
        exact.setdefault(reference, Contestant(_Reference(module, shape), contestant.function))
        exact[name] = replace(contestant, module=module)
    lengths = [5, 3] if shape.site == "cross" else [4, 2]
    check(exact, make_inputs(shape, 4, lengths, "cpu", torch.float64, seed=0))
