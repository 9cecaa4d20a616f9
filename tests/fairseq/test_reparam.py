"""Whole models converted: calibration, checkpoints, `collab reparam`, fine-tuning."""

import copy

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import load as load_record
from collab_fairseq.reparam import Calibrator, ReparamError, relative_error, scores_of
from collab_fairseq.reparam.fairseq import calibrate, convert, layer_ids, output_errors, sources
from collab_fairseq.translation import batches, load_model, loss, translate, with_state
from collab_fairseq.translation.load import run_state
from tests.common import FLOAT32, TINY_MODEL, TINY_TRAINING, run

LAYER_IDS = ["encoder.0", "cross.0", "decoder.0"]
E, H = 16, 2


@pytest.fixture(scope="module")
def checkpoint(tiny_run):
    return tiny_run / "checkpoint_best.pt"


@pytest.fixture(scope="module")
def trained(checkpoint, tiny_data):
    """The tiny model, its attention sharpened so that something is lost with every dimension."""
    state = copy.deepcopy(checkpoints.load(checkpoint))
    for name, tensor in state["model"].items():
        if "attn.q_proj" in name or "attn.k_proj" in name:
            tensor.mul_(2.0)
        if "attn.q_proj.bias" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
    return run_state(state, "sharp.pt", tiny_data)


@pytest.fixture(scope="module")
def calibrations(trained):
    return calibrate(trained, "train", LAYER_IDS, sentences=100)


