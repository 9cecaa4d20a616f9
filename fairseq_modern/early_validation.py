"""Defect: mistakes in the settings of validation end a training run only after its first epoch, without a checkpoint.

Examples are a sentence that is longer than --max-tokens-valid or the positions of the model, a
--best-checkpoint-metric that validation does not report, and --eval-bleu-args that the search rejects.

Check: fairseq builds the batches of validation when it first validates. Here, it builds them before the first update.
If the metric is not the loss, which is always reported, or validation translates, it also validates the first batch.
Both leave random states, statistics and the trainer unchanged, so that results are the same.

BLEU and accuracy without --maximize-best-checkpoint-metric log a warning: `checkpoint_best.pt` would be the worst.
"""

import contextlib
import logging
import random
from collections import OrderedDict
from typing import Any, Iterator

import numpy

from fairseq_modern import empty_translations
from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, replaced, step

logger = logging.getLogger(__name__)

HIGHER_IS_BETTER = ("bleu", "accuracy")


@contextlib.contextmanager
def same_random_states(utils: Any) -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python at the end."""
    states = utils.get_rng_state(), numpy.random.get_state(), random.getstate()
    try:
        yield
    finally:
        for restore, state in zip((utils.set_rng_state, numpy.random.set_state, random.setstate), states, strict=True):
            restore(state)


def check_metric(trainer: Any, task: Any, metrics: Any, metric: str) -> None:
    """Validate the batch in `trainer._dummy_batch`, and raise UserError if the metric is not among the results."""
    shortened: Any = contextlib.nullcontext()
    generator: Any = getattr(task, "sequence_generator", None)
    if hasattr(generator, "max_len_b"):  # of --eval-bleu: the lengths do not matter
        # as in the search, types other than numbers fail
        longest = min(generator.max_len_b + 0 * generator.max_len_a, max(1, generator.min_len))
        shortened = replaced(generator, max_len_a=0, max_len_b=longest)
    aggregators = OrderedDict(default=metrics.MetersDict())
    with replaced(metrics, _aggregators=aggregators), shortened, metrics.aggregate(new_root=True) as reported:
        trainer.valid_step(trainer._dummy_batch)
    if metric not in reported and not empty_translations.computes(task, metric):
        listed = ", ".join(name for name in reported if not name.startswith("_"))
        raise UserError(f"--best-checkpoint-metric must be a metric of validation, here {listed}; got {metric}")


@step()
def check(module: Any, cfg: Any, trainer: Any, task: Any) -> None:
    """Before the first epoch: build the batches of validation. `module`: `fairseq_cli.train`."""
    is_checked = hasattr(trainer, "has_checked_validation") or cfg.dataset.disable_validation
    if is_checked or not {"get_valid_iterator", "best_checkpoint_metric"} <= names(module.validate):
        return
    trainer.has_checked_validation = True
    with same_random_states(module.utils), replaced(trainer, _dummy_batch=None):
        for subset in reversed(cfg.dataset.valid_subset.split(",")):
            trainer.get_valid_iterator(subset)
        metric = cfg.checkpoint.best_checkpoint_metric
        # "DUMMY": a data set that only its own loader can read; `post_validate` may add metrics
        is_known = metric == "loss" and not hasattr(task, "sequence_generator")
        is_known = is_known or trainer._dummy_batch == "DUMMY" or hasattr(task, "post_validate")
        if not is_known:
            check_metric(trainer, task, module.metrics, metric)
    if metric in HIGHER_IS_BETTER and not cfg.checkpoint.maximize_best_checkpoint_metric:
        logger.warning(f"without --maximize-best-checkpoint-metric, the best checkpoint has the lowest {metric}")
