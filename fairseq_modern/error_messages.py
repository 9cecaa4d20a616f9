"""Says in one sentence what the commonest mistakes of fairseq's users are, where fairseq ends in a traceback.

The functions of fairseq that fail say why: what they raise stays what it is, and carries a sentence made of their
positional arguments. What says enough itself is put into other words (`PATTERNS`). `errors` asks for the sentence only
where it shows errors as one line, when the program is about to end: no program runs differently, and what is not known
here keeps its traceback.
"""

import argparse
import contextlib
import functools
import os
import re
import traceback
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional

# What fairseq and its libraries say -> what is said instead; {0} is the first group.
PATTERNS = (
    (r"^\w+: Model file not found: (.*)", "expected a checkpoint, but there is no file {0}."),
    (r"^MissingMandatoryValue: Missing mandatory value: (?:\w+\.)*(\w+)", "{flag} is missing."),
    (
        r"^RuntimeError: .*DefaultCPUAllocator: .*tried to allocate (\d+) bytes",
        "this machine has no memory for a tensor of {0} bytes; make the model smaller, or the batches (--max-tokens).",
    ),
    (
        "^(?:OutOfMemory|Runtime)Error: .*out of memory",
        "the GPU has no memory for this batch; lower --max-tokens or --batch-size and, in training, raise "
        "--update-freq in proportion.",
    ),
    (  # gloo and NCCL of a process that is gone
        r"(?s)^(?:Runtime|Dist\w+)Error: .*(?:[Cc]onnection (?:closed|reset)|[Bb]roken pipe|remote process exit)",
        "another process of this training has ended; see its message.",
    ),
    (  # fairseq then looks for the first NaN, where today's torch fails on the encoder's outputs (StopIteration)
        "^FloatingPointError: .*(gradients are Nan/Inf|Minimum loss scale reached)",
        "the training diverged ({0}); lower --lr, raise --warmup-updates or clip gradients (--clip-norm).",
    ),
)
EXPLANATION = "fairseq_modern_explanation"  # the attribute of an exception that has its sentence


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came from, what that came from, …"""
    seen: List[BaseException] = []
    cause: Optional[BaseException] = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def explain(error: BaseException) -> Optional[str]:
    """What to tell the user in place of the traceback, or None for an error that is no mistake known here."""
    if not isinstance(error, Exception):  # Ctrl-C
        return None
    for each in chain(error):
        if hasattr(each, EXPLANATION):
            return str(getattr(each, EXPLANATION))
        for pattern, message in PATTERNS:
            match = re.search(pattern, f"{type(each).__name__}: {each}")
            if match is not None:
                return message.format(*match.groups(), flag="--" + "".join(match.groups()).replace("_", "-"))
    # what fairseq refuses in the words of the command line already
    raised_in = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    names_a_flag = isinstance(error, (AssertionError, ValueError)) and re.search(r"--[a-z]{2}", str(error))
    theirs = [name for name in raised_in if name.partition(".")[0] in ("fairseq", "fairseq_cli", "__main__")]
    return str(error) if names_a_flag and theirs else None


# --- why a function of fairseq has failed, from the error and its arguments; None: for another reason --------------


def build_model(error: Exception, cfg: Any, *_: Any) -> Optional[str]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    if isinstance(name, str) and name not in ARCH_MODEL_REGISTRY and name not in MODEL_DATACLASS_REGISTRY:
        return f"fairseq has no model {name}; add the --user-dir that brings it (common.user_dir under Hydra)."
    return None


def setup_task(error: Exception, cfg: Any) -> Optional[str]:
    if str(error).startswith("Could not infer language pair"):
        return f"{cfg.data} holds no binarised data; give the folder that fairseq-preprocess wrote (its --destdir)."
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return (
        f"{error.filename}: {error.strerror}; expected a folder of binarised data with its dictionaries, as "
        "fairseq-preprocess writes (its --destdir)."
    )


def load_dataset(error: Exception, task: Any, split: str, *_: Any) -> Optional[str]:
    absent = re.match(r"Dataset not found: \S+ \((.*)\)", str(error))
    if absent is None:
        return None
    present = sorted({name.split(".")[0] for name in os.listdir(absent[1]) if name.endswith(".idx")})
    return f"{absent[1]} has no split {split!r}, its splits are {', '.join(present) or 'none'}."


def main(error: Exception, cfg: Any, *_: Any) -> Optional[str]:
    absent = getattr(cfg, "common_eval", cfg).path is None
    return "--path is missing, the checkpoint to load." if absent else None


def import_user_module(error: Exception, args: Any) -> Optional[str]:
    folder = os.path.abspath(args.user_dir)
    return None if os.path.exists(folder) else f"--user-dir must be a folder with code, but there is no {folder}."


def verify_checkpoint_directory(error: Exception, save_dir: str) -> Optional[str]:
    return f"--save-dir {save_dir} cannot be written to ({error.strerror})." if isinstance(error, OSError) else None


def load_checkpoint_to_cpu(error: Exception, path: str, *_: Any) -> Optional[str]:
    if isinstance(error, FileNotFoundError):
        return f"expected a checkpoint, but there is no file {path}."
    if not isinstance(error, IsADirectoryError):
        return None
    present = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
    among = f", which holds {', '.join(present[:3])}{' …' * (len(present) > 3)}" if present else ""
    return f"expected a checkpoint, but {path} is a folder{among}."


def load_model_ensemble_and_task(error: Exception, filenames: List[str], *_: Any) -> Optional[str]:
    return misfit(error, ", ".join(filenames), lambda: "give the data folder (its dictionaries)")


def load_checkpoint(error: Exception, trainer: Any, filename: str, *_: Any) -> Optional[str]:
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu as load

    return misfit(error, filename, lambda: other_settings(load(filename)["cfg"]["model"], trainer.cfg.model))


def misfit(error: Exception, path: str, advice: Callable[[], str]) -> Optional[str]:
    """How parameters of a checkpoint differ from those of the model that was to take them, and what to do."""
    text = next((str(e) for e in chain(error) if str(e).startswith("Error(s) in loading state_dict")), None)
    if text is None:
        return None
    size = r"torch\.Size\(\[([\d, ]*)\]\)"
    shapes = re.findall(rf"mismatch for (\S+): copying a param with shape {size} from .* model is {size}", text)
    differences = [f"{name} is ({was}) in the file, ({now}) in the model" for name, was, now in shapes]
    for which, where in (("Missing", "model"), ("Unexpected", "file")):
        found = re.search(rf"{which} key\(s\) in state_dict: (.*)", text)
        differences += [f"{name} is only in the {where}" for name in re.findall('"(.*?)"', found[1] if found else "")]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return f"{path} does not fit the model: {'; '.join(differences[:3])}{more}; {advice()}, as in its training."


def other_settings(*models: Any) -> str:
    """The flags that make a model of the second settings one of the first, as far as these tell."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    was, now = (dict(vars(model) if isinstance(model, argparse.Namespace) else model) for model in models)
    arch = was.get("arch") or was.get("_name")
    if arch != (now.get("arch") or now.get("_name")) or arch not in ARCH_MODEL_REGISTRY:
        return f"give --arch {arch} and its sizes"
    parser = argparse.ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    found = []
    for flag, value in ((action.option_strings[0], was.get(action.dest)) for action in parser._actions):
        if value != now.get(flag[2:].replace("-", "_"), value) and not isinstance(value, float):
            given = f"give {flag} {value}".removesuffix(" True")
            found.append(f"leave out {flag}" if value in (None, False) else given)
    return ", ".join(found[:3]) or "give the data folder (its dictionaries)"


