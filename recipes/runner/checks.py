"""Checks of settings before any work: names and types, whether fairseq can build the model, and what would otherwise
give wrong numbers or end a run late."""

import logging
from argparse import Namespace
from dataclasses import fields, is_dataclass
from typing import Any, Dict

from omegaconf import DictConfig, OmegaConf

from fairseq_modern.errors import UserError, is_user_error

from .settings import DECODING_SECTIONS, TRAINING_SECTIONS, USER_DIR, Recipe, leaves, stage_ends, test_sets

logger = logging.getLogger("recipe")

SECTIONS = (*TRAINING_SECTIONS, *DECODING_SECTIONS, "recipe")
#: settings without a value until the run starts
SET_LATER = {"common.user_dir", "checkpoint.save_dir", "task.data"}
#: settings that must be at least 1, with which a run would otherwise end after its training, or never
POSITIVE = (
    *("recipe.average", "recipe.stages", "recipe.batch_tokens", "recipe.gpus", "recipe.default_gpus", "recipe.jobs"),
    *("recipe.decoding_tokens", "recipe.node_timeout", "recipe.nodes", "optimization.max_update"),
    *("checkpoint.save_interval_updates", "dataset.max_tokens", "generation.beam", "generation.nbest"),
)
#: settings that may only have fairseq's default. A recipe sets them itself: from --device, --precision, --output,
#: --data, recipe.tests, recipe.training_module; in its processes; for the checkpoints with which it resumes, and which
#: it averages; and for translations that it scores
RESERVED = (
    *("common.cpu", "common.tpu", "common.amp", "common.bf16"),
    *("common.memory_efficient_bf16", "common.memory_efficient_fp16"),
    *("common.user_dir", "common.model_parallel_size", "checkpoint.save_dir", "task.data", "dataset.gen_subset"),
    *("distributed_training.distributed_backend", "distributed_training.distributed_rank"),
    *("distributed_training.distributed_init_method", "distributed_training.distributed_port"),
    *("distributed_training.distributed_no_spawn", "distributed_training.distributed_num_procs"),
    *("distributed_training.nprocs_per_node", "distributed_training.device_id"),
    *("distributed_training.use_sharded_state", "optimization.max_epoch", "optimization.stop_time_hours"),
    *("optimization.stop_min_lr", "dataset.validate_after_updates", "checkpoint.patience", "checkpoint.no_save"),
    *("checkpoint.no_last_checkpoints", "checkpoint.no_save_optimizer_state"),
    *("checkpoint.checkpoint_suffix", "checkpoint.checkpoint_shard_count"),
    *("checkpoint.write_checkpoints_asynchronously", "checkpoint.model_parallel_size"),
    *("common_eval.path", "common_eval.model_overrides", "common_eval.quiet", "common_eval.results_path"),
    *("generation.score_reference", "generation.prefix_size"),
)


