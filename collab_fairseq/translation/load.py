"""From a checkpoint to a model that runs, with standard heads of fairseq's own transformer as heads of ours."""

import copy
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional

import torch
from fairseq import tasks
from fairseq.data import Dictionary
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.models import as_transformer_collab  # and registers the model
from collab_fairseq.models.checks import ConfigurationError, check_checkpoint

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
    try:
        state = as_transformer_collab(state)
        check_checkpoint(state)
        _check_task(state["cfg"]["task"], name)
        cfg = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        with open_dict(cfg):
            if text:
                folder = cfg.task.get("data") if data is None else os.fspath(data)
                cfg.task.data = _data_folder(folder, name, data is None)
            cfg.task.eval_bleu = False  # would translate in every validation
        task = _task(cfg.task) if text else _task_without_text(cfg.task, state["model"])
        rows = state["model"].get("decoder.embed_tokens.weight")
        if rows is not None and rows.size()[:1] != (len(task.target_dictionary),):
            raise TranslationError(
                f"{name} has {rows.size(0)} target vocabulary entries, but the dictionary in {cfg.task.data} has "
                f"{len(task.target_dictionary)}: it is the data of another model"
            )
        sizes = {key: x if key.endswith("version") else x.to("meta") for key, x in state["model"].items()}
        with torch.device("meta"):  # where a model that does not fit takes no memory
            _build({"model": sizes}, name, cfg, task)
        model = _build(state, name, cfg, task).to(device).eval()
        criterion = task.build_criterion(cfg.criterion).to(device).eval()
    except (ConfigurationError, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{name}: {_brief(error)}") from error
    return TrainedModel(model, cfg, task, criterion, state, torch.device(device), seed)


def _check_task(task: Dict[str, Any], name: str) -> None:
    """See that a checkpoint is of the task translation, and that its languages can be parts of the names of files."""
    if task.get("_name") != "translation":
        kind = str(task.get("_name"))[:80]
        raise TranslationError(f"{name} must be a model of the task translation, but is one of {kind}")
    check_language(*(task[side] for side in ("source_lang", "target_lang") if task.get(side) is not None))


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
    try:
        model: nn.Module = task.build_model(settings)
    except (ConfigurationError, OmegaConfBaseException):
        raise
    except (AssertionError, RuntimeError, ValueError) as error:  # of fairseq or torch
        raise ConfigurationError(f"no model can be built of its settings: {_brief(error)}") from error
    try:
        model.load_state_dict(dict(state["model"]), strict=True, model_cfg=cfg.model)  # type: ignore[call-arg]
    except RuntimeError as error:
        raise TranslationError(f"{name} does not fit its own settings: {_brief(error)}") from error
    return model


def _task(cfg: Any) -> Any:
    """fairseq's task with the dictionaries of a data-bin."""
    try:
        return tasks.setup_task(cfg)
    except OmegaConfBaseException:
        raise
    except Exception as error:  # which fairseq raises itself, among others
        raise TranslationError(f"the dictionaries of {cfg.data} cannot be used: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """The message of an error in one line, of which values and lists of parameters may make a long one."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} …"


def _task_without_text(cfg: Any, parameters: Dict[str, torch.Tensor]) -> Any:
    """fairseq's task with numbered words, as many as the model has embeddings for."""

    def dictionary(side: str) -> Dictionary:
        made, name = Dictionary(), f"{side}.embed_tokens.weight"
        if name not in parameters or parameters[name].dim() != 2:
            raise TranslationError(f"the checkpoint must have embeddings, {name}")
        made.pad_to_multiple_(parameters[name].size(0))
        return made

    return tasks.get_task(cfg._name)(cfg, dictionary("encoder"), dictionary("decoder"))


def _data_folder(path: Any, checkpoint: str, named_there: bool) -> str:
    if not isinstance(path, str):
        raise TranslationError(f"{checkpoint}: task.data must be a folder; got {path!r}")
    folder = os.path.abspath(path.split(os.pathsep)[0])
    if os.path.isdir(folder) and any(f.startswith("dict.") for f in os.listdir(folder)):
        return folder
    missing = "has no dictionaries (dict.*.txt)" if os.path.isdir(folder) else "is not there"
    if named_there:
        raise TranslationError(f"{path}, the data-bin that {checkpoint} names, {missing}; give another one with --data")
    raise TranslationError(f"the data-bin {path} {missing}; expected the output folder of fairseq-preprocess")
