"""Compatibility: dataclasses, names removed from NumPy, evaluated settings, `--bf16`, the encoder layer."""

import builtins
import dataclasses
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.huffman import HuffmanCodeBuilder
from fairseq.data.language_pair_dataset import LanguagePairDataset
from fairseq.data.token_block_dataset import TokenBlockDataset
from fairseq.dataclass import FairseqDataclass, configs
from fairseq.models.transformer import TransformerConfig, transformer_encoder
from fairseq.modules import AdaptiveInput, SinusoidalPositionalEmbedding, transformer_layer
from fairseq.modules.adaptive_softmax import TiedHeadModule
from fairseq.modules.dynamic_crf_layer import DynamicCRF
from torch import nn

import fairseq_modern
from fairseq_modern import encoder_layer
from fairseq_modern.errors import UserError
from fairseq_modern.expressions import evaluate
from tests.common import FLOAT32, run
from tests.models.cases import SMALL, Task, batch, build

needs_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 accepts these defaults")
needs_numpy_2 = pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 adds with more bits")


@needs_3_11
def test_without_the_patches_fairseq_cannot_be_imported():
    original = run("python", "-c", "import fairseq", check=False, env={"FAIRSEQ_MODERN": "0"})
    assert original.returncode != 0
    assert "mutable default" in original.stderr


def test_every_listed_patch_exists():
    for table in (fairseq_modern.BEFORE, fairseq_modern.AFTER):
        for names in table.values():
            for name in names:
                file, _, function = name.rpartition(".")
                assert callable(getattr(importlib.import_module(f"fairseq_modern.{file}"), function))


@needs_3_11
def test_config_classes_that_serve_as_defaults_are_hashable():
    """Those of plugins too."""

    @dataclasses.dataclass
    class Inner(FairseqDataclass):
        width: int = 3

    @dataclasses.dataclass
    class Outer(FairseqDataclass):
        inner: Inner = Inner()  # noqa: RUF009  # as everywhere in fairseq

    @dataclasses.dataclass
    class OwnHash(FairseqDataclass):
        def __hash__(self):
            return 17

    @dataclasses.dataclass
    class User(FairseqDataclass):
        own: OwnHash = OwnHash()  # noqa: RUF009
        field: Inner = dataclasses.field(default=Inner())
        modern: Outer = dataclasses.field(default_factory=Outer)

    assert Inner() == Inner() != Inner(width=4)
    assert hash(Inner()) != hash(Inner(width=4))
    assert Outer().inner.width == 3
    assert hash(OwnHash()) == 17
    assert User().modern == Outer()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Outer())  # never a default
    # `hydra_init` reads the `.default` of fields
    assert isinstance(configs.FairseqConfig.__dataclass_fields__["common"].default, configs.CommonConfig)
    # other dataclasses and the built-in functions are unchanged
    assert vars(configs)["__builtins__"] is vars(builtins)
    assert builtins.__build_class__.__module__ == "builtins"
    with pytest.raises(TypeError, match="unhashable"):
        hash(dataclasses.make_dataclass("Plain", [("width", int, 3)])())


def test_removed_numpy_names_exist_where_fairseq_uses_them():
    assert not hasattr(np, "float"), "NumPy itself must stay unchanged"
    assert data_utils.np.array is np.array

    # np.int: spans that must not overlap
    mask = data_utils.compute_mask_indices((2, 40), None, 0.3, 4, no_overlap=True, min_space=1)
    assert 0 < mask.sum() < mask.size
    # np.compat.long: sentences as blocks; an old argument of np.percentile: lengths padded to buckets
    sentences = [torch.tensor([4, 5, 2]), torch.tensor([4, 2]), torch.tensor([6, 7, 8, 2])]
    sizes = np.array([len(s) for s in sentences])
    blocks = TokenBlockDataset(sentences, sizes, block_size=None, pad=1, eos=2, break_mode="eos")
    assert [b.tolist() for b in blocks] == [s.tolist() for s in sentences]
    pairs = LanguagePairDataset(sentences, sizes, Task().source_dictionary, num_buckets=2)
    assert [padded for _, padded in pairs.buckets] == [3, 4]
    # np.float: the log-partition of a chain, compared with the sum over all 9 tag sequences
    torch.manual_seed(0)
    crf = DynamicCRF(num_embedding=3, low_rank=2, beam_size=3)
    emissions = torch.randn(1, 2, 3)
    got = crf._compute_normalizer(emissions, targets=torch.tensor([[0, 1]]))
    transitions = crf.E1.weight @ crf.E2.weight.T
    expected = (emissions[0, 0, :, None] + emissions[0, 1, None, :] + transitions).flatten().logsumexp(0)
    assert abs(got.item() - expected.item()) < 1e-5


