"""Defect: with `--cpu` on a machine with a GPU, fairseq computes the gradient norm on the GPU and then fails to clip.

Check: the training run has `--cpu`. While it runs, torch reports that no GPU is available.
"""

import contextlib
from types import ModuleType
from typing import Iterator

import torch

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq_cli.train.main`."""

    @wrap(module)
    def main(original, cfg, **options):
        with without_gpus() if cfg.common.cpu else contextlib.nullcontext():
            return original(cfg, **options)


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """`torch.cuda.is_available` returns False."""
    original = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = original
