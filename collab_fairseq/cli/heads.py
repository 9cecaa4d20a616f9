"""See, rank, prune and gate heads of a translation model, standard or collaborative.

    collab heads redundancy   what heads share: captured energy of their projections (Cordonnier et al. 2020, Figure 1)
    collab heads importance   what the loss would lose with each head (Michel et al. 2019)
    collab heads ablate       BLEU without each head, or with it alone in its layer, with significance
    collab heads prune        BLEU and loss as ever more heads go; --remove makes a smaller model
    collab heads gates        heads that stochastic gates have closed (Voita et al. 2019), and the model without them
    collab heads roles        what heads do: confidence, positions, rare words, syntax, relevance

Checkpoints are those of fairseq's transformer and of transformer_collab. Heads are named as by Michel et al.: E:1:3,5
are heads 3 and 5 of the first encoder layer, A is encoder-decoder attention, D the decoder's own. Results are
records (--json) and pictures (--figure); an interrupted one resumes when started again with the same --json.
"""

import argparse

from .options import add_commands

HELP = "see, rank, prune and gate heads"

COMMANDS = ("redundancy", "importance", "ablate", "prune", "gates", "roles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, "what", {name: f"heads_{name}" for name in COMMANDS})