@pytest.fixture(scope="module")
def command_line(checkpoint, tiny_data, tmp_path_factory):
    """A conversion by the command, at key dim 6 of 16: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("reparam")
    before = checkpoints.sha256(checkpoint)
    done = run(
        "collab", "reparam", checkpoint, "--output", folder / "six.pt", "--key-dim", 6, "--data", tiny_data,
        "--calibration", "train:100", "--distill", 9, "--evaluate", "--json", folder / "report.json",
    )  # fmt: skip
    assert checkpoints.sha256(checkpoint) == before
    return folder, done


@pytest.mark.parametrize("causal", [False, True])
def test_calibration_is_that_of_the_inputs_one_by_one(trained, calibrations, causal):
    """Inputs of the first layers are embeddings: sentence by sentence through what the unit tests hold to loops."""
    place = "decoder.0" if causal else "encoder.0"
    side, layer = (trained.model.decoder if causal else trained.model.encoder), attention_layers(trained.model)[place]
    attended, even = Calibrator(scores_of(layer)), Calibrator()
    for sample in batches(trained, "train", sentences=100, max_tokens=37):
        tokens = sample["net_input"]["prev_output_tokens" if causal else "src_tokens"]
        with torch.no_grad():
            embedded = side.embed_tokens(tokens) * E**0.5 + side.embed_positions(tokens)
        for sentence, row in zip(tokens, embedded, strict=True):
            own = row[sentence != 1]
            future = torch.ones(len(own), len(own), dtype=torch.bool).triu(1) if causal else None
            attended.update(own[None], own[None], attn_mask=future)
            even.update(own[None], own[None], attn_mask=future)
    found, expected, control = calibrations[place], attended.result(), even.result()
    assert found.queries == expected.queries
    for name in ("query_mean", "query_covariance", "key_covariance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=0)
        assert float((getattr(found, name) - getattr(control, name)).abs().max()) > 1e-4


def test_at_full_size_nothing_changes(trained, calibrations):
    for calibration in (None, calibrations):
        state, fits = convert(trained, E, calibration)
        model = with_state(trained, state)
        assert all(fit.error < 1e-5 for fit in fits.values())
        assert loss(model, "test").loss == pytest.approx(loss(trained, "test").loss, abs=FLOAT32)
        options = {"max_len_a": 0, "max_len_b": 12}
        assert translate(model, "test", **options) == translate(trained, "test", **options)
        assert all(layer.k_proj.bias is None for layer in attention_layers(model.model).values())


def test_calibration_and_size_matter(trained, calibrations):
    """Errors of the outputs fall with the key dim and with calibration; the source is left alone."""
    before = {n: tensor.clone() for n, tensor in trained.state["model"].items()}
    errors = {}
    for dim, calibration in ((12, calibrations), (6, calibrations), (6, None)):
        state, _ = convert(trained, dim, calibration)
        found = output_errors(trained, with_state(trained, state), "valid", LAYER_IDS)
        errors[dim, calibration is not None] = sum(found.values()) / len(found)
    assert 0 < errors[12, True] < errors[6, True] < 0.75 * errors[6, False] < 1
    assert all(torch.equal(trained.state["model"][name], tensor) for name, tensor in before.items())
    assert trained.state["last_optimizer_state"] is not None


def test_only_the_chosen_sites_change(trained):
    chosen = layer_ids(trained, "decoder_cross")
    state, fits = convert(trained, dict.fromkeys(chosen, 6))
    assert list(fits) == chosen == ["cross.0", "decoder.0"]
    kept = [name for name in trained.state["model"] if name.startswith("encoder")]
    assert all(state["model"][name] is trained.state["model"][name] for name in kept)
    assert sorted(model_config(state)["attention_shapes"]) == ["cross.0", "decoder.0"]
    layers = attention_layers(with_state(trained, state).model)
    types = {layer_id: type(layer).__name__ for layer_id, layer in layers.items()}
    assert types["encoder.0"] == "IncrementalStandardAttention"
    assert types["cross.0"] == types["decoder.0"] == "IncrementalCollaborativeAttention"


def test_a_collaborative_model_becomes_smaller_again(trained, calibrations):
    half = with_state(trained, convert(trained, 8, calibrations)[0])
    state, fits = convert(half, {"encoder.0": 5}, {"encoder.0": calibrations["encoder.0"]})
    assert fits["encoder.0"].weights.content_bias is not None
    quarter = with_state(half, state)
    dims = {layer_id: layer.key_dim for layer_id, layer in attention_layers(quarter.model).items()}
    assert dims == {"encoder.0": 5, "cross.0": 8, "decoder.0": 8}
    assert 1e-4 < output_errors(half, quarter, "valid", ["encoder.0"])["encoder.0"] < 0.6
    with pytest.raises(ReparamError, match=r"the shared key dim must be between 1 and 5, .* got 6"):
        convert(quarter, 6)


def test_half_precision_stays_half(trained, calibrations, tiny_data):
    half = copy.deepcopy({key: trained.state[key] for key in ("cfg", "args", "model", "extra_state")})
    half["model"] = {name: tensor.half() for name, tensor in half["model"].items()}
    source = run_state(half, "half.pt", tiny_data)
    state, _ = convert(source, 8, calibrations)
    assert {tensor.dtype for tensor in state["model"].values()} == {torch.float16}
    full = with_state(trained, convert(trained, 8, calibrations)[0])
    assert loss(with_state(source, state), "valid").loss == pytest.approx(loss(full, "valid").loss, abs=2e-3)


def test_the_command_writes_what_the_functions_make(command_line, checkpoint, tiny_data):
    folder, done = command_line
    report = load_record(folder / "report.json", "conversion", "reparam")["parts"]
    assert [layer["layer"] for layer in report["layers"]] == LAYER_IDS
    trained = load_model(checkpoint, tiny_data)
    small = load_model(folder / "six.pt", tiny_data)
    errors = output_errors(trained, small, "train", LAYER_IDS, sentences=100)
    sizes = {model: sum(p.numel() for p in one.model.parameters()) for model, one in (("b", trained), ("a", small))}
    assert report["parameters"] == {"before": sizes["b"], "after": sizes["a"]}
    saved = 0
    for layer in report["layers"]:
        assert layer["key_dim"] == {"before": E, "after": 6}
        heads = [sources(model, [layer["layer"]])[layer["layer"]].heads for model in (trained, small)]
        assert layer["relative_error"] == pytest.approx(relative_error(*heads), rel=1e-4)  # distilled
        assert 0 < layer["relative_error"] < 1
        assert layer["output_error"] == pytest.approx(errors[layer["layer"]], rel=1e-4)
        assert layer["parameters"]["after"] == 6 * (E + E + H) + H * E
        saved += layer["parameters"]["before"] - layer["parameters"]["after"]
    learnt = report["distillation"]
    assert 0 < learnt["after"] < learnt["before"]
    assert [step for step, _ in learnt["curve"]] == [9]
    assert sizes["b"] - sizes["a"] == saved
    valid_loss = report["evaluation"]["valid loss"]
    assert valid_loss["before"] == pytest.approx(loss(trained, "valid").loss, abs=1e-6)
    assert valid_loss["after"] == pytest.approx(loss(small, "valid").loss, abs=1e-6)
    assert "BLEU test" in report["evaluation"]
    assert all(text in done.stdout for text in ("→ 6", f"{sizes['a']:,}", "valid loss: "))
    assert "cross.0 (2 of 3): key dim 16 to 6" in done.stderr


def test_the_plain_fit_needs_no_data(checkpoint, tmp_path, caplog):
    state = checkpoints.load(checkpoint)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    checkpoints.save(state, tmp_path / "source.pt")
    arguments = ["reparam", str(tmp_path / "source.pt"), "--output", str(tmp_path / "out.pt"), "--key-dim", "16"]
    assert main(arguments) == 0
    assert "no --calibration" in caplog.text
    converted = checkpoints.load(tmp_path / "out.pt")["model"]
    name = "encoder.layers.0.self_attn.q_proj.weight"
    assert torch.equal(converted[name], state["model"][name])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--key-dim", "17"], "the shared key dim must be between 1 and 16"),
        (["--budget", "mean:8"], "--budget needs text"),
        (["--key-dim", "8", "--distill-text", "train:9"], "--distill-text and --distill-rate need --distill"),
        (["--key-dim", "8", "--distill", "9", "--calibration", "train:9", "--distill-rate", "0"], "must be above 0"),
        (["--key-dim", "8", "--calibration", "dev:9"], "no split 'dev': it has train, valid, test"),
        (["--budget", "parameters:100", "--calibration", "train:9"], "budget must be mean:KEY_DIM; got 'parameters"),
        (["--key-dim", "8", "--calibration", "SHORT,SHORT"], "must be SPLIT:N or SOURCE; there is no file"),
        (["--budget", "mean:1", "--calibration", "train:9"], "too small: a mean key dim of 2 is the least; got 1"),
        (["--budget", "mean:500", "--calibration", "train:9"], "too large: the layers' mean key dim is 16; got 500"),
        (["--key-dim", "8", "--evaluate", "--reference", "test=SHORT"], "short.txt has 2 lines, expected 20, one for"),
        (["--key-dim", "8", "--sites", "none"], "has no attention at 'none'"),
        (["--key-dim", "8", "--evaluate", "--reference", "test9=x"], "the test splits are test"),
        (["--key-dim", "8", "--output", "SOURCE"], "already exists; choose another --output"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_written(
    checkpoint, tiny_data, tmp_path, tmp_path_factory, capsys, flags, message
):
    (short := tmp_path_factory.mktemp("references") / "short.txt").write_text("one\ntwo\n")
    flags = [str(checkpoint) if flag == "SOURCE" else flag.replace("SHORT", str(short)) for flag in flags]
    before = checkpoints.sha256(checkpoint)
    arguments = ["reparam", str(checkpoint), "--data", str(tiny_data), "--output", str(tmp_path / "out.pt"), *flags]
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("collab reparam: error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []
    assert checkpoints.sha256(checkpoint) == before


def test_text_files_calibrate_too(checkpoint, tiny_data, tmp_path, capsys):
    """Sources alone are translated by the model. A byte order mark is no text."""
    data = load_model(checkpoint, tiny_data).task
    data.load_dataset("valid")
    lines = [data.source_dictionary.string(data.dataset("valid").src[number]) for number in range(20)]
    for name, encoding in (("source", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding=encoding)
    biases = {}
    for name, text in {"split": "valid:20", "source": f"{tmp_path}/source", "marked": f"{tmp_path}/marked"}.items():
        output = tmp_path / f"{name}.pt"
        arguments = ["--data", tiny_data, "--output", output, "--key-dim", 8, "--calibration", text]
        assert main(["reparam", str(checkpoint), *map(str, arguments)]) == 0
        biases[name] = checkpoints.load(output)["model"]["decoder.layers.0.encoder_attn.content_bias"]
    assert torch.equal(biases["marked"], biases["source"])
    assert float((biases["source"] - biases["split"]).abs().max()) > 1e-3


def train_from(source, data, updates, folder, *start):
    """The log and the last checkpoint of a training with the attention of a converted checkpoint."""
    model = ["--arch", "transformer_collab", *TINY_MODEL[2:], "--user-dir", run("collab", "user-dir").stdout.strip()]
    log = run(
        "fairseq-train", data, *model, *TINY_TRAINING, "--max-update", updates, "--save-dir", folder,
        "--no-epoch-checkpoints", "--attention-from", source, *start,
    ).stdout  # fmt: skip
    return log, checkpoints.load(folder / "checkpoint_last.pt")


def test_training_goes_on_from_it_and_can_be_resumed(command_line, tiny_data, tmp_path):
    """Fine-tuning lowers the loss; stopped in the middle and started again it ends the same, bit for bit."""
    source = command_line[0] / "six.pt"
    tuned = ["--finetune-from-model", source]
    _, whole = train_from(source, tiny_data, 40, tmp_path / "whole", *tuned)
    train_from(source, tiny_data, 20, tmp_path / "parts", *tuned)
    log, parts = train_from(source, tiny_data, 40, tmp_path / "parts", *tuned)
    assert "@ 20 updates" in log
    assert all(torch.equal(whole["model"][n], t) for n, t in parts["model"].items())
    assert model_config(parts)["attention_shapes"] == model_config(checkpoints.load(source))["attention_shapes"]
    assert model_config(parts)["attention_from"] is None
    before = loss(load_model(source, tiny_data), "valid").loss
    after = loss(load_model(tmp_path / "whole" / "checkpoint_last.pt", tiny_data), "valid").loss
    assert after < before - 0.02
    _, restored = train_from(source, tiny_data, 2, tmp_path / "restored", "--restore-file", source)
    assert checkpoints.num_updates(restored) == 2
    assert restored["extra_state"]["train_iterator"]["epoch"] == 1
