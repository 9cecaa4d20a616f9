"""What the analyses of `collab heads` share: their flags, the model and its text, the record, what is shown."""

import argparse
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from collab_fairseq.records.drawing import check_figure
from collab_fairseq.records.files import check_writable
from fairseq_modern.errors import UserError

from .options import add_machine, check_distinct, choose_device, command, pair, positive, refuse

#: flags that mean nothing for a Hugging Face model's folder, and those that mean nothing for anything else
_FAIRSEQ_ONLY = ("data", "split", "reference", "form", "max_tokens", "seed")
_FOLDER_ONLY = ("text", "fields", "label", "batch_size")


def add_output(parser: argparse.ArgumentParser, figure: str, checkpoint: str = "") -> None:
    """--json and --figure, and --output where a ``checkpoint`` is made."""
    add = parser.add_argument
    if checkpoint:
        add("--output", metavar="FILE.pt", help=checkpoint)
        add("--empty-layers", action="store_true", help="with --output: layers may lose all their heads")
    add("--json", metavar="FILE", help="where the record goes; an existing one is continued")
    add("--figure", metavar="FILE", help=f"{figure}: FILE.svg or FILE.png")


def check_output(args: argparse.Namespace) -> None:
    """See that all results can be written, and that --output is none of the inputs."""
    check_writable(args.json)
    check_figure(args.figure)
    output = getattr(args, "output", None)
    if output:
        check_writable(output)
        if output.endswith(".json"):
            raise UserError(f"--output is the new checkpoint, got {output}; the record goes to --json")
        check_distinct(output, *checkpoints_of(args))


def add_model(parser: argparse.ArgumentParser, split: Optional[str] = None, several: bool = False) -> None:
    """The checkpoint, its data, and how it is run; ``split``: the default of --split; ``several``: checkpoints."""
    add, number = parser.add_argument, "+" if several else None
    add("checkpoint", metavar="CHECKPOINT", nargs=number, help="of fairseq's transformer or of transformer_collab")
    add("--data", metavar="DATA_BIN", help="its data-bin (default: the one named in the checkpoint)")
    if split is not None:
        add("--split", default=split, help=f"train, valid, test, test1, … (default: {split})")
        add("--sentences", type=positive, metavar="N", help="only the first N (default: all)")
    add("--max-tokens", type=positive, default=4000, metavar="N", help="per batch (default: 4000)")
    add_machine(parser)
    add("--seed", type=int, default=1, help="of the order of sentences (default: 1)")


def add_text(parser: argparse.ArgumentParser) -> None:
    """Labelled text for a Hugging Face model's folder."""
    group = parser.add_argument_group("a Hugging Face model's folder instead of CHECKPOINT")
    add = group.add_argument
    add("--text", metavar="FILE.jsonl", help="examples: JSON objects, one per line")
    add("--fields", default="text", metavar="NAME[,NAME]", help="of its one or two texts (default: text)")
    add("--label", default="label", metavar="NAME", help="of its labels, or of the translations (default: label)")
    add("--batch-size", type=positive, default=32, metavar="N", help="examples per batch (default: 32)")


def is_folder(args: argparse.Namespace) -> bool:
    """Whether a Hugging Face model was given. Raises UserError for flags of the other type of model."""
    if not os.path.isdir(args.checkpoint):
        refuse(args, _FOLDER_ONLY, f"is for a Hugging Face model's folder, but {args.checkpoint} is none")
        return False
    if args.text is None:
        raise UserError(f"{args.checkpoint} is a folder, so a Hugging Face model, and needs --text FILE.jsonl")
    refuse(args, _FAIRSEQ_ONLY, "is for checkpoints of fairseq; a Hugging Face model's folder takes --text")
    return True


def add_tests(parser: argparse.ArgumentParser, sentences: bool = True) -> None:
    """Test sets with their references, and beam search."""
    add = parser.add_argument
    text = "a test split of the data-bin and its raw references, one per line, such as test=test.de; repeatable"
    add("--reference", action="append", default=[], type=pair, metavar="SPLIT=FILE", help=text)
    if sentences:
        add("--sentences", type=positive, metavar="N", help="only the first N of each (default: all)")
    add("--beam", type=positive, default=5, metavar="N", help="of the search (default: 5)")
    add("--lenpen", type=float, default=1.0, metavar="X", help="length penalty (default: 1)")


