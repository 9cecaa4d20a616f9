"""What the subcommands of `collab heads` share: options, loading the model, records, tables."""

import argparse
import os
import shlex
import sys
from typing import Any, Dict, List, Optional, Sequence

from collab_fairseq.records.files import check_targets


class UsageError(ValueError):
    """Flags that cannot be followed."""

    user_error = True


def positive(text: str) -> int:
    """A whole number above zero, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def add_output(parser: argparse.ArgumentParser, figure: str) -> None:
    """--output and --figure."""
    parser.add_argument("--output", metavar="FILE.json", help="where the result goes; one that is there is continued")
    parser.add_argument("--figure", metavar="FILE", help=f"{figure}: FILE.svg or FILE.png")


def add_model(parser: argparse.ArgumentParser, split: Optional[str], several: bool = False) -> None:
    """The checkpoint, its data, and how it is run; ``split``: the default of --split; ``several``: checkpoints."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        nargs="+" if several else None,
        help="of fairseq's transformer or of transformer_collab",
    )
    parser.add_argument("--data", metavar="DATA_BIN", help="its data-bin (default: the one named in the checkpoint)")
    if split is not None:
        parser.add_argument("--split", default=split, help=f"train, valid, test, test1, … (default: {split})")
        parser.add_argument("--sentences", type=positive, metavar="N", help="only the first N (default: all)")
    parser.add_argument("--max-tokens", type=positive, default=4000, metavar="N", help="per batch (default: 4000)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, … (default: cuda if any)")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of sentences (default: 1)")


def add_sites(parser: argparse.ArgumentParser) -> None:
    """--sites"""
    parser.add_argument(
        "--sites",
        default="encoder_cross_decoder",
        metavar="SITES",
        help="whose heads: encoder, cross, decoder joined by _ (default: encoder_cross_decoder)",
    )


def chosen_sites(args: argparse.Namespace) -> List[str]:
    """The sites of --sites, in the order of the model."""
    from collab_fairseq.modules.settings import SITES, parse_sites

    sites = parse_sites(args.sites, "--sites")
    if not sites:
        raise UsageError("--sites must name at least one of encoder, cross and decoder, got none")
    return [site for site in SITES if site in sites]


def add_tests(parser: argparse.ArgumentParser, required: bool, sentences: bool = True) -> None:
    """Test sets with their references, and beam search."""
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        required=required,
        metavar="SPLIT=FILE",
        help="a split of the data-bin and its raw references, one a line, such as test=test.de; repeatable",
    )
    if sentences:
        parser.add_argument("--sentences", type=positive, metavar="N", help="only the first N of each (default: all)")
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="of the search (default: 5)")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")


def read_tests(args: argparse.Namespace, trained: Any) -> List[Any]:
    """The test sets of --test."""
    from collab_fairseq.heads.evaluation import read_test_set

    tests: List[Any] = []
    for text in args.test:
        split, mark, path = text.partition("=")
        if not (split and mark and path):
            raise UsageError(f"--test must be SPLIT=FILE, such as test=test.de, got {text!r}")
        if split in [test.split for test in tests]:
            raise UsageError(f"--test names {split} twice")
        tests.append(read_test_set(split, path, trained.task.cfg.target_lang, args.sentences))
    return tests


def search_of(args: argparse.Namespace) -> Any:
    """Beam search as the options say."""
    from collab_fairseq.heads.evaluation import Search

    return Search(args.beam, args.lenpen, args.max_tokens)


def test_settings(args: argparse.Namespace, trained: Any, tests: Sequence[Any]) -> Dict[str, Any]:
    """The test sets and the search as settings of a record."""
    from collab_fairseq.checkpoints import file_setting

    files = {text.partition("=")[0]: file_setting(text.partition("=")[2]) for text in args.test}
    return {
        "tests": [{**data_setting(args, trained, test.split), "references": files[test.split]} for test in tests],
        "search": {"beam": args.beam, "lenpen": args.lenpen},
    }


def check_distinct(result: Optional[str], source: str, flag: str) -> None:
    """A result does not overwrite the checkpoint that it is made from."""
    if result and os.path.exists(result) and os.path.exists(source) and os.path.samefile(result, source):
        raise UsageError(f"{flag} {result} is the checkpoint itself and would overwrite it")


def check_figure(path: Optional[str]) -> None:
    """A figure can be written, and its name has an ending that can be drawn."""
    check_targets(path)
    if path and not path.lower().endswith((".png", ".svg")):
        raise UsageError(f"--figure must end in .png or .svg, got {path}")


def choose_device(args: argparse.Namespace) -> str:
    """The name of the device; sets the threads too."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device {args.device} needs a GPU that torch can use, but torch finds none here")
    return str(args.device)


def load(args: argparse.Namespace, path: Optional[str] = None) -> Any:
    """The model that the options name, or another checkpoint with their data."""
    device = choose_device(args)
    from collab_fairseq.translation import load_model

    path = path or checkpoints_of(args)[0]
    return load_model(path, args.data, device=device, seed=args.seed)


def data_setting(args: argparse.Namespace, trained: Any, split: Optional[str] = None) -> Dict[str, Any]:
    """The text as a setting: the split (default: --split), how much of it, and the sums of both sides."""
    from collab_fairseq.checkpoints import file_setting

    task, split = trained.task.cfg, split or args.split
    stem = os.path.join(task.data, f"{split}.{task.source_lang}-{task.target_lang}")
    files = [f"{stem}.{lang}.bin" for lang in (task.source_lang, task.target_lang)]
    sums = [file_setting(path) for path in files if os.path.exists(path)]
    return {"split": split, "text": sums, "sentences": args.sentences}


def checkpoints_of(args: argparse.Namespace) -> List[str]:
    """CHECKPOINT, one or several."""
    return args.checkpoint if isinstance(args.checkpoint, list) else [args.checkpoint]


def make_record(args: argparse.Namespace, name: str, settings: Dict[str, Any], device: str = "cpu") -> Any:
    """The result's record; ``settings`` on top of the checkpoint's name and sum."""
    import torch

    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.records.record import Record

    files = [file_setting(path) for path in checkpoints_of(args)]
    kind = "gpu" if device.startswith("cuda") else "cpu"
    return Record(
        "heads",
        name,
        shlex.join(["collab", *sys.argv[1:]]),
        {"checkpoint": files[0] if len(files) == 1 else files, **settings},
        args.output,
        device=kind,
        threads=torch.get_num_threads(),
    )


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first being the header, in Markdown."""
    from collab_fairseq.records import pages

    sys.stdout.write(pages.table(rows) + "\n")
