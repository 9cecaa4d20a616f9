"""An attention type unknown to the project (tests/fairseq/fifth_attention_type.py) trains, decodes, is in tables."""

import json
import re
import sys

import torch

from collab_fairseq.checkpoints import load
from collab_fairseq.records.files import write_json
from collab_fairseq.records.training import make_record
from tests.common import FLOAT32, ROOT, run
from tests.fairseq.commands import train_command
from tests.fairseq.forked import user_dir
from tests.fairseq.models import SMALL, batch, step_by_step

SIZES = {**SMALL, "collaborative_heads": "cross", "key_dim": 16, "shared_key_dim": 12}


@torch.no_grad()
def ask(checkpoint, data):
    """In a program that knows the type: what layers compute, cost and export."""
    from collab_fairseq import translation
    from collab_fairseq.attention.attention_types import kv_cache_per_token
    from collab_fairseq.export.standard_heads import standard_layers
    from collab_fairseq.modules.sites import attention_layers, swapped

    model = translation.load_model(checkpoint, data).model
    words, lengths, target = (x.clamp(max=15) for x in batch())
    layer, encoded = attention_layers(model)["decoder.0"], model.encoder(words, lengths)
    whole = model.decoder(target, encoder_out=encoded)[0]
    assert (step_by_step(model, encoded, target)[0] - whole).abs().max() < FLOAT32 < whole.std()
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    assert (parameters, kv_cache_per_token(layer)) == (3 * 16 * 17 + 12 * 17, 12 + 16)
    with swapped(model, standard_layers(model)):
        assert (model(words, lengths, target)[0] - whole).abs().max() < FLOAT32


def test_an_attention_type_is_one_file_and_one_line(tiny_data, tmp_path):
    own = user_dir(tmp_path / "own", "import tests.fairseq.fifth_attention_type")
    common = {"user_dir": own, "max_update": 12, "save_interval_updates": 6}
    run(*train_command(tiny_data, tmp_path, **SIZES, **common), cwd=ROOT)
    run("collab", "average", "--inputs", tmp_path, "--num-update-checkpoints", 2, "--output", tmp_path / "mean.pt")
    told = run("fairseq-generate", tiny_data, "--path", tmp_path / "mean.pt", "--user-dir", own, "--cpu", cwd=ROOT)
    assert len(re.findall(r"^H-\d+\t", told.stdout, re.MULTILINE)) == 20
    known, record = "import sys, tests.fairseq.fifth_attention_type; ", tmp_path / "record.json"
    asked = known + "from tests.fairseq.test_fifth_attention_type import ask; ask(*sys.argv[1:])"
    run(sys.executable, "-c", asked, tmp_path / "mean.pt", tiny_data, cwd=ROOT)
    (tmp_path / "lines").write_text("")
    made = dict.fromkeys(("train_log", "usage", "data_sums"), tmp_path / "lines")
    write_json(make_record("fifth", "", checkpoint=load(tmp_path / "mean.pt"), scores={}, losses={}, **made), record)
    assert json.loads(record.read_text())["parts"]["training"]["wall_seconds"] is None
    program = known + "from collab_fairseq.cli.main import main; main(['table', sys.argv[1]])"
    told = run(sys.executable, "-c", program, record, cwd=ROOT).stdout
    assert re.search(r"\| collaborative in cross, slices of 12 key dimensions \| 16 .* 9,856 +\| 28 ", told), told
