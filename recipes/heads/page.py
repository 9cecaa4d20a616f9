#!/usr/bin/env python3
"""A page of what recipes/heads/run.sh has found for one model or several: page.py FOLDER [FOLDER ...] --output table.md

Each analysis with its table, its figures and its record; and how far importance says what ablation found.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import pandas

from collab_fairseq.cli.main import guarded
from collab_fairseq.heads import HeadsError, ablation
from collab_fairseq.records.files import write_text
from collab_fairseq.records.record import load

TITLES = {
    "redundancy": "What heads share",
    "importance": "Importance",
    "ablate": "One head at a time",
    "prune": "Pruning",
    "prune-raw": "Pruning by importance that is not normalised",
    "gates": "Gates",
    "roles": "Roles",
}


def agreement(ranks: Dict[str, Any], parts: Dict[str, Any]) -> str:
    """Spearman's rank correlation of importance and what BLEU loses without the head."""
    shown = []
    for split in ablation.splits(parts):
        found = ablation.results(parts, split, "without")
        frame = pandas.DataFrame({head: {**ranks[head], "lost": -found[head]["difference"]} for head in found}).T
        values = frame.rank().corr()["lost"]
        shown += [f"{values[kind]:.2f} ({kind}, {split})" for kind in ("normalised", "raw")]
    return f"Rank correlation of importance with what a head's removal costs: {', '.join(shown)}."


def section(folder: Path, page: Path) -> str:
    """Everything of one model."""

    def link(file: str) -> str:
        return os.path.relpath(folder / file, page.parent).replace(os.sep, "/")

    names = {path.name.split(".")[0] for path in folder.glob("*.json")}
    if len(names) != 1:
        raise HeadsError(f"{folder} must hold the records of one model, got {', '.join(sorted(names)) or 'none'}")
    (name,) = names
    texts: List[str] = [f"## {name}"]
    ranks: Dict[str, Any] = {}
    for what, title in TITLES.items():
        file = f"{name}.{what}.json"
        if not (folder / file).exists():
            continue
        record = load(folder / file, "heads", what.split("-")[0])
        texts += [f"### {title}", (folder / f"{what}.md").read_text(encoding="utf-8").strip()]
        if what == "importance":
            ranks = record["parts"]["importance"]["heads"]
        if what == "ablate" and ranks:
            texts.append(agreement(ranks, record["parts"]))
        if (folder / f"{name}.{what}.svg").exists():
            texts.append(f"![{title}]({link(f'{name}.{what}.svg')})")
        commit = (record["commit"]["id"] or "unknown")[:8]
        texts.append(f"[record]({link(file)}), {record['hardware']['device']}, commit {commit}")
    return "\n\n".join(texts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="OUTPUT of recipes/heads/run.sh")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.md", help="the page")
    args = parser.parse_args()
    write_text("\n".join(section(folder, args.output) for folder in args.folders), args.output)


if __name__ == "__main__":
    sys.exit(guarded("page.py", main))
