"""Mends: what a training goes on from after it was killed, and what its checkpoint folder may hold then.

As published, fairseq looks at `checkpoint_last.pt` only. Before a training loads it, the first process
- waits until no other training works in the folder: the left-over of a killed job would write into it as well;
- removes unfinished files (`*.pt.tmp`);
- finds the newest checkpoint that is whole. Where a kill came after that was written and before it was copied to
  `checkpoint_last.pt` and `checkpoint_best.pt`, or `checkpoint_last.pt` is damaged, the copies are made;
- refuses to begin where the disk has no room for what the training will keep.

The position within the epoch that a checkpoint holds is a number of batches of one process. If the training goes on
with another number of processes or other batches it means nothing, and data would be skipped or seen twice, as it
published does without a word: the training then goes on at the next epoch and says so.

`python -m fairseq_modern.resuming DIRECTORY` prints the newest whole checkpoint of a folder.
"""

import argparse
import errno
import functools
import logging
import os
import re
import sys
import time
import zipfile
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from fairseq_modern.errors import UserError
from fairseq_modern.loading import allowed_globals

logger = logging.getLogger(__name__)

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
CHECKPOINT = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+)\.pt")
LEFT_OVER = re.compile(r"(checkpoint.*|crash)\.pt\.tmp")
PATIENCE = 60  # seconds to wait for another training to leave the folder

# What the batches of a process follow from: their number, and the position among them, hold for these settings only.
BATCHES = {
    "processes": ("distributed_training", "distributed_world_size"),
    "--max-tokens": ("dataset", "max_tokens"),
    "--batch-size": ("dataset", "batch_size"),
    "--required-batch-size-multiple": ("dataset", "required_batch_size_multiple"),
    "--train-subset": ("dataset", "train_subset"),
    "--seed": ("common", "seed"),
}
MADE_FOR = "made_for"  # where a loaded position carries them

_locks: List[int] = []


class Checkpoint(NamedTuple):
    """A whole checkpoint that training can go on from."""

    path: str
    updates: int
    best: bool  # no earlier checkpoint of its training has a better score


def read(path: str) -> Optional[Checkpoint]:
    """What a file says about itself, or None if it is no checkpoint to go on from. `is_whole` tells if its data are."""
    try:
        mapped = zipfile.is_zipfile(path)  # else of torch < 1.6, or damaged
        torch.serialization.add_safe_globals(allowed_globals())
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None)
        extra = state["extra_state"]
        extra["train_iterator"]["epoch"]
        if state.get("last_optimizer_state", {}) is None:  # an average
            return None
        score, updates = extra.get("val_loss"), state["optimizer_history"][-1]["num_updates"]
        return Checkpoint(path, updates, best=score is not None and score == extra["best"])
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # a damaged file makes torch raise nearly anything
        return None


def is_whole(path: str) -> bool:
    """Whether all of a checkpoint's data are as they were written. torch itself does not check their sums."""
    if not zipfile.is_zipfile(path):
        return read(path) is not None
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def newest_whole(directory: str) -> Optional[Checkpoint]:
    """The checkpoint of a folder with the most updates of those that are whole, or None.

    A whole `checkpoint_last.pt` counts as newer than what was written before it: somebody who puts an older checkpoint
    in its place wants to go on from that.
    """
    found = [read(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)]
    readable = [checkpoint for checkpoint in found if checkpoint is not None]
    last = next((checkpoint for checkpoint in readable if _name(checkpoint) == LAST), None)
    if last is not None and is_whole(last.path):
        since = os.stat(last.path).st_mtime_ns
        readable = [checkpoint for checkpoint in readable if os.stat(checkpoint.path).st_mtime_ns >= since]
    readable.sort(key=lambda checkpoint: (checkpoint.updates, _name(checkpoint) == LAST, checkpoint.path), reverse=True)
    return next((checkpoint for checkpoint in readable if is_whole(checkpoint.path)), None)


def _name(checkpoint: Checkpoint) -> str:
    return os.path.basename(checkpoint.path)


def remove_left_overs(directory: str) -> None:
    """Remove what was being written when an earlier training was killed."""
    for name in filter(LEFT_OVER.fullmatch, os.listdir(directory)):
        os.remove(os.path.join(directory, name))
        logger.info(f"removed {name}, left over from an interrupted write")


def complete(directory: str, copy: Any) -> None:
    """Make `checkpoint_last.pt` the newest whole checkpoint, and `checkpoint_best.pt` too if that is the best so far.

    Args:
        directory: a `--save-dir`.
        copy: copies a file to a name, whole or not at all.
    """
    newest = newest_whole(directory)
    last, best = os.path.join(directory, LAST), os.path.join(directory, BEST)
    if newest is None or newest.path == last:
        return
    if os.path.exists(last) and (read(last) is None or not is_whole(last)):
        os.replace(last, last + ".damaged")
        logger.warning(f"{last} is damaged; it is now called {LAST}.damaged")
    logger.warning(f"going on from {newest.path}, the newest whole checkpoint ({newest.updates} updates)")
    if newest.best and newest.path != best:
        copy(newest.path, best, overwrite=True)
    copy(newest.path, last, overwrite=True)


def lock(directory: str) -> None:
    """Keep other trainings out of a folder until `unlock`, or the end of this process and those forked from it.

    Raises:
        UserError: another training is at work there, and was a minute later.
    """
    import fcntl

    descriptor, end, told = os.open(directory, os.O_RDONLY), time.monotonic() + PATIENCE, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                break  # a file system without locks
            if time.monotonic() > end:
                os.close(descriptor)
                raise UserError(
                    f"another training is at work in {directory}, or what a killed one left running; "
                    "end it, or give another --save-dir."
                ) from error
        if not told:
            logger.info(f"waiting for another training, or what is left of one, to leave {directory}")
        told = True
        time.sleep(0.2)
    _locks.append(descriptor)


