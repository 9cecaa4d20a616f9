"""Training and generation with fairseq's command-line tools."""

import logging
import re
import shutil
from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.models.arguments import inherit_attention
from collab_fairseq.translation import load_model, loss
from collab_fairseq.translation.load import model_from_state
from tests.commands import hydra_command, train_command
from tests.common import ROOT, run
from tests.models.cases import SMALL, same_model

MODEL = {**SMALL, "key_dim": 6}
AVERAGED = {**MODEL, "attention_content_bias": True, "store_ema": True, "ema_fp32": True}


def test_flags_and_hydra_train_the_same_model(tiny_data, tmp_path):
    flags = {**MODEL, "mixing_init": "normal", "attention_content_bias": True, "encoder_key_dim": 10}
    run(*train_command(tiny_data, tmp_path / "flags", max_update=40, **flags))
    run(*hydra_command(tiny_data, tmp_path / "hydra", tmp_path / "conf", optimization={"max_update": 40}, **flags))
    states = [checkpoints.load(tmp_path / name / "checkpoint_last.pt") for name in ("flags", "hydra")]
    for cfg in map(checkpoints.model_settings, states):
        assert (cfg["mixing_init"], cfg["attention_content_bias"], cfg["key_dim"]) == ("normal", True, 6)
        assert (cfg["encoder_embed_dim"], cfg["decoder_layers"], cfg["dropout"]) == (16, 2, 0.1)  # set by the preset
    assert states[0]["model"]["encoder.layers.1.self_attn.k_proj.weight"].shape == (10, 16)
    assert same_model(*(state["model"] for state in states))


def test_finetuning_starts_from_fairseqs_transformer(tiny_data, tmp_path):
    small, baseline = {**SMALL, "max_update": 1}, tmp_path / "baseline" / "checkpoint_last.pt"
    run(*train_command(tiny_data, baseline.parent, arch="transformer", **small))
    tuned = {"finetune_from_model": baseline, "collaborative_heads": "none", "lr": 1e-30}
    run(*train_command(tiny_data, tmp_path / "tuned", **{**small, **tuned}))
    states = [checkpoints.load(file) for file in (baseline, tmp_path / "tuned" / "checkpoint_last.pt")]
    assert same_model(*(state["model"] for state in states))


def test_eval_bleu_does_not_change_training(tiny_data, tmp_path):
    """--eval-bleu translates between updates."""
    flags = {**MODEL, "max_update": 24, "validate_interval_updates": 8, "attention_dropout": 0.1}
    run(*train_command(tiny_data, tmp_path / "plain", **flags))
    search = {"eval_bleu": True, "eval_bleu_args": '{"beam": 3, "max_len_b": 20}'}
    log = run(*train_command(tiny_data, tmp_path / "bleu", **flags, **search)).stdout
    assert re.search(r"\| valid \|.*\| bleu \d", log)
    plain, bleu = (checkpoints.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("plain", "bleu"))
    assert same_model(plain, bleu)


@pytest.fixture(scope="module")
def with_multiplier(tiny_data, tmp_path_factory):
    """The last checkpoint of a run with 8× learning rate on the mixing matrices, and with a moving average."""
    folder = tmp_path_factory.mktemp("with-multiplier")
    run(*train_command(tiny_data, folder, **AVERAGED, ema_decay=0.9, mixing_lr_multiplier=8.0, max_update=30))
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"finetune_from_model": ...}, False),
        ({"restore_file": ..., "reset_optimizer": True, "mixing_lr_multiplier": 3.0}, False),
        ({"restore_file": ..., "mixing_lr_multiplier": 8.0}, True),
    ],
)
def test_continued_training_keeps_the_function_with_any_multiplier(with_multiplier, tiny_data, tmp_path, flags, same):
    """Of the model and of its moving average, whose float32 copy is only loaded with the same multiplier."""
    flags = {name: with_multiplier if value is ... else value for name, value in flags.items()}
    fixed = {**AVERAGED, "lr": 1e-30, "ema_decay": 1.0, "max_update": 31}
    log = run(*train_command(tiny_data, tmp_path, **fixed, **flags)).stdout
    losses = []
    for path in (tmp_path / "checkpoint_last.pt", with_multiplier):
        state = checkpoints.load(path)
        average = {**state, "model": state["extra_state"]["ema"]}
        losses.append([loss(model_from_state(saved, "saved", tiny_data), "valid").loss for saved in (state, average)])
    continued, (expected, expected_of_average) = losses
    assert continued == pytest.approx([expected, expected_of_average], abs=1e-5)
    assert abs(expected - expected_of_average) > 1e-3
    assert ("Loading EMA fp32 params from checkpoint" in log) is same
    forgotten = checkpoints.load(with_multiplier)
    checkpoints.model_settings(forgotten)["mixing_lr_multiplier"] = 1.0
    checkpoints.save(forgotten, tmp_path / "forgotten.pt")
    assert abs(loss(load_model(tmp_path / "forgotten.pt", tiny_data), "valid").loss - expected) > 0.01


