#!/usr/bin/env python3
"""Train a joint SentencePiece BPE model and apply it, reproducibly.

    sentencepiece_bpe.py train  --vocab-size N --model NAME.model [--lines N] TEXT [TEXT ...]
    sentencepiece_bpe.py encode --model FILE IN OUT [IN OUT ...]

Training uses every line of the texts (with --lines about that many, evenly spread over them), one thread and full
character coverage, so the same texts give the same pieces.
The model stores the texts' names as they were given: relative names keep it free of a machine's paths. Encoding writes
the pieces of each line separated by blanks, exactly one output line per input line.
"""

import argparse
import fileinput
import itertools
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import sentencepiece


def train(texts: List[Path], model: Path, vocab_size: int, lines: Optional[int] = None) -> None:
    """Train BPE with `vocab_size` pieces jointly on `texts`; writes NAME.model and, beside it, the pieces as NAME.vocab."""
    source: Dict[str, Any] = {"input": [str(text) for text in texts]}
    if lines is not None:  # SentencePiece's own sample is another every time
        with fileinput.input(texts, mode="rb") as stream:
            step = max(1, sum(1 for _ in stream) // lines)
        source = {"sentence_iterator": itertools.islice(fileinput.input(texts, mode="rb"), 0, None, step)}
    sentencepiece.SentencePieceTrainer.train(
        **source,
        model_prefix=str(model.with_suffix("")),
        model_type="bpe",
        vocab_size=vocab_size,
        character_coverage=1.0,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=1,
    )


def encode(model: Path, source: Path, target: Path) -> None:
    """Write the pieces of every line of `source` to `target`."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trainer = commands.add_parser("train")
    trainer.add_argument("--vocab-size", type=int, required=True)
    trainer.add_argument("--lines", type=int)
    encoder = commands.add_parser("encode")
    for command in (trainer, encoder):
        command.add_argument("--model", type=Path, required=True)
        command.add_argument("texts", nargs="+", type=Path)
    args = parser.parse_args()
    try:
        if args.command == "train":
            train(args.texts, args.model, args.vocab_size, args.lines)
        elif len(args.texts) % 2:
            parser.error("encode takes pairs of files: IN OUT [IN OUT ...]")
        else:
            for source, target in zip(args.texts[::2], args.texts[1::2], strict=True):
                encode(args.model, source, target)
    except (OSError, ValueError, RuntimeError) as error:
        # SentencePiece's messages span lines and start with its own source position
        message = " ".join(str(error).split())
        sys.stderr.write(f"data_prep/sentencepiece_bpe.py: error: {message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
