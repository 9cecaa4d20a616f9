"""Generate logs, compound split and scores, against independent computations."""

import math
import os
import random
import re
import unicodedata
from collections import Counter

import numpy
import pytest
import sentencepiece
from sacrebleu.metrics import BLEU, CHRF, TER
from sacremoses import MosesTokenizer

from collab_fairseq.scoring import bleu, references, text
from collab_fairseq.scoring.evaluation import evaluate
from collab_fairseq.scoring.generate_log import read_translations
from fairseq_modern.errors import UserError

NBSP, THIN = "\u00a0", "\u2009"
SPACE = b" \t\n\r\f\v"


def split_by_hand(line: str) -> str:
    """One pass over the bytes; a match consumes the byte after the hyphen."""
    data, out, i = line.encode(), bytearray(), 0
    while i < len(data):
        if i + 2 < len(data) and data[i] not in SPACE and data[i + 1] == ord("-") and data[i + 2] not in SPACE:
            out += data[i : i + 1] + b" ##AT##-##AT## " + data[i + 2 : i + 3]
            i += 3
        else:
            out.append(data[i])
            i += 1
    return out.decode("utf-8", "surrogateescape")


def bleu_by_hand(hypotheses, references):
    """Unsmoothed corpus BLEU on the tokens between ASCII white space; score, precisions, lengths."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(hypotheses, references, strict=True):
        tokens = [
            [t for t in re.split(rb"[ \t\n\r\f\v]+", line.encode("utf-8", "surrogateescape")) if t] for line in pair
        ]
        lengths = [a + len(b) for a, b in zip(lengths, tokens, strict=True)]
        for n in range(4):
            hyp, ref = (Counter(tuple(side[i : i + n + 1]) for i in range(len(side) - n)) for side in tokens)
            matches[n] += sum((hyp & ref).values())
            totals[n] += sum(hyp.values())
    precisions = [100 * m / t if t else 0.0 for m, t in zip(matches, totals, strict=True)]
    penalty = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    score = penalty * math.exp(sum(math.log(p) for p in precisions) / 4) if all(precisions) else 0.0
    return score, precisions, *lengths


def test_compound_split_equals_byte_wise_reference():
    for before, after in {
        "A-B-C": "A ##AT##-##AT## B-C", "a--b": "a ##AT##-##AT## -b", "c-": "c-", "-c - d": "-c - d", "": "",
    }.items():  # fmt: skip
        assert bleu.split_compounds(before) == after
    chance = random.Random(1)
    for _ in range(3000):
        line = "".join(chance.choice(["a", "-", "-", " ", "ü", NBSP, "\t", THIN]) for _ in range(chance.randint(0, 12)))
        assert bleu.split_compounds(line) == split_by_hand(line)


@pytest.mark.parametrize("seed", range(4))
def test_tokenised_and_compound_split_bleu_equal_reference(seed):
    words = f"der die 10{NBSP}km a{THIN}b {NBSP} Hunde-Leine A-B-C . , Straße x\u0085y z\x1cw".split(" ")
    chance = random.Random(seed)
    references = [" ".join(chance.choices(words, k=chance.randint(1, 25))) for _ in range(60)]
    hypotheses = []
    for line in references:
        changed = (word for word in line.split(" ") for _ in range(chance.choice([0, 2, *[1] * 18])))
        hypotheses.append(" ".join(changed))
    score = bleu.tokenised_bleu(hypotheses, references)
    expected, precisions, hyp_len, ref_len = bleu_by_hand(hypotheses, references)
    assert score.score == pytest.approx(expected, abs=1e-9)
    assert score.precisions == pytest.approx(precisions, abs=1e-9)
    assert (score.hyp_len, score.ref_len) == (hyp_len, ref_len)

    split = bleu.compound_split_bleu(hypotheses, references)
    by_hand = bleu_by_hand([split_by_hand(line) for line in hypotheses], [split_by_hand(line) for line in references])
    assert split.score == pytest.approx(by_hand[0], abs=1e-9)
    assert (split.hyp_len, split.ref_len) == by_hand[2:]
    assert split.ref_len > score.ref_len


RAW = ["Ein Hund läuft über die Straße.", "Zwei Männer, die reden."]
RAW += ["Ein T-Shirt und eine Baseball-Kappe!", "Kinder spielen im Schnee."]
GUESS = ["Ein Hund rennt über die Straße.", "Zwei Männer, die sprechen.", RAW[2], "Kinder spielen im Sand."]


def log_lines(hypotheses, references=None, kinds="HD", start=0):
    lines = []
    for number, hypothesis in enumerate(hypotheses, start=start):
        lines.append(f"S-{number}\tsource {number}")
        if references:
            lines.append(f"T-{number}\t{references[number - start]}")
        lines += [f"{kind}-{number}\t-0.5\t{hypothesis}" for kind in kinds]
        lines.append(f"P-{number}\t-0.1 -0.2")
    return lines


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


@pytest.fixture
def log(tmp_path):
    """Four sentences of raw text with references."""
    return write(tmp_path / "log", log_lines(GUESS, RAW))


def test_reads_unsorted_shards_with_other_lines(tmp_path):
    lines = [*log_lines(GUESS, RAW), "2024-01-01 | INFO | H-7 is not a hypothesis", "Generate test: BLEU4 = 1"]
    random.Random(3).shuffle(lines)
    log = read_translations([write(tmp_path / "a", lines[::2]), write(tmp_path / "b", lines[1::2])])
    assert (log.hypotheses, log.references) == (GUESS, RAW)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["S-0\tx", "T-0\tref", "H-0\t-2.0\tworse", "H-0\t-0.25\tbest", "H-0\t-1.0\tmiddle"], ["best"]),  # n-best list
        (log_lines(["", "b"], ["a", "b"]), ["", "b"]),  # an empty hypothesis counts
        (log_lines(GUESS, RAW) * 2, GUESS),  # the same translation twice
    ],
)
def test_selects_best_hypothesis(tmp_path, lines, expected):
    assert read_translations([write(tmp_path / "log", lines)]).hypotheses == expected


@pytest.mark.parametrize("inside", [NBSP, "\u2028", "\u0085", "\x1d", "\r", "\x0b"])
def test_only_newlines_end_lines(tmp_path, inside):
    hypothesis = f"ein{inside}Hund H-1"
    log = read_translations([write(tmp_path / "log", log_lines([hypothesis], [hypothesis]))])
    assert log.hypotheses == [hypothesis] == log.references


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["S-0\tsource", "T-0\tref"], "log: no hypotheses"),
        (log_lines(GUESS, RAW) + log_lines(RAW, RAW), "id 0 was translated 2 times with different results"),
        ([*log_lines(GUESS, RAW), "H-4\t-0.5"], "line 21: must be `H-4<tab>score<tab>text`"),
        ([*log_lines(GUESS, RAW), f"H-4\t{'日本語' * 20}"], "line 21: must be `H-4<tab>score<tab>text`"),
        (log_lines(GUESS, RAW) + log_lines(GUESS[:1], start=9), r"5 of 10 sentences have no D- lines \(ids 4, 5, 6"),
        (["S-0\tok", "H-0\t-1\t\udcff"], "line 2: must be UTF-8"),
    ],
)
def test_rejects_invalid_log(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        read_translations([write(tmp_path / "log", lines)])


def scores_of(evaluation):
    return {score.metric: score for score in evaluation.scores}


def test_tokenises_raw_text_for_tokenised_bleu_only(log, tmp_path):
    result = evaluate([log], write(tmp_path / "test.de", RAW))
    scores = scores_of(result)
    assert (result.tokenised, result.tokenised_assumed) == (False, True)
    tokens = text.moses_tokeniser("de")
    assert tokens(RAW)[1] == "Zwei Männer , die reden ."
    assert tokens(RAW)[2] == "Ein T-Shirt und eine Baseball-Kappe !"
    assert scores["tokenised BLEU"].score == pytest.approx(bleu_by_hand(tokens(GUESS), tokens(RAW))[0])
    split = [[split_by_hand(line) for line in tokens(side)] for side in (GUESS, RAW)]
    assert scores["compound-split BLEU"].score == pytest.approx(bleu_by_hand(*split)[0])
    assert scores["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(GUESS, [RAW]).score)
    assert [file["file"] for file in result.files] == ["log", "test.de"]


def test_detokenises_for_sacrebleu_chrf_and_ter(tmp_path):
    tokens = text.moses_tokeniser("de", escape=True)
    raw = [*RAW, 'Er sagt: "Hallo" & geht.']
    guess = [*GUESS, 'Er sagt: "Hallo" und geht.']
    log = write(tmp_path / "log", log_lines(tokens(guess), tokens(raw)))
    result = evaluate([log], write(tmp_path / "test.de", raw))
    scores = scores_of(result)
    assert result.tokenised
    assert scores["tokenised BLEU"].score == pytest.approx(bleu_by_hand(tokens(guess), tokens(raw))[0])
    assert scores["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(guess, [raw]).score)
    assert scores["chrF"].score == pytest.approx(CHRF().corpus_score(guess, [raw]).score)
    assert scores["chrF"].score != pytest.approx(CHRF().corpus_score(tokens(guess), [tokens(raw)]).score)
    assert "nc:6" in scores["chrF"].signature
    assert scores["chrF++"].score == pytest.approx(CHRF(word_order=2).corpus_score(guess, [raw]).score)
    assert "nw:2" in scores["chrF++"].signature
    assert scores["TER"].score == pytest.approx(TER().corpus_score(guess, [raw]).score)
    assert 0 < scores["TER"].score < 30

    remark = "test.de must be raw text for sacreBLEU, chrF, chrF++ and TER; got text that looks tokenised"
    assert remark not in result.remarks
    assert remark in evaluate([log], write(tmp_path / "test.de", tokens(raw))).remarks

    without = evaluate([log], target_lang="de")
    assert "sacreBLEU" not in scores_of(without)
    assert any("--reference" in remark for remark in without.remarks)


DASHES = ['Ein rot-weißes T-Shirt-Muster ist "neu".', "Er sagt: 'Nein' & geht | weg."]
DASHES += ["Zwei Baseball-Spieler laufen um 10-12 Uhr.", "Kinder spielen im Schnee-Matsch, ja-ja."]
WORSE = ['Ein rot-weißes T-Shirt ist "neu".', "Er sagt: 'Ja' & geht | weg."]
WORSE += ["Zwei Basketball-Spieler laufen um 10-12 Uhr.", "Kinder spielen im Schnee-Matsch, ja-ja."]


@pytest.mark.parametrize("dash", ["@-@", "##AT##-##AT##"])
@pytest.mark.parametrize("escaped", [0, 1, 2])
@pytest.mark.parametrize("with_references", [False, True])
def test_undoes_split_hyphens_and_escapes(tmp_path, dash, escaped, with_references):
    """Tokens of `tokenizer.perl -a` in the forms of Moses and of fairseq's WMT14 test set; escaped once, twice or not.

    The independent reference is sacremoses' tokeniser, and the texts before it. Control: the scores of unchanged marks.
    """
    moses = MosesTokenizer(lang="de")

    def tokens(lines, split, escape):
        return [moses.tokenize(line, aggressive_dash_splits=split, escape=escape, return_str=True) for line in lines]

    written = []
    for lines in (WORSE, DASHES):
        side = [line.replace("@-@", dash) for line in tokens(lines, True, escaped > 0)]
        written.append([line.replace("&", "&amp;") for line in side] if escaped == 2 else side)
    log = write(tmp_path / "log", log_lines(written[0], written[1] if with_references else None))
    result = evaluate([log], write(tmp_path / "test.de", DASHES))
    scores = scores_of(result)
    assert result.tokenised
    split, joined = ([tokens(side, s, False) for side in (WORSE, DASHES)] for s in (True, False))
    assert scores["tokenised BLEU"].score == pytest.approx(bleu_by_hand(*split)[0])
    compounds = [[split_by_hand(line) for line in side] for side in joined]
    assert scores["compound-split BLEU"].score == pytest.approx(bleu_by_hand(*compounds)[0])
    assert bleu_by_hand(*joined)[0] != pytest.approx(bleu_by_hand(*split)[0])
    assert scores["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(WORSE, [DASHES]).score)
    assert scores["chrF"].score == pytest.approx(CHRF().corpus_score(WORSE, [DASHES]).score)
    assert scores["TER"].score == pytest.approx(TER().corpus_score(WORSE, [DASHES]).score)
    assert BLEU().corpus_score(written[0], [DASHES]).score < scores["sacreBLEU"].score - 5


def test_undoes_marks_in_untokenised_text_but_not_those_of_the_references(tmp_path):
    raw = [*RAW, "Das Zeichen &quot; heißt <0x57> bei A ##AT##-##AT## B @-@ C.", "Er sagt: 'Weil'."]
    guess = [*GUESS, raw[4], "Er sagt: 'Ja'."]
    marked = [line.replace("T-Shirt", "T @-@ Shirt").replace("'", "&apos;") for line in guess]
    scores = scores_of(evaluate([write(tmp_path / "plain", marked)], write(tmp_path / "test.de", raw)))
    assert scores["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(guess, [raw]).score)
    tokens = text.moses_tokeniser("de")
    assert scores["tokenised BLEU"].score == pytest.approx(bleu_by_hand(tokens(guess), tokens(raw))[0])


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory):
    """A SentencePiece model that spells capitals, umlauts and all that is not German as bytes."""
    prefix = str(tmp_path_factory.mktemp("bytes") / "spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ein hund im schnee und eine straße"] * 20), model_prefix=prefix, vocab_size=290,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def test_decodes_bytes_of_sentencepiece(tmp_path, byte_model):
    """As SentencePiece does, invalid bytes included."""

    def pieces(lines):  # as --remove-bpe sentencepiece joins them
        return ["".join(byte_model.encode(line, out_type=str)).replace("▁", " ").strip() for line in lines]

    guess, raw = [*GUESS, "Für 5 € 🙂!"], [*RAW, "Für 7 € 🙂!"]
    assert "<0xC3><0xBC>" in pieces(guess)[-1]
    for targets in (pieces(raw), None):
        log = write(tmp_path / "log", log_lines(pieces(guess), targets))
        scores = scores_of(evaluate([log], write(tmp_path / "test.de", raw)))
        assert scores["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(guess, [raw]).score)
        tokens = text.moses_tokeniser("de")
        assert scores["tokenised BLEU"].score == pytest.approx(bleu_by_hand(tokens(guess), tokens(raw))[0])
        if targets:
            assert scores_of(evaluate([log], target_lang="de"))["sacreBLEU"].score == scores["sacreBLEU"].score
    chance = random.Random(5)
    for _ in range(300):
        line = [f"<0x{chance.choice([0x41, 0xC3, 0xA4, 0xE2, 0x82, 0xF0, 0xFF]):02X}>" for _ in range(6)]
        assert text.decode_marks(["".join(line)]) == [byte_model.decode(line)]


def test_only_german_has_compound_split_bleu_and_regions_do_not_matter(log):
    result = evaluate([log], target_lang="fr")
    assert "compound-split BLEU" not in scores_of(result)
    assert any("German" in remark for remark in result.remarks)
    assert "compound-split BLEU" in scores_of(evaluate([log], target_lang="de_DE"))
    assert text.moses_tokeniser("fr_FR")(["l'eau"]) == ["l' eau"]
    assert text.moses_detokenise(["l' eau"], "fr-FR") == ["l'eau"]
    for code in ("fra", "fre"):  # ISO 639-3 and 639-2
        assert text.moses_tokeniser(code)(["l'eau"]) == ["l' eau"]
        assert text.moses_detokenise(["l' eau"], code) == ["l'eau"]
    assert "compound-split BLEU" in scores_of(evaluate([log], target_lang="deu_Latn"))


def test_unknown_words_are_one_word_and_no_match(tmp_path):
    """As in fairseq's validation. sacreBLEU would split <unk> into three words, two of which match <<unk>>."""
    references = ["Ein <<unk>> mit Hut spielt im Park.", *RAW]
    hypotheses = ["Ein <unk> mit Hut spielt im Park.", *RAW]
    score = scores_of(evaluate([write(tmp_path / "log", log_lines(hypotheses, references))], target_lang="de"))
    words = [
        [line.replace(unknown, word) for line in lines]
        for lines, unknown, word in ((hypotheses, "<unk>", "HYPOTHESIS"), (references, "<<unk>>", "REFERENCE"))
    ]
    assert score["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(words[0], [words[1]]).score)
    assert score["sacreBLEU"].score < 99


def test_references_with_separate_accents_are_named(tmp_path):
    log = write(tmp_path / "log", log_lines(RAW))
    for form, named in (("NFC", False), ("NFD", True)):
        reference = write(tmp_path / "test.de", [unicodedata.normalize(form, line) for line in RAW])
        result = evaluate([log], reference)
        assert any("test.de is not in Unicode NFC" in remark for remark in result.remarks) == named
        assert (scores_of(result)["sacreBLEU"].score > 99) != named


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_Hans", "zho", "cmn_Hans"])
def test_scores_segmented_chinese_against_raw_references(tmp_path, language):
    """The log's text has spaces between words."""
    raw, guess = ["我喜欢小狗。", "他们在公园里玩。"], ["我 喜欢 大 狗 。", "他们 在 公园 里 玩 。"]
    log = write(tmp_path / "log", log_lines(guess, ["我 喜欢 小狗 。", guess[1]]))
    score = scores_of(evaluate([log], write(tmp_path / "reference", raw), language))["sacreBLEU"].score
    assert score == pytest.approx(BLEU(tokenize="zh").corpus_score(guess, [raw]).score)
    with pytest.raises(UserError, match="a different test set or a different order"):
        evaluate([log], write(tmp_path / "other", raw[::-1]), language)


def test_log_without_references_needs_a_reference_file(tmp_path):
    log = write(tmp_path / "log", log_lines(GUESS))
    with pytest.raises(UserError, match="no references"):
        evaluate([log])
    with_raw = scores_of(evaluate([log], write(tmp_path / "test.de", RAW)))
    assert with_raw["sacreBLEU"].score == pytest.approx(BLEU().corpus_score(GUESS, [RAW]).score)
    assert len(with_raw) == 6


@pytest.mark.parametrize("marked", ["log", "test.de"])
def test_ignores_byte_order_mark(tmp_path, marked):
    log, reference = write(tmp_path / "log", log_lines(RAW, kinds="H")[1:]), write(tmp_path / "test.de", RAW)
    (tmp_path / marked).write_bytes(b"\xef\xbb\xbf" + (tmp_path / marked).read_bytes())
    assert [score.score for score in evaluate([log], reference).scores] == pytest.approx([100.0] * 5 + [0.0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join(RAW[:3]).encode(), "other must have 4 lines, one per hypothesis; got 3"),
        ("\n".join(RAW[1:] + RAW[:1]).encode(), "other must have the sentences of the log's references"),
        (b"\xff\xfe", "other must be UTF-8 text"),
        (b"\x1f\x8b\x08\xff\xfe", "cannot read the references .*other: Compressed file ended"),
        ("".join(f"▁{line}\n" for line in RAW).encode(), "other must be raw text; got subword units"),
        ("\n".join(RAW).encode().lower(), "other must be raw text; got lower-cased text"),
    ],
)
def test_rejects_references_of_another_test_set_or_form(log, tmp_path, content, message):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match=message):
        evaluate([log], tmp_path / "other")


