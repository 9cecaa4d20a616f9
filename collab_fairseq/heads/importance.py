"""How much the loss depends on each head: the importance of Michel, Levy and Neubig (2019).

https://arxiv.org/abs/1905.10650, section 4.1. With a multiplier ξ_h = 1 on the context of every head h,

    I_h = E_x | ∂L(x) / ∂ξ_h |

L(x) is the training criterion of sentence x, summed over its target tokens, the model being in evaluation mode. A
multiplier of shape (sentences, heads) gives the gradients of all sentences in one backward pass.

Two forms: ``sentence``, the paper's equation; ``token``, as the authors' code has it: the absolute value of every
token's own part of the gradient, averaged over tokens (those of the queries: source tokens in the encoder, target
tokens in the decoder). For comparison between layers I is divided by its ℓ2 norm over the heads of a layer.

For collaborative heads, likewise, a multiplier δ_d on each shared key dimension d: E_x | ∂L(x) / ∂δ_d |.
"""

import contextlib
import logging
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from collab_fairseq.attention import CollaborativeAttention
from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import load
from collab_fairseq.translation import TrainedModel, batches

from . import HeadsError
from .taps import Attended, counts, frozen, multiplied, reading

logger = logging.getLogger(__name__)

#: place → gradients of the heads' multipliers, and of those of shared key dimensions
Gradients = Tuple[Dict[str, Tensor], Dict[str, Tensor]]

#: what processes have summed, so that it is not gloo's threads that hold it last: to free a tensor they need the
#: interpreter, which a process that closes its group keeps until they have ended (torch 2.6 waits for ever)
_summed: List[Tensor] = []


class Sums:
    """Absolute gradients, added up batch by batch in float64.

    Args:
        heads: place → H. dims: place → D̃k, of collaborative layers.
    """

    def __init__(self, heads: Mapping[str, int], dims: Mapping[str, int]) -> None:
        self.heads, self.dims = (
            {place: torch.zeros(number, dtype=torch.float64) for place, number in sizes.items()}
            for sizes in (heads, dims)
        )
        self.seen = torch.zeros(3, dtype=torch.int64)  # sentences, source tokens, target tokens

    def add(self, gradients: Gradients, seen: Sequence[int]) -> None:
        """A batch: gradients (N, …, H) and (N, D̃k), and its sentences, source tokens and target tokens."""
        for sums, found in zip((self.heads, self.dims), gradients, strict=True):
            for place, gradient in found.items():
                sums[place] += gradient.abs().flatten(0, -2).sum(0).double().cpu()
        self.seen += torch.tensor(seen)
        if os.environ.get("RANK", "0") == "0":  # of torchrun
            logger.info("%d sentences", self.seen[0])

    def means(self, tokens: bool = False) -> Dict[str, Any]:
        """Means over sentences, or with ``tokens`` the heads' over tokens, as a record has them.

        Returns:
            ``heads``: head → ``raw``, its importance, and ``normalised``; ``shared_dims``: place → importance of each
            shared key dimension; ``sentences``, ``source_tokens``, ``target_tokens``: of the text, without padding.
        """
        seen = dict(zip(("sentences", "source_tokens", "target_tokens"), self.seen.tolist(), strict=True))
        heads = {}
        for place, total in self.heads.items():
            side = "source_tokens" if place.startswith("encoder") else "target_tokens"
            raw = total / seen[side if tokens else "sentences"]
            for head, (own, share) in enumerate(zip(raw.tolist(), normalize(raw, dim=0).tolist(), strict=True)):
                heads[head_name(place, head)] = {"raw": own, "normalised": share}
        dims = {place: (total / seen["sentences"]).tolist() for place, total in self.dims.items()}
        return {"heads": heads, "shared_dims": dims, **seen}

    def over_processes(self, device: torch.device) -> None:
        """Add up the sums of all processes, in place; NCCL sums on its GPU only."""
        for total in (*self.heads.values(), *self.dims.values(), self.seen):
            moved = total.to(device) if dist.get_backend() == "nccl" else total
            dist.all_reduce(moved)
            total.copy_(moved)
            _summed.append(moved)


