"""Form of a text (subword units, tokens or raw text), and Moses tokenisation by sacremoses."""

import html
import re
import unicodedata
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

# punctuation marks before white space or the end of the line; raw text has no white space before them, except that
# French has before the second kind
_MARKS = tuple(re.compile(rf"(\s?)[{marks}](?=\s|$)") for marks in (".,", "!?;:"))
#: marker of unjoined subword units → its pattern: subword-nmt, SentencePiece, WordPiece, OpenNMT, byte-level BPE, BPE
SUBWORDS = {
    "@@": re.compile(r"@@(\s|$)"),
    "▁": re.compile("▁"),
    "##": re.compile(r"(?<!\S)##(?!AT##)\S"),
    "￭": re.compile("￭"),
    "Ġ": re.compile(r"(?<!\S)Ġ\S* Ġ\S* Ġ"),  # a Maltese letter, too
    "</w>": re.compile(r"\S</w>(?!\S)"),
}
# Moses' escapes, also of text that was escaped twice: &quot; &#124; &amp;#124;
_ESCAPE = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z]+);")
# bytes of characters that a SentencePiece model with byte fallback does not know
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")
#: a hyphen inside a word after Moses' `tokenizer.perl -a`, and the form that it has in WMT data of Stanford and fairseq
HYPHENS = ("@-@", "##AT##-##AT##")
_DASH, _OTHER_DASH = HYPHENS
_UNKNOWN = re.compile(r"<?<unk>>?|⁇")
#: ISO 639-2 and 639-3 codes → the codes of Moses and sacreBLEU, of languages for which they have rules
_SHORT_CODES: Dict[str, str] = dict(
    re.findall(
        "(...):(..)",
        "asm:as ben:bn cat:ca ces:cs cze:cs deu:de ger:de ell:el gre:el eng:en spa:es est:et fin:fi fra:fr fre:fr "
        "gle:ga guj:gu hin:hi hun:hu isl:is ice:is ita:it jpn:ja jap:ja kan:kn kor:ko lit:lt lav:lv lvs:lv mal:ml "
        "mar:mr nld:nl dut:nl ory:or pan:pa pol:pl por:pt ron:ro rum:ro rus:ru slk:sk slo:sk slv:sl swe:sv tam:ta "
        "tel:te zho:zh chi:zh cmn:zh",
    )
)
# Chinese and Japanese have no spaces between words: each character counts as a word
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


def subword_marker(texts: Sequence[str]) -> Optional[str]:
    """The marker of unjoined subword units, one of `SUBWORDS`; None if the text has words.

    A marker in at most one line of a hundred counts as part of the text.
    """
    for marker, pattern in SUBWORDS.items():
        if sum(bool(pattern.search(text)) for text in texts) * 100 > len(texts):
            return marker
    return None


def lower_cased(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether hardly any of the texts has a capital letter although most of the others do."""
    share, other_share = (sum(text != text.lower() for text in side) / max(1, len(side)) for side in (texts, others))
    return share < 0.05 and other_share > 0.5  # tr A-Z a-z leaves some capitals, such as Ü


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Whether most punctuation marks are separated from the preceding word: periods and commas, else others."""
    plain = [_unescape(text) for text in texts]  # escapes end in a semicolon
    for marks in _MARKS:
        separated = [match.group(1) != "" for text in plain for match in marks.finditer(text)]
        if separated:
            return sum(separated) * 2 > len(separated)
    return False


def decode_marks(texts: Sequence[str], raw: Optional[Sequence[str]] = None) -> List[str]:
    """Decode what tools write for characters: bytes (`<0xC3><0xA4>` is ä), escapes (`&quot;`), other hyphens of Moses.

    Args:
        raw: the aligned raw references, which decide whether a mark is text: it is if the reference has the same bytes
            or any escape. None: escapes stay, because all texts of a log have them.
    """

    def decoded(text: str, original: str) -> str:
        text = _BYTES.sub(lambda run: run[0] if run[0] in original else _decode(run[0]), text)
        if _OTHER_DASH not in original:
            text = text.replace(_OTHER_DASH, _DASH)
        return text if raw is None or _ESCAPE.search(original) else _unescape(text)

    return [decoded(*pair) for pair in zip(texts, raw or [""] * len(texts), strict=True)]


def _decode(run: str) -> str:
    """The text of `<0xC3><0xA4>`; like SentencePiece, with one replacement character for each invalid byte."""
    content = bytes.fromhex(run.replace("<0x", "").replace(">", ""))
    escaped = content.decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if "\udc80" <= character <= "\udcff" else character for character in escaped)


