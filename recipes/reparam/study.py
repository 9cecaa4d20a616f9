"""What conversion costs a trained translation model: our fits beside the paper's method, in one process.

For each rank (a part of the key dim of the source) and each seed of the decomposition:
  paper        TensorLy's parafac on the dense tensor of every layer, random start, tolerance 1e-6, at most 100
               iterations; the query biases become content biases and the scores keep the source's scale
  authors      the same factors with the scale of the authors' code, (rank / heads)^-1/2
  plain        our solver, all inputs counting alike
  calibrated   our solver, weighted by the covariances of --sentences sentences of train
  allocated    the same with the rank spread over the layers by the divergence of the predictions on 100 of them
  distilled    the allocated model after --distill steps on the source's predictions for its own translations of
               --unlabelled sentences of train (at --distill-ranks)

For every one the loss on valid; at --bleu-ranks also sacreBLEU of every test split (beam 5). CPU seconds are those of
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
from typing import Any, Dict, Optional, Tuple

import torch

from collab_fairseq import checkpoints, translation
from collab_fairseq.cli.options import command
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.records.record import Record
from collab_fairseq.reparam import HeadFactors, ScoreWeights, fit_layers, relative_error
from collab_fairseq.reparam.allocation import measure_curves, spend
from collab_fairseq.reparam.distill import distill
from collab_fairseq.reparam.fairseq import calibrate, converted, output_errors, places, sources
from collab_fairseq.reparam.text import text_of

logger = logging.getLogger("recipe")

METHODS = ("paper", "authors", "plain", "calibrated", "allocated", "distilled")
KEPT = ("calibrated", "distilled")  # whose checkpoints stay
MEASURED = 100  # sentences for allocation

Weights = Dict[str, ScoreWeights]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is converted, and how."""
    add, quarters = parser.add_argument, [Fraction(3, 4), Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)]
    add("--methods", choices=METHODS, nargs="+", default=METHODS, help="in this order (default: all)")
    for name, default, text in (
        ("--ranks", quarters, "key dims, as parts of the source's"),
        ("--bleu-ranks", quarters[1:2], "at which BLEU is measured"),
        ("--distill-ranks", quarters[2:], "at which is distilled"),
    ):
        told = f"{text} (default: {' '.join(map(str, default))})"
        add(name, type=Fraction, nargs="*", default=default, metavar="R", help=told)
    for name, number, text in (
        ("--distill", 2000, "steps; 0: none"), ("--unlabelled", 29000, "sentences of train to distill on"),
        ("--sentences", 400, "of train to calibrate on"),
    ):  # fmt: skip
        add(name, type=int, default=number, metavar="N", help=f"{text} (default: {number})")
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


