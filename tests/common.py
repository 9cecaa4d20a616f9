"""Helpers shared by all tests: running the command-line tools as a user would."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, Optional

import torch

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent

# The smallest useful model, and how to train it on the CPU: data, length and --save-dir are to be added.
TINY_MODEL = [
    "--arch", "transformer_tiny", "--encoder-layers", "1", "--decoder-layers", "1", "--share-all-embeddings",
    "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2",
    "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32", "--decoder-attention-heads", "2",
]  # fmt: skip
TINY_TRAINING = [
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.005", "--max-tokens", "400",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--cpu", "--no-progress-bar",
]  # fmt: skip


def run(
    *argv: object, check: bool = True, env: Optional[Dict[str, str]] = None, timeout: float = 300, **options
) -> subprocess.CompletedProcess:
    """Run a console script that sits beside the running Python and return what it did.

    Args:
        argv: the tool's name (`fairseq-train`, `collab`, `python`, `torchrun`) and its arguments.
        check: raise with the tool's whole output if it does not exit with 0.
        env: variables on top of the current environment. One thread per process unless it says otherwise, so that
            tiny models do not spend their time on thread start-up.
        timeout: seconds after which the tool is killed.
        options: further arguments of `subprocess.run`, such as `cwd` or `input`.

    Raises:
        AssertionError: the tool failed and `check` is set.
    """
    tool, *arguments = [str(a) for a in argv]
    command = [str(BIN / tool) if (BIN / tool).exists() else tool, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    # So that a tool finds the tools that it starts itself beside the same interpreter.
    environment["PATH"] = os.pathsep.join([str(BIN), environment.get("PATH", "")])
    done = subprocess.run(
        command, env=environment, timeout=timeout, capture_output=True, text=True, check=False, **options
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"exit status {done.returncode} from: {' '.join(command)}\n"
            f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}"
        )
    return done


def free_port() -> int:
    """A TCP port of this machine that nothing listens on at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


#: where layers are tested: CUDA too, on a machine that has it
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

#: float64 against the float64 reference: rounding of a few hundred operations
FLOAT64 = 1e-12
#: one way against another in float32, through a whole model
FLOAT32 = 1e-5
