"""``collab bench`` as a user runs it: miniatures of everything, records, figures, tables, and what it refuses."""

import json

import pytest
import torch

from tests.common import run


def bench(*argv, **options):
    return run("collab", "bench", *argv, **options)


@pytest.mark.parametrize("what", ["layer", "train"])
def test_everything_runs_in_miniature(what, tmp_path):
    path, figure = tmp_path / "record.json", tmp_path / "figure.svg"
    extra = ["--profile"] if what == "train" else ["--figure", figure]
    done = bench(what, "--quick", "--device", "cpu", "--output", path, *extra)
    record = json.loads(path.read_text())
    assert (record["name"], record["quick"], record["goals"]) == (what, True, [])
    assert all({"ours", "authors", "fairseq"} <= set(row["values"]) for row in record["rows"])
    assert "a miniature, no measurement" in done.stdout
    assert "ratio of ours" in done.stderr
    if what == "layer":
        assert "authors" in figure.read_text()
        assert any(row["unit"] == "bytes" for row in record["rows"])
    else:
        operators = {op["name"] for entry in record["profile"] for op in entry["operators"]}
        assert any(name.startswith("aten::") for name in operators)


def test_decoding_in_miniature_and_its_table(tmp_path, tiny_data):
    path, page = tmp_path / "record.json", tmp_path / "page.md"
    bench("decode", "--quick", "--device", "cpu", "--output", path, "--data", tiny_data)
    rows = {row["id"].split("/")[1]: set(row["values"]) for row in json.loads(path.read_text())["rows"]}
    assert {"cross", "self", "translate", "beam-step"} == set(rows)
    assert "fairseq-sentence" in rows["cross"]
    assert rows["translate"] == {"fairseq", "none", "ours"}

    page.write_text("# Speed\n<!-- speed -->\nold\n<!-- /speed -->\nend\n")
    table = ["table", path, "--output", page, "--marker", "speed"]
    stale = bench(*table, "--check", check=False)
    assert stale.returncode == 1
    assert "is stale" in stale.stderr
    assert "\nold\n" in page.read_text()
    bench(*table)
    assert "waits for a GPU" in page.read_text()
    assert page.read_text().endswith("<!-- /speed -->\nend\n")
    bench(*table, "--check")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["layer", "--rows", "nothing"], "--rows nothing matches no row"),
        (["layer", "--rounds", "0"], "expected a positive whole number, got '0'"),
        (["train", "--seconds", "-1"], "expected a positive number of seconds, got '-1'"),
        (["decode", "--data", "absent", "--quick", "--rows", "*translate*"], "--data must be a data-bin"),
        (["layer", "--lengths", "absent"], "--lengths must be multi30k or newstest2014 or a file"),
        (["layer", "--output", "absent/record.json"], "there is no folder"),
        (["layer", "--figure", "figure.pdf"], "--figure must end in .png or .svg, got figure.pdf"),
        (["layer", "--clock", "processor", "--threads", "2"], "--clock processor is for one thread of a CPU"),
        (["table", "absent.json"], "cannot read absent.json as JSON"),
        (["table", "absent.json", "--check"], "--check needs --output"),
    ],
)
def test_mistakes_are_one_clear_sentence(argv, message, tmp_path):
    done = bench(*argv, *([] if argv[0] == "table" else ["--device", "cpu"]), check=False, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    done = bench("layer", "--device", "cuda", check=False)
    assert done.returncode == 1
    assert "--device cuda needs a GPU that torch can use" in done.stderr


def test_the_rows_can_be_listed():
    done = bench("layer", "--list", "--device", "cpu", "--rows", "layer/encoder/64x32/dk128/*")
    assert "layer/encoder/64x32/dk128/train\n" in done.stdout
    assert "dk512" not in done.stdout
