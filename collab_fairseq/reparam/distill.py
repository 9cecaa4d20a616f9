"""Distillation: joint training of all collaborative layers on the predictions of the source model.

For a source sentence x, a translation y is sampled from the source model p; no references are used. Training of the
converted model p' minimises

    Σ_t KL( p(· | x, y_<t) ‖ p'(· | x, y_<t) )

over the score parameters of its new layers (projections of queries and keys, mixing matrices, content biases); all
other parameters are frozen. By the chain rule, the mean over y is KL(p(y | x) ‖ p'(y | x)), the divergence of the
translations. Kim & Rush (2016), https://arxiv.org/abs/1606.07947, approximate it with the best translation only.
"""

import math
from functools import partial
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches, with_state

from .allocation import divergences
from .fairseq import SCORE_PARAMETERS, converted_state, scores_by_layer
from .training import RATE, train

#: tokens per training batch
BATCH_TOKENS = 1000
# number of sentences on which the divergence is measured before and after
_MEASURED = 200


def _backward(source: Any, student: Any, pad: int, sample: Mapping[str, Any]) -> Tuple[float, int]:
    """Add the gradient of the mean KL of a batch to the student's; returns the summed KL in nats, and the tokens."""
    counted = sample["target"].ne(pad)
    with torch.no_grad():
        features = source(**sample["net_input"], features_only=True)[0]
        reference = torch.log_softmax(source.decoder.output_layer(features[counted]).float(), dim=-1)
    with torch.enable_grad():
        features = student(**sample["net_input"], features_only=True)[0]
        logits = student.decoder.output_layer(features[counted])
    with torch.no_grad():
        predicted = torch.log_softmax(logits.float(), dim=-1)
        p = reference.exp()
        total = float((p * (reference - predicted)).sum(dtype=torch.float64))
        gradient = predicted.exp_().sub_(p).div_(len(p))  # of the mean KL with respect to the logits: p' − p
    logits.backward(gradient.to(logits.dtype))
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
    student = with_state(trained, converted_state(trained, _balanced(weights))).model.requires_grad_(False)
    layers = {name: layer for name, layer in attention_layers(student).items() if name in learning}
    named = [pair for layer in layers.values() for pair in layer.named_parameters()]
    parameters = [parameter for name, parameter in named if name.startswith(SCORE_PARAMETERS)]
    backward = partial(_backward, trained.model, student, trained.task.target_dictionary.pad())
    samples = list(batches(trained, split, max_tokens=max_tokens))
    learning_curve, seconds = train(parameters, backward, samples, rate=rate, steps=steps, seed=seed, unit=math.log(2))
    start = attention_layers(with_state(trained, converted_state(trained, weights)).model)
    variants = {"before": {name: start[name] for name in learning}, "after": layers}
    measured = divergences(trained, variants, split, sentences=_MEASURED, max_tokens=max_tokens)
    distilled = dict(weights)
    if measured["after"] < measured["before"]:
        distilled.update(_balanced({name: layer.score_weights() for name, layer in layers.items()}))
    after = min(measured.values())
    return distilled, {"before": measured["before"], "after": after, "curve": learning_curve, "cpu_seconds": seconds}
