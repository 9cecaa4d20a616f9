"""``collab bench decode``, whole models: beam search through fairseq's SequenceGenerator, and one step of its decoder.

The models are untrained and would not stop by themselves: every batch is translated into as many tokens as its longest
source has, by all contestants, so that all take the same number of steps.
"""

import copy
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from .cases import BenchError, Options
from .checks import MismatchError, compare
from .models import VOCABULARY, Task, build, make_batch, synthetic, synthetic_corpus
from .roofline import Peaks
from .timing import Step

BEAM = 4
_NAMES = ("fairseq", "none", "ours")


@dataclass(frozen=True)
class TranslateCase:
    """Beam search with beam 4 over ``sentences``, those of like length in a batch as fairseq-generate has them."""

    size: str
    key_dim: int
    sentences: int

    @property
    def id(self) -> str:
        return f"decode/translate/{self.size}/{self.sentences}/dk{self.key_dim}"

    @property
    def title(self) -> str:
        return f"beam search with beam {BEAM}, {self.sentences:,} sentences, {self.size}, key dim {self.key_dim}"

    @property
    def measure(self) -> str:
        return "time"

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        task: Any = Task(64 if options.quick else options.vocabulary or VOCABULARY["tiny"])
        if options.data is not None:
            task, sources = read_sources(options.data, self.sentences)
        else:
            sources = synthetic_corpus(self.sentences, task, options.seed, options.lengths)
        sources.sort(key=len)
        batches = [sources[n : n + options.batch] for n in range(0, len(sources), options.batch)]
        found = build(self.size, task, self.key_dim, _NAMES, options.seed, options.quick)
        searches = {}
        for name, model in found.items():
            model.to(options.device, options.dtype).eval()
            model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
            searches[name] = SequenceGenerator([model], task.target_dictionary, beam_size=BEAM, len_penalty=0.6)
        parts = []
        for rows in batches:
            batch = make_batch(rows, None, task, options.device)
            parts.append({name: translation(search, batch) for name, search in searches.items()})
        for name, step in parts[-1].items():
            check_scores(name, found[name], step(), batch, options)
        return parts

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        return {}


def translation(search: SequenceGenerator, batch: Dict[str, Any]) -> Callable[[], Any]:
    """Translate a batch into as many tokens as its longest source has."""
    length = batch["net_input"]["src_tokens"].size(1)

    def step() -> Any:
        search.max_len_b = search.min_len = length - 1  # without </s>
        hypotheses = search.generate([], batch)
        if any(len(sentence[0]["tokens"]) != length for sentence in hypotheses):
            raise MismatchError(f"a translation of a batch has not the {length} tokens that all must have")
        return hypotheses

    return step


def check_scores(name: str, model: nn.Module, hypotheses: Any, batch: Dict[str, Any], options: Options) -> None:
    """The scores that cached search gave its best hypotheses are those of a forward pass over the whole of them.

    Raises:
        MismatchError: they are not.
    """
    tokens = torch.stack([sentence[0]["tokens"] for sentence in hypotheses])
    scores = torch.stack([sentence[0]["positional_scores"] for sentence in hypotheses])
    before = torch.cat([tokens[:, -1:], tokens[:, :-1]], dim=1)
    with torch.no_grad():
        output = model(**batch["net_input"], prev_output_tokens=before)
        expected = model.get_normalized_probs(output, log_probs=True)  # type: ignore[operator]
    expected = expected.gather(2, tokens[:, :, None]).squeeze(2)
    compare(f"score of the translations of {name}", scores, expected, options.dtype)


def read_sources(data: str, number: int) -> "tuple[Any, List[List[int]]]":
    """A translation task and the first ``number`` sources of the test set of a data-bin.

    Raises:
        BenchError: it cannot be read, or has fewer.
    """
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    try:
        # the rest of the config is for training; dataset_impl None: as the files say
        task = TranslationTask.setup_task(TranslationConfig(data=data, dataset_impl=None))
        task.load_dataset("test")
        corpus = task.dataset("test").src
    except Exception as error:
        raise BenchError(f"--data must be a data-bin with a test set, but {data} cannot be read: {error}") from error
    if len(corpus) < number:
        raise BenchError(f"--sentences must be at most {len(corpus)}, which {data} has, but is {number}")
    return task, [corpus[n].tolist() for n in range(number)]


