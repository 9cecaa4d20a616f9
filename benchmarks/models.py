"""Rows of whole models: training steps, and translation by beam search.

The models are fairseq's transformer, ours with standard heads, ours, and ours with attention as in the paper's code.

A training step is forward, label-smoothed loss, backward and Adam, with the dropout of the preset. In rows ``fast``,
ours has the flags ``--criterion label_smoothed_cross_entropy_chunked``, ``--optimizer fused_adam`` and
``--fast-dropout``; the baseline is fairseq's transformer with fairseq's loss and Adam. In rows ``fast-bf16``, ours and
an additional ``fairseq-bf16`` run under bfloat16 autocast, as with ``--amp``, and ``fairseq`` in float32. All sentences
of these rows have the same length, because the chunked loss skips padding, which would favour it.

Models translate as in fairseq-generate, ours with shortlists (:mod:`collab_fairseq.search.shortlist`). Untrained models
do not end their translations, so each translation of a batch gets the length of the longest source.
"""

from argparse import Namespace
from functools import partial
from typing import Any, Dict, Optional, Sequence

import torch
from fairseq import models
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.optim.adam import Adam
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

import collab_fairseq.models  # noqa: F401  (registers transformer_collab)
from benchmarks.layers import AuthorsAttention
from benchmarks.measure import SEED, Options, Parts, Step
from benchmarks.sentences import Task, random_lengths
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from collab_fairseq.training.fused_adam import FusedAdam
from fairseq_modern.errors import UserError

#: size → our preset; fairseq's transformer gets the same settings
PRESETS = {"tiny": "transformer_collab_tiny", "base": "transformer_collab"}
#: size → entries of the joint dictionary: that of recipes/multi30k; 32K BPE, as for WMT14
VOCABULARY = {"tiny": 5904, "base": 32768}
#: mode (last part of the id of a training row, if it has one) → implementations
TRAIN_IMPLEMENTATIONS = {
    None: ("fairseq", "none", "ours", "authors"),
    "fast": ("fairseq", "ours"),
    "fast-bf16": ("fairseq", "fairseq-bf16", "ours"),
    "fast-memory": ("fairseq", "ours"),
}


def build(
    size: str, task: Task, key_dim: int, names: Sequence[str], device: str, fast_dropout: bool = False
) -> Dict[str, nn.Module]:
    """Models by name, with equal parameters in all models with standard heads and in all with collaborative heads.

    Args:
        size: key of :data:`PRESETS`.
        key_dim: D̃k of ``ours`` and ``authors``.
        names: ``fairseq`` and ``fairseq-bf16`` (its transformer), ``none`` (ours with standard heads), ``ours``,
            ``authors`` (mixed keys of all heads).
        fast_dropout: of our models.
    """
    flags: Dict[str, Any] = {"share_all_embeddings": True, "fast_dropout": fast_dropout}
    built: Dict[str, nn.Module] = {}
    for name in names:
        heads = {"key_dim": key_dim} if name in ("ours", "authors") else {"collaborative_heads": "none"}
        args = Namespace(arch=PRESETS[size], **flags, **heads)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        if name.startswith("fairseq"):
            args.arch = "transformer_wmt_en_de"  # all sizes are set, so this is fairseq's transformer
        torch.manual_seed(SEED)
        built[name] = models.build_model(args, task)
    if "authors" in built:
        _use_authors_attention(built["authors"])
    for source, target in (("fairseq", "none"), ("ours", "authors")):
        if source in built and target in built:
            built[target].load_state_dict(built[source].state_dict())
    return {name: model.to(device) for name, model in built.items()}


def _use_authors_attention(model: nn.Module) -> None:
    """Replace all attention layers of a model."""
    layers: Dict[str, Any] = dict(attention_layers(model))
    for layer_id, layer in layers.items():
        authors = AuthorsAttention(
            layer.embed_dim, layer.num_heads, layer.key_dim, dropout=layer.dropout, cross=layer.cross
        )
        model.set_submodule(parameter_prefix(layer_id)[:-1], authors)


def train(size: str, sentences: int, length: int, key_dim: int, mode: Optional[str], options: Options) -> Parts:
    """A training step of all models of a row.

    In bfloat16, parameters stay in float32 and the step runs under autocast, as with fairseq's ``--amp``.

    Args:
        size: key of :data:`PRESETS`.
        sentences: number of pairs in the batch.
        length: tokens of the longest sentence.
        key_dim: total key dimension of ``ours``.
        mode: key of :data:`TRAIN_IMPLEMENTATIONS`.
    """
    fast = mode is not None
    task = Task(VOCABULARY[size])
    built = build(size, task, key_dim, TRAIN_IMPLEMENTATIONS[mode], options.device, fast_dropout=fast)
    label_smoothed = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    chunked = ChunkedLabelSmoothedCrossEntropy(task, sentence_avg=False, label_smoothing=0.1)
    lengths = [length] * sentences if fast else random_lengths(sentences, longest=length)
    sources = task.sentences(lengths, SEED)
    targets = task.sentences(lengths, SEED + 1)
    batch = task.batch(sources, targets, options.device)
    if mode == "fast-bf16":
        in_bfloat16 = {"fairseq-bf16", "ours"}
    elif options.torch_dtype == torch.bfloat16:
        in_bfloat16 = set(built)
    else:
        in_bfloat16 = set()
    steps = {}
    for name, model in built.items():
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


def translate(size: str, sentences: int, key_dim: int, bf16: Optional[str], options: Options) -> Parts:
    """Beam search over sentences, in batches of similar length as in fairseq-generate.

    Args:
        size, key_dim: see :func:`train`.
        sentences: number of sentences.
        bf16: if given, compare ours in bfloat16 with fairseq's transformer in float32 and bfloat16.
    """
    task = Task(VOCABULARY["tiny"])
    sources = task.sentences(sorted(random_lengths(sentences)))
    names = ("fairseq", "fairseq-bf16" if bf16 else "none", "ours")
    searches = {}
    for name, model in build(size, task, key_dim, names, options.device).items():
        model.to(torch.bfloat16 if bf16 and name != "fairseq" else options.torch_dtype).eval()
        model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
        search = getattr(model, "sequence_generator", SequenceGenerator)  # ours with shortlists
        searches[name] = search([model], task.target_dictionary, beam_size=4, len_penalty=0.6)
    batches = [task.batch(sources[n : n + 64], None, options.device) for n in range(0, sentences, 64)]
    return [{name: partial(_search, search, batch) for name, search in searches.items()} for batch in batches]


def _search(search: Any, batch: Dict[str, Any]) -> None:
    length = batch["net_input"]["src_tokens"].size(1)
    search.max_len_b = search.min_len = length - 1  # without </s>
    lengths = sorted({len(sentence[0]["tokens"]) for sentence in search.generate([], batch)})
    if lengths != [length]:
        raise UserError(f"every translation of a batch must have {length} tokens; got {lengths}")
