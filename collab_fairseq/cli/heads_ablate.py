"""BLEU without each head, and with each head alone in its layer, with significance (Michel et al. 2019).

    collab heads ablate averaged.pt --data data-bin --reference test=raw/test_2016_flickr.de \\
        --reference test1=raw/test_2017_flickr.de --json ablation.json --figure ablation.svg

The differences come with the p of a paired bootstrap. With two test sets their correlation is printed: Michel et al.
compare newstest2013 with MTNT, where data-bin has them as test and test1:
--reference test=newstest2013.fr --reference test1=mtnt.fr. The figure shows the first test set; a star: p < 0.05.

    collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis         # a Hugging Face model

For a classifier accuracy and McNemar's exact test take the place of BLEU and the bootstrap.
"""

import argparse
import sys
from typing import Any, Dict

from . import heads_options as shared
from . import options

HELP = "BLEU without each head, or with it alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model(parser, None)
    shared.add_tests(parser)
    options.add_sites(parser)
    add = parser.add_argument
    add("--mode", choices=("without", "only", "both"), default="both", help="mask the head, or all others of its layer")
    shared.add_output(parser, "draw the differences as heat maps")
    shared.add_text(parser)


def run(args: argparse.Namespace) -> int:
    shared.check_output(args)
    from collab_fairseq.heads import ablation, attention_hooks, huggingface
    from collab_fairseq.scoring.significance import METHOD

    modes = list(ablation.MODES) if args.mode == "both" else [args.mode]
    asked: Dict[str, Any] = {"modes": modes, "sites": attention_hooks.sites(args.sites)}
    if shared.is_folder(args):
        (loaded, settings), splits = shared.load_folder(args), ["text"]
        if huggingface.translates(loaded.model):
            search = {"beam": args.beam, "lenpen": args.lenpen}
            settings.update(search=search, p=METHOD)
            asked.update(search)
        else:
            options.refuse(args, ("beam", "lenpen"), "is for models that translate, this one classifies")
        record = shared.make_record(args, "ablate", settings, loaded.model.device)
        huggingface.ablate(loaded, record, **asked)
    else:
        tests = shared.read_tests(args)
        trained, splits = shared.load(args), [test.split for test in tests]
        record = shared.make_record(args, "ablate", shared.test_settings(args, trained), trained.device)
        ablation.ablate(trained, tests, record, **asked)
    for mode in modes:
        sys.stdout.write(ablation.report(record.parts, splits, mode))
    if args.figure:
        ablation.draw(record.parts, splits[0], modes, args.figure)
    return 0
