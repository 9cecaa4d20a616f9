"""The cache that decoding extends and reorders in reused memory, against one that is concatenated and indexed."""

import contextlib

import pytest
import torch

from collab_fairseq.attention import KeyValue, extend, select
from collab_fairseq.attention.cache import SPARE_POSITIONS, append, lost, reorder, start, visible

H, D, V = 2, 3, 4


def draw(rows, positions, random, content):
    shapes = {"key": (rows, positions, D), "value": (rows, H, positions, V), "content": (rows, H, positions)}
    drawn = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    return KeyValue(drawn["key"], drawn["value"], drawn["content"] if content else None)


def same(one, other):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("content", [False, True])
def test_any_sequence_of_steps_gives_what_concatenating_and_indexing_give(content, gradients):
    random = torch.Generator().manual_seed(0)
    first = draw(6, 1, random, content)
    cache, expected = start(first), first
    with contextlib.nullcontext() if gradients else torch.no_grad():
        for step in range(3 * SPARE_POSITIONS):
            new = draw(expected.key.size(0), 1 + step % 3, random, content)
            cache, expected = append(cache, new), extend(expected, new)
            assert same(visible(cache), expected)
            for _ in range(1 + step % 2):  # twice in a row, too
                rows = expected.key.size(0)
                picked = {5: rows - 2, 10: rows + 3}.get(step, rows)  # sentences leave, and rows are repeated
                order = torch.randint(rows, (picked,), generator=random)
                cache, expected = reorder(cache, order), select(expected, order)
                assert same(visible(cache), expected)
            assert cache.length == expected.key.size(1)


@pytest.mark.parametrize("content", [False, True])
def test_copies_go_on_independently(content):
    """A cache branches, any branch goes on at any time: none is lost but where the others were reordered twice."""
    random = torch.Generator().manual_seed(0)
    first = draw(3, 1, random, content)
    branches = [(start(first), first, 0)]  # the last: reorderings of others since this one was changed
    losses = 0
    with torch.no_grad():
        for _ in range(800):
            which, action, *order = torch.randint(3, (5,), generator=random).tolist()
            which %= len(branches)
            cache, expected, waited = branches[which]
            if lost(cache):
                assert waited >= 2
                losses += 1
                branches.pop(which)
            elif action == 0:
                branches = [*branches[-2:], branches[which]]
            elif action == 1:
                new = draw(3, 1 + which % 2, random, content)
                branches[which] = append(cache, new), extend(expected, new), 0
            else:
                rows = torch.tensor(order)
                branches = [(*others[:2], others[2] + 1) for others in branches]
                branches[which] = reorder(cache, rows), select(expected, rows), 0
            assert all(lost(cache) or same(visible(cache), expected) for cache, expected, _ in branches)
            branches = branches or [(start(first), first, 0)]
    assert 0 < losses < 100


def test_memory_is_used_again():
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        cache = append(start(draw(4, 1, random, False)), draw(4, 1, random, False))
        addresses = []
        for _ in range(SPARE_POSITIONS):
            cache = append(reorder(cache, torch.tensor([3, 0, 0, 1])), draw(4, 1, random, False))
            addresses.append(cache.held.value.data_ptr())
        assert len(set(addresses)) == 2  # the two take turns
        full = cache.held.value.size(-2)
        assert cache.length == full
        assert append(cache, draw(4, 1, random, False)).held.value.size(-2) == full + 1 + SPARE_POSITIONS


def test_with_gradients_nothing_is_overwritten():
    random = torch.Generator().manual_seed(0)
    first, new = draw(4, 2, random, True), draw(4, 1, random, True)
    for tensor in (*first, *new):
        tensor.requires_grad_()
    cache = reorder(append(start(first), new), torch.tensor([3, 3]))
    visible(cache).value.sum().backward()
    assert first.value.grad.sum((1, 2, 3)).tolist() == [0, 0, 0, 2 * H * 2 * V]
    assert new.value.grad.sum((1, 2, 3)).tolist() == [0, 0, 0, 2 * H * V]
