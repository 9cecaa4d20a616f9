"""The checks: each judges facts of `probe.py`, or looks for itself, and says what to do. Needs the standard library."""

from importlib import metadata
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Sequence

from fairseq_modern import processor
from fairseq_modern.files import sha256

Facts = Dict[str, Any]

FAIRSEQ = "0.12.2"
FIRST = "fix the lines above that fail"


class Finding(NamedTuple):
    """A line on the screen."""

    name: str
    status: str  # ok, warn or fail
    text: str
    advice: str = ""  # what to do; empty where nothing is to be done


def packages(python: Sequence[int]) -> Iterator[Finding]:
    """Python, what the project's metadata asks for, and fairseq, which is installed beside."""
    try:
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet

        about = metadata.metadata("collab_fairseq")
    except ImportError as error:  # PackageNotFoundError is one
        yield Finding("packages", "fail", str(error), "pip install packaging, and this project (README.md)")
        return
    text, wanted = ".".join(map(str, python)), about["Requires-Python"]
    if SpecifierSet(wanted).contains(text, prereleases=True):
        yield Finding("Python", "ok", text)
    else:
        yield Finding("Python", "fail", f"{text}, expected {wanted}", f"make an environment with a Python {wanted}")
    asked = [Requirement(line) for line in about.get_all("Requires-Dist", [])]
    asked = [r for r in asked if not r.marker or r.marker.evaluate({"extra": ""})]
    versions = {r.name: installed(r.name) for r in asked}
    wrong = [r for r in asked if not versions[r.name] or not r.specifier.contains(versions[r.name], prereleases=True)]
    if wrong:
        text = ", ".join(f"{r.name} {versions[r.name] or 'is not installed'}" for r in wrong)
        yield Finding("packages", "fail", text, "pip install " + " ".join(f'"{r}"' for r in wrong))
    else:
        yield Finding("packages", "ok", f"all {len(asked)} that setup.py asks for")
    version, advice = installed("fairseq"), f"pip install --no-deps fairseq=={FAIRSEQ} (README.md has the order)"
    if version == FAIRSEQ:
        yield Finding("fairseq", "ok", version)
    else:
        text = f"{version}; this project is tested with {FAIRSEQ}" if version else "is not installed"
        yield Finding("fairseq", "warn" if version else "fail", text, advice)


def installed(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def precision(gpus: Sequence[Facts]) -> str:
    """The flag of fairseq-train that fits all GPUs: --bf16 from Ampere (compute capability 8.0), --fp16 below."""
    return "--bf16" if all(gpu["capability"] >= [8, 0] for gpu in gpus) else "--fp16"


def gpus(facts: Facts, driver: bool) -> Iterator[Finding]:
    """torch and the GPUs that it sees. `driver`: NVIDIA's driver is on this machine, so that there is one."""
    if "error" in facts:
        yield Finding("torch", "fail", facts["error"], "install torch 2.6 or newer for this Python (README.md)")
        return
    yield Finding("torch", "ok", f"{facts['version']}, {facts['build']}")
    if not facts["gpus"]:
        advice = "training runs on the CPU: enough for make demo and rehearsals"
        if driver:  # of a CPU build, or hidden, or too old for the build
            advice = "NVIDIA's driver is here: see CUDA_VISIBLE_DEVICES, install a torch for the CUDA of nvidia-smi"
        yield Finding("GPUs", "warn", "; ".join(["torch sees none", *facts["warnings"]]), advice)
    for number, gpu in enumerate(facts["gpus"]):
        capability, flag = ".".join(map(str, gpu["capability"])), precision([gpu])
        text = f"{gpu['name']}, {gpu['memory'] / 2**30:.1f} GiB, compute capability {capability}, {flag[2:]}"
        if "error" not in gpu:
            yield Finding(f"GPU {number}", "ok", text)
            continue
        advice = "is another program using it (nvidia-smi)? Else install a newer torch"
        if gpu["capability"] < [7, 5]:  # builds for CUDA 12.8 and newer have dropped them
            advice = "install torch 2.6 or 2.7, or a newer one built for CUDA 12.6: they still serve this GPU"
        yield Finding(f"GPU {number}", "fail", f"{text}; {gpu['error']}", advice)
    if len({precision([gpu]) for gpu in facts["gpus"]}) > 1:
        advice = "train with --fp16, or on GPUs of one kind (CUDA_VISIBLE_DEVICES)"
        yield Finding("precision", "warn", "some of the GPUs have no bf16", advice)


def cpu() -> Finding:
    """The CPU, and whether --amp trains faster on it."""
    units = " and ".join(processor.bfloat16_units())
    found = f"bf16 with {units}: --amp" if units else "no units for bf16: trains in fp32"
    return Finding("CPU", "ok", f"{processor.name()}, {found}")


def hook(facts: Facts) -> Finding:
    """fairseq_modern, without which fairseq 0.12.2 does not run on today's Python."""
    if facts.get("active"):
        return Finding("hook", "ok", "fairseq_modern is at work")
    if facts.get("setting") == "0":
        return Finding("hook", "fail", "switched off by FAIRSEQ_MODERN=0", "unset FAIRSEQ_MODERN")
    advice = "fairseq_modern.pth must lie in a site-packages folder: install with pip, not with PYTHONPATH alone"
    return Finding("hook", "fail", facts.get("error", "fairseq_modern was not started with Python"), advice)


def user_dir(facts: Facts) -> Finding:
    """--user-dir must make the models known."""
    known = ", ".join(facts.get("registered", []))
    if "error" in facts or "transformer_collab" not in known:
        text = facts.get("error", "transformer_collab is not registered")
        return Finding("user-dir", "fail", text, f"{FIRST}; or reinstall this project")
    return Finding("user-dir", "ok", f"registers {known}")


def data(data_bin: str) -> Finding:
    """The files are those of the SHA256SUMS that data_prep wrote in the data-bin or beside it."""
    dictionary = next(iter(sorted(Path(data_bin).glob("dict.*.txt"))), None)
    if dictionary is None:
        return Finding("data", "fail", f"{data_bin} has no dict.LANG.txt", "name a folder of fairseq-preprocess")
    places = [Path(data_bin) / "SHA256SUMS", Path(data_bin).absolute().parent / "SHA256SUMS"]
    listed = next((place for place in places if place.is_file()), None)
    if listed is None:
        return Finding("data", "warn", "there is no SHA256SUMS to check against", "sha256sum can make one")
    # 64 digits, two characters, a name
    sums = {line[66:]: line[:64] for line in listed.read_text(encoding="utf-8").splitlines()}
    files = {name: listed.parent / name for name in sums}
    bad = [name for name, file in files.items() if not file.is_file() or sha256(file) != sums[name]]
    if bad or not sums:
        text = f"{', '.join(bad[:3])}: not as in {listed}" if bad else f"{listed} has no sums"
        return Finding("data", "fail", text, "prepare the data again (data_prep)")
    types = dictionary.read_bytes().count(b"\n") + 4  # and fairseq's special symbols
    return Finding("data", "ok", f"dictionary of {types:,} types, all {len(sums)} files as in {listed}")
