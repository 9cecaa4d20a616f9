"""Mends `--bf16` on the command line, which fairseq takes for `--tpu`.

As published, training in bfloat16 then looks for torch_xla, on a GPU as well. Here only `--tpu` means a TPU.
"""

import sys
from types import ModuleType
from typing import Any, Optional, Sequence

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.options.parse_args_and_arch`."""

    @wrap(module)
    def parse_args_and_arch(
        original: Any, parser: Any, input_args: Optional[Sequence[str]] = None, *rest: Any, **options: Any
    ) -> Any:
        parsed = original(parser, input_args, *rest, **options)
        args = parsed[0] if isinstance(parsed, tuple) else parsed
        given = "--tpu" in (sys.argv[1:] if input_args is None else input_args)
        if getattr(args, "tpu", False) and not given and not parser.get_default("tpu"):
            args.tpu = False
        return parsed
