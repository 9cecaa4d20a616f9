"""fairseq checkpoints: safe loading, atomic saving, averaging.

A checkpoint is a pickle, which can call any function when it is loaded. `load` therefore accepts only tensors, plain
containers and the few harmless classes in fairseq's checkpoints (see `fairseq_modern.loading`).
"""

import argparse
import hashlib
import logging
import os
import re
import reprlib
from typing import Any, Dict, List, Mapping, MutableMapping, Optional, Sequence, Tuple

import torch

from fairseq_modern import loading
from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike, sha256
from fairseq_modern.saving import checkpoint_file

logger = logging.getLogger(__name__)

#: sections of fairseq's configuration whose settings identify a training run, and those that may differ between its
#: parts: its end, the machine, and what only saves memory or time
RUN_SECTIONS = ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization")
_OF_A_PART = {
    *("max_update", "max_epoch", "total_num_update", "stop_time_hours", "stop_min_lr", "update_freq", "dataset_impl"),
    *("fp16", "bf16", "tpu", "checkpoint_activations", "offload_activations", "compile", "attention_kernel"),
}
#: settings of a model: SHA-256 of the symbols of its dictionaries
DICTIONARIES = ("source_dictionary_sha256", "target_dictionary_sha256")
_NAMES = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_(\d+)_(\d+)\.pt")}


def load(path: PathLike) -> Dict[str, Any]:
    """Read a checkpoint onto the CPU without running code from it.

    Args:
        path: file written by fairseq, by `save`, or by `torch.save`.

    Returns:
        The pickled dictionary. Tensors that shared memory when they were saved still do.

    Raises:
        UserError: the file is missing, damaged or not a checkpoint, contains a class or function that is not
            allowed, or a tensor that is not dense or larger than its data, or has expressions in its settings.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise UserError(f"there is no checkpoint {name}")
    if not os.path.isfile(name):  # reading a device or a pipe might never end
        file_type = "a folder" if os.path.isdir(name) else "not a regular file"
        raise UserError(f"{name} must be a checkpoint file; got {file_type}")
    return loading.load_dictionary(name, map_location="cpu")  # type: ignore[no-any-return]


def load_with_model(path: PathLike) -> Dict[str, Any]:
    """`load` a checkpoint, and check that it has finite model parameters and valid other parts."""
    state, name = load(path), os.fspath(path)
    model = state.get("model")
    has_tensors = isinstance(model, dict) and all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in model.items()
    )
    if not model or not has_tensors:
        contents = ", ".join(sorted(map(str, state))) or "nothing"
        raise UserError(f"{name} must have model parameters under 'model'; got {contents}")
    check_finite(model, name)
    history, extra = state.get("optimizer_history") or [], state.get("extra_state") or {}
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise UserError(f"{name}: optimizer_history must be a list of mappings; got {reprlib.repr(history)}")
    if not isinstance(num_updates(state), (int, type(None))):
        raise UserError(f"{name}: num_updates must be an integer; got {reprlib.repr(num_updates(state))}")
    if not isinstance(extra, dict) or not isinstance(extra.get("averaged_from", []), list):
        raise UserError(f"{name}: extra_state must be a mapping, averaged_from a list; got {reprlib.repr(extra)}")
    return state


def check_finite(model: Mapping[str, torch.Tensor], name: str) -> None:
    """Raise UserError if a tensor of the model `name` contains NaN or infinity."""
    for key, tensor in model.items():
        if key.endswith("._float_tensor"):  # fairseq never initialises its markers
            continue
        if tensor.is_floating_point() and tensor.element_size() == 1:  # torch cannot compare 8-bit numbers
            tensor = tensor.float()
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{name} has NaN or infinite values in {key}; every result would be NaN")


def save(state: Dict[str, Any], path: PathLike) -> None:
    """Write a checkpoint atomically: if that fails, a previous file at `path` does not change."""
    with checkpoint_file(os.fspath(path)) as stream:
        torch.save(state, stream)


def file_setting(path: PathLike) -> Dict[str, str]:
    """Name and SHA-256 of a file, for a record; for a folder, the SHA-256 of the checksums of weights and config."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    if not os.path.isdir(path):
        return {"file": name, "sha256": sha256(path)}
    files = sorted(file for file in os.listdir(path) if file.endswith((".safetensors", ".bin", "config.json")))
    checksums = "\n".join(f"{sha256(os.path.join(path, file))}  {file}" for file in files)
    return {"file": name, "sha256": hashlib.sha256(checksums.encode()).hexdigest()}


