"""Defect: if all translations in validation are empty, as they may be early in training, --eval-bleu reports no BLEU.

With --best-checkpoint-metric bleu, training then ends in a KeyError, without a checkpoint.

Check: the metric is BLEU, the task computes it, and it is missing. It is 0.
"""

from typing import Any, Dict

from fairseq_modern.patching import step


@step(skipped=False)
def computes(task: Any, metric: str) -> bool:
    """Whether the metric is the BLEU that a task computes in validation."""
    return metric == "bleu" and bool(getattr(getattr(task, "cfg", None), "eval_bleu", False))


def add_bleu(cfg: Any, trainer: Any, stats: Dict[str, Any]) -> None:
    """Complete the statistics of a validation."""
    if computes(trainer.task, cfg.checkpoint.best_checkpoint_metric):
        stats.setdefault("bleu", 0.0)
