"""What conversion costs a trained translation model: our fits compared with the paper's method, in one process.

For each rank (a part of the key dim of the source) and each seed of the decomposition:
  paper        TensorLy's parafac on the dense tensor of every layer, random start, tolerance 1e-6, at most 100
               iterations; the query biases become content biases and the scores keep the source's scale
  authors      the same factors with the scale of the authors' code, (rank / heads)^-1/2
  plain        our solver, all inputs counting alike
  calibrated   our solver, weighted by the covariances of --sentences sentences of train
  allocated    the same with the rank spread over the layers by the divergence of the predictions on 100 of them
  distilled    the allocated model after --distill steps on the source's predictions for its own translations of
               --unlabelled sentences of train (at --distill-ranks)

For each the loss on valid; at --bleu-ranks also sacreBLEU of every test split (beam 5). CPU seconds are those of
this process on --threads threads. The checkpoints of `calibrated` and `distilled` of the first seed stay in OUTPUT as
NAME-calibrated-1of2.pt and so on, the unchanged model with collaborative heads as NAME-full.pt.
"""

import argparse
import functools
import importlib.metadata
import itertools
import logging
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli.options import command
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.records.record import Record
from collab_fairseq.reparam import HeadFactors, ScoreWeights, relative_error
from collab_fairseq.reparam.allocation import allocate_ranks, measure_curves
from collab_fairseq.reparam.fairseq import calibrate, converted, layer_ids, output_errors, sources
from collab_fairseq.reparam.pipeline import FittedModel, fit_model
from collab_fairseq.reparam.text import text_of

logger = logging.getLogger("recipe")

METHODS = ("paper", "authors", "plain", "calibrated", "allocated", "distilled")
KEPT = ("calibrated", "distilled")  # whose checkpoints stay
MEASURED = 100  # sentences for allocation
SIZES = (
    "encoder_layers", "decoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is converted, and how."""
    add = parser.add_argument
    ranks = [Fraction(3, 4), Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)]
    add("--methods", choices=METHODS, nargs="+", default=METHODS, help="in this order (default: all)")
    for name, default, text in (
        ("--ranks", ranks, "key dims, as parts of the source's"),
        ("--bleu-ranks", ranks[1:2], "at which BLEU is measured"),
        ("--distill-ranks", ranks[2:], "at which is distilled"),
    ):
        help_text = f"{text} (default: {' '.join(map(str, default))})"
        add(name, type=Fraction, nargs="*", default=default, metavar="R", help=help_text)
    add("--distill", type=int, default=2000, metavar="N", help="steps; 0: none (default: 2000)")
    text = "sentences of train to distill on (default: 29000)"
    add("--unlabelled", type=int, default=29000, metavar="N", help=text)
    add("--sentences", type=int, default=400, metavar="N", help="of train to calibrate on (default: 400)")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="of the decomposition (default: 1 2 3)")


def slug(part: Fraction) -> str:
    return f"{part.numerator}of{part.denominator}"