def unlock() -> None:
    """Let other trainings in."""
    while _locks:
        os.close(_locks.pop())


def number_of_files(cfg: Any) -> int:
    """How many checkpoints a training keeps at the same time, the one being written included.

    Args:
        cfg: fairseq's configuration. Those kept without end count once.
    """
    keep, saved = cfg.checkpoint, 1
    if not keep.no_last_checkpoints:
        saved += 1
    if not cfg.dataset.disable_validation:
        saved += 1 + max(0, keep.keep_best_checkpoints)
    if not keep.no_epoch_checkpoints:
        saved += max(1, keep.keep_last_epochs)
    if keep.save_interval_updates > 0:
        saved += max(1, keep.keep_interval_updates)
    return saved


def check_space(cfg: Any, model: torch.nn.Module) -> None:
    """Raise UserError if the disk has no room for the checkpoints of a training that is about to begin.

    One takes what the largest present one takes, else 4 bytes for each parameter (2 in half precision) and the 8 of
    Adam's two moments, of which no optimizer of fairseq has more.
    """
    directory = cfg.checkpoint.save_dir
    present = [
        os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory) if CHECKPOINT.fullmatch(name)
    ]
    parameters = list(model.parameters())
    estimate = sum(p.numel() * (p.element_size() + 8 * p.requires_grad) for p in parameters)
    size = max(present, default=estimate)
    number = max(1, number_of_files(cfg) - len(present))
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < number * size:
        raise UserError(
            f"{directory} has {free / 1e6:,.1f} MB free, but this training will write {number} more "
            f"checkpoint{'s' * (number > 1)} of {size / 1e6:,.1f} MB there; make room or give another --save-dir."
        )


def prepare(cfg: Any, trainer: Any, copy: Any) -> None:
    """Put the checkpoint folder in order before a training goes on in it, as the first process only."""
    directory = cfg.save_dir
    if cfg.no_save or not os.path.isdir(directory):  # a remote one
        return
    lock(directory)
    remove_left_overs(directory)
    if cfg.restore_file == LAST and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix:
        complete(directory, copy)
    check_space(trainer.cfg, trainer.get_model())


def batch_settings(cfg: Any) -> Dict[str, Any]:
    """The settings that the batches of a process follow from, as far as the configuration has them."""
    return {name: cfg[section][key] for name, (section, key) in BATCHES.items() if key in cfg.get(section, {})}


def mend(module: ModuleType) -> None:
    """Wrap how `fairseq.checkpoint_utils` loads what a training goes on from."""
    checkpoint_utils: Any = module
    published = checkpoint_utils.load_checkpoint
    published_load = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(published)
    def load_checkpoint(cfg: Any, trainer: Any, **options: Any) -> Any:
        if trainer.is_data_parallel_master:
            prepare(cfg, trainer, checkpoint_utils.PathManager.copy)
        if trainer.data_parallel_world_size > 1 and not trainer.tpu:
            dist.barrier(group=trainer.data_parallel_process_group)
        return published(cfg, trainer, **options)

    @functools.wraps(published_load)
    def load_checkpoint_to_cpu(*args: Any, **options: Any) -> Any:
        state = published_load(*args, **options)
        position = (state.get("extra_state") or {}).get("train_iterator")
        if position and state.get("cfg") is not None:  # travels with it to all processes
            position[MADE_FOR] = batch_settings(state["cfg"])
        return state

    checkpoint_utils.load_checkpoint = load_checkpoint
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def mend_trainer(module: ModuleType) -> None:
    """Let `fairseq.trainer.Trainer` go on at the next epoch where the position within the last one means nothing."""
    published = module.Trainer.load_checkpoint

    @functools.wraps(published)
    def load_checkpoint(self: Any, filename: str, *args: Any, **options: Any) -> Any:
        from fairseq.logging import metrics

        extra_state = published(self, filename, *args, **options)
        position = (extra_state or {}).get("train_iterator") or {}
        before, now = position.pop(MADE_FOR, {}), batch_settings(self.cfg)
        others = [name for name in now if name in before and before[name] != now[name]]
        cfg = self.cfg.checkpoint
        if others and position.get("iterations_in_epoch", 0) > 0 and filename != cfg.finetune_from_model:
            epoch = position["epoch"]
            position.update(epoch=epoch + 1, iterations_in_epoch=0)
            metrics.reset_meters("train")  # the averages of an epoch
            if not cfg.reset_dataloader and self.is_data_parallel_master:
                changes = ", ".join(f"{name} {before[name]} before and {now[name]} now" for name in others)
                logger.warning(
                    f"the batches of epoch {epoch} are others than when it was begun ({changes}): going on at epoch "
                    f"{epoch + 1} after update {self.get_num_updates()}; the rest of epoch {epoch} is left out"
                )
        return extra_state

    module.Trainer.load_checkpoint = load_checkpoint


def main(argv: Optional[List[str]] = None) -> int:
    """Print the newest whole checkpoint of a folder, or nothing if it has none."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_modern.resuming", description=main.__doc__)
    parser.add_argument("directory", metavar="DIRECTORY", help="a --save-dir of fairseq")
    directory = parser.parse_args(argv).directory
    if not os.path.isdir(directory):
        parser.error(f"{directory} is not a directory, expected the --save-dir of a training.")
    newest = newest_whole(directory)
    if newest is not None:
        sys.stdout.write(newest.path + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
