"""How often two runs that differ in the seed only differ significantly: python -m recipes curve seeds RECORD ...

All pairs of such runs are compared by sacreBLEU on each of their test sets, as by `collab score --baseline`.
"""

import itertools
import re
from typing import Dict, List, Sequence

from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.significance import compare

ALPHA = 0.05


def p_values(paths: Sequence[str]) -> List[List[float]]:
    """For each setting and test set, the p-values of all pairs of seeds. Records are named by setting and seed."""
    settings: Dict[str, List[str]] = {}
    for path in paths:
        settings.setdefault(re.sub(r"-s\d+-", "-", path), []).append(path)
    result: Dict[str, List[float]] = {}
    for setting, files in settings.items():
        for one, other in itertools.combinations(map(load_run, files), 2):
            for test in one["scores"].keys() & other["scores"].keys():
                comparison = compare(one["scores"][test], other["scores"][test], [one["name"], other["name"]])
                if comparison:
                    result.setdefault(f"{setting} {test}", []).append(comparison.p_value)
    return list(result.values())


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    by_setting = p_values(arguments)
    found = [(sum(p < ALPHA for p in values), len(values)) for values in by_setting]
    significant, number = (sum(column) for column in zip(*found, strict=True))
    most, of_most = max(found)
    return (
        f"Between runs of our records that differ in the seed only, {significant} of {number} comparisons on one test "
        f"set ({significant / number:.0%}) have p < {ALPHA}; for one setting and test set, {most} of {of_most}.\n"
    ).replace("%", " %")
