"""Checkpoints of old versions of fairseq: every command gives what it gives for the new names."""

import json
import re
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils

from collab_fairseq import checkpoints
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.translation import load_model
from fairseq_modern.errors import UserError
from tests.common import FLOAT32, collab
from tests.export.cases import write_checkpoint, write_data
from tests.models.cases import SMALL, build, logits

NORMS = {
    "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
    "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
}


def as_before_0_7(state):
    """The checkpoint with fused projections, numbered layer norms, saved positions and the old name of the output."""
    model, old = state["model"], {}
    for name, tensor in model.items():
        prefix, _, rest = name.partition("_proj.")
        if re.fullmatch(r".*attn\.[qkv]", prefix):
            if prefix.endswith(".q"):
                fused = [model[f"{prefix[:-1]}{part}_proj.{rest}"] for part in "qkv"]
                old[f"{prefix[:-1]}in_proj_{rest}"] = torch.cat(fused)
            continue
        if name.endswith("._float_tensor"):
            old[name.replace("_float_tensor", "weights")] = torch.zeros(1)
            continue
        norm = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.(\w+_layer_norm)\.(\w+)", name)
        if norm:
            name = f"{norm[1]}.layer_norms.{NORMS[norm[2]][norm[3]]}.{norm[4]}"
        old["decoder.embed_out" if name == "decoder.output_projection.weight" else name] = tensor
    return {**state, "model": old}


def test_every_command_takes_old_parameter_names(tmp_path):
    """Conversion, pruning and redundancy, whose results are then exported: the same tensors as from the new names.

    fairseq's own renaming is the independent reference: fairseq's transformer loads the old names.
    """
    data = write_data(tmp_path)
    new = write_checkpoint(tmp_path / "new.pt", data, arch="transformer")
    state = checkpoints.load(new)
    old = as_before_0_7(state)
    assert len(old["model"].keys() - state["model"].keys()) == 35
    checkpoints.save(old, tmp_path / "old.pt")
    build("transformer", vocabulary=81, share_all_embeddings=False, **SMALL).load_state_dict(dict(old["model"]))
    results = {}
    for name in ("new", "old"):
        checkpoint, output = tmp_path / f"{name}.pt", tmp_path / name
        output.mkdir()
        collab("reparam", checkpoint, "--key-dim", "6", "--data", data, "--output", output / "converted.pt")
        collab("heads", "prune", checkpoint, "--remove", "E:1:1", "--output", output / "pruned.pt")
        collab("heads", "redundancy", checkpoint, "--json", output / "redundancy.json")
        collab("average", "--inputs", checkpoint, "--output", output / "averaged.pt")
        for file in ("converted", "pruned", "averaged"):
            collab("export", output / f"{file}.pt", "--to", "folder", "--output", output / file, "--data", data)
            results[name, file] = checkpoints.load(output / file / "model.pt")["model"]
        results[name, "redundancy"] = json.loads((output / "redundancy.json").read_text())["parts"]
    for file in ("converted", "pruned", "averaged"):
        torch.testing.assert_close(dict(results["old", file]), dict(results["new", file]), rtol=0, atol=0)
    assert results["old", "redundancy"] == results["new", "redundancy"]


def test_settings_of_old_versions_are_read_as_fairseq_reads_them(tmp_path):
    """Settings in ``args``, without a task, with one maximum of positions, and with values in other containers."""
    data = write_data(tmp_path)
    state = checkpoints.load(write_checkpoint(tmp_path / "new.pt", data, arch="transformer"))
    languages = {"source_lang": "src", "target_lang": "tgt"}
    sizes = {**SMALL, "arch": "transformer", "max_positions": 64, "share_all_embeddings": False}
    old = Namespace(data=[str(data)], **languages, **sizes, criterion="cross_entropy", lr=0.25, min_lr=1e-9)
    given = dict(vars(old))
    del state["cfg"]
    checkpoints.save({**state, "args": old}, tmp_path / "old.pt")
    theirs, _ = checkpoint_utils.load_model_ensemble([str(tmp_path / "old.pt")])
    ours = load_model(tmp_path / "old.pt")
    expected = logits(theirs[0].eval())
    assert (logits(ours.model) - expected).abs().max() < FLOAT32 * expected.abs().max()
    assert (ours.model.max_positions(), ours.cfg.task.data) == ((64, 64), str(data))
    as_transformer_collab({**state, "args": old})
    assert vars(old) == given


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool])
def test_parameters_that_are_not_floating_point_are_rejected(tmp_path, dtype):
    """torch would load them with a warning, or none. Control: half precision."""
    data = write_data(tmp_path)
    state = checkpoints.load(write_checkpoint(tmp_path / "new.pt", data, arch="transformer"))
    name = "encoder.layers.0.fc1.weight"
    for other in (torch.float16, dtype):
        state["model"][name] = state["model"][name].to(other)
        checkpoints.save(state, tmp_path / "changed.pt")
        if other == dtype:
            with pytest.raises(UserError, match=rf"fc1\.weight must be floating-point; got {dtype}"):
                load_model(tmp_path / "changed.pt", data)
        else:
            assert torch.isfinite(logits(load_model(tmp_path / "changed.pt", data).model)).all()
