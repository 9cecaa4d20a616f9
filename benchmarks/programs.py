"""Rows of whole models: training steps, and translation by beam search.

A training step is forward, label-smoothed loss, backward and Adam, with the dropout of the preset. In rows ``fast``,
ours has the flags ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and
``--fast-dropout``; the baseline is fairseq's transformer with fairseq's loss and Adam. In rows ``fast-bf16``, ours and
an additional ``fairseq-bf16`` run under bfloat16 autocast, as with ``--amp``, and ``fairseq`` in float32. All sentences
of these rows have the same length, because the chunked loss skips padding, which would favour it.

Models translate as in fairseq-generate, ours with shortlists (:mod:`collab_fairseq.search.shortlist`). Untrained models
do not end their translations, so each translation of a batch gets the length of the longest source.
"""

from functools import partial
from typing import Any, Dict

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from benchmarks.measure import SEED, Options, Parts, Row, Step
from benchmarks.models import Task, build, make_batch, random_lengths
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.training.fused_adam import FusedAdam
from fairseq_modern.errors import UserError

#: mode (last part of the id of a training row) → implementations
TRAIN_IMPLEMENTATIONS = {
    "": ("fairseq", "none", "ours", "authors"),
    "fast": ("fairseq", "ours"),
    "fast-bf16": ("fairseq", "fairseq-bf16", "ours"),
    "fast-memory": ("fairseq", "ours"),
}


def train(size: str, sentences: int, length: int, key_dim: int, mode: str, options: Options) -> Parts:
    """A training step of all models of a row.

    In bfloat16, parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.

    Args:
        size: key of :data:`benchmarks.models.PRESETS`.
        sentences: number of pairs in the batch.
        length: tokens of the longest sentence.
        key_dim: total key dimension of ``ours``.
        mode: key of :data:`TRAIN_IMPLEMENTATIONS`.
    """
    fast = mode.startswith("fast")
    task = Task(options, size)
    models = build(size, task, key_dim, TRAIN_IMPLEMENTATIONS[mode], options, fast_dropout=fast)
    label_smoothed = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    chunked = ChunkedLabelSmoothedCrossEntropy(task, sentence_avg=False, label_smoothing=0.1)
    lengths = [length] * sentences if fast else random_lengths(sentences, longest=length)
    sources = task.sentences(lengths, SEED)
    targets = task.sentences(lengths, SEED + 1)
    batch = make_batch(sources, targets, task, options.device)
    if mode == "fast-bf16":
        in_bfloat16 = {"fairseq-bf16", "ours"}
    elif options.torch_dtype == torch.bfloat16:
        in_bfloat16 = set(models)
    else:
        in_bfloat16 = set()
    steps = {}
    for name, model in models.items():
        criterion, optimizer = (chunked, FusedAdam) if fast and name == "ours" else (label_smoothed, Adam)
        steps[name] = _step(model.train(), criterion, optimizer, batch, autocast=name in in_bfloat16)
    return [steps]


def _step(model: nn.Module, criterion: Any, optimizer: Any, batch: Dict[str, Any], autocast: bool) -> Step:
    """A training step as in fairseq's trainer; ``autocast``: to bfloat16."""
    adam = optimizer(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-8)
    device = batch["target"].device.type

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = criterion(model, batch)[0]
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.div_(batch["ntokens"])  # type: ignore[union-attr]
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def translate(size: str, sentences: int, key_dim: int, bf16: bool, options: Options) -> Parts:
    """Beam search over sentences, in batches of similar length as in fairseq-generate.

    Args:
        size, key_dim: see :func:`train`.
        sentences: number of sentences.
        bf16: compare ours in bfloat16 with fairseq's transformer in float32 and bfloat16.
    """
    task = Task(options, "tiny")  # with the dictionary of Multi30k
    sources = task.sentences(sorted(random_lengths(sentences)))
    names = ("fairseq", "fairseq-bf16" if bf16 else "none", "ours")
    searches = {}
    for name, model in build(size, task, key_dim, names, options).items():
        model.to(torch.bfloat16 if bf16 and name != "fairseq" else options.torch_dtype).eval()
        model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
        search = getattr(model, "sequence_generator", SequenceGenerator)  # ours with shortlists
        searches[name] = search([model], task.target_dictionary, beam_size=4, len_penalty=0.6)
    rows = 3 if options.quick else 64
    batches = [make_batch(sources[n : n + rows], None, task, options.device) for n in range(0, sentences, rows)]
    return [{name: partial(_search, search, batch) for name, search in searches.items()} for batch in batches]


def _search(search: Any, batch: Dict[str, Any]) -> None:
    length = batch["net_input"]["src_tokens"].size(1)
    search.max_len_b = search.min_len = length - 1  # without </s>
    lengths = sorted({len(sentence[0]["tokens"]) for sentence in search.generate([], batch)})
    if lengths != [length]:
        raise UserError(f"every translation of a batch must have {length} tokens; got {lengths}")


def train_rows(quick: bool, with_bf16: bool, on_gpu: bool) -> Dict[str, Row]:
    """The rows of ``python -m benchmarks train``.

    Args:
        with_bf16: also ours in bfloat16, compared with fairseq in float32.
        on_gpu: also base models with eight times as many tokens.
    """
    # the tiny batch has almost the 4,096 tokens of recipes/multi30k
    sizes = [("base", 64, 32, 128), ("base", 64, 32, 512), ("tiny", 170, 24, 32)]
    if quick:
        sizes = [("base", 3, 6, 4), ("tiny", 3, 6, 4)]
    fast_sizes = [sizes[0], sizes[-1]]
    if on_gpu and not quick:
        large = ("base", 512, 32, 128)
        sizes.append(large)
        fast_sizes.append(large)
    cases = [(size, "") for size in sizes]
    modes = [mode for mode in TRAIN_IMPLEMENTATIONS if mode and (with_bf16 or mode != "fast-bf16")]
    cases += [(size, mode) for size in fast_sizes for mode in modes]
    rows: Dict[str, Row] = {}
    for (preset, number, length, key_dim), mode in cases:
        name = f"train/{preset}/{number}x{length}/dk{key_dim}"
        rows[f"{name}/{mode}" if mode else name] = partial(train, preset, number, length, key_dim, mode)
    return rows


def translate_rows(quick: bool, with_bf16: bool) -> Dict[str, Row]:
    """The rows of whole models in ``python -m benchmarks decode``; ``with_bf16``: also in bfloat16."""
    sizes = [("tiny", 4, 6)] if quick else [("tiny", 32, 1000), ("base", 128, 1000)]
    rows: Dict[str, Row] = {}
    for bf16 in (False, True) if with_bf16 else (False,):
        for size, key_dim, number in sizes:
            name = f"decode/translate/{size}/{number}/dk{key_dim}"
            rows[f"{name}/bf16" if bf16 else name] = partial(translate, size, number, key_dim, bf16)
    return rows
