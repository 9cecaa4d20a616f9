"""What makes training steps faster or trains something else: losses, optimizer and dropout, under fairseq's names.

:mod:`collab_fairseq.models` imports those that fairseq knows by a name of their own.
"""
