"""Training runs of small models, as command lines and as Hydra configs."""

import yaml

from tests.common import ROOT

USER_DIR = ROOT / "collab_fairseq"
TRAINING = (
    "--share-all-embeddings --optimizer adam --lr 0.005 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
    "--max-tokens 100 --cpu --seed 1 --no-progress-bar --log-interval 10 --num-workers 0 --distributed-world-size 1"
)


def flags(values):
    """Command-line flags: {"key_dim": 24, "amp": True} → ["--key-dim", "24", "--amp"]."""
    words = []
    for name, value in values.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def train_command(data, save_dir, arch="transformer_collab", **options):
    """fairseq-train on one CPU core with small batches; options override the flags above."""
    folders = ["--user-dir", USER_DIR, "--save-dir", save_dir]
    return ["fairseq-train", data, *folders, "--arch", arch, *TRAINING.split(), *flags(options)]


def nested(values):
    """Model settings as a Hydra config has them: {"encoder_layers": 2} → {"encoder": {"layers": 2}}."""
    config = {}
    for name, value in values.items():
        side, _, rest = name.partition("_")
        if side in ("encoder", "decoder"):
            config.setdefault(side, {})[rest] = value
        else:
            config[name] = value
    return config


def hydra_command(data, save_dir, directory, arch="transformer_collab", optimization=None, **model):
    """fairseq-hydra-train with a config file, which is written to `directory`."""
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
