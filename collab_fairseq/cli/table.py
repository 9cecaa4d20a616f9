"""Print a Markdown table of training runs, or draw a figure, from their records.

    collab table results/runs/multi30k-*-u2500.json
    collab table RECORD ... --baseline multi30k-none-s1-u2500 --output table.md
    collab table RECORD ... --figure results/curves.svg

One row per configuration: means over its seeds, and scores with 95 % intervals over seeds and sentences. --baseline
compares the other configurations with that of a run, paired by seed; a star marks differences whose interval excludes
0. The same records give the same table; `collab tables` keeps tables on pages up to date. Needs pandas and,
for --figure, matplotlib: the extra `plots` of this project.
"""

import argparse
import logging
import os
import sys
from typing import List, Sequence

from collab_fairseq.files import check_writable, write_text
from collab_fairseq.records.columns import COLUMNS, GROUP_BY, ON_REQUEST
from collab_fairseq.records.drawing import add_figure_flags, check_packages, figure_file

from .options import check_distinct, reject_flags

HELP = "make tables and figures from records"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("records", nargs="+", metavar="RECORD", help="records of training runs, in any order")
    columns = ", ".join((*COLUMNS, *ON_REQUEST))
    text = (
        f"columns to show, in this order: those of --group-by, {columns}; a score is shown for all test sets, or for "
        "the one after its name: 'nll all tests' (default: all with a value)"
    )
    add("--columns", type=_names, metavar="A,B,...", help=text)
    text = (
        "fields that distinguish configurations: heads, key_dim, updates, averaged or a path into the records such as "
        "config.model.dropout (default: heads,key_dim,updates)"
    )
    add("--group-by", type=_names, default=list(GROUP_BY), metavar="A,B,...", help=text)
    text = "name of a run: compare the other configurations with its own; repeatable"
    add("--baseline", action="append", default=[], metavar="NAME", help=text)
    add("--output", metavar="FILE", help="write the table to FILE, with links relative to it (default: print it)")
    add_figure_flags(parser, "draw a figure instead of a table")
    text = "validation loss against updates, or scores against parameters or wall_time"
    against = ("updates", "parameters", "wall_time")
    add("--x", choices=against, default="updates", help=f"what --figure draws: {text} (default: updates)")
    text = "score to draw against parameters or wall_time (default: sacrebleu)"
    add("--y", choices=("sacrebleu", "chrf", "compound_split", "tokenised"), default="sacrebleu", help=text)


def _names(text: str) -> List[str]:
    return [name.strip() for name in text.split(",")]


def run(args: argparse.Namespace) -> int:
    if args.figure:
        reject_flags(args, ("output", "columns", "baseline"), "is for tables, not for --figure")
    else:
        reject_flags(args, ("x", "y"), "needs --figure")
    if args.x == "updates":
        reject_flags(args, ("y",), "needs --x parameters or --x wall_time")
    check_packages("tables and figures of records", "pandas", "scipy")
    figure = figure_file(args)
    if figure is None:
        check_writable(args.output)
        folder = os.path.dirname(os.path.abspath(args.output)) if args.output else os.getcwd()
        text = _table(args, folder)
        if args.output:
            check_distinct(args.output, *args.records)
            write_text(text, args.output)
            logger.info("wrote %s", args.output)
        else:
            sys.stdout.write(text)
        return 0
    from collab_fairseq.records import figures
    from collab_fairseq.records.rows import load_run

    runs = [load_run(path) for path in args.records]
    if args.x == "updates":
        figures.draw_losses(runs, figure, args.group_by)
    else:
        figures.draw_scores(runs, figure, args.x, args.y, args.group_by)
    logger.info("wrote %s", args.figure)
    return 0


def markdown(arguments: Sequence[str], folder: str) -> str:
    """The table that `collab table` prints with these arguments, with links relative to a folder."""
    parser = argparse.ArgumentParser(prog="collab table")
    add_arguments(parser)
    return _table(parser.parse_args(arguments), folder)


def _table(args: argparse.Namespace, folder: str) -> str:
    from collab_fairseq.records.rows import load_run
    from collab_fairseq.records.table import markdown_table

    runs = [load_run(path) for path in args.records]
    options = {"columns": args.columns, "group_by": args.group_by, "baselines": args.baseline}
    return markdown_table(runs, folder=folder, **options)
