"""Head importance: sensitivity of the loss to each head (Michel, Levy, Neubig 2019).

https://arxiv.org/abs/1905.10650, section 4.1. With a multiplier ξ_h = 1 on the output of head h,

    I_h = E_x | ∂L(x) / ∂ξ_h |

L(x) is the training criterion of sentence x, summed over its target tokens, with the model in evaluation mode. A
multiplier of shape (N, H) gives the gradients of N sentences and H heads in one backward pass.

There are two forms. ``sentence`` is the paper's equation. ``token`` follows the authors' code: the absolute value of
the gradient of each query token (source tokens in the encoder, target tokens in the decoder), averaged over tokens.
For comparison between layers, I is divided by its ℓ2 norm over the heads of a layer.
"""

import logging
import math
from collections import Counter
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.modules.head_names import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records import pages
from collab_fairseq.records.record import load
from collab_fairseq.translation import TrainedModel, batches
from fairseq_modern.errors import UserError

from .attention_hooks import Layers, frozen, multiplied
from .figures import Column, draw_grids, panels_of

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """N sentences of S source and T target positions, of a fairseq or a Hugging Face model.

    Attributes:
        loss: computes the training loss, summed over target tokens.
        source, target: (N, S) and (N, T), the shapes of the encoder and decoder queries.
        source_tokens, target_tokens: number of tokens without padding.
    """

    loss: Callable[[], Tensor]
    source: Sequence[int]
    target: Sequence[int]
    source_tokens: int
    target_tokens: int


def importance(trained: TrainedModel, split: str, *, tokens: bool = False, **batching: Any) -> Dict[str, Any]:
    """:func:`measure` on a split; ``batching``: options of :func:`collab_fairseq.translation.batches`."""
    samples = batches(trained, split, **batching)
    text_batches = (batch_of(trained, sample) for sample in samples)
    return measure(trained.model, attention_layers(trained.model), text_batches, tokens=tokens)


def batch_of(trained: TrainedModel, sample: Mapping[str, Any]) -> Batch:
    """A fairseq sample."""
    inputs = sample["net_input"]
    return Batch(
        loss=lambda: trained.criterion(trained.model, sample)[0],
        source=inputs["src_tokens"].shape,
        target=inputs["prev_output_tokens"].shape,
        source_tokens=int(inputs["src_lengths"].sum()),
        target_tokens=int(sample["ntokens"]),
    )


def measure(model: nn.Module, layers: Layers, text: Iterable[Batch], *, tokens: bool = False) -> Dict[str, Any]:
    """Importance of all heads, of the form ``token`` if ``tokens``, else ``sentence``.

    Returns:
        ``heads``: head → ``raw`` and ``normalised`` importance; ``sentences``, ``source_tokens`` and
        ``target_tokens``: size of the text without padding.
    """
    sums: Dict[str, Tensor] = {}
    sizes = {"sentences": 0, "source_tokens": 0, "target_tokens": 0}
    for batch in text:
        for layer_id, gradient in gradients(model, layers, batch, tokens=tokens).items():
            total = gradient.abs().flatten(0, -2).sum(0).double().cpu()  # (…, H) → (H)
            sums[layer_id] = sums.get(layer_id, 0.0) + total
        sizes["sentences"] += batch.source[0]
        sizes["source_tokens"] += batch.source_tokens
        sizes["target_tokens"] += batch.target_tokens
        logger.info("importance: %d sentences", sizes["sentences"])
    heads = {}
    for layer_id, total in sums.items():
        queries = "source_tokens" if layer_id.startswith("encoder") else "target_tokens"
        raw = total / sizes[queries if tokens else "sentences"]
        normalised = normalize(raw, dim=0)
        for head in range(len(raw)):
            values = {"raw": float(raw[head]), "normalised": float(normalised[head])}
            heads[head_name(layer_id, head)] = values
    return {"heads": heads, **sizes}


def gradients(model: nn.Module, layers: Layers, batch: Batch, *, tokens: bool = False) -> Dict[str, Tensor]:
    """∂L/∂ξ of each sentence of a batch, or of each query token, in one backward pass.

    Returns:
        layer_id → (N, H), or (N, T, H) with ``tokens``, where T is the number of query positions.
    """
    parameter = next(model.parameters())
    multipliers: Dict[str, Tensor] = {}
    for layer_id, layer in layers.items():
        queries = batch.source if layer_id.startswith("encoder") else batch.target
        rows = queries if tokens else queries[:1]
        multipliers[layer_id] = parameter.new_ones(*rows, layer.num_heads, requires_grad=True)
    with torch.enable_grad(), frozen(model), multiplied(layers, multipliers):
        result = torch.autograd.grad(batch.loss(), list(multipliers.values()), materialize_grads=True)
    return dict(zip(multipliers, result, strict=True))


def read(path: PathLike, ranking: str, checkpoint: PathLike) -> Dict[str, float]:
    """Head → ``normalised`` or ``raw`` importance from a record, which must be of ``checkpoint``."""
    content = load(path, "heads", "importance")
    source = content["settings"]["checkpoint"]
    if file_setting(checkpoint)["sha256"] != source["sha256"]:
        raise UserError(
            f"{path} must be the importance of {checkpoint}; got that of {source['file']} with another checksum"
        )
    return {head: values[ranking] for head, values in content["parts"]["importance"]["heads"].items()}


def report(result: Mapping[str, Any], available: int) -> str:
    """Markdown table of all heads, the most important first, and how many of the ``available`` sentences were read."""
    heads = result["heads"]
    rows = [["head", "importance", "raw importance"]]
    for head in sorted(heads, key=lambda head: -heads[head]["normalised"]):
        rows.append([head, f"{heads[head]['normalised']:.4f}", f"{heads[head]['raw']:.5g}"])
    sentences = f"{result['sentences']:,} of {available:,} sentences"
    tokens = f"{result['source_tokens']:,} source and {result['target_tokens']:,} target tokens"
    return f"{pages.table(rows)}\n\n{sentences}, {tokens}\n"


def draw(result: Mapping[str, Any], path: PathLike, model: str) -> None:
    """Heat maps of normalised importance; ``model``: its name, for the title.

    The colour scale has a line at 1/√H, for each number H of heads in a layer of the model.
    """
    values = {head: numbers["normalised"] for head, numbers in result["heads"].items()}
    heads = Counter(head.rpartition(":")[0] for head in values)  # layer → number of heads
    equal = sorted({1 / math.sqrt(number) for number in heads.values()})
    description = (
        f"Mean over {result['sentences']:,} sentences, one seed. Higher: the loss depends more on the head. "
        "Line in the colour scale: 1/√H, the value of all heads if the H heads of a layer were equally important."
    )
    label = "importance, normalised in the layer (line: 1/√H, all heads equal)"
    column = Column("", label, panels_of(values), 1.0, lines=equal)
    draw_grids([column], path, f"Importance of the heads, {model}", description)
