"""Settings of ``transformer_collab``: those of fairseq's transformer, and its own flags.

The model is registered *without* this dataclass, because fairseq drops nested flags (``--encoder-layers``) of models
that are registered with one. :mod:`.arguments` converts flags, presets and Hydra configs to this config.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig

from collab_fairseq.attention import INITIAL_MIXING
from collab_fairseq.attention.attention_types import KEY_DIM_SETTINGS, SITES
from collab_fairseq.attention.kernels import COLLABORATIVE
from collab_fairseq.attention.layer import INITS
from collab_fairseq.checkpoints import DICTIONARIES
from collab_fairseq.modules.gates import CRITERION, OPEN

_SITES = f"{', '.join(SITES)} joined by '_' in any order, or none"


def _flag(default: Any, text: str) -> Any:
    """A field that is a command-line flag with this help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class TransformerCollabConfig(TransformerConfig):  # type: ignore[misc]
    """Settings of :class:`.TransformerCollabModel`.

    ``settings`` of an attention type (:class:`.AttentionLayer`) lists those that its layers take.
    """

    collaborative_heads: str = _flag(
        "encoder_cross_decoder", f"sites with collaborative heads: {_SITES} (default: encoder_cross_decoder)"
    )
    key_dim: Optional[int] = _flag(
        None,
        "key dimension of every site: shared by all collaborative heads, summed over standard heads (default: d_model)",
    )
    encoder_key_dim: Optional[int] = _flag(None, "key dimension of encoder self-attention (default: --key-dim)")
    cross_key_dim: Optional[int] = _flag(None, "key dimension of encoder-decoder attention (default: --key-dim)")
    decoder_key_dim: Optional[int] = _flag(None, "key dimension of decoder self-attention (default: --key-dim)")
    value_heads: Optional[int] = _flag(
        None,
        "collaborative heads also share values, in N groups (N divides the number of heads), so that the KV cache is "
        "smaller (default: one group per head)",
    )
    mixing_init: ChoiceEnum(list(INITIAL_MIXING)) = _flag(  # type: ignore[valid-type]  # noqa: RUF009
        "xavier",
        "initial mixing matrix of collaborative heads: xavier, blocks (start from standard heads; recommended) or "
        "normal (variance 1 / heads) (default: xavier)",
    )
    mixing_lr_multiplier: float = _flag(
        1.0,
        "with Adam, multiply the learning rate of the mixing matrix and the content bias by this number (default: 1; "
        "recommended: 8)",
    )
    attention_content_bias: bool = _flag(False, "add a content bias to collaborative heads (equation 13 of the paper)")
    kv_heads: Optional[int] = _flag(
        None,
        "standard heads share keys and values in N groups (N divides the number of heads): grouped-query attention, or "
        "multi-query attention with N = 1 (default: one group per head)",
    )
    kv_latent_dim: Optional[int] = _flag(
        None,
        "standard heads compute keys and values from a shared latent vector of this dimension per token, and decoding "
        "caches only the latent: multi-head latent attention (default: no latent)",
    )
    attention_init: ChoiceEnum(list(INITS)) = _flag(  # type: ignore[valid-type]  # noqa: RUF009
        "default",
        "initialisation of the query, key and value projections: default (Xavier with gain 1/sqrt(2)), or authors (as "
        "in the code of the paper's authors: gain 1 if the key dimension differs from d_model) (default: default)",
    )
    attention_kernel: ChoiceEnum(["auto", *COLLABORATIVE]) = _flag(  # type: ignore[valid-type]  # noqa: RUF009
        "auto",
        "implementation of attention: bmm (plain matrix products), head_loop (one head after the other, for CPUs), "
        "sdpa (PyTorch's fused attention), or auto, the fastest (default: auto); the results are the same",
    )
    fast_dropout: bool = _flag(
        False,
        "draw dropout masks from fewer random bits: several times faster on a CPU, with different random numbers from "
        "fairseq's",
    )
    compile: bool = _flag(False, "train layers with torch.compile, for GPUs; the first batches take minutes")
    mask_heads: Optional[str] = _flag(
        None,
        "set the output of these heads to zero, for example 'E:1:3,5 A:2:1': E (encoder), A (encoder-decoder) or D "
        "(decoder), layer and heads, counted from 1",
    )
    head_gates: str = _flag(
        "none", f"sites with stochastic gates on heads, for --criterion {CRITERION}: {_SITES} (default: none)"
    )
    head_gates_init: float = _flag(
        2.4, f"initial log alpha of the gates; at {OPEN:.2f} or more, the mean gate is exactly 1 (default: 2.4)"
    )
    head_gates_freeze_decoder: bool = _flag(
        False,
        "do not train the decoder and the embeddings that it shares, so that it cannot compensate for closed gates in "
        "the encoder",
    )
    attention_from: Optional[str] = _flag(
        None,
        "take the attention shapes (heads, key dimensions, scales) from this checkpoint, for example a converted or "
        "pruned one; to continue training from its weights, also pass --finetune-from-model",
    )
    # written by conversion and pruning, not by users: {"cross.3": {"key_dim": 96, "scale": 0.125}, …}
    attention_shapes: Dict[str, Any] = field(default_factory=dict)
    # written when a model is built: SHA-256 of the symbols of its dictionaries
    source_dictionary_sha256: Optional[str] = None
    target_dictionary_sha256: Optional[str] = None

    def __setattr__(self, name: str, value: Any) -> None:
        """fairseq stores ``encoder_*`` and ``decoder_*`` in sub-configs; key dimensions of sites stay here."""
        if name in KEY_DIM_SETTINGS.values():
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _get_all_attributes(self) -> List[str]:
        """Fields that become command-line flags."""
        written = ("attention_shapes", *DICTIONARIES)
        return [name for name in super()._get_all_attributes() if name not in written]


#: settings that fairseq's config does not have → default
OWN_DEFAULTS = {
    f.name: getattr(TransformerCollabConfig(), f.name)
    for f in fields(TransformerCollabConfig)
    if f.name not in TransformerConfig.__dataclass_fields__
}
