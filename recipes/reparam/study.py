"""Measure the quality of a converted translation model with the paper's method and with ours.

Methods, for each rank (a fraction of the source's key dimension) and each seed of the decomposition:
  paper        TensorLy's parafac on the dense tensor of every layer, random start, tolerance 1e-6, at most 100
               iterations; query biases become content biases, and the scores keep the source's scale
  authors      the same factors with the scale of the authors' code, (rank / heads)^-1/2
  plain        our solver, unweighted
  calibrated   our solver, weighted by the covariances of --calibration sentences of train
  allocated    like calibrated, with ranks allocated to the layers by the divergence of the predictions on 100 sentences
  distilled    the allocated model after --distill steps on the source's predictions for its own translations of
               --unlabelled sentences of train (at --distill-ranks)

Each model is evaluated by its loss on valid and, at --bleu-ranks, by sacreBLEU on every test split (beam 5). CPU
seconds are those of this process on --threads threads. OUTPUT keeps the checkpoints of `calibrated` and `distilled` for
the first seed, such as NAME-calibrated-1of2.pt, and the model converted at its full key dimension, NAME-full.pt.
"""

import argparse
import functools
import importlib.metadata
import itertools
import logging
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli.options import command, number, positive
from collab_fairseq.records.record import Record
from collab_fairseq.reparam import HeadFactors, ScoreWeights, relative_error
from collab_fairseq.reparam.allocation import allocate_ranks, measure_divergences
from collab_fairseq.reparam.fairseq import calibrate, converted_state, layer_ids, output_errors, scores_by_layer
from collab_fairseq.reparam.pipeline import FittedModel, fit_model
from collab_fairseq.reparam.text import text_of
from collab_fairseq.translation.text import dataset

logger = logging.getLogger("recipe")

