"""Data of a run: prepared if missing, verified by checksums before they are used."""

import contextlib
import json
from typing import Dict, List

from collab_fairseq.files import write_text
from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS, damaged_files

from .launch import run_logged
from .recipe_run import RecipeRun
from .settings import ROOT


def prepare(run: RecipeRun) -> None:
    """Prepare the data if they are missing."""
    if (run.data / "data-bin").is_dir() and (run.data / "prepared.txt").is_file():
        return
    corpus = [run.recipe.source_option, run.recipe.corpus] if run.recipe.corpus else []
    if run_logged([ROOT / run.recipe.prepare, "--output", run.data, *corpus]):
        raise UserError("the data could not be prepared (see above)")


def verify(run: RecipeRun) -> None:
    """Compare the data with their checksums. Files that have not changed since the last time are not read again.

    Raises:
        UserError: a file is missing or damaged, a file of data-bin or raw is not listed, or there are no checksums.
    """
    stamps = run.output / "verified.json"
    verified: Dict[str, List[int]] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # a missing or damaged cache
        verified = dict(json.loads(stamps.read_text(encoding="utf-8")))
    try:
        damaged = damaged_files(run.data, verified)
    except FileNotFoundError as error:
        raise UserError(f"{run.data} has no {CHECKSUMS}; {_remedy(run)}") from error
    if damaged:
        raise UserError(f"{run.data / damaged[0]} is missing, damaged or not listed in {CHECKSUMS}; {_remedy(run)}")
    write_text(json.dumps(verified, indent=1), stamps)


def _remedy(run: RecipeRun) -> str:
    return f"prepare the data again: {run.recipe.prepare} --output {run.data} --force"
