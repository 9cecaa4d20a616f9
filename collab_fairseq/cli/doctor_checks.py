"""The checks of `collab doctor`: each judges facts, and says what to do where they are bad. Needs the standard library.

The facts about torch and fairseq come from doctor_probe.py, a dictionary per stage; `error` is there where it failed.
"""

import hashlib
import os
import re
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

Facts = Dict[str, Any]

FAIRSEQ = "0.12.2"
TOOLS = ("collab", "fairseq-preprocess", "fairseq-train", "fairseq-generate", "torchrun")
#: of a checkpoint for each parameter: itself and Adam's two moments, 4 bytes each; with --fp16 or --bf16 it is less
BYTES_PER_PARAMETER = 12
#: bf16 begins with Ampere
BF16 = (8, 0)

MEND = "mend the lines above that fail"
PREPARE = "prepare the data again (data_prep)"


class Finding(NamedTuple):
    """A line on the screen."""

    name: str
    status: str  # ok, warn or fail
    text: str
    advice: str = ""  # what to do; empty where nothing is to be done


def gib(size: float) -> str:
    """Bytes as GiB, small numbers with more digits."""
    return f"{size / 2**30:.{1 if size >= 2**30 else 3}f} GiB"


def python(version: Tuple[int, ...], requires: str) -> Finding:
    """`requires` is the project's Requires-Python, such as >=3.10,<3.14."""
    low, high = sorted([int(n) for n in found.split(".")] for found in re.findall(r"[\d.]+", requires))
    text = ".".join(map(str, version))
    if low <= list(version[:2]) < high:
        return Finding("Python", "ok", text)
    advice = f"make an environment with a Python {requires}"
    return Finding("Python", "fail", f"{text}, expected {requires}", advice)


def packages(requirements: Iterable[str], installed: Callable[[str], str]) -> Finding:
    """What the project's metadata asks for. `installed` gives a version or raises PackageNotFoundError."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return Finding("packages", "fail", "packaging is not installed", "pip install packaging, then look again")
    wrong, number = [], 0
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        number += 1
        try:
            version = installed(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                wrong.append((str(requirement), f"{requirement.name} {version}"))
        except metadata.PackageNotFoundError:
            wrong.append((str(requirement), f"no {requirement.name}"))
    if not wrong:
        return Finding("packages", "ok", f"all {number} that setup.py asks for")
    advice = "pip install " + " ".join(f'"{asked}"' for asked, _ in wrong)
    return Finding("packages", "fail", ", ".join(found for _, found in wrong), advice)


def torch(facts: Facts) -> Finding:
    """The build; its version is among the packages."""
    if "error" in facts:
        return Finding("torch", "fail", facts["error"], "install torch 2.6 or newer for this Python (README.md)")
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    return Finding("torch", "ok", f"{facts['version']}, {build}")


def supports(architectures: Sequence[str], capability: Sequence[int]) -> Optional[bool]:
    """Whether a build for `architectures` (torch.cuda.get_arch_list) runs on a card; None where that cannot be told.

    Machine code (sm_86) runs on cards of the same major and no lower minor number, PTX (compute_90) on any card from
    there on; names that end in `a` hold for that one card only.
    """
    readable = False
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if not match:
            continue
        readable = True
        built, card = (int(match.group(2)), int(match.group(3))), tuple(capability)
        if built == card:
            return True
        if match.group(4) == "a" or built > card:
            continue
        if match.group(1) == "compute" or built[0] == card[0]:
            return True
    return False if readable else None


def precision(cards: Sequence[Facts]) -> str:
    """The flag of fairseq-train that fits all cards: --bf16 from compute capability 8.0, --fp16 below."""
    return "--bf16" if all(tuple(card["capability"]) >= BF16 for card in cards) else "--fp16"


def cards(facts: Facts, driver: bool) -> Iterator[Finding]:
    """One line per card. `driver`: NVIDIA's driver is on this machine, so that there is a card to be seen."""
    if "error" in facts:
        return
    if not facts["cards"]:
        text, advice = "torch sees none", "training runs on the CPU: enough for make demo and rehearsals"
        if driver and not facts["cuda"]:
            text, advice = f"{text}, but NVIDIA's driver is here", "this torch is a CPU build: install one with CUDA"
        elif driver:
            advice = "look at nvidia-smi and CUDA_VISIBLE_DEVICES; a driver older than the build needs an older torch"
        yield Finding("cards", "warn", "; ".join([text, *facts["warnings"]]), advice)
    for number, card in enumerate(facts["cards"]):
        capability = ".".join(map(str, card["capability"]))
        text = f"{card['name']}, {gib(card['memory'])}, compute capability {capability}, {precision([card])[2:]}"
        supported = supports(facts["architectures"], card["capability"])
        if supported is False:
            yield Finding(
                f"card {number}", "fail", f"{text}; this torch is built for {', '.join(facts['architectures'])}",
                other_build(card["capability"]),
            )  # fmt: skip
        else:
            yield Finding(f"card {number}", "ok", text)
    kinds = {precision([card]) for card in facts["cards"]}
    if len(kinds) > 1:
        advice = "train with --fp16, or on cards of one kind (CUDA_VISIBLE_DEVICES)"
        yield Finding("precision", "warn", "some of the cards have no bf16", advice)


