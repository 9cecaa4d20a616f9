#!/usr/bin/env python3
"""The figures of head analyses from their records: figures.py RECORD ...

RECORD is NAME.ANALYSIS.json, as run.sh writes it; its figure is NAME.ANALYSIS.svg next to it. Figures of the same
analysis have the same axes and scales of colours.
"""

import argparse
import logging
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from collab_fairseq.cli.main import guarded
from collab_fairseq.heads import ablation, importance, pruning, redundancy, roles
from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)


def draw(analysis: str, record: Dict[str, Any], path: str, model: str, compared: List[Dict[str, Any]]) -> None:
    """The figure of a record; ``compared``: all records of the analysis."""
    parts = record["parts"]
    drawn: Dict[str, Callable[[], None]] = {
        "redundancy": lambda: redundancy.draw(parts, path, model, [other["parts"] for other in compared]),
        "importance": lambda: importance.draw(parts["importance"], path, model),
        "ablate": lambda: ablation.draw(record, path, model, compared),
        "prune": lambda: pruning.draw(record, path, model, compared),
        "roles": lambda: roles.draw(parts, path, model),
    }
    if analysis not in drawn:
        raise UserError(f"records must be of {', '.join(drawn)}; got one of {analysis}")
    drawn[analysis]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="figures.py: %(message)s", stream=sys.stderr)
    analyses: Dict[str, List[Tuple[Path, Dict[str, Any]]]] = defaultdict(list)
    for path in args.records:
        record = load(path, "heads")
        analyses[record["name"]].append((path, record))
    for analysis, records in analyses.items():
        for path, record in records:
            figure = path.with_suffix(".svg")
            draw(analysis, record, str(figure), path.name.split(".")[0], [other for _, other in records])
            logger.info("wrote %s", figure)


if __name__ == "__main__":
    sys.exit(guarded("figures.py", main))
