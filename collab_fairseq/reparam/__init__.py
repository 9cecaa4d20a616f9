"""Conversion of trained attention layers and models to collaborative heads, without retraining.

To convert whole models, use :func:`.pipeline.convert_model` (fairseq) and :func:`.huggingface.to_collaborative`.
"""

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import HeadFactors, ScoreWeights, relative_error, standard_heads

from .calibrate import Calibration, Calibrator
from .scores import ScoreFit, collaborative_layer, fit_layers, fit_scores, scores_of
from .solver import Decomposition, decompose

__all__ = [
    "AttentionError",
    "Calibration",
    "Calibrator",
    "Decomposition",
    "HeadFactors",
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
