"""A thousand checkpoints with odd settings or parts: each one works, or is refused in one sentence."""

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
from tests.fairseq.models import SMALL
from tests.fairseq.serving_cases import write_checkpoint, write_data

NUMBER, SEED = 1000, 20
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


def inside(value):
    """What settings or a list hold, by key or number; None: a value."""
    if isinstance(value, Namespace):
        return vars(value)
    if isinstance(value, list):
        return value if value else None
    return value if isinstance(value, dict) and value else None


def keys_of(holder):
    return range(len(holder)) if isinstance(holder, list) else sorted(holder, key=str)


def mutate(state, chance):
    """Change one thing in a checkpoint, in place; says what."""
    place, holder = [], state
    if chance.random() < 0.8:  # mostly the settings that are used
        settings = "cfg" if state["cfg"] is not None else "args"
        place, holder = [settings], inside(state[settings])
        if settings == "cfg" and chance.random() < 0.9:
            part = chance.choice(["model"] * 5 + ["task", "criterion", "dataset"])
            place, holder = [*place, part], inside(holder[part])
            if "attention_shapes" in holder and chance.random() < 0.3:
                place, holder = [*place, "attention_shapes"], holder["attention_shapes"]
    while True:
        key = chance.choice(keys_of(holder))
        place.append(key)
        below = inside(holder[key])
        if below is None or chance.random() < 0.3:
            break
        holder = below
    how = chance.choice(["replace"] * 6 + ["drop", "nest", "rename"])
    if how == "replace":
        value = chance.choice(VALUES)
        holder[key], how = copy.deepcopy(value), f"replace by {str(value)[:80]!r}"
    elif how == "nest":
        holder[key] = chance.choice([{key: holder[key]}, [holder[key]], Namespace(nested=holder[key])])
    else:
        value = holder.pop(key)
        if how == "rename" and isinstance(holder, dict):
            holder[chance.choice(["x", 3, f"{key}x"])] = value
    return f"{how}: {'.'.join(map(str, place))}"


def bases(folder):
    """Checkpoints as training runs, conversions and fairseq before 0.10 write them."""
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


def load(path):
    """As average, translate and export read a checkpoint."""
    checkpoints.average([path])
    portable(read_source(path))


def copied(value):
    """A checkpoint whose containers are its own."""
    if isinstance(value, Namespace):
        return Namespace(**copied(vars(value)))
    if isinstance(value, dict):
        return type(value)((key, copied(each)) for key, each in value.items())
    return [copied(each) for each in value] if isinstance(value, list) else value


def outcome(path):
    """"loaded", or the class of a user error; any other error is raised."""
    try:
        load(path)
        return "loaded"
    except Exception as error:
        if not is_user_error(error) or SECRET in str(error) or len(str(error)) > 2000:
            raise
        return type(error).__name__


@pytest.mark.slow
def test_every_checkpoint_works_or_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    path, originals, outcomes, failures = str(tmp_path / "mutated.pt"), bases(tmp_path), Counter(), []
    for state in originals:
        torch.save(state, path)
        assert outcome(path) == "loaded"  # the control
    chance = random.Random(SEED)
    for number in range(NUMBER):
        state = copied(chance.choice(originals))
        mutation = mutate(state, chance)
        torch.save(state, path)
        try:
            outcomes[outcome(path)] += 1
        except Exception as error:
            failures.append(f"{number}: {mutation}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)
    assert outcomes["loaded"] >= NUMBER // 10
    assert sum(outcomes.values()) - outcomes["loaded"] >= 3 * NUMBER // 10
