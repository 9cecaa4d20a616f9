"""Recipe YAML files: the runner and fairseq-hydra-train agree, overrides are merged in order, WMT14 is as published."""

import json
import os
import re
import shlex
from dataclasses import asdict
from types import SimpleNamespace
from unittest import mock

import pytest
import yaml
from fairseq import options
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import collab_fairseq.models
from collab_fairseq.models.arguments import flatten, resolve
from fairseq_modern.errors import UserError
from recipes.runner import cli, settings, training
from tests.common import ROOT, mostly_slow, program, run
from tests.recipes.test_settings import CONFIGS, RECIPES


def runner_commands(recipe, *flags):
    """The commands of run.sh on the GPUs of the YAML file, one per stage."""
    words = ["--data", "/data", "--output", "/run"]
    if recipe == "own":  # data and run are in one folder
        words = ["--source", "my.en", "my.de", "--output", "/"]
    machine = ["--gpus", 4] if "wmt14" in recipe else ["--gpus", 1, "--precision", "fp32"]
    words += ["--device", "gpu", *machine, *flags]
    environment = {"CUDA_VISIBLE_DEVICES": "", "RECIPE_CONFIG": "", "MASTER_PORT": "29500"}
    with mock.patch.dict(os.environ, environment):
        return program("recipes", recipe, *words, "--dry-run").stdout.splitlines()


def runner_config(recipe, *flags):
    """The config that fairseq-train resolves from the command of the last stage."""
    words = shlex.split(runner_commands(recipe, *flags)[-1])
    program = next(number for number, word in enumerate(words) if word.endswith("fairseq-train"))
    args = options.parse_args_and_arch(options.get_training_parser(), words[program + 1 :])
    return convert_namespace_to_omegaconf(args)


def hydra(recipe, *overrides):
    """Output of fairseq-hydra-train with the YAML file of a recipe."""
    folder = ["--config-dir", RECIPES / recipe, "--config-name", recipe]
    return run("fairseq-hydra-train", *folder, f"common.user_dir={ROOT / 'collab_fairseq'}", *overrides).stdout


def hydra_config(recipe, *overrides):
    """The config that fairseq-hydra-train resolves."""
    paths = ["task.data=/data/data-bin", "checkpoint.save_dir=/run/checkpoints"]
    paths += ["task.source_lang=en", "task.target_lang=de"] if recipe == "own" else []
    cfg = OmegaConf.create(yaml.safe_load(hydra(recipe, *paths, *overrides, "--cfg", "job")))
    cfg.recipe.root = ""  # set by the runner
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def model_config(cfg):
    """The config of the model as resolved by build_model, with its preset."""
    if not isinstance(cfg.model, DictConfig):
        return resolve(cfg.model)
    settings = OmegaConf.create(OmegaConf.to_container(cfg.model, resolve=True))
    flatten(settings)
    ARCH_CONFIG_REGISTRY[settings._name](settings)
    return resolve(settings)


