"""Fine-tuning of a trained model: its flags give the function of its checkpoint."""

import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import models, options

from fairseq_modern.errors import UserError
from recipes.runner.finetune import finetune, model_flags, open_folder
from tests.models.cases import SMALL, Task, arguments, batch


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"no_scale_embedding": True},
        {"no_token_positional_embeddings": True},
        {"layernorm_embedding": True, "activation_fn": "gelu", "encoder_learned_pos": True},
        {"encoder_learned_pos": True, "max_source_positions": 50, "max_target_positions": 40},
        {"decoder_normalize_before": True, "no_decoder_final_norm": True},
        {"cross_self_attention": True},
        {"cross_self_attention": True, "no_cross_attention": True},
        {"mask_heads": "E:1:1 A:2:2"},
    ],
)
def test_fine_tuned_model_computes_the_function_of_its_source(settings, tmp_path):
    args = arguments(**SMALL, **settings, task="translation")
    torch.manual_seed(0)
    source = models.build_model(args, Task()).eval()
    checkpoint = str(tmp_path / "source.pt")
    torch.save({"cfg": {"model": args}, "args": None, "model": source.state_dict()}, checkpoint)
    start = ["--attention-from", checkpoint, "--finetune-from-model", checkpoint]
    command = [str(tmp_path), "--task", "translation", *model_flags(checkpoint), *start]
    parsed: Namespace = options.parse_args_and_arch(options.get_training_parser(), command)
    model = models.build_model(parsed, Task()).eval()
    model.load_state_dict(source.state_dict())
    with torch.no_grad():
        expected, logits, other = (each(*batch())[0] for each in (source, model, models.build_model(parsed, Task())))
    assert torch.equal(logits, expected)
    assert not torch.allclose(other, expected)  # control: other parameters


def test_quantisation_is_kept(tmp_path):
    """fairseq quantises the model on GPUs only."""
    for value in (0.5, 0):
        args = arguments(**SMALL, quant_noise_scalar=value)
        torch.save({"cfg": {"model": args}, "args": None, "model": {}}, tmp_path / "source.pt")
        words = model_flags(str(tmp_path / "source.pt"))
        assert words[words.index("--quant-noise-scalar") + 1] == str(value)


def test_a_folder_belongs_to_the_files_of_one_data_bin(tmp_path):
    model, data = tmp_path / "model.pt", tmp_path / "data-bin"
    data.mkdir()
    for path in (model, data / "dict.en.txt", data / "train.en-de.en.bin"):
        path.write_text("a")
    args = Namespace(name="x", model=model, data=data, reference=[], seed=1, output=tmp_path / "run")
    for folder in (data, shutil.copytree(data, tmp_path / "moved")):
        args.data = folder
        with open_folder(args, "heads", {"gates": "g"}) as opened:
            assert opened == tmp_path / "run"
    (data / "train.en-de.en.bin").write_text("b")
    args.data = data
    with pytest.raises(UserError, match="different settings: data "), open_folder(args, "heads", {"gates": "g"}):
        pass


def test_another_checkpoint_replaces_a_damaged_last_one(tmp_path):
    for name in ("last", "best"):
        state = {"extra_state": {"train_iterator": {"epoch": 1}}, "optimizer_history": [{"num_updates": 4}]}
        torch.save(state, tmp_path / f"checkpoint_{name}.pt")
    args = Namespace(data="missing", model="missing", seed=1)  # training would raise an error
    assert finetune(args, tmp_path, tmp_path, 4, []) == tmp_path / "checkpoint_last.pt"
    (tmp_path / "checkpoint_last.pt").write_bytes(b"damaged")
    assert finetune(args, tmp_path, tmp_path, 4, []) == tmp_path / "checkpoint_best.pt"
