"""Lines of text end at "\\n" only, whatever other separators they contain; both sides have the same number of lines."""

import fileinput
import subprocess
import sys
from collections import Counter

import pytest
from fairseq import file_chunker_utils, options
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq_cli import interactive, preprocess, score

from fairseq_modern.errors import UserError
from tests.common import content

SEPARATORS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
#: sentences with a separator between words, at an end, or twice, and the last one without "\n"
SENTENCES = [f"a{sep}bä c" for sep in SEPARATORS] + [f"{sep}d e{sep}{sep}f" for sep in SEPARATORS]
SENTENCES += ["\r", "", "über 𝄞 a\r", "b c"]


def write(path, sentences, end="\n"):
    path.write_bytes(end.join(sentences).encode())
    return sentences


def binarise(folder, *more, workers=1):
    """Run fairseq-preprocess on folder/text.src and folder/text.tgt; return the folder of the data."""
    words = ["-s", "src", "-t", "tgt", "--trainpref", folder / "text", "--destdir", folder / "data", *more]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args([*map(str, words), "--workers", str(workers)]))
    return folder / "data"


def lengths(data, lang):
    dictionary = Dictionary.load(f"{data}/dict.{lang}.txt")
    return data_utils.load_indexed_dataset(f"{data}/train.src-tgt.{lang}", dictionary).sizes.tolist()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_preprocess_splits_text_at_newlines_only(tmp_path, end, workers):
    """The reference splits bytes."""
    write(tmp_path / "text.src", SENTENCES * 20, end)
    write(tmp_path / "text.tgt", ["x y"] * len(SENTENCES * 20), end)
    data = binarise(tmp_path, workers=workers)
    lines = (tmp_path / "text.src").read_bytes().split(b"\n")
    assert lengths(data, "src") == [len(line.decode().split()) + 1 for line in lines]
    assert lengths(data, "tgt") == [3] * len(lines)
    dictionary = Dictionary.load(f"{data}/dict.src.txt")
    counts = Counter(word for line in lines for word in line.decode().split())
    assert {word: dictionary.get_count(dictionary.index(word)) for word in counts} == counts


def test_without_the_patch_other_lines_are_binarised(tmp_path, monkeypatch):
    write(tmp_path / "text.src", SENTENCES)
    write(tmp_path / "text.tgt", ["x y"] * len(SENTENCES))
    expected = lengths(binarise(tmp_path), "src")
    monkeypatch.delattr(file_chunker_utils, "open")
    assert len(
        lengths(
            binarise(
                tmp_path, "--srcdict", tmp_path / "data/dict.src.txt", "--tgtdict", tmp_path / "data/dict.tgt.txt"
            ),
            "src",
        )
    ) > len(expected)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_raw_text_keeps_its_lines(tmp_path, end):
    path = tmp_path / "text"
    write(path, SENTENCES, end)
    data = indexed_dataset.IndexedRawTextDataset(str(path), Dictionary())
    expected = [line.removesuffix("\r") for line in path.read_bytes().decode().split("\n")]
    assert [data.get_original_text(i) for i in range(len(data))] == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_interactive_translates_one_line_per_newline(tmp_path, monkeypatch, end):
    path = str(tmp_path / "text")
    expected = [sentence.strip() for sentence in write(tmp_path / "text", SENTENCES, end)]
    chunks = list(interactive.buffered_read(path, 4))
    assert [line for chunk in chunks for line in chunk] == expected
    assert {len(chunk) for chunk in chunks[:-1]} == {4}
    monkeypatch.setattr(interactive, "fileinput", fileinput)
    assert len(next(interactive.buffered_read(path, 999))) > len(expected), "the defect"


def test_standard_input_needs_no_patch():
    script = "import sys; print(sys.stdin.readlines())"
    done = subprocess.run([sys.executable, "-c", script], input=b"a\rb\nc\r\nd", capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(["a\rb\n", "c\r\n", "d"])


def test_score_compares_lines(tmp_path, monkeypatch, capsys):
    """The references contain carriage returns, the translations do not."""
    hypotheses = write(tmp_path / "sys", [f"{n} b c d e" for n in range(9)])
    write(tmp_path / "ref", [line.replace(" c", "\rc") for line in hypotheses])
    monkeypatch.setattr("sys.argv", ["fairseq-score", "-s", str(tmp_path / "sys"), "-r", str(tmp_path / "ref")])

    def bleu():
        score.cli_main()
        return float(capsys.readouterr().out.split("BLEU4 = ")[1].split(",")[0])

    assert bleu() == 100
    monkeypatch.delattr(score, "open")
    assert bleu() < 50, "the defect"


@pytest.mark.parametrize(
    ("numbers", "more", "message"),
    [
        (
            {"text.src": 3, "text.tgt": 2},
            [],
            r"text\.src and \S+text\.tgt must have the same number of lines; got 3 and 2",
        ),
        ({"valid2.src": 2, "valid2.tgt": 3}, ["--validpref", "text,valid2"], r"valid2\.src and .*got 2 and 3"),
        (
            {"test.src": 1, "test.tgt": 0},
            ["--testpref", "test", "--dataset-impl", "raw"],
            r"test\.src and .*got 1 and 0",
        ),
        ({"text.align": 4}, ["--align-suffix", "align"], r"text\.src and \S+text\.align .*got 5 and 4"),
        ({"aligned": 6}, ["--alignfile", "aligned"], r"text\.src and \S*aligned .*got 5 and 6"),
    ],
)
def test_files_that_are_no_translations_of_each_other_are_rejected(tmp_path, monkeypatch, numbers, more, message):
    monkeypatch.chdir(tmp_path)
    for name, number in {"text.src": 5, "text.tgt": 5, **numbers}.items():
        (tmp_path / name).write_text("0-0\n" * number)
    before = content(tmp_path)
    with pytest.raises(UserError, match=message):
        binarise(tmp_path, *more)
    assert content(tmp_path) == before, "nothing is written"
    (tmp_path / "text.tgt").write_text("0-0\n" * numbers.get("text.src", 5))
    binarise(tmp_path)


@pytest.mark.parametrize("flag", ["--dict-only", "--only-source"])
def test_files_that_are_not_paired_may_have_any_number_of_lines(tmp_path, flag):
    (tmp_path / "text.src").write_text("a\n" * 3)
    (tmp_path / "text.tgt").write_text("a\n" * 2)
    assert (binarise(tmp_path, flag) / "dict.src.txt").exists()
