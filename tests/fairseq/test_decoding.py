"""Step-by-step decoding against the full forward pass."""

import pytest
import torch

from tests.common import FLOAT32
from tests.fairseq.models import KINDS, SMALL, batch, build, cached, model_of, step_by_step


def test_standard_heads_decode_as_fairseqs_transformer_does():
    ours, theirs = model_of("standard"), build("transformer", **SMALL).eval()
    theirs.load_state_dict(ours.state_dict())
    source, lengths, target = batch()
    target[1, 3] = 1  # a finished hypothesis
    with torch.no_grad():
        (mine, _), (other, _) = (step_by_step(m, m.encoder(source, lengths), target) for m in (ours, theirs))
    assert (mine - other).abs().max() < FLOAT32


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_reordered_beams_go_on_as_the_hypotheses_they_became(kind, mixed):
    """Beams swap, a sentence leaves the batch: what follows equals a full pass over the hypotheses as they are then."""
    model = model_of(kind)
    source, lengths, _ = batch()
    target = batch(sentences=9, seed=3)[2]
    model.set_beam_size(3)
    orders = [torch.tensor([1, 1, 0, 5, 3, 4, 8, 6, 6]), torch.tensor([2, 0, 1, 7, 8, 8]), torch.tensor([3, 3, 5])]
    if mixed:  # hypotheses of several sentences side by side, as no search of fairseq's leaves them
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
            assert cached(model, state, "cross")[0]["prev_key"].size(0) == (3 if mixed else 1)  # one sentence is left


def test_the_encoder_output_is_copied_only_where_it_changes():
    model = model_of("collaborative")
    source, lengths, _ = batch()
    with torch.no_grad():
        alone = model.encoder(source, lengths)
    for encoder in (model.encoder, torch.jit.script(model.encoder)):
        expanded = encoder.reorder_encoder_out(alone, torch.arange(3).repeat_interleave(4))
        rows = expanded["encoder_out"][0]
        assert rows.size(1) == 12
        within = torch.tensor([3, 3, 0, 1, 4, 5, 4, 4, 11, 10, 9, 8])
        kept = encoder.reorder_encoder_out(expanded, within)
        assert kept["encoder_out"][0].data_ptr() == rows.data_ptr()
        assert torch.equal(rows[:, within], rows)

        # sentences leave the batch, in any order; hypotheses change sentences; a batch that was never repeated
        for start, order in (
            (kept, [8, 9, 9, 8, 0, 1, 2, 3]),
            (kept, [0, 4, 8, 1, 2, 3, 5, 6, 7, 9, 10, 11]),
            (kept, [5, 0]),
            (encoder.reorder_encoder_out(kept, torch.tensor([8, 9, 9, 8, 0, 1, 2, 3])), [4, 4, 5, 5, 0, 0, 0, 0]),
            (alone, [1, 0, 2]),
            (alone, [0, 0, 1, 1, 1, 2]),
        ):
            order = torch.tensor(order)
            got = encoder.reorder_encoder_out(start, order)
            expected = start["encoder_out"][0][:, order]
            assert torch.equal(got["encoder_out"][0], expected)
            assert torch.equal(got["encoder_padding_mask"][0], start["encoder_padding_mask"][0][order])
            again = encoder.reorder_encoder_out(got, torch.arange(order.numel()).flip(0))
            assert torch.equal(again["encoder_out"][0], expected.flip(1))
