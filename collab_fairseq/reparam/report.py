"""What a conversion did, as JSON and as a table."""

import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import parameter_prefix
from collab_fairseq.records.record import Record

from .allocation import parameters_of
from .distill import Distilled
from .fairseq import SCORE_PARAMETERS
from .scores import ScoreFit


@dataclass
class Report:
    """What was converted, and what that did.

    Attributes:
        files: ``source`` and ``output``. settings: of the conversion, by name.
        before, after: checkpoints as ``transformer_collab``.
        source_dims: ``site.layer`` → key dim of the source.
        fits, distilled: by ``site.layer``; the latter is empty without distillation.
        seconds: wall time of calibration, allocation, fit and distillation.
        text: calibration text, None without one.
        curves: divergences that the budget was spread by.
        output_errors: by ``site.layer``, on the calibration text.
        evaluation: see :func:`compare`.
    """

    files: Dict[str, PathLike]
    settings: Dict[str, Any]
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

    def as_json(self) -> Dict[str, Any]:
        """The content of a record, see :mod:`collab_fairseq.records.record`."""
        settings = {name: self.settings[name] for name in ("key_dim", "budget", "sites", "distill", "seed")}
        settings.update(checkpoint=checkpoints.file_setting(self.files["source"]), calibration=self.text)
        record = Record(
            "conversion", "reparam", shlex.join(["collab", *sys.argv[1:]]), settings,
            device="gpu" if self.settings["device"].startswith("cuda") else "cpu", threads=self.settings["threads"],
        )  # fmt: skip
        record.parts.update(
            output=checkpoints.file_setting(self.files["output"]), layers=self.layers(),
            parameters={"before": parameters_of(self.before), "after": parameters_of(self.after)},
            divergences=self.curves, seconds=self.seconds, evaluation=self.evaluation,
        )  # fmt: skip
        return record.content

    def table(self) -> str:
        """For people: a line per layer, sums, evaluation."""
        rows = [["layer", "key dim", "", "error", "output error", "parameters", "", "seconds"]]
        for layer in self.layers():
            dims, sizes, output = layer["key_dim"], layer["parameters"], layer["output_error"]
            rows.append([
                layer["layer"], str(dims["before"]), f"→ {dims['after']}", f"{layer['relative_error']:.4f}",
                "–" if output is None else f"{output:.4f}", f"{sizes['before']:,}", f"→ {sizes['after']:,}",
                f"{layer['seconds']:.1f}",
            ])  # fmt: skip
        whole = (parameters_of(self.before), parameters_of(self.after))
        rows.append(["model", "", "", "", "", f"{whole[0]:,}", f"→ {whole[1]:,}", f"{self.seconds:.1f}"])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        sides = "<><>>><>"
        lines = ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]
        for name, values in self.evaluation.items():
            digits, before, after = 4 if name == "valid loss" else 2, values["before"], values["after"]
            lines.append(f"{name}: {before:.{digits}f} → {after:.{digits}f} ({after - before:+.{digits}f})")
        return "\n".join(lines) + "\n"


def _own(state: Mapping[str, Any], name: str) -> int:
    """Parameters of the scores of one layer."""
    wanted = tuple(parameter_prefix(name) + part for part in SCORE_PARAMETERS)
    return sum(tensor.numel() for key, tensor in state["model"].items() if key.startswith(wanted))


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Dict[str, Any]:
    """Two results of :func:`collab_fairseq.translation.evaluate`, by name: loss on ``valid``, BLEU of each split."""
    found: Dict[str, Any] = {"valid loss": {"before": before["valid"]["loss"], "after": after["valid"]["loss"]}}
    for name, scored in before["bleu"].items():
        kept = {key: scored[key] for key in ("signature", "references")}
        found[f"BLEU {name}"] = {"before": scored["score"], "after": after["bleu"][name]["score"], **kept}
    return found
