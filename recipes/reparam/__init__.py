"""Conversion study of a trained model: `python -m recipes reparam`."""
