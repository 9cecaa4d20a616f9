"""Training on your own text: `python -m recipes own`."""
