"""`collab tables`: pages whose tables know their commands."""

import functools

import pytest

from collab_fairseq.cli.tables import words
from tests import common

collab = functools.partial(common.collab, "tables")
COMMAND = "collab table runs/none-*.json\n    --columns 'heads, seeds'"


@pytest.fixture
def page(files, tmp_path, monkeypatch):
    """A page with a table that is not up to date, next to the folder of records."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_bytes(f"# Title\r\n\n<!-- results: {COMMAND} -->\nold\n<!-- /results -->\nafter\n".encode())
    return path


def test_tables_are_checked_and_made_again(page, tmp_path):
    before = page.read_bytes()
    message = "not up to date: results in page.md; run this command without --check"
    assert message in collab("page.md", "--check", status=1)
    assert page.read_bytes() == before
    collab("page.md")
    after = page.read_bytes().decode()
    printed = common.collab("table", *sorted(map(str, tmp_path.glob("runs/none-*.json"))), "--columns", "heads,seeds")
    start, table, end = after.partition(printed.strip("\n") + "\n")
    assert table.count("\n| standard ") == 2
    assert start == f"# Title\r\n\n<!-- results: {COMMAND} -->\n"
    assert end == "<!-- /results -->\nafter\n"
    collab("page.md", "--check")
    (tmp_path / "runs" / "none-32-s3.json").unlink()  # control: fewer records
    collab("page.md", "--check", status=1)
    (tmp_path / "folder").mkdir()  # links are relative to the page
    page = page.rename(tmp_path / "folder" / "page.md")
    collab(page)
    assert "](../runs)" in page.read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("rm -r runs", "page.md, results: the command must be collab table"),
        ("python -m shutil runs", "page.md, results: the command must be collab table"),
        ("collab table $(touch made) runs/no-*.json; touch made", "cannot read $(touch as JSON"),
    ],
)
def test_only_some_programs_run_and_no_shell(page, command, message, monkeypatch):
    page.write_text(page.read_text().replace(COMMAND, command))
    monkeypatch.syspath_prepend(common.ROOT)
    assert message in collab("page.md", status=1)
    assert not page.with_name("made").exists()


@pytest.mark.parametrize("wrong", ["<!-- /results -->", "<!-- other: collab -->\n<!-- /results -->", "<!-- /other -->"])
def test_comments_must_be_pairs(page, wrong):
    before = page.read_text().replace("after", wrong)
    page.write_text(before)
    assert "tables must be between <!-- NAME: COMMAND --> and <!-- /NAME -->; got" in collab("page.md", status=1)
    assert page.read_text() == before


def test_patterns_are_expanded_as_in_bash(page):
    assert words("x runs/none-None-s[12].json 'runs/n*-s3.json' --rows=*/train no/*.json ") == [
        *("x", "runs/none-None-s1.json", "runs/none-None-s2.json"),
        *("runs/none-32-s3.json", "runs/none-None-s3.json", "--rows=*/train", "no/*.json"),
    ]