METHODS = ("paper", "authors", "plain", "calibrated", "allocated", "distilled")
KEPT = ("calibrated", "distilled")  # methods whose checkpoints are kept
MEASURED = 100  # number of sentences for allocation and output errors
SIZES = [f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "attention_heads")]
SIZES += ["encoder_embed_dim", "encoder_ffn_embed_dim"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the conversions."""
    add = parser.add_argument
    ranks = [Fraction(3, 4), Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)]
    add("--methods", choices=METHODS, nargs="+", default=METHODS, help="methods, in this order (default: all)")
    for name, default, text in (
        ("--ranks", ranks, "key dimensions, as fractions of the source's"),
        ("--bleu-ranks", ranks[1:2], "ranks at which BLEU is measured"),
        ("--distill-ranks", ranks[2:], "ranks for the method distilled"),
    ):
        help_text = f"{text} (default: {' '.join(map(str, default))})"
        add(name, type=Fraction, nargs="*", default=default, metavar="R", help=help_text)
    add("--distill", type=number, default=2000, metavar="N", help="distillation steps; 0: none (default: 2000)")
    text = "sentences of train to distill on (default: 29000)"
    add("--unlabelled", type=positive, default=29000, metavar="N", help=text)
    text = "sentences of train to calibrate on (default: 400)"
    add("--calibration", dest="sentences", type=positive, default=400, metavar="N", help=text)
    text = "seeds of the decomposition (default: 1 2 3)"
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help=text)


def slug(part: Fraction) -> str:
    return f"{part.numerator}of{part.denominator}"


def parafac(heads: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """The paper's decomposition: TensorLy's parafac on the dense tensor of the heads, from a random start."""
    import tensorly
    from tensorly.decomposition import parafac as decomposition

    tensorly.set_backend("pytorch")
    dense = torch.einsum("hk,kd,ke->hde", heads.mixing, heads.query, heads.key)
    sizes, (mixing, query, key) = decomposition(dense, rank, n_iter_max=100, init="random", tol=1e-6, random_state=seed)
    return HeadFactors(query.T, key.T, mixing * sizes)


def paper_fit(source: ScoreWeights, rank: int, seed: int) -> ScoreWeights:
    """The paper's method, with the scale of the source: :func:`parafac`; query biases become content biases."""
    content = None if source.query_bias is None else source.heads.content(source.query_bias)
    return ScoreWeights(parafac(source.heads, rank, seed), source.scale, None, content)


def authors_scale(scores: ScoreWeights) -> ScoreWeights:
    """The scores with the scale of the authors' code."""
    return scores._replace(scale=(scores.heads.rank / scores.heads.num_heads) ** -0.5)


class Study:
    """The study of one model; all results are parts of one record."""

    def __init__(self, args: argparse.Namespace, output: Path) -> None:
        self.args, self.output = args, output
        self.trained = translation.load_model(args.model, args.data)
        self.layer_ids = layer_ids(self.trained)
        self.origin = scores_by_layer(self.trained, self.layer_ids)
        translation.check_test_splits(self.trained, dict(args.reference))  # raises an error if a file is missing
        line, file = command("recipes/reparam/run.sh"), output / f"{args.name}.json"
        about: Dict[str, Any] = {"threads": args.threads, "repository": Path(__file__).parent, "fixed": ("hardware",)}
        self.record = Record("study", args.name, line, self.settings(), file, **about)
        self.fit_parafac = functools.cache(self._fit_parafac)  # paper and authors share the factors

    def settings(self) -> Dict[str, Any]:
        """The record's settings: everything that the results depend on."""
        args, state = self.args, self.trained.state
        config = checkpoints.model_settings(state)
        model = {
            **checkpoints.file_setting(args.model),
            "updates": checkpoints.num_updates(state),
            "parameters": checkpoints.num_parameters(state),
            "sizes": {name: config[name] for name in SIZES},
        }
        files = [file for file in sorted(Path(args.data).iterdir()) if file.suffix != ".log"]
        available = len(dataset(self.trained, "train"))
        uses_tensorly = {"paper", "authors"} & {*args.methods}
        return {
            "model": model,
            "data": {file.name: checkpoints.sha256(file) for file in files},
            "references": {split: checkpoints.file_setting(file) for split, file in args.reference},
            **{name: min(getattr(args, name), available) for name in ("sentences", "unlabelled")},
            **{name: getattr(args, name) for name in ("distill", "seeds")},
            **{name: list(map(str, getattr(args, name))) for name in ("distill_ranks", "ranks", "bleu_ranks")},
            "tensorly": importlib.metadata.version("tensorly") if uses_tensorly else None,
        }

    def key_dims(self, part: Fraction) -> Dict[str, int]:
        return {layer_id: max(1, round(scores.heads.rank * part)) for layer_id, scores in self.origin.items()}

    @functools.cached_property
    def calibrations(self) -> Any:
        return calibrate(self.trained, "train", self.layer_ids, sentences=self.args.sentences)

    @functools.cached_property
    def divergences(self) -> Any:
        """``site.layer`` → key dimension → divergence."""

        def measure() -> Dict[str, Any]:
            return measure_divergences(self.trained, self.layer_ids, "train", self.calibrations, sentences=MEASURED)

        divergences = {}
        for layer_id, divergence_by_rank in self.record.part("divergences", measure).items():
            divergences[layer_id] = {int(rank): value for rank, value in divergence_by_rank.items()}
        return divergences

    @functools.cached_property
    def unlabelled(self) -> str:
        """The split with the source model's translations."""
        flag = f"train:{self.args.unlabelled}"
        return text_of(flag, self.trained, 4000, option="unlabelled", seed=self.args.seeds[0])[0]

    def _fit_parafac(self, part: Fraction, seed: int) -> FittedModel:
        """The paper's decomposition of all layers, with the scale of the source."""
        began = time.process_time()
        weights = {
            layer_id: paper_fit(self.origin[layer_id], rank, seed) for layer_id, rank in self.key_dims(part).items()
        }
        return FittedModel(weights, {}, None, time.process_time() - began)

    def fit(self, method: str, part: Fraction, seed: int) -> FittedModel:
        """The result of a method. Its time excludes calibration and allocation, which methods share."""
        if method in ("paper", "authors"):
            fitted = self.fit_parafac(part, seed)
            if method == "paper":
                return fitted
            return fitted._replace(weights={name: authors_scale(scores) for name, scores in fitted.weights.items()})
        key_dims = self.key_dims(part)
        if method in ("allocated", "distilled"):
            key_dims = allocate_ranks(self.divergences, sum(key_dims.values()) / len(key_dims))
        calibrations = None if method == "plain" else self.calibrations
        distillation = None
        if method == "distilled":
            distillation = {"split": self.unlabelled, "steps": self.args.distill}
        return fit_model(self.trained, key_dims, calibrations, distillation, seed=seed)

    def conversion(self, method: str, part: Fraction, seed: int) -> Dict[str, Any]:
        """The record's part for one conversion."""
        fitted = self.fit(method, part, seed)
        state = converted_state(self.trained, fitted.weights)
        model = translation.with_state(self.trained, state)
        result = {
            "method": method,
            "part": str(part),
            "seed": seed,
            "cpu_seconds": fitted.cpu_seconds,
            "key_dims": {name: scores.heads.rank for name, scores in fitted.weights.items()},
            "errors": {n: relative_error(self.origin[n].heads, scores.heads) for n, scores in fitted.weights.items()},
            "output_errors": output_errors(self.trained, model, "train", self.layer_ids, sentences=MEASURED),
            "parameters": checkpoints.num_parameters(state),
            "distillation": fitted.distillation,
            **self.scores(model, part in self.args.bleu_ranks),
        }
        if method in KEPT and seed == self.args.seeds[0]:
            checkpoints.save(state, self.output / f"{self.args.name}-{method}-{slug(part)}.pt")
        return result

    def scores(self, model: translation.TrainedModel, bleu: bool = True) -> Dict[str, Any]:
        """Loss on valid and, if ``bleu``, sacreBLEU on every test split."""
        if bleu:
            return translation.evaluate(model, dict(self.args.reference))
        return {"valid": translation.loss(model, "valid")._asdict()}

    def source(self) -> Dict[str, Any]:
        """Scores of the source, and of the model converted at its full key dimension."""
        state = converted_state(self.trained, self.origin)
        checkpoints.save(state, self.output / f"{self.args.name}-full.pt")
        return {**self.scores(self.trained), "full": self.scores(translation.with_state(self.trained, state))}

    def convert(self) -> None:
        """Make all conversions that the record does not have yet."""
        args = self.args
        source = self.record.part("source", self.source)
        for part, method in itertools.product(args.ranks, args.methods):
            if method == "distilled" and (part not in args.distill_ranks or not args.distill):
                continue
            for seed in args.seeds:
                name = f"conversion/{method}-{slug(part)}-seed{seed}"
                result = self.record.part(name, functools.partial(self.conversion, method, part, seed))
                gap = result["valid"]["loss"] - source["valid"]["loss"]
                logger.info("%s: loss %+.5f, %.1f CPU seconds", name, gap, result["cpu_seconds"])

    def finetuned(self, checkpoint: Path) -> None:
        """Score a fine-tuned model, unless the record has it."""

        def scored() -> Dict[str, Any]:
            trained = translation.load_model(checkpoint, self.args.data)
            trained = replace(trained, criterion=self.trained.criterion)  # fine-tuning has label smoothing
            return {"updates": checkpoints.num_updates(trained.state), **self.scores(trained)}

        self.record.part(f"finetuned/{checkpoint.parent.name}", scored)
