"""Defect: fairseq trains without a package that a flag needs. Without iopath, it trains nothing and exits with status 0
(--write-checkpoints-asynchronously); without the package of a logger, it logs nothing.

Check: the flag is given and the package cannot be imported. It is then an error before training.
"""

from importlib import import_module
from typing import Any

from fairseq_modern.errors import UserError
from fairseq_modern.patching import step

#: section, setting, modules of which it needs one, package on PyPI
NEEDS = (
    ("checkpoint", "write_checkpoints_asynchronously", ("iopath",), "iopath"),
    ("common", "aim_repo", ("aim",), "aim"),
    ("common", "azureml_logging", ("azureml.core",), "azureml-core"),
    ("common", "tensorboard_logdir", ("torch.utils.tensorboard", "tensorboardX"), "tensorboardX"),
    ("common", "wandb_project", ("wandb",), "wandb"),
)


@step()
def check(cfg: Any) -> None:
    """Raise UserError if a setting, by section or in one namespace, needs a package that is not installed."""
    for section, setting, modules, package in NEEDS:
        if getattr(getattr(cfg, section, cfg), setting, None) and not any(map(_can_be_imported, modules)):
            raise UserError(
                f"--{setting.replace('_', '-')} needs {package}, which is not installed; "
                f"leave out the flag or run: pip install {package}"
            )


def _can_be_imported(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True