def test_names_the_first_line_of_misaligned_references(tmp_path):
    """Whatever the form of the T- lines: words or subword units, lower-cased, with unknown words or characters."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyzäöü"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(200)]
    raw = [" ".join(chance.choices(words, k=chance.randint(2, 15))).capitalize() + "." for _ in range(40)]
    raw[30:33] = ["Ein ½ Mann in rot!", "Ein ½ Mann in blau!", "日本語の文章です。"]
    tokens = MosesTokenizer(lang="de").tokenize
    forms = {
        "raw": raw,
        "lower": [tokens(line, escape=True, return_str=True).lower() for line in raw],
        "normalised": [line.replace("½", "1⁄2") for line in raw],
        "words": [" ".join("<<unk>>" if chance.random() < 0.3 else word for word in line.split()) for line in raw],
        "characters": ["".join(" ⁇ " if chance.random() < 0.1 else c for c in line) for line in raw],
        "unknown": ["<<unk>> ."] * 40,
    }
    for form, lines in forms.items():
        log = write(tmp_path / f"{form}.log", log_lines(raw, lines))
        evaluate([log], write(tmp_path / "test.de", raw), tokenised=False)
        # without the words that differ, lines may fit each other
        for first, last in ((0, 40),) if form in ("words", "characters") else ((0, 40), (30, 32), (30, 40), (38, 40)):
            shifted = write(tmp_path / "other", [*raw[:first], *raw[first + 1 : last], raw[first], *raw[last:]])
            if form == "unknown":
                evaluate([log], shifted, "de", tokenised=False)
            else:
                match = f"in line {first + 1} for .*: a different test set or a different order"
                with pytest.raises(UserError, match=match):
                    evaluate([log], shifted, "de", tokenised=False)


def test_a_log_that_was_cut_is_not_scored(tmp_path):
    """After every byte: an error, or the number of the complete log."""
    content = write(tmp_path / "log", log_lines(GUESS, RAW)).read_bytes()
    raw, outcomes = write(tmp_path / "test.de", RAW), Counter()
    complete = [score.score for score in evaluate([tmp_path / "log"], raw).scores]
    for end in range(content.rindex(b"S-3"), len(content)):
        for more in (b"", b"\n"):  # an editor or `cat` adds the line end
            (tmp_path / "cut").write_bytes(content[:end] + more)
            try:
                assert [score.score for score in evaluate([tmp_path / "cut"], raw).scores] == complete
                outcomes["scored"] += 1
            except UserError as error:
                outcomes[next(w for w in ("line end", "no D- lines", "no P- lines", "must") if w in str(error))] += 1
    assert outcomes["scored"] < 15  # inside the scores of the last P- line
    assert min(outcomes.values()) > 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Ein Hu@@ nd lä@@ uft", "@@.*--remove-bpe"),
        ("▁Ein ▁Hu nd ▁läuft", "▁.*--remove-bpe sentencepiece"),
        ("Ein Hu ##nd lä ##uft", "##.*--remove-bpe ' ##'"),
        ("Ein Hu ￭nd lä ￭uft", "￭.*join them first"),
        ("ĠEin ĠHund Ġlä uft", "Ġ.*join them first"),
        ("Ein</w> Hu nd</w>", "</w>.*join them first"),
        ("Ġorġ mill-Ġermanja: Ġie Ġunju.", None),
        ("Ein ##AT##-##AT## <b>Hund</b> läuft ## a##b", None),
    ],
)
def test_rejects_subword_units(tmp_path, line, message):
    log = write(tmp_path / "log", log_lines([line], [line]))
    if message is None:
        assert evaluate([log], target_lang="de").scores
        return
    with pytest.raises(UserError, match=f"got subword units .marker {message}"):
        evaluate([log])


def test_the_form_of_a_text_does_not_depend_on_escapes_or_french_spaces():
    quotes = 'Er sagt: "Nein!", sie sagt: "Ja!"; dann lacht er.'
    tokens = MosesTokenizer("de").tokenize(quotes, escape=True, return_str=True)
    assert text.looks_tokenised([tokens])
    assert not text.looks_tokenised([quotes.replace('"', "&quot;")])
    french = ["Où est le chien ?", "Quel chien !", "Il dort."]
    assert not text.looks_tokenised(french)
    assert text.looks_tokenised([MosesTokenizer("fr").tokenize(line, return_str=True) for line in french])
    assert text.looks_tokenised(["Wo ist er ?"])


def test_remarks_on_lower_cased_hypotheses(tmp_path):
    raw = write(tmp_path / "test.de", RAW)
    for lines, expected in ([line.lower() for line in GUESS], 1), (GUESS, 0), ([*GUESS[:3], GUESS[3].lower()], 0):
        remarks = evaluate([write(tmp_path / "log", log_lines(lines))], raw).remarks
        assert sum("hardly any hypothesis has a capital letter" in remark for remark in remarks) == expected


def test_files_that_cannot_be_read_twice_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"the references .*pipe must be a regular file"):
        references.read_lines(tmp_path / "pipe")


def test_intervals_are_those_of_sacrebleu():
    """Compared with sacreBLEU's own bootstrap, which draws other resamples."""
    chance = random.Random(1)
    words = [f"w{number}" for number in range(30)]
    references = [" ".join(chance.choices(words, k=chance.randint(8, 25))) for _ in range(300)]
    hypotheses = [
        " ".join(word if chance.random() < 0.8 else chance.choice(words) for word in reference.split())
        for reference in references
    ]
    sacrebleu_score, _ = bleu.sacrebleu(hypotheses, references)
    others, _ = bleu.other_metrics(hypotheses, references)
    metrics = {"sacreBLEU": BLEU(), "chrF": CHRF(), "chrF++": CHRF(word_order=2), "TER": TER()}
    for score in (sacrebleu_score, *others):
        expected = metrics[score.metric].corpus_score(hypotheses, [references], n_bootstrap=1000)
        low, high = score.interval
        assert low < score.score < high
        assert (high - low) / 2 == pytest.approx(expected._ci, rel=0.1)
        assert (high + low) / 2 == pytest.approx(expected._mean, abs=0.1 * float(expected._ci))
    half, _ = bleu.sacrebleu(hypotheses[:150], references[:150])  # control: fewer sentences, a wider interval
    assert 1.2 < numpy.ptp(half.interval) / numpy.ptp(sacrebleu_score.interval) < 1.7
