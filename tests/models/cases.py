"""Small models and batches for tests without data files."""

from argparse import Namespace
from typing import Any, Dict, Tuple

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

import collab_fairseq.models  # noqa: F401  (registers transformer_collab)

VOCABULARY = 50


def both_sides(**sizes: int) -> Dict[str, int]:
    return {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}


TINY = both_sides(embed_dim=128, ffn_embed_dim=256, layers=4, attention_heads=4)
#: two layers of two heads
SMALL = both_sides(embed_dim=16, ffn_embed_dim=20, layers=2, attention_heads=2)

#: flags of models with different attention
KINDS = {
    "collaborative": {"key_dim": 6},
    "shared-values": {"key_dim": 6, "value_heads": 1},
    "content": {"key_dim": 6, "attention_content_bias": True, "mixing_lr_multiplier": 3.0},
    "per-site": {"encoder_key_dim": 4, "decoder_key_dim": 10, "key_dim": 6},
    "mixed": {"key_dim": 6, "collaborative_heads": "cross"},
    "standard": {"collaborative_heads": "none"},
    "multi-query": {"collaborative_heads": "none", "kv_heads": 1},
    "latent": {"collaborative_heads": "none", "kv_latent_dim": 5},
    "pre-norm": {"key_dim": 6, "decoder_normalize_before": True},
    "cross-self": {"key_dim": 6, "no_cross_attention": True, "cross_self_attention": True},
}


class Task:
    """The part of a translation task that building a model needs."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        dictionary = Dictionary()
        for i in range(vocabulary - len(dictionary)):
            dictionary.add_symbol(f"w{i}")
        self.source_dictionary = self.target_dictionary = dictionary


def arguments(arch: str = "transformer_collab", **flags: Any) -> Namespace:
    """The namespace that the command line makes from these flags."""
    args = Namespace(arch=arch, **{"share_all_embeddings": True, **flags})
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def build(arch: str = "transformer_collab", vocabulary: int = VOCABULARY, seed: int = 0, **flags: Any):
    """Build a model as the command line does."""
    torch.manual_seed(seed)
    return models.build_model(arguments(arch, **flags), Task(vocabulary))


def batch(sentences: int = 3, source_len: int = 7, target_len: int = 6, seed: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
    """Left-padded sources (N, S), their lengths (N), and targets that begin with </s> (N, T)."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(4, VOCABULARY, (sentences, source_len), generator=random)
    for row in range(1, sentences):
        source[row, : min(row, source_len - 2)] = 1
    target = torch.randint(4, VOCABULARY, (sentences, target_len), generator=random)
    target[:, 0] = 2
    return source, source.ne(1).sum(1), target


def logits(model):
    """Logits (N, T, V) of :func:`batch`."""
    with torch.no_grad():
        return model(*batch())[0]


def model_of(kind, seed=0):
    """A model with attention that is far from uniform and translations that differ."""
    model = build(**SMALL, **KINDS[kind], seed=seed).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attn" in name and "norm" not in name:
                parameter.mul_(2.0)
            if "mixing" in name:
                parameter.mul_(2.0)
            if "content_bias" in name:
                torch.nn.init.normal_(parameter)
    return model


def same_model(state, other):
    """Whether two state dicts hold the same parameters, bit for bit."""
    return state.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in state.items())


def same_training(checkpoint, other):
    """Whether two checkpoints hold the same parameters and moments of Adam, bit for bit."""
    moments, others = (c["last_optimizer_state"]["state"] for c in (checkpoint, other))
    return same_model(checkpoint["model"], other["model"]) and all(
        torch.equal(moments[index][name], others[index][name])
        for index in moments
        for name in ("exp_avg", "exp_avg_sq")
    )


def step_by_step(model, encoder_out, target):
    """Decode one position at a time: logits (N, T, V), and the final state."""
    state = {}
    steps = [
        model.decoder(target[:, : t + 1], encoder_out=encoder_out, incremental_state=state)[0]
        for t in range(target.size(1))
    ]
    return torch.cat(steps, dim=1), state


def cached(model, state, site):
    """The caches of a site's layers."""
    layers = [layer.encoder_attn if site == "cross" else layer.self_attn for layer in model.decoder.layers]
    return [layer.get_incremental_state(state, "attn_state") for layer in layers]
