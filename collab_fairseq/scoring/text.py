"""The form of a text (subwords, tokens, raw), and Moses tokenisation with sacremoses."""

import re
from typing import Callable, List, Optional, Sequence

# a mark followed by white space or the end of the line; in raw text it follows the word directly
_MARK = re.compile(r"(\s?)[.,!?;:](?=\s|$)")
_ESCAPES = ("&apos;", "&quot;", "&amp;")


def subword_marker(texts: Sequence[str]) -> Optional[str]:
    """The marker of subword units that were not joined, `@@` or `▁`; None if the text has words.

    A marker in one line of a hundred may be part of the text.
    """
    for marker, pattern in (("@@", re.compile(r"@@(\s|$)")), ("▁", re.compile("▁"))):
        if sum(bool(pattern.search(text)) for text in texts) * 100 > len(texts):
            return marker
    return None


def lower_cased(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether hardly a text has a capital letter, while most of the others have: by share of the lines."""
    few, many = (sum(text != text.lower() for text in side) / max(1, len(side)) for side in (texts, others))
    return few < 0.05 and many > 0.5  # tr A-Z a-z leaves some, such as Ü


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Whether most punctuation marks stand apart from the word before them."""
    marks = [match.group(1) != "" for text in texts for match in _MARK.finditer(text)]
    return sum(marks) * 2 > len(marks)


def has_escapes(texts: Sequence[str]) -> bool:
    """Whether the text has Moses' escapes, such as `&quot;`."""
    return any(escape in text for text in texts for escape in _ESCAPES)


def moses_tokeniser(lang: str, escape: bool = False) -> Callable[[Sequence[str]], List[str]]:
    """Tokenise as Moses' tokenizer.perl does; hyphenated words stay whole."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=lang)
    return lambda texts: [
        moses.tokenize(text, aggressive_dash_splits=False, escape=escape, return_str=True) for text in texts
    ]


def moses_detokenise(texts: Sequence[str], lang: str) -> List[str]:
    """Undo Moses tokenisation, with its escapes."""
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(lang=lang)
    # split at ASCII spaces: a no-break space is part of its token
    lines = ([token for token in text.split(" ") if token] for text in texts)
    return [moses.detokenize(tokens, return_str=True, unescape=True) for tokens in lines]


def word_overlap(texts: Sequence[str], others: Sequence[str]) -> float:
    """Mean share of words that two aligned texts have in common, however they are tokenised; 1 for equal texts.

    About 0.1 for different sentences of one language. Pairs without words count as equal.
    """
    shares = []
    for text, other in zip(texts, others, strict=True):
        left, right = _words(text), _words(other)
        shares.append(len(left & right) / len(left | right) if left | right else 1.0)
    return sum(shares) / len(shares) if shares else 1.0


def _words(text: str) -> set:
    for escape in _ESCAPES:
        text = text.replace(escape, " ")
    return set(re.findall(r"\w+", text.casefold()))
