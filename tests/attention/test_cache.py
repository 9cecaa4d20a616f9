"""The key-value cache, compared with lists that store one entry per position."""

import pytest
import torch

from collab_fairseq.attention import KeyValue
from collab_fairseq.attention.cache import Cache

H, D, V = 2, 3, 4


def draw(rows, positions, random, content):
    shapes = {"key": (rows, positions, D), "value": (rows, H, positions, V), "content": (rows, H, positions)}
    drawn = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    return KeyValue(drawn["key"], drawn["value"], drawn["content"] if content else None)


def positions(entry, padding):
    """For each row, the numbers of each position, with a padding flag."""
    rows, length = entry.key.shape[:2]
    padding = torch.zeros(rows, length, dtype=torch.bool) if padding is None else padding
    parts = [entry.key, entry.value.transpose(1, 2).flatten(2), padding[:, :, None].float()]
    if entry.content is not None:
        parts.append(entry.content.transpose(1, 2))
    return [list(row) for row in torch.cat(parts, 2).tolist()]


@pytest.mark.parametrize("content", [False, True])
def test_random_appends_and_selections_of_diverging_copies(content):
    """Three copies of a cache are extended, reordered, shrunk and enlarged independently."""
    random = torch.Generator().manual_seed(0)
    branches = []
    for step in range(200):
        if len(branches) < 3:
            entry = draw(3, 1, random, content)
            branches.append((Cache(entry), positions(entry, None)))
        number = step % 3
        cache, expected = branches[number]
        rows = len(expected)
        if torch.rand((), generator=random) < 0.5:
            new = draw(rows, 1 + step % 2, random, content)
            padding = torch.rand(rows, 1 + step % 2, generator=random) < 0.3 if step % 5 == 0 else None
            branch = cache.append(new, padding), [a + b for a, b in zip(expected, positions(new, padding), strict=True)]
        else:
            order = torch.randint(rows, (2 + step % 3,), generator=random)
            branch = cache.select(order, beams=2), [expected[row] for row in order.tolist()]
            assert branch[0].beams == 2
        branches[step // 3 % 3 if step > 5 else number] = branch
        for cache, expected in branches:
            assert positions(cache.entry, cache.padding) == expected
    assert max(len(row) for _, expected in branches for row in expected) > 20
