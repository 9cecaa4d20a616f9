"""``--to huggingface``: a folder for ``transformers``, with its class FSMT of fairseq's translation models.

FSMT is fairseq's post-norm ``transformer``, so heads must fit as in :mod:`.fairseq`. Its tokenizer supports Moses with
BPE codes, but normalises punctuation first, does not limit the units to the dictionary, and has no option for either.
For SentencePiece, the folder has the SentencePiece model, and its README shows how to use it.
"""

import os
import re
import shutil
from typing import Any, Dict, Optional

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.files import write_json
from collab_fairseq.modules.sites import swapped
from collab_fairseq.scoring.text import HYPHENS, base_language
from collab_fairseq.translation.tokenizer import SUBWORD_FILES, require
from fairseq_modern.files import new_folder

from .readme import Written, write_companion_files
from .source import Source, reject_settings
from .standard_heads import standard_layers

#: fairseq's names of the activations for which transformers has the same function under the same name
_ACTIVATIONS = ("relu", "gelu", "gelu_accurate", "gelu_fast", "tanh", "linear")

_WITH_TOKENIZER = """\
import transformers

tokenizer = transformers.FSMTTokenizer.from_pretrained("DIR")
model = transformers.FSMTForConditionalGeneration.from_pretrained("DIR")
text = "A man is riding a bike."
output = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=5, max_length=200)[0]
print(tokenizer.decode(output, skip_special_tokens=True))"""

_DIFFERENCES = [
    'Before it splits a text, `FSMTTokenizer` normalises punctuation (“ becomes ") and removes control characters;',
    "`collab translate` does neither. It gives `<unk>` for units that the dictionary lacks, where `collab translate`",
    "gives smaller units.",
]

_LOWERCASE = "It also lower-cases a text before it splits it, `collab translate` after that."

#: FSMT's tokenizer does not support SentencePiece
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
output = model.generate(torch.tensor([ids]), num_beams=5, max_length=200)[0]
print(pieces.decode([target[number] for number in output if number > 2]))"""


def check(source: Source) -> Dict[str, Any]:
    """``site.layer`` → the standard attention to write."""
    config = source.config
    others = {
        "--layernorm-embedding": config.layernorm_embedding,
        "--encoder-normalize-before": config.encoder.normalize_before,
        "--encoder-learned-pos": config.encoder.learned_pos,
        "--decoder-normalize-before": config.decoder.normalize_before,
        "--decoder-learned-pos": config.decoder.learned_pos,
        "encoder and decoder of different widths": config.encoder.embed_dim != config.decoder.embed_dim,
    }
    reject_settings(config, "FSMT of transformers", _ACTIVATIONS, others)
    return standard_layers(source.model, config)


def export(source: Source, layers: Dict[str, Any], output: PathLike) -> None:
    """Write the folder."""
    transformers = require("transformers", "huggingface")
    card = source.card
    with swapped(source.model, layers):
        parameters = {f"model.{name}": tensor for name, tensor in source.model.state_dict().items()}
    fsmt = transformers.FSMTForConditionalGeneration(_config(source))
    fsmt.generation_config.min_length = 2  # fairseq's --min-len 1: here the initial </s> counts
    unexpected = fsmt.load_state_dict(parameters, strict=False).unexpected_keys
    missing = [name for name in unexpected if not name.endswith(("version", "_float_tensor"))]
    assert not missing, f"FSMT has no {missing}"
    usage = [
        "The attention is stored as standard heads. Token ids are the line numbers of the dictionaries, after `<s>`,",
        "`<pad>`, `</s>` and `<unk>`. The source ends with `</s>`.",
    ]
    with new_folder(output) as folder:
        transformers.utils.logging.disable_progress_bar()
        try:
            fsmt.save_pretrained(folder)
        except require("safetensors", "huggingface").SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from error
        if card.subwords == "subword_nmt" and card.moses:
            if (reason := _lacks_tokenizer(source)) is None:
                _write_tokenizer(source, folder)
                usage += ["", "```python", _WITH_TOKENIZER, "```", "", *_DIFFERENCES]
                usage += [_LOWERCASE] * (card.lowercase and card.lowercase_last)
            else:
                usage += ["", f"The folder has no tokenizer: {reason}. Tokenise the text with Moses and subword-nmt."]
        elif card.subwords == "sentencepiece" and not card.moses:
            code = _WITH_SENTENCEPIECE.replace("SOURCE", card.source_lang).replace("TARGET", card.target_lang)
            code = code.replace("GIVEN", "text.lower()" if card.lowercase else "text")
            usage += ["", "`AutoTokenizer` cannot load this folder: FSMT's tokenizer does not support SentencePiece."]
            usage += ["", "```python", code, "```"]
        positions = sum(p.numel() for name, p in fsmt.named_parameters() if "embed_positions" in name)
        written = Written(layers, positions)
        write_companion_files(source, folder, "huggingface", "Translation model for transformers", usage, written)


def _config(source: Source) -> Any:
    """The model's settings as FSMTConfig."""
    config, task = source.config, source.trained.task
    encoder, decoder = config.encoder, config.decoder
    return require("transformers", "huggingface").FSMTConfig(
        langs=[source.card.source_lang, source.card.target_lang],
        src_vocab_size=len(task.source_dictionary),
        tgt_vocab_size=len(task.target_dictionary),
        activation_function=config.activation_fn,
        d_model=decoder.embed_dim,
        max_position_embeddings=min(config.max_source_positions, config.max_target_positions),
        encoder_layers=encoder.layers,
        encoder_ffn_dim=encoder.ffn_embed_dim,
        encoder_attention_heads=encoder.attention_heads,
        decoder_layers=decoder.layers,
        decoder_ffn_dim=decoder.ffn_embed_dim,
        decoder_attention_heads=decoder.attention_heads,
        dropout=config.dropout,
        scale_embedding=not config.no_scale_embedding,
        tie_word_embeddings=config.share_all_embeddings,
        early_stopping=True,  # as in fairseq's beam search
    )


