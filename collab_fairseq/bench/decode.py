"""``collab bench decode``, one layer: a step of beam search over cached keys and values.

A step is what fairseq's search does with a layer: reorder its cache as the hypotheses were reordered, then attend from
one new position per hypothesis. The cache before the step has been filled by the contestant itself.
"""

import copy
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from collab_fairseq.attention.cost import AttentionShape

from .baselines import Contestant, Shape, contestants
from .cases import Options
from .checks import able, against_reference, compare
from .lengths import MULTI30K, padding_mask
from .roofline import Peaks, step_limit
from .timing import Step

State = Dict[str, Dict[str, Optional[Tensor]]]


class Inputs(NamedTuple):
    """queries (T, R, E), or (1, R, E) in cross-attention, which has key (S, R, E) and padding (R, S); order (R, )."""

    queries: Tensor
    key: Optional[Tensor]
    padding: Optional[Tensor]
    order: Tensor


@dataclass(frozen=True)
class DecodeCase:
    """A decoding step of one layer.

    Attributes:
        site: ``cross`` or ``decoder`` (self-attention). sentences, beams: hypotheses are their product.
        length: S of the source, or T of the targets with the new position.
        graph: as a CUDA graph, without the reordering of cross-attention, where fairseq looks at the order on the host.
    """

    site: str
    sentences: int
    beams: int
    length: int
    key_dim: int
    embed_dim: int = 512
    num_heads: int = 8
    graph: bool = False

    @property
    def id(self) -> str:
        letter = "S" if self.site == "cross" else "T"
        name = "cross" if self.site == "cross" else "self"
        parts = [f"decode/{name}", f"{self.sentences}x{self.beams}", f"{letter}{self.length}", f"dk{self.key_dim}"]
        return "/".join([*parts, *(["graph"] if self.graph else [])])

    @property
    def title(self) -> str:
        what = f"cross, S = {self.length}" if self.site == "cross" else f"self, T = {self.length}, with reorder"
        return (
            f"decoding step, {what}, {self.sentences} sentences × beam {self.beams}, key dim {self.key_dim}"
            + (", CUDA graph" if self.graph else "")
        )

    @property
    def measure(self) -> str:
        return "graph" if self.graph else "time"

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        shape = Shape(self.embed_dim, self.num_heads, self.key_dim, self.site)
        found = contestants(shape, self.beams, options.seed)
        against_reference(found, shape)
        for contestant in found.values():
            contestant.module.to(options.device, options.dtype).eval()
        inputs = self.inputs(options)
        steps: Dict[str, Callable[[], Tensor]] = {}
        expected: Dict[str, Tensor] = {}
        for name, contestant in found.items():
            if not able(name, lambda contestant=contestant: self.step(contestant, inputs)()):  # type: ignore[misc]
                continue
            steps[name] = self.step(contestant, inputs)
            if contestant.function not in expected:
                expected[contestant.function] = self.uncached(contestant, inputs)
            compare(f"decoding step of {name}", steps[name](), expected[contestant.function], options.dtype)
        return [steps]

    def inputs(self, options: Options) -> Inputs:
        random = torch.Generator().manual_seed(options.seed)
        cross, rows = self.site == "cross", self.sentences * self.beams
        key = padding = None
        if cross:
            source = torch.randn(self.length, self.sentences, self.embed_dim, generator=random)
            key = source.repeat_interleave(self.beams, dim=1).to(options.device, options.dtype)
            lengths = (options.lengths or MULTI30K).draw(self.sentences, options.seed, longest=self.length)
            padding = padding_mask(lengths, self.length, True, options.device).repeat_interleave(self.beams, dim=0)
        queries = torch.randn(1 if cross else self.length, rows, self.embed_dim, generator=random)
        # a search goes on from any hypothesis of the same sentence
        chosen = torch.randint(self.beams, (self.sentences, self.beams), generator=random)
        order = (torch.arange(self.sentences)[:, None] * self.beams + chosen).flatten()
        return Inputs(queries.to(options.device, options.dtype), key, padding, order.to(options.device))

    def step(self, contestant: Contestant, inputs: Inputs) -> Callable[[], Tensor]:
        """One step; the cache that it starts from is filled here."""
        state: State = {}
        *past, last = inputs.queries if inputs.key is None else (inputs.queries[0],) * 2
        reorder = inputs.key is None or not self.graph

        def attend(query: Tensor, now: State) -> Tensor:
            newest = query[None]
            key = newest if inputs.key is None else inputs.key
            return contestant(newest, key, inputs.padding, None, now, cross=inputs.key is not None)

        def step() -> Tensor:
            # the same tensors in dicts of their own, so that every step begins with the same cache
            now = {key: copy.copy(kept) for key, kept in state.items()}
            with torch.no_grad():
                if reorder:
                    contestant.module.reorder_incremental_state(now, inputs.order)  # type: ignore[operator]
                return attend(last, now)

        with torch.no_grad():
            for query in past:
                attend(query, state)
        return step

    def uncached(self, contestant: Contestant, inputs: Inputs) -> Tensor:
        """What the step must give: the last position of attention over everything at once."""
        with torch.no_grad():
            if inputs.key is not None:
                return contestant(inputs.queries, inputs.key, inputs.padding)
            everything = torch.cat([inputs.queries[:-1, inputs.order], inputs.queries[-1:]])
            return contestant(everything, everything)[-1:]

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        cross = self.site == "cross"
        size = torch.empty(0, dtype=options.dtype).element_size()

        def limit(key_dim: int, collaborative: bool) -> float:
            shape = AttentionShape(self.embed_dim, self.num_heads, key_dim, collaborative, bias=True)
            return step_limit(peaks, shape, self.sentences, self.beams, self.length, size, cross)

        whole = limit(self.embed_dim, False)
        return {
            "fairseq": whole, "fairseq-sentence": whole, "standard-sdpa": whole,
            "standard": limit(self.key_dim, False), "ours": limit(self.key_dim, True),
        }  # fmt: skip


def cases(options: Options) -> List[DecodeCase]:
    """The rows of single layers."""
    if options.quick:
        small: Dict[str, Any] = {"sentences": 3, "beams": 2, "key_dim": 4, "embed_dim": 16, "num_heads": 2}
        return [DecodeCase("cross", length=5, **small), DecodeCase("decoder", length=4, **small)]
    graphs = [False, True] if options.device.type == "cuda" else [False]
    return [
        DecodeCase(site, 64, 4, length, key_dim, graph=graph)
        for graph in graphs
        for site, length in (("cross", 30), ("decoder", 15))
        for key_dim in (64, 128, 256, 512)
    ]
