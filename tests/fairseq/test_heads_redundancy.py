"""Captured energy of heads, against singular values of the matrices written out."""

import json
import sys

import pytest
import torch

import collab_fairseq.models  # noqa: F401  (registers the presets)
from collab_fairseq import checkpoints
from collab_fairseq.attention import block_mixing
from collab_fairseq.attention.factors import HeadFactors, standard_heads
from collab_fairseq.cli.main import main
from collab_fairseq.heads.redundancy import captured, read_weights, redundancy
from collab_fairseq.modules.settings import ConfigurationError
from tests.fairseq.models import SMALL, arguments, build


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(matrix):
    energy = torch.linalg.svdvals(matrix).square()
    return energy.cumsum(0) / energy.sum()


@pytest.mark.parametrize("mixing", ["blocks", "dense"])
def test_curves_are_those_of_the_matrices_of_figure_1(mixing):
    query, key = draw(6, 10), draw(6, 8, seed=1)
    weights = block_mixing([2, 2, 2]).double() if mixing == "blocks" else draw(3, 6, seed=2)
    result = redundancy(HeadFactors(query, key, weights))
    heads = []
    for row in weights:
        own = row != 0
        heads.append((query.T[:, own] * row[own], key.T[:, own]))
    expected = {
        "query": [*(q for q, _ in heads), torch.cat([q for q, _ in heads], dim=1)],
        "key": [*(k for _, k in heads), torch.cat([k for _, k in heads], dim=1)],
        "product": [*(q @ k.T for q, k in heads), sum(q @ k.T for q, k in heads)],
    }
    for kind, matrices in expected.items():
        curves = [*result["captured"][kind]["heads"], result["captured"][kind]["layer"]]
        for curve, matrix in zip(curves, matrices, strict=True):
            assert torch.allclose(torch.tensor(curve, dtype=torch.float64), shares(matrix)[: len(curve)], atol=1e-12)
            assert abs(curve[-1] - 1) < 1e-12
    counts = result["dimensions"]["query"]["layer"]
    curve = result["captured"]["query"]["layer"]
    for count, share in zip(counts, (0.9, 0.95, 0.99), strict=True):
        assert curve[count - 1] >= share > ([0.0, *curve])[count - 1]


def test_mixing_vectors_are_compared_whatever_their_scale():
    query, key, mixing = draw(6, 10), draw(6, 8, seed=1), draw(3, 6, seed=2)
    factor = torch.linspace(0.1, 5, 6, dtype=torch.float64)
    one = redundancy(HeadFactors(query, key, mixing))
    other = redundancy(HeadFactors(query / factor[:, None], key, mixing * factor))
    for name in ("effective_dims", "overlap"):
        assert torch.allclose(torch.tensor(one[name]), torch.tensor(other[name]))
    blocks = redundancy(HeadFactors(torch.eye(6).double(), torch.eye(6).double(), block_mixing([4, 2]).double()))
    assert blocks["effective_dims"] == pytest.approx([4.0, 2.0])
    assert torch.allclose(torch.tensor(blocks["overlap"]), torch.eye(2))


def test_a_matrix_of_zeros_captures_nothing():
    assert captured(torch.zeros(3, dtype=torch.float64)) == [0.0, 0.0, 0.0]
    zero = HeadFactors(*(torch.zeros(2, width).double() for width in (3, 3, 2)))
    assert redundancy(zero)["effective_dims"] == [0.0, 0.0]


def state_of(model, **flags):
    return {"cfg": {"model": arguments(**flags)}, "model": dict(model.state_dict())}


def test_weights_are_found_by_place_with_each_layers_own_heads():
    shapes = {"cross.1": {"num_heads": 1, "head_dim": 8, "key_dim": 4, "collaborative": False}}
    flags = {**SMALL, "key_dim": 6, "collaborative_heads": "encoder", "attention_shapes": shapes}
    model = build(**flags)
    weights = read_weights(state_of(model, **flags))
    assert list(weights) == ["encoder.0", "encoder.1", "cross.0", "cross.1", "decoder.0", "decoder.1"]
    assert weights["cross.1"].mixing.tolist() == [[1.0] * 4]
    assert weights["decoder.0"].mixing.tolist() == block_mixing([3, 3]).tolist()
    assert torch.equal(weights["encoder.1"].mixing, model.encoder.layers[1].self_attn.mixing.double())


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("encoder.layers.0.self_attn.q_proj.weight", None, r"has no encoder.layers.0.self_attn.q_proj.weight"),
        ("decoder.layers.0.self_attn.k_proj.weight", 5, r"k_proj.weight must have shape \(6, 16\); got \(5, 16\)"),
        ("encoder.layers.1.self_attn.mixing", 1, r"mixing must have shape \(2, 6\); got \(1, 6\)"),
    ],
)
def test_parameters_that_are_missing_or_do_not_fit_are_named(name, rows, message):
    state = state_of(build(**SMALL, key_dim=6), **SMALL, key_dim=6)
    tensor = state["model"].pop(name)
    if rows:
        state["model"][name] = tensor[:rows]
    with pytest.raises(ConfigurationError, match=message):
        read_weights(state)


def test_the_command_prints_and_keeps_to_one_checkpoint(tiny_run, tmp_path, capsys):
    checkpoint, result = tiny_run / "checkpoint_best.pt", tmp_path / "result.json"
    assert main(["heads", "redundancy", str(checkpoint), "--json", str(result)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 + 3
    assert "| E:1 | 2 | 16 |" in printed
    record = json.loads(result.read_text(encoding="utf-8"))
    weights = read_weights(checkpoints.load(checkpoint))
    assert record["parts"]["cross.0"] == redundancy(weights["cross.0"])
    assert main(["heads", "redundancy", str(tiny_run / "checkpoint1.pt"), "--json", str(result)]) == 1
    assert "was made with checkpoint = checkpoint_best.pt, SHA-256" in capsys.readouterr().err


def test_hugging_face_folders(tmp_path, capsys, monkeypatch):
    """Figure 1 of the paper is BERT's; here a small one with random weights."""
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    from tests.unit.huggingface_cases import make

    model, folder = make("bert").bert, str(tmp_path / "bert")
    model.save_pretrained(folder)
    assert main(["heads", "redundancy", folder, "--figure", str(tmp_path / "bert.svg")]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 2
    assert "| 4 | 32 |" in rows[2]
    attention = model.encoder.layer[1].attention.self
    heads = standard_heads(attention.query.weight.double(), attention.key.weight.double(), 4)
    counts = redundancy(heads)["dimensions"]["product"]["layer"]
    assert f"| {' '.join(map(str, counts))} |" in rows[3]
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("collab_fairseq.huggingface")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["heads", "redundancy", folder]) == 1
    assert "pip install 'collab_fairseq[huggingface]'" in capsys.readouterr().err
