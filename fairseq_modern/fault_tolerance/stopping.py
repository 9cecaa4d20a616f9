"""Defect: SIGTERM, which Slurm and others send before they kill a job, and Ctrl-C end training without a checkpoint.

Check: no other handler is set, and `main` of the module `fairseq_cli.train` runs (not with `python -m`).

Training finishes the current update, with validation and saving if they are due, writes `checkpoint_last.pt` with the
position within the epoch, and exits with status 75 (`EX_TEMPFAIL` in sysexits.h). The same command then resumes (see
`resuming`), with the same results as an uninterrupted run. The exception is --lr-scheduler reduce_lr_on_plateau, whose
checkpoints lack the number of epochs without improvement: it may lower the learning rate later.

All processes of a job stop after the same update: the request is part of the statistics that they exchange anyway.
torchrun forwards the signal, kills processes that still run after 30 seconds, and exits with status 1.

torchrun and terminals signal process groups. Processes that load data (`--num-workers`) would die and end the run; they
therefore leave their group.
"""

import contextlib
import logging
import os
import signal
import threading
from types import ModuleType
from typing import Any, Dict, List

import torch
import torch.distributed as dist

from fairseq_modern import fault_tolerance
from fairseq_modern.fault_tolerance import resuming
from fairseq_modern.patching import step, wrap
from fairseq_modern.processes import STOPPED

logger = logging.getLogger(__name__)

DEFAULT_HANDLERS: Dict[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}

#: received signals. A list, because a signal may arrive within the handler of another one: an Event would deadlock
_requests: List[int] = []


class Stopped(SystemExit):
    """Training has stopped on request and can resume. Raised in all processes of a job."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


def request_stop(signum: int, frame: Any) -> None:
    """Signal handler: remember the request. After the first Ctrl-C, another one interrupts as usual."""
    _requests.append(signum)
    if signum == signal.SIGINT:
        signal.signal(signum, DEFAULT_HANDLERS[signal.SIGINT])
        os.write(2, b"\nstopping after this update, with a checkpoint; press Ctrl-C again to stop at once\n")


def _leave_group() -> None:
    if signal.getsignal(signal.SIGTERM) is request_stop:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_group)


def set_handlers(handler: Any = request_stop) -> None:
    """Handle SIGTERM and Ctrl-C, unless the program has its own handlers."""
    if threading.current_thread() is threading.main_thread():
        for signum, default in DEFAULT_HANDLERS.items():
            if signal.getsignal(signum) == default:
                signal.signal(signum, handler)


def reset_handlers(handler: Any = request_stop) -> None:
    """Restore the default handlers, and forget a request to stop."""
    _requests.clear()
    if threading.current_thread() is threading.main_thread():
        for signum, default in DEFAULT_HANDLERS.items():
            if signal.getsignal(signum) is handler:
                signal.signal(signum, default)


def patch_trainer(module: ModuleType) -> None:
    """Add the request to stop to the statistics that the processes of `fairseq.trainer.Trainer` exchange."""

    @wrap(module.Trainer)
    def _aggregate_logging_outputs(original, self, logging_outputs, *sums, ignore=False):
        if not fault_tolerance.is_on():
            return original(self, logging_outputs, *sums, ignore=ignore)
        outputs, totals = original(self, logging_outputs, *sums, float(bool(_requests)), ignore=ignore)
        *totals, requests = totals
        # in training, fairseq reads the totals immediately, so that this adds no synchronisation with a GPU
        self.stop_requests = bool(requests > 0) if torch.is_grad_enabled() else requests
        return outputs, totals


def must_stop(trainer: Any) -> bool:
    """Whether any process of the job was asked to stop. All processes return the same answer."""
    if trainer.data_parallel_world_size == 1:
        return bool(_requests)
    return bool(getattr(trainer, "stop_requests", 0) > 0)


@step()
def handle_signals() -> None:
    """Before an epoch: handle SIGTERM and Ctrl-C."""
    set_handlers()


@step()
def remember_save(trainer: Any) -> None:
    """After a save."""
    trainer.saved_after = trainer.get_num_updates()


@step()
def stop_if_requested(checkpoint_utils: Any, cfg: Any, trainer: Any, epoch_itr: Any) -> None:
    """After an update that does not end training, and its validation and saving."""
    if must_stop(trainer):
        stop(checkpoint_utils, cfg, trainer, epoch_itr)


def stop(checkpoint_utils: Any, cfg: Any, trainer: Any, epoch_itr: Any) -> None:
    """Save a checkpoint unless this update has one, and raise Stopped in all processes."""
    updates = trainer.get_num_updates()
    if getattr(trainer, "saved_after", None) != updates:
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    if cfg.checkpoint.write_checkpoints_asynchronously:
        checkpoint_utils.PathManager.async_close()
    if trainer.data_parallel_world_size > 1:  # torchrun kills the others when the first process exits
        dist.barrier(group=trainer.data_parallel_process_group)
    if trainer.is_data_parallel_master:
        if cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints:
            logger.warning(f"stopped after update {updates}, without a checkpoint, as configured")
        else:
            advice = "the same command resumes from there"
            flags = resuming.start_flags(cfg.checkpoint)
            if cfg.checkpoint.no_save_optimizer_state:
                advice = resuming.INCOMPLETE
            elif flags and not resuming.uses_last(cfg.checkpoint, trainer):
                advice = f"to resume from there, leave out {flags}"
            logger.warning(f"stopped after update {updates}, saved; {advice}")
    raise Stopped
