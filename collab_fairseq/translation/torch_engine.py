"""Translation with torch and fairseq's beam search, equal to fairseq-generate."""

import functools
import math
import os
from typing import Any, List, Optional, Sequence

import torch
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_modern.errors import UserError

from .load import load_model
from .tokenizer import PathLike
from .translator import Hypothesis, Search

#: file name of the checkpoint in a model folder, fairseq's default
MODEL = "model.pt"
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchEngine:
    """A model folder; for the arguments see :class:`.translator.Engine`."""

    def __init__(self, folder: PathLike, device: str, precision: str, threads: Optional[int]) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"--precision of torch must be one of {', '.join(PRECISIONS)}; got {precision}")
        if threads is not None:
            torch.set_num_threads(threads)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.trained = load_model(os.path.join(os.fspath(folder), MODEL), folder, device=device)
        self.trained.model.to(PRECISIONS[precision])
        for layer in self.trained.model.decoder.layers:  # type: ignore[union-attr]
            layer.need_attn = False  # attention weights are not used
        self._generator = functools.lru_cache(maxsize=1)(self._make_generator)

    def _make_generator(self, search: Search) -> Any:
        config = GenerationConfig(
            beam=search.beam, nbest=search.nbest, lenpen=search.lenpen, max_len_a=0, max_len_b=search.max_length
        )
        return self.trained.task.build_generator([self.trained.model], config)

    @torch.inference_mode()
    def search(self, sentences: Sequence[Sequence[str]], search: Search) -> List[List[Hypothesis]]:
        """See :class:`.translator.Engine`."""
        task = self.trained.task
        source, target = task.source_dictionary, task.target_dictionary
        rows = [torch.tensor([*map(source.index, sentence), source.eos()]) for sentence in sentences]
        tokens = data_utils.collate_tokens(rows, source.pad(), left_pad=task.cfg.left_pad_source)
        lengths = torch.tensor([len(row) for row in rows])
        device = self.trained.device
        sample = {"net_input": {"src_tokens": tokens.to(device), "src_lengths": lengths.to(device)}}
        results = task.inference_step(self._generator(search), [self.trained.model], sample)

        def hypothesis(result: Any) -> Hypothesis:
            words = [target[number] for number in result["tokens"].tolist() if number != target.eos()]
            return Hypothesis(words, float(result["score"]) / math.log(2))

        return [[hypothesis(result) for result in best[: search.nbest]] for best in results]
