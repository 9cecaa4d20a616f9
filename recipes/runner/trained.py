"""What the recipes share that begin with a trained model and its data."""

import argparse
import contextlib
import re
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.cli.options import positive
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, model_config
from fairseq_modern.fault_tolerance.resuming import latest_valid_checkpoint

from .folder import keep_settings, locked
from .options import Parser, absolute
from .process import run_logged
from .programs import tool
from .settings import ROOT, USER_DIR, RecipeError
from .settings import flags as as_flags

SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
OTHERS = (
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "layernorm_embedding",
    "activation_fn",
    "dropout",
    "attention_dropout",
    "activation_dropout",
)


def build_parser(recipe: str, **about: Any) -> argparse.ArgumentParser:
    """The options of all of these recipes."""
    parser = Parser(f"recipes/{recipe}/run.sh", formatter_class=argparse.RawDescriptionHelpFormatter, **about)
    add = parser.add_argument
    add("--model", metavar="FILE", type=absolute, help="checkpoint of fairseq's transformer or of transformer_collab")
    text = "its data-bin (data_prep/multi30k.sh --spm FILE --dict FILE makes one for a given model)"
    add("--data", metavar="DIR", type=absolute, help=text)
    add("--name", help="of the model in records, tables and figures")
    text = "a test split and its raw references, such as test=test_2016_flickr.de; repeatable"
    add("--reference", action="append", default=[], type=reference, metavar="SPLIT=FILE", help=text)
    add("--seed", metavar="N", type=positive, default=1, help="(default: 1)")
    add("--threads", metavar="N", type=positive, default=1, help="CPU threads (default: 1)")
    add("--output", metavar="DIR", type=absolute, help=f"(default: runs/{recipe}/NAME)")
    return parser


def reference(text: str) -> Tuple[str, str]:
    """SPLIT=FILE, for argparse."""
    split, _, file = text.partition("=")
    if not (split and Path(file).is_file()):
        raise RecipeError(f"--reference must be SPLIT=FILE, got '{text}'")
    return split, absolute(file)


@contextlib.contextmanager
def open_folder(args: argparse.Namespace, recipe: str, settings: Dict[str, Any]) -> Iterator[Path]:
    """Check model, data and name; meanwhile the folder of the results is this run's alone."""
    if not (args.model and args.data and args.name):
        raise RecipeError("--model, --data and --name are needed (see --help)")
    if not re.fullmatch("[A-Za-z0-9_-]+", args.name):
        raise RecipeError(f"--name must be made of letters, digits, _ and -, got '{args.name}'")
    if not Path(args.model).is_file():
        raise RecipeError(f"there is no checkpoint {args.model}")
    if not Path(args.data).is_dir():
        raise RecipeError(f"there is no data-bin {args.data}")
    folder = Path(args.output or ROOT / "runs" / recipe / args.name)
    given = {"name": args.name, "model": checkpoints.sha256(args.model), "seed": args.seed}
    with locked(folder):
        keep_settings(folder, {**given, **settings})
        yield folder


def model_flags(checkpoint: str) -> List[str]:
    """fairseq-train's flags for a model of the sizes of a checkpoint."""
    config = model_config(as_transformer_collab(checkpoints.load(checkpoint)))
    names = [*(f"{side}_{name}" for side in ("encoder", "decoder") for name in SIZES), *OTHERS]
    given = {name: config.get(name) for name in names}
    given["dropout"] = given["dropout"] or 0  # fairseq's default is another
    return as_flags(OmegaConf.create({"model": {"_name": "transformer_collab", **given}}), "model")


def train_on(args: argparse.Namespace, checkpoint: Path, folder: Path, updates: int, flags: List[str]) -> Path:
    """Continue training with a model of the sizes of --model; a second call resumes. Returns its last checkpoint.

    Args:
        checkpoint: what it begins with. folder: of its checkpoints; its log is next to it.
        flags: more for fairseq-train.
    """
    newest = latest_valid_checkpoint(str(folder)) if folder.is_dir() else None
    if newest is None or newest.updates < updates:  # fairseq-train would make one update more
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [
            tool("fairseq-train"),
            args.data,
            "--task",
            "translation",
            "--user-dir",
            USER_DIR,
            *flags,
            *model_flags(args.model),
            "--attention-from",
            checkpoint,
            "--finetune-from-model",
            checkpoint,
            "--num-workers",
            0,
            "--seed",
            args.seed,
            "--max-update",
            updates,
            "--total-num-update",
            updates,
            "--save-dir",
            folder,
            "--no-epoch-checkpoints",
            "--keep-interval-updates",
            1,
            "--log-format",
            "json",
        ]
        with open(f"{folder}.log", "ab") as log:
            status = run_logged(command, stdout=log, stderr=subprocess.STDOUT)
        if status:
            raise RecipeError(f"training failed, see {folder}.log; the same command resumes it")
    return folder / "checkpoint_last.pt"
