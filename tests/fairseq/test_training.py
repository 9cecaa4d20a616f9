"""The model under fairseq's command-line tools, as a user types them."""

import re

import pytest
import torch

from collab_fairseq import checkpoints
from tests.common import ROOT, run
from tests.fairseq.commands import USER_DIR, hydra_command, train_command
from tests.fairseq.models import SMALL, same_model


def options(**more):
    return {**SMALL, "key_dim": 6, **more}


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """The same small model, trained by both tools: way → its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    given = options(mixing_init="normal", attention_content_bias=True)
    last = {"max_update": 40}
    run(*train_command(tiny_data, folder / "flags", **last, **given))
    run(*hydra_command(tiny_data, folder / "hydra", folder / "conf", optimization=last, **given))
    return {way: folder / way / "checkpoint_last.pt" for way in ("flags", "hydra")}


def test_both_ways_train_the_same_model(trained):
    loaded = [checkpoints.load(path) for path in trained.values()]
    for cfg in (vars(loaded[0]["cfg"]["model"]), loaded[1]["cfg"]["model"]):  # resolved, so that presets may change
        assert (cfg["mixing_init"], cfg["attention_content_bias"], cfg["key_dim"]) == ("normal", True, 6)
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
    """A checkpoint of fairseq's own transformer, with the surplus that unmended fairseq saves, becomes heads `none`."""
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


@pytest.mark.slow
def test_a_sweep_through_submitit(tiny_data, tmp_path):
    """The config of the WMT14 recipe, two runs as jobs of submitit's, on this machine in place of Slurm."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    small = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
    run(
        "fairseq-hydra-train", "--multirun", "--config-dir", ROOT / "recipes/wmt14_en_de/conf", "--config-name",
        "wmt14_en_de", "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5", f"hydra.sweep.dir={tmp_path}",
        f"common.user_dir={ROOT / 'collab_fairseq'}", f"task.data={tiny_data}", "task.source_lang=src",
        "task.target_lang=tgt", "model.collaborative_heads=none,encoder_cross_decoder", "model.key_dim=6",
        *(f"++model.{side}_{name}={value}" for side in ("encoder", "decoder") for name, value in small.items()),
        "common.cpu=true", "common.fp16=false", "distributed_training.distributed_world_size=1",
        "optimization.update_freq=[1]", "optimization.max_update=2", "dataset.max_tokens=200", "dataset.num_workers=0",
    )  # fmt: skip
    for heads in ("none", "encoder_cross_decoder"):
        state = checkpoints.load(tmp_path / f"{heads}-dk6-s1" / "checkpoints" / "checkpoint_last.pt")
        assert state["cfg"]["model"]["collaborative_heads"] == heads
        assert state["optimizer_history"][-1]["num_updates"] == 2
