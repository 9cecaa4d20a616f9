"""`collab` as a user runs it, on checkpoints and translations that fairseq made."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from collab_fairseq import checkpoints
from collab_fairseq.cli.main import main
from tests.common import ROOT, run

TINY = ["--encoder-layers", 1, "--decoder-layers", 1, "--encoder-embed-dim", 16, "--decoder-embed-dim", 16]
TINY += ["--encoder-ffn-embed-dim", 32, "--decoder-ffn-embed-dim", 32, "--share-all-embeddings"]
TINY += ["--encoder-attention-heads", 2, "--decoder-attention-heads", 2]


def train(data, save_dir, *flags, check=True):
    return run(
        "fairseq-train", data, "--arch", "transformer", *TINY, "--optimizer", "adam", "--lr", 0.01, "--max-tokens", 400,
        "--cpu", "--distributed-world-size", 1, "--save-dir", save_dir, "--num-workers", 0, "--log-format", "json",
        *flags, check=check,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory) -> Path:
    """A folder with the checkpoints of updates 2 and 4 of a one-layer model."""
    folder = tmp_path_factory.mktemp("checkpoints")
    train(tiny_data, folder, "--max-update", 4, "--save-interval-updates", 2, "--no-epoch-checkpoints")
    return folder


@pytest.fixture(scope="module")
def averaged(trained) -> Path:
    done = run("collab", "average", "--inputs", trained, "--num-update-checkpoints", 2, "--output", trained / "mean.pt")
    assert re.search(r"averaged 2 checkpoints into .*mean\.pt", done.stdout)
    return trained / "mean.pt"


def generate(data, path, check=True):
    return run(
        "fairseq-generate", data, "--path", path, "--beam", 2, "--nbest", 2, "--max-len-b", 12, "--cpu",
        "--distributed-world-size", 1, "--num-workers", 0, check=check,
    )  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["user-dir"], *([name, "--help"] for name in ("average", "bench", "doctor", "record", "score"))],
)
def test_help_needs_neither_torch_nor_fairseq(argv):
    probe = (
        "import sys; from collab_fairseq.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: sys.stderr.write(','.join({'torch', 'fairseq', 'sacrebleu'} & set(sys.modules)))"
    )
    done = run("python", "-c", probe, *argv, fresh=True)
    assert done.stderr == ""
    assert done.stdout


def test_user_dir_is_the_package(tmp_path):
    folder = run("collab", "user-dir", cwd=tmp_path).stdout.rstrip("\n")
    assert os.path.isabs(folder)
    assert Path(folder, "models").is_dir()
    assert Path(folder).samefile(ROOT / "collab_fairseq")


def test_the_average_of_fairseqs_checkpoints(trained, averaged):
    inputs = [checkpoints.load(path) for path in sorted(trained.glob("checkpoint_*_*.pt"))]
    assert len(inputs) == 2
    result = checkpoints.load(averaged)
    for name, tensor in result["model"].items():
        expected = sum(state["model"][name].double() for state in inputs) / 2
        torch.testing.assert_close(tensor, expected.float(), rtol=0, atol=0)
    model = result["model"]
    assert model["encoder.embed_tokens.weight"].data_ptr() == model["decoder.output_projection.weight"].data_ptr()
    assert [entry["num_updates"] for entry in result["extra_state"]["averaged_from"]] == [4, 2]


def test_an_average_translates_and_can_be_trained_further(tiny_data, averaged, tmp_path):
    log = tmp_path / "generate.log"
    log.write_text(generate(tiny_data, averaged).stdout, encoding="utf-8")
    done = run("collab", "score", log, "--json", tmp_path / "scores.json")
    for metric in ("tokenised BLEU", "compound-split BLEU", "sacreBLEU"):
        assert re.search(rf"^{metric} +\d+\.\d\d, .*BP=.*syslen=\d+, reflen=\d+", done.stdout, re.MULTILINE)
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert scores["sentences"] == 20

    # white-space tokens: the same number as fairseq's own line
    tokenised = run("collab", "score", log, "--tokenized", "yes").stdout
    fairseq_line = re.search(r"BLEU4 = (\S+, \S+ .*)$", log.read_text(encoding="utf-8"), re.MULTILINE)
    assert fairseq_line.group(1) in tokenised

    out = train(tiny_data, tmp_path / "more", "--finetune-from-model", averaged, "--max-update", 1).stdout
    assert "loading pretrained model from" in out


@pytest.fixture
def inputs(trained, tmp_path):
    """A whole checkpoint, one cut off, and an earlier result."""
    whole = next(trained.glob("checkpoint_*_2.pt"))
    (tmp_path / "whole.pt").write_bytes(whole.read_bytes())
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:-100])
    (tmp_path / "out.pt").write_bytes(b"an earlier result")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--inputs TRAINED", "say how many of its checkpoints"),
        ("--inputs TRAINED --checkpoint-upper-bound 2", "--checkpoint-upper-bound needs"),
        ("--inputs TRAINED TRAINED --num-update-checkpoints 1", "--inputs must be one folder, got 2 paths"),
        ("--inputs TRAINED --num-update-checkpoints 2 --checkpoint-upper-bound 3", "has 1 update checkpoints up to"),
        ("--inputs whole.pt out.pt", "out.pt is one of the inputs and would be overwritten"),
        ("--inputs whole.pt cut.pt", "cut.pt was not loaded"),
    ],
)
def test_averages_that_cannot_be_leave_the_output_alone(trained, inputs, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(inputs)
    assert main(["average", *flags.replace("TRAINED", str(trained)).split(), "--output", "out.pt"]) == 1
    error = capsys.readouterr().err
    assert message in error
    (line,) = (line for line in error.splitlines() if not line.startswith("collab average: reading "))
    assert line.startswith("collab average: error: ")
    assert (inputs / "out.pt").read_bytes() == b"an earlier result"
    assert sorted(path.name for path in inputs.iterdir()) == ["cut.pt", "out.pt", "whole.pt"]
