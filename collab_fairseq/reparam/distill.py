"""Distillation: joint training of all collaborative layers on the predictions of the source model.

For a source sentence x, a translation y is sampled from the source model p; no references are used. Training of the
converted model p' minimises

    Σ_t KL( p(· | x, y_<t) ‖ p'(· | x, y_<t) )

over the score parameters of its new layers (projections of queries and keys, mixing matrices, content biases); all
other parameters are frozen. By the chain rule, the mean over y is KL(p(y | x) ‖ p'(y | x)), the divergence of the
translations. Kim & Rush (2016), https://arxiv.org/abs/1606.07947, approximate it with the best translation only.
"""

import math
import time
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import torch

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.progress import Progress
from collab_fairseq.translation import TrainedModel, batches, with_state

from .allocation import divergences
from .fairseq import SCORE_PARAMETERS, converted_state, scores_by_layer
from .relative_adam import RATE, RelativeAdam, shuffled
from .scores import scores_of

# steps between two points of the learning curve
_LOG_INTERVAL = 50
#: tokens per training batch
BATCH_TOKENS = 1000
# number of sentences on which the divergence is measured before and after
_MEASURED = 200


class _Student:
    """The converted model and its optimizer.

    Args:
        learning: the layers that are trained. options: of :class:`.RelativeAdam`.
    """

    def __init__(
        self, trained: TrainedModel, weights: Mapping[str, ScoreWeights], learning: Sequence[str], **options: Any
    ) -> None:
        self.source: Any = trained.model
        self.model: Any = with_state(trained, converted_state(trained, _balanced(weights))).model.requires_grad_(False)
        self.layers = {name: layer for name, layer in attention_layers(self.model).items() if name in learning}
        self.pad = trained.task.target_dictionary.pad()
        named = [pair for layer in self.layers.values() for pair in layer.named_parameters()]
        parameters = [parameter for name, parameter in named if name.startswith(SCORE_PARAMETERS)]
        self.optimizer = RelativeAdam(parameters, **options)

    def step(self, sample: Mapping[str, Any]) -> Tuple[float, int]:
        """One update; returns the summed KL in nats and the number of tokens."""
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
            gradient = predicted.exp_().sub_(p).div_(len(p))  # of the mean KL with respect to the logits: p' − p
        self.optimizer.zero_grad()
        logits.backward(gradient.to(logits.dtype))
        self.optimizer.step()
        return total, len(p)


def _balanced(weights: Mapping[str, ScoreWeights]) -> Dict[str, ScoreWeights]:
    return {name: scores._replace(heads=scores.heads.balanced()) for name, scores in weights.items()}


def distill(
    trained: TrainedModel,
    weights: Mapping[str, ScoreWeights],
    split: str,
    steps: int,
    *,
    max_tokens: int = BATCH_TOKENS,
    rate: Optional[float] = None,
    seed: int = 1,
) -> Tuple[Dict[str, ScoreWeights], Dict[str, Any]]:
    """Train collaborative scores on the predictions of the source model.

    Args:
        weights: ``site.layer`` → initial scores. Layers with the key dimension of the source are exact and stay as they
            are.
        split: text with translations sampled from the source model (:func:`.text_of` with a seed). Each step uses a
            batch of ``max_tokens``, in random order.
        rate: Adam's peak learning rate, relative to the RMS of each tensor, with a linear warm-up in 5 % of the steps
            and cosine decay to zero; None: 0.005.
        seed: seed of the order of batches.

    Returns:
        The scores of all layers, or ``weights`` if training did not reduce the divergence; and measurements for
        records: ``before`` and ``after``, KL(p ‖ p') in bits per target token on the first 200 sentences; ``curve``,
        pairs of step and training divergence since the last point; ``cpu_seconds``, CPU time of this process.

    Raises:
        UserError: the model has an adaptive softmax.
    """
    trained.check_logits("distillation")
    rate = RATE if rate is None else rate
    if steps < 1 or not rate > 0:
        raise AttentionError(f"distillation needs at least one step and a positive rate; got {steps} and {rate:g}")
    origin = scores_by_layer(trained, list(weights))
    learning = [name for name in weights if weights[name].heads.rank < origin[name].heads.rank]
    if not learning:
        return dict(weights), {"before": 0.0, "after": 0.0, "curve": [], "cpu_seconds": 0.0}
    student = _Student(trained, weights, learning, rate=rate, steps=steps)
    samples = list(batches(trained, split, max_tokens=max_tokens))
    learning_curve, total, tokens = [], 0.0, 0
    began, note = time.process_time(), ""
    with Progress("distillation", steps, "steps") as progress:
        for step, sample in enumerate(shuffled(samples, steps, seed)):
            divergence, batch_tokens = student.step(sample)
            total += divergence
            tokens += batch_tokens
            if (step + 1) % _LOG_INTERVAL == 0 or step + 1 == steps:
                mean = total / tokens / math.log(2)
                learning_curve.append((step + 1, mean))
                note = f"divergence {mean:.4f}"
                total, tokens = 0.0, 0
            progress.advance(1, note)
    seconds = time.process_time() - began
    start = attention_layers(with_state(trained, converted_state(trained, weights)).model)
    variants = {"before": {name: start[name] for name in learning}, "after": student.layers}
    measured = divergences(trained, variants, split, sentences=_MEASURED, max_tokens=max_tokens)
    distilled = dict(weights)
    if measured["after"] < measured["before"]:
        distilled.update(_balanced({name: scores_of(layer) for name, layer in student.layers.items()}))
    measurements = {
        "before": measured["before"],
        "after": min(measured.values()),
        "curve": learning_curve,
        "cpu_seconds": seconds,
    }
    return distilled, measurements
