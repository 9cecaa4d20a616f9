"""Joint SentencePiece BPE of a parallel corpus, and cleaning by length in pieces. Equal texts give equal files."""

import fileinput
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import sentencepiece

#: fairseq's transformer has 1,024 positions; the end of the sentence takes one
LONGEST_HELD_OUT = 1023


def train(texts: Sequence[str], model: str, vocab_size: int, lines: Optional[int] = None, every: int = 0) -> None:
    """Train a SentencePiece model on text files; writes NAME.model and its pieces, NAME.vocab.

    Args:
        texts: file names. The model stores them, so relative names keep it independent of the machine.
        model: NAME.model.
        lines: train on about this many lines, evenly spread over the texts (default: all lines).
        every: leave out every N-th line of each text, which `clean` holds out (0: none).
    """
    source: Dict[str, Any] = {"input": list(texts)}
    if lines is not None or every:
        step = 1
        if lines is not None:  # SentencePiece's own sampling is not reproducible
            with fileinput.input(texts, mode="rb") as stream:
                step = max(1, sum(1 for _ in stream) // lines)
        stream = fileinput.input(texts, mode="rb")  # noqa: SIM115  (read below)
        used = (line for line in stream if not every or stream.filelineno() % every)
        source = {"sentence_iterator": itertools.islice(used, 0, None, step)}
    sentencepiece.SentencePieceTrainer.train(
        **source,
        model_prefix=str(Path(model).with_suffix("")),
        model_type="bpe",
        vocab_size=vocab_size,
        character_coverage=1.0,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=1,
    )


def encode(model: Path, source: Path, target: Path) -> None:
    """Write the pieces of each line, separated by spaces."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    # newline="\n": if other characters ended lines too, the two sides of a corpus could become misaligned
    with (
        open(source, encoding="utf-8", newline="\n") as lines,
        open(target, "w", encoding="utf-8", newline="\n") as out,
    ):
        for number, line in enumerate(lines, start=1):
            pieces = " ".join(processor.encode(line.rstrip("\n"), out_type=str))
            if "\n" in pieces or "\r" in pieces:
                raise ValueError(f"{source}, line {number}: a piece contains a line break")
            out.write(pieces + "\n")


def check_held_out(pieces: Path, raw: Path) -> None:
    """Raise ValueError for a validation or test sentence, in pieces and as text, that is too long for a transformer."""
    with open(pieces, encoding="utf-8", newline="\n") as lines, open(raw, encoding="utf-8", newline="\n") as texts:
        for line, text in zip(lines, texts, strict=True):
            length = len(line.split())
            if length > LONGEST_HELD_OUT:
                raise ValueError(
                    f"a sentence of {raw.name} must have at most {LONGEST_HELD_OUT:,} pieces; got {length:,} "
                    f"({text[:60].strip()!r} …); shorten or remove it"
                )


def clean(
    source: Path, kept: Path, held_out: Path, langs: Sequence[str], longest: int, ratio: float, every: int = 0
) -> Dict[str, int]:
    """Write the pairs of SOURCE.LANG whose lengths are within the limits to KEPT.LANG.

    Args:
        source: prefix of the two files of pieces; `kept` and `held_out` are prefixes too.
        longest: maximum number of pieces per side. An empty side is never kept.
        ratio: largest ratio of the lengths of the two sides.
        every: write the pairs of every N-th line to HELD_OUT.LANG instead (0: none).

    Returns:
        The numbers of pairs: ``kept``, ``held out`` (with `every`) and ``left out``.
    """
    counts = dict.fromkeys(("kept", *(["held out"] if every else []), "left out"), 0)
    with ExitStack() as stack:

        def open_sides(prefix: Path, mode: str) -> Sequence[Any]:
            names = [f"{prefix}.{lang}" for lang in langs]
            return [stack.enter_context(open(name, mode, encoding="utf-8", newline="\n")) for name in names]

        texts, outputs = open_sides(source, "r"), {"kept": open_sides(kept, "w")}
        if every:
            outputs["held out"] = open_sides(held_out, "w")
        for number, pair in enumerate(zip(*texts, strict=True), start=1):
            shorter, longer = sorted(len(line.split()) for line in pair)
            part = "held out" if every and number % every == 0 else "kept"
            if shorter < 1 or longer > longest or longer > ratio * shorter:
                part = "left out"
            counts[part] += 1
            for line, file in zip(pair, outputs.get(part, ()), strict=False):
                file.write(line)
    return counts
