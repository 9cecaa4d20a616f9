"""Conversion of whole models: calibration, checkpoints, `collab reparam`, fine-tuning."""

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import load as load_record
from collab_fairseq.reparam import AttentionError, Calibrator, fairseq, relative_error, scores_of
from collab_fairseq.reparam.fairseq import layer_ids, output_errors, scores_by_layer
from collab_fairseq.translation import batches, load_model, loss, with_state
from tests.common import TINY_MODEL, TINY_TRAINING, collab, run
from tests.heads.cases import LAYER_IDS, convert, load
from tests.models.cases import same_model

E, H = 16, 2


@pytest.fixture(scope="module")
def command_line(checkpoint, tiny_data, tmp_path_factory):
    """A conversion to key dimension 6 of 16 on the command line: its folder, and the finished process."""
    folder = tmp_path_factory.mktemp("reparam")
    before = checkpoints.sha256(checkpoint)
    done = run(
        *("collab", "reparam", checkpoint, "--output", folder / "six.pt", "--key-dim", 6, "--data", tiny_data),
        *("--calibration", "train:100", "--distill", 9, "--evaluate", "--json", folder / "report.json"),
    )
    assert checkpoints.sha256(checkpoint) == before
    return folder, done


@pytest.mark.parametrize(("side", "layer_id"), [("encoder", "encoder.0"), ("decoder", "decoder.0")])
def test_calibration_equals_single_sentences_without_padding(trained, calibrations, side, layer_id):
    """The inputs of the first layers are the embeddings."""
    stack, layer, causal = getattr(trained.model, side), attention_layers(trained.model)[layer_id], side == "decoder"
    calibrator, uniform = Calibrator(scores_of(layer)), Calibrator()
    for sample in batches(trained, "train", sentences=100, max_tokens=37):
        tokens = sample["net_input"]["prev_output_tokens" if causal else "src_tokens"]
        with torch.no_grad():
            embedded = stack.embed_tokens(tokens) * E**0.5 + stack.embed_positions(tokens)
        for sentence, row in zip(tokens, embedded, strict=True):
            inputs = row[sentence != 1][None]
            future = torch.ones(inputs.size(1), inputs.size(1), dtype=torch.bool).triu(1) if causal else None
            calibrator.update(inputs, inputs, attn_mask=future)
            uniform.update(inputs, inputs, attn_mask=future)
    statistics, expected, control = calibrations[layer_id], calibrator.result(), uniform.result()
    assert statistics.queries == expected.queries
    torch.testing.assert_close(statistics[1:], expected[1:], atol=1e-5, rtol=0)
    assert all(float((a - b).abs().max()) > 1e-4 for a, b in zip(statistics[1:], control[1:], strict=True))


def test_output_errors_equal_those_of_single_sentences_without_padding(trained, calibrations):
    converted = with_state(trained, convert(trained, 6, calibrations)[0])
    layers = [attention_layers(model.model)["encoder.0"] for model in (trained, converted)]
    squares = torch.zeros(2, dtype=torch.float64)
    for sample in batches(trained, "valid", sentences=30):
        tokens, encoder = sample["net_input"]["src_tokens"], trained.model.encoder
        with torch.no_grad():
            for sentence, row in zip(tokens, encoder.forward_embedding(tokens)[0], strict=True):
                inputs = row[sentence != 1][:, None]
                old, new = (layer(inputs, inputs, inputs)[0].double() for layer in layers)
                squares += torch.stack([(new - old).square().sum(), old.square().sum()])
    error = output_errors(trained, converted, "valid", ["encoder.0"], sentences=30)["encoder.0"]
    assert error == pytest.approx(float(squares[0] / squares[1]) ** 0.5, rel=1e-4)
    assert 0.01 < error < 1


def test_calibration_and_key_dimension_lower_output_errors(trained, calibrations):
    before = {name: tensor.clone() for name, tensor in trained.state["model"].items()}
    errors = {}
    for key_dim, calibration in ((12, calibrations), (6, calibrations), (6, None)):
        state, _ = convert(trained, key_dim, calibration)
        by_layer = output_errors(trained, with_state(trained, state), "valid", LAYER_IDS)
        errors[key_dim, calibration is not None] = sum(by_layer.values()) / len(by_layer)
    assert 0 < errors[12, True] < errors[6, True] < 0.75 * errors[6, False] < 1
    assert same_model(trained.state["model"], before)  # the source does not change
    assert trained.state["last_optimizer_state"] is not None


