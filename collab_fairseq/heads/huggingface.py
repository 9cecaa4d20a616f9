"""Heads of Hugging Face models: masked, and ranked by gradients as in importance.py.

A model comes with the places of its heads, place (``encoder.0``, ``cross.3``, …) → where they can be reached
(:func:`collab_fairseq.huggingface.head_places`). A layer that is used several times (ALBERT) has one multiplier
for all its uses.
"""

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from collab_fairseq.modules.heads import Heads

from .importance import Gradients, Sums, of_factors
from .taps import counts, frozen, masks


class Encoded(NamedTuple):
    """Tensors of a batch, as the model takes them, with ``labels``; and how many sentences and tokens it has."""

    inputs: Dict[str, Tensor]
    sentences: int
    source_tokens: int
    target_tokens: int


@contextlib.contextmanager
def multiplied(model: Any, places: Mapping[str, Any], factors: Mapping[str, Tensor]) -> Iterator[None]:
    """The model in evaluation mode, contexts of heads multiplied: place → (H), or (N, H) of every sentence's own."""

    def scale(contexts: Tensor, factor: Tensor) -> Tensor:
        heads = contexts.unflatten(-1, (factor.size(-1), -1))
        by = factor[..., None] if factor.dim() == 1 else factor[:, None, :, None]
        return (heads * by).flatten(-2)

    with contextlib.ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for name, factor in factors.items():
            output = places[name].output
            handle = output.register_forward_pre_hook(lambda _, given, f=factor: (scale(given[0], f),))
            stack.callback(handle.remove)
        yield


def importance(model: Any, places: Mapping[str, Any], batches: Sequence[Encoded]) -> Dict[str, Any]:
    """I_h = E_x |∂L(x)/∂ξ_h|, and of collaborative layers E_x |∂L(x)/∂δ_d|, the model in evaluation mode.

    L(x) is the model's own loss of example x, summed over its labels: one, or the tokens of the translation.
    """
    sums = Sums(counts(places), {n: place.shared.out_features for n, place in places.items() if place.shared})
    for batch in batches:
        sums.add(gradients(model, places, batch), batch[1:])
    return sums.means()


def gradients(model: Any, places: Mapping[str, Any], batch: Encoded) -> Gradients:
    """∂L/∂ξ, place → (N, H), and ∂L/∂δ, place → (N, D̃k) of collaborative layers, of a batch of N sentences."""
    rows, like = batch.sentences, {"device": model.device, "dtype": model.dtype, "requires_grad": True}
    shared = {name: place.shared for name, place in places.items() if place.shared is not None}
    ones = {name: torch.ones(rows, place.num_heads, **like) for name, place in places.items()}
    deltas = {name: torch.ones(rows, query.out_features, **like) for name, query in shared.items()}
    with contextlib.ExitStack() as stack:
        for context in (frozen(model), torch.enable_grad(), multiplied(model, places, ones)):
            stack.enter_context(context)
        for name, delta in deltas.items():
            handle = shared[name].register_forward_hook(lambda _, __, query, d=delta: query * d[:, None])
            stack.callback(handle.remove)
        # the loss is a mean over labels
        return of_factors(model(**batch.inputs).loss * batch.target_tokens, ones, deltas)


@contextlib.contextmanager
def without(model: Any, places: Mapping[str, Any], heads: Optional[Heads]) -> Iterator[None]:
    """The model in evaluation mode without some heads."""
    factors = masks(heads or {}, places, device=model.device, dtype=model.dtype)
    with torch.no_grad(), multiplied(model, places, factors):
        yield


def answers(
    model: Any, places: Mapping[str, Any], batches: Sequence[Encoded], heads: Optional[Heads] = None
) -> List[int]:
    """The class that a model without some heads predicts for each example."""
    with without(model, places, heads):
        return [answer for batch in batches for answer in model(**batch.inputs).logits.argmax(-1).tolist()]
