"""The model under fairseq's command-line tools, as a user types them."""

import re
import shutil

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.translation import load_model, loss
from tests.common import ROOT, run
from tests.fairseq.commands import USER_DIR, hydra_command, train_command
from tests.fairseq.models import SMALL, same_model


def options(**more):
    return {**SMALL, "key_dim": 6, **more}


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """The same small model, trained by both tools: way → its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    given = options(mixing_init="normal", attention_content_bias=True, encoder_key_dim=10)
    last = {"max_update": 40}
    run(*train_command(tiny_data, folder / "flags", **last, **given))
    run(*hydra_command(tiny_data, folder / "hydra", folder / "conf", optimization=last, **given))
    return {way: folder / way / "checkpoint_last.pt" for way in ("flags", "hydra")}


def test_both_ways_train_the_same_model(trained):
    loaded = [checkpoints.load(path) for path in trained.values()]
    for cfg in (vars(loaded[0]["cfg"]["model"]), loaded[1]["cfg"]["model"]):  # resolved, so that presets may change
        assert (cfg["mixing_init"], cfg["attention_content_bias"], cfg["key_dim"]) == ("normal", True, 6)
        assert loaded[0]["model"]["encoder.layers.1.self_attn.k_proj.weight"].shape == (10, 16)
        assert (cfg["encoder_embed_dim"], cfg["decoder_layers"], cfg["dropout"]) == (16, 2, 0.1)
    states = [state["model"] for state in loaded]
    assert same_model(*states)


def test_shapes_of_single_layers_travel_with_the_checkpoint(trained, tiny_data, tmp_path):
    """What conversion and pruning write: a model in which one layer differs, described in the stored config."""
    state = checkpoints.load(trained["hydra"])
    model = state["model"]
    for part in ("k_proj.weight", "k_proj.bias", "q_proj.weight", "q_proj.bias"):
        key = f"decoder.layers.1.encoder_attn.{part}"
        model[key] = model[key][:4].clone()
    model["decoder.layers.1.encoder_attn.mixing"] = model["decoder.layers.1.encoder_attn.mixing"][:, :4].clone()
    state["cfg"]["model"]["attention_shapes"] = {"cross.1": {"key_dim": 4, "scale": 0.2}}
    checkpoints.save(state, tmp_path / "irregular.pt")
    log = run(
        "fairseq-generate", tiny_data, "--path", tmp_path / "irregular.pt", "--user-dir", USER_DIR, "--cpu", "--beam", 2
    ).stdout
    assert len(re.findall(r"^H-\d+\t", log, re.MULTILINE)) == 20


def test_finetuning_starts_from_a_standard_transformer(tiny_data, tmp_path):
    """A checkpoint of fairseq's transformer, with the surplus that unpatched fairseq saves, becomes heads `none`."""
    small = {**SMALL, "max_update": 1}
    run(*train_command(tiny_data, tmp_path / "stock", arch="transformer", **small))
    stock = checkpoints.load(tmp_path / "stock" / "checkpoint_last.pt")
    for layer in range(2):
        stock["model"][f"encoder.layers.{layer}.in_proj_weight"] = torch.zeros(48, 16)
        stock["model"][f"encoder.layers.{layer}.fc1_bias"] = torch.zeros(20)
    checkpoints.save(stock, tmp_path / "stock.pt")
    tuned = {"finetune_from_model": tmp_path / "stock.pt", "collaborative_heads": "none", "lr": 1e-30}
    run(*train_command(tiny_data, tmp_path / "tuned", **{**small, **tuned}))
    model = checkpoints.load(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert same_model(model, {name: stock["model"][name] for name in model})


def test_bleu_while_training_changes_nothing(tiny_data, tmp_path):
    """--eval-bleu translates between updates with the model that trains."""
    common = options(max_update=24, validate_interval_updates=8, attention_dropout=0.1)
    run(*train_command(tiny_data, tmp_path / "plain", **common))
    search = {"eval_bleu": True, "eval_bleu_args": '{"beam": 3, "max_len_b": 20}'}
    log = run(*train_command(tiny_data, tmp_path / "bleu", **common, **search)).stdout
    assert re.search(r"\| valid \|.*\| bleu \d", log)
    plain, bleu = (checkpoints.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("plain", "bleu"))
    assert same_model(plain, bleu)


@pytest.fixture(scope="module")
def faster(tiny_data, tmp_path_factory):
    """A run whose mixing matrices learned 8 times as fast."""
    folder = tmp_path_factory.mktemp("faster")
    given = options(attention_content_bias=True, mixing_lr_multiplier=8.0, max_update=30)
    run(*train_command(tiny_data, folder, **given))
    return folder


@pytest.mark.parametrize(
    ("start", "multiplier"), [("finetune_from_model", {}), ("restore_file", {"mixing_lr_multiplier": 3.0})]
)
def test_continued_training_with_another_multiplier_keeps_the_function(faster, tiny_data, tmp_path, start, multiplier):
    source = faster / "checkpoint_last.pt"
    given = options(attention_content_bias=True, lr=1e-30, max_update=31, **{start: source}, **multiplier)
    if start == "restore_file":
        given["reset_optimizer"] = True
    run(*train_command(tiny_data, tmp_path, **given))
    found = loss(load_model(tmp_path / "checkpoint_last.pt", tiny_data), "valid").loss
    expected = loss(load_model(source, tiny_data), "valid").loss
    assert abs(found - expected) < 1e-5
    forgotten = checkpoints.load(source)
    model_config(forgotten)["mixing_lr_multiplier"] = 1.0
    checkpoints.save(forgotten, tmp_path / "forgotten.pt")
    assert abs(loss(load_model(tmp_path / "forgotten.pt", tiny_data), "valid").loss - expected) > 0.01  # the control


def test_shapes_without_weights_give_a_warning(faster, tiny_data, tmp_path):
    given = options(attention_content_bias=True, attention_from=faster / "checkpoint_last.pt", max_update=1)
    warning = r"--attention-from takes shapes, not weights: .* --finetune-from-model \S+/checkpoint_last\.pt, too"
    for more in ({}, {"finetune_from_model": faster / "checkpoint_last.pt"}):
        done = run(*train_command(tiny_data, tmp_path / f"run{len(more)}", **given, **more))
        assert bool(re.search(warning, done.stderr + done.stdout)) is not bool(more)


FIRST_PART = "checkpoint_1_10.pt"
PLAIN = {"optimizer": "adam", "criterion": "label_smoothed_cross_entropy"}
OURS = {"optimizer": "fused_adam", "criterion": "label_smoothed_cross_entropy_chunked"}


@pytest.mark.parametrize(
    ("first", "second", "arch"), [(PLAIN, OURS, "transformer_collab"), (OURS, PLAIN, "transformer")]
)
def test_ours_and_fairseqs_optimizers_and_criteria_continue_from_each_other(tiny_data, tmp_path, first, second, arch):
    """Parameters and moments end as without the change; those of the first part alone are the control."""
    given = {**SMALL, "arch": arch, "dropout": 0}
    run(*train_command(tiny_data, tmp_path / "whole", **given, **first, max_update=20, save_interval_updates=10))
    (tmp_path / "parts").mkdir()
    shutil.copy(tmp_path / "whole" / FIRST_PART, tmp_path / "parts" / "checkpoint_last.pt")
    log = run(*train_command(tiny_data, tmp_path / "parts", **given, **second, max_update=20)).stdout
    assert "@ 10 updates" in log

    def numbers(name):
        state = checkpoints.load(tmp_path / name)
        moments = [moments for _, moments in sorted(state["last_optimizer_state"]["state"].items())]
        assert len(moments) > 20
        parameters = [tensor for key, tensor in state["model"].items() if not key.endswith("_float_tensor")]
        lists = parameters, [one["exp_avg"] for one in moments], [one["exp_avg_sq"].sqrt() for one in moments]
        return [torch.cat([tensor.flatten() for tensor in tensors]) for tensors in lists]

    whole, parts, early = map(numbers, ("whole/checkpoint_last.pt", "parts/checkpoint_last.pt", f"whole/{FIRST_PART}"))
    for expected, found, before in zip(whole, parts, early, strict=True):
        assert (found - expected).norm() < 1e-3 * expected.norm()
        assert (before - expected).norm() > 1e-2 * expected.norm()


@pytest.mark.slow
def test_a_sweep_through_submitit(tiny_data, tmp_path):
    """The config of the WMT14 recipe, two runs as jobs of submitit's, on this machine instead of Slurm."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    small = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
    sizes = [f"++model.{side}_{name}={value}" for side in ("encoder", "decoder") for name, value in small.items()]
    run(
        *("fairseq-hydra-train", "--multirun", "--config-dir", ROOT / "recipes/wmt14_en_de"),
        *("--config-name", "wmt14_en_de", "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"),
        *(f"hydra.sweep.dir={tmp_path}", f"common.user_dir={ROOT / 'collab_fairseq'}", f"task.data={tiny_data}"),
        *("task.source_lang=src", "task.target_lang=tgt", "model.collaborative_heads=none,encoder_cross_decoder"),
        *("model.key_dim=6", *sizes, "common.cpu=true", "common.fp16=false", "dataset.num_workers=0"),
        *("distributed_training.distributed_world_size=1", "optimization.update_freq=[1]"),
        *("optimization.max_update=2", "dataset.max_tokens=200"),
    )
    for heads in ("none", "encoder_cross_decoder"):
        state = checkpoints.load(tmp_path / f"{heads}-dk6-s1" / "checkpoints" / "checkpoint_last.pt")
        assert state["cfg"]["model"]["collaborative_heads"] == heads
        assert state["optimizer_history"][-1]["num_updates"] == 2
