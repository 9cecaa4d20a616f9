"""The command of a training run, as checkpoints store it: all its settings, with defaults.

`resuming` compares it to tell a repeated command from another one. It is recorded when training starts, because
fairseq changes some settings later (learning-rate schedulers set `warmup_init_lr`). The settings in `MACHINE` are left
out: a job may run again on another machine, with other processes or another log, and still train the same model.
"""

from argparse import Namespace
from typing import Any, Dict

from fairseq_modern.patching import step

KEY = "command"
# By name, since models without a dataclass have all settings in their section, too.
DEVICE = {"cpu", "tpu", "device_id"}
PROCESSES = {f"distributed_{name}" for name in ("world_size", "num_procs", "rank", "backend", "init_method", "port")}
PROCESSES |= {"distributed_no_spawn", "nprocs_per_node", "num_workers"}
LOG = {"no_progress_bar", "log_interval", "log_format", "log_file", "job_logging_cfg"}
LOG |= {"tensorboard_logdir", "wandb_project", "azureml_logging", "aim_repo", "aim_run_hash"}
MACHINE = DEVICE | PROCESSES | LOG


def command_of(cfg: Any) -> Dict[str, str]:
    """Return `section.setting` → value, as text, of a configuration without the settings in `MACHINE`."""
    from omegaconf import OmegaConf

    command: Dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        settings = vars(value) if isinstance(value, Namespace) else value
        if not isinstance(settings, dict):
            command[name] = repr(value)
            return
        for key, element in settings.items():
            if key not in MACHINE:
                add(f"{name}.{key}" if name else str(key), element)

    add("", OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    return command


def differences(before: Dict[str, str], now: Dict[str, str]) -> str:
    """Describe how two commands differ, with at most three settings."""
    changes = {}  # models without a dataclass repeat the settings of other sections
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            changes[name.rpartition(".")[2]] = f"{before.get(name)} → {now.get(name)}"
    listed = [f"{name} {change}" for name, change in changes.items()]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


@step()
def save(trainer: Any, extra_state: Dict[str, Any]) -> None:
    """Add the command to a checkpoint; `resuming` sets the attribute `command` of the trainer."""
    command = getattr(trainer, "command", None)
    if command:
        extra_state[KEY] = command
