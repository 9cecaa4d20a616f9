"""Collaborative attention and its baselines as PyTorch modules.

>>> import torch
>>> from collab_fairseq.attention import CollaborativeAttention
>>> attention = CollaborativeAttention(embed_dim=512, num_heads=8, key_dim=128)
>>> x = torch.randn(2, 7, 512)
>>> output, weights = attention(x, x, x)  # (2, 7, 512), (2, 7, 7)
"""

from .attention_types import ATTENTION_TYPES, SITES
from .cache import KeyValue
from .collaborative import CollaborativeAttention
from .errors import AttentionError
from .grouped import GroupedAttention
from .latent import LatentAttention
from .layer import AttentionLayer
from .mixing import INITIAL_MIXING, block_mixing, initial_mixing
from .standard import StandardAttention

__all__ = [
    "ATTENTION_TYPES",
    "INITIAL_MIXING",
    "SITES",
    "AttentionError",
    "AttentionLayer",
    "CollaborativeAttention",
    "GroupedAttention",
    "KeyValue",
    "LatentAttention",
    "StandardAttention",
    "block_mixing",
    "initial_mixing",
]
