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
import contextlib
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.cli import options
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record, load

BIN = Path(sys.executable).parent
#: system → exported for, and flags of `collab translate`; fairseq-generate itself comes first
SYSTEMS: Dict[str, Tuple[str, List[str]]] = {
    "fairseq-generate": ("folder", []),
    "torch": ("folder", []),
    "torch, half on disk": ("half", []),
    "plain transformer": ("fairseq", []),
    "ctranslate2": ("ctranslate2", []),
    "ctranslate2, int8": ("ctranslate2-int8", ["--precision", "int8"]),
    "onnx": ("onnx", []),
}
EXPORTS = {
    "folder": ["--to", "folder"],
    "half": ["--to", "folder", "--half"],
    "fairseq": ["--to", "fairseq"],
    "ctranslate2": ["--to", "ctranslate2"],
    "ctranslate2-int8": ["--to", "ctranslate2", "--quantization", "int8"],
    "onnx": ["--to", "onnx"],
}


def processor_seconds(command: Sequence[Any], **options: Any) -> Tuple[float, str]:
    """User and system time of a program and those that it started, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, command))}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def make_random(folder: Path, size: str, path: Path) -> None:
    """A new collaborative model, half of the head width as key dim, with the folder's dictionaries."""
    import torch
    from fairseq import models

    from collab_fairseq.models.config import TransformerCollabConfig  # noqa: F401  (registers the model)
    from collab_fairseq.translation import load_model

    trained = load_model(folder / "model.pt", folder)
    torch.manual_seed(1)
    arch = {"base": "transformer_collab", "tiny": "transformer_collab_tiny"}[size]
    args = argparse.Namespace(arch=arch, share_all_embeddings=True, key_dim=32)
    models.ARCH_CONFIG_REGISTRY[arch](args)
    model = models.build_model(args, trained.task)
    state = dict(trained.state)
    state["cfg"] = {**state["cfg"], "model": {**vars(args), "_name": "transformer_collab"}}
    checkpoints.save({**state, "model": model.state_dict()}, path)


def data_bin(folder: Path, source: Path, work: Path) -> Path:
    """The source as fairseq-preprocess makes it of the folder's units and dictionaries."""
    from collab_fairseq.translation.units import TextUnits, read_card

    card = read_card(folder)
    units = TextUnits(folder, card)
    lines = source.read_text(encoding="utf-8").splitlines()
    for lang in (card.source_lang, card.target_lang):  # generate wants a target; the source stands in for it
        (work / f"text.{lang}").write_text("".join(f"{' '.join(units.split(line))}\n" for line in lines))
    source_dict, target_dict = (folder / f"dict.{lang}.txt" for lang in (card.source_lang, card.target_lang))
    flags = ["-s", card.source_lang, "-t", card.target_lang, "--srcdict", source_dict, "--tgtdict", target_dict]
    processor_seconds(
        [BIN / "fairseq-preprocess", *flags, "--testpref", work / "text", "--destdir", work / "data-bin"]
    )
    return work / "data-bin"


def translate(system: str, export: Path, source: Path, args: argparse.Namespace, work: Path) -> Dict[str, Any]:
    """Processor seconds, texts and scores, base 2, of one run."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    search: List[Any] = ["--beam", args.beam]
    if system == "fairseq-generate":
        from collab_fairseq.translation.units import read_card

        subwords = {"sentencepiece": ["--remove-bpe", "sentencepiece"], "subword_nmt": ["--remove-bpe"], None: []}
        with tempfile.TemporaryDirectory() as place:
            data = data_bin(export, source, Path(place))
            search += ["--max-len-b", args.max_length, "--max-tokens", 4000, *subwords[read_card(export).subwords]]
            program = [BIN / "fairseq-generate", data, "--user-dir", Path(checkpoints.__file__).parent, "--cpu"]
            seconds, log = processor_seconds([*program, "--path", export / "model.pt", *search], env=environment)
        found = sorted((int(n), float(s), t) for n, s, t in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", log, re.MULTILINE))
        return {"seconds": seconds, "texts": [t for _, _, t in found], "scores": [s for _, s, _ in found]}
    flags = [*search, "--max-length", args.max_length, "--threads", args.threads, *SYSTEMS[system][1]]
    seconds, out = processor_seconds([BIN / "collab", "translate", export, source, *flags], env=environment)
    return {"seconds": seconds, "texts": out.split("\n")[:-1]}


def exact_scores(system: str, export: Path, source: Path, args: argparse.Namespace) -> List[Tuple[str, float]]:
    """The engine's own texts and scores, in this process."""
    import collab_fairseq

    precision = "int8" if "int8" in system else "float32"
    translator = collab_fairseq.load(export, precision=precision, threads=args.threads)  # type: ignore[arg-type]
    lines = source.read_text(encoding="utf-8").splitlines()
    found = translator.search(lines, beam=args.beam, max_length=args.max_length)
    return [(best[0].text, best[0].score) for best in found]


