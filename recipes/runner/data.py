"""Data of a run: prepared if missing, verified by checksums before they are used."""

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
    """Compare the data with their checksums.

    Raises:
        UserError: a file is missing or damaged, a file of data-bin or raw is not listed, or there are no checksums.
    """
    try:
        damaged = damaged_files(run.data)
    except FileNotFoundError as error:
        raise UserError(f"{run.data} has no {CHECKSUMS}; {_remedy(run)}") from error
    if damaged:
        raise UserError(f"{run.data / damaged[0]} is missing, damaged or not listed in {CHECKSUMS}; {_remedy(run)}")


def _remedy(run: RecipeRun) -> str:
    return f"prepare the data again: {run.recipe.prepare} --output {run.data} --force"
