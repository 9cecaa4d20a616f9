"""Layers, inputs and masks shared by the tests of attention."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention import (
    AttentionLayer,
    CollaborativeAttention,
    GroupedAttention,
    KeyValue,
    LatentAttention,
    StandardAttention,
)
from collab_fairseq.attention.kernels import attend_collaborative
from tests.attention.reference import reference_attention

N, T, S, E, H = 3, 4, 5, 12, 3


class Site(NamedTuple):
    """Key positions, and widths of the key and value inputs; default E."""

    key_len: int
    kdim: Optional[int] = None
    vdim: Optional[int] = None


SITES = {"self": Site(T), "cross": Site(S), "unequal": Site(S, 7, 9), "single": Site(1)}

PRUNED = {"num_heads": 2, "head_dim": 4}  # one of three heads has been removed
LAYERS: Dict[str, Tuple[type, Dict[str, Any]]] = {
    "collaborative": (CollaborativeAttention, {"key_dim": 5}),
    "collaborative-content": (CollaborativeAttention, {"key_dim": 5, "content_bias": True}),
    "collaborative-wide": (CollaborativeAttention, {"key_dim": 20, "mixing": "normal", "bias": False}),
    "collaborative-blocks": (CollaborativeAttention, {"key_dim": 7, "mixing": "blocks", "scale": 0.3}),
    "collaborative-pruned": (CollaborativeAttention, {**PRUNED, "key_dim": 5, "query_bias": False}),
    "collaborative-one-value": (CollaborativeAttention, {"key_dim": 5, "value_heads": 1}),
    "collaborative-two-values": (
        CollaborativeAttention,
        {"num_heads": 4, "key_dim": 5, "value_heads": 2, "content_bias": True},
    ),
    "standard": (StandardAttention, {}),
    "standard-narrow": (StandardAttention, {"key_dim": 6, "key_bias": False}),
    "standard-pruned": (StandardAttention, {**PRUNED, "key_dim": 6}),
    "multi-query": (GroupedAttention, {"key_dim": 6, "kv_heads": 1}),
    "grouped": (GroupedAttention, {"num_heads": 4, "kv_heads": 2}),
    "latent": (LatentAttention, {"key_dim": 9, "kv_latent_dim": 3}),  # absorbed with 4 queries and 5 keys
    "latent-wide": (LatentAttention, {"kv_latent_dim": 8}),  # expanded
}
#: a selection that covers every attention type
ATTENTION_TYPES = [
    "collaborative-content",
    "collaborative-two-values",
    "standard-narrow",
    "grouped",
    "latent",
    "latent-wide",
]


def build(name: str, site: str = "self", dtype: torch.dtype = torch.float64, **overrides: Any) -> AttentionLayer:
    """A layer with random parameters, including biases."""
    cls, arguments = LAYERS[name]
    widths = {"kdim": SITES[site].kdim, "vdim": SITES[site].vdim}
    torch.manual_seed(sum(map(ord, name + site)))
    options = {"num_heads": H, **widths, **arguments, **overrides}
    layer = cls(E, **options).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.to(dtype)


def inputs(site: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
    """query (N, T, E), key (N, S, kdim), value (N, S, vdim); key and value are one tensor except for "unequal"."""
    key_len, kdim, vdim = SITES[site]
    random = torch.Generator().manual_seed(seed)

    def draw(length: int, width: Optional[int]) -> Tensor:
        return torch.randn(N, length, width or E, generator=random, dtype=torch.float64).to(dtype)

    query = draw(T, E)
    if site == "self":
        return query, query, query
    key = draw(key_len, kdim)
    return query, key, draw(key_len, vdim) if site == "unequal" else key


def leaves(site: str, prepare: Callable[[Tensor], Tensor] = torch.clone) -> List[Tensor]:
    """The inputs after ``prepare``, as leaves that require gradients; equal inputs stay one tensor."""
    tensors = inputs(site)
    prepared = {x: prepare(x).requires_grad_() for x in tensors}  # tensors are hashed by identity
    return [prepared[x] for x in tensors]


def sites_of(name: str) -> List[str]:
    """Sites that a layer of :data:`LAYERS` supports: latent attention needs one input for keys and values."""
    return [site for site in SITES if site != "unequal" or not name.startswith("latent")]


def _all_masks(key_len: int, heads: int) -> Dict[str, Dict[str, Any]]:
    """Name → arguments of ``forward``: masks and head multipliers."""
    random = torch.Generator().manual_seed(1)
    padding = torch.zeros(N, key_len, dtype=torch.bool)
    padding[0, key_len // 2 + 1 :] = True
    padding[1, : key_len // 2] = True  # left padding, as in fairseq's sources
    boolean = torch.rand(T, key_len, generator=random) < 0.4
    boolean[:, 0] = False
    additive = torch.randn(T, key_len, generator=random)
    additive[0, 0] = -math.inf
    empty = padding.clone()
    empty[2] = True
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "padding-additive": {"key_padding_mask": torch.zeros(N, key_len).masked_fill(padding, -1e4)},
        "boolean": {"attn_mask": boolean},
        "additive": {"attn_mask": additive, "key_padding_mask": padding & False},
        "per-head": {"attn_mask": torch.randn(N * heads, T, key_len, generator=random)},
        "per-head-4d": {"attn_mask": torch.randn(N, heads, T, key_len, generator=random)},
        "causal": {"is_causal": True},
        "causal-padding": {"is_causal": True, "key_padding_mask": padding},
        "empty-rows": {"key_padding_mask": empty},
        "everything-hidden": {"attn_mask": torch.ones(T, key_len, dtype=torch.bool)},
        "multiplier": {"head_multiplier": torch.linspace(0.0, 1.5, heads)},
        "multiplier-per-sentence": {"head_multiplier": torch.rand(N, heads, generator=random)},
        "multiplier-per-token": {"head_multiplier": torch.rand(N, T, heads, generator=random)},
    }


MASKS = list(_all_masks(S, H))


def masks(name: str, key_len: int, heads: int) -> Dict[str, Any]:
    return _all_masks(key_len, heads)[name]


def reference(layer, query, key, value, arguments):
    """The reference output for a call of the layer."""
    sizes = {name: getattr(layer, name) for name in ("num_heads", "value_heads", "key_heads", "scale")}
    arguments = {"causal" if name == "is_causal" else name: mask for name, mask in arguments.items()}
    return reference_attention(dict(layer.named_parameters()), query, key, value, **sizes, **arguments)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coloured(*shape: int, seed: int = 0) -> torch.Tensor:
    """Realistic inputs: a mean far from zero, and directions with very different variances."""
    width = shape[-1]
    mean, basis = 2 * normal(width, seed=100), torch.linalg.qr(normal(width, width, seed=101))[0]
    return mean + (normal(*shape, seed=seed) * torch.logspace(0.5, -1.5, width, dtype=torch.float64)) @ basis


def tensors(key_len=5, key_dim=6, value_dim=4, grad=True, dtype=torch.float64):
    """query, mixing, key, value and content for kernels of collaborative heads."""
    random = torch.Generator().manual_seed(3)
    shapes = [(N, T, key_dim), (H, key_dim), (N, key_len, key_dim), (N, H, key_len, value_dim), (N, H, key_len)]
    return [torch.randn(s, generator=random, dtype=torch.float64).to(dtype).requires_grad_(grad) for s in shapes]


def call(kernel, query, mixing, key, value, content, mask=None, dropout=0.0, need_weights=False):
    entry = KeyValue(key, value, content)
    return attend_collaborative(kernel, query, mixing, entry, mask, 0.7, dropout, need_weights)
