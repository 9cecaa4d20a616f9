"""Attention as fairseq's transformer calls it: settings of each site, incremental state, encoder and decoder layers."""
