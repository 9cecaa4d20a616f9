"""The page of all results of run.sh: each analysis with its table, its figure and its record, and how well importance
predicts the result of ablation."""

from pathlib import Path
from typing import Any, Dict

import pandas

from collab_fairseq.heads import ablation
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
        differences = ablation.results(parts, split, "without")
        frame = pandas.DataFrame([{**ranks[head], "lost": -row["difference"]} for head, row in differences.items()])
        correlations = frame.rank().corr()["lost"]
        shown += [f"{correlations[ranking]:.2f} ({ranking}, {split})" for ranking in ("normalised", "raw")]
    return f"Rank correlation of importance with what a head's removal costs: {', '.join(shown)}."


def page(folder: Path, name: str) -> str:
    """Everything of one model."""
    texts = [f"## {name}"]
    ranks: Dict[str, Any] = {}
    for what, title in TITLES.items():
        file = f"{name}.{what}.json"
        if not (folder / file).exists():
            continue
        record = load(folder / file, "heads", what.split("-")[0])
        texts += [f"### {title}", (folder / f"{what}.md").read_text(encoding="utf-8").strip()]
        if what == "importance":
            ranks = record["parts"]["importance"]["heads"]
        if what == "ablate":
            texts.append(agreement(ranks, record["parts"]))
        if (folder / f"{name}.{what}.svg").exists():
            texts.append(f"![{title}]({name}.{what}.svg)")
        commit = (record["commit"]["id"] or "unknown")[:8]
        texts.append(f"[record]({file}), {record['hardware']['device']}, commit {commit}")
    return "\n\n".join(texts) + "\n"
