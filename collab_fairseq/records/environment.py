"""Software and hardware of this machine, without its name or paths."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
from typing import Any, Dict, Optional

from fairseq_modern import processor

PACKAGES = (
    "torch",
    "fairseq",
    "numpy",
    "sacrebleu",
    "sacremoses",
    "sentencepiece",
    "hydra-core",
    "omegaconf",
    "collab_fairseq",
    "ctranslate2",
)


def provenance(folder: str, *, device: Any, threads: Optional[int] = None) -> Dict[str, Any]:
    """The fields `created`, `versions`, `commit` and `hardware` of records.

    Args:
        folder: of the code, for its commit.
        device: of torch.
        threads: number of CPU threads (default: torch's number).
    """
    import torch

    return {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "commit": commit(folder),
        "hardware": {
            **hardware(),
            "threads": threads or torch.get_num_threads(),
            "device": "cpu" if str(device) == "cpu" else "gpu",
        },
    }


def version(package: str) -> Optional[str]:
    """The version of a package; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def commit(folder: str) -> Dict[str, Any]:
    """The git commit of `folder` and whether tracked files differ from it; both None outside a repository.

    A folder without tracked files, such as a virtual environment within a checkout, counts as outside.
    """
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if _git(folder, "ls-files"):
            changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return {"id": _git(folder, "rev-parse", "HEAD"), "modified": changes != ""}
    return {"id": None, "modified": None}


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def usable_gpus() -> int:
    """The number of GPUs that torch can use."""
    import torch

    # device_count also counts GPUs whose driver is too old for torch
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def hardware() -> Dict[str, Any]:
    """CPU, cores, memory in bytes, and the GPUs that torch can use."""
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(usable_gpus())]
    return {
        "cpu": processor.name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus],
    }
