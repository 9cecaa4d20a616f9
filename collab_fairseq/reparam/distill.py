"""Distillation: the collaborative layers of a model learn together to predict what the source model predicts.

For a source text x the source model p draws a translation y; no reference is used. The converted model p' reads both,
and the scores of its new layers (projections of queries and keys, mixing matrices, content biases) are trained, all
else being frozen, to bring down

    Σ_t KL( p(· | x, y_<t) ‖ p'(· | x, y_<t) )

whose mean over y is KL(p(y | x) ‖ p'(y | x)), the divergence of whole translations, by the chain rule. The best
translation alone in place of y is the approximation of Kim & Rush (2016), https://arxiv.org/abs/1606.07947.
"""

import itertools
import logging
import math
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import torch

from collab_fairseq.attention.factors import ReparamError, ScoreWeights
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches, with_state

from .allocation import divergences
from .fairseq import SCORE_PARAMETERS, converted, sources
from .scores import scores_of

logger = logging.getLogger(__name__)

# steps between two points of the curve and two lines in the log
_STRIDE = 50
# part of the steps in which the learning rate rises
_WARMUP = 0.05
# sentences that the divergence before and after is measured on
_MEASURED = 200


class _Student:
    """The converted model as it learns. Names of parameters begin with ``site.layer``."""

    def __init__(self, trained: TrainedModel, weights: Mapping[str, ScoreWeights], learning: Sequence[str]) -> None:
        self.source: Any = trained.model
        self.model: Any = with_state(trained, converted(trained, _balanced(weights))).model.requires_grad_(False)
        self.layers = {name: layer for name, layer in attention_layers(self.model).items() if name in learning}
        self.parameters = {
            f"{layer_id}.{name}": parameter.requires_grad_()
            for layer_id, layer in self.layers.items()
            for name, parameter in layer.named_parameters()
            if name.startswith(SCORE_PARAMETERS)
        }
        self.pad = trained.task.target_dictionary.pad()
        sizes = [float(parameter.detach().square().mean().sqrt()) for parameter in self.parameters.values()]
        # steps as large as the numbers they change; what is zero becomes as large as the others
        pairs = zip(self.parameters.values(), sizes, strict=True)
        groups = [{"params": [parameter], "size": size or sum(sizes) / len(sizes)} for parameter, size in pairs]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))

    def step(self, sample: Mapping[str, Any], rate: float) -> Tuple[float, int]:
        """An update, its rate relative to the sizes of the parameters; returns the summed KL in nats and its tokens."""
        counted = sample["target"].ne(self.pad)
        with torch.no_grad():
            features = self.source(**sample["net_input"], features_only=True)[0]
            reference = torch.log_softmax(self.source.decoder.output_layer(features[counted]).float(), dim=-1)
        with torch.enable_grad():
            features = self.model(**sample["net_input"], features_only=True)[0]
            logits = self.model.decoder.output_layer(features[counted])
        with torch.no_grad():
            predicted = torch.log_softmax(logits.float(), dim=-1)
            p = reference.exp()
            total = float((p * (reference - predicted)).sum(dtype=torch.float64))
            gradient = predicted.exp_().sub_(p).div_(len(p))  # of the mean KL by the logits: p' − p
        self.optimizer.zero_grad()
        logits.backward(gradient.to(logits.dtype))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["size"]
        self.optimizer.step()
        return total, len(p)


def _balanced(weights: Mapping[str, ScoreWeights]) -> Dict[str, ScoreWeights]:
    return {name: scores._replace(heads=scores.heads.balanced()) for name, scores in weights.items()}


def _factor(step: int, steps: int) -> float:
    """Of the learning rate: a rise along a line, then a fall to zero along a cosine."""
    return min((step + 1) / max(1, round(_WARMUP * steps)), 0.5 * (1 + math.cos(math.pi * step / steps)))


def _shuffled(text: Sequence[Any], steps: int, seed: int) -> Iterator[Any]:
    """A batch for each step, every pass over the text in another order."""
    random = torch.Generator().manual_seed(seed)
    passes = (torch.randperm(len(text), generator=random).tolist() for _ in range(0, steps, len(text)))
    return (text[number] for number in itertools.islice(itertools.chain.from_iterable(passes), steps))


def distill(
    trained: TrainedModel,
    weights: Mapping[str, ScoreWeights],
    split: str,
    steps: int,
    *,
    max_tokens: int = 1000,
    rate: Optional[float] = None,
    seed: int = 1,
) -> Tuple[Dict[str, ScoreWeights], Dict[str, Any]]:
    """Train collaborative scores on the predictions of the source.

    Args:
        weights: ``site.layer`` → scores to start from. Layers whose key dim is the source's are exact and stay.
        split: the text with the source's translations (:func:`.text_of` with a seed); its batches come in random
            order, again and again, one of ``max_tokens`` a step.
        rate: learning rate of Adam relative to the size of each tensor, after a warm-up of a twentieth of the steps; it
            falls to zero along a cosine; None: 0.005. seed: of the order of batches.

    Returns:
        Scores of all layers of ``weights``, where the model came no closer those that it started from; and for records
        ``before`` and ``after``, KL(p ‖ p') in bits per target token on some of the text, ``curve``, of steps and the
        same on the batches since the point before, and ``cpu_seconds`` of this process.
    """
    rate = 5e-3 if rate is None else rate
    if steps < 1 or not rate > 0:
        raise ReparamError(f"distillation needs at least one step and a positive rate; got {steps} and {rate:g}")
    origin = sources(trained, list(weights))
    learning = [name for name in weights if weights[name].heads.rank < origin[name].heads.rank]
    if not learning:
        return dict(weights), {"before": 0.0, "after": 0.0, "curve": [], "cpu_seconds": 0.0}
    student = _Student(trained, weights, learning)
    text = list(batches(trained, split, max_tokens=max_tokens))
    curve, total, tokens, began = [], 0.0, 0, time.process_time()
    for step, sample in enumerate(_shuffled(text, steps, seed)):
        more, counted = student.step(sample, rate * _factor(step, steps))
        total, tokens = total + more, tokens + counted
        if (step + 1) % _STRIDE == 0 or step + 1 == steps:
            curve.append((step + 1, total / tokens / math.log(2)))
            logger.info("distillation: step %d of %d, divergence %.4f", step + 1, steps, curve[-1][1])
            total, tokens = 0.0, 0
    seconds = time.process_time() - began
    start = attention_layers(with_state(trained, converted(trained, weights)).model)
    variants = {"before": {name: start[name] for name in learning}, "after": student.layers}
    measured = divergences(trained, variants, split, sentences=_MEASURED)
    distilled = dict(weights)
    if measured["after"] < measured["before"]:  # else so close from the start that steps led away
        distilled.update(_balanced({name: scores_of(layer) for name, layer in student.layers.items()}))
    divergence = {"before": measured["before"], "after": min(measured.values())}
    return distilled, {**divergence, "curve": curve, "cpu_seconds": seconds}