@pytest.mark.parametrize(
    ("args", "warns"),
    [
        (Namespace(), True),
        (Namespace(finetune_from_model="checkpoint.pt"), False),
        (OmegaConf.create(), False),  # Hydra's config of the model does not tell whether the run loads weights
    ],
)
def test_attention_from_without_weights_warns(with_multiplier, caplog, args, warns):
    args.attention_from = str(with_multiplier)
    with caplog.at_level(logging.WARNING, "collab_fairseq"):
        inherit_attention(args)
    assert (args.mixing_lr_multiplier, args.attention_from) == (8.0, None)
    assert ("takes shapes, not weights" in caplog.text) is warns


FIRST_PART = "checkpoint_1_10.pt"
PLAIN = {"optimizer": "adam", "criterion": "label_smoothed_cross_entropy"}
OURS = {"optimizer": "fused_adam", "criterion": "label_smoothed_cross_entropy_chunked"}


@pytest.mark.parametrize(
    ("first", "second", "arch"),
    [(PLAIN, OURS, "transformer_collab"), pytest.param(OURS, PLAIN, "transformer", marks=pytest.mark.slow)],
)
def test_resumed_run_may_switch_optimizer_and_criterion(tiny_data, tmp_path, first, second, arch):
    """Compared with the uninterrupted run, and with its first part as a control."""
    flags = {**SMALL, "arch": arch, "dropout": 0, "max_update": 20}
    run(*train_command(tiny_data, tmp_path / "one", **flags, **first, save_interval_updates=10))
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / FIRST_PART, tmp_path / "two" / "checkpoint_last.pt")
    log = run(*train_command(tiny_data, tmp_path / "two", **flags, **second)).stdout
    assert "@ 10 updates" in log

    def numbers(name):
        """Parameters, first moments and roots of second moments."""
        state = checkpoints.load(tmp_path / name)
        moments = [moments for _, moments in sorted(state["last_optimizer_state"]["state"].items())]
        assert len(moments) > 20
        parameters = [tensor for key, tensor in state["model"].items() if not key.endswith("_float_tensor")]
        lists = parameters, [m["exp_avg"] for m in moments], [m["exp_avg_sq"].sqrt() for m in moments]
        return [torch.cat([tensor.flatten() for tensor in tensors]) for tensors in lists]

    names = ("one/checkpoint_last.pt", "two/checkpoint_last.pt", f"one/{FIRST_PART}")
    for expected, resumed, halfway in zip(*map(numbers, names), strict=True):
        assert (resumed - expected).norm() < 1e-3 * expected.norm()
        assert (halfway - expected).norm() > 1e-2 * expected.norm()


@pytest.mark.slow
def test_hydra_sweep_through_submitit(tiny_data, tmp_path):
    """The config of the WMT14 recipe, as two local submitit jobs instead of Slurm jobs."""
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
        (last,) = tmp_path.glob(f"{heads}-dk6-s1/**/checkpoint_last.pt")
        state = checkpoints.load(last)
        assert state["cfg"]["model"]["collaborative_heads"] == heads
        assert state["optimizer_history"][-1]["num_updates"] == 2
