"""Benchmarks: speed and memory of attention layers, decoding and training, compared with baselines.

Four implementations: fairseq's multi-head attention, standard heads with torch's fused attention, collaborative heads
as in the paper's code, and ours. All run in one process in interleaved rounds. First, the results of implementations of
the same function are compared. ``collab bench`` is the command, :func:`.runner.run` the function. :mod:`.layers` and
:mod:`.programs` define the rows, :mod:`.implementations` and :mod:`.models` the implementations.
"""
