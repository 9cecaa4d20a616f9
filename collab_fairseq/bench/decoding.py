"""Whole translation: beam search through fairseq's SequenceGenerator.

The models are untrained and would not stop translating by themselves: every batch is translated into as many tokens as
its longest source has, by all contestants, so that all take the same number of steps.
"""

from typing import Any, Callable, Dict, List

import torch

from collab_fairseq.search.shortlist import ShortlistGenerator

from .cases import Case, Options, Step, draw
from .measure import MismatchError, compare
from .models import Task, build, make_batch

BEAM = 4


def translate_case(size: str, key_dim: int, sentences: int, half: bool = False) -> Case:
    """Beam search over ``sentences``, those of like length in a batch as fairseq-generate has them.

    Every model is searched as by fairseq-generate: ours over shortlists (:mod:`collab_fairseq.search.shortlist`).

    Args:
        half: ours in bfloat16, beside fairseq's in float32 and bfloat16.
    """

    def prepare(options: Options) -> List[Dict[str, Step]]:
        task = Task(options, "tiny")
        sources = task.sentences(sorted(draw(sentences, options.seed)), options.seed)
        searches = {}
        for name, model in build(
            size, task, key_dim, ("fairseq", "fairseq-bf16" if half else "none", "ours"), options
        ).items():
            model.to(torch.bfloat16 if half and name != "fairseq" else options.torch_dtype).eval()
            model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
            searches[name] = ShortlistGenerator([model], task.target_dictionary, beam_size=BEAM, len_penalty=0.6)
        parts, size_of_batch = [], 3 if options.quick else 64
        for first in range(0, len(sources), size_of_batch):
            batch = make_batch(sources[first : first + size_of_batch], None, task, options.device)
            parts.append({name: _translation(search, batch) for name, search in searches.items()})
        for name, step in parts[-1].items():
            _check_scores(name, searches[name].model.models[0], step(), batch)
        return parts

    return Case(f"decode/translate/{size}/{sentences}/dk{key_dim}" + ("/bf16" if half else ""), prepare)


def _translation(search: Any, batch: Dict[str, Any]) -> Callable[[], Any]:
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


def decode_cases(options: Options) -> List[Case]:
    """The rows of whole models in ``collab bench decode``."""
    if options.quick:
        return [translate_case("tiny", 4, 6, half) for half in (False, True)]
    halves = [False, True] if options.dtype == "float32" else [False]
    sizes = (("tiny", 32), ("base", 128))
    return [translate_case(*size, 1000, half) for half in halves for size in sizes]
