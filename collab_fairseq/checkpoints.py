"""Checkpoints of fairseq: loading without running anything, saving whole or not at all, averaging.

A checkpoint is a pickle, and a pickle can name any function to be called on loading. `load` therefore accepts tensors,
plain containers and the few harmless classes that fairseq's checkpoints hold (`fairseq_modern.loading`), and refuses
everything else by name.
"""

import argparse
import hashlib
import logging
import os
import re
import reprlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from fairseq_modern import loading
from fairseq_modern.errors import CheckpointError
from fairseq_modern.files import PathLike, sha256
from fairseq_modern.saving import checkpoint_file

logger = logging.getLogger(__name__)

Report = List[Dict[str, Any]]

_NAMES = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_(\d+)_(\d+)\.pt")}


def load(path: PathLike) -> Dict[str, Any]:
    """Read a checkpoint onto the CPU without running any code that it may carry.

    Args:
        path: file written by fairseq, by `save`, or by `torch.save`.

    Returns:
        The pickled dictionary. Tensors that shared memory when they were saved share memory.

    Raises:
        CheckpointError: the file is missing, truncated, damaged or no checkpoint, refers to a class or function outside
            the allowlist, or its settings hold expressions; nothing of it has been run then.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):  # reading a device or a pipe might never end
        if not os.path.exists(name):
            raise CheckpointError(f"there is no checkpoint {name}")
        kind = "a directory" if os.path.isdir(name) else "no regular file"
        raise CheckpointError(f"{name} is {kind}, expected a checkpoint file")
    return loading.load_dictionary(name, map_location="cpu")  # type: ignore[no-any-return]


def load_with_model(path: PathLike) -> Dict[str, Any]:
    """:func:`load` a checkpoint whose parameters, under ``model``, are to be worked with.

    Raises:
        CheckpointError: see `load`; there are no parameters, or some that are not finite; the other parts are not
            what fairseq's checkpoints have there.
    """
    state, name = load(path), os.fspath(path)
    model = state.get("model")
    named_tensors = isinstance(model, dict) and all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in model.items()
    )
    if not model or not named_tensors:
        raise CheckpointError(
            f"{name} holds no model parameters under 'model', as fairseq's checkpoints do; "
            f"it has: {', '.join(sorted(map(str, state)))}"
        )
    check_finite(model, name)
    history, extra = state.get("optimizer_history") or [], state.get("extra_state") or {}
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise CheckpointError(f"{name}: optimizer_history must be a list of mappings; got {reprlib.repr(history)}")
    if not isinstance(num_updates(state), (int, type(None))):
        raise CheckpointError(f"{name}: num_updates must be a whole number; got {reprlib.repr(num_updates(state))}")
    if not isinstance(extra, dict) or not isinstance(extra.get("averaged_from", []), list):
        raise CheckpointError(f"{name}: extra_state must be a mapping; got {reprlib.repr(extra)}")
    return state


def check_finite(model: Mapping[str, torch.Tensor], name: str) -> None:
    """Raise CheckpointError where a tensor of the model ``name`` has NaN or infinity: every result would be NaN."""
    for key, tensor in model.items():
        # fairseq's `_float_tensor` markers are memory that is never initialised
        if not key.endswith("._float_tensor") and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{name} has NaN or infinite values in {key}; every result would be NaN")


def save(state: Dict[str, Any], path: PathLike) -> None:
    """Write a checkpoint: it appears whole under `path`, or `path` stays as it was.

    Raises:
        CheckpointError: the file cannot be written.
    """
    with checkpoint_file(os.fspath(path)) as stream:
        torch.save(state, stream)


def file_setting(path: PathLike) -> Dict[str, str]:
    """A file as a setting of a record: its name and SHA-256; of a folder, that of its weights' and config's sums."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    if not os.path.isdir(path):
        return {"file": name, "sha256": sha256(path)}
    files = sorted(file for file in os.listdir(path) if file.endswith((".safetensors", ".bin", "config.json")))
    sums = "\n".join(f"{sha256(os.path.join(path, file))}  {file}" for file in files)
    return {"file": name, "sha256": hashlib.sha256(sums.encode()).hexdigest()}


