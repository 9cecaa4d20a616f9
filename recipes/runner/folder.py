"""The folder of a run: it belongs to one run, and one process at a time works in it."""

import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator

import yaml
from omegaconf import OmegaConf

from collab_fairseq.records.files import write_text
from fairseq_modern.files import acquire_lock, remove_stale_temp_files

from .settings import RecipeError

logger = logging.getLogger("recipe")

#: what a run leaves that is worthless under other settings
RESULTS = ("checkpoints/*.pt", "averaged*.pt", "*.generate.log", "record*.json")


def check_output(folder: Path) -> None:
    """See that a folder of results can be written to, or made.

    Raises:
        RecipeError: naming the folder.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell of read-only disks and quotas
    except OSError as error:
        raise RecipeError(
            f"--output must be a folder that can be written to; got {folder} ({error.strerror})"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder, and remove what a killed one was writing.

    Raises:
        RecipeError: another run is active there, and was a minute later.
    """
    check_output(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = acquire_lock(str(folder / ".run.lock"), lambda: logger.info("waiting for another run in %s", folder))
    except TimeoutError as error:
        raise RecipeError(f"another run is active in {folder}; wait until it ends, or give another --output") from error
    try:
        for each in (folder, folder / "hypotheses"):
            remove_stale_temp_files(str(each))
        yield
    finally:
        lock.release()


def kept_settings(folder: Path) -> Dict[str, Any]:
    """The settings of the run that a folder holds; empty if it holds none.

    Raises:
        RecipeError: the file is damaged, or missing although there are results.
    """
    file = folder / "settings.yaml"
    settings = None
    if file.is_file():
        try:
            settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, yaml.YAMLError):
            settings = "damaged"
    if isinstance(settings, dict) and settings:
        return settings
    results = [path for pattern in RESULTS for path in sorted(folder.glob(pattern))]
    if file.exists() or results:
        state = "damaged or empty" if file.exists() else f"missing next to {results[0].relative_to(folder)}"
        raise RecipeError(
            f"{file} is {state}, so the settings of this run are unknown; restore the file, "
            f"or start again: mv {folder} {folder}.damaged"
        )
    return {}


def keep_settings(folder: Path, settings: Dict[str, Any]) -> None:
    """Note what identifies the run. A run that the folder already holds must have the same settings.

    Raises:
        RecipeError: the folder holds a run with other settings, which are named; see also `kept_settings`.
    """
    text = OmegaConf.to_yaml(OmegaConf.create(settings))
    requested = yaml.safe_load(text)
    existing = kept_settings(folder)
    if not existing:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(text, folder / "settings.yaml")
        return
    different = [name for name in {**existing, **requested} if existing.get(name) != requested.get(name)]
    if different:
        listed = ", ".join(f"{name} {existing.get(name)} (requested: {requested.get(name)})" for name in different)
        raise RecipeError(f"{folder} holds a run with other settings: {listed}; give them, or another --output")
