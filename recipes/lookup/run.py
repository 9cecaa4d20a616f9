"""Lookup: a synthetic task for heads with shared and with disjoint attributes, solved by one attention layer.

    python -m recipes lookup RECORD.json

A position has attributes of b bits (±1) and a label. Head i has to find the only position that agrees
with the query on pair i of attributes, and return its label. The six pairs of *shared* attributes are
all pairs of four; those of *disjoint* attributes are pairs of twelve. For every bit of every pair, one
position differs from the query in that bit only. To reject it for every query, M = W_Qᵀ diag(m) W_K must
be diagonally dominant on the 2b bits of the pair, and thus have rank 2b. Standard heads need 2b
dimensions each, 12b in total, for either task. Collaborative heads need the dimensions that all pairs
span: 4b for shared and 12b for disjoint attributes.

Only queries, keys and mixing vectors are trained: values are labels, and the output is the label that
each head finds.
"""

import argparse
import itertools
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from collab_fairseq.attention import CollaborativeAttention, StandardAttention
from collab_fairseq.cli.options import command, positive
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record

logger = logging.getLogger("lookup")

BITS, HEADS, LABELS = 3, 6, 8
#: width of the layer, whose output is the logits of all labels of all heads
WIDTH = HEADS * LABELS
TASKS = {"shared": list(itertools.combinations(range(4), 2)), "disjoint": [(2 * i, 2 * i + 1) for i in range(HEADS)]}
ATTENTION = {"standard": StandardAttention, "collaborative": CollaborativeAttention}
PREDICTED = {
    ("shared", "standard"): 12 * BITS,
    ("shared", "collaborative"): 4 * BITS,
    ("disjoint", "standard"): 12 * BITS,
    ("disjoint", "collaborative"): 12 * BITS,
}
KEY_DIMS = (6, 12, 24, 36, 48)  # multiples of HEADS
SOLVED = 0.99
#: logit of a label if a head attends to it only
CERTAIN = 4.0


def agreement(pairs: List[Tuple[int, int]]) -> Tuple[Tensor, Tensor]:
    """Agreement of S positions with the query, and the correct position of each head.

    Returns:
        signs (S, A, b), for A attributes of b bits: 1 for equal bits, -1 for different bits, 0 for random bits.
        correct (H).
    """
    attributes = 1 + max(max(pair) for pair in pairs)
    positions: List[Tensor] = []
    correct: List[int] = []
    for pair in pairs:
        signs = torch.zeros(attributes, BITS)
        signs[list(pair)] = 1
        correct.append(len(positions))
        positions.append(signs)
        for bit in itertools.product(pair, range(BITS)):
            different = signs.clone()
            different[bit] = -1
            positions.append(different)
    return torch.stack(positions), torch.tensor(correct)


def batch(task: str, size: int, generator: torch.Generator) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (N, 1, E), keys (N, S, A·b), values (N, S, labels) and the correct labels (N, H)."""
    fixed, correct = agreement(TASKS[task])

    def random_signs(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1

    query = random_signs(size, *fixed.shape[1:])
    drawn = random_signs(size, *fixed.shape)
    # random attributes must differ in at least one bit, or another position could be correct too
    equal = (drawn == 1).all(-1)
    drawn[..., 0] = torch.where(equal, -1.0, drawn[..., 0])
    signs = torch.where(fixed == 0, drawn, fixed)
    keys = (query[:, None] * signs).flatten(2)
    labels = torch.randint(0, LABELS, (size, len(fixed)), generator=generator)
    padded = pad(query.flatten(1), (0, WIDTH - query[0].numel()))
    return padded[:, None], keys, one_hot(labels, LABELS).float(), labels[:, correct]


def fixed_weights() -> Dict[str, Tensor]:
    """The weights that are not trained."""
    return {"v_proj.weight": CERTAIN * torch.eye(LABELS).repeat(HEADS, 1), "out_proj.weight": torch.eye(WIDTH)}


def solve(task: str, heads: str, key_dim: int, seed: int, updates: int) -> Dict[str, Any]:
    """Train one layer; its accuracy on new lookups, over all heads."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    attributes = 1 + max(max(pair) for pair in TASKS[task])
    options = {"kdim": attributes * BITS, "vdim": LABELS, "value_bias": False, "out_bias": False}
    layer = ATTENTION[heads](WIDTH, HEADS, key_dim, **options)
    layer.load_state_dict(fixed_weights(), strict=False)
    trained = [parameter for name, parameter in layer.named_parameters() if name not in fixed_weights()]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)

    def logits(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        output, _ = layer(query, keys, values, need_weights=False)
        return output.view(-1, HEADS, LABELS)

    for _ in range(updates):
        *inputs, labels = batch(task, 128, generator)
        loss = cross_entropy(logits(*inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        *inputs, labels = batch(task, 4000, generator)
        accuracy = (logits(*inputs).argmax(-1) == labels).float().mean()
    return {"accuracy": round(float(accuracy), 5), "loss": round(loss.item(), 5)}


def table(parts: Dict[str, Any], seeds: int) -> str:
    """Accuracy of the worst seed by key dimension, the smallest that every seed solves, and the prediction."""
    rows = [["attributes", "heads", *(f"key dimension {key_dim}" for key_dim in KEY_DIMS), "solved at", "predicted"]]
    for (task, heads), predicted in PREDICTED.items():
        worst = {}
        for key_dim in KEY_DIMS:
            accuracies = [parts[f"{task}/{heads}/{key_dim}/{seed}"]["accuracy"] for seed in range(1, seeds + 1)]
            worst[key_dim] = min(accuracies)
        solved = min((key_dim for key_dim in KEY_DIMS if worst[key_dim] >= SOLVED), default="–")
        rows.append([task, heads, *(f"{accuracy:.3f}" for accuracy in worst.values()), str(solved), str(predicted)])
    return f"{pages.table(rows)}\n\nAccuracy of the worst of {seeds} seeds on 4,000 fresh lookups; solved: {SOLVED}.\n"


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """Train the layers that the record lacks; returns the table."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("recipes/lookup/run.sh", description=__doc__, formatter_class=formatter)
    text = "record of the study; layers that it lacks are trained and added"
    parser.add_argument("record", type=Path, metavar="RECORD.json", help=text)
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help="number of seeds (default: 3)")
    parser.add_argument("--updates", type=positive, default=2000, metavar="N", help="updates per layer (default: 2000)")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="lookup: %(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    settings = {"bits": BITS, "heads": HEADS, "labels": LABELS, "updates": args.updates, "batch": 128, "lr": 0.01}
    record = Record("study", "lookup", command("recipes/lookup/run.sh"), settings, args.record, threads=1)
    for seed, key_dim, (task, heads) in itertools.product(range(1, args.seeds + 1), KEY_DIMS, PREDICTED):
        name = f"{task}/{heads}/{key_dim}/{seed}"
        if name not in record.parts:
            result = record.part(name, partial(solve, task, heads, key_dim, seed, args.updates))
            logger.info("%s: %s", name, result)
    return table(record.parts, args.seeds)
