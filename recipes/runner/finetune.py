"""Fine-tuning of a trained model: options, folder and training command of the recipes that start from one."""

import argparse
import contextlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List

from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.cli.options import pair, positive, references
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from fairseq_modern.errors import UserError
from fairseq_modern.fault_tolerance.checkpoints import latest_valid_checkpoint

from . import settings
from .folder import keep_settings, locked, summary
from .launch import run_logged
from .programs import tool
from .progress import RunProgress
from .settings import ROOT, USER_DIR

#: settings of encoder and decoder that a fine-tuned model takes from its checkpoint
SIDE_SETTINGS = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
#: other settings that it takes from its checkpoint
MODEL_SETTINGS = (
    *("share_all_embeddings", "share_decoder_input_output_embed", "layernorm_embedding", "activation_fn"),
    *("max_source_positions", "max_target_positions"),
    *("no_scale_embedding", "no_token_positional_embeddings", "no_decoder_final_norm"),
    *("no_cross_attention", "cross_self_attention", "mask_heads", "quant_noise_scalar"),
    *("dropout", "attention_dropout", "activation_dropout"),
)


def build_parser(recipe: str, **about: Any) -> argparse.ArgumentParser:
    """The options shared by these recipes."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"recipes/{recipe}/run.sh", formatter_class=formatter, allow_abbrev=False, **about)
    add = parser.add_argument
    text = "checkpoint of fairseq's transformer or of transformer_collab (required)"
    add("--model", metavar="FILE", type=os.path.abspath, required=True, help=text)
    text = "its data-bin (required; data_prep/multi30k.sh --spm FILE --dict FILE makes one for a given model)"
    add("--data", metavar="DIR", type=os.path.abspath, required=True, help=text)
    add("--name", required=True, help="name of the model in records, tables and figures (required)")
    text = "a test split and its raw references, such as test=test_2016_flickr.de; repeatable"
    add("--reference", action="append", default=[], type=pair, metavar="SPLIT=FILE", help=text)
    add("--seed", metavar="N", type=positive, default=1, help="random seed (default: 1)")
    add("--threads", metavar="N", type=positive, default=1, help="CPU threads (default: 1)")
    text = f"output folder (default: runs/{recipe}/NAME)"
    add("--output", metavar="DIR", type=os.path.abspath, help=text)
    return parser


@contextlib.contextmanager
def open_folder(args: argparse.Namespace, recipe: str, options: Dict[str, Any]) -> Iterator[Path]:
    """Check --model, --data, --name and --reference, and lock the folder of the results.

    The run in it is identified by model, name, seed, the files of the data-bin and the `options`.
    """
    if not re.fullmatch("[A-Za-z0-9_-]+", args.name):
        raise UserError(f"--name must consist of letters, digits, _ and -; got '{args.name}'")
    references(args.reference)
    folder = Path(args.output or ROOT / "runs" / recipe / args.name)
    data = [path for path in Path(args.data).iterdir() if path.suffix in (".bin", ".idx", ".txt")]
    checksums = {path.name: checkpoints.sha256(path) for path in data}
    identity = {"name": args.name, "model": checkpoints.sha256(args.model), "seed": args.seed}
    identity["data"] = summary(checksums)
    with locked(folder):
        keep_settings(folder, {**identity, **options})
        yield folder


def model_flags(checkpoint: str) -> List[str]:
    """Flags of fairseq-train for a model with the settings of a checkpoint; --attention-from has those of attention."""
    config = checkpoints.model_settings(as_transformer_collab(checkpoints.load(checkpoint)))
    names = [*(f"{side}_{name}" for side in ("encoder", "decoder") for name in SIDE_SETTINGS), *MODEL_SETTINGS]
    model = {name: config.get(name) for name in names}
    model["dropout"] = model["dropout"] or 0  # None would mean fairseq's default, 0.1
    return settings.flags(OmegaConf.create({"model": {"_name": "transformer_collab", **model}}), "model")


def finetune(args: argparse.Namespace, checkpoint: Path, folder: Path, updates: int, flags: List[str]) -> Path:
    """Continue training a checkpoint with the dimensions of --model. A second call resumes.

    Args:
        checkpoint: initial weights.
        folder: for the new checkpoints; the log is next to it.
        updates: length of training.
        flags: more flags of fairseq-train. The learning rate falls linearly to zero.

    Returns:
        The checkpoint after the last update.
    """
    latest = latest_valid_checkpoint(str(folder)) if folder.is_dir() else None
    if latest is not None and latest.updates >= updates:
        return Path(latest.path)  # not checkpoint_last.pt if that is damaged
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [tool("fairseq-train"), args.data, "--task", "translation", "--user-dir", USER_DIR]
    command += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0.0"]
    command += ["--lr-scheduler", "polynomial_decay", "--label-smoothing", "0.1", "--max-tokens", "2048"]
    command += [*flags, *model_flags(args.model)]
    command += ["--attention-from", checkpoint, "--finetune-from-model", checkpoint]
    command += ["--max-update", updates, "--total-num-update", updates, "--seed", args.seed]
    command += ["--save-dir", folder, "--no-epoch-checkpoints", "--keep-interval-updates", 1]
    command += ["--num-workers", 0, "--log-format", "json"]
    with open(f"{folder}.log", "ab") as log, RunProgress() as progress:
        progress.add(folder, updates, Path(log.name))
        status = run_logged(command, check=progress.poll, stdout=log, stderr=subprocess.STDOUT)
    if status:
        raise UserError(f"training failed, see {folder}.log; the same command resumes it")
    return folder / "checkpoint_last.pt"
