"""Time and error of the decomposition against the key dimension (Figure 4), with a small random encoder."""

import json
import random

import pytest
import torch

from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")
pytest.importorskip("tensorly", reason="needs pip install 'collab_fairseq[reparam]'")

from collab_fairseq import huggingface as hf  # noqa: E402
from recipes.glue import table  # noqa: E402
from recipes.lookup import run as lookup  # noqa: E402
from recipes.reparam import decomposition, fit_speed  # noqa: E402
from tests.common import ROOT  # noqa: E402
from tests.huggingface.cases import HEADS, WIDTH, make  # noqa: E402
from tests.reparam.test_folders import sentence, write  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An encoder, text for calibration, and a task of pairs."""
    folder, random_ = tmp_path_factory.mktemp("decomposition"), random.Random(0)
    write(folder / "encoder", make("bert").bert)
    (folder / "text").write_text("".join(sentence(random_) + "\n" for _ in range(80)))
    (folder / "pairs").mkdir()
    rows = [
        {"sentence1": sentence(random_), "sentence2": sentence(random_), "label": random_.random()} for _ in range(30)
    ]
    (folder / "pairs" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def measure(place, monkeypatch):
    """Run the script on the encoder; returns its output."""

    def measure(record, *more):
        inputs = ["--model", "encoder", "--calibration", "text", "--evaluate", "pairs"]
        monkeypatch.chdir(place)
        return decomposition.markdown([str(record), *inputs, *map(str, more)])

    return measure


def test_time_and_error_of_all_methods(measure, place, tmp_path):
    pytest.importorskip("matplotlib")
    record, figure = tmp_path / "record.json", tmp_path / "figure.svg"
    options = ["--key-dims", f"{WIDTH},12,4", "--seeds", "1,2", "--figure", figure]
    printed = measure(record, *options)
    content = load(record, "study", "decomposition")
    parts, rank = content["parts"], 4
    assert len(parts) == 1 + 4 * 3 * 2
    assert all(part["seconds"] > 0 for name, part in parts.items() if name != "source")
    assert parts["source"]["cosine"] == pytest.approx(1, abs=1e-6)

    for method in ("calibrated", "plain"):  # exact at the full key dimension
        part = parts[f"{method}/{WIDTH}/1"]
        assert max(part["errors"].values()) < 1e-6
        assert part["cosine"] == pytest.approx(1, abs=1e-5)
    # the best error of any single matrix of this rank that stacks all heads is a lower bound
    model = hf.load_folder(place / "encoder")
    for name, layer in hf.attention_layers(model):
        blocks = zip(layer.query.weight.view(HEADS, -1, WIDTH), layer.key.weight.view(HEADS, -1, WIDTH), strict=True)
        stacked = torch.cat([query.T @ key for query, key in blocks]).detach()
        values = torch.linalg.svdvals(stacked.double()).square()
        bound = float((values[rank:].sum() / values.sum()).sqrt())
        for method in ("calibrated", "plain", "paper"):
            assert bound < parts[f"{method}/{rank}/1"]["errors"][name] < 1
        plain, paper = (parts[f"{method}/{rank}/1"]["errors"][name] for method in ("plain", "paper"))
        assert plain < paper + 1e-3
    paper, authors = (parts[f"{method}/{rank}/1"] for method in ("paper", "authors"))
    assert authors["errors"] == paper["errors"]
    assert authors["seconds"] == paper["seconds"]
    assert authors["cosine"] < paper["cosine"] - 1e-3  # only the scale differs
    assert parts["calibrated/4/1"]["cosine"] > parts["plain/4/1"]["cosine"]

    labels = decomposition.LABELS.values()
    assert all(f"| 12 | {label} |" in printed for label in labels)
    assert all(f">{label}<" in figure.read_text(encoding="utf-8") for label in labels)
    before = record.stat().st_mtime_ns
    assert measure(record, *options) == printed
    assert record.stat().st_mtime_ns == before


def test_an_interrupted_run_continues(measure, tmp_path):
    """Without the last part, only that part is measured again, with the same result; times differ."""
    record = tmp_path / "record.json"
    measure(record, "--key-dims", "4", "--seeds", "1")
    content = json.loads(record.read_text())
    authors, paper = (dict(content["parts"][f"{method}/4/1"]) for method in ("authors", "paper"))
    del content["parts"]["authors/4/1"]
    record.write_text(json.dumps(content))
    measure(record, "--key-dims", "4", "--seeds", "1")
    parts = load(record, "study", "decomposition")["parts"]
    assert parts["paper/4/1"] == paper
    for name in ("errors", "cosine"):
        assert parts["authors/4/1"][name] == authors[name]


@pytest.mark.parametrize("flag", ["--key-dims", "--seeds", "--threads"])
def test_lists_are_of_positive_integers(flag, capsys):
    """Before anything is measured; in all studies."""
    for program in [fit_speed] if flag == "--threads" else [decomposition, table]:
        with pytest.raises(SystemExit):
            program.markdown(["record.json", flag, "4,0"])
        assert f"{flag}: must be a positive integer; got '0'" in capsys.readouterr().err


def test_nothing_is_measured_for_a_record_that_cannot_be_written(place, monkeypatch, tmp_path):
    """In all studies; the control is a record in a folder that exists."""
    begun = []
    monkeypatch.setattr(fit_speed, "measure", lambda *_: begun.append("fit") or {"seconds": 1.0, "errors": [0.1]})
    monkeypatch.setattr(lookup, "solve", lambda *_: begun.append("lookup") or {"accuracy": 1.0, "loss": 0.0})
    monkeypatch.setattr(decomposition.Decompositions, "measured", lambda *_: begun.append("decomposition") or {})
    inputs = ["--model", "encoder", "--calibration", "text", "--evaluate", "pairs", "--methods", "plain"]
    monkeypatch.chdir(place)
    for program, flags in (
        (fit_speed, ["--before", str(ROOT), "--threads", "1"]),
        (lookup, []),
        (decomposition, [*inputs, "--key-dims", "4"]),
    ):
        with pytest.raises(UserError, match=r"cannot write .*none/record\.json: there is no folder .*none"):
            program.markdown([str(tmp_path / "none" / "record.json"), *flags])
    assert begun == []
    assert "| parafac | 1 |" in fit_speed.markdown(
        [str(tmp_path / "record.json"), "--before", str(ROOT), "--threads", "1"]
    )
    assert begun == ["fit"] * 7


def test_nothing_measured_yet():
    assert decomposition.markdown(["missing.json"]) == "This has not been measured yet.\n"
