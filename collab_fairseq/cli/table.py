"""Markdown tables and figures from records of runs.

    collab table results/runs/multi30k-*.json
    collab table RECORD ... --baseline multi30k-none-s1-u2500 --output README.md --marker results
    collab table RECORD ... --output README.md --marker results --check
    collab table RECORD ... --figure results/curves.svg --x updates
    collab table results/runs/curve-*-u2000.json results/published/*.json --figure results/curve.svg --x width

One row per configuration, the mean over its seeds, scores with 95 % intervals over seeds and sentences. With --baseline
every other row is compared with that run's row by the seeds that both have; a star marks differences whose interval
does not hold 0. With --marker the table takes the place of what stands between the lines <!-- NAME --> and
<!-- /NAME --> of the file. The same records give the same table. --x width draws what narrow keys cost: the loss above
that of standard heads at full width, and beside it the BLEU that published runs lose. This needs pandas and, for
--figure, matplotlib: the extra `plots` of this project.
"""

import argparse
import logging
from typing import List

from collab_fairseq.records.drawing import check_figure
from collab_fairseq.records.rows import COLUMNS, GROUP_BY, ON_REQUEST

from .options import UsageError, add_page, check_page, publish, refuse

HELP = "tables and figures from records"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("records", nargs="+", metavar="RECORD", help="JSON files of collab record, in any order")
    add("--columns", type=_names, metavar="A,B,...",
        help=f"which columns, in this order, of: those of --group-by, {', '.join((*COLUMNS, *ON_REQUEST))} "
        "(default: all that have a value)")  # fmt: skip
    add("--group-by", type=_names, default=list(GROUP_BY), metavar="A,B,...",
        help="what tells the rows apart: heads, key_dim, updates or a path into the records such as "
        "config.model.dropout (default: heads,key_dim,updates)")  # fmt: skip
    text = "name of a run: compare the other rows with the row that it is in; repeatable"
    add("--baseline", action="append", default=[], metavar="NAME", help=text)
    add_page(parser)
    add("--figure", metavar="FILE", help="draw a figure instead: FILE.png or FILE.svg")
    text = "of the figure: against what; width: loss of narrow keys; updates: validation loss (default: key_dim)"
    against = ("key_dim", "width", "parameters", "wall_time", "updates")
    add("--x", choices=against, default="key_dim", help=text)
    text = "of the figure (default: sacrebleu, with --x updates valid_loss)"
    add("--y", choices=("sacrebleu", "chrf", "compound_split", "tokenised", "valid_loss"), help=text)


def _names(text: str) -> List[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def run(args: argparse.Namespace) -> int:
    if args.figure:
        refuse(args, ("output", "columns", "baseline"), "is of a table, and --figure draws instead of one")
    else:
        refuse(args, ("x", "y"), "needs --figure")
    if args.x == "updates" and args.y not in (None, "valid_loss"):
        raise UsageError(f"--x updates draws curves of valid_loss, got --y {args.y}")
    if args.x == "width":
        refuse(args, ("y", "group_by"), "does not go with --x width, which draws the loss of either kind of heads")
    check_figure(args.figure)
    folder = check_page(args)
    from collab_fairseq.records import curve, figures, table
    from collab_fairseq.records.rows import load_run

    runs = [load_run(path) for path in args.records]
    if args.x == "width":
        curve.draw(runs, args.figure)
    elif args.figure:
        y = args.y or ("valid_loss" if args.x == "updates" else "sacrebleu")
        figures.draw(runs, args.figure, x=args.x, y=y, group_by=args.group_by)
    else:
        publish(args, table.markdown_table(
            runs, columns=args.columns, group_by=args.group_by, baselines=args.baseline, folder=folder
        ))  # fmt: skip
    if args.figure:
        logger.info("wrote %s", args.figure)
    return 0
