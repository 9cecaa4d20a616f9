"""Step-by-step decoding compared with the full forward pass, and the caches of attention."""

import warnings

import pytest
import torch

from collab_fairseq.attention.cache import source_rows
from tests.common import FLOAT32
from tests.models.cases import KINDS, batch, cached, model_of, step_by_step


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_after_reordering_equals_a_full_pass(kind, mixed):
    """Beams swap, and sentences leave the batch."""
    model = model_of(kind)
    source, lengths, _ = batch()
    target = batch(sentences=9, seed=3)[2]
    orders = [torch.tensor([1, 1, 0, 5, 3, 4, 8, 6, 6]), torch.tensor([2, 0, 1, 7, 8, 8]), torch.tensor([3, 3, 5])]
    if mixed:  # neighbours from several sentences, which fairseq's searches never produce
        orders[1:] = torch.tensor([8, 0, 3, 1, 4, 5]), torch.tensor([2, 0, 5])
    sentences = torch.arange(3).repeat_interleave(3)
    with torch.no_grad():
        encoder_out = model.encoder.reorder_encoder_out(model.encoder(source, lengths), sentences)
        state, prefix = {}, target[:, :1]
        for t, order in enumerate(orders, start=1):
            model.decoder(prefix, encoder_out=encoder_out, incremental_state=state)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            sentences = sentences[order]
            prefix = torch.cat([prefix[order], target[: len(order), t : t + 1]], dim=1)
        step = model.decoder(prefix, encoder_out=encoder_out, incremental_state=state)[0][:, -1]
        fresh = model.encoder.reorder_encoder_out(model.encoder(source, lengths), sentences)
        full = model.decoder(prefix, encoder_out=fresh)[0][:, -1]
        assert (step - full).abs().max() < FLOAT32
        if kind != "cross-self":
            assert cached(model, state, "cross")[0].entry.key.size(0) == (3 if mixed else 1)  # one sentence is left


def test_encoder_output_is_copied_only_if_it_changes():
    model = model_of("collaborative")
    source, lengths, _ = batch()
    with torch.no_grad():
        alone = model.encoder(source, lengths)
    expanded = model.encoder.reorder_encoder_out(alone, torch.arange(3).repeat_interleave(4))
    rows = expanded["encoder_out"][0]
    assert rows.size(1) == 12
    within = torch.tensor([3, 3, 0, 1, 4, 5, 4, 4, 11, 10, 9, 8])
    kept = model.encoder.reorder_encoder_out(expanded, within)
    assert kept["encoder_out"][0].data_ptr() == rows.data_ptr()
    assert torch.equal(rows[:, within], rows)

    # sentences leave the batch in any order; hypotheses change sentences; batches without repeated sentences
    for start, order in (
        (kept, [8, 9, 9, 8, 0, 1, 2, 3]),
        (kept, [0, 4, 8, 1, 2, 3, 5, 6, 7, 9, 10, 11]),
        (kept, [5, 0]),
        (model.encoder.reorder_encoder_out(kept, torch.tensor([8, 9, 9, 8, 0, 1, 2, 3])), [4, 4, 5, 5, 0, 0, 0, 0]),
        (alone, [1, 0, 2]),
        (alone, [0, 0, 1, 1, 1, 2]),
    ):
        order = torch.tensor(order)
        reordered = model.encoder.reorder_encoder_out(start, order)
        expected = start["encoder_out"][0][:, order]
        assert torch.equal(reordered["encoder_out"][0], expected)
        assert torch.equal(reordered["encoder_padding_mask"][0], start["encoder_padding_mask"][0][order])
        again = model.encoder.reorder_encoder_out(reordered, torch.arange(order.numel()).flip(0))
        assert torch.equal(again["encoder_out"][0], expected.flip(1))


@pytest.mark.parametrize("kind", ["content", "standard"])
def test_padding_added_during_decoding_is_masked(kind):
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
            mask = hidden if hidden.any() else None  # fairseq passes no mask without padding
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
    """Shared keys and values are cached once; cross-attention caches one row per sentence."""
    model = model_of(kind)
    source, lengths, target = batch()
    beams = target.repeat_interleave(4, 0)
    with torch.no_grad():
        encoder_out = model.encoder(source, lengths)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.arange(3).repeat_interleave(4))
        _, state = step_by_step(model, encoder_out, beams)
    for site, rows, positions in (("cross", 3, 7), ("self", 12, 6)):
        for cache in cached(model, state, site):
            for tensor, (heads, width) in ((cache.entry.key, key), (cache.entry.value, value)):
                assert list(tensor.shape) == [rows, *heads, positions, width]


@pytest.mark.parametrize(
    ("order", "beams", "sentences", "expected"),
    [
        ([0, 1, 2, 3, 4, 5], 3, 2, None),
        ([1, 1, 0, 3, 5, 5], 3, 2, None),
        ([3, 4, 5, 0, 1, 2], 3, 2, ([1, 0], 3)),
        ([0, 1, 3, 2, 4, 5], 3, 2, ([0, 0, 1, 0, 1, 1], 1)),
        ([0, 1, 3, 2, 4, 5], 2, 3, None),  # other sentences
        ([1, 0, 3, 2, 5, 4], 2, 3, None),
        ([1, 0, 2], 3, 2, ([0], 3)),  # one sentence has left the batch
        ([0, 1], 3, 2, ([0, 0], 1)),
    ],
)
def test_source_rows_of_a_new_order(order, beams, sentences, expected):
    rows = source_rows(torch.tensor(order), beams, sentences)
    assert (rows if rows is None else (rows[0].tolist(), rows[1])) == expected


@pytest.mark.gpu
def test_each_step_synchronizes_cuda_twice():
    """Without a GPU, test_updates_and_decoding_steps_rarely_synchronize counts on a simulated one."""
    model = model_of("content").to("cuda")
    source, lengths, target = (x.to("cuda") for x in batch())
    expanded = torch.arange(3, device="cuda").repeat_interleave(3)
    order = torch.tensor([0, 0, 2, 4, 3, 5, 8, 7, 6], device="cuda")
    state = {}
    with torch.no_grad():
        encoder_out = model.encoder.reorder_encoder_out(model.encoder(source, lengths), expanded)
        model.decoder(target[:, :1].repeat_interleave(3, 0), encoder_out=encoder_out, incremental_state=state)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.decoder.reorder_incremental_state_scripting(state, order)
                model.encoder.reorder_encoder_out(encoder_out, order)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([x for x in caught if "synchronizing" in str(x.message)]) == 2
