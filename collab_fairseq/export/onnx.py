"""``--to onnx``: two graphs that any ONNX runtime computes, and a beam search in NumPy around them.

    encoder.onnx   source (N, S) → source_padding (N, S), and of every decoder layer i what cross-attention reads
    step.onnx      the unit before (R, 1), its position (1), all of that for R rows, and of every layer what
                   self-attention has kept → log-probabilities (R, V), and of every layer what it keeps now

What attention reads and keeps is this project's: of collaborative heads one small key (R, T, D̃k) for all of them, the
values (R, G, T, dv), and content scores (R, H, T). N sentences, R = N · B hypotheses, S and T positions.
"""

import contextlib
import logging
import os
import warnings
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import KeyValue, extend
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.translation.units import require

from .source import Source, new_folder, refuse_settings, write_text_side


class _Attention(nn.Module):
    """A decoder's attention whose past is set before a call, and read after it."""

    def __init__(self, layer: IncrementalAttention) -> None:
        super().__init__()
        self.layer = layer
        self.entry: Optional[KeyValue] = None
        self.padding: Optional[Tensor] = None

    def _get_input_buffer(self, state: Any) -> Dict[str, Optional[Tensor]]:
        return {}

    def forward(self, query: Tensor, key: Any = None, value: Any = None, **_: Any) -> Tuple[Tensor, None]:
        """(T, R, E) as fairseq's layers call it."""
        rows = query.transpose(0, 1)
        assert self.entry is not None
        if not self.layer.cross:
            self.entry = extend(self.entry, self.layer.project(rows, rows))
        output, _weights = self.layer.attend(
            rows, self.entry, self.padding, need_weights=False, head_multiplier=self.layer.multiplier()
        )
        return output.transpose(0, 1), None


class _Encoder(nn.Module):
    def __init__(self, model: Any, cross: List[IncrementalAttention]) -> None:
        super().__init__()
        self.encoder, self.cross = model.encoder, nn.ModuleList(cross)
        self.register_buffer("positions", _positions(model.encoder, model.encoder.max_source_positions))

    def forward(self, source: Tensor) -> List[Tensor]:
        padding = source.eq(self.encoder.padding_idx)
        number = (~padding).cumsum(dim=1) - 1  # fairseq pads on the left, and counts what is not padding
        x = _embed(self.encoder, source, self.positions[number.clamp(min=0)])  # type: ignore[index]
        x = x.masked_fill(padding[:, :, None], 0.0).transpose(0, 1)
        for layer in self.encoder.layers:
            x = layer(x, encoder_padding_mask=padding)
        if self.encoder.layer_norm is not None:
            x = self.encoder.layer_norm(x)
        x = x.transpose(0, 1)
        return [padding, *(part for layer in self.cross for part in _parts(layer.project(x, x)))]  # type: ignore


class _Step(nn.Module):
    def __init__(self, model: Any, wrapped: Dict[str, _Attention]) -> None:
        super().__init__()
        self.decoder = model.decoder
        self.self_attention = [layer for place, layer in wrapped.items() if place.startswith("decoder")]
        self.cross = [layer for place, layer in wrapped.items() if place.startswith("cross")]
        self.register_buffer("positions", _positions(model.decoder, model.decoder.max_target_positions))

    def forward(self, before: Tensor, position: Tensor, padding: Tensor, entries: List[Tensor]) -> List[Tensor]:
        decoder, left = self.decoder, iter(entries)
        for layer in [*self.cross, *self.self_attention]:
            layer.entry = KeyValue(*(next(left) for _ in range(_count(layer.layer))))
            layer.padding = padding if layer.layer.cross else None
        x = _embed(decoder, before, self.positions[position]).transpose(0, 1)  # type: ignore[index]
        for layer in decoder.layers:
            x = layer(x, x, None, None)[0]
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        scores = torch.log_softmax(decoder.output_layer(x[-1]), dim=-1)
        return [scores, *(part for layer in self.self_attention for part in _parts(layer.entry))]  # type: ignore


