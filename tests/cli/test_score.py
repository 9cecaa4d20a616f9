"""`collab score`: language of the translations, plain text, comparison of two systems, COMET."""

import gzip
import hashlib
import json
import sys
from types import SimpleNamespace

import pytest
from sacrebleu.metrics import BLEU

from collab_fairseq.scoring import comet, text
from collab_fairseq.scoring.evaluation import evaluate
from collab_fairseq.scoring.significance import paired_bootstrap
from collab_fairseq.scoring.sufficient_statistics import load
from fairseq_modern.errors import UserError
from tests.common import collab, content
from tests.scoring.test_scoring import GUESS, RAW, log_lines, write

DICTIONARIES = [
    f"2026-01-01 00:00:00 | INFO | fairseq.tasks.translation | [{x}] dictionary: 8 types" for x in ("de", "en")
]
SETTINGS = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'task': {'source_lang': 'de', 'target_lang': 'nl'}}"]


@pytest.mark.parametrize(
    ("messages", "reference", "flag", "language"),
    [
        (DICTIONARIES, "test.de", None, "en"),
        (SETTINGS + DICTIONARIES, "test.de", None, "nl"),
        (SETTINGS, "test.de", "fr", "fr"),
        ([], "test.pt_BR.gz", None, "pt_BR"),
        ([], "test.zh_Hans", None, "zh_Hans"),
        ([], "test.es-419", None, "es-419"),
        ([], "test.en-zh", None, None),
        ([], "test.txt", "de", "de"),
        ([*DICTIONARIES, *DICTIONARIES[1:]], "de", None, "de"),
        ([], "test.txt", None, None),
        ([], "references", None, None),
    ],
)
def test_infers_language_from_flag_log_or_reference(tmp_path, messages, reference, flag, language):
    log, raw = write(tmp_path / "log", [*messages, *log_lines(GUESS)]), write(tmp_path / reference, RAW)
    if language is None:
        with pytest.raises(UserError, match=f"cannot infer the language .* from .*log or .*{reference}: give"):
            evaluate([log], raw, flag)
    else:
        assert evaluate([log], raw, flag).target_lang == language


def test_a_second_reference_is_not_dropped(tmp_path):
    raw, other = write(tmp_path / "test.de", RAW), write(tmp_path / "other.de", GUESS)
    plain = write(tmp_path / "plain.txt", GUESS)
    error = collab("score", plain, "--reference", raw, "--reference", other, status=1)
    assert f"--reference must be one file, one reference per sentence; got {raw}, {other}" in error
    assert "sacreBLEU            100.00" in collab("score", plain, "--reference", other)  # control


