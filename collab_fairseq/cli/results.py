"""The page of a results folder: what was run on what, and what was not, with the command for each.

    collab results
    collab results results --check

FOLDER/studies.yaml lists the studies, with the records that each is to have (collab_fairseq/reporting/index.py). The
part of FOLDER/README.md between the lines <!-- studies --> and <!-- /studies --> is made from it and from the records.
"""

import argparse
import logging
import os

HELP = "page that says what was run and what was not"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder."""
    parser.add_argument("folder", nargs="?", default="results", metavar="FOLDER", help="(default: results)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where the page is not what would be written"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, or check it."""
    from collab_fairseq.reporting import pages
    from collab_fairseq.reporting.index import index, load_studies

    text = index(load_studies(os.path.join(args.folder, "studies.yaml")), args.folder)
    logger.info("%s", pages.publish(text, os.path.join(args.folder, "README.md"), "studies", args.check))
    return 0
