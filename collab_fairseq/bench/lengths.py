"""Sentence lengths as real corpora have them, so that masks hide as much as they do in practice."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import torch
from torch import Tensor


class LengthsError(ValueError):
    """A file of lengths is not one."""

    user_error = True


@dataclass(frozen=True)
class Histogram:
    """Lengths in tokens, </s> included, as pairs (percentile, length) from 0 to 100."""

    percentiles: Tuple[Tuple[float, float], ...]

    @property
    def longest(self) -> int:
        return round(self.percentiles[-1][1])

    def at(self, shares: Tensor) -> Tensor:
        """Length at each share in [0, 1], linear between the percentiles."""
        lengths = torch.empty_like(shares)
        for (p0, low), (p1, high) in zip(self.percentiles, self.percentiles[1:], strict=False):
            inside = (shares * 100 >= p0) & (shares * 100 <= p1)
            lengths[inside] = low + (shares[inside] * 100 - p0) / (p1 - p0) * (high - low)
        return lengths

    def draw(self, number: int, seed: int, longest: int = 0) -> List[int]:
        """Lengths of ``number`` sentences. With ``longest``: only as long as that, and one of them exactly so.

        Where ``longest`` is beyond the longest of the histogram, as for documents, the histogram is stretched to it.
        """
        random = torch.Generator().manual_seed(seed)
        shares = torch.rand(max(10_000, 20 * number), generator=random, dtype=torch.float64)
        lengths = self.at(shares)
        if longest > self.longest:
            lengths *= longest / self.longest
        lengths = lengths.round().clamp(min=2)
        if longest:
            lengths = lengths[lengths <= longest]
            if len(lengths) < number:  # a histogram whose sentences are nearly all longer than that
                lengths = torch.full((number,), float(longest))
        chosen = lengths[:number].long()
        if longest:
            chosen[0] = longest
        return chosen.tolist()


#: the English side of Multi30k's test_2016_flickr (1,000 sentences) in the 6,000 sentencepiece units of the recipe
#: recipes/multi30k, counted in its data-bin: minimum, 5/10/25/50/75/90/95/99 %, maximum
MULTI30K = Histogram(
    ((0, 6), (5, 9), (10, 10), (25, 12), (50, 15), (75, 18), (90, 22), (95, 25), (99, 33), (100, 36))
)

#: words of newstest2014's German side (3,003 sentences): 5/10/25/50/75/90/95/99 % and the longest; from 2 words up
_NEWSTEST_WORDS = ((0, 2), (5, 7), (10, 9), (25, 13), (50, 20), (75, 28), (90, 37), (95, 42), (99, 53), (100, 89))
#: 1.25 subwords per word, and </s>
NEWSTEST = Histogram(tuple((p, 1.25 * words + 1) for p, words in _NEWSTEST_WORDS))

HISTOGRAMS: Dict[str, Histogram] = {"multi30k": MULTI30K, "newstest2014": NEWSTEST}


def histogram(name: str) -> Histogram:
    """A histogram by name, or of a file with one length per line.

    Raises:
        LengthsError: neither.
    """
    if name in HISTOGRAMS:
        return HISTOGRAMS[name]
    try:
        lengths = sorted(int(line) for line in Path(name).read_text(encoding="utf-8").split())
    except (OSError, ValueError) as error:
        raise LengthsError(
            f"--lengths must be {' or '.join(HISTOGRAMS)} or a file with one sentence length per line, "
            f"but {name} cannot be read so: {error}"
        ) from error
    if not lengths or lengths[0] < 1:
        raise LengthsError(f"--lengths {name} must hold positive lengths, one per line")
    points = range(0, 101)
    return Histogram(tuple((p, lengths[round(p / 100 * (len(lengths) - 1))]) for p in points))


def padding_mask(lengths: Sequence[int], longest: int, left: bool, device: torch.device) -> Tensor:
    """(N, longest) boolean, True for padding, on the left as fairseq pads sources, or on the right."""
    positions = torch.arange(longest, device=device)
    sizes = torch.tensor(lengths, device=device)[:, None]
    return positions < longest - sizes if left else positions >= sizes