def test_converts_the_selected_layers_of_standard_and_collaborative_models(trained, calibrations):
    selected = layer_ids(trained, "decoder_cross")
    state, fits = convert(trained, dict.fromkeys(selected, 8), calibrations)
    assert list(fits) == selected == ["cross.0", "decoder.0"]
    assert sorted(checkpoints.model_settings(state)["attention_shapes"]) == selected
    kept = [name for name in trained.state["model"] if name.startswith("encoder")]
    assert all(state["model"][name] is trained.state["model"][name] for name in kept)
    half = with_state(trained, state)
    layers = attention_layers(half.model).values()
    assert [hasattr(layer, "mixing") for layer in layers] == [False, True, True]
    state, fits = convert(half, {"cross.0": 5}, calibrations)
    assert fits["cross.0"].weights.content_bias is not None
    smaller = with_state(half, state)
    key_dims = {layer_id: layer.key_dim for layer_id, layer in attention_layers(smaller.model).items()}
    assert key_dims == {"encoder.0": E, "cross.0": 5, "decoder.0": 8}
    assert 1e-4 < output_errors(half, smaller, "valid", ["cross.0"])["cross.0"] < 0.6
    with pytest.raises(AttentionError, match="between 1 and 5; got 6"):
        convert(smaller, {"cross.0": 6})


def test_half_precision_source_stays_half(trained, calibrations, tiny_data):
    parameters = {name: tensor.half() for name, tensor in trained.state["model"].items()}
    source = load({**trained.state, "model": parameters}, tiny_data, double=False)
    state, _ = convert(source, 8, calibrations)
    assert {tensor.dtype for tensor in state["model"].values()} == {torch.float16}
    full = with_state(trained, convert(trained, 8, calibrations)[0])
    assert loss(with_state(source, state), "valid").loss == pytest.approx(loss(full, "valid").loss, abs=2e-3)


def test_command_reports_what_the_checkpoint_contains(command_line, checkpoint, tiny_data):
    folder, done = command_line
    parts = load_record(folder / "report.json", "conversion", "reparam")["parts"]
    models = {"before": load_model(checkpoint, tiny_data), "after": load_model(folder / "six.pt", tiny_data)}
    heads = {name: scores_by_layer(model) for name, model in models.items()}
    errors = output_errors(models["before"], models["after"], "train", LAYER_IDS, sentences=100)
    sizes = {name: sum(p.numel() for p in model.model.parameters()) for name, model in models.items()}
    assert parts["parameters"] == sizes
    assert [layer["layer"] for layer in parts["layers"]] == list(LAYER_IDS)
    saved = 0
    for layer in parts["layers"]:
        layer_id = layer["layer"]
        assert layer["key_dim"] == {"before": E, "after": 6}
        error = relative_error(heads["before"][layer_id].heads, heads["after"][layer_id].heads)
        assert layer["relative_error"] == pytest.approx(error, rel=1e-4)  # after distillation
        assert 0 < error < 1
        assert layer["output_error"] == pytest.approx(errors[layer_id], rel=1e-4)
        assert layer["parameters"]["after"] == 6 * (E + E + H) + H * E
        saved += layer["parameters"]["before"] - layer["parameters"]["after"]
    assert sizes["before"] - sizes["after"] == saved
    assert 0 < parts["distillation"]["after"] < parts["distillation"]["before"]
    assert [step for step, _ in parts["distillation"]["curve"]] == [9]
    losses = {name: loss(model, "valid").loss for name, model in models.items()}
    assert parts["evaluation"]["valid loss"] == pytest.approx(losses, abs=1e-6)
    assert "BLEU test" in parts["evaluation"]
    assert all(text in done.stdout for text in ("→ 6", f"{sizes['after']:,}", "valid loss: "))
    assert "cross.0 (2 of 3)" in done.stderr