def _unescape(text: str) -> str:
    while (plain := _ESCAPE.sub(lambda escape: html.unescape(escape[0]), text)) != text:
        text = plain
    return text


def mark_unknown(hypotheses: Sequence[str], references: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Unknown words of both sides as single words that do not match each other, as in fairseq's validation."""
    sides = ((hypotheses, "UNKNOWNTOKENINHYP"), (references, "UNKNOWNTOKENINREF"))
    marked = [[_UNKNOWN.sub(word, text) for text in texts] for texts, word in sides]
    return marked[0], marked[1]


def has_escapes(texts: Sequence[str]) -> bool:
    """Whether the text has escapes such as `&quot;`."""
    return any(_ESCAPE.search(text) for text in texts)


def splits_dashes(texts: Sequence[str]) -> bool:
    """Whether hyphenated words are split as by Moses' `tokenizer.perl -a`: `T @-@ Shirt`."""
    return any(f" {_DASH} " in text for text in texts)


def join_dashes(texts: Sequence[str], raw: Optional[Sequence[str]] = None) -> List[str]:
    """`T @-@ Shirt` → `T-Shirt`, unless the aligned raw reference has ` @-@ `."""
    mark = f" {_DASH} "
    pairs = zip(texts, raw or [""] * len(texts), strict=True)
    return [text if mark in original else text.replace(mark, "-") for text, original in pairs]


def base_language(lang: str) -> str:
    """A language without its region or script, in two letters if it has rules: `zh` for `zh-CN` and `zho_Hans`."""
    language = re.split("[-_]", lang)[0]
    return _SHORT_CODES.get(language, language)


def moses_tokeniser(
    lang: str, escape: bool = False, split_dashes: bool = False
) -> Callable[[Sequence[str]], List[str]]:
    """A function that tokenises texts like Moses' tokenizer.perl, which splits hyphenated words with `-a` only."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=base_language(lang))
    return lambda texts: [
        moses.tokenize(text, aggressive_dash_splits=split_dashes, escape=escape, return_str=True) for text in texts
    ]


def moses_detokenise(texts: Sequence[str], lang: str) -> List[str]:
    """Undo Moses tokenisation and its escapes."""
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(lang=base_language(lang))
    # split at ASCII spaces: a no-break space is part of its token
    lines = ([token for token in text.split(" ") if token] for text in texts)
    return [moses.detokenize(tokens, return_str=True, unescape=True) for tokens in lines]


def first_misaligned(texts: Sequence[str], originals: Sequence[str]) -> Optional[int]:
    """The index of the first text that does not come from the original of the same index; None if all do.

    The texts may be tokenised, lower-cased or normalised, and have unknown words. A text fits if it has the letters and
    digits of its original; else if it shares half of its words and does not have the letters of another original.
    """
    letters = [_letters(original) for original in originals]
    lines = set(letters)
    for number, (text, original) in enumerate(zip(texts, originals, strict=True)):
        parts = [_letters(part) for part in _UNKNOWN.split(text)]
        if _in_order(parts, letters[number]):
            continue
        if len(parts) == 1 and parts[0] in lines:
            return number
        words, other_words = _words(_UNKNOWN.sub(" ", text)), _words(original)
        # an unknown word may stand for any number of words
        if 2 * len(words & other_words) < max(len(words), len(other_words) if len(parts) == 1 else 0):
            return number
    return None


def _in_order(parts: List[str], text: str) -> bool:
    """Whether a text consists of the parts with anything between them; of a single part, whether it is the text."""
    if len(parts) == 1:
        return parts[0] == text
    position = len(parts[0])
    end = len(text) - len(parts[-1])
    if position > end or not text.startswith(parts[0]) or not text.endswith(parts[-1]):
        return False
    for part in parts[1:-1]:
        position = text.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", _normalised(text))


def _words(text: str) -> Set[str]:
    return set(_WORD.findall(_normalised(text)))


def _normalised(text: str) -> str:
    return unicodedata.normalize("NFKC", _unescape(text)).casefold()
