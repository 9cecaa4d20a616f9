"""From a checkpoint to a model that runs, with standard heads of fairseq's own transformer as heads of ours."""

import copy
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional

import torch
from fairseq import tasks
from fairseq.data import Dictionary
from omegaconf import OmegaConf, open_dict
from torch import nn

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.models import as_transformer_collab  # and registers the model

from .tokenizer import TranslationError, check_language


@dataclass
class TrainedModel:
    """A model in evaluation mode, and what it takes to run it.

    Attributes:
        model: a ``transformer_collab``.
        cfg: settings of the whole training run, from the checkpoint; ``cfg.task.data`` is the data-bin in use.
        task: fairseq's translation task, with the dictionaries.
        criterion: what the model was trained with.
        state: the checkpoint as one of ``transformer_collab``; never modified.
        device: where the model is.
        seed: of the order of sentences of equal length.
    """

    model: nn.Module
    cfg: Any
    task: Any
    criterion: Any
    state: Dict[str, Any] = field(repr=False)
    device: torch.device
    seed: int


def load_model(
    checkpoint: PathLike, data: Optional[PathLike] = None, *, device: str = "cpu", seed: int = 1, text: bool = True
) -> TrainedModel:
    """Load a translation model of fairseq, whatever the sizes of its transformer.

    Args:
        checkpoint: of fairseq's ``transformer`` or of ``transformer_collab``, in float32 or less: it is run in float32.
        data: data-bin folder with the model's dictionaries; default: the one that the checkpoint names.
        device: ``cpu``, ``cuda``, …
        seed: see fairseq-generate.
        text: False: the weights are all that matters; no data-bin is needed, words have no names.

    Raises:
        CheckpointError: the file cannot be read, or its parameters are missing or not finite.
        ConfigurationError: another kind of model.
        TranslationError: another task, no data-bin, dictionaries of another model, or languages that are no names.
    """
    state, name = checkpoints.load_with_model(checkpoint), os.fspath(checkpoint)
    return run_state(state, name, data, device=device, seed=seed, text=text)


def run_state(
    state: Dict[str, Any], name: str, data: Optional[PathLike] = None, *, device: str = "cpu", seed: int = 1,
    text: bool = True,
) -> TrainedModel:  # fmt: skip
    """:func:`load_model` of a checkpoint that is in memory; ``name`` is what errors call it."""
    state = as_transformer_collab(state)
    cfg = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    with open_dict(cfg):
        kind = None if cfg.task is None else cfg.task.get("_name")
        if kind != "translation":
            raise TranslationError(f"{name} must be a model of the task translation, but is one of {kind}")
        # they are parts of the names of files
        check_language(*(cfg.task[side] for side in ("source_lang", "target_lang") if cfg.task.get(side) is not None))
        if text:
            cfg.task.data = _data_folder(cfg.task.data if data is None else os.fspath(data), name, data is None)
        cfg.task.eval_bleu = False  # would translate in every validation
    task = tasks.setup_task(cfg.task) if text else _task_without_text(cfg.task, state["model"])
    rows = state["model"].get("decoder.embed_tokens.weight")
    if rows is not None and rows.size(0) != len(task.target_dictionary):
        raise TranslationError(
            f"{name} has {rows.size(0)} target types, but the dictionary in {cfg.task.data} has "
            f"{len(task.target_dictionary)}: it is the data of another model"
        )
    model = _build(state, name, cfg, task).to(device).eval()
    criterion = task.build_criterion(cfg.criterion).to(device).eval()
    return TrainedModel(model, cfg, task, criterion, state, torch.device(device), seed)


def with_state(trained: TrainedModel, state: Dict[str, Any]) -> TrainedModel:
    """The model of another checkpoint of ``transformer_collab`` in memory, with the same task, text and criterion."""
    cfg = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    with open_dict(cfg):
        cfg.task = trained.cfg.task
    model = _build(state, "the model", cfg, trained.task).to(trained.device).eval()
    return replace(trained, model=model, cfg=cfg, state=state)


def _build(state: Dict[str, Any], name: str, cfg: Any, task: Any) -> nn.Module:
    settings = copy.deepcopy(cfg.model)  # building completes them
    for path in ("encoder_embed_path", "decoder_embed_path", "attention_from"):
        if getattr(settings, path, None) is not None:
            setattr(settings, path, None)  # files that training began with; their weights are in the checkpoint
    model: nn.Module = task.build_model(settings)
    try:
        model.load_state_dict(dict(state["model"]), strict=True, model_cfg=cfg.model)  # type: ignore[call-arg]
    except RuntimeError as error:
        raise TranslationError(f"{name} does not fit its own settings: {' '.join(str(error).split())}") from error
    return model


def _task_without_text(cfg: Any, parameters: Dict[str, torch.Tensor]) -> Any:
    """fairseq's task with numbered words, as many as the model has embeddings for."""

    def dictionary(side: str) -> Dictionary:
        made = Dictionary()
        made.pad_to_multiple_(parameters[f"{side}.embed_tokens.weight"].size(0))
        return made

    return tasks.get_task(cfg._name)(cfg, dictionary("encoder"), dictionary("decoder"))


def _data_folder(path: str, checkpoint: str, named_there: bool) -> str:
    folder = os.path.abspath(path.split(os.pathsep)[0])
    if os.path.isdir(folder) and any(f.startswith("dict.") for f in os.listdir(folder)):
        return folder
    missing = "has no dictionaries (dict.*.txt)" if os.path.isdir(folder) else "is not there"
    if named_there:
        raise TranslationError(f"{path}, the data-bin that {checkpoint} names, {missing}; give another one with --data")
    raise TranslationError(f"the data-bin {path} {missing}; expected the output folder of fairseq-preprocess")