def merge(folder, is_patched):
    """Write a data set as fairseq-preprocess with two workers does; short sentences stand for those of 1 GiB.

    Return its path, and the position of each sentence in bytes.
    """
    part, merged = (
        indexed_dataset.MMapIndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=np.int32) for name in ("part", "merged")
    )
    merged.add_item(torch.arange(5))
    part._sizes = [2**28] * 3
    part.finalize(f"{folder}/part.idx")
    merged.merge_file_(f"{folder}/part")
    finalize = indexed_dataset.MMapIndexedDatasetBuilder.finalize
    (finalize if is_patched else finalize.__wrapped__)(merged, f"{folder}/merged.idx")
    index = indexed_dataset.MMapIndexedDataset.Index(f"{folder}/merged.idx")
    return f"{folder}/merged", [int(index[i][0]) for i in range(len(index))]


@needs_numpy_2
def test_positions_beyond_2_gib_do_not_overflow(tmp_path):
    path, positions = merge(tmp_path, is_patched=True)
    assert positions == [0, 20, 20 + 2**30, 20 + 2**31]
    with pytest.raises(UserError, match=rf"merged\.bin must have at least {20 + 3 * 2**30} bytes"):
        indexed_dataset.MMapIndexedDataset(path)


@needs_numpy_2
@pytest.mark.filterwarnings("ignore:overflow")
def test_indexes_with_wrong_positions_are_rejected(tmp_path):
    path, positions = merge(tmp_path, is_patched=False)
    assert min(positions) < 0, "the defect"
    message = rf"merged\.idx must place the last sentence at byte {20 + 2**31}; got -\d+, .*binarise the data again"
    with pytest.raises(UserError, match=message):
        indexed_dataset.MMapIndexedDataset(path)


def test_huffman_codes_are_read_back():
    builder = HuffmanCodeBuilder()
    builder.add_symbols(*"abracadabra")
    coder = builder.build_code()
    words = [*"cabd"]
    assert [node.symbol for node in coder.decode(coder.encode(words))] == words


def test_no_buffer_is_uninitialized(monkeypatch):
    monkeypatch.setattr("torch.FloatTensor", lambda size: torch.full((size,), float("nan")))
    head = TiedHeadModule((torch.ones(3, 2), None), 2, 1, 0, 8)
    for module in (SinusoidalPositionalEmbedding(4, 1), AdaptiveInput(9, 1, 4, 1, 4, [9]), head):
        assert module._float_tensor.tolist() == [0]
    state = build("transformer", **SMALL).state_dict()
    buffers = [tensor.item() for name, tensor in state.items() if name.endswith("._float_tensor")]
    assert buffers == [0, 0]


# --- settings that fairseq evaluates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(0.9, 0.98)", (0.9, 0.98)),
        ("[(512, 10, 5)] + [(512, 3, 2)] * 2", [(512, 10, 5), (512, 3, 2), (512, 3, 2)]),
        (" 1e-4 ", 1e-4),
        ("-2 * 3 / 4 + 1", -0.5),
        ("{'a': [True, None]}", {"a": [True, None]}),
    ],
)
def test_settings_are_values(expression, value):
    assert evaluate(expression) == value


CODE = """
__import__('os').getpid()
(lambda: 1)()
[x for x in (1, 2)]
().__class__
f'{1}'
9**9**9
'a' * 1000000000
[[0] * 1000] * 1000000
'%1000000000d' % 1
{**{}}
1 +
1 / 0
not False
"""


@pytest.mark.parametrize("expression", CODE.strip().splitlines())
def test_settings_are_never_code(expression):
    with pytest.raises(UserError, match="must be a value"):
        evaluate(expression)


def test_values_are_rejected_with_the_error_of_eval():
    """`fairseq.utils.eval_bool` relies on it, for settings of multilingual translation."""
    for value in (True, 3, None):
        with pytest.raises(TypeError):
            evaluate(value)
    assert (utils.eval_bool("True"), utils.eval_bool(True, default=True), utils.eval_bool(None)) == (True, True, False)


def test_no_module_of_fairseq_evaluates_code_from_a_checkpoint():
    """Each module that calls eval() uses `evaluate`."""
    root = Path(options.__file__).parent
    files = [file for file in root.rglob("*.py") if "examples" not in file.parts]
    calls = [file for file in files if re.search(r"(?m)(^|[^._a-zA-Z])eval\(", file.read_text(encoding="utf-8"))]
    modules = [".".join(file.relative_to(root.parent).with_suffix("").parts) for file in calls]
    assert "fairseq.models.fconv" in modules, "the search must find a module that is known to call eval()"
    assert [name for name in modules if importlib.import_module(name).eval is not evaluate] == []