EXPLAINED = {
    "fairseq.checkpoint_utils": (load_checkpoint_to_cpu, load_model_ensemble_and_task, verify_checkpoint_directory),
    "fairseq.models": (build_model,),
    "fairseq.tasks": (setup_task,),
    "fairseq.tasks.translation": (load_dataset,),
    "fairseq.trainer": (load_checkpoint,),
    "fairseq.utils": (import_user_module,),
}
OWNERS = {"fairseq.tasks.translation": "TranslationTask", "fairseq.trainer": "Trainer"}  # else the module itself


def patch(module: ModuleType) -> None:
    """Let the functions of the module say why they have failed, each in the words of the one of its name above."""
    owner: Any = getattr(module, OWNERS[module.__name__]) if module.__name__ in OWNERS else module
    for reason in EXPLAINED.get(module.__name__, (main,)):
        setattr(owner, reason.__name__, explained(getattr(owner, reason.__name__), reason))


def explained(function: Callable[..., Any], reason: Callable[..., Optional[str]]) -> Callable[..., Any]:
    """The function, whose exceptions carry what `reason` makes of them and of its positional arguments."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            with contextlib.suppress(Exception):  # what is wrong with an explanation must not hide the error
                explanation = reason(error, *args)
                if explanation is not None:
                    setattr(error, EXPLANATION, explanation)
            raise

    return wrapper
