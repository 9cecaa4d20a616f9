"""Table 2 of Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362: medians of three runs on GLUE.

The scores are on validation sets. The paper's averages are over the eleven metrics of a row. Here, a task with two
metrics counts once, as in the tables of this recipe.
"""

from typing import Dict, NamedTuple

SOURCE = "[Cordonnier et al. 2020](https://arxiv.org/abs/2006.16362), Table 2"
NAMES = {"bert": "BERT-base", "distilbert": "DistilBERT", "albert": "ALBERT-base"}
#: width of all three models
WIDTH = 768


class Row(NamedTuple):
    """Millions of parameters; task → score, the mean of the metrics of the task."""

    parameters: float
    scores: Dict[str, float]


def _rows(table: str) -> Dict[int, Row]:
    """Lines of key dimension (0: standard heads), millions of parameters and metrics, below a line of names."""
    header, *lines = (line.split() for line in table.strip().splitlines())
    rows = {}
    for key_dim, parameters, *cells in lines:
        scores = {}
        for task, cell in zip(header[2:], cells, strict=True):
            if cell != "–":
                metrics = [float(number) for number in cell.split("/")]
                scores[task] = sum(metrics) / len(metrics)
        rows[int(key_dim)] = Row(float(parameters), scores)
    return rows


#: model type → key dimension (0: standard heads) → row. MRPC: F1/accuracy, STS-B: Pearson/Spearman, QQP: accuracy/F1
PAPER: Dict[str, Dict[int, Row]] = {
    "bert": _rows("""
        key  M      cola  sst2  mrpc       stsb       qqp        mnli  qnli  rte
        0    108.3  54.7  91.7  88.8/83.8  88.8/88.7  87.6/90.8  84.1  90.9  63.2
        768  108.5  56.8  90.1  89.6/85.1  89.2/88.9  86.8/90.2  83.4  90.2  65.3
        384  101.4  56.3  90.7  87.7/82.4  88.3/88.0  86.3/90.0  83.0  90.1  65.3
        256   99.0  52.6  90.1  88.1/82.6  87.5/87.2  85.9/89.6  82.7  89.5  62.5
        128   96.6  43.5  89.5  83.4/75.2  84.5/84.3  81.1/85.8  79.4  86.7  60.7
    """),
    "distilbert": _rows("""
        key  M     cola  sst2  mrpc       stsb       qqp        mnli  qnli  rte
        0    66.4  46.6  89.8  87.0/82.1  84.0/83.7  86.2/89.8  81.9  88.1  60.3
        384  62.9  45.6  89.1  86.8/80.9  81.7/81.9  86.1/89.6  81.1  87.0  60.7
    """),
    # without the tasks with two metrics
    "albert": _rows("""
        key  M     cola  sst2  mrpc  stsb  qqp  mnli  qnli  rte
        0    11.7  58.3  90.7  –     –     –    85.2  91.7  73.7
        512  11.3  51.1  86.0  –     –     –    84.2  90.2  69.0
        384  11.1  40.7  89.6  –     –     –    84.4  90.0  49.5
    """),
}
