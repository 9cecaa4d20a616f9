"""Defect: --task translation_from_pretrained_bart ends in an AttributeError, since tasks no longer have `args`.

Check: the class uses `args`, which its base class has renamed to `cfg`.
"""

from types import ModuleType

from fairseq_modern.patching import names


def patch(module: ModuleType) -> None:
    """Add `args` to `TranslationFromPretrainedBARTTask`."""
    task = module.TranslationFromPretrainedBARTTask
    if "args" in names(task.load_dataset) and not hasattr(task, "args"):
        task.args = property(lambda self: self.cfg)