def read_tests(args: argparse.Namespace) -> List[Any]:
    """The test sets of --reference: at least one, none twice, their files there."""
    from collab_fairseq.heads.ablation import TestSet

    splits = [split for split, _ in args.reference]
    if not splits:
        raise UserError("--reference SPLIT=FILE is needed: a test split and its raw references, such as test=test.de")
    if len(set(splits)) < len(splits):
        raise UserError(f"--reference must name each split once, got {', '.join(splits)}")
    for split, file in args.reference:
        if not os.path.isfile(file):
            raise UserError(f"--reference {split}={file}: there is no such file")
    search = {name: getattr(args, name) for name in ("beam", "lenpen", "max_tokens", "sentences")}
    return [TestSet(split, file, search) for split, file in args.reference]


def test_settings(args: argparse.Namespace, trained: Any) -> Dict[str, Any]:
    """The test sets, the search and what p is of, as settings of a record."""
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.scoring.significance import METHOD

    tests = [{**data_setting(args, trained, split), "references": file_setting(file)} for split, file in args.reference]
    return {"tests": tests, "search": {"beam": args.beam, "lenpen": args.lenpen}, "p": METHOD}


def data_setting(args: argparse.Namespace, trained: Any, split: Optional[str] = None) -> Dict[str, Any]:
    """The text as a setting: the split (default: --split), how much of it, and the checksums of both sides."""
    from collab_fairseq.checkpoints import file_setting

    task, split = trained.task.cfg, split or args.split
    stem = os.path.join(task.data, f"{split}.{task.source_lang}-{task.target_lang}")
    files = [f"{stem}.{lang}.bin" for lang in (task.source_lang, task.target_lang)]
    checksums = [file_setting(path) for path in files if os.path.exists(path)]
    return {"split": split, "text": checksums, "sentences": args.sentences}


def checkpoints_of(args: argparse.Namespace) -> List[str]:
    """CHECKPOINT, one or several."""
    return args.checkpoint if isinstance(args.checkpoint, list) else [args.checkpoint]


def load(args: argparse.Namespace, path: Optional[str] = None) -> Any:
    """The model that the options name, or another checkpoint with their data."""
    device = choose_device(args)
    from collab_fairseq.translation import load_model

    return load_model(path or checkpoints_of(args)[0], args.data, device=device, seed=args.seed)


def load_folder(args: argparse.Namespace) -> Tuple[Any, Dict[str, Any]]:
    """The Hugging Face model that the options name with its text, and the text as settings of a record."""
    device = choose_device(args)
    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.heads import huggingface

    loaded = huggingface.load(
        args.checkpoint,
        args.text,
        args.fields.split(","),
        args.label,
        sentences=args.sentences,
        batch_size=args.batch_size,
        device=device,
    )
    settings = {name: getattr(args, name) for name in ("fields", "label", "sentences")}
    return loaded, {"text": file_setting(args.text), **settings}


def make_record(
    args: argparse.Namespace, name: str, settings: Dict[str, Any], device: Any = "cpu", program: str = "collab"
) -> Any:
    """The record of an analysis, kept in --json; ``settings`` in addition to the checkpoint's name and checksum."""
    import torch

    from collab_fairseq.checkpoints import file_setting
    from collab_fairseq.records.record import Record

    files = [file_setting(path) for path in checkpoints_of(args)]
    settings = {"checkpoint": files[0] if len(files) == 1 else files, **settings}
    device_type = "gpu" if str(device).startswith("cuda") else "cpu"
    command_line = getattr(args, "command_line", command(program))
    threads = torch.get_num_threads()
    return Record("heads", name, command_line, settings, args.json, device=device_type, threads=threads)


def show(args: argparse.Namespace, text: str, draw: Callable[[str, str], None]) -> None:
    """Print a report, and ``draw`` --figure, with the name of the model, if one was asked for."""
    sys.stdout.write(text)
    if args.figure:
        draw(args.figure, ", ".join(os.path.basename(os.path.normpath(path)) for path in checkpoints_of(args)))
