"""Mends: SIGTERM, with which Slurm and others announce that they will kill a training soon, ends it on the spot.

Here the training finishes the update that it is in, and whatever validation and saving is due with it, writes
`checkpoint_last.pt` with the position within the epoch, and ends with exit status 75 (`EX_TEMPFAIL` of sysexits.h:
try again). The same command goes on from there as if nothing had been. All processes of a job stop after the same
update, whichever of them got the signal: the wish travels with the statistics that they exchange anyway. torchrun, to
which the signal is sent, passes it on, kills what is not finished 30 seconds later and has exit status 1 itself.

torchrun signals the process group of each worker, others that of the whole job. The processes that load data
(`--num-workers`) would die of it and the training with them: they leave the group.

Nothing is changed where a program handles SIGTERM in its own way, nor before the training proper has begun.
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any, Iterator

import torch.distributed as dist

logger = logging.getLogger(__name__)

EXIT_STATUS = 75

_asked = threading.Event()
_training = threading.Event()


class Stopped(SystemExit):
    """The training has stopped as asked, with all it needs to go on on the disk. Raised in all processes of a job."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


def _hear(signum: int, frame: Any) -> None:
    _asked.set()


def _leave_group() -> None:
    if _training.is_set():
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_group)


def _pass_on(signum: int, frame: Any) -> None:
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)


def listen(handler: Any = _hear) -> None:
    """From now on take SIGTERM for a wish, unless somebody else handles it."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handler)


def forget() -> None:
    """From now on let SIGTERM end the process again."""
    _asked.clear()
    _training.clear()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (_hear, _pass_on):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def workers() -> Iterator[None]:
    """Pass SIGTERM on to the workers that fairseq starts meanwhile, and end as they do if they stop."""
    import torch.multiprocessing

    listen(_pass_on)
    try:
        yield
    except torch.multiprocessing.ProcessExitedException as error:
        if error.exit_code == EXIT_STATUS:
            raise Stopped from None
        raise
    finally:
        forget()


def mend_loading(module: ModuleType) -> None:
    """Listen from the moment when `fairseq.checkpoint_utils` has loaded what a training goes on from."""
    checkpoint_utils: Any = module
    published_load, published_save = checkpoint_utils.load_checkpoint, checkpoint_utils.save_checkpoint

    @functools.wraps(published_load)
    def load_checkpoint(*args: Any, **options: Any) -> Any:
        loaded = published_load(*args, **options)
        main = sys.modules["__main__"]
        if getattr(getattr(main, "__spec__", None), "name", None) == "fairseq_cli.train":  # python -m
            mend_train(main)
        listen()
        _training.set()
        return loaded

    @functools.wraps(published_save)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> None:
        published_save(cfg, trainer, epoch_itr, val_loss)
        trainer.saved_after = trainer.get_num_updates()

    checkpoint_utils.load_checkpoint = load_checkpoint
    checkpoint_utils.save_checkpoint = save_checkpoint


def mend_trainer(module: ModuleType) -> None:
    """Let the processes of `fairseq.trainer.Trainer` tell each other that they were asked to stop."""
    published = module.Trainer._aggregate_logging_outputs

    @functools.wraps(published)
    def _aggregate_logging_outputs(self: Any, logging_outputs: Any, *sums: Any, ignore: bool = False) -> Any:
        outputs, totals = published(self, logging_outputs, *sums, float(_asked.is_set()), ignore=ignore)
        *totals, self.processes_asked_to_stop = totals
        return outputs, totals

    module.Trainer._aggregate_logging_outputs = _aggregate_logging_outputs


def is_asked_to_stop(trainer: Any) -> bool:
    """Whether any process of the job was asked to stop: the same answer in all of them."""
    if trainer.data_parallel_world_size == 1:
        return _asked.is_set()
    return bool(getattr(trainer, "processes_asked_to_stop", 0) > 0)


def stop(checkpoint_utils: Any, cfg: Any, trainer: Any, epoch_itr: Any) -> None:
    """Save what has not been saved yet and raise Stopped, in all processes."""
    updates = trainer.get_num_updates()
    if getattr(trainer, "saved_after", None) != updates:
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    if cfg.checkpoint.write_checkpoints_asynchronously:
        checkpoint_utils.PathManager.async_close()
    if trainer.data_parallel_world_size > 1:  # who ends first makes torchrun end the others
        dist.barrier(group=trainer.data_parallel_process_group)
    if trainer.is_data_parallel_master:
        unsaved = cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints
        what = "which these settings do not save" if unsaved else "saved; the same command goes on from there"
        logger.warning(f"SIGTERM: stopped after update {updates}, {what}")
    raise Stopped


def mend_train(module: ModuleType) -> None:
    """Wrap what `fairseq_cli.train` does after each update."""
    train: Any = module
    published = train.validate_and_save

    @functools.wraps(published)
    def validate_and_save(cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **options: Any) -> Any:
        losses, finished = published(cfg, trainer, task, epoch_itr, *args, **options)
        if not finished and is_asked_to_stop(trainer):
            stop(train.checkpoint_utils, cfg, trainer, epoch_itr)
        return losses, finished

    train.validate_and_save = validate_and_save
