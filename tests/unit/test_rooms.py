"""Which part of the project may know which other part, and what importing it may cost."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, Set

import pytest

from tests.common import ROOT

#: rooms that know nothing of the project: any room may import them
FOR_ALL = {"attention", "checkpoints", "scoring"}

#: any other room → the rooms that it may import besides itself and those; all of them stand above it, so that no arrow
#: runs upwards and none in a circle. The command line may import all
MAY_IMPORT: Dict[str, Set[str]] = {
    "doctor": set(),
    "records": set(),
    "modules": set(),
    "training": {"modules"},
    "search": {"modules"},
    "models": {"modules", "training", "search"},
    "translation": {"models"},
    "huggingface": set(),
    "reparam": {"modules", "records", "translation", "huggingface"},
    "heads": {"modules", "records", "translation", "huggingface"},
    "export": {"modules", "models", "records", "translation"},
    "bench": {"modules", "training", "search", "models", "records"},
    "__init__": {"translation", "export"},
}

#: what the layers may import besides torch
STANDARD_LIBRARY = {"contextlib", "functools", "math", "typing"}

#: what the project may import of fairseq_modern: the switch of fault tolerance, the list of classes in checkpoints, the
#: atomic writer, temporary files, checksums, facts about the CPU
MODERN = {
    "fairseq_modern.fault_tolerance", "fairseq_modern.loading", "fairseq_modern.errors.CheckpointError",
    "fairseq_modern.errors.UserError", "fairseq_modern.errors.is_user_error",
    "fairseq_modern.saving.checkpoint_file", "fairseq_modern.files.atomic_write", "fairseq_modern.files.sha256",
    "fairseq_modern.files.CHECKSUMS", "fairseq_modern.files.read_checksums", "fairseq_modern.files.damaged_files",
    "fairseq_modern.files.PathLike", "fairseq_modern.files.hold", "fairseq_modern.files.remove_stale_temp_files",
    "fairseq_modern.files.temporary_name", "fairseq_modern.encoder_layer.SURPLUS", "fairseq_modern.processor",
}  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, wherever in the file."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(package: str):
    return sorted((ROOT / package).rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "collab_fairseq").parts[0].removesuffix(".py")


def rooms_imported_by(path: Path) -> Set[str]:
    """The other rooms that a file imports."""
    names = (name.split(".") for name in imported(path))
    return {parts[1] for parts in names if parts[0] == "collab_fairseq" and len(parts) > 1} - {room_of(path)}


def test_no_arrow_runs_upwards():
    rooms = list(MAY_IMPORT)
    for number, room in enumerate(rooms):
        assert MAY_IMPORT[room] <= set(rooms[:number]), f"{room} may import only what stands above it"


def test_no_file_imports_in_a_circle():
    paths = [*files("collab_fairseq"), *files("fairseq_modern")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph = {}
    for name, path in names.items():
        found = {each if each in names else each.rpartition(".")[0] for each in imported(path)}
        # a package is no part of a circle through the files in it
        graph[name] = {other for other in found & set(names) if not f"{name}.".startswith(f"{other}.")}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(paths) > 100


@pytest.mark.parametrize("path", files("collab_fairseq"), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_know_only_the_rooms_they_may(path):
    room = room_of(path)
    names = set(imported(path))
    modern = {name for name in names if name.split(".")[0] == "fairseq_modern"}
    assert modern <= MODERN, "of fairseq_modern only what MODERN has"
    if room == "cli":
        return
    assert rooms_imported_by(path) <= (set() if room in FOR_ALL else MAY_IMPORT[room] | FOR_ALL)
    if room == "attention":
        outside = {name.split(".")[0] for name in names} - {"collab_fairseq", "torch", *STANDARD_LIBRARY}
        assert not outside, f"attention is torch only, but imports {outside}"


@pytest.mark.parametrize("path", files("fairseq_modern"), ids=lambda p: str(p.relative_to(ROOT)))
def test_fairseq_modern_knows_nothing_of_the_project(path):
    assert "collab" not in path.read_text(encoding="utf-8")


def test_layers_do_not_import_fairseq():
    code = "import sys; import collab_fairseq.attention; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"fairseq", "hydra", "omegaconf"} & set(done.stdout.split())
