"""Draw the figures of head analyses from their records: python -m recipes heads figures RECORD ...

RECORD is NAME.ANALYSIS.json, as written by run.sh. The figure is NAME.ANALYSIS.svg in the same folder, with --pdf also
NAME.ANALYSIS.pdf. Figures of ablation and pruning share axes and colour scales.
"""

import argparse
import logging
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq.files import PathLike
from collab_fairseq.heads import ablation, importance, pruning, redundancy, roles
from collab_fairseq.records.drawing import WIDTH, FigureFile, add_width_flag
from collab_fairseq.records.record import load

logger = logging.getLogger(__name__)


def model_name(path: Path, record: Dict[str, Any]) -> str:
    """The name of the model, which may have dots, from that of the file; recipes/heads also writes NAME.prune-raw."""
    return re.sub(rf"(\.{record['name']}(-raw)?)?\.json$", "", path.name)


def draw(record: Dict[str, Any], path: PathLike, model: str, compared: List[Dict[str, Any]]) -> None:
    """The figure of a record; ``compared``: all records of the same analysis."""
    parts, analysis = record["parts"], record["name"]
    if analysis in ("ablate", "prune"):
        {"ablate": ablation, "prune": pruning}[analysis].draw(record, path, model, compared)
    else:
        draw_parts = {"redundancy": redundancy.draw, "importance": importance.draw, "roles": roles.draw}[analysis]
        draw_parts(parts.get("importance", parts), path, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--pdf", action="store_true", help="also draw .pdf files, for papers")
    add_width_flag(parser)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="figures.py: %(message)s", stream=sys.stderr, force=True)
    records = {path: load(path, "heads") for path in args.records}
    for path, record in records.items():
        compared = [other for other in records.values() if other["name"] == record["name"]]
        for suffix in (".svg", ".pdf") if args.pdf else (".svg",):
            figure = path.with_suffix(suffix)
            draw(record, FigureFile(figure, args.width or WIDTH), model_name(path, record), compared)
            logger.info("wrote %s", figure)
