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
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from fairseq import criterions
from omegaconf import OmegaConf
from torch import Tensor

from collab_fairseq.attention import CollaborativeAttention, KeyValue
from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import load
from collab_fairseq.translation import TrainedModel, batches

from .errors import HeadsError
from .taps import Attended, Read, frozen, multiplied, reading

FORMS = ("sentence", "token")


class Importance(NamedTuple):
    """Means over the text.

    Attributes:
        heads: place → importance of each head, (H), float64, not normalised.
        shared_dims: place → importance of each shared key dimension, (D̃k), of collaborative layers.
        sentences, source_tokens, target_tokens: of the text, without padding.
    """

    heads: Dict[str, Tensor]
    shared_dims: Dict[str, Tensor]
    sentences: int
    source_tokens: int
    target_tokens: int


def importance(
    trained: TrainedModel,
    split: str,
    *,
    form: str = "sentence",
    criterion: Optional[str] = None,
    max_tokens: int = 4000,
    sentences: Optional[int] = None,
    progress: Any = None,
) -> Importance:
    """Importance of all heads on the text of a split.

    Under ``torch.distributed`` every process takes its share of the batches, and all get the whole result.

    Args:
        form: ``sentence`` or ``token``, see the top of this file.
        criterion: name of fairseq's criterion; default: the one that the model was trained with.
        max_tokens, sentences: see :func:`collab_fairseq.translation.batches`.
        progress: called with the number of sentences that this process has seen so far.

    Raises:
        HeadsError: an unknown form or criterion.
    """
    if form not in FORMS:
        raise HeadsError(f"the form of the importance must be one of {', '.join(FORMS)}, got {form!r}")
    loss_of = trained.criterion if criterion is None else build_criterion(trained, criterion)
    several = dist.is_available() and dist.is_initialized()
    rank, processes = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    layers = attention_layers(trained.model)
    sums = {place: torch.zeros(layer.num_heads, dtype=torch.float64) for place, layer in layers.items()}
    dims = {
        place: torch.zeros(layer.key_dim, dtype=torch.float64)
        for place, layer in layers.items()
        if isinstance(layer, CollaborativeAttention)
    }
    seen = torch.zeros(3, dtype=torch.int64)  # sentences, source tokens, target tokens
    text = batches(trained, split, max_tokens=max_tokens, sentences=sentences)
    for number, sample in enumerate(text):
        if number % processes != rank:
            continue
        heads, shared = gradients(trained, sample, loss_of, tokens=form == "token")
        for place, gradient in heads.items():
            sums[place] += gradient.abs().flatten(0, -2).sum(0).double().cpu()
        for place, gradient in shared.items():
            dims[place] += gradient.abs().sum(0).double().cpu()
        inputs = sample["net_input"]
        seen += torch.tensor([sample["nsentences"], int(inputs["src_lengths"].sum()), sample["ntokens"]])
        if progress is not None:
            progress(int(seen[0]))
    if several:
        for total in (*sums.values(), *dims.values(), seen):
            _sum_over_processes(total, trained.device)
    number_of, source, target = seen.tolist()
    per = {"encoder": source, "cross": target, "decoder": target} if form == "token" else {}
    return Importance(
        {place: total / per.get(place.split(".")[0], number_of) for place, total in sums.items()},
        {place: total / number_of for place, total in dims.items()},
        number_of,
        source,
        target,
    )


def gradients(
    trained: TrainedModel, sample: Mapping[str, Any], criterion: Any, *, tokens: bool = False
) -> Tuple[Dict[str, Tensor], Dict[str, Tensor]]:
    """∂L/∂ξ and ∂L/∂δ of every sentence of a batch, in one backward pass.

    Args:
        sample: N sentences, on the model's device. criterion: sums over them.
        tokens: ∂L/∂ξ of every token apart.

    Returns:
        place → (N, H), or (N, T, H) of T query positions with ``tokens``; place → (N, D̃k) of collaborative layers.
    """
    model, layers = trained.model, attention_layers(trained.model)
    inputs = sample["net_input"]
    lengths = {"encoder": inputs["src_tokens"].size(1)}
    rows, target_len = inputs["prev_output_tokens"].shape
    ones: Dict[str, Tensor] = {}
    deltas: Dict[str, Tensor] = {}
    for place, layer in layers.items():
        steps = [lengths.get(place.split(".")[0], target_len)] if tokens else []
        like = {"dtype": layer.out_proj.weight.dtype, "device": layer.out_proj.weight.device, "requires_grad": True}
        ones[place] = torch.ones(rows, *steps, layer.num_heads, **like)
        if isinstance(layer, CollaborativeAttention):
            deltas[place] = torch.ones(rows, layer.key_dim, **like)

    def scaled(
        place: str, read: Read, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, weights: bool
    ) -> Attended:
        return read(query * deltas[place].unsqueeze(1), entry, mask, dropout, weights)

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(frozen(model))
        stack.enter_context(multiplied(layers, ones))
        stack.enter_context(reading({place: layers[place] for place in deltas}, scaled))
        loss = criterion(model, sample)[0]
        found = iter(torch.autograd.grad(loss, [*ones.values(), *deltas.values()]))
    return {place: next(found) for place in ones}, {place: next(found) for place in deltas}


def build_criterion(trained: TrainedModel, name: str) -> Any:
    """A criterion of fairseq with its default settings, those of the training where they have the same name.

    Raises:
        HeadsError: there is none of that name.
    """
    known = criterions.CRITERION_DATACLASS_REGISTRY
    if name not in known:
        raise HeadsError(f"there is no criterion {name!r}; fairseq has {', '.join(sorted(known))}")
    own = OmegaConf.structured(known[name])
    before = trained.cfg.criterion or {}
    cfg = OmegaConf.create({**trained.cfg, "criterion": own}, flags={"allow_objects": True})
    for key in own:
        if key in before and key != "_name":
            cfg.criterion[key] = before[key]
    cfg.criterion._name = name
    return trained.task.build_criterion(cfg.criterion).to(trained.device).eval()


def normalised(values: Tensor) -> Tensor:
    """(H) over its ℓ2 norm; zeros stay zeros."""
    return torch.nn.functional.normalize(values, dim=0)


def as_json(result: Importance) -> Dict[str, Any]:
    """``heads``: head → ``raw`` and ``normalised``; ``shared_dims``: place → list; the sizes of the text."""
    heads = {}
    for place, values in result.heads.items():
        both = zip(values.tolist(), normalised(values).tolist(), strict=True)
        heads.update({head_name(place, h): {"raw": raw, "normalised": norm} for h, (raw, norm) in enumerate(both)})
    return {
        "heads": heads,
        "shared_dims": {place: values.tolist() for place, values in result.shared_dims.items()},
        "sentences": result.sentences,
        "source_tokens": result.source_tokens,
        "target_tokens": result.target_tokens,
    }


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


def _sum_over_processes(total: Tensor, device: torch.device) -> None:
    """In place; NCCL sums on its GPU only."""
    if dist.get_backend() == "nccl":
        moved = total.to(device)
        dist.all_reduce(moved)
        total.copy_(moved)
    else:
        dist.all_reduce(total)
