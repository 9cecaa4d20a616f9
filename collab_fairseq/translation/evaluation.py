"""Loss and translations of a model, as fairseq-validate and fairseq-generate give them."""

import math
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from fairseq.dataclass.configs import GenerationConfig

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.scoring.references import RawScore, check_number, read_lines, score_raw
from collab_fairseq.scoring.sufficient_statistics import dump

from .load import TrainedModel
from .text import batches, dataset, splits, subword_units
from .tokenizer import TranslationError


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

    In the order of the corpus, as :func:`collab_fairseq.scoring.sufficient_statistics.dump` writes them.
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
    return dump([found[number] for number in sorted(found)])


@torch.no_grad()
def translate(
    trained: TrainedModel, split: str, *, beam: int = 5, lenpen: float = 1.0, max_tokens: int = 4000,
    sentences: Optional[int] = None, remove_bpe: Optional[str] = "auto", **generation: Any,
) -> List[str]:  # fmt: skip
    """Best hypotheses in the order of the corpus, as the H- lines of fairseq-generate.

    Args:
        beam, lenpen: see fairseq-generate.
        max_tokens, sentences: see :func:`.batches`.
        remove_bpe: ``sentencepiece``, ``@@ ``, None, or ``auto``: as the target dictionary has it.
        generation: further settings of fairseq's GenerationConfig, such as ``max_len_b``.
    """
    config = GenerationConfig(beam=beam, lenpen=lenpen, **generation)
    generator = trained.task.build_generator([trained.model], config)
    target = trained.task.target_dictionary
    marker = subword_units(target) if remove_bpe == "auto" else remove_bpe
    found: Dict[int, str] = {}
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        hypotheses = trained.task.inference_step(generator, [trained.model], sample)
        for number, best in zip(sample["id"].tolist(), hypotheses, strict=True):
            # fairseq's post_process_prediction would add the words to the dictionary
            tokens, unseen = best[0]["tokens"].int().cpu(), generator.symbols_to_strip_from_output
            found[number] = target.string(tokens, marker, extra_symbols_to_ignore=unseen)
    return [found[number] for number in sorted(found)]


def score(trained: TrainedModel, split: str, references: Optional[PathLike] = None, **options: Any) -> RawScore:
    """Translate a split and compare it with raw references.

    Args:
        references: a file, which may have more lines than ``sentences``; None: the target side of the data-bin as
            words, which subword models may have normalised.
        options: of :func:`translate`.

    Raises:
        UserError: a file that cannot be read, or another number of lines than hypotheses.
    """
    hypotheses, target = translate(trained, split, **options), trained.task.target_dictionary
    if references is None:
        own = dataset(trained, split).tgt
        lines = [target.string(own[number], subword_units(target)) for number in range(len(hypotheses))]
    else:
        lines = read_lines(references)[: options.get("sentences")]
    name = f"the reference of {split}" if references is None else os.fspath(references)
    return score_raw(hypotheses, lines, trained.task.cfg.target_lang, name=name)


def test_splits(
    trained: TrainedModel,
    references: Mapping[str, PathLike],
    sentences: Optional[int] = None,  # noqa: PT028  (no test)
) -> List[str]:
    """The test splits of the data-bin.

    Raises:
        TranslationError: no split ``valid``, or references of a split or file that is not there.
        UserError: references of another number of lines, unless only the first ``sentences`` are translated.
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
        TranslationError, UserError: see :func:`test_splits` and :func:`score`.
    """
    tests = test_splits(trained, references, options.get("sentences"))
    tokens = {name: options[name] for name in ("max_tokens", "sentences") if name in options}
    found: Dict[str, Any] = {"valid": loss(trained, "valid", **tokens)._asdict(), "bleu": {}}
    for name in tests:
        file = references.get(name)
        scored, named = score(trained, name, file, **options).bleu, Path(file).name if file else "of the data-bin"
        found["bleu"][name] = {"score": scored.score, "signature": scored.signature, "references": named}
    return found
