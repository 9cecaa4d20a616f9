"""Translation models of one size, and synthetic sentences with realistic lengths.

The models are fairseq's transformer, ours with standard heads, ours, and ours with attention as in the paper's code.
"""

import itertools
from argparse import Namespace
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq import models, utils
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

import collab_fairseq.models  # noqa: F401  (registers transformer_collab)
from benchmarks.implementations import AuthorsAttention
from benchmarks.measure import SEED, Options
from collab_fairseq.modules.sites import attention_layers, parameter_prefix

#: size → our preset; fairseq's transformer gets the same settings
PRESETS = {"tiny": "transformer_collab_tiny", "base": "transformer_collab"}
#: size → entries of the joint dictionary: that of recipes/multi30k; 32K BPE, as for WMT14
VOCABULARY = {"tiny": 5904, "base": 32768}
#: for --quick
_SMALL = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}
#: percentiles of the sentence lengths, in pieces with </s>, of the English test_2016_flickr in recipes/multi30k
PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)
LENGTHS = (6, 9, 10, 12, 15, 18, 22, 25, 33, 36)


def random_lengths(number: int, seed: int = SEED, longest: int = LENGTHS[-1]) -> List[int]:
    """Random sentence lengths, distributed as in Multi30k and scaled to ``longest``, which the first sentence has."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(number, generator=random, dtype=torch.float64).numpy()
    drawn: Any = np.interp(100 * shares, PERCENTILES, LENGTHS) * (longest / LENGTHS[-1])
    return [longest, *drawn.round().clip(2).astype(int).tolist()[1:]]


class Task:
    """The part of a translation task that models, criteria and search use: a joint dictionary."""

    def __init__(self, options: Options, size: str) -> None:
        dictionary = Dictionary()
        entries = 64 if options.quick else VOCABULARY[size]
        for number in range(entries - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
        self.source_dictionary = self.target_dictionary = dictionary

    def sentences(self, lengths: Sequence[int], seed: int = SEED) -> List[Tensor]:
        """Random sentences of these lengths, including ``</s>``."""
        random = torch.Generator().manual_seed(seed)
        dictionary = self.source_dictionary
        sentences = []
        for length in lengths:
            sentence = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=random)
            sentence[-1] = dictionary.eos()
            sentences.append(sentence)
        return sentences


def build(
    size: str, task: Task, key_dim: int, names: Sequence[str], options: Options, fast_dropout: bool = False
) -> Dict[str, nn.Module]:
    """Models by name, with equal parameters in all models with standard heads and in all with collaborative heads.

    Args:
        size: key of :data:`PRESETS`.
        key_dim: D̃k of ``ours`` and ``authors``.
        names: ``fairseq`` and ``fairseq-bf16`` (its transformer), ``none`` (ours with standard heads), ``ours``,
            ``authors`` (mixed keys of all heads).
        fast_dropout: of our models.
    """
    flags: Dict[str, Any] = {"share_all_embeddings": True, "fast_dropout": fast_dropout}
    if options.quick:
        for side in ("encoder", "decoder"):
            flags.update({f"{side}_{name}": value for name, value in _SMALL.items()})
    built: Dict[str, nn.Module] = {}
    for name in names:
        heads = {"key_dim": key_dim} if name in ("ours", "authors") else {"collaborative_heads": "none"}
        args = Namespace(arch=PRESETS[size], **flags, **heads)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        if name.startswith("fairseq"):
            args.arch = "transformer_wmt_en_de"  # all sizes are set, so this is fairseq's transformer
        torch.manual_seed(SEED)
        built[name] = models.build_model(args, task)
    if "authors" in built:
        _use_authors_attention(built["authors"])
    for source, target in (("fairseq", "none"), ("ours", "authors")):
        if source in built and target in built:
            built[target].load_state_dict(built[source].state_dict())
    return {name: model.to(options.device) for name, model in built.items()}


def _use_authors_attention(model: nn.Module) -> None:
    """Replace all attention layers of a model."""
    layers: Dict[str, Any] = dict(attention_layers(model))
    for layer_id, layer in layers.items():
        authors = AuthorsAttention(
            layer.embed_dim, layer.num_heads, layer.key_dim, dropout=layer.dropout, cross=layer.cross
        )
        model.set_submodule(parameter_prefix(layer_id)[:-1], authors)


def make_batch(sources: List[Tensor], targets: Optional[List[Tensor]], task: Any, device: str) -> Dict[str, Any]:
    """A batch as in fairseq's translation dataset; without targets for translation."""
    pairs = itertools.zip_longest(sources, targets or ())
    samples = [{"id": number, "source": source, "target": target} for number, (source, target) in enumerate(pairs)]
    batch = collate(samples, task.source_dictionary.pad(), task.source_dictionary.eos())
    on_device: Dict[str, Any] = utils.apply_to_sample(lambda tensor: tensor.to(device), batch)
    return on_device
