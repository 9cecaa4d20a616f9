"""The record of a training run: the source of table numbers, with everything needed to repeat the run.

Recipes write it at the end of a run. The fields are those of record.py. Settings:

    seed           of the training run
    config         settings of the checkpoint by section; of `common` only the precision
    data           {file: SHA-256} of the prepared corpus
    averaged_from  [{file, sha256, num_updates}]
    decoding       {setting: value} of the search, if any
    files          {setting: {file, sha256}} of files named by settings, if any
    published      the publication, if the result was not measured here

Parts, with null for numbers that were not measured:

    parameters     of the model; shared ones count once
    training       {updates, wall_seconds, train_seconds, words_per_second, peak_memory_bytes, peak_gpu_bytes,
                   parts: [{precision, train_seconds, wall_seconds, peak_memory_bytes, exit_status}]}; a resumed run
                   has several parts, whose seconds are added up. If the runner was killed, only train_seconds is
                   known (from fairseq's log) and stands for both
    curves         {train, valid or another subset: [{updates, loss, …}]}
    scores         {test set: output of `collab score --json`, see `scoring.evaluation.Evaluation`}
    losses         {validation or test set: {loss, nll_loss, tokens, sentences}}, of the checkpoint in float32: means
                   over the target tokens in bits; sentences, if measured: "bits tokens; bits tokens; …"
"""

import contextlib
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from collab_fairseq.checkpoints import num_parameters, num_updates
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.record import Record, plain
from collab_fairseq.records.train_log import read_train_log
from fairseq_modern.files import read_checksums

CONFIG_SECTIONS = ("model", "optimization", "optimizer", "lr_scheduler", "criterion", "dataset")
#: settings of the section `common` that set the precision of training
PRECISION = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")


def config_of(state: Dict[str, Any]) -> Dict[str, Any]:
    """The settings of a fairseq checkpoint for its record."""
    cfg = plain(state["cfg"])
    # fairseq's model namespace has every setting of the run; keep those that no other section has
    elsewhere = {
        key for section, values in cfg.items() if section != "model" and isinstance(values, dict) for key in values
    }
    cfg["model"] = {key: value for key, value in cfg["model"].items() if key not in elsewhere or key == "arch"}
    config = {section: cfg[section] for section in CONFIG_SECTIONS if section in cfg}
    return {**config, "common": {key: value for key, value in cfg["common"].items() if key in PRECISION}}


def read_usage(usage: Path) -> List[Dict[str, Any]]:
    """The measurements of each part of a run, with `log_from`."""
    parts: List[Dict[str, Any]] = []
    for line in usage.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a line truncated by a kill
            entry = json.loads(line)
            if "log_from" in entry:
                parts.append(entry)
            elif parts:
                parts[-1].update(entry)
    return parts


def make_record(
    name: str,
    command: str,
    *,
    checkpoint: Dict[str, Any],
    train_log: Path,
    usage: Path,
    data_checksums: Path,
    scores: Dict[str, Path],
    losses: Dict[str, Dict[str, Any]],
    seed: Optional[int] = None,
    threads: Optional[int] = None,
    repository: Optional[PathLike] = None,
    files: Optional[Dict[str, Any]] = None,
    decoding: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Make the record of a training run.

    Args:
        name: of the run.
        command: repeats the run.
        checkpoint: loaded checkpoint whose translations were scored.
        train_log: output of `fairseq-train --log-format json`.
        usage: JSON lines of the runner: {log_from, hardware} at the start of a part, then its measurements.
        data_checksums: output of sha256sum for the prepared corpus.
        scores: test set → output of `collab score --json`.
        losses: validation or test set → its entry in the part `losses`.
        seed: of the training run.
        threads: recorded, with the hardware of this machine, if the last part in `usage` has no hardware.
        repository: checkout whose commit is recorded (default: that of this package).
        files: setting → name and SHA-256 of the file that it names.
        decoding: setting → value of the search.
    """
    measured = read_usage(usage) or [{"log_from": 0}]
    machines = [part.pop("hardware", {}) for part in measured]
    log = read_train_log(train_log, [part.pop("log_from") for part in measured])
    unknown = {"wall_seconds": None, "peak_memory_bytes": None, "exit_status": None}
    parts = [
        {"train_seconds": seconds, **unknown, **part}
        for part, seconds in zip(measured, log["part_seconds"], strict=True)
    ]
    settings = {
        "seed": seed,
        "config": config_of(checkpoint),
        "data": read_checksums(data_checksums),
        "averaged_from": (checkpoint.get("extra_state") or {}).get("averaged_from"),
    }
    settings.update({name: value for name, value in (("files", files), ("decoding", decoding)) if value})
    free = log["gb_free"]
    device = "cpu" if free is None else "gpu"
    record = Record("training", name, command, settings, device=device, repository=repository)
    # the results may be recorded on another machine
    record.content["hardware"].update({"threads": threads, **machines[-1]})
    gpus = record.content["hardware"]["gpus"]
    record.parts["parameters"] = num_parameters(checkpoint)
    record.parts["training"] = {
        "updates": num_updates(checkpoint),
        "wall_seconds": sum(part["wall_seconds"] or part["train_seconds"] for part in parts) or None,
        "train_seconds": sum(part["train_seconds"] for part in parts) or None,
        "words_per_second": log["words_per_second"],
        "peak_memory_bytes": max((part["peak_memory_bytes"] or 0 for part in parts), default=0) or None,
        "peak_gpu_bytes": int(gpus[0]["memory_bytes"] - free * 2**30) if gpus and free is not None else None,
        "parts": parts,
    }
    record.parts["curves"] = log["curves"]
    record.parts["scores"] = {
        test: plain(json.loads(path.read_text(encoding="utf-8"))) for test, path in scores.items()
    }
    if losses:
        record.parts["losses"] = losses
    return record.content
