"""Defects of fairseq-hydra-train.

- A config that overrides another (`defaults: [../base/base@_global_, _self_]`) loses the settings of that other one,
  because fairseq's defaults override them. Check: the config has a `defaults` list; fairseq's defaults then apply to
  the last config in the chain, on which the others build.
- A section `recipe`, for a program around fairseq, is rejected. Here it is allowed, and fairseq does not see it.
- A `--config-name` without a file trains with fairseq's defaults. Check: the file exists; otherwise it is an error.
- Each run of `--multirun` inherits the best score of the previous run, so that it may stop too early, or write no
  `checkpoint_best.pt`. Check: the attributes in which fairseq stores the score, which are deleted before each run.
- Sweepers that look for the best settings receive None. Check: the program drops what its function returns, a mean over
  validations. They receive the best score of the run.
"""

import functools
import glob
import inspect
import math
import os
import posixpath
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fairseq_modern.errors import UserError
from fairseq_modern.patching import step, wrap


def base(folder: str, name: str) -> str:
    """Return the name of the last config in a chain of `defaults`; the config's own name if it has none."""
    import yaml

    with open(os.path.join(folder, f"{name}.yaml"), encoding="utf-8") as stream:
        config = yaml.safe_load(stream) or {}
    first = (config.get("defaults") or ["_self_"])[0]
    if not isinstance(first, str):
        return name
    parent = posixpath.join(posixpath.dirname(name), first.partition("@")[0]).lstrip("/")
    # Hydra looks for configs in other folders too, and reports missing ones
    return base(folder, parent) if os.path.isfile(os.path.join(folder, f"{parent}.yaml")) else name


def patch(module: ModuleType) -> None:
    """Wrap `hydra_init` of `fairseq_cli.hydra_train`, and replace `hydra_main`."""
    import hydra
    from fairseq.checkpoint_utils import save_checkpoint

    @hydra.main("../fairseq/config", "config", version_base="1.1")
    @functools.wraps(inspect.unwrap(module.hydra_main))
    def hydra_main(cfg: Any) -> float:
        module._hydra_main(cfg)
        worst = -math.inf if cfg.checkpoint.maximize_best_checkpoint_metric else math.inf
        return getattr(save_checkpoint, "best", worst)

    module.hydra_main = hydra_main  # type: ignore[attr-defined]

    @wrap(module)
    def hydra_init(original, cfg_name="config"):
        from hydra._internal.utils import get_args
        from hydra.core.config_store import ConfigStore
        from omegaconf import MISSING

        @dataclass
        class Config(module.FairseqConfig):  # type: ignore[name-defined, misc]
            recipe: Any = None

        @dataclass
        class Base(Config):
            hydra: Any = MISSING  # Hydra removes it from the config of --config-name only

        folder, name = get_args().config_dir or get_args().config_path, cfg_name.removesuffix(".yaml")
        exists = folder is not None and os.path.isfile(os.path.join(folder, f"{name}.yaml"))
        if cfg_name != "config" and not exists:
            if not folder:
                raise UserError(f"--config-name {cfg_name} needs --config-dir")
            configs = sorted(glob.glob("*.yaml", root_dir=folder))
            listed = ", ".join(configs) or "none"
            raise UserError(f"--config-name must be a config in {folder}: {listed}; got {cfg_name}")
        original(cfg_name)
        if not exists:
            return
        parent, store = base(folder, name), ConfigStore.instance()
        if parent == name:
            store.store(name=name, node=Config)
        else:
            del store.repo[f"{name}.yaml"]
            store.store(group=posixpath.dirname(parent), name=posixpath.basename(parent), node=Base)


@step()
def remove_recipe(module: Any, cfg: Any) -> None:
    """Remove the section `recipe`, to which other settings may refer. `module`: `fairseq_cli.hydra_train`."""
    from omegaconf import OmegaConf, open_dict

    module.add_defaults(cfg)  # settings may refer to those of a task or model
    for name in cfg:
        if name != "recipe" and OmegaConf.is_config(cfg[name]):
            OmegaConf.resolve(cfg[name])
    with open_dict(cfg):
        cfg.pop("recipe", None)


@step()
def forget_scores(module: Any) -> None:
    """Forget the scores of the previous run. `module`: `fairseq_cli.train`."""
    for function in (module.checkpoint_utils.save_checkpoint, module.should_stop_early):
        for name in ("best", "num_runs"):
            vars(function).pop(name, None)
