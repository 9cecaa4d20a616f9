"""An attention type from outside the project (fifth_attention_type.py) trains, decodes, and appears in tables."""

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
def check_layers_and_print_table(checkpoint, data, record):
    """In a program that imports the type: check outputs, sizes and export of the layers."""
    from collab_fairseq import translation
    from collab_fairseq.attention.attention_types import kv_cache_per_token
    from collab_fairseq.cli.main import main
    from collab_fairseq.export.standard_heads import standard_layers
    from collab_fairseq.modules.sites import attention_layers, swapped

    model = translation.load_model(checkpoint, data).model
    words, lengths, target = (x.clamp(max=15) for x in batch())
    layer, encoded = attention_layers(model)["decoder.0"], model.encoder(words, lengths)
    full = model.decoder(target, encoder_out=encoded)[0]
    assert (step_by_step(model, encoded, target)[0] - full).abs().max() < FLOAT32 < full.std()
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    assert (parameters, kv_cache_per_token(layer)) == (3 * 16 * 17 + 12 * 17, 12 + 16)
    with swapped(model, standard_layers(model)):
        assert (model(words, lengths, target)[0] - full).abs().max() < FLOAT32
    main(["table", record])


def test_attention_type_needs_one_file_and_one_line(tiny_data, tmp_path):
    plugin = user_dir(tmp_path / "plugin", "import tests.fairseq.fifth_attention_type")
    flags = {**SIZES, "user_dir": plugin, "max_update": 12, "save_interval_updates": 6}
    run(*train_command(tiny_data, tmp_path, **flags), cwd=ROOT)
    mean, record = tmp_path / "mean.pt", tmp_path / "record.json"
    run("collab", "average", "--inputs", tmp_path, "--num-update-checkpoints", 2, "--output", mean)
    log = run("fairseq-generate", tiny_data, "--path", mean, "--user-dir", plugin, "--cpu", cwd=ROOT).stdout
    assert len(re.findall(r"^H-\d+\t", log, re.MULTILINE)) == 20
    (tmp_path / "empty").write_text("")
    files = dict.fromkeys(("train_log", "usage", "data_checksums"), tmp_path / "empty")
    write_json(make_record("fifth", "", checkpoint=load(mean), scores={}, losses={}, **files), record)
    code = (
        "import sys, tests.fairseq.fifth_attention_type\n"
        "from tests.fairseq.test_fifth_attention_type import check_layers_and_print_table as check\n"
        "check(*sys.argv[1:])"
    )
    table = run(sys.executable, "-c", code, mean, tiny_data, record, cwd=ROOT).stdout
    assert re.search(r"\| collaborative in cross, slices of 12 key dimensions \| 16 .* 9,856 +\| 28 ", table), table
