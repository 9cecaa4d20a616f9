"""Key-dimension studies: attention scales and masked mixing."""

import shutil
from argparse import Namespace

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.attention import initial_mixing
from collab_fairseq.models.arguments import inherit_attention
from recipes.runner import settings, sweep
from recipes.runner.recipe_run import run_name
from tests.commands import train_command
from tests.common import ROOT, program, run
from tests.models.cases import SMALL, same_model

RECIPE = ROOT / "recipes" / "curve"
PROGRAM = ["bash", RECIPE / "run.sh", "logits_scale"]


@pytest.mark.parametrize(("key_dim", "factor", "scale"), [(128, [], 0.25), (256, ["--factor", 0.5], 0.5 * 32**-0.5)])
def test_logits_scale_sets_scale_of_all_layers(key_dim, factor, scale, tmp_path):
    run(*PROGRAM, key_dim, tmp_path / "made" / "scaled.pt", *factor)
    args = Namespace(attention_from=str(tmp_path / "made" / "scaled.pt"))
    inherit_attention(args)
    layer_ids = [f"{site}.{layer}" for site in ("encoder", "cross", "decoder") for layer in range(2)]
    assert args.attention_shapes == {layer_id: {"scale": scale} for layer_id in layer_ids}
    assert (args.collaborative_heads, args.key_dim) == ("none", key_dim)
    done = program("recipes", "curve", "logits_scale", key_dim, tmp_path / "made" / "scaled.pt")
    assert "scaled.pt already exists" in done.stderr


def test_logits_scale_rejects_factor_zero(tmp_path):
    done = program("recipes", "curve", "logits_scale", 256, tmp_path / "zero.pt", "--factor", 0)
    assert (done.returncode, "--factor: must be positive" in done.stderr) == (2, True)
    assert not (tmp_path / "zero.pt").exists()


@pytest.mark.parametrize(("config", "seeds"), [("converge", [1, 2]), ("rates", [11])])
def test_tables_of_sweeps_have_a_row_per_run(config, seeds, tmp_path, capsys):
    """Also if runs differ in the learning rate only. The references are the names of the published records."""
    cfg = settings.load("curve", config)
    selections = [sweep.parse_run(selection) for selection in cfg.recipe.runs]
    for seed in seeds:
        for selection in selections:
            name = run_name(*selection, seed, cfg.optimization.max_update)
            (tmp_path / name).mkdir()
            shutil.copy(ROOT / "results" / "runs" / f"curve-{name}.json", tmp_path / name / "record.json")
    sweep.write_tables(tmp_path, [folder.name for folder in tmp_path.iterdir()])
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    lines = table.partition("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert header[:5] == ["heads", "key dimension", "updates", "learning rate", "seeds"]
    assert {row[4] for row in rows} == {str(len(seeds))}
    shown = sorted((row[0].partition(",")[0], row[1], float(row[3])) for row in rows)
    attention = {"none": "standard", "encoder_cross_decoder": "collaborative"}
    expected = [(attention[heads], dim, int(variant.rpartition("lr")[2]) / 1000) for heads, dim, variant in selections]
    assert shown == sorted(expected)


def test_masked_mixing_keeps_blocks_and_learns_gains(tiny_data, tmp_path):
    """Also in a resumed run; the control without mask leaves the blocks."""
    settings = {**SMALL, "key_dim": 6, "mixing_init": "blocks", "mixing_lr_multiplier": 8, "optimizer": "fused_adam"}
    masked = {"user_dir": RECIPE / "masked_mixing", **settings}
    run(*train_command(tiny_data, tmp_path / "control", max_update=8, **settings))
    run(*train_command(tiny_data, tmp_path / "once", max_update=8, **masked))
    for updates in (4, 8):
        run(*train_command(tiny_data, tmp_path / "resumed", max_update=updates, **masked))
    models = {
        name: checkpoints.load(tmp_path / name / "checkpoint_last.pt")["model"]
        for name in ("control", "once", "resumed")
    }
    mixing = {name: [m for key, m in model.items() if key.endswith(".mixing")] for name, model in models.items()}
    assert len(mixing["once"]) == 6
    blocks = initial_mixing("blocks", 2, 6).bool()
    for once, control in zip(mixing["once"], mixing["control"], strict=True):
        assert bool((once[~blocks] == 0).all())
        assert bool((once[blocks] != 0.125).all())  # 1 / 8 at the start
        assert bool((control[~blocks] != 0).all())
    assert same_model(models["once"], models["resumed"])
    for wrong, message in [
        ({"mixing_init": "xavier"}, "must have a mixing matrix of blocks"),
        ({"weight_decay": 0.1}, "--weight-decay must be 0; got 0.1"),
    ]:
        command = train_command(tiny_data, tmp_path / "wrong", max_update=1, **{**masked, **wrong})
        done = run(*command, check=False)
        assert (done.returncode, message in done.stderr) == (1, True)