def check_names(cfg: DictConfig) -> DictConfig:
    """Merge the settings into the dataclasses of fairseq, the model and the recipe.

    Returns:
        The settings with all defaults.

    Raises:
        OmegaConfBaseException: a name is unknown, or a value has the wrong type.
        UserError: a setting is reserved.
    """
    if unknown := {*map(str, cfg)} - {*SECTIONS}:
        raise UserError(f"settings must be in the sections {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    schema = OmegaConf.create(schema_of(cfg), flags={"allow_objects": True})
    complete: Any = OmegaConf.merge(schema, cfg)
    for section in map(str, cfg):
        for name, value in leaves(cfg[section]):
            if isinstance(value, bool) and isinstance(OmegaConf.select(complete[section], name), str):
                raise UserError(f"{section}.{name} must be text, in quotes if YAML reads a boolean; got {value}")
    for name in RESERVED:
        value, default = OmegaConf.select(cfg, name), OmegaConf.select(schema, name)
        if value not in (None, default, USER_DIR):
            raise UserError(
                f"{name} must be left out: the recipe sets it, or could not resume, average or score; got {value}"
            )
    return complete  # type: ignore[no-any-return]


def schema_of(cfg: DictConfig) -> Dict[str, Any]:
    """Section → the dataclass of its settings."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig, TransformerModel
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY
    from fairseq.utils import import_user_module

    from collab_fairseq.models import TransformerCollabModel
    from collab_fairseq.models.config import TransformerCollabConfig

    import_user_module(Namespace(user_dir=USER_DIR))
    configs = {TransformerModel: TransformerConfig, TransformerCollabModel: TransformerCollabConfig}
    models = {name: configs[model] for name, model in ARCH_MODEL_REGISTRY.items() if model in configs}
    registries = {"task": TASK_DATACLASS_REGISTRY, "model": models}
    registries.update({section: registry["dataclass_registry"] for section, registry in REGISTRIES.items()})
    of_fairseq = {field.name: field.type for field in fields(FairseqConfig) if is_dataclass(field.type)}
    schema: Dict[str, Any] = {section: of_fairseq[section] for section in SECTIONS if section in of_fairseq}
    for section in {*registries} & {*SECTIONS} & {*map(str, cfg)}:
        name = OmegaConf.select(cfg, f"{section}._name")
        if name not in registries[section]:
            raise UserError(f"{section}._name must be registered by fairseq or this project; got {name}")
        schema[section] = registries[section][name]
    return {**schema, "recipe": Recipe}


def validate(cfg: DictConfig) -> None:
    """Reject settings that cannot be trained with. Reads no files and allocates no parameters.

    Raises:
        OmegaConfBaseException: see `check_names`; or an interpolation has no value.
        UserError: names the setting, its valid values and its value.
    """
    OmegaConf.to_container(cfg, resolve=True)
    complete = check_names(cfg)
    for name in sorted(OmegaConf.missing_keys(cfg) - SET_LATER):
        raise UserError(f"{name} must be given; got ???")
    for name in POSITIVE:
        value = OmegaConf.select(complete, name)
        if (value is not None and value < 1) or (value is None and name == "dataset.max_tokens"):
            raise UserError(f"{name} must be at least 1; got {value}")
    if complete.common.log_format != "json":
        raise UserError(f"common.log_format must be json, which a recipe reads; got {complete.common.log_format}")
    if len(complete.optimization.update_freq) != 1:
        got = complete.optimization.update_freq
        raise UserError(f"optimization.update_freq must be one number in a recipe; got {got}")
    _build(cfg, complete)
    warmup, updates = OmegaConf.select(complete, "lr_scheduler.warmup_updates"), cfg.optimization.max_update
    if warmup and warmup >= updates:
        text = "the run ends within its warm-up: lr_scheduler.warmup_updates should be below %d; got %d"
        logger.warning(text, updates, warmup)


def _build(cfg: DictConfig, complete: DictConfig) -> None:
    """Build what fairseq-train builds, with an empty dictionary and parameters on the meta device."""
    import torch
    from fairseq import optim
    from fairseq.data import Dictionary
    from fairseq.optim.lr_scheduler import build_lr_scheduler
    from fairseq.tasks import TASK_REGISTRY

    dictionary = Dictionary()
    model_settings = cfg.model.copy()
    model_settings.pop("attention_from", None)  # a file that may exist on another machine only
    try:
        task = TASK_REGISTRY[complete.task._name](complete.task, dictionary, dictionary)
        with torch.device("meta"):
            model = task.build_model(model_settings)
            task.build_criterion(complete.criterion)
        optimizer = optim.build_optimizer(complete.optimizer, list(model.parameters()))
        build_lr_scheduler(complete.lr_scheduler, optimizer)
    except Exception as error:
        if is_user_error(error):
            raise
        raise UserError(f"fairseq cannot build this model: {type(error).__name__}: {error}") from error


def check_test_sets(cfg: DictConfig) -> None:
    """Reject --valid without validation sets, and one file of references for several test sets."""
    names = list(test_sets(cfg, cfg.recipe.valid).values())
    if cfg.recipe.valid and not names:
        raise UserError("--valid: this recipe has no references for its validation set")
    if cfg.recipe.reference and len(names) > 1:
        raise UserError(
            f"--reference must be the references of one test set; got {cfg.recipe.reference} for {', '.join(names)}"
        )


def check_averages(cfg: DictConfig) -> None:
    """Reject averages of more checkpoints than a stage writes or keeps."""
    stages, average = cfg.recipe.stages, cfg.recipe.average
    if stages > 1 and cfg.lr_scheduler._name in ("cosine", "tri_stage"):
        raise UserError(f"--stages must be 1 with a schedule of the whole run (cosine, tri_stage); got {stages}")
    interval = cfg.checkpoint.save_interval_updates
    end = stage_ends(cfg)[0]
    if end // interval < average:
        options = "--average" if stages == 1 else "--average or --stages"
        raise UserError(
            f"--average must be at most {end // interval}, the number of checkpoints by update {end} (one every "
            f"{interval}); got {average}; lower {options}, or raise --updates"
        )
    kept = cfg.checkpoint.keep_interval_updates
    if 0 < kept < average:  # otherwise fairseq keeps all
        raise UserError(
            f"--average must be at most {kept}, the number of checkpoints kept; got {average}; "
            f"give checkpoint.keep_interval_updates={average}, or lower --average"
        )