def other_build(capability: Sequence[int]) -> str:
    """Which torch serves a card that this one does not."""
    if tuple(capability) < (7, 5):  # builds for CUDA 12.8 and newer have dropped them, one release after the other
        return "install torch 2.6 or 2.7, or a newer one built for CUDA 12.6: they still serve this card"
    return "install a torch build that has this architecture: a newer release, as a rule"


def communication(facts: Facts) -> Finding:
    """What several processes talk through: NCCL between cards, gloo between CPU processes."""
    if "error" in facts:
        return Finding("processes", "fail", "unknown without torch", "install torch first")
    have = (["NCCL" + (f" {facts['nccl']}" if isinstance(facts["nccl"], str) else "")] if facts["nccl"] else []) + (
        ["gloo"] if facts["gloo"] else []
    )
    if len(facts["cards"]) > 1 and not facts["nccl"]:
        return Finding("processes", "fail", "torch has no NCCL", "install a torch that has it, or train on one card")
    if not facts["gloo"]:
        text = "torch has no gloo" + (f", but {have[0]}" if have else "")
        return Finding("processes", "warn", text, "several CPU processes are not possible; install another torch build")
    return Finding("processes", "ok", " and ".join(have))


def hook(facts: Facts) -> Finding:
    """fairseq_modern, without which fairseq 0.12.2 does not run on today's Python."""
    if "error" in facts:
        return Finding("hook", "fail", facts["error"], "no Python could be started for a look; see the message")
    if facts["at_work"]:
        return Finding("hook", "ok", "fairseq_modern is at work")
    if facts["setting"] == "0":
        return Finding("hook", "fail", "switched off by FAIRSEQ_MODERN=0", "unset FAIRSEQ_MODERN")
    if not facts["installed"]:
        text, advice = "fairseq_modern is not installed", "pip install . (README.md, In an existing fairseq set-up)"
    else:
        text = "fairseq_modern is installed, but was not started with Python"
        advice = "fairseq_modern.pth must lie in a site-packages folder: install with pip, not with PYTHONPATH alone"
    return Finding("hook", "fail", text, advice)


def fairseq(facts: Facts) -> Finding:
    """Its import and its version."""
    if "error" in facts:
        advice = f"{MEND}; or pip install --no-deps fairseq=={FAIRSEQ} (README.md has the order)"
        return Finding("fairseq", "fail", facts["error"], advice)
    if facts["version"] != FAIRSEQ:
        advice = f"pip install --no-deps fairseq=={FAIRSEQ}"
        return Finding("fairseq", "warn", f"{facts['version']}; this project is tested with {FAIRSEQ}", advice)
    return Finding("fairseq", "ok", facts["version"])


def user_dir(facts: Facts, arch: str) -> Finding:
    """--user-dir must make the models known."""
    if "error" in facts:
        return Finding("user-dir", "fail", facts["error"], f"{MEND}; or reinstall this project")
    if "transformer_collab" not in facts["registered"]:
        return Finding("user-dir", "fail", "transformer_collab is not registered", "reinstall this project")
    if not facts["knows"]:
        known = ", ".join(facts["registered"])
        return Finding("user-dir", "fail", f"there is no --arch {arch}", f"name another one, such as {known}")
    return Finding("user-dir", "ok", f"registers {', '.join(facts['registered'])}")