def compare(expected: Dict[str, Any], found: List[Tuple[str, float]], reference: Any) -> Dict[str, Any]:
    """How many translations are those of fairseq-generate, how far their scores are apart, BLEU."""
    from collab_fairseq.scoring.references import score_raw

    pairs = list(zip(expected["texts"], expected["scores"], found, strict=True))
    same = [abs(score - other[1]) for text, score, other in pairs if text == other[0]]
    result: Dict[str, Any] = {"identical": len(same), "of": len(pairs), "largest_score_gap": max(same, default=None)}
    if reference is not None:
        result["bleu"] = score_raw([text for text, _ in found], reference).bleu.score
        result["bleu_of_generate"] = score_raw(expected["texts"], reference).bleu.score
    return result


def run(args: argparse.Namespace) -> int:
    """Export, translate in rounds, compare."""
    folder, lines = Path(args.folder), Path(args.source).read_text(encoding="utf-8").splitlines()[: args.sentences]
    references = None
    if args.reference:
        references = Path(args.reference).read_text(encoding="utf-8").splitlines()[: args.sentences]
    settings = {
        "model": file_setting(folder / "model.pt"), "random": args.random, "source": file_setting(args.source),
        "sentences": len(lines), "beam": args.beam, "max_length": args.max_length, "rounds": args.rounds,
    }  # fmt: skip
    record = Record(
        "bench", "serving", shlex.join(sys.argv), settings, args.json, threads=args.threads, fixed=("hardware",)
    )
    with _workspace(args) as work:
        source, one = work / "source", work / "one"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        one.write_text(f"{lines[0]}\n", encoding="utf-8")
        checkpoint = folder
        if args.random:
            checkpoint = work / "random"
            if not checkpoint.exists():
                make_random(folder, args.random, work / "random.pt")
                spm = folder / "sentencepiece.bpe.model"
                _export(work / "random.pt", checkpoint, ["--to", "folder", "--data", folder, "--sentencepiece", spm])
        places = {}
        for name, flags in EXPORTS.items():
            places[name] = work / name
            try:
                if not places[name].exists():
                    _export(checkpoint, places[name], flags)
            except SystemExit as refusal:
                sys.stderr.write(f"without {name}: {refusal}\n")
                continue
            record.part(f"bytes/{name}", lambda place=places[name]: sum(f.stat().st_size for f in place.iterdir()))
        systems = {system: name for system, (name, _) in SYSTEMS.items() if f"bytes/{name}" in record.parts}
        for number in range(args.rounds):
            for system, name in systems.items():
                for kind, text in (("start", one), ("all", source)):
                    record.part(
                        f"{system}/{kind}/{number}",
                        lambda s=system, p=places[name], t=text: translate(s, p, t, args, work)["seconds"],
                    )
                    sys.stderr.write(f"round {number + 1}: {system}, {kind}\n")
        for system, name in list(systems.items())[1:]:
            if f"{system}/agreement" not in record.parts:
                place = places["folder"]
                expected = record.part("generate", lambda p=place: translate("fairseq-generate", p, source, args, work))
                found = exact_scores(system, places[name], source, args)
                record.part(f"{system}/agreement", lambda e=expected, f=found: compare(e, f, references))
        record.parts.pop("generate", None)  # compared with, and too long to keep
        record.save()
    sys.stdout.write(f"{table([args.json])}\n")
    return 0


