"""COMET (Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213): translations scored by a trained model.

This project includes neither its package nor its weights, which have gigabytes and separate licences.
"""

import importlib.metadata
import os
from typing import List, Sequence, Tuple

from collab_fairseq.scoring.bleu import Score
from collab_fairseq.scoring.sufficient_statistics import dump
from fairseq_modern.errors import UserError


def comet(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str], model: str
) -> Tuple[Score, str]:
    """The score, 100 times the mean over the sentences, and the sentence statistics.

    Args:
        hypotheses, references, sources: raw text, a sentence each.
        model: a checkpoint (model.ckpt), or the name of one that COMET knows, such as Unbabel/wmt22-comet-da.

    Raises:
        UserError: COMET is not installed, or the model cannot be loaded.
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as error:
        raise UserError(
            f"--comet needs a package that cannot be imported ({error}): pip install unbabel-comet, in a separate "
            "environment if it needs other versions than fairseq"
        ) from error
    try:
        judge = load_from_checkpoint(model if os.path.isfile(model) else download_model(model))
    except Exception as error:  # of the network, the hub, the licence, torch
        raise UserError(
            f"--comet must be a COMET checkpoint, or the name of one that can be downloaded; got {model}, which "
            f"cannot be loaded ({next(iter(str(error).splitlines()), type(error).__name__)})"
        ) from error
    import torch  # a dependency of COMET

    texts = zip(sources, hypotheses, references, strict=True)
    samples = [{"src": source, "mt": hypothesis, "ref": reference} for source, hypothesis, reference in texts]
    predicted: List[float] = judge.predict(samples, gpus=int(torch.cuda.is_available()), progress_bar=False).scores
    scores = [100 * float(score) for score in predicted]
    version, name = importlib.metadata.version("unbabel-comet"), os.path.basename(os.path.normpath(model))
    mean = sum(scores) / len(scores)
    signature = f"unbabel-comet:{version}|model:{name}"
    score = Score("COMET", mean, None, None, None, None, signature)
    return score, dump([(f"{each:.4f}", 1) for each in scores])