def scripts(which: Callable[[str], Optional[str]] = shutil.which) -> Finding:
    """The console scripts, which must be those of the running Python."""
    own = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    home = next((f for f in own if os.path.exists(os.path.join(f, "fairseq-train"))), own[0])
    missing = [tool for tool in TOOLS if not os.path.exists(os.path.join(home, tool))]
    if missing:
        advice = "reinstall what they belong to: fairseq, torch (torchrun) or this project (collab)"
        return Finding("scripts", "fail", f"{home} has no {', '.join(missing)}", advice)
    for tool in TOOLS:
        found = which(tool)
        if found is None or not os.path.samefile(os.path.dirname(found) or ".", home):
            text = f"{tool} on PATH is {found}, of another environment" if found else f"{tool} is not on PATH"
            return Finding("scripts", "warn", text, f'export PATH="{home}:$PATH"')
    return Finding("scripts", "ok", f"{', '.join(TOOLS)} are on PATH")


def disk(output: str, parameters: Optional[int], checkpoints: int) -> Finding:
    """Free space for the checkpoints of a run, each with the state of Adam."""
    folder = Path(output).absolute()
    if folder.exists() and not folder.is_dir():
        return Finding("disk", "fail", f"{output} is a file", "name a folder as --output")
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("disk", "fail", f"{folder} cannot be written to", "name another folder as --output")
    free = shutil.disk_usage(folder).free
    if parameters is None:
        text = f"{gib(free)} free at {output}; what a run needs is unknown, since the model could not be built"
        return Finding("disk", "warn", text, f"{MEND}, or give --parameters")
    need = BYTES_PER_PARAMETER * parameters * checkpoints
    text = f"{gib(free)} free at {output}, {checkpoints} checkpoints of {parameters:,} parameters take {gib(need)}"
    if free < need:
        advice = "free space, name another --output, or keep fewer checkpoints (--keep-interval-updates)"
        return Finding("disk", "fail", text, advice)
    return Finding("disk", "ok", text)


def dictionary_size(data_bin: str) -> Optional[int]:
    """Types of the first dictionary of a data-bin with fairseq's four special symbols; None where there is none."""
    for path in sorted(Path(data_bin).glob("dict.*.txt")):
        return path.read_bytes().count(b"\n") + 4
    return None


def data(data_bin: str) -> Iterator[Finding]:
    """What fairseq-preprocess leaves is there, and the sums that data_prep wrote beside it hold."""
    folder = Path(data_bin)
    if not folder.is_dir():
        yield Finding("data", "fail", f"there is no folder {data_bin}", "name the folder of fairseq-preprocess")
        return
    dictionaries = sorted(folder.glob("dict.*.txt"))
    missing = [] if len(dictionaries) > 1 else ["two dictionaries (dict.LANG.txt)"]
    for part in ("train", "valid"):
        halves = sorted(folder.glob(f"{part}.*.idx"))
        missing += [path.stem + ".bin" for path in halves if not path.with_suffix(".bin").is_file()]
        missing += [] if len(halves) > 1 else [f"two languages of {part} ({part}.SOURCE-TARGET.LANG.idx)"]
    if missing:
        yield Finding("data", "fail", f"{data_bin} lacks {', '.join(missing)}", PREPARE)
        return
    if len({path.read_bytes() for path in dictionaries}) > 1:
        advice = "--share-all-embeddings, which the recipes use, needs fairseq-preprocess --joined-dictionary"
        yield Finding("data", "warn", "the dictionaries of the two languages differ", advice)
    else:
        yield Finding("data", "ok", f"{data_bin}, joined dictionary of {dictionary_size(data_bin):,} types")
    yield sums(folder)


def sums(folder: Path) -> Finding:
    """SHA256SUMS of data_prep, beside or in the data-bin."""
    listed = next((f / "SHA256SUMS" for f in (folder, folder.absolute().parent) if (f / "SHA256SUMS").is_file()), None)
    if listed is None:
        return Finding("data sums", "warn", "there is no SHA256SUMS to check against", "sha256sum can make one")
    bad: List[str] = []
    number = 0
    for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
        number += 1
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)
        if not match:
            return Finding("data sums", "fail", f"{listed} is damaged in line {number}", PREPARE)
        path = listed.parent / match.group(2)
        if not path.is_file():
            bad.append(f"{match.group(2)} is missing")
        elif _sha256(path) != match.group(1):
            bad.append(f"{match.group(2)} has changed")
    if bad or not number:
        text = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "") or f"{listed} is empty"
        return Finding("data sums", "fail", text, PREPARE)
    return Finding("data sums", "ok", f"all {number} files as in {listed}")


def _sha256(path: Path) -> str:  # that of checkpoints.py comes with torch
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
