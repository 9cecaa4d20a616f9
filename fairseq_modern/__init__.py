"""Makes the archived fairseq 0.12.2 run on today's Python, torch, NumPy and Hydra, without editing a file of it.

A `.pth` file beside the installed package imports this module whenever Python starts, so that fairseq's console
scripts, `python -m fairseq_cli.train`, torchrun, notebooks and spawned workers are covered without a word from the
user. That is why nothing heavy happens here: importing this module puts one finder in front of `sys.meta_path`, which
knows the exact names of the modules to mend and does nothing for any other. The mends themselves, one file per
subject, are imported when the module that they mend is.

Set the environment variable FAIRSEQ_MODERN=0 to run fairseq as it was published.
"""

import os
import sys

__all__ = ["AFTER", "BEFORE", "install"]

# Module of fairseq -> functions of this package, called with the module object before its code runs ...
BEFORE = {
    "fairseq": ("errors.show_user_errors",),
    "fairseq.dataclass.configs": ("dataclasses_.hash_configs",),
}

# ... and after.
AFTER = {
    "fairseq.checkpoint_utils": ("loading.mend", "saving.mend", "resuming.mend", "stopping.mend_loading"),
    "fairseq.data.codedataset": ("loading.mend", "expressions.mend"),
    "fairseq.data.indexed_dataset": ("mistakes_data.mend",),
    "fairseq.dataclass.configs": ("dataclasses_.restore_builtins",),
    "fairseq.dataclass.utils": ("config.mend",),
    "fairseq.distributed.utils": ("distributed.mend",),
    "fairseq.models.distributed_fairseq_model": ("distributed.mend_data_parallel",),
    "fairseq.models.transformer.transformer_encoder": ("encoder.mend",),
    "fairseq.modules.transformer_layer": ("encoder_layer.mend",),
    "fairseq.optim.amp_optimizer": ("amp.mend",),
    "fairseq.options": ("options.mend", "mistakes_options.mend"),
    "fairseq.trainer": ("resuming.mend_trainer", "stopping.mend_trainer", "memory.mend"),
    "fairseq.utils": ("expressions.mend", "user_dir.mend"),
    "fairseq_cli.hydra_train": ("errors.mend_hydra_train",),
    "fairseq_cli.train": ("train.mend", "stopping.mend_train"),
    **dict.fromkeys(
        (
            "fairseq.data.data_utils",
            "fairseq.data.language_pair_dataset",
            "fairseq.data.token_block_dataset",
            "fairseq.modules.dynamic_crf_layer",
        ),
        ("numpy_names.mend",),
    ),
    **dict.fromkeys(
        (
            "fairseq.models.speech_to_text.xm_transformer",
            "fairseq.models.text_to_speech.vocoder",
            "fairseq.modules.quantization.pq.em",
        ),
        ("loading.mend",),
    ),
    **dict.fromkeys(
        (
            "fairseq.criterions.ctc",
            "fairseq.data.audio.raw_audio_dataset",
            "fairseq.models.fconv",
            "fairseq.models.fconv_lm",
            "fairseq.models.fconv_self_att",
            "fairseq.models.hubert.hubert",
            "fairseq.models.lightconv_lm",
            "fairseq.models.speech_to_text.s2t_wav_transformer",
            "fairseq.models.transformer_lm",
            "fairseq.models.wav2vec.wav2vec",
            "fairseq.models.wav2vec.wav2vec2",
            "fairseq.optim.adafactor",
            "fairseq.optim.adam",
            "fairseq.optim.adamax",
            "fairseq.optim.cpu_adam",
            "fairseq.optim.fused_lamb",
        ),
        ("expressions.mend",),
    ),
}


def _call(functions, module):
    """Call functions of this package, named `file.function`, with the module."""
    for name in functions:
        file, function = name.split(".")
        qualified = __name__ + "." + file
        __import__(qualified)
        getattr(sys.modules[qualified], function)(module)


class Finder:
    """Finds the modules named in BEFORE and AFTER where Python would, and has them mended as they are executed.

    The module's own loader is kept, so that `inspect`, `runpy` and pickle see nothing unusual; only the method that
    executes the module is replaced, on that one loader object.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the module's spec with a loader that mends, or None for a module that is not ours to mend."""
        if name not in AFTER and name not in BEFORE:
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
        if execute is None:  # a namespace package or a very old loader: there is no code of fairseq's to mend
            return spec

        def exec_module(module):
            _call(BEFORE.get(name, ()), module)
            execute(module)
            _call(AFTER.get(name, ()), module)

        spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        return spec


def install():
    """Put the finder in place, once. Warns if fairseq is already imported: what has run cannot be mended any more."""
    if Finder in sys.meta_path or os.environ.get("FAIRSEQ_MODERN") == "0":
        return
    if "fairseq" in sys.modules:
        import warnings

        warnings.warn(
            "fairseq_modern was imported after fairseq, which therefore runs as published; import fairseq_modern first",
            stacklevel=3,
        )
    sys.meta_path.insert(0, Finder)


install()
