"""Speed and memory of attention layers, translation and training compared with their baselines.

Four implementations: fairseq's multi-head attention, standard heads through torch's fused attention, collaborative
heads as the paper's authors compute them, and ours. All run in one process in interleaved rounds, after those that
compute the same function have been compared. ``collab bench`` is the command, :func:`.runner.run` the function; rows
are in :mod:`.layers` and :mod:`.programs`, implementations in :mod:`.implementations` and :mod:`.models`.
"""
