"""fairseq's beam search with fewer passes over the vocabulary: the same hypotheses and scores in less time.

At every step, fairseq's SequenceGenerator reads the log-probabilities of all vocabulary entries six times. But only the
2 · beam best entries of a hypothesis can be among the 2 · beam best of its sentence. So the generator gets a shortlist
of 4 + 2 · beam entries for each hypothesis: the four special symbols, with their usual indices, and the best other
entries. The indices that the search selects are then mapped to the vocabulary.

Searches that use vocabulary indices (sampling, constraints, forced prefixes, blocked n-grams, a language model) get the
complete vocabulary, as in fairseq.
"""

import copy
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.search import BeamSearch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor, nn

from collab_fairseq.modules.layers import linear_output

#: <s>, <pad>, </s>, <unk>
SPECIAL = 4
#: entries per block in :func:`largest`
BLOCK = 64

State = Dict[str, Dict[str, Optional[Tensor]]]


class Shortlist(EnsembleModel):  # type: ignore[misc]
    """Models that return log-probabilities of 4 + K vocabulary entries for each of R hypotheses.

    Args:
        models: one or several transformers.
        size: K.

    Attributes:
        entries: (R, 4 + K), vocabulary indices of these entries in the last step.
    """

    def __init__(self, models: List[nn.Module], size: int) -> None:
        super().__init__(models)
        self.size = size
        self.entries = torch.empty(0)
        self._logits = torch.empty(0)

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: List[Any], incremental_states: List[State], temperature: float = 1.0
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Log-probabilities (R, 4 + K), and attention (R, S) over S source positions or None."""
        if len(self.models) > 1 or not _has_linear_output(self.single_model):
            lprobs, attention = super().forward_decoder(tokens, encoder_outs, incremental_states, temperature)
        else:
            lprobs, attention = self._decode(tokens, encoder_outs[0], incremental_states[0], temperature)
        values, indices = largest(lprobs[:, SPECIAL:], self.size)
        special = torch.arange(SPECIAL, device=lprobs.device).expand(lprobs.size(0), -1)
        self.entries = torch.cat([special, indices + SPECIAL], 1)
        return torch.cat([lprobs[:, :SPECIAL], values], 1), attention

    def _decode(
        self, tokens: Tensor, source: Any, incremental_state: State, temperature: float
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Log-probabilities (R, V) of one model, in memory that all steps share; attention."""
        decoder: Any = self.single_model.decoder
        features, extra = decoder(tokens, encoder_out=source, incremental_state=incremental_state, features_only=True)
        weight = decoder.output_projection.weight
        features = features[:, -1].to(weight.dtype)  # under autocast, a last linear layer has a different dtype
        shape = (features.size(0), weight.size(0))
        size = shape[0] * shape[1]
        memory = self._logits
        if memory.numel() < size or memory.dtype != features.dtype or memory.device != features.device:
            memory = self._logits = features.new_empty(size)
        logits = torch.mm(features, weight.t(), out=memory[:size].view(shape))
        if temperature != 1.0:
            logits.div_(temperature)
        attention = extra["attn"][0]
        attention = attention[:, -1] if attention is not None else None
        if logits.dtype != torch.float32:
            return torch.log_softmax(logits, -1, dtype=torch.float32), attention
        return torch.log_softmax(logits, -1, out=logits), attention


def _has_linear_output(model: Any) -> bool:
    """Whether log-probabilities follow from features and the weight of the output projection alone."""
    layer = linear_output(model.decoder)
    as_in_fairseq = type(model).get_normalized_probs is TransformerModelBase.get_normalized_probs
    return as_in_fairseq and layer is not None and layer.bias is None


def largest(values: Tensor, number: int) -> Tuple[Tensor, Tensor]:
    """``topk``, faster on a CPU: the K largest values of each row (R, V), sorted, and their columns, both (R, K).

    The K blocks with the largest maxima contain these values, and maxima are much cheaper than sorting.
    """
    rows, blocks = values.size(0), values.size(1) // BLOCK
    if values.device.type != "cpu" or blocks < 4 * number:
        top = values.topk(number)
        return top.values, top.indices
    blocked = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (R, blocks, BLOCK)
    first = blocked.amax(2).topk(number).indices[:, :, None]  # (R, K, 1)
    candidates = blocked.gather(1, first.expand(-1, -1, BLOCK)).flatten(1)  # (R, K · BLOCK)
    columns = (first * BLOCK + torch.arange(BLOCK)).flatten(1)  # (R, K · BLOCK): their columns
    rest = torch.arange(blocks * BLOCK, values.size(1)).expand(rows, -1)  # the last, incomplete block
    top = torch.cat([candidates, values[:, blocks * BLOCK :]], 1).topk(number)
    return top.values, torch.cat([columns, rest], 1).gather(1, top.indices)


class ShortlistSearch(BeamSearch):  # type: ignore[misc]
    """fairseq's beam search over the entries of a :class:`Shortlist`, mapped to vocabulary indices."""

    def __init__(self, search: BeamSearch, model: Shortlist) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(search.__dict__)  # numbers only
        self._shortlist = [model]  # in a list, so that it does not become a submodule

    def step(self, step: int, lprobs: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor]:
        """Scores, vocabulary indices and beams, (N, 2 · beam), from log-probabilities (N, beam, 4 + K)."""
        scores, columns, beams = super().step(step, lprobs, *rest)
        entries = self._shortlist[0].entries.view(lprobs.size(0), -1)  # (N, beam · (4 + K))
        return scores, entries.gather(1, beams * lprobs.size(2) + columns), beams


class ShortlistGenerator(SequenceGenerator):  # type: ignore[misc]
    """Beam search over shortlists (see the module docstring), for ``transformer`` and ``transformer_collab``."""

    def _generate(
        self,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        size = 2 * self.beam_size
        plain_search = type(self.search) is BeamSearch and self.lm_model is None and self.repeat_ngram_blocker is None
        forced = prefix_tokens is not None or constraints is not None or self.token_indices_to_suppress is not None
        fits = max(self.pad, self.eos, self.unk) < SPECIAL and self.vocab_size > SPECIAL + size
        if forced or not (plain_search and fits):
            return super()._generate(sample, prefix_tokens, constraints, bos_token)  # type: ignore[no-any-return]
        generator = copy.copy(self)  # threads may share self
        generator._modules = dict(self._modules)
        generator.model = Shortlist(list(self.model.models), size)
        generator.search = ShortlistSearch(self.search, generator.model)
        generator.vocab_size = SPECIAL + size
        return SequenceGenerator._generate(generator, sample, bos_token=bos_token)  # type: ignore[no-any-return]
