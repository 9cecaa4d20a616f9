"""The results page of run.sh: tables, figures and records of all analyses, and the rank correlation of importance with
ablation."""

from pathlib import Path
from typing import Any, Dict

import pandas

from collab_fairseq.heads import ablation
from collab_fairseq.records.record import load

TITLES = {
    "redundancy": "Redundancy",
    "importance": "Importance",
    "ablate": "Ablation of single heads",
    "prune": "Pruning",
    "prune-raw": "Pruning by raw importance",
    "gates": "Gates",
    "roles": "Roles",
}


def agreement(ranks: Dict[str, Any], parts: Dict[str, Any]) -> str:
    """Spearman's rank correlation of importance with the drop in BLEU without the head."""
    correlations = []
    for split in ablation.splits(parts):
        differences = ablation.results(parts, split, "without")
        frame = pandas.DataFrame([{**ranks[head], "lost": -row["difference"]} for head, row in differences.items()])
        matrix = frame.rank().corr()
        for ranking in ("normalised", "raw"):
            correlations.append(f"{matrix['lost'][ranking]:.2f} ({ranking}, {split})")
    return f"Rank correlation of importance with the drop in BLEU without the head: {', '.join(correlations)}."


def page(folder: Path, name: str) -> str:
    """All results of one model."""
    sections = [f"## {name}"]
    ranks: Dict[str, Any] = {}
    for step, title in TITLES.items():
        file = f"{name}.{step}.json"
        if not ((folder / file).exists() and (folder / f"{step}.md").exists()):  # the latter is written at the end
            continue
        record = load(folder / file, "heads", step.split("-")[0])
        sections += [f"### {title}", (folder / f"{step}.md").read_text(encoding="utf-8").strip()]
        if step == "importance":
            ranks = record["parts"]["importance"]["heads"]
        if step == "ablate":
            sections.append(agreement(ranks, record["parts"]))
        if (folder / f"{name}.{step}.svg").exists():
            sections.append(f"![{title}]({name}.{step}.svg)")
            sections.append((folder / f"{name}.{step}.txt").read_text(encoding="utf-8").strip())
        commit = (record["commit"]["id"] or "unknown")[:8]
        sections.append(f"[record]({file}), {record['hardware']['device']}, commit {commit}")
    return "\n\n".join(sections) + "\n"
