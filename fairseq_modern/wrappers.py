"""Functions of fairseq that several patches change. Each has one wrapper, which calls parts of the patches in order.

Files of patches explain the parts, which do nothing if their patch is skipped (`patching.step`).
"""

from types import ModuleType
from typing import Any

from fairseq_modern import (
    amp,
    best_checkpoints,
    cpu_training,
    distributed,
    dummy_batches,
    early_validation,
    empty_translations,
    errors,
    finite_scores,
    first_error,
    hydra_train,
    optional_packages,
    plugins,
    skipped_updates,
    store_ema,
    unpatched_checkpoints,
)
from fairseq_modern.fault_tolerance import (
    command,
    epoch_end,
    finished,
    meters,
    out_of_memory,
    patience,
    position,
    resuming,
    stopping,
    workers,
)
from fairseq_modern.patching import StandIn, replaced, wrap


def patch_distributed(module: ModuleType) -> None:
    """Wrap `fairseq.distributed.utils.call_main`, which starts the processes of a training run."""

    @wrap(module)
    def call_main(original, cfg, main, **arguments):
        from fairseq.utils import import_user_module

        distributed.check_workers(cfg, module.infer_init_method)
        import_user_module(cfg.common)  # it may enable fault tolerance; fairseq-hydra-train imports it in `main`
        with workers.supervised(module, cfg):
            return original(cfg, main, **arguments)


def patch_hydra_train(module: ModuleType) -> None:
    """Wrap `fairseq_cli.hydra_train._hydra_main`, which trains with a configuration."""

    @wrap(module)
    def _hydra_main(original, cfg, **arguments):
        try:
            hydra_train.remove_recipe(module, cfg)
            return original(cfg, **arguments)
        except Exception as error:
            message = errors.explain(error)
            if message is None:
                raise
        errors.end_hydra_run(message)  # not within `except`: its exception would hold the model


def patch_train(module: ModuleType) -> None:
    """Wrap functions of `fairseq_cli.train`: `main`, `train` (an epoch), `validate_and_save` (after each batch),
    `validate`, `get_valid_stats` (of a validation).
    """

    @wrap(module)
    def main(original, cfg, **arguments):
        optional_packages.check(cfg)
        hydra_train.forget_scores(module)
        try:
            with cpu_training.without_gpus(cfg):
                return original(cfg, **arguments)
        finally:
            stopping.reset_handlers()
            resuming.unlock()

    @wrap(module)
    def train(original, cfg, trainer, task, epoch_itr):
        if finished.is_finished(module, cfg, trainer):
            return [None], True
        stopping.handle_signals()
        early_validation.check(module, cfg, trainer, task)
        skipped_updates.remember(trainer)
        return original(cfg, trainer, task, epoch_itr)

    @wrap(module)
    def validate(original, cfg, trainer, *arguments, **more):
        scores = original(cfg, trainer, *arguments, **more)
        finite_scores.leave_out_others(trainer, scores)
        return scores

    @wrap(module)
    def get_valid_stats(original, cfg, trainer, stats, *arguments, **more):
        empty_translations.add_bleu(cfg, trainer, stats)
        return original(cfg, trainer, stats, *arguments, **more)

    @wrap(module)
    def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        losses, should_stop = [None], False
        if not skipped_updates.is_skipped(trainer, end_of_epoch):
            losses, should_stop = original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        skipped_updates.remember(trainer)
        if not should_stop:
            stopping.stop_if_requested(module.checkpoint_utils, cfg, trainer, epoch_itr)
        return losses, should_stop


def patch_checkpoint_utils(module: ModuleType) -> None:
    """Wrap `save_checkpoint` and `load_checkpoint` of `fairseq.checkpoint_utils`, which choose the files."""

    @wrap(module)
    def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
        epoch_end.save_update(original, cfg, trainer, epoch_itr, val_loss)
        with best_checkpoints.all_written(module, cfg, trainer):
            saved = original(cfg, trainer, epoch_itr, val_loss)
        stopping.remember_save(trainer)
        return saved

    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **arguments):
        with resuming.started(module, cfg, trainer):
            return original(cfg, trainer, **arguments)


def patch_trainer(module: Any) -> None:
    """Wrap methods of `fairseq.trainer.Trainer`."""

    @wrap(module.Trainer)
    def __init__(original, self, cfg, *arguments, **more):
        amp.check_precision(cfg)
        original(self, cfg, *arguments, **more)
        plugins.check_training(self)

    @wrap(module.Trainer)
    def load_checkpoint(
        original,
        self,
        filename,
        reset_optimizer=False,
        reset_lr_scheduler=False,
        optimizer_overrides=None,
        reset_meters=False,
    ):
        def load_checkpoint_to_cpu(*arguments, **more):
            state = utils.load_checkpoint_to_cpu(*arguments, **more)
            plugins.adapt_checkpoint(self, state, filename, reset_optimizer)
            store_ema.add_average(self, state)
            unpatched_checkpoints.check(self, state, filename, reset_optimizer)
            position.adapt_checkpoint(self, state, filename)
            return state

        utils = module.checkpoint_utils
        resuming.check_exists(self, filename)
        resets = reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
        with replaced(module, checkpoint_utils=StandIn(utils, load_checkpoint_to_cpu=load_checkpoint_to_cpu)):
            extra_state = original(self, filename, *resets)
        store_ema.restore_counter(self, extra_state)
        patience.restore(extra_state, reset_optimizer, reset_meters)
        meters.restore(extra_state, reset_meters)
        return extra_state

    @wrap(module.Trainer)
    def save_checkpoint(original, self, filename, extra_state):
        extra_state = dict(extra_state)
        command.save(self, extra_state)
        patience.save(extra_state)
        return original(self, filename, extra_state)

    @wrap(module.Trainer)
    def train_step(original, self, samples, raise_oom=False):
        samples = list(samples)
        dummy_batches.leave_out(self, samples)
        with first_error.raised(original, self):
            return original(self, samples, raise_oom or out_of_memory.ends_run(self))
