"""Defect: the most common mistakes of fairseq's users end in a traceback. Here, one sentence explains each of them.

Check: the error matches one of `PATTERNS`, or a function below recognises it.

The functions of fairseq attach the sentence to their exceptions; `errors` reads it when a command-line tool exits.
"""

import argparse
import contextlib
import functools
import os
import re
import traceback
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional

from fairseq_modern.patching import step

ADVICE = "lower --lr, raise --warmup-updates or clip gradients (--clip-norm)"
# Message of fairseq or its libraries -> message to print; {0} is the first group.
PATTERNS = (
    (r"^\w+: Model file not found: (.*)", "there is no checkpoint {0}"),
    (r"^MissingMandatoryValue: Missing mandatory value: (?:\w+\.)*(\w+)", "{flag} is missing"),
    (
        r"^RuntimeError: .*DefaultCPUAllocator: .*tried to allocate (\d+) bytes",
        "out of memory: cannot allocate a tensor of {0} bytes; use a smaller model or lower --max-tokens",
    ),
    (
        "^(?:OutOfMemory|Runtime)Error: .*out of memory",
        "out of GPU memory; lower --max-tokens or --batch-size and, in training, raise --update-freq in proportion",
    ),
    (  # gloo and NCCL if another process has ended
        r"(?s)^(?:Runtime|Dist\w+)Error: .*(?:[Cc]onnection (?:closed|reset)|[Bb]roken pipe|remote process exit)",
        "another process of this training run has ended; see its message",
    ),
    (
        r"^AssertionError: (Sentences lengths should not exceed max_tokens=\d+)",
        "{0}; raise --max-tokens, or for validation --max-tokens-valid",
    ),
    (r"^Exception: (The dataset is empty\..*)", "{0}"),
    (
        "^FloatingPointError: .*(gradients are Nan/Inf|Minimum loss scale reached)",
        f"training diverged ({{0}}); {ADVICE}",
    ),
)
EXPLANATION = "fairseq_modern_explanation"  # attribute of an exception


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: List[BaseException] = []
    cause: Optional[BaseException] = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def explain(error: BaseException) -> Optional[str]:
    """Return the sentence to print instead of a traceback; None if the error is not a known mistake."""
    if not isinstance(error, Exception):  # such as KeyboardInterrupt
        return None
    for cause in chain(error):
        if hasattr(cause, EXPLANATION):
            return str(getattr(cause, EXPLANATION))
        for pattern, message in PATTERNS:
            match = re.search(pattern, f"{type(cause).__name__}: {cause}")
            if match is not None:
                flag = "--" + "".join(match.groups()).replace("_", "-")
                return message.format(*match.groups(), flag=flag)
    return str(error) if is_about_a_flag(error) else None


def is_about_a_flag(error: Exception) -> bool:
    """Whether fairseq itself has raised the error, with a message that names a command-line flag."""
    is_of_fairseq = type(error) is Exception or isinstance(error, (AssertionError, ValueError))
    if not is_of_fairseq or not re.search(r"--[a-z]{2}", str(error)):
        return False
    return raised_in(error).partition(".")[0] in ("fairseq", "fairseq_cli", "__main__")


def raised_in(error: BaseException) -> str:
    """Return the name of the module that has raised an error."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(modules[-1]) if modules else ""


# --- Each function explains errors of the function of fairseq with the same name. It returns None for other errors. ---


def build_model(error: Exception, cfg: Any, *_: Any) -> Optional[str]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    if isinstance(name, str) and name not in ARCH_MODEL_REGISTRY and name not in MODEL_DATACLASS_REGISTRY:
        return f"fairseq has no model {name}; add the --user-dir that defines it (common.user_dir with Hydra)"
    return None


def setup_task(error: Exception, cfg: Any) -> Optional[str]:
    expected = "the data folder must be the --destdir of fairseq-preprocess"
    if str(error).startswith("Could not infer language pair"):
        return f"{expected}; got {cfg.data}, which contains no binarised data"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{expected}; got {error.filename} ({error.strerror})"
    return None


def load_dataset(error: Exception, task: Any, split: str, *_: Any) -> Optional[str]:
    missing = re.match(r"Dataset not found: \S+ \((.*)\)", str(error))
    if missing is None:
        return None
    splits = sorted({name.split(".")[0] for name in os.listdir(missing[1]) if name.endswith(".idx")})
    return f"{missing[1]} has no split {split!r}; its splits are {', '.join(splits) or 'none'}"


def main(error: Exception, cfg: Any, *_: Any) -> Optional[str]:
    return "--path is missing" if getattr(cfg, "common_eval", cfg).path is None else None


def import_user_module(error: Exception, args: Any) -> Optional[str]:
    folder = os.path.abspath(args.user_dir)
    return None if os.path.exists(folder) else f"--user-dir must be a folder with code; there is no {folder}"


def verify_checkpoint_directory(error: Exception, save_dir: str) -> Optional[str]:
    return f"cannot write to --save-dir {save_dir} ({error.strerror})" if isinstance(error, OSError) else None


def load_checkpoint_to_cpu(error: Exception, path: str, *_: Any) -> Optional[str]:
    if isinstance(error, FileNotFoundError):
        return f"there is no checkpoint {path}"
    if not isinstance(error, IsADirectoryError):
        return explain_missing_state(error, path)
    files = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
    listed = ", ".join(files[:3]) or "none"
    return f"the checkpoint must be a file; got the folder {path} (its checkpoints: {listed})"


def load_model_ensemble_and_task(error: Exception, filenames: List[str], *_: Any) -> Optional[str]:
    return explain_mismatch(error, ", ".join(filenames), lambda: "the data folder (for its dictionaries)")


def load_checkpoint(error: Exception, trainer: Any, filename: str, *_: Any) -> Optional[str]:
    def find_cause() -> str:
        from fairseq.checkpoint_utils import load_checkpoint_to_cpu as load

        return differing_flags(load(filename)["cfg"]["model"], trainer.cfg.model)

    return explain_mismatch(error, filename, find_cause) or explain_missing_state(error, filename)


def explain_missing_state(error: Exception, path: str) -> Optional[str]:
    """Explain an error of fairseq's code that reads the state of a training run from a checkpoint."""
    for cause in chain(error):
        reads_state = raised_in(cause).startswith(("fairseq.checkpoint_utils", "fairseq.trainer", "fairseq_modern."))
        if not isinstance(cause, (LookupError, TypeError, AttributeError)):
            continue
        if reads_state or cause.args == ("model",):  # also read by the models of a --user-dir
            reason = f"got a file without the state of one ({type(cause).__name__}: {cause})"
            advice = "remove it, and training resumes from another checkpoint of its folder, if any"
            is_last = os.path.basename(path).startswith("checkpoint_last")
            return f"{path} must be a checkpoint of a training run; {reason}" + (f"; {advice}" if is_last else "")
    return None


