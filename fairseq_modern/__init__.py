"""Makes fairseq 0.12.2, unmaintained since its last release of 2022, run on today's Python, torch, NumPy and Hydra.

A `.pth` file beside the installed package imports this module whenever Python starts, so that fairseq's console
scripts, `python -m fairseq_cli.train`, torchrun, notebooks and spawned workers are covered without a word from the
user. (Python reads `.pth` files in site-packages only: after `pip install --target` or with PYTHONPATH alone, import
fairseq_modern before fairseq.) That is why nothing heavy happens here: importing this module puts one finder in front
of `sys.meta_path`, which knows the names of the modules to patch and does nothing for any other. The patches, one file
per subject, are imported when the module that they patch is; no file of fairseq is edited.

README.md next to this file says what each patch does and how to switch it off; `fault_tolerance` holds what changes how
trainings behave, and does nothing unless it is switched on.
"""

import os
import sys

__all__ = ["AFTER", "BEFORE", "install"]

# Module of fairseq -> functions of this package, called with the module object before its code runs ...
BEFORE = {
    "fairseq": ("errors.show_user_errors", "quiet.patch"),
    "fairseq.dataclass.configs": ("dataclass_defaults.hash_configs",),
}

# ... and after, the last one outermost.
AFTER = {
    "fairseq.*": ("expressions.patch",),  # each of its modules
    "fairseq.checkpoint_utils": (
        "loading.patch",
        "saving.patch",
        "error_messages.patch",
        "fault_tolerance.boundaries.patch",
        "fault_tolerance.resuming.patch",
        "fault_tolerance.stopping.patch",
    ),
    "fairseq.data.codedataset": ("loading.patch",),
    "fairseq.data.indexed_dataset": ("mistakes_data.patch",),
    "fairseq.data.iterators": ("reading_ahead.patch",),
    "fairseq.data.huffman.huffman_coder": ("removed_names.patch_bits",),
    "fairseq.dataclass.configs": ("dataclass_defaults.restore_builtins",),
    "fairseq.dataclass.utils": ("quiet.patch_hydra",),
    "fairseq.distributed.utils": ("fault_tolerance.workers.patch", "distributed.patch"),
    "fairseq.models": ("error_messages.patch",),
    "fairseq.models.fairseq_model": ("amp.patch_inference",),
    "fairseq.models.distributed_fairseq_model": ("distributed.patch_data_parallel",),
    "fairseq.models.masked_lm": ("markers.patch",),
    "fairseq.models.transformer.transformer_decoder": ("markers.patch",),
    "fairseq.models.transformer.transformer_encoder": ("encoder_layer.patch_encoder", "markers.patch"),
    "fairseq.modules.transformer_layer": ("encoder_layer.patch",),
    "fairseq.optim.amp_optimizer": ("amp.patch",),
    "fairseq.optim.fp16_optimizer": ("amp.patch_half",),
    "fairseq.options": ("options.patch",),
    "fairseq.tasks.fairseq_task": ("amp.patch_task", "plugins.patch_task"),
    "fairseq.tasks": ("error_messages.patch",),
    "fairseq.tasks.translation": ("error_messages.patch",),
    "fairseq.utils": ("user_dir.patch", "error_messages.patch"),
    "fairseq.trainer": (
        "amp.patch_trainer",
        "plugins.patch",
        "error_messages.patch",
        "fault_tolerance.position.patch_trainer",
        "fault_tolerance.resuming.patch_trainer",
        "fault_tolerance.stopping.patch_trainer",
        "fault_tolerance.memory.patch",
    ),
    "fairseq_cli.generate": ("error_messages.patch",),
    "fairseq_cli.hydra_train": ("sections.patch", "errors.patch_hydra_train"),
    "fairseq_cli.interactive": ("error_messages.patch",),
    "fairseq_cli.validate": ("error_messages.patch",),
    "fairseq_cli.train": ("train.patch", "fault_tolerance.stopping.patch_train"),
    "fairseq.data.data_utils": ("removed_names.patch",),
    "fairseq.data.language_pair_dataset": ("removed_names.patch",),
    "fairseq.data.token_block_dataset": ("removed_names.patch",),
    "fairseq.modules.adaptive_input": ("markers.patch",),
    "fairseq.modules.adaptive_softmax": ("markers.patch",),
    "fairseq.modules.sinusoidal_positional_embedding": ("markers.patch",),
    "fairseq.modules.dynamic_crf_layer": ("removed_names.patch",),
    "fairseq.models.speech_to_text.xm_transformer": ("loading.patch",),
    "fairseq.models.text_to_speech.vocoder": ("loading.patch",),
    "fairseq.modules.quantization.pq.em": ("loading.patch",),
}


_told: set[str] = set()


def warn(about, message):
    """Warn, once about each subject."""
    import warnings

    if about not in _told:
        _told.add(about)
        warnings.warn(f"fairseq_modern {message}", stacklevel=3)


def skipped():
    """The names of patches in FAIRSEQ_MODERN_SKIP, with commas between them. Warns, once, of those that are none."""
    wanted = {name.strip() for name in os.environ.get("FAIRSEQ_MODERN_SKIP", "").split(",")} - {""}
    if wanted:
        names = {function.split(".")[-2] for table in (BEFORE, AFTER) for row in table.values() for function in row}
        unknown = ", ".join(sorted(wanted - names))
        if unknown:
            warn("skip", f"has no patch {unknown}, as in FAIRSEQ_MODERN_SKIP, but {', '.join(sorted(names))}")
    return wanted


def _call(functions, module):
    """Call functions of this package, named `file.function`, with the module."""
    for name in functions:
        file, _, function = name.rpartition(".")
        patch = file.rpartition(".")[2]
        if patch in skipped():
            continue
        qualified = f"{__name__}.{file}"
        __import__(qualified)
        try:
            getattr(sys.modules[qualified], function)(module)
        except AttributeError as error:  # another version of fairseq, or a fork
            warn(patch, f"left out the patch {patch}, which does not know this fairseq: {error}")


class Finder:
    """Finds the modules named in BEFORE and AFTER where Python would, and has them patched as they are executed.

    Loaders keep their class, so that `inspect`, `runpy` and pickle see nothing unusual; only the method that executes
    the module is replaced, on a copy of the loader: that of a zip file serves all modules in it.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the module's spec with a loader that patches, or None for a module that is not ours to patch."""
        before = BEFORE.get(name, ())
        after = AFTER.get(name, ()) + AFTER["fairseq.*"] * name.startswith("fairseq.")
        if not before and not after:
            return None
        for finder in sys.meta_path:
            if finder is Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:  # a namespace package or a very old loader: there is no code of fairseq's to patch
            return spec

        def exec_module(module):
            _call(before, module)
            execute(module)
            _call(after, module)

        from copy import copy

        spec.loader = copy(spec.loader)
        spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        return spec


def install():
    """Put the finder in place, once. Warns if fairseq is already imported: what has run cannot be patched any more."""
    if Finder in sys.meta_path or os.environ.get("FAIRSEQ_MODERN") == "0":
        return
    if "fairseq" in sys.modules:
        warn("late", "was imported after fairseq, which therefore runs as published; import fairseq_modern first")
    sys.meta_path.insert(0, Finder)


install()
