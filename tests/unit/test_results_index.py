"""The page of a results folder: what was run, what was not."""

import pytest

from collab_fairseq.cli.main import main
from collab_fairseq.reporting.files import write_json
from collab_fairseq.reporting.index import Study, index, load_studies
from collab_fairseq.reporting.schema import RecordError
from tests.common import ROOT, run


def record(device="cpu", commit="0123456789abcdef", modified=False):
    return {
        "hardware": {"cpu": "A CPU", "threads": 1, "gpus": [{"name": "A GPU"}] * 2, "device": device},
        "versions": {"python": "3.11.1", "torch": "2.13.0"},
        "commit": {"id": commit, "modified": modified},
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs").mkdir()
    for number, about in enumerate((record(), record("gpu"), record(commit=None), record("gpu", modified=True))):
        write_json(about, tmp_path / "runs" / f"run-{number}.json")
    (tmp_path / "README.md").write_text("# Results\n\n<!-- studies -->\n<!-- /studies -->\nThe end.\n")
    (tmp_path / "studies.yaml").write_text(
        """
- {title: All runs, records: runs/run-*.json, count: 4, command: run.sh, remark: on a busy machine}
- {title: On GPUs, records: runs/run-*.json, count: 3, device: gpu, command: run.sh --device gpu}
- {title: Another, records: other/*.json, command: other.sh}
- {title: One run, records: runs/run-2.json, command: run.sh --seed 2}
"""
    )
    return tmp_path


def rows(text, title):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if title in line]


def test_what_was_run_and_what_was_not(folder):
    text = index(load_studies(folder / "studies.yaml"), folder)
    done, waiting = text.split("## What was not")
    machines = "2 × A GPU; A CPU, 1 thread"
    versions = "Python 3.11.1, torch 2.13.0"
    assert rows(done, "All runs") == [
        ["All runs; on a busy machine", "4 in `runs/run-*.json`", machines, versions, "0123456; 0123456 (modified)"]
    ]
    assert rows(waiting, "All runs") == []
    (gpu,) = rows(done, "On GPUs")
    assert gpu[1:3] == ["2 of 3 in `runs/run-*.json`", "2 × A GPU"]
    assert rows(waiting, "On GPUs") == [["On GPUs (2 of 3 are there)", "a GPU", "`run.sh --device gpu`"]]
    assert rows(done, "Another") == []
    assert rows(waiting, "Another") == [["Another", "time", "`other.sh`"]]
    assert rows(done, "One run") == [["One run", "[1](runs/run-2.json)", "A CPU, 1 thread", versions, "–"]]


def test_the_command_writes_and_checks(folder, capsys):
    assert main(["results", str(folder), "--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert main(["results", str(folder)]) == 0
    page = (folder / "README.md").read_text()
    assert page.startswith("# Results\n\n<!-- studies -->\n## What was run")
    assert page.endswith("<!-- /studies -->\nThe end.\n")
    assert main(["results", str(folder), "--check"]) == 0
    (folder / "runs" / "run-1.json").unlink()
    assert main(["results", str(folder), "--check"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{title: x}", "must be a list of studies"), ("- x", "must be a list of studies"), ("- [", "as YAML"),
        ("- {title: x, command: y}", "study 1 lacks records"),
        ("- {title: x, command: y, records: z, cuont: 3}", "unknown field cuont; expected title, records"),
        ("- {title: x, command: y, records: z, count: many}", "count must be int, got 'many'"),
        ("- {title: x, command: y, records: z, count: 0}", "count must be positive, got 0"),
        ("- {title: x, command: y, records: z, device: tpu}", "device must be cpu or gpu, got 'tpu'"),
    ],
)  # fmt: skip
def test_a_wrong_list_is_explained(tmp_path, text, message):
    (tmp_path / "studies.yaml").write_text(text)
    with pytest.raises(RecordError, match=message):
        load_studies(tmp_path / "studies.yaml")


def test_files_that_are_no_records_are_named(tmp_path):
    studies = [Study(title="x", records="*.json", command="y")]
    write_json({"hardware": {}, "versions": {}}, tmp_path / "a.json")
    with pytest.raises(RecordError, match=r"a.json is not a record: it has no commit"):
        index(studies, tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RecordError, match=r"cannot read .*a.json as JSON"):
        index(studies, tmp_path)


def test_the_page_of_this_project_is_up_to_date():
    assert run("collab", "results", ROOT / "results", "--check").returncode == 0
