#!/usr/bin/env python3
"""Tables of what recipes/heads/run.sh has recorded, in Markdown, with links to its figures.

    page.py FOLDER [FOLDER ...] --output table.md
    page.py FOLDER [FOLDER ...] --output README.md --marker heads [--check]     only the part between two markers
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from collab_fairseq.heads import ablation, pruning, role_table
from collab_fairseq.heads.correlation import spearman
from collab_fairseq.heads.errors import HeadsError
from collab_fairseq.records import pages
from collab_fairseq.records.record import load

ANALYSES = ("redundancy", "importance", "ablate", "prune", "prune-raw", "gates", "roles")
SITES = {"E": "encoder", "A": "encoder–decoder", "D": "decoder"}


def redundancy(parts: Dict[str, Any]) -> str:
    """Components that hold 90 % of the energy, by site: of the layer and of a head."""
    rows = [["attention", "key dim", "product: layer", "product: head", "query: layer", "query: head"]]
    for site in ("encoder", "cross", "decoder"):
        layers = [layer for place, layer in parts.items() if place.startswith(f"{site}.")]
        cells = []
        for kind in ("product", "query"):
            counts = [layer["dimensions"][kind] for layer in layers]
            heads = [head[0] for layer in counts for head in layer["heads"]]
            cells += [f"{sum(c['layer'][0] for c in counts) / len(counts):.1f}", f"{sum(heads) / len(heads):.1f}"]
        rows.append([site, " ".join(sorted({str(layer["key_dim"]) for layer in layers})), *cells])
    title = "Principal components that hold 90 % of the energy (means over layers, and over heads):"
    return f"{title}\n\n{pages.table(rows)}"


def importance(parts: Dict[str, Any]) -> str:
    heads = parts["importance"]["heads"]
    names = sorted(heads, key=lambda head: heads[head]["normalised"])
    return f"Least important: {', '.join(names[:5])}. Most important: {', '.join(reversed(names[-5:]))}."


def agreement(ranks: Dict[str, Any], parts: Dict[str, Any]) -> str:
    """How far importance says what the ablation of single heads found."""
    shown = []
    for split in ablation.splits(parts):
        found = ablation.results(parts, split, "without")
        lost = [-result["difference"] for result in found.values()]
        for kind in ("normalised", "raw"):
            value = spearman(np.array([ranks[head][kind] for head in found]), np.array(lost))
            shown.append(f"{value:.2f} ({kind}, {split})")
    return "Rank correlation of importance with what a head's removal costs: " + ", ".join(shown) + "."


def ablate(parts: Dict[str, Any]) -> str:
    splits = ablation.splits(parts)
    rows = [["test set", "heads", "BLEU of all heads", "heads measured", "p < 0.05", "of these better", "worst"]]
    for split in splits:
        for mode in ablation.MODES:
            found = ablation.results(parts, split, mode)
            if not found:
                continue
            names = ablation.significant(found)
            worst = min(found, key=lambda head: found[head]["difference"])
            better = sum(found[head]["difference"] > 0 for head in names)
            rows.append([
                split, {"without": "without one", "only": "one alone in its layer"}[mode],
                f"{parts[f'whole/{split}']['score']:.2f}", str(len(found)), str(len(names)), str(better),
                f"{worst}: {found[worst]['difference']:+.2f}",
            ])  # fmt: skip
    text = pages.table(rows)
    if len(splits) == 2:
        values = ablation.correlation(parts, splits, "without")
        shown = ", ".join(f"{group} {value:.2f}" for group, value in values.items())
        text += f"\n\nCorrelation of the differences on both test sets: {shown}."
    return text


def prune(parts: Dict[str, Any]) -> str:
    names = list(dict.fromkeys(key.rsplit("/", 1)[0] for key in parts if key.rsplit("/", 1)[-1].isdigit()))
    splits = list(pruning.curve(parts, names[0])[0]["tests"])
    rows = [["heads of", "test set", *(f"{percent} %" for percent in pruning.PERCENTAGES)]]
    for name in names:
        for split in splits:
            found = [result["tests"][split] for result in pruning.curve(parts, name).values()]
            cells = [f"{f['bleu']:.2f}" + ("" if f["p_value"] < ablation.SIGNIFICANT else "°") for f in found]
            rows.append([name.replace("_", ", "), split, *cells])
    about = "BLEU without the least important heads; °: no significant difference to all heads (p ≥ 0.05)."
    return f"{about}\n\n{pages.table(rows)}"


def gates(parts: Dict[str, Any]) -> str:
    splits = ablation.splits(parts)
    scored = [c for split in splits for c in (f"BLEU {split}", "p")]
    rows = [["λ", "heads left: encoder", "encoder–decoder", "decoder", "loss", *scored]]
    whole = [c for split in splits for c in (f"{parts[f'whole/{split}']['score']:.2f}", "")]
    rows.append(["before", "all", "all", "all", f"{parts['whole/loss']:.3f}", *whole])
    for penalty in sorted((key for key in parts if "/" not in key), key=float):
        found = parts[penalty]
        left = []
        for letter in SITES:
            own = [gate["is_open"] for head, gate in found["gates"].items() if head.startswith(letter)]
            left.append(f"{sum(own)} of {len(own)}" if own else "all")
        scores = [found["tests"][split] for split in splits]
        cells = [c for cell in scores for c in (f"{cell['bleu']:.2f}", f"{cell['p_value']:.3f}")]
        rows.append([penalty, *left, f"{found['loss']:.3f}", *cells])
    return pages.table(rows)


def roles(parts: Dict[str, Any], ranks: Dict[str, Any]) -> str:
    normalised = {head: values["normalised"] for head, values in ranks.items()}
    return pages.table(role_table.rows(role_table.gathered(parts), normalised))


TITLES = {
    "redundancy": "What heads share",
    "importance": "Importance",
    "ablate": "One head at a time",
    "prune": "Pruning",
    "prune-raw": "Pruning by importance that is not normalised",
    "gates": "Gates",
    "roles": "Roles",
}


def section(folder: Path, page: Path) -> str:
    """Everything of one model."""
    found = {path.name.split(".")[0] for path in folder.glob("*.json")}
    if len(found) != 1:
        raise HeadsError(f"{folder} must hold the records of one model, got {', '.join(sorted(found)) or 'none'}")
    name = found.pop()
    paths = {what: folder / f"{name}.{what}.json" for what in ANALYSES}
    records = {what: load(path, "heads", what.split("-")[0]) for what, path in paths.items() if path.exists()}
    ranks = records["importance"]["parts"]["importance"]["heads"] if "importance" in records else {}
    writers = {"redundancy": redundancy, "importance": importance, "ablate": ablate, "prune": prune, "gates": gates}
    writers["prune-raw"] = prune
    texts: List[str] = [f"## {name}"]
    for what, record in records.items():
        parts = record["parts"]
        texts.append(f"### {TITLES[what]}")
        texts.append(roles(parts, ranks) if what == "roles" else writers[what](parts))
        if what == "ablate" and ranks:
            texts.append(agreement(ranks, parts))
        pictures = [f"{name}.{what}.svg", *([f"{name}.overlap.svg"] if what == "redundancy" else [])]
        for picture in pictures:
            if (folder / picture).exists():
                texts.append(f"![{TITLES[what]}]({_link(folder / picture, page)})")
        device, commit = record["hardware"]["device"], (record["commit"]["id"] or "unknown")[:8]
        texts.append(f"[record]({_link(folder / f'{name}.{what}.json', page)}), {device}, commit {commit}")
    return "\n\n".join(texts) + "\n"


def _link(path: Path, page: Path) -> str:
    return os.path.relpath(path, page.parent).replace(os.sep, "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="OUTPUT of recipes/heads/run.sh")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.md", help="the page")
    parser.add_argument("--marker", metavar="NAME", help="only the part between <!-- NAME --> and <!-- /NAME -->")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page would change")
    args = parser.parse_args()
    try:
        text = "\n".join(section(folder, args.output) for folder in args.folders)
        sys.stderr.write(pages.publish(text, str(args.output), args.marker, args.check) + "\n")
    except Exception as error:
        if not (getattr(error, "user_error", False) or isinstance(error, OSError)):
            raise
        sys.stderr.write(f"page.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
