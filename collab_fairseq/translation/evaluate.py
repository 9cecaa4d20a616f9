"""Loss and translations of a model, as fairseq-validate and fairseq-generate give them."""

import math
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import torch
from fairseq.dataclass.configs import GenerationConfig

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring import bleu as metrics
from collab_fairseq.scoring import text

from .load import TrainedModel, TranslationError
from .text import batches, dataset, subword_units


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
def translate(
    trained: TrainedModel,
    split: str,
    *,
    beam: int = 5,
    lenpen: float = 1.0,
    max_tokens: int = 4000,
    sentences: Optional[int] = None,
    remove_bpe: Optional[str] = "auto",
    progress: Optional[Callable[[int, int], None]] = None,
    **generation: Any,
) -> List[str]:
    """Best hypotheses in the order of the corpus, as the H- lines of fairseq-generate.

    Args:
        beam, lenpen: as of fairseq-generate.
        max_tokens, sentences: see :func:`.batches`.
        remove_bpe: ``sentencepiece``, ``@@ ``, None, or ``auto``: as the target dictionary has it.
        progress: called with the number of sentences translated so far and of all.
        generation: further settings of fairseq's GenerationConfig, such as ``max_len_b``.
    """
    config = GenerationConfig(beam=beam, lenpen=lenpen, **generation)
    generator = trained.task.build_generator([trained.model], config)
    target = trained.task.target_dictionary
    units = subword_units(trained) if remove_bpe == "auto" else remove_bpe
    all_sentences = len(dataset(trained, split))
    expected = all_sentences if sentences is None else min(sentences, all_sentences)
    found: Dict[int, str] = {}
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        hypotheses = trained.task.inference_step(generator, [trained.model], sample)
        for number, best in zip(sample["id"].tolist(), hypotheses, strict=True):
            # fairseq's post_process_prediction would add the words to the dictionary
            tokens, unseen = best[0]["tokens"].int().cpu(), generator.symbols_to_strip_from_output
            found[number] = target.string(tokens, units, extra_symbols_to_ignore=unseen)
        if progress is not None:
            progress(len(found), expected)
    return [found[number] for number in sorted(found)]


def bleu(
    hypotheses: Sequence[str], references: Union[PathLike, Sequence[str]], target_lang: Optional[str] = None
) -> metrics.Score:
    """sacreBLEU of translations against references: a file of raw text, one per line, or the lines.

    Tokenised hypotheses are detokenised by sacremoses.

    Raises:
        TranslationError: another number of lines.
    """
    if isinstance(references, (str, os.PathLike)):
        name = os.fspath(references)
        with open(references, encoding="utf-8-sig", newline="\n") as stream:
            lines = stream.read().removesuffix("\n").split("\n")
    else:
        name, lines = "the reference", list(references)
    if len(lines) != len(hypotheses):
        raise TranslationError(f"{name} has {len(lines)} lines, expected {len(hypotheses)}")
    if text.looks_tokenised(hypotheses):
        hypotheses = text.moses_detokenise(hypotheses, target_lang or "en")
    return metrics.sacrebleu(hypotheses, lines, target_lang)
