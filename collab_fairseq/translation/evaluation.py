"""Loss and translations of a model, as fairseq-validate and fairseq-generate give them."""

import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from fairseq.dataclass.configs import GenerationConfig

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring.references import check_number, read_lines, score_raw
from collab_fairseq.scoring.sums import joined

from .load import TrainedModel
from .text import batches, dataset, splits, subword_units
from .units import TranslationError


class Loss(NamedTuple):
    """Mean over all target tokens, base 2, unrounded.

    Attributes:
        loss: of the criterion that the model was trained with (label smoothing included).
        nll_loss: negative log-likelihood; the same as ``loss`` where the criterion has only one.
        tokens: target tokens, </s> included.
    """

    loss: float
    nll_loss: float
    tokens: int


@torch.no_grad()
def loss(trained: TrainedModel, split: str, *, max_tokens: int = 4000, sentences: Optional[int] = None) -> Loss:
    """Of all sentences of a split, or the first so many; for the arguments see :func:`.batches`."""
    total, nll, size, tokens = 0.0, 0.0, 0, 0
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        _, sample_size, log = trained.criterion(trained.model, sample)
        total += float(log["loss"])
        nll += float(log.get("nll_loss", log["loss"]))
        size += int(sample_size)
        tokens += int(log["ntokens"])
    return Loss(total / size / math.log(2), nll / tokens / math.log(2), tokens)


@torch.no_grad()
def sentence_losses(trained: TrainedModel, split: str, *, max_tokens: int = 4000) -> str:
    """Of every sentence of a split its negative log-likelihood in bits and its target tokens, </s> included.

    In the order of the corpus and in the one string that intervals read, see :mod:`collab_fairseq.scoring.sums`.
    """
    found: Dict[int, Tuple[str, int]] = {}
    model: Any = trained.model
    pad = trained.task.target_dictionary.pad()
    for sample in batches(trained, split, max_tokens=max_tokens):
        target = sample["target"]  # (B, T)
        likelihoods = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)  # (B, T, V)
        there = target.ne(pad)
        bits = -(likelihoods.gather(2, target[..., None])[..., 0] * there).double().sum(dim=1) / math.log(2)
        for number, own, tokens in zip(sample["id"].tolist(), bits.tolist(), there.sum(dim=1).tolist(), strict=True):
            found[number] = (f"{own:.4f}", tokens)
    return joined([found[number] for number in sorted(found)])


@torch.no_grad()
def translate(
    trained: TrainedModel, split: str, *, beam: int = 5, lenpen: float = 1.0, max_tokens: int = 4000,
    sentences: Optional[int] = None, remove_bpe: Optional[str] = "auto", **generation: Any,
) -> List[str]:  # fmt: skip
    """Best hypotheses in the order of the corpus, as the H- lines of fairseq-generate.

    Args:
        beam, lenpen: as of fairseq-generate.
        max_tokens, sentences: see :func:`.batches`.
        remove_bpe: ``sentencepiece``, ``@@ ``, None, or ``auto``: as the target dictionary has it.
        generation: further settings of fairseq's GenerationConfig, such as ``max_len_b``.
    """
    config = GenerationConfig(beam=beam, lenpen=lenpen, **generation)
    generator = trained.task.build_generator([trained.model], config)
    target = trained.task.target_dictionary
    units = subword_units(target) if remove_bpe == "auto" else remove_bpe
    found: Dict[int, str] = {}
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        hypotheses = trained.task.inference_step(generator, [trained.model], sample)
        for number, best in zip(sample["id"].tolist(), hypotheses, strict=True):
            # fairseq's post_process_prediction would add the words to the dictionary
            tokens, unseen = best[0]["tokens"].int().cpu(), generator.symbols_to_strip_from_output
            found[number] = target.string(tokens, units, extra_symbols_to_ignore=unseen)
    return [found[number] for number in sorted(found)]


