"""Recipes: experiments from data to record. `python -m recipes NAME [STEP] [OPTIONS]`, or recipes/NAME/run.sh."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
