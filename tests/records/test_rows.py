"""Rows of tables: attention types in words, key dimensions, and the settings that runs of a row share."""

import copy
import json
import re

import pytest

from collab_fairseq.records.rows import cache, distinguishing, frame, heads, keys, load_run
from fairseq_modern.errors import UserError

SIZES = {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("embed_dim", 64), ("attention_heads", 4))
}
SCALED = {"collaborative_heads": "none", "attention_shapes": {"cross.0": {"scale": 0.125}}, **SIZES}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({}, "standard (fairseq's transformer)"),
        ({"collaborative_heads": "decoder_cross"}, "collaborative in cross, decoder"),
        ({"collaborative_heads": "none", "attention_init": "authors"}, "standard, authors' initialisation"),
        (SCALED, "standard, attention logits × 0.5"),
    ],
)
def test_attention_type_in_words(model, words):
    assert heads({"config": {"model": model}}) == words


def with_shapes(file, shapes, **settings):
    """The record of a file after changing the settings of layers and of the model."""
    content = json.loads(file.read_text())
    content["settings"]["config"]["model"].update(attention_shapes=shapes, **settings)
    file.write_text(json.dumps(content))
    return load_run(file)


@pytest.mark.parametrize(
    ("dims", "layers", "expected"),
    [
        ({"encoder": 8, "decoder": 8, "cross": 8}, 1, ("collaborative, converted", 8, 8 + 64 + 4)),
        ({"encoder": 8, "decoder": 8, "cross": 8}, 2, ("collaborative, converted", "mixed", None)),
        ({"encoder": 8, "decoder": 8, "cross": 16}, 1, ("collaborative, converted", "mixed", None)),
        ({"encoder": 8}, 1, ("collaborative in encoder, converted", "encoder 8, cross 64, decoder 64", 64 + 64)),
        ({"encoder": 8}, 2, ("collaborative in encoder, converted", "encoder mixed, cross 64, decoder 64", None)),
    ],
)
def test_converted_sites_have_settings_of_the_whole_model(files, dims, layers, expected):
    layer = {"collaborative": True, "content_bias": True, "scale": 0.5}
    shapes = {f"{site}.0": {**layer, "key_dim": dim} for site, dim in dims.items()}
    model = {"key_dim": None, "encoder_layers": layers, "decoder_layers": layers, **SIZES}
    run = with_shapes(files[0], shapes, mixing_init="xavier", **model)
    assert (heads(run), keys(run)["key_dim"], cache(run)) == expected


def test_key_dimension_and_cache_of_each_site():
    model = {"encoder_key_dim": 16, "key_dim": 32, "collaborative_heads": "encoder_cross", "kv_heads": 2}
    run = {"config": {"model": model}, "training": {"updates": 1}}
    assert keys(run)["key_dim"] == "encoder 16, cross 32, decoder 32"
    assert cache(run) is None  # not a transformer
    model.update(decoder_attention_heads=4, decoder_embed_dim=64)
    assert cache(run) == (32 + 64) * 2 // 4  # of the decoder, which has standard heads
    model.update(decoder_key_dim=8, collaborative_heads="decoder", kv_heads=None)
    assert cache(run) == 8 + 64


@pytest.mark.parametrize(
    ("setting", "one", "other"),
    [
        (
            "averaged",
            [{"file": "checkpoint_2_20.pt"}],
            [{"file": "checkpoint_2_20.pt"}, {"file": "checkpoint_2_10.pt"}],
        ),
        ("decoding", {"generation.beam": 4}, {"generation.beam": 1}),
        ("files", {"recipe.training_module": {"sha256": "0"}}, {"recipe.training_module": {"sha256": "1"}}),
    ],
)
def test_seeds_of_a_row_have_the_same_averaging_decoding_and_files(runs, setting, one, other):
    row = [run for run in runs if run["name"].startswith("none-32-")]
    field = "averaged_from" if setting == "averaged" else setting
    for run in row:
        run[field] = one
    assert frame(row, ("heads", "key_dim"))["row"].nunique() == 1
    row[2][field] = other
    with pytest.raises(UserError, match=f"differ in {setting}: omit some runs, or group by it"):
        frame(row, ("heads", "key_dim"))
    assert frame(row, ("heads", "key_dim", setting))["row"].nunique() == 2
    if setting == "averaged":  # the same number from another part of training
        row[2][field] = [{**one[0], "num_updates": 30}]
        with pytest.raises(UserError, match="differ in averaged"):
            frame(row, ("heads", "key_dim"))
    for run in row[:2]:
        del run[field]
    if setting == "decoding":  # as in records of earlier versions
        assert frame(row, ("heads", "key_dim"))["row"].nunique() == 1


@pytest.mark.parametrize(
    ("pruned", "others"), [({"collaborative": False}, {}), ({}, {"encoder.1": {"collaborative": True, "key_dim": 8}})]
)
def test_pruned_models_are_not_those_of_the_full_key_dimension(files, pruned, others):
    shapes = {"encoder.0": {**pruned, "num_heads": 2, "key_dim": 16, "scale": 0.1}, **others}
    run = with_shapes(files[0], shapes, collaborative_heads="none")
    assert (heads(run), keys(run)["key_dim"]) == ("standard, pruned", "mixed")


def test_numbers_are_not_fields_to_group_by(runs):
    with pytest.raises(UserError, match="no record has cache"):
        frame(runs, ("heads", "key_dim", "cache"))


def test_suggested_fields_of_layers_can_be_grouped_by(runs):
    row = [run for run in runs if run["name"].startswith("none-32-")]
    for number, run in enumerate(row):
        run["config"]["model"]["attention_shapes"] = {"encoder.0": {"scale": 0.1 + number}}
    with pytest.raises(UserError) as error:
        frame(row, ("key_dim",))
    field = re.search(r"--group-by \.\.\.,(\S+)\)", str(error.value))[1]
    assert frame(row, ("key_dim", field))["row"].nunique() == 3


def test_settings_that_distinguish_runs_of_the_same_seed(runs):
    """As few as are needed: not those of different rows or seeds. The reference is the check of rows."""
    group_by = ["heads", "key_dim"]
    for run in runs:
        run["config"]["common"] = {"amp": False}
    others = copy.deepcopy(runs)
    for run in others:
        run["config"]["optimization"]["lr"], run["config"]["optimizer"] = [0.01], {"lr": [0.01]}
    assert distinguishing(runs, group_by) == group_by
    assert distinguishing([*runs, *others], group_by) == [*group_by, "config.optimization.lr"]
    with pytest.raises(UserError, match=r"differ in config\.optimization\.lr"):
        frame([*runs, *others], group_by)
    assert frame([*runs, *others], distinguishing([*runs, *others], group_by))["row"].nunique() == 6
    amp = [{**run, "config": {**run["config"], "common": {"amp": True}}} for run in runs]
    assert distinguishing([*runs, *amp], group_by) == [*group_by, "config.common.amp"]
    runs[0]["config"]["optimization"]["lr"] = [0.01]  # a mistake that the check of rows finds
    assert distinguishing(runs, group_by) == group_by
