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

A missing --restore-file is an error.
"""

import contextlib
import logging
import os
import re
import zipfile
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import filelock
import torch
import torch.distributed as dist

from fairseq_modern import fault_tolerance
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.command import KEY, command_of, differences
from fairseq_modern.fault_tolerance.interrupted_save import finish_save
from fairseq_modern.files import acquire_lock, remove_stale_temp_files
from fairseq_modern.loading import unpickle, verify_checksums
from fairseq_modern.patching import wrap

logger = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LAST, LOCK = "checkpoint_last.pt", ".lock"
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

PARTS = ("train_iterator", "val_loss", "best", KEY)

_locks: List[filelock.BaseFileLock] = []


class Checkpoint(NamedTuple):
    """A checkpoint from which training can resume."""

    path: str
    updates: int
    extra: Dict[str, Any]  # the parts of its `extra_state` in `PARTS`

    @property
    def command(self) -> Optional[Dict[str, str]]:
        """The command that wrote it."""
        return self.extra.get(KEY)


def read(path: str) -> Optional[Checkpoint]:
    """Return a description of a checkpoint; None if training cannot resume from it. `is_valid` verifies the data."""
    try:
        can_map = zipfile.is_zipfile(path)  # otherwise written by torch < 1.6, or damaged
        state = unpickle(path, map_location="cpu", mmap=can_map or None)
        extra = state["extra_state"]
        extra["train_iterator"]["epoch"]
        if state.get("last_optimizer_state", {}) is None:  # an average
            return None
        parts = {name: extra[name] for name in PARTS if name in extra}
        return Checkpoint(path, state["optimizer_history"][-1]["num_updates"], parts)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # torch raises almost any exception for a damaged file
        return None


def is_valid(path: str) -> bool:
    """Whether the data of a checkpoint match their checksums."""
    if not zipfile.is_zipfile(path):
        return read(path) is not None
    try:
        verify_checksums(path)
    except Exception:  # almost any, if the directory of the archive is damaged
        return False
    return True


def by_updates(checkpoint: Checkpoint) -> Tuple[int, ...]:
    """Prefer the checkpoint with the most updates."""
    return (checkpoint.updates,)


def latest_valid_checkpoint(
    directory: str,
    rank: Callable[[Checkpoint], Optional[Tuple[int, ...]]] = by_updates,
    asynchronous: bool = False,
) -> Optional[Checkpoint]:
    """Return `checkpoint_last.pt` if it is valid, otherwise the valid checkpoint with the highest rank.

    Args:
        rank: None for a checkpoint that must not replace `checkpoint_last.pt`.
        asynchronous: return the checkpoint with the highest rank even if `checkpoint_last.pt` is valid.
    """
    last = os.path.join(directory, LAST)
    if is_valid(last):
        # None for an average, for example: fairseq may reject it
        checkpoint = read(last)
        if checkpoint is None or not asynchronous:
            return checkpoint or Checkpoint(last, 0, {})
    checkpoints = [read(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)]
    ranked = [(rank(checkpoint), checkpoint) for checkpoint in checkpoints if checkpoint is not None]
    usable = [(key, checkpoint.path, checkpoint) for key, checkpoint in ranked if key is not None]
    usable.sort(key=lambda entry: entry[:2], reverse=True)
    return next((checkpoint for _, path, checkpoint in usable if is_valid(path)), None)


def restore_last(module: Any, cfg: Any, *args: Any) -> Optional[Checkpoint]:
    """Copy the latest valid checkpoint to `checkpoint_last.pt` if that is missing or damaged; return it.

    Args:
        module: `fairseq.checkpoint_utils`.
        cfg: its settings.
        args: further arguments of `latest_valid_checkpoint`.
    """
    latest = latest_valid_checkpoint(cfg.save_dir, *args)
    last = os.path.join(cfg.save_dir, LAST)
    if latest is None or latest.path == last:
        return latest
    if os.path.exists(last) and not is_valid(last):
        os.replace(last, last + ".damaged")
        logger.warning(f"{last} is damaged; renamed it to {LAST}.damaged")
    logger.warning(f"resuming from {latest.path}, the latest valid checkpoint ({latest.updates} updates)")
    finish_save(module, cfg, latest.path, latest.updates, latest.extra)
    return latest


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
    trainer.command = command_of(trainer.cfg)
    lock(directory)
    for name in remove_stale_temp_files(directory):
        logger.info(f"removed {name}, left by an interrupted write")
    if not uses_last(cfg, trainer):
        return False

    flags = start_flags(cfg)
    starts_elsewhere = cfg.restore_file != LAST or any(cfg.get(name) for name in SOURCES)

    def rank(checkpoint: Checkpoint) -> Optional[Tuple[int, ...]]:
        is_own = checkpoint.command == trainer.command
        return None if starts_elsewhere and not is_own else (bool(flags) and is_own, checkpoint.updates)

    latest = restore_last(module, cfg, rank, cfg.write_checkpoints_asynchronously)
    if not flags or trainer.tpu or latest is None:
        return False
    if latest.command != trainer.command:
        changes = differences(latest.command, trainer.command) if latest.command else "unknown"
        logger.info(f"{flags}: applied, since another command has written {LAST} ({changes})")
        return False
    logger.warning(
        f"resuming this run from {LAST} ({latest.updates} updates), without {flags}, which applied when it started; "
        "to start it again, give an empty --save-dir"
    )
    return True


def first_decision(decision: bool, trainer: Any) -> bool:
    """Return the decision of the first process of a job in all processes; the others pass False."""
    if not dist.is_initialized() or trainer.data_parallel_world_size == 1 or trainer.tpu:
        return decision
    decisions = torch.tensor(int(decision), device=trainer.device)
    dist.all_reduce(decisions, op=dist.ReduceOp.MAX, group=trainer.data_parallel_process_group)
    return bool(decisions)


@contextlib.contextmanager
def started(cfg: Any) -> Iterator[None]:
    """Set the settings in `START` to their defaults. Patches that read them see a run that has started."""
    settings = {name: cfg[name] for name in START}
    cfg.update(START)
    try:
        yield
    finally:
        cfg.update(settings)  # checkpoints store them


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.checkpoint_utils.load_checkpoint`."""

    @wrap(module)
    def load_checkpoint(original, cfg, trainer, **options):
        if not fault_tolerance.is_on():
            return original(cfg, trainer, **options)
        is_first = trainer.is_data_parallel_master
        ignores_start = is_first and prepare_folder(module, cfg, trainer)
        with started(cfg) if first_decision(ignores_start, trainer) else contextlib.nullcontext():
            return original(cfg, trainer, **options)


def patch_trainer(module: ModuleType) -> None:
    """Wrap `fairseq.trainer.Trainer.load_checkpoint`."""

    @wrap(module.Trainer)
    def load_checkpoint(original, self, filename, *args, **options):
        if fault_tolerance.is_on() and not module.PathManager.isfile(filename):
            default = os.path.join(self.cfg.checkpoint.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")
            if os.path.abspath(filename) != os.path.abspath(default):
                raise UserError(f"there is no checkpoint {filename} (--restore-file or --continue-once)")
        return original(self, filename, *args, **options)
