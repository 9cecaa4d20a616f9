#!/usr/bin/env python3
"""Print the primary test of the key-dimension study, by the rule of README.md: claim.py K RECORD ...

The loss of a run is its negative log-likelihood on both test sets, weighted by tokens, in bits per token: F for
standard heads at the full key dimension, S for standard heads and C for collaborative heads at key dimension K,
paired by seed. Prints S − F; C − ¾F − ¼S with the p-value of a one-sided t-test against 0; C − ¼F − ¾S; the outcome
that follows from their intervals; and the key dimensions at which standard heads reach the losses of collaborative
heads.
"""

import argparse
import sys
from typing import Dict, Sequence, Tuple

from scipy import stats

from collab_fairseq.cli.main import guarded
from collab_fairseq.records import key_dim_study, pages
from collab_fairseq.records.rows import load_run, lookup
from collab_fairseq.scoring.significance import Interval, interval
from fairseq_modern.errors import UserError

FULL = 256
#: contrast → weights of F, S and C
CONTRASTS = {"S − F": (-1, 1, 0), "C − ¾F − ¼S": (-0.75, -0.25, 1), "C − ¼F − ¾S": (-0.25, -0.75, 1)}


def rows(runs: Sequence[Dict], key_dim: int) -> Dict[int, Tuple[float, float, float]]:
    """Seed → (F, S, C).

    Raises:
        UserError: two runs of one row and seed, or different seeds in the rows.
    """
    wanted = {"F": ("standard", FULL), "S": ("standard", key_dim), "C": ("collaborative", key_dim)}
    by_row = key_dim_study.rows(runs)
    losses = {
        name: {seed: key_dim_study.loss(run) for seed, run in by_row.get(row, {}).items()}
        for name, row in wanted.items()
    }
    full, standard, collaborative = losses.values()
    if not full.keys() == standard.keys() == collaborative.keys() or len(full) < 2:
        seeds = "; ".join(f"{name} {wanted[name][1]}: {sorted(row) or 'none'}" for name, row in losses.items())
        raise UserError(f"all three rows must have the same seeds, at least two; got {seeds}")
    return {seed: (full[seed], standard[seed], collaborative[seed]) for seed in sorted(full)}


def equivalent_key_dims(runs: Sequence[Dict]) -> str:
    """In words, the key dimension at which standard heads reach the loss of each row of collaborative heads."""
    costs = {row: cost.mean for row, cost in key_dim_study.costs(runs).items()}
    standard = {dim: cost for (attention_type, dim), cost in costs.items() if attention_type == "standard"}
    return ", ".join(
        f"{key_dim_study.equivalent_key_dim(standard, cost)} (collaborative heads at {dim})"
        for (attention_type, dim), cost in sorted(costs.items())
        if attention_type == "collaborative"
    )


def outcome(cost: Interval, quarter: Interval, three_quarters: Interval) -> str:
    """The outcome that follows from the intervals of S − F, C − ¾F − ¼S and C − ¼F − ¾S."""
    if cost.low <= 0:
        return "cannot tell: standard heads do not measurably lose at this key dimension"
    if quarter.high < 0:
        return "flat: collaborative heads lose less than a quarter as much as standard heads"
    if three_quarters.low > 0:
        return "falls: collaborative heads lose more than three quarters as much as standard heads"
    if quarter.low > 0 and three_quarters.high < 0:
        return "in between: collaborative heads lose between a quarter and three quarters as much as standard heads"
    return "cannot tell: the intervals are too wide"


def report(runs: Sequence[Dict], key_dim: int) -> str:
    """Markdown: losses of each seed, contrasts, equivalent key dimensions and the outcome."""
    by_seed = rows(runs, key_dim)
    losses = [["seed", "F", "S", "C"]]
    for seed, values in by_seed.items():
        losses.append([str(seed), *(f"{loss:.4f}" for loss in values)])
    tests = [["contrast", "mean", "90 % interval", "p (below 0)"]]
    contrasts = []
    for name, weights in CONTRASTS.items():
        sums = [sum(a * b for a, b in zip(weights, values, strict=True)) for values in by_seed.values()]
        contrast = interval(sums, level=0.9)
        contrasts.append(contrast)
        p = stats.ttest_1samp(sums, 0.0, alternative="less").pvalue
        limits = f"[{contrast.low:+.4f}, {contrast.high:+.4f}]"
        tests.append([name, f"{contrast.mean:+.4f}", limits, f"{p:.2g}"])
    paragraphs = [
        pages.table(losses, numbers=True),
        pages.table(tests, numbers=True),
        f"Key dimension at which standard heads would have the same NLL: {equivalent_key_dims(runs)}.",
        f"Outcome of {len(by_seed)} seeds: **{outcome(*contrasts)}**.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key_dim", type=int, metavar="K")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="of all rows; models of other widths are ignored")
    args = parser.parse_args(arguments)
    runs = [run for run in map(load_run, args.records) if lookup(run, "config.model.encoder_embed_dim") == FULL]
    return report(runs, args.key_dim)


if __name__ == "__main__":
    sys.exit(guarded("claim.py", lambda: sys.stdout.write(markdown(sys.argv[1:])) and 0))
