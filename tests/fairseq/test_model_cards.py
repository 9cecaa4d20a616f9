"""The README of an exported folder: what it states about a model, and that its commands translate."""

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
    """Export on the command line; the text of the model card."""
    argv = ["export", checkpoint, "--to", target, "--output", output, *flags]
    assert main.main(list(map(str, argv))) == 0
    return (output / "README.md").read_text(encoding="utf-8")


def blocks(card, language):
    return [found.strip("\n") for found in re.findall(rf"^```{language}\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)]


def test_the_card_has_the_numbers_of_the_record(models, tmp_path):
    checkpoint = models.checkpoint("collaborative")
    licence = "CC BY-NC 4.0, as the images' captions"
    card = export(checkpoint, "folder", tmp_path / "one", "--record", TRAINING, "--licence", licence)
    record = json.loads(TRAINING.read_text())
    assert card.startswith("# Translation model, src to tgt\n")
    assert "- attention of encoder, cross, decoder: 2 collaborative heads with a shared key dimension of 6\n" in card
    assert f"- licence: {licence}\n" in card
    for test, scored in record["parts"]["scores"].items():
        (score,) = (each for each in scored["scores"] if each["metric"] == "sacreBLEU")
        assert f"| {test} | {score['score']:.2f} |\n" in card
        assert f"Signature: `{score['signature']}`\n" in card
    assert record["command"] in blocks(card, "bash")
    assert all(f"{digest}  {file}\n" in card for file, digest in record["settings"]["data"].items())
    # of a folder, the record and the licence stay the model's
    other = export(tmp_path / "one", "ctranslate2", tmp_path / "two")
    assert other.partition("## Scores")[2] == card.partition("## Scores")[2] != ""
    assert f"- licence: {licence}\n" in other


def test_what_a_conversion_changed(models, tmp_path):
    bleu = {"before": 38.716, "after": 38.9, "signature": "nrefs:1", "references": "test.de"}
    evaluation = {"valid loss": {"before": 2.49713, "after": 2.51}, "BLEU test": bleu}
    record = {**json.loads(TRAINING.read_text()), "parts": {"evaluation": evaluation}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    flags = ["--record", tmp_path / "record.json"]
    card = export(models.checkpoint("collaborative"), "folder", tmp_path / "out", *flags)
    assert "| test | 38.72 → 38.90 |\n\nSignature: `nrefs:1`\n" in card
    assert "| valid loss | 2.4971 → 2.5100 | – |\n" in card


def test_a_card_leaves_out_what_it_does_not_know(models, tmp_path):
    checkpoint = models.checkpoint("mixed", kv_heads=1)
    card = export(checkpoint, "folder", tmp_path / "out")
    standard = "2 standard heads with a key dimension of 6, 3 each, in groups: 1 for keys and 1 for values"
    assert f"- attention of encoder, decoder: {standard}\n- attention of cross: 2 collaborative heads" in card
    assert "- licence: not stated" in card
    assert not re.search("## (Scores|Origin)|SHA-256|None", card)
    (tmp_path / "other.json").write_text('{"parts": {"scores": 3}}')
    with pytest.raises(UserError, match=r"other\.json is not a record of this project"):
        write(read_source(checkpoint, record=tmp_path / "other.json"), "folder", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "out"]


@pytest.mark.parametrize("target", ["folder", "fairseq"])
def test_the_commands_of_a_card_translate(models, target, tmp_path):
    card = export(models.checkpoint("collaborative"), target, tmp_path / "model")
    assert ("--user-dir" in card) == (target == "folder")
    expected = collab_fairseq.load(tmp_path / "model").translate(SOURCES[:2])
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SOURCES[:2]))
    lines = "\n".join(blocks(card, "bash")).replace("FILE", "text").replace("DIR", "model").splitlines()
    command, python, interactive, hub = (line.replace("…", SOURCES[0]) for line in lines)
    assert run("bash", "-c", command, cwd=tmp_path).stdout.splitlines() == expected
    assert run("bash", "-c", python, cwd=tmp_path).stdout == f"[{expected[0]!r}]\n"
    printed = run("bash", "-c", f"{interactive} --cpu < text", cwd=tmp_path).stdout
    assert re.findall(r"^D-\d+\t\S+\t(.*)$", printed, re.MULTILINE) == expected
    assert run("bash", "-c", hub, cwd=tmp_path).stdout == f"[{expected[0]!r}]\n"


def test_the_code_for_transformers_translates_without_this_package(models, tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    source = read_source(models.checkpoint("collaborative"))
    with torch.no_grad():  # sentences end soon; often </s> is the most probable in the first place, where it may not be
        source.model.decoder.output_projection.weight[2] *= 3
    write(source, "folder", tmp_path / "own")
    write(source, "huggingface", tmp_path / "DIR")
    (code,) = blocks((tmp_path / "DIR" / "README.md").read_text(encoding="utf-8"), "python")
    (page,) = blocks((ROOT / "docs" / "serving.md").read_text(encoding="utf-8"), "python")[1:]
    assert code == page.replace('"en"', '"src"').replace('"de"', '"tgt"')
    expected = collab_fairseq.load(tmp_path / "own").translate(SOURCES[:6])
    assert all(expected)
    monkeypatch.chdir(tmp_path)
    for text, translation in zip(SOURCES[:6], expected, strict=True):
        exec(code.replace("A man is riding a bike.", text), {})
        assert capsys.readouterr().out == f"{translation}\n"
    alone = f"{code}\nimport sys\nassert 'collab_fairseq' not in sys.modules".replace("A man is riding a bike.", text)
    done = subprocess.run([sys.executable, "-c", alone], check=True, capture_output=True, text=True)
    assert done.stdout == f"{translation}\n"
