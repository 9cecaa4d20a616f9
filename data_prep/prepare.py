"""What the scripts of this folder start: SET.sh prepares the data set that SET.yaml describes, with its options.

A corpus as it was downloaded becomes data-bin/ for fairseq. A new data set is SET.yaml, SET.sh and
SET.tsv, its manifest (see unpack.py).
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import unpack
from data_set import HERE, DataSet, maker_of, parser_of
from folders import alone, is_complete, new_folder, write_sums
from omegaconf import OmegaConf
from runner.settings import PYTHON
from unpack import CorpusError

from fairseq_modern import processor
from fairseq_modern.files import sha256


class Preparation:
    """One data set with the options of this run."""

    def __init__(self, name: str, data_set: DataSet, args: argparse.Namespace) -> None:
        self.name, self.set, self.args = name, data_set, args
        self.languages, self.gzipped = data_set.languages, not data_set.header
        filled = f"# data_prep/{name}.sh: {data_set.header.format(**vars(args))}"
        self.header = self.gzipped_header() if self.gzipped else [filled]
        if data_set.maker:
            self.languages, described = maker_of(data_set).described(args)
            self.header += described

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name}: {text}\n")

    def gzipped_header(self) -> List[str]:
        """What prepared.txt says of a corpus of gzipped texts; sets their splits."""
        args = self.args
        if args.dict and not args.spm:
            raise CorpusError("--dict needs the SentencePiece model that goes with it (--spm)")
        for file in filter(None, (args.spm, args.dict)):
            if not file.is_file():
                raise CorpusError(f"there is no file {file}")
        lines = args.manifest.read_text(encoding="utf-8").splitlines()
        rows = [line for line in lines if line.strip() and not line.startswith("#")]
        made = [f"spm {sha256(args.spm)}"] if args.spm else [f"vocab_size {args.vocab_size}"]
        return [*made, *([f"dict {sha256(args.dict)}"] if args.dict else []), *rows]

    def splits(self) -> Dict[str, str]:
        """Split → text."""
        if self.set.texts:
            return dict(self.set.texts)
        rows = [row.split("\t") for row in self.header if row.count("\t") == 3]
        found = {split: name.rsplit(".", 2)[0] for name, _, _, split in rows}
        for split in found:
            if not re.fullmatch(r"train|(valid|test)\d*", split):
                known = "train, valid, valid1, ..., test, test1, ..."
                raise CorpusError(f"{self.args.manifest}: unknown split '{split}' ({known})")
        return found

    def is_this(self, prepared: Path) -> bool:
        """Whether an earlier run's prepared.txt says what this run would; sums that were not known may be any."""
        found = prepared.read_text(encoding="utf-8").splitlines()
        if self.gzipped or self.set.maker:
            return found == self.header
        rows = unpack.read_manifest(self.args.manifest)
        return found[:1] == self.header and unpack.agree(rows, unpack.read_manifest(prepared))

    def unpack(self, raw: Path) -> List[str]:
        """Write the texts of all archives to `raw`; the manifest with their sums."""
        args, sources = self.args, {}
        rows = unpack.read_manifest(args.manifest)
        archives = unpack.of_kind(rows, "archive")
        mirror = args.url or os.environ.get(self.set.variables.get("url", "")) or self.set.url
        for name, digest, url in archives:
            address = f"{mirror.rstrip('/')}/{name}" if mirror else url
            if args.given:
                sources[name] = Path(args.given, *([name] if len(archives) > 1 else []))
            elif address:
                sources[name] = unpack.fetched(name, digest, address, Path(f"{args.output}.download"), self.say)
            else:
                raise CorpusError(f"there is no download of this corpus; name it with {self.set.option} (see --help)")
        self.say("checking and unpacking")
        limit = args.unpacked_limit and args.unpacked_limit * unpack.GIB
        return ["\t".join(row) for row in unpack.unpack(rows, raw, sources, limit)]

    def texts(self, raw: Path) -> List[str]:
        """Write the raw texts; returns what prepared.txt says of them."""
        if self.set.maker:
            maker_of(self.set).make(self.args, raw, self.say)
            return self.header
        rows = self.unpack(raw)
        return self.header if self.gzipped else [*self.header, *rows]

    def encode(self, work: Path, splits: Dict[str, str]) -> Path:
        """The folder of the texts in pieces; sets aside what is left out or held out of training."""
        import pieces

        raw, model, folder = work / "raw", work / "sentencepiece.model", work / "pieces"
        if getattr(self.args, "spm", None):
            shutil.copyfile(self.args.spm, model)
        else:
            self.say(f"training SentencePiece BPE with {self.args.vocab_size} pieces")
            texts, before = [f"train.{lang}" for lang in self.languages], Path.cwd()
            os.chdir(raw)  # the model stores the names that SentencePiece is given
            try:
                pieces.train(texts, f"../{model.name}", self.args.vocab_size, self.set.lines)
            finally:
                os.chdir(before)
        self.say("encoding")
        folder.mkdir()
        for file in [f"{text}.{lang}" for text in splits.values() for lang in self.languages]:
            pieces.encode(model, raw / file, folder / file)
        for split, text in splits.items():
            if split != "train":
                for lang in self.languages:
                    pieces.check_held_out(folder / f"{text}.{lang}", raw / f"{text}.{lang}")
        if self.set.longest:
            limits = self.set.longest, self.set.ratio, self.set.every
            told = pieces.clean(folder / "train", folder / "clean", folder / "valid", self.languages, *limits)
            self.say(f"cleaning: {told}")
            splits["train"] = "clean"
            splits.setdefault("valid", "valid")
            for path in raw.glob("train.*"):
                path.unlink()
        return folder

    def binarise(self, work: Path, folder: Path, splits: Dict[str, str]) -> None:
        """data-bin/ from the texts of a folder, which goes."""
        self.say("binarising")
        command = [PYTHON, "-m", "fairseq_cli.preprocess", "--joined-dictionary", "--destdir", "data-bin"]
        command += ["--workers", str(self.args.workers or processor.usable_cores()), *self.set.flags]
        command += ["--source-lang", self.languages[0], "--target-lang", self.languages[1]]
        for kind in ("train", "valid", "test"):
            own = ",".join(f"{folder.name}/{text}" for split, text in splits.items() if split.startswith(kind))
            command += [f"--{kind}pref", own]
        if getattr(self.args, "dict", None):
            command += ["--srcdict", str(self.args.dict)]
        log = work / "preprocess.out"
        with open(log, "wb") as stream:
            done = subprocess.run(command, cwd=work, stdout=stream, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            sys.stderr.writelines(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-5:])
            raise CorpusError("fairseq-preprocess failed (its last lines are above)")
        log.unlink()
        (work / "data-bin" / "preprocess.log").unlink()
        shutil.rmtree(folder)

    def run(self) -> None:
        args = self.args
        if is_complete(args.output, self.is_this, args.force):
            self.say(f"{args.output} is complete, nothing to do")
            return
        with new_folder(args.output) as work:
            (work / "raw").mkdir()
            lines = self.texts(work / "raw")
            (work / "prepared.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            splits = self.splits()
            folder = self.encode(work, splits) if self.set.vocab_size else work / "raw"
            self.binarise(work, folder, splits)
            write_sums(work)
        words = (args.output / "data-bin" / f"dict.{self.languages[0]}.txt").read_text(encoding="utf-8").count("\n")
        self.say(f"ready: {args.output}/data-bin ({words} types in the joint dictionary)")


def load(name: str) -> DataSet:
    """What NAME.yaml says."""
    described = OmegaConf.merge(OmegaConf.structured(DataSet), OmegaConf.load(HERE / f"{name}.yaml"))
    return OmegaConf.to_object(described)


def prepare(name: str, data_set: DataSet, args: argparse.Namespace) -> None:
    """Prepare a data set as the options say.

    Raises:
        CorpusError: what is wrong, in one sentence; nothing was prepared.
    """
    parent = args.output.absolute().parent
    made = not parent.exists()
    try:
        if getattr(args, "given", None) and args.url:
            raise CorpusError(f"{data_set.option} and --url exclude each other")
        for option in ("given", "spm", "dict", "output"):  # steps run in other folders
            if getattr(args, option, None):
                setattr(args, option, Path(getattr(args, option)).absolute())
        preparation = Preparation(name, data_set, args)
        parent.mkdir(parents=True, exist_ok=True)
        waiting = f"another preparation is at work on {args.output}; waiting for its end"
        with alone(args.output, lambda: preparation.say(waiting)):
            preparation.run()
    except (CorpusError, OSError, ValueError, RuntimeError) as error:
        if made:
            with contextlib.suppress(OSError):  # it holds something, such as downloads
                parent.rmdir()
        # SentencePiece's messages span lines
        raise CorpusError(f"{' '.join(str(error).split())}; nothing was prepared") from error


def main() -> None:
    name = Path(sys.argv[0]).stem
    data_set = load(name)
    args = parser_of(name, data_set).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(name, data_set, args)
