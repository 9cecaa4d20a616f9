"""Mistakes that would waste a training run end in one sentence; truncated data; keys of Hydra."""

import math
import os
import re
import shutil

import numpy
import pytest
import torch
from fairseq.data import indexed_dataset
from fairseq.modules import FairseqDropout
from omegaconf import OmegaConf

from collab_fairseq.models.arguments import flatten
from fairseq_modern import error_messages, first_error
from fairseq_modern.errors import UserError
from tests.commands import USER_DIR, hydra_command, train_command
from tests.common import run
from tests.models.cases import SMALL, build

MODEL = {**SMALL, "key_dim": 6, "max_update": 1}
SAVED = "run/checkpoint_last.pt"
USER = ["--user-dir", USER_DIR]
HYDRA = ["fairseq-hydra-train", "--config-dir", "conf", "--config-name"]


def train(*more, data="data", save_dir="new", **others):
    settings = {name: value for name, value in {**MODEL, **others}.items() if value is not None}
    return [*train_command(data, save_dir, **settings), *more]


def generate(*more, data="data"):
    return ["fairseq-generate", data, "--cpu", *more]


@pytest.fixture(scope="module")
def folder(tiny_data, tmp_path_factory):
    """A folder with data, data of another dictionary, a small model, and a Hydra config."""
    folder = tmp_path_factory.mktemp("mistakes")
    data, other = folder / "data", folder / "other dictionary"
    for copy in (data, other):
        shutil.copytree(tiny_data, copy)
    for file in other.glob("dict.*"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:9]))
    hydra_command(data, folder / "new", folder / "conf", **SMALL)
    run(*train(save_dir="run"), cwd=folder)
    return folder


#: mistake → command, pattern of the message
MISTAKES = {
    "other dictionary": (
        generate(*USER, "--path", SAVED, data="other dictionary"),
        r"the source dictionary must have the symbols of the one that the model was trained with, .*",
    ),
    "resuming with another multiplier": (
        train(save_dir="run", mixing_lr_multiplier=8),
        rf"--mixing-lr-multiplier must be 1\.0, as in {SAVED}, .*; got 8\.0 \(or give --reset-optimizer\)",
    ),
    "a multiplier without Adam": (
        train(mixing_lr_multiplier=8, optimizer="sgd"),
        r"--mixing-lr-multiplier 8\.0 needs an optimizer .* \(--optimizer adam, .*\); got sgd",
    ),
    "a flag that contradicts --attention-from": (
        train(key_dim=4, attention_from=SAVED),
        rf"--key-dim is 4, but 6 in --attention-from {SAVED}; leave out --key-dim",
    ),
    "divergence": (train(lr=1e30, max_update=9), "training diverged: the loss is (NaN|Inf) at update 2; lower .*"),
    "divergence with a layer that allows no hooks": (
        train(lr=1e30, max_update=9, criterion="label_smoothed_cross_entropy_chunked"),
        "training diverged: the loss is (NaN|Inf) at update 2; lower --lr, .*",
    ),
    "--fp16 on a CPU": (train(fp16=True), "--fp16 needs a GPU, but --cpu is given; leave out --fp16.*"),
    "missing config": ([*HYDRA, "nope"], r"--config-name must be .* conf: experiment\.yaml; got nope"),
    "mistyped key of the model": (
        [*HYDRA, "experiment", "hydra.run.dir=conf", "+model.key_dimm=3"],
        r"model.key_dimm is not a setting of transformer_collab$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(folder, mistake):
    command, expected = MISTAKES[mistake]
    done = run(*command, check=False, cwd=folder, input="")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert re.fullmatch(rf"fairseq-[\w-]+: error: {expected}", done.stderr.splitlines()[-1])


# --- in this process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "Broken pipe"),
        KeyError(None),
        FileNotFoundError(2, "No such file", "x"),
        StopIteration(),
        FloatingPointError("Fatal error: gradients are inconsistent between workers."),
    ],
    ids=repr,
)
def test_other_errors_keep_their_traceback(error):
    assert error_messages.explain(error) is None


def test_explains_divergence_in_half_precision():
    failed = FloatingPointError("Minimum loss scale reached (0.0001). Your loss is probably exploding.")
    assert error_messages.explain(failed).startswith("training diverged (Minimum loss scale reached); lower --lr")