def explain_mismatch(error: Exception, path: str, find_cause: Callable[[], str]) -> Optional[str]:
    """Explain how the parameters of a checkpoint differ from those of the model that should load it."""
    prefix = "Error(s) in loading state_dict"
    text = next((str(cause) for cause in chain(error) if str(cause).startswith(prefix)), None)
    if text is None:
        return None
    size = r"torch\.Size\(\[([\d, ]*)\]\)"
    shapes = re.findall(rf"mismatch for (\S+): copying a param with shape {size} from .* model is {size}", text)
    differences = [f"{name} is ({saved}) in the file, ({built}) in the model" for name, saved, built in shapes]
    for keys, owner in (("Missing", "model"), ("Unexpected", "file")):
        match = re.search(rf"{keys} key\(s\) in state_dict: (.*)", text)
        if match is not None:
            differences += [f"{name} is only in the {owner}" for name in re.findall('"(.*?)"', match[1])]
    listed = "; ".join(differences[:3])
    if len(differences) > 3:
        listed += f" and {len(differences) - 3} more"
    return f"{path} does not fit the model: {listed}; use the same settings as in its training run: {find_cause()}"


def differing_flags(saved: Any, current: Any) -> str:
    """Return the flags that the current settings of a model need to equal the saved ones, at most three."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    saved, current = (
        dict(vars(model) if isinstance(model, argparse.Namespace) else model) for model in (saved, current)
    )
    arch = saved.get("arch") or saved.get("_name")
    current_arch = current.get("arch") or current.get("_name")
    if arch != current_arch or arch not in ARCH_MODEL_REGISTRY:
        return f"--arch {arch} and its sizes"
    parser = argparse.ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    flags = []
    for action in parser._actions:
        flag, value = action.option_strings[0], saved.get(action.dest)
        name = flag[2:].replace("-", "_")
        if isinstance(value, float) or current.get(name, value) == value:
            continue
        if value in (None, False):
            flags.append(f"no {flag}")
        else:
            flags.append(flag if value is True else f"{flag} {value}")
    return ", ".join(flags[:3]) or "the data folder (for its dictionaries)"


EXPLAINED = {
    "fairseq.checkpoint_utils": (load_checkpoint_to_cpu, load_model_ensemble_and_task, verify_checkpoint_directory),
    "fairseq.models": (build_model,),
    "fairseq.tasks": (setup_task,),
    "fairseq.tasks.translation": (load_dataset,),
}
CLASSES = {"fairseq.tasks.translation": "TranslationTask"}


def patch(module: ModuleType) -> None:
    """Wrap the functions of the module, or methods of its class in `CLASSES`, that are explained above."""
    name = module.__name__
    owner: Any = getattr(module, CLASSES[name]) if name in CLASSES else module
    for explanation in EXPLAINED.get(name, (main,)):
        function = getattr(owner, explanation.__name__)
        setattr(owner, explanation.__name__, explained(function, explanation))


def explained(function: Callable[..., Any], explanation: Callable[..., Optional[str]]) -> Callable[..., Any]:
    """Return the function with its exceptions explained."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        with explaining(explanation, *args):
            return function(*args, **options)

    return wrapper


@step(contextlib.nullcontext())
@contextlib.contextmanager
def explaining(explanation: Callable[..., Optional[str]], *args: Any) -> Iterator[None]:
    """Explain exceptions of the block, with a function that gets the exception and the arguments."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # a failing explanation must not hide the error
            text = explanation(error, *args)
            if text is not None:
                setattr(error, EXPLANATION, text)
        raise
