"""Says in one sentence what the commonest mistakes of fairseq's users are, where fairseq ends in a traceback.

A rule knows a mistake by the exception that ends the program, by those that led to it and by the functions of fairseq
that they passed. `errors` asks the rules only where it shows errors as one line, when the program is about to end: no
program runs differently, and what no rule knows keeps its traceback.
"""

import argparse
import os
import re
import traceback
from types import FrameType
from typing import Any, Callable, List, Optional, Tuple

USER_DIR = 'add --user-dir "$(collab user-dir)" (common.user_dir under Hydra)'
OURS = re.compile(r"transformer_collab\w*|label_smoothed_cross_entropy_with_gates")

# What fairseq and its libraries say -> what is said instead; {0} is the first group, {flag} the last one as a flag.
SAID = (
    (r"^\w+: Model file not found: (.*)", "expected a checkpoint, but there is no file {0}."),
    (r"^ConfigCompositionException: Error merging override (\w+)\.(\w+)=null", "{flag} is missing, which --{0} needs."),
    (r"^MissingMandatoryValue: Missing mandatory value: (?:\w+\.)*(\w+)", "{flag} is missing."),
    (r"^ConfigKeyError: Key '(\w+)' not in '(\w+)'", "{0} is not among the settings of {1}."),
    (
        "^ValueError: (MultilingualTranslationTask) requires",
        "--task multilingual_translation needs a model for it, such as --arch multilingual_transformer.",
    ),
    (
        r"^RuntimeError: .*DefaultCPUAllocator: .*tried to allocate (\d+) bytes",
        "this machine has no memory for a tensor of {0} bytes; make the model smaller (--key-dim and others), or the "
        "batches (--max-tokens).",
    ),
)


