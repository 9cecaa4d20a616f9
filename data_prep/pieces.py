"""Joint SentencePiece BPE of a parallel corpus, reproducibly, and pairs left out by their length in pieces."""

import fileinput
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

import sentencepiece

#: fairseq's transformer has 1,024 positions, one of them for the end of the sentence
LONGEST_HELD_OUT = 1023


def train(texts: Sequence[str], model: str, vocab_size: int, lines: Optional[int] = None) -> None:
    """Write NAME.model and, with its pieces, NAME.vocab; equal texts give equal pieces.

    Args:
        texts: files. The model stores their names as given: relative ones keep it free of a machine's paths.
        model: NAME.model.
        lines: learn from about that many, evenly spread over the texts, in place of all.
    """
    source: Dict[str, Any] = {"input": list(texts)}
    if lines is not None:  # SentencePiece's own sample is another every time
        with fileinput.input(texts, mode="rb") as stream:
            step = max(1, sum(1 for _ in stream) // lines)
        every_line = fileinput.input(texts, mode="rb")  # noqa: SIM115  (read below)
        source = {"sentence_iterator": itertools.islice(every_line, 0, None, step)}
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
    """Write the pieces of each line, separated by blanks: one line for every line."""
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


def check_held_out(pieces: Path, raw: Path) -> None:
    """See that a model can read every sentence of a validation or test set.

    Args:
        pieces, raw: the same lines in pieces and as text.

    Raises:
        ValueError: a sentence is too long; the beginning of its text is named.
    """
    with open(pieces, encoding="utf-8", newline="\n") as lines, open(raw, encoding="utf-8", newline="\n") as texts:
        for line, text in zip(lines, texts, strict=True):
            length = len(line.split())
            if length > LONGEST_HELD_OUT:
                raise ValueError(
                    f"a sentence of {raw.name} must have at most {LONGEST_HELD_OUT:,} pieces; got {length:,} "
                    f"({text[:60].strip()!r} …); shorten or remove it"
                )


def clean(
    source: Path, kept: Path, held_out: Path, langs: Tuple[str, str], longest: int, ratio: float, every: int = 0
) -> str:
    """Write the pairs of SOURCE.LANG, lines of pieces, that are of a good length to KEPT.LANG.

    Args:
        longest: pieces that either side may have; it must have one.
        ratio: how many times as many pieces one side may have as the other.
        every: each so many-th of these pairs goes to HELD_OUT.LANG instead; 0: none.

    Returns:
        How many pairs went where.
    """
    counts = {"kept": 0, "held out": 0, "left out": 0}
    with ExitStack() as stack:

        def sides(prefix: Path, mode: str) -> Sequence[Any]:
            names = [f"{prefix}.{lang}" for lang in langs]
            return [stack.enter_context(open(name, mode, encoding="utf-8", newline="\n")) for name in names]

        texts, outputs = sides(source, "r"), [sides(prefix, "w") for prefix in (kept, *([held_out] if every else []))]
        for number, pair in enumerate(itertools.zip_longest(*texts), start=1):
            if None in pair:
                raise ValueError(f"{texts[pair.index(None)].name} ends before line {number} of the other side")
            short, long = sorted(len(line.split()) for line in pair)
            if short < 1 or long > longest or long > ratio * short:
                counts["left out"] += 1
                continue
            to_hold = every > 0 and (counts["kept"] + counts["held out"] + 1) % every == 0
            counts["held out" if to_hold else "kept"] += 1
            for line, file in zip(pair, outputs[to_hold], strict=True):
                file.write(line)
    if not every:
        del counts["held out"]
    return ", ".join(f"{number:,} pairs {what}" for what, number in counts.items())
