"""Defect: with `--cpu` on a machine with a GPU, fairseq computes the gradient norm on the GPU and then fails to clip.

Check: the training run has `--cpu`. While it runs, torch reports that no GPU is available.
"""

import contextlib
from typing import Any, Iterator

import torch

from fairseq_modern.patching import step


@step(contextlib.nullcontext())
@contextlib.contextmanager
def without_gpus(cfg: Any) -> Iterator[None]:
    """Hide GPUs from the block if a configuration has `--cpu`."""
    is_available = torch.cuda.is_available
    if getattr(cfg, "common", cfg).cpu:  # fairseq converts a namespace later
        torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = is_available
