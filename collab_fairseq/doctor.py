"""Is this machine ready for a recipe? Each check yields a `Finding`: what it found, and what to do if that is bad.

A trial run is `make demo`. Importing this file needs the standard library alone.
"""

import importlib
import os
import shutil
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from fairseq_modern import processor
from fairseq_modern.files import CHECKSUMS, damaged_files, read_checksums

FAIRSEQ = "0.12.2"
#: free bytes below which the disk is a warning: what one run of recipes/wmt14_en_de keeps
DISK = 28e9


class Finding(NamedTuple):
    """A line of the report."""

    name: str
    status: str  # ok, warn or fail
    text: str
    advice: str = ""  # what to do; empty if there is nothing to do


def examine(data_bin: Optional[str] = None) -> Iterator[Finding]:
    """All checks, those first that make others fail; ``data_bin``: a folder of fairseq-preprocess to check, too."""
    yield python(sys.version_info[:3])
    yield packages()
    yield fairseq()
    yield from torch_and_gpus()
    yield cpu()
    yield compiler()
    if data_bin:
        yield data(Path(data_bin))
    yield disk()


def installed(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def python(version: Sequence[int]) -> Finding:
    """The version of Python, three numbers."""
    text = ".".join(map(str, version))
    if (3, 10) <= tuple(version) < (3, 14):
        return Finding("Python", "ok", text)
    return Finding("Python", "fail", f"must be 3.10 to 3.13; got {text}", "make setup PYTHON=python3.12")


def packages() -> Finding:
    """The packages that setup.py asks for, by their versions."""
    try:
        from packaging.requirements import Requirement

        lines = metadata.requires("collab_fairseq") or []
    except ImportError as error:  # PackageNotFoundError is one
        return Finding("packages", "fail", str(error), "pip install packaging, and this project (README.md)")
    requirements = [Requirement(line) for line in lines]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    versions = {r.name: installed(r.name) for r in needed}
    wrong = [r for r in needed if not versions[r.name] or not r.specifier.contains(versions[r.name], prereleases=True)]
    if not wrong:
        return Finding("packages", "ok", f"all {len(needed)} that setup.py asks for")
    text = ", ".join(f"{r.name} {versions[r.name] or 'is not installed'}" for r in wrong)
    return Finding("packages", "fail", text, "pip install " + " ".join(f'"{r}"' for r in wrong))


def fairseq() -> Finding:
    """fairseq, which imports on current Python versions only with the patches of fairseq_modern."""
    version = installed("fairseq")
    install = f"pip install --no-deps fairseq=={FAIRSEQ} (README.md has the order)"
    if not version:
        return Finding("fairseq", "fail", "is not installed", install)
    try:
        importlib.import_module("fairseq.models")
    except Exception as error:  # whatever is broken
        advice = "fairseq_modern must be active: install this project with pip, and unset FAIRSEQ_MODERN"
        return Finding("fairseq", "fail", f"{type(error).__name__}: {error}", advice)
    if version != FAIRSEQ:
        return Finding("fairseq", "warn", f"must be {FAIRSEQ}, the version tested; got {version}", install)
    return Finding("fairseq", "ok", version)


def torch_and_gpus() -> Iterator[Finding]:
    """torch's build, and each GPU with the precision that fits it."""
    try:
        import torch
    except Exception as error:  # ImportError, or OSError of a library
        text = f"{type(error).__name__}: {error}"
        yield Finding("torch", "fail", text, "install torch 2.6 or newer for this Python (README.md)")
        return
    yield Finding("torch", "ok", str(torch.__version__))  # with the build: 2.13.0+cu130
    with warnings.catch_warnings(record=True) as caught:  # of a driver that is too old or does not answer
        warnings.simplefilter("always")
        number = torch.cuda.device_count()
    if number == 0:
        advice = "training runs on the CPU: enough for make demo and rehearsals"
        if os.path.exists("/proc/driver/nvidia/version"):  # a CPU build, a hidden GPU, a build too new for the driver
            advice = "there is an NVIDIA driver: look at CUDA_VISIBLE_DEVICES, install a torch for nvidia-smi's CUDA"
        text = "; ".join(["torch sees none", *(str(warning.message) for warning in caught)])
        yield Finding("GPUs", "warn", text, advice)
    for index in range(number):
        yield gpu(torch, index)


def gpu(torch: Any, index: int) -> Finding:
    """A GPU, tried with one matrix product."""
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    precision = "bf16" if capability >= (8, 0) else "fp16"  # native bf16 support begins with Ampere
    memory = properties.total_memory / 2**30
    text = f"{properties.name}, {memory:.1f} GiB, compute capability {capability[0]}.{capability[1]}, {precision}"
    try:
        ones = torch.ones(8, 8, device=f"cuda:{index}")
        (ones @ ones).sum().item()
    except RuntimeError as error:  # such as "no kernel image is available for execution on the device"
        advice = "is another program using it (nvidia-smi)? Else install a newer torch"
        if capability < (7, 5):  # builds for CUDA 12.8 and newer do not support them
            advice = "install torch 2.6 or 2.7, or a newer one built for CUDA 12.6: they support this GPU"
        return Finding(f"GPU {index}", "fail", f"{text}; {str(error).strip().splitlines()[0]}", advice)
    return Finding(f"GPU {index}", "ok", text)


def cpu() -> Finding:
    """The CPU, and whether --amp trains faster on it."""
    units = " and ".join(processor.bfloat16_units())
    precision = f"native bf16 support ({units}): --amp" if units else "no native bf16 support: trains in fp32"
    return Finding("CPU", "ok", f"{processor.name()}, {precision}")


def compiler() -> Finding:
    """The C++ compiler that pip needs to build fairseq, and --compile to train."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(name.split()[0])
    if path is None:
        return Finding("compiler", "warn", f"{name} is not installed", "install it, or set CXX; --compile needs it")
    return Finding("compiler", "ok", path)


def data(data_bin: Path) -> Finding:
    """The files are those of the SHA256SUMS that data_prep wrote into the data-bin or its parent folder."""
    dictionary = next(iter(sorted(data_bin.glob("dict.*.txt"))), None)
    if dictionary is None:
        return Finding("data", "fail", f"{data_bin} has no dict.LANG.txt", "name a folder of fairseq-preprocess")
    candidates = [data_bin / CHECKSUMS, data_bin.absolute().parent / CHECKSUMS]
    listing = next((path for path in candidates if path.is_file()), None)
    if listing is None:
        return Finding("data", "warn", f"there is no {CHECKSUMS} to check against", "sha256sum can make one")
    checksums = read_checksums(listing.parent)
    wrong = damaged_files(listing.parent)
    if wrong or not checksums:
        text = f"{', '.join(wrong[:3])}: not as in {listing}" if wrong else f"{listing} has no checksums"
        return Finding("data", "fail", text, "prepare the data again (data_prep)")
    entries = dictionary.read_bytes().count(b"\n") + 4  # and fairseq's special symbols
    return Finding("data", "ok", f"{entries:,} vocabulary entries, all {len(checksums)} files as in {listing}")


def disk() -> Finding:
    """The free space where recipes write by default; quotas are not seen."""
    free = shutil.disk_usage(".").free
    text = f"{free / 1e9:.0f} GB free in {os.getcwd()}"
    if free < DISK:
        return Finding("disk", "warn", text, f"a run of WMT14 keeps {DISK / 1e9:.0f} GB (docs/cluster.md)")
    return Finding("disk", "ok", text)
