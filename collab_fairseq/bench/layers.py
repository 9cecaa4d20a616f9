"""One attention layer, projections and masks included, as it stands in a model: trained, and decoding.

A decoding step is what fairseq's search does with a layer: reorder its cache as the hypotheses were reordered, then
attend from one new position per hypothesis. The cache before the step has been filled by the contestant itself.
"""

import copy
import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from fairseq.data import data_utils
from torch import Tensor

from collab_fairseq.attention.beams import moved
from collab_fairseq.modules.attention import IncrementalAttention

from .baselines import Contestant, contestants
from .cases import Case, Options, Step, draw
from .measure import compare

logger = logging.getLogger(__name__)


def agree(
    found: Dict[str, Contestant], steps: Dict[str, Step], whole: Optional[Callable[[Contestant], Tensor]] = None
) -> None:
    """See that the steps of contestants of one function give the same output and, in training, input gradient.

    Steps of kernels that cannot compute it (``ours-KERNEL``) are removed, which the log says. The first output of a
    function is held to that of ``whole``, where it is given.

    Raises:
        MismatchError: one of them differs from the first of its function.
    """
    first: Dict[str, Tuple[str, Tuple[Tensor, ...]]] = {}
    for name, contestant in found.items():
        try:
            results = steps[name]()
        except ValueError as error:
            if not name.startswith("ours-"):
                raise
            logger.info("left out: %s: %s", name, error)
            del steps[name]
            continue
        if contestant.function not in first:
            first[contestant.function] = (name, (whole(contestant),) if whole else results)
        reference, expected = first[contestant.function]
        for part, got, wanted in zip(("output", "input gradient"), results, expected, strict=False):
            compare(f"{part} of {name}, compared with {reference},", got, wanted, got.dtype)


def padding_mask(sentences: int, longest: int, options: Options) -> Tensor:
    """(N, S) boolean, True for padding, which is on the left, as fairseq pads sources."""
    lengths = torch.tensor(draw(sentences, options.seed, longest), device=options.device)
    mask: Tensor = data_utils.lengths_to_padding_mask(lengths)
    return mask.flip(1)


def layer_case(sentences: int, length: int, key_dim: int, what: str, embed_dim: int = 512, num_heads: int = 8) -> Case:
    """Forward and backward of self-attention over N sentences of T positions, as in an encoder.

    Args:
        sentences: N. length: T. what: ``train``, its time, or ``memory``, its peak. embed_dim, num_heads, key_dim: E,
            H, D̃k.
    """

    def prepare(options: Options) -> List[Dict[str, Step]]:
        where: Any = {"device": options.device, "dtype": options.torch_dtype}
        random = torch.Generator().manual_seed(options.seed)
        drawn = (torch.randn(length, sentences, embed_dim, generator=random) for _ in range(2))
        query, gradient = (tensor.to(**where).requires_grad_() for tensor in drawn)
        padding = padding_mask(sentences, length, options)

        def step_of(contestant: Contestant) -> Step:
            leaves = [query, *contestant.module.to(**where).parameters()]

            def step() -> Tuple[Tensor, Tensor]:
                output = contestant(query, query, padding)
                output.backward(gradient)
                found = query.grad
                for leaf in leaves:
                    leaf.grad = None
                return output, found  # type: ignore[return-value]

            return step

        found = contestants(embed_dim, num_heads, key_dim, cross=False, seed=options.seed)
        steps = {name: step_of(contestant) for name, contestant in found.items()}
        agree(found, steps)
        return [steps]

    return Case(f"layer/encoder/{sentences}x{length}/dk{key_dim}/{what}", prepare, what == "memory")


def decode_case(
    site: str, sentences: int, beams: int, length: int, key_dim: int, embed_dim: int = 512, num_heads: int = 8
) -> Case:
    """A decoding step of one layer.

    Args:
        site: ``cross`` or ``decoder`` (self-attention). sentences, beams: R, the hypotheses, is their product.
        length: S of the source, or T of the targets with the new position. embed_dim, num_heads, key_dim: of the layer.
    """
    cross = site == "cross"

    def prepare(options: Options) -> List[Dict[str, Step]]:
        where, random = (options.device, options.torch_dtype), torch.Generator().manual_seed(options.seed)
        key = padding = None
        if cross:
            source = torch.randn(length, sentences, embed_dim, generator=random)
            key = source.repeat_interleave(beams, dim=1).to(*where)
            padding = padding_mask(sentences, length, options).repeat_interleave(beams, dim=0)
        queries = torch.randn(1 if cross else length, sentences * beams, embed_dim, generator=random).to(*where)
        # of a search that continues any hypothesis of the same sentence
        chosen = torch.randint(beams, (sentences, beams), generator=random)
        order = (torch.arange(sentences)[:, None] * beams + chosen).flatten().to(options.device)

        find = functools.cache(moved)  # for ours the host looks at the order in the first step alone

        def attend(contestant: Contestant, query: Tensor, state: Optional[Dict[str, Any]]) -> Tensor:
            return contestant(query, query if key is None else key, padding, state, cross)

        @torch.no_grad()
        def step_of(contestant: Contestant) -> Step:
            state: Dict[str, Any] = {}
            contestant.module.to(*where).eval()
            for query in queries.split(1)[: None if cross else -1]:
                attend(contestant, query, state)

            @torch.no_grad()
            def step() -> Tuple[Tensor]:
                now = {name: copy.copy(kept) for name, kept in state.items()}  # every step begins with the same cache
                known = (find,) if isinstance(contestant.module, IncrementalAttention) else ()
                contestant.module.reorder_incremental_state(now, order, *known)  # type: ignore[operator]
                return (attend(contestant, queries[-1:], now),)

            return step

        @torch.no_grad()
        def whole(contestant: Contestant) -> Tensor:
            """The last position of attention over everything at once."""
            return attend(contestant, torch.cat([queries[:-1, order], queries[-1:]]), None)[-1:]

        found = contestants(embed_dim, num_heads, key_dim, cross=cross, beams=beams, seed=options.seed)
        steps = {name: step_of(contestant) for name, contestant in found.items()}
        agree(found, steps, whole)
        return [steps]

    row = f"decode/cross/{sentences}x{beams}/S{length}" if cross else f"decode/self/{sentences}x{beams}/T{length}"
    return Case(f"{row}/dk{key_dim}", prepare)


def layer_cases(options: Options) -> List[Case]:
    """The rows of ``collab bench layer``."""
    if options.quick:
        return [layer_case(3, 6, 4, what, 16, 2) for what in ("train", "memory")]
    sizes, key_dims = ((64, 32), (16, 128), (4, 512)), (64, 128, 256, 512)
    return [layer_case(*size, dim, what) for what in ("train", "memory") for size in sizes for dim in key_dims]


def decode_cases(options: Options) -> List[Case]:
    """The rows of single layers in ``collab bench decode``."""
    if options.quick:
        return [decode_case("cross", 3, 2, 5, 4, 16, 2), decode_case("decoder", 3, 2, 4, 4, 16, 2)]
    places = (("cross", 30), ("decoder", 15))
    return [decode_case(site, 64, 4, length, dim) for site, length in places for dim in (64, 128, 256, 512)]
