"""Recipes: experiments from data to record. `python -m recipes NAME [STEP] [OPTIONS]`, or recipes/NAME/run.sh."""
