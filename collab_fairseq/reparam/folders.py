"""Conversion of a Hugging Face model folder: an encoder (BERT, DistilBERT, ALBERT) with or without a classifier.

The source and the converted model are compared by a *divergence*, the mean over texts of

    encoder        1 − cos(e, e')       e: mean of the last hidden states over the tokens of the text, or the first one,
                                        as in the folder's files of sentence-transformers
    classifier     KL(p ‖ p')           p: predicted distribution, in bits
    regression     (y − y')²            y: prediction

It needs no labels. It allocates a budget of key dimensions, is the loss of the distillation, and is reported for the
text of an evaluation.
"""

import json
import logging
import math
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.checkpoints import PathLike, file_setting
from collab_fairseq.files import check_new_folder
from collab_fairseq.huggingface import (
    attention_layers,
    check_labels,
    check_tokens,
    load_folder,
    load_tokenizer,
    measured,
    read_examples,
    score_weights,
    text_batches,
)
from collab_fairseq.huggingface.layers import CollaborativeHeads, names_of
from collab_fairseq.modules.sites import swapped_modules
from collab_fairseq.progress import shown
from collab_fairseq.records.record import Record
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation.tokenizer import require
from fairseq_modern.errors import UserError
from fairseq_modern.files import new_folder

from . import allocation
from .huggingface import calibrate, with_scores
from .pipeline import Settings, Steps, layer_row
from .scores import fit_layers
from .text import digest
from .training import RATE, train

logger = logging.getLogger(__name__)

#: one text, or a pair of texts
Text = Tuple[str, ...]
#: keyword arguments of the model
Batch = Dict[str, Tensor]

# texts per batch, and texts on which divergences are measured for a budget
_BATCH, _MEASURED = 32, 100


class Source(NamedTuple):
    """A model of a folder, in evaluation mode, its tokenizer, the precision of its file, and the pooling of an encoder.

    The model computes at least in float32: half precision is too coarse for the steps of Adam, and for its eps.
    """

    model: Any
    tokenizer: Any
    dtype: torch.dtype
    pools_first: bool = False

    @property
    def is_encoder(self) -> bool:
        """Whether the model has no classifier."""
        return self.model.base_model is self.model

    @classmethod
    def load(cls, folder: PathLike, device: str) -> "Source":
        model = load_folder(folder)
        is_classifier = type(model).__name__.endswith("ForSequenceClassification")
        has_decoder = model.config.is_encoder_decoder or getattr(model.config, "is_decoder", False)
        if has_decoder or not (model.base_model is model or is_classifier):
            raise AttentionError(
                f"{os.fspath(folder)} must be an encoder or a classifier; got {type(model).__name__}: convert it with "
                "collab_fairseq.reparam.huggingface.to_collaborative in Python"
            )
        check_labels(model, os.fspath(folder))
        dtype: torch.dtype = model.dtype
        model = model.eval().to(device, torch.promote_types(dtype, torch.float32))
        return cls(model, load_tokenizer(folder), dtype, not is_classifier and _pools_first(Path(folder)))

    def batches(self, texts: Sequence[Text]) -> List[Batch]:
        return list(text_batches(self.model, self.tokenizer, texts, _BATCH))

    def output(self, model: Any, batch: Batch) -> Tensor:
        """Embeddings of an encoder, (N, E), or logits of a classifier, (N, C), from this or a converted model.

        N: texts.
        """
        if not self.is_encoder:
            logits: Tensor = model(**batch).logits
            return logits
        states: Tensor = model(**batch).last_hidden_state  # (N, T, E)
        if self.pools_first:
            return states[:, 0]
        mask = batch["attention_mask"][:, :, None].to(model.dtype)
        return (states * mask).sum(1) / mask.sum(1)

    @torch.no_grad()
    def outputs(self, model: Any, batches: Sequence[Batch]) -> Tensor:
        return torch.cat([self.output(model, batch) for batch in batches])


