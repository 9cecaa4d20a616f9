"""Calibration of models of transformers, compared with single sentences."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.reparam import Calibrator  # noqa: E402
from collab_fairseq.reparam.huggingface import calibrate  # noqa: E402
from tests.unit.huggingface_cases import CASES, inputs, make, outputs  # noqa: E402


def assert_calibrated(result, scores, sentences, causal=False):
    """Compare with single sentences: pairs of inputs (S, D) and the mask (S) of positions without padding."""
    calibrator, uniform = Calibrator(scores), Calibrator()
    for states, mask in sentences:
        words = states[mask][None]
        future = torch.ones(words.size(1), words.size(1), dtype=torch.bool).triu(1) if causal else None
        calibrator.update(words, words, attn_mask=future)
        uniform.update(words, words, attn_mask=future)
    expected, control = calibrator.result(), uniform.result()
    assert result.queries == expected.queries
    for actual, correct, wrong in zip(result[1:], expected[1:], control[1:], strict=True):
        torch.testing.assert_close(actual, correct, rtol=0, atol=1e-4)
        assert (correct - wrong).abs().max() > 1e-3  # control: attention matters


@pytest.mark.parametrize(("case", "uses"), [("bert", [1]), ("albert", [0, 1, 2])])
def test_calibration_ignores_padding_and_counts_every_use_of_a_shared_layer(case, uses):
    model, batches = make(case), [inputs(case, 5, 3), inputs(case, 4, 4)]
    (result,) = calibrate(model, batches, CASES[case].layers).values()
    sentences = []
    for batch in batches:
        states = outputs(model, batch, output_hidden_states=True).hidden_states
        for use in uses:
            sentences += zip(states[use], batch["attention_mask"].bool(), strict=True)
    assert_calibrated(result, dict(hf.score_weights(model))[CASES[case].layers[0]], sentences)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_calibration_of_a_decoder_sees_the_past_and_no_padding(implementation):
    model, batch = make("marian", implementation), inputs("marian", 4)
    results = calibrate(model, [batch])
    assert len(results) == 6
    kept = batch["labels"] != -100
    states = outputs(model, batch, output_hidden_states=True).decoder_hidden_states
    name = "decoder.layers.1.self_attn"
    scores = dict(hf.score_weights(model))[name]
    assert_calibrated(results[name], scores, zip(states[1], kept, strict=True), causal=True)
    source_words = int(batch["attention_mask"].sum())
    assert {r.queries for layer, r in results.items() if layer.startswith("encoder.")} == {source_words}
    assert {r.queries for layer, r in results.items() if layer.startswith("decoder.")} == {int(kept.sum())}
    # with decoder_input_ids, the last word before the padding, which has no label, counts too
    text = {name: tensor for name, tensor in batch.items() if name != "labels"}
    text["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    assert calibrate(model, [text])[name].queries == int(kept.sum()) + 1
    text["decoder_attention_mask"] = kept.long()
    torch.testing.assert_close(calibrate(model, [text])[name], results[name])