@contextlib.contextmanager
def _workspace(args: argparse.Namespace) -> Iterator[Path]:
    if args.work:
        Path(args.work).mkdir(parents=True, exist_ok=True)
        yield Path(args.work).resolve()
    else:
        with tempfile.TemporaryDirectory() as place:
            yield Path(place)


def _export(source: Path, output: Path, flags: Sequence[Any]) -> None:
    processor_seconds([BIN / "collab", "export", source, *flags, "--output", output])


def table(files: Sequence[str]) -> str:
    """Rows of all systems of each record, in Markdown."""
    parts = []
    for file in files:
        record = load(file, "bench", "serving")
        found, settings = record["parts"], record["settings"]

        def median(system: str, kind: str, found: Dict[str, Any] = found, rounds: int = settings["rounds"]) -> float:
            return statistics.median(found[f"{system}/{kind}/{number}"] for number in range(rounds))

        def speed(system: str, median: Any = median, number: int = settings["sentences"]) -> float:
            return (number - 1) / (median(system, "all") - median(system, "start"))  # type: ignore[no-any-return]

        rows = [["engine", "sentences a second", "ratio", "start, s", "folder, MB", "identical", "score gap", "BLEU"]]
        for system, (name, _) in SYSTEMS.items():
            if f"bytes/{name}" not in found:
                rows.append([system, *["–"] * (len(rows[0]) - 1)])
                continue
            seen = found.get(f"{system}/agreement", {})
            gap, bleu = seen.get("largest_score_gap"), seen.get("bleu")
            if system == "fairseq-generate":
                bleu = next((found[k].get("bleu_of_generate") for k in found if k.endswith("/agreement")), None)
            rows.append(
                [
                    system, f"{speed(system):.1f}", f"{speed(system) / speed('fairseq-generate'):.2f}",
                    f"{median(system, 'start'):.1f}", f"{found[f'bytes/{name}'] / 1e6:.1f}",
                    f"{seen['identical']} of {seen['of']}" if seen else "–", "–" if gap is None else f"{gap:.0e}",
                    "–" if bleu is None else f"{bleu:.2f}",
                ]
            )  # fmt: skip
        cpu, threads = record["hardware"]["cpu"], record["hardware"]["threads"]
        parts.append(
            f"**{Path(file).stem}**: {settings['sentences']} sentences, beam {settings['beam']}, "
            f"{threads} thread(s) of {cpu}; processor time.\n\n{pages.table(rows, numbers=True)}"
        )
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sys.argv[1:2] == ["table"]:
        parser.add_argument("files", nargs="+", metavar="FILE.json")
        options.add_page(parser)
        args = parser.parse_args(sys.argv[2:])
        args.parser = parser
        options.check_page(args)
        options.publish(args, table(args.files) + "\n")
        return 0
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="model folder")
    add("--random", choices=("base", "tiny"), help="take FOLDER's dictionaries only, with a new model of this size")
    add("--source", required=True, metavar="FILE", help="raw text")
    add("--reference", metavar="FILE", help="its translation, for BLEU")
    add("--json", required=True, metavar="FILE", help="the record; one that is there is continued")
    add("--work", metavar="DIR", help="keep the exports here")
    add("--sentences", type=options.positive, default=1000, metavar="N", help="the first N (default: 1000)")
    add("--beam", type=options.positive, default=4, metavar="N", help="(default: 4)")
    add("--max-length", type=options.positive, default=200, metavar="N", help="(default: 200)")
    add("--rounds", type=options.positive, default=3, metavar="N", help="(default: 3)")
    add("--threads", type=options.positive, default=1, metavar="N", help="of each engine (default: 1)")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
