"""BLEU of a log of fairseq-generate: tokenised, compound-split (German) and sacreBLEU with its signature.

    fairseq-generate DATA --path averaged.pt --remove-bpe ... > generate.log
    collab score generate.log --reference test.de

The log may be sorted or not, have n-best lists, or come in shards. Raw text is Moses-tokenised for the first two
scores, tokenised text is detokenised for sacreBLEU. Compare sacreBLEU across papers, the others only with their like.
"""

import argparse
import gzip
import os
import sys
from dataclasses import asdict

from collab_fairseq.records.files import check_targets, write_bytes, write_json

HELP = "BLEU of a generate log, three ways"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("logs", nargs="+", metavar="LOG", help="output of fairseq-generate (or fairseq-interactive)")
    text = "raw, never tokenised references, line i for sentence id i (default: the log's own)"
    add("--reference", metavar="FILE", help=text)
    add("--target-lang", default="de", metavar="LANG", help="language of the translations (default: de)")
    text = "whether the log's text is tokenised (default: auto, judged by the blanks before its punctuation marks)"
    add("--tokenized", "--tokenised", choices=("auto", "yes", "no"), default="auto", help=text)
    add("--json", metavar="FILE", help="also write the scores to FILE")
    text = "also write the translations to FILE, gzipped, in the order of the test set"
    add("--hypotheses", metavar="FILE.gz", help=text)


def run(args: argparse.Namespace) -> int:
    check_targets(args.json, args.hypotheses)
    from collab_fairseq.scoring.evaluation import evaluate
    from collab_fairseq.scoring.generate_log import read_generate_log

    tokenised = {"auto": None, "yes": True, "no": False}[args.tokenized]
    result = evaluate(args.logs, args.reference, target_lang=args.target_lang, tokenised=tokenised)
    form = "tokenised" if result.tokenised else "raw, not tokenised"
    names = ", ".join(os.path.basename(log) for log in args.logs)
    lines = [f"{names}: {result.sentences} sentences, text is {form}{' (assumed)' if result.tokenised_assumed else ''}"]
    for score in result.scores:
        lines.append(f"{score.metric:<20} {score.line()}")
        lines.append(f"{'':<20} {score.compared}")
        if score.metric in ("sacreBLEU", "chrF"):
            lines.append(f"{'':<20} signature {score.signature}")
    lines += result.remarks
    if args.json:
        write_json(asdict(result), args.json)
    if args.hypotheses:
        lines_of_text = "".join(f"{line}\n" for line in read_generate_log(args.logs).hypotheses)
        write_bytes(gzip.compress(lines_of_text.encode("utf-8"), mtime=0), args.hypotheses)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
