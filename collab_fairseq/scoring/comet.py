"""COMET (Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213): a trained model scores translations.

The package and its models are large and separately licensed, and not included in this project.
"""

import importlib.metadata
import os
from typing import List, Sequence, Tuple

from collab_fairseq.scoring.bleu import Score
from collab_fairseq.scoring.significance import bootstrap_interval
from collab_fairseq.scoring.sufficient_statistics import dump, ratio
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256


def comet(
    hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str], model: str
) -> Tuple[Score, str]:
    """The score, 100 times the mean over the sentences, and the sentence statistics.

    Args:
        hypotheses, references, sources: raw text, one sentence each.
        model: a checkpoint (model.ckpt) or a name that COMET can download, such as Unbabel/wmt22-comet-da.
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as error:
        raise UserError(
            f"--comet needs a package that cannot be imported ({error}): pip install unbabel-comet, in a separate "
            "environment if it needs other versions than fairseq"
        ) from error
    try:
        scorer = load_from_checkpoint(model if os.path.isfile(model) else download_model(model))
    except Exception as error:  # from the network, the hub, the licence check or torch
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"--comet must be a COMET checkpoint or the name of a downloadable model; got {model}, which cannot be "
            f"loaded ({reason})"
        ) from error
    import torch  # a dependency of COMET

    texts = zip(sources, hypotheses, references, strict=True)
    samples = [{"src": source, "mt": hypothesis, "ref": reference} for source, hypothesis, reference in texts]
    predicted: List[float] = scorer.predict(samples, gpus=int(torch.cuda.is_available()), progress_bar=False).scores
    scores = [100 * float(score) for score in predicted]
    version = importlib.metadata.version("unbabel-comet")
    name = os.path.basename(os.path.normpath(model))
    if os.path.isfile(model):
        name += f"-{sha256(model)[:8]}"  # checkpoints of different models have the same name
    signature = f"unbabel-comet:{version}|model:{name}"
    interval = bootstrap_interval([(score, 1) for score in scores], ratio)
    score = Score("COMET", sum(scores) / len(scores), signature=signature, interval=interval)
    return score, dump([(f"{sentence_score:.4f}", 1) for sentence_score in scores])
