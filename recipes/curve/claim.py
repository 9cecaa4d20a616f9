#!/usr/bin/env python3
"""The primary test of the curve, by the rule of README.md: claim.py K RECORD ...

The loss of a run is its negative log-likelihood on both test sets, weighted by tokens, in bits a token. F is that of
standard heads at full width, S of standard heads and C of collaborative heads at key dim K, all of one seed. Shown
are, over the seeds: S − F; C − ¾F − ¼S with the p of a one-sided t-test against 0; C − ¼F − ¾S; the outcome that
their intervals mean; and for collaborative heads the key dim that standard heads need for their loss.
"""

import argparse
import logging
import statistics
import sys
from typing import Dict, List, NamedTuple, Sequence, Tuple

from scipy import stats

from collab_fairseq.cli.main import guarded
from collab_fairseq.cli.options import add_page, check_page, publish
from collab_fairseq.records import key_dim_study, pages
from collab_fairseq.records.rows import load_run, lookup
from fairseq_modern.errors import UserError

FULL = 256
#: contrast → weights of F, S and C
CONTRASTS = {"S − F": (-1, 1, 0), "C − ¾F − ¼S": (-0.75, -0.25, 1), "C − ¼F − ¾S": (-0.25, -0.75, 1)}


class Contrast(NamedTuple):
    """Mean over the seeds, its two-sided t-interval of 90 %, and p of the one-sided t-test that it is below 0."""

    mean: float
    low: float
    high: float
    p: float


def rows(runs: Sequence[Dict], key_dim: int) -> Dict[int, Tuple[float, float, float]]:
    """Seed → (F, S, C).

    Raises:
        UserError: two runs of one row and seed, or a seed that not all rows have.
    """
    wanted = {"F": ("standard", FULL), "S": ("standard", key_dim), "C": ("collaborative", key_dim)}
    of = key_dim_study.rows(runs)
    losses = {
        name: {seed: key_dim_study.loss(run) for seed, run in of.get(row, {}).items()} for name, row in wanted.items()
    }
    full, narrow, shared = losses.values()
    if not full.keys() == narrow.keys() == shared.keys() or len(full) < 2:
        seeds = "; ".join(f"{name} {wanted[name][1]}: {sorted(row) or 'none'}" for name, row in losses.items())
        raise UserError(f"expected the same seeds, two or more, in all three rows, but they have {seeds}")
    return {seed: (full[seed], narrow[seed], shared[seed]) for seed in sorted(full)}


def equivalent_key_dims(runs: Sequence[Dict]) -> List[str]:
    """For each key dim of collaborative heads, in words, the key dim of standard heads with their loss."""
    costs = {row: cost.mean for row, cost in key_dim_study.costs(runs).items()}
    standard = {width: cost for (kind, width), cost in costs.items() if kind == "standard"}
    return [
        f"of {key_dim_study.equivalent_key_dim(standard, cost)} for that of collaborative heads at {width}"
        for (kind, width), cost in sorted(costs.items())
        if kind == "collaborative"
    ]


def contrast(values: List[float]) -> Contrast:
    """Of one number a seed."""
    test = stats.ttest_1samp(values, 0.0, alternative="less")
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    return Contrast(statistics.mean(values), float(low), float(high), float(test.pvalue))


def outcome(cost: Contrast, quarter: Contrast, three_quarters: Contrast) -> str:
    """What the intervals of S − F, C − ¾F − ¼S and C − ¼F − ¾S mean."""
    if cost.low <= 0:
        return "cannot tell: standard heads do not measurably lose at this key dim"
    if quarter.high < 0:
        return "flat: collaborative heads lose less than a quarter of what standard heads lose"
    if three_quarters.low > 0:
        return "falls: collaborative heads lose more than three quarters of what standard heads lose"
    if quarter.low > 0 and three_quarters.high < 0:
        return "in between: collaborative heads lose between a quarter and three quarters of what standard heads lose"
    return "cannot tell: the intervals are too wide"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key_dim", type=int, metavar="K")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="of all rows; those of other widths are left out")
    add_page(parser)
    parser.set_defaults(parser=parser)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="claim.py: %(message)s", stream=sys.stderr)
    check_page(args)
    runs = [run for run in map(load_run, args.records) if lookup(run, "config.model.encoder_embed_dim") == FULL]
    seeds, key_dims = rows(runs, args.key_dim), equivalent_key_dims(runs)
    found = {
        name: contrast([sum(a * b for a, b in zip(weights, losses, strict=True)) for losses in seeds.values()])
        for name, weights in CONTRASTS.items()
    }
    losses = [["seed", "F", "S", "C"], *([str(seed), *(f"{loss:.4f}" for loss in of)] for seed, of in seeds.items())]
    tests = [["contrast", "mean", "90 % interval", "p (below 0)"]]
    tests += [[n, f"{c.mean:+.4f}", f"[{c.low:+.4f}, {c.high:+.4f}]", f"{c.p:.2g}"] for n, c in found.items()]
    shown = [
        pages.table(losses, numbers=True),
        pages.table(tests, numbers=True),
        f"For the same loss standard heads need a key dim {', '.join(key_dims)}.",
        f"Outcome of {len(seeds)} seeds: **{outcome(*found.values())}**.",
    ]
    publish(args, "\n\n".join(shown) + "\n")


if __name__ == "__main__":
    sys.exit(guarded("claim.py", main))
