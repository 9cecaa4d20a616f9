"""Faster or additional training methods: losses, optimizer and dropout, registered by :mod:`collab_fairseq.models`."""
