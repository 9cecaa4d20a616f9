"""Defects of fairseq's command line.

- `--bf16` is parsed as `--tpu`, so that training in bf16 requires torch_xla. Check: the command has no `--tpu`.
- `python -m torch.distributed.launch` passes `--local-rank`, but fairseq knows only `--local_rank`. Check: it has the
  latter.
- `--help` with `--arch` does not list the flags of that model. Check: the command has both.
- `fairseq-validate` requires `--task`, although it uses the task of the checkpoint. Check: none is given.
- `--user-dir` registers nothing if Python has already imported that package, for example in a notebook. Check: the
  package is in `sys.modules`, but fairseq has not imported it.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap functions of `fairseq.options`."""

    @wrap(module)
    def parse_args_and_arch(original, parser, input_args=None, *rest, **options):
        words = list(sys.argv[1:] if input_args is None else input_args)
        has_arch = any(word in ("-a", "--arch") or word.startswith("--arch=") for word in words)
        if has_arch and not {"-h", "--help"}.isdisjoint(words):

            def parse_known_args(*_: Any) -> Any:
                """The first of two calls, which determines the model; its flags are then added to the parser."""
                del parser.parse_known_args
                return parser.parse_known_args([word for word in words if word not in ("-h", "--help")])

            parser.parse_known_args = parse_known_args
        parsed = original(parser, input_args, *rest, **options)
        args = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(args, "tpu", False) and "--tpu" not in words and not parser.get_default("tpu"):
            args.tpu = False
        return parsed

    @wrap(module)
    def add_distributed_training_args(original, parser, *args, **options):
        group = original(parser, *args, **options)
        action = parser._option_string_actions.get("--local_rank")
        if action is not None:
            parser._option_string_actions.setdefault("--local-rank", action)
        return group

    @wrap(module)
    def get_validation_parser(original, default_task=None):
        return original(default_task or "translation")


def patch_user_dir(module: ModuleType) -> None:
    """Wrap `fairseq.utils.import_user_module`."""

    @wrap(module)
    def import_user_module(original, args):
        user_dir = getattr(args, "user_dir", None)
        folder = os.path.abspath(user_dir) if user_dir else ""
        package = os.path.basename(folder)
        is_new = folder not in getattr(module.import_user_module, "memo", ())
        must_register = package in sys.modules and is_new
        original(args)
        if not must_register:
            return
        for kind in ("tasks", "models"):
            subfolder = os.path.join(folder, kind)
            if os.path.isdir(subfolder):
                register = getattr(importlib.import_module(f"fairseq.{kind}"), f"import_{kind}")
                register(subfolder, f"{package}.{kind}")
