"""recipes/heads from a checkpoint to the results page, with a tiny model, and figures of the published records."""

import copy
import json
import re
import shutil

import pytest

from collab_fairseq import checkpoints
from collab_fairseq.heads import ablation, pruning, roles
from collab_fairseq.records.drawing import FigureFile
from collab_fairseq.records.record import Record
from recipes.heads import gates
from recipes.heads.figures import draw, model_name
from recipes.heads.page import agreement, page
from tests.common import ROOT, rejected, run
from tests.drawn import figures_of, illegible
from tests.fixtures import sentence_pairs
from tests.heads.cases import HEADS, load, standard_state
from tests.heads.test_gates import gated_state

RECORDS = ROOT / "results" / "heads"
STEPS = ("redundancy", "importance", "ablate", "prune", "prune-raw", "gates", "roles")


def test_recipe_writes_the_page_and_resumes(tiny_run, tiny_data, tmp_path):
    pytest.importorskip("matplotlib")
    model, references, output = tmp_path / "model.pt", tmp_path / "test.tgt", tmp_path / "output"
    checkpoints.save(standard_state(tiny_run), model)
    references.write_text("".join(f"{target}\n" for _, target in sentence_pairs(20, seed=2)), encoding="utf-8")
    inputs = ["--model", model, "--data", tiny_data, "--reference", f"test={references}", "--output", output]
    options = ["--name", "small", "--sentences", "3", "--penalties", "20", "--gate-updates", "3", "--device", "cpu"]
    command = ["bash", ROOT / "recipes" / "heads" / "run.sh", *inputs, *options]
    done = run(*command, cwd=tmp_path)
    assert re.search(r"penalty-20: 100% 3/3 \[.*, training", done.stderr)
    page = (output / "table.md").read_text(encoding="utf-8")
    for step in STEPS:
        assert f"(small.{step}.svg)" in page
    assert "| 20 | 2 of 2 | 2 of 2 | 2 of 2 |" in page
    assert "Rank correlation of importance with the drop in BLEU" in page
    gated = json.loads((output / "small.gates.json").read_text(encoding="utf-8"))
    assert set(gated["parts"]["20"]["gates"]) == set(HEADS)
    assert gated["command"].startswith("recipes/heads/run.sh --model .../model.pt")
    importance = json.loads((output / "small.importance.json").read_text(encoding="utf-8"))
    assert importance["command"].startswith("collab heads importance .../model.pt --data ")

    figures = {path: path.read_bytes() for path in output.glob("small.*.svg")}
    records = {path: path.stat().st_mtime_ns for path in output.glob("small.*.json")}
    (output / "table.md").unlink()
    shutil.rmtree(output / "gates")  # the record has all results of these training runs
    run(*command, cwd=tmp_path)
    assert (output / "table.md").read_text(encoding="utf-8") == page
    assert {path: path.stat().st_mtime_ns for path in output.glob("small.*.json")} == records
    assert {path: path.read_bytes() for path in output.glob("small.*.svg")} == figures
    assert not (output / "gates").exists()


def test_mistakes_are_found_before_the_first_analysis(tiny_run, tiny_data, tmp_path):
    """Gates and references are used last."""
    state = standard_state(tiny_run)
    checkpoints.save(state, tmp_path / "model.pt")
    checkpoints.model_settings(state)["kv_heads"] = 1
    for name in state["model"]:
        if re.search(r"attn\.[kv]_proj\.", name):
            state["model"][name] = state["model"][name][:8]
    checkpoints.save(state, tmp_path / "grouped.pt")
    lines = [f"{target}\n" for _, target in sentence_pairs(20, seed=2)]
    for name, text in (("references", lines), ("swapped", lines[::-1])):
        (tmp_path / name).write_text("".join(text), encoding="utf-8")
    for model, references, message in (
        ("grouped.pt", "references", "--penalties must be none if heads share keys or values"),
        ("model.pt", "swapped", "swapped must have the sentences of the target side of test"),
    ):
        words = ["--model", tmp_path / model, "--data", tiny_data, "--reference", f"test={tmp_path / references}"]
        words += ["--name", "small", "--output", tmp_path / model[:-3], "--device", "cpu"]
        rejected(run("bash", ROOT / "recipes" / "heads" / "run.sh", *words, check=False), message)
        assert not list((tmp_path / model[:-3]).glob("*.json"))


