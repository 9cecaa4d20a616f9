"""Defect: training starts from scratch if `checkpoint_last.pt` is missing or damaged, or a --restore-file is missing.
A command with --restore-file or --reset-... starts again whenever it is repeated, as after an interruption.

Check: the files. Before a training run loads a checkpoint, the first process

- waits until no other run uses the folder, and removes temporary files of interrupted writes;
- copies the latest valid checkpoint of the folder to `checkpoint_last.pt` if that is missing or damaged, and to the
  other files of that save, which may have been interrupted. A valid `checkpoint_last.pt` stays, whatever its age: the
  user may have put it there. (With --write-checkpoints-asynchronously, fairseq does not update it, and the checkpoint
  with the most updates replaces it.) The checkpoints of another command are not used if fairseq would start from
  another file, as with --finetune-from-model;
- ignores --restore-file and --reset-... if `checkpoint_last.pt` was written by the same command (see `command`). With
  any other command, they apply as in fairseq.

A missing --restore-file is an error. With --no-save-optimizer-state, a warning says that training cannot resume.
"""

import contextlib
import logging
import os
from typing import Any, Iterator, List

import filelock
import torch
import torch.distributed as dist

from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.checkpoints import LAST, latest_valid_checkpoint
from fairseq_modern.fault_tolerance.command import command_of, differences
from fairseq_modern.fault_tolerance.interrupted_save import restore_last
from fairseq_modern.files import acquire_lock, remove_stale_temp_files
from fairseq_modern.patching import step

logger = logging.getLogger(__name__)

LOCK = ".lock"
# Settings that apply when a run starts, and their defaults ...
START = {
    "restore_file": LAST,
    "reset_optimizer": False,
    "reset_lr_scheduler": False,
    "reset_meters": False,
    "reset_dataloader": False,
}
# ... and files from which fairseq starts only if there is no `checkpoint_last.pt`.
SOURCES = ("finetune_from_model", "continue_once")
INCOMPLETE = (
    "with --no-save-optimizer-state, training cannot resume: the same command starts again at update 1, from the "
    "parameters of the checkpoint"
)

_locks: List[filelock.BaseFileLock] = []


def lock(directory: str) -> None:
    """Exclude other training runs, on all nodes, from a folder until `unlock` or the end of this process."""

    def on_wait() -> None:
        logger.info(f"waiting for another training run in {directory}")

    try:
        _locks.append(acquire_lock(os.path.join(directory, LOCK), on_wait))
    except TimeoutError as error:
        raise UserError(
            f"another training run is active in {directory}; wait until it ends, or give another --save-dir"
        ) from error


def unlock() -> None:
    """Release all locks of this process."""
    while _locks:
        _locks.pop().release()


def start_flags(cfg: Any) -> str:
    """Return the flags for the settings in `START` that differ from their defaults, for messages."""
    flags = []
    for name, default in START.items():
        if cfg[name] != default:
            value = "" if cfg[name] is True else f" {cfg[name]}"
            flags.append(f"--{name.replace('_', '-')}{value}")
    return " ".join(flags)


def uses_last(cfg: Any, trainer: Any) -> bool:
    """Whether training writes a complete `checkpoint_last.pt` to a local folder."""
    return os.path.isdir(cfg.save_dir) and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix


def prepare_folder(module: Any, cfg: Any, trainer: Any) -> bool:
    """Lock and clean the checkpoint folder, and restore `checkpoint_last.pt`.

    Returns:
        whether to ignore the settings in `START`, because the same command has written `checkpoint_last.pt`
    """
    directory = cfg.get("save_dir")
    if cfg.get("no_save") or not directory or not os.path.isdir(directory):  # or a remote folder
        return False
    if cfg.no_save_optimizer_state:
        logger.warning(INCOMPLETE)
    command = trainer.command = command_of(trainer.cfg)
    lock(directory)
    for name in remove_stale_temp_files(directory):
        logger.info(f"removed {name}, left by an interrupted write")
    if not uses_last(cfg, trainer):
        return False

    flags = start_flags(cfg)
    starts_elsewhere = cfg.restore_file != LAST or any(cfg.get(name) for name in SOURCES)
    preferred = command if flags or starts_elsewhere else None
    latest = latest_valid_checkpoint(directory, preferred, cfg.write_checkpoints_asynchronously)
    is_repeated = latest is not None and latest.command == command
    is_last = latest is not None and latest.path == os.path.join(directory, LAST)
    if latest is None or (starts_elsewhere and not is_repeated and not is_last):
        return False
    restore_last(module, cfg, latest)
    if not flags or trainer.tpu:
        return False
    if not is_repeated:
        changes = differences(latest.command, command) if latest.command else "unknown"
        logger.info(f"{flags}: applied, since another command has written {LAST} ({changes})")
    else:
        logger.warning(
            f"resuming this run from {LAST} ({latest.updates} updates), without {flags}, which applied when it "
            "started; to start it again, give an empty --save-dir"
        )
    return is_repeated


def first_decision(decision: bool, trainer: Any) -> bool:
    """Return the decision of the first process of a job in all processes; the others pass False."""
    if not dist.is_initialized() or trainer.data_parallel_world_size == 1 or trainer.tpu:
        return decision
    decisions = torch.tensor(int(decision), device=trainer.device)
    dist.all_reduce(decisions, op=dist.ReduceOp.MAX, group=trainer.data_parallel_process_group)
    return bool(decisions)


@step(contextlib.nullcontext())
@contextlib.contextmanager
def started(module: Any, cfg: Any, trainer: Any) -> Iterator[None]:
    """Around the loading of a checkpoint: prepare the folder. If the command is repeated, the settings in `START` have
    their defaults within the block, also for other patches. `module`: `fairseq.checkpoint_utils`.
    """
    is_repeated = first_decision(trainer.is_data_parallel_master and prepare_folder(module, cfg, trainer), trainer)
    settings = {name: cfg[name] for name in START} if is_repeated else {}
    cfg.update({name: START[name] for name in settings})
    try:
        yield
    finally:
        cfg.update(settings)  # checkpoints store them


@step()
def check_exists(trainer: Any, path: str) -> None:
    """Raise UserError if a trainer should load a missing checkpoint, unless it is the default one of a new run."""
    from fairseq.file_io import PathManager

    default = os.path.join(trainer.cfg.checkpoint.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
    if not PathManager.isfile(path) and os.path.abspath(path) != os.path.abspath(default):
        raise UserError(f"there is no checkpoint {path} (--restore-file or --continue-once)")
