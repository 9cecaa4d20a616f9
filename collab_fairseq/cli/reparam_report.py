"""The report of `collab reparam`: JSON and a table."""

import argparse
import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from collab_fairseq import checkpoints, translation
from collab_fairseq.modules.sites import parameter_prefix
from collab_fairseq.records.record import Record
from collab_fairseq.reparam.allocation import parameters_of
from collab_fairseq.reparam.distill import Distilled
from collab_fairseq.reparam.fairseq import SCORE_PARAMETERS
from collab_fairseq.reparam.scores import ScoreFit
from collab_fairseq.translation import TrainedModel


@dataclass
class Report:
    """What was converted, and what that did.

    Attributes:
        before, after: checkpoints as ``transformer_collab``.
        source_dims: ``site.layer`` → key dim of the source.
        fits, distilled: by ``site.layer``; the latter is empty without distillation.
        seconds: wall time of calibration, allocation, fit and distillation.
        text: calibration text, None without one.
        curves: divergences that the budget was spread by.
        output_errors: by ``site.layer``, on the calibration text.
        evaluation: see :func:`evaluate`.
    """

    before: Dict[str, Any]
    after: Dict[str, Any]
    source_dims: Dict[str, int]
    fits: Dict[str, ScoreFit]
    distilled: Dict[str, Distilled]
    seconds: float
    text: Optional[Dict[str, Any]] = None
    curves: Optional[Dict[str, Dict[int, float]]] = None
    output_errors: Dict[str, float] = field(default_factory=dict)
    evaluation: Dict[str, Any] = field(default_factory=dict)

    def layers(self) -> List[Dict[str, Any]]:
        """One entry per converted layer."""
        found = []
        for name, fit in self.fits.items():
            entry = {
                "layer": name,
                "key_dim": {"before": self.source_dims[name], "after": fit.weights.heads.rank},
                "relative_error": fit.error,
                "weighted_error": fit.weighted_error,
                "output_error": self.output_errors.get(name),
                "parameters": {"before": _own(self.before, name), "after": _own(self.after, name)},
                "start": fit.start,
                "sweeps": fit.sweeps,
                "seconds": fit.seconds,
            }
            if name in self.distilled:
                entry["attention_kl"] = {"before": self.distilled[name].before, "after": self.distilled[name].after}
            found.append(entry)
        return found

    def as_json(self, args: argparse.Namespace) -> Dict[str, Any]:
        """The content of a record, see :mod:`collab_fairseq.records.record`."""
        settings = {name: getattr(args, name) for name in ("key_dim", "budget", "sites", "distill", "seed")}
        settings.update(checkpoint=checkpoints.file_setting(args.checkpoint), calibration=self.text)
        record = Record(
            "conversion",
            "reparam",
            shlex.join(["collab", *sys.argv[1:]]),
            settings,
            device="gpu" if args.device.startswith("cuda") else "cpu",
            threads=args.threads,
        )
        record.parts.update(
            output=checkpoints.file_setting(args.output),
            layers=self.layers(),
            parameters={"before": parameters_of(self.before), "after": parameters_of(self.after)},
            divergences=self.curves,
            seconds=self.seconds,
            evaluation=self.evaluation,
        )
        return record.content

    def table(self) -> str:
        """For people: a line per layer, sums, evaluation."""
        rows = [["layer", "key dim", "", "error", "output error", "parameters", "", "seconds"]]
        for layer in self.layers():
            dims, sizes, output = layer["key_dim"], layer["parameters"], layer["output_error"]
            rows.append(
                [
                    layer["layer"], str(dims["before"]), f"→ {dims['after']}", f"{layer['relative_error']:.4f}",
                    "–" if output is None else f"{output:.4f}", f"{sizes['before']:,}", f"→ {sizes['after']:,}",
                    f"{layer['seconds']:.1f}",
                ]
            )  # fmt: skip
        whole = (parameters_of(self.before), parameters_of(self.after))
        rows.append(["model", "", "", "", "", f"{whole[0]:,}", f"→ {whole[1]:,}", f"{self.seconds:.1f}"])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (0, 2, 6) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        for name, values in self.evaluation.items():
            digits = 4 if name == "valid loss" else 2
            lines.append(
                f"{name}: {values['before']:.{digits}f} → {values['after']:.{digits}f} "
                f"({values['after'] - values['before']:+.{digits}f})"
            )
        return "\n".join(lines) + "\n"


def _own(state: Mapping[str, Any], name: str) -> int:
    """Parameters of the scores of one layer."""
    wanted = tuple(parameter_prefix(name) + part for part in SCORE_PARAMETERS)
    return sum(tensor.numel() for key, tensor in state["model"].items() if key.startswith(wanted))


def test_splits(trained: TrainedModel, references: Mapping[str, str]) -> List[str]:
    """The test splits of the data-bin.

    Raises:
        TranslationError: no split ``valid``, or references of a split or file that is not there.
    """
    there = translation.splits(trained)
    tests = [name for name in there if name.startswith("test")]
    if "valid" not in there:
        raise translation.TranslationError(f"--evaluate needs a split valid, there are {', '.join(there) or 'none'}")
    for name, file in references.items():
        if name not in tests:
            raise translation.TranslationError(f"--reference {name}={file}: the test splits are {', '.join(tests)}")
        if not os.path.isfile(file):
            raise translation.TranslationError(f"--reference {name}={file}: there is no such file")
    return tests


def evaluate(
    before: TrainedModel, after: TrainedModel, tests: Sequence[str], references: Mapping[str, str], max_tokens: int
) -> Dict[str, Any]:
    """Loss on ``valid``, in bits per token, and sacreBLEU of every test split (beam 5), before and after."""
    found: Dict[str, Any] = {}
    losses = [translation.loss(model, "valid", max_tokens=max_tokens).loss for model in (before, after)]
    found["valid loss"] = dict(zip(("before", "after"), losses, strict=True))
    language = before.task.cfg.target_lang
    for name in tests:
        lines = references.get(name) or translation.references(before, name)
        scores = [
            translation.bleu(translation.translate(model, name, max_tokens=max_tokens), lines, language)
            for model in (before, after)
        ]
        found[f"BLEU {name}"] = {
            "before": scores[0].score, "after": scores[1].score, "signature": scores[0].signature,
            "references": os.path.basename(references[name]) if name in references else "of the data-bin",
        }  # fmt: skip
    return found
