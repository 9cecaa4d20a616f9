"""`collab` as a user runs it, on checkpoints and translations that fairseq made."""

import re

import pytest

from tests.common import TINY_MODEL, TINY_TRAINING, collab, run


@pytest.mark.parametrize("argument", ["--help", "user-dir"])
def test_help_needs_neither_torch_nor_fairseq(argument):
    """Any --help makes the parsers of all commands."""
    probe = (
        "import sys; from collab_fairseq.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: sys.stderr.write(','.join({'torch', 'fairseq', 'numpy', 'sacrebleu'} & set(sys.modules)))"
    )
    done = run("python", "-c", probe, argument, fresh=True)
    assert done.stderr == ""
    assert done.stdout


def test_average_of_fairseqs_checkpoints_translates_and_continues_training(tiny_run, tiny_data, tmp_path):
    average, log = tmp_path / "mean.pt", tmp_path / "generate.log"
    done = run("collab", "average", "--inputs", tiny_run, "--num-epoch-checkpoints", 2, "--output", average)
    assert re.search(r"averaged 2 checkpoints into .*mean\.pt", done.stdout)
    first = ["--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 1, "--output", tmp_path / "first.pt"]
    assert "checkpoint1.pt\tupdates" in run("collab", "average", "--inputs", tiny_run, *first).stdout
    search = ["--path", average, "--beam", 2, "--nbest", 2, "--max-len-b", 12, "--cpu"]
    done = run("fairseq-generate", tiny_data, *search)
    log.write_text(done.stderr + done.stdout, encoding="utf-8")  # as with 2>&1: the language is in the log
    # white-space tokens: the same number as fairseq's own line
    tokenised = run("collab", "score", log, "--tokenized", "yes").stdout
    fairseq_line = re.search(r"BLEU4 = (\S+, \S+ .*)$", log.read_text(encoding="utf-8"), re.MULTILINE)
    assert fairseq_line.group(1) in tokenised
    assert "language tgt," in tokenised
    more = ["--finetune-from-model", average, "--max-update", 1, "--no-save", "--save-dir", tmp_path]
    out = run("fairseq-train", tiny_data, *TINY_MODEL, *TINY_TRAINING, *more).stdout
    assert "loading pretrained model from" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--inputs TRAINED", "must be a checkpoint file; got a folder"),
        ("--inputs TRAINED TRAINED --num-epoch-checkpoints 1", "--inputs must be a single folder"),
        ("--inputs whole.pt --output out.pt", "out.pt already exists"),
        ("--inputs whole.pt cut.pt", "cut.pt was not loaded"),
    ],
)
def test_failed_averages_leave_the_output_alone(tiny_run, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    whole = (tiny_run / "checkpoint1.pt").read_bytes()
    for name, content in (("whole.pt", whole), ("cut.pt", whole[:-100]), ("out.pt", b"an earlier result")):
        (tmp_path / name).write_bytes(content)
    words = flags.replace("TRAINED", str(tiny_run)).split()
    assert message in collab("average", "--output", "new.pt", *words, status=1)
    assert (tmp_path / "out.pt").read_bytes() == b"an earlier result"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.pt", "out.pt", "whole.pt"]
