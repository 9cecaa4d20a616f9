"""Blind test sets, and the recovered share of the cost by several measures, for convergence.py."""

import json
from typing import Dict, List, Mapping, Sequence

from collab_fairseq.records import pages
from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import TrainingRecord
from collab_fairseq.records.scores import list_test_sets, score
from fairseq_modern.errors import UserError
from recipes.curve.convergence_rows import (
    PAIRS,
    SELECTION_SEEDS,
    Setting,
    Settings,
    common_seeds,
    differences,
    listed,
    losses,
    numbers,
    recovered,
    select,
    shown,
    valid_nll,
)

#: run → test set → metric → score
Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
#: test sets of the file of scores
BLIND = {"blind_2017_mscoco": "2017 mscoco", "blind_2018_flickr": "2018 flickr", "both": "both"}
BLEU, CHRF = METRICS["sacrebleu"], METRICS["chrf++"]
LAST_UPDATES = 1000


def load_scores(path: PathLike) -> Scores:
    """Scores of runs on the blind test sets: JSON, run → test set → metric → score."""
    with open(path, encoding="utf-8") as stream:
        content: Scores = json.load(stream)
    return content


def blind_page(settings: Settings, scores: Scores) -> str:
    """Scores of the selected settings, their differences, and differences from F without its factor."""
    selected = select(settings)
    runs = {row: settings[setting] for row, setting in selected.items()}
    seeds = common_seeds(runs)
    table = [["blind test set", "score", *runs, *(f"{one} − {other}" for one, other in PAIRS)]]
    for metric in (BLEU, CHRF):
        for test, name in BLIND.items():
            values = _by_row(runs, seeds, scores, test, metric)
            means = [f"{sum(of_row) / len(of_row):.2f}" for of_row in values.values()]
            cells = [shown(differences(values, *pair), decimals=2) for pair in PAIRS]
            table.append([name, metric, *means, *cells])
    paragraphs = [f"Selected: {'; '.join(map(str, selected.values()))}. Seeds {listed(seeds)}."]
    paragraphs.append(pages.table(table, numbers=True))
    default = Setting("F", selected["F"].lr, 1.0)
    if selected["F"] != default and all(seed in settings.get(default, {}) for seed in SELECTION_SEEDS):
        runs, seeds = {"F": runs["F"], "C": runs["C"], "F1": settings[default]}, list(SELECTION_SEEDS)
        table = [["blind test set", "score", f"C − F1, seeds {listed(seeds)}", "F − F1"]]
        for metric in (BLEU, CHRF):
            for test, name in BLIND.items():
                values = _by_row(runs, seeds, scores, test, metric)
                cells = [numbers(differences(values, row, "F1"), decimals=2) for row in "CF"]
                table.append([name, metric, *cells])
        paragraphs += [f"F1, F without the factor on its logits: {default}.", pages.table(table, numbers=True)]
    return "\n\n".join(paragraphs)


def shares_page(settings: Settings, scores: Scores) -> str:
    """(S − C)/(S − F) of the selected settings by NLL and BLEU on several sets."""
    runs = {row: settings[setting] for row, setting in select(settings).items()}
    seeds = common_seeds(runs)
    some = [by_seed[seed] for by_seed in runs.values() for seed in seeds]
    measures = {
        f"NLL of the training set, last {LAST_UPDATES:,} updates, with dropout": {
            row: [training_nll(by_seed[seed]) for seed in seeds] for row, by_seed in runs.items()
        },
        "NLL of the validation set": {
            row: [valid_nll(by_seed[seed]) for seed in seeds] for row, by_seed in runs.items()
        },
        "NLL of both test sets": losses(runs, seeds),
    }
    for test in list_test_sets(some):
        measures[f"{BLEU} of {test}"] = {
            row: [float(score(by_seed[seed], test, BLEU) or 0) for seed in seeds] for row, by_seed in runs.items()
        }
    measures[f"{BLEU} of both blind test sets"] = _by_row(runs, seeds, scores, "both", BLEU)
    table = [["measure", *runs, "(S − C)/(S − F)"]]
    for name, values in measures.items():
        decimals = 2 if BLEU in name else 3
        means = [f"{sum(of_row) / len(of_row):.{decimals}f}" for of_row in values.values()]
        table.append([name, *means, recovered(values)])
    return pages.table(table, numbers=True)


def training_nll(run: TrainingRecord) -> float:
    """Mean NLL of the last updates during training, with dropout and changing weights."""
    points = run["curves"]["train"]
    last = [p["nll_loss"] for p in points if p["updates"] > points[-1]["updates"] - LAST_UPDATES]
    return float(sum(last) / len(last))


def _by_row(
    runs: Mapping[str, Mapping[int, TrainingRecord]], seeds: Sequence[int], scores: Scores, test: str, metric: str
) -> Dict[str, List[float]]:
    """Row → score of each seed on a blind test set."""
    values: Dict[str, List[float]] = {}
    for row, by_seed in runs.items():
        names = [by_seed[seed]["name"] for seed in seeds]
        missing = [name for name in names if metric not in scores.get(name, {}).get(test, {})]
        if missing:
            raise UserError(f"the blind scores must have {metric} of {test} for {missing[0]}; it has none")
        values[row] = [float(scores[name][test][metric]) for name in names]
    return values
