"""N processes with one batch each train like one process with N batches: same data, losses and weights."""

import json

import pytest

from collab_fairseq import checkpoints
from tests.fairseq import forked
from tests.fairseq.commands import flags as command_line
from tests.fairseq.models import both_sides

UPDATES = 50
#: relative, after 50 updates in float32: the order of summation differs
TOLERANCE = 1e-5

# A --user-dir that records the batches of each process and the unrounded loss of each update.
RECORDER = """
import json, os
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion as Criterion
from fairseq.trainer import Trainer
import collab_fairseq.models

out = open(os.environ["RECORD"] + "." + os.environ["THIS_RANK"], "w", buffering=1)
prepare, reduce = Trainer._prepare_sample, Criterion.reduce_metrics

def _prepare_sample(self, sample, is_dummy=False):
    prepared, dummy = prepare(self, sample, is_dummy)
    if not dummy and not is_dummy and self.model.training:
        print(json.dumps({"update": self.get_num_updates(), "ids": prepared["id"].tolist()}), file=out)
    return prepared, dummy

def reduce_metrics(outputs):
    loss = sum(float(o["loss"]) for o in outputs) / sum(float(o["sample_size"]) for o in outputs)
    print(json.dumps({"loss": loss}), file=out)
    reduce(outputs)

Trainer._prepare_sample, Criterion.reduce_metrics = _prepare_sample, staticmethod(reduce_metrics)
"""


def read(folder, processes):
    batches = [[] for _ in range(UPDATES)]
    losses = []
    for rank in range(processes):
        lines = [json.loads(line) for line in (folder / f"record.{rank}").read_text().splitlines()]
        for line in lines:
            if "ids" in line:
                batches[line["update"]].append(line["ids"])
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert all(of_rank == losses[0] for of_rank in losses), "the ranks log different losses"
    return batches, losses[0], checkpoints.load(folder / "checkpoint_last.pt")["model"]


def distance(model, other):
    """The largest relative distance between tensors, except key biases, whose gradient is zero."""
    names = [n for n in model if not n.endswith(("k_proj.bias", "_float_tensor"))]
    assert len(names) < len(model)
    return max(float((model[n] - other[n]).norm() / other[n].norm()) for n in names)


def test_processes_equal_accumulated_batches(tiny_data, tmp_path):
    recorder = forked.user_dir(tmp_path / "recorder", RECORDER)
    flags = {
        **both_sides(embed_dim=32, ffn_embed_dim=48, layers=1, attention_heads=4), "user_dir": recorder, "key_dim": 8,
        "arch": "transformer_collab_tiny", "share_all_embeddings": True, "dropout": 0, "optimizer": "adam",
        "adam_betas": "(0.9, 0.98)", "lr": 0.002, "lr_scheduler": "inverse_sqrt", "warmup_updates": 20,
        "criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "max_tokens": 72,
        "max_update": UPDATES, "no_epoch_checkpoints": True, "save_interval": 100, "disable_validation": True,
    }  # fmt: skip

    def trained(name, processes, frequency, seed):
        env = {"RECORD": str(tmp_path / name / "record")}
        arguments = [tiny_data, *command_line({**flags, "update_freq": frequency, "seed": seed})]
        done = forked.train(tmp_path / name, arguments, processes, env)
        assert set(done["statuses"]) == {0}, "\n".join(output[-2000:] for output in done["outputs"])
        return read(tmp_path / name, processes)

    batches, losses, model = trained("4x1", 4, 1, 1)
    accumulated_batches, accumulated_losses, accumulated_model = trained("1x4", 1, 4, 1)
    assert batches == accumulated_batches
    assert {len(update) for update in batches} == {4, 1}, "the last update of an epoch is smaller"
    assert len(losses) == len(accumulated_losses) == UPDATES
    assert losses == pytest.approx(accumulated_losses, rel=TOLERANCE, abs=0)
    assert losses[-1] < 0.9 * losses[0]
    assert distance(model, accumulated_model) < TOLERANCE

    other_batches, other_losses, other_model = trained("another seed", 1, 4, 2)
    assert batches != other_batches
    assert losses != pytest.approx(other_losses, rel=1000 * TOLERANCE)
    assert distance(model, other_model) > 0.1