class Failure:
    """An exception that ends a program, with those that led to it and the functions of fairseq that they passed."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.errors: List[BaseException] = []  # the error, what it came from, what that came from, …
        cause: Optional[BaseException] = error
        while cause is not None and cause not in self.errors:
            self.errors.append(cause)
            cause = cause.__cause__ or cause.__context__
        frames = [f for e in self.errors for f, _ in traceback.walk_tb(e.__traceback__)]
        self.frames = [f for f in frames if _is_fairseqs(f)]

    def value(self, function: str, variable: str) -> Any:
        """What the variable was in the innermost function of that name that has it, or None."""
        found = [f for f in self.frames if f.f_code.co_name == function and variable in f.f_locals]
        return found[-1].f_locals[variable] if found else None

    def passed(self, function: str) -> bool:
        return any(f.f_code.co_name == function for f in self.frames)


def _is_fairseqs(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("fairseq", "fairseq_cli", "__main__")  # the last: python -m fairseq_cli.train


def no_user_dir(failure: Failure) -> Optional[str]:
    """A model that is registered by nobody; fairseq fails while it formats that."""
    name = failure.value("build_model", "model_type")
    if not isinstance(name, str) or failure.value("build_model", "model") is not None:
        return None
    return f"fairseq has no model {name}; {USER_DIR if OURS.fullmatch(name) else 'add the --user-dir that brings it'}."


def no_path(failure: Failure) -> Optional[str]:
    if failure.passed("parse_args_and_arch") and repr(failure.error) == "KeyError(None)":
        return "--path is missing, the checkpoint to load, whose task is taken unless --task names one."
    for frame in failure.frames:
        tool = os.path.splitext(os.path.basename(frame.f_code.co_filename))[0]
        if frame.f_code.co_name == "main" and tool in ("generate", "interactive", "validate"):
            given = getattr(frame.f_locals.get("cfg"), "common_eval", None)
            if given is not None and given.path is None:
                return f"--path is missing, the checkpoint that fairseq-{tool} is to load."
    return None


def path_is_no_file(failure: Failure) -> Optional[str]:
    path = failure.value("load_checkpoint_to_cpu", "path")
    if path is not None and isinstance(failure.error, FileNotFoundError):
        return f"expected a checkpoint, but there is no file {path}."
    if path is None or not isinstance(failure.error, IsADirectoryError):
        return None
    present = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
    among = f", which holds {', '.join(present[:3])}{' …' * (len(present) > 3)}" if present else ""
    return f"expected a checkpoint, but {path} is a folder{among}."


def save_dir(failure: Failure) -> Optional[str]:
    folder = failure.value("verify_checkpoint_directory", "save_dir")
    if folder is None or not isinstance(failure.error, OSError):
        return None
    return f"--save-dir {folder} cannot be written to ({failure.error.strerror})."


def user_dir(failure: Failure) -> Optional[str]:
    folder = failure.value("import_user_module", "module_path")
    if folder is None or os.path.exists(folder):
        return None
    return f"--user-dir must be a folder with code, but there is no {folder}."


def data(failure: Failure) -> Optional[str]:
    """No data folder, nothing in it, not the split that is asked for."""
    error = failure.error
    absent = re.match(r"Dataset not found: (\S+) \((.*)\)", str(error))
    if absent is not None:
        split, folder = absent.groups()
        present = sorted({name.split(".")[0] for name in os.listdir(folder) if name.endswith(".idx")})
        return f"{folder} has no split {split!r}, its splits are {', '.join(present) or 'none'}."
    if not failure.passed("setup_task"):
        return None
    if str(error).startswith("Could not infer language pair"):
        paths = failure.value("setup_task", "paths")
        return f"{paths[0]} holds no binarised data; give the folder that fairseq-preprocess wrote (its --destdir)."
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return (
        f"{error.filename}: {error.strerror}; expected a folder of binarised data with its dictionaries, as "
        "fairseq-preprocess writes (its --destdir)."
    )


def other_shapes(failure: Failure) -> Optional[str]:
    """A checkpoint of another model than the one that is built."""
    text = next((str(e) for e in failure.errors if str(e).startswith("Error(s) in loading state_dict")), None)
    if text is None:
        return None
    size = r"torch\.Size\(\[([\d, ]*)\]\)"
    shapes = re.findall(rf"mismatch for (\S+): copying a param with shape {size} from .* model is {size}", text)
    keys = {which: re.search(rf"{which} key\(s\) in state_dict: (.*)", text) for which in ("Missing", "Unexpected")}
    here, there = (re.findall('"(.*?)"', found[1]) if found else [] for found in keys.values())
    differences = [f"{name} is ({was}) in the file, ({now}) in the model" for name, was, now in shapes]
    differences += [f"{name} is only in the model" for name in here] + [f"{name} is only in the file" for name in there]
    path = failure.value("load_checkpoint", "filename") or failure.value("load_model_ensemble_and_task", "filename")
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return (
        f"{path} does not fit the model: {'; '.join(differences[:3])}{more}; {_advice(failure, shapes)}, as in its "
        "training."
    )


def _advice(failure: Failure, shapes: List[Tuple[str, str, str]]) -> str:
    """What makes the model that of the checkpoint, as far as their settings tell."""
    for name, there, here in shapes:
        if name.endswith("embed_tokens.weight") and there.split(", ")[0] != here.split(", ")[0]:
            return "give the data folder (its dictionaries)"
    state, trainer = (failure.value("load_checkpoint", name) for name in ("state", "self"))
    if state is None or trainer is None:
        return "give the --arch and sizes"
    from fairseq.models import ARCH_MODEL_REGISTRY

    models = state["cfg"]["model"], trainer.cfg.model
    was, now = (dict(vars(model) if isinstance(model, argparse.Namespace) else model) for model in models)
    arch = was.get("arch") or was.get("_name")
    if arch != (now.get("arch") or now.get("_name")) or arch not in ARCH_MODEL_REGISTRY:
        return f"give --arch {arch} and its sizes"
    parser = argparse.ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    found = []
    for flag, before in ((action.option_strings[0], was.get(action.dest)) for action in parser._actions):
        if before != now.get(flag[2:].replace("-", "_"), before) and not isinstance(before, float):
            given = f"give {flag} {before}".removesuffix(" True")
            found.append(f"leave out {flag}" if before in (None, False) else given)
    return ", ".join(found[:3]) or "give the --arch and sizes"


def diverged(failure: Failure) -> Optional[str]:
    """fairseq then looks for the first NaN, where today's torch fails on the encoder's outputs (StopIteration)."""
    errors = [str(error) for error in failure.errors if isinstance(error, FloatingPointError)]
    found = re.search("gradients are Nan/Inf|Minimum loss scale reached", "\n".join(errors))
    if found is None:
        return None
    return f"the training diverged ({found[0]}); lower --lr, raise --warmup-updates or clip gradients (--clip-norm)."


def parts_that_do_not_go_together(failure: Failure) -> Optional[str]:
    said, cfg = str(failure.error), failure.value("build_output_projection", "cfg")
    if getattr(cfg, "base_layers", 0) and "process group" in said:
        return "--base-layers needs several processes, among which it divides experts; use torchrun, or leave it out."
    model, criterion = (failure.value("train_step", name) for name in ("model", "criterion"))
    if getattr(getattr(model, "decoder", None), "adaptive_softmax", None) is not None and "inplace" in said:
        return f"--adaptive-softmax-cutoff goes with --criterion adaptive_loss, but that is {type(criterion).__name__}."
    return None


def in_other_words(failure: Failure) -> Optional[str]:
    for pattern, sentence in SAID:
        match = re.search(pattern, f"{type(failure.error).__name__}: {failure.error}")
        if match is not None:
            return sentence.format(*match.groups(), flag="--" + match.groups()[-1].replace("_", "-"))
    return None


def names_a_flag(failure: Failure) -> Optional[str]:
    """What fairseq refuses in the words of the command line already."""
    *_, (raised_in, _) = traceback.walk_tb(failure.error.__traceback__)
    known = isinstance(failure.error, (AssertionError, ValueError)) and re.search(r"--[a-z]{2}", str(failure.error))
    return str(failure.error) if known and _is_fairseqs(raised_in) else None


RULES: Tuple[Callable[[Failure], Optional[str]], ...] = (
    no_user_dir, no_path, path_is_no_file, save_dir, user_dir, data, other_shapes, diverged,
    parts_that_do_not_go_together, in_other_words, names_a_flag,
)  # fmt: skip


def sentence(error: BaseException) -> Optional[str]:
    """What to tell the user in place of the traceback, or None for an error that is no mistake known here."""
    if not isinstance(error, Exception):  # Ctrl-C
        return None
    try:
        failure = Failure(error)
        found = (rule(failure) for rule in RULES)
        return next((told for told in found if told is not None), None)
    except Exception:  # whatever is wrong here must not hide the error that it is about
        return None
