"""BERT on GLUE: `python -m recipes glue`."""
