"""Local distillation: each collaborative layer learns the attention distributions of the layer it stands for.

The source model reads text; every layer is given what the source layer is given there, and its query and key
projections, mixing matrix and content bias are trained to bring down KL(softmax(s) ‖ softmax(s')) of the source's
scores s and its own s', averaged over queries and heads. Layers do not see each other, no labels are needed, nothing
else is trained.
"""

import itertools
import logging
import math
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors, ReparamError, ScoreWeights
from collab_fairseq.attention.masks import combine
from collab_fairseq.translation import TrainedModel, batches

from .fairseq import Call, calls, sources

logger = logging.getLogger(__name__)

# batches that the divergence is measured on
_MEASURED = 20


class Distilled(NamedTuple):
    """What :func:`distill` made of one layer.

    Attributes:
        weights: the scores. before, after: KL in nats per query and head, on some of the text.
    """

    weights: ScoreWeights
    before: float
    after: float


def log_weights(scores: ScoreWeights, call: Call) -> Tuple[Tensor, Tensor]:
    """Logarithms of attention weights, (N, H, T, S), and which of them count, broadcasting to the same."""
    raw = scores.logits(call.query, call.key)
    rows, length, keys = call.query.size(0), call.query.size(1), call.key.size(1)
    mask = combine(
        call.key_padding_mask, call.attn_mask, False, rows, 1, length, keys, torch.float32, call.query.device
    )
    counted = ~call.query_padding_mask[:, None, :, None]
    if mask is not None:
        raw = raw + mask.additive
        counted = counted & (mask.additive > -1e4)
        if mask.hidden is not None:
            counted = counted & ~mask.hidden
    return torch.log_softmax(raw, dim=-1), counted


def divergence(source: ScoreWeights, scores: ScoreWeights, call: Call) -> Tensor:
    """KL(softmax(s) ‖ softmax(s')) in nats, averaged over heads and over the queries that are not padding."""
    with torch.no_grad():
        target, counted = log_weights(source, call)
    found, _ = log_weights(scores, call)
    terms = target.exp() * (target - found)
    terms = torch.where(counted, terms, 0.0)
    return terms.sum() / (terms.size(1) * (~call.query_padding_mask).sum())


class _Student:
    """One layer's scores as trainable tensors, with an optimizer of their own."""

    def __init__(self, source: ScoreWeights, given: ScoreWeights, rate: float, steps: int) -> None:
        heads = given.heads.to(torch.float32).balanced()
        content = heads.key.new_zeros(heads.num_heads, heads.key.size(1))
        if given.content_bias is not None:
            content = given.content_bias.detach().float()
        self.source, self.dtype = source, given.heads.query.dtype
        query, key, mixing, bias = (tensor.clone().requires_grad_() for tensor in (*heads, content))
        self.scores = ScoreWeights(HeadFactors(query, key, mixing), given.scale, None, bias)
        # steps as large as the numbers they change; a content bias that is zero is as large as its neighbours
        sizes = [float(tensor.square().mean().sqrt()) for tensor in (*heads, content)]
        groups = [
            {"params": [tensor], "lr": rate * (size or max(sizes))}
            for tensor, size in zip((query, key, mixing, bias), sizes, strict=True)
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        )

    def step(self, call: Call) -> None:
        self.optimizer.zero_grad()
        with torch.enable_grad():
            divergence(self.source, self.scores, call).backward()
        self.optimizer.step()
        self.schedule.step()

    def result(self) -> ScoreWeights:
        found = self.scores.to(self.dtype)
        return found._replace(heads=found.heads.balanced())


def _shuffled(text: Sequence[Any], steps: int, seed: int) -> Iterator[Any]:
    """``steps`` batches, every pass over the text in another order."""
    random = torch.Generator().manual_seed(seed)
    passes = itertools.repeat(None, -(-steps // len(text)))
    order = (number for _ in passes for number in torch.randperm(len(text), generator=random).tolist())
    return (text[number] for number in itertools.islice(order, steps))


def distill(
    trained: TrainedModel,
    weights: Mapping[str, ScoreWeights],
    split: str,
    steps: int,
    *,
    sentences: Optional[int] = None,
    max_tokens: int = 1000,
    rate: float = 1e-2,
    seed: int = 1,
) -> Dict[str, Distilled]:
    """Train collaborative scores on what the source layers attend to.

    Args:
        trained: the source.
        weights: ``site.layer`` → scores to start from. Layers whose key dim is the source's are exact and stay.
        split, sentences: the text; its batches come in random order, again and again.
        steps: batches; every layer makes one step on each.
        max_tokens: of a batch.
        rate: learning rate of Adam relative to the size of each tensor; it falls to zero along a cosine.
        seed: of the order of batches.

    Returns:
        ``site.layer`` → scores and divergences, for all layers of ``weights``; where a layer came no closer, the scores
        that it started from.

    Raises:
        ReparamError: no steps; scores with a query bias, which :func:`.fit_scores` never leaves.
    """
    if steps < 1:
        raise ReparamError(f"distillation needs at least one step, got {steps}")
    origin = sources(trained, list(weights))
    exact = [name for name in weights if weights[name].heads.rank == origin[name].heads.rank]
    biased = [name for name in weights if name not in exact and weights[name].query_bias is not None]
    if biased:
        raise ReparamError(f"scores with a query bias cannot be distilled, but {', '.join(biased)} have one")
    students = {name: _Student(origin[name], weights[name], rate, steps) for name in weights if name not in exact}
    found = {name: Distilled(scores, 0.0, 0.0) for name, scores in weights.items()}
    if not students:
        return found
    text = list(batches(trained, split, sentences=sentences, max_tokens=max_tokens))
    before = _mean_divergences(trained, weights, text, list(students))
    for number, batch in enumerate(calls(trained, _shuffled(text, steps, seed), list(students))):
        for name, student in students.items():
            student.step(batch[name])
        if (number + 1) % max(1, steps // 10) == 0:
            logger.info("distillation: step %d of %d", number + 1, steps)
    learnt = {name: student.result() for name, student in students.items()}
    after = _mean_divergences(trained, learnt, text, list(students))
    for name in students:
        closer = after[name] < before[name]  # else so close from the start that steps led away
        found[name] = Distilled(learnt[name] if closer else weights[name], before[name], min(before[name], after[name]))
    return found


def _mean_divergences(
    trained: TrainedModel, weights: Mapping[str, ScoreWeights], text: Sequence[Any], names: Sequence[str]
) -> Dict[str, float]:
    """:func:`divergence` of the named layers over some of the text, the same at every call."""
    origin = sources(trained, names)
    sums, queries = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    some = text[:: -(-len(text) // _MEASURED)]
    for batch in calls(trained, some, names):
        for name, call in batch.items():
            number = int((~call.query_padding_mask).sum())
            with torch.no_grad():
                sums[name] += number * float(divergence(origin[name], weights[name], call))
            queries[name] += number
    return {name: sums[name] / queries[name] for name in names}
