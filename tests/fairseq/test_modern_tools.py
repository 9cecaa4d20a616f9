"""fairseq's programs from end to end, several runs in one process, and which programs shorten errors."""

import re
import signal
import sys
from types import SimpleNamespace

import pytest
import torch

from fairseq_modern import errors, hydra_train
from tests.common import run
from tests.fairseq.commands import hydra_command
from tests.fairseq.models import SMALL


def hypotheses(output):
    """Sentence number → hypothesis, from the H- lines of a log."""
    return dict(re.findall(r"^H-(\d+)\t[-\d.]+\t(.*)$", output, flags=re.MULTILINE))


def test_generate_interactive_and_the_python_interface_agree(tiny_data, tiny_run):
    from fairseq.models.transformer import TransformerModel

    search = ["--path", tiny_run / "checkpoint_best.pt", "--cpu", "--beam", 2, "--max-len-a", 0, "--max-len-b", 12]
    done = run("fairseq-generate", tiny_data, *search, "--batch-size", 20)
    assert "Translated 20 sentences" in done.stdout + done.stderr
    generated = done.stdout
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", generated, flags=re.MULTILINE))
    expected = hypotheses(generated)
    assert len(expected) == len(sources) == 20

    lines = "".join(sources[str(i)] + "\n" for i in range(20))
    assert hypotheses(run("fairseq-interactive", tiny_data, *search, input=lines).stdout) == expected

    hub = TransformerModel.from_pretrained(str(tiny_run), "checkpoint_best.pt", data_name_or_path=str(tiny_data))
    some = [sources[str(i)] for i in range(3)]
    translated = hub.translate(some, beam=2, max_len_a=0, max_len_b=12)
    assert translated == [expected[str(i)] for i in range(3)]


def test_validate_without_task_reports_the_loss_of_training(tiny_data, tiny_run):
    path = ["--path", tiny_run / "checkpoint_best.pt", "--max-tokens", 400, "--cpu"]
    done = run("fairseq-validate", tiny_data, *path)
    loss = float(re.search(r"valid on 'valid' subset \| loss ([\d.]+)", done.stdout).group(1))
    trained = torch.load(tiny_run / "checkpoint_best.pt", weights_only=False)["extra_state"]["val_loss"]
    assert abs(loss - trained) <= 0.0015  # both are rounded to three digits
    assert 0 < loss < 5  # log2 of the 32 vocabulary entries


def test_every_run_of_a_hydra_multirun_writes_its_best_checkpoint(tiny_data, tmp_path):
    tool, *config = hydra_command(tiny_data, "checkpoints", tmp_path, optimization={"max_update": 3}, **SMALL)
    # the second run is worse than the first, whose best score it must not inherit
    sweep = ["optimization.lr=[0.005],[0.00001]", f"hydra.sweep.dir={tmp_path}/jobs"]
    run(tool, "--multirun", *config, *sweep, cwd=tmp_path)
    best = [torch.load(f, weights_only=False)["extra_state"] for f in sorted(tmp_path.glob("jobs/*/*/*_best.pt"))]
    assert len(best) == 2
    assert best[0]["best"] < best[1]["best"] == best[1]["val_loss"]


PREFETCHES = """
import sys, torch
from fairseq.data.iterators import BufferedIterator

class Slow(list):
    def __iter__(self):
        for _ in range(len(self)):
            square = torch.ones(300, 300)
            yield [torch.mm(square, square) for _ in range(100)]  # a tenth of a second

next(BufferedIterator(10, Slow([None] * 100)))
sys.exit(75)
"""


@pytest.mark.parametrize(("skip", "status"), [("", 75), ("prefetching", -signal.SIGABRT)])
def test_a_run_that_ends_within_an_epoch_keeps_its_status(skip, status):
    done = run("python", "-c", PREFETCHES, check=False, env={"FAIRSEQ_MODERN_SKIP": skip})
    assert done.returncode == status


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "name", "wants_traceback"),
    [
        ("/usr/bin/fairseq-train", "fairseq-train", False),
        ("/usr/bin/fairseq-train", "fairseq-train", True),
        ("/lib/fairseq_cli/train.py", "fairseq_cli.train", False),
        ("/home/me/my_script.py", None, False),
        ("", None, False),
    ],
)
def test_only_fairseqs_programs_shorten_errors(program, name, wants_traceback, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("FAIRSEQ_MODERN_TRACEBACK", "1" if wants_traceback else "0")
    tracebacks = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: tracebacks.append(error[1]))
    errors.show_user_errors(SimpleNamespace())
    layer_error = type("LayerError", (ValueError,), {"user_error": True})  # in a module that imports torch only
    user_errors = [errors.UserError("a file\nis missing."), layer_error("a flag is wrong.")]
    others = [ValueError("a bug")]
    for error in user_errors + others:
        sys.excepthook(type(error), error, None)
    assert errors.tool_name() == name
    if name is None or wants_traceback:
        assert tracebacks == user_errors + others
    else:
        assert tracebacks == others
        expected = f"{name}: error: a file is missing.\n{name}: error: a flag is wrong.\n"
        assert capsys.readouterr().err == expected


def test_help_lists_the_flags_of_the_model():
    helps = [run("fairseq-train", *arch, "--help").stdout for arch in (["--arch", "transformer_tiny"], [])]
    assert ["--encoder-ffn-embed-dim" in text for text in helps] == [True, False]
    assert all("--max-update" in text for text in helps)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("_self_", "own/one"),
        ("../base@_global_", "own/../base"),
        ("/base@_global_", "base"),
        ("two", "own/two"),
        ("elsewhere", "own/one"),
        ("model: two", "own/one"),
    ],
)
def test_finds_the_config_on_which_others_build(first, expected, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/one.yaml").write_text(f"defaults:\n  - {first}\n")
    for name in ("base", "own/two"):
        (tmp_path / f"{name}.yaml").write_text("common: {seed: 1}\n")
    assert hydra_train.base(str(tmp_path), "own/one") == expected
