"""Correlation of two series of numbers."""

import numpy as np


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's r; 0 where one side is constant."""
    if predicted.std() == 0 or labels.std() == 0:
        return 0.0
    return float(np.corrcoef(predicted, labels)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's r of the ranks."""
    return pearson(ranks(predicted), ranks(labels))
