"""Losses and translations of a model, equal to those of fairseq-validate and fairseq-generate."""

import logging
import math
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring.bleu import sacrebleu_scorer
from collab_fairseq.scoring.references import RawScore, check_aligned, check_number, read_lines, score_raw
from collab_fairseq.scoring.sufficient_statistics import dump
from collab_fairseq.scoring.text import decode_marks, looks_tokenised, mark_unknown, moses_detokenise
from fairseq_modern.errors import UserError

from .load import TrainedModel
from .text import batches, byte_unit, dataset, sentencepiece_file, splits, subword_units
from .tokenizer import join_pieces, read_sentencepiece

logger = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Means over all target tokens in bits, unrounded.

    Attributes:
        loss: of the training criterion (label smoothing included); with ``--sentence-avg``, the mean over sentences.
        nll_loss: negative log-likelihood; equal to ``loss`` if the criterion has no other.
        tokens: target tokens, </s> included.
    """

    loss: float
    nll_loss: float
    tokens: int


@torch.no_grad()
def loss(trained: TrainedModel, split: str, *, max_tokens: int = 4000, sentences: Optional[int] = None) -> Loss:
    """The loss on a split; for the arguments see :func:`.batches`."""
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
    """Negative log-likelihood in bits, and number of target tokens (</s> included), of every sentence of a split.

    In corpus order, in the format of :func:`collab_fairseq.scoring.sufficient_statistics.dump`.
    """
    losses: Dict[int, Tuple[str, int]] = {}
    model: Any = trained.model
    pad = trained.task.target_dictionary.pad()
    for sample in batches(trained, split, max_tokens=max_tokens):
        target = sample["target"]  # (N, T): sentences, target tokens
        log_probs = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)  # (N, T, V)
        mask = target.ne(pad)
        # (N, T, V) → (N, T, 1) → (N, T); summed over the tokens: (N)
        bits = -(log_probs.gather(2, target[..., None])[..., 0] * mask).double().sum(dim=1) / math.log(2)
        tokens = mask.sum(dim=1)
        for number, sentence_bits, count in zip(sample["id"].tolist(), bits.tolist(), tokens.tolist(), strict=True):
            losses[number] = (f"{sentence_bits:.4f}", count)
    return dump([losses[number] for number in sorted(losses)])


@torch.no_grad()
def translate(
    trained: TrainedModel,
    split: str,
    *,
    beam: int = 5,
    lenpen: float = 1.0,
    max_tokens: int = 4000,
    sentences: Optional[int] = None,
    remove_bpe: Optional[str] = "auto",
    **generation: Any,
) -> List[str]:
    """Best hypotheses in corpus order, equal to the H- lines of fairseq-generate.

    Args:
        beam, lenpen: see fairseq-generate.
        max_tokens, sentences: see :func:`.batches`.
        remove_bpe: ``sentencepiece``, ``@@ ``, None, or ``auto``: inferred from the target dictionary. With byte
            units, which fairseq-generate does not join, the SentencePiece model of the data-bin does.
        generation: further settings of fairseq's GenerationConfig, such as ``max_len_b``.

    Raises:
        UserError: a sentence is longer than the model's positions, there are byte units but no SentencePiece model, or
            see :func:`.batches`.
    """
    config = GenerationConfig(beam=beam, lenpen=lenpen, **generation)
    generator = trained.task.build_generator([trained.model], config)
    target = trained.task.target_dictionary
    join = _joiner(trained) if remove_bpe == "auto" else lambda text: data_utils.post_process(text, remove_bpe)
    ignored = generator.symbols_to_strip_from_output
    translations: Dict[int, str] = {}
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        hypotheses = trained.task.inference_step(generator, [trained.model], sample)
        for number, best in zip(sample["id"].tolist(), hypotheses, strict=True):
            # fairseq's post_process_prediction would add the words to the dictionary
            tokens = best[0]["tokens"].int().cpu()
            translations[number] = join(target.string(tokens, extra_symbols_to_ignore=ignored))
    size = len(dataset(trained, split))
    size = size if sentences is None else min(size, sentences)
    if len(translations) < size:  # in train, long sentences are omitted
        longer = size - len(translations)
        raise UserError(f"the sentences of {split} must fit the model's positions; {longer} of {size} are longer")
    return [translations[number] for number in sorted(translations)]


def _joiner(trained: TrainedModel) -> Callable[[str], str]:
    """A function that joins units of the target dictionary, which are separated by spaces, to words."""
    target, data = trained.task.target_dictionary, trained.task.cfg.data
    units, unit = subword_units(target), byte_unit(target)
    if units in ("￭", "</w>"):
        raise UserError(f"the dictionary in {data} has subword units (marker {units}), which cannot be joined here")
    if unit is None:
        return lambda text: data_utils.post_process(text, units)
    file = sentencepiece_file(data)
    if file is None:
        raise UserError(
            f"the dictionary in {data} has byte units ({unit}), which only its SentencePiece model can join: "
            f"copy it to {os.path.join(data, 'sentencepiece.model')}"
        )
    processor = read_sentencepiece(file)
    return lambda text: join_pieces(processor, text.split())


def score(trained: TrainedModel, split: str, references: Optional[PathLike] = None, **options: Any) -> RawScore:
    """Translate a split and score it against raw references.

    Args:
        references: a file, which may have more lines than ``sentences``; None: the target side of the data-bin as
            words, which subword models may have normalised, detokenised if it looks tokenised.
        options: of :func:`translate`.
    """
    hypotheses = translate(trained, split, **options)
    language = trained.task.cfg.target_lang
    tokenised = None
    if references is None:
        hypotheses, lines = mark_unknown(hypotheses, decode_marks(_targets(trained, split, len(hypotheses))))
        name = f"the reference of {split}"
        tokenised = looks_tokenised(lines)
        if tokenised:
            lines = moses_detokenise(lines, language)
    else:
        lines = read_lines(references)[: options.get("sentences")]
        name = os.fspath(references)
        if looks_tokenised(lines):
            logger.warning("%s must be raw text for sacreBLEU; got text that looks tokenised", name)
    return score_raw(hypotheses, lines, language, tokenised, name)


def _targets(trained: TrainedModel, split: str, number: int) -> List[str]:
    """The first sentences of the target side of the data-bin, as words."""
    target, sentences, join = trained.task.target_dictionary, dataset(trained, split).tgt, _joiner(trained)
    return [join(target.string(sentences[index])) for index in range(number)]


def check_test_splits(
    trained: TrainedModel, references: Mapping[str, PathLike], sentences: Optional[int] = None
) -> List[str]:
    """Check the splits and reference files that :func:`evaluate` needs; return the test splits.

    Raises:
        UserError: there is no split ``valid``, a reference is of no test split, or see :func:`check_references`.
    """
    names = splits(trained)
    tests = [name for name in names if name.startswith("test")]
    if "valid" not in names:
        raise UserError(f"the data-bin must have a split valid; got {', '.join(names) or 'none'}")
    for name, file in references.items():
        if name not in tests:
            raise UserError(f"--reference {name}={os.fspath(file)}: the split must be one of {', '.join(tests)}")
    if tests:
        check_references(trained, references, sentences)
    return tests


def check_references(
    trained: TrainedModel, references: Mapping[str, PathLike], sentences: Optional[int] = None
) -> None:
    """Check, before anything is translated, that :func:`score` can score splits against these files.

    Raises:
        UserError: a split or a file does not exist, references have a wrong number of lines (of the first
            ``sentences``) or other sentences than the data-bin, sacreBLEU's tokeniser for the language is not
            installed, or see :func:`translate`.
    """
    for name, file in references.items():
        data, lines = dataset(trained, name), read_lines(file)[:sentences]
        number = min(len(data), sentences or len(data))
        check_number(lines, range(number), os.fspath(file))
        if data.tgt is not None:
            texts = decode_marks(_targets(trained, name, number), lines)
            check_aligned(lines, texts, os.fspath(file), f"the target side of {name} in the data-bin")
    _joiner(trained)  # raises an error if its SentencePiece model is needed and missing
    sacrebleu_scorer(trained.cfg.task.target_lang)  # raises an error if its tokeniser is not installed


def evaluate(trained: TrainedModel, references: Mapping[str, PathLike], **options: Any) -> Dict[str, Any]:
    """Loss on ``valid`` and sacreBLEU on all test splits.

    Args:
        references: test split → file of raw references; default for a split: the target side of the data-bin.
        options: of :func:`translate`.

    Returns:
        ``valid``: the fields of :class:`Loss`; ``bleu``: split → ``score``, ``signature`` and ``references``.
    """
    tests = check_test_splits(trained, references, options.get("sentences"))
    batching = {name: options[name] for name in ("max_tokens", "sentences") if name in options}
    result: Dict[str, Any] = {"valid": loss(trained, "valid", **batching)._asdict(), "bleu": {}}
    for name in tests:
        file = references.get(name)
        bleu = score(trained, name, file, **options).bleu
        origin = Path(file).name if file else "of the data-bin"
        result["bleu"][name] = {"score": bleu.score, "signature": bleu.signature, "references": origin}
    return result