def num_updates(state: Dict[str, Any]) -> Optional[int]:
    """Number of training updates of a checkpoint; None if unknown."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def num_parameters(state: Mapping[str, Any]) -> int:
    """Number of model parameters in a checkpoint; shared ones count once, and fairseq's markers do not count."""
    sizes = {
        _location(tensor): tensor.numel()
        for name, tensor in state["model"].items()
        if not name.endswith((".version", "._float_tensor"))
    }
    return sum(sizes.values())


def select_checkpoints(directory: PathLike, kind: str, wanted: int, upper_bound: Optional[int] = None) -> List[str]:
    """The newest checkpoints in a folder, newest first, selected as in fairseq's averaging script.

    Args:
        directory: a `--save-dir`.
        kind: "epoch" for checkpointE.pt, or "update" for checkpoint_E_U.pt.
        wanted: number of checkpoints. If there are fewer, UserError lists them.
        upper_bound: largest epoch or update, inclusive.
    """
    folder = os.fspath(directory)
    if not os.path.isdir(folder):
        raise UserError(f"{folder} must be the folder with the {kind} checkpoints; it is not a folder")
    candidates = []
    for name in os.listdir(folder):
        match = _NAMES[kind].fullmatch(name)
        if match is None:
            continue
        numbers = tuple(int(number) for number in reversed(match.groups()))  # (E,) or (U, E)
        if upper_bound is None or numbers[0] <= upper_bound:
            candidates.append((numbers, name))
    candidates.sort(reverse=True)
    if len(candidates) < wanted:
        bound = "" if upper_bound is None else f" up to {kind} {upper_bound}"
        names = ", ".join(name for _, name in candidates) or "none"
        raise UserError(
            f"{folder} must have at least {wanted} {kind} checkpoints{bound}; got {len(candidates)}: {names}"
        )
    return [os.path.join(folder, name) for _, name in candidates[:wanted]]


