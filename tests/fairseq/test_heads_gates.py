"""Training with gates: the criterion, two processes with a closed layer, and what is left when it is over."""

import json
import math
import re

import pytest
import torch
from fairseq.logging import metrics

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from collab_fairseq.heads.removal import finalise, read_gates
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.gates import CRITERION
from collab_fairseq.modules.heads import describe
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers, gates_of, parameter_prefix
from collab_fairseq.translation import batches, loss, translate
from fairseq_modern.errors import UserError
from tests.common import BIN, TINY_MODEL, TINY_TRAINING
from tests.fairseq.commands import USER_DIR
from tests.fairseq.heads_cases import HEADS, LAYER_IDS, collaborative_state, load, logits, standard_state
from tests.fairseq.test_modern_processes import torchrun


def gated_state(state, values, penalty=0.5):
    """The state with gates of these log α (one list a layer) and their criterion."""
    for layer_id, log_alpha in zip(LAYER_IDS, values, strict=True):
        state["model"][f"{parameter_prefix(layer_id)}head_gates.log_alpha"] = torch.tensor(log_alpha)
    model_config(state)["head_gates"] = "encoder_cross_decoder"
    state["cfg"]["criterion"].update(_name=CRITERION, gate_penalty=penalty)
    return state


VALUES = [[1.0, -1.0], [0.1, 3.0], [-0.2, 0.7]]


def test_the_loss_has_the_penalty_per_token_and_the_log_has_the_heads(tiny_run, tiny_data):
    trained = load(gated_state(standard_state(tiny_run), VALUES, penalty=0.5), tiny_data)
    sample = next(iter(batches(trained, "valid", sentences=6)))
    trained.model.eval()
    total, size, log = trained.criterion(trained.model, sample)
    expected = sum(1 / (1 + math.exp(-(value + 0.33 * math.log(11)))) for row in VALUES for value in row)
    assert float(total - log["loss"]) == pytest.approx(0.5 * expected * size, rel=1e-6)
    assert size == sample["ntokens"]
    plain = load(finalise(trained.state).state, tiny_data)
    assert float(log["loss"]) == pytest.approx(float(plain.criterion(plain.model, sample)[0]), rel=1e-6)
    names = list(gates_of(trained.model))
    assert names == ["E:1", "D:1", "A:1"]
    gradients = torch.autograd.grad(total, [gates_of(trained.model)[name].log_alpha for name in names])
    for gradient, row in zip(gradients, (VALUES[0], VALUES[2], VALUES[1]), strict=True):
        chance = torch.sigmoid(torch.tensor(row, dtype=torch.float64) + 0.33 * math.log(11))
        assert torch.allclose(gradient, 0.5 * size * chance * (1 - chance))  # a hard gate has no gradient of its own
    with metrics.aggregate() as values:
        trained.criterion.reduce_metrics([log, log])
    shown = values.get_smoothed_values()
    assert (shown["open_E:1"], shown["open_A"], shown["open_D"]) == (1, 2, 1)
    assert shown["expected_heads"] == pytest.approx(expected, abs=0.01)


def test_a_model_without_gates_is_refused(tiny_run, tiny_data):
    state = standard_state(tiny_run)
    state["cfg"]["criterion"].update(_name=CRITERION, gate_penalty=0.5)
    trained = load(state, tiny_data)
    with pytest.raises(ConfigurationError, match="choose their sites with --head-gates"):
        trained.criterion(trained.model, next(iter(batches(trained, "valid"))))
    with pytest.raises(UserError, match="the model has no gates"):
        read_gates(state)


@pytest.mark.parametrize("kind", [standard_state, collaborative_state])
def test_the_finalised_model_is_the_gated_one(kind, tiny_run, tiny_data):
    state = gated_state(kind(tiny_run), VALUES)
    gated = load(state, tiny_data)
    result = finalise(state)
    assert describe(result.removed) == "E:1:2 D:1:1"
    final = load(result.state, tiny_data)
    assert (logits(final) - logits(gated)).abs().max() < 1e-10
    assert translate(final, "test", max_len_b=20) == translate(gated, "test", max_len_b=20)
    assert loss(final, "valid").loss == pytest.approx(loss(gated, "valid").loss)
    assert type(final.criterion).__name__ == "LabelSmoothedCrossEntropyCriterion"
    assert attention_layers(final.model)["encoder.0"].num_heads == 1
    with torch.no_grad():
        attention_layers(gated.model)["encoder.0"].head_gates.log_alpha[1] = 1.0
    assert (logits(final) - logits(gated)).abs().max() > 1e-3
    still_open = gated_state(kind(tiny_run), [[1.0, 1.0]] * 3)
    opened = finalise(still_open)
    assert opened.removed == {}
    assert opened.state["last_optimizer_state"] is None  # it has the gates' moments
    assert (logits(load(opened.state, tiny_data)) - logits(load(still_open, tiny_data))).abs().max() < 1e-10


def test_two_processes_train_with_a_closed_layer_and_the_rest_is_finalised(tiny_data, tiny_run, tmp_path, capsys):
    """c10d stops at the second update where a parameter has no gradient; all gates of a layer begin closed."""
    source = tmp_path / "source.pt"
    state = gated_state(standard_state(tiny_run), [[-9.0, -9.0], [2.4, 2.4], [2.4, 2.4]])
    checkpoints.save(state, source)
    train = [
        BIN / "fairseq-train", tiny_data, "--arch", "transformer_collab", *TINY_MODEL[2:], *TINY_TRAINING,
        "--user-dir", USER_DIR, "--collaborative-heads", "none", "--head-gates", "encoder_cross_decoder",
        "--finetune-from-model", source, "--save-dir", tmp_path / "run", "--no-epoch-checkpoints", "--max-update", 6,
        "--distributed-world-size", 2, "--distributed-backend", "gloo", "--ddp-backend", "c10d",
        "--log-interval", 1, "--log-format", "json", "--criterion", CRITERION, "--gate-penalty", 3.0,
        "--mask-heads", "D:1:1",
    ]  # fmt: skip
    log = torchrun(*train).stdout
    rows = [json.loads(row) for row in re.findall(r"\| (\{.*\"expected_heads\".*\})", log)]
    assert float(rows[0]["open_E:1"]) == float(rows[-1]["open_E"]) == 0.0
    assert float(rows[0]["open_A"]) == 2.0
    assert "train_open_D" in log
    assert "valid_expected_heads" in log
    last = tmp_path / "run" / "checkpoint_last.pt"
    gates = read_gates(checkpoints.load(last))
    assert gates["A:1:1"].log_alpha < 2.4  # the penalty closes
    final, result, picture = tmp_path / "final.pt", tmp_path / "gates.json", tmp_path / "gates.svg"
    options = ["--output", final, "--json", result, "--figure", picture]
    assert main([str(word) for word in ["heads", "gates", last, *options]]) == 1
    assert "E:1 would lose all heads" in capsys.readouterr().err
    assert main([str(word) for word in ["heads", "gates", last, *options, "--empty-layers"]]) == 0
    assert "open: E 0 of 2, A 2 of 2, D 2 of 2" in capsys.readouterr().out
    assert list(json.loads(result.read_text(encoding="utf-8"))["parts"]["gates"]) == HEADS
    assert "P(open)" in picture.read_text(encoding="utf-8")
    removed = checkpoints.load(final)["extra_state"]["removed_heads"]
    assert removed == "E:1:1,2 D:1:1"  # closed and masked ones
    gated, smaller = (load(checkpoints.load(path), tiny_data) for path in (last, final))
    assert (logits(gated) - logits(smaller)).abs().max() < 1e-10