def parafac(heads: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """The paper's decomposition: TensorLy's on the dense tensor of the heads' products, from a random start."""
    import tensorly
    from tensorly.decomposition import parafac as decomposition

    tensorly.set_backend("pytorch")
    dense = torch.einsum("hk,kd,ke->hde", heads.mixing, heads.query, heads.key)
    sizes, (mixing, query, key) = decomposition(dense, rank, n_iter_max=100, init="random", tol=1e-6, random_state=seed)
    return HeadFactors(query.T, key.T, mixing * sizes)


def authors_scale(scores: ScoreWeights) -> ScoreWeights:
    """The same scores with the scale of the authors' code."""
    return scores._replace(scale=(scores.heads.rank / scores.heads.num_heads) ** -0.5)


class Study:
    """One model. Results are parts of its record, named after what they are."""

    def __init__(self, args: argparse.Namespace, output: Path) -> None:
        self.args, self.output = args, output
        self.trained = translation.load_model(args.model, args.data)
        self.layer_ids = layer_ids(self.trained)
        self.origin = sources(self.trained, self.layer_ids)
        translation.test_splits(self.trained, dict(args.reference))  # raises an error for what is missing
        self.record = Record(
            "study",
            args.name,
            command("recipes/reparam/run.sh"),
            self.settings(),
            output / f"{args.name}.json",
            threads=args.threads,
            repository=Path(__file__).parent,
        )
        self.fit_parafac = functools.cache(self._fit_parafac)  # paper and authors share the factors

    def settings(self) -> Dict[str, Any]:
        """All that the results depend on."""
        args, state = self.args, self.trained.state
        config = model_config(state)
        compared = {"paper", "authors"} & {*args.methods}
        return {
            "model": {
                **checkpoints.file_setting(args.model),
                "updates": checkpoints.num_updates(state),
                "parameters": checkpoints.num_parameters(state),
                "sizes": {name: config[name] for name in SIZES},
            },
            "data": {f.name: checkpoints.sha256(f) for f in sorted(Path(args.data).iterdir()) if f.suffix != ".log"},
            "references": {split: checkpoints.file_setting(file) for split, file in args.reference},
            "sentences": args.sentences,
            "distill": args.distill,
            "unlabelled": args.unlabelled,
            "seeds": args.seeds,
            "distill_ranks": list(map(str, args.distill_ranks)),
            "ranks": list(map(str, args.ranks)),
            "bleu_ranks": list(map(str, args.bleu_ranks)),
            "tensorly": importlib.metadata.version("tensorly") if compared else None,
        }

    def key_dims(self, part: Fraction) -> Dict[str, int]:
        return {layer_id: round(scores.heads.rank * part) for layer_id, scores in self.origin.items()}

    @functools.cached_property
    def calibrations(self) -> Any:
        return calibrate(self.trained, "train", self.layer_ids, sentences=self.args.sentences)

    @functools.cached_property
    def curves(self) -> Any:
        def measured() -> Dict[str, Any]:
            return measure_curves(self.trained, self.layer_ids, "train", self.calibrations, sentences=MEASURED)

        curves = self.record.part("divergences", measured)
        return {layer_id: {int(dim): value for dim, value in curve.items()} for layer_id, curve in curves.items()}

    @functools.cached_property
    def unlabelled(self) -> str:
        """The split of the source's own translations."""
        flag = f"train:{self.args.unlabelled}"
        return text_of(flag, self.trained, 4000, option="unlabelled", seed=self.args.seeds[0])[0]

    def _fit_parafac(self, part: Fraction, seed: int) -> FittedModel:
        """The paper's decomposition of all layers; `authors` has another scale."""
        began = time.process_time()
        weights = {}
        for layer_id, rank in self.key_dims(part).items():
            source = self.origin[layer_id]
            content = None if source.query_bias is None else source.heads.content(source.query_bias)
            weights[layer_id] = ScoreWeights(parafac(source.heads, rank, seed), source.scale, None, content)
        return FittedModel(weights, {}, None, time.process_time() - began)

    def fit(self, method: str, part: Fraction, seed: int) -> FittedModel:
        """The scores that a method makes. Calibration and allocation are the same for all, in no method's time."""
        if method in ("paper", "authors"):
            fitted = self.fit_parafac(part, seed)
            if method == "paper":
                return fitted
            return fitted._replace(weights={name: authors_scale(scores) for name, scores in fitted.weights.items()})
        key_dims = self.key_dims(part)
        if method in ("allocated", "distilled"):
            key_dims = allocate_ranks(self.curves, sum(key_dims.values()) / len(key_dims))
        return fit_model(
            self.trained,
            key_dims,
            None if method == "plain" else self.calibrations,
            distill_split=self.unlabelled if method == "distilled" else None,
            distill_steps=self.args.distill,
            seed=seed,
        )

    def conversion(self, method: str, part: Fraction, seed: int) -> Dict[str, Any]:
        """One conversion and what it loses."""
        fitted = self.fit(method, part, seed)
        state = converted(self.trained, fitted.weights)
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
        """Loss on valid, and sacreBLEU of every test split."""
        if bleu:
            return translation.evaluate(model, dict(self.args.reference))
        return {"valid": translation.loss(model, "valid")._asdict()}

    def source(self) -> Dict[str, Any]:
        """The model as it came, and as converted at its full key dim."""
        state = converted(self.trained, self.origin)
        checkpoints.save(state, self.output / f"{self.args.name}-full.pt")
        return {**self.scores(self.trained), "full": self.scores(translation.with_state(self.trained, state))}

    def convert(self) -> None:
        """All conversions; those that are in the record are not made again."""
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
        """Score a model that was trained further, unless the record has it."""

        def scored() -> Dict[str, Any]:
            trained = translation.load_model(checkpoint, self.args.data)
            return {"updates": checkpoints.num_updates(trained.state), **self.scores(trained)}

        self.record.part(f"finetuned/{checkpoint.parent.name}", scored)
