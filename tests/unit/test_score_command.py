"""`collab score`: whose language is what, plain text, and two systems side by side."""

import gzip
import json

import pytest
from sacrebleu.metrics import BLEU

from collab_fairseq.cli.main import main
from collab_fairseq.scoring import text
from collab_fairseq.scoring.evaluation import evaluate
from collab_fairseq.scoring.references import ScoringError
from collab_fairseq.scoring.significance import paired_bootstrap
from collab_fairseq.scoring.sums import statistics_of
from tests.unit.test_scoring import GUESS, RAW, log_lines, write

DICTIONARIES = [
    f"2026-01-01 00:00:00 | INFO | fairseq.tasks.translation | [{x}] dictionary: 8 types" for x in ("de", "en")
]
SETTINGS = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'task': {'source_lang': 'de', 'target_lang': 'nl'}}"]


@pytest.mark.parametrize(
    ("messages", "reference", "given", "language"),
    [
        (DICTIONARIES, "test.de", None, "en"),
        (SETTINGS + DICTIONARIES, "test.de", None, "nl"),
        (SETTINGS, "test.de", "fr", "fr"),
        ([], "test.pt_BR.gz", None, "pt_BR"),
        ([], "test.txt", "de", "de"),
        ([*DICTIONARIES, *DICTIONARIES[1:]], "de", None, "de"),
        ([], "test.txt", None, None),
        ([], "references", None, None),
    ],
)
def test_the_language_is_told_by_the_log_or_the_reference_or_the_flag(tmp_path, messages, reference, given, language):
    log, raw = write(tmp_path / "log", [*messages, *log_lines(GUESS)]), write(tmp_path / reference, RAW)
    if language is None:
        with pytest.raises(ScoringError, match=f"neither by .*log nor by .*{reference}: give it with --target-lang"):
            evaluate([log], raw, given)
    else:
        assert evaluate([log], raw, given).target_lang == language


def test_plain_text_and_two_systems_side_by_side(tmp_path, capsys):
    """As a log and as text, gzipped or not, the same translations have the same scores."""
    raw, plain = write(tmp_path / "test.de", RAW), write(tmp_path / "plain.txt", GUESS)
    log, other = write(tmp_path / "log", log_lines(GUESS, RAW)), tmp_path / "other.de.gz"
    other.write_bytes(gzip.compress("".join(f"{line}\r\n" for line in RAW[:3] + GUESS[3:]).encode()))
    assert main(["score", str(plain), "--reference", str(raw), "--hypotheses", str(tmp_path / "kept.gz")]) == 0
    assert gzip.decompress((tmp_path / "kept.gz").read_bytes()) == plain.read_bytes()
    assert [s.score for s in evaluate([plain], raw).scores] == [s.score for s in evaluate([log], raw).scores]

    scores = tmp_path / "scores.json"
    command = ["score", str(other), "--reference", str(raw), "--baseline", str(log), "--json", str(scores)]
    assert main(command) == 0
    printed, told = capsys.readouterr().out, json.loads(scores.read_text())
    sides = [statistics_of(side["sentence_statistics"]["rows"]["sacreBLEU"]) for side in (told, told["baseline"])]
    found = paired_bootstrap(*sides)
    better, worse = (BLEU().corpus_score(side, [RAW]).score for side in (RAW[:3] + GUESS[3:], GUESS))
    assert found.difference == pytest.approx(better - worse) == told["comparison"]["difference"]
    interval = f"difference           +{better - worse:.2f}, 95 % interval [{found.low:+.2f}, {found.high:+.2f}], p = "
    assert f"{interval}{found.p_value:.3f}\n" in printed
    assert printed.count("\nsacreBLEU ") == 3
    assert f"sacreBLEU of {other} − {log}" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plain.txt other.txt --reference test.de", "plain.txt is plain text, which comes in one file; another system"),
        ("plain.txt --target-lang de", "there are no references"),
        ("tokens --target-lang de --baseline plain.txt --reference short.de", "short.de has 3 lines, expected 4"),
        ("tokens --target-lang de --baseline tokens", "tokenised text has not without a raw --reference"),
        ("empty.txt --reference test.de", "empty.txt: no hypotheses, expected the output of fairseq-generate"),
    ],
)
def test_what_cannot_be_scored_or_compared_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    tokens = text.moses_tokeniser("de")(RAW)
    texts = {"plain.txt": GUESS, "other.txt": RAW, "test.de": RAW, "short.de": RAW[:3], "empty.txt": []}
    for name, lines in {**texts, "tokens": log_lines(tokens, tokens)}.items():
        write(tmp_path / name, lines)
    assert main(["score", *arguments.split()]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
