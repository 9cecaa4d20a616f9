"""See, rank, prune and gate heads of a translation model, standard or collaborative.

    collab heads redundancy   what heads share: captured energy of their projections (Cordonnier et al. 2020, Figure 1)
    collab heads importance   sensitivity of the loss to each head (Michel et al. 2019)
    collab heads ablate       BLEU without each head, or with it alone in its layer, with significance
    collab heads prune        BLEU and loss as ever more heads go; --remove makes a smaller model
    collab heads gates        heads that stochastic gates have closed (Voita et al. 2019), and the model without them
    collab heads roles        what heads do: confidence, positions, rare words, syntax, relevance

Checkpoints are those of fairseq's transformer and of transformer_collab. Heads are named as by Michel et al.: E:1:3,5
are heads 3 and 5 of the first encoder layer, A is encoder-decoder attention, D the decoder's own. Results are
records (--json) and pictures (--figure); an interrupted one resumes when started again with the same --json.
"""

import argparse
import inspect
from functools import partial
from typing import Any, Callable, Dict, NamedTuple, Tuple

from . import heads_analyses as analyses
from .heads_options import add_model, add_output, add_tests, add_text, check_output
from .options import add_sites

HELP = "see, rank, prune and gate heads"

Flag = Callable[[argparse.ArgumentParser], Any]


class Analysis(NamedTuple):
    """A subcommand: its line in the list of subcommands, what it does, and functions that add its flags to a parser."""

    help: str
    run: Callable[[argparse.Namespace], None]
    flags: Tuple[Flag, ...]


def flag(*names: str, **options: Any) -> Flag:
    """A flag of one analysis; ``options``: of ``add_argument``."""
    return lambda parser: parser.add_argument(*names, **options)


ANALYSES: Dict[str, Analysis] = {
    "redundancy": Analysis(
        "what heads share",
        analyses.redundancy,
        (
            flag("checkpoint", metavar="CHECKPOINT", help="of fairseq, or a Hugging Face model's folder"),
            partial(add_output, figure="draw the captured energy"),
        ),
    ),
    "importance": Analysis(
        "rank heads by the gradient of the loss",
        analyses.importance,
        (
            partial(add_model, split="valid"),
            flag("--form", choices=("sentence", "token"), default="sentence", help="default: sentence"),
            partial(add_output, figure="draw heat maps"),
            add_text,
        ),
    ),
    "ablate": Analysis(
        "BLEU without each head, or with it alone",
        analyses.ablate,
        (
            add_model,
            add_tests,
            add_sites,
            flag(
                "--mode",
                choices=("without", "only", "both"),
                default="both",
                help="mask the head, or all others of its layer",
            ),
            partial(add_output, figure="draw the differences as heat maps"),
            add_text,
        ),
    ),
    "prune": Analysis(
        "prune heads in the order of their importance",
        analyses.prune,
        (
            partial(add_model, split="valid", several=True),
            flag("--importance", metavar="FILE", help="result of collab heads importance for this checkpoint"),
            partial(add_tests, sentences=False),
            add_sites,
            flag(
                "--ranking",
                choices=("normalised", "raw"),
                default="normalised",
                help="of the heads (default: normalised)",
            ),
            flag("--by-site", action="store_true", help="also prune each of the --sites alone"),
            flag("--remove", metavar="PERCENT|HEADS", help="cut these heads out instead"),
            partial(add_output, figure="draw the curves", checkpoint="where --remove writes the smaller checkpoint"),
        ),
    ),
    "gates": Analysis(
        "show what gates have closed, and remove it",
        analyses.gates,
        (
            flag("checkpoint", metavar="CHECKPOINT", help="trained with --head-gates"),
            partial(
                add_output,
                figure="draw P(open) as heat maps",
                checkpoint="where the checkpoint without gates and closed heads goes",
            ),
        ),
    ),
    "roles": Analysis(
        "show what heads do",
        analyses.roles,
        (
            partial(add_model, split="valid"),
            flag("--parses", metavar="FILE", help="CoNLL-U of the first sentences, for syntactic heads"),
            flag("--importance", metavar="FILE", help="result of collab heads importance, for the table"),
            flag("--relevance-sentences", type=int, default=100, metavar="N", help="0: no relevance (default: 100)"),
            partial(add_output, figure="draw confidence as heat maps"),
        ),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, analysis in ANALYSES.items():
        command = commands.add_parser(
            name,
            help=analysis.help,
            description=inspect.getdoc(analysis.run),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run, parser=command)
        for add in analysis.flags:
            add(command)


def run(args: argparse.Namespace) -> int:
    check_output(args)
    ANALYSES[args.what].run(args)
    return 0
