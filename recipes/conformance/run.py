"""Run fairseq's own tests with the hook, and once more with transformer_collab in place of transformer."""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List, Tuple

from runner.cli import Parser, absolute
from runner.settings import PYTHON, ROOT, USER_DIR, RecipeError

HERE = Path(__file__).parent
ABOUT = """Run the tests of fairseq v0.12.2 in copies, file by file: as they are with the hook, and those that train a
transformer again with transformer_collab in its place. The status is 1 where something fails that
recipes/conformance/expected.tsv does not expect."""
ENDING = """Options of pytest follow --. OUTPUT: summary.txt, a line for each file, and in hook/ and collab/ its output
and JUnit XML. An earlier result is replaced."""
TRANSFORMER = re.compile('"transformer(_iwslt_de_en)?"')


def copied(tests: Path, folder: Path, pattern: str) -> Iterator[str]:
    """The test files that match, in a copy; in the folder `collab` those that name a transformer, which is replaced."""
    for name in ("tests", "scripts", "examples"):
        shutil.copytree(tests / name, folder / name)
    for name in ("conftest.py", "expected.tsv"):
        shutil.copy(HERE / name, folder)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="ascii")
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # the source may be read-only
    for path in sorted(folder.glob("tests/**/test_*.py")):
        file, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        if not fnmatch.fnmatchcase(file, pattern):
            continue
        if folder.name == "collab":
            if not TRANSFORMER.search(text):
                continue
            path.write_text(TRANSFORMER.sub(r'"transformer_collab\1"', text), encoding="utf-8")
        yield file


def run_file(folder: Path, file: str, output: Path, options: List[str]) -> Tuple[bool, str]:
    """Whether a file's tests end as expected, and the last line that pytest says.

    They run in a process, with a home and a temporary folder of its own; some tests leave files there.
    """
    log = output / f"{file.replace('/', '-').removesuffix('.py')}.log"
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={log.with_suffix('.xml')}", file]
    with tempfile.TemporaryDirectory(dir=folder.parent) as home, open(log, "wb") as stream:
        own = {"HOME": home, "TMPDIR": home, **({"USER_DIR": USER_DIR} if folder.name == "collab" else {})}
        try:
            status = subprocess.run(
                [*command, *options], cwd=folder, env={**os.environ, **own}, timeout=7200, check=False,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            stream.write(b"\nended after two hours\n")
            status = 124
    return not status, log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]


def main() -> None:
    parser = Parser("recipes/conformance/run.sh", description=ABOUT, epilog=ENDING)
    add = parser.add_argument
    text = "holds fairseq's folders tests, scripts and examples, such as a checkout of v0.12.2"
    add("--fairseq-tests", metavar="DIR", type=Path, help=text)
    text = "only files that match, such as 'tests/test_export.py' or 'tests/distributed/*' (default: all)"
    add("--files", metavar="PATTERN", default="*", help=text)
    default = str(ROOT / "runs" / "conformance")
    add("--output", metavar="DIR", type=absolute, default=default, help="(default: runs/conformance)")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    if not args.fairseq_tests:
        raise RecipeError("--fairseq-tests is needed (see --help)")
    if not (args.fairseq_tests / "tests" / "test_binaries.py").is_file():
        raise RecipeError(f"--fairseq-tests {args.fairseq_tests} has no tests/test_binaries.py")
    output, summary = Path(args.output), Path(args.output, "summary.txt")
    expected = (HERE / "expected.tsv").read_text(encoding="utf-8").splitlines()
    not_run, failed = {row.split("\t")[0] for row in expected if "\tnot run\t" in row}, False
    summary.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        for kind in ("hook", "collab"):
            shutil.rmtree(output / kind, ignore_errors=True)
            (output / kind).mkdir(parents=True)
            for file in copied(args.fairseq_tests, Path(work, kind), args.files):
                passed, told = True, "not run"
                if file not in not_run:
                    passed, told = run_file(Path(work, kind), file, output / kind, words[end + 1 :])
                failed = failed or not passed
                with open(summary, "a", encoding="utf-8") as stream:
                    stream.write(f"{kind} {file}: {told}\n")
                sys.stdout.write(f"{kind} {file}: {told}\n")
                sys.stdout.flush()
    if failed:
        raise RecipeError(f"a test failed that is not expected to (see {summary})")
