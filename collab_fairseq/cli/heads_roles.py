"""What heads do: confidence, positions, rare words, syntax, relevance (Voita et al. 2019).

    collab heads roles averaged.pt --data data-bin --split valid --json roles.json
    collab heads roles averaged.pt --data data-bin --parses valid.conllu --importance importance.json

--parses: CoNLL-U of any parser, sentence i for line i of the split's source text; as many as there are, from the first.
Relevance is layer-wise relevance propagation from the largest logit to the heads of the encoder. It takes one backward
pass for every target position: --relevance-sentences limits it.
"""

import argparse
import sys
from typing import Any, Dict

from . import heads_options as shared
from . import options

HELP = "tell what heads do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model(parser, "valid")
    add = parser.add_argument
    add("--parses", metavar="FILE", help="CoNLL-U of the first sentences, for syntactic heads")
    add("--importance", metavar="FILE", help="result of collab heads importance, for the table")
    add("--relevance-sentences", type=int, default=100, metavar="N", help="0: no relevance (default: 100)")
    shared.add_output(parser, "draw confidence as heat maps")


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    if args.relevance_sentences < 0:
        raise options.UsageError(f"--relevance-sentences must not be negative, got {args.relevance_sentences}")
    trained = shared.load(args)
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import importance, roles

    settings: Dict[str, Any] = shared.data_setting(args, trained)
    settings["relevance_sentences"] = args.relevance_sentences
    if args.parses:
        settings["parses"] = file_setting(args.parses)
    record = shared.make_record(args, "roles", settings, trained.device)
    found = roles.measure(
        trained, args.split, record, parses=args.parses, relevance_sentences=args.relevance_sentences,
        max_tokens=args.max_tokens, sentences=args.sentences,
    )  # fmt: skip
    ranks = importance.read(args.importance, "normalised") if args.importance else {}
    shared.show_table(roles.rows(found, ranks))
    if "relevance" in record.parts:
        sys.stdout.write(f"\nrelevance: {record.parts['relevance']['steps']:,} generation steps\n")
    if "syntax" in record.parts:
        part = record.parts["syntax"]
        skipped = f"{part['skipped']:,} skipped, whose text is another"
        sys.stdout.write(f"\nsyntax: {part['sentences']:,} parsed sentences; {skipped}\n")
    shared.draw_heads(args, {head: numbers["confidence"] for head, numbers in found.items()}, "confidence")
    return 0
