"""What attention keeps between the steps of decoding: shapes, padding, beams, and copies that go on by themselves."""

import copy

import pytest
import torch

from collab_fairseq.attention.cache import one_row_per_sentence
from tests.common import FLOAT32
from tests.fairseq.models import KINDS, batch, cached, model_of, step_by_step


@pytest.mark.parametrize("kind", KINDS)
def test_two_continuations_of_a_copied_state_do_not_meet(kind):
    """Each step of each continuation, in turns, equals a full pass over its own target."""
    model = model_of(kind)
    source, lengths, target = batch(target_len=12)
    targets = [target, torch.cat([target[:, :3], target[:, 3:].flip(1)], dim=1)]
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        full = [model.decoder(t, encoder_out=encoder_out)[0] for t in targets]
        assert (full[0] - full[1])[:, 3:].abs().max() > 0.1
        states = [step_by_step(model, encoder_out, target[:, :3])[1]]
        states.append(copy.copy(states[0]))
        for t in range(4, 13):
            for i in (0, 1):
                step = model.decoder(targets[i][:, :t], encoder_out=encoder_out, incremental_state=states[i])[0]
                assert (step[:, -1] - full[i][:, t - 1]).abs().max() < FLOAT32

        waiting = copy.copy(states[0])
        for _ in range(2):
            model.decoder.reorder_incremental_state_scripting(states[0], torch.tensor([1, 0, 2]))
        with pytest.raises(ValueError, match=r"another copy of it was reordered twice.*copy\.deepcopy"):
            model.decoder(target, encoder_out=encoder_out, incremental_state=waiting)


@pytest.mark.parametrize("kind", ["content", "standard"])
def test_padding_that_enters_while_decoding_stays_hidden(kind):
    attention = model_of(kind).decoder.layers[0].self_attn
    x = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 2] = padding[2, :2] = True
    future = torch.full((5, 5), -torch.inf).triu(1)
    state = {}
    with torch.no_grad():
        full = attention(x, x, x, key_padding_mask=padding, attn_mask=future)[0]
        steps = []
        for t in range(5):
            now, hidden = x[t : t + 1], padding[:, t : t + 1]
            mask = hidden if hidden.any() else None  # fairseq passes no mask where there is no padding
            steps.append(attention(now, now, now, key_padding_mask=mask, incremental_state=state)[0])
        unmasked = attention(x, x, x, attn_mask=future)[0]
    assert (torch.cat(steps) - full).abs().max() < FLOAT32
    assert (torch.cat(steps) - unmasked).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("content", [[], 6], [[2], 8]),
        ("shared-values", [[], 6], [[1], 8]),
        ("standard", [[2], 8], [[2], 8]),
        ("multi-query", [[1], 8], [[1], 8]),
        ("latent", [[], 0], [[1], 5]),
    ],
)
def test_shapes_of_the_caches(kind, key, value):
    """What is shared is cached once; with a beam size, cross-attention keeps one row per sentence."""
    model = model_of(kind)
    source, lengths, target = batch()
    beams = target.repeat_interleave(4, 0)
    model.set_beam_size(4)
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.arange(3).repeat_interleave(4))
        _, state = step_by_step(model, encoder_out, beams)
    for site, rows, positions in (("cross", 3, 7), ("self", 12, 6)):
        for kept in cached(model, state, site):
            assert kept["prev_length"] == positions
            for name, (heads, width) in (("prev_key", key), ("prev_value", value)):
                assert list(kept[name].narrow(-2, 0, positions).shape) == [rows, *heads, positions, width]


def test_a_beam_size_that_was_set_before_does_not_outlive_its_search():
    """A later batch with as many rows is not a beam, whether decoded or scored."""
    model = model_of("collaborative")
    source, lengths, target = batch(sentences=6)
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        expected = model.decoder(target, encoder_out=encoder_out)[0]
        model.set_beam_size(3)
        assert torch.equal(model.decoder(target, encoder_out=encoder_out)[0], expected)
        steps, state = step_by_step(model, encoder_out, target)
    assert (steps - expected).abs().max() < FLOAT32
    assert cached(model, state, "cross")[0]["prev_key"].size(0) == 6


def test_rows_are_one_sentence_only_if_masks_agree_too():
    rows = torch.randn(2, 4, 3).repeat_interleave(3, 0)
    padding = torch.zeros(6, 4, dtype=torch.bool)
    assert one_row_per_sentence(rows, padding, 3)
    assert not one_row_per_sentence(rows, padding, 2)
    assert not one_row_per_sentence(rows, padding, 1)
    assert not one_row_per_sentence(rows, padding, 4)
    padding[4, 0] = True
    assert not one_row_per_sentence(rows, padding, 3)
