"""train.sh and fairseq-hydra-train train the models of the paper as the paper did, from the same settings."""

import re
import shlex
import sys

import pytest
import yaml
from fairseq import models, options
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig, OmegaConf, open_dict

import collab_fairseq.models  # noqa: F401  (registers the model)
from collab_fairseq.models.config import resolve
from tests.common import ROOT, run

RECIPE = ROOT / "recipes" / "wmt14_en_de"


def shell_commands(*flags):
    """What train.sh would run on four GPUs for the first of the runs, a command for each stage."""
    machine = ["--device", "gpu", "--gpus", 4, "--data", "/data", "--output", "/run", "--python", sys.executable]
    environment = {"CUDA_VISIBLE_DEVICES": "", "RECIPE_CONFIG": "", "MASTER_PORT": "29500"}
    done = run("bash", RECIPE / "train.sh", *machine, "--heads", "none", *flags, "--dry-run", env=environment)
    return done.stdout.splitlines()


def shell_config():
    """What train.sh would give fairseq-train in the last stage, as that resolves its command line."""
    words = shlex.split(shell_commands()[-1])
    program = next(number for number, word in enumerate(words) if word.endswith("fairseq-train"))
    args = options.parse_args_and_arch(options.get_training_parser(), words[program + 1 :])
    return convert_namespace_to_omegaconf(args)


def hydra_config():
    """What Hydra itself composes, as fairseq-hydra-train resolves it."""
    done = run(
        "fairseq-hydra-train", "--config-dir", RECIPE / "conf", "--config-name", "wmt14_en_de", "--cfg", "job",
        f"common.user_dir={ROOT / 'collab_fairseq'}", "task.data=/data/data-bin",
        "checkpoint.save_dir=/run/checkpoints", "model.collaborative_heads=none",
    )  # fmt: skip
    cfg = OmegaConf.create(yaml.safe_load(done.stdout))
    add_defaults(cfg)
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def model_config(cfg):
    """The model's config as its build_model resolves it, presets applied."""
    model = cfg.model
    if isinstance(model, DictConfig):
        with open_dict(model):
            models.ARCH_CONFIG_REGISTRY[model._name](model)
    return resolve(model)


@pytest.mark.parametrize("config", [shell_config, hydra_config])
def test_it_is_the_protocol_of_the_paper(config):
    cfg = config()
    assert (cfg.distributed_training.distributed_world_size, cfg.dataset.max_tokens) == (4, 3584)
    assert (cfg.optimization.update_freq, cfg.optimization.lr, cfg.optimization.max_update) == ([2], [7e-4], 300_000)
    assert (cfg.common.fp16, cfg.common.bf16, cfg.common.seed) == (True, False, 1)
    assert (cfg.optimizer._name, cfg.optimizer.adam_betas, cfg.optimizer.weight_decay) == ("adam", "(0.9, 0.98)", 0.0)
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
    assert (cfg.lr_scheduler.warmup_init_lr, cfg.optimization.stop_min_lr) == (1e-7, 1e-9)
    assert (cfg.criterion._name, cfg.criterion.label_smoothing) == ("label_smoothed_cross_entropy", 0.1)
    assert (cfg.optimization.clip_norm, cfg.task.source_lang, cfg.task.target_lang) == (0.0, "en", "de")
    saved = cfg.checkpoint
    assert (saved.save_interval_updates, saved.keep_interval_updates, saved.keep_last_epochs) == (1000, 10, 10)
    assert not saved.no_epoch_checkpoints
    model = model_config(cfg)
    assert (model.encoder.layers, model.decoder.layers, model.encoder.embed_dim) == (6, 6, 512)
    assert (model.encoder.attention_heads, model.encoder.ffn_embed_dim, model.dropout) == (8, 2048, 0.1)
    assert (model.share_all_embeddings, model.collaborative_heads, model.key_dim) == (True, "none", 512)


def test_a_run_is_trained_in_stages_that_differ_in_nothing_but_their_end():
    for flags, ends in (((), (100, 200, 300)), (("--stages", 1), (300,)), (("--updates", 150000), (50, 100, 150))):
        commands = shell_commands(*flags)
        assert [re.findall(r" --max-update (\d+) ", command) for command in commands] == [[f"{n}000"] for n in ends]
        assert len({re.sub(r"--max-update \d+", "", command) for command in commands}) == 1


def test_settings_stand_in_the_hydra_config_alone(tmp_path):
    """The shell takes whatever stands there."""
    text = (RECIPE / "conf" / "wmt14_en_de.yaml").read_text()
    changed = text.replace("lr: [0.0007]", "lr: [0.25]  # high").replace("max_update: 300000", "max_update: 7000")
    changed = changed.replace("dropout: 0.1", "dropout: 0.1\n  encoder_normalize_before: true")
    (tmp_path / "other.yaml").write_text(changed)
    show = 'echo "$updates $saves $batch_tokens ${optimisation_flags[*]} ${shared_model_flags[*]}"'
    read = f". {ROOT}/recipes/lib/hydra.sh; read_hydra {tmp_path}/other.yaml; {show}"
    flags = run("bash", "-euc", read).stdout
    assert flags.startswith("7000 7 28672 --optimizer adam --adam-betas (0.9, 0.98) ")
    assert " --lr 0.25 " in flags
    assert flags.endswith("--share-all-embeddings --dropout 0.1 --encoder-normalize-before\n")


def test_the_launcher_for_slurm_is_found():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    done = run(
        "fairseq-hydra-train", "--config-dir", RECIPE / "conf", "--config-name", "wmt14_en_de", "hydra/launcher=slurm",
        "--cfg", "hydra", "--package", "hydra.launcher",
    )  # fmt: skip
    launcher = yaml.safe_load(done.stdout)
    assert launcher["_target_"].endswith(".SlurmLauncher")
    assert (launcher["gpus_per_node"], launcher["tasks_per_node"], launcher["max_num_timeout"]) == (4, 1, 10)
