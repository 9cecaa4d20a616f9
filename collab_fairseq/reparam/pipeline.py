"""A whole conversion, from a checkpoint of fairseq to one with collaborative heads: :func:`convert_model`."""

import logging
import os
import shlex
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.attention.factors import ReparamError, ScoreWeights, relative_error
from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.records import pages
from collab_fairseq.records.files import check_targets
from collab_fairseq.records.record import Record

from . import allocation, fairseq
from .distill import distill
from .scores import ScoreFit
from .text import text_of

logger = logging.getLogger(__name__)

# sentences of the calibration text on which allocation and the errors of outputs are measured
_MEASURED = 100


@dataclass(frozen=True)
class Settings:
    """How a model is converted.

    Attributes:
        key_dim: D̃k of every converted layer; or else budget: ``mean:N``, their mean, spread over the layers in
            multiples of ``multiple``; None: 8, for half types, where ``device`` is a GPU, else 1.
        sites: which attention, written as in ``--collaborative-heads``.
        calibration: ``SPLIT:N`` or ``SOURCE`` (:func:`.text_of`); None: a plain fit.
        data: data-bin; None: the one that the checkpoint names.
        distill: steps of training the new layers together on the source's predictions (:func:`.distill`); None: none.
        distill_text: ``SPLIT:N`` or ``SOURCE``, only the source side being read; None: that of ``calibration``.
        distill_rate: learning rate; None: that of :func:`.distill`.
        evaluate: measure loss on ``valid`` and BLEU of every test split, before and after.
        references: test split → file of raw references, for ``evaluate``.
        seed: of random starts and batches. max_tokens: per batch.

    Raises:
        ReparamError: settings that do not go together.
    """

    key_dim: Optional[int] = None
    budget: Optional[str] = None
    multiple: Optional[int] = None
    sites: str = "encoder_cross_decoder"
    calibration: Optional[str] = None
    data: Optional[PathLike] = None
    distill: Optional[int] = None
    distill_text: Optional[str] = None
    distill_rate: Optional[float] = None
    evaluate: bool = False
    references: Mapping[str, PathLike] = field(default_factory=dict)
    seed: int = 1
    device: str = "cpu"
    max_tokens: int = 4000

    def __post_init__(self) -> None:
        for name in ("key_dim", "multiple", "distill", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ReparamError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if (self.key_dim is None) == (self.budget is None):
            raise ReparamError("either a key dim or a budget is needed, and not both")
        for name in ("budget", "distill"):
            if getattr(self, name) and not self.calibration:
                raise ReparamError(f"--{name} needs text: give it with --calibration, such as --calibration train:400")
        if self.distill_rate is not None and not self.distill_rate > 0:
            raise ReparamError(f"--distill-rate must be above 0, got {self.distill_rate:g}")
        if (self.distill_text or self.distill_rate) and not self.distill:
            raise ReparamError("--distill-text and --distill-rate need --distill")
        if self.references and not self.evaluate:
            raise ReparamError("--reference needs --evaluate")


def convert_model(checkpoint: PathLike, output: PathLike, given: Settings) -> Record:
    """Convert a trained translation model of fairseq, as `collab reparam` does.

    Args:
        checkpoint: of fairseq's ``transformer`` or of ``transformer_collab``. output: where the new one goes, whole or
            not at all.

    Returns:
        A record of kind ``conversion`` for :func:`table`. Its parts: ``output`` (file and sum), ``layers`` (a list),
        ``parameters`` (of the model), ``divergences`` (that the budget was spread by), ``distillation`` (divergences
        before, after and on the way), ``seconds`` (of all but the evaluation) and ``evaluation`` (by name).

    Raises:
        ReparamError: a model that the settings do not fit. TargetError: ``output`` cannot be written. CheckpointError,
        TranslationError, ConfigurationError: see :func:`.load_model`.
    """
    recorded = ("key_dim", "budget", "sites", "distill", "seed", "distill_text", "distill_rate")
    settings: Dict[str, Any] = {name: getattr(given, name) for name in recorded}
    device, seed, multiple, calibration = given.device, given.seed, given.multiple, given.calibration
    check_targets(output)
    if os.path.exists(output) and os.path.exists(checkpoint) and os.path.samefile(output, checkpoint):
        raise ReparamError(f"the output {os.fspath(output)} is the source and would overwrite it")
    spending = allocation.parse_budget(given.budget) if given.budget else None
    began = time.perf_counter()
    text_wanted = bool(calibration or given.evaluate)
    trained = translation.load_model(checkpoint, given.data, device=device, seed=seed, text=text_wanted)
    names = fairseq.places(trained, given.sites)
    if spending:
        settings["multiple"] = multiple = multiple or (8 if device.startswith("cuda") else 1)
        allocation.check_budget(trained, names, spending, multiple)
    if given.evaluate:
        translation.test_splits(trained, given.references)

    text = calibrations = curves = distilled = None
    tokens: Dict[str, Any] = {"max_tokens": given.max_tokens}
    if calibration:
        split, text = text_of(calibration, trained, given.max_tokens)
        some = min(_MEASURED, text["sentences"])
        logger.info("calibrating on %s", text["text"])
        calibrations = fairseq.calibrate(trained, split, names, sentences=text["sentences"], **tokens)
    else:
        logger.warning(
            "no --calibration: the fit counts all inputs alike and loses more than one to which text shows the queries "
            "and keys that occur; a few hundred sentences do, such as --calibration train:400"
        )
    key_dims: Any = dict.fromkeys(names, given.key_dim)
    if spending and text:
        measured = {**tokens, "sentences": some, "seed": seed}
        curves = allocation.measure_curves(trained, names, split, calibrations, **measured)
        key_dims = allocation.spend(curves, spending, multiple=multiple or 1)
    state, fits = fairseq.convert(trained, key_dims, calibrations, seed=seed)
    weights = {name: fit.weights for name, fit in fits.items()}
    if given.distill and calibration:
        unlabelled = given.distill_text or calibration
        own, settings["distill_text"] = text_of(unlabelled, trained, **tokens, option="--distill-text", seed=seed)
        weights, distilled = distill(trained, weights, own, given.distill, rate=given.distill_rate, seed=seed)
        state = fairseq.converted(trained, weights)
    seconds = time.perf_counter() - began
    checkpoints.save(state, output)
    logger.info("wrote %s", os.fspath(output))

    record = Record(
        "conversion", "reparam", shlex.join(["collab", *sys.argv[1:]]),
        {**settings, "checkpoint": file_setting(checkpoint), "calibration": text},
        device="gpu" if device.startswith("cuda") else "cpu", threads=torch.get_num_threads(),
    )  # fmt: skip
    errors, evaluation = {}, {}
    after = translation.with_state(trained, state) if text or given.evaluate else trained
    if text:
        errors = fairseq.output_errors(trained, after, split, names, sentences=some, **tokens)
    if given.evaluate:
        logger.info("evaluating on valid and the test splits")
        evaluation = _compare(*(translation.evaluate(model, given.references, **tokens) for model in (trained, after)))
    record.parts.update(
        output=file_setting(output), layers=[
            _layer(name, source, fits[name], weights[name], errors.get(name), trained.state, state)
            for name, source in fairseq.sources(trained, names).items()
        ],
        parameters={"before": checkpoints.num_parameters(trained.state), "after": checkpoints.num_parameters(state)},
        divergences=curves, distillation=distilled, seconds=seconds, evaluation=evaluation,
    )  # fmt: skip
    return record


def _layer(
    name: str, source: ScoreWeights, fit: ScoreFit, made: ScoreWeights, error: Optional[float],
    before: Mapping[str, Any], after: Mapping[str, Any],
) -> Dict[str, Any]:  # fmt: skip
    """What the record says of one layer; ``made``: what the fit has become; ``before``, ``after``: the checkpoints."""
    states = {"before": before, "after": after}
    return {
        "layer": name, "key_dim": {"before": source.heads.rank, "after": made.heads.rank},
        "relative_error": relative_error(source.heads, made.heads), "weighted_error": fit.weighted_error,
        "output_error": error,
        "parameters": {when: fairseq.score_parameters(state, name) for when, state in states.items()},
        **{name: getattr(fit.found, name) for name in ("start", "sweeps", "seconds")},
    }  # fmt: skip


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Dict[str, Any]:
    """Two results of :func:`collab_fairseq.translation.evaluate`, by name: loss on ``valid``, BLEU of each split."""
    found: Dict[str, Any] = {"valid loss": {"before": before["valid"]["loss"], "after": after["valid"]["loss"]}}
    for name, scored in before["bleu"].items():
        kept = {key: scored[key] for key in ("signature", "references")}
        found[f"BLEU {name}"] = {"before": scored["score"], "after": after["bleu"][name]["score"], **kept}
    return found


def table(parts: Mapping[str, Any]) -> str:
    """The record of :func:`convert_model` for people, in Markdown: a line per layer, sums, evaluation."""
    rows = [["layer", "key dim", "error", "output error", "parameters", "seconds"]]
    for layer in parts["layers"]:
        output, dims, sizes = layer["output_error"], layer["key_dim"], layer["parameters"]
        rows.append([
            layer["layer"], f"{dims['before']} → {dims['after']}", f"{layer['relative_error']:.4f}",
            "–" if output is None else f"{output:.4f}", f"{sizes['before']:,} → {sizes['after']:,}",
            f"{layer['seconds']:.1f}",
        ])  # fmt: skip
    sizes = parts["parameters"]
    rows.append(["model", "", "", "", f"{sizes['before']:,} → {sizes['after']:,}", f"{parts['seconds']:.1f}"])
    text = pages.table(rows, numbers=True) + "\n"
    text += "\nerror: of the products Wq Wkᵀ of all heads; output error: of what layers give on text; both relative\n"
    for name, values in parts["evaluation"].items():
        digits, before, after = 4 if name == "valid loss" else 2, values["before"], values["after"]
        text += f"\n{name}: {before:.{digits}f} → {after:.{digits}f} ({after - before:+.{digits}f})"
    return text + "\n" * bool(parts["evaluation"])
