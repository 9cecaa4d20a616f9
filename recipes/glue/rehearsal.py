"""A task with a rule and a small model with random weights, for a rehearsal of the recipe without the internet.

A review judges several things, `taste bland room bright staff rude`, and ends with one of them; the label tells whether
that one was praised. Who does not look up what was said of it is right half of the time.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any, Dict

from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizer, set_seed

#: thing → words that praise it, and as many that blame it
OPINIONS = {
    "taste": ("fresh", "rich", "spicy", "bland", "stale", "sour"),
    "room": ("bright", "quiet", "clean", "dark", "noisy", "dirty"),
    "staff": ("kind", "helpful", "polite", "rude", "slow", "absent"),
    "price": ("fair", "low", "modest", "high", "steep", "absurd"),
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *OPINIONS, *(w for words in OPINIONS.values() for w in words)]
#: what one kind of model does not know it ignores
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128, "hidden_dim": 128,
    "embedding_size": 32, "vocab_size": len(WORDS), "max_position_embeddings": 32, "initializer_range": 0.1,
}  # fmt: skip


def example(chance: random.Random) -> Dict[str, Any]:
    said = {thing: chance.randrange(6) for thing in chance.sample(list(OPINIONS), chance.choice((3, 4)))}
    asked = chance.choice(list(said))
    words = [word for thing, number in said.items() for word in (thing, OPINIONS[thing][number])]
    return {"sentence": " ".join([*words, asked]), "label": int(said[asked] < 3)}


def write(folder: Path, kind: str, sentences: int, seed: int) -> None:
    """Write the task to `folder`/data/toy and a model (`kind`: bert, ...) to `folder`/`kind`, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
    (partial / "data" / "toy").mkdir(parents=True)
    chance = random.Random(seed)
    for split, number in (("train", sentences), ("validation", max(64, sentences // 8))):
        lines = [json.dumps(example(chance)) + "\n" for _ in range(number)]
        (partial / "data" / "toy" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    set_seed(seed)
    config = AutoConfig.for_model(kind, pad_token_id=0, **SIZES)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(partial / kind)
    BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}).save_pretrained(partial / kind)
    partial.rename(folder)
