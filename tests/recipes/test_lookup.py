"""The lookup: planted heads solve it at the predicted key dims, batches are what the page says, the study resumes."""

import importlib.util
import json

import pytest
import torch

from tests.common import ROOT, run

SCRIPT = ROOT / "recipes" / "lookup" / "lookup.py"
spec = importlib.util.spec_from_file_location("lookup", SCRIPT)
lookup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lookup)


def planted(task, kind):
    """Which bits query and key dims copy; the mixing matrix, (heads, D̃k), that gives each head those of its pair."""
    bits = torch.arange(3 * 4 * lookup.BITS).view(-1, lookup.BITS)
    if kind == "standard":
        return bits[torch.tensor(lookup.TASKS[task])].flatten(), None
    mixing = torch.zeros(lookup.HEADS, lookup.PREDICTED[task, kind])
    for row, pair in zip(mixing, lookup.TASKS[task], strict=True):
        row.view(-1, lookup.BITS)[list(pair)] = 1
    return torch.arange(mixing.shape[1]), mixing


@pytest.mark.parametrize(("task", "kind"), lookup.PREDICTED)
def test_heads_of_the_predicted_width_can_solve_it(task, kind):
    width, (copied, mixing) = lookup.PREDICTED[task, kind], planted(task, kind)
    query, keys, values, labels = lookup.batch(task, 500, torch.Generator().manual_seed(0))
    layer = lookup.KINDS[kind](lookup.WIDTH, lookup.HEADS, width, kdim=keys.shape[-1], vdim=lookup.LABELS, bias=False)
    weights = {
        "q_proj.weight": 50 * torch.eye(lookup.WIDTH)[copied],
        "k_proj.weight": torch.eye(keys.shape[-1])[copied],
    }
    layer.load_state_dict({**weights, **lookup.given(), **({} if mixing is None else {"mixing": mixing})})

    def accuracy():
        output, _ = layer(query, keys, values, need_weights=False)
        return (output.view(*labels.shape, -1).argmax(-1) == labels).float().mean()

    assert accuracy() == 1
    torch.nn.init.zeros_(layer.q_proj.weight)  # looks at all positions alike: an eighth by chance, more by counting
    assert 0.1 < accuracy() < 0.4


def test_every_position_but_the_right_one_differs_from_the_query():
    for task, pairs in lookup.TASKS.items():
        query, keys, _, _ = lookup.batch(task, 200, torch.Generator().manual_seed(1))
        _, right = lookup.agreement(pairs)
        agree = (query[:, :, : keys.shape[-1]] == keys).view(*keys.shape[:2], -1, lookup.BITS).all(-1)
        for pair, position in zip(pairs, right.tolist(), strict=True):
            both = agree[:, :, list(pair)].all(-1)
            assert both[:, position].all()
            assert both.sum() == len(both)


def test_the_study_makes_its_table_and_resumes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- lookup -->\n<!-- /lookup -->\n", encoding="utf-8")
    study = ["python", SCRIPT, "--output", tmp_path / "lookup.json", "--page", page, "--updates", 2, "--seeds", 1]
    run(*study)
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(("| shared", "| disj"))]
    assert [row.split("|")[-2].strip() for row in rows] == ["36", "12", "36", "36"]
    record = json.loads((tmp_path / "lookup.json").read_text(encoding="utf-8"))
    assert len(record["parts"]) == 4 * len(lookup.KEY_DIMS)
    record["parts"]["shared/collaborative/12/1"]["accuracy"] = 1.0
    (tmp_path / "lookup.json").write_text(json.dumps(record), encoding="utf-8")
    run(*study)
    assert "| shared | collaborative | " in (text := page.read_text(encoding="utf-8"))
    assert "| 1.000 |" in text
    assert "| 12 | 12 |" in text


def test_the_page_is_made_of_its_record():
    parts = json.loads((ROOT / "results" / "lookup.json").read_text(encoding="utf-8"))["parts"]
    assert lookup.page(parts, 3) in SCRIPT.with_name("README.md").read_text(encoding="utf-8")
