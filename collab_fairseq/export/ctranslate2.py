"""``--to ctranslate2``: a folder for CTranslate2 (https://opennmt.net/CTranslate2): the same, but faster.

Heads become standard ones (:mod:`.standard_heads`), with a width of their own (``head_dim``) and the layer's scale
(``queries_scale``) in every layer: key dims above E / H too are exact, with values that zeros make as wide.
CTranslate2's converter of fairseq models does the rest.
"""

from typing import Any, Optional

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.ctranslate2_engine import PRECISIONS
from collab_fairseq.translation.units import require

from .source import ExportError, Source, new_folder, refuse_settings, write_text_side
from .standard_heads import standard_layers


def export(source: Source, output: PathLike, *, quantization: Optional[str] = None) -> None:
    """Write the folder, whole or not at all.

    Args:
        quantization: of the weights on the disk, one of CTranslate2's names; default: float32.

    Raises:
        ExportError: something of the model that CTranslate2 does not have, by name, or the folder cannot be written.
        TranslationError: the package ctranslate2 is not installed.
    """
    require("ctranslate2")
    if quantization is not None and quantization not in PRECISIONS:
        raise ExportError(f"the quantization must be one of {', '.join(PRECISIONS)}, but is {quantization}")
    spec = _specification(source)
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    with new_folder(output) as folder:
        spec.save(folder)
        write_text_side(
            source, folder, "ctranslate2", f"Translation model for CTranslate2 ({quantization or 'float32'})",
            "Its attention is written as standard heads; scores are those of the model that it was made from. What is",
            "given up: the small key cache that collaborative heads share.\n",
            "    collab translate DIR FILE\n",
            "`ctranslate2.Translator(\"DIR\")` takes and gives units of the dictionaries.",
        )  # fmt: skip


def _specification(source: Source) -> Any:
    import numpy
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    config, model = source.config, source.model
    one_sided = config.encoder.normalize_before != config.decoder.normalize_before
    refuse_settings(
        config, "CTranslate2", {"--encoder-normalize-before or --decoder-normalize-before alone": one_sided}
    )
    activations = {"relu": common_spec.Activation.RELU, "gelu": common_spec.Activation.GELU}
    if config.activation_fn not in activations:
        raise ExportError(f"the activation must be one of {', '.join(activations)}, but is {config.activation_fn}")
    layers = standard_layers(model)
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers), 1,
        pre_norm=config.encoder.normalize_before, activation=activations[config.activation_fn],
        layernorm_embedding=config.layernorm_embedding, alignment_heads=0,
    )  # fmt: skip
    for site, side, attribute in (
        ("encoder", spec.encoder, "self_attention"), ("cross", spec.decoder, "attention"),
        ("decoder", spec.decoder, "self_attention"),
    ):  # fmt: skip
        for number, layer in enumerate(side.layer):
            own = layers[f"{site}.{number}"]
            made = attention_spec.MultiHeadAttentionSpec(self_attention=site != "cross", head_dim=own.head_dim)
            made.queries_scale = numpy.float32(own.scale)
            setattr(layer, attribute, made)
            side.num_heads = numpy.int16(own.num_heads)
    with swapped(model, layers):
        import torch

        with torch.no_grad():
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
