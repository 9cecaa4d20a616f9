"""Defect: without iopath, --write-checkpoints-asynchronously trains nothing and exits with status 0.

Check: `fairseq_cli.train.main` imports iopath, which is not installed. It is then an error.
"""

from types import ModuleType

from fairseq_modern.errors import UserError
from fairseq_modern.patching import names, wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq_cli.train.main`."""
    if "iopath" not in names(module.main):
        return

    @wrap(module)
    def main(original, cfg, *args, **options):
        if getattr(cfg, "checkpoint", cfg).write_checkpoints_asynchronously:
            try:
                import iopath  # noqa: F401
            except ImportError as error:
                raise UserError(
                    "--write-checkpoints-asynchronously needs iopath, which is not installed; "
                    "leave out the flag or run: pip install iopath"
                ) from error
        return original(cfg, *args, **options)
