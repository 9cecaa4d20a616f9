"""Load checkpoints; standard heads of fairseq's transformer become those of ``transformer_collab``."""

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
from collab_fairseq.models.checks import check_checkpoint
from fairseq_modern.errors import UserError

from .tokenizer import CARD, check_language


@dataclass
class TrainedModel:
    """A model in evaluation mode, with everything needed to run it.

    Attributes:
        model: a ``transformer_collab``.
        cfg: settings of the training run, from the checkpoint; ``cfg.task.data`` is the data-bin in use.
        task: fairseq's translation task, with the dictionaries.
        criterion: of the training run.
        state: the checkpoint as one of ``transformer_collab``; never modified.
        device: of the model.
        seed: of the order of sentences of equal length.
    """

    model: nn.Module
    cfg: Any
    task: Any
    criterion: Any
    state: Dict[str, Any] = field(repr=False)
    device: torch.device
    seed: int

    def check_logits(self, purpose: str) -> None:
        """Raise UserError if the decoder returns no logits but features, as with an adaptive softmax.

        ``purpose``: what needs logits, and the remedy.
        """
        model: Any = self.model
        if model.decoder.adaptive_softmax is not None:
            raise UserError(
                "the model has an adaptive softmax (--adaptive-softmax-cutoff), without logits of the complete "
                f"vocabulary, which are needed for {purpose}"
            )


def load_model(
    checkpoint: PathLike, data: Optional[PathLike] = None, *, device: str = "cpu", seed: int = 1, text: bool = True
) -> TrainedModel:
    """Load a translation model of fairseq, with a transformer of any size.

    Args:
        checkpoint: of fairseq's ``transformer`` or of ``transformer_collab``; the model runs in float32.
        data: data-bin folder with the model's dictionaries; default: the one in the checkpoint.
        device: ``cpu``, ``cuda``, …
        seed: see fairseq-generate.
        text: False loads the model without dictionaries; no data-bin is needed.

    Raises:
        UserError: the file cannot be read, its model is not supported, parameters are missing or not finite, the task
            is not translation, the data-bin does not exist or is that of another model, or the names of languages are
            invalid.
    """
    state, name = checkpoints.load_with_model(checkpoint), os.fspath(checkpoint)
    return model_from_state(state, name, data, device=device, seed=seed, text=text)


def model_from_state(
    state: Dict[str, Any],
    name: str,
    data: Optional[PathLike] = None,
    *,
    device: str = "cpu",
    seed: int = 1,
    text: bool = True,
) -> TrainedModel:
    """:func:`load_model` for a checkpoint in memory; ``name`` names it in errors."""
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
        for side, dictionary in (("encoder", task.source_dictionary), ("decoder", task.target_dictionary)):
            rows = state["model"].get(f"{side}.embed_tokens.weight")
            if rows is not None and rows.size()[:1] != (len(dictionary),):
                raise UserError(
                    f"the dictionary of the {side} in {cfg.task.data} must have the {rows.size(0)} entries of the "
                    f"vocabulary of {name}; got {len(dictionary)}: it is the data of another model"
                )
        sizes = {key: x if key.endswith("version") else x.to("meta") for key, x in state["model"].items()}
        with torch.device("meta"):  # so that a model that does not fit takes no memory
            _build({"model": sizes}, name, cfg, task)
        model = _build(state, name, cfg, task).to(device).eval()
        criterion = task.build_criterion(cfg.criterion).to(device).eval()
    except (UserError, OmegaConfBaseException) as error:
        message = _brief(error)
        raise UserError(message if name in message else f"{name}: {message}") from error
    return TrainedModel(model, cfg, task, criterion, state, torch.device(device), seed)


def _check_task(task: Dict[str, Any], name: str) -> None:
    """Check that the task is translation, and that its languages can be parts of file names."""
    if task.get("_name") != "translation":
        raise UserError(f"the task of {name} must be translation; got {str(task.get('_name'))[:80]}")
    check_language(*(task[side] for side in ("source_lang", "target_lang") if task.get(side) is not None))


def with_state(trained: TrainedModel, state: Dict[str, Any]) -> TrainedModel:
    """The model of another ``transformer_collab`` checkpoint in memory, with the same task, text and criterion."""
    cfg = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    with open_dict(cfg):
        cfg.task = trained.cfg.task
    model = _build(state, "the model", cfg, trained.task).to(trained.device).eval()
    return replace(trained, model=model, cfg=cfg, state=state)


def _build(state: Dict[str, Any], name: str, cfg: Any, task: Any) -> nn.Module:
    settings = copy.deepcopy(cfg.model)  # building completes them
    for path in ("encoder_embed_path", "decoder_embed_path", "attention_from"):
        if getattr(settings, path, None) is not None:
            setattr(settings, path, None)  # initial weights of training; the checkpoint has the trained ones
    # recomputed layers whose inputs need no gradients have none for parameters and head multipliers either
    settings.checkpoint_activations = settings.offload_activations = False
    try:
        model: nn.Module = task.build_model(settings)
    except (UserError, OmegaConfBaseException):
        raise
    except (AssertionError, RuntimeError, ValueError) as error:  # from fairseq or torch
        raise UserError(f"no model can be built from its settings: {_brief(error)}") from error
    try:
        model.load_state_dict(dict(state["model"]), strict=True, model_cfg=cfg.model)  # type: ignore[call-arg]
    except RuntimeError as error:
        raise UserError(f"the parameters of {name} do not fit its settings: {_brief(error)}") from error
    return model


def _task(cfg: Any) -> Any:
    """fairseq's task with the dictionaries of a data-bin."""
    try:
        return tasks.setup_task(cfg)
    except OmegaConfBaseException:
        raise
    except Exception as error:  # fairseq raises Exception itself, among others
        raise UserError(f"the dictionaries of {cfg.data} cannot be used: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """The message of an error in one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} …"


def _task_without_text(cfg: Any, parameters: Dict[str, torch.Tensor]) -> Any:
    """fairseq's task with placeholder dictionaries of the size of the embeddings."""

    def dictionary(side: str) -> Dictionary:
        entries, name = Dictionary(), f"{side}.embed_tokens.weight"
        if name not in parameters or parameters[name].dim() != 2:
            raise UserError(f"the checkpoint must have embeddings, {name}")
        entries.pad_to_multiple_(parameters[name].size(0))
        return entries

    return tasks.get_task(cfg._name)(cfg, dictionary("encoder"), dictionary("decoder"))


def _data_folder(path: Any, checkpoint: str, from_checkpoint: bool) -> str:
    if not isinstance(path, str):
        raise UserError(f"{checkpoint}: task.data must be a folder; got {path!r}")
    if os.path.isdir(path) and os.pathsep in os.path.abspath(path):
        raise UserError(f"{path} must be a folder without {os.pathsep!r} in its path, where fairseq splits it")
    folder = os.path.abspath(path.split(os.pathsep)[0])
    beside = os.path.dirname(os.path.abspath(checkpoint))
    if from_checkpoint and path == os.curdir and os.path.isfile(os.path.join(beside, CARD)):
        return beside  # of a model folder
    if os.path.isdir(folder) and any(f.startswith("dict.") for f in os.listdir(folder)):
        return folder
    problem = "has no dictionaries (dict.*.txt)" if os.path.isdir(folder) else "does not exist"
    if from_checkpoint:
        raise UserError(f"{path}, the data-bin of {checkpoint}, {problem}: give another one with --data")
    raise UserError(f"the data-bin {path} {problem}; expected the output folder of fairseq-preprocess")
