"""Small models of transformers and text for them."""

from typing import NamedTuple

import torch
import transformers

from collab_fairseq import huggingface as hf
from collab_fairseq.huggingface import layers

WIDTH, HEADS, WORDS = 32, 4, 48
SMALL = {"vocab_size": WORDS, "pad_token_id": 0}
BERT = {**SMALL, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 64}
MARIAN = {**SMALL, "d_model": WIDTH, "max_position_embeddings": 40}
MARIAN.update({"eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None})
for side in ("encoder", "decoder"):
    MARIAN.update({f"{side}_layers": 2, f"{side}_ffn_dim": 64, f"{side}_attention_heads": HEADS})


class Case(NamedTuple):
    """A model class, the arguments of its config, and one attention layer per site."""

    name: str
    fields: dict
    layers: tuple


CASES = {
    "bert": Case("BertForSequenceClassification", BERT, ("encoder.layer.1.attention.self",)),
    "bert-decoder": Case(
        "BertLMHeadModel", {**BERT, "is_decoder": True, "add_cross_attention": True},
        ("encoder.layer.0.attention.self", "encoder.layer.1.crossattention.self"),
    ),
    "distilbert": Case(
        "DistilBertForSequenceClassification",
        {**SMALL, "dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "hidden_dim": 64}, ("transformer.layer.1.attention",),
    ),
    "albert": Case(
        "AlbertForSequenceClassification", {**BERT, "num_hidden_layers": 3, "embedding_size": 16},
        ("encoder.albert_layer_groups.0.albert_layers.0.attention",),
    ),
    "marian": Case(
        "MarianMTModel", MARIAN,
        ("encoder.layers.0.self_attn", "decoder.layers.1.self_attn", "decoder.layers.1.encoder_attn"),
    ),
}  # fmt: skip


def make(case, implementation="eager", seed=0, dtype=torch.float32):
    """A model with large random weights, whose heads share most of 12 directions."""
    torch.manual_seed(seed)
    model_class = getattr(transformers, CASES[case].name)
    config = model_class.config_class(**CASES[case].fields)
    model = model_class._from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name and "norm" not in name.lower():
                parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 2 else 0.1))
        for _, layer in hf.attention_layers(model):
            names = layers.names_of(layer)
            chosen = torch.cat([torch.randperm(12)[: WIDTH // HEADS] for _ in range(HEADS)])
            for part in (getattr(layer, names.query), getattr(layer, names.key)):
                shared = torch.randn(12, WIDTH) * 0.3
                part.weight.copy_(shared[chosen] + 0.02 * torch.randn(WIDTH, WIDTH))
    return model.to(dtype).eval()


def inputs(case, rows=3, seed=1, dtype=torch.float32):
    """Keyword arguments: sentences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (rows, 7), generator=generator)
    mask = torch.ones_like(words)
    for row in range(1, rows):
        mask[row, 7 - row :] = 0
    batch = {"input_ids": words * mask, "attention_mask": mask}
    if case == "bert-decoder":
        batch["encoder_hidden_states"] = torch.randn(rows, 5, WIDTH, generator=generator).to(dtype)
        batch["encoder_attention_mask"] = mask[:, :5]
    if case == "marian":
        batch["labels"] = torch.randint(2, WORDS, (rows, 6), generator=generator)
        batch["labels"][1, 4:] = -100
    return batch


def outputs(model, batch, **options):
    with torch.no_grad():
        return model(**batch, **options)


def without_padding(case, batch, logits):
    """The logits at positions without padding."""
    if case == "bert-decoder":
        return logits[batch["attention_mask"].bool()]
    return logits[batch["labels"] != -100] if case == "marian" else logits
