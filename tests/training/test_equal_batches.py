"""Several processes train like one process with the same batches per update: same losses and weights."""

import pytest

from collab_fairseq import checkpoints
from tests import forked
from tests.commands import USER_DIR
from tests.commands import flags as command_line
from tests.models.cases import both_sides

UPDATES = 50
#: relative, in float32: the order of summation differs
TOLERANCE = 1e-5


def distance(model, other):
    """The largest relative distance between tensors, except key biases, whose gradient is zero."""
    names = [n for n in model if not n.endswith(("k_proj.bias", "_float_tensor"))]
    assert len(names) < len(model)
    return max(float((model[n] - other[n]).norm() / other[n].norm()) for n in names)


@pytest.fixture
def train(tiny_data, tmp_path):
    """A function that trains and returns the checkpoint and the mean loss. An epoch has 25 batches of 8 sentences."""
    flags = {
        **both_sides(embed_dim=32, ffn_embed_dim=48, layers=1, attention_heads=4), "user_dir": USER_DIR, "key_dim": 8,
        "arch": "transformer_collab_tiny", "share_all_embeddings": True, "dropout": 0, "optimizer": "adam",
        "adam_betas": "(0.9, 0.98)", "lr": 0.002, "lr_scheduler": "inverse_sqrt", "warmup_updates": 20,
        "criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "max_tokens": 72,
        "no_epoch_checkpoints": True, "save_interval": 100, "disable_validation": True,
    }  # fmt: skip

    def train(name, processes, **more):
        done = forked.train(tmp_path / name, [tiny_data, *command_line({**flags, **more})], processes)
        assert set(done["statuses"]) == {0}, "\n".join(output[-2000:] for output in done["outputs"])
        state = checkpoints.load(tmp_path / name / "checkpoint_last.pt")
        logged = {metric: meter for _, metric, _, meter in state["extra_state"]["metrics"]["default"]}
        return state["model"], float(logged["loss"]["sum"]) / logged["loss"]["count"], logged

    return train


def test_processes_equal_accumulated_batches(train):
    def trained(name, processes, frequency, seed):
        model, loss, logged = train(name, processes, update_freq=frequency, seed=seed, max_update=UPDATES)
        assert logged["bsz"]["sum"] == 7 * 200 + 32  # the last update of an epoch has one batch of eight sentences
        assert logged["loss"]["val"] < 0.9 * loss
        return model, loss

    model, loss = trained("4x1", 4, 1, 1)
    accumulated_model, accumulated_loss = trained("1x4", 1, 4, 1)
    assert distance(model, accumulated_model) < TOLERANCE
    assert loss == pytest.approx(accumulated_loss, rel=TOLERANCE)

    other_model, other_loss = trained("another seed", 1, 4, 2)
    assert distance(model, other_model) > 0.1
    assert loss != pytest.approx(other_loss, rel=100 * TOLERANCE)


def test_processes_with_different_numbers_of_batches_equal_one(train):
    """In the last update of an epoch, the first process has three batches and the second one two and a dummy."""
    model, loss, logged = train("1x10", 1, update_freq=10, max_update=3)
    other_model, other_loss, other_logged = train("2x5", 2, update_freq=5, max_update=3)
    assert other_logged["bsz"]["sum"] == logged["bsz"]["sum"] == 200
    assert distance(model, other_model) < TOLERANCE
    assert other_loss == pytest.approx(loss, rel=TOLERANCE)
