"""Configs of fairseq-hydra-train may be laid over others, and have a section for the program around fairseq.

As published, fairseq's defaults are laid over what a config names in its `defaults` list, and undo it: they belong to
the config that all others build on. A section `recipe` is refused; here it is left to the program that reads it. A
--config-name that is no file trains with fairseq's defaults, which are registered under that name; here it is refused.
"""

import glob
import os
import posixpath
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap


def base(folder: str, name: str) -> str:
    """The config that the config of a folder is laid over in the end, by its name for Hydra; itself where none is."""
    import yaml

    with open(os.path.join(folder, f"{name}.yaml"), encoding="utf-8") as stream:
        first = ((yaml.safe_load(stream) or {}).get("defaults") or ["_self_"])[0]
    if not isinstance(first, str):
        return name
    below = posixpath.join(posixpath.dirname(name), first.partition("@")[0]).lstrip("/")
    # what is not in the folder Hydra finds elsewhere, or says that it is not there
    return base(folder, below) if os.path.isfile(os.path.join(folder, f"{below}.yaml")) else name


def patch(module: ModuleType) -> None:
    """Wrap what `fairseq_cli.hydra_train` registers, and what it trains with."""

    @wrap(module)
    def hydra_init(original: Any, cfg_name: str = "config") -> None:
        from hydra._internal.utils import get_args
        from hydra.core.config_store import ConfigStore
        from omegaconf import MISSING

        @dataclass
        class Config(module.FairseqConfig):  # type: ignore[name-defined, misc]
            recipe: Any = None

        @dataclass
        class Base(Config):
            hydra: Any = MISSING  # which Hydra takes out of the config of --config-name alone

        folder, name = get_args().config_dir or get_args().config_path, cfg_name.removesuffix(".yaml")
        is_there = os.path.isfile(os.path.join(folder or "", f"{name}.yaml"))
        if cfg_name != "config" and not is_there:
            present = sorted(glob.glob("*.yaml", root_dir=folder)) if folder else []
            where = f"in {folder}; its files are {', '.join(present) or 'none'}" if folder else "without --config-dir"
            raise UserError(f"--config-name {cfg_name}: there is no {name}.yaml {where}")
        original(cfg_name)
        if not is_there:
            return
        below, store = base(folder, name), ConfigStore.instance()
        if below == name:
            store.store(name=name, node=Config)
        else:
            del store.repo[f"{name}.yaml"]
            store.store(group=posixpath.dirname(below), name=posixpath.basename(below), node=Base)

    @wrap(module)
    def _hydra_main(original: Any, cfg: Any, **options: Any) -> Any:
        from omegaconf import OmegaConf, open_dict

        for name in cfg:
            if name != "recipe" and OmegaConf.is_config(cfg[name]):
                OmegaConf.resolve(cfg[name])  # which may name settings of that section
        with open_dict(cfg):
            cfg.pop("recipe", None)
        return original(cfg, **options)
