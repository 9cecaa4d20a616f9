"""Defect: with --curriculum N, batches are never shuffled, and a run that resumes after N epochs trains on other ones.

`EpochBatchIterator` keeps its data loader, whose sampler shuffles in all epochs or in none, as in the first one.

Check: the sampler of a kept data loader. It shuffles in the epochs in which it should.
"""

from types import ModuleType

from fairseq_modern.patching import names, wrap


def patch(module: ModuleType) -> None:
    """Wrap `EpochBatchIterator.next_epoch_itr` of `fairseq.data.iterators`."""
    if "make_batches_for_epoch" not in names(module.EpochBatchIterator._get_iterator_for_epoch):
        return

    @wrap(module.EpochBatchIterator)
    def next_epoch_itr(original, self, shuffle=True, *arguments, **options):
        if self.dataloader is not None:
            self.batch_sampler.shuffle = shuffle and not self.disable_shuffling
        return original(self, shuffle, *arguments, **options)
