"""The CPU: its name, the cores that this process may use, and whether it has native bf16 support. Needs no torch."""

import os
import platform
import re
import subprocess
from typing import List

#: environment variable, `none` or `some`: overrides what the CPU reports, to test the behaviour on another CPU
ASSUMED = "CPU_BFLOAT16_UNITS"
# CPU flag -> instruction set
BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "bf16": "Arm", "FEAT_BF16": "Arm"}


def flags() -> frozenset[str]:
    """Return the CPU's feature flags as the kernel reports them; none if unknown."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "hw.optional.arm.FEAT_BF16"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return frozenset({"FEAT_BF16"} if answer.strip() == "1" else ())
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return frozenset(match.group(1).split() if match else ())


def name() -> str:
    """Return the CPU's name, or its architecture if it has none."""
    match = re.search(r"^model name\s*:(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def read(path: str) -> str:
    """Return a file's text; empty if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def bfloat16_units() -> List[str]:
    """Return the CPU's instruction sets for bf16 products, fastest first: AMX, AVX-512, Arm.

    The environment variable CPU_BFLOAT16_UNITS overrides the result; torch emulates missing instructions.
    """
    assumed, present = os.environ.get(ASSUMED), flags()
    if assumed == "none":
        return []
    units = list(dict.fromkeys(unit for flag, unit in BFLOAT16.items() if flag in present))
    return units or ["emulated"] * (assumed == "some")


def usable_cores() -> int:
    """Return OMP_NUM_THREADS if set, else the number of cores that this process (or Slurm job) may run on."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdigit() and int(threads) > 0:
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
