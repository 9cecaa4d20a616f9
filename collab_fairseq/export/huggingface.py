"""``--to huggingface``: a folder for ``transformers``, as FSMT, its class of fairseq's translation models.

FSMT is fairseq's post-norm ``transformer``, so heads must fit as in :mod:`.fairseq`. Its tokenizer knows Moses and BPE
codes; of SentencePiece models weights and ids are exported, and the text side is the SentencePiece model in the folder.
"""

import os
import shutil
from typing import Any, Dict

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.tokenizer import SUBWORD_FILES, require

from .readme import write_text_side
from .source import Source, new_folder, refuse_settings, write_json
from .standard_heads import standard_layers

#: fairseq's names of what transformers computes alike under the same name
_ACTIVATIONS = ("relu", "gelu", "gelu_accurate", "gelu_fast", "tanh", "linear")

_WITH_TOKENIZER = """\
import transformers

tokenizer = transformers.FSMTTokenizer.from_pretrained("DIR")
model = transformers.FSMTForConditionalGeneration.from_pretrained("DIR")
text = "A man is riding a bike."
found = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=5, max_length=200)[0]
print(tokenizer.decode(found, skip_special_tokens=True))"""

#: FSMT's own tokenizer knows no SentencePiece
_WITH_SENTENCEPIECE = """\
import sentencepiece
import torch
import transformers

def dictionary(lang):
    with open(f"DIR/dict.{lang}.txt", encoding="utf-8") as lines:
        return ["<s>", "<pad>", "</s>", "<unk>", *(line.rsplit(" ", 1)[0] for line in lines)]

pieces = sentencepiece.SentencePieceProcessor(model_file="DIR/sentencepiece.bpe.model")
model = transformers.FSMTForConditionalGeneration.from_pretrained("DIR")
source = {piece: number for number, piece in enumerate(dictionary("SOURCE"))}
target = dictionary("TARGET")
text = "A man is riding a bike."
ids = [source.get(piece, 3) for piece in pieces.encode(GIVEN, out_type=str)] + [2]
found = model.generate(torch.tensor([ids]), num_beams=5, max_length=200)[0]
print("".join(target[number] for number in found if number > 2).replace("▁", " ").strip())"""


def check(source: Source) -> Dict[str, Any]:
    """The attention that is written, by place.

    Raises:
        UnsupportedError: FSMT lacks something that the model has.
    """
    config = source.config
    lacks = {
        "--layernorm-embedding": config.layernorm_embedding,
        "encoder and decoder of different widths": config.encoder.embed_dim != config.decoder.embed_dim,
    }
    for side, own in (("encoder", config.encoder), ("decoder", config.decoder)):
        lacks |= {f"--{side}-normalize-before": own.normalize_before, f"--{side}-learned-pos": own.learned_pos}
    refuse_settings(config, "FSMT of transformers", _ACTIVATIONS, lacks)
    return standard_layers(source.model, config)


def export(source: Source, output: PathLike) -> None:
    """Write the folder."""
    transformers = require("transformers", "huggingface")
    layers, config, model, card = check(source), source.config, source.model, source.card
    sides = {"encoder": config.encoder, "decoder": config.decoder}
    dictionaries = source.trained.task.source_dictionary, source.trained.task.target_dictionary
    sizes = {"layers": "layers", "ffn_dim": "ffn_embed_dim", "attention_heads": "attention_heads"}
    fsmt = transformers.FSMTForConditionalGeneration(
        transformers.FSMTConfig(
            langs=[card.source_lang, card.target_lang],
            src_vocab_size=len(dictionaries[0]),
            tgt_vocab_size=len(dictionaries[1]),
            activation_function=config.activation_fn,
            d_model=config.decoder.embed_dim,
            max_position_embeddings=min(config.max_source_positions, config.max_target_positions),
            **{f"{side}_{name}": getattr(sides[side], named) for side in sides for name, named in sizes.items()},
            dropout=config.dropout,
            scale_embedding=not config.no_scale_embedding,
            tie_word_embeddings=config.share_all_embeddings,
            early_stopping=True,  # as fairseq stops
        )
    )  # fmt: skip
    fsmt.generation_config.min_length = 2  # fairseq's --min-len 1: </s>, which starts the target, counts here
    with swapped(model, layers):
        parameters = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    unknown = fsmt.load_state_dict(parameters, strict=False).unexpected_keys
    left = [name for name in unknown if not name.endswith(("version", "_float_tensor"))]
    assert not left, f"FSMT has no {left}"
    with new_folder(output) as folder:
        transformers.utils.logging.disable_progress_bar()
        try:
            fsmt.save_pretrained(folder)
        except require("safetensors", "huggingface").SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        code = []
        if card.subwords == "subword_nmt" and card.moses:
            _write_tokenizer(source, folder)
            code = ["", "```python", _WITH_TOKENIZER, "```"]
        elif card.subwords == "sentencepiece" and not card.moses:
            given = "text.lower()" if card.lowercase else "text"
            lines = _WITH_SENTENCEPIECE.replace("SOURCE", card.source_lang).replace("TARGET", card.target_lang)
            code = ["", "```python", lines.replace("GIVEN", given), "```"]
        write_text_side(
            source, folder, "huggingface", "Translation model for transformers",
            "Attention is written as standard heads. Ids are the lines of the dictionaries here, after `<s>`, `<pad>`,",
            "`</s>`, `<unk>`; `</s>` ends the source.", *code,
        )  # fmt: skip


def _write_tokenizer(source: Source, folder: str) -> None:
    """The files of FSMTTokenizer, in which </w> marks the end of a word where fairseq's @@ marks what is not one."""
    task = source.trained.task
    for side, dictionary in (("src", task.source_dictionary), ("tgt", task.target_dictionary)):
        units = {
            unit if number < dictionary.nspecial else unit[:-2] if unit.endswith("@@") else f"{unit}</w>": number
            for number, unit in enumerate(dictionary.symbols)
        }
        write_json(units, os.path.join(folder, f"vocab-{side}.json"))
    shutil.copyfile(source.files[SUBWORD_FILES["subword_nmt"]], os.path.join(folder, "merges.txt"))
    card = source.card
    settings = {"langs": [card.source_lang, card.target_lang], "do_lower_case": card.lowercase}
    write_json({**settings, "tokenizer_class": "FSMTTokenizer"}, os.path.join(folder, "tokenizer_config.json"))