class Score(NamedTuple):
    """A test split, translated and scored.

    Attributes:
        score, signature: sacreBLEU's.
        references: name of the file of references, or ``of the data-bin``.
        hypotheses: the translations, in the order of the corpus.
        statistics: for the paired bootstrap (:func:`collab_fairseq.scoring.sums.sentence_statistics`).
    """

    score: float
    signature: str
    references: str
    hypotheses: List[str]
    statistics: str


def score(
    trained: TrainedModel, split: str, references: Union[PathLike, Sequence[str], None] = None, **options: Any
) -> Score:
    """Translate a split and compare it with raw references.

    Args:
        references: a file or its lines, of which there may be more than ``sentences``; None: the target side of the
            data-bin as words, which subword models may have normalised.
        options: of :func:`translate`.

    Raises:
        ScoringError: see :func:`score_text`.
    """
    hypotheses = translate(trained, split, **options)
    if references is None:
        target, lines = trained.task.target_dictionary, dataset(trained, split).tgt
        references = [target.string(lines[n], subword_units(target)) for n in range(len(hypotheses))]
    name, lang = f"the reference of {split}", trained.task.cfg.target_lang
    return score_text(hypotheses, references, options.get("sentences"), target_lang=lang, name=name)


def score_text(
    hypotheses: Sequence[str],
    references: Union[PathLike, Sequence[str]],
    sentences: Optional[int] = None,
    **options: Any,
) -> Score:
    """Hypotheses of any model against raw references, a file or its lines, or the first ``sentences`` of them.

    Args:
        options: of :func:`collab_fairseq.scoring.references.score_raw`.

    Raises:
        ScoringError: a file that cannot be read, or another number of lines than hypotheses.
    """
    given = isinstance(references, (str, os.PathLike))
    name = os.path.basename(references) if given else "of the data-bin"  # type: ignore[arg-type]
    if sentences is not None:
        references = (read_lines(references) if given else list(references))[:sentences]  # type: ignore[arg-type]
    found = score_raw(hypotheses, references, **options)
    return Score(found.bleu.score, found.bleu.signature, str(name), list(hypotheses), found.statistics)


def test_splits(
    trained: TrainedModel,
    references: Mapping[str, PathLike],
    sentences: Optional[int] = None,  # noqa: PT028  (no test)
) -> List[str]:
    """The test splits of the data-bin.

    Raises:
        TranslationError: no split ``valid``, or references of a split or file that is not there.
        ScoringError: references of another number of lines, unless only the first ``sentences`` are translated.
    """
    there = splits(trained)
    tests = [name for name in there if name.startswith("test")]
    if "valid" not in there:
        raise TranslationError(f"the data-bin needs a split valid, there are {', '.join(there) or 'none'}")
    for name, file in references.items():
        given = f"--reference {name}={os.fspath(file)}"
        if name not in tests:
            raise TranslationError(f"{given}: the test splits are {', '.join(tests)}")
        if not os.path.isfile(file):
            raise TranslationError(f"{given}: there is no such file")
        if sentences is None:
            check_number(read_lines(file), dataset(trained, name), os.fspath(file))
    return tests


def evaluate(trained: TrainedModel, references: Mapping[str, PathLike], **options: Any) -> Dict[str, Any]:
    """Loss on ``valid`` and sacreBLEU of all test splits.

    Args:
        references: test split → file of raw references; the others are compared with the data-bin's target side.
        options: of :func:`translate`.

    Returns:
        ``valid``: the fields of :class:`Loss`; ``bleu``: by split ``score``, ``signature`` and ``references``.

    Raises:
        TranslationError, ScoringError: see :func:`test_splits` and :func:`score`.
    """
    tests = test_splits(trained, references, options.get("sentences"))
    tokens = {name: options[name] for name in ("max_tokens", "sentences") if name in options}
    found: Dict[str, Any] = {"valid": loss(trained, "valid", **tokens)._asdict(), "bleu": {}}
    for name in tests:
        scored = score(trained, name, references.get(name), **options)
        found["bleu"][name] = {key: getattr(scored, key) for key in ("score", "signature", "references")}
    return found
