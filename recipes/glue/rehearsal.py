#!/usr/bin/env python3
"""A task with a rule and a small model with random weights, for a rehearsal of the recipe without the internet.

    rehearsal.py --output DIR [--architecture bert] [--train 4000] [--validation 500] [--seed 1]

The task (DIR/data/toy): a review judges several things, `taste bland room bright staff rude`, and ends with
one of them; the label tells whether that one was praised. Who does not look up what was said of it is right half of
the time. The model (DIR/model): 2 layers of width 64 with 4 heads and a tokenizer of whole words.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any, Dict

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    PreTrainedTokenizerFast,
)

#: thing → words that praise it and words that blame it
OPINIONS = {
    "taste": (("fresh", "rich", "spicy"), ("bland", "stale", "sour")),
    "room": (("bright", "quiet", "clean"), ("dark", "noisy", "dirty")),
    "staff": (("kind", "helpful", "polite"), ("rude", "slow", "absent")),
    "price": (("fair", "low", "modest"), ("high", "steep", "absurd")),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *OPINIONS, *(word for sides in OPINIONS.values() for side in sides for word in side)]


def example(generator: random.Random) -> Dict[str, Any]:
    things = generator.sample(list(OPINIONS), generator.choice((3, 4)))
    praised = {thing: generator.random() < 0.5 for thing in things}
    words = [w for thing in things for w in (thing, generator.choice(OPINIONS[thing][0 if praised[thing] else 1]))]
    asked = generator.choice(things)
    return {"sentence": " ".join([*words, asked]), "label": int(praised[asked])}


def config(architecture: str) -> Any:
    common = {"vocab_size": len(WORDS), "max_position_embeddings": 32, "pad_token_id": 0, "initializer_range": 0.1}
    if architecture == "distilbert":
        return DistilBertConfig(**common, dim=64, n_heads=4, n_layers=2, hidden_dim=128)
    kind = {"bert": BertConfig, "albert": AlbertConfig}[architecture]
    extra = {"embedding_size": 32} if architecture == "albert" else {}
    return kind(
        **common, **extra, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--architecture", choices=("bert", "distilbert", "albert"), default="bert")
    parser.add_argument("--train", type=int, default=4000, help="sentences (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=500, help="sentences (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f"{args.output} is there already; name another --output or remove it")
    partial = args.output.with_name(f".{args.output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
    (partial / "data" / "toy").mkdir(parents=True)
    generator = random.Random(args.seed)
    for split, size in (("train", args.train), ("validation", args.validation)):
        lines = [json.dumps(example(generator)) + "\n" for _ in range(size)]
        (partial / "data" / "toy" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(partial / "model")
    torch.manual_seed(args.seed)
    AutoModelForSequenceClassification.from_config(config(args.architecture)).save_pretrained(partial / "model")
    partial.rename(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
