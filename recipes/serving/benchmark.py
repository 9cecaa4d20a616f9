#!/usr/bin/env python3
"""One trained model on every engine: are the translations fairseq-generate's, and what do they cost?

    benchmark.py FOLDER --source test.en --reference test.de --json results/serving/NAME.json
    benchmark.py --random base FOLDER … --json …          # a new base model, collaborative, with FOLDER's dictionaries
    benchmark.py table results/serving/*.json [--output docs/serving.md --marker serving]

FOLDER is a model folder. The same sentences go through fairseq-generate and through `collab translate` on every export,
all programs of one round one after the other, so that their processor times can be compared on a busy machine; each
also translates one sentence alone, which is its cold start. A second run goes on where the first was interrupted.
"""

import argparse
import functools
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.cli import options
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record, load

BIN = Path(sys.executable).parent
#: system → its export, flags of `collab export` for it, and of `collab translate`; fairseq-generate itself comes first
SYSTEMS: Dict[str, Tuple[str, str, str]] = {
    "fairseq-generate": ("folder", "--to folder", ""),
    "torch": ("folder", "--to folder", ""),
    "torch, half on disk": ("half", "--to folder --half", ""),
    "plain transformer": ("fairseq", "--to fairseq", ""),
    "ctranslate2": ("ctranslate2", "--to ctranslate2", ""),
    "ctranslate2, int8": ("ctranslate2-int8", "--to ctranslate2 --quantization int8", "--precision int8"),
}


def processor_seconds(*command: Any) -> Tuple[float, str]:
    """User and system time of a program and those that it started, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, command))}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def make_random(folder: Path, path: Path, value_heads: Optional[int]) -> None:
    """A new collaborative base model, half of the head width as key dim, with the folder's dictionaries."""
    import torch
    from fairseq import models

    from collab_fairseq.models.config import TransformerCollabConfig  # noqa: F401  (registers the model)
    from collab_fairseq.translation import load_model

    trained = load_model(folder / "model.pt", folder)
    torch.manual_seed(1)
    args = argparse.Namespace(arch="transformer_collab", share_all_embeddings=True, key_dim=32, value_heads=value_heads)
    models.ARCH_CONFIG_REGISTRY[args.arch](args)
    model = models.build_model(args, trained.task)
    config = {**trained.state["cfg"], "model": {**vars(args), "_name": args.arch}}
    checkpoints.save({**trained.state, "cfg": config, "model": model.state_dict()}, path)


