"""Analyse, prune and gate the attention heads of a translation model, standard or collaborative.

Checkpoints are those of fairseq's transformer and of transformer_collab; redundancy, importance,
ablate and prune also take Hugging Face model folders. Head names follow Michel et al. (2019): E:1:3,5 means
heads 3 and 5 of the first encoder layer; A is encoder-decoder attention and D decoder
self-attention. --json writes the results to a record and --figure draws them. The same command with
the same --json resumes an interrupted analysis.
"""

import argparse
from typing import Optional

from collab_fairseq.files import check_writable
from collab_fairseq.records.drawing import add_figure_flags, figure_file

from .options import add_command, add_machine, add_sites, check_new, checkpoint, pair, positive

HELP = "analyse, prune and gate attention heads"
OR_FOLDER = ", or a Hugging Face model folder"

#: analysis → its description; the first line is also its help in the list of analyses
ANALYSES = {
    "redundancy": """\
Measure the captured energy of W_Q, W_K and W_Q W_K' (Cordonnier et al. 2020, Figure 1)

    collab heads redundancy averaged.pt --figure redundancy.svg --json redundancy.json
    collab heads redundancy my-bert --figure redundancy.svg

Prints the number of principal components that capture 90, 95 and 99 % of the energy, of all heads of
a layer together and of the mean head. The record also contains the cosine similarities of mixing
vectors and the effective number of key dimensions of each head.
""",
    "importance": """\
Measure the sensitivity of the loss to each head (Michel et al. 2019)

    collab heads importance averaged.pt --data data-bin --json importance.json
    collab heads importance my-bert --text mnli.jsonl --fields premise,hypothesis

Importance is the mean of |∂L/∂ξ_h|, where ξ_h is a multiplier on the output of head h. --form
sentence takes the absolute value per sentence, as in the paper; --form token takes it per token, as
in the authors' code. Values are divided by their l2 norm over the heads of a layer.
""",
    "ablate": """\
Measure BLEU without each head and with only that head (Michel et al. 2019)

    collab heads ablate averaged.pt --data data-bin --reference test=test_2016_flickr.de \\
        --reference test1=test_2017_flickr.de --json ablation.json --figure ablation.svg
    collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis

p values come from a paired bootstrap. With two test sets, the correlation of the differences is
printed. The figure shows the first test set and frames differences with p < 0.05. Classifiers are
evaluated by accuracy and McNemar's exact test.
""",
    "prune": """\
Measure BLEU and loss as the least important heads are masked, or remove heads (Michel et al. 2019)

    collab heads prune averaged.pt --data data-bin --reference test=test.de --figure pruning.svg
    collab heads prune checkpoints/checkpoint{1,2,5,10}.pt --reference test=test.de
    collab heads prune averaged.pt --remove 40 --output pruned.pt
    collab heads prune averaged.pt --remove 'E:1:3,5 A:2:1' --output pruned.pt
    collab heads prune my-bert --text mnli.jsonl --fields premise,hypothesis --random-orders 3

Importance is computed on --split or --text as by `collab heads importance`, or read from its record.
It is normalised per layer, as in the paper, unless --ranking raw. Each of several checkpoints has its
own curve; --random-orders adds curves for comparison. Classifiers are evaluated by accuracy.

--remove takes a percentage of the heads or their names, and writes a smaller checkpoint that is
equivalent to the model with these heads masked. fairseq-generate and the other tools load it with
--user-dir. fairseq-train continues training it with --attention-from pruned.pt
--finetune-from-model pruned.pt and the source model's flags for layers, d_model, feed-forward and heads.
""",
    "gates": """\
List the heads closed by stochastic gates, or remove them (Voita et al. 2019)

    fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab … \\
        --attention-from averaged.pt --finetune-from-model averaged.pt --head-gates encoder_cross_decoder \\
        --criterion label_smoothed_cross_entropy_with_gates --gate-penalty 0.02
    collab heads gates checkpoint_last.pt
    collab heads gates checkpoint_last.pt --output pruned.pt

A gate is open if log alpha > 0. The checkpoint in --output has neither gates nor closed heads and is
equivalent to the gated model in evaluation mode. Training continues from it in the same way as from
`collab heads prune --remove`.
""",
    "roles": """\
Measure confidence, position, rare words, syntax and relevance of each head (Voita et al. 2019)

    collab heads roles averaged.pt --data data-bin --split valid --json roles.json
    collab heads roles averaged.pt --data data-bin --parses valid.conllu

Sentence i of --parses is the parse of source line i of --split; the last ones may be missing.
Relevance is layer-wise relevance propagation from the largest logit to the encoder heads, with one
backward pass per target position.
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="analysis", metavar="ANALYSIS", required=True)
    parsers = {name: add_command(commands, name, description, run) for name, description in ANALYSES.items()}

    command = parsers["redundancy"]
    text = "fairseq checkpoint, its model folder, or Hugging Face model folder"
    command.add_argument("checkpoint", metavar="CHECKPOINT", help=text)
    _add_output(command, "draw the captured energy")

    command = parsers["importance"]
    _add_model(command, also=OR_FOLDER)
    _add_split(command)
    text = "absolute gradients per sentence or per token (default: sentence)"
    command.add_argument("--form", choices=("sentence", "token"), default="sentence", help=text)
    _add_output(command, "draw heat maps")
    _add_labelled_text(command)

    command = parsers["ablate"]
    _add_model(command, also=OR_FOLDER)
    _add_tests(command)
    add_sites(command)
    text = "mask the head, mask all other heads of its layer, or do both (default: both)"
    command.add_argument("--mode", choices=("without", "only", "both"), default="both", help=text)
    _add_output(command, "draw the differences as heat maps")
    _add_labelled_text(command)

    command = parsers["prune"]
    _add_model(command, nargs="+", also=OR_FOLDER)
    _add_split(command)
    _add_importance(command)
    _add_tests(command)
    add_sites(command)
    text = "importance by which heads are ranked (default: normalised)"
    command.add_argument("--ranking", choices=("normalised", "raw"), default="normalised", help=text)
    command.add_argument("--by-site", action="store_true", help="also prune each attention site separately")
    text = "also prune in N random orders, those of the seeds 1 to N (default: 0)"
    command.add_argument("--random-orders", type=int, default=0, metavar="N", help=text)
    text = "instead of measuring, remove this percentage of the heads, the least important, or these heads"
    command.add_argument("--remove", metavar="PERCENT|HEADS", help=text)
    _add_output(command, "draw the curves")
    _add_checkpoint_output(command, "smaller checkpoint that --remove writes, a new file")
    _add_labelled_text(command)

    command = parsers["gates"]
    command.add_argument("checkpoint", metavar="CHECKPOINT", help="trained with --head-gates")
    _add_output(command, "draw P(open) as heat maps")
    _add_checkpoint_output(command, "checkpoint without gates and closed heads")

    command = parsers["roles"]
    _add_model(command)
    _add_split(command)
    text = "CoNLL-U parses of the first source sentences, for syntactic heads"
    command.add_argument("--parses", metavar="FILE", help=text)
    _add_importance(command)
    text = "number of sentences for relevance; 0: no relevance (default: 100)"
    command.add_argument("--relevance-sentences", type=int, default=100, metavar="N", help=text)
    _add_output(command, "draw confidence as heat maps")


def _add_model(parser: argparse.ArgumentParser, nargs: Optional[str] = None, also: str = "") -> None:
    add = parser.add_argument
    text = "checkpoint of fairseq's transformer or of transformer_collab, or its model folder"
    add("checkpoint", metavar="CHECKPOINT", nargs=nargs, help=text + also)
    add("--data", metavar="DATA_BIN", help="data-bin of the model (default: the one named in the checkpoint)")
    add("--sentences", type=positive, metavar="N", help="only the first N sentences (default: all)")
    add("--max-tokens", type=positive, default=4000, metavar="N", help="maximum tokens per batch (default: 4000)")
    add_machine(parser)


def _add_split(parser: argparse.ArgumentParser) -> None:
    text = "split of the data-bin to analyse: train, valid, test, test1, … (default: valid)"
    parser.add_argument("--split", default="valid", metavar="SPLIT", help=text)


def _add_tests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "test split of the data-bin and its raw references, one per line, such as test=test.de; repeatable"
    add("--reference", action="append", default=[], type=pair, metavar="SPLIT=FILE", help=text)
    add("--beam", type=positive, default=5, metavar="N", help="beam size (default: 5)")
    add("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")


def _add_importance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--importance", metavar="FILE", help="record of `collab heads importance` for this checkpoint")


def _add_labelled_text(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Hugging Face models (CHECKPOINT is a folder)")
    add = group.add_argument
    add("--text", metavar="FILE.jsonl", help="labelled examples, one JSON object per line")
    add("--fields", default="text", metavar="NAME[,NAME]", help="fields with the one or two texts (default: text)")
    add("--label", default="label", metavar="NAME", help="field with the label or the translation (default: label)")
    add("--batch-size", type=positive, default=32, metavar="N", help="examples per batch (default: 32)")


def _add_output(parser: argparse.ArgumentParser, figure: str) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the record; an existing record is resumed")
    add_figure_flags(parser, figure)


def _add_checkpoint_output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--output", metavar="FILE.pt", help=text)
    parser.add_argument("--empty-layers", action="store_true", help="with --output: layers may lose all heads")


def run(args: argparse.Namespace) -> int:
    check_writable(args.json)
    args.figure = figure_file(args)
    several = isinstance(args.checkpoint, list)
    args.checkpoints = [checkpoint(path) for path in (args.checkpoint if several else [args.checkpoint])]
    args.checkpoint = args.checkpoints if several else args.checkpoints[0]
    output = getattr(args, "output", None)
    if output:
        check_new(output)
    from . import heads_analyses  # imports torch and fairseq

    getattr(heads_analyses, args.analysis)(args)
    return 0
