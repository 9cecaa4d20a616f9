"""BLEU and loss as ever more heads go, least important first (Michel et al. 2019); --remove makes the cut real.

    collab heads prune averaged.pt --data data-bin --reference test=test.de --json pruning.json --figure pruning.svg
    collab heads prune checkpoints/checkpoint{1,2,5,10}.pt --reference test=test.de --figure when.svg        # and when
    collab heads prune averaged.pt --remove 40 --output pruned.pt                             # percent, or heads:
    collab heads prune averaged.pt --remove 'E:1:3,5 A:2:1' --output pruned.pt

Importance is that of `collab heads importance` on --split, or read from its result (--importance). It is divided by its
norm over the heads of a layer, as in the paper; with --ranking raw it is not, and whole layers that matter little go
first. --by-site adds a curve for each kind of attention alone. Several checkpoints of a training have a curve each.

--remove writes a smaller checkpoint that translates as the masked model does. fairseq-generate and the other tools take
it with --user-dir; fairseq-train trains it on with --attention-from pruned.pt --finetune-from-model pruned.pt and the
flags of the source's layers, widths and heads.
"""

import argparse
import os
import sys
from typing import Any, Dict

from . import heads_options as shared
from . import options

HELP = "prune heads in the order of their importance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model(parser, "valid", several=True)
    add = parser.add_argument
    add("--importance", metavar="FILE", help="result of collab heads importance for this checkpoint")
    shared.add_tests(parser, sentences=False)
    options.add_sites(parser)
    ranking = "of the heads (default: normalised)"
    add("--ranking", choices=("normalised", "raw"), default="normalised", help=ranking)
    add("--by-site", action="store_true", help="also prune each of the --sites alone")
    add("--remove", metavar="PERCENT|HEADS", help="cut these heads out instead")
    shared.add_output(parser, "draw the curves", "where --remove writes the smaller checkpoint")


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    if (args.remove is None) != (args.output is None):
        raise options.UsageError("--remove and --output go together; the record of a measurement goes to --json")
    if len(args.checkpoint) > 1:
        options.refuse(args, ("importance", "remove"), "is for one checkpoint")
    if args.remove is not None:
        measuring = ("reference", "beam", "lenpen", "by_site", "json", "figure")
        options.refuse(args, measuring, "is of a measurement, and --remove measures nothing")
        return _remove(args)
    options.refuse(args, ("empty_layers",), "needs --remove")
    return _measure(args)


def _importance(args: argparse.Namespace, trained: Any) -> Dict[str, float]:
    """Head → importance as in --ranking, read or computed."""
    from collab_fairseq.heads import importance

    if args.importance:
        return importance.read(args.importance, args.ranking, args.checkpoint[0])
    measured = importance.importance(trained, args.split, max_tokens=args.max_tokens, sentences=args.sentences)
    return {head: values[args.ranking] for head, values in measured["heads"].items()}


def _measure(args: argparse.Namespace) -> int:
    """The curves of one checkpoint, or of several."""
    from collab_fairseq.heads import attention_hooks, pruning

    sites, tests, curves = attention_hooks.sites(args.sites), shared.read_tests(args), []
    names, splits = [os.path.basename(path) for path in args.checkpoint], [test.split for test in tests]
    if len(set(names)) < len(names):
        raise options.UsageError("several checkpoints must have different file names")
    groups = {"_".join(group): group for group in (sites, *([site] for site in sites if args.by_site))}
    record: Any = None
    for path, name in zip(args.checkpoint, names, strict=True):
        trained = shared.load(args, path)
        if record is None:
            source = {} if args.importance else {"importance_text": shared.data_setting(args, trained)}
            settings = {**source, **shared.test_settings(args, trained), "ranking": args.ranking, "loss": args.split}
            record = shared.make_record(args, "prune", settings, trained.device)
        prefix = f"{name}/" * (len(names) > 1)
        with record.within(prefix):  # the unpruned model's scores, too, are each checkpoint's own
            ranks = record.part("importance", lambda trained=trained: _importance(args, trained))
            for group, chosen in groups.items():
                pruning.prune(trained, ranks, record, group, sites=chosen, tests=tests, loss_split=args.split)
        curves += [f"{prefix}{group}" for group in groups]
    shared.show_table(pruning.curve_rows(record.parts, curves, splits))
    if args.figure:
        pruning.draw_curves(record.parts, curves, splits, args.figure)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import attention_hooks, pruning, removal

    heads: Any = args.remove
    try:
        percent = float(heads)
    except ValueError:
        measured = ("importance", "ranking", "split", "sentences", "sites", "data", "max_tokens", "device", "threads")
        options.refuse(args, measured, "is for --remove PERCENT, the heads are named")
        state = checkpoints.load_with_model(args.checkpoint[0])
    else:
        if not 0 < percent < 100:
            raise options.UsageError(f"--remove takes heads, or per cent of them between 0 and 100, got {heads}")
        sites, trained = attention_hooks.sites(args.sites), shared.load(args)
        heads = pruning.least(pruning.ascending(_importance(args, trained), sites), percent)
        state = trained.state
    result = removal.remove_heads(state, heads, empty_layers=args.empty_layers)
    checkpoints.save(result.state, args.output)
    sys.stdout.write(f"{result.report()}{args.output}\n")
    return 0
