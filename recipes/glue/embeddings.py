"""Convert a sentence encoder at several key dimensions without labels, and measure STS-B by cosine similarity.

    python -m recipes glue embeddings --model data/all-MiniLM-L6-v2
    python -m recipes glue embeddings results/glue/embeddings-*.json    # the tables of these records

Methods: `unweighted` (the paper's objective), `calibrated` (256 sentences of STS-B's training set), `distilled` (then
trained without labels on the sentences of the training sets of STS-B, MRPC and SST-2). OUTPUT contains the texts, the
models, a record per conversion, `speed.json` and table.md. The same command resumes after the last finished conversion.
"""

import argparse
import itertools
import logging
import random
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import torch

from collab_fairseq.checkpoints import file_setting, sha256
from collab_fairseq.cli.options import command, numbers
from collab_fairseq.files import write_json, write_text
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record, load
from collab_fairseq.reparam.folders import Source, convert_folder
from collab_fairseq.reparam.pipeline import Settings
from fairseq_modern.errors import UserError
from recipes import ROOT
from recipes.glue.run import check_key_dims
from recipes.glue.table import existing
from recipes.glue.tasks import TASKS, TEXTS, fetch, read

logger = logging.getLogger("embeddings")
PROGRAM = "python -m recipes glue embeddings"
METHODS = ("unweighted", "calibrated", "distilled")
CALIBRATION, SST2 = 256, 10_000
#: tokens per text, and texts per batch, of the measurement of speed
LENGTHS, BATCH, REPEATS = (16, 64, 256), 8, 5
SPEARMAN, COSINE = "100 × Spearman", "mean cosine to the source"


def write_texts(data: Path, output: Path) -> Dict[str, str]:
    """Write `calibration.txt` and `unlabelled.txt`; returns name → SHA-256 of the files of the tasks."""
    sentences: Dict[str, List[str]] = {}
    for task in TEXTS:
        rows = read(data / task / "train.jsonl")
        sentences[task] = [" ".join(row[field].split()) for row in rows for field in TASKS[task].fields]
    step = len(sentences["stsb"]) // CALIBRATION
    write_text("".join(f"{line}\n" for line in sentences["stsb"][::step][:CALIBRATION]), output / "calibration.txt")
    unlabelled = sentences["stsb"] + sentences["mrpc"] + sentences["sst2"][:SST2]
    random.Random(1).shuffle(unlabelled)
    write_text("".join(f"{line}\n" for line in unlabelled), output / "unlabelled.txt")
    files = [data / task / "train.jsonl" for task in sentences] + [data / "stsb" / "validation.jsonl"]
    return {f"{file.parent.name}/{file.name}": sha256(file) for file in files}


