"""Captured energy of heads, against the singular values of explicit matrices."""

import pytest
import torch

import collab_fairseq.models  # noqa: F401  (registers the presets)
from collab_fairseq import checkpoints
from collab_fairseq.attention import block_mixing
from collab_fairseq.attention.factors import HeadFactors, standard_heads
from collab_fairseq.heads.redundancy import read_weights, redundancy
from fairseq_modern.errors import UserError
from tests.attention.cases import normal
from tests.heads.cases import collab, parts_of
from tests.models.cases import SMALL, arguments, build


@pytest.mark.parametrize("mixing", [block_mixing([2, 2, 2]).double(), normal(3, 6, seed=2)], ids=["blocks", "dense"])
def test_captured_energy_of_the_matrices_of_figure_1(mixing):
    query, key = normal(6, 10), normal(6, 8, seed=1)
    result = redundancy(HeadFactors(query, key, mixing))
    queries = [query.T[:, row != 0] * row[row != 0] for row in mixing]
    keys = [key.T[:, row != 0] for row in mixing]
    products = [head_query @ head_key.T for head_query, head_key in zip(queries, keys, strict=True)]
    expected = {
        "query": [*queries, torch.cat(queries, dim=1)],
        "key": [*keys, torch.cat(keys, dim=1)],
        "product": [*products, sum(products)],
    }
    for name, matrices in expected.items():
        shares = [*result["captured"][name]["heads"], result["captured"][name]["layer"]]
        for share, matrix in zip(shares, matrices, strict=True):
            energy = torch.linalg.svdvals(matrix).square()
            expected_shares = (energy.cumsum(0) / energy.sum())[: len(share)]
            torch.testing.assert_close(torch.tensor(share, dtype=torch.float64), expected_shares, rtol=0, atol=1e-12)
            assert abs(share[-1] - 1) < 1e-12
    counts = result["dimensions"]["query"]["layer"]
    shares = [0.0, *result["captured"]["query"]["layer"]]
    for count, share in zip(counts, (0.9, 0.95, 0.99), strict=True):
        assert shares[count] >= share > shares[count - 1]


def test_comparison_of_mixing_vectors_is_independent_of_their_scale():
    query, key, mixing = normal(6, 10), normal(6, 8, seed=1), normal(3, 6, seed=2)
    factor = torch.linspace(0.1, 5, 6, dtype=torch.float64)
    result = redundancy(HeadFactors(query, key, mixing))
    rescaled = redundancy(HeadFactors(query / factor[:, None], key, mixing * factor))
    for name in ("effective_dims", "overlap"):
        torch.testing.assert_close(torch.tensor(result[name]), torch.tensor(rescaled[name]))
    compared = mixing * query.norm(dim=1) * key.norm(dim=1)
    assert result["effective_dims"] == pytest.approx(((compared**2).sum(1) ** 2 / (compared**4).sum(1)).tolist())
    cosines = torch.cosine_similarity(compared[:, None], compared[None], dim=-1)
    torch.testing.assert_close(torch.tensor(result["overlap"], dtype=torch.float64), cosines)
    identity = torch.eye(6).double()
    blocks = redundancy(HeadFactors(identity, identity, block_mixing([4, 2]).double()))
    assert blocks["effective_dims"] == pytest.approx([4.0, 2.0])
    torch.testing.assert_close(torch.tensor(blocks["overlap"]), torch.eye(2))


def test_random_heads_of_the_same_shape():
    """By the Marchenko-Pastur law, 61 % of the singular values of a large square matrix have 95 % of its energy."""
    ones = torch.ones(64, 64, dtype=torch.float64)
    result = redundancy(HeadFactors(ones, ones, block_mixing([16] * 4).double()))
    assert result["dimensions"]["query"]["layer"] == [1, 1, 1]
    assert 0.58 * 64 <= result["random"]["query"]["layer"][1] <= 0.64 * 64
    assert all(number <= 16 for head in result["random"]["query"]["heads"] for number in head)
    shared = redundancy(HeadFactors(ones, ones, normal(4, 64, seed=2)))
    assert all(number > 16 for head in shared["random"]["query"]["heads"] for number in head)


