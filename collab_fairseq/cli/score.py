"""Score translations: tokenised BLEU, compound-split BLEU (German), sacreBLEU, chrF, chrF++, TER and COMET.

    fairseq-generate DATA --path averaged.pt --remove-bpe ... > generate.log
    collab score generate.log --reference test.de

    collab translate FOLDER < test.en > translations.de
    collab score translations.de --reference test.de
    collab score translations.de --baseline others.de --reference test.de
    collab score translations.de --reference test.de --source test.en --comet Unbabel/wmt22-comet-da

The log may be unsorted, have n-best lists, or be split into shards; plain text has one translation per line. Raw text
is Moses-tokenised for the first two scores; tokenised text is detokenised for all others. Hyphens of `tokenizer.perl
-a` (@-@, ##AT##-##AT##), escapes (&quot;) and bytes of SentencePiece (<0xC3>) are undone unless the reference has them.
Each line of --reference must be the reference of the log (T- lines). sacreBLEU is comparable across papers, tokenised
and compound-split BLEU only with scores of the same name. Lower TER is better. Intervals are over the sentences
(bootstrap, 1,000 resamples). --baseline compares the sacreBLEU of two models by a paired bootstrap over the sentences.
It says nothing about their settings: models that differ in the seed only can differ significantly, too (in our records,
in 7 % of comparisons; for one setting in 5 of 10). --comet needs `pip install unbabel-comet` and a COMET model, a
checkpoint or a name; the score is multiplied by 100.
"""

import argparse
import gzip
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from collab_fairseq.files import check_writable, write_bytes, write_json
from fairseq_modern.errors import UserError

from .options import check_distinct

if TYPE_CHECKING:
    from collab_fairseq.scoring.evaluation import Evaluation
    from collab_fairseq.scoring.significance import Comparison

HELP = "score translations, or compare two models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "output of fairseq-generate or fairseq-interactive, or its shards; or one file of plain text"
    add("logs", nargs="+", metavar="FILE", help=text)
    text = "raw, untokenised references; line i belongs to sentence id i (default: references of the log)"
    add("--reference", action="append", metavar="FILE", help=text)
    add("--baseline", nargs="+", metavar="FILE", help="another model's translations in the same form, to compare with")
    text = "language of the translations (default: that of the log, else the suffix of --reference, such as test.de)"
    add("--target-lang", metavar="LANG", help=text)
    text = "whether the text is tokenised (default: auto, inferred from spaces before punctuation marks)"
    add("--tokenized", "--tokenised", choices=("auto", "yes", "no"), default="auto", help=text)
    text = "also score with this COMET model, a checkpoint (model.ckpt) or a name; needs --source"
    add("--comet", metavar="MODEL", help=text)
    add("--source", metavar="FILE", help="raw source text for --comet; line i belongs to sentence id i")
    add("--json", metavar="FILE", help="also write the scores to FILE")
    add("--hypotheses", metavar="FILE.gz", help="also write the translations to FILE.gz, in the order of the test set")


def run(args: argparse.Namespace) -> int:
    if len(args.reference or ()) > 1:
        raise UserError(f"--reference must be one file, one reference per sentence; got {', '.join(args.reference)}")
    args.reference = args.reference[0] if args.reference else None
    check_writable(args.json, args.hypotheses)
    if args.hypotheses and not args.hypotheses.endswith(".gz"):
        raise UserError(f"--hypotheses must be an output file whose name ends in .gz; got {args.hypotheses}")
    inputs = [*args.logs, *(args.baseline or []), args.reference, args.source, args.comet]
    if args.json and args.json == args.hypotheses:
        raise UserError(f"--json and --hypotheses must be two files; got {args.json} for both")
    for output in filter(None, (args.json, args.hypotheses)):
        check_distinct(output, *filter(None, inputs))
    if args.target_lang is not None:
        from collab_fairseq.translation.tokenizer import check_language

        check_language(args.target_lang)
    from collab_fairseq.scoring import significance
    from collab_fairseq.scoring.evaluation import evaluate
    from collab_fairseq.scoring.generate_log import read_translations

    tokenised = {"auto": None, "yes": True, "no": False}[args.tokenized]
    options = {"target_lang": args.target_lang, "tokenised": tokenised, "source": args.source, "comet": args.comet}
    result = evaluate(args.logs, args.reference, **options)
    lines = _lines(args.logs, result)
    content: Dict[str, Any] = asdict(result)
    if args.baseline:
        other = evaluate(args.baseline, args.reference, **options)
        baseline = asdict(other)
        names = [", ".join(files) for files in (args.logs, args.baseline)]
        comparison = significance.compare(content, baseline, names)
        if comparison is None:
            raise UserError("--baseline compares sacreBLEU, which needs a raw --reference for tokenised text")
        lines += [*_lines(args.baseline, other), *_comparison_lines(comparison, names)]
        content["baseline"] = baseline
        content["comparison"] = {**comparison._asdict(), "method": significance.METHOD}
    sys.stdout.write("\n".join(lines) + "\n")
    if args.json:
        write_json(content, args.json)
    if args.hypotheses:
        text = "".join(f"{line}\n" for line in read_translations(args.logs).hypotheses)
        write_bytes(gzip.compress(text.encode("utf-8"), mtime=0), args.hypotheses)
    return 0


def _lines(files: Sequence[str], result: "Evaluation") -> List[str]:
    """The printed lines of a system."""
    names = ", ".join(os.path.basename(file) for file in files)
    form = "tokenised" if result.tokenised else "raw, not tokenised"
    form += " (assumed)" if result.tokenised_assumed else ""
    lines = [f"{names}: {result.sentences} sentences, language {result.target_lang}, text is {form}"]
    for score in result.scores:
        lines.append(f"{score.metric:<20} {score.line()}")
        if score.interval:
            low, high = score.interval
            lines.append(f"{'':<20} 95 % interval [{low:.2f}, {high:.2f}]")
        lines.append(f"{'':<20} {score.compared}")
        if not score.metric.endswith(" BLEU"):
            lines.append(f"{'':<20} signature {score.signature}")
    return lines + result.remarks


def _comparison_lines(comparison: "Comparison", names: Sequence[str]) -> List[str]:
    from collab_fairseq.scoring.significance import METHOD, SAMPLES

    interval = f"95 % interval [{comparison.low:+.2f}, {comparison.high:+.2f}]"
    return [
        f"{'difference':<20} {comparison.difference:+.2f}, {interval}, p = {comparison.p_value:.3f}",
        f"{'':<20} sacreBLEU of {names[0]} − {names[1]}",
        f"{'':<20} {METHOD}, {SAMPLES:,} resamples;",
        f"{'':<20} of two models: other seeds of the same settings can differ as much",
    ]
