"""Import rules: which package of the project may import which others, and the third-party imports of the layers."""

import ast
import graphlib
import re
from pathlib import Path
from typing import Dict, Iterator, Set

import pytest

from tests.common import ROOT

#: packages that import nothing else of the project; any package may import them
FOR_ALL = {"attention", "checkpoints", "files", "progress", "scoring"}

#: any other package → the packages that it may import besides itself and those above; only earlier entries, so that
#: there are no cycles. The command line may import all
MAY_IMPORT: Dict[str, Set[str]] = {
    "records": set(),
    "doctor": {"records"},
    "modules": set(),
    "training": {"modules"},
    "search": {"modules"},
    "models": {"modules", "training", "search"},
    "translation": {"models"},
    "huggingface": set(),
    "reparam": {"modules", "records", "translation", "huggingface"},
    "heads": {"modules", "records", "translation", "huggingface"},
    "export": {"modules", "training", "models", "records", "translation"},
    "__init__": {"translation", "export"},
}

#: packages of the repository → those that they may import
PACKAGES = {
    "fairseq_modern": set(),
    "collab_fairseq": {"fairseq_modern"},
    "data_prep": {
        "collab_fairseq.cli.main", "collab_fairseq.cli.options", "collab_fairseq.scoring.references", "fairseq_modern",
    },
    "recipes": {"collab_fairseq", "data_prep", "fairseq_modern"},
}  # fmt: skip

#: imports of the layers besides torch
STANDARD_LIBRARY = {"contextlib", "functools", "math", "typing"}

#: imports from fairseq_modern that the project may use
MODERN = {
    "fairseq_modern.fault_tolerance", "fairseq_modern.loading", "fairseq_modern.errors.UserError",
    "fairseq_modern.errors.is_user_error",
    "fairseq_modern.saving.checkpoint_file", "fairseq_modern.files.atomic_write", "fairseq_modern.files.sha256",
    "fairseq_modern.files.CHECKSUMS", "fairseq_modern.files.read_checksums", "fairseq_modern.files.damaged_files",
    "fairseq_modern.files.PathLike", "fairseq_modern.files.new_folder",
    "fairseq_modern.encoder_layer.SURPLUS", "fairseq_modern.processor",
}  # fmt: skip


def imports_of(path: Path) -> Iterator[str]:
    """Absolute names of all modules and names that a file imports, anywhere in the file."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(folder: str):
    return sorted((ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT / "collab_fairseq").parts[0].removesuffix(".py")


def test_allowed_imports_have_no_cycles():
    packages = list(MAY_IMPORT)
    for number, package in enumerate(packages):
        assert MAY_IMPORT[package] <= set(packages[:number]), f"{package} may import only packages listed before it"


def test_modules_have_no_import_cycles():
    paths = [path for package in PACKAGES for path in files(package)]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph = {}
    for module, path in modules.items():
        imported = {name if name in modules else name.rpartition(".")[0] for name in imports_of(path)}
        # a module may import from its own package
        graph[module] = {other for other in imported & set(modules) if not f"{module}.".startswith(f"{other}.")}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(paths) > 100


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_of_the_repository(package):
    allowed = {package, *PACKAGES[package]}
    for path in files(package):
        names = [name for name in imports_of(path) if name.partition(".")[0] in PACKAGES]
        others = [name for name in names if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)]
        assert others == [], path
        assert not re.search(r"sys\.path\.(insert|append)", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("path", files("collab_fairseq"), ids=lambda p: str(p.relative_to(ROOT)))
def test_packages_import_only_allowed_packages(path):
    package = package_of(path)
    parts = [name.split(".") for name in imports_of(path)]
    modern = {".".join(name) for name in parts if name[0] == "fairseq_modern"}
    assert modern <= MODERN
    if package == "cli":
        return
    imported = {name[1] for name in parts if name[0] == "collab_fairseq" and len(name) > 1} - {package}
    assert imported <= (set() if package in FOR_ALL else MAY_IMPORT[package] | FOR_ALL)
    if package == "attention":
        assert {name[0] for name in parts} <= {"collab_fairseq", "torch", *STANDARD_LIBRARY}


@pytest.mark.parametrize("path", files("fairseq_modern"), ids=lambda p: str(p.relative_to(ROOT)))
def test_fairseq_modern_does_not_mention_this_project(path):
    assert "collab" not in path.read_text(encoding="utf-8")