@dataclass(frozen=True)
class BeamStepCase:
    """One step of a whole decoder: reorder all caches, embed, all layers, output projection.

    Attributes:
        length: T, the new position included. source_len: S. graph: as a CUDA graph, of the layers alone without
            cross-attention's reordering, since fairseq's decoder looks for padding on the host.
    """

    size: str
    sentences: int
    length: int
    source_len: int
    key_dim: int
    graph: bool = False

    @property
    def id(self) -> str:
        where = f"{self.sentences}x{BEAM}/T{self.length}S{self.source_len}/dk{self.key_dim}"
        return f"decode/beam-step/{self.size}/{where}" + ("/graph" if self.graph else "")

    @property
    def title(self) -> str:
        return (
            f"step of the {self.size} decoder, {self.sentences} sentences × beam {BEAM}, T = {self.length}, "
            f"S = {self.source_len}, key dim {self.key_dim}" + (", CUDA graph of the layers" if self.graph else "")
        )

    @property
    def measure(self) -> str:
        return "graph" if self.graph else "time"

    def prepare(self, options: Options) -> Sequence[Mapping[str, Step]]:
        task = Task(64 if options.quick else options.vocabulary or VOCABULARY[self.size])
        found = build(self.size, task, self.key_dim, _NAMES, options.seed, options.quick)
        sources = synthetic([self.source_len] * self.sentences, task, options.seed)
        batch = make_batch([row for row in sources for _ in range(BEAM)], None, task, options.device)
        random = torch.Generator().manual_seed(options.seed)
        first = task.target_dictionary.nspecial
        shape = (self.sentences * BEAM, self.length)
        tokens = torch.randint(first, len(task.target_dictionary), shape, generator=random).to(options.device)
        chosen = torch.randint(BEAM, (self.sentences, BEAM), generator=random)
        order = (torch.arange(self.sentences)[:, None] * BEAM + chosen).flatten().to(options.device)
        steps: Dict[str, Step] = {}
        for name, model in found.items():
            model.to(options.device, options.dtype).eval()
            model.make_generation_fast_(need_attn=False)  # type: ignore[operator]
            if hasattr(model, "set_beam_size"):
                model.set_beam_size(BEAM)  # type: ignore[operator]
            steps[name] = self.step(name, model, batch, tokens, order, options)
        return [steps]

    def step(
        self, name: str, model: nn.Module, batch: Dict[str, Any], tokens: Tensor, order: Tensor, options: Options
    ) -> Step:
        """The step of one model, checked against the forward pass over all positions at once."""
        decoder: Any = model.decoder
        state: Dict[str, Any] = {}

        def fresh() -> Dict[str, Any]:
            return {key: copy.copy(kept) for key, kept in state.items()}

        with torch.no_grad():
            encoder_out = model.encoder(**batch["net_input"])  # type: ignore[operator]
            for t in range(1, self.length):
                decoder.forward(tokens[:, :t], encoder_out=encoder_out, incremental_state=state)
            everything = torch.cat([tokens[order, :-1], tokens[:, -1:]], dim=1)
            expected = decoder.forward(everything, encoder_out=encoder_out)[0][:, -1:]

        def step() -> Tensor:
            now = fresh()
            with torch.no_grad():
                decoder.reorder_incremental_state_scripting(now, order)
                logits: Tensor = decoder.forward(everything, encoder_out=encoder_out, incremental_state=now)[0]
                return logits

        compare(f"decoder step of {name}", step(), expected, options.dtype)
        if not self.graph:
            return step
        source = encoder_out["encoder_out"][0]
        x = torch.randn(1, tokens.size(0), source.size(2), device=options.device).to(options.dtype)

        def layers() -> Tensor:
            now, output = fresh(), x
            with torch.no_grad():
                for layer in decoder.layers:
                    layer.self_attn.reorder_incremental_state(now, order)
                    output = layer(output, source, None, now)[0]
            return output

        return layers

    def limits(self, options: Options, peaks: Peaks) -> Mapping[str, float]:
        return {}


def cases(options: Options) -> List[Any]:
    """The rows of whole models."""
    if options.quick:
        return [TranslateCase("tiny", 4, options.sentences), BeamStepCase("base", 2, 4, 5, 4)]
    found: List[Any] = [BeamStepCase("base", 64, 15, 30, key_dim) for key_dim in (128, 512)]
    if options.device.type == "cuda":
        found += [BeamStepCase("base", 64, 15, 30, key_dim, graph=True) for key_dim in (128, 512)]
    return [*found, TranslateCase("tiny", 32, options.sentences), TranslateCase("base", 128, options.sentences)]
