"""``--to ctranslate2``: a folder for CTranslate2 (https://opennmt.net/CTranslate2): the same, but faster.

Heads become standard ones (:mod:`.standard_heads`), with a width of their own (``head_dim``) and the layer's scale
(``queries_scale``) in every layer: key dims above E / H too are exact, with values that zeros make as wide.
CTranslate2's converter of fairseq models does the rest.

The copies that heads have of shared keys and values are left out where all of them share both: CTranslate2 then caches
one head in the decoder's self-attention (its flag ``multi_query``), if heads are E / H wide, and copies them itself
elsewhere. Groups of heads are projected once, but cached as copies.
"""

from typing import Any, Dict, Optional

import torch

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.ctranslate2_engine import PRECISIONS
from collab_fairseq.translation.tokenizer import require
from fairseq_modern.errors import UserError

from .readme import write_text_side
from .source import Source, new_folder, refuse_settings
from .standard_heads import standard_layers

#: fairseq's name → CTranslate2's
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU"}


def check(source: Source) -> Dict[str, Any]:
    """The attention that is written, by place.

    Raises:
        UnsupportedError: CTranslate2 lacks something that the model has.
    """
    config = source.config
    encoder, decoder = config.encoder.normalize_before, config.decoder.normalize_before
    lacks = {
        "--encoder-normalize-before or --decoder-normalize-before alone": encoder != decoder,
        "--no-decoder-final-norm": decoder and config.no_decoder_final_norm,
    }
    refuse_settings(config, "CTranslate2", _ACTIVATIONS, lacks)
    return standard_layers(source.model)


def export(source: Source, output: PathLike, *, quantization: Optional[str] = None) -> None:
    """Write the folder; ``quantization``: of the weights on the disk, one of CTranslate2's names (default: float32)."""
    require("ctranslate2")
    if quantization is not None and quantization not in PRECISIONS:
        raise UserError(f"the quantization must be one of {', '.join(PRECISIONS)}, but is {quantization}")
    spec = _specification(source)
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    about = ["What is given up: the small cache of keys (and values) that heads share.\n"]
    if any("multi_query" in vars(layer.self_attention) for layer in spec.decoder.layer):
        about = [
            "One head of keys and values is cached in the decoder's self-attention. CTranslate2 cannot score targets",
            "of different lengths in one call of `score_batch` then.\n",
        ]
    with new_folder(output) as folder:
        spec.save(folder)
        write_text_side(
            source, folder, "ctranslate2", f"Translation model for CTranslate2 ({quantization or 'float32'})",
            "Its attention is written as standard heads; scores are those of the model that it was made from.",
            *about,
            "```bash", "collab translate DIR FILE", "```", "",
            "`ctranslate2.Translator(\"DIR\")` takes and gives tokens of the dictionaries.",
        )  # fmt: skip


def _leave_out_copies(layer: IncrementalAttention) -> int:
    """Keep one copy of keys and values for each group of heads that have the same; returns the number of groups."""
    of_heads = {
        name: parameter.data.unflatten(0, (layer.num_heads, -1))
        for name, parameter in layer.named_parameters()
        if name.startswith(("k_proj.", "v_proj."))
    }
    for groups in range(1, layer.num_heads):
        members, rest = divmod(layer.num_heads, groups)
        if not rest and all(torch.equal(t, t[::members].repeat_interleave(members, dim=0)) for t in of_heads.values()):
            for name, heads in of_heads.items():
                layer.get_parameter(name).data = heads[::members].flatten(0, 1)
            return groups
    return layer.num_heads


def _specification(source: Source) -> Any:
    import numpy
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    layers, config, model = check(source), source.config, source.model
    activation = getattr(common_spec.Activation, _ACTIVATIONS[config.activation_fn])
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers), 1,
        pre_norm=config.encoder.normalize_before, activation=activation,
        layernorm_embedding=config.layernorm_embedding, alignment_heads=0,
    )  # fmt: skip
    for site, side, attribute in (
        ("encoder", spec.encoder, "self_attention"), ("cross", spec.decoder, "attention"),
        ("decoder", spec.decoder, "self_attention"),
    ):  # fmt: skip
        for number, layer in enumerate(side.layer):
            own = layers[f"{site}.{number}"]
            groups = _leave_out_copies(own)
            made = attention_spec.MultiHeadAttentionSpec(
                self_attention=site != "cross", head_dim=own.head_dim,
                num_heads_kv=groups if groups < own.num_heads else None,
            )  # fmt: skip
            made.queries_scale = numpy.float32(own.scale)
            # read, though its class does not list it; the encoder would fail on padding, cross-attention copies anyhow
            if groups == 1 < own.num_heads and site == "decoder" and own.num_heads * own.head_dim == own.embed_dim:
                vars(made)["multi_query"] = True
            setattr(layer, attribute, made)
            side.num_heads = numpy.int16(own.num_heads)
    with swapped(model, layers), torch.no_grad():
        converter.set_transformer_encoder(spec.encoder, model.encoder)
        converter.set_transformer_decoder(spec.decoder, model.decoder)
    for register, dictionary in (
        (spec.register_source_vocabulary, source.trained.task.source_dictionary),
        (spec.register_target_vocabulary, source.trained.task.target_dictionary),
    ):
        register(["<blank>" if unit == "<pad>" else unit for unit in dictionary.symbols])
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec
