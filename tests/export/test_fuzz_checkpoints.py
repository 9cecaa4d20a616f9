"""A hundred checkpoints with unusual settings or parts: each one works, or raises a user error."""

import copy
import random
from argparse import Namespace
from collections import Counter

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.export.folder import portable
from collab_fairseq.export.source import read_source
from fairseq_modern.errors import is_user_error
from tests.export.cases import write_checkpoint, write_data
from tests.models.cases import SMALL

NUMBER, SEED = 100, 20
SECRET = "value-of-a-secret-variable"
SHAPES = {
    "encoder.0": {"collaborative": True, "key_dim": 4, "scale": 0.25, "query_bias": False},
    "cross.1": {"num_heads": 1, "head_dim": 8, "content_bias": True},
    "decoder.1": {"collaborative": False, "kv_heads": 1},
}
VALUES = (
    None, True, False, -1, 0, 1, 2, 7, 16, 1.5, -0.5, float("nan"), float("inf"), 10**5, 10**9, 10**12, 2**63, 10**30,
    "x", "", "12", "???", "none", "../x", "encoder", "0,1", "E:1:1", "x" * 100_000, "${oc.env:SECRET}",
    "${model.dropout}", "${task.data}", "${nothing}", "${a.${b}}", "${", [], [1], [0, "x"], [[]], (), (1, 2), {},
    {"x": 1}, {1: 2}, {"encoder.0": {"key_dim": 2}}, Namespace(), Namespace(x="${oc.env:SECRET}"),
)  # fmt: skip


def container(value):
    """The mapping or list in a value; None for others, and for empty ones."""
    if isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, (dict, list)) and value else None


def mutate(state, chance):
    """Change one entry of a checkpoint, in place, and describe the change."""
    path, parent = [], state
    if chance.random() < 0.8:  # mostly settings that the program reads
        path = ["cfg" if state["cfg"] is not None else "args"]
        if path == ["cfg"] and chance.random() < 0.9:
            path.append(chance.choice(["model"] * 5 + ["task", "criterion", "dataset"]))
        for key in path:
            parent = container(parent[key])
        if path[1:] == ["model"] and "attention_shapes" in parent and chance.random() < 0.3:
            path.append("attention_shapes")
            parent = parent["attention_shapes"]
    while True:
        key = chance.choice(range(len(parent)) if isinstance(parent, list) else sorted(parent, key=str))
        path.append(key)
        child = container(parent[key])
        if child is None or chance.random() < 0.3:
            break
        parent = child
    change = chance.choice(["replace"] * 6 + ["drop", "nest", "rename"])
    if change == "replace":
        value = chance.choice(VALUES)
        parent[key], change = copy.deepcopy(value), f"replace by {str(value)[:80]!r}"
    elif change == "nest":
        parent[key] = chance.choice([{key: parent[key]}, [parent[key]], Namespace(nested=parent[key])])
    else:
        value = parent.pop(key)
        if change == "rename" and isinstance(parent, dict):
            parent[chance.choice(["x", 3, f"{key}x"])] = value
    return f"{change}: {'.'.join(map(str, path))}"


def bases(folder):
    """Checkpoints of training runs, conversions, and fairseq before 0.10."""
    data, plain = write_data(folder), {"arch": "transformer", **SMALL}
    converted = write_checkpoint(folder / "converted.pt", data, key_dim=6, attention_shapes=SHAPES)
    trained = checkpoints.load(write_checkpoint(folder / "trained.pt", data, **plain))
    trained["cfg"]["model"] = Namespace(**trained["cfg"]["model"])
    args = {
        **plain, "task": "translation", "criterion": "cross_entropy", "data": str(data), "source_lang": "src",
        "target_lang": "tgt", "left_pad_source": "True", "required_batch_size_multiple": 8,
    }  # fmt: skip
    old = {**trained, "cfg": None, "args": Namespace(**args)}
    return [checkpoints.load(converted)] * 5 + [trained] * 4 + [old]


def outcome(path):
    """ "loaded", or the class of a user error; any other error is raised."""
    try:  # like average, translate and export
        checkpoints.average([path])
        portable(read_source(path))
        return "loaded"
    except Exception as error:
        if not is_user_error(error) or SECRET in str(error) or len(str(error)) > 2000:
            raise
        return type(error).__name__


@pytest.mark.slow
def test_every_checkpoint_works_or_raises_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    path, originals, outcomes, failures = str(tmp_path / "mutated.pt"), bases(tmp_path), Counter(), []
    for state in originals:
        torch.save(state, path)
        assert outcome(path) == "loaded"
    chance = random.Random(SEED)
    for number in range(NUMBER):
        state = copy.deepcopy(chance.choice(originals))
        mutation = mutate(state, chance)
        torch.save(state, path)
        try:
            outcomes[outcome(path)] += 1
        except Exception as error:
            failures.append(f"{number}: {mutation}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)
    assert outcomes["loaded"] >= NUMBER // 10
    assert sum(outcomes.values()) - outcomes["loaded"] >= 3 * NUMBER // 10
