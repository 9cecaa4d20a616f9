"""Mistakes in the settings of validation end a training run before its first update, and nothing else changes.

Validations that do not count: those with a score of NaN, and repeated ones.
"""

import inspect
import math
import random
import re
import shutil
from types import SimpleNamespace

import numpy
import pytest
import torch
from fairseq import metrics, options
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from fairseq_modern import early_validation, hydra_train
from tests import forked
from tests.commands import flags
from tests.common import TINY_MODEL, TINY_TRAINING
from tests.models.cases import same_training

BLEU = {"eval_bleu": True, "best_checkpoint_metric": "bleu", "maximize_best_checkpoint_metric": True}


@pytest.fixture(scope="module")
def data(tiny_data, tmp_path_factory):
    """`tiny_data` and a second validation set, `valid1`, with a sentence of 40 tokens."""
    folder = shutil.copytree(tiny_data, tmp_path_factory.mktemp("data") / "data-bin")
    for side in ("src", "tgt"):
        builder = MMapIndexedDatasetBuilder(f"{folder}/valid1.src-tgt.{side}.bin", dtype=numpy.uint16)
        builder.add_item(torch.tensor([5] * 39 + [2]))
        builder.finalize(f"{folder}/valid1.src-tgt.{side}.idx")
    return folder


@pytest.fixture
def train(data, tmp_path, monkeypatch):
    """A function that trains in this process; it returns the number of updates and the error that ended them."""
    from fairseq_cli import train as program  # configures logging

    train_step = Trainer.train_step
    variants = {True: program.train, False: inspect.unwrap(program.train)}

    def train(is_patched=True, **settings):
        updates, error = 0, None

        def step(*args, **options):
            nonlocal updates
            updates += 1
            return train_step(*args, **options)

        monkeypatch.setattr(Trainer, "train_step", step)
        monkeypatch.setattr(program, "train", variants[is_patched])
        settings = {"max_update": 3, "save_dir": tmp_path, "num_workers": 0, **settings}
        words = [data, *TINY_MODEL, *TINY_TRAINING, *flags(settings), "--ignore-unused-valid-subsets"]
        args = options.parse_args_and_arch(options.get_training_parser(), [*map(str, words)])
        try:
            program.main(convert_namespace_to_omegaconf(args))
        except Exception as raised:
            error = raised
        return updates, error

    yield train
    metrics.reset()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_source_positions": 30, "valid_subset": "valid,valid1"},
            "Size of sample #0 is invalid .* since max_positions=.*, skip this example with --skip-invalid-size.*",
        ),
        ({"max_tokens_valid": 5}, "Sentences lengths should not exceed max_tokens=5"),
        ({"combine_valid_subsets": True, "upsample_primary": 1, "valid_subset": "valid,valid1"}, None),
        (
            {"best_checkpoint_metric": "accuracy"},
            "--best-checkpoint-metric must be a metric of validation, here loss, nll_loss, ppl, .*; got accuracy",
        ),
        ({"eval_bleu": True, "eval_bleu_args": '{"beam": 2, "lenpen": "x"}'}, ".*'str'.*"),
        ({"eval_bleu": True, "eval_bleu_args": '{"beam": 2, "max_len_b": "ten"}'}, ".*str.*"),
    ],
    ids=["too long", "too many tokens", "two names", "metric", "length penalty", "maximum length"],
)
def test_mistakes_end_training_before_the_first_update(train, settings, message):
    updates, error = train(**settings)
    assert updates == 0
    if message is None:
        assert isinstance(error, KeyError)
    else:
        assert re.fullmatch(message, str(error))
    updates, error = train(is_patched=False, **settings)
    assert (updates, error is None) == (3, False)


def reported(checkpoint):
    """Names and states of the statistics of validation, except those of time."""
    meters = checkpoint["extra_state"]["metrics"].get("valid", [])
    return {name: str(state) for _, name, _, state in meters if name != "wps"}


@pytest.mark.parametrize(
    "settings",
    [
        BLEU,
        {"eval_bleu": True, "eval_bleu_args": '{"beam": 2, "max_len_b": 10}'},
        {"best_checkpoint_metric": "accuracy", "report_accuracy": True},
        {"best_checkpoint_metric": "bleu", "disable_validation": True},
    ],
    ids=str,
)
def test_results_are_the_same(train, tmp_path, settings):
    """Even in a run that is resumed within an epoch."""
    settings = {"dropout": 0.3, "max_update": 4, "save_interval_updates": 2, **settings}
    for name, is_patched in (("unpatched", False), ("patched", True), ("resumed", True)):
        if name == "resumed":
            (tmp_path / name).mkdir()
            shutil.copy(tmp_path / "patched/checkpoint_1_2.pt", tmp_path / name / "checkpoint_last.pt")
        updates, error = train(is_patched, save_dir=tmp_path / name, **settings)
        assert (updates, error) == (2 if name == "resumed" else 4, None)
    unpatched, *others = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False)
        for name in ("unpatched", "patched", "resumed")
    )
    for other in others:
        assert same_training(unpatched, other)
        for key in ("val_loss", "best", "train_iterator"):
            assert unpatched["extra_state"].get(key) == other["extra_state"].get(key)
        assert reported(unpatched) == reported(other)


