"""What the loss would lose with each head: |∂L/∂ξ_h| of a multiplier on the head (Michel et al. 2019).

    collab heads importance averaged.pt --data data-bin --json importance.json --figure importance.svg
    torchrun --nproc-per-node 4 -m collab_fairseq.cli.main heads importance averaged.pt …     # on four GPUs
    collab heads importance my-bert --text mnli.jsonl --fields premise,hypothesis              # a Hugging Face model

--form sentence is the paper's (the gradient of a sentence, then the absolute value), --form token that of its authors'
code (the absolute value of every token's part). Values are divided by their ℓ2 norm over the heads of a layer. For
collaborative heads the result also has the importance of every shared key dimension.
"""

import argparse
import logging
import os
import sys
from typing import Any, Dict

from . import heads_options as shared
from . import options

HELP = "rank heads by the gradient of the loss"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the text and the form."""
    shared.add_model(parser, "valid")
    parser.add_argument("--form", choices=("sentence", "token"), default="sentence", help="default: sentence")
    parser.add_argument("--criterion", metavar="NAME", help="of fairseq (default: the one of the training)")
    shared.add_output(parser, "draw heat maps")
    shared.add_text(parser)


def run(args: argparse.Namespace) -> int:
    """Compute, print, draw; of several processes the first one prints."""
    shared.check_output(args)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    folder = shared.is_folder(args)
    if folder and several:
        raise options.UsageError("several processes are for checkpoints of fairseq; a Hugging Face model takes one")
    first = _join(args) if several else True
    try:
        return _analyse(args, first, folder)
    finally:
        if several:
            import torch.distributed as dist

            dist.destroy_process_group()


def _join(args: argparse.Namespace) -> bool:
    """Take part in torchrun's processes, each on its own GPU if there are any; whether this is the first."""
    import torch.distributed as dist

    if options.choose_device(args) == "cuda":
        args.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    dist.init_process_group("nccl" if options.choose_device(args).startswith("cuda") else "gloo")
    return dist.get_rank() == 0


def _analyse(args: argparse.Namespace, first: bool, folder: bool) -> int:
    model = shared.load_folder(args) if folder else shared.load(args)
    from collab_fairseq.heads import huggingface, importance

    def progress(done: int) -> None:
        if first:
            logger.info("%d sentences", done)

    def compute() -> Any:
        if folder:
            return importance.as_json(huggingface.importance(model.model, model.places, model.batches, progress))
        return importance.as_json(importance.importance(
            model, args.split, form=args.form, criterion=args.criterion, max_tokens=args.max_tokens,
            sentences=args.sentences, progress=progress,
        ))  # fmt: skip

    if folder:
        settings, device = shared.text_setting(args), model.model.device
    else:
        settings = {**shared.data_setting(args, model), "form": args.form, "criterion": args.criterion}
        device = model.device
    record = shared.make_record(args, "importance", settings, str(device))
    if not first:  # the sums need every process, unless the result is there already
        if "importance" not in record.parts:
            compute()
        return 0
    return _show(record.part("importance", compute), args)


def _show(result: Dict[str, Any], args: argparse.Namespace) -> int:
    heads = result["heads"]
    rows = sorted(heads, key=lambda name: -heads[name]["normalised"])
    cells = [[name, f"{heads[name]['normalised']:.4f}", f"{heads[name]['raw']:.5g}"] for name in rows]
    shared.show_table([["head", "importance", "not normalised"], *cells])
    sys.stdout.write(
        f"\n{result['sentences']:,} sentences, {result['source_tokens']:,} source and {result['target_tokens']:,} "
        "target tokens\n"
    )
    values = {name: head["normalised"] for name, head in heads.items()}
    shared.draw_heads(args, values, "importance, normalised in the layer")
    return 0