@pytest.mark.parametrize("recipe", mostly_slow(CONFIGS, "curve", "own", "wmt14_en_de"))
def test_hydra_and_runner_resolve_the_same_config(recipe):
    ours, theirs = runner_config(recipe), hydra_config(recipe)
    for section in ("task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "checkpoint"):
        assert ours[section] == theirs[section], section
    assert ours.common.fp16 == theirs.common.fp16 == ("wmt14" in recipe)
    assert ours.common.seed == theirs.common.seed
    assert ours.distributed_training.distributed_world_size == theirs.distributed_training.distributed_world_size
    assert asdict(model_config(ours)) == asdict(model_config(theirs))
    assert theirs.recipe.about


@pytest.mark.parametrize("recipe", mostly_slow(CONFIGS, "wmt14_en_de"))
def test_hydra_trains_with_each_yaml_and_ignores_the_recipe_section(recipe, tiny_data, tmp_path):
    small = {"layers": 1, "embed_dim": 32, "ffn_embed_dim": 16, "attention_heads": 4}
    sizes = [f"++model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in small.items()]
    words = [*sizes, "model.key_dim=16", "common.cpu=true", "common.fp16=false"]
    words += [f"task.data={tiny_data}", "task.source_lang=src", "task.target_lang=tgt", "dataset.valid_subset=valid"]
    words += ["optimization.max_update=1", "optimization.update_freq=[1]", "dataset.max_tokens=400"]
    words += ["distributed_training.distributed_world_size=1"]
    hydra(recipe, *words, f"hydra.run.dir={tmp_path}", f"checkpoint.save_dir={tmp_path}")
    state = collab_fairseq.checkpoints.load(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 1
    assert "recipe" not in state["cfg"]


def test_wmt14_has_the_settings_of_the_paper():
    cfg = runner_config("wmt14_en_de", "--heads", "none", "--key-dim", 512)
    assert (cfg.distributed_training.distributed_world_size, cfg.dataset.max_tokens) == (4, 3584)
    assert (cfg.optimization.update_freq, cfg.optimization.lr, cfg.optimization.max_update) == ([2], [7e-4], 300_000)
    assert (cfg.common.fp16, cfg.common.bf16, cfg.common.seed) == (True, False, 1)
    assert (cfg.optimizer._name, cfg.optimizer.adam_betas, cfg.optimizer.weight_decay) == ("adam", "(0.9, 0.98)", 0.0)
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
    assert cfg.lr_scheduler.warmup_init_lr == 1e-7
    assert (cfg.criterion._name, cfg.criterion.label_smoothing) == ("label_smoothed_cross_entropy", 0.1)
    assert (cfg.optimization.clip_norm, cfg.task.source_lang, cfg.task.target_lang) == (0.0, "en", "de")
    saved = cfg.checkpoint
    assert (saved.save_interval_updates, saved.keep_interval_updates, saved.keep_last_epochs) == (1000, 10, 10)
    assert not saved.no_epoch_checkpoints
    model = model_config(cfg)
    assert (model.encoder.layers, model.decoder.layers, model.encoder.embed_dim) == (6, 6, 512)
    assert (model.encoder.attention_heads, model.encoder.ffn_embed_dim, model.dropout) == (8, 2048, 0.1)
    assert (model.share_all_embeddings, model.collaborative_heads, model.key_dim) == (True, "none", 512)


def test_stages_differ_only_in_their_end():
    for flags, ends in (((), (100, 200, 300)), (("--stages", 1), (300,)), (("--updates", 150000), (50, 100, 150))):
        commands = runner_commands("wmt14_en_de", *flags)
        assert [re.findall(r" --max-update (\d+) ", command) for command in commands] == [[f"{n}000"] for n in ends]
        assert len({re.sub(r"--max-update \d+", "", command) for command in commands}) == 1


def test_polynomial_decay_ends_with_the_last_stage():
    flags = ["lr_scheduler._name=polynomial_decay", "--stages", 2]
    commands = runner_commands("iwslt14_de_en", *flags)
    lengths = [re.findall(r"--(?:total-num|max)-update (\d+)", command) for command in commands]
    assert lengths == [["50000", "25000"], ["50000", "50000"]]
    assert runner_config("iwslt14_de_en", *flags).lr_scheduler.total_num_update == 50000
    command = runner_commands("iwslt14_de_en", *flags, "lr_scheduler.total_num_update=60000")[0]
    assert " --total-num-update 60000 " in command  # control: given


@pytest.mark.parametrize("value", [True, False])
def test_flags_give_the_setting(value):
    cfg = OmegaConf.create({"task": {"_name": "translation", "left_pad_source": value, "left_pad_target": value}})
    words = ["data", "--arch", "transformer", *settings.flags(cfg, "task")]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert (args.left_pad_source, args.left_pad_target) == (value, value)


def test_overrides_are_merged_in_order_and_become_flags(tmp_path):
    """Recipe, --config, --variant, options, then settings. The number of checkpoints does not depend on the length."""
    (tmp_path / "own.yaml").write_text(
        "optimization: {max_update: 7000, lr: [0.25]}\ncheckpoint: {save_interval_updates: 100}\n"
        "model: {encoder: {normalize_before: true}}\nrecipe: {variants: {slow: 'optimization.lr=[0.125]'}}\n"
    )
    flags = ["--config", tmp_path / "own.yaml", "--variant", "blocks8_slow", "--updates", 1400, "model.dropout=0.5"]
    command = runner_commands("multi30k", *flags)[0]
    for words in (
        "--lr 0.125",
        "--dropout 0.5",
        "--encoder-normalize-before",
        "--mixing-init blocks --mixing-lr-multiplier 8",
        "--max-update 1400",
        "--save-interval-updates 20",
        "--keep-interval-updates 5",
        "--adam-betas '(0.9, 0.98)'",
    ):
        assert f" {words} " in command
    command = runner_commands("multi30k", *flags, "checkpoint.save_interval_updates=7", "recipe.average=3")[0]
    assert " --save-interval-updates 7 --keep-interval-updates 3 " in command
    assert " --key-dim " not in runner_commands("multi30k", "--heads", "none")[0]
    flags = ["--config", "rate", "--variant", "blocks8_lr005", "--dry-run"]
    command = run("bash", RECIPES / "micro_wmt" / "run.sh", *flags).stdout
    assert "/runs/micro_wmt/encoder_cross_decoder-dk32-blocks8_lr005-s1-u1200/checkpoints" in command


@pytest.mark.filterwarnings("ignore")  # of Hydra, about the version that fairseq uses
def test_runs_of_hydra_share_a_folder_only_if_one_resumes_the_other(monkeypatch):
    def folder(*words):
        paths = ["common.user_dir=/a/collab_fairseq", "task.data=/b/data-bin", "model.key_dim=128"]
        with initialize_config_dir(str(RECIPES / "wmt14_en_de"), version_base="1.1"):
            cfg = compose("wmt14_en_de", [*paths, *words], return_hydra_config=True)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
        single, job = map(os.path.normpath, (cfg.hydra.run.dir, f"{cfg.hydra.sweep.dir}/{cfg.hydra.sweep.subdir}"))
        assert single == job
        return job

    first = folder()
    assert first == "runs/hydra/encoder_cross_decoder-dk128-s1"
    assert folder("optimization.max_update=100000") == first
    assert folder("model.collaborative_heads=none", "common.seed=2") == "runs/hydra/none-dk128-s2"
    rate, batch = "optimization.lr=[0.01]", "optimization.update_freq=[8]"
    others = [folder(rate), folder(batch), folder(rate, batch), folder("++model.encoder.layers=1")]
    assert len({first, *others}) == 5
    assert folder(batch, rate) == folder(rate, batch)
    sizes = [f"++model.encoder.ffn_embed_dim={number}" for number in range(100)]
    assert max(map(len, folder(*sizes).split("/"))) < 255  # the longest name in a file system


def test_hydra_finds_the_slurm_launcher():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    text = hydra("wmt14_en_de", "hydra/launcher=slurm", "--cfg", "hydra", "--package", "hydra.launcher")
    launcher = yaml.safe_load(text)
    assert launcher["_target_"].endswith(".SlurmLauncher")
    assert (launcher["gpus_per_node"], launcher["tasks_per_node"], launcher["max_num_timeout"]) == (4, 1, 10)


def test_references_of_a_yaml_file_are_those_of_the_test_set():
    rehearsal = ["--config", "rehearsal"]
    references = [
        cli.read_run("wmt14_en_de", "evaluate", [*rehearsal, *words])[0].recipe.reference
        for words in ([], ["--valid"], ["--valid", "--reference", "/x"], ["--valid", "recipe.reference=/x"])
    ]
    assert references == ["runs/wmt14_en_de.rehearsal/miniature/references.de", None, "/x", "/x"]


def test_settings_that_follow_from_others(tmp_path):
    variants = "recipe: {variants: {fine: checkpoint.save_interval_updates=10}}"
    (tmp_path / "mine.yaml").write_text(variants)

    def value(name, *words):
        argv = ["--config", str(tmp_path / "mine.yaml"), *words]
        cfg, _ = cli.read_run("toy", "all", argv)
        if "." in name:
            return OmegaConf.select(cfg, name)
        return getattr(cli.plan_run("toy", "all", argv, cfg), name)

    interval = "checkpoint.save_interval_updates"
    assert (value(interval, "--updates", "750"), value(interval, "--variant", "fine")) == (37, 10)
    lengths = "\noptimization: {max_update: 1000}\ncheckpoint: {save_interval_updates: 150}"
    (tmp_path / "mine.yaml").write_text(variants + lengths)
    # the interval of the file is kept unless the length is overridden: then, there are 6 checkpoints as before
    assert (value(interval), value(interval, "--updates", "750")) == (150, 125)
    epochs = [value("epochs", "--device", "cpu", f"checkpoint.keep_last_epochs={n}") for n in (2, -1)]
    assert epochs == [2, 0]  # -1: fairseq keeps all


def test_rows_of_the_precision_study_have_their_precision_on_all_machines():
    variants = ("blocks", "blocks_amp")
    configs = [cli.read_run("multi30k", "all", ["--config", "precision", "--variant", name])[0] for name in variants]
    assert [cfg.recipe.precision for cfg in configs] == ["fp32", "bf16"]


def test_a_command_that_resumes_has_no_settings_for_the_start(tmp_path):
    """With another number of GPUs, fairseq would start from --restore-file again."""
    argv = ["--device", "cpu", "--output", str(tmp_path), "checkpoint.restore_file=first.pt"]
    run_of_recipe = cli.plan_run("toy", "all", argv, cli.read_run("toy", "all", argv)[0])
    (stage,) = run_of_recipe.stages()
    start, resumed = (training.command(run_of_recipe, stage, resumes) for resumes in (False, True))
    position = start.index("--restore-file")
    assert start[position + 1] == "first.pt"
    assert resumed == start[:position] + start[position + 2 :]


def test_a_file_overrides_its_defaults_as_in_hydra(tmp_path):
    for number, names in enumerate((["base"], ["_self_", "base"], ["base", "_self_"], [])):
        (tmp_path / "base.yaml").write_text("optimization: {max_update: 1}")
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"defaults: {json.dumps(names)}\noptimization: {{max_update: 2}}")
        assert settings.read_yaml(file).optimization.max_update == (1 if names[:1] == ["_self_"] else 2)


def test_a_test_set_can_be_switched_off(tmp_path):
    (tmp_path / "mine.yaml").write_text("recipe: {valid_tests: {valid1: null}}")
    cfg, _ = cli.read_run("micro_wmt", "all", ["--config", str(tmp_path / "mine.yaml"), "--seed", "0"])
    assert (settings.test_sets(cfg, valid=True), cfg.common.seed) == ({"valid": "tatoeba_valid"}, 0)


def test_variants_with_paths_are_one_word_in_a_folder_with_spaces():
    for config, name in ((None, "scaled"), ("converge", "scaled062")):
        cfg = settings.load("curve", config)
        cfg.recipe.root = "/home/me/my repo"
        (word,) = settings.variant(cfg.recipe, name)
        assert word.startswith("model.attention_from=/home/me/my repo/runs/curve/scaled-")


def test_other_stages_than_at_the_start_are_rejected(tmp_path, monkeypatch):
    """The checkpoints are no longer those of the end of the stage."""
    argv = ["--device", "cpu", "--output", str(tmp_path), "--stages", "3", "--average", "1"]
    argv += ["lr_scheduler._name=inverse_sqrt", "--updates", "60", "checkpoint.save_interval_updates=10"]
    run_of_recipe = cli.plan_run("toy", "all", argv, cli.read_run("toy", "all", argv)[0])
    latest = SimpleNamespace(updates=50, path="checkpoint_last.pt")
    monkeypatch.setattr(training, "latest_valid_checkpoint", lambda folder: latest)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"has 50 updates, but no averaged\.u20\.pt: give --stages as at the start"):
        training.train_stage(run_of_recipe, run_of_recipe.stages()[0], "stage 1", None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