def num_updates(state: Dict[str, Any]) -> Optional[int]:
    """How many updates the checkpoint was trained for; None where it does not say."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def num_parameters(state: Mapping[str, Any]) -> int:
    """Parameters of the model in a checkpoint; shared ones count once, the markers that fairseq keeps there do not."""
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.numel()
        for name, tensor in state["model"].items()
        if not name.endswith((".version", "._float_tensor"))
    }
    return sum(sizes.values())


def select_checkpoints(directory: PathLike, kind: str, wanted: int, upper_bound: Optional[int] = None) -> List[str]:
    """The newest checkpoints of a folder, newest first, chosen as fairseq's averaging script does.

    Args:
        directory: a `--save-dir`.
        kind: "epoch", checkpointE.pt ordered by epoch, or "update", checkpoint_E_U.pt ordered by update.
        wanted: how many of them.
        upper_bound: leave out epochs (or updates) beyond this number; the number itself is included.

    Raises:
        CheckpointError: there are fewer than asked for; the message lists those that are there.
    """
    folder = os.fspath(directory)
    if not os.path.isdir(folder):
        raise CheckpointError(f"{folder} is not a directory, expected the folder that holds the {kind} checkpoints")
    found = []
    for name in os.listdir(folder):
        match = _NAMES[kind].fullmatch(name)
        numbers = tuple(int(number) for number in match.groups()[::-1]) if match else ()
        if numbers and (upper_bound is None or numbers[0] <= upper_bound):
            found.append((numbers, name))
    found.sort(reverse=True)
    if len(found) < wanted:
        bound = "" if upper_bound is None else f" up to {kind} {upper_bound}"
        names = ", ".join(name for _, name in found) or "none"
        raise CheckpointError(
            f"{folder} has {len(found)} {kind} checkpoints{bound}, expected at least {wanted}; found: {names}"
        )
    return [os.path.join(folder, name) for _, name in found[:wanted]]


def average(paths: Sequence[PathLike]) -> Tuple[Dict[str, Any], Report]:
    """Average the model parameters of checkpoints, and log the name of each before it is read.

    Floating-point tensors are summed in float64 and rounded once, to their stored type. Integer and boolean tensors
    (counters) are not averaged: the newest checkpoint's stay. Tensors that share memory in every input share it in the
    result.

    Args:
        paths: checkpoints of one training run.

    Returns:
        The state of the newest input (most updates; the last named of several) with the averaged `model`, without
        optimizer state and with the report under `extra_state.averaged_from`; and the report: file name, SHA-256 and
        number of updates of every input.

    Raises:
        CheckpointError: an input cannot be read or has values that are not finite, or keys, shapes or settings that
            give them a meaning differ; the message names file and parameter or setting.
    """
    if not paths:
        raise CheckpointError("there is nothing to average: no checkpoints were given")
    sums: Dict[str, torch.Tensor] = {}
    places: Dict[str, List[Any]] = {}  # key -> where its tensor lies in every input
    newest: Dict[str, Any] = {}
    report: Report = []
    for path in [os.fspath(path) for path in paths]:
        logger.info("reading %s", path)
        state = load_with_model(path)
        if newest:
            _check_same(newest["model"], state["model"], os.fspath(paths[0]), path)
            _check_meaning(newest, state, os.fspath(paths[0]), path)
        for key, tensor in state["model"].items():
            places.setdefault(key, []).append(_place(tensor) if tensor.numel() else key)
            if tensor.is_floating_point() or tensor.is_complex():
                wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
                sums[key] = sums[key].add_(wide) if key in sums else wide.clone()
        name, updates = os.path.basename(path), num_updates(state)
        entry: Dict[str, Any] = {"file": name, "sha256": sha256(path), "num_updates": updates}
        if entry["sha256"] in [other["sha256"] for other in report]:
            logger.warning("%s has the same content as an earlier input and counts twice", path)
        report.append(entry)
        if not newest or (updates or 0) >= (num_updates(newest) or 0):
            newest = state
    shared: Dict[Any, torch.Tensor] = {}
    model = type(newest["model"])()  # an OrderedDict stays one
    for key, tensor in newest["model"].items():
        mean = (sums.pop(key) / len(report)).to(tensor.dtype) if key in sums else tensor
        model[key] = shared.setdefault(tuple(places[key]), mean)
    newest["model"] = model
    newest["last_optimizer_state"] = None  # belongs to one of the inputs, not to their average
    newest["extra_state"] = {**(newest.get("extra_state") or {}), "averaged_from": report}
    return newest, report


def _place(tensor: torch.Tensor) -> Tuple[Any, ...]:
    """What identifies the memory that a tensor shows: equal for two exactly if they are one."""
    pointer = tensor.untyped_storage().data_ptr()
    return (pointer, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _check_same(one: Dict[str, torch.Tensor], other: Dict[str, torch.Tensor], path: str, other_path: str) -> None:
    """Raise CheckpointError unless two models have the same parameters."""
    for names, here, there in (
        (sorted(one.keys() - other.keys()), other_path, path),
        (sorted(other.keys() - one.keys()), path, other_path),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                f"{here} lacks {', '.join(names[:3])}{more}, which {there} has: they are different models"
            )
    for key, tensor in other.items():
        if tensor.shape != one[key].shape:
            raise CheckpointError(
                f"{key} has shape {tuple(tensor.shape)} in {other_path}, but {tuple(one[key].shape)} in {path}"
            )


def _check_meaning(one: Dict[str, Any], other: Dict[str, Any], path: str, other_path: str) -> None:
    """Raise CheckpointError where the same numbers would be another function."""
    models = [(state.get("cfg") or {}).get("model") or {} for state in (one, other)]
    settings = [vars(model) if isinstance(model, argparse.Namespace) else model for model in models]
    defaults: Dict[str, Any] = {"mixing_lr_multiplier": 1.0, "attention_shapes": {}}
    for name, default in defaults.items():
        was, now = (each.get(name) or default for each in settings)
        if was != now:
            raise CheckpointError(f"{name} is {now} in {other_path}, but {was} in {path}: they are different models")
