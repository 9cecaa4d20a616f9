"""An attention type for tests: each head reads its own slice of one shared key, and slices overlap."""

from torch import nn

from collab_fairseq.attention import ATTENTION_TYPES, KeyValue, StandardAttention
from collab_fairseq.attention.attention_type import Flag
from collab_fairseq.attention.factors import HeadMaps, affine


class SlicedAttention(StandardAttention):
    type_name, chosen_by = "sliced", "shared_key_dim"
    flags = (Flag("shared_key_dim", "shared_key_dim", "width of the one key", label="slices of {} key dimensions"),)

    def __init__(self, *sizes, shared_key_dim, **options):
        super().__init__(*sizes, **options)
        if not self.key_dim // self.num_heads <= shared_key_dim <= self.key_dim:
            raise ValueError(f"shared_key_dim must be between that of a head and key_dim; got {shared_key_dim}")
        self.k_proj = nn.Linear(self.kdim, shared_key_dim)
        self.reset_parameters()

    def slices(self, key):  # (…, W) → (…, H, dk)
        width = self.key_dim // self.num_heads
        return key.unfold(-1, width, (key.size(-1) - width) // (self.num_heads - 1))[..., : self.num_heads, :]

    def _entry(self, key, keys, values):
        return KeyValue(keys, self.split_heads(values), None)

    def _head_outputs(self, query, entry, *rest):
        sliced = KeyValue(self.slices(entry.key).transpose(1, 2), entry.value, None)
        return self._attend_heads(self.split_heads(query), sliced, *rest)

    def head_maps(self):
        key = self.slices(affine(self.k_proj).T).permute(1, 2, 0)
        query, value = (self._head_map(projection, self.num_heads) for projection in (self.q_proj, self.v_proj))
        return HeadMaps(query, key, value)


ATTENTION_TYPES.append(SlicedAttention)
import collab_fairseq.models  # noqa: E402, F401  (after the flag exists)
