"""The attention modules that are timed: ours, fairseq's, and other ways to compute the same.

All have fairseq's call signature and (T, R, E) tensors; letters as in :mod:`collab_fairseq.attention.cache`.
Contestants of one *function* hold the same parameters and must give the same output: :func:`.layers.agree`.
"""

from typing import Any, Dict, NamedTuple, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from collab_fairseq.attention import KINDS, CollaborativeAttention, KeyValue, StandardAttention
from collab_fairseq.modules.attention import IncrementalAttention, incremental

from .measure import SEED

#: kinds of heads that a flag chooses
_CHOSEN = [kind for kind in KINDS if kind.chosen_by is not None]
#: what the contestants are called in tables, in this order
NAMES = {
    # standard heads, fairseq's MultiheadAttention: its own batched products, as in cross-attention and decoding; its
    # decoding cache has a row per hypothesis
    "fairseq": "(a) fairseq",
    # the same module as fairseq calls it in self-attention without a cache: torch's multi_head_attention_forward
    "fairseq-self": "(a) fairseq's self-attention call",
    # with its beam size set, as no released model of fairseq sets it: one row of keys and values per sentence
    "fairseq-sentence": "(a') fairseq per sentence",
    "fairseq-bf16": "(a) fairseq in bf16",
    "none": "ours with `none`",  # of whole models: standard heads in our layers
    "standard-sdpa": "(b) standard, SDPA",  # standard heads through torch's scaled_dot_product_attention
    "standard": "(c) standard at the key dim",  # StandardAttention at the key dim of the collaborative heads
    # collaborative heads as the paper's authors compute them: the key mixed for every head and cached so, a row per
    # hypothesis; by einsum, or by a batched product
    "authors": "(d) authors, einsum",
    "authors-bmm": "(d) authors, bmm",
    # other kinds at the full width, as they choose: (e) grouped, with a quarter of the heads' keys and values, …
    **{kind.kind: f"({letter}) {kind.kind}" for letter, kind in zip("efghi", _CHOSEN, strict=False)},
    "ours": "ours",  # collaborative heads, with the kernel that the layer chooses; ours-KERNEL: with that one
}


class AuthorsAttention(IncrementalAttention, CollaborativeAttention):  # type: ignore[misc]
    """Collaborative heads with the key mixed for every head, (N, H, S, D̃k), materialised and cached.

    scores_h = Q (K ⊙ m_h)ᵀ · scale. Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, equation 6.
    """

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        mixed = keys.contiguous().unsqueeze(1) * self.mixing.unsqueeze(1)
        return KeyValue(mixed, self.split_heads(values), None)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(N, H, T, S) of queries (N, T, D̃k) and mixed keys (N, H, S, D̃k)."""
        return torch.einsum("ntk,nhsk->nhts", query, key)

    def _head_outputs(self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, *_: Any) -> Any:
        scores = self.scores(query * self.scale, entry.key)
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)  # as fairseq's
        if dropout > 0.0:
            weights = nn.functional.dropout(weights, p=dropout)
        return weights.matmul(entry.value), weights

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor, *find: Any) -> Any:
        """As fairseq's: the beams of a sentence have equal rows in cross-attention, which stay where they are."""
        kept = self._get_input_buffer(incremental_state).get("prev_key")
        if self.cross and kept is not None and kept.size(0) == new_order.size(0):
            return incremental_state
        return super().reorder_incremental_state(incremental_state, new_order, *find)


class AuthorsBmmAttention(AuthorsAttention):
    """The same by a product for every sentence and head, as fairseq computes standard heads."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query.unsqueeze(1).matmul(key.transpose(2, 3))


class Contestant(NamedTuple):
    """A module and what it computes."""

    module: nn.Module
    function: str
    static: bool = True  # fairseq's ``static_kv`` where nothing is cached, which decides fairseq's way
    beams: int = 1  # in decoding, of so many rows of the source side by side the first is shown


def contestants(embed_dim: int, num_heads: int, key_dim: int, cross: bool, beams: int = 1) -> Dict[str, Contestant]:
    """All contestants of a layer, float32 on the CPU; those of one function have the same parameters.

    Args:
        embed_dim, num_heads, key_dim: E, H, D̃k. cross: cross-attention. beams: hypotheses per sentence in decoding, or
            1.
    """
    torch.manual_seed(SEED)
    found: Dict[str, Contestant] = {}
    first: Dict[str, nn.Module] = {}

    def enter(name: str, module: nn.Module, function: str, **more: Any) -> None:
        if function not in first:
            for parameter_name, parameter in module.named_parameters():
                if parameter_name.endswith("bias"):  # not zero, so that a way which forgets one is noticed
                    nn.init.normal_(parameter, std=0.1)
        module.load_state_dict(first.setdefault(function, module).state_dict())
        found[name] = Contestant(module, function, **more)

    def stock() -> MultiheadAttention:
        return MultiheadAttention(embed_dim, num_heads, self_attention=not cross, encoder_decoder_attention=cross)

    def own(kind: Any, key_dim: int = key_dim, kernel: str = "auto", **more: Any) -> nn.Module:
        made = kind if issubclass(kind, IncrementalAttention) else incremental(kind)
        return made(embed_dim, num_heads, key_dim, cross=cross, kernel=kernel, **more)  # type: ignore[no-any-return]

    per_sentence = {"beams": beams if cross else 1}
    enter("fairseq", stock(), "standard")
    if beams > 1 and cross:
        sentence = stock()
        sentence.set_beam_size(beams)
        enter("fairseq-sentence", sentence, "standard")
    if beams == 1 and not cross:
        enter("fairseq-self", stock(), "standard", static=False)
    enter("standard-sdpa", own(StandardAttention, embed_dim, "sdpa"), "standard", **per_sentence)
    if key_dim % num_heads == 0:
        function = "standard" if key_dim == embed_dim else "standard at the key dim"
        enter("standard", own(StandardAttention), function, **per_sentence)
    for kind in _CHOSEN:
        shared = {flag.argument: flag.example(num_heads, key_dim) for flag in kind.flags if flag.example}
        enter(kind.kind, own(kind, embed_dim, **shared), kind.kind, **per_sentence)
    enter("authors", own(AuthorsAttention), "collaborative")
    enter("authors-bmm", own(AuthorsBmmAttention), "collaborative")
    for name, kernel in {"ours": "auto", **{f"ours-{name}": name for name in CollaborativeAttention.kernels}}.items():
        enter(name, own(CollaborativeAttention, kernel=kernel), "collaborative", **per_sentence)
    return found
