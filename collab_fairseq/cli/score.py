"""Score translations: tokenised, compound-split (German) and sacreBLEU, chrF, chrF++, TER and COMET, with signatures.

    fairseq-generate DATA --path averaged.pt --remove-bpe ... > generate.log
    collab score generate.log --reference test.de

    collab translate FOLDER < test.en > translations.de
    collab score translations.de --reference test.de
    collab score translations.de --baseline others.de --reference test.de
    collab score translations.de --reference test.de --source test.en --comet Unbabel/wmt22-comet-da

The log may be sorted or not, have n-best lists, or come in shards; plain text has one translation per line. Raw text is
Moses-tokenised for the first two scores, tokenised text is detokenised for all others. Compare sacreBLEU across papers,
the first two only with the same score; for TER less is better. --baseline compares two systems'
sacreBLEU by a paired bootstrap over the sentences. --comet needs `pip install unbabel-comet` and a model of it, by its
checkpoint or its name; the score is 100 times COMET's.
"""

import argparse
import gzip
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from collab_fairseq.records.files import check_writable, write_bytes, write_json
from fairseq_modern.errors import UserError

if TYPE_CHECKING:
    from collab_fairseq.scoring.evaluation import Evaluation

HELP = "score translations, or compare two systems"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "output of fairseq-generate (or fairseq-interactive), or its shards; or one file of plain text"
    add("logs", nargs="+", metavar="FILE", help=text)
    text = "raw, never tokenised references, line i for sentence id i (default: the log's own)"
    add("--reference", metavar="FILE", help=text)
    add("--baseline", nargs="+", metavar="FILE", help="another system in the same form, to compare with")
    text = "language of the translations (default: that of the log, else the ending of --reference, such as test.de)"
    add("--target-lang", metavar="LANG", help=text)
    text = "whether the text is tokenised (default: auto, judged by the blanks before its punctuation marks)"
    add("--tokenized", "--tokenised", choices=("auto", "yes", "no"), default="auto", help=text)
    add("--comet", metavar="MODEL", help="also score with this model of COMET, model.ckpt or a name; needs --source")
    add("--source", metavar="FILE", help="raw text that was translated, line i for sentence id i, for --comet")
    add("--json", metavar="FILE", help="also write the scores to FILE")
    text = "also write the translations to FILE, gzipped, in the order of the test set"
    add("--hypotheses", metavar="FILE.gz", help=text)


def run(args: argparse.Namespace) -> int:
    check_writable(args.json, args.hypotheses)
    if args.target_lang is not None:
        from collab_fairseq.translation.tokenizer import check_language

        check_language(args.target_lang)
    from collab_fairseq.scoring.evaluation import evaluate
    from collab_fairseq.scoring.generate_log import read_translations

    if (args.comet is None) != (args.source is None):
        raise UserError("--comet MODEL and --source FILE go together")
    tokenised = {"auto": None, "yes": True, "no": False}[args.tokenized]
    systems = [files for files in (args.logs, args.baseline) if files]
    options = {"target_lang": args.target_lang, "tokenised": tokenised, "source": args.source, "comet": args.comet}
    results = [evaluate(files, args.reference, **options) for files in systems]
    lines = [line for files, result in zip(systems, results, strict=True) for line in _lines(files, result)]
    content: Dict[str, Any] = asdict(results[0])
    if args.baseline:
        content.update(_compared([", ".join(files) for files in systems], content, asdict(results[1]), lines))
    if args.json:
        write_json(content, args.json)
    if args.hypotheses:
        lines_of_text = "".join(f"{line}\n" for line in read_translations(args.logs).hypotheses)
        write_bytes(gzip.compress(lines_of_text.encode("utf-8"), mtime=0), args.hypotheses)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _names(files: Sequence[str]) -> str:
    return ", ".join(os.path.basename(file) for file in files)


def _lines(files: Sequence[str], result: "Evaluation") -> List[str]:
    """The printed lines of a system."""
    form = "tokenised" if result.tokenised else "raw, not tokenised"
    form += " (assumed)" if result.tokenised_assumed else ""
    lines = [f"{_names(files)}: {result.sentences} sentences, language {result.target_lang}, text is {form}"]
    for score in result.scores:
        lines.append(f"{score.metric:<20} {score.line()}")
        lines.append(f"{'':<20} {score.compared}")
        if not score.metric.endswith(" BLEU"):
            lines.append(f"{'':<20} signature {score.signature}")
    return lines + result.remarks


def _compared(names: List[str], system: Any, baseline: Any, lines: List[str]) -> Dict[str, Any]:
    """Add the difference of two systems to the printed lines; returns its part of --json."""
    from collab_fairseq.scoring import significance

    comparison = significance.compare(system, baseline, names)
    if comparison is None:
        raise UserError("--baseline compares sacreBLEU, and tokenised text needs a raw --reference for it")
    interval = f"[{comparison.low:+.2f}, {comparison.high:+.2f}]"
    lines.append(
        f"{'difference':<20} {comparison.difference:+.2f}, 95 % interval {interval}, p = {comparison.p_value:.3f}"
    )
    lines.append(f"{'':<20} sacreBLEU of {names[0]} − {names[1]}")
    lines.append(f"{'':<20} {significance.METHOD}, {significance.SAMPLES:,} resamples")
    return {"baseline": baseline, "comparison": {**comparison._asdict(), "method": significance.METHOD}}
