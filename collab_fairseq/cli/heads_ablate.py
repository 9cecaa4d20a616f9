"""BLEU without each head, and with each head alone in its layer, with significance (Michel et al. 2019).

    collab heads ablate averaged.pt --data data-bin --test test=raw/test_2016_flickr.de \\
        --test test1=raw/test_2017_flickr.de --output ablation.json --figure ablation.svg

The differences come with sacrebleu's paired bootstrap. With two test sets their correlation is printed: Michel et al.
compare newstest2013 with MTNT, where data-bin has them as test and test1:
--test test=newstest2013.fr --test test1=mtnt.fr. The figure shows the first test set; a star: p < 0.05.

    collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis         # a Hugging Face model

For a classifier accuracy and McNemar's exact test take the place of BLEU and the bootstrap.
"""

import argparse
import logging
import sys
from typing import Any, Dict, List

from collab_fairseq.cli.heads_huggingface import ablate, add_text, is_folder
from collab_fairseq.cli.options import (
    UsageError,
    add_model,
    add_output,
    add_sites,
    add_tests,
    check_figure,
    chosen_sites,
    load,
    make_record,
    positive,
    read_tests,
    search_of,
    show_table,
    test_settings,
)
from collab_fairseq.records.files import check_targets

HELP = "BLEU without each head, or with it alone"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the test sets and what is masked."""
    add_model(parser, None)
    add_tests(parser, required=False)
    add_sites(parser)
    parser.add_argument(
        "--mode", choices=("without", "only", "both"), default="both", help="mask the head, or all others of its layer"
    )
    parser.add_argument("--samples", type=positive, default=1000, metavar="N", help="of the bootstrap (default: 1000)")
    add_output(parser, "draw the differences as heat maps")
    add_text(parser)


def run(args: argparse.Namespace) -> int:
    """Translate again and again, print, draw."""
    check_targets(args.output)
    check_figure(args.figure)
    sites = chosen_sites(args)
    folder = is_folder(args)
    if not folder and not args.test:
        raise UsageError("--test SPLIT=FILE is needed: a split and its raw references, such as test=test.de")
    from collab_fairseq.heads import ablation

    modes = ablation.MODES if args.mode == "both" else (args.mode,)

    def progress(split: str, mode: str, head: str, found: Dict[str, Any]) -> None:
        metric = _metric(found)
        logger.info("%s %s %s: %+.2f %s, p = %.3f", split, mode, head, found["difference"], metric, found["p_value"])

    if folder:
        record, splits = ablate(args, modes, sites, progress), ["text"]
    else:
        trained = load(args)
        tests = read_tests(args, trained)
        settings = {**test_settings(args, trained, tests), "samples": args.samples}
        record, splits = make_record(args, "ablate", settings, str(trained.device)), [test.split for test in tests]
        ablation.ablate(
            trained, tests, record, modes=modes, sites=sites, search=search_of(args), samples=args.samples,
            progress=progress,
        )  # fmt: skip
    for mode in modes:
        _show(record.parts, splits, mode)
    if args.figure:
        _draw(record.parts, splits[0], modes, args.figure)
    return 0


def _metric(found: Dict[str, Any]) -> str:
    return "accuracy" if "accuracy" in found else "BLEU"


def _show(parts: Dict[str, Any], splits: List[str], mode: str) -> None:
    from collab_fairseq.heads import ablation

    found = {split: ablation.results(parts, split, mode) for split in splits}
    header = ["head" if mode == "without" else "only head", *(c for split in splits for c in (f"{split}", "p"))]
    rows = [header]
    for head in found[splits[0]]:
        cells = [found[split][head] for split in splits]
        rows.append([head, *(c for cell in cells for c in (f"{cell['difference']:+.2f}", f"{cell['p_value']:.3f}"))])
    show_table(rows)
    for split in splits:
        names = ablation.significant(found[split])
        better = sum(found[split][head]["difference"] > 0 for head in names)
        metric = _metric(next(iter(found[split].values()), {}))
        sys.stdout.write(
            f"\n{split}: {metric} {parts[f'whole/{split}']['score']:.2f} with all heads; {len(names)} of "
            f"{len(found[split])} differences have p < {ablation.SIGNIFICANT}, {better} of them improve it\n"
        )
    if len(splits) == 2:
        values = ablation.correlation(parts, splits, mode)
        sys.stdout.write(f"correlation of the two: {', '.join(f'{k} {v:.2f}' for k, v in values.items())}\n")
    sys.stdout.write("\n")


def _draw(parts: Dict[str, Any], split: str, modes: Any, path: str) -> None:
    from collab_fairseq.heads import ablation
    from collab_fairseq.heads.figures import DIVERGING, draw_grids

    found = {mode: ablation.results(parts, split, mode) for mode in modes}
    metric = _metric(next(iter(found[modes[0]].values()), {}))
    panels = {
        {"without": "without the head", "only": "only that head"}[mode]: {h: r["difference"] for h, r in heads.items()}
        for mode, heads in found.items()
    }
    largest = max((abs(value) for values in panels.values() for value in values.values()), default=1.0)
    marked = [ablation.significant(heads) for heads in found.values()]
    draw_grids(
        panels, path, label=f"difference in {metric}, {split}", limits=(-largest, largest), colours=DIVERGING,
        form=".1f", marked=marked,
    )  # fmt: skip