@pytest.mark.parametrize("is_patched", [True, False])
def test_bleu_of_empty_translations_is_zero(train, tmp_path, monkeypatch, is_patched):
    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "" if is_patched else "empty_translations,early_validation")
    settings = {**BLEU, "eval_bleu_args": '{"beam": 1, "min_len": 0, "max_len_b": 0}'}
    updates, error = train(**settings)
    assert updates == 3
    if not is_patched:
        assert isinstance(error, KeyError)
        return
    assert error is None
    assert torch.load(tmp_path / "checkpoint_best.pt", weights_only=False)["extra_state"]["best"] == 0


@pytest.mark.parametrize(("score", "is_patched"), [(math.nan, True), (-math.inf, True), (math.nan, False)])
def test_a_score_that_is_not_finite_does_not_count(train, tmp_path, monkeypatch, caplog, score, is_patched):
    """Of three epochs, the second one has this score; the first one is the best."""
    from fairseq_cli import train as program

    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "" if is_patched else "finite_scores")
    scores = iter([3.0, score, 4.0])
    monkeypatch.setattr(program, "get_valid_stats", lambda *_: {"loss": next(scores)})
    assert train(max_update=100, max_epoch=3, patience=5)[1] is None
    best = torch.load(tmp_path / "checkpoint_best.pt", weights_only=False)["extra_state"]
    is_right = (best["best"], best["train_iterator"]["epoch"], program.should_stop_early.num_runs) == (3.0, 2, 1)
    assert is_right is is_patched
    assert (f"ignored the score {score} of the validation after update" in caplog.text) is is_patched


@pytest.mark.parametrize(("is_patched", "runs"), [(True, 1), (False, 3)])
def test_a_batch_without_an_update_is_not_validated_again(tmp_path, monkeypatch, is_patched, runs):
    """Such as after an overflow of --fp16. The score does not improve."""
    from fairseq_cli import train as program

    monkeypatch.setenv("FAIRSEQ_MODERN_SKIP", "" if is_patched else "skipped_updates")
    hydra_train.forget_scores(program)
    calls = []
    monkeypatch.setattr(program, "validate", lambda cfg, trainer, *_: calls.append(trainer.get_num_updates()) or [4.0])
    monkeypatch.setattr(program.checkpoint_utils, "save_checkpoint", lambda *_: calls.append("saved"))
    cfg = forked.training_config(tmp_path)
    cfg.checkpoint.patience, cfg.checkpoint.save_interval_updates = 5, 10
    trainer = SimpleNamespace(cumulative_training_time=lambda: 0, data_parallel_world_size=1)
    for updates in (9, 10, 10, 10, 11, 20):
        trainer.get_num_updates = lambda updates=updates: updates
        program.validate_and_save(cfg, trainer, None, SimpleNamespace(epoch=1), ["valid"], False)
    assert calls == [10, "saved", *[10, "saved"] * (runs - 1), 20, "saved"]
    assert program.should_stop_early.num_runs == runs
    program.validate_and_save(cfg, trainer, None, SimpleNamespace(epoch=1), ["valid"], True)
    assert calls[-2:] == [20, "saved"], "the end of an epoch"


class RandomTrainer:
    """A trainer whose validation draws random numbers, as some data sets do, and keeps a batch."""

    _dummy_batch = "of training"

    def get_valid_iterator(self, subset):
        self.draw()
        self._dummy_batch = f"of {subset}"

    def valid_step(self, batch):
        assert batch == "of valid"
        self.draw()
        with metrics.aggregate("valid"):
            metrics.log_scalar("bleu", 1)

    def draw(self):
        self.drawn = torch.rand(1).item(), numpy.random.rand(), random.random()


@pytest.mark.parametrize(("maximize", "warnings"), [(True, 0), (False, 1)])
def test_random_numbers_and_statistics_stay_the_same(caplog, maximize, warnings):
    from fairseq_cli import train

    best = SimpleNamespace(best_checkpoint_metric="bleu", maximize_best_checkpoint_metric=maximize)
    subsets = SimpleNamespace(valid_subset="valid,valid1", disable_validation=False)
    cfg = SimpleNamespace(dataset=subsets, checkpoint=best)

    def states_in_training(is_checked):
        trainer = RandomTrainer()
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        if is_checked:
            early_validation.check(train, cfg, trainer, None)
        assert hasattr(trainer, "drawn") == is_checked
        trainer.draw()
        return trainer.drawn, trainer._dummy_batch, metrics.state_dict()

    assert states_in_training(True) == states_in_training(False)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
