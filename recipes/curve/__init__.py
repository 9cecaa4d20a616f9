"""Loss against key dimension: `python -m recipes curve`."""
