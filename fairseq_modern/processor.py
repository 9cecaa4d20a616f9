"""What this CPU is, how much of it is ours, whether it has units for products in bfloat16. Needs no torch."""

import functools
import os
import platform
import re
import subprocess
from typing import List

from fairseq_modern.errors import UserError

#: says `none` or `some` in place of what the CPU says, to try what happens on another one
ASSUMED = "CPU_BFLOAT16_UNITS"
# flag of the CPU -> what its maker calls the units
BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "bf16": "Arm", "FEAT_BF16": "Arm"}


@functools.lru_cache(maxsize=1)
def flags() -> frozenset[str]:
    """What the CPU says it can do, in the kernel's words; nothing where it cannot be asked."""
    if platform.system() == "Darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "hw.optional.arm.FEAT_BF16"], capture_output=True, text=True, check=False
        )
        return frozenset({"FEAT_BF16"} if asked.stdout.strip() == "1" else ())
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return frozenset(found.group(1).split() if found else ())


@functools.lru_cache(maxsize=1)
def name() -> str:
    """The CPU's name, or its architecture where it has none."""
    found = re.search(r"^model name\s*:(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def read(path: str) -> str:
    """A file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def bfloat16_units() -> List[str]:
    """The units for products in bfloat16, the fastest first: of AMX, AVX-512, Arm.

    The variable CPU_BFLOAT16_UNITS says `none` or `some` in their place; torch emulates units that are not there.

    Raises:
        UserError: the variable has another value.
    """
    assumed = os.environ.get(ASSUMED, "")
    if assumed not in ("", "none", "some"):
        raise UserError(f"{ASSUMED} must be none or some, got {assumed!r}")
    found = list(dict.fromkeys(units for flag, units in BFLOAT16.items() if flag in flags()))
    return [] if assumed == "none" else found or ["emulated"] * (assumed == "some")


def usable_cores() -> int:
    """How many cores this process may keep busy: OMP_NUM_THREADS where it is set, else those that it may run on.

    A job of Slurm or a container has fewer than the machine.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def vector_units() -> str:
    """The widest vector units that the CPU has, for messages: avx512f, avx2, …"""
    return next((flag for flag in ("avx512f", "avx2", "avx", "sve", "asimd") if flag in flags()), "no vector units")
