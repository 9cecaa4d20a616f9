"""See, rank, prune and gate heads of a translation model, standard or collaborative.

    collab heads redundancy   what heads share: captured energy of their projections (Cordonnier et al. 2020, Figure 1)
    collab heads importance   what the loss would lose with each head (Michel et al. 2019)
    collab heads ablate       BLEU without each head, or with it alone in its layer, with significance
    collab heads prune        BLEU and loss as ever more heads go; --remove makes a smaller model
    collab heads gates        heads that stochastic gates have closed (Voita et al. 2019), and the model without them
    collab heads roles        what heads do: confidence, positions, rare words, syntax, relevance

Checkpoints are those of fairseq's transformer and of transformer_collab. Heads are named as by Michel et al.: E:1:3,5
are heads 3 and 5 of the first encoder layer, A is encoder-decoder attention, D the decoder's own. Results are JSON
(--output) and pictures (--figure); a long one that was interrupted goes on when started again with the same --output.
"""

import argparse
import importlib
import logging

HELP = "see, rank, prune and gate heads"

COMMANDS = ("redundancy", "importance", "ablate", "prune", "gates", "roles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each analysis."""
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"collab_fairseq.cli.heads_{name}")
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(analyse=module.run)


def run(args: argparse.Namespace) -> int:
    """Run the analysis."""
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # tells of every bootstrap
    return int(args.analyse(args))