def average(paths: Sequence[PathLike], different_runs: bool = False) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Average the model parameters of checkpoints.

    Floating-point tensors are summed in float64 and rounded once, to their stored dtype. Integer and boolean tensors
    (counters) are those of the newest checkpoint. Tensors that share memory in every input share it in the result.

    Args:
        paths: checkpoints of one training run.
        different_runs: they may be of several runs, such as models fine-tuned from the same checkpoint.

    Returns:
        The state of the newest input (most updates; the last of several) with the averaged `model`, without optimizer
        state; and a report, also in `extra_state.averaged_from`: file name, SHA-256 and number of updates of each
        input.

    Raises:
        UserError: an input is invalid, or the inputs are different models or of different runs.
    """
    sums: Dict[str, torch.Tensor] = {}
    locations: Dict[str, List[Any]] = {}  # parameter -> its memory location in every input
    newest: Dict[str, Any] = {}
    report: List[Dict[str, Any]] = []
    settings: Dict[str, Any] = {}
    for path in [os.fspath(path) for path in paths]:
        logger.info("reading %s", path)
        state = load_with_model(path)
        if newest:
            _check_same(newest["model"], state["model"], os.fspath(paths[0]), path)
            _check_meaning(newest, state, os.fspath(paths[0]), path)
        if not different_runs:
            settings = settings or run_settings(state)
            _check_run(settings, state, os.fspath(paths[0]), path)
        for key, tensor in state["model"].items():
            locations.setdefault(key, []).append(_location(tensor) if tensor.numel() else key)
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
    model = type(newest["model"])()  # keeps an OrderedDict
    for key, tensor in newest["model"].items():
        mean = (sums.pop(key) / len(report)).to(tensor.dtype) if key in sums else tensor
        model[key] = shared.setdefault(tuple(locations[key]), mean)
    newest["model"] = model
    newest["last_optimizer_state"] = None  # of one input, not of the average
    extra = newest.get("extra_state") or {}
    # a moving average (--store-ema) is of one input, too
    kept = {key: value for key, value in extra.items() if key not in ("ema", "ema_fp32_params")}
    newest["extra_state"] = {**kept, "averaged_from": report}
    return newest, report


def _location(tensor: torch.Tensor) -> Tuple[Any, ...]:
    """Identifies the memory of a tensor: equal for views of the same elements."""
    pointer = tensor.untyped_storage().data_ptr()
    return (pointer, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _check_same(one: Dict[str, torch.Tensor], other: Dict[str, torch.Tensor], path: str, other_path: str) -> None:
    """Raise UserError unless two models have the same parameters."""
    for missing, lacking, having in (
        (sorted(one.keys() - other.keys()), other_path, path),
        (sorted(other.keys() - one.keys()), path, other_path),
    ):
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise UserError(
                f"{lacking} lacks {', '.join(missing[:3])}{more}, which {having} has: they are different models"
            )
    for key, tensor in other.items():
        if tensor.shape != one[key].shape:
            raise UserError(
                f"{key} has shape {tuple(tensor.shape)} in {other_path}, but {tuple(one[key].shape)} in {path}"
            )


def _check_meaning(one: Dict[str, Any], other: Dict[str, Any], path: str, other_path: str) -> None:
    """Raise UserError if the same parameters would define different functions."""
    first, second = model_settings(one), model_settings(other)
    # None: unknown, in checkpoints of earlier versions
    defaults: Dict[str, Any] = {"mixing_lr_multiplier": 1.0, "attention_shapes": {}, **dict.fromkeys(DICTIONARIES)}
    for name, default in defaults.items():
        value, other_value = first.get(name) or default, second.get(name) or default
        if None not in (value, other_value) and value != other_value:
            raise UserError(
                f"{name} is {other_value} in {other_path}, but {value} in {path}: they are different models"
            )


def run_settings(state: Dict[str, Any]) -> Dict[str, Any]:
    """The settings of a checkpoint that identify its training run: `section.name` → value; empty without settings.

    Paths are left out, since files may have been moved; of the data, there are the last two components.
    """
    cfg = {
        section: vars(values) if isinstance(values, argparse.Namespace) else values
        for section, values in (state.get("cfg") or {}).items()
        if isinstance(values, (argparse.Namespace, Mapping))
    }
    # fairseq's namespace of the model has the settings of all sections
    elsewhere = {name for section, values in cfg.items() if section != "model" for name in values}
    settings = {f"common.{name}": value for name, value in cfg.get("common", {}).items() if name == "seed"}
    for section in RUN_SECTIONS:
        for name, value in cfg.get(section, {}).items():
            if name == "data" and section == "task":
                value = " ".join(str(value).rstrip("/").split("/")[-2:])
            is_path = isinstance(value, str) and "/" in value
            changes = is_path or name in _OF_A_PART or str(name).startswith("eval_")  # eval_bleu: of validation only
            if not changes and not (section == "model" and name in elsewhere):
                settings[f"{section}.{name}"] = value
    return settings


def _check_run(settings: Dict[str, Any], state: Dict[str, Any], path: str, other_path: str) -> None:
    """Raise UserError if a checkpoint is of another run than one with these `run_settings`, or has another name."""
    others = run_settings(state)
    for name in sorted(settings.keys() & others.keys()):
        if settings[name] != others[name]:
            raise UserError(
                f"{name} is {others[name]} in {other_path}, but {settings[name]} in {path}: they are of different "
                "runs; to average them nevertheless, use collab average --different-runs"
            )
    match, updates = _NAMES["update"].fullmatch(os.path.basename(other_path)), num_updates(state)
    if match and updates not in (None, int(match[2])):
        raise UserError(f"{other_path} must have {match[2]} updates, as in its name; got {updates}")


def model_settings(state: Mapping[str, Any]) -> MutableMapping[str, Any]:
    """The model settings of a checkpoint; writing to them changes the checkpoint. Empty if it has none."""
    settings = (state.get("cfg") or {}).get("model")
    if isinstance(settings, argparse.Namespace):
        return vars(settings)
    return {} if settings is None else settings