def test_log_and_plain_text_have_equal_scores_and_are_compared(tmp_path):
    raw, plain = write(tmp_path / "test.de", RAW), write(tmp_path / "plain.txt", GUESS)
    log, other = write(tmp_path / "log", log_lines(GUESS, RAW)), tmp_path / "other.de.gz"
    other.write_bytes(gzip.compress("".join(f"{line}\r\n" for line in RAW[:3] + GUESS[3:]).encode()))
    collab("score", plain, "--reference", raw, "--hypotheses", tmp_path / "kept.gz")
    assert gzip.decompress((tmp_path / "kept.gz").read_bytes()) == plain.read_bytes()
    assert [s.score for s in evaluate([plain], raw).scores] == [s.score for s in evaluate([log], raw).scores]

    scores = tmp_path / "scores.json"
    printed = collab("score", other, "--reference", raw, "--baseline", log, "--json", scores)
    result = json.loads(scores.read_text())
    rows = [side["sentence_statistics"]["rows"]["sacreBLEU"] for side in (result, result["baseline"])]
    comparison = paired_bootstrap(*(load(side, "sacreBLEU") for side in rows))
    better, worse = (BLEU().corpus_score(side, [RAW]).score for side in (RAW[:3] + GUESS[3:], GUESS))
    assert comparison.difference == pytest.approx(better - worse) == result["comparison"]["difference"]
    interval = f"95 % interval [{comparison.low:+.2f}, {comparison.high:+.2f}]"
    line = f"+{better - worse:.2f}, {interval}, p = {comparison.p_value:.3f}"
    assert f"\ndifference           {line}\n" in printed
    assert printed.count("\nsacreBLEU ") == 2
    assert f"sacreBLEU of {other} − {log}" in printed
    assert "of two models: other seeds of the same settings can differ as much" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plain.txt other.txt --reference test.de", "plain text must be in one file"),
        ("plain.txt --reference test.de --comet x", "COMET needs the raw --reference and --source"),
        ("plain.txt --reference test.de --comet x --source short.de", "or it belongs to a different test set"),
        (
            "tokens --reference test.de --comet x --source test.de",
            "test.de must have the sentences of the log's sources",
        ),
        ("plain.txt --reference test.de --comet x --source test.de", "pip install unbabel-comet, in a separate"),
        ("tokens --target-lang de --comet x --source test.de", "COMET needs the raw --reference"),
        ("plain.txt --reference test.de --target-lang ../x", "a language must be a name"),
        ("plain.txt --reference test.de --target-lang ja_JP", "sacreBLEU cannot tokenise ja_JP: Japanese tokenization"),
        ("tokens --target-lang de --baseline tokens", "needs a raw --reference for tokenised text"),
        ("empty.txt --reference test.de", "empty.txt: no hypotheses"),
        ("plain.txt --reference test.de --hypotheses plain.txt", "name ends in .gz; got plain.txt"),
        ("plain.txt --reference test.de --baseline other.gz --hypotheses other.gz", "other.gz is one of the inputs"),
        ("plain.txt --reference test.de --json x.gz --hypotheses x.gz", "must be two files; got x.gz for both"),
        ("plain.txt --reference test.de --json ./test.de", "./test.de is one of the inputs"),
        ("plain.txt --reference test.de --comet x --source short.de --json short.de", "short.de is one of the inputs"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    tokens = text.moses_tokeniser("de")(RAW)
    texts = {"plain.txt": GUESS, "other.txt": RAW, "test.de": RAW, "short.de": RAW[:3], "empty.txt": []}
    for name, lines in {**texts, "tokens": log_lines(tokens, tokens)}.items():
        write(tmp_path / name, lines)
    monkeypatch.setitem(sys.modules, "MeCab", None)  # as if sacrebleu[ja] were not installed
    (tmp_path / "other.gz").write_bytes(gzip.compress((tmp_path / "other.txt").read_bytes()))
    before = content(tmp_path)
    assert message in collab("score", *arguments.split(), status=1)
    assert content(tmp_path) == before


def test_comet_scores_sources_hypotheses_and_references(tmp_path, monkeypatch):
    """With a mock of the package, whose score is the share of words of the reference in the hypothesis."""
    samples = []

    def predict(data, gpus, progress_bar):
        samples.extend(data)
        scores = [len(set(d["mt"].split()) & set(d["ref"].split())) / len(d["ref"].split()) for d in data]
        return SimpleNamespace(scores=scores)

    def download_model(name):
        if name == "Unbabel/none":
            raise KeyError("no model Unbabel/none\nis known")
        return f"cache/{name}"

    models = dict.fromkeys(["cache/Unbabel/x", str(tmp_path / "model.ckpt")], SimpleNamespace(predict=predict))
    package = SimpleNamespace(download_model=download_model, load_from_checkpoint=models.get)
    monkeypatch.setitem(sys.modules, "comet", package)
    monkeypatch.setattr(comet.importlib.metadata, "version", lambda name: "2.2")
    raw, source = (
        write(tmp_path / "test.de", RAW),
        write(tmp_path / "test.en", [f"source {n}" for n in range(len(RAW))]),
    )
    write(tmp_path / "model.ckpt", [])
    tokens = write(tmp_path / "log", log_lines(text.moses_tokeniser("de")(GUESS)))
    files = ["score", tokens, "--reference", raw, "--source", source, "--json", tmp_path / "x.json"]
    digest = hashlib.sha256((tmp_path / "model.ckpt").read_bytes()).hexdigest()
    for model, name in (("Unbabel/x", "x"), (tmp_path / "model.ckpt", f"model.ckpt-{digest[:8]}")):
        printed = collab(*files, "--target-lang", "de", "--tokenised", "yes", "--comet", model)
        assert f"signature unbabel-comet:2.2|model:{name}\n" in printed
        result = json.loads((tmp_path / "x.json").read_text())
        rows = load(result["sentence_statistics"]["rows"]["COMET"], "COMET")
        (score,) = (entry["score"] for entry in result["scores"] if entry["metric"] == "COMET")
        assert score == pytest.approx(rows[:, 0].mean(), abs=1e-4)
        assert 10 < score < 100
        assert [file["file"] for file in result["files"]] == ["log", "test.en", "test.de"]
    assert len(samples) == 2 * len(RAW)
    assert samples[0] == {"src": "source 0", "mt": GUESS[0], "ref": RAW[0]}
    assert "got Unbabel/none, which cannot be loaded" in collab(*files, "--comet", "Unbabel/none", status=1)
