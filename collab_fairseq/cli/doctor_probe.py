"""Run by `collab doctor` in a Python of its own, started as fairseq-train would be: says what it finds, a line a stage.

    python doctor_probe.py USER_DIR ARCH TYPES

Prints one JSON object per stage, `{"stage": NAME, ...}`, with `error` where the stage fails; where Python crashes or
hangs, the stages before have been printed. Nothing of the project is imported but through --user-dir.
"""

import json
import os
import sys
import traceback
import warnings
from argparse import Namespace
from typing import Any, Callable, Dict

STAGES: Dict[str, Callable[..., Dict[str, Any]]] = {}


def stage(function: Callable[..., Dict[str, Any]]) -> Callable[..., Dict[str, Any]]:
    STAGES[function.__name__] = function
    return function


@stage
def hook(**_: Any) -> Dict[str, Any]:
    """Has the `.pth` file of fairseq_modern put its finder in place? An import here would do so itself."""
    from importlib.util import find_spec

    return {
        "installed": find_spec("fairseq_modern") is not None,
        "at_work": any(getattr(finder, "__module__", "") == "fairseq_modern" for finder in sys.meta_path),
        "setting": os.environ.get("FAIRSEQ_MODERN"),
    }


@stage
def torch(**_: Any) -> Dict[str, Any]:
    """The build and the cards that it sees; memory in bytes."""
    import torch
    from torch import distributed

    with warnings.catch_warnings(record=True) as caught:  # of a driver that is too old or does not answer
        warnings.simplefilter("always")
        cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    there = distributed.is_available()
    nccl = there and distributed.is_nccl_available()
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "architectures": torch.cuda.get_arch_list(),
        "cards": [{"name": c.name, "memory": c.total_memory, "capability": [c.major, c.minor]} for c in cards],
        "warnings": [str(w.message) for w in caught],
        "gloo": there and distributed.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl and cards else nccl,
    }


@stage
def fairseq(**_: Any) -> Dict[str, Any]:
    """Its import, which fails on today's Python where the hook is not at work."""
    from importlib.metadata import version

    import fairseq.checkpoint_utils

    return {"version": version("fairseq"), "folder": os.path.dirname(fairseq.__file__)}


@stage
def user_dir(folder: str, arch: str, **_: Any) -> Dict[str, Any]:
    """What --user-dir registers, and whether `arch` is among all that fairseq knows then."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.utils import import_user_module

    before = set(ARCH_MODEL_REGISTRY)
    import_user_module(Namespace(user_dir=folder))
    return {"registered": sorted(set(ARCH_MODEL_REGISTRY) - before), "knows": arch in ARCH_MODEL_REGISTRY}


@stage
def model(arch: str, types: int, **_: Any) -> Dict[str, Any]:
    """Parameters of the architecture at its defaults, with shared embeddings of so many types; nothing is allocated."""
    import torch
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.options import get_training_parser, parse_args_and_arch
    from fairseq.tasks.translation import TranslationTask

    args = parse_args_and_arch(get_training_parser(), ["-", "--arch", arch, "--share-all-embeddings"])
    config = convert_namespace_to_omegaconf(args)
    dictionary = Dictionary()
    for number in range(types - len(dictionary)):
        dictionary.add_symbol(str(number))
    with torch.device("meta"):
        built = TranslationTask(config.task, dictionary, dictionary).build_model(config.model)
    return {"parameters": sum(parameter.numel() for parameter in built.parameters())}


def main(folder: str, arch: str, types: str) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    answers = sys.stdout
    sys.stdout = sys.stderr  # what fairseq prints is no answer
    for name, function in STAGES.items():
        found: Dict[str, Any] = {"stage": name}
        try:
            found.update(function(folder=folder, arch=arch, types=int(types)))
        except (Exception, SystemExit) as error:  # the latter of fairseq's parser
            traceback.print_exc()
            found["error"] = f"{type(error).__name__}: {error}".split("\n")[0]
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
