"""Helpers shared by all tests: running the command-line tools as a user would."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests import warm

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
#: variables that an interpreter reads as it starts, or fairseq or torch as they are imported
STARTING = ("PYTHON", "FAIRSEQ_MODERN", "TORCH", "CXX")

# The smallest useful model, and how to train it on the CPU: data, length and --save-dir are to be added.
SIZES = "--{0}-layers 1 --{0}-embed-dim 16 --{0}-ffn-embed-dim 32 --{0}-attention-heads 2"
TINY_MODEL = ["--arch", "transformer_tiny", "--share-all-embeddings"]
TINY_MODEL += [word for side in ("encoder", "decoder") for word in SIZES.format(side).split()]
TINY_TRAINING = [
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.005", "--max-tokens", "400"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--cpu", "--no-progress-bar"),
]


def run(
    *argv: object,
    check: bool = True,
    env: Optional[Dict[str, str]] = None,
    timeout: float = 300,
    fresh: bool = False,
    **options,
) -> subprocess.CompletedProcess:
    """Run a console script of the running Python's environment, or a shell script, and return what it did.

    Tools, and those that a shell script starts, are forked from a process that has imported torch and fairseq.

    Args:
        argv: the tool's name (`fairseq-train`, `collab`, `python`, `torchrun`) and its arguments.
        check: raise with the tool's whole output if it does not exit with 0.
        env: variables on top of the current environment. One thread per process unless it says otherwise, so that
            tiny models do not spend their time on thread start-up.
        timeout: seconds after which the tool is killed.
        fresh: in new interpreters: for what is about start-up, installation or signals to groups of processes.
        options: further arguments of `subprocess.run`, such as `cwd` or `input`.

    Raises:
        AssertionError: the tool failed and `check` is set.
    """
    fresh = fresh or "preexec_fn" in options or any(name.startswith(STARTING) for name in env or {})
    folder = BIN if fresh else warm.start()
    tool, *arguments = [str(folder / "python") if a == sys.executable else str(a) for a in argv]
    command = [str(folder / tool) if (folder / tool).exists() else tool, *arguments]
    # for the tools that a tool starts itself
    path = os.pathsep.join([str(folder), str(BIN), os.environ.get("PATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": str(folder / "python"), "PATH": path, **(env or {})}
    done = subprocess.run(
        command, env=environment, timeout=timeout, capture_output=True, text=True, check=False, **options
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"exit status {done.returncode} from: {' '.join(command)}\n"
            f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}"
        )
    return done


def content(folder: Path) -> Dict[str, bytes]:
    """The bytes of all files in a folder, by their names in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def free_port() -> int:
    """A TCP port of this machine that nothing listens on at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


#: where layers are tested: CUDA too, on a machine that has it
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Waiting(TorchDispatchMode):
    """Types of the values that a program would wait for on a GPU: all but what ``torch.tensor`` made on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.values: List[torch.dtype] = []
        self.host: List[torch.Tensor] = []  # kept, so that no others take their place in memory

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        if waits and not any(args[0].data_ptr() == made.data_ptr() for made in self.host):
            self.values.append(args[0].dtype)
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.lift_fresh.default:
            self.host.append(found)
        return found


#: float64 against the float64 reference: rounding of a few hundred operations
FLOAT64 = 1e-12
#: one way against another in float32, through a whole model
FLOAT32 = 1e-5
