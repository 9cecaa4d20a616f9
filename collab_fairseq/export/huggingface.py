"""``--to huggingface``: a folder for ``transformers``, as FSMT, its class of fairseq's translation models.

FSMT is fairseq's post-norm ``transformer``, so heads must fit as in :mod:`.fairseq`. Its tokenizer knows Moses and BPE
codes; of SentencePiece models weights and ids are exported, and the text side is the SentencePiece model in the folder.
"""

import json
import os
from typing import Any, Dict

from torch import Tensor

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.units import SUBWORD_FILES, require

from .source import Source, describe, new_folder, refuse_settings, write_text_side
from .standard_heads import standard_layers


def export(source: Source, output: PathLike) -> None:
    """Write the folder, whole or not at all.

    Raises:
        ExportError: something of the model that FSMT does not have, by name; heads that do not fit; or the folder
            cannot be written.
        TranslationError: the package transformers is not installed.
    """
    transformers = require("transformers", "huggingface")
    config, model, card = source.config, source.model, source.card
    refuse_settings(
        config,
        "FSMT of transformers",
        {
            "--encoder-normalize-before": config.encoder.normalize_before,
            "--decoder-normalize-before": config.decoder.normalize_before,
            "--layernorm-embedding": config.layernorm_embedding,
            "--encoder-learned-pos": config.encoder.learned_pos,
            "--decoder-learned-pos": config.decoder.learned_pos,
            "encoder and decoder of different widths": config.encoder.embed_dim != config.decoder.embed_dim,
        },
    )
    dictionaries = source.trained.task.source_dictionary, source.trained.task.target_dictionary
    tied = config.share_all_embeddings
    fsmt = transformers.FSMTForConditionalGeneration(
        transformers.FSMTConfig(
            langs=[card.source_lang, card.target_lang],
            src_vocab_size=len(dictionaries[0]),
            tgt_vocab_size=len(dictionaries[1]),
            activation_function=config.activation_fn,
            d_model=config.decoder.embed_dim,
            max_position_embeddings=min(config.max_source_positions, config.max_target_positions),
            **{
                f"{side}_{name}": getattr(getattr(config, side), own)
                for side in ("encoder", "decoder")
                for name, own in (
                    ("layers", "layers"), ("ffn_dim", "ffn_embed_dim"), ("attention_heads", "attention_heads"),
                )
            },
            dropout=config.dropout,
            scale_embedding=not config.no_scale_embedding,
            tie_word_embeddings=tied,
            pad_token_id=dictionaries[0].pad(),
            bos_token_id=dictionaries[0].bos(),
            eos_token_id=dictionaries[0].eos(),
            decoder_start_token_id=dictionaries[0].eos(),
            forced_eos_token_id=dictionaries[0].eos(),
            early_stopping=True,  # as fairseq stops
        )
    )  # fmt: skip
    with swapped(model, standard_layers(model, config)):
        parameters: Dict[str, Tensor] = {f"model.{name}": p for name, p in model.state_dict().items()}
    known = fsmt.state_dict()
    fsmt.load_state_dict({**known, **{name: tensor for name, tensor in parameters.items() if name in known}})
    left = [name for name in parameters if name not in known and not name.endswith(("version", "_float_tensor"))]
    assert not left, f"FSMT has no {left}"
    with new_folder(output) as folder:
        transformers.utils.logging.disable_progress_bar()
        try:
            fsmt.save_pretrained(folder)
        except require("safetensors", "huggingface").SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        if card.subwords == "subword_nmt" and card.moses:
            _write_tokenizer(source, folder)
        write_text_side(source, folder, "huggingface", _readme(source))


def _write_tokenizer(source: Source, folder: str) -> None:
    """The files of FSMTTokenizer, in which </w> marks the end of a word where fairseq's @@ marks what is not one."""
    task = source.trained.task
    for side, dictionary in (("src", task.source_dictionary), ("tgt", task.target_dictionary)):
        units = {
            unit if number < dictionary.nspecial else unit[:-2] if unit.endswith("@@") else f"{unit}</w>": number
            for number, unit in enumerate(dictionary.symbols)
        }
        _write_json(units, os.path.join(folder, f"vocab-{side}.json"))
    with open(source.files[SUBWORD_FILES["subword_nmt"]], encoding="utf-8") as codes:
        merges = codes.read()
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as stream:
        stream.write(merges)
    card = source.card
    settings = {"langs": [card.source_lang, card.target_lang], "do_lower_case": card.lowercase}
    _write_json({**settings, "tokenizer_class": "FSMTTokenizer"}, os.path.join(folder, "tokenizer_config.json"))


def _write_json(data: Any, path: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(data, stream, ensure_ascii=False, indent=2)


def _readme(source: Source) -> str:
    card = source.card
    ids = "Ids are the lines of the dictionaries here, after <s>, <pad>, </s>, <unk>; </s> ends the source."
    if card.subwords == "sentencepiece":
        ids = f"FSMT's tokenizer has no SentencePiece: split text with sentencepiece.bpe.model.\n{ids}"
    if card.subwords == "subword_nmt" and card.moses:
        ids = '`FSMTTokenizer.from_pretrained("DIR")` splits text.'
    return "\n".join(
        [
            f"# Translation model for transformers, {card.source_lang} to {card.target_lang}\n",
            *describe(source),
            "",
            '`transformers.FSMTForConditionalGeneration.from_pretrained("DIR")` computes the same, with attention',
            "written as standard heads.",
            ids,
            "",
        ]
    )
