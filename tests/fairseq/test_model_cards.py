"""The README of an exported folder: its facts about the model, and the commands it shows."""

import json
import re
import subprocess
import sys

import pytest
import torch

import collab_fairseq
from collab_fairseq.cli import main
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from fairseq_modern.errors import UserError
from tests.common import ROOT, run
from tests.fairseq.serving_cases import SOURCES, cases

TRAINING = ROOT / "results" / "runs" / "multi30k-encoder_cross_decoder-dk32-blocks8-s1-u4000.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return cases(tmp_path_factory.mktemp("cards"))


def export(checkpoint, target, output, *flags):
    """Export on the command line; returns the README."""
    argv = ["export", checkpoint, "--to", target, "--output", output, *flags]
    assert main.main(list(map(str, argv))) == 0
    return (output / "README.md").read_text(encoding="utf-8")


def code_blocks(readme, language):
    return [code.strip("\n") for code in re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)]


def test_reports_numbers_of_the_training_record(models, tmp_path):
    licence = "CC BY-NC 4.0, as the images' captions"
    flags = ["--record", TRAINING, "--licence", licence]
    readme = export(models.checkpoint("collaborative"), "folder", tmp_path / "one", *flags)
    record = json.loads(TRAINING.read_text())
    assert readme.startswith("# Translation model, src to tgt\n")
    assert "- attention of encoder, cross, decoder: 2 collaborative heads" in readme
    assert f"- licence: {licence}\n" in readme
    assert re.search(r"^- checkpoint: \d+\.pt, SHA-256 [0-9a-f]{64}, 5 updates$", readme, re.MULTILINE)
    for test, evaluation in record["parts"]["scores"].items():
        (score,) = (score for score in evaluation["scores"] if score["metric"] == "sacreBLEU")
        assert f"| {test} | {score['score']:.2f} |\n" in readme
        assert f"Signature: `{score['signature']}`\n" in readme
    assert record["command"] in code_blocks(readme, "bash")
    assert all(f"{digest}  {file}\n" in readme for file, digest in record["settings"]["data"].items())
    # exporting the folder again keeps its record and licence
    other = export(tmp_path / "one", "ctranslate2", tmp_path / "two")
    assert other.partition("## Scores")[2] == readme.partition("## Scores")[2] != ""
    assert f"- licence: {licence}\n" in other


def test_reports_the_effect_of_a_conversion(models, tmp_path):
    bleu = {"before": 38.716, "after": 38.9, "signature": "nrefs:1", "references": "test.de"}
    evaluation = {"valid loss": {"before": 2.49713, "after": 2.51}, "BLEU test": bleu}
    record = {**json.loads(TRAINING.read_text()), "parts": {"evaluation": evaluation}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    flags = ["--record", tmp_path / "record.json"]
    readme = export(models.checkpoint("collaborative"), "folder", tmp_path / "out", *flags)
    assert "| test | 38.72 → 38.90 |\n\nSignature: `nrefs:1`\n" in readme
    assert "| valid loss | 2.4971 → 2.5100 | – |\n" in readme


def test_omits_unknown_facts(models, tmp_path):
    checkpoint = models.checkpoint("mixed", kv_heads=1)
    readme = export(checkpoint, "folder", tmp_path / "out")
    assert re.search("^- attention of encoder, decoder: 2 standard heads .*1 for keys and 1 for values$", readme, re.M)
    assert "\n- attention of cross: 2 collaborative heads" in readme
    assert "- licence: not stated" in readme
    assert not re.search("## (Scores|Origin)|checksums|None", readme)
    (tmp_path / "other.json").write_text('{"parts": {"scores": 3}}')
    with pytest.raises(UserError, match=r"other\.json is not a record of this project"):
        write(read_source(checkpoint, record=tmp_path / "other.json"), "folder", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "out"]


@pytest.mark.parametrize("target", ["folder", "fairseq"])
def test_commands_translate(models, target, tmp_path):
    readme = export(models.checkpoint("collaborative"), target, tmp_path / "model")
    assert ("--user-dir" in readme) == (target == "folder")
    expected = collab_fairseq.load(tmp_path / "model").translate(SOURCES[:2])
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SOURCES[:2]))
    lines = "\n".join(code_blocks(readme, "bash")).replace("FILE", "text").replace("DIR", "model").splitlines()
    command, python, interactive, hub = (line.replace("…", SOURCES[0]) for line in lines)
    assert run("bash", "-c", command, cwd=tmp_path).stdout.splitlines() == expected
    assert run("bash", "-c", python, cwd=tmp_path).stdout == f"[{expected[0]!r}]\n"
    printed = run("bash", "-c", f"{interactive} --cpu < text", cwd=tmp_path).stdout
    assert re.findall(r"^D-\d+\t\S+\t(.*)$", printed, re.MULTILINE) == expected
    assert run("bash", "-c", hub, cwd=tmp_path).stdout == f"[{expected[0]!r}]\n"


def test_code_for_transformers_translates_without_this_package(models, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    source = read_source(models.checkpoint("collaborative"))
    with torch.no_grad():  # sentences end soon; an initial </s>, which is not allowed, is often the most probable
        source.model.decoder.output_projection.weight[2] *= 3
    write(source, "folder", tmp_path / "own")
    write(source, "huggingface", tmp_path / "DIR")
    (code,) = code_blocks((tmp_path / "DIR" / "README.md").read_text(encoding="utf-8"), "python")
    (page,) = code_blocks((ROOT / "docs" / "serving.md").read_text(encoding="utf-8"), "python")[1:]
    assert code == page.replace('"en"', '"src"').replace('"de"', '"tgt"')
    expected = collab_fairseq.load(tmp_path / "own").translate(SOURCES[:6])
    assert all(expected)
    monkeypatch.chdir(tmp_path)
    programs = [code.replace("A man is riding a bike.", text) for text in SOURCES[:6]]
    script = "\n".join([*programs, "import sys", "assert 'collab_fairseq' not in sys.modules"])
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == expected
