"""Checks whether this machine is ready for a recipe. Each check returns a finding and, if necessary, advice.

`make demo` is a trial run. The checks need only the standard library, so that they can report missing packages.
"""

import importlib
import os
import platform
import shutil
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional

from collab_fairseq.records import environment
from fairseq_modern import processor
from fairseq_modern.files import CHECKSUMS, damaged_files, read_checksums

FAIRSEQ = "0.12.2"
#: free bytes below which `disk` warns: one run of recipes/wmt14_en_de needs them
DISK = 28e9


class Finding(NamedTuple):
    """A line of the report; status: ok, warn or fail."""

    name: str
    status: str
    text: str
    advice: str = ""


def examine(data_bin: Optional[str] = None) -> Iterator[Finding]:
    """The findings of all checks; ``data_bin``: also check this output folder of fairseq-preprocess."""
    yield Finding("Python", "ok", platform.python_version())  # pip has checked that it is supported
    yield packages()
    yield fairseq()
    yield from torch_and_gpus()
    yield cpu()
    yield compiler()
    yield checkout()
    if data_bin:
        yield data(Path(data_bin))
    yield disk()


def packages() -> Finding:
    """The requirements of setup.py."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(line) for line in metadata.requires("collab_fairseq") or []]
    except ImportError as error:  # PackageNotFoundError is a subclass
        return Finding("packages", "fail", str(error), "pip install packaging, and this project (README.md)")
    required = [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    problems, wanted = [], []
    for requirement in required:
        version = environment.version(requirement.name)
        if not version or not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version or 'is not installed'}")
            wanted.append(f'"{requirement}"')
    if problems:
        return Finding("packages", "fail", ", ".join(problems), f"pip install {' '.join(wanted)}")
    return Finding("packages", "ok", f"all {len(required)} packages required by setup.py")


def fairseq() -> Finding:
    """fairseq, which current Python versions can import only with the patches of fairseq_modern."""
    version = environment.version("fairseq")
    install = f"pip install --no-deps fairseq=={FAIRSEQ} (docs/install.md has all steps)"
    if not version:
        return Finding("fairseq", "fail", "is not installed", install)
    try:
        importlib.import_module("fairseq.models")
    except Exception as error:
        advice = "fairseq_modern must be active: install this project with pip, and unset FAIRSEQ_MODERN"
        return Finding("fairseq", "fail", f"{type(error).__name__}: {error}", advice)
    try:
        importlib.import_module("fairseq.data.data_utils_fast")  # which fairseq imports in the first batch
    except Exception as error:
        advice = f"compile it for this NumPy: pip install --force-reinstall --no-cache-dir --no-deps fairseq=={FAIRSEQ}"
        return Finding("fairseq", "fail", f"{type(error).__name__}: {error}", advice)
    if version != FAIRSEQ:
        return Finding("fairseq", "warn", f"must be {FAIRSEQ}, the tested version; got {version}", install)
    return Finding("fairseq", "ok", version)


def torch_and_gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # ImportError, or OSError of a library
        text = f"{type(error).__name__}: {error}"
        yield Finding("torch", "fail", text, "install torch 2.6 or newer for this Python (README.md)")
        return
    yield Finding("torch", "ok", str(torch.__version__))
    with warnings.catch_warnings(record=True) as caught:  # of an old driver
        warnings.simplefilter("always")
        number = environment.usable_gpus()
    if number == 0:
        advice = "training runs on the CPU, which is enough for make demo and rehearsals"
        if os.path.exists("/proc/driver/nvidia/version"):
            advice = "an NVIDIA driver is loaded: check CUDA_VISIBLE_DEVICES; install torch for the CUDA of nvidia-smi"
        text = "; ".join(["torch sees none", *(str(warning.message) for warning in caught)])
        yield Finding("GPUs", "warn", text, advice)
    for index in range(number):
        yield gpu(torch, index)


def gpu(torch: Any, index: int) -> Finding:
    """A GPU, tested with one matrix product, and the precision that recipes select for it."""
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    precision = "bf16" if capability >= (8, 0) else "fp16"  # native bf16 support starts with Ampere
    memory = properties.total_memory / 2**30
    text = f"{properties.name}, {memory:.1f} GiB, compute capability {capability[0]}.{capability[1]}, {precision}"
    try:
        ones = torch.ones(8, 8, device=f"cuda:{index}")
        (ones @ ones).sum().item()
    except RuntimeError as error:
        advice = "check whether another program uses it (nvidia-smi), or install a newer torch"
        if capability < (7, 5):  # unsupported by builds for CUDA 12.8 and newer
            advice = "install torch 2.6 or 2.7, or a newer one built for CUDA 12.6: they support this GPU"
        return Finding(f"GPU {index}", "fail", f"{text}; {str(error).strip().splitlines()[0]}", advice)
    return Finding(f"GPU {index}", "ok", text)


def cpu() -> Finding:
    units = " and ".join(processor.bfloat16_units())
    precision = f"native bf16 support ({units}): --amp" if units else "no native bf16 support: trains in fp32"
    return Finding("CPU", "ok", f"{processor.name()}, {precision}")


def compiler() -> Finding:
    """The C++ compiler, needed to build fairseq and for --compile."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(name.split()[0])
    if path is None:
        return Finding("compiler", "warn", f"{name} is not installed", "install it, or set CXX; --compile needs it")
    return Finding("compiler", "ok", path)


def checkout() -> Finding:
    """The parts of the repository that an installed wheel lacks."""
    root = Path(__file__).resolve().parents[1]
    missing = [name for name in ("recipes", "data_prep", "results") if not (root / name).is_dir()]
    if missing:
        text = f"{root} has no {', '.join(missing)}: the installed package is the library only"
        return Finding("checkout", "warn", text, "clone the repository for recipes and trained models")
    return Finding("checkout", "ok", str(root))


def data(data_bin: Path) -> Finding:
    """The files of a data-bin, compared with the SHA256SUMS in it or in its parent folder."""
    if not any(data_bin.glob("dict.*.txt")):
        return Finding(
            "data", "fail", f"{data_bin} has no dict.LANG.txt", "pass the output folder of fairseq-preprocess"
        )
    folders = [folder for folder in (data_bin, data_bin.absolute().parent) if (folder / CHECKSUMS).is_file()]
    if not folders:
        return Finding("data", "warn", f"there is no {CHECKSUMS} to compare with", "create one with sha256sum")
    listing, remedy = folders[0] / CHECKSUMS, "prepare the data again (data_prep)"
    try:
        part = os.path.relpath(data_bin, folders[0])
        names, damaged = read_checksums(listing), damaged_files(folders[0], complete=[part])
    except ValueError:
        return Finding("data", "fail", f"{listing} must have a checksum and a name per line", remedy)
    if not any(data_bin.absolute() in (folders[0].absolute() / name).parents for name in names):
        return Finding("data", "fail", f"{listing} has no files of {data_bin}", remedy)
    if damaged:
        return Finding("data", "fail", f"{', '.join(damaged[:3])}: not as in {listing}", remedy)
    return Finding("data", "ok", f"all {len(names)} files as in {listing}")


def disk() -> Finding:
    """The free space in the current folder; quotas are not visible."""
    free = shutil.disk_usage(".").free
    text = f"{free / 1e9:.0f} GB free in {os.getcwd()}"
    if free < DISK:
        return Finding("disk", "warn", text, f"a WMT14 run needs {DISK / 1e9:.0f} GB (docs/cluster.md)")
    return Finding("disk", "ok", text)