@pytest.mark.parametrize(
    ("flags", "tpu", "bf16"), [([], False, False), (["--bf16"], False, True), (["--tpu"], True, False)]
)
def test_only_the_flag_tpu_means_a_tpu(flags, tpu, bf16):
    for parse_known in (False, True):
        parser = options.get_training_parser()
        parsed = options.parse_args_and_arch(parser, ["data", "--arch", "transformer_tiny", *flags], parse_known)
        args = parsed[0] if parse_known else parsed
        assert (args.tpu, args.bf16) == (tpu, bf16)


@pytest.mark.parametrize("flag", ["--local-rank", "--local_rank"])
def test_accepts_the_rank_that_torch_distributed_launch_passes(flag):
    """A dash since torch 2.0."""
    training = ["data", "--arch", "transformer_tiny", f"{flag}=3"]
    for parser, words in (
        (options.get_training_parser(), training),
        (options.get_generation_parser(), ["data", f"{flag}=3"]),
        (options.get_validation_parser(), ["data", f"{flag}=3"]),
    ):
        assert options.parse_args_and_arch(parser, words).device_id == 3


# --- dictionaries and tasks ------------------------------------------------------------------------------------------


def test_dictionaries_keep_symbols_that_overwrite_others(tmp_path, monkeypatch):
    original, saved = tmp_path / "dict.txt", tmp_path / "saved.txt"
    original.write_text("a 9\nb 8\na 7 #fairseq:overwrite\nc 6\n<pad> 1 #fairseq:overwrite\n", encoding="utf-8")
    dictionary = Dictionary.load(str(original))
    dictionary.save(str(saved))
    assert saved.read_bytes() == original.read_bytes()
    loaded = Dictionary.load(str(saved))
    assert (loaded.symbols, loaded.count, loaded.indices) == (dictionary.symbols, dictionary.count, dictionary.indices)
    monkeypatch.setattr(Dictionary, "_save", Dictionary._save.__wrapped__)
    dictionary.save(str(saved))
    with pytest.raises(RuntimeError, match="Duplicate word"):
        Dictionary.load(str(saved))


def test_the_task_of_pretrained_bart_loads_pairs_with_languages(tiny_data, monkeypatch):
    def load(name, *more):
        parser = options.get_training_parser()
        words = [str(tiny_data), "--arch", "transformer_tiny", "--task", name, *more]
        task = tasks.setup_task(options.parse_args_and_arch(parser, words))
        task.load_dataset("valid")
        return task

    plain, bart = load("translation"), load("translation_from_pretrained_bart", "--langs", "src,tgt")
    for side, lang in (("source", "src"), ("target", "tgt")):
        expected = [*plain.dataset("valid")[3][side].tolist(), bart.source_dictionary.index(f"[{lang}]")]
        assert bart.dataset("valid")[3][side].tolist() == expected
    monkeypatch.delattr(type(bart), "args")
    with pytest.raises(AttributeError, match="args"):
        bart.load_dataset("valid")


# --- the encoder layer -----------------------------------------------------------------------------------------------


def test_initial_parameters_follow_the_seed_as_in_unpatched_fairseq():
    """Attention, fc1, fc2 are drawn in this order, and nothing else is drawn."""
    cfg = TransformerConfig()
    width, inner = cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim
    torch.manual_seed(5)
    layer = transformer_layer.TransformerEncoderLayerBase(cfg)
    after = torch.rand(1)
    torch.manual_seed(5)
    attention = layer.build_self_attention(width, cfg)
    expected = {"self_attn.": attention, "fc1.": nn.Linear(width, inner), "fc2.": nn.Linear(inner, width)}
    assert torch.equal(after, torch.rand(1))
    state = layer.state_dict()
    for prefix, module in expected.items():
        for name, value in module.state_dict().items():
            assert torch.equal(state[prefix + name], value), prefix + name


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_model_can_be_scripted(normalize_before):
    model = build("transformer", **SMALL, encoder_normalize_before=normalize_before).eval()
    scripted = torch.jit.script(model)
    for sentences in (3, 1):  # one sentence has no padding
        assert (scripted(*batch(sentences))[0] - model(*batch(sentences))[0]).abs().max() < FLOAT32


@pytest.mark.parametrize("version", ["2.11.0a0", "2.11.0a0+git123", "3.0"])
def test_supports_any_version_of_torch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    for module in (transformer_layer, transformer_encoder):
        monkeypatch.setattr(module, "torch", torch)
        encoder_layer.patch_version(module)
    assert build("transformer", **SMALL).eval()(*batch())[0].isfinite().all()
