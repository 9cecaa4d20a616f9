"""BLEU without each head, and with each head alone in its layer, with significance (Michel et al. 2019).

    collab heads ablate averaged.pt --data data-bin --reference test=raw/test_2016_flickr.de \\
        --reference test1=raw/test_2017_flickr.de --json ablation.json --figure ablation.svg

The differences come with sacrebleu's paired bootstrap. With two test sets their correlation is printed: Michel et al.
compare newstest2013 with MTNT, where data-bin has them as test and test1:
--reference test=newstest2013.fr --reference test1=mtnt.fr. The figure shows the first test set; a star: p < 0.05.

    collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis         # a Hugging Face model

For a classifier accuracy and McNemar's exact test take the place of BLEU and the bootstrap.
"""

import argparse
import logging
import sys
from typing import Any, Dict

from . import heads_options as shared
from . import options

HELP = "BLEU without each head, or with it alone"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the test sets and what is masked."""
    shared.add_model(parser, None)
    shared.add_tests(parser)
    options.add_sites(parser)
    add = parser.add_argument
    add("--mode", choices=("without", "only", "both"), default="both", help="mask the head, or all others of its layer")
    add("--samples", type=options.positive, default=1000, metavar="N", help="of the bootstrap (default: 1000)")
    shared.add_output(parser, "draw the differences as heat maps")
    shared.add_text(parser)


def run(args: argparse.Namespace) -> int:
    """Translate again and again, print, draw."""
    shared.check_output(args)
    sites = shared.chosen_sites(args)
    folder = shared.is_folder(args)
    if not folder:
        shared.check_tests(args)
    from collab_fairseq.heads import ablation, folders

    modes = ablation.MODES if args.mode == "both" else (args.mode,)

    def progress(split: str, mode: str, head: str, found: Dict[str, Any]) -> None:
        metric = ablation.metric(found)
        logger.info("%s %s %s: %+.2f %s, p = %.3f", split, mode, head, found["difference"], metric, found["p_value"])

    asked: Dict[str, Any] = {"modes": modes, "sites": sites, "search": shared.search_of(args), "samples": args.samples}
    if folder:
        loaded, splits = shared.load_folder(args), ["text"]
        if not loaded.translates:
            options.refuse(args, ("beam", "lenpen", "samples"), "is for models that translate, this one classifies")
        scored = {"search": {"beam": args.beam, "lenpen": args.lenpen}, "samples": args.samples}
        settings = {**shared.text_setting(args), **(scored if loaded.translates else {})}
        record = shared.make_record(args, "ablate", settings, str(loaded.model.device))
        folders.ablate(loaded, record, progress=progress, **asked)
    else:
        trained, tests = shared.load(args), shared.read_tests(args)
        settings = {**shared.test_settings(args, trained), "samples": args.samples}
        record = shared.make_record(args, "ablate", settings, str(trained.device))
        splits = [test.split for test in tests]
        ablation.ablate(trained, tests, record, progress=progress, **asked)
    for mode in modes:
        sys.stdout.write(ablation.report(record.parts, splits, mode))
    if args.figure:
        ablation.draw(record.parts, splits[0], modes, args.figure)
    return 0