def _pools_first(folder: Path) -> bool:
    """Whether the first token has the embedding of the text, by the files of sentence-transformers; else the mean has.

    Raises:
        UserError: the embedding is another one, or changed by layers that are not part of the model.
    """
    modes = set()
    for module in sorted(folder.glob("[1-9]_*")):
        if module.name not in ("1_Pooling", "2_Normalize"):
            raise UserError(f"{folder} must be an encoder with pooling only; got {module.name}")
        if module.name == "1_Pooling":
            config = json.loads((module / "config.json").read_text(encoding="utf-8"))
            named = [config["pooling_mode"]] if "pooling_mode" in config else []
            modes = {*named, *(name for name, on in config.items() if name.startswith("pooling_mode_") and on)}
    first, mean = {"cls", "pooling_mode_cls_token"}, {"mean", "pooling_mode_mean_tokens"}
    if not modes <= mean and not modes <= first:
        raise UserError(f"{folder} must pool the mean or the first token; got {', '.join(map(str, modes))}")
    return not modes <= mean


def read_texts(path: PathLike, what: str) -> List[Text]:
    """A text per line, or the two texts of a pair, separated by a tab. Empty lines are skipped.

    Raises:
        UserError: the file cannot be read, or its lines have different numbers of texts, or more than two.
    """
    texts = [tuple(line.split("\t")) for line in read_lines(path, what) if line.strip()]
    if {len(text) for text in texts} not in (set(), {1}, {2}):
        raise UserError(f"{what} must have one tab in every line (pairs), or none; got others in {os.fspath(path)}")
    return texts


def divergence(expected: Tensor, got: Tensor, is_encoder: bool) -> Tensor:
    """The divergence of each text, (N), from outputs (N, ·) of the source and of the converted model."""
    if is_encoder:
        return 1 - F.cosine_similarity(expected, got)
    if expected.size(1) == 1:
        return (expected - got).square().squeeze(1)
    log_p, log_q = torch.log_softmax(expected.float(), -1), torch.log_softmax(got.float(), -1)
    return (log_p.exp() * (log_p - log_q)).sum(1) / math.log(2)


def _key_dims(
    source: Source, calibrations: Any, texts: Sequence[Text], budget: float, seed: int, kept: Record
) -> Tuple[Any, Any]:
    """Key dimension of each layer within a budget, and the divergences that determine it, which are also `kept`."""
    batches = source.batches(texts[:_MEASURED])
    expected = source.outputs(source.model, batches)

    def measure(weights: Mapping[str, ScoreWeights]) -> Dict[str, float]:
        converted = dict(attention_layers(with_scores(source.model, weights)))
        means = {}
        for name in weights:
            with swapped_modules(source.model.base_model, {name: converted[name]}):
                got = source.outputs(source.model, batches)
            means[name] = float(divergence(expected, got, source.is_encoder).mean())
        return means

    origin = dict(score_weights(source.model))
    divergences = allocation.by_rank(origin, measure, calibrations, seed=seed, part=kept.part)
    return allocation.allocate_ranks(divergences, budget), divergences


def distill(source: Source, student: Any, texts: Sequence[Text], steps: int, rate: float, seed: int) -> Dict[str, Any]:
    """Train the score parameters of the collaborative layers of ``student`` to reproduce the outputs of the source.

    Dropout is off. Layers keep the better of their weights before and after, by the divergence on the first texts.

    Returns:
        Measurements for records: ``before``, ``after``, ``curve`` (pairs of step and divergence since the last point)
        and ``cpu_seconds``.
    """
    held = source.batches(texts[:_MEASURED])
    expected = source.outputs(source.model, held)

    def measure() -> float:
        return float(divergence(expected, source.outputs(student, held), source.is_encoder).mean())

    def backward(batch: Batch) -> Tuple[float, int]:
        with torch.no_grad():
            reference = source.output(source.model, batch)
        with torch.enable_grad():
            loss = divergence(reference, source.output(student, batch), source.is_encoder).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), 1

    student.requires_grad_(False)
    collaborative = [layer for _, layer in attention_layers(student) if isinstance(layer, CollaborativeHeads)]
    trained = [parameter for layer in collaborative for parameter in _score_parameters(layer)]
    before, initial = measure(), [parameter.detach().clone() for parameter in trained]
    curve, seconds = train(trained, backward, source.batches(texts), rate=rate, steps=steps, seed=seed)
    after = measure()
    if not after < before:
        for parameter, value in zip(trained, initial, strict=True):
            parameter.data.copy_(value)
    student.requires_grad_(True)
    return {"before": before, "after": min(before, after), "curve": curve, "cpu_seconds": seconds}


