"""What subcommands share: options and their checks, and for `collab heads` loading the model, records, tables."""

import argparse
import logging
import os
import shlex
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.records.files import check_targets

#: flags of fairseq's models that mean nothing for a Hugging Face model's folder, and what they are unless given
_FAIRSEQ_ONLY: Dict[str, Any] = {"data": None, "criterion": None, "form": "sentence", "split": "valid", "test": []}


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


def pair(text: str) -> Tuple[str, str]:
    """SPLIT=FILE, for argparse."""
    split, _, file = text.partition("=")
    if not (split and file):
        raise argparse.ArgumentTypeError(f"expected SPLIT=FILE, got {text!r}")
    return split, file


def add_model(parser: argparse.ArgumentParser, split: Optional[str], several: bool = False) -> None:
    """The checkpoint, its data, and how it is run; ``split``: the default of --split; ``several``: checkpoints."""
    add, number = parser.add_argument, "+" if several else None
    add("checkpoint", metavar="CHECKPOINT", nargs=number, help="of fairseq's transformer or of transformer_collab")
    add("--data", metavar="DATA_BIN", help="its data-bin (default: the one named in the checkpoint)")
    if split is not None:
        add("--split", default=split, help=f"train, valid, test, test1, … (default: {split})")
        add("--sentences", type=positive, metavar="N", help="only the first N (default: all)")
    add("--max-tokens", type=positive, default=4000, metavar="N", help="per batch (default: 4000)")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, … (default: cuda if any)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: torch's)")
    add("--seed", type=int, default=1, help="of the order of sentences (default: 1)")


def add_text(parser: argparse.ArgumentParser) -> None:
    """Labelled text for a Hugging Face model's folder."""
    group = parser.add_argument_group("a Hugging Face model's folder in place of CHECKPOINT")
    add = group.add_argument
    add("--text", metavar="FILE.jsonl", help="examples: JSON objects, one a line")
    add("--fields", default="text", metavar="NAME[,NAME]", help="of its one or two texts (default: text)")
    add("--label", default="label", metavar="NAME", help="of its labels, or of the translations (default: label)")
    add("--batch-size", type=positive, default=32, metavar="N", help="examples per batch (default: 32)")


def add_text_units(parser: argparse.ArgumentParser) -> None:
    """How raw text becomes a model's units."""
    group = parser.add_argument_group("how text becomes the model's units (a model folder says so itself)")
    add = group.add_argument
    text = "SentencePiece model (default: sentencepiece.model in the data-bin or beside it)"
    add("--sentencepiece", metavar="FILE", help=text)
    add("--bpe-codes", metavar="FILE", help="codes of subword-nmt")
    add("--moses", action="store_true", help="the text was tokenised with Moses before")
    add("--lowercase", action="store_true", help="and lower-cased")


def quiet() -> None:
    """Of fairseq's messages only warnings."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)


def is_folder(args: argparse.Namespace) -> bool:
    """Whether a Hugging Face model was given; flags that belong to the other kind of model are refused."""
    folder = os.path.isdir(args.checkpoint)
    if not folder and args.text is not None:
        raise UsageError(f"--text is for a Hugging Face model's folder, but {args.checkpoint} is none")
    if folder:
        if args.text is None:
            raise UsageError(f"{args.checkpoint} is a folder, so a Hugging Face model, and needs --text FILE.jsonl")
        for name, default in _FAIRSEQ_ONLY.items():
            if getattr(args, name, default) != default:
                raise UsageError(f"--{name} is for checkpoints of fairseq; a Hugging Face model's folder takes --text")
    return folder


def add_sites(parser: argparse.ArgumentParser, what: str = "whose heads") -> None:
    """--sites"""
    text = f"{what}: encoder, cross, decoder joined by _ (default: %(default)s)"
    parser.add_argument("--sites", default="encoder_cross_decoder", metavar="SITES", help=text)


def chosen_sites(args: argparse.Namespace) -> List[str]:
    """The sites of --sites, in the order of the model."""
    from collab_fairseq.modules.settings import SITES, parse_sites

    sites = parse_sites(args.sites, "--sites")
    if not sites:
        raise UsageError("--sites must name at least one of encoder, cross and decoder, got none")
    return [site for site in SITES if site in sites]


def add_tests(parser: argparse.ArgumentParser, required: bool, sentences: bool = True) -> None:
    """Test sets with their references, and beam search."""
    add = parser.add_argument
    text = "a split of the data-bin and its raw references, one a line, such as test=test.de; repeatable"
    add("--test", action="append", default=[], required=required, metavar="SPLIT=FILE", help=text)
    if sentences:
        add("--sentences", type=positive, metavar="N", help="only the first N of each (default: all)")
    add("--beam", type=positive, default=5, metavar="N", help="of the search (default: 5)")
    add("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")


def read_tests(args: argparse.Namespace) -> List[Any]:
    """The test sets of --test."""
    from collab_fairseq.heads.evaluation import read_test_set

    tests: List[Any] = []
    for text in args.test:
        split, mark, path = text.partition("=")
        if not (split and mark and path):
            raise UsageError(f"--test must be SPLIT=FILE, such as test=test.de, got {text!r}")
        if split in [test.split for test in tests]:
            raise UsageError(f"--test names {split} twice")
        tests.append(read_test_set(split, path, args.sentences))
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


def load_folder(args: argparse.Namespace) -> Any:
    """The Hugging Face model that the options name, and its text."""
    device = choose_device(args)
    from collab_fairseq.heads import folders

    return folders.load(
        args.checkpoint, args.text, args.fields.split(","), args.label, sentences=args.sentences,
        batch_size=args.batch_size, device=device,
    )  # fmt: skip


def text_setting(args: argparse.Namespace) -> Dict[str, Any]:
    """The text of a Hugging Face model as settings."""
    from collab_fairseq.checkpoints import file_setting

    return {"text": file_setting(args.text), "fields": args.fields, "label": args.label, "sentences": args.sentences}


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
