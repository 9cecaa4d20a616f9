"""Rows of a single attention layer, with projections and masks as in a model: training and decoding.

A decoding step does the same as fairseq's beam search: it reorders the cache of the layer, then attends from one new
position per hypothesis. Each implementation fills its own cache before the step.
"""

import copy
import functools
from typing import Any, Dict, Tuple

import torch
from fairseq.data import data_utils
from torch import Tensor, nn

from benchmarks.implementations import SAME_FUNCTION, implementations
from benchmarks.measure import SEED, Options, Parts, Row, Step, compare
from benchmarks.models import random_lengths
from collab_fairseq.attention.cache import source_rows
from collab_fairseq.modules.attention import IncrementalAttention


def check_agreement(steps: Dict[str, Step]) -> None:
    """Raise UserError unless implementations of one function have equal outputs, and input gradients in training."""
    for name, reference in SAME_FUNCTION.items():
        results = zip(("output", "input gradient"), steps[name](), steps[reference](), strict=False)
        for quantity, actual, expected in results:
            compare(f"{quantity} of {name}, compared with {reference},", actual, expected)


def padding_mask(sentences: int, longest: int, device: str) -> Tensor:
    """(N, S) boolean mask, True for padding: on the left, as in fairseq's sources. N: sentences, S: ``longest``."""
    lengths = torch.tensor(random_lengths(sentences, longest=longest), device=device)
    mask: Tensor = data_utils.lengths_to_padding_mask(lengths)
    return mask.flip(1)


def train(sentences: int, length: int, key_dim: int, embed_dim: int, num_heads: int, options: Options) -> Parts:
    """Forward and backward pass of self-attention over sentences of at most ``length`` tokens, as in an encoder."""
    where: Any = {"device": options.device, "dtype": options.torch_dtype}
    random = torch.Generator().manual_seed(SEED)
    query = torch.randn(length, sentences, embed_dim, generator=random).to(**where).requires_grad_()
    gradient = torch.randn(length, sentences, embed_dim, generator=random).to(**where).requires_grad_()
    padding = padding_mask(sentences, length, options.device)

    def step_of(module: nn.Module) -> Step:
        leaves = [query, *module.to(**where).parameters()]

        def step() -> Tuple[Tensor, Tensor]:
            # the call of fairseq's encoder layers
            output: Tensor = module(query, query, query, key_padding_mask=padding, need_weights=False)[0]
            output.backward(gradient)
            query_gradient = query.grad
            for leaf in leaves:
                leaf.grad = None
            return output, query_gradient  # type: ignore[return-value]

        return step

    modules = implementations(embed_dim, num_heads, key_dim, cross=False)
    steps = {name: step_of(module) for name, module in modules.items()}
    check_agreement(steps)
    # in this call fairseq uses torch's multi_head_attention_forward; "fairseq" in records is its own batched products
    names = {"fairseq": "fairseq-self"}
    return [{names.get(name, name): step for name, step in steps.items()}]


def decode(
    cross: bool, sentences: int, beams: int, length: int, key_dim: int, embed_dim: int, num_heads: int, options: Options
) -> Parts:
    """A decoding step of one layer.

    Args:
        cross: cross-attention instead of self-attention.
        beams: hypotheses per sentence.
        length: source positions in cross-attention; target positions, including the new one, in self-attention.
    """
    where = (options.device, options.torch_dtype)
    random = torch.Generator().manual_seed(SEED)
    key: Any = None
    if cross:
        source = torch.randn(length, sentences, embed_dim, generator=random)
        key = source.repeat_interleave(beams, dim=1).to(*where)
        padding = padding_mask(sentences, length, options.device).repeat_interleave(beams, dim=0)
    queries = torch.randn(1 if cross else length, sentences * beams, embed_dim, generator=random).to(*where)
    # each hypothesis continues a random one of the same sentence
    chosen = torch.randint(beams, (sentences, beams), generator=random)
    order = (torch.arange(sentences)[:, None] * beams + chosen).flatten().to(options.device)
    find = functools.cache(source_rows)  # ours reads the order on the host in the first step only

    @torch.no_grad()
    def step_of(name: str, module: nn.Module) -> Step:
        module.to(*where).eval()
        # our layers cache the source once per sentence, fairseq and the authors once per hypothesis
        stride = beams if name in SAME_FUNCTION else 1
        cache: Dict[str, Any] = {}

        def attend(query: Tensor, state: Dict[str, Any]) -> Tensor:
            source, source_padding = query, None
            if cross:
                source, source_padding = key[:, ::stride], padding[::stride]
            output: Tensor = module(query, source, source, source_padding, state, False, cross)[0]
            return output

        for query in queries.split(1)[: None if cross else -1]:
            attend(query, cache)

        @torch.no_grad()
        def step() -> Tuple[Tensor]:
            state = {key: copy.copy(entry) for key, entry in cache.items()}  # every step starts with the same cache
            arguments = (find,) if isinstance(module, IncrementalAttention) else ()
            module.reorder_incremental_state(state, order, *arguments)  # type: ignore[operator]
            return (attend(queries[-1:], state),)

        return step

    modules = implementations(embed_dim, num_heads, key_dim, cross=cross)
    steps = {name: step_of(name, module) for name, module in modules.items()}
    check_agreement(steps)
    return [steps]


def layer_rows(quick: bool, on_gpu: bool) -> Dict[str, Row]:
    """The rows of ``python -m benchmarks layer``; ``on_gpu``: also with eight times as many tokens."""
    sizes, key_dims = [(64, 32), (16, 128), (4, 512)], [128, 512]
    if on_gpu:
        sizes += [(8 * sentences, length) for sentences, length in sizes]
    embed_dim, num_heads = 512, 8
    if quick:
        sizes, key_dims = [(3, 6)], [4]
        embed_dim, num_heads = 16, 2
    return {
        f"layer/encoder/{n}x{length}/dk{dim}/{quantity}": functools.partial(train, n, length, dim, embed_dim, num_heads)
        for quantity in ("train", "memory")
        for n, length in sizes
        for dim in key_dims
    }


def decode_rows(quick: bool) -> Dict[str, Row]:
    """The rows of single layers in ``python -m benchmarks decode``."""
    sentences, beams, source_length, target_length, key_dims = 64, 4, 30, 15, [128]
    embed_dim, num_heads = 512, 8
    if quick:
        sentences, beams, source_length, target_length, key_dims = 3, 2, 5, 4, [4]
        embed_dim, num_heads = 16, 2
    rows: Dict[str, Row] = {}
    for cross, length in ((True, source_length), (False, target_length)):
        site = "cross" if cross else "self"
        letter = "S" if cross else "T"
        for dim in key_dims:
            row = functools.partial(decode, cross, sentences, beams, length, dim, embed_dim, num_heads)
            rows[f"decode/{site}/{sentences}x{beams}/{letter}{length}/dk{dim}"] = row
    return rows
