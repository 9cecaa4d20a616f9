"""The one runner of all benchmarks: measures rows one after the other into a record that can be continued.

A part of the record, saved as soon as it is measured, is named by the row's id:

    {unit: "s" or "bytes", values, ratios: {contestant: {median, q1, q3, rounds}}}

Ratios are of "ours" to the others; null where no CUDA graph of ours could be captured; {missing: SENTENCE} where a
contestant computes something else, or torch fails: the other rows are measured all the same.
"""

import logging
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence

import torch

from collab_fairseq.records.files import PathLike, check_targets
from collab_fairseq.records.record import Record

from . import decoding, layers, training
from .cases import Case, Options, choose
from .measure import captured, interleave, peak_bytes, ratio, spread

logger = logging.getLogger(__name__)

_CASES = {
    "layer": layers.layer_cases,
    "decode": lambda options: [*layers.decode_cases(options), *decoding.decode_cases(options)],
    "train": training.train_cases,
}


def cases(what: str, options: Options, patterns: Sequence[str] = ()) -> List[Case]:
    """The rows of ``layer``, ``decode`` or ``train`` whose id a shell pattern matches; all without patterns."""
    found = {case.id: case for case in _CASES[what](options)}
    return [found[row] for row in choose(list(found), patterns)]


def run(
    what: str, options: Options, patterns: Sequence[str] = (), output: Optional[PathLike] = None, command: str = ""
) -> Dict[str, Any]:
    """Measure rows of ``layer``, ``decode`` or ``train``; those that the record ``output`` has are not measured again.

    Args:
        patterns: see :func:`cases`. command: for the record.

    Returns:
        The record, as described in :mod:`collab_fairseq.records.record` and at the top of this file.

    Raises:
        BenchError: options that cannot be followed.
        RecordError: ``output`` is something else, or of other settings, code, packages or hardware.
    """
    if options.quick:
        options = replace(options, rounds=min(2, options.rounds), least=1, seconds=1.0)
    chosen = cases(what, options, patterns)
    check_targets(output)
    torch.set_num_threads(options.threads)
    record = Record(
        "bench", what, command, options.settings(), output, device="gpu" if options.device == "cuda" else "cpu",
        threads=options.threads, fixed=("commit", "hardware", "versions"),
    )  # fmt: skip
    for number, case in enumerate(chosen, start=1):
        logger.info("%d of %d: %s", number, len(chosen), case.id)
        row = record.part(case.id, lambda case=case: attempted(case, options))  # type: ignore[misc]
        if row is not None and "missing" in row:
            logger.warning("%s is missing: %s", case.id, row["missing"])
        elif row is not None:
            shown = ", ".join(f"{to} {found['median']:.3f}" for to, found in row["ratios"].items())
            logger.info("%s: ratio of ours to %s", case.id, shown)
    return record.content


def attempted(case: Case, options: Options) -> Optional[Dict[str, Any]]:
    """The part of a row, or why it is missing."""
    try:
        return measure(case, options)
    except RuntimeError as error:  # MismatchError is one
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if options.device == "cuda":  # of what ran out of memory
        torch.cuda.empty_cache()
    return {"missing": reason}


def measure(case: Case, options: Options) -> Optional[Dict[str, Any]]:
    """The part of a row; None where no CUDA graph of ours can be captured."""
    parts = case.prepare(options)
    if case.measure == "graph":
        parts = [captured(part) for part in parts]
        if "ours" not in parts[0]:
            return None
    if case.measure == "memory":
        samples = {name: [float(peak_bytes(step, options.device))] for name, step in parts[0].items()}
    else:
        samples = interleave(parts, options)
    return {
        "unit": "bytes" if case.measure == "memory" else "s",
        "values": {name: spread(values) for name, values in samples.items()},
        "ratios": {name: ratio(samples["ours"], values) for name, values in samples.items() if name != "ours"},
    }
