r"""Defects of --keep-best-checkpoints.

- Fewer than N checkpoints are kept: fairseq writes only those that are better than the worst one of the folder, or, if
  there is none, than all before.
- Those with a negative score are neither counted nor removed, because `\d` matches no sign.

Check: the names that fairseq looks for. A worst one is added, which does not exist, so that each checkpoint is written;
fairseq then removes all but the best N.
"""

import contextlib
import os
from typing import Any, Iterator, List

from fairseq_modern.patching import replaced, step

SCORE = r"(\d+\.?\d*)"


@step(contextlib.nullcontext())
@contextlib.contextmanager
def all_written(module: Any, cfg: Any, trainer: Any) -> Iterator[None]:
    """Around `save_checkpoint`. `module`: `fairseq.checkpoint_utils`."""
    original = module.checkpoint_paths

    def checkpoint_paths(path: str, pattern: str, **options: Any) -> List[Any]:
        if SCORE not in pattern:
            return list(original(path, pattern, **options))
        paths = original(path, pattern.replace(SCORE, rf"(-?{SCORE[1:]}"), **options)  # in descending order
        worst = os.path.join(path, "checkpoint.best_{}inf{}.pt")
        if cfg.maximize_best_checkpoint_metric:
            return [*paths, worst.format("-", trainer.checkpoint_suffix)]
        return [worst.format("", trainer.checkpoint_suffix), *paths]

    with replaced(module, checkpoint_paths=checkpoint_paths):
        yield
