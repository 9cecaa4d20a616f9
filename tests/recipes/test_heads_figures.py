"""Figures of head analyses, drawn from the published records."""

import shutil

import pytest

from tests.common import ROOT, run

HEADS = ROOT / "results" / "heads"


def test_figures_show_names_scores_and_common_axes(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("standard-256", "collaborative-64"):
        for analysis in ("ablate", "prune", "prune-raw"):
            shutil.copy(HEADS / f"curve-{name}.{analysis}.json", tmp_path)
    run("python", ROOT / "recipes" / "heads" / "figures.py", *sorted(tmp_path.glob("*.json")))
    text = (tmp_path / "curve-standard-256.ablate.svg").read_text()
    assert "<title>Ablation of single heads, curve-standard-256</title>" in text
    assert "on test_2016_flickr; above 0: better without. Framed: p &lt; 0.05" in text
    assert "encoder_cross_decoder" not in text
    assert ">−27.6<" in text
    for name in ("standard-256", "collaborative-64"):
        text = (tmp_path / f"curve-{name}.prune.svg").read_text()
        assert text.count(">14<") == 1  # the largest loss, which only standard heads reach
        assert ">BLEU, test_2017_flickr<" in text
        assert ">only encoder–decoder<" in text
