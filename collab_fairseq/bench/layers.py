"""One attention layer, projections and masks included, as it stands in a model: trained, applied, and decoding.

A decoding step is what fairseq's search does with a layer: reorder its cache as the hypotheses were reordered, then
attend from one new position per hypothesis. The cache before the step has been filled by the contestant itself.
"""

import copy
import functools
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from collab_fairseq.attention.beams import moved
from collab_fairseq.modules.attention import IncrementalAttention

from .baselines import Contestant, Shape, contestants
from .cases import Case, Options, Step, draw, padding_mask
from .checks import Inputs, attempt, check, compare, make_inputs


def layer_case(
    site: str, sentences: int, length: int, key_dim: int, what: str, dropout: float = 0.0, embed_dim: int = 512,
    num_heads: int = 8, name: str = "", graph: bool = False,
) -> Case:  # fmt: skip
    """A layer over N sentences of T positions; keys of cross-attention are as long as the queries.

    Args:
        site, embed_dim, num_heads, key_dim, dropout: see :class:`.Shape`. sentences: N. length: T.
        what: ``train``, ``forward`` or ``memory``. name: in the id, in place of the site. graph: as a CUDA graph.
    """
    shape = Shape(embed_dim, num_heads, key_dim, site, dropout)

    def prepare(options: Options) -> List[Dict[str, Step]]:
        found = contestants(shape, seed=options.seed)
        for contestant in found.values():
            contestant.module.to(options.device, options.torch_dtype)
        lengths = draw("newstest2014", sentences, options.seed, length)
        inputs = make_inputs(shape, length, lengths, options.device, options.torch_dtype, options.seed)
        check(found, inputs)
        for contestant in found.values():
            contestant.module.train(what != "forward")
        return [{name: _step(contestant, inputs, what != "forward") for name, contestant in found.items()}]

    row = f"layer/{name or site}/{sentences}x{length}/dk{key_dim}/{what}"
    row += (f"/dropout{dropout}" if dropout else "") + ("/graph" if graph else "")
    return Case(row, prepare, "memory" if what == "memory" else "graph" if graph else "time")


def _step(contestant: Contestant, inputs: Inputs, backward: bool) -> Step:
    """Forward, or forward and backward: gradients of the inputs and of all parameters, made anew and dropped."""
    query = inputs.query.detach().clone().requires_grad_()
    key = query if inputs.key is inputs.query else inputs.key.detach().clone().requires_grad_()
    leaves = [query, key, *contestant.module.parameters()]

    def step() -> None:
        with torch.set_grad_enabled(backward):
            output = contestant(query, key, inputs.padding, inputs.mask)
        if backward:
            output.backward(inputs.gradient)
            for leaf in leaves:
                leaf.grad = None

    return step


def decode_case(
    site: str, sentences: int, beams: int, length: int, key_dim: int, embed_dim: int = 512, num_heads: int = 8,
    graph: bool = False,
) -> Case:  # fmt: skip
    """A decoding step of one layer.

    Args:
        site: ``cross`` or ``decoder`` (self-attention). sentences, beams: hypotheses are their product.
        length: S of the source, or T of the targets with the new position. embed_dim, num_heads, key_dim: of the layer.
        graph: as a CUDA graph, of an order that the host has looked at before.
    """
    shape, cross = Shape(embed_dim, num_heads, key_dim, site), site == "cross"

    def prepare(options: Options) -> List[Dict[str, Step]]:
        found = contestants(shape, beams, options.seed)
        where, random = (options.device, options.torch_dtype), torch.Generator().manual_seed(options.seed)
        key = padding = None
        if cross:
            source = torch.randn(length, sentences, embed_dim, generator=random)
            key = source.repeat_interleave(beams, dim=1).to(*where)
            lengths = draw("multi30k", sentences, options.seed, length)
            padding = padding_mask(lengths, True, options.device).repeat_interleave(beams, dim=0)
        queries = torch.randn(1 if cross else length, sentences * beams, embed_dim, generator=random).to(*where)
        order = new_order(sentences, beams, random).to(options.device)
        steps: Dict[str, Step] = {}
        expected: Dict[str, Tensor] = {}
        for name, contestant in found.items():
            contestant.module.to(*where).eval()
            step = _decoding_step(contestant, queries, key, padding, order)
            output = attempt(name, step)
            if output is None:
                continue
            if contestant.function not in expected:  # the last position of attention over everything at once
                everything = torch.cat([queries[:-1, order], queries[-1:]])
                with torch.no_grad():
                    whole = contestant(everything, everything if key is None else key, padding)
                expected[contestant.function] = whole[-1:]
            compare(f"decoding step of {name}", output, expected[contestant.function], options.torch_dtype)
            steps[name] = step
        return [steps]

    row = f"decode/cross/{sentences}x{beams}/S{length}" if cross else f"decode/self/{sentences}x{beams}/T{length}"
    row += f"/dk{key_dim}" + ("/graph" if graph else "")
    return Case(row, prepare, "graph" if graph else "time")


