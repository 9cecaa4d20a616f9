"""Labelled examples for a model: JSON objects, one per line, with one or two texts and a label."""

import json
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from transformers import PreTrainedModel

from fairseq_modern.errors import UserError

#: names of the texts of an example, in the order in which the model reads them: those of GLUE, and ``text``
TEXT_FIELDS = (
    ("text",),
    ("sentence",),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)


def read_examples(
    lines: Iterable[str], name: str, fields: Optional[Sequence[str]], label: str, model: PreTrainedModel
) -> Tuple[List[Tuple[str, ...]], List[Any]]:
    """Texts and labels of examples; empty lines are skipped.

    Args:
        name: of the file, for messages.
        fields: names of the one or two texts; None: those of :data:`TEXT_FIELDS` that the example has.
        label: name of the label, which must be one that the model can predict, or a number if it is an encoder.

    Raises:
        UserError: there are no examples, or one lacks its texts or label; other texts could contain the label.
    """
    texts, labels = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                example = _parse(line, fields, label, model)
            except ValueError as error:
                raise UserError(f"{name}, line {number}: {error}") from error
            texts.append(example[0])
            labels.append(example[1])
    if not labels:
        raise UserError(f"{name} has no examples")
    return texts, labels


def check_labels(model: PreTrainedModel, name: str) -> None:
    """Raise a UserError if a classifier predicts several classes per text; ``name`` is that of its folder."""
    many = getattr(model.config, "problem_type", None) == "multi_label_classification"
    if many and model.base_model is not model:
        raise UserError(f"{name} must have one class per text; got a multi-label classifier")


def measured(names: Iterable[str], outputs: np.ndarray, labels: Any) -> Dict[str, float]:
    """Metric → value, from outputs (N, C) for N examples: scores of C classes or, with C = 1, predicted numbers.

    Args:
        names: of metrics: ``accuracy``, ``f1`` and ``matthews`` of classes, ``pearson`` and ``spearman`` of numbers.
            Correlations are 0 if all predictions are equal.

    Raises:
        UserError: an output is NaN, which would count as a prediction, or infinite.
    """
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if not np.isfinite(outputs).all():
        raise UserError("the outputs of the model must be finite; got NaN or infinity: lower the learning rate")
    predicted = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(1)
    metrics: Dict[str, Callable[..., Any]] = {
        "accuracy": accuracy_score,
        "f1": f1_score,
        "matthews": matthews_corrcoef,
        "pearson": lambda *numbers: pearsonr(*numbers).statistic,
        "spearman": lambda *numbers: spearmanr(*numbers).statistic,
    }
    return {name: float(np.nan_to_num(metrics[name](labels, predicted))) for name in names}


def _parse(
    line: str, fields: Optional[Sequence[str]], label: str, model: PreTrainedModel
) -> Tuple[Tuple[str, ...], Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"it must be a JSON object; got {type(row).__name__}")
    fields = fields or _text_fields(row, label)
    for field in (*fields, label):
        if field not in row:
            raise ValueError(f"it must have the field {field}; got {', '.join(row)}")
    for field in fields:
        if not isinstance(row[field], str):
            raise ValueError(f"{field} must be a text; got {row[field]!r}")
    value, classes = row[label], model.config.num_labels
    if model.config.is_encoder_decoder:
        expected, valid = "a translation", isinstance(value, str)
    elif classes == 1 or model.base_model is model:
        expected, valid = "a number", isinstance(value, (int, float)) and math.isfinite(value)
    else:
        expected, valid = f"a class from 0 to {classes - 1}", value in range(classes)
    if not valid:
        raise ValueError(f"the label must be {expected}; got {value!r}")
    return tuple(row[field] for field in fields), value


def _text_fields(row: Mapping[str, Any], label: str) -> Sequence[str]:
    found = [name for name, value in row.items() if isinstance(value, str) and name != label]
    for fields in TEXT_FIELDS:
        if {*fields} == {*found}:
            return fields
    known = ", or ".join(" and ".join(fields) for fields in TEXT_FIELDS)
    raise ValueError(f"its texts must be {known}, and no others; got {', '.join(found) or 'none'}")
