#!/usr/bin/env python3
"""Leave out sentence pairs of a parallel corpus by length and ratio, and hold some out for validation.

    clean_pairs.py IN OUT SOURCE_LANG TARGET_LANG [--longest N] [--ratio R] [--every N HELD_OUT]

Reads IN.LANG, one sentence per line in subword units separated by blanks, and writes OUT.LANG: the pairs with 1 to
--longest units on both sides and at most --ratio times as many on one side as on the other. With --every, each N-th of
these pairs goes to HELD_OUT.LANG instead. Says how many pairs went where.
"""

import argparse
import sys
from contextlib import ExitStack
from itertools import zip_longest
from typing import Dict


def clean(args: argparse.Namespace) -> Dict[str, int]:
    """Write the pairs; returns how many were kept, held out and left out."""
    every, held_out = (int(args.every[0]), args.every[1]) if args.every else (0, None)
    prefixes = [prefix for prefix in (args.input, args.output, held_out) if prefix]
    counts = {"kept": 0, "held out": 0, "left out": 0}
    with ExitStack() as stack:
        texts, *outputs = (
            [
                stack.enter_context(open(f"{prefix}.{lang}", "w" if number else "r", encoding="utf-8", newline="\n"))
                for lang in (args.source_lang, args.target_lang)
            ]
            for number, prefix in enumerate(prefixes)
        )
        for number, pair in enumerate(zip_longest(*texts), start=1):
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
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("input", "output", "source_lang", "target_lang"):
        parser.add_argument(name)
    parser.add_argument("--longest", type=int, default=250, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--ratio", type=float, default=1.5, metavar="R", help="(default: %(default)s)")
    parser.add_argument("--every", nargs=2, metavar=("N", "HELD_OUT"))
    args = parser.parse_args()
    if args.every and (not args.every[0].isdigit() or int(args.every[0]) < 2):
        parser.error(f"--every must be a whole number from 2, got {args.every[0]!r}")
    try:
        counts = clean(args)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"data_prep/clean_pairs.py: error: {error}\n")
        return 1
    sys.stderr.write("cleaning: " + ", ".join(f"{number:,} pairs {what}" for what, number in counts.items()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
