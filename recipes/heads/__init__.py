"""Head analyses of a trained model: `python -m recipes heads`."""
