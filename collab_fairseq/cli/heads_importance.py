"""What the loss would lose with each head: |∂L/∂ξ_h| of a multiplier on the head (Michel et al. 2019).

    collab heads importance averaged.pt --data data-bin --json importance.json --figure importance.svg
    torchrun --nproc-per-node 4 -m collab_fairseq.cli.main heads importance averaged.pt …     # on four GPUs
    collab heads importance my-bert --text mnli.jsonl --fields premise,hypothesis              # a Hugging Face model

--form sentence is the paper's (the gradient of a sentence, then the absolute value), --form token that of its authors'
code (the absolute value of every token's part). Values are divided by their ℓ2 norm over the heads of a layer. For
collaborative heads the result also has the importance of every shared key dimension.
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
    """Compute, print, draw; of several processes the first one prints."""
    shared.check_output(args)
    folder = shared.is_folder(args)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _analyse(args, True, folder)
    if folder:
        raise options.UsageError("several processes are for checkpoints of fairseq; a Hugging Face model takes one")
    import torch.distributed as dist

    if options.choose_device(args) == "cuda":  # each process on its own GPU
        args.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    dist.init_process_group("nccl" if options.choose_device(args).startswith("cuda") else "gloo")
    try:
        return _analyse(args, dist.get_rank() == 0, folder)
    finally:
        dist.destroy_process_group()


def _analyse(args: argparse.Namespace, first: bool, folder: bool) -> int:
    from collab_fairseq.heads import huggingface, importance

    compute: Any
    if folder:
        loaded, settings = shared.load_folder(args)
        device = loaded.model.device
        compute = partial(huggingface.importance, loaded.model, loaded.places, loaded.batches)
    else:
        trained = shared.load(args)
        settings, device = {**shared.data_setting(args, trained), "form": args.form}, trained.device
        asked = {"tokens": args.form == "token", "max_tokens": args.max_tokens, "sentences": args.sentences}
        compute = partial(importance.importance, trained, args.split, **asked)
    record = shared.make_record(args, "importance", settings, device)
    if not first:  # the sums need every process, unless the result is there already
        if "importance" not in record.parts:
            compute()
        return 0
    result = record.part("importance", compute)
    values = {name: head["normalised"] for name, head in result["heads"].items()}
    rows = [[name, f"{values[name]:.4f}", f"{result['heads'][name]['raw']:.5g}"]
            for name in sorted(values, key=lambda name: -values[name])]  # fmt: skip
    shared.show_table([["head", "importance", "not normalised"], *rows])
    sentences, *tokens = (result[size] for size in ("sentences", "source_tokens", "target_tokens"))
    sys.stdout.write(f"\n{sentences:,} sentences, {tokens[0]:,} source and {tokens[1]:,} target tokens\n")
    shared.draw_heads(args, values, "importance, normalised in the layer")
    return 0
