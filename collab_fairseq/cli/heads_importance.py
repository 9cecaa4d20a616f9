"""What the loss would lose with each head: |∂L/∂ξ_h| of a multiplier on the head (Michel et al. 2019).

    collab heads importance averaged.pt --data data-bin --json importance.json --figure importance.svg
    collab heads importance my-bert --text mnli.jsonl --fields premise,hypothesis   # a Hugging Face model

--form sentence is the paper's (the gradient of a sentence, then the absolute value), --form token that of its authors'
code (the absolute value of every token's part). Values are divided by their ℓ2 norm over the heads of a layer.
"""

import argparse
import os
import sys
from functools import partial
from typing import Any

from . import heads_options as shared
from . import options

HELP = "rank heads by the gradient of the loss"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model(parser, "valid")
    parser.add_argument("--form", choices=("sentence", "token"), default="sentence", help="default: sentence")
    shared.add_output(parser, "draw heat maps")
    shared.add_text(parser)


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise options.UsageError("importance is computed by one process: start it without torchrun")
    from collab_fairseq.heads import huggingface, importance

    compute: Any
    if shared.is_folder(args):
        loaded, settings = shared.load_folder(args)
        device = loaded.model.device
        compute = partial(huggingface.importance, loaded.model, loaded.places, loaded.batches)
    else:
        trained = shared.load(args)
        settings, device = {**shared.data_setting(args, trained), "form": args.form}, trained.device
        asked = {"tokens": args.form == "token", "max_tokens": args.max_tokens, "sentences": args.sentences}
        compute = partial(importance.importance, trained, args.split, **asked)
    result = shared.make_record(args, "importance", settings, device).part("importance", compute)
    values = {name: head["normalised"] for name, head in result["heads"].items()}
    rows = [[name, f"{values[name]:.4f}", f"{result['heads'][name]['raw']:.5g}"]
            for name in sorted(values, key=lambda name: -values[name])]  # fmt: skip
    shared.show_table([["head", "importance", "not normalised"], *rows])
    sentences, *tokens = (result[size] for size in ("sentences", "source_tokens", "target_tokens"))
    sys.stdout.write(f"\n{sentences:,} sentences, {tokens[0]:,} source and {tokens[1]:,} target tokens\n")
    shared.draw_heads(args, values, "importance, normalised in the layer")
    return 0
