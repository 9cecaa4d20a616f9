"""Whole models: beam search through fairseq's SequenceGenerator, and one step of its decoder.

The models are untrained and would not stop translating by themselves: every batch is translated into as many tokens as
its longest source has, by all contestants, so that all take the same number of steps.
"""

from typing import Any, Callable, Dict, List

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from collab_fairseq.search.shortlist import ShortlistGenerator

from .cases import Case, Options, Step, draw
from .checks import MismatchError, compare
from .layers import follower, fresh, new_order
from .models import Task, build, make_batch

BEAM = 4


def _translators(size: str, task: Any, key_dim: int, options: Options, half: bool = False) -> Dict[str, Any]:
    found = build(size, task, key_dim, ("fairseq", "fairseq-bf16" if half else "none", "ours"), options)
    for name, model in found.items():
        dtype = torch.bfloat16 if half and name != "fairseq" else options.torch_dtype
        model.to(options.device, dtype).eval()
        model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
    return found


def translate_case(size: str, key_dim: int, sentences: int, half: bool = False) -> Case:
    """Beam search over ``sentences``, those of like length in a batch as fairseq-generate has them.

    Every model is searched as by fairseq-generate: ours over shortlists (:mod:`collab_fairseq.search.shortlist`).

    Args:
        half: ours in bfloat16, beside fairseq's in float32 and bfloat16.
    """

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, "tiny")
        sources = task.sentences(sorted(draw("multi30k", sentences, options.seed)), options.seed)
        searches = {
            name: ShortlistGenerator([model], task.target_dictionary, beam_size=BEAM, len_penalty=0.6)
            for name, model in _translators(size, task, key_dim, options, half).items()
        }
        parts, size_of_batch = [], 3 if options.quick else 64
        for first in range(0, len(sources), size_of_batch):
            batch = make_batch(sources[first : first + size_of_batch], None, task, options.device)
            parts.append({name: _translation(search, batch) for name, search in searches.items()})
        for name, step in parts[-1].items():
            _check_scores(name, searches[name].model.models[0], step(), batch)
        return parts

    return Case(f"decode/translate/{size}/{sentences}/dk{key_dim}" + ("/bf16" if half else ""), prepare)


def _translation(search: SequenceGenerator, batch: Dict[str, Any]) -> Callable[[], Any]:
    length = batch["net_input"]["src_tokens"].size(1)

    def step() -> Any:
        search.max_len_b = search.min_len = length - 1  # without </s>
        hypotheses = search.generate([], batch)
        if any(len(sentence[0]["tokens"]) != length for sentence in hypotheses):
            raise MismatchError(f"a translation of a batch has not the {length} tokens that all must have")
        return hypotheses

    return step


def _check_scores(name: str, model: Any, hypotheses: Any, batch: Dict[str, Any]) -> None:
    """The scores that cached search gave its best hypotheses are those of a forward pass over the whole of them."""
    tokens = torch.stack([sentence[0]["tokens"] for sentence in hypotheses])
    scores = torch.stack([sentence[0]["positional_scores"] for sentence in hypotheses])
    with torch.no_grad():
        output = model(**batch["net_input"], prev_output_tokens=tokens.roll(1, dims=1))
        expected = model.get_normalized_probs(output, log_probs=True).gather(2, tokens[:, :, None]).squeeze(2)
    compare(f"score of the translations of {name}", scores, expected, next(model.parameters()).dtype)


def beam_step_case(size: str, sentences: int, length: int, source_len: int, key_dim: int, graph: bool = False) -> Case:
    """One step of a whole decoder: reorder all caches, embed, all layers, output projection.

    Args:
        length: T, the new position included. source_len: S. graph: as a CUDA graph, of the layers alone, since
            fairseq's decoder looks for padding on the host.
    """

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task, shape = Task(options, size), (sentences * BEAM, length)
        batch = make_batch(task.sentences([source_len] * sentences, options.seed), None, task, options.device)
        random, known = torch.Generator().manual_seed(options.seed), task.target_dictionary
        tokens = torch.randint(known.nspecial, len(known), shape, generator=random).to(options.device)
        order = new_order(sentences, BEAM, random).to(options.device)
        steps: Dict[str, Step] = {}
        for name, model in _translators(size, task, key_dim, options).items():
            rows = torch.arange(sentences, device=options.device).repeat_interleave(BEAM)
            with torch.no_grad():  # as the search begins
                encoder_out = model.encoder.reorder_encoder_out(model.encoder(**batch["net_input"]), rows)
            step, layers, expected = _decoder_steps(model.decoder, encoder_out, tokens, order)
            compare(f"decoder step of {name}", step(), expected, options.torch_dtype)
            steps[name] = layers if graph else step
        return [steps]

    row = f"decode/beam-step/{size}/{sentences}x{BEAM}/T{length}S{source_len}/dk{key_dim}"
    return Case(row + ("/graph" if graph else ""), prepare, "graph" if graph else "time")


def _decoder_steps(decoder: Any, encoder_out: Any, tokens: Tensor, order: Tensor) -> "tuple[Step, Step, Tensor]":
    """The step, that of the layers alone, and the output that a pass over all positions (R, T) at once gives."""
    state: Dict[str, Any] = {}
    everything = torch.cat([tokens[order, :-1], tokens[:, -1:]], dim=1)
    with torch.no_grad():
        for t in range(1, tokens.size(1)):
            decoder.forward(tokens[:, :t], encoder_out=encoder_out, incremental_state=state)
        expected = decoder.forward(everything, encoder_out=encoder_out)[0][:, -1:]
    source = encoder_out["encoder_out"][0]
    x, follow = torch.randn_like(source[:1]), follower(order)

    @torch.no_grad()
    def step() -> Tensor:
        now = fresh(state)
        decoder.reorder_incremental_state_scripting(now, order)
        logits: Tensor = decoder.forward(everything, encoder_out=encoder_out, incremental_state=now)[0]
        return logits

    @torch.no_grad()
    def layers() -> Tensor:
        now, output = fresh(state), x
        for layer in decoder.layers:
            for attention in (layer.self_attn, layer.encoder_attn):
                follow(attention, now)
            output = layer(output, source, None, now)[0]
        return output

    return step, layers, expected


def decode_cases(options: Options) -> List[Case]:
    """The rows of whole models in ``collab bench decode``."""
    sentences = options.sentences or 1000
    if options.quick:
        rows = [translate_case("tiny", 4, min(6, sentences), half) for half in (False, True)]
        return [*rows, beam_step_case("base", 2, 4, 5, 4)]
    graphs = [False, True] if options.device == "cuda" else [False]
    steps = [beam_step_case("base", 64, 15, 30, key_dim, graph) for graph in graphs for key_dim in (128, 512)]
    halves = [False, True] if options.dtype == "float32" else [False]
    sizes = (("tiny", 32), ("base", 128))
    return [*steps, *(translate_case(*size, sentences, half) for half in halves for size in sizes)]