def _lacks_tokenizer(source: Source) -> Optional[str]:
    """Why FSMTTokenizer would split a text differently, or None."""
    card = source.card
    if card.moses_no_dash_splits:
        return "`FSMTTokenizer` splits hyphenated words, which are whole in this model"
    if card.hyphen != HYPHENS[0]:
        return f"`FSMTTokenizer` splits hyphenated words by `{HYPHENS[0]}`, those of this model by `{card.hyphen}`"
    if card.moses_no_escape:
        return "`FSMTTokenizer` escapes special characters, this model does not"
    # version 0.1 has no header, and joins a word's end last
    with open(source.files[SUBWORD_FILES["subword_nmt"]], encoding="utf-8") as stream:
        if not re.fullmatch(r"#version: *0\.2\s*", stream.readline()):
            return "`FSMTTokenizer` supports BPE codes of version 0.2 only, and this model has earlier ones"
    return None


def _write_tokenizer(source: Source, folder: str) -> None:
    """Write the files of FSMTTokenizer, which marks the end of a word by </w>; fairseq marks all other units by @@."""
    task, card = source.trained.task, source.card
    for side, dictionary in (("src", task.source_dictionary), ("tgt", task.target_dictionary)):
        units = {}
        for number, unit in enumerate(dictionary.symbols):
            if number >= dictionary.nspecial:
                unit = unit[:-2] if unit.endswith("@@") else f"{unit}</w>"
            units[unit] = number
        write_json(units, os.path.join(folder, f"vocab-{side}.json"))
    shutil.copyfile(source.files[SUBWORD_FILES["subword_nmt"]], os.path.join(folder, "merges.txt"))
    settings = {
        "langs": [base_language(card.source_lang), base_language(card.target_lang)],  # for Moses
        "do_lower_case": card.lowercase,
        "tokenizer_class": "FSMTTokenizer",
    }
    write_json(settings, os.path.join(folder, "tokenizer_config.json"))
