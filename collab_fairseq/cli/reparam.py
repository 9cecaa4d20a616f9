"""Give a trained translation model collaborative heads with a chosen key dim, without training.

    collab reparam checkpoint.pt --output collaborative.pt --key-dim 256 --calibration train:400 --evaluate
    collab reparam checkpoint.pt --output collaborative.pt --budget mean:128 --calibration train:400 --distill 200

CHECKPOINT is one of fairseq's `transformer` in any size, or of `transformer_collab`, which can so be made smaller
again. At the key dim of the source nothing changes but the form. Calibration text tells which queries and keys occur:
with a few hundred sentences the fit loses much less. Text files must be in the model's own units, as fairseq-preprocess
got them; a split of the data-bin always is.

The result is an ordinary checkpoint for fairseq-generate, -interactive and -validate with --user-dir. To train it on:

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab SIZES ... \\
        --attention-from collaborative.pt --finetune-from-model collaborative.pt

SIZES are the flags of the source's layers, widths, heads and shared embeddings. The checkpoint has no optimizer state
(its parameters are gone) and starts at epoch 1, so that --restore-file needs no --reset-... flags either. The same
command resumes the run, and checkpoints of the run can be used like any others.
"""

import argparse
import logging
import os
import sys
import time
from typing import Tuple

from collab_fairseq.records.files import check_targets, write_json

HELP = "collaborative heads for a trained model"

logger = logging.getLogger(__name__)

# sentences of the calibration text on which allocation and the errors of outputs are measured
_MEASURED = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, size, text, result."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a trained translation model of fairseq")
    parser.add_argument("--output", required=True, metavar="FILE", help="the converted checkpoint; whole or not at all")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--key-dim", type=int, metavar="N", help="shared key dim of every converted layer")
    size.add_argument(
        "--budget",
        metavar="KIND:N",
        help="mean:N (key dim on average) or parameters:N (of the whole model), spread over the layers by what they do "
        "to the model's predictions on the calibration text",
    )
    parser.add_argument(
        "--sites",
        default="encoder_cross_decoder",
        metavar="SITES",
        help="attention to convert: encoder, cross, decoder joined by _ (default: %(default)s)",
    )
    parser.add_argument(
        "--calibration",
        metavar="TEXT",
        help="SPLIT:N, the first N sentences of a split of the data-bin, such as train:400; or SOURCE,TARGET, two text "
        "files; or SOURCE, one file, which the model translates first (default: none, a plain fit)",
    )
    parser.add_argument("--data", metavar="DIR", help="data-bin (default: the one that the checkpoint names)")
    parser.add_argument(
        "--distill",
        type=int,
        metavar="STEPS",
        help="afterwards train each layer for so many steps to attend as its source does to the calibration text",
    )
    parser.add_argument(
        "--evaluate", action="store_true", help="loss on `valid` and BLEU on every test split, before and after"
    )
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="SPLIT=FILE",
        type=_pair,
        help="raw references of a test split for --evaluate (default: the data-bin's target side); repeatable",
    )
    parser.add_argument("--report", metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of random starts and batches (default: 1)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (default: cpu)")
    parser.add_argument("--max-tokens", type=int, default=4000, metavar="N", help="per batch (default: 4000)")


def _pair(text: str) -> Tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"expected SPLIT=FILE, got {text!r}")
    return name, file


class UsageError(ValueError):
    """Flags that do not go together, or files that cannot be used."""

    user_error = True


def run(args: argparse.Namespace) -> int:
    """Load, calibrate, fit, distill, save, evaluate, report."""
    _check(args)
    import torch

    from collab_fairseq import checkpoints, translation
    from collab_fairseq.reparam import allocation, distill, fairseq

    from .reparam_report import Report, compare
    from .reparam_text import text_of

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    if args.threads:
        torch.set_num_threads(args.threads)
    budget = allocation.Budget.parse(args.budget) if args.budget else None
    began = time.perf_counter()
    needs_text = bool(args.calibration or args.evaluate)
    trained = translation.load_model(args.checkpoint, args.data, device=args.device, seed=args.seed, text=needs_text)
    names = fairseq.places(trained, args.sites)
    if budget:
        allocation.check_budget(trained, names, budget)
    references = dict(args.reference)
    tests = translation.test_splits(trained, references) if args.evaluate else []

    text = calibrations = curves = None
    tokens, some = {"max_tokens": args.max_tokens}, 0
    if args.calibration:
        text = text_of(args.calibration, trained, args.max_tokens)
        some = min(_MEASURED, text.sentences)
        logger.info("calibrating on %s", text.description)
        calibrations = fairseq.calibrate(trained, text.split, names, sentences=text.sentences, **tokens)
    else:
        logger.warning(
            "no --calibration: the fit counts all inputs alike and loses more than one to which text shows the queries "
            "and keys that occur; a few hundred sentences do, such as --calibration train:400"
        )
    key_dims = dict.fromkeys(names, args.key_dim)
    if budget and text:
        curves = allocation.measure_curves(
            trained, names, text.split, calibrations, sentences=some, seed=args.seed, **tokens
        )
        key_dims = allocation.spend(trained, curves, budget)
    state, fits = fairseq.convert(trained, key_dims, calibrations, seed=args.seed)
    distilled = {}
    if args.distill and text:
        weights = {name: fit.weights for name, fit in fits.items()}
        distilled = distill.distill(
            trained, weights, text.split, args.distill, sentences=text.sentences, seed=args.seed
        )
        state = fairseq.converted(trained, {name: done.weights for name, done in distilled.items()})
    seconds = time.perf_counter() - began
    checkpoints.save(state, args.output)
    logger.info("wrote %s", args.output)

    dims = {name: scores.heads.rank for name, scores in fairseq.sources(trained, names).items()}
    report = Report(trained.state, state, dims, fits, distilled, seconds, text.as_json() if text else None, curves)
    if needs_text:
        after = translation.with_state(trained, state)
        if text:
            report.output_errors = fairseq.output_errors(trained, after, text.split, names, sentences=some, **tokens)
        if args.evaluate:
            logger.info("evaluating on %s", ", ".join(["valid", *tests]))
            report.evaluation = compare(*(translation.evaluate(m, references, **tokens) for m in (trained, after)))
    if args.report:
        write_json(report.as_json(args), args.report)
    sys.stdout.write(report.table())
    return 0


def _check(args: argparse.Namespace) -> None:
    """What would otherwise come to light only after minutes."""
    for name in ("key_dim", "distill", "threads", "max_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    for name in ("budget", "distill"):
        if getattr(args, name) and not args.calibration:
            raise UsageError(f"--{name} needs text: give it with --calibration, such as --calibration train:400")
    if args.reference and not args.evaluate:
        raise UsageError("--reference needs --evaluate")
    for name in ("output", "report"):
        path = getattr(args, name)
        if path is None:
            continue
        check_targets(path)
        if os.path.exists(path) and os.path.exists(args.checkpoint) and os.path.samefile(path, args.checkpoint):
            raise UsageError(f"--{name} {path} is the source and would overwrite it")
