"""Trainings of small models, as a user would type them or write them down for Hydra."""

import yaml

from tests.common import ROOT

USER_DIR = ROOT / "collab_fairseq"


def flags(values):
    """{"key_dim": 24, "share_all_embeddings": True} as command-line flags"""
    given = []
    for name, value in values.items():
        given += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return given


def train_command(data, save_dir, arch="transformer_collab", **options):
    """fairseq-train on one CPU with a small batch."""
    common = {
        "user_dir": USER_DIR, "arch": arch, "share_all_embeddings": True, "optimizer": "adam", "lr": 0.005,
        "criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "max_tokens": 100, "cpu": True, "seed": 1,
        "save_dir": save_dir, "no_progress_bar": True, "log_interval": 10, "num_workers": 0,
        "distributed_world_size": 1,
    }  # fmt: skip
    return ["fairseq-train", data, *flags({**common, **options})]


def nested(values):
    """Flat model flags as a Hydra config has them: encoder: {layers: 2}."""
    config = {}
    for name, value in values.items():
        side, _, rest = name.partition("_")
        if side in ("encoder", "decoder"):
            config.setdefault(side, {})[rest] = value
        else:
            config[name] = value
    return config


def hydra_command(data, save_dir, directory, arch="transformer_collab", optimization=None, **model):
    """fairseq-hydra-train with a config file made for it."""
    config = {
        "common": {"user_dir": str(USER_DIR), "cpu": True, "seed": 1, "no_progress_bar": True, "log_interval": 10},
        "distributed_training": {"distributed_world_size": 1},
        "task": {"_name": "translation", "data": str(data)},
        "model": {"_name": arch, "share_all_embeddings": True, **nested(model)},
        "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 100, "num_workers": 0},
        "optimization": {"lr": [0.005], **(optimization or {})},
        "checkpoint": {"save_dir": str(save_dir)},
    }
    directory.mkdir(exist_ok=True)
    (directory / "experiment.yaml").write_text(yaml.safe_dump(config))
    run_dir = f"hydra.run.dir={directory}"
    return ["fairseq-hydra-train", "--config-dir", directory, "--config-name", "experiment", run_dir]