class Examples(NamedTuple):
    """Labelled texts of a task: ``validation.jsonl``, objects with texts and a ``label``, one per line.

    The names of the texts are those of :data:`collab_fairseq.huggingface.examples.TEXT_FIELDS`.
    """

    texts: List[Text]
    labels: List[Union[int, float]]

    @classmethod
    def read(cls, folder: PathLike, source: Source) -> "Examples":
        require("sklearn.metrics", "huggingface")  # for metrics(), after the conversion
        path = os.path.join(folder, "validation.jsonl")
        texts, labels = read_examples(read_lines(path, "the examples"), path, None, "label", source.model)
        if {len(text) for text in texts} not in ([{2}] if source.is_encoder else [{1}, {2}]):
            kind = "two texts" if source.is_encoder else "one text, or all two texts"
            raise UserError(f"all examples in {path} must have {kind}")
        return cls(texts, labels)


def metrics(results: Tensor, examples: Examples, is_encoder: bool) -> Dict[str, float]:
    """100 × Spearman's correlation of an encoder's cosine similarities with the labels, or a classifier's metrics.

    ``results`` are embeddings of both texts of each pair in turn, (2 N, E), or logits, (N, C).
    """
    names = {"accuracy": "accuracy"}
    if is_encoder:
        results = F.cosine_similarity(results[0::2], results[1::2])[:, None]
        names = {"100 × Spearman": "spearman"}
    elif results.size(1) == 1:
        names = {"100 × Pearson": "pearson", "100 × Spearman": "spearman"}
    elif results.size(1) == 2:
        names.update({"F1": "f1", "100 × Matthews": "matthews"})
    values = measured(names.values(), results.cpu().numpy(), examples.labels)
    return {name: 100 * values[metric] for name, metric in names.items()}


def read_evaluation(path: PathLike, source: Source) -> Tuple[List[Text], Optional[Examples]]:
    """The texts of a text file or a task folder, and the examples of a task folder (:class:`Examples`)."""
    if os.path.isdir(path):
        examples = Examples.read(path, source)
        return [(text,) for pair in examples.texts for text in pair] if source.is_encoder else examples.texts, examples
    texts = read_texts(path, "the texts of --evaluate")
    if not texts:
        raise UserError(f"the file of --evaluate must have at least one text; got none in {os.fspath(path)}")
    return texts, None


def evaluate(
    source: Source, converted: Any, texts: Sequence[Text], examples: Optional[Examples]
) -> Dict[str, Dict[str, float]]:
    """Measurements of the source and of the converted model; for the arguments see :func:`read_evaluation`."""
    results: Dict[str, Dict[str, float]] = {}
    batches = source.batches(texts)
    expected, got = source.outputs(source.model, batches), source.outputs(converted, batches)
    if examples:
        before, after = (metrics(each, examples, source.is_encoder) for each in (expected, got))
        results.update({name: {"before": before[name], "after": after[name]} for name in before})
    mean = float(divergence(expected, got, source.is_encoder).mean())
    if source.is_encoder:
        results["mean cosine to the source"] = {"before": 1.0, "after": 1 - mean}
    elif expected.size(1) == 1:
        results["mean squared difference"] = {"before": 0.0, "after": mean}
    else:
        agree = 100 * float((expected.argmax(1) == got.argmax(1)).double().mean())
        results["agreement with the source, %"] = {"before": 100.0, "after": agree}
        results["KL divergence, bits"] = {"before": 0.0, "after": mean}
    return results


def _score_parameters(layer: nn.Module) -> List[nn.Parameter]:
    names: Any = names_of(layer)
    return [parameter for name, parameter in layer.named_parameters() if name.startswith(names.of_scores)]


