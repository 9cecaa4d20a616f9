"""The attention modules that are timed: ours, stock fairseq's, and other ways to compute the same.

All have fairseq's call signature and (T, R, E) tensors; letters as in :mod:`collab_fairseq.attention.cache`.
Contestants of one *function* hold the same parameters and must give the same output; :mod:`.checks` holds them to it.

====================  ==============================================================================================
fairseq               (a) standard heads, fairseq's MultiheadAttention: its own batched products, which it uses in
                      cross-attention and decoding; its decoding cache has a row per hypothesis
fairseq-self          the same module as fairseq calls it in self-attention without a cache: torch's
                      ``multi_head_attention_forward``, which on today's torch ends in scaled_dot_product_attention
fairseq-sentence      (a') fairseq's module with its beam size set, as no released model of fairseq sets it: one row of
                      keys and values per sentence
standard-sdpa         (b) standard heads through ``scaled_dot_product_attention``, nothing in between
standard              (c) standard heads at the key dim of the collaborative ones: ConcatenatedAttention
authors               (d) collaborative heads as the paper's authors compute them: the key mixed for every head and
                      cached so, a row per hypothesis; einsum
authors-bmm           (d) the same with a batched product; the goals compare with the faster of the two
ours                  collaborative heads, with the kernel that the layer chooses
ours-KERNEL           with a kernel of ``attention/kernels``
====================  ==============================================================================================
"""

from dataclasses import dataclass
from typing import Any, Dict, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from collab_fairseq.attention import KeyValue
from collab_fairseq.attention.kernels import COLLABORATIVE
from collab_fairseq.modules.attention import IncrementalCollaborativeAttention, IncrementalConcatenatedAttention


@dataclass(frozen=True)
class Shape:
    """E, H, D̃k of a layer; its site (``encoder``, ``cross`` or ``decoder``); dropout of the attention weights."""

    embed_dim: int
    num_heads: int
    key_dim: int
    site: str
    dropout: float = 0.0


class AuthorsAttention(IncrementalCollaborativeAttention):
    """Collaborative heads with the key mixed for every head, (N, H, S, D̃k), materialised and cached.

    scores_h = Q (K ⊙ m_h)ᵀ · scale. Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, equation 6.
    """

    def entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        mixed = keys.contiguous().unsqueeze(1) * self.mixing.unsqueeze(1)
        return KeyValue(mixed, self.split_heads(values), None)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(N, H, T, S) of queries (N, T, D̃k) and mixed keys (N, H, S, D̃k)."""
        return torch.einsum("ntk,nhsk->nhts", query, key)

    def read_heads(self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, *_: Any) -> Any:
        scores = self.scores(query * self.scale, entry.key)
        if mask is not None:
            scores = scores + mask
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        weights = torch.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
        if dropout > 0.0:
            weights = nn.functional.dropout(weights, p=dropout)
        return weights.matmul(entry.value), weights

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> Any:
        """As fairseq's: the beams of a sentence have equal rows in cross-attention, which stay where they are."""
        kept = self._get_input_buffer(incremental_state).get("prev_key")
        if self.cross and kept is not None and kept.size(0) == new_order.size(0):
            return incremental_state
        return super().reorder_incremental_state(incremental_state, new_order)


class AuthorsBmmAttention(AuthorsAttention):
    """The same by a product for every sentence and head, as fairseq computes standard heads."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        rows, heads, key_len, key_dim = key.shape
        queries = query.unsqueeze(1).expand(-1, heads, -1, -1).reshape(rows * heads, -1, key_dim)
        return queries.bmm(key.reshape(rows * heads, key_len, key_dim).transpose(1, 2)).view(rows, heads, -1, key_len)


class SdpaAttention(IncrementalConcatenatedAttention):
    """Standard heads through torch's ``scaled_dot_product_attention``, which returns no weights."""

    def read_heads(self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, *_: Any) -> Any:
        if mask is not None:
            mask = mask.to(query.dtype)
        context = nn.functional.scaled_dot_product_attention(
            self.split_heads(query), entry.key, entry.value, mask, dropout_p=dropout, scale=self.scale
        )
        return context, None


@dataclass(frozen=True)
class Contestant:
    """A module and how it is called.

    Attributes:
        module: holds the parameters. function: contestants with the same one compute the same.
        static: what fairseq's ``static_kv`` is set to where nothing is cached; it decides which way fairseq goes.
    """

    module: nn.Module
    function: str
    static: bool = True

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        padding: Optional[Tensor] = None,
        mask: Optional[Tensor] = None,
        state: Optional[Dict[str, Any]] = None,
        cross: bool = False,
    ) -> Tensor:
        """Output (T, R, E) of query (T, R, E), key = value (S, R, E), padding mask (R, S), causal mask (T, S)."""
        output: Tensor = self.module(
            query=query,
            key=key,
            value=key,
            key_padding_mask=padding,
            incremental_state=state,
            need_weights=False,
            static_kv=self.static if state is None else cross,
            attn_mask=mask,
        )[0]
        return output


def contestants(shape: Shape, beams: int = 1, seed: int = 0) -> Dict[str, Contestant]:
    """All contestants of a layer, float32 on the CPU; those of one function have the same parameters.

    Args:
        shape: of the layer. beams: hypotheses per sentence in decoding, or 1. seed: of the parameters.
    """
    torch.manual_seed(seed)
    cross, width = shape.site == "cross", shape.embed_dim
    sizes: Dict[str, Any] = {"embed_dim": width, "num_heads": shape.num_heads, "dropout": shape.dropout}
    sites = {"self_attention": not cross, "encoder_decoder_attention": cross}

    fairseq = MultiheadAttention(**sizes, **sites)
    collaborative = {
        "authors": AuthorsAttention(key_dim=shape.key_dim, cross=cross, **sizes),
        "authors-bmm": AuthorsBmmAttention(key_dim=shape.key_dim, cross=cross, **sizes),
        **{
            name: IncrementalCollaborativeAttention(key_dim=shape.key_dim, cross=cross, kernel=kernel, **sizes)
            for name, kernel in {"ours": "auto", **{f"ours-{name}": name for name in COLLABORATIVE}}.items()
        },
    }
    standard: Dict[str, nn.Module] = {"fairseq": fairseq}
    if beams > 1 and cross:
        standard["fairseq-sentence"] = MultiheadAttention(**sizes, **sites)
    standard["standard-sdpa"] = SdpaAttention(key_dim=width, cross=cross, **sizes)
    found = {name: Contestant(module, "standard") for name, module in standard.items()}
    if beams == 1 and not cross:
        found["fairseq-self"] = Contestant(fairseq, "standard", static=False)
    if shape.key_dim % shape.num_heads == 0:
        module = IncrementalConcatenatedAttention(key_dim=shape.key_dim, cross=cross, **sizes)
        found["standard"] = Contestant(module, "standard" if shape.key_dim == width else "standard at the key dim")
    found.update({name: Contestant(module, "collaborative") for name, module in collaborative.items()})

    first: Dict[str, nn.Module] = {}
    for name, contestant in found.items():
        if contestant.function not in first:
            _make_visible(contestant.module)
        source = first.setdefault(contestant.function, contestant.module)
        contestant.module.load_state_dict(source.state_dict())
        if beams > 1 and name not in ("fairseq", "authors", "authors-bmm"):
            contestant.module.set_beam_size(beams)  # type: ignore[operator]
    return found


def _make_visible(module: nn.Module) -> None:
    """Biases that are not zero, so that a way which forgets one is noticed."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