@torch.no_grad()
def sentences_per_second(models: Dict[str, Any], length: int) -> Dict[str, float]:
    """Model → median rate in texts of `length` tokens; the models take turns."""
    generator = torch.Generator().manual_seed(length)
    vocabulary = next(iter(models.values())).config.vocab_size
    tokens = torch.randint(1000, vocabulary, (BATCH, length), generator=generator)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    rates: Dict[str, List[float]] = {name: [] for name in models}
    for repeat in range(REPEATS + 1):
        for name, model in models.items():
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < 1.0:
                model(**batch)
                count += BATCH
            if repeat:  # the first is a warm-up
                rates[name].append(count / (time.perf_counter() - began))
    return {name: sorted(values)[len(values) // 2] for name, values in rates.items()}


def table_of(records: Sequence[Path]) -> str:
    """The tables of records: embeddings-METHOD-KEY_DIM.json and embeddings-speed.json."""
    conversions: Dict[str, Dict[str, Any]] = {}
    speed: Dict[str, Any] = {}
    for path in records:
        _, method, *key_dim = path.stem.split("-")
        if key_dim:
            conversions[f"{method}/{key_dim[0]}"] = load(path, "conversion", path.stem)["parts"]
        else:
            speed = load(path, "study", path.stem)["parts"]
    if not conversions:
        return "This has not been measured yet.\n"

    def order(name: str) -> Tuple[int, int]:
        method, _, key_dim = name.partition("/")
        return -int(key_dim), METHODS.index(method)

    return table({name: conversions[name] for name in sorted(conversions, key=order)}, speed)


def table(conversions: Dict[str, Dict[str, Any]], speed: Dict[str, Any]) -> str:
    """The tables in Markdown, from the parts of conversions (`method/key_dim`) and of the speed."""
    rows = [["method", "key dimension", "parameters (M)", "STS-B", "difference", "cosine", "seconds"]]
    for name, parts in conversions.items():
        method, _, key_dim = name.partition("/")
        sts, cosine, size = (parts["evaluation"][SPEARMAN], parts["evaluation"][COSINE], parts["parameters"])
        if len(rows) == 1:
            full = parts["layers"][0]["key_dim"]["before"]
            rows.append(["source", str(full), f"{size['before'] / 1e6:.2f}", f"{sts['before']:.2f}", "", "1", ""])
        cells = [method, key_dim, f"{size['after'] / 1e6:.2f}", f"{sts['after']:.2f}"]
        cells += [f"{sts['after'] - sts['before']:+.2f}", f"{cosine['after']:.3f}", f"{parts['seconds']:.0f}"]
        rows.append(cells)
    text = pages.table(rows, numbers=True)
    text += "\n\nSTS-B: validation set, 100 × Spearman's correlation of cosine similarities.\n"
    if not speed:
        return text
    rows = [["key dimension", "MB", *(f"texts/s, {length} tokens" for length in speed["rates"])]]
    for name, size in speed["bytes"].items():
        rates = [(of_length[name], of_length["source"]) for of_length in speed["rates"].values()]
        rows.append([name, f"{size / 1e6:.1f}", *(f"{rate:.0f} ({rate / source:.2f})" for rate, source in rates)])
    note = f"One thread, batches of {BATCH}, median of {REPEATS} seconds; in brackets: relative to the source."
    return f"{text}\n{pages.table(rows, numbers=True)}\n\n{note}\n"


def convert(args: argparse.Namespace, method: str, key_dim: int, data: Dict[str, str]) -> Dict[str, Any]:
    """The parts of the record of a conversion, which is made if the record is missing."""
    name = f"{method}-{key_dim}"
    path = args.output / f"{name}.json"
    settings = Settings(
        key_dim=key_dim,
        calibration=None if method == "unweighted" else str(args.output / "calibration.txt"),
        distill=args.steps if method == "distilled" else None,
        distill_text=str(args.output / "unlabelled.txt") if method == "distilled" else None,
        evaluate=str(args.data / "stsb"),
        seed=args.seed,
    )
    if not path.is_file():
        shutil.rmtree(args.output / name, ignore_errors=True)  # interrupted between model and record
        content = convert_folder(args.model, args.output / name, settings, command(PROGRAM)).content
        content.update(name=f"embeddings-{name}", settings={**content["settings"], "data": data})
        write_json(content, path)
    record = load(path, "conversion", f"embeddings-{name}")
    wanted = {"distill": settings.distill, "seed": args.seed, "data": data, "checkpoint": file_setting(args.model)}
    for key, value in wanted.items():
        if record["settings"][key] != value:
            raise UserError(f"{path} was made with another {key}: choose another --output")
    return dict(record["parts"])


def speed_record(args: argparse.Namespace) -> Record:
    """The record of the speed of the source and of the calibrated models, new or as it is in the folder."""
    torch.set_num_threads(1)
    settings = {"model": file_setting(args.model), "key_dims": args.key_dims, "batch": BATCH, "repeats": REPEATS}
    path = args.output / "speed.json"
    return Record("study", "embeddings-speed", command(PROGRAM), settings, path, fixed=("hardware",))


def measure_speed(args: argparse.Namespace, record: Record) -> Dict[str, Any]:
    """Add the speed to its record; returns its parts."""
    folders = {"source": args.model, **{str(n): args.output / f"calibrated-{n}" for n in args.key_dims}}
    models = {name: Source.load(folder, "cpu").model for name, folder in folders.items()}
    record.part("bytes", lambda: {n: (Path(f) / "model.safetensors").stat().st_size for n, f in folders.items()})
    record.part("rates", lambda: {str(length): sentences_per_second(models, length) for length in LENGTHS})
    return record.parts


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """Measure what is missing in --output, if there is a --model; returns the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("records", nargs="*", type=Path, metavar="RECORD", help="only print the tables of these records")
    add("--model", type=Path, metavar="DIR", help="folder of an encoder, such as that of minilm.py")
    add("--data", type=Path, default=ROOT / "data/glue", metavar="DIR", help="GLUE tasks (default: data/glue)")
    text = "key dimensions (default: %(default)s)"
    add("--key-dims", type=numbers, default="192,128,96,64", metavar="N,…", help=text)
    text = "methods (default: %(default)s)"
    add("--methods", type=lambda text: text.split(","), default=",".join(METHODS), metavar="NAME,…", help=text)
    add("--steps", type=int, default=1000, metavar="N", help="steps of distillation (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="random seed (default: %(default)s)")
    default = ROOT / "runs/glue/embeddings"
    add("--output", type=Path, default=default, metavar="DIR", help="output folder (default: runs/glue/embeddings)")
    add("--no-speed", action="store_true", help="do not measure sentences per second, which needs a quiet core")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="embeddings: %(message)s")
    if args.model is None:
        return table_of(existing(args.records))
    unknown = sorted({*args.methods} - {*METHODS})
    if unknown:
        raise UserError(f"--methods must be among {', '.join(METHODS)}; got {', '.join(unknown)}")
    if not args.no_speed and "calibrated" not in args.methods:
        raise UserError(f"--methods must include calibrated unless --no-speed; got {', '.join(args.methods)}")
    check_key_dims(args.key_dims, args.model)
    for task in TEXTS:
        fetch(task, args.data)
    args.output.mkdir(parents=True, exist_ok=True)
    data = write_texts(args.data, args.output)
    speed = None if args.no_speed else speed_record(args)
    wanted = list(itertools.product(args.key_dims, args.methods))
    conversions: Dict[str, Dict[str, Any]] = {}
    for number, (key_dim, method) in enumerate(wanted, 1):
        logger.info("%d of %d: %s-%s", number, len(wanted), method, key_dim)
        conversions[f"{method}/{key_dim}"] = convert(args, method, key_dim, data)
    text = table(conversions, measure_speed(args, speed) if speed else {})
    write_text(text, args.output / "table.md")
    return text
