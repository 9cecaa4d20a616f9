"""Conversion of a checkpoint: calibration, allocation of ranks, fit, distillation, evaluation."""

import logging
import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union

from collab_fairseq import checkpoints, translation
from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights, relative_error
from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.files import check_writable
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel

from . import allocation, fairseq
from .calibrate import Calibration
from .distill import BATCH_TOKENS, distill
from .scores import ScoreFit, fit_layers
from .text import digest, sentences_of, text_of, tokens_of

logger = logging.getLogger(__name__)

# number of sentences of the calibration text for allocation and output errors
_MEASURED = 100


@dataclass(frozen=True)
class Settings:
    """Settings of a conversion: the options of ``collab reparam``, described by its ``--help``.

    ``references`` maps test splits to files of raw references. ``evaluate`` is a path for a Hugging Face folder.
    """

    key_dim: Optional[int] = None
    budget: Optional[str] = None
    sites: str = "encoder_cross_decoder"
    calibration: Optional[str] = None
    data: Optional[PathLike] = None
    distill: Optional[int] = None
    distill_text: Optional[str] = None
    distill_rate: Optional[float] = None
    evaluate: Union[bool, str] = False
    references: Mapping[str, PathLike] = field(default_factory=dict)
    seed: int = 1
    device: str = "cpu"
    max_tokens: int = 4000

    def __post_init__(self) -> None:
        for name in ("key_dim", "distill", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AttentionError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
        if (self.key_dim is None) == (self.budget is None):
            given = "neither" if self.budget is None else "both"
            raise AttentionError(f"exactly one of --key-dim and --budget must be given; got {given}")
        for name in ("budget", "distill"):
            if getattr(self, name) and not self.calibration:
                raise AttentionError(f"--{name} needs --calibration, such as --calibration train:400")
        if self.distill_rate is not None and not self.distill_rate > 0:
            raise AttentionError(f"--distill-rate must be above 0; got {self.distill_rate:g}")
        if (self.distill_text or self.distill_rate) and not self.distill:
            raise AttentionError("--distill-text and --distill-rate need --distill")
        if self.references and not self.evaluate:
            raise AttentionError("--reference needs --evaluate")


class Steps:
    """Logs the steps of a conversion as they begin: `step 2 of 4: …`."""

    def __init__(self, settings: Settings) -> None:
        optional = (settings.calibration, settings.budget, settings.distill, settings.evaluate)
        self._begun, self._total = 0, 1 + sum(map(bool, optional))  # 1: the fit

    def begin(self, what: str) -> None:
        self._begun += 1
        logger.info("step %d of %d: %s", self._begun, self._total, what)


class FittedModel(NamedTuple):
    """Result of :func:`fit_model`.

    Attributes:
        weights: ``site.layer`` → scores of the collaborative heads, after distillation if any.
        fits: ``site.layer`` → fit before distillation.
        distillation: measurements of :func:`.distill`; None: not distilled.
        cpu_seconds: CPU time of this process.
    """

    weights: Dict[str, ScoreWeights]
    fits: Dict[str, ScoreFit]
    distillation: Optional[Dict[str, Any]]
    cpu_seconds: float


def fit_model(
    trained: TrainedModel,
    key_dims: Mapping[str, int],
    calibrations: Optional[Mapping[str, Calibration]] = None,
    distillation: Optional[Mapping[str, Any]] = None,
    seed: int = 1,
    steps: Optional[Steps] = None,
) -> FittedModel:
    """Fit collaborative heads to the attention of a model and, optionally, distill them.

    Args:
        key_dims: ``site.layer`` → key dimension.
        calibrations: results of :func:`.fairseq.calibrate`; None: an unweighted fit.
        distillation: ``split``, ``steps`` and options of :func:`.distill`; None: no distillation.
        seed: seed of random starts and batches.
        steps: announces the fit and the distillation; None: nothing does.
    """
    origin = fairseq.scores_by_layer(trained, list(key_dims))
    if steps:
        steps.begin(f"fitting {len(origin)} layers")
    began = time.process_time()
    fits = fit_layers(origin, key_dims, calibrations, seed=seed)
    weights = {layer_id: fit.weights for layer_id, fit in fits.items()}
    seconds = time.process_time() - began
    if distillation is None:
        return FittedModel(weights, fits, None, seconds)
    if steps:
        steps.begin(f"distilling in {distillation['steps']} steps")
    weights, measurements = distill(trained, weights, seed=seed, **distillation)
    return FittedModel(weights, fits, measurements, seconds + measurements["cpu_seconds"])


def convert_model(checkpoint: PathLike, output: PathLike, settings: Settings, command: str = "convert_model") -> Record:
    """Convert a trained translation model of fairseq, as `collab reparam` does.

    Args:
        checkpoint: checkpoint of fairseq's ``transformer`` or of ``transformer_collab``.
        output: the new checkpoint, written atomically.
        command: the command line, for the record.

    Returns:
        A ``conversion`` record with the parts ``output`` (file and checksum), ``layers`` (a list), ``parameters`` (of
        the model), ``divergences`` (for the budget), ``distillation`` (measurements of :func:`.distill`), ``seconds``
        (without the evaluation) and ``evaluation`` (loss and BLEU, before and after).

    Raises:
        AttentionError: invalid sizes or budget, or the output is the source. For other errors see
            :func:`~collab_fairseq.translation.load_model`.
    """
    check_writable(output)
    if os.path.exists(output) and os.path.exists(checkpoint) and os.path.samefile(output, checkpoint):
        raise AttentionError(f"the output must not be the source checkpoint; got {os.fspath(output)}")
    budget = allocation.parse_budget(settings.budget) if settings.budget else None
    began = time.perf_counter()
    trained = translation.load_model(
        checkpoint,
        settings.data,
        device=settings.device,
        seed=settings.seed,
        text=bool(settings.calibration or settings.evaluate),
    )
    layer_ids = fairseq.layer_ids(trained, settings.sites)
    if budget or settings.distill:
        trained.check_logits("a budget or distillation; give --key-dim without --distill")
    scores = fairseq.scores_by_layer(trained, layer_ids)
    allocation.check_size({layer_id: each.heads.rank for layer_id, each in scores.items()}, settings.key_dim, budget)
    if settings.evaluate:
        translation.check_test_splits(trained, settings.references)
    if settings.distill_text:
        sentences_of(settings.distill_text, trained, "--distill-text")  # raises an error if there are none

    text = calibrations = divergences = distillation = distill_text = kept = None
    steps = Steps(settings)
    key_dims: Any = dict.fromkeys(layer_ids, settings.key_dim)
    sample: Dict[str, Any] = {"max_tokens": settings.max_tokens}
    if settings.calibration:
        split, text = text_of(settings.calibration, trained, settings.max_tokens)
        steps.begin(f"calibrating on {text['text']}")
        calibrations = fairseq.calibrate(trained, split, layer_ids, sentences=text["sentences"], **sample)
        sample["sentences"] = min(_MEASURED, text["sentences"])
        if budget:
            depends = {
                "checkpoint": file_setting(checkpoint),
                "text": digest(tokens_of(trained, split, text["sentences"])),
                **{"layers": layer_ids, "seed": settings.seed, **sample},
            }
            kept = allocation.kept_divergences(output, command, depends, settings.device)
            steps.begin(allocation.announcement(len(layer_ids), kept))
            divergences = allocation.measure_divergences(
                trained, layer_ids, split, calibrations, seed=settings.seed, part=kept.part, **sample
            )
            key_dims = allocation.allocate_ranks(divergences, budget)
    else:
        logger.warning("no --calibration: the fit is unweighted and loses more quality; try --calibration train:400")
    if settings.distill and settings.calibration:
        flag = settings.distill_text or settings.calibration
        distill_split, distill_text = text_of(
            flag, trained, settings.max_tokens, option="--distill-text", seed=settings.seed
        )
        distillation = {
            "split": distill_split,
            "steps": settings.distill,
            "rate": settings.distill_rate,
            "max_tokens": min(BATCH_TOKENS, settings.max_tokens),
        }
    fitted = fit_model(trained, key_dims, calibrations, distillation, seed=settings.seed, steps=steps)
    state = fairseq.converted_state(trained, fitted.weights)
    seconds = time.perf_counter() - began
    checkpoints.save(state, output)
    logger.info("wrote %s", os.fspath(output))
    if kept:
        kept.discard()

    errors: Dict[str, float] = {}
    evaluation: Dict[str, Any] = {}
    if text or settings.evaluate:
        converted = translation.with_state(trained, state)
    if text:
        errors = fairseq.output_errors(trained, converted, split, layer_ids, **sample)
    if settings.evaluate:
        steps.begin("evaluating on valid and the test splits")
        evaluation = _evaluate(trained, converted, settings)

    recorded = asdict(settings)
    del recorded["data"], recorded["device"]  # the record's hardware has the device
    recorded["checkpoint"] = file_setting(checkpoint)
    recorded["calibration"] = text
    recorded["distill_text"] = distill_text
    recorded["references"] = {name: file_setting(file) for name, file in settings.references.items()}
    record = Record("conversion", "reparam", command, recorded, device=settings.device)
    record.parts["output"] = file_setting(output)
    record.parts["layers"] = _layers(trained, fitted, state, errors)
    record.parts["parameters"] = {
        "before": checkpoints.num_parameters(trained.state),
        "after": checkpoints.num_parameters(state),
    }
    record.parts["divergences"] = divergences
    record.parts["distillation"] = fitted.distillation
    record.parts["seconds"] = seconds
    record.parts["evaluation"] = evaluation
    return record


def _layers(
    trained: TrainedModel, fitted: FittedModel, state: Mapping[str, Any], output_errors: Mapping[str, float]
) -> List[Dict[str, Any]]:
    """The record's entry for each layer; ``state``: the new checkpoint."""
    rows = []
    for layer_id, source in fairseq.scores_by_layer(trained, list(fitted.weights)).items():
        before, after = (fairseq.score_parameters(each, layer_id) for each in (trained.state, state))
        fit, parameters = fitted.fits[layer_id], {"before": before, "after": after}
        rows.append(layer_row(layer_id, source, fitted.weights[layer_id], fit, parameters, output_errors.get(layer_id)))
    return rows


def layer_row(
    name: str,
    source: ScoreWeights,
    weights: ScoreWeights,
    fit: ScoreFit,
    parameters: Mapping[str, int],
    output_error: Optional[float] = None,
) -> Dict[str, Any]:
    """The record's entry for a layer; ``weights``: the new scores, after distillation if any."""
    return {
        "layer": name,
        "key_dim": {"before": source.heads.rank, "after": weights.heads.rank},
        "relative_error": relative_error(source.heads, weights.heads),
        "weighted_error": fit.weighted_error,
        "output_error": output_error,
        "parameters": parameters,
        "start": fit.decomposition.start,
        "sweeps": fit.decomposition.sweeps,
        "seconds": fit.decomposition.seconds,
    }


def _evaluate(trained: TrainedModel, converted: TrainedModel, settings: Settings) -> Dict[str, Any]:
    """Loss on ``valid`` and BLEU on each test split, before and after."""
    before, after = (
        translation.evaluate(model, settings.references, max_tokens=settings.max_tokens)
        for model in (trained, converted)
    )
    results: Dict[str, Any] = {"valid loss": {"before": before["valid"]["loss"], "after": after["valid"]["loss"]}}
    for split, scored in before["bleu"].items():
        results[f"BLEU {split}"] = {
            "before": scored["score"],
            "after": after["bleu"][split]["score"],
            "signature": scored["signature"],
            "references": scored["references"],
        }
    return results


def table(parts: Mapping[str, Any]) -> str:
    """The parts of a conversion record in Markdown: a row per layer, totals, evaluation."""
    rows = [["layer", "key dimension", "error", "output error", "parameters", "seconds"]]
    for layer in parts["layers"]:
        key_dim, sizes, output_error = layer["key_dim"], layer["parameters"], layer["output_error"]
        row = [
            layer["layer"],
            f"{key_dim['before']} → {key_dim['after']}",
            f"{layer['relative_error']:.4f}",
            "–" if output_error is None else f"{output_error:.4f}",
            f"{sizes['before']:,} → {sizes['after']:,}",
            f"{layer['seconds']:.1f}",
        ]
        rows.append(row)
    sizes = parts["parameters"]
    rows.append(["model", "", "", "", f"{sizes['before']:,} → {sizes['after']:,}", f"{parts['seconds']:.1f}"])
    lines = [
        pages.table(rows, numbers=True),
        "",
        "error: relative error of the products Wq Wkᵀ of all heads; output error: relative error of the layer's output",
    ]
    if parts["evaluation"]:
        lines.append("")
    for name, values in parts["evaluation"].items():
        digits = 2 if name.startswith(("BLEU", "100 ×", "accuracy", "F1", "agreement")) else 4
        before, after = values["before"], values["after"]
        change = round(after - before, digits) + 0.0  # turns -0.0 into 0.0
        lines.append(f"{name}: {before:.{digits}f} → {after:.{digits}f} ({change:+.{digits}f})")
    return "\n".join(lines) + "\n"
