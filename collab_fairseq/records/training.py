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
                   parts: [{precision, train_seconds, wall_seconds, peak_memory_bytes, exit_status}]}; one part
                   for each start of the run, whose seconds are added up. train_seconds excludes the import of packages
    curves         {train, valid or another subset: [{updates, loss, …}]}
    scores         {test set: output of `collab score --json`, see `scoring.evaluation.Evaluation`}
    losses         {validation or test set: {loss, nll_loss, tokens, sentences}}, of the checkpoint in float32: means
                   over the target tokens in bits; sentences, if measured: "bits tokens; bits tokens; …"
"""

import contextlib
import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Optional

from collab_fairseq.checkpoints import DICTIONARIES, num_parameters, num_updates
from collab_fairseq.files import PathLike
from collab_fairseq.records.record import Record, plain
from collab_fairseq.records.train_log import read_train_log
from fairseq_modern.files import read_checksums

logger = logging.getLogger(__name__)

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
    elsewhere |= set(DICTIONARIES)  # they are files of the data, whose checksums are in the record
    cfg["model"] = {key: value for key, value in cfg["model"].items() if key not in elsewhere or key == "arch"}
    config = {section: cfg[section] for section in CONFIG_SECTIONS if section in cfg}
    return {**config, "common": {key: value for key, value in cfg["common"].items() if key in PRECISION}}


def read_usage(usage: Path) -> List[Dict[str, Any]]:
    """The measurements of each part of a run, from one start to the next: at least one, empty if they are lost."""
    parts: List[Dict[str, Any]] = []
    lines = usage.read_text(encoding="utf-8", errors="replace").splitlines() if usage.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # an incomplete line
            entry = json.loads(line)
            if "log_from" in entry:
                parts.append(entry)
            elif parts:
                parts[-1].update(entry)
    if not parts or parts[0]["log_from"] > 0:  # the first parts are lost
        parts.insert(0, {"log_from": 0})
    return parts


def _total(seconds: List[Optional[float]]) -> Optional[float]:
    """The sum; None if one is unknown."""
    known = [each for each in seconds if each is not None]
    return round(sum(known), 3) if len(known) == len(seconds) else None


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
        train_log: output of `fairseq-train --log-format json`. Without it, the record has no curves.
        usage: JSON lines of the runner: {log_from, hardware} at each start, then the measurements and log_to. The
            parts of the run begin and end at these bytes of the log.
        data_checksums: output of sha256sum for the prepared corpus.
        scores: test set → output of `collab score --json`.
        losses: validation or test set → its entry in the part `losses`.
        seed: of the training run.
        threads: recorded, with the hardware of this machine, if the last part in `usage` has no hardware.
        repository: checkout whose commit is recorded (default: that of this package).
        files: setting → name and SHA-256 of the file that it names.
        decoding: setting → value of the search.

    Raises:
        UserError: the log is incomplete.
    """
    measured = read_usage(usage)
    log = read_train_log(train_log, measured[-1].get("log_to", 0))
    if not train_log.exists():
        logger.warning("%s is missing: the record has no learning curve", train_log)
    machines = [part.pop("hardware", {}) for part in measured]
    kinds = [(known["cpu"], known["threads"], [gpu["name"] for gpu in known["gpus"]]) for known in machines if known]
    one_machine = all(kind == kinds[0] for kind in kinds)  # otherwise, its time and speed are those of no machine
    unknown = dict.fromkeys(("train_seconds", "wall_seconds", "peak_memory_bytes", "exit_status"))
    parts = [
        {**unknown, **{name: value for name, value in part.items() if name not in ("log_from", "log_to")}}
        for part in measured
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
        "wall_seconds": _total([part["wall_seconds"] for part in parts]) if one_machine else None,
        "train_seconds": _total([part["train_seconds"] for part in parts]) if one_machine else None,
        "words_per_second": log["words_per_second"] if one_machine else None,
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
