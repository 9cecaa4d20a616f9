"""Collect everything that a machine without internet needs into one folder of wheels.

    make wheelhouse PYTHON=3.12            the same as: python3 recipes/lib/wheelhouse.py --python 3.12
    make wheelhouse PYTHON=3.12 TORCH=1    with torch and what it needs (gigabytes with CUDA)

fairseq 0.12.2 is compiled for that Python; its dependencies, this project and theirs are collected at the versions of
constraints.txt. torch is left out unless asked for: most machines with GPUs have one that fits them. The folder holds
the wheels, SHA256SUMS and INSTALL.txt with the line that installs them; it appears whole or not at all.

Needs pip's access to a package index, a C++ compiler and the headers of that Python. It runs on the standard library of
any Python from 3.8, since the project need not be installed.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

ROOT = Path(__file__).resolve().parents[2]
#: of the project, what its wheel is built from: a copy, since an old build folder would leak deleted files into it
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "collab_fairseq", "fairseq_modern")
#: imported after a trial installation; torch is not there
IMPORTS = "fairseq_modern, collab_fairseq.cli.main, hydra, omegaconf, numpy, sacrebleu, sacremoses, sentencepiece"

logger = logging.getLogger("wheelhouse")


class WheelhouseError(Exception):
    """The wheelhouse cannot be made; the message is one sentence for the user."""


class Interpreter(NamedTuple):
    """A Python that wheels are collected for."""

    program: str
    version: str  # such as 3.12
    platform: str  # such as linux-x86_64


def read_setup(root: Path) -> Dict[str, Any]:
    """The literal arguments of `setup()` in setup.py: read, not run, so that setuptools need not be there."""
    for node in ast.walk(ast.parse((root / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup":
            literal = (ast.Constant, ast.List, ast.Dict)
            return {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg and _is(k.value, literal)}
    raise WheelhouseError(f"{root / 'setup.py'} has no call of setup()")


def _is(node: ast.AST, kinds: Any) -> bool:
    return all(isinstance(n, (*kinds, ast.expr_context)) for n in ast.walk(node))


def distribution(requirement: str) -> str:
    """The normalised name in a requirement such as `hydra-core>=1.3.2,<1.4`."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def requirements(root: Path, torch: bool, plots: bool, tests: bool) -> List[str]:
    """What pip is asked for besides fairseq and the project: the requirements of setup.py, torch only where wanted.

    Nothing else that the project needs depends on torch, so leaving torch out leaves out what only torch needs.
    """
    about = read_setup(root)
    wanted = [r for r in about["install_requires"] if torch or distribution(r) != "torch"]
    for extra, asked in (("plots", plots), ("test", tests)):
        wanted += about["extras_require"][extra] if asked else []
    return wanted


def fairseq_requirement(root: Path) -> str:
    """The pinned fairseq of constraints.txt."""
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if distribution(line) == "fairseq":
            return line.strip()
    raise WheelhouseError(f"{root / 'constraints.txt'} does not pin fairseq")


def candidates(wanted: str) -> Iterator[str]:
    """Programs that may be the Python that was asked for: on PATH, then among pyenv's versions, the newest first."""
    if not re.fullmatch(r"3(\.\d+){1,2}", wanted):
        found = shutil.which(wanted)
        if found:
            yield found
        return
    name = "python" + ".".join(wanted.split(".")[:2])
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(os.path.join(folder, name), os.X_OK):
            yield os.path.join(folder, name)
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    numbered = [p for p in versions.glob("3.*") if re.fullmatch(r"[\d.]+", p.name)]
    for folder in sorted(numbered, key=lambda p: [int(n) for n in p.name.split(".")], reverse=True):
        if os.access(folder / "bin" / name, os.X_OK):
            yield str(folder / "bin" / name)