@pytest.mark.parametrize("loss", [1.5, math.nan, torch.tensor(-math.inf)])
@pytest.mark.parametrize("second", [StopIteration(), OSError(28, "full disk"), UserError("no hooks"), None])
def test_a_training_step_raises_its_first_error(loss, second):
    """Whatever fails while fairseq handles it; an error within a layer, the control, may replace another one."""

    class Trainer:
        def get_num_updates(self):
            return 6

        def fairseqs_step(self, layer):
            logging_outputs = [{"loss": loss}]  # read by the patch
            try:
                layer()
                raise FloatingPointError("gradients are Nan/Inf")
            except FloatingPointError:
                assert logging_outputs
                if second is not None:
                    raise second  # noqa: B904
                raise

        def train_step(self, layer):
            with first_error.raised(Trainer.fairseqs_step, self):
                self.fairseqs_step(layer)

    def layer():
        try:
            raise FloatingPointError("caught")
        except FloatingPointError:
            raise UserError("explained")  # noqa: B904

    with pytest.raises(FloatingPointError, match="Nan/Inf") as raised:
        Trainer().train_step(lambda: None)
    message = error_messages.explain(raised.value)
    if loss == 1.5:
        assert message == f"training diverged (gradients are Nan/Inf); {error_messages.ADVICE}"
    else:
        name = "NaN" if math.isnan(loss) else "Inf"
        assert message == f"training diverged: the loss is {name} at update 7; {error_messages.ADVICE}"
    with pytest.raises(UserError, match="explained"):
        Trainer().train_step(layer)


@pytest.mark.parametrize(
    ("part", "size", "message"),
    [("bin", 0, "truncated"), ("idx", 300, "truncated"), ("bin", 100, r"at least \d{4} bytes; got 100")],
)
def test_truncated_data_are_rejected_when_opened(tiny_data, tmp_path, part, size, message):
    for suffix in ("bin", "idx"):
        shutil.copy(tiny_data / f"train.src-tgt.src.{suffix}", tmp_path / f"data.{suffix}")
    path = str(tmp_path / "data")
    assert len(indexed_dataset.MMapIndexedDataset(path)[199]) > 3
    os.truncate(f"{path}.{part}", size)
    with pytest.raises(UserError, match=rf"{path}\.\w+ .*{message}.*; binarise or copy the data again"):
        indexed_dataset.MMapIndexedDataset(path)


def test_data_without_sentences_are_valid(tmp_path):
    builder = indexed_dataset.MMapIndexedDatasetBuilder(str(tmp_path / "data.bin"), dtype=numpy.int32)
    builder.finalize(str(tmp_path / "data.idx"))
    (tmp_path / "data.bin").write_bytes(b"\0")  # an empty file cannot be mapped
    assert len(indexed_dataset.MMapIndexedDataset(str(tmp_path / "data"))) == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"encoder": {"layerss": 3}}, r"model\.encoder_layerss is not a setting of transformer_collab$"),
        ({"encoder": 3}, r"model\.encoder must be a mapping; got 3$"),
    ],
)
def test_hydra_keys_are_fields_of_the_model(given, expected):
    with pytest.raises(UserError, match=expected):
        flatten(OmegaConf.create({"_name": "transformer_collab", **given}))


def test_hydra_keys_that_are_fields_stay_as_they_are():
    kept = {"_name": "transformer_collab", "key_dim": None, "attention_shapes": {"cross.0": {"key_dim": 4}}}
    config = OmegaConf.create({**kept, "encoder": {"layers": 2, "layerdrop": 0}, "quant_noise": {"pq": 0.1}})
    flatten(config)
    assert dict(config) == {**kept, "encoder_layers": 2, "encoder_layerdrop": 0, "quant_noise_pq": 0.1}


def test_retain_dropout_modules_has_fairseqs_names():
    """`--retain-dropout-modules TransformerEncoder` applies to the collaborative encoder, too."""

    def names(model):
        modules = model.named_modules()
        return {name: module.module_name for name, module in modules if isinstance(module, FairseqDropout)}

    baseline, ours = names(build("transformer", **SMALL)), names(build(**SMALL))
    assert ours["encoder.dropout_module"] == "TransformerEncoder"
    assert ours == {name: baseline[name] for name in ours}
