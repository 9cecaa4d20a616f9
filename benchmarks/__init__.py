"""Benchmarks: speed and memory of attention layers, decoding and training, compared with baselines."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch is imported: silences messages of its profiler
