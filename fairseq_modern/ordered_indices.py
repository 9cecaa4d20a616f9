"""Defect: with --update-ordered-indices-seed, all epochs of a run have the same batches, those of the first one.

The task returns the iterator of that epoch again, unless --update-epoch-batch-itr is given, too. A run that resumes
within an epoch therefore trains on other batches than before: some data twice, others not at all.

Check: the flag. Each epoch then has its own iterator.
"""

from types import ModuleType

from fairseq_modern.patching import names, wrap


def patch(module: ModuleType) -> None:
    """Wrap `Trainer.get_train_iterator` of `fairseq.trainer`."""
    if not {"update_ordered_indices_seed", "get_batch_iterator"} <= names(module.Trainer.get_train_iterator):
        return

    @wrap(module.Trainer)
    def get_train_iterator(original, self, epoch, *arguments, disable_iterator_cache=False, **options):
        is_new = disable_iterator_cache or self.cfg.dataset.update_ordered_indices_seed
        return original(self, epoch, *arguments, disable_iterator_cache=is_new, **options)