def convert_folder(folder: PathLike, output_folder: PathLike, settings: Settings, command: str) -> Record:
    """Convert a model folder, as `collab reparam` does; see :func:`.pipeline.convert_model` for the record.

    ``settings.calibration`` and ``settings.distill_text`` name text files, ``settings.evaluate`` a text file or a task
    folder. The new folder also contains the tokenizer and the other small files of the source, and has its precision.

    Raises:
        AttentionError, UserError: invalid settings, model or text. Nothing is written.
    """
    began = time.perf_counter()
    check_new_folder(output_folder)
    source, files = Source.load(folder, settings.device), _small_files(Path(folder))
    origin = dict(score_weights(source.model))
    budget, steps = allocation.parse_budget(settings.budget) if settings.budget else None, Steps(settings)
    kept: Optional[Record] = None
    ranks = {name: scores.heads.rank for name, scores in origin.items()}
    allocation.check_size(ranks, settings.key_dim, budget)
    evaluation = read_evaluation(str(settings.evaluate), source) if settings.evaluate else None
    texts = read_texts(settings.calibration, "the calibration text") if settings.calibration else []
    distill_texts = read_texts(settings.distill_text, "the text of --distill-text") if settings.distill_text else texts
    if settings.distill and not distill_texts:
        raise UserError(f"the text of --distill-text must have at least one text; got none in {settings.distill_text}")
    calibrations = divergences = distillation = None
    if settings.calibration:
        batches = source.batches(texts)
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        width = source.model.config.hidden_size
        if tokens < width:
            raise UserError(f"the calibration text must have at least {width} tokens (the model's width); got {tokens}")
        check_tokens(source.tokenizer, batches, os.fspath(settings.calibration))
        steps.begin(f"calibrating on {len(texts)} texts")
        calibrations = calibrate(source.model, shown(batches, "calibration", "batches"))
    else:
        logger.warning("no --calibration: the fit is unweighted and loses more quality")
    key_dims: Any = dict.fromkeys(origin, settings.key_dim)
    if budget:
        tokens_of_texts = (tensor for batch in batches for _, tensor in sorted(batch.items()))
        depends = {"checkpoint": file_setting(folder), "text": digest(tokens_of_texts), "seed": settings.seed}
        kept = allocation.kept_divergences(output_folder, command, depends, settings.device)
        steps.begin(allocation.announcement(len(origin), kept))
        key_dims, divergences = _key_dims(source, calibrations, texts, budget, settings.seed, kept)
    steps.begin(f"fitting {len(origin)} layers")
    fits = fit_layers(origin, key_dims, calibrations, seed=settings.seed)
    converted: Any = with_scores(source.model, {name: fit.weights for name, fit in fits.items()})
    if settings.distill:
        rate = settings.distill_rate or RATE
        steps.begin(f"distilling on {len(distill_texts)} texts")
        distillation = distill(source, converted, distill_texts, settings.distill, rate, settings.seed)
    seconds = time.perf_counter() - began
    with new_folder(output_folder) as work:
        for path in files:
            copy = Path(work) / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        converted.to(source.dtype).save_pretrained(work)
        source.tokenizer.save_pretrained(work)
    converted.to(source.model.dtype)  # the rounded weights are evaluated
    logger.info("wrote %s", os.fspath(output_folder))
    if kept:
        kept.discard()

    recorded = asdict(settings)
    for name in ("data", "device", "sites", "max_tokens", "references"):  # of fairseq models
        del recorded[name]
    recorded["checkpoint"] = file_setting(folder)
    for name in ("calibration", "distill_text", "evaluate"):
        path = recorded[name]
        recorded[name] = file_setting(path) if path and os.path.isfile(path) else path and os.path.basename(path)
    record = Record("conversion", "reparam", command, recorded, device=settings.device)
    record.parts["output"] = file_setting(output_folder)
    layers = dict(attention_layers(converted))
    new_scores = dict(score_weights(converted))
    rows = []
    for name, fit in fits.items():
        both = (source.model.base_model.get_submodule(name), layers[name])
        before, after = (sum(parameter.numel() for parameter in _score_parameters(layer)) for layer in both)
        rows.append(layer_row(name, origin[name], new_scores[name], fit, {"before": before, "after": after}))
    record.parts["layers"] = rows
    record.parts["parameters"] = {"before": source.model.num_parameters(), "after": converted.num_parameters()}
    record.parts["divergences"] = divergences
    record.parts["distillation"] = distillation
    record.parts["seconds"] = seconds
    if evaluation:
        steps.begin(f"evaluating on {len(evaluation[0])} texts")
    record.parts["evaluation"] = evaluate(source, converted, *evaluation) if evaluation else {}
    return record


def _small_files(folder: Path) -> List[Path]:
    """Settings of the tokenizer, of sentence-transformers and the like, without the weights in any format.

    The folder may be one of the cache of the Hugging Face Hub, which has links to ``blobs``.

    Raises:
        UserError: another link out of the folder, which may come from strangers.
    """
    root = folder.resolve()
    inside = (root, root.parent.parent / "blobs")
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".json", ".txt", ".model")
    ]
    for path in files:
        if not any(path.resolve().is_relative_to(each) for each in inside):
            raise UserError(f"{path} must be a file of the folder; got a link out of it: copy the folder with cp -rL")
    return files