def find_python(wanted: str, root: Path) -> Interpreter:
    """The Python to collect for, from a version, a program on PATH or a path.

    Raises:
        WheelhouseError: there is none, or it is not of a version that the project supports, or it cannot build wheels.
    """
    ask = (
        "import json, os, platform, sys, sysconfig as s; print(json.dumps([list(sys.version_info[:3]), "
        "s.get_platform(), os.path.exists(os.path.join(s.get_path('include'), 'Python.h'))]))"
    )
    for program in candidates(wanted):
        done = subprocess.run([program, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            continue  # pyenv puts a python3.12 on PATH that fails unless that version is switched on
        version, platform, headers = json.loads(done.stdout)
        dotted = ".".join(map(str, version))
        if re.fullmatch(r"[\d.]+", wanted) and not f"{dotted}.".startswith(f"{wanted}."):
            continue
        low, high = ([int(n) for n in v.split(".")] for v in re.findall(r"[\d.]+", read_setup(root)["python_requires"]))
        if not low <= version[:2] < high:
            raise WheelhouseError(
                f"PYTHON={wanted} is Python {dotted}, expected {read_setup(root)['python_requires']} (setup.py)"
            )
        if not headers:
            raise WheelhouseError(
                f"{program} has no Python.h, which fairseq is compiled with; install the development package of "
                f"Python {version[0]}.{version[1]} or name another PYTHON"
            )
        return Interpreter(program, f"{version[0]}.{version[1]}", platform)
    raise WheelhouseError(
        f"found no Python for PYTHON={wanted}; expected a version such as 3.12 that is on PATH or installed with "
        "pyenv, a program or a path"
    )


def check_compiler() -> None:
    """Fail now rather than in the middle of pip's output."""
    names = [os.environ.get("CXX", "").split(" ")[0], "c++", "g++", "clang++"]
    if not any(name and shutil.which(name) for name in names):
        raise WheelhouseError("no C++ compiler found (CXX, c++, g++ or clang++), which fairseq is built with")


def build(python: Interpreter, wanted: Sequence[str], root: Path, partial: Path) -> List[Path]:
    """Build and download the wheels into `partial`/wheels, and try them in a fresh environment."""
    wheels, source, venv = partial / "wheels", partial / "source", partial / "venv"
    wheels.mkdir()
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy2
        copy(str(root / name), str(source / name))
    _run([python.program, "-m", "venv", str(venv)])
    pip = [str(venv / "bin" / "python"), "-m", "pip"]
    collect = [*pip, "wheel", "--quiet", "--wheel-dir", str(wheels), "--constraint", str(root / "constraints.txt")]
    logger.info("building fairseq for Python %s", python.version)
    # isolated, as pip builds by default: fairseq must not see torch while it is built. A wheel in pip's cache may have
    _run([*collect, "--no-deps", "--no-cache-dir", fairseq_requirement(root)])
    logger.info("building this project")
    _run([*collect, "--no-deps", str(source)])
    logger.info("collecting %s", ", ".join(wanted))
    _run([*collect, *wanted])
    found = sorted(wheels.glob("*.whl"))
    logger.info("trying them in a fresh environment")
    _run([*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, found)])
    _run([str(venv / "bin" / "python"), "-c", f"import {IMPORTS}"])
    return found


def _run(command: List[str]) -> None:
    # what would let the environments here see packages of the one that started us
    hidden = ("PYTHONPATH", "PYTHONHOME", "PIP_NO_BUILD_ISOLATION", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    # a group of its own, so that compilers that pip started end with it when we are interrupted
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        status = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    if status != 0:
        raise WheelhouseError(f"exit status {status} from: {' '.join(command)}")


def install_lines(python: Interpreter, name: str, torch: bool) -> List[str]:
    """The text of INSTALL.txt; its first indented line is the one to be run."""
    # a plain virtual environment would not see the torch that the machine has
    flag = "" if torch else " --system-site-packages"
    install = f"pip install --no-index --no-deps {name}/*.whl"
    lines = [
        f"collab_fairseq, fairseq and what they need, for Python {python.version} on {python.platform}. "
        + ("With torch:" if torch else "On a machine whose Python has torch 2.6 or newer:"),
        "",
        f"    python{python.version} -m venv{flag} v && v/bin/{install}",
        "",
        "In an environment that is there already:",
        "",
        f"    {install}",
        "",
        "--no-deps is needed: fairseq's metadata asks for versions that cannot be installed any more. `pip check` will",
        "complain about them, and nothing else does. SHA256SUMS: sha256sum --check SHA256SUMS",
    ]
    return lines


def finish(wheels: Sequence[Path], output: Path, partial: Path, text: str) -> None:
    """Put the wheels, their checksums and INSTALL.txt in the place of `output`, all at once."""
    folder = wheels[0].parent
    sums = [f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n" for wheel in wheels]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    (folder / "INSTALL.txt").write_text(text, encoding="utf-8")
    if output.exists():
        output.rename(partial / "old")
    folder.rename(output)


def main(argv: Sequence[str]) -> None:
    """Make the wheelhouse, or with --dry-run say what it would hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3", help="a version (3.12), a program or a path (default: python3)")
    parser.add_argument("--output", type=Path, default=ROOT / "wheelhouse", help="(default: wheelhouse)")
    parser.add_argument("--torch", action="store_true", help="with torch and what it needs")
    parser.add_argument("--plots", action="store_true", help="with matplotlib")
    parser.add_argument("--tests", action="store_true", help="with pytest, ruff and mypy")
    parser.add_argument("--dry-run", action="store_true", help="print what pip would be asked for, and stop")
    args = parser.parse_args(argv)
    output = Path(os.path.abspath(args.output))
    wanted = requirements(ROOT, args.torch, args.plots, args.tests)
    python = find_python(args.python, ROOT)
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and not (output / "INSTALL.txt").exists())):
        raise WheelhouseError(f"{output} is there and is no wheelhouse (it has no INSTALL.txt); name another --output")
    if not output.parent.is_dir():
        raise WheelhouseError(f"--output {output}: there is no folder {output.parent}")
    text = "\n".join(install_lines(python, output.name, args.torch)) + "\n"
    if args.dry_run:
        names = [fairseq_requirement(ROOT), "collab_fairseq", *wanted]
        sys.stdout.write(f"Python {python.version} on {python.platform}\n" + "\n".join(names) + f"\n{text}")
        return
    check_compiler()
    partial = output.with_name(f".{output.name}.partial")
    partial.mkdir(exist_ok=True)
    # held until we end, however we end: what is in the folder then is left over, and the next run removes it
    lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise WheelhouseError(f"another run is making {output}") from None
    try:
        for left in partial.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        # a folder of this process, since pip may outlive a run that was killed, and still write into its own
        work = partial / str(os.getpid())
        work.mkdir()
        wheels = build(python, wanted, ROOT, work)
        size = sum(wheel.stat().st_size for wheel in wheels)
        finish(wheels, output, work, text)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sys.stdout.write(f"{output}: {len(wheels)} wheels, {size / 2**20:.1f} MiB\n\n{text}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="wheelhouse: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the partial folder is removed
    try:
        main(sys.argv[1:])
    except (WheelhouseError, OSError) as error:
        sys.exit(f"wheelhouse: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
