"""BLEU and loss as ever more heads go, least important first (Michel et al. 2019); --remove makes the cut real.

    collab heads prune averaged.pt --data data-bin --test test=test.de --output pruning.json --figure pruning.svg
    collab heads prune checkpoints/checkpoint{1,2,5,10}.pt --test … --output profile.json     # when does it happen
    collab heads prune averaged.pt --remove 40 --pruned pruned.pt                             # percent, or heads:
    collab heads prune averaged.pt --remove 'E:1:3,5 A:2:1' --pruned pruned.pt

Importance is that of `collab heads importance` on --split, or read from its result (--importance). It is divided by its
norm over the heads of a layer, as in the paper; with --ranking raw it is not, and whole layers that matter little go
first. --by-site adds a curve for each kind of attention alone.

--remove writes a smaller checkpoint that translates as the masked model does. fairseq-generate and the other tools take
it with --user-dir; fairseq-train trains it on with --attention-from pruned.pt --finetune-from-model pruned.pt and the
flags of the source's layers, widths and heads.
"""

import argparse
import logging
import os
import sys
from typing import Any, Dict, List

from collab_fairseq.cli.heads_options import (
    UsageError,
    add_model,
    add_output,
    add_sites,
    add_tests,
    check_distinct,
    check_figure,
    chosen_sites,
    data_setting,
    load,
    make_record,
    read_tests,
    search_of,
    show_table,
    test_settings,
)
from collab_fairseq.records.files import check_targets

