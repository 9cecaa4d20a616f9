#!/usr/bin/env python3
"""Joint SentencePiece BPE of a parallel corpus, reproducibly, and pairs left out by their length in pieces.

    pieces.py train  --vocab-size N --model NAME.model [--lines N] TEXT [TEXT ...]
    pieces.py encode --model NAME.model IN OUT [IN OUT ...]
    pieces.py clean  --langs SOURCE TARGET [--longest N] [--ratio R] [--every N HELD_OUT] IN OUT

`train` uses every line of the texts (with --lines about that many, evenly spread over them), one thread and full
character coverage, so the same texts give the same pieces. The model stores the texts' names as they were given:
relative names keep it free of a machine's paths.

`encode` writes the pieces of each line separated by blanks, exactly one output line per input line.

`clean` reads IN.LANG, lines of pieces, and writes OUT.LANG: the pairs with 1 to --longest pieces on both sides and at
most --ratio times as many on one side as on the other. With --every, each N-th of these pairs goes to HELD_OUT.LANG
instead. It says how many pairs went where.
"""

import argparse
import fileinput
import itertools
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Sequence

import sentencepiece


def train(args: argparse.Namespace) -> None:
    """Writes NAME.model and, with its pieces, NAME.vocab."""
    source: Dict[str, Any] = {"input": args.texts}
    if args.lines is not None:  # SentencePiece's own sample is another every time
        with fileinput.input(args.texts, mode="rb") as stream:
            step = max(1, sum(1 for _ in stream) // args.lines)
        every_line = fileinput.input(args.texts, mode="rb")  # noqa: SIM115  (read below)
        source = {"sentence_iterator": itertools.islice(every_line, 0, None, step)}
    sentencepiece.SentencePieceTrainer.train(
        **source,
        model_prefix=str(args.model.with_suffix("")),
        model_type="bpe",
        vocab_size=args.vocab_size,
        character_coverage=1.0,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=1,
    )


def encode(args: argparse.Namespace) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(args.model))
    for source, target in zip(args.texts[::2], args.texts[1::2], strict=True):
        # newline="\n": no other character may end a line, or the two sides of a corpus would drift apart
        with (
            open(source, encoding="utf-8", newline="\n") as lines,
            open(target, "w", encoding="utf-8", newline="\n") as out,
        ):
            for number, line in enumerate(lines, start=1):
                pieces = " ".join(processor.encode(line.rstrip("\n"), out_type=str))
                if "\n" in pieces or "\r" in pieces:
                    raise ValueError(f"{source}, line {number}: a line break inside a piece")
                out.write(pieces + "\n")


def clean(args: argparse.Namespace) -> None:
    every, held_out = (int(args.every[0]), args.every[1:]) if args.every else (0, [])
    counts = {"kept": 0, "held out": 0, "left out": 0}
    with ExitStack() as stack:

        def sides(prefix: str, mode: str) -> Sequence[Any]:
            names = [f"{prefix}.{lang}" for lang in args.langs]
            return [stack.enter_context(open(name, mode, encoding="utf-8", newline="\n")) for name in names]

        texts, outputs = sides(args.texts[0], "r"), [sides(prefix, "w") for prefix in (args.texts[1], *held_out)]
        for number, pair in enumerate(itertools.zip_longest(*texts), start=1):
            if None in pair:
                raise ValueError(f"{texts[pair.index(None)].name} ends before line {number} of the other side")
            short, long = sorted(len(line.split()) for line in pair)
            if short < 1 or long > args.longest or long > args.ratio * short:
                counts["left out"] += 1
                continue
            to_hold = every > 0 and (counts["kept"] + counts["held out"] + 1) % every == 0
            counts["held out" if to_hold else "kept"] += 1
            for line, file in zip(pair, outputs[to_hold], strict=True):
                file.write(line)
    sys.stderr.write("cleaning: " + ", ".join(f"{number:,} pairs {what}" for what, number in counts.items()) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for step in (train, encode, clean):
        command = commands.add_parser(step.__name__)
        command.set_defaults(step=step)
        add = command.add_argument
        if step is clean:
            add("--langs", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
            add("--longest", type=int, default=250, metavar="N", help="(default: %(default)s)")
            add("--ratio", type=float, default=1.5, metavar="R", help="(default: %(default)s)")
            add("--every", nargs=2, metavar=("N", "HELD_OUT"))
        else:
            add("--model", type=Path, required=True)
        if step is train:
            add("--vocab-size", type=int, required=True)
            add("--lines", type=int)
        add("texts", nargs="+")
    args = parser.parse_args()
    try:
        args.step(args)
    except (OSError, ValueError, RuntimeError) as error:
        # SentencePiece's messages span lines and start with its own source position
        sys.stderr.write(f"data_prep/pieces.py: error: {' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
