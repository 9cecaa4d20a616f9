"""Calibration of models of transformers, compared with the attention weights that transformers reports."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from collab_fairseq.reparam.huggingface import calibrate  # noqa: E402
from tests.unit.huggingface_cases import CASES, inputs, make, outputs  # noqa: E402


def spread(keys, attention):
    """(T, D, D): covariance of keys (S, D) under the attention (H, T, S) of every query, averaged over heads."""
    heads = []
    for head in attention.double():
        heads.append(torch.stack([torch.cov(keys.double().T, correction=0, aweights=query) for query in head]))
    return torch.stack(heads).mean(0)


def assert_calibrated(result, sentences):
    """Compare with statistics in which a query is weighted by the spread of its attention, as in `reparam.calibrate`.

    `sentences`: inputs (S, D), attention (H, S, S) and mask (S) of positions without padding.
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


@pytest.mark.parametrize(("case", "uses"), [("bert", [1]), ("albert", [0, 1, 2])])
def test_calibration_ignores_padding_and_counts_every_use_of_a_shared_layer(case, uses):
    model, batches = make(case), [inputs(case, 5, 3), inputs(case, 4, 4)]
    (result,) = calibrate(model, batches, CASES[case].layers).values()
    sentences = []
    for batch in batches:
        states = outputs(model, batch, output_hidden_states=True, output_attentions=True)
        mask = batch["attention_mask"].bool()
        for use in uses:
            sentences += zip(states.hidden_states[use], states.attentions[use], mask, strict=True)
    assert_calibrated(result, sentences)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_calibration_of_a_decoder_sees_the_past_and_no_padding(implementation):
    model, batch = make("marian", implementation), inputs("marian", 4)
    results = calibrate(model, [batch])
    assert len(results) == 6
    kept = batch["labels"] != -100
    states = outputs(make("marian"), batch, output_hidden_states=True, output_attentions=True)
    assert not states.decoder_attentions[1].triu(1).any()
    result = results["decoder.layers.1.self_attn"]
    sentences = zip(states.decoder_hidden_states[1], states.decoder_attentions[1], kept, strict=True)
    assert_calibrated(result, list(sentences))
    source_words = int(batch["attention_mask"].sum())
    assert {r.queries for name, r in results.items() if name.startswith("encoder.")} == {source_words}
    assert {r.queries for name, r in results.items() if name.startswith("decoder.")} == {int(kept.sum())}
    # with decoder_input_ids, the last word before the padding, which has no label, counts too
    text = {name: tensor for name, tensor in batch.items() if name != "labels"}
    text["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    assert calibrate(model, [text])["decoder.layers.1.self_attn"].queries == int(kept.sum()) + 1
    text["decoder_attention_mask"] = kept.long()
    torch.testing.assert_close(calibrate(model, [text])["decoder.layers.1.self_attn"], result)
