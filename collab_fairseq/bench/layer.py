"""``collab bench layer``: one attention layer, projections and masks included, as it stands in a model."""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import Tensor

from collab_fairseq.attention.cost import AttentionShape

from .baselines import Contestant, Shape, contestants
from .cases import Options
from .checks import against_each_other, against_reference
from .lengths import NEWSTEST, padding_mask
from .roofline import Peaks, layer_limit
from .timing import Step

_WHAT = {
    "train": "forward and backward",
    "forward": "forward, no gradients",
    "memory": "peak memory of forward and backward",
}


@dataclass(frozen=True)
class LayerCase:
    """A layer over N sentences of T positions; keys of cross-attention are as long as the queries.

    Attributes:
        what: ``train``, ``forward`` or ``memory``. graph: as a CUDA graph. name: in the id, for other than width 512.
    """

    site: str
    sentences: int
    length: int
    key_dim: int
    what: str
    dropout: float = 0.0
    embed_dim: int = 512
    num_heads: int = 8
    name: str = ""
    graph: bool = False

    @property
    def id(self) -> str:
        parts = ["layer", self.name or self.site, f"{self.sentences}x{self.length}", f"dk{self.key_dim}", self.what]
        parts += [f"dropout{self.dropout}"] if self.dropout else []
        return "/".join([*parts, *(["graph"] if self.graph else [])])

    @property
    def title(self) -> str:
        extra = f", attention dropout {self.dropout}" if self.dropout else ""
        extra += ", CUDA graph" if self.graph else ""
        return (
            f"{self.name or self.site}, width {self.embed_dim}, {self.sentences} × {self.length}, "
            f"key dim {self.key_dim}: {_WHAT[self.what]}{extra}"
        )

    @property
    def measure(self) -> str:
        return "memory" if self.what == "memory" else "graph" if self.graph else "time"

    @property
    def shape(self) -> Shape:
        return Shape(self.embed_dim, self.num_heads, self.key_dim, self.site, self.dropout)

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        found = contestants(self.shape, seed=options.seed)
        against_reference(found, self.shape)
        for contestant in found.values():
            contestant.module.to(options.device, options.dtype).train(self.what != "forward")
        inputs = self.inputs(options)
        against_each_other(found, inputs)
        make = forward_step if self.what == "forward" else training_step
        return [{name: make(contestant, inputs) for name, contestant in found.items()}]

    def inputs(self, options: Options) -> Dict[str, Any]:
        """Query and key (T, N, E) in fairseq's layout, padding mask (N, T), causal mask (T, T), output gradient."""
        random = torch.Generator().manual_seed(options.seed)

        def normal() -> Tensor:
            numbers = torch.randn(self.length, self.sentences, self.embed_dim, generator=random)
            return numbers.to(options.device, options.dtype)

        query, gradient = normal(), normal()
        lengths = (options.lengths or NEWSTEST).draw(self.sentences, options.seed, longest=self.length)
        decoder = self.site == "decoder"
        mask: Optional[Tensor] = None
        if decoder:
            mask = torch.full((self.length, self.length), -torch.inf).triu(1).to(options.device, options.dtype)
        return {
            "query": query,
            "key": normal() if self.site == "cross" else query,
            "padding": padding_mask(lengths, self.length, not decoder, options.device),
            "mask": mask,
            "gradient": gradient,
        }

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        sizes = {"rows": self.sentences, "query_len": self.length, "key_len": self.length}
        size = torch.empty(0, dtype=options.dtype).element_size()
        backward = self.what == "train"

        def limit(key_dim: int, collaborative: bool) -> float:
            shape = AttentionShape(self.embed_dim, self.num_heads, key_dim, collaborative, bias=True)
            return layer_limit(peaks, shape, **sizes, number_bytes=size, backward=backward)

        whole = limit(self.embed_dim, False)
        return {
            "fairseq": whole, "fairseq-self": whole, "standard-sdpa": whole,
            "standard": limit(self.key_dim, False), "ours": limit(self.key_dim, True),
        }  # fmt: skip


def forward_step(contestant: Contestant, inputs: Dict[str, Any]) -> Step:
    """The layer without gradients."""

    def step() -> Tensor:
        with torch.no_grad():
            return contestant(inputs["query"], inputs["key"], inputs["padding"], inputs["mask"])

    return step


def training_step(contestant: Contestant, inputs: Dict[str, Any]) -> Step:
    """Forward and backward: gradients of the inputs and of all parameters, made anew and dropped."""
    query = inputs["query"].detach().clone().requires_grad_()
    key = query if inputs["key"] is inputs["query"] else inputs["key"].detach().clone().requires_grad_()
    leaves = [query, *([] if key is query else [key]), *contestant.module.parameters()]

    def step() -> None:
        contestant(query, key, inputs["padding"], inputs["mask"]).backward(inputs["gradient"])
        for leaf in leaves:
            leaf.grad = None

    return step


def cases(options: Options) -> List[LayerCase]:
    """All rows of ``collab bench layer``."""
    if options.quick:
        small: Dict[str, Any] = {"sentences": 3, "length": 6, "embed_dim": 16, "num_heads": 2}
        rows = [LayerCase(site, key_dim=4, what="train", **small) for site in ("encoder", "cross", "decoder")]
        rows += [LayerCase("encoder", key_dim=4, what=what, **small) for what in ("forward", "memory")]
        return [*rows, LayerCase("encoder", key_dim=4, what="train", dropout=0.1, **small)]
    sizes = ((64, 32), (16, 128), (4, 512))
    found = [
        LayerCase("encoder", n, t, key_dim, what)
        for what in _WHAT
        for n, t in sizes
        for key_dim in (64, 128, 256, 512)
    ]
    found += [LayerCase(site, n, t, 128, "train") for site in ("cross", "decoder") for n, t in sizes]
    found += [LayerCase("encoder", n, t, 128, "train", dropout=0.1) for n, t in sizes]
    found += [LayerCase("encoder", 64, 32, 512, "train", dropout=0.1)]
    # inference at the sizes of Table 1 of the paper, T = 128
    found += [LayerCase("encoder", 16, 128, key_dim, "forward", name="table1-nmt") for key_dim in (512, 128)]
    bert: Dict[str, Any] = {"embed_dim": 768, "num_heads": 12, "name": "table1-bert"}
    found += [LayerCase("encoder", 16, 128, key_dim, "forward", **bert) for key_dim in (768, 256)]
    if options.device.type == "cuda":
        found += [
            LayerCase("encoder", n, t, key_dim, what, graph=True)
            for what in ("train", "forward")
            for n, t in sizes
            for key_dim in (64, 128, 256, 512)
        ]
    return found
