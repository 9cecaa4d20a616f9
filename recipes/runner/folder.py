"""Folder of a run: it belongs to one run, and one process at a time uses it."""

import contextlib
import hashlib
import logging
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator

import yaml
from omegaconf import OmegaConf

from collab_fairseq.files import write_text
from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS, acquire_lock, read_checksums, remove_stale_temp_files

logger = logging.getLogger("recipe")

#: files of a run that belong to its settings
RESULTS = ("checkpoints/*.pt", "averaged*.pt", "*.generate.log", "record*.json")


def fingerprint(data: Path) -> str:
    """Identifies the prepared data: SHA-256 of the names and checksums of all files."""
    return summary(read_checksums(data / CHECKSUMS))


def summary(checksums: Dict[str, str]) -> str:
    """SHA-256 of names and checksums of files."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(checksums.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_output(folder: Path) -> None:
    """Check that a folder is writable, or that it can be made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions do not show read-only disks and quotas
    except OSError as error:
        raise UserError(f"--output must be a writable folder; got {folder} ({error.strerror})") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs, and remove temporary files of killed ones.

    Raises:
        UserError: another run is still active there after a minute.
    """
    check_output(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = acquire_lock(str(folder / ".run.lock"), lambda: logger.info("waiting for another run in %s", folder))
    except TimeoutError as error:
        raise UserError(f"another run is active in {folder}; wait until it ends, or give another --output") from error
    try:
        remove_stale_temp_files(str(folder))
        remove_stale_temp_files(str(folder / "hypotheses"))
        yield
    finally:
        lock.release()


def kept_settings(folder: Path) -> Dict[str, Any]:
    """The settings of the run in a folder; empty if there is no run.

    Raises:
        UserError: the file is damaged, or missing although there are results.
    """
    file = folder / "settings.yaml"
    if file.exists():
        settings = None
        with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(settings, dict) and settings:
            return settings
        state = "damaged or empty"
    else:
        results = [path for pattern in RESULTS for path in sorted(folder.glob(pattern))]
        if not results:
            return {}
        state = f"missing next to {results[0].relative_to(folder)}"
    raise UserError(
        f"{file} is {state}, so the settings of this run are unknown; restore the file, "
        f"or start again: mv {folder} {folder}.damaged"
    )


def keep_settings(folder: Path, settings: Dict[str, Any]) -> None:
    """Write the settings that identify a run. A run that is already in the folder must have the same settings.

    Raises:
        UserError: it has different settings, which the message lists.
    """
    existing = kept_settings(folder)
    if existing:
        check_settings(folder, existing, settings)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(_yaml(settings), folder / "settings.yaml")


def check_settings(folder: Path, existing: Dict[str, Any], settings: Dict[str, Any]) -> None:
    """Check that the `existing` settings of the run in a folder are the requested ones.

    Raises:
        UserError: lists those that differ.
    """
    requested = yaml.safe_load(_yaml(settings))
    differences = [
        f"{name} {existing.get(name)} (requested: {requested.get(name)})"
        for name in {**existing, **requested}
        if existing.get(name) != requested.get(name)
    ]
    if differences:
        listed = ", ".join(differences)
        raise UserError(
            f"{folder} has a run with different settings: {listed}; use its settings, or give another --output"
        )


def _yaml(settings: Dict[str, Any]) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(settings))
