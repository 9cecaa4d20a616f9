"""What heads do: confidence, positions, rare words, syntax, relevance (Voita et al. 2019).

    collab heads roles averaged.pt --data data-bin --split valid --output roles.json
    collab heads roles averaged.pt --data data-bin --parses valid.conllu --importance importance.json
    collab heads roles averaged.pt --data data-bin --split test --maps 0,17 --maps-folder maps

--parses: CoNLL-U of any parser, sentence i for line i of the split's source text; as many as there are, from the first.
Relevance is layer-wise relevance propagation from the largest logit to the heads of the encoder; what is lost on the
way is printed (0 is none). It takes one backward pass for every target position: --relevance-sentences limits it.
"""

import argparse
import logging
import os
import sys
from typing import Any, Dict, List

from collab_fairseq.cli.heads_options import (
    UsageError,
    add_model,
    add_output,
    check_figure,
    data_setting,
    load,
    make_record,
    show_table,
)
from collab_fairseq.records.files import check_targets

HELP = "tell what heads do"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the text, and what else is known of it."""
    add_model(parser, "valid")
    parser.add_argument("--parses", metavar="FILE", help="CoNLL-U of the first sentences, for syntactic heads")
    parser.add_argument("--importance", metavar="FILE", help="result of collab heads importance, for the table")
    parser.add_argument(
        "--relevance-sentences", type=int, default=100, metavar="N", help="0: no relevance (default: 100)"
    )
    parser.add_argument("--epsilon", type=float, default=0.0, metavar="X", help="of the ε-rule (default: 0)")
    parser.add_argument("--maps", metavar="N,N", help="draw the attention of these sentences, counted from 0")
    parser.add_argument("--maps-folder", metavar="DIR", help="where the pictures go: attention-<sentence>-<site>.svg")
    add_output(parser, "draw confidence as heat maps")


def run(args: argparse.Namespace) -> int:
    """Look, print, draw."""
    check_targets(args.output)
    check_figure(args.figure)
    if (args.maps is None) != (args.maps_folder is None):
        raise UsageError("--maps and --maps-folder go together")
    if args.maps_folder:
        check_targets(os.path.join(args.maps_folder, "attention.svg"))
    chosen = _numbers(args.maps)
    if args.relevance_sentences < 0 or args.epsilon < 0:
        raise UsageError("--relevance-sentences and --epsilon must not be negative")
    trained = load(args)
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import figures, maps
    from collab_fairseq.modules.heads import LETTERS

    settings: Dict[str, Any] = {
        **data_setting(args, trained), "relevance_sentences": args.relevance_sentences, "epsilon": args.epsilon,
    }  # fmt: skip
    if args.parses:
        settings["parses"] = file_setting(args.parses)
    record = make_record(args, "roles", settings, str(trained.device))
    found = _measure(args, trained, record)
    _show(args, record, found)
    if args.figure:
        values = {head: numbers["confidence"] for head, numbers in found.items()}
        figures.draw_grids({"": values}, args.figure, label="confidence", limits=(0.0, 1.0))
    for number in chosen:
        drawn = maps.sentence_maps(trained, args.split, number)
        for letter, site in LETTERS.items():
            path = os.path.join(args.maps_folder, f"attention-{number}-{site}.svg")
            maps.draw_maps(drawn, letter, path)
            logger.info("drew %s", path)
    return 0


def _numbers(text: Any) -> List[int]:
    words = [] if text is None else str(text).split(",")
    if not all(word.isdigit() for word in words):
        raise UsageError(f"--maps must be numbers of sentences such as 0,17, got {text!r}")
    return [int(word) for word in words]


def _measure(args: argparse.Namespace, trained: Any, record: Any) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers."""
    from collab_fairseq.heads import relevance, roles, syntax

    found: Dict[str, Dict[str, Any]] = {
        head: dict(numbers)
        for head, numbers in record.part(
            "looks",
            lambda: roles.roles(trained, args.split, max_tokens=args.max_tokens, sentences=args.sentences),
        ).items()
    }
    if args.parses:
        parsed = record.part(
            "syntax",
            lambda: syntax.syntax(
                trained, args.split, syntax.read_conllu(args.parses), max_tokens=args.max_tokens
            )._asdict(),
        )
        for head, relations in parsed["heads"].items():
            found[head]["syntax"] = relations
    if args.relevance_sentences:
        moved = record.part(
            "relevance",
            lambda: relevance.relevance(
                trained, args.split, epsilon=args.epsilon, sentences=args.relevance_sentences,
                max_tokens=min(1000, args.max_tokens),
                progress=lambda done: logger.info("relevance: %d sentences", done),
            )._asdict(),
        )  # fmt: skip
        for head, value in moved["heads"].items():
            found[head]["relevance"] = value
    return found


def _show(args: argparse.Namespace, record: Any, found: Dict[str, Dict[str, Any]]) -> None:
    from collab_fairseq.heads import roles
    from collab_fairseq.modules.heads import in_model
    from collab_fairseq.records import record as records

    ranks: Dict[str, float] = {}
    if args.importance:
        read = records.load(args.importance, "heads", "importance")["parts"]["importance"]["heads"]
        ranks = {head: values["normalised"] for head, values in read.items()}
    rows = [["head", "confidence", "offset", "rare words", "relevance", "importance", "role"]]
    for head in sorted(found, key=in_model):
        numbers = found[head]
        offset = f"{numbers['offset']:+d} ({numbers['positional']:.0%})" if "offset" in numbers else ""
        cells = [numbers.get("rare"), numbers.get("relevance"), ranks.get(head)]
        shown = [f"{value:.3f}" if value is not None else "" for value in cells]
        rows.append([head, f"{numbers['confidence']:.3f}", offset, *shown, roles.role_of(numbers)])
    show_table(rows)
    parts = record.parts
    if "relevance" in parts:
        lost = parts["relevance"]["lost"]
        sys.stdout.write(f"\nrelevance: {lost:.2g} of it is lost, {parts['relevance']['steps']:,} generation steps\n")
    if "syntax" in parts:
        used, skipped = parts["syntax"]["sentences"], parts["syntax"]["skipped"]
        sys.stdout.write(f"\nsyntax: {used:,} parsed sentences; {skipped:,} skipped, whose text is another\n")