def test_penalty_that_closes_all_gates(tiny_run, tiny_data, tmp_path):
    references = tmp_path / "test.tgt"
    references.write_text("".join(f"{target}\n" for _, target in sentence_pairs(20, seed=2)), encoding="utf-8")
    values = {"0": [[1.0, 1.0]] * 3, "0.1": [[-1.0, -1.0]] * 3}

    def train(penalty):
        path = tmp_path / penalty / "checkpoint_last.pt"
        path.parent.mkdir()
        checkpoints.save(gated_state(standard_state(tiny_run), values[penalty]), path)
        return path

    state = copy.deepcopy(standard_state(tiny_run))
    state["cfg"]["criterion"]["label_smoothing"] = 0.0  # training with gates has another one
    source = load(state, tiny_data, double=False)
    test = ablation.TestSet("test", references, {"beam": 2, "sentences": 3})
    record = Record("heads", "gates", "", {})
    gates.score(source, [test], record, list(values), train)
    before, after = record.parts["0"]["attention_parameters"]
    assert before == after
    assert record.parts["0.1"]["attention_parameters"][1] < before / 2
    assert record.parts["0.1"]["loss"] != record.parts["0"]["loss"]
    assert record.parts["0"]["loss"] == pytest.approx(record.parts["whole/loss"], rel=1e-6)  # the same criterion
    rows = gates.report(record.parts).splitlines()
    assert rows[-2].startswith("| 0 | 2 of 2 | 2 of 2 | 2 of 2 |")
    assert rows[-1].startswith("| 0.1 | 0 of 2 | 0 of 2 | 0 of 2 |")


def test_rank_correlation_computed_by_hand():
    lost = {"E:1:1": 3.0, "E:1:2": 1.0, "E:1:3": 3.0, "E:1:4": 7.0}  # ranks 2.5 1 2.5 4
    parts = {f"t/without/{head}": {"difference": -value} for head, value in lost.items()}
    ranks = {head: {"raw": n**3, "normalised": -value} for n, (head, value) in enumerate(lost.items())}
    sentence = agreement(ranks, {"whole/t": {}, **parts})
    assert sentence.endswith(": -1.00 (normalised, t), 0.63 (raw, t).")  # 3 / √(4.5 · 5)


def test_figures_show_names_scores_and_common_axes(tmp_path):
    pytest.importorskip("matplotlib")
    names = ("convergence-standard-256", "convergence-collaborative-32")
    for name in names:
        for analysis in ("ablate", "prune", "prune-raw"):
            shutil.copy(RECORDS / f"{name}.{analysis}.json", tmp_path)
    run("python", "-m", "recipes", "heads", "figures", "--pdf", *sorted(tmp_path.glob("*.json")), cwd=ROOT)
    assert len(list(tmp_path.glob("*.pdf"))) == len(list(tmp_path.glob("*.svg"))) == 6
    text = (tmp_path / "convergence-collaborative-32.ablate.svg").read_text()
    assert "<title>Ablation of single heads, convergence-collaborative-32</title>" in text
    assert "on test_2016_flickr; above 0: better than with all heads. Framed: p &lt; 0.05" in text
    assert "encoder_cross_decoder" not in text
    assert ">−30.5<" in text

    def position_of_loss_8(name):
        """The height of a tick of the losses, up to 9.5 with standard heads and 8.6 with collaborative heads."""
        text = (tmp_path / f"{name}.prune.svg").read_text()
        assert ">BLEU, test_2017_flickr<" in text
        assert ">only encoder–decoder<" in text
        return float(re.search(r'y="([\d.]+)" [^>]*>8<', text)[1])

    common = position_of_loss_8(names[0])
    assert position_of_loss_8(names[1]) == common
    # importing fairseq configures logging; the server that runs the tools has already imported it
    code = "import logging; logging.basicConfig(); from recipes.heads.figures import main; main()"
    done = run("python", "-c", code, tmp_path / f"{names[1]}.prune.json", cwd=ROOT)
    assert f"figures.py: wrote {tmp_path / names[1]}.prune.svg" in done.stderr.splitlines()
    assert position_of_loss_8(names[1]) != common


