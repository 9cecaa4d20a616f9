"""How much the loss depends on each head: the importance of Michel, Levy and Neubig (2019).

https://arxiv.org/abs/1905.10650, section 4.1. With a multiplier ξ_h = 1 on the output of every head h,

    I_h = E_x | ∂L(x) / ∂ξ_h |

L(x) is the training criterion of sentence x, summed over its target tokens, the model being in evaluation mode. A
multiplier of shape (sentences, heads) gives the gradients of all sentences in one backward pass.

Two forms: ``sentence``, the paper's equation; ``token``, as the authors' code has it: the absolute value of every
token's own part of the gradient, averaged over tokens (those of the queries: source tokens in the encoder, target
tokens in the decoder). For comparison between layers I is divided by its ℓ2 norm over the heads of a layer.
"""

import logging
import os
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import load
from collab_fairseq.translation import TrainedModel, batches

from . import HeadsError
from .attention_hooks import frozen, multiplied

logger = logging.getLogger(__name__)

#: place → gradients of the heads' multipliers
Gradients = Dict[str, Tensor]


def means(found: Iterable[Tuple[Gradients, Sequence[int]]], tokens: bool = False) -> Dict[str, Any]:
    """Means of absolute gradients over sentences, or with ``tokens`` over tokens, as a record has them.

    Args:
        found: of every batch the gradients, (N, …, H), and its sentences, source tokens and target tokens.

    Returns:
        ``heads``: head → ``raw``, its importance, and ``normalised``; ``sentences``, ``source_tokens``,
        ``target_tokens``: of the text, without padding.
    """
    sums: Dict[str, Tensor] = {}
    counted = torch.zeros(3, dtype=torch.int64)
    for gradients, numbers in found:
        for place, gradient in gradients.items():
            sums[place] = sums.get(place, 0.0) + gradient.abs().flatten(0, -2).sum(0).double().cpu()
        counted += torch.tensor(numbers)
        logger.info("%d sentences", counted[0])
    seen = dict(zip(("sentences", "source_tokens", "target_tokens"), counted.tolist(), strict=True))
    heads = {}
    for place, total in sums.items():
        side = "source_tokens" if place.startswith("encoder") else "target_tokens"
        raw = total / seen[side if tokens else "sentences"]
        for head, (own, share) in enumerate(zip(raw.tolist(), normalize(raw, dim=0).tolist(), strict=True)):
            heads[head_name(place, head)] = {"raw": own, "normalised": share}
    return {"heads": heads, **seen}


def importance(trained: TrainedModel, split: str, *, tokens: bool = False, **text: Any) -> Dict[str, Any]:
    """Importance of all heads on the text of a split; see :func:`means`.

    Args:
        tokens: the form ``token``, see the top of this file.
        split, text: of :func:`collab_fairseq.translation.batches`.
    """

    def found() -> Iterator[Tuple[Gradients, Sequence[int]]]:
        for sample in batches(trained, split, **text):
            source_tokens = int(sample["net_input"]["src_lengths"].sum())
            yield gradients(trained, sample, tokens=tokens), (sample["nsentences"], source_tokens, sample["ntokens"])

    return means(found(), tokens)


def gradients(trained: TrainedModel, sample: Mapping[str, Any], *, tokens: bool = False) -> Gradients:
    """∂L/∂ξ of every sentence of a batch, in one backward pass.

    Args:
        sample: N sentences, on the model's device. tokens: ∂L/∂ξ of every token apart.

    Returns:
        place → (N, H), or (N, T, H) of T query positions with ``tokens``.
    """
    model, layers, inputs = trained.model, attention_layers(trained.model), sample["net_input"]
    source, target = inputs["src_tokens"].shape, inputs["prev_output_tokens"].shape
    like: Any = {"dtype": next(model.parameters()).dtype, "device": trained.device, "requires_grad": True}
    ones: Dict[str, Tensor] = {}
    for place, layer in layers.items():
        size = source if place.startswith("encoder") else target
        ones[place] = torch.ones(*size[: 2 if tokens else 1], layer.num_heads, **like)
    with torch.enable_grad(), frozen(model), multiplied(layers, ones):
        loss = trained.criterion(model, sample)[0]
        return dict(zip(ones, torch.autograd.grad(loss, list(ones.values()), materialize_grads=True), strict=True))


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
