"""Defect: a dictionary loses its flags `#fairseq:overwrite` when it is saved, and cannot be loaded again.

fairseq-preprocess thus writes data with which training fails. Check: a symbol occurs twice in the dictionary, which
only that flag allows.
"""

from types import ModuleType

from fairseq_modern.patching import wrap

FLAG = "#fairseq:overwrite"


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.data.dictionary.Dictionary._save`."""

    @wrap(module.Dictionary)
    def _save(original, self, f, kv_iterator):
        if isinstance(f, str):  # `_save` opens the file and calls `save`
            return original(self, f, kv_iterator)
        seen = set(self.symbols[: self.nspecial])
        rows = []
        for symbol, count in kv_iterator:
            rows.append((symbol, f"{count} {FLAG}" if symbol in seen else count))
            seen.add(symbol)
        return original(self, f, rows)
