"""Packaging. setuptools has no setting for the start-up hook, a `.pth` file at the root of site-packages."""

import base64
import hashlib
import re
import shutil
from pathlib import Path
from typing import List
from zipfile import ZIP_DEFLATED, ZipFile

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

# Its name sorts after the `__editable__...` file, so Python reads it when the packages are already importable.
HOOK = Path("fairseq_modern", "fairseq_modern.pth")


class BuildWithHook(build_py):
    """Copies the hook to the root of site-packages, and removes leftovers of earlier builds."""

    def run(self) -> None:
        if Path(self.build_lib).resolve() != Path.cwd():
            for package in {name.split(".")[0] for name in self.packages or ()}:
                shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()
        if not self.editable_mode:  # EditableWithHook adds the hook to editable wheels
            self.copy_file(str(HOOK), str(Path(self.build_lib, HOOK.name)))

    def get_outputs(self, include_bytecode: bool = True) -> List[str]:
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, str(Path(self.build_lib, HOOK.name))]


class EditableWithHook(editable_wheel):
    """Adds the hook to the editable wheel and its RECORD, so pip installs and uninstalls both together."""

    def run(self) -> None:
        super().run()
        for wheel in Path(self.dist_dir).glob(f"{self.distribution.get_name()}-*.editable-*.whl"):
            add_hook(wheel)


def add_hook(wheel: Path) -> None:
    """Rewrite the wheel with the hook in it, listed in its RECORD."""
    hook = HOOK.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(hook).digest()).decode().rstrip("=")
    with ZipFile(wheel) as old:
        contents = [(info, old.read(info)) for info in old.infolist()]
    with ZipFile(wheel, "w", ZIP_DEFLATED) as new:
        new.writestr(HOOK.name, hook)
        for info, data in contents:
            if info.filename.endswith(".dist-info/RECORD"):
                data = f"{HOOK.name},sha256={digest},{len(hook)}\n".encode() + data
            new.writestr(info, data)


def description() -> str:
    """README.md without links to files and figures, which the wheel does not contain, and what it does contain."""
    text = Path("README.md").read_text(encoding="utf-8") if Path("README.md").exists() else ""
    text = re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", text)
    contents = "the library and the commands; recipes, data_prep, results and trained models are in the repository"
    return f"{text}\n## Contents of this package\n\n`collab_fairseq`, `fairseq_modern` and `collab`: {contents}.\n"


setup(
    name="collab_fairseq",
    version="0.1.0",
    description="Collaborative multi-head attention for neural machine translation with fairseq",
    long_description=description(),
    long_description_content_type="text/markdown",
    license="MIT",
    project_urls={
        "Paper": "https://arxiv.org/abs/2006.16362",
        "fairseq": "https://github.com/facebookresearch/fairseq",
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["collab_fairseq*", "fairseq_modern*"]),
    package_data={"collab_fairseq": ["py.typed"], "fairseq_modern": [HOOK.name, "README.md"]},
    # fairseq is installed separately and without dependencies: its metadata requires versions that cannot be installed.
    install_requires=[
        "torch>=2.6",
        "hydra-core>=1.3.2,<1.4",
        "omegaconf>=2.3,<2.4",
        "numpy>=1.26",
        "sacrebleu>=2.3",
        "sacremoses",
        "sentencepiece",
        "protobuf",
        "pyyaml",
        "regex",
        "tqdm",
        "bitarray",
        "cffi",
        "cython",
        "packaging",
        "filelock>=4",
        "tensorboardX",
    ],
    extras_require={
        "test": ["pytest", "pytest-xdist", "ruff", "mypy"],
        "plots": ["matplotlib", "pandas", "scipy"],
        "serve": ["ctranslate2>=4.8", "subword-nmt"],
        "slurm": ["hydra-submitit-launcher"],
        "reparam": ["tensorly"],
        "wandb": ["wandb"],
        # transformers 5 needs Python 3.11
        "huggingface": [
            'transformers>=5.23,<6; python_version >= "3.11"',
            'accelerate; python_version >= "3.11"',
            'scikit-learn; python_version >= "3.11"',
            'scipy; python_version >= "3.11"',
        ],
    },
    entry_points={"console_scripts": ["collab = collab_fairseq.cli.main:main"]},
    cmdclass={"build_py": BuildWithHook, "editable_wheel": EditableWithHook},
)