def new_order(sentences: int, beams: int, random: torch.Generator) -> Tensor:
    """(sentences · beams, ), as of a search that goes on from any hypothesis of the same sentence."""
    chosen = torch.randint(beams, (sentences, beams), generator=random)
    return (torch.arange(sentences)[:, None] * beams + chosen).flatten()


def fresh(state: Dict[str, Any]) -> Dict[str, Any]:
    """The same tensors in dicts of their own, so that every step begins with the same cache."""
    return {key: copy.copy(kept) for key, kept in state.items()}


def follower(order: Tensor) -> Callable[[Any, Dict[str, Any]], None]:
    """Reorders the cache of a layer in a state; for ours the host looks at the order in the first step alone."""
    find = functools.cache(moved)

    def follow(attention: Any, state: Dict[str, Any]) -> None:
        known = (find,) if isinstance(attention, IncrementalAttention) else ()
        attention.reorder_incremental_state(state, order, *known)

    return follow


def _decoding_step(
    contestant: Contestant, queries: Tensor, key: Optional[Tensor], padding: Optional[Tensor], order: Tensor
) -> Callable[[], Tensor]:
    """One step; the cache that it starts from is filled here.

    Args:
        queries: (T, R, E), or (1, R, E) in cross-attention, which has key (S, R, E) and padding (R, S).
        order: see :func:`new_order`.
    """
    state: Dict[str, Any] = {}
    follow = follower(order)

    def attend(query: Tensor, now: Dict[str, Any]) -> Tensor:
        return contestant(query, query if key is None else key, padding, None, now, cross=key is not None)

    def step() -> Tensor:
        now = fresh(state)
        with torch.no_grad():
            follow(contestant.module, now)
            return attend(queries[-1:], now)

    with torch.no_grad():
        for query in queries.split(1)[: -1 if key is None else None]:
            attend(query, state)
    return step


def layer_cases(options: Options) -> List[Case]:
    """The rows of ``collab bench layer``."""
    if options.quick:
        small: Dict[str, Any] = {"sentences": 3, "length": 6, "key_dim": 4, "embed_dim": 16, "num_heads": 2}
        rows = [layer_case(site, what="train", **small) for site in ("encoder", "cross", "decoder")]
        rows += [layer_case("encoder", what=what, **small) for what in ("forward", "memory")]
        return [*rows, layer_case("encoder", what="train", dropout=0.1, **small)]
    sizes, key_dims = ((64, 32), (16, 128), (4, 512)), (64, 128, 256, 512)
    sweep = [(*size, dim, what) for what in ("train", "forward", "memory") for size in sizes for dim in key_dims]
    rows = [layer_case("encoder", *row) for row in sweep]
    rows += [layer_case(site, *size, 128, "train") for site in ("cross", "decoder") for size in sizes]
    rows += [layer_case("encoder", *size, 128, "train", dropout=0.1) for size in sizes]
    rows += [layer_case("encoder", 64, 32, 512, "train", dropout=0.1)]
    # inference at the sizes of Table 1 of the paper, T = 128
    rows += [layer_case("encoder", 16, 128, key_dim, "forward", name="table1-nmt") for key_dim in (512, 128)]
    bert: Dict[str, Any] = {"embed_dim": 768, "num_heads": 12, "name": "table1-bert"}
    rows += [layer_case("encoder", 16, 128, key_dim, "forward", **bert) for key_dim in (768, 256)]
    if options.device == "cuda":
        rows += [layer_case("encoder", *row, graph=True) for row in sweep if row[-1] != "memory"]
    return rows


def decode_cases(options: Options) -> List[Case]:
    """The rows of single layers in ``collab bench decode``."""
    if options.quick:
        small: Dict[str, Any] = {"sentences": 3, "beams": 2, "key_dim": 4, "embed_dim": 16, "num_heads": 2}
        return [decode_case("cross", length=5, **small), decode_case("decoder", length=4, **small)]
    return [
        decode_case(site, 64, 4, length, key_dim, graph=graph)
        for graph in ([False, True] if options.device == "cuda" else [False])
        for site, length in (("cross", 30), ("decoder", 15))
        for key_dim in (64, 128, 256, 512)
    ]
