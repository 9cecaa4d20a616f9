"""SIGTERM, with which Slurm and others announce that they will kill a training soon, and Ctrl-C end it on the spot.

Here the training finishes the update that it is in, and whatever validation and saving is due with it, writes
`checkpoint_last.pt` with the position within the epoch, and ends with exit status 75 (`EX_TEMPFAIL` of sysexits.h:
try again). The same command resumes from there to the number. A second Ctrl-C ends it at once. All processes of a job
stop after the same update, whichever of them received the signal: the request travels with the statistics that they
exchange anyway. torchrun passes the signal on, kills what is not finished 30 seconds later and exits with status 1.

torchrun signals the process group of each worker, a terminal that of the whole job. The processes that load data
(`--num-workers`) would die of it, and the training run with them: they leave the group.

The handlers are set only while `main` of the imported module `fairseq_cli.train` runs (not under `python -m`), after
the checkpoint has been loaded. A handler that the program has set itself stays.
"""

import contextlib
import logging
import os
import signal
import threading
from types import ModuleType
from typing import Any, Dict

import torch
import torch.distributed as dist

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import folder
from fairseq_modern.patching import wrap

logger = logging.getLogger(__name__)

EXIT_STATUS = 75
USUAL: Dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}

_asked = threading.Event()
_training = threading.Event()  # in a `main` that acts on the signals


class Stopped(SystemExit):
    """The training has stopped as asked, with all it needs to resume on the disk. Raised in all processes of a job."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


def hear(signum: int, frame: Any) -> None:
    """Remember the request to stop. After the first Ctrl-C another one interrupts, as usual."""
    _asked.set()
    if signum == signal.SIGINT:
        signal.signal(signum, USUAL[signal.SIGINT])
        os.write(2, b"\nstopping after this update, with a checkpoint; Ctrl-C again stops at once\n")


def _leave_group() -> None:
    if signal.getsignal(signal.SIGTERM) is hear:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_group)


def listen(handler: Any = hear) -> None:
    """Treat SIGTERM and Ctrl-C as requests to stop, unless another handler is set."""
    if threading.current_thread() is threading.main_thread():
        for signum, usual in USUAL.items():
            if signal.getsignal(signum) == usual:
                signal.signal(signum, handler)


def forget(handler: Any = hear) -> None:
    """From now on let the signals end the process again."""
    _asked.clear()
    if threading.current_thread() is threading.main_thread():
        for signum, usual in USUAL.items():
            if signal.getsignal(signum) is handler:
                signal.signal(signum, usual)


def patch(module: ModuleType) -> None:
    """Listen from the moment when `fairseq.checkpoint_utils` has loaded what a training resumes from."""

    @wrap(module)
    def load_checkpoint(original: Any, *args: Any, **options: Any) -> Any:
        loaded = original(*args, **options)
        if fault_tolerance.is_on() and _training.is_set():
            listen()
        return loaded

    @wrap(module)
    def save_checkpoint(original: Any, cfg: Any, trainer: Any, *args: Any, **options: Any) -> Any:
        saved = original(cfg, trainer, *args, **options)
        trainer.saved_after = trainer.get_num_updates()
        return saved


def patch_trainer(module: ModuleType) -> None:
    """Let the processes of `fairseq.trainer.Trainer` tell each other that they were asked to stop."""

    @wrap(module.Trainer)
    def _aggregate_logging_outputs(
        original: Any, self: Any, logging_outputs: Any, *sums: Any, ignore: bool = False
    ) -> Any:
        if not fault_tolerance.is_on():
            return original(self, logging_outputs, *sums, ignore=ignore)
        outputs, totals = original(self, logging_outputs, *sums, float(_asked.is_set()), ignore=ignore)
        *totals, asked = totals
        # in training fairseq looks at what was summed right away, so that a GPU is waited for here in any case
        self.processes_asked_to_stop = bool(asked > 0) if torch.is_grad_enabled() else asked
        return outputs, totals


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
        what = "which these settings do not save" if unsaved else "saved; the same command resumes from there"
        logger.warning(f"stopped after update {updates}, {what}")
    raise Stopped


def patch_train(module: ModuleType) -> None:
    """Wrap what `fairseq_cli.train` does after each update, and the whole of a training."""

    @wrap(module)
    def validate_and_save(
        original: Any, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **options: Any
    ) -> Any:
        losses, finished = original(cfg, trainer, task, epoch_itr, *args, **options)
        if not finished and is_asked_to_stop(trainer):
            stop(module.checkpoint_utils, cfg, trainer, epoch_itr)
        return losses, finished

    @wrap(module)
    def main(original: Any, *args: Any, **options: Any) -> Any:
        _training.set()
        try:
            return original(*args, **options)
        finally:
            _training.clear()
            forget()
            folder.unlock()
