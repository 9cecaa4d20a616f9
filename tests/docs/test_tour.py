"""docs/tour.ipynb: its cells run, and its table shows what the text says."""

import json
import re
from unittest import mock

import pytest

from tests.common import ROOT


@pytest.mark.slow
def test_the_cells_run(monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    monkeypatch.chdir(ROOT / "docs")
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    names, figures = {}, []
    with mock.patch.object(pyplot, "show", side_effect=lambda: figures.append(len(pyplot.gcf().axes))):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    pyplot.close("all")
    assert figures == [6, 8]  # three maps with colour scales; two rows of four heads
    lines = re.findall(r"^(\S.*?) +([\d,]+) +([\d.]+)  (\d) of 8$", capsys.readouterr().out, re.MULTILINE)
    rows = {name: (int(size.replace(",", "")), float(nll), int(equal)) for name, size, nll, equal in lines}
    source, full, quarter = rows["source"], rows["converted, 128"], rows["converted, 32"]
    assert full[1:] == source[1:] == (source[1], 8)
    assert quarter[0] < source[0] < full[0]
    assert abs(quarter[1] - source[1]) < 0.05
    assert rows["converted, 16"][1] > source[1] + 0.01  # control