def generate(folder: Path, source: Path, args: argparse.Namespace) -> Tuple[float, List[Tuple[str, float]]]:
    """Processor seconds of fairseq-generate; texts and scores, base 2. The source is binarised before."""
    from collab_fairseq.translation.units import TextUnits, read_card

    card = read_card(folder)
    units = TextUnits(folder, card)
    lines = source.read_text(encoding="utf-8").splitlines()
    subwords = {"sentencepiece": ["--remove-bpe", "sentencepiece"], "subword_nmt": ["--remove-bpe"], None: []}
    with tempfile.TemporaryDirectory() as work:
        flags = []
        for lang, short, name in ((card.source_lang, "-s", "--srcdict"), (card.target_lang, "-t", "--tgtdict")):
            # generate wants a target; the source stands in for it
            text = "".join(f"{' '.join(units.split(line))}\n" for line in lines)
            Path(work, f"text.{lang}").write_text(text, encoding="utf-8")
            flags += [short, lang, name, folder / f"dict.{lang}.txt"]
        processor_seconds(BIN / "fairseq-preprocess", *flags, "--testpref", f"{work}/text", "--destdir", f"{work}/bin")
        seconds, log = processor_seconds(
            BIN / "fairseq-generate", f"{work}/bin", "--user-dir", Path(checkpoints.__file__).parent, "--cpu",
            "--path", folder / "model.pt", "--beam", args.beam, "--max-len-b", args.max_length, "--max-tokens", 4000,
            *subwords[card.subwords],
        )  # fmt: skip
    found = sorted((int(n), t, float(s)) for n, s, t in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", log, re.MULTILINE))
    return seconds, [(text, score) for _, text, score in found]


def compare(
    expected: List[Tuple[str, float]], export: Path, system: str, source: Path, args: argparse.Namespace
) -> Dict[str, Any]:
    """How many translations of an engine are those of fairseq-generate, how far their scores are apart, BLEU."""
    import collab_fairseq
    from collab_fairseq.scoring.references import score_raw

    translator = collab_fairseq.load(export, precision="int8" if "int8" in system else "float32", threads=args.threads)
    lines = source.read_text(encoding="utf-8").splitlines()
    found = [
        (best[0].text, best[0].score) for best in translator.search(lines, beam=args.beam, max_length=args.max_length)
    ]
    same = [abs(one[1] - other[1]) for one, other in zip(expected, found, strict=True) if one[0] == other[0]]
    result: Dict[str, Any] = {"identical": len(same), "of": len(found), "largest_score_gap": max(same, default=None)}
    if args.reference:
        reference = Path(args.reference).read_text(encoding="utf-8").splitlines()[: len(lines)]
        for name, translations in (("bleu", found), ("bleu_of_generate", expected)):
            result[name] = score_raw([text for text, _ in translations], reference).bleu.score
    return result


def run(args: argparse.Namespace, work: Path) -> None:
    """Export, translate in rounds, compare."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of all programs
    folder, lines = Path(args.folder), Path(args.source).read_text(encoding="utf-8").splitlines()[: args.sentences]
    settings = {
        "model": file_setting(folder / "model.pt"), "random": args.random, "value_heads": args.value_heads,
        "source": file_setting(args.source),
        "sentences": len(lines), "beam": args.beam, "max_length": args.max_length, "rounds": args.rounds,
    }  # fmt: skip
    record = Record(
        "bench", "serving", shlex.join(sys.argv), settings, args.json, threads=args.threads, fixed=("hardware",)
    )
    source, one = work / "source", work / "one"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    one.write_text(f"{lines[0]}\n", encoding="utf-8")

    def export(checkpoint: Path, place: Path, *flags: Any) -> Path:
        if not place.exists():
            processor_seconds(BIN / "collab", "export", checkpoint, *flags, "--output", place)
        return place

    if args.random and not (work / "random").exists():
        make_random(folder, work / "random.pt", args.value_heads)
        pieces = ["--sentencepiece", folder / "sentencepiece.bpe.model"]
        export(work / "random.pt", work / "random", "--to", "folder", "--data", folder, *pieces)
    checkpoint = work / "random" if args.random else folder
    systems = {}
    for system, (name, how, _) in SYSTEMS.items():
        try:
            place = systems[system] = export(checkpoint, work / name, *how.split())
        except SystemExit as refusal:
            sys.stderr.write(f"without {system}: {refusal}\n")
            continue
        record.part(f"bytes/{name}", lambda place=place: sum(f.stat().st_size for f in place.iterdir()))

    def seconds(system: str, text: Path) -> float:
        if system == "fairseq-generate":
            return generate(systems[system], text, args)[0]
        flags = f"--beam {args.beam} --max-length {args.max_length} --threads {args.threads} {SYSTEMS[system][2]}"
        return processor_seconds(BIN / "collab", "translate", systems[system], text, *flags.split())[0]

    for number in range(args.rounds):
        for system in systems:
            for kind, text in (("start", one), ("all", source)):
                record.part(f"{system}/{kind}/{number}", functools.partial(seconds, system, text))
                sys.stderr.write(f"round {number + 1}: {system}, {kind}\n")
    expected = functools.cache(lambda: generate(systems["fairseq-generate"], source, args)[1])
    for system, place in list(systems.items())[1:]:
        record.part(f"{system}/agreement", lambda s=system, p=place: compare(expected(), p, s, source, args))


def table(files: Sequence[str]) -> str:
    """Rows of all systems of each record, in Markdown."""
    parts = []
    for file in files:
        record = load(file, "bench", "serving")
        found, settings = record["parts"], record["settings"]
        rows = [["engine", "sentences a second", "ratio", "start, s", "folder, MB", "identical", "score gap", "BLEU"]]
        first = 0.0  # speed of fairseq-generate
        for system, (name, *_) in SYSTEMS.items():
            if f"bytes/{name}" not in found:
                rows.append([system, *["–"] * (len(rows[0]) - 1)])
                continue
            start, whole = (
                statistics.median(found[f"{system}/{kind}/{number}"] for number in range(settings["rounds"]))
                for kind in ("start", "all")
            )
            speed = (settings["sentences"] - 1) / (whole - start)
            first = first or speed
            seen = found.get(f"{system}/agreement", {})
            gap, bleu = seen.get("largest_score_gap"), seen.get("bleu")
            if system == "fairseq-generate":
                bleu = next((part.get("bleu_of_generate") for key, part in found.items() if "/agreement" in key), None)
            rows.append([
                system, f"{speed:.1f}", f"{speed / first:.2f}", f"{start:.1f}", f"{found[f'bytes/{name}'] / 1e6:.1f}",
                f"{seen['identical']} of {seen['of']}" if seen else "–", "–" if gap is None else f"{gap:.0e}",
                "–" if bleu is None else f"{bleu:.2f}",
            ])  # fmt: skip
        cpu, threads = record["hardware"]["cpu"], record["hardware"]["threads"]
        parts.append(
            f"**{Path(file).stem}**: {settings['sentences']} sentences, beam {settings['beam']}, "
            f"{threads} thread(s) of {cpu}; processor time.\n\n{pages.table(rows, numbers=True)}"
        )
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    if sys.argv[1:2] == ["table"]:
        add("files", nargs="+", metavar="FILE.json")
        options.add_page(parser)
        args = parser.parse_args(sys.argv[2:], argparse.Namespace(parser=parser))
        options.check_page(args)
        options.publish(args, table(args.files))
        return 0
    add("folder", metavar="FOLDER", help="model folder")
    add("--random", choices=["base"], help="take FOLDER's dictionaries only, with a new model of this size")
    add("--value-heads", type=options.positive, metavar="N", help="of the random model (default: as many as heads)")
    add("--source", required=True, metavar="FILE", help="raw text")
    add("--reference", metavar="FILE", help="its translation, for BLEU")
    add("--json", required=True, metavar="FILE", help="the record; one that is there is continued")
    add("--work", metavar="DIR", help="keep the exports here, a folder that is there")
    for name, default, what in (
        ("sentences", 1000, "the first N"), ("beam", 4, ""), ("max-length", 200, ""), ("rounds", 3, ""),
        ("threads", 1, "of each engine"),
    ):  # fmt: skip
        add(f"--{name}", type=options.positive, default=default, metavar="N", help=f"{what} (default: {default})")
    args = parser.parse_args()
    if args.value_heads and not args.random:
        parser.error("--value-heads belongs to --random")
    for name in filter(None, (args.source, args.reference)):
        if not Path(name).is_file():
            parser.error(f"there is no file {name}")
    with tempfile.TemporaryDirectory() as place:
        run(args, Path(args.work or place).resolve())
    sys.stdout.write(table([args.json]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
