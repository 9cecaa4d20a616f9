"""Checkpoints with the parameter names of fairseq before 0.7: every command gives what it gives for the new names."""

import json
import re

import torch

from collab_fairseq import checkpoints
from tests.common import collab
from tests.export.cases import write_checkpoint, write_data
from tests.models.cases import SMALL, build

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
