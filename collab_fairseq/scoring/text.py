"""Form of a text (subword units, tokens or raw text), and Moses tokenisation by sacremoses."""

import re
from typing import Callable, List, Optional, Sequence

# a punctuation mark before white space or the end of the line; raw text has no white space before it
_MARK = re.compile(r"(\s?)[.,!?;:](?=\s|$)")
_ESCAPES = ("&apos;", "&quot;", "&amp;")
# Chinese and Japanese have no spaces between words: each character counts as a word
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


def subword_marker(texts: Sequence[str]) -> Optional[str]:
    """The marker of unjoined subword units, `@@` or `▁`; None if the text has words.

    A marker in at most one line of a hundred counts as part of the text.
    """
    for marker, pattern in (("@@", re.compile(r"@@(\s|$)")), ("▁", re.compile("▁"))):
        if sum(bool(pattern.search(text)) for text in texts) * 100 > len(texts):
            return marker
    return None


def lower_cased(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether hardly any of the texts has a capital letter although most of the others do."""
    share, other_share = (sum(text != text.lower() for text in side) / max(1, len(side)) for side in (texts, others))
    return share < 0.05 and other_share > 0.5  # tr A-Z a-z leaves some capitals, such as Ü


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Whether most punctuation marks are separated from the preceding word."""
    separated = [match.group(1) != "" for text in texts for match in _MARK.finditer(text)]
    return sum(separated) * 2 > len(separated)


def has_escapes(texts: Sequence[str]) -> bool:
    """Whether the text has Moses' escapes, such as `&quot;`."""
    return any(escape in text for text in texts for escape in _ESCAPES)


def base_language(lang: str) -> str:
    """A language without its region or script: `zh` for `zh-CN` and `zh_Hans`."""
    return re.split("[-_]", lang)[0]


def moses_tokeniser(lang: str, escape: bool = False) -> Callable[[Sequence[str]], List[str]]:
    """A function that tokenises texts like Moses' tokenizer.perl, without splitting hyphenated words."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=base_language(lang))
    return lambda texts: [
        moses.tokenize(text, aggressive_dash_splits=False, escape=escape, return_str=True) for text in texts
    ]


def moses_detokenise(texts: Sequence[str], lang: str) -> List[str]:
    """Undo Moses tokenisation and its escapes."""
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(lang=base_language(lang))
    # split at ASCII spaces: a no-break space is part of its token
    lines = ([token for token in text.split(" ") if token] for text in texts)
    return [moses.detokenize(tokens, return_str=True, unescape=True) for tokens in lines]


def word_overlap(texts: Sequence[str], others: Sequence[str]) -> float:
    """Mean share of words that aligned lines of two texts have in common, independent of tokenisation.

    1 for equal texts, about 0.1 for unrelated sentences of one language. Pairs without words count as equal.
    """
    shares = []
    for text, other in zip(texts, others, strict=True):
        words, other_words = _words(text), _words(other)
        union = words | other_words
        shares.append(len(words & other_words) / len(union) if union else 1.0)
    return sum(shares) / len(shares) if shares else 1.0


def _words(text: str) -> set:
    for escape in _ESCAPES:
        text = text.replace(escape, " ")
    return set(_WORD.findall(text.casefold()))
