"""One attention layer, with projections and masks as in a model: training and decoding.

A decoding step is what fairseq's search does with a layer: reorder its cache as the hypotheses were reordered, then
attend from one new position per hypothesis. The cache before the step has been filled by the implementation itself.
"""

import copy
import functools
from typing import Any, Dict, Tuple

import torch
from fairseq.data import data_utils
from torch import Tensor

from collab_fairseq.attention.cache import source_rows
from collab_fairseq.modules.attention import IncrementalAttention

from .implementations import SAME_FUNCTION, Implementation, implementations
from .measure import SEED, Options, Parts, Row, Step, compare
from .models import draw


def check_agreement(steps: Dict[str, Step]) -> None:
    """Compare the outputs, and in training the input gradients, of implementations of one function.

    Raises:
        BenchError: two of them differ.
    """
    for name, reference in SAME_FUNCTION.items():
        results, expected = steps[name](), steps[reference]()
        compare(f"output of {name}, compared with {reference},", results[0], expected[0], results[0].dtype)
        if len(results) > 1:
            compare(f"input gradient of {name}, compared with {reference},", results[1], expected[1], results[1].dtype)


def padding_mask(sentences: int, longest: int, device: str) -> Tensor:
    """(N, S) boolean, True for padding, which is on the left, as fairseq pads sources."""
    lengths = torch.tensor(draw(sentences, longest=longest), device=device)
    mask: Tensor = data_utils.lengths_to_padding_mask(lengths)
    return mask.flip(1)


def train(sentences: int, length: int, key_dim: int, embed_dim: int, num_heads: int, options: Options) -> Parts:
    """Forward and backward of self-attention over N sentences of T positions, as in an encoder.

    Args:
        sentences: N. length: T. embed_dim, num_heads, key_dim: E, H, D̃k.
    """
    where: Any = {"device": options.device, "dtype": options.torch_dtype}
    random = torch.Generator().manual_seed(SEED)
    query = torch.randn(length, sentences, embed_dim, generator=random).to(**where).requires_grad_()
    gradient = torch.randn(length, sentences, embed_dim, generator=random).to(**where).requires_grad_()
    padding = padding_mask(sentences, length, options.device)

    def step_of(implementation: Implementation) -> Step:
        module = implementation.module.to(**where)
        leaves = [query, *module.parameters()]

        def step() -> Tuple[Tensor, Tensor]:
            # as fairseq's encoder layers call it
            output: Tensor = module(query, query, query, key_padding_mask=padding, need_weights=False)[0]
            output.backward(gradient)
            query_gradient = query.grad
            for leaf in leaves:
                leaf.grad = None
            return output, query_gradient  # type: ignore[return-value]

        return step

    measured = implementations(embed_dim, num_heads, key_dim, cross=False)
    steps = {name: step_of(implementation) for name, implementation in measured.items()}
    check_agreement(steps)
    # fairseq calls torch's multi_head_attention_forward there; records have its own batched products as "fairseq"
    return [{"fairseq-self" if name == "fairseq" else name: step for name, step in steps.items()}]


def decode(
    cross: bool, sentences: int, beams: int, length: int, key_dim: int, embed_dim: int, num_heads: int, options: Options
) -> Parts:
    """A decoding step of one layer, cross-attention or self-attention.

    Args:
        sentences, beams: R, the hypotheses, is their product. length: S of the source, or T of the targets with the new
            position. embed_dim, num_heads, key_dim: of the layer.
    """
    where = (options.device, options.torch_dtype)
    random = torch.Generator().manual_seed(SEED)
    key: Any = None
    if cross:
        source = torch.randn(length, sentences, embed_dim, generator=random)
        key = source.repeat_interleave(beams, dim=1).to(*where)
        padding = padding_mask(sentences, length, options.device).repeat_interleave(beams, dim=0)
    queries = torch.randn(1 if cross else length, sentences * beams, embed_dim, generator=random).to(*where)
    # the order of a search that continues any hypothesis of the same sentence
    chosen = torch.randint(beams, (sentences, beams), generator=random)
    order = (torch.arange(sentences)[:, None] * beams + chosen).flatten().to(options.device)
    find = functools.cache(source_rows)  # ours reads the order on the host in the first step only

    @torch.no_grad()
    def step_of(implementation: Implementation) -> Step:
        module = implementation.module.to(*where).eval()
        stride = implementation.hypotheses_per_row
        filled: Dict[str, Any] = {}

        def attend(query: Tensor, state: Dict[str, Any]) -> Tensor:
            source, source_padding = query, None
            if cross:
                source, source_padding = key[:, ::stride], padding[::stride]
            output: Tensor = module(query, source, source, source_padding, state, False, cross)[0]
            return output

        for query in queries.split(1)[: None if cross else -1]:
            attend(query, filled)

        @torch.no_grad()
        def step() -> Tuple[Tensor]:
            state = {name: copy.copy(kept) for name, kept in filled.items()}  # every step begins with the same cache
            arguments = (find,) if isinstance(module, IncrementalAttention) else ()
            module.reorder_incremental_state(state, order, *arguments)  # type: ignore[operator]
            return (attend(queries[-1:], state),)

        return step

    measured = implementations(embed_dim, num_heads, key_dim, cross=cross, beams=beams)
    steps = {name: step_of(implementation) for name, implementation in measured.items()}
    check_agreement(steps)
    return [steps]


def layer_rows(quick: bool) -> Dict[str, Row]:
    """The rows of ``collab bench layer``."""
    sizes, key_dims = [(64, 32), (16, 128), (4, 512)], [64, 128, 256, 512]
    embed_dim, num_heads = 512, 8
    if quick:
        sizes, key_dims = [(3, 6)], [4]
        embed_dim, num_heads = 16, 2
    return {
        f"layer/encoder/{n}x{length}/dk{dim}/{what}": functools.partial(train, n, length, dim, embed_dim, num_heads)
        for what in ("train", "memory")
        for n, length in sizes
        for dim in key_dims
    }


def decode_rows(quick: bool) -> Dict[str, Row]:
    """The rows of single layers in ``collab bench decode``."""
    if quick:
        return {
            "decode/cross/3x2/S5/dk4": functools.partial(decode, True, 3, 2, 5, 4, 16, 2),
            "decode/self/3x2/T4/dk4": functools.partial(decode, False, 3, 2, 4, 4, 16, 2),
        }
    return {
        f"decode/{site}/64x4/{length}/dk{dim}": functools.partial(decode, cross, 64, 4, int(length[1:]), dim, 512, 8)
        for site, cross, length in (("cross", True, "S30"), ("self", False, "T15"))
        for dim in (64, 128, 256, 512)
    }