HELP = "prune heads in the order of their importance"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The models, how they are scored, and the cut."""
    add_model(parser, "valid", several=True)
    parser.add_argument("--importance", metavar="FILE", help="result of collab heads importance for this checkpoint")
    add_tests(parser, required=False, sentences=False)
    add_sites(parser)
    parser.add_argument(
        "--ranking", choices=("normalised", "raw"), default="normalised", help="of the heads (default: normalised)"
    )
    parser.add_argument("--by-site", action="store_true", help="also prune each of the --sites alone")
    parser.add_argument("--remove", metavar="PERCENT|HEADS", help="cut these heads out instead")
    parser.add_argument("--pruned", metavar="FILE", help="where the smaller checkpoint goes")
    parser.add_argument("--empty-layers", action="store_true", help="with --remove: layers may lose all their heads")
    add_output(parser, "draw the curves, or the profile of several checkpoints")


def run(args: argparse.Namespace) -> int:
    """Prune step by step, or remove."""
    check_targets(args.output, args.pruned)
    check_figure(args.figure)
    if (args.remove is None) != (args.pruned is None):
        raise UsageError("--remove and --pruned go together")
    if args.remove is not None:
        return _remove(args)
    if not args.test:
        raise UsageError("--test SPLIT=FILE is needed to score the pruned models")
    if len(args.checkpoint) > 1 and args.importance:
        raise UsageError("--importance is for one checkpoint; of several each has its own")
    return _curves(args) if len(args.checkpoint) == 1 else _profile(args)


def _importance(args: argparse.Namespace, trained: Any) -> Dict[str, float]:
    """Head → importance as in --ranking, read or computed."""
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import importance
    from collab_fairseq.records import record as records

    if args.importance:
        read = records.load(args.importance, "heads", "importance")
        expected, got = file_setting(args.checkpoint[0]), read["settings"]["checkpoint"]
        if expected["sha256"] != got["sha256"]:
            raise UsageError(f"{args.importance} is the importance of {got['file']}, another checkpoint")
        found = read["parts"]["importance"]
    else:
        measured = importance.importance(
            trained, args.split, max_tokens=args.max_tokens, sentences=args.sentences,
            progress=lambda done: logger.info("importance: %d sentences", done),
        )  # fmt: skip
        found = importance.as_json(measured)
    return {head: values[args.ranking] for head, values in found["heads"].items()}


def _progress(name: str, percent: int, heads: Any, found: Dict[str, Any]) -> None:
    scores = ", ".join(f"{split} {test['bleu']:.2f}" for split, test in found["tests"].items())
    logger.info("%s, %d %%, %d heads left: BLEU %s", name, percent, found["left"], scores)


def _curves(args: argparse.Namespace) -> int:
    sites = chosen_sites(args)
    trained = load(args)
    from collab_fairseq.heads import pruning

    tests = read_tests(args, trained)
    source = {"importance_text": data_setting(args, trained)} if not args.importance else {}
    settings = {**source, **test_settings(args, trained, tests), "loss": args.split, "ranking": args.ranking}
    record = make_record(args, "prune", settings, str(trained.device))
    ranks = record.part("importance", lambda: _importance(args, trained))
    groups = [sites, *([site] for site in sites if args.by_site and len(sites) > 1)]
    names = ["_".join(group) for group in groups]
    for name, group in zip(names, groups, strict=True):
        pruning.prune(
            trained, ranks, record, name, sites=group, tests=tests, loss_split=args.split, search=search_of(args),
            progress=_progress,
        )  # fmt: skip
    splits = [test.split for test in tests]
    scored = [c for split in splits for c in (f"BLEU {split}", "p")]
    rows: List[List[str]] = [["sites", "pruned", "heads left", "loss", *scored]]
    for name in names:
        for percent, found in pruning.curve(record.parts, name).items():
            cells = [found["tests"][split] for split in splits]
            scores = [c for cell in cells for c in (f"{cell['bleu']:.2f}", f"{cell['p_value']:.3f}")]
            rows.append([name, f"{percent} %", str(found["left"]), f"{found['loss']:.3f}", *scores])
    show_table(rows)
    if args.figure:
        pruning.draw_curves(record.parts, names, splits, args.figure)
    return 0


def _profile(args: argparse.Namespace) -> int:
    sites = chosen_sites(args)
    from collab_fairseq.checkpoints import num_updates
    from collab_fairseq.heads import pruning

    record: Any = None
    names = [os.path.basename(path) for path in args.checkpoint]
    if len(set(names)) < len(names):
        raise UsageError("the checkpoints of a profile must have different file names")
    for path, name in zip(args.checkpoint, names, strict=True):
        trained = load(args, path)
        tests = read_tests(args, trained)
        if record is None:
            text = {"importance_text": data_setting(args, trained), "ranking": args.ranking}
            settings = {**text, **test_settings(args, trained, tests)}
            record = make_record(args, "prune", settings, str(trained.device))
        record.part(f"{name}/updates", lambda state=trained.state: num_updates(state))
        ranks = record.part(f"{name}/importance", lambda trained=trained: _importance(args, trained))
        with record.within(f"{name}/"):  # the unpruned model's scores, too, are each checkpoint's own
            pruning.prune(
                trained, ranks, record, "pruned", sites=sites, tests=tests, loss_split=None, search=search_of(args),
                progress=_progress,
            )  # fmt: skip
    split = tests[0].split
    found = {name: pruning.curve(record.parts, f"{name}/pruned") for name in names}
    rows = [["checkpoint", "updates", *(f"{percent} %" for percent in pruning.PERCENTAGES)]]
    for name in names:
        scores = [f"{result['tests'][split]['bleu']:.2f}" for result in found[name].values()]
        rows.append([name, str(record.parts[f"{name}/updates"]), *scores])
    sys.stdout.write(f"BLEU of {split} without the least important heads\n\n")
    show_table(rows)
    if args.figure:
        pruning.draw_profile(record.parts, names, split, args.figure)
    return 0


def _remove(args: argparse.Namespace) -> int:
    if len(args.checkpoint) > 1:
        raise UsageError("--remove is for one checkpoint")
    import importlib

    importlib.import_module("collab_fairseq.models")  # so that fairseq knows the presets' names
    from collab_fairseq import checkpoints
    from collab_fairseq.heads import pruning, removal
    from collab_fairseq.modules.heads import describe, parse_heads

    path = args.checkpoint[0]
    check_distinct(args.pruned, path, "--pruned")
    try:
        percent = float(args.remove)
    except ValueError:
        heads = parse_heads(args.remove)
        state = checkpoints.load_with_model(path)
    else:
        if not 0 < percent < 100:
            raise UsageError(f"--remove takes heads, or per cent of them between 0 and 100, got {args.remove}")
        sites = chosen_sites(args)
        trained = load(args)
        heads = pruning.least(pruning.ascending(_importance(args, trained), sites), percent)
        state = trained.state
    result = removal.remove_heads(state, heads, empty_layers=args.empty_layers)
    checkpoints.save(result.state, args.pruned)
    sys.stdout.write(
        f"removed {describe(result.removed)}\nparameters of attention: {result.parameters_before:,} before, "
        f"{result.parameters_after:,} after\n{args.pruned}\n"
    )
    return 0
