"""What heads do: confidence, positions, rare words, syntax, relevance (Voita et al. 2019).

    collab heads roles averaged.pt --data data-bin --split valid --json roles.json
    collab heads roles averaged.pt --data data-bin --parses valid.conllu --importance importance.json
    collab heads roles averaged.pt --data data-bin --split test --maps 0,17 --maps-folder maps

--parses: CoNLL-U of any parser, sentence i for line i of the split's source text; as many as there are, from the first.
Relevance is layer-wise relevance propagation from the largest logit to the heads of the encoder; what is lost on the
way is printed (0 is none). It takes one backward pass for every target position: --relevance-sentences limits it.
"""

import argparse
import os
import sys
from typing import Any, Dict

from collab_fairseq.records.files import check_targets

from . import heads_options as shared
from . import options

HELP = "tell what heads do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model(parser, "valid")
    add = parser.add_argument
    add("--parses", metavar="FILE", help="CoNLL-U of the first sentences, for syntactic heads")
    add("--importance", metavar="FILE", help="result of collab heads importance, for the table")
    add("--relevance-sentences", type=int, default=100, metavar="N", help="0: no relevance (default: 100)")
    add("--epsilon", type=float, default=0.0, metavar="X", help="of the ε-rule (default: 0)")
    add("--maps", metavar="N,N", help="draw the attention of these sentences, counted from 0")
    add("--maps-folder", metavar="DIR", help="where the pictures go: attention-<sentence>-<site>.svg")
    shared.add_output(parser, "draw confidence as heat maps")


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    if (args.maps is None) != (args.maps_folder is None):
        raise options.UsageError("--maps and --maps-folder go together")
    if args.maps_folder:
        check_targets(os.path.join(args.maps_folder, "attention.svg"))
    chosen = args.maps.split(",") if args.maps is not None else []
    if not all(number.isdigit() for number in chosen):
        raise options.UsageError(f"--maps must be numbers of sentences such as 0,17, got {args.maps!r}")
    if args.relevance_sentences < 0 or args.epsilon < 0:
        raise options.UsageError("--relevance-sentences and --epsilon must not be negative")
    if args.relevance_sentences == 0:
        options.refuse(args, ("epsilon",), "is of relevance, which --relevance-sentences 0 leaves out")
    trained = shared.load(args)
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import importance, role_table

    settings: Dict[str, Any] = {name: getattr(args, name) for name in ("relevance_sentences", "epsilon")}
    settings.update(shared.data_setting(args, trained))
    if args.parses:
        settings["parses"] = file_setting(args.parses)
    record = shared.make_record(args, "roles", settings, trained.device)
    found = role_table.measure(
        trained, args.split, record, parses=args.parses, relevance_sentences=args.relevance_sentences,
        epsilon=args.epsilon, max_tokens=args.max_tokens, sentences=args.sentences,
    )  # fmt: skip
    ranks = importance.read(args.importance, "normalised") if args.importance else {}
    shared.show_table(role_table.rows(found, ranks))
    if "relevance" in record.parts:
        part = record.parts["relevance"]
        sys.stdout.write(f"\nrelevance: {part['lost']:.2g} of it is lost, {part['steps']:,} generation steps\n")
    if "syntax" in record.parts:
        part = record.parts["syntax"]
        skipped = f"{part['skipped']:,} skipped, whose text is another"
        sys.stdout.write(f"\nsyntax: {part['sentences']:,} parsed sentences; {skipped}\n")
    shared.draw_heads(args, {head: numbers["confidence"] for head, numbers in found.items()}, "confidence")
    for number in map(int, chosen):
        role_table.draw_maps(role_table.sentence_maps(trained, args.split, number), number, args.maps_folder)
    return 0
