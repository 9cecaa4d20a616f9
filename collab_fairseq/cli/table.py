"""Markdown tables and figures from records of runs.

    collab table results/runs/multi30k-*.json
    collab table RECORD ... --baseline multi30k-none-s1-u2500 --output README.md --marker results
    collab table RECORD ... --output README.md --marker results --check
    collab table RECORD ... --figure results/multi30k.svg
    collab table RECORD ... --figure results/curves.svg --x updates

One row per configuration, mean and standard deviation over seeds. With --baseline every other row is compared with
that run's row by sacrebleu's paired bootstrap, seed by seed. With --marker the table takes the place of what stands
between the lines <!-- NAME --> and <!-- /NAME --> of the file. The same records give the same table. This needs
pandas and, for --figure, matplotlib: the extra `plots` of this project.
"""

import argparse
import logging
import os
import sys
from typing import List

from collab_fairseq.records.files import check_targets

HELP = "tables and figures from records"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Records, what is shown of them and where it goes."""
    parser.add_argument("records", nargs="+", metavar="RECORD", help="JSON files of collab record, in any order")
    parser.add_argument(
        "--columns",
        type=_names,
        metavar="A,B,...",
        help="which columns, in this order, of: those of --group-by, seeds, parameters, valid_loss, tokenised, "
        "compound_split, sacrebleu, words_per_second, wall_time, peak_memory, records (default: all that have a value)",
    )
    parser.add_argument(
        "--group-by",
        type=_names,
        default=["heads", "key_dim", "updates"],
        metavar="A,B,...",
        help="what tells the rows apart: heads, key_dim, updates or a path into the records such as "
        "config.model.dropout (default: heads,key_dim,updates)",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="NAME",
        help="name of a run: compare the other rows with the row that it is in; repeatable",
    )
    parser.add_argument("--output", metavar="FILE", help="where the table goes (default: printed)")
    parser.add_argument("--marker", metavar="NAME", help="only the part of --output between these markers is written")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where --output is not what would be written"
    )
    parser.add_argument("--figure", metavar="FILE", help="draw a figure instead: FILE.png or FILE.svg")
    parser.add_argument(
        "--x",
        choices=("key_dim", "parameters", "wall_time", "updates"),
        default="key_dim",
        help="of the figure; `wall_time` is that of the training, `updates` draws curves of the validation loss "
        "(default: key_dim)",
    )
    parser.add_argument(
        "--y",
        choices=("sacrebleu", "compound_split", "tokenised", "valid_loss"),
        help="of the figure (default: sacrebleu, with --x updates valid_loss)",
    )


def _names(text: str) -> List[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


class UsageError(ValueError):
    """Flags that do not go together, or a page that is not up to date."""

    user_error = True


def run(args: argparse.Namespace) -> int:
    """Print or write the table, check it, or draw."""
    if (args.marker or args.check) and not args.output:
        raise UsageError(f"{'--marker' if args.marker else '--check'} needs --output")
    if args.figure and (args.output or args.columns or args.baseline):
        raise UsageError("--figure is drawn instead of a table and excludes --output, --columns and --baseline")
    if args.x == "updates" and args.y not in (None, "valid_loss"):
        raise UsageError(f"--x updates draws curves of valid_loss, got --y {args.y}")
    check_targets(args.figure, None if args.check else args.output)
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # four lines for every comparison
    from collab_fairseq.records import figures, pages, table
    from collab_fairseq.records.rows import load_run

    runs = [load_run(path) for path in args.records]
    if args.figure:
        y = args.y or ("valid_loss" if args.x == "updates" else "sacrebleu")
        figures.draw(runs, args.figure, x=args.x, y=y, group_by=args.group_by)
        logger.info("wrote %s", args.figure)
        return 0
    folder = os.path.dirname(os.path.abspath(args.output)) if args.output else os.getcwd()
    text = table.markdown_table(
        runs, columns=args.columns, group_by=args.group_by, baselines=args.baseline, folder=folder
    )
    if not args.output:
        sys.stdout.write(text)
        return 0
    logger.info("%s", pages.publish(text, args.output, args.marker, args.check))
    return 0
