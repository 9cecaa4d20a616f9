"""Exported folders: facts and commands of the README, and errors for damaged or manipulated files."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import collab_fairseq
from collab_fairseq import checkpoints
from collab_fairseq.export import readme as model_card
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from collab_fairseq.translation import add_text, load_model, translate
from fairseq_modern.errors import UserError
from fairseq_modern.files import new_folder, remove_stale_temp_files
from tests.common import ROOT, collab, run
from tests.export.cases import SOURCES
from tests.forked import check_killed, kill
from tests.models.cases import same_model

TRAINING = ROOT / "results" / "runs" / "multi30k-encoder_cross_decoder-dk32-blocks8-s1-u4000.json"


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    """A folder with one exported model for each of two targets."""
    pytest.importorskip("ctranslate2")
    output = tmp_path_factory.mktemp("undamaged")
    for target in ("folder", "ctranslate2"):
        write(read_source(models.checkpoint("collaborative")), target, output / target)
    return output


def check_rejected(folder, match):
    with pytest.raises(UserError, match=match) as caught:
        collab_fairseq.load(folder).translate(SOURCES[:1], beam=2, max_length=8)
    assert len(str(caught.value).splitlines()) == 1


#: change of the dictionary; error message
DICTIONARIES = {
    "not UTF-8": (lambda text: b"\xff\xfe 1\n" + text, "Incorrect encoding"),
    "no counts": (lambda text: text.replace(b" 1\n", b"\n"), "Incorrect dictionary format"),
    "a word twice": (lambda text: text.partition(b"\n")[0] + b"\n" + text, "Duplicate word"),
    "an extra word": (lambda text: text + b"extra 1\n", "the data of another model"),
}


@pytest.mark.parametrize("name", DICTIONARIES)
def test_rejects_malformed_dictionary_with_valid_checksum(name, folders, tmp_path):
    folder = shutil.copytree(folders / "folder", tmp_path / "folder")
    description = json.loads((folder / "translation.json").read_text())
    change, match = DICTIONARIES[name]
    for file in ("dict.src.txt", "dict.tgt.txt"):
        text = change((folder / file).read_bytes())
        (folder / file).write_bytes(text)
        description["files"][file] = hashlib.sha256(text).hexdigest()
    (folder / "translation.json").write_text(json.dumps(description))
    check_rejected(folder, match)


@pytest.mark.parametrize("target", ["folder", "ctranslate2"])
def test_rejects_missing_and_changed_files(target, folders, tmp_path):
    weights = {"folder": "model.pt", "ctranslate2": "model.bin"}[target]
    names = {path.name for path in (folders / target).iterdir()} - {"README.md"}
    assert {weights, "dict.src.txt", "dict.tgt.txt", "sentencepiece.bpe.model", "translation.json"} <= names
    for name in names:
        folder = shutil.copytree(folders / target, tmp_path / name)
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        check_rejected(folder, f"has no {name}")
        (folder / name).write_bytes(b"[" * 99_999 if name == "translation.json" else content[:-1])
        check_rejected(folder, f"{name} (does not describe|differs from the file)")


def setting(name, value):
    return lambda text: json.dumps({**json.loads(text), name: value}).encode()


#: damage → file, its new content (None: no file; a string: link to this path), error message
DAMAGED = {
    "no weights": ("model.bin", lambda content: None, "has no file model.bin"),
    "all but a byte": ("model.bin", lambda content: content[:-1], "cannot use .* model.bin is incomplete"),
    "weights of ones": ("model.bin", lambda content: b"\xff" * len(content), "cannot use"),
    "endless weights": ("model.bin", lambda content: "/dev/zero", "has no file model.bin"),
    "another type": ("config.json", setting("layer_norm_epsilon", "x"), "cannot use .* must be number"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_rejects_damaged_ctranslate2_folder_without_checksums(name, folders, tmp_path):
    """Descriptions by earlier versions contain no checksums of the files of CTranslate2."""
    folder = shutil.copytree(folders / "ctranslate2", tmp_path / "folder")
    description = json.loads((folder / "translation.json").read_text())
    for file in ("model.bin", "config.json"):
        del description["files"][file]
    (folder / "translation.json").write_text(json.dumps(description))
    collab_fairseq.load(folder)  # control
    file, change, match = DAMAGED[name]
    content = change((folder / file).read_bytes())
    (folder / file).unlink()
    if isinstance(content, str):
        (folder / file).symlink_to(content)
    elif content is not None:
        (folder / file).write_bytes(content)
    check_rejected(folder, match)


def test_export_removes_folders_of_killed_exports(tmp_path):
    (tmp_path / f"other.{16 * 'a'}.tmp").mkdir()

    def export():
        with new_folder(tmp_path / "folder") as work:
            Path(work, "weights").write_text("half")
            kill()

    check_killed(export)
    assert len(list(tmp_path.iterdir())) == 2
    with new_folder(tmp_path / "folder") as slow:
        assert remove_stale_temp_files(str(tmp_path), "folder") == []
        assert os.path.isdir(slow)  # the process is alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", f"other.{16 * 'a'}.tmp"]


def test_interruption_between_the_renames_keeps_the_old_folder(tmp_path, monkeypatch):
    output = tmp_path / "data"
    output.mkdir()
    (output / "text").write_text("old")
    rename, renames = os.rename, []

    def interrupted(source, target):
        renames.append(source)
        if len(renames) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(output, replace=True) as work:
        Path(work, "text").write_text("new")
    assert (output / "text").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def export(checkpoint, target, output, *flags):
    """Export on the command line; returns the README."""
    collab("export", checkpoint, "--to", target, "--output", output, *flags)
    return (output / "README.md").read_text(encoding="utf-8")


def code_blocks(readme, language):
    return [code.strip("\n") for code in re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)]


def test_readme_has_the_numbers_of_the_record(models, tmp_path):
    """Those of a training run, and those of a conversion."""
    record, licence = json.loads(TRAINING.read_text()), "CC BY-NC 4.0, as the images' captions"
    record["settings"]["averaged_from"] = None
    bleu = {"before": 38.716, "after": 38.9, "signature": "nrefs:1", "references": "test.de"}
    record["parts"]["evaluation"] = {"valid loss": {"before": 2.49713, "after": 2.51}, "BLEU test": bleu}
    (tmp_path / "record.json").write_text(json.dumps(record))
    flags = ["--record", tmp_path / "record.json", "--licence", licence]
    readme = export(models.checkpoint("collaborative"), "folder", tmp_path / "one", *flags)
    assert "- attention of encoder, cross, decoder: 2 collaborative heads" in readme
    assert f"- licence: {licence}\n" in readme
    assert re.search(r"^- checkpoint: \d+\.pt, SHA-256 [0-9a-f]{64}, 5 updates$", readme, re.MULTILINE)
    for test, evaluation in record["parts"]["scores"].items():
        (score,) = (score for score in evaluation["scores"] if score["metric"] == "sacreBLEU")
        assert f"| {test} | {score['score']:.2f} |\n" in readme
        assert f"\nSignature: `{score['signature']}`, `nrefs:1`\n" in readme
    assert "| test | 38.72 → 38.90 |\n" in readme
    assert "| valid loss | 2.4971 → 2.5100 | – |\n" in readme
    assert record["command"] in code_blocks(readme, "bash")
    assert all(f"{digest}  {file}\n" in readme for file, digest in record["settings"]["data"].items())
    # exporting the folder again keeps its record and licence
    other = export(tmp_path / "one", "ctranslate2", tmp_path / "two")
    assert other.partition("## Scores")[2] == readme.partition("## Scores")[2] != ""
    assert f"- licence: {licence}\n" in other


def test_the_record_is_of_the_checkpoint(models, tmp_path):
    """By SHA-256: of the output of a conversion, and of the checkpoints that a run has averaged."""
    average, one = tmp_path / "averaged.pt", models.checkpoint("collaborative")
    state, report = checkpoints.average([one])
    checkpoints.save(state, average)
    record = json.loads(TRAINING.read_text())
    other = record["settings"]["averaged_from"]
    assert len(other) > 1
    digest = hashlib.sha256(average.read_bytes()).hexdigest()
    for number, (averaged, parts, message) in enumerate(
        (
            (other, {}, "got that of another average"),
            (report, {}, None),
            ([], {"output": {"file": "x.pt", "sha256": "0" * 64}}, "got that of x.pt, another file"),
            ([], {"output": {"file": "x.pt", "sha256": digest}}, None),
        )
    ):
        (tmp_path / "record.json").write_text(
            json.dumps({**record, "parts": parts, "settings": {**record["settings"], "averaged_from": averaged}})
        )
        output = tmp_path / f"output{number}"
        command = ["export", average, "--to", "folder", "--output", output, "--record", tmp_path / "record.json"]
        error = collab(*command, status=1 if message else 0)
        assert output.is_dir() == (message is None)
        if message:
            assert f"record.json must be the record of this checkpoint; {message}" in error
        else:  # a folder has the record of its checkpoint
            collab("export", output, "--to", "folder", "--output", tmp_path / f"again{number}")
    command = ["export", one, "--to", "folder", "--output", tmp_path / "one", "--record", TRAINING]
    assert "got that of another average" in collab(*command, status=1)  # of an average


def test_readme_omits_unknown_facts(models, tmp_path):
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


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        (["--licence", "Apache 2.0"], ("apache-2.0", None)),
        (["--licence", "CC BY-NC 4.0, as the captions"], ("other", "cc-by-nc-4.0-as-the-captions")),
        ([], ("unknown", None)),
    ],
)
def test_the_hub_reads_the_metadata(models, licence, expected, tmp_path):
    """Compared with the parser of huggingface_hub."""
    hub = pytest.importorskip("huggingface_hub")
    dataset = ["--dataset", "bentrevett/multi30k"] * bool(licence)
    content = json.loads(TRAINING.read_text())
    content["settings"]["averaged_from"] = None
    (tmp_path / "record.json").write_text(json.dumps(content))
    flags = [*licence, *dataset, *["--record", tmp_path / "record.json"] * bool(licence)]
    export(models.checkpoint("collaborative"), "folder", tmp_path / "one", *flags)
    write(read_source(tmp_path / "one"), "folder", tmp_path / "two", half=True)  # keeps licence, datasets and record
    for folder in ("one", "two"):
        card = hub.ModelCard.load(tmp_path / folder / "README.md")
        assert (card.data.license, card.data.license_name) == expected
        assert (card.data.language, card.data.pipeline_tag) == (["src", "tgt"], "translation")
        assert (card.data.library_name, card.data.datasets) == ("fairseq", dataset[1:] or None)
        assert ("\n- weights in half precision\n" in card.text) == (folder == "two")
        scores = content["parts"]["scores"] if licence else {}
        bleu = {test: next(s["score"] for s in scores[test]["scores"] if s["metric"] == "sacreBLEU") for test in scores}
        results = card.data.eval_results or []
        assert {result.dataset_name: result.metric_value for result in results} == pytest.approx(bleu, abs=0.0051)
        assert all(result.metric_type == "bleu" for result in results)


def test_commands_take_a_checkpoint_or_its_folder(models, tmp_path):
    """With the same results."""
    checkpoint, folder = models.checkpoint("standard"), tmp_path / "folder"
    export(checkpoint, "folder", folder)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SOURCES[:3]))
    translations = [run("collab", "translate", model, tmp_path / "text").stdout for model in (checkpoint, folder)]
    assert translations[0] == translations[1] != "\n\n\n"
    tables = [collab("heads", "redundancy", model) for model in (checkpoint, folder)]
    assert tables[0] == tables[1]
    state = checkpoints.load(checkpoint)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    checkpoints.save(state, tmp_path / "moved.pt")
    assert "flags of `collab export`" in collab("translate", tmp_path / "moved.pt", tmp_path / "text", status=1)
    outputs = [tmp_path / f"{number}.pt" for number in range(2)]
    for model, output in zip((checkpoint, folder), outputs, strict=True):
        collab("reparam", model, "--key-dim", 4, "--output", output)
    assert same_model(*(checkpoints.load(output)["model"] for output in outputs))


def test_readme_names_a_factor_of_the_logits():
    published = ROOT / "results" / "models"
    for name, factor in (("convergence-standard-256", True), ("multi30k-standard-128", False)):
        text = model_card.readme(read_source(published / name), "torch", "Translation model", [], model_card.Written())
        assert ("32 each, attention logits × 0.62\n" in text) == factor
        assert ("32 each\n" in text) != factor


@pytest.mark.parametrize("target", ["folder", "fairseq", "ctranslate2", "huggingface"])
def test_readme_describes_the_exported_model(models, target, tmp_path):
    """Its number of parameters is that of the written weights; the permissions of all files follow the umask."""
    transformers = pytest.importorskip("transformers") if target == "huggingface" else None
    if target == "ctranslate2":
        pytest.importorskip("ctranslate2")
    checkpoint, reduced = (
        models.checkpoint(kind, key_dim=dim) for kind, dim in (("standard", 16), ("collaborative", 2))
    )
    umask = os.umask(0o027)
    try:
        readmes = [export(path, target, tmp_path / path.stem) for path in (checkpoint, reduced)]
    finally:
        os.umask(umask)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / reduced.stem).iterdir()} == {0o640}
    original = checkpoints.num_parameters(checkpoints.load(reduced))
    for path, readme in zip((checkpoint, reduced), readmes, strict=True):
        line = re.search(
            r"^- transformer with ([\d,]+) parameters(?:, of which ([\d,]+) are fixed)?", readme, re.MULTILINE
        )
        parameters, positions = (int((number or "0").replace(",", "")) for number in line.groups())
        folder = tmp_path / path.stem
        if target == "huggingface":
            model = transformers.FSMTForConditionalGeneration.from_pretrained(folder)
            assert parameters == model.num_parameters() > positions > 0
        elif target == "ctranslate2":
            assert 0 < os.path.getsize(folder / "model.bin") - 4 * parameters < 6000  # names and shapes
        else:
            assert parameters == checkpoints.num_parameters(checkpoints.load(folder / "model.pt"))
            assert not positions
        kept = path == checkpoint or target == "folder"
        assert ("this format does not keep the reduction" in readme) != kept
        assert (f"\n- made from a model with {original:,} parameters" in readme) != kept
        summary = "2 collaborative heads with a shared" if path == reduced and kept else "2 standard heads with a"
        assert f"\n- attention of encoder, cross, decoder: {summary} key dimension" in readme


@pytest.mark.parametrize(("target", "subwords"), [("folder", True), ("fairseq", True), ("folder", False)])
def test_commands_of_the_readme_translate(models, tiny_run, tiny_data, target, subwords, tmp_path):
    if subwords:
        readme = export(models.checkpoint("collaborative"), target, tmp_path / "model")
        expected = collab_fairseq.load(tmp_path / "model").translate(SOURCES[:2])
    else:
        readme = export(tiny_run / "checkpoint_best.pt", target, tmp_path / "model", "--data", tiny_data)
        trained = load_model(tiny_run / "checkpoint_best.pt", tiny_data)
        add_text(trained, "text", SOURCES[:2])
        expected = translate(trained, "text")
    assert ("--user-dir" in readme) == (target == "folder")
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
