#!/usr/bin/env python3
"""How fast this CPU multiplies matrices of a model's sizes, in fp32 and bf16: products.py ARCH [TOKENS]

Prints two numbers, GFLOP/s of the threads that OMP_NUM_THREADS allows; the second is 0 without units for bfloat16.
"""

import sys
from argparse import Namespace

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch.utils.benchmark import Timer

import collab_fairseq.models  # noqa: F401  (registers its presets)
from fairseq_modern import processor


def rate(dtype: torch.dtype, tokens: int, width: int, inner: int) -> float:
    """GFLOP/s of the products of a feed-forward layer, the best of all within half a second."""
    operands = {"x": torch.randn(tokens, width).to(dtype), "weight": torch.randn(inner, width).to(dtype)}
    timer = Timer("x.mm(weight.t()).mm(weight)", globals=operands, num_threads=torch.get_num_threads())
    return 4e-9 * tokens * width * inner / min(timer.blocked_autorange(min_run_time=0.5).times)


def main() -> None:
    sizes = Namespace(arch=sys.argv[1])
    ARCH_CONFIG_REGISTRY[sizes.arch](sizes)
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 2048
    shape = (tokens, sizes.encoder_embed_dim, sizes.encoder_ffn_embed_dim)
    half = rate(torch.bfloat16, *shape) if processor.bfloat16_units() else 0.0
    sys.stdout.write(f"{rate(torch.float32, *shape):.0f} {half:.0f}\n")


if __name__ == "__main__":
    main()
