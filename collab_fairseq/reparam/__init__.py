"""Trained attention layers and models turned into collaborative ones, without retraining.

Whole models: :func:`.pipeline.convert_model` those of fairseq, :func:`.huggingface.to_collaborative` others.
"""

from collab_fairseq.attention.factors import HeadFactors, ReparamError, ScoreWeights, relative_error, standard_heads

from .calibrate import Calibration, Calibrator
from .scores import ScoreFit, collaborative_layer, fit_layers, fit_scores, scores_of
from .solver import Decomposition, decompose

__all__ = [
    "Calibration",
    "Calibrator",
    "Decomposition",
    "HeadFactors",
    "ReparamError",
    "ScoreFit",
    "ScoreWeights",
    "collaborative_layer",
    "decompose",
    "fit_layers",
    "fit_scores",
    "relative_error",
    "scores_of",
    "standard_heads",
]
