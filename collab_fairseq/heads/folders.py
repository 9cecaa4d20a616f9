"""Hugging Face models in their folders: heads ranked, ablated and decomposed as those of fairseq's models are."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import Heads
from collab_fairseq.modules.settings import SITES
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import score_raw

from . import ablation
from .errors import HeadsError
from .evaluation import Result, Search, as_json, compare
from .huggingface import Encoded, Example, answers, compare_answers, encode, read_examples, translates, translations
from .redundancy import HeadWeights


class Loaded(NamedTuple):
    """A model, its tokenizer, the places of its heads, its text, and that text in batches."""

    model: Any
    tokenizer: Any
    places: Dict[str, Any]
    examples: List[Example]
    batches: List[Encoded]

    @property
    def translates(self) -> bool:
        """Whether its labels are texts."""
        return translates(self.model)


def _room(path: str) -> Any:
    try:
        import transformers  # noqa: F401  (whether it is there)

        from collab_fairseq import huggingface
    except ImportError as error:
        raise HeadsError(
            f"{path} is a folder, so a Hugging Face model, and these need transformers: "
            "install this project with its extra `huggingface`"
        ) from error
    return huggingface


def load(
    path: str,
    text: PathLike,
    fields: Sequence[str] = ("text",),
    label: str = "label",
    *,
    sentences: Optional[int] = None,
    batch_size: int = 32,
    device: str = "cpu",
) -> Loaded:
    """The model of a folder with text.

    Args:
        text, fields, label, sentences: see :func:`.read_examples`.

    Raises:
        HeadsError: transformers is not installed, the model neither classifies nor translates, or the text cannot be
            read. ReparamError: an architecture that is not known. CheckpointError: parameters that are not finite.
    """
    known = _room(path)
    model = known.load_folder(path)
    from transformers import AutoTokenizer

    if not (translates(model) or type(model).__name__.endswith("ForSequenceClassification")):
        raise HeadsError(
            f"{path} holds a {type(model).__name__}, expected a model for sequence classification or "
            "translation, whose loss on a text is known from its label"
        )
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model.to(device)
    examples = read_examples(text, fields, label, sentences)
    return Loaded(
        model, tokenizer, known.head_places(model), examples, list(encode(model, tokenizer, examples, batch_size))
    )


def read_weights(path: str) -> Dict[str, HeadWeights]:
    """Place → weights, as :func:`.redundancy.read_weights`, of the model of a folder."""
    known = _room(path)
    model = known.load_folder(path)
    found = {}
    for place, (_, scores) in zip(known.head_places(model), known.score_weights(model), strict=True):
        query, key, mixing = scores.heads.to(torch.float64)
        found[place] = HeadWeights(query, key, mixing, bool((mixing.count_nonzero(0) > 1).any()))
    return found


def ablate(
    loaded: Loaded,
    record: Record,
    *,
    modes: Sequence[str] = ablation.MODES,
    sites: Sequence[str] = SITES,
    search: Search = Search(),  # noqa: B008  (frozen)
    samples: int = 1000,
    progress: Optional[ablation.Progress] = None,
) -> None:
    """Fill the record as :func:`.ablation.ablate` does; the one test set is called ``text``.

    Translations are compared by BLEU, classes by accuracy (:func:`.compare_answers`).

    Raises:
        HeadsError: a model that predicts a number.
    """
    model, tokenizer, places, examples, batches = loaded
    if loaded.translates:

        def translate(heads: Optional[Heads] = None) -> Result:
            found = translations(
                model, tokenizer, places, batches, heads, beam=search.beam, lenpen=search.lenpen
            )
            scored, statistics = score_raw(found, [example.label for example in examples], tokenised=False)
            return Result(scored.score, scored.signature, statistics)

        whole = Result(**record.part("whole/text", lambda: translate()._asdict()))

        def measure(heads: Heads) -> Dict[str, Any]:
            result = translate(heads)
            return as_json(compare(result, whole, samples), result.score)
    else:
        if model.config.num_labels == 1:
            raise HeadsError(f"{model.name_or_path} predicts a number, but accuracy needs two or more classes")

        def right(heads: Optional[Heads] = None) -> List[bool]:
            found = answers(model, places, batches, heads)
            return [answer == example.label for answer, example in zip(found, examples, strict=True)]

        def all_heads() -> Dict[str, Any]:
            found = right()
            return {"score": 100 * sum(found) / len(found), "right": "".join("01"[one] for one in found)}

        before = [mark == "1" for mark in record.part("whole/text", all_heads)["right"]]

        def measure(heads: Heads) -> Dict[str, Any]:
            return compare_answers(right(heads), before)

    counts = {name: place.num_heads for name, place in places.items()}
    ablation.measure_all(record, "text", counts, measure, modes=modes, sites=sites, progress=progress)