@pytest.mark.parametrize(
    ("file", "analysis", "name"),
    [
        ("convergence-standard-256.ablate.json", "ablate", "convergence-standard-256"),
        ("bge-small-en-v1.5.redundancy.json", "redundancy", "bge-small-en-v1.5"),
        ("bge-small-en-v1.5.prune-raw.json", "prune", "bge-small-en-v1.5"),
        ("v1.5.json", "prune", "v1.5"),
    ],
)
def test_figures_have_the_name_of_the_file(file, analysis, name):
    assert model_name(RECORDS / file, {"name": analysis}) == name


def test_figures_are_legible_in_one_column(tmp_path, monkeypatch):
    """At 3.3 inches, no text is cut off or overlaps, and squares show the numbers of the record."""
    pytest.importorskip("matplotlib")
    name = "convergence-standard-256"
    records = {step: json.loads((RECORDS / f"{name}.{step}.json").read_text()) for step in ("ablate", "roles", "prune")}
    with figures_of(monkeypatch) as drawn:
        for step, record in records.items():
            draw(record, FigureFile(tmp_path / f"{step}.pdf", 3.3), name, [])
    ablate, shares, prune = drawn
    assert [illegible(figure) for figure in drawn] == [[], [], []]
    assert [part.get_suptitle() for part in ablate.subfigs] == ["without the head", "only that head in its layer"]
    assert [axis.get_title() for axis in shares.axes[:3]] == [
        "encoder: position",
        "encoder: rare words",
        "decoder: position",
    ]
    heads = records["roles"]["parts"]["looks"]
    for axis, site, quantity in ((shares.axes[1], "E", "rare"), (shares.axes[2], "D", "positional")):
        expected = [f"{heads[f'{site}:{layer}:{head}'][quantity]:.2f}" for layer in (1, 2) for head in range(1, 9)]
        assert [text.get_text() for text in axis.texts] == expected
    assert len(prune.axes) == 3


def test_figures_mark_equal_importance_and_end_at_the_key_dimension(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with figures_of(monkeypatch) as drawn:
        for step in ("importance", "redundancy"):
            record = json.loads((RECORDS / f"convergence-collaborative-32.{step}.json").read_text())
            other = json.loads((RECORDS / f"convergence-standard-256.{step}.json").read_text())
            draw(record, FigureFile(tmp_path / f"{step}.pdf", 3.3), "x", [record, other])
    assert [illegible(figure) for figure in drawn] == [[], []]
    (line,) = drawn[0].axes[-1].get_lines()
    assert line.get_xdata()[0] == pytest.approx(8**-0.5)  # eight heads
    assert drawn[1].axes[0].get_xlim() == (1, 32)


def test_figure_of_roles_frames_heads_that_have_them(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    looks = {f"E:1:{head}": {"confidence": 0.5, "offset": 1, "positional": 0.1, "rare": 0.1} for head in (1, 2, 3)}
    looks["E:1:2"].update(positional=0.95, rare=0.4999)
    with figures_of(monkeypatch) as drawn:
        roles.draw({"looks": looks}, tmp_path / "roles.pdf", "x")
    position, rare, _, confidence, _ = drawn[0].axes
    assert [len(axis.patches) for axis in (position, rare, confidence)] == [1, 0, 0]
    assert position.patches[0].get_x() == pytest.approx(1, abs=0.5)


def test_figures_share_axes_with_records_of_fewer_tests(tmp_path):
    pytest.importorskip("matplotlib")
    both = json.loads((RECORDS / "convergence-standard-256.prune.json").read_text())
    one = copy.deepcopy(both)
    for part in one["parts"].values():
        part.get("tests", {}).pop("test1", None)
    pruning.draw(both, tmp_path / "both.svg", "x", [one])
    assert ">BLEU, test_2017_flickr<" in (tmp_path / "both.svg").read_text()


def test_page_leaves_out_unfinished_analyses(tmp_path):
    """The record of gates is written before the first of them is trained."""
    record = {"schema": 1, "kind": "heads", "name": "gates", "parts": {}}
    (tmp_path / "mine.gates.json").write_text(json.dumps(record))
    assert page(tmp_path, "mine") == "## mine\n"
