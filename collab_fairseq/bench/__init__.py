"""Speed and memory of attention layers, translation and training, side by side with their baselines.

All contestants run in one process in interleaved rounds, after those that compute the same have been compared. ``collab
bench`` is the command, :func:`.runner.run` the function. Rows are declared in :mod:`.layers`, :mod:`.decoding` and
:mod:`.training`, contestants in :mod:`.baselines` and :mod:`.models`. A new row is a :class:`.cases.Case`.
"""
