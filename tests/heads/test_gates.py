"""Training with stochastic gates: the criterion, distributed training with a closed layer, and the finalised model."""

import json
import math
import re

import pytest
import torch
from fairseq.logging import metrics

from collab_fairseq import checkpoints
from collab_fairseq.heads.removal import read_gates, remove_closed_heads
from collab_fairseq.modules.gates import CRITERION
from collab_fairseq.modules.head_names import describe
from collab_fairseq.modules.sites import attention_layers, gates_of, parameter_prefix
from collab_fairseq.translation import batches, loss, translate
from fairseq_modern.errors import UserError
from tests.commands import USER_DIR
from tests.common import BIN, TINY_MODEL, TINY_TRAINING, free_port, run
from tests.heads.cases import (
    HEADS,
    LAYER_IDS,
    collab,
    collaborative_state,
    load,
    logits,
    parts_of,
    standard_state,
)

#: log α of the heads of each layer
VALUES = [[1.0, -1.0], [0.1, 3.0], [-0.2, 0.7]]


def gated_state(state, values=VALUES):
    """Add gates and their criterion."""
    for layer_id, log_alpha in zip(LAYER_IDS, values, strict=True):
        state["model"][f"{parameter_prefix(layer_id)}head_gates.log_alpha"] = torch.tensor(log_alpha)
    checkpoints.model_settings(state)["head_gates"] = "encoder_cross_decoder"
    state["cfg"]["criterion"].update(_name=CRITERION, gate_penalty=0.5)
    return state


def test_loss_has_a_penalty_per_token_and_the_log_counts_heads(tiny_run, tiny_data):
    trained = load(gated_state(standard_state(tiny_run)), tiny_data)
    sample = next(iter(batches(trained, "valid", sentences=6)))
    trained.model.eval()
    total, size, log = trained.criterion(trained.model, sample)
    expected = sum(1 / (1 + math.exp(-(value + 0.33 * math.log(11)))) for row in VALUES for value in row)
    assert float(total - log["loss"]) == pytest.approx(0.5 * expected * size, rel=1e-6)
    assert size == sample["ntokens"]
    plain = load(remove_closed_heads(trained.state).state, tiny_data)
    assert float(log["loss"]) == pytest.approx(float(plain.criterion(plain.model, sample)[0]), rel=1e-6)
    gates = gates_of(trained.model)
    assert list(gates) == ["E:1", "A:1", "D:1"]
    gradients = torch.autograd.grad(total, [gate.log_alpha for gate in gates.values()])
    for gradient, row in zip(gradients, VALUES, strict=True):
        chance = torch.sigmoid(torch.tensor(row, dtype=torch.float64) + 0.33 * math.log(11))
        # in evaluation mode gates are 0 or 1, and only the penalty has a gradient
        assert torch.allclose(gradient, 0.5 * size * chance * (1 - chance))
    with metrics.aggregate() as values:
        trained.criterion.reduce_metrics([log, log])
    logged = values.get_smoothed_values()
    assert (logged["open_E:1"], logged["open_A"], logged["open_D"]) == (1, 2, 1)
    assert logged["expected_heads"] == pytest.approx(expected, abs=0.01)


def test_rejects_models_without_gates(tiny_run, tiny_data):
    state = standard_state(tiny_run)
    state["cfg"]["criterion"].update(_name=CRITERION, gate_penalty=0.5)
    trained = load(state, tiny_data)
    with pytest.raises(UserError, match="choose their sites with --head-gates"):
        trained.criterion(trained.model, next(iter(batches(trained, "valid"))))
    with pytest.raises(UserError, match="the model has no gates"):
        read_gates(state)


@pytest.mark.parametrize("make_state", [standard_state, collaborative_state])
@pytest.mark.parametrize(
    ("values", "closed"),
    [(VALUES, "E:1:2 D:1:1"), ([[1.0, 1.0]] * 3, ""), ([[-1.0, -1.0]] * 3, "E:1:1,2 A:1:1,2 D:1:1,2")],
)
def test_finalised_model_equals_gated_model(values, closed, make_state, tiny_run, tiny_data):
    state = gated_state(make_state(tiny_run), values)
    gated = load(state, tiny_data)
    result = remove_closed_heads(state, empty_layers=True)
    assert describe(result.removed) == closed
    assert result.state["last_optimizer_state"] is None  # it has the moments of the gates
    final = load(result.state, tiny_data)
    assert attention_layers(final.model)["encoder.0"].num_heads == max(1, 2 - len(result.removed.get("encoder.0", ())))
    assert (logits(final) - logits(gated)).abs().max() < 1e-10
    assert translate(final, "test", max_len_b=20) == translate(gated, "test", max_len_b=20)
    assert loss(final, "valid").loss == pytest.approx(loss(gated, "valid").loss)
    assert type(final.criterion).__name__ == "LabelSmoothedCrossEntropyCriterion"
    with torch.no_grad():
        attention_layers(gated.model)["decoder.0"].head_gates.log_alpha[1] *= -1.0
    assert (logits(final) - logits(gated)).abs().max() > 1e-3  # control


@pytest.mark.slow
def test_distributed_training_with_a_closed_layer(tiny_data, tiny_run, tmp_path):
    """c10d fails at the second update if a parameter has no gradient; all gates of a layer start closed."""
    source, last, final = tmp_path / "source.pt", tmp_path / "run" / "checkpoint_last.pt", tmp_path / "final.pt"
    record, figure = tmp_path / "gates.json", tmp_path / "gates.svg"
    checkpoints.save(gated_state(standard_state(tiny_run), [[-9.0, -9.0], [2.4, 2.4], [2.4, 2.4]]), source)
    options = f"""
        --user-dir {USER_DIR} --arch transformer_collab --collaborative-heads none --mask-heads D:1:1
        --head-gates encoder_cross_decoder --criterion {CRITERION} --gate-penalty 3.0
        --finetune-from-model {source} --save-dir {last.parent} --no-epoch-checkpoints --max-update 6
        --distributed-world-size 2 --distributed-backend gloo --ddp-backend c10d
        --log-interval 1 --log-format json
    """.split()
    launch = ["torchrun", "--nproc_per_node", 2, "--master_addr", "127.0.0.1", "--master_port", free_port()]
    log = run(*launch, BIN / "fairseq-train", tiny_data, *TINY_MODEL[2:], *TINY_TRAINING, *options).stdout
    rows = [json.loads(row) for row in re.findall(r"\| (\{.*\"expected_heads\".*\})", log)]
    assert float(rows[0]["open_E:1"]) == float(rows[-1]["open_E"]) == 0.0
    assert float(rows[0]["open_A"]) == 2.0
    assert "train_open_D" in log
    assert "valid_expected_heads" in log
    assert 2.36 < read_gates(checkpoints.load(last))["A:1:1"].log_alpha < 2.4  # the penalty lowers it in six updates

    command = ["gates", last, "--output", final, "--json", record, "--figure", figure]
    assert "E:1 would lose all heads" in collab(*command, status=1)
    assert "open: E 0 of 2, A 2 of 2, D 2 of 2" in collab(*command, "--empty-layers")
    assert list(parts_of(record)["gates"]) == HEADS
    assert "P(open)" in figure.read_text(encoding="utf-8")
    removed = checkpoints.load(final)["extra_state"]["removed_heads"]
    assert removed == "E:1:1,2 D:1:1"  # closed and masked heads
    gated, smaller = (load(checkpoints.load(path), tiny_data) for path in (last, final))
    assert (logits(gated) - logits(smaller)).abs().max() < 1e-10
