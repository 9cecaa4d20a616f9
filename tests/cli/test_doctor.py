"""`collab doctor`: on this machine, with something missing, and with simulated GPUs."""

import hashlib
import json
import shutil
import sys
import warnings
from argparse import Namespace
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from collab_fairseq import doctor
from collab_fairseq.cli.main import main
from collab_fairseq.cli.options import choose_device
from collab_fairseq.records import environment
from data_prep import folders
from fairseq_modern.errors import UserError
from tests.common import ROOT, collab, run


@pytest.fixture
def data(tiny_data, tmp_path):
    """A data-bin with SHA256SUMS in its parent folder."""
    shutil.copytree(tiny_data, tmp_path / "data" / "data-bin")
    folders.write_checksums(tmp_path / "data")
    return tmp_path / "data" / "data-bin"


def test_fairseq_compiled_for_another_numpy_fails_with_advice(monkeypatch):
    assert doctor.fairseq().status == "ok"
    monkeypatch.setitem(sys.modules, "fairseq.data.data_utils_fast", None)
    finding = doctor.fairseq()
    assert (finding.status, "--force-reinstall" in finding.advice) == ("fail", True)


def test_this_machine_can_run_a_recipe(data, tmp_path):
    json_file = tmp_path / "findings.json"
    screen = collab("doctor", "--data", data, "--json", json_file)
    report = json.loads(json_file.read_text())
    assert report["able"] is True
    assert "this machine can run a recipe" in screen
    texts = {finding["name"]: finding["text"] for finding in report["findings"]}
    for name in ("Python", "packages", "fairseq", "torch", "CPU", "data"):
        assert f"ok    {name:<10} {texts[name]}\n" in screen
    assert {"compiler", "disk"} <= set(texts)
    assert all(finding["advice"] for finding in report["findings"] if finding["status"] != "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "findings.json"]


def test_missing_torch_fails_with_advice(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    screen = capsys.readouterr().out
    assert "fail  torch      ModuleNotFoundError" in screen
    assert "-> install torch 2.6 or newer" in screen
    assert "cannot run a recipe yet: " in screen


def test_reports_missing_packages_without_any_package():
    script = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "collab_fairseq", "fairseq_modern"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
from collab_fairseq.cli.main import main
from collab_fairseq.cli.options import choose_device
sys.exit(main(["doctor"]))
"""
    done = run(sys.executable, "-c", script, check=False, fresh=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "fail  packages   packaging" in done.stdout
    assert "cannot run a recipe yet: " in done.stdout


@pytest.mark.parametrize(
    ("name", "capability", "error", "status", "text", "advice"),
    [
        ("A100", (8, 0), None, "ok", "A100, 31.7 GiB, compute capability 8.0, bf16", ""),
        ("V100", (7, 0), None, "ok", "V100, 31.7 GiB, compute capability 7.0, fp16", ""),
        ("V100", (7, 0), "no kernel image\nand more", "fail", "7.0, fp16; no kernel image", "torch 2.6 or 2.7"),
        ("A100", (8, 0), "out of memory", "fail", "bf16; out of memory", "whether another program uses it"),
    ],
)
def test_gpu_is_tested_and_its_precision_reported(name, capability, error, status, text, advice):
    def ones(*shape, device):
        assert device == "cuda:1"
        if error:
            raise RuntimeError(error)
        return torch.ones(*shape)

    major, minor = capability
    properties = SimpleNamespace(name=name, major=major, minor=minor, total_memory=34079637504)
    cuda = SimpleNamespace(get_device_properties=lambda index: properties)
    finding = doctor.gpu(SimpleNamespace(cuda=cuda, ones=ones), 1)
    assert (finding.name, finding.status) == ("GPU 1", status)
    assert text in finding.text
    assert "\n" not in finding.text
    assert advice in finding.advice
    assert bool(finding.advice) == bool(error)


@pytest.mark.parametrize("usable", [True, False])
def test_gpus_whose_driver_torch_cannot_use_are_reported_only(usable, monkeypatch):
    """Not recorded and not used; torch.cuda.device_count counts them nevertheless."""

    def is_available():
        if not usable:
            warnings.warn("the driver is too old", stacklevel=2)
        return usable

    def properties(*arguments):
        if not usable:
            raise RuntimeError("the driver is too old")
        return SimpleNamespace(name="A100", total_memory=2**30)

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(doctor, "gpu", lambda *arguments: doctor.Finding("GPU 0", "ok", properties().name))
    _, finding = doctor.torch_and_gpus()
    assert ("the driver is too old" in finding.text, "A100" in finding.text) == (not usable, usable)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert environment.hardware()["gpus"] == [{"name": "A100", "memory_bytes": 2**30}] * usable
        with pytest.raises(UserError, match=rf"\({'cuda:0' if usable else 'none'}\); got cuda:{int(usable)}$"):
            choose_device(Namespace(threads=None, device=f"cuda:{int(usable)}"))


def test_packages_and_fairseq_have_the_required_versions(monkeypatch):
    requirements = ["torch>=2.6", "numpy>=1.26", "regex", 'pytest; extra == "test"']
    versions = {"torch": "2.5.1", "numpy": "2.4.6", "fairseq": "0.12.3"}
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(environment, "version", versions.get)
    packages = doctor.packages()
    assert packages[1:] == ("fail", "torch 2.5.1, regex is not installed", 'pip install "torch>=2.6" "regex"')
    assert doctor.fairseq().status == "warn"
    versions.update(torch="2.6.0", regex="2026.1", fairseq=None)
    assert doctor.packages().text == "all 3 packages required by setup.py"
    assert doctor.fairseq().status == "fail"
    versions["fairseq"] = doctor.FAIRSEQ
    monkeypatch.setitem(sys.modules, "fairseq.models", None)
    assert "fairseq_modern must be active" in doctor.fairseq().advice


def test_a_wheel_has_no_recipes(monkeypatch, tmp_path):
    assert doctor.checkout()[1:3] == ("ok", str(ROOT))
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "collab_fairseq" / "doctor.py"))
    status, text = doctor.checkout()[1:3]
    assert (status, "has no recipes, data_prep: the" in text) == ("warn", True)


def test_compiler_and_disk(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++ -O2")
    assert doctor.compiler().status == "warn"
    monkeypatch.setenv("CXX", sys.executable)
    assert doctor.compiler()[1:3] == ("ok", sys.executable)
    for free, status in ((2e9, "warn"), (30e9, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert doctor.disk().status == status


def test_data_are_compared_with_their_checksums(data, tmp_path):
    damaged, listing = data / "train.src-tgt.tgt.bin", data.parent / "SHA256SUMS"
    assert doctor.data(data).status == "ok"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert doctor.data(data)[1:3] == ("fail", f"data-bin/{damaged.name}: not as in {listing}")
    damaged.write_bytes(content)
    lines = listing.read_text().splitlines(keepends=True)
    listing.write_text("".join(line for line in lines if "dict.tgt" not in line))
    assert doctor.data(data)[1:3] == ("fail", f"data-bin/dict.tgt.txt: not as in {listing}")
    (data.parent / "raw").touch()
    empty = hashlib.sha256(b"").hexdigest()
    for text, found in (
        ("", "has no files of"), (f"{empty}  raw\n", "has no files of"), ("abc\n", "a checksum and a name per line"),
    ):  # fmt: skip
        listing.write_text(text)
        status, message = doctor.data(data)[1:3]
        assert (status, found in message) == ("fail", True)
    listing.unlink()
    assert doctor.data(data).status == "warn"
    assert doctor.data(tmp_path / "absent").status == "fail"
