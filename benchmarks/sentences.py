"""Synthetic sentences with the lengths of Multi30k, and batches of them."""

import itertools
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from torch import Tensor

from benchmarks.measure import SEED

#: percentiles of the sentence lengths, in pieces with </s>, of the English test_2016_flickr in recipes/multi30k
PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)
LENGTHS = (6, 9, 10, 12, 15, 18, 22, 25, 33, 36)


def random_lengths(number: int, seed: int = SEED, longest: int = LENGTHS[-1]) -> List[int]:
    """Random sentence lengths, distributed as in Multi30k and scaled to ``longest``, which the first sentence has."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(number, generator=random, dtype=torch.float64).numpy()
    drawn: Any = np.interp(100 * shares, PERCENTILES, LENGTHS) * (longest / LENGTHS[-1])
    return [longest, *drawn.round().clip(2).astype(int).tolist()[1:]]


class Task:
    """The part of a translation task that models, criteria and search use: a joint dictionary.

    Args:
        entries: of the dictionary.
    """

    def __init__(self, entries: int) -> None:
        dictionary = Dictionary()
        for number in range(entries - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
        self.source_dictionary = self.target_dictionary = dictionary

    def sentences(self, lengths: Sequence[int], seed: int = SEED) -> List[Tensor]:
        """Random sentences of these lengths, including ``</s>``."""
        random = torch.Generator().manual_seed(seed)
        dictionary = self.source_dictionary
        sentences = []
        for length in lengths:
            sentence = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=random)
            sentence[-1] = dictionary.eos()
            sentences.append(sentence)
        return sentences

    def batch(self, sources: List[Tensor], targets: Optional[List[Tensor]], device: str) -> Dict[str, Any]:
        """A batch as in fairseq's translation dataset; without targets for translation."""
        pairs = itertools.zip_longest(sources, targets or ())
        samples = [{"id": number, "source": source, "target": target} for number, (source, target) in enumerate(pairs)]
        batch = collate(samples, self.source_dictionary.pad(), self.source_dictionary.eos())
        on_device: Dict[str, Any] = utils.apply_to_sample(lambda tensor: tensor.to(device), batch)
        return on_device
