"""Tables, comparisons and figures from records, against numbers worked out beside them."""

import hashlib
import json
import random
import re
import statistics
import sys

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from collab_fairseq.cli.main import main
from collab_fairseq.records import bootstrap, pages, table
from collab_fairseq.records.files import write_json
from collab_fairseq.records.record import RecordError
from collab_fairseq.records.rows import frame, hardware, heads, load_run
from collab_fairseq.records.schema import upgraded, validate
from collab_fairseq.scoring import bleu
from collab_fairseq.scoring.evaluation import evaluate

WORDS = ["der", "die", "das", "Hund", "Katze", "läuft,", "springt.", "ein", "T-Shirt", "und", "rot", "3,5"]
TESTS = ("test_a", "test_b")


def sentences(count=120):
    chance = random.Random(7)
    return [" ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 14))) for _ in range(count)]


def translate(references, noise, seed):
    """A translation with a share of its words wrong, and an empty line."""
    chance = random.Random(seed)
    lines = [" ".join(w if chance.random() > noise else chance.choice(WORDS) for w in r.split()) for r in references]
    return ["", *lines[1:]]


def evaluation(folder, hypotheses, references):
    log, raw = folder / "generate.log", folder / "test.de"
    log.write_text("".join(f"D-{i}\t-0.5\t{line}\n" for i, line in enumerate(hypotheses)), encoding="utf-8")
    raw.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    return evaluate([log], raw).as_json()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Standard heads with 128 and 32 dimensions, collaborative ones with 32; seeds 1 to 3; two test sets."""
    folder = tmp_path_factory.mktemp("records")
    made = {}
    for kind, dim, noise in (("none", None, 0.2), ("none", 32, 0.4), ("decoder_cross_encoder", 32, 0.21)):
        for seed in (1, 2, 3):
            scores = {
                test: evaluation(folder, translate(sentences(), noise, seed * 100 + place), sentences())
                for place, test in enumerate(TESTS)
            }
            name = f"{kind}-{dim}-s{seed}"
            made[name] = record(name, kind, dim, seed, scores)
    return made


def record(name, kind, dim, seed, scores):
    model = {"arch": "tiny", "key_dim": dim, "encoder_embed_dim": 128, "collaborative_heads": kind}
    if kind is None:
        del model["collaborative_heads"], model["key_dim"]
    return {
        "schema": 1, "name": name, "command": "run.sh", "seed": seed, "parameters": 1785088 - (dim or 0),
        "config": {"model": model, "optimization": {"lr": [0.005]}}, "data": {"train.bin": "a" * 64},
        "versions": {"python": "3.11"}, "commit": {"id": None, "modified": None},
        "hardware": {"cpu": "A CPU", "cores": 2, "memory_bytes": 1, "gpus": [], "threads": 2, "device": "cpu"},
        "training": {
            "updates": 2500, "wall_seconds": 600.0 + 60 * seed, "train_seconds": 500.0,
            "words_per_second": 1000.0 * seed, "peak_memory_bytes": 2**30, "peak_gpu_bytes": None, "parts": [],
        },
        "curves": {
            "train": [],
            "valid": [{"updates": 1000, "loss": 6.0 + seed / 10}, {"updates": 2500, "loss": 5.0 + seed / 10}],
        },
        "averaged_from": None, "scores": scores, "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip


@pytest.fixture
def files(records, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, content in records.items():
        write_json(upgraded(content), folder / f"{name}.json")
    return sorted(folder.iterdir())


def rows_of(markdown):
    """Cells of the first table, by header."""
    lines = [line for line in markdown.split("\n\n")[0].split("\n") if line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def sacrebleu_scores(records, prefix, test="test_a"):
    found = [r["scores"][test]["scores"] for name, r in records.items() if name.startswith(prefix)]
    return [score["score"] for scores in found for score in scores if score["metric"] == "sacreBLEU"]


# the paired bootstrap


def test_statistics_are_sacrebleus_own():
    references = sentences()
    hypotheses = translate(references, 0.3, 1)
    rows = bleu.sentence_statistics(hypotheses, references, "de")
    text = "; ".join(" ".join(map(str, row)) for row in rows)
    assert bootstrap.rows_of({"rows": text}) == BLEU()._extract_corpus_statistics(hypotheses, [references])
    assert rows[0][:1] == [0]
    assert len(text) < 22 * len(rows)


def test_the_paired_bootstrap_is_sacrebleus_own(records):
    references = sentences()
    names = "none-32-s2", "none-None-s2"
    system, baseline = (translate(references, noise, 200) for noise in (0.4, 0.2))
    signatures, results = PairedTest(
        [("baseline", baseline), ("system", system)], {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000
    )()
    before, after = results["BLEU"]
    ours = bootstrap.compare(records[names[0]], records[names[1]], "test_a")
    assert ours.difference == pytest.approx(after.score - before.score, abs=1e-9)
    assert (ours.p_value, ours.mean, ours.interval) == (after.p_value, after.mean, after.ci)
    assert ours.signature == str(signatures["BLEU"])
    assert "seed:12345" in ours.signature
    assert ours.difference < -5
    assert 0 < ours.p_value < 0.01


def test_a_system_is_no_better_than_itself(records):
    same = records["none-32-s1"]
    result = bootstrap.compare(same, same, "test_a")
    assert (result.difference, result.p_value) == (0, 1)
    close = bootstrap.compare(records["decoder_cross_encoder-32-s1"], records["none-None-s1"], "test_a")
    assert 0.05 < close.p_value <= 1


def test_only_like_is_compared(records):
    one, other = records["none-32-s1"], json.loads(json.dumps(records["none-None-s1"]))
    statistics_ = other["scores"]["test_a"]["sentence_statistics"]
    digest = hashlib.sha256("".join(f"{line}\n" for line in sentences()).encode()).hexdigest()
    assert statistics_["references_sha256"] == digest
    statistics_["references_sha256"] = "0" * 64
    with pytest.raises(RecordError, match="none-32-s1 and none-None-s1 have different references"):
        bootstrap.compare(one, other, "test_a")
    statistics_["references_sha256"] = digest
    rows = statistics_["rows"].split("; ")
    statistics_["rows"] = "; ".join([*rows[:-1], "4 4 4 3 2 1"])
    with pytest.raises(RecordError, match=r"its sentence statistics add up to"):
        bootstrap.compare(one, other, "test_a")
    statistics_["rows"] = "1 2 3"
    with pytest.raises(RecordError, match="rows must be six whole numbers per sentence"):
        validate(upgraded(other))
    statistics_["rows"] = "; ".join(rows[:-1])
    with pytest.raises(RecordError, match="expected 120 rows, got 119"):
        validate(upgraded(other))
    del other["scores"]["test_a"]["sentence_statistics"]
    validate(upgraded(other))
    assert bootstrap.compare(one, other, "test_a") is None


# the table


def test_numbers_are_means_and_sample_deviations(files, records):
    markdown = table.markdown_table([load_run(path) for path in files], folder=files[0].parent.parent)
    rows = rows_of(markdown)
    assert [(row["heads"], row["key dim"]) for row in rows] == [
        ("standard", "128"), ("standard", "32"), ("collaborative", "32"),
    ]  # fmt: skip
    scores = sacrebleu_scores(records, "none-32-")
    expected = {
        "sacreBLEU test_a": f"{sum(scores) / 3:.2f} ± {statistics.stdev(scores):.2f}", "updates": "2,500", "seeds": "3",
        "validation loss": "5.200 ± 0.100", "words/s": "2,000 ± 1,000", "training (h)": "0.20 ± 0.02",
        "peak memory (GiB)": "1.00 ± 0.00", "parameters": "1,785,056",
    }  # fmt: skip
    assert {header: rows[1][header] for header in expected} == expected
    assert rows[1]["sacreBLEU test_b"] != rows[1]["sacreBLEU test_a"]
    assert rows[1]["records"].split()[:2] == ["[seed", "1](runs/none-32-s1.json)"]
    assert markdown.count("`nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|") == 1
    assert "A CPU, 2 threads." in markdown
    assert "flatters German" in markdown


def test_the_same_records_give_the_same_bytes(files):
    runs = [load_run(path) for path in files]
    once = table.markdown_table(runs, baselines=["none-32-s1"])
    random.Random(1).shuffle(runs)
    assert table.markdown_table(runs, baselines=["none-32-s1"]) == once
    one_seed = [run for run in runs if run["seed"] == 1]
    assert "±" not in table.markdown_table(one_seed)
    assert "±" in once


def test_a_baseline_is_compared_seed_by_seed(files, records):
    markdown = table.markdown_table([load_run(path) for path in files], baselines=["none-32-s2"], columns=["heads"])
    text = markdown[markdown.index("Compared with heads standard, key dim 32, updates 2,500") :]
    rows = rows_of(text.split("\n\n", 1)[1])
    assert [(row["heads"], row["key dim"], row["test set"]) for row in rows] == [
        (h, d, t) for h, d in (("standard", "128"), ("collaborative", "32")) for t in TESTS
    ]
    pairs = zip(sacrebleu_scores(records, "decoder"), sacrebleu_scores(records, "none-32-"), strict=True)
    changes = [a - b for a, b in pairs]
    assert rows[2]["difference in sacreBLEU"] == f"{statistics.mean(changes):+.2f} ± {statistics.stdev(changes):.2f}"
    p_values = [
        bootstrap.compare(records[f"decoder_cross_encoder-32-s{s}"], records[f"none-32-s{s}"], "test_a").p_value
        for s in (1, 2, 3)
    ]
    assert rows[2]["p"] == ", ".join(f"seed {s}: {p:.3f}" for s, p in zip((1, 2, 3), p_values, strict=True))
    assert "bs:1000|seed:12345" in text


def test_what_is_missing_is_said(files, records):
    runs = [load_run(path) for path in files if "decoder" in path.name or "none-32-s1" in path.name]
    for run in runs:
        for test in TESTS:
            run["scores"][test]["sentence_statistics"] = None
    del runs[0]["scores"]["test_b"]
    runs[0]["training"]["words_per_second"] = None
    markdown = table.markdown_table(runs, baselines=["none-32-s1"])
    assert "no sentence statistics" in markdown
    row = rows_of(markdown)[1]
    assert row["words/s"] == "2,500 ± 707 (of 2)"
    assert row["sacreBLEU test_b"].endswith("(of 2)")
    for run in runs:
        run["seed"] = None if run["name"] == "none-32-s1" else run["seed"]
        run["training"]["peak_memory_bytes"] = None
    markdown = table.markdown_table(runs, baselines=["none-32-s1"])
    assert "no runs of the same seed" in markdown
    assert "peak memory" not in markdown
    assert "[record](" in markdown
    chosen = table.markdown_table(runs, columns=["peak_memory", "key_dim"])
    assert rows_of(chosen)[0] == {"peak memory (GiB)": "–", "key dim": "32"}


def test_runs_that_make_no_row_are_refused(files):
    runs = [load_run(path) for path in files]
    with pytest.raises(RecordError, match="both named none-32-s1"):
        frame([*runs, load_run(next(p for p in files if p.stem == "none-32-s1"))], ["heads"])
    with pytest.raises(RecordError, match=r"differ in config\.model\.key_dim; group by that too"):
        frame(runs, ["heads"])
    for run in runs:
        if run["name"] == "none-32-s2":
            run["config"]["model"]["dropout"] = 0.1
    with pytest.raises(RecordError, match=r"none-32-s1 and none-32-s2 .* differ in config\.model\.dropout"):
        frame(runs, table.GROUP_BY)
    assert frame(runs, [*table.GROUP_BY, "config.model.dropout"])["row"].nunique() == 4
    for run in runs:
        run["config"]["model"].pop("dropout", None)
        run["seed"] = 5
    with pytest.raises(RecordError, match="have the same seed 5"):
        frame(runs, table.GROUP_BY)
    with pytest.raises(RecordError, match=r"no record has config\.nothing"):
        frame(runs, ["config.nothing"])


def test_speed_is_not_averaged_over_machines(files):
    runs = [load_run(path) for path in files]
    runs[0]["hardware"].update(device="gpu", gpus=[{"name": "A GPU", "memory_bytes": 1}])
    runs[0]["training"]["peak_gpu_bytes"] = 3 * 2**30
    row = rows_of(table.markdown_table(runs))[2]
    assert row["words/s"] == row["training (h)"] == row["peak memory (GiB)"] == "different machines"
    assert "±" in row["validation loss"]
    alone = table.markdown_table(runs[:1])
    assert rows_of(alone)[0]["peak memory (GiB)"] == "3.00"
    assert "on: A GPU." in alone
    assert hardware(runs[1]) == "A CPU, 2 threads"
    runs[0]["hardware"]["gpus"] = [{"name": name, "memory_bytes": 1} for name in ("A GPU", "another", "A GPU")]
    assert hardware(runs[0]) == "2 × A GPU, another"


def test_heads_in_words():
    for sites, words in {
        None: "standard (fairseq's transformer)", "none": "standard", "cross_decoder_encoder": "collaborative",
        "decoder_cross": "collaborative in cross, decoder", "encoder": "collaborative in encoder",
    }.items():  # fmt: skip
        published = {**record("x", sites, 32, 1, {}), "published": "A paper, Table 3"}
        assert heads(published) == f"{words}, as published"
        validate(upgraded(published))
        del published["published"]
        assert heads(published) == words


# the command


def collab(*arguments):
    return main(["table", *map(str, arguments)])


def test_the_command_prints_writes_and_checks(files, tmp_path, capsys):
    assert collab(*files, "--columns", "heads,key_dim,sacrebleu") == 0
    printed = capsys.readouterr().out
    assert list(rows_of(printed)[0]) == ["heads", "key dim", "sacreBLEU test_a", "sacreBLEU test_b"]
    page = tmp_path / "README.md"
    before = "# Title\r\n\n<!-- results: made by collab table -->\nold\n<!-- /results -->\nafter\n"
    page.write_bytes(before.encode())
    options = [*files, "--columns", "heads,records", "--output", page, "--marker", "results"]
    assert collab(*options, "--check") == 1
    assert "README.md is stale" in capsys.readouterr().err
    assert page.read_bytes() == before.encode()
    assert collab(*options) == 0
    after = page.read_bytes().decode()
    assert re.match(r"# Title\r\n\n<!-- results: made by collab table -->\n\| heads +\| records +\|\n", after)
    assert after.endswith("\n<!-- /results -->\nafter\n")
    assert "](runs/none-32-s1.json)" in after
    assert "old" not in after
    assert collab(*options, "--check") == 0
    assert collab(*options[1:], "--check") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "runs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--marker", "x"], "--marker needs --output"),
        (["--check"], "--check needs --output"),
        (["--columns", "bleu"], "unknown column bleu, expected some of heads, key_dim, updates, seeds"),
        (["--baseline", "x"], "no record is named x, the baseline; expected one of none-None-s1"),
        (["--figure", "x.pdf"], "must end in .png or .svg, got x.pdf"),
        (["--figure", "x.png", "--x", "updates", "--y", "sacrebleu"], "--x updates draws curves of valid_loss"),
        (["--figure", "x.png", "--baseline", "x"], "--baseline is of a table, and --figure draws instead"),
        (["--output", "no-page.md", "--marker", "x"], "no-page.md does not exist; with --marker it must"),
    ],
)
def test_wrong_flags_are_explained(files, capsys, arguments, message):
    assert collab(*files, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_files_that_are_no_records_are_named(tmp_path, capsys):
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    write_json({"schema": 1}, tmp_path / "empty.json")
    for name, message in (("bad", "cannot read"), ("empty", "is not a valid record: schema and"), ("no", "cannot")):
        assert collab(tmp_path / f"{name}.json") == 1
        error = capsys.readouterr().err
        assert message in error
        assert f"{name}.json" in error


def test_markers_must_be_a_pair():
    for page in ("none", "<!-- r -->\n", "<!-- /r -->\n<!-- r -->\n", "<!-- r -->\n" * 2 + "<!-- /r -->"):
        with pytest.raises(RecordError, match="must have the line <!-- r --> once and <!-- /r --> once after it"):
            pages.with_part(page, "r", "x")
    page = "<!-- r -->\n<!-- /r -->\n<!-- rest -->\n"
    assert pages.with_part(page, "r", "\nx\n\n") == "<!-- r -->\nx\n<!-- /r -->\n<!-- rest -->\n"
    assert pages.with_part(pages.with_part(page, "r", "x"), "r", "") == page


# figures


@pytest.mark.parametrize(("package", "what"), [("matplotlib", "figures need"), ("pandas", "tables need")])
def test_a_missing_package_is_named_with_the_extra(files, tmp_path, monkeypatch, capsys, package, what):
    monkeypatch.setitem(sys.modules, package, None)
    assert collab(*files, "--figure", tmp_path / "x.svg") == 1
    error = capsys.readouterr().err
    assert f"{what} {package}" in error
    assert "extra `plots`" in error
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize(
    "flags", [[], *(["--x", x, "--y", "valid_loss"] for x in ("parameters", "wall_time")), ["--x", "updates"]]
)
def test_figures_are_small_and_the_same_every_time(files, tmp_path, flags):
    matplotlib = pytest.importorskip("matplotlib")
    images = []
    for size in (10, 20):  # a user's own settings change nothing, and are left alone
        matplotlib.rcParams["font.size"] = size
        assert collab(*files, "--figure", tmp_path / "x.svg", *flags) == 0
        assert matplotlib.rcParams["font.size"] == size
        images.append((tmp_path / "x.svg").read_bytes())
    matplotlib.rcdefaults()
    assert images[0] == images[1]
    assert 2000 < len(images[0]) < 60_000
    text = images[0].decode()
    assert ">collaborative" in text
    assert ">standard" in text
    assert (">standard, on A CPU, 2 threads<" in text) == (flags[1:2] == ["wall_time"])
    panels = len(set(re.findall(r">(test_[ab])<", text)))
    assert panels == (0 if flags else 2)
    assert collab(*files, "--figure", tmp_path / "x.png", *flags) == 0
    png = (tmp_path / "x.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert 5000 < len(png) < 100_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "x.png", "x.svg"]


def test_nothing_to_draw_is_an_error(files, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    content = json.loads(files[0].read_text())
    content["parts"].update(scores={}, curves={})
    write_json(content, tmp_path / "bare.json")
    for flags in ([], ["--x", "updates"], ["--y", "valid_loss"]):
        assert collab(tmp_path / "bare.json", "--figure", tmp_path / "x.png", *flags) == 1
        assert "nothing to draw" in capsys.readouterr().err
