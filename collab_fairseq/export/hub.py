"""The metadata block at the top of a README, which the Hugging Face Hub reads.

https://huggingface.co/docs/hub/model-cards
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional

import yaml

from collab_fairseq.scoring.text import base_language
from collab_fairseq.translation.tokenizer import Card

#: engine of a folder → the Hub's name of its library
_LIBRARIES = {"torch": "fairseq", "ctranslate2": "ctranslate2", "huggingface": "transformers"}
#: the Hub's names of common licences; for others, it has `other` and a field for the name
_LICENCES = re.compile(
    r"mit|apache-2\.0|bsd-3-clause|[al]?gpl-3\.0|mpl-2\.0|cc0-1\.0|cc-by(-nc|-sa|-nd|-nc-sa|-nc-nd)?-[34]\.0"
)


class Score(NamedTuple):
    """sacreBLEU of a test set, in points of 100, with sacreBLEU's signature."""

    test_set: str
    bleu: float
    signature: str


def metadata(card: Card, engine: str, name: str, scores: List[Score]) -> str:
    """The block, with its enclosing lines; ``engine``: of the folder; ``name``, ``scores``: of the model."""
    fields: Dict[str, Any] = {
        "language": list(dict.fromkeys(base_language(lang) for lang in (card.source_lang, card.target_lang))),
        **_licence(card.licence),
        "library_name": _LIBRARIES[engine],
        "pipeline_tag": "translation",
        "tags": ["translation", "fairseq", "collaborative-attention"],
    }
    if card.datasets:
        fields["datasets"] = list(card.datasets)
    if scores:
        fields["model-index"] = [{"name": name, "results": [_result(card, score) for score in scores]}]
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)}---\n\n"


def _licence(text: Optional[str]) -> Dict[str, str]:
    if text is None:
        return {"license": "unknown"}
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    return {"license": name} if _LICENCES.fullmatch(name) else {"license": "other", "license_name": name}


def _result(card: Card, score: Score) -> Dict[str, Any]:
    return {
        "task": {"type": "translation", "name": f"translation {card.source_lang}-{card.target_lang}"},
        "dataset": {"type": score.test_set, "name": score.test_set},
        "metrics": [{"type": "bleu", "name": f"sacreBLEU {score.signature}", "value": round(score.bleu, 2)}],
    }
