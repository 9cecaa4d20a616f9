"""The record of a training: what a number in a table comes from, and enough to get it again.

`collab record` gathers it at the end of a run, in the envelope of record.py. Settings:

    seed           of the training
    config         settings of the checkpoint by section; of `common` those of the precision alone
    data           {file: SHA-256} of the prepared corpus
    averaged_from  [{file, sha256, num_updates}]
    published      only where others measured it: where it stands

Parts, in which a number that was not measured is null:

    parameters     of the model, shared ones once
    training       {updates, wall_seconds, train_seconds, words_per_second, peak_memory_bytes, peak_gpu_bytes,
                   parts: [{wall_seconds, peak_memory_bytes, exit_status}]}
    curves         {train, valid or another subset: [{updates, loss, …}]}
    scores         {test set: what `collab score --json` writes, see `scoring.evaluation.Evaluation`}. In the first
                   records the sentence statistics, of sacreBLEU alone, are {metric, references_sha256, rows}
    losses         {validation or test set: {loss, nll_loss, tokens, sentences}}, of the checkpoint in float32, means
                   over the target tokens in bits; sentences: "bits tokens; bits tokens; …", not in the first records
"""

import argparse
import json
import math
import os
from typing import Any, Dict, Optional

from collab_fairseq.checkpoints import num_parameters, num_updates
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.record import Record, RecordError, read_json, reading, refuse_paths, without_paths
from collab_fairseq.records.train_log import read_train_log

CONFIG_SECTIONS = ("model", "optimization", "optimizer", "lr_scheduler", "criterion", "dataset")
#: settings of the section `common` that say in which precision a model was trained
PRECISION = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")


def plain(value: Any) -> Any:
    """A checkpoint's settings as JSON data, without absolute paths."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return without_paths(str(value))


def describe_checkpoint(state: Dict[str, Any]) -> Dict[str, Any]:
    """`config`, `parameters`, `averaged_from` and `updates` of a checkpoint of fairseq, as loaded."""
    cfg = plain(state.get("cfg") or {})
    if state.get("args") is not None:  # fairseq before 0.10
        cfg = {"model": plain(state["args"])}
    # fairseq's namespace of a model holds every setting of the run; keep what no other section has
    elsewhere = {
        key for section, values in cfg.items() if section != "model" and isinstance(values, dict) for key in values
    }
    if isinstance(cfg.get("model"), dict):
        cfg["model"] = {key: value for key, value in cfg["model"].items() if key not in elsewhere or key == "arch"}
    config = {section: cfg[section] for section in CONFIG_SECTIONS if section in cfg}
    if "common" in cfg:
        config["common"] = {key: value for key, value in cfg["common"].items() if key in PRECISION}
    return {
        "config": config,
        "parameters": num_parameters(state),
        "averaged_from": (state.get("extra_state") or {}).get("averaged_from"),
        "updates": num_updates(state),
    }


def make_record(
    name: str, command: str, *, seed: Optional[int] = None, checkpoint: Optional[Dict[str, Any]] = None,
    train_log: Optional[PathLike] = None, usage: Optional[PathLike] = None, data_sums: Optional[PathLike] = None,
    scores: Optional[Dict[str, PathLike]] = None, losses: Optional[Dict[str, Dict[str, Any]]] = None,
    threads: Optional[int] = None, repository: Optional[PathLike] = None,
) -> Dict[str, Any]:  # fmt: skip
    """Gather the record.

    Args:
        name: of the run.
        command: how it is started again; absolute paths are shortened.
        checkpoint: the loaded checkpoint whose translations were scored.
        train_log: output of `fairseq-train --log-format json`.
        usage: file that `records.measure` appended to during the training.
        data_sums: output of sha256sum for the prepared corpus.
        scores: test set -> file of `collab score --json`.
        losses: validation or test set -> what the part `losses` has of it.
        seed, threads: of the training.
        repository: the checkout that the run was started from, whose commit is noted; without it the folder that this
            package is imported from, which is in no repository where the package was installed as a copy.

    Raises:
        RecordError: `repository` is no git checkout, a file is not what it should be, or it has a path of this machine.
    """
    log = _read_log(train_log) if train_log else {}
    about = describe_checkpoint(checkpoint) if checkpoint else {}
    runs, sums = [], {}
    if usage:
        with reading(usage, "lines of JSON") as lines:
            runs = [json.loads(line) for line in lines]
    if data_sums:
        with reading(data_sums, "written by sha256sum") as lines:
            sums = {file.lstrip("*"): digest for digest, file in (line.split(maxsplit=1) for line in lines)}
    settings = {"seed": seed, "config": about.get("config"), "data": sums, "averaged_from": about.get("averaged_from")}
    free = log.get("gb_free")
    device = "cpu" if free is None else "gpu"
    record = Record("training", name, command, settings, device=device, threads=threads, repository=repository)
    if repository is not None and record.content["commit"]["id"] is None:
        raise RecordError(f"expected a git checkout with a commit, got {os.fspath(repository)}")
    gpus = record.content["hardware"]["gpus"]
    record.parts.update({
        "parameters": about.get("parameters"),
        "training": {
            "updates": about.get("updates"),
            "wall_seconds": sum(part["wall_seconds"] for part in runs) if runs else None,
            "train_seconds": log.get("train_seconds"),
            "words_per_second": log.get("words_per_second"),
            "peak_memory_bytes": max((part["peak_memory_bytes"] for part in runs), default=None),
            "peak_gpu_bytes": int(gpus[0]["memory_bytes"] - free * 2**30) if gpus and free is not None else None,
            "parts": runs,
        },
        "curves": log.get("curves", {}),
        "scores": {test: read_json(path) for test, path in (scores or {}).items()},
        **({"losses": losses} if losses else {}),
    })  # fmt: skip
    refuse_paths(record.content, f"the record of {name}")
    return record.content


def _read_log(path: PathLike) -> Dict[str, Any]:
    try:
        log = read_train_log(path)
    except OSError as error:
        raise RecordError(f"cannot read the training log {os.fspath(path)}: {error.strerror}") from error
    if log["train_seconds"] is None and not any(log["curves"].values()):
        raise RecordError(
            f"the training log {os.fspath(path)} has no numbers in JSON; run fairseq-train with --log-format json"
        )
    return log