def importance(trained: TrainedModel, split: str, *, tokens: bool = False, **text: Any) -> Dict[str, Any]:
    """Importance of all heads on the text of a split; see :meth:`Sums.means`.

    Under ``torch.distributed`` every process takes its share of the batches, and all get the whole result.

    Args:
        tokens: the form ``token``, see the top of this file.
        split, text: of :func:`collab_fairseq.translation.batches`.
    """
    several = dist.is_available() and dist.is_initialized()
    rank, processes = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    layers = attention_layers(trained.model)
    dims = {place: layer.key_dim for place, layer in layers.items() if isinstance(layer, CollaborativeAttention)}
    sums = Sums(counts(layers), dims)
    for number, sample in enumerate(batches(trained, split, **text)):
        if number % processes == rank:
            source_tokens = int(sample["net_input"]["src_lengths"].sum())
            found = gradients(trained, sample, tokens=tokens)
            sums.add(found, (sample["nsentences"], source_tokens, sample["ntokens"]))
    if several:
        sums.over_processes(trained.device)
    return sums.means(tokens)


def gradients(trained: TrainedModel, sample: Mapping[str, Any], *, tokens: bool = False) -> Gradients:
    """∂L/∂ξ and ∂L/∂δ of every sentence of a batch, in one backward pass.

    Args:
        sample: N sentences, on the model's device. tokens: ∂L/∂ξ of every token apart.

    Returns:
        place → (N, H), or (N, T, H) of T query positions with ``tokens``; place → (N, D̃k) of collaborative layers.
    """
    model, layers, inputs = trained.model, attention_layers(trained.model), sample["net_input"]
    source, target = inputs["src_tokens"].shape, inputs["prev_output_tokens"].shape
    like: Any = {"dtype": next(model.parameters()).dtype, "device": trained.device, "requires_grad": True}
    ones: Dict[str, Tensor] = {}
    deltas: Dict[str, Tensor] = {}
    for place, layer in layers.items():
        size = source if place.startswith("encoder") else target
        ones[place] = torch.ones(*size[: 2 if tokens else 1], layer.num_heads, **like)
        if isinstance(layer, CollaborativeAttention):
            deltas[place] = torch.ones(size[0], layer.key_dim, **like)

    def scaled(place: str, read: Callable[..., Attended], query: Tensor, *rest: Any) -> Attended:
        return read(query * deltas[place].unsqueeze(1), *rest)

    with contextlib.ExitStack() as stack:
        for context in (torch.enable_grad(), frozen(model), multiplied(layers, ones)):
            stack.enter_context(context)
        stack.enter_context(reading({place: layers[place] for place in deltas}, scaled))
        return of_factors(trained.criterion(model, sample)[0], ones, deltas)


def of_factors(loss: Tensor, ones: Dict[str, Tensor], deltas: Dict[str, Tensor]) -> Gradients:
    """The gradients of a loss at the multipliers of heads and of shared dimensions, by place."""
    found = iter(torch.autograd.grad(loss, [*ones.values(), *deltas.values()]))
    return {place: next(found) for place in ones}, {place: next(found) for place in deltas}


def read(path: PathLike, ranking: str, checkpoint: Optional[PathLike] = None) -> Dict[str, float]:
    """Head → importance, ``normalised`` or ``raw``, of a result of `collab heads importance`.

    Raises:
        RecordError: another kind of file. HeadsError: it is not of this ``checkpoint``, where one is given.
    """
    content = load(path, "heads", "importance")
    got = content["settings"]["checkpoint"]
    if checkpoint is not None and file_setting(checkpoint)["sha256"] != got["sha256"]:
        raise HeadsError(f"{os.fspath(path)} is the importance of {got['file']}, another checkpoint")
    return {head: values[ranking] for head, values in content["parts"]["importance"]["heads"].items()}
