"""The lookup task: hand-set heads solve it at the predicted key dimensions, and the study resumes."""

import json
import re

import pytest
import torch

from recipes.lookup import run as lookup


def hand_set_heads(task, heads):
    """The bit that each key dimension copies, and mixing (H, D̃k), which selects the bits of each head's pair."""
    bits = torch.arange(3 * 4 * lookup.BITS).view(-1, lookup.BITS)
    if heads == "standard":
        return bits[torch.tensor(lookup.TASKS[task])].flatten(), {}
    mixing = torch.zeros(lookup.HEADS, lookup.PREDICTED[task, heads])
    for row, pair in zip(mixing, lookup.TASKS[task], strict=True):
        row.view(-1, lookup.BITS)[list(pair)] = 1
    return torch.arange(mixing.shape[1]), {"mixing": mixing}


@pytest.mark.parametrize(("task", "heads"), lookup.PREDICTED)
def test_heads_with_the_predicted_key_dimension_can_solve_the_task(task, heads):
    key_dim, (copied, mixing) = lookup.PREDICTED[task, heads], hand_set_heads(task, heads)
    query, keys, values, labels = lookup.batch(task, 500, torch.Generator().manual_seed(0))
    options = {"kdim": keys.shape[-1], "vdim": lookup.LABELS, "bias": False}
    layer = lookup.ATTENTION[heads](lookup.WIDTH, lookup.HEADS, key_dim, **options)
    weights = {
        "q_proj.weight": 50 * torch.eye(lookup.WIDTH)[copied],
        "k_proj.weight": torch.eye(keys.shape[-1])[copied],
    }
    layer.load_state_dict({**weights, **lookup.fixed_weights(), **mixing})

    def accuracy():
        output, _ = layer(query, keys, values, need_weights=False)
        return (output.view(*labels.shape, -1).argmax(-1) == labels).float().mean()

    assert accuracy() == 1
    torch.nn.init.zeros_(layer.q_proj.weight)  # uniform attention: 1/8 by chance, more by counting labels
    assert 0.1 < accuracy() < 0.4


def test_study_resumes_and_writes_its_table(tmp_path):
    record_file = tmp_path / "lookup.json"
    study = [str(record_file), "--updates", "2", "--seeds", "1"]
    lookup.markdown(study)
    record = json.loads(record_file.read_text(encoding="utf-8"))
    assert len(record["parts"]) == 4 * len(lookup.KEY_DIMS)
    record["parts"]["shared/collaborative/12/1"]["accuracy"] = 1.0
    record_file.write_text(json.dumps(record), encoding="utf-8")
    assert re.search(r"\n\| shared \| collaborative .* 1\.000 \|.* 12 \| 12 \|\n", lookup.markdown(study))
