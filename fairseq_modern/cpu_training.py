"""Defect: with `--cpu` on a machine with a GPU, fairseq computes the gradient norm on the GPU and then fails to clip.

Check: the training run has `--cpu`. While it runs, torch reports that no GPU is available.
"""

from types import ModuleType

import torch

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq_cli.train.main`."""

    @wrap(module)
    def main(original, cfg, **options):
        is_available = torch.cuda.is_available
        if getattr(cfg, "common", cfg).cpu:  # fairseq converts a namespace later
            torch.cuda.is_available = lambda: False
        try:
            return original(cfg, **options)
        finally:
            torch.cuda.is_available = is_available
