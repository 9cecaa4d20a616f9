"""Measure rows into a record that can be continued.

Each row is a part of the record, named by its id and saved as soon as it is measured:

    {unit: "s" or "bytes", values, ratios: {implementation: {median, q1, q3, rounds}}}

Ratios are those of ``ours`` to the other implementations. A row whose implementations differ, or that raises an error
in torch, becomes {missing: MESSAGE}; the other rows are measured nevertheless.
"""

import fnmatch
import functools
import logging
from dataclasses import asdict
from typing import Any, Dict, Iterable, List, Optional, Sequence

import torch

from benchmarks.layers import decode_rows, layer_rows
from benchmarks.measure import Options, Row, interleave, peak_bytes, ratio, spread
from benchmarks.programs import train_rows, translate_rows
from collab_fairseq.files import PathLike, check_writable
from collab_fairseq.records.record import Record
from fairseq_modern.errors import UserError

logger = logging.getLogger(__name__)


def rows(what: str, options: Options) -> Dict[str, Row]:
    """Row id → row, for ``layer``, ``decode`` or ``train``."""
    on_gpu = options.device == "cuda"
    if what == "layer":
        return layer_rows(options.quick, on_gpu)
    with_bf16 = options.dtype == "float32"
    if what == "train":
        return train_rows(options.quick, with_bf16, on_gpu)
    return {**decode_rows(options.quick), **translate_rows(options.quick, with_bf16)}


def choose(ids: Iterable[str], patterns: Sequence[str]) -> List[str]:
    """The ids that match one of the shell patterns (no patterns: all ids).

    Raises:
        UserError: a pattern matches no id.
    """
    ids = list(ids)
    for pattern in patterns:
        if not fnmatch.filter(ids, pattern):
            raise UserError(f"--rows {pattern} matches no row; the rows are {', '.join(ids)}")
    return [row for row in ids if not patterns or any(fnmatch.fnmatchcase(row, pattern) for pattern in patterns)]


def run(
    what: str, options: Options, patterns: Sequence[str] = (), output: Optional[PathLike] = None, command: str = ""
) -> Dict[str, Any]:
    """Measure rows of ``layer``, ``decode`` or ``train`` that the record ``output`` does not have yet.

    Args:
        patterns: see :func:`choose`.
        command: for the record.

    Returns:
        The record, as described in :mod:`collab_fairseq.records.record` and at the top of this file.

    Raises:
        UserError: a pattern matches no row, or ``output`` is the record of different settings, code,
            packages or hardware.
    """
    all_rows = rows(what, options)
    chosen = choose(all_rows, patterns)
    check_writable(output)
    torch.set_num_threads(options.threads)
    record = Record(
        "bench",
        what,
        command,
        asdict(options),
        output,
        device=options.device,
        fixed=("commit", "hardware", "versions"),
    )
    for number, name in enumerate(chosen, start=1):
        logger.info("%d of %d: %s", number, len(chosen), name)
        if "missing" in record.parts.get(name, {}):
            del record.parts[name]  # it failed; now it may succeed
        row = record.part(name, functools.partial(_measured, name, all_rows[name], options))
        if "missing" in row:
            logger.warning("%s is missing: %s", name, row["missing"])
        else:
            median = row["values"]["ours"]["median"]
            ours = f"{1e3 * median:.3f} ms" if row["unit"] == "s" else f"{median / 2**20:.1f} MiB"
            shown = ", ".join(f"{to} {other['median']:.3f}" for to, other in row["ratios"].items())
            logger.info("%s: ours %s, ratio of ours to %s", name, ours, shown)
    return record.content


def _measured(name: str, row: Row, options: Options) -> Dict[str, Any]:
    """The part of a row. Rows whose id ends with ``memory`` measure peak memory, others time."""
    memory = name.endswith("memory")
    try:
        parts = row(options)
        if memory:
            samples = {name: [float(peak_bytes(step, options.device))] for name, step in parts[0].items()}
        else:
            samples = interleave(parts, options)
    except (RuntimeError, UserError) as error:
        if options.device == "cuda":  # after an out-of-memory error
            torch.cuda.empty_cache()
        message = str(error).strip() or type(error).__name__
        return {"missing": message.splitlines()[0]}
    return {
        "unit": "bytes" if memory else "s",
        "values": {name: spread(values) for name, values in samples.items()},
        "ratios": {name: ratio(samples["ours"], values) for name, values in samples.items() if name != "ours"},
    }
