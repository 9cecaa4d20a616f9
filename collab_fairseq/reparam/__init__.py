"""Trained attention layers and models turned into collaborative ones, without retraining."""

from typing import Any

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
    "convert_model",
    "decompose",
    "fit_layers",
    "fit_scores",
    "relative_error",
    "scores_of",
    "standard_heads",
]


def __getattr__(name: str) -> Any:
    if name == "convert_model":  # the one that needs fairseq
        from .pipeline import convert_model

        return convert_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
