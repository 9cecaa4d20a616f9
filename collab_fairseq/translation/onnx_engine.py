"""Translating with ONNX Runtime and a beam search in NumPy, without torch; the graphs are of ``collab export``."""

import math
import os
from typing import Any, List, Optional, Sequence, Tuple

import numpy

from .translator import Hypothesis, Search
from .units import PathLike, TranslationError, read_card, require

#: ids of fairseq's dictionaries, whose files begin after them
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_PAD, _END, _UNKNOWN = 1, 2, 3

Array = Any  # of NumPy


class OnnxEngine:
    """A folder of ``collab export --to onnx``, in float32; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision != "float32":
            raise TranslationError(f"ONNX Runtime computes in float32 here, but {precision} was asked for")
        runtime = require("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        kind, _, index = device.partition(":")
        gpu = kind == "cuda" or (kind == "auto" and "CUDAExecutionProvider" in runtime.get_available_providers())
        providers = [("CUDAExecutionProvider", {"device_id": index or "0"})] if gpu else ["CPUExecutionProvider"]

        def graph(name: str) -> Any:
            try:
                return runtime.InferenceSession(os.path.join(os.fspath(folder), name), options, providers=providers)
            except Exception as error:  # of no class that is documented
                raise TranslationError(f"ONNX Runtime cannot use {name}: {str(error).splitlines()[0]}") from error

        card = read_card(folder)
        self._encoder, self._step = graph("encoder.onnx"), graph("step.onnx")
        self._source, self._target = (
            _units(os.path.join(os.fspath(folder), f"dict.{lang}.txt")) for lang in (card.source_lang, card.target_lang)
        )
        self._ids = {unit: number for number, unit in enumerate(self._source)}
        self._read = [output.name for output in self._encoder.get_outputs()]
        self._past = [given for given in self._step.get_inputs() if given.name.startswith("past.")]

    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """See :class:`.translator.Engine`."""
        if search.alignments:
            raise TranslationError("alignments are not exported to ONNX; take torch or ctranslate2")
        width = max(map(len, sentences)) + 1
        source = numpy.full((len(sentences), width), _PAD, numpy.int64)
        for row, sentence in enumerate(sentences):
            source[row, width - len(sentence) - 1 :] = [*(self._ids.get(unit, _UNKNOWN) for unit in sentence), _END]
        beam = search.beam
        read = dict(zip(self._read, self._encoder.run(None, {"source": source}), strict=True))
        read = {name: numpy.repeat(array, beam, axis=0) for name, array in read.items()}
        kept = {
            given.name: numpy.zeros(
                [len(sentences) * beam, *(n if isinstance(n, int) else 0 for n in given.shape[1:])], numpy.float32
            )
            for given in self._past
        }
        found: List[List[Tuple[float, Array]]] = [[] for _ in sentences]
        open_rows = numpy.arange(len(sentences))  # sentences whose search goes on
        tokens = numpy.full((len(sentences), beam, 1), _END, numpy.int64)
        totals = numpy.zeros((len(sentences), beam))
        for step in range(search.max_length + 1):
            before = tokens[:, :, -1].reshape(-1, 1)
            given = {"before": before, "position": numpy.array([step]), **read, **kept}
            scores, *present = self._step.run(None, given)
            parents, units, totals, ended = _best(scores, totals, step, search.max_length)
            for row, number in zip(*numpy.nonzero(ended[:, :beam]), strict=True):
                if len(hypotheses := found[open_rows[row]]) < beam:
                    made = tokens[row, parents[row, number], 1:]
                    hypotheses.append((totals[row, number] / (step + 1) ** search.lenpen, made))
            going = numpy.array([len(found[row]) < beam for row in open_rows])
            if step == search.max_length or not going.any():
                break
            # the best beam hypotheses that have not ended, in order
            order = numpy.argsort(ended, axis=1, kind="stable")[going, :beam]
            parents, units, totals = (numpy.take_along_axis(each[going], order, 1) for each in (parents, units, totals))
            rows = (numpy.flatnonzero(going)[:, None] * beam + parents).reshape(-1)
            tokens = numpy.concatenate([tokens.reshape(len(before), -1)[rows], units.reshape(-1, 1)], axis=1)
            tokens = tokens.reshape(len(parents), beam, -1)
            open_rows = open_rows[going]
            kept = {past.name: part[rows] for past, part in zip(self._past, present, strict=True)}
            if not going.all():
                read = {name: array[rows] for name, array in read.items()}
        return [
            [Hypothesis([self._target[i] for i in made], score / math.log(2)) for score, made in ranked[: search.nbest]]
            for ranked in (sorted(hypotheses, key=lambda each: -each[0]) for hypotheses in found)
        ]


def _best(scores: Array, totals: Array, step: int, longest: int) -> Tuple[Array, Array, Array, Array]:
    """The 2·B best continuations of each sentence, best first, as fairseq picks them.

    Args:
        scores: (N·B, V) log-probabilities. totals: (N, B) of the hypotheses so far.

    Returns:
        (N, 2·B) each: hypothesis, unit, new total, and whether it is </s>.
    """
    sentences, beam = totals.shape
    scores = scores.reshape(sentences, beam, -1).astype(numpy.float64)
    scores[:, :, _PAD] = -numpy.inf
    if step == 0:
        scores[:, :, _END] = -numpy.inf
        scores[:, 1:] = -numpy.inf  # all are the same yet
    if step == longest:
        scores[:, :, :_END] = scores[:, :, _END + 1 :] = -numpy.inf
    flat = (scores + totals[:, :, None]).reshape(sentences, -1)
    many = min(2 * beam, flat.shape[1] - 1)
    best = numpy.argpartition(-flat, many, axis=1)[:, :many]
    best = numpy.take_along_axis(best, numpy.argsort(-numpy.take_along_axis(flat, best, 1), axis=1, kind="stable"), 1)
    parents, units = numpy.divmod(best, scores.shape[2])
    totals = numpy.take_along_axis(flat, best, 1)
    return parents, units, totals, (units == _END) & numpy.isfinite(totals)


def _units(path: str) -> List[str]:
    """Id → unit of one of fairseq's dictionary files."""
    with open(path, encoding="utf-8") as stream:
        return [*SPECIAL, *(line.rstrip("\n").rsplit(" ", 1)[0] for line in stream)]
