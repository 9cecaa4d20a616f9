"""Defect: with `--cpu` on a machine with a GPU, fairseq computes the gradient norm on the GPU and then fails to clip.

Check: the training run has `--cpu`. While it runs, torch reports that no GPU is available.
"""

import contextlib
from typing import Any

import torch

from fairseq_modern.patching import replaced, step


@step(contextlib.nullcontext())
def without_gpus(cfg: Any) -> Any:
    """Hide GPUs from the block if a configuration has `--cpu`."""
    is_on_cpu = getattr(cfg, "common", cfg).cpu  # fairseq converts a namespace later
    return replaced(torch.cuda, is_available=lambda: False) if is_on_cpu else contextlib.nullcontext()
