"""Speed and memory of attention layers, decoding and training, side by side with what they are to be faster than.

All contestants run in one process in interleaved rounds, after their results have been compared. ``collab bench`` is
the command. Cases are declared in :mod:`.layer`, :mod:`.decode`, :mod:`.search` and :mod:`.train`, contestants in
:mod:`.baselines` and :mod:`.models`, goals in :mod:`.goals`.
"""
