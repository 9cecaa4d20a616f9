"""Calibration of models of transformers, held to the attention that transformers itself reports."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from collab_fairseq.reparam.huggingface import calibrate  # noqa: E402
from tests.unit.huggingface_cases import CASES, inputs, make, outputs  # noqa: E402


def spread(keys, attention):
    """Covariance of keys (S, D) under every query's attention (H, T, S), averaged over heads: (T, D, D)."""
    of_heads = [
        torch.stack([torch.cov(keys.double().T, correction=0, aweights=query) for query in head])
        for head in attention.double()
    ]
    return torch.stack(of_heads).mean(0)


def assert_calibrated(result, sentences):
    """Every query counting as far as its attention is spread, as in the text of `reparam.calibrate`.

    `sentences`: inputs (S, D), attention (H, S, S) and which positions are no padding (S).
    """
    x = torch.cat([row[mask] for row, _, mask in sentences]).double()
    spreads = torch.cat([spread(row[mask], attention[:, mask][:, :, mask]) for row, attention, mask in sentences])
    weights = spreads.diagonal(dim1=1, dim2=2).sum(1)
    assert result.queries == len(x)
    torch.testing.assert_close(result.query_mean, (weights[:, None] * x).sum(0) / weights.sum(), rtol=0, atol=1e-4)
    covariance = torch.cov(x.T, correction=0, aweights=weights)
    torch.testing.assert_close(result.query_covariance, covariance, rtol=0, atol=1e-3)
    torch.testing.assert_close(result.key_covariance, spreads.mean(0), rtol=0, atol=1e-4)
    assert (torch.cov(x.T, correction=0) - covariance).abs().max() > 1e-2  # control


def test_calibration_leaves_padding_out_and_counts_every_use_of_a_shared_layer():
    for case, uses in (("bert", [1]), ("albert", [0, 1, 2])):
        model, batches = make(case), [inputs(case, 5, 3), inputs(case, 4, 4)]
        found = calibrate(model, batches, CASES[case].layers)
        assert set(found) == set(CASES[case].layers)
        sentences = []
        for batch in batches:
            states = outputs(model, batch, output_hidden_states=True, output_attentions=True)
            for use in uses:
                given = states.hidden_states[use], states.attentions[use], batch["attention_mask"].bool()
                sentences += zip(*given, strict=True)
        assert_calibrated(next(iter(found.values())), sentences)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_calibration_of_a_decoder_sees_the_past_and_no_padding(implementation):
    model, batch = make("marian", implementation), inputs("marian", 4)
    found = calibrate(model, [batch])
    assert len(found) == 6
    words, kept = int(batch["attention_mask"].sum()), batch["labels"] != -100
    states = outputs(make("marian"), batch, output_hidden_states=True, output_attentions=True)
    given = list(zip(states.decoder_hidden_states[1], states.decoder_attentions[1], kept, strict=True))
    for _, attention, _ in given:
        assert not attention.triu(1).any()
    own = found["decoder.layers.1.self_attn"]
    assert_calibrated(own, given)
    assert {r.queries for name, r in found.items() if name.startswith("encoder.")} == {words}
    assert {r.queries for name, r in found.items() if name.startswith("decoder.")} == {int(kept.sum())}
    # the decoder's text given as such: the last word before the padding, which no label follows, counts too
    decoder = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    given = {**{k: v for k, v in batch.items() if k != "labels"}, "decoder_input_ids": decoder}
    assert calibrate(model, [given])["decoder.layers.1.self_attn"].queries == int(kept.sum()) + 1
    given["decoder_attention_mask"] = kept.long()
    torch.testing.assert_close(calibrate(model, [given])["decoder.layers.1.self_attn"], own)
