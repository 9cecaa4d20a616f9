"""A synthetic task for heads with shared attributes: `python -m recipes lookup`."""
