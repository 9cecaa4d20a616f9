"""Random models with a SentencePiece vocabulary, for the tests of export and translation."""

from types import SimpleNamespace

import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from tests.fixtures import sentence_pairs
from tests.models.cases import KINDS, SMALL, build

SOURCES = [source for source, _ in sentence_pairs(12, 7)]


def write_data(folder, langs=("src", "tgt"), **options):
    """Write a SentencePiece model and the joint dictionary of its pieces as data_prep does; returns the data-bin.

    ``options``: further ones of SentencePiece's trainer.
    """
    data = folder / "data-bin"
    data.mkdir(parents=True)
    text = iter([sentence for pair in sentence_pairs(200, 0) for sentence in pair])
    defaults = {"model_type": "bpe", "vocab_size": 80, "character_coverage": 1.0, "num_threads": 1, "minloglevel": 2}
    options = {**defaults, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=text, model_prefix=folder / "sentencepiece", **options)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    lines = "".join(f"{pieces.id_to_piece(n)} 1\n" for n in range(3, pieces.get_piece_size()))
    for lang in langs:
        (data / f"dict.{lang}.txt").write_text(lines, encoding="utf-8")
    return data


def write_checkpoint(path, data, seed=0, arch="transformer_collab", langs=("src", "tgt"), **flags):
    """Save a random model whose translations depend on every weight of its attention."""
    flags = {"share_all_embeddings": False, **SMALL, **flags}
    vocabulary = len(Dictionary.load(str(data / f"dict.{langs[0]}.txt")))
    model = build(arch, vocabulary=vocabulary, seed=seed, **flags)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
            elif "encoder_attn" in name:
                parameter.mul_(3)
            elif "content_bias" in name or "output_projection" in name:
                torch.nn.init.normal_(parameter, generator=random)
        # as after training, translations end before the maximum length, and padding is improbable
        model.decoder.output_projection.weight[2].mul_(1.7)
        model.decoder.output_projection.weight[1] = -5
        norm = model.decoder.layer_norm or model.decoder.layers[-1].final_layer_norm
        norm.bias.add_(0.5)
    cfg = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    cfg["model"] = {"_name": arch, "arch": arch, **flags}
    cfg["task"] = {"_name": "translation", "data": str(data), "source_lang": langs[0], "target_lang": langs[1]}
    cfg["criterion"] = {"_name": "cross_entropy", "sentence_avg": False}
    history = [{"num_updates": 5, "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}]
    state = {"cfg": cfg, "args": None, "model": model.state_dict(), "optimizer_history": history}
    state.update(last_optimizer_state=None, extra_state={"epoch": 1, "batch_offset": 0})
    checkpoints.save(as_transformer_collab(state) if arch == "transformer_collab" else state, path)
    return path


def cases(folder):
    """A data-bin, and a function that returns the checkpoint of one of ``KINDS``."""
    data, paths = write_data(folder), {}

    def checkpoint(kind, **flags):
        path = paths.setdefault((kind, repr(flags)), folder / f"{len(paths)}.pt")
        return path if path.exists() else write_checkpoint(path, data, **{**KINDS[kind], **flags})

    return SimpleNamespace(data=data, checkpoint=checkpoint)
