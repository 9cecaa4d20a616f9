"""Attention with fairseq's interface: layer settings, incremental decoding state, encoder and decoder layers."""
