"""BLEU without each head, and with each head alone in its layer, with significance (Michel et al. 2019).

    collab heads ablate averaged.pt --data data-bin --test test=raw/test_2016_flickr.de \\
        --test test1=raw/test_2017_flickr.de --output ablation.json --figure ablation.svg

The differences come with sacrebleu's paired bootstrap. With two test sets their correlation is printed: Michel et al.
compare newstest2013 with MTNT, where data-bin has them as test and test1:
--test test=newstest2013.fr --test test1=mtnt.fr. The figure shows the first test set; a star: p < 0.05.

    collab heads ablate my-bert --text mnli.jsonl --fields premise,hypothesis         # a Hugging Face model

For a classifier accuracy and McNemar's exact test take the place of BLEU and the bootstrap.
"""

import argparse
import logging
import sys
from typing import Any, Dict

from collab_fairseq.cli import options
from collab_fairseq.records.files import check_targets

HELP = "BLEU without each head, or with it alone"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the test sets and what is masked."""
    options.add_model(parser, None)
    options.add_tests(parser, required=False)
    options.add_sites(parser)
    add = parser.add_argument
    add("--mode", choices=("without", "only", "both"), default="both", help="mask the head, or all others of its layer")
    add("--samples", type=options.positive, default=1000, metavar="N", help="of the bootstrap (default: 1000)")
    options.add_output(parser, "draw the differences as heat maps")
    options.add_text(parser)


def run(args: argparse.Namespace) -> int:
    """Translate again and again, print, draw."""
    check_targets(args.output)
    options.check_figure(args.figure)
    sites = options.chosen_sites(args)
    folder = options.is_folder(args)
    if not folder and not args.test:
        raise options.UsageError("--test SPLIT=FILE is needed: a split and its raw references, such as test=test.de")
    from collab_fairseq.heads import ablation, folders

    modes = ablation.MODES if args.mode == "both" else (args.mode,)

    def progress(split: str, mode: str, head: str, found: Dict[str, Any]) -> None:
        metric = ablation.metric(found)
        logger.info("%s %s %s: %+.2f %s, p = %.3f", split, mode, head, found["difference"], metric, found["p_value"])

    asked: Dict[str, Any] = {"modes": modes, "sites": sites, "search": options.search_of(args), "samples": args.samples}
    if folder:
        loaded, splits = options.load_folder(args), ["text"]
        scored = {"search": {"beam": args.beam, "lenpen": args.lenpen}, "samples": args.samples}
        settings = {**options.text_setting(args), **(scored if loaded.translates else {})}
        record = options.make_record(args, "ablate", settings, str(loaded.model.device))
        folders.ablate(loaded, record, progress=progress, **asked)
    else:
        trained, tests = options.load(args), options.read_tests(args)
        settings = {**options.test_settings(args, trained, tests), "samples": args.samples}
        record = options.make_record(args, "ablate", settings, str(trained.device))
        splits = [test.split for test in tests]
        ablation.ablate(trained, tests, record, progress=progress, **asked)
    for mode in modes:
        sys.stdout.write(ablation.report(record.parts, splits, mode))
    if args.figure:
        ablation.draw(record.parts, splits[0], modes, args.figure)
    return 0
