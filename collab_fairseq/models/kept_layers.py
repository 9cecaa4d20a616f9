"""``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep``: a model of some of a checkpoint's layers."""

from typing import Any, List

from collab_fairseq.modules.settings import SITES, ConfigurationError, parse_shapes


def keep_layers(cfg: Any) -> None:
    """Give a config as many layers as are kept, and ``attention_shapes`` the numbers that these then have.

    fairseq renames parameters in the same way when it loads the checkpoint. Nothing changes in a config that is of the
    kept layers already.

    Args:
        cfg: a :class:`.TransformerCollabConfig`, changed in place.

    Raises:
        ConfigurationError: layers to keep, or with a shape of their own, that are not there.
    """
    numbers = {"encoder": _kept("encoder", cfg.encoder), "decoder": _kept("decoder", cfg.decoder)}
    numbers["cross"] = numbers["decoder"]
    counts = {"encoder": cfg.encoder.layers, "cross": cfg.decoder.layers, "decoder": cfg.decoder.layers}
    for place in parse_shapes(cfg.attention_shapes):
        site, _, number = place.partition(".")
        if number not in map(str, range(counts[site])):
            raise ConfigurationError(
                f"attention_shapes has {place!r}, but the layers are "
                + ", ".join(f"{site}.0 to {site}.{counts[site] - 1}" for site in SITES)
            )
    cfg.attention_shapes = {
        f"{site}.{new}": cfg.attention_shapes[f"{site}.{old}"]
        for site in SITES
        for new, old in enumerate(numbers[site])
        if f"{site}.{old}" in (cfg.attention_shapes or {})
    }
    cfg.encoder.layers, cfg.decoder.layers = len(numbers["encoder"]), len(numbers["decoder"])


def _kept(side: str, stack: Any) -> List[int]:
    """Numbers of the layers that are kept of a stack, in order."""
    layers = list(range(stack.layers))
    names = stack.layers_to_keep.split(",") if stack.layers_to_keep else []
    if len(names) in (0, len(layers)):  # as many as there are: all of them, or fairseq has taken the others out before
        return layers
    if not set(names) <= set(map(str, layers)) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"--{side}-layers-to-keep must be different layers from 0 to {stack.layers - 1}, joined by commas, "
            f"but is {stack.layers_to_keep}"
        )
    return sorted(map(int, names))
