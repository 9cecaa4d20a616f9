"""Makes fairseq 0.12.2, whose last release is from 2022, run on current Python, torch, NumPy and Hydra.

A `.pth` file next to the installed package imports this module whenever Python starts. Console scripts, `python -m
fairseq_cli.train`, torchrun, notebooks and spawned workers are therefore covered. (Python reads `.pth` files in
site-packages only: after `pip install --target` or with PYTHONPATH alone, import fairseq_modern before fairseq.)

This module only adds a finder to `sys.meta_path`, which imports a patch when the module to patch is imported.
README.md describes the patches and how to disable them. Those in `fault_tolerance` are off by default.
"""

import os
import sys

__all__ = ["AFTER", "BEFORE", "install"]

# Module of fairseq -> functions of this package, which are called with the module before its code runs ...
BEFORE = {
    "fairseq": ("errors.show_user_errors", "quiet.patch"),
    "fairseq.dataclass.configs": ("dataclass_defaults.hash_configs",),
}

# ... and after, in this order.
AFTER = {
    "fairseq.checkpoint_utils": ("loading.patch", "saving.patch", "wrappers.patch_checkpoint_utils"),
    "fairseq.data.codedataset": ("loading.patch",),
    "fairseq.data.data_utils": ("removed_names.patch",),
    "fairseq.data.dictionary": ("dictionary_flags.patch",),
    "fairseq.data.huffman.huffman_coder": ("removed_names.patch_bits",),
    "fairseq.data.indexed_dataset": ("index_overflow.patch", "truncated_data.patch", "line_ends.patch"),
    "fairseq.data.iterators": ("prefetching.patch", "curriculum.patch", "fault_tolerance.position.patch_iterator"),
    "fairseq.data.language_pair_dataset": ("removed_names.patch",),
    "fairseq.data.token_block_dataset": ("removed_names.patch",),
    "fairseq.dataclass.configs": ("dataclass_defaults.restore_builtins",),
    "fairseq.dataclass.utils": ("quiet.patch_hydra",),
    "fairseq.distributed.utils": ("distributed.patch", "wrappers.patch_distributed"),
    "fairseq.file_chunker_utils": ("line_ends.patch",),
    "fairseq.models.distributed_fairseq_model": ("distributed.patch_data_parallel",),
    "fairseq.models.fairseq_model": ("amp.patch_inference",),
    "fairseq.models.masked_lm": ("uninitialized_buffers.patch",),
    "fairseq.models.speech_to_text.xm_transformer": ("loading.patch",),
    "fairseq.models.text_to_speech.vocoder": ("loading.patch",),
    "fairseq.models.transformer.transformer_decoder": ("uninitialized_buffers.patch",),
    "fairseq.models.transformer.transformer_encoder": ("encoder_layer.patch_encoder", "uninitialized_buffers.patch"),
    "fairseq.modules.adaptive_input": ("uninitialized_buffers.patch",),
    "fairseq.modules.adaptive_softmax": ("uninitialized_buffers.patch",),
    "fairseq.modules.checkpoint_activations": ("recomputation.patch",),
    "fairseq.modules.dynamic_crf_layer": ("removed_names.patch",),
    "fairseq.modules.quant_noise": ("quantization_noise.patch",),
    "fairseq.modules.quantization.pq.em": ("loading.patch",),
    "fairseq.modules.sinusoidal_positional_embedding": ("uninitialized_buffers.patch",),
    "fairseq.modules.transformer_layer": ("encoder_layer.patch",),
    "fairseq.optim.amp_optimizer": ("amp.patch",),
    "fairseq.optim.fp16_optimizer": ("amp.patch_half",),
    "fairseq.options": ("options.patch",),
    "fairseq.tasks.fairseq_task": ("amp.patch_task", "plugins.patch_task"),
    "fairseq.tasks.translation_from_pretrained_bart": ("bart_task.patch",),
    "fairseq.trainer": ("fault_tolerance.stopping.patch_trainer", "ordered_indices.patch", "wrappers.patch_trainer"),
    "fairseq.utils": ("options.patch_user_dir",),
    "fairseq_cli.hydra_train": ("hydra_train.patch", "wrappers.patch_hydra_train"),
    "fairseq_cli.interactive": ("line_ends.patch_interactive",),
    "fairseq_cli.preprocess": ("line_ends.patch_preprocess",),
    "fairseq_cli.score": ("line_ends.patch",),
    "fairseq_cli.train": ("wrappers.patch_train",),
}
AFTER_EVERY_MODULE = ("expressions.patch",)

# Patches without a function in these tables: `wrappers` and `errors` call them.
OTHERS = {"best_checkpoints", "cpu_training", "dummy_batches", "early_validation", "empty_translations"}
OTHERS |= {"error_messages", "finite_scores", "first_error", "optional_packages", "skipped_updates", "store_ema"}
OTHERS |= {"unpatched_checkpoints"}
OTHERS |= {"command", "epoch_end", "finished", "meters", "out_of_memory", "patience", "resuming", "workers"}

_warned: set[str] = set()


def warn(subject, message):
    """Warn once about each subject."""
    import warnings

    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(f"fairseq_modern {message}", stacklevel=3)


def skipped():
    """Return the patches in FAIRSEQ_MODERN_SKIP, a comma-separated list; warn once about unknown names."""
    skip = {name.strip() for name in os.environ.get("FAIRSEQ_MODERN_SKIP", "").split(",")} - {""}
    if skip:
        functions = {name for table in (BEFORE, AFTER) for names in table.values() for name in names}
        patches = {name.split(".")[-2] for name in functions.union(AFTER_EVERY_MODULE)} | OTHERS
        unknown, known = ", ".join(sorted(skip - patches)), ", ".join(sorted(patches))
        if unknown:
            warn("skip", f"has no patch {unknown}, which FAIRSEQ_MODERN_SKIP names; its patches are {known}")
    return skip


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
        except AttributeError as error:  # a different version of fairseq
            warn(patch, f"left out the patch {patch}, which does not match this version of fairseq: {error}")


class Finder:
    """Finds the modules to patch, and lets the other finders find their code.

    Loaders keep their class for `inspect`, `runpy` and pickle. Only the method that executes a module is replaced, on a
    copy of the loader, because all modules of a zip file share one.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the module's spec with a loader that patches; None for modules without patches."""
        before, after = BEFORE.get(name, ()), AFTER.get(name, ())
        if name.startswith("fairseq."):
            after += AFTER_EVERY_MODULE
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
        if execute is None:  # a namespace package
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
    """Add the finder, once. Warn if fairseq has already been imported, since it can no longer be patched."""
    if Finder in sys.meta_path or os.environ.get("FAIRSEQ_MODERN") == "0":
        return
    if "fairseq" in sys.modules:
        warn("late", "was imported after fairseq, which therefore is not patched; import fairseq_modern first")
    sys.meta_path.insert(0, Finder)


install()
