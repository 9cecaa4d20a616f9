"""The demo: `python -m recipes demo`."""
