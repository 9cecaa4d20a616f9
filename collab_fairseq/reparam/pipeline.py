"""A whole conversion, from a checkpoint of fairseq to one with collaborative heads: :func:`convert_model`."""

import logging
import os
import time
from typing import Any, Dict, Mapping, Optional

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.attention.factors import ReparamError
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.records.files import check_targets

from . import allocation, fairseq
from .distill import Distilled, distill
from .report import Report, compare
from .text import text_of

logger = logging.getLogger(__name__)

# sentences of the calibration text on which allocation and the errors of outputs are measured
_MEASURED = 100


def convert_model(
    checkpoint: PathLike,
    output: PathLike,
    *,
    key_dim: Optional[int] = None,
    budget: Optional[str] = None,
    sites: str = "encoder_cross_decoder",
    calibration: Optional[str] = None,
    data: Optional[PathLike] = None,
    distill_steps: Optional[int] = None,
    evaluate: bool = False,
    references: Optional[Mapping[str, PathLike]] = None,
    seed: int = 1,
    threads: Optional[int] = None,
    device: str = "cpu",
    max_tokens: int = 4000,
) -> Report:
    """Convert a trained translation model of fairseq, as `collab reparam` does.

    Args:
        checkpoint: of fairseq's ``transformer`` or of ``transformer_collab``. output: where the new one goes, whole or
            not at all.
        key_dim: D̃k of every converted layer; or else budget: ``mean:N`` or ``parameters:N``, spread over the layers.
        sites: which attention, written as in ``--collaborative-heads``.
        calibration: ``SPLIT:N``, ``SOURCE,TARGET`` or ``SOURCE`` (:func:`.text_of`); None: a plain fit.
        data: data-bin; None: the one that the checkpoint names.
        distill_steps: of training each layer to attend as its source does; None: none.
        evaluate: measure loss on ``valid`` and BLEU of every test split, before and after.
        references: test split → file of raw references, for ``evaluate``.
        seed: of random starts and batches. threads: of the CPU; None: torch's. max_tokens: per batch.

    Raises:
        ReparamError: settings that do not go together, or a model that they do not fit. TargetError: ``output`` cannot
        be written. CheckpointError, TranslationError, ConfigurationError: as of :func:`.load_model`.
    """
    references = references or {}
    settings = {
        "key_dim": key_dim, "budget": budget, "sites": sites, "distill": distill_steps, "seed": seed,
        "threads": threads, "device": device,
    }  # fmt: skip
    _check({**settings, "max_tokens": max_tokens}, calibration, evaluate, references)
    check_targets(output)
    if os.path.exists(output) and os.path.exists(checkpoint) and os.path.samefile(output, checkpoint):
        raise ReparamError(f"the output {os.fspath(output)} is the source and would overwrite it")
    if threads:
        torch.set_num_threads(threads)
    spending = allocation.Budget.parse(budget) if budget else None
    began = time.perf_counter()
    trained = translation.load_model(checkpoint, data, device=device, seed=seed, text=bool(calibration or evaluate))
    names = fairseq.places(trained, sites)
    if spending:
        allocation.check_budget(trained, names, spending)
    if evaluate:
        translation.test_splits(trained, references)

    text = calibrations = curves = None
    tokens: Dict[str, Any] = {"max_tokens": max_tokens}
    some = 0
    if calibration:
        text = text_of(calibration, trained, max_tokens)
        some = min(_MEASURED, text.sentences)
        logger.info("calibrating on %s", text.description)
        calibrations = fairseq.calibrate(trained, text.split, names, sentences=text.sentences, **tokens)
    else:
        logger.warning(
            "no --calibration: the fit counts all inputs alike and loses more than one to which text shows the queries "
            "and keys that occur; a few hundred sentences do, such as --calibration train:400"
        )
    key_dims: Any = dict.fromkeys(names, key_dim)
    if spending and text:
        curves = allocation.measure_curves(
            trained, names, text.split, calibrations or {}, sentences=some, seed=seed, **tokens
        )
        key_dims = allocation.spend(trained, curves, spending)
    state, fits = fairseq.convert(trained, key_dims, calibrations, seed=seed)
    distilled: Dict[str, Distilled] = {}
    if distill_steps and text:
        weights = {name: fit.weights for name, fit in fits.items()}
        distilled = distill(trained, weights, text.split, distill_steps, sentences=text.sentences, seed=seed)
        state = fairseq.converted(trained, {name: done.weights for name, done in distilled.items()})
    seconds = time.perf_counter() - began
    checkpoints.save(state, output)
    logger.info("wrote %s", os.fspath(output))

    report = Report(
        {"source": checkpoint, "output": output}, settings, trained.state, state,
        {name: scores.heads.rank for name, scores in fairseq.sources(trained, names).items()}, fits, distilled,
        seconds, text.as_json() if text else None, curves,
    )  # fmt: skip
    if text or evaluate:
        after = translation.with_state(trained, state)
        if text:
            report.output_errors = fairseq.output_errors(trained, after, text.split, names, sentences=some, **tokens)
        if evaluate:
            logger.info("evaluating on valid and the test splits")
            report.evaluation = compare(*(translation.evaluate(m, references, **tokens) for m in (trained, after)))
    return report


def _check(settings: Mapping[str, Any], calibration: Optional[str], evaluate: bool, references: Any) -> None:
    """What would otherwise come to light only after minutes."""
    for name in ("key_dim", "distill", "threads", "max_tokens"):
        if settings[name] is not None and settings[name] < 1:
            raise ReparamError(f"--{name.replace('_', '-')} must be at least 1, got {settings[name]}")
    if (settings["key_dim"] is None) == (settings["budget"] is None):
        raise ReparamError("either a key dim or a budget is needed, and not both")
    for name in ("budget", "distill"):
        if settings[name] and not calibration:
            raise ReparamError(f"--{name} needs text: give it with --calibration, such as --calibration train:400")
    if references and not evaluate:
        raise ReparamError("--reference needs --evaluate")
