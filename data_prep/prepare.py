"""Preparation of a data set: SET.sh turns the corpus that SET.yaml describes into data-bin/ for fairseq.

A new data set needs SET.yaml (the fields in data_set.py), SET.sh and SET.tsv, its manifest (see unpack.py).
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

from omegaconf import OmegaConf

from data_prep import pieces, unpack
from data_prep.archives import GIB, Archive, fetch
from data_prep.data_set import HERE, DataSet, parser_of, program_of
from data_prep.folders import is_complete, output_lock, write_checksums
from data_prep.interpreter import PYTHON
from fairseq_modern import processor
from fairseq_modern.errors import UserError
from fairseq_modern.files import new_folder, sha256


class Preparation:
    """A data set and the options of its preparation."""

    def __init__(self, name: str, data_set: DataSet, args: argparse.Namespace) -> None:
        self.name, self.set, self.args = name, data_set, args
        self.languages = data_set.languages
        #: lines of prepared.txt that are known before the archives are
        self.header = [f"# data_prep/{name}.sh: {data_set.header.format(**vars(args))}"]
        if data_set.kind == "program":
            self.languages, inputs = program_of(name).describe(args)
            self.header += inputs
        elif data_set.kind == "gzipped":
            self.header = self.gzipped_header()

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name}: {text}\n")

    def gzipped_header(self) -> List[str]:
        """The pieces and the dictionary, and the rows of the manifest as they are."""
        args = self.args
        if args.dict and not args.spm:
            raise UserError("--dict needs the SentencePiece model that goes with it (--spm)")
        header = [f"spm {sha256(args.spm)}" if args.spm else f"vocab_size {args.vocab_size}"]
        if args.dict:
            header.append(f"dict {sha256(args.dict)}")
        lines = args.manifest.read_text(encoding="utf-8").splitlines()
        return header + [line for line in lines if line.strip() and not line.startswith("#")]

    def matches(self, prepared: Path) -> bool:
        """Whether prepared.txt is that of these options and files."""
        lines = prepared.read_text(encoding="utf-8").splitlines()
        if self.set.kind != "archives":
            return lines == self.header
        rows = unpack.read_manifest(self.args.manifest)
        return lines[:1] == self.header and unpack.same_corpus(rows, unpack.read_manifest(prepared))

    def source_of(self, archive: Archive, is_only_one: bool) -> Path:
        """The local copy of an archive, downloaded if necessary."""
        args = self.args
        if args.local_copy:
            return args.local_copy if is_only_one else args.local_copy / archive.name
        mirror = args.url or self.set.url
        url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
        if not url:
            raise UserError(
                f"this corpus cannot be downloaded automatically; pass a local copy with {self.set.option} (see --help)"
            )
        return fetch(archive, url, Path(f"{args.output}.download"), self.say)

    def unpack(self, raw: Path) -> List[unpack.Row]:
        """Write the texts of all archives; returns the manifest with their checksums."""
        rows = unpack.read_manifest(self.args.manifest)
        archives = [row for row in rows if isinstance(row, Archive)]
        sources = {archive.name: self.source_of(archive, len(archives) == 1) for archive in archives}
        self.say("verifying and unpacking")
        limit = self.args.unpacked_limit
        return unpack.unpack(rows, raw, sources, limit * GIB if limit else None)

    def train_sentencepiece(self, raw: Path, model: Path, vocab_size: int) -> None:
        self.say(f"training SentencePiece BPE with {vocab_size} pieces")
        texts = [f"train.{lang}" for lang in self.languages]
        before = Path.cwd()
        os.chdir(raw)  # the model stores the file names that SentencePiece is given
        try:
            pieces.train(texts, f"../{model.name}", vocab_size, self.set.sentencepiece_lines, self.set.every)
        finally:
            os.chdir(before)

    def encode(self, raw: Path, model: Path, folder: Path) -> None:
        """Write the texts in pieces."""
        self.say("encoding")
        folder.mkdir()
        for split, text in self.set.texts.items():
            for file in (f"{text}.{lang}" for lang in self.languages):
                pieces.encode(model, raw / file, folder / file)
                if split != "train":
                    pieces.check_held_out(folder / file, raw / file)

    def clean(self, raw: Path, folder: Path) -> Dict[str, str]:
        """Leave out training pairs, and hold out some; returns split → text in pieces.

        Raises:
            UserError: too few pairs remain.
        """
        limits = (self.set.longest, self.set.ratio, self.set.every)
        counts = pieces.clean(folder / "train", folder / "clean", folder / "valid", self.languages, *limits)
        numbers = ", ".join(f"{number:,} pairs {what}" for what, number in counts.items())
        self.say(f"cleaning: {numbers}")
        min_pairs = {"kept": 1, "held out": 1}
        if self.set.kind == "program":
            min_pairs["kept"] = program_of(self.name).MIN_PAIRS["train"]
        for what, least in min_pairs.items():
            if counts.get(what, least) < least:
                raise UserError(
                    f"the number of pairs {what} must be at least {least:,} (at most {self.set.longest} pieces per "
                    f"side, length ratio at most {self.set.ratio:g}); got {numbers}"
                )
        for path in raw.glob("train.*"):
            path.unlink()
        return {"valid": "valid", **self.set.texts, "train": "clean"}

    def binarise(self, work: Path, folder: Path, texts: Dict[str, str]) -> None:
        """Write data-bin/ from the texts of a folder, which is removed."""
        self.say("binarising")
        workers = self.args.workers or processor.usable_cores()
        command = [PYTHON, "-m", "fairseq_cli.preprocess", "--joined-dictionary", "--destdir", "data-bin"]
        command += ["--workers", str(workers), *self.set.flags]
        command += ["--source-lang", self.languages[0], "--target-lang", self.languages[1]]
        for prefix in ("train", "valid", "test"):
            files = [f"{folder.name}/{text}" for split, text in texts.items() if split.startswith(prefix)]
            command += [f"--{prefix}pref", ",".join(files)]
        if getattr(self.args, "dict", None):
            command += ["--srcdict", str(self.args.dict)]
        log = work / "preprocess.out"
        with open(log, "wb") as stream:
            done = subprocess.run(command, cwd=work, stdout=stream, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            sys.stderr.writelines(lines[-5:])
            raise UserError("fairseq-preprocess failed (its last lines are above)")
        log.unlink()
        (work / "data-bin" / "preprocess.log").unlink()
        shutil.rmtree(folder)

    def build(self, work: Path) -> None:
        """Write the output to a new folder."""
        args, raw, texts = self.args, work / "raw", self.set.texts
        raw.mkdir()
        lines = self.header
        max_vocab_size: Optional[int] = None
        if self.set.kind == "program":
            max_vocab_size = program_of(self.name).make(args, raw, self.say)
        else:
            rows = self.unpack(raw)
            if self.set.kind == "archives":
                lines = lines + ["\t".join(row) for row in rows]
        (work / "prepared.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        folder = raw
        if self.set.vocab_size:
            folder, model = work / "pieces", work / "sentencepiece.model"
            if getattr(args, "spm", None):
                shutil.copyfile(args.spm, model)
            else:
                self.train_sentencepiece(raw, model, min(args.vocab_size, max_vocab_size or args.vocab_size))
            self.encode(raw, model, folder)
        if self.set.longest:
            texts = self.clean(raw, folder)
        self.binarise(work, folder, texts)
        write_checksums(work)

    def is_complete(self) -> bool:
        complete = is_complete(self.args.output, self.matches, self.args.force)
        if complete:
            self.say(f"{self.args.output} is complete, nothing to do")
        return complete

    def run(self) -> None:
        output = self.args.output
        with contextlib.suppress(UserError):  # of an output that another process is replacing
            if self.is_complete():  # also if the lock cannot be written
                return
        output.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"another process is preparing {output}; waiting"
        with output_lock(output, lambda: self.say(waiting)):
            if self.is_complete():
                return
            with new_folder(output, replace=True) as work:
                self.build(Path(work))
        dictionary = output / "data-bin" / f"dict.{self.languages[0]}.txt"
        entries = dictionary.read_text(encoding="utf-8").count("\n")
        self.say(f"ready: {output}/data-bin ({entries:,} entries in the joint dictionary)")


def load(name: str) -> DataSet:
    """The settings of SET.yaml."""
    settings = OmegaConf.merge(OmegaConf.structured(DataSet), OmegaConf.load(HERE / f"{name}.yaml"))
    return OmegaConf.to_object(settings)  # type: ignore[return-value]


def prepare(name: str, data_set: DataSet, args: argparse.Namespace) -> None:
    """Prepare a data set.

    Raises:
        UserError: with one sentence; nothing was prepared.
    """
    args.output = args.output.resolve()  # a link to another disk remains
    parent = args.output.parent
    is_new_parent = not parent.exists()
    try:
        if data_set.kind != "program" and not args.url:
            args.local_copy = args.local_copy or os.environ.get(data_set.variable, "")
        for option in ("local_copy", "spm", "dict"):  # steps run in other folders
            path = getattr(args, option, None)
            if path:
                setattr(args, option, Path(path).absolute())
        Preparation(name, data_set, args).run()
    except (UserError, OSError, ValueError, RuntimeError) as error:
        if is_new_parent:
            with contextlib.suppress(OSError):  # it may contain downloads
                parent.rmdir()
        # messages of SentencePiece have several lines
        raise UserError(f"{' '.join(str(error).split())}; nothing was prepared") from error


def main() -> None:
    name = Path(sys.argv[0]).stem
    data_set = load(name)
    args = parser_of(name, data_set).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(name, data_set, args)