class Study:
    """One model. Results are parts of its record, named after what they are."""

    def __init__(self, args: argparse.Namespace, output: Path) -> None:
        self.args, self.output = args, output
        self.trained = translation.load_model(args.model, args.data)
        self.names = places(self.trained)
        self.origin = sources(self.trained, self.names)
        translation.test_splits(self.trained, dict(args.reference))  # which complains of what is not there
        self.record = Record(
            "study", args.name, command("recipes/reparam/run.sh"), self.settings(),
            output / f"{args.name}.json", threads=args.threads, repository=Path(__file__).parent,
        )  # fmt: skip
        self.dense = functools.cache(self.parafacs)

    def settings(self) -> Dict[str, Any]:
        """All that the results depend on."""
        args, state = self.args, self.trained.state
        kept = ("encoder_layers", "decoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim",
                "encoder_attention_heads", "decoder_attention_heads")  # fmt: skip
        return {
            "model": {
                **checkpoints.file_setting(args.model), "updates": checkpoints.num_updates(state),
                "parameters": checkpoints.num_parameters(state),
                "sizes": {name: model_config(state)[name] for name in kept},
            },
            "data": {f.name: checkpoints.sha256(f) for f in sorted(Path(args.data).iterdir()) if f.suffix != ".log"},
            "references": {split: checkpoints.file_setting(file) for split, file in args.reference},
            **{name: getattr(args, name) for name in ("sentences", "distill", "unlabelled", "seeds")},
            **{name: list(map(str, getattr(args, name))) for name in ("distill_ranks", "ranks", "bleu_ranks")},
            "tensorly": importlib.metadata.version("tensorly") if {"paper", "authors"} & {*args.methods} else None,
        }  # fmt: skip

    def ranks(self, part: Fraction) -> Dict[str, int]:
        return {name: round(self.origin[name].heads.rank * part) for name in self.names}

    @functools.cached_property
    def calibrations(self) -> Any:
        return calibrate(self.trained, "train", self.names, sentences=self.args.sentences)

    @functools.cached_property
    def curves(self) -> Any:
        made = self.record.part("divergences", lambda: measure_curves(
            self.trained, self.names, "train", self.calibrations, sentences=MEASURED
        ))  # fmt: skip
        return {name: {int(dim): value for dim, value in curve.items()} for name, curve in made.items()}

    @functools.cached_property
    def unlabelled(self) -> str:
        """The split of the source's own translations."""
        flag = f"train:{self.args.unlabelled}"
        return text_of(flag, self.trained, 4000, option="unlabelled", seed=self.args.seeds[0])[0]

    def parafacs(self, part: Fraction, seed: int) -> Tuple[Weights, float]:
        """The paper's decomposition of all layers and its CPU seconds; `authors` has another scale."""
        began, found = time.process_time(), {}
        for name, rank in self.ranks(part).items():
            source = self.origin[name]
            content = None if source.query_bias is None else source.heads.content(source.query_bias)
            found[name] = ScoreWeights(parafac(source.heads, rank, seed), source.scale, None, content)
        return found, time.process_time() - began

    def weights(self, method: str, part: Fraction, seed: int) -> Tuple[Weights, float, Optional[Dict[str, Any]]]:
        """The scores that a method makes, its CPU seconds, and how distillation went."""
        if method in ("paper", "authors"):
            found, seconds = self.dense(part, seed)
            if method == "authors":
                found = {n: w._replace(scale=(w.heads.rank / w.heads.num_heads) ** -0.5) for n, w in found.items()}
            return found, seconds, None
        # the same text for all of them: in no method's time
        calibrations = None if method == "plain" else self.calibrations
        curves = self.curves if method in ("allocated", "distilled") else None
        began, dims = time.process_time(), self.ranks(part)
        if curves:
            dims = spend(curves, sum(dims.values()) / len(dims))
        fits = fit_layers(self.origin, dims, calibrations, progress=lambda *_: None, seed=seed)
        found = {name: fit.weights for name, fit in fits.items()}
        seconds = time.process_time() - began
        if method != "distilled":
            return found, seconds, None
        found, told = distill(self.trained, found, self.unlabelled, self.args.distill, seed=seed)
        return found, seconds + told["cpu_seconds"], told

    def conversion(self, method: str, part: Fraction, seed: int) -> Dict[str, Any]:
        """One conversion and what it loses."""
        weights, seconds, distilled = self.weights(method, part, seed)
        state = converted(self.trained, weights)
        model = translation.with_state(self.trained, state)
        result = {
            "method": method, "part": str(part), "seed": seed, "cpu_seconds": seconds,
            "key_dims": {name: scores.heads.rank for name, scores in weights.items()},
            "errors": {n: relative_error(self.origin[n].heads, w.heads) for n, w in weights.items()},
            "output_errors": output_errors(self.trained, model, "train", self.names, sentences=MEASURED),
            "parameters": checkpoints.num_parameters(state), "distillation": distilled,
            **self.scores(model, part in self.args.bleu_ranks),
        }  # fmt: skip
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
                found = self.record.part(name, lambda: self.conversion(method, part, seed))  # noqa: B023  (called at once)
                gap = found["valid"]["loss"] - source["valid"]["loss"]
                logger.info("%s: loss %+.5f, %.1f CPU seconds", name, gap, found["cpu_seconds"])

    def finetuned(self, checkpoint: Path) -> None:
        """Score a model that was trained further, unless the record has it."""

        def scored() -> Dict[str, Any]:
            trained = translation.load_model(checkpoint, self.args.data)
            return {"updates": checkpoints.num_updates(trained.state), **self.scores(trained)}

        self.record.part(f"finetuned/{checkpoint.parent.name}", scored)