def test_unweighted_fit_needs_no_data(checkpoint, tmp_path, caplog):
    state = checkpoints.load(checkpoint)
    state["cfg"]["task"]["data"] = str(tmp_path / "missing")
    checkpoints.save(state, tmp_path / "source.pt")
    collab("reparam", tmp_path / "source.pt", "--output", tmp_path / "out.pt", "--key-dim", 16)
    assert "no --calibration" in caplog.text
    name = "encoder.layers.0.self_attn.q_proj.weight"
    assert torch.equal(checkpoints.load(tmp_path / "out.pt")["model"][name], state["model"][name])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--key-dim 17", "must be between 1 and 16"),
        ("--budget mean:8", "--budget needs --calibration"),
        ("--key-dim 8 --distill-text train:9", "need --distill"),
        ("--key-dim 8 --distill 9 --calibration train:9 --distill-rate 0", "must be above 0; got 0"),
        ("--key-dim 17 --calibration train:9", "must be between 1 and 16"),
        ("--key-dim 8 --calibration dev:9", "must be SPLIT:N or SOURCE; got dev:9"),
        (
            "--key-dim 8 --calibration train:9 --distill 9 --distill-text dev:9",
            "--distill-text must be SPLIT:N or SOURCE",
        ),
        ("--budget parameters:100 --calibration train:9", "such as mean:128; got 'parameters:100'"),
        ("--budget mean:1 --calibration train:9", "must be at least mean:2; got mean:1"),
        ("--budget mean:500 --calibration train:9", "must be at most mean:16; got mean:500"),
        ("--key-dim 8 --evaluate --reference test=SHORT", "short.txt must have 20 lines"),
        ("--key-dim 8 --sites none", "has no attention at 'none'"),
        ("--key-dim 8 --output SOURCE", "already exists; choose another output"),
        ("--key-dim 8 --json FOLDER/./out.pt", "--json and --output must be two files; got "),
        ("--key-dim 8 --json SHORT --calibration SHORT", "short.txt is one of the inputs"),
        ("--key-dim 8 --json SHORT --evaluate --reference test=SHORT", "short.txt is one of the inputs"),
    ],
)
def test_rejects_mistakes_and_writes_nothing(
    checkpoint, tiny_data, tmp_path, tmp_path_factory, flags, message, monkeypatch
):
    monkeypatch.setattr(fairseq, "calibrate", lambda *_, **__: pytest.fail("the work has begun"))
    (short := tmp_path_factory.mktemp("references") / "short.txt").write_text("one\ntwo\n")
    for name, path in (("SHORT", short), ("SOURCE", checkpoint), ("FOLDER", tmp_path)):
        flags = flags.replace(name, str(path))
    before = checkpoints.sha256(checkpoint)
    arguments = ["reparam", checkpoint, "--data", tiny_data, "--output", tmp_path / "out.pt"]
    assert message in collab(*arguments, *flags.split(), status=1)
    assert list(tmp_path.iterdir()) == []
    assert short.read_text() == "one\ntwo\n"
    assert checkpoints.sha256(checkpoint) == before


def test_calibrates_on_a_text_file(checkpoint, tiny_data, tmp_path):
    """The model translates it. A byte order mark is not text."""
    data = load_model(checkpoint, tiny_data).task
    data.load_dataset("valid")
    lines = [data.source_dictionary.string(data.dataset("valid").src[number]) for number in range(20)]
    for name, encoding in (("source", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding=encoding)
    biases = {}
    for name, text in {"split": "valid:20", "source": tmp_path / "source", "marked": tmp_path / "marked"}.items():
        output = tmp_path / f"{name}.pt"
        arguments = ["--data", tiny_data, "--output", output, "--key-dim", 8, "--calibration", text]
        collab("reparam", checkpoint, *arguments)
        biases[name] = checkpoints.load(output)["model"]["decoder.layers.0.encoder_attn.content_bias"]
    assert torch.equal(biases["marked"], biases["source"])
    assert float((biases["source"] - biases["split"]).abs().max()) > 1e-3


def train_from(source, data, updates, folder, *start):
    """Log and last checkpoint of a training run with the attention of a converted checkpoint."""
    model = ["--arch", "transformer_collab", *TINY_MODEL[2:], "--user-dir", run("collab", "user-dir").stdout.strip()]
    flags = ["--max-update", updates, "--save-dir", folder, "--no-epoch-checkpoints", "--attention-from", source]
    log = run("fairseq-train", data, *model, *TINY_TRAINING, *flags, *start).stdout
    return log, checkpoints.load(folder / "checkpoint_last.pt")


def test_fine_tuning_resumes_bit_for_bit(command_line, tiny_data, tmp_path):
    """An interrupted and resumed run equals an uninterrupted run, and lowers the loss."""
    source = command_line[0] / "six.pt"
    tuned = ["--finetune-from-model", source]
    _, whole = train_from(source, tiny_data, 40, tmp_path / "whole", *tuned)
    train_from(source, tiny_data, 20, tmp_path / "parts", *tuned)
    log, parts = train_from(source, tiny_data, 40, tmp_path / "parts", *tuned)
    assert "@ 20 updates" in log
    assert same_model(whole["model"], parts["model"])
    assert (
        checkpoints.model_settings(parts)["attention_shapes"]
        == checkpoints.model_settings(checkpoints.load(source))["attention_shapes"]
    )
    assert checkpoints.model_settings(parts)["attention_from"] is None
    before = loss(load_model(source, tiny_data), "valid").loss
    after = loss(load_model(tmp_path / "whole" / "checkpoint_last.pt", tiny_data), "valid").loss
    assert after < before - 0.02
    _, restored = train_from(source, tiny_data, 2, tmp_path / "restored", "--restore-file", source)
    assert checkpoints.num_updates(restored) == 2
    assert restored["extra_state"]["train_iterator"]["epoch"] == 1
