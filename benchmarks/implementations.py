"""The attention modules that are measured: ours and its baselines.

All have fairseq's call signature, with tensors of shape (T, R, E): positions, hypotheses, embedding dimension.
"""

from typing import Any, Dict, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from benchmarks.measure import SEED
from collab_fairseq.attention import CollaborativeAttention, KeyValue, StandardAttention
from collab_fairseq.modules.attention import IncrementalAttention, incremental

#: our implementations → the reference that computes the same function with the same parameters
SAME_FUNCTION = {"standard-sdpa": "fairseq", "ours": "authors", "ours-bmm": "authors"}


class AuthorsAttention(IncrementalAttention, CollaborativeAttention):  # type: ignore[misc]
    """Collaborative heads as in the paper's code: the mixed keys of all heads, (N, H, S, D̃k), are stored and cached.

    scores_h = Q (K ⊙ m_h)ᵀ · scale. Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, equation 6.
    N: sentences, H: heads, S: source positions, D̃k: key dimension.
    """

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        mixed = keys.contiguous().unsqueeze(1) * self.mixing.unsqueeze(1)
        return KeyValue(mixed, self.split_heads(values), None)

    def _head_outputs(self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, *_: Any) -> Any:
        scores = torch.einsum("ntk,nhsk->nhts", query * self.scale, entry.key)
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)  # as in fairseq
        if dropout > 0.0:
            weights = nn.functional.dropout(weights, p=dropout)
        return weights.matmul(entry.value), weights

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor, *find: Any) -> Any:
        """As in fairseq: in cross-attention, the rows of a sentence's beams are equal and need no reordering."""
        cached_key = self._get_input_buffer(incremental_state).get("prev_key")
        if self.cross and cached_key is not None and cached_key.size(0) == new_order.size(0):
            return incremental_state
        return super().reorder_incremental_state(incremental_state, new_order, *find)


def implementations(embed_dim: int, num_heads: int, key_dim: int, cross: bool) -> Dict[str, nn.Module]:
    """All implementations of a layer, in float32 on the CPU; those of :data:`SAME_FUNCTION` have equal parameters.

    Args:
        embed_dim, num_heads, key_dim: E, H, D̃k; standard heads have the full key dimension E.
        cross: cross-attention instead of self-attention.
    """
    torch.manual_seed(SEED)
    standard: Any = incremental(StandardAttention)
    collaborative: Any = incremental(CollaborativeAttention)
    modules: Dict[str, nn.Module] = {
        "fairseq": MultiheadAttention(embed_dim, num_heads, self_attention=not cross, encoder_decoder_attention=cross),
        "standard-sdpa": standard(embed_dim, num_heads, embed_dim, cross=cross, kernel="sdpa"),
        "authors": AuthorsAttention(embed_dim, num_heads, key_dim, cross=cross),
        "ours": collaborative(embed_dim, num_heads, key_dim, cross=cross),
        "ours-bmm": collaborative(embed_dim, num_heads, key_dim, cross=cross, kernel="bmm"),
    }
    for reference in dict.fromkeys(SAME_FUNCTION.values()):
        for parameter_name, parameter in modules[reference].named_parameters():
            if parameter_name.endswith("bias"):  # nonzero, to detect a missing bias
                nn.init.normal_(parameter, std=0.1)
    for name, reference in SAME_FUNCTION.items():
        modules[name].load_state_dict(modules[reference].state_dict())
    return modules