def test_energy_of_random_heads_equals_that_of_other_normal_weights():
    """Whatever their variance; heads whose dimensions are all equal are a control."""
    ones = torch.ones(128, 128, dtype=torch.float64)
    result = redundancy(HeadFactors(ones, ones, block_mixing([32] * 4).double()))
    query, key = 0.02 * normal(128, 128, seed=5), 3 * normal(128, 128, seed=6)
    products = [query.T @ key, *(query[rows].T @ key[rows] for rows in torch.arange(128).view(4, 32))]
    energies = [torch.linalg.svdvals(product).square() for product in products]
    layer, *heads = [energy.cumsum(0) / energy.sum() for energy in energies]
    random, captured = result["random_captured"]["product"], result["captured"]["product"]
    assert (torch.tensor(random["layer"]) - layer).abs().max() < 0.02
    assert (torch.tensor(captured["layer"]) - layer).abs().max() > 0.5
    low, high = torch.tensor(random["heads"])
    assert bool((low <= high).all())
    for head in heads:
        assert float((head[:32] - low).min()) > -0.05
        assert float((head[:32] - high).max()) < 0.05


def test_zero_matrix_captures_nothing():
    zero = redundancy(HeadFactors(*(torch.zeros(2, width).double() for width in (3, 3, 2))))
    assert zero["captured"]["query"]["layer"] == zero["effective_dims"] == [0.0, 0.0]


def state_of(**flags):
    """A checkpoint of an untrained model."""
    flags = {**SMALL, "key_dim": 6, **flags}
    return {"cfg": {"model": arguments(**flags)}, "model": dict(build(**flags).state_dict())}


def test_weights_of_layers_with_different_heads():
    shapes = {"cross.1": {"num_heads": 1, "head_dim": 8, "key_dim": 4, "collaborative": False}}
    state = state_of(collaborative_heads="encoder", attention_shapes=shapes)
    weights = read_weights(state)
    assert list(weights) == ["encoder.0", "encoder.1", "cross.0", "cross.1", "decoder.0", "decoder.1"]
    assert weights["cross.1"].mixing.tolist() == [[1.0] * 4]
    assert weights["decoder.0"].mixing.tolist() == block_mixing([3, 3]).tolist()
    mixing = "encoder.layers.1.self_attn.mixing"
    assert torch.equal(weights["encoder.1"].mixing, state["model"][mixing].double())
    state["model"][mixing] = state["model"][mixing][:1]
    with pytest.raises(UserError, match=r"mixing must have shape \(2, 6\); got \(1, 6\)"):
        read_weights(state)
    del state["model"][mixing]
    with pytest.raises(UserError, match=rf"{mixing} must have shape \(2, 6\); got None"):
        read_weights(state)


def test_command_prints_and_rejects_the_record_of_another_checkpoint(tiny_run, tmp_path):
    checkpoint, record = tiny_run / "checkpoint_best.pt", tmp_path / "result.json"
    printed = collab("redundancy", checkpoint, "--json", record)
    assert printed.count("\n") == 2 + 3 + 1
    assert "| E:1 | 2 | 16 |" in printed
    weights = read_weights(checkpoints.load(checkpoint))
    assert parts_of(record)["cross.0"] == redundancy(weights["cross.0"])
    error = collab("redundancy", tiny_run / "checkpoint1.pt", "--json", record, status=1)
    assert "was made with checkpoint = checkpoint_best.pt, SHA-256" in error


def test_command_on_a_hugging_face_folder(tmp_path):
    """Figure 1 of the paper is BERT; this is a small one with random weights."""
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    from tests.huggingface.cases import make

    model = make("bert").bert
    model.save_pretrained(tmp_path)
    rows = collab("redundancy", tmp_path, "--figure", tmp_path / "bert.svg").splitlines()
    assert len(rows) == 2 + 2 + 1
    assert "| 4 | 32 |" in rows[2]
    attention = model.encoder.layer[1].attention.self
    heads = standard_heads(attention.query.weight.double(), attention.key.weight.double(), 4)
    assert ">random weights<" in (tmp_path / "bert.svg").read_text(encoding="utf-8")
    counts = redundancy(heads)["dimensions"]["product"]["layer"]
    assert f"| {' '.join(map(str, counts))} |" in rows[3]
