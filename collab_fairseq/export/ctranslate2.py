"""``--to ctranslate2``: a model folder for the inference engine CTranslate2 (https://opennmt.net/CTranslate2).

All attention is written as standard heads (:mod:`.standard_heads`), in every layer with its own head width
(``head_dim``) and scale (``queries_scale``). The export is therefore exact for every key dimension. CTranslate2's
converter for fairseq models writes all other layers.

Where all heads of a layer share keys and values, only one copy is written. In the decoder's self-attention,
CTranslate2 then caches one head (its flag ``multi_query``), provided that heads are E / H wide (E: embedding width, H:
heads). Elsewhere it repeats the copy. Groups of heads are projected once and cached as copies.
"""

import math
from typing import Any, Dict, Optional

import torch

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.tokenizer import require
from fairseq_modern.files import new_folder

from .readme import Written, write_companion_files
from .source import Source, reject_settings
from .standard_heads import standard_layers

#: fairseq's name → CTranslate2's
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU"}


def check(source: Source) -> Dict[str, IncrementalAttention]:
    """``site.layer`` → the standard attention to write."""
    config = source.config
    encoder, decoder = config.encoder.normalize_before, config.decoder.normalize_before
    others = {
        "--encoder-normalize-before or --decoder-normalize-before alone": encoder != decoder,
        "--no-decoder-final-norm": decoder and config.no_decoder_final_norm,
    }
    reject_settings(config, "CTranslate2", _ACTIVATIONS, others)
    return standard_layers(source.model)


def export(
    source: Source, layers: Dict[str, IncrementalAttention], output: PathLike, *, quantization: Optional[str] = None
) -> None:
    """Write the folder; ``quantization``: CTranslate2's name of the precision of weights on disk (default: float32)."""
    require("ctranslate2")
    quantization = quantization or "float32"
    spec = _specification(source, layers)
    spec.validate()
    spec.optimize(quantization=quantization)
    sides = ((spec.encoder, source.config.encoder), (spec.decoder, source.config.decoder))
    fixed = [stack.position_encodings.encodings for stack, sizes in sides if not sizes.learned_pos]
    # a name stands for equal weights, which are written once
    positions = sum(math.prod(encodings.shape) for encodings in fixed if not isinstance(encodings, str))
    if any("multi_query" in vars(layer.self_attention) for layer in spec.decoder.layer):
        cache = [
            "The decoder's self-attention caches keys and values of one head only. Therefore, `score_batch` of",
            "CTranslate2 cannot score targets of different lengths in one call.",
        ]
    else:
        cache = ["The cache contains the keys and values of all heads, also where the original model shares them."]
    usage = [
        "The attention is stored as standard heads, which give the same scores as the original model.",
        *cache,
        "",
        "```bash",
        "collab translate DIR FILE",
        "```",
        "",
        '`ctranslate2.Translator("DIR")` reads and returns tokens of the dictionaries.',
    ]
    with new_folder(output) as folder:
        spec.save(folder)
        title = f"Translation model for CTranslate2 ({quantization})"
        written = Written(layers, positions)
        write_companion_files(source, folder, "ctranslate2", title, usage, written)


def _specification(source: Source, layers: Dict[str, IncrementalAttention]) -> Any:
    """CTranslate2's description of the model, with all weights; copies of shared keys and values leave the layers."""
    import numpy
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    config, model = source.config, source.model
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers),
        num_heads=1,  # set below, with the attention
        pre_norm=config.encoder.normalize_before,
        activation=getattr(common_spec.Activation, _ACTIVATIONS[config.activation_fn]),
        layernorm_embedding=config.layernorm_embedding,
        alignment_heads=0,
    )
    for layer_id, layer in layers.items():
        site, _, number = layer_id.partition(".")
        groups = _remove_copies(layer)
        attention = attention_spec.MultiHeadAttentionSpec(
            self_attention=site != "cross",
            head_dim=layer.head_dim,
            num_heads_kv=groups if groups < layer.num_heads else None,
        )
        attention.queries_scale = numpy.float32(layer.scale)
        # CTranslate2 reads this flag although the class does not list it. It fails on padding in the encoder, and
        # cross-attention repeats the copy anyway
        standard_width = layer.num_heads * layer.head_dim == layer.embed_dim
        if site == "decoder" and standard_width and groups == 1 < layer.num_heads:
            vars(attention)["multi_query"] = True
        stack = spec.encoder if site == "encoder" else spec.decoder
        setattr(stack.layer[int(number)], "attention" if site == "cross" else "self_attention", attention)
        stack.num_heads = numpy.int16(layer.num_heads)
    with swapped(model, layers), torch.no_grad():
        converter.set_transformer_encoder(spec.encoder, model.encoder)
        converter.set_transformer_decoder(spec.decoder, model.decoder)
    task = source.trained.task
    vocabularies = [
        ["<blank>" if unit == "<pad>" else unit for unit in dictionary.symbols]
        for dictionary in (task.source_dictionary, task.target_dictionary)
    ]
    spec.register_source_vocabulary(vocabularies[0])
    spec.register_target_vocabulary(vocabularies[1])
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec


def _remove_copies(layer: IncrementalAttention) -> int:
    """Keep one copy of the keys and values for each group of heads that share them; returns the number of groups."""
    names = [name for name, _ in layer.named_parameters() if name.startswith(("k_proj.", "v_proj."))]
    heads_of = {name: layer.get_parameter(name).data.unflatten(0, (layer.num_heads, -1)) for name in names}
    for groups in range(1, layer.num_heads):
        if layer.num_heads % groups:
            continue
        size = layer.num_heads // groups
        first = {name: heads[::size] for name, heads in heads_of.items()}
        if all(torch.equal(heads, first[name].repeat_interleave(size, dim=0)) for name, heads in heads_of.items()):
            for name, kept in first.items():
                layer.get_parameter(name).data = kept.flatten(0, 1)
            return groups
    return layer.num_heads
