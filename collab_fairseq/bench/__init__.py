"""Benchmarks: speed and memory of attention layers, decoding and training, compared with baselines."""
