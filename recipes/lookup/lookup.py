#!/usr/bin/env python3
"""When do heads collaborate? One attention layer on a lookup with shared and with disjoint attributes.

    lookup.py --output FILE.json [--page README.md]

A position holds attributes of b bits (±1) and a label. A query holds attributes too, and head i is to find the one
position that agrees with it on the pair i of attributes, and say its label. Six pairs of *shared* attributes are all
pairs of four; *disjoint* ones are pairs of twelve. For every bit of every pair there is a position that differs in
that bit alone: to tell it from the right one, q_i M_ii must outweigh what the other bits add for every q, so M = W_Qᵀ
diag(m) W_K is diagonally dominant on the pair's 2b bits, and thus of rank 2b. Standard heads therefore need 2b dims
each, 12b in all, for either task. Collaborative heads need the dims that all pairs span: 4b where attributes are
shared, 12b where they are not. What is measured is the smallest key dim that every seed solves.

Only where to look is learned: the values are the labels, and the output is what each head finds.
"""

import argparse
import itertools
import logging
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from collab_fairseq.attention import CollaborativeAttention, StandardAttention
from collab_fairseq.cli.main import guarded
from collab_fairseq.cli.options import command
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record

logger = logging.getLogger("lookup")

BITS, HEADS, LABELS = 3, 6, 8
WIDTH = HEADS * LABELS  # of the layer: its output holds the labels' scores of all heads
TASKS = {"shared": list(itertools.combinations(range(4), 2)), "disjoint": [(2 * i, 2 * i + 1) for i in range(HEADS)]}
KINDS = {"standard": StandardAttention, "collaborative": CollaborativeAttention}
PREDICTED = {(task, kind): 12 * BITS for task in TASKS for kind in KINDS} | {("shared", "collaborative"): 4 * BITS}
KEY_DIMS = (6, 12, 24, 36, 48)  # multiples of the heads
SOLVED = 0.99
CERTAIN = 4.0  # the score of a label that a head looks at alone


def agreement(pairs: List[Tuple[int, int]]) -> Tuple[Tensor, Tensor]:
    """Which bits of the positions agree with the query's.

    Returns:
        (S, A, b): 1 where they agree, −1 where they differ, 0 where chance decides, of S positions and A attributes;
        and (heads): the right position of every head.
    """
    number = 1 + max(attribute for pair in pairs for attribute in pair)
    positions, right = [], []
    for pair in pairs:
        for wrong in (None, *itertools.product(pair, range(BITS))):
            signs = torch.zeros(number, BITS)
            signs[list(pair)] = 1
            if wrong is None:
                right.append(len(positions))
            else:
                signs[wrong] = -1
            positions.append(signs)
    return torch.stack(positions), torch.tensor(right)


def batch(task: str, size: int, chance: torch.Generator) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (N, 1, E), keys (N, S, A·b), values (N, S, labels) and the labels (N, heads) to be found."""
    fixed, right = agreement(TASKS[task])

    def flips(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=chance).float() * 2 - 1

    query, drawn = flips(size, *fixed.shape[1:]), flips(size, *fixed.shape)
    # what is left to chance agrees in no whole attribute, or a position would be right by accident
    accident = (drawn == 1).all(-1)
    drawn[..., 0] = torch.where(accident, -1.0, drawn[..., 0])
    signs = torch.where(fixed == 0, drawn, fixed)
    keys = (query[:, None] * signs).flatten(2)
    labels = torch.randint(0, LABELS, (size, len(fixed)), generator=chance)
    padded = torch.nn.functional.pad(query.flatten(1), (0, WIDTH - query[0].numel()))
    return padded[:, None], keys, one_hot(labels, LABELS).float(), labels[:, right]


def given() -> Dict[str, Tensor]:
    """The weights that are not learned."""
    return {"v_proj.weight": CERTAIN * torch.eye(LABELS).repeat(HEADS, 1), "out_proj.weight": torch.eye(WIDTH)}


def solve(task: str, kind: str, key_dim: int, seed: int, updates: int) -> Dict[str, Any]:
    """Train one layer; its accuracy on fresh lookups, over all heads."""
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    attributes = BITS * (1 + max(map(max, TASKS[task])))
    layer = KINDS[kind](WIDTH, HEADS, key_dim, kdim=attributes, vdim=LABELS, value_bias=False, out_bias=False)
    layer.load_state_dict(given(), strict=False)
    learned = [weight for name, weight in layer.named_parameters() if name not in given()]
    optimizer = torch.optim.Adam(learned, lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)

    def scores(made: Tuple[Tensor, ...]) -> Tensor:
        output, _ = layer(*made[:3], need_weights=False)
        return output.view(-1, HEADS, LABELS)

    for _ in range(updates):
        made = batch(task, 128, chance)
        loss = cross_entropy(scores(made).flatten(0, 1), made[3].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        made = batch(task, 4000, chance)
        right = (scores(made).argmax(-1) == made[3]).float().mean()
    return {"accuracy": round(float(right), 5), "loss": round(loss.item(), 5)}


def page(parts: Dict[str, Any], seeds: int) -> str:
    """The table: accuracies of the worst seed by key dim, the smallest that every seed solves, and the prediction."""
    rows = [["attributes", "heads", *(f"key dim {width}" for width in KEY_DIMS), "solved from", "predicted"]]
    for (task, kind), predicted in PREDICTED.items():
        worst = [min(parts[f"{task}/{kind}/{w}/{s}"]["accuracy"] for s in range(1, seeds + 1)) for w in KEY_DIMS]
        solved = [width for width, accuracy in zip(KEY_DIMS, worst, strict=True) if accuracy >= SOLVED]
        rows.append([task, kind, *(f"{a:.3f}" for a in worst), str(min(solved, default="–")), str(predicted)])
    return f"{pages.table(rows)}\n\nAccuracy of the worst of {seeds} seeds on 4,000 fresh lookups; solved: {SOLVED}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="the record; resumed if there")
    parser.add_argument("--page", metavar="FILE.md", help="also write the table between this page's lookup markers")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--updates", type=int, default=2000, metavar="N", help="of every layer (default: 2000)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    settings = {"bits": BITS, "heads": HEADS, "labels": LABELS, "updates": args.updates, "batch": 128, "lr": 0.01}
    record = Record("study", "lookup", command("lookup.py"), settings, args.output, threads=1)
    for seed, key_dim, (task, kind) in itertools.product(range(1, args.seeds + 1), KEY_DIMS, PREDICTED):
        name = f"{task}/{kind}/{key_dim}/{seed}"
        found = record.part(name, lambda: solve(task, kind, key_dim, seed, args.updates))  # noqa: B023  (called at once)
        logger.info("%s: %s", name, found)
    text = page(record.parts, args.seeds)
    sys.stdout.write(f"{pages.publish(text, args.page, 'lookup')}\n" if args.page else text)


if __name__ == "__main__":
    sys.exit(guarded("lookup.py", main))
