"""`collab table`: pages and figures from records, and errors."""

import functools
import html
import json
import re
import shlex
import sys

import pytest

from collab_fairseq.files import write_json
from collab_fairseq.records import figures
from tests import common
from tests.records.cases import rows_of

collab = functools.partial(common.collab, "table")


def test_prints_a_table(files):
    printed = collab(*files, "--columns", "heads,key_dim,sacrebleu")
    assert list(rows_of(printed)[0]) == ["heads", "key dimension", "sacreBLEU test_a", "sacreBLEU test_b"]
    collab(*files, "--columns", "heads,key_dim,sacrebleu", "--output", files[0].with_name("table.md"))
    page = files[0].with_name("table.md").read_text()
    assert page.split("Records:")[0] == printed.split("Records:")[0]
    assert "](.)." in page  # links are relative to the page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--columns 'seeds test_a'", "columns must be some of heads, key_dim, updates, seeds"),
        ("--columns 'sacrebleu x'", "no record has sacreBLEU of x; expected one of test_a, test_b"),
        ("--baseline x", "the baseline must be one of none-None-s1"),
        ("--figure x.eps", "must end in .png, .svg or .pdf; got x.eps"),
        ("--figure notes.svg", "the caption of notes.svg would replace notes.txt"),
        ("--figure x.png --y chrf", "--y needs --x parameters or --x wall_time"),
        ("empty.json", "empty.json must be a training record (schema 1); got no record"),
    ],
)
def test_errors_are_one_line(files, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_json({"schema": 1}, tmp_path / "empty.json")
    (tmp_path / "notes.txt").touch()
    assert message in collab(*files, *shlex.split(arguments), status=1)


def test_missing_package_error_names_the_extra(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = collab(*files, "--figure", tmp_path / "x.svg", status=1)
    assert "figures need matplotlib" in error
    assert "extra `plots`" in error
    assert not (tmp_path / "x.svg").exists()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "need pandas: install this project with its extra `plots`" in collab(*files, status=1)


@pytest.mark.parametrize("flags", ["", "--x parameters", "--x wall_time --y chrf"])
def test_figures_are_small_and_deterministic_and_need_data(files, tmp_path, flags):
    matplotlib = pytest.importorskip("matplotlib")
    figure = tmp_path / "x.svg"
    images = []
    for size in (10, 20):  # the user's settings have no effect and do not change
        with matplotlib.rc_context({"font.size": size}):
            collab(*files, "--figure", figure, *flags.split())
            assert matplotlib.rcParams["font.size"] == size
        images.append(figure.read_bytes())
    assert images[0] == images[1]
    assert 2000 < len(images[0]) < 60_000
    text = images[0].decode()
    assert ">collaborative" in text
    assert (">standard, on A CPU, 2 threads<" in text) == ("wall_time" in flags)
    assert set(re.findall(r">(test_[ab])<", text)) == ({"test_a", "test_b"} if flags else set())
    assert re.search("^ <title>.*</title>$", text, re.MULTILINE)
    assert re.search("^ <desc>.*ean and 95 % interval over 3 seeds.*</desc>$", text, re.MULTILINE)
    assert ("Higher is better." if flags else "Zero: standard, key dimension 128.") in text
    collab(*files, "--figure", tmp_path / "x.png", *flags.split())
    png = (tmp_path / "x.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert 5000 < len(png) < 100_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "x.png", "x.svg", "x.txt"]
    caption = (tmp_path / "x.txt").read_text(encoding="utf-8").strip()
    assert caption.partition(". ")[2] == html.unescape(re.search("<desc>(.*)</desc>", text)[1])
    assert caption not in re.sub("<desc>.*</desc>", "", text)

    content = json.loads(files[0].read_text())
    content["parts"].update(scores={}, curves={})
    write_json(content, files[0])
    assert "nothing to draw" in collab(files[0], "--figure", figure, *flags.split(), status=1)


def test_figures_for_papers(files, tmp_path):
    """Width and pages of the PDF as matplotlib wrote them; the title only if given."""
    pytest.importorskip("matplotlib")
    words = [*files, "--x", "parameters"]
    for width in (3.3, 7.0):
        figure = tmp_path / f"{width}.pdf"
        collab(*words, "--figure", figure, "--width", width, "--no-caption")
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", figure.read_bytes())
        assert float(box[0]) == pytest.approx(72 * width, abs=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.3.pdf", "7.0.pdf", "runs"]
    for flags, shown in (([], False), (["--title", "Cost & score"], True)):
        collab(*words, "--figure", tmp_path / "x.svg", *flags)
        assert (">Cost &amp; score<" in (tmp_path / "x.svg").read_text()) == shown
    assert "--width needs --figure" in collab(*words[:-2], "--width", 3, status=1)


def test_loss_curves_are_differences_over_common_seeds(runs, tmp_path, caplog):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "x.svg"

    def draw(numbered):
        figures.draw_losses(numbered, figure, ("heads", "key_dim"))
        return figure.read_text()

    full = [run for run in runs if run["name"].startswith("none-None")]
    reduced = [run for run in runs if run["name"].startswith("none-32")]
    others = [run for run in runs if run not in [*full, *reduced]]
    assert "over 1 to 2 seeds" in draw([*full[:2], *reduced[:2], *others[1:]])
    for run in others:
        run["seed"] += 10
    text = draw(runs)
    assert "over 3 seeds" in text
    assert ">collaborative" not in text
    assert "not drawn, without a seed or update of standard, key dimension 128: collaborative" in caplog.text