def _parts(entry: KeyValue) -> List[Tensor]:
    return [part for part in entry if part is not None]


def _count(layer: IncrementalAttention) -> int:
    return 3 if getattr(layer, "content_bias", None) is not None else 2


def _embed(side: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """(N, T, E) of tokens (N, T) and of their positions (N or 1, T, E)."""
    x = side.embed_scale * side.embed_tokens(tokens) + positions
    return x if side.layernorm_embedding is None else side.layernorm_embedding(x)


def _positions(side: Any, size: int) -> Tensor:
    """(P, E): what is added to the embedding at each position."""
    table = side.embed_positions
    prefix = torch.full((1, size), table.padding_idx + 1)
    return table(prefix)[0].detach().clone()  # type: ignore[no-any-return]


def export(source: Source, output: PathLike) -> None:
    """Write the folder."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package)
    refuse_settings(source.config, "ONNX export", {})
    model = source.model
    layers = attention_layers(model)
    cross = [layer for place, layer in layers.items() if place.startswith("cross")]
    wrapped = {place: _Attention(layer) for place, layer in layers.items() if not place.startswith("encoder")}
    own = [layer.layer for place, layer in wrapped.items() if place.startswith("decoder")]
    for layer in layers.values():
        layer.kernel = "bmm"  # chosen by size otherwise
    tokens = torch.full((2, 5), 4)
    tokens[1, 0] = model.encoder.padding_idx
    names = {"cross": _names(cross, "cross"), "past": _names(own, "past"), "present": _names(own, "present")}
    free = torch.export.Dim.AUTO  # torch cannot prove of some shapes what its named dimensions want proved
    with new_folder(output) as folder, torch.no_grad(), _quiet():
        encoder = _Encoder(model, cross).eval()
        _, *read = encoder(tokens)
        _write(
            encoder, (tokens,), os.path.join(folder, "encoder.onnx"), ["source"], ["source_padding", *names["cross"]],
            {"source": {0: free, 1: free}},
        )  # fmt: skip
        past = [part for layer in own for part in _parts(layer.project(*[torch.zeros(2, 3, layer.kdim)] * 2))]
        with swapped(model, wrapped):
            step = _Step(model, wrapped).eval()
            entries = zip([*names["cross"], *names["past"]], [*read, *past], strict=True)
            # a shared key (R, T, D̃k), or that of latents, (R, T, 0), has its positions before its last axis, too
            kept = [{0: free, 1 if name.endswith("key") and part.dim() == 3 else 2: free} for name, part in entries]
            given = ["before", "position", "source_padding", *names["cross"], *names["past"]]
            _write(
                step, (tokens[:, :1], torch.tensor([3]), tokens.eq(1), [*read, *past]),
                os.path.join(folder, "step.onnx"), given, ["scores", *names["present"]],
                {"before": {0: free}, "position": {}, "padding": {0: free, 1: free}, "entries": kept},
            )  # fmt: skip
        write_text_side(
            source, folder, "onnx", "Translation model in ONNX",
            "`collab translate DIR FILE` runs encoder.onnx once and step.onnx for every unit, inside a beam search.",
            "Collaborative heads keep their small key cache. Ids are the lines of the dictionaries here, after <s>,",
            "<pad>, </s>, <unk>; </s> ends the source and starts the target.",
        )  # fmt: skip


def _names(layers: List[IncrementalAttention], prefix: str) -> List[str]:
    kinds = ("key", "value", "content")
    return [f"{prefix}.{n}.{kinds[part]}" for n, layer in enumerate(layers) for part in range(_count(layer))]


def _write(
    module: nn.Module, inputs: Any, path: str, given: List[str], made: List[str], shapes: Dict[str, Any]
) -> None:
    graph = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    program = torch.onnx.export(graph, (), input_names=given, output_names=made, dynamo=True, verbose=False)
    assert program is not None
    program.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's own notices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
