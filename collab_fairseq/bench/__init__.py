"""Speed and memory of attention layers, translation and training, side by side with their baselines.

All contestants run in one process in interleaved rounds, after those that compute the same have been compared. ``collab
bench`` is the command, :func:`.runner.run` the function. Rows are in :mod:`.layers` and :mod:`.programs`, contestants
in :mod:`.baselines` and :mod:`.models`. A new row is an id and a function of the options that gives its steps.
"""
