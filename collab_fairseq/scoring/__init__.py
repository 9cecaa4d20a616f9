"""Scores of translations against references, with confidence intervals and significance tests."""
