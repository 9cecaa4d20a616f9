"""Which attention of a transformer is collaborative, and how large each one is."""

from typing import Any, Dict, FrozenSet, Mapping, Optional

from collab_fairseq.attention.kinds import SITES, of_one_layer, side_of

__all__ = ["SITES", "ConfigurationError", "flat_settings", "parse_shapes", "parse_sites"]


class ConfigurationError(ValueError):
    """A flag or config value that cannot be; the message names it, what was expected and what was got."""

    #: command-line tools show the sentence alone, without a traceback
    user_error = True


def parse_sites(flag: str, name_of_flag: str = "--collaborative-heads") -> FrozenSet[str]:
    """Sites of a flag: names of :data:`SITES` joined by ``_`` in any order, or ``none``.

    Raises:
        ConfigurationError: anything else, naming the part that is wrong.
    """
    if flag == "none":
        return frozenset()
    names = str(flag).split("_")
    for name in names:
        if name not in SITES:
            raise ConfigurationError(
                f"{name_of_flag} must be sites among {', '.join(SITES)} joined by '_' (such as encoder_cross), "
                f"or none, but {name!r} in {flag!r} is not a site"
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{name_of_flag} must name each site once, but is {flag!r}")
    return frozenset(names)


def parse_shapes(shapes: Optional[Mapping[str, Mapping[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """The config field ``attention_shapes``: layer name → properties of :func:`.of_one_layer`, those that are not None.

    Raises:
        ConfigurationError: a key that is not ``site.layer``, or an unknown property, by name.
    """
    parsed, known = {}, of_one_layer()
    for name, properties in (shapes or {}).items():
        site, _, layer = name.partition(".")
        if site not in SITES or not layer.isdigit():
            raise ConfigurationError(f"attention_shapes must be keyed like encoder.0 or cross.3, but has {name!r}")
        for key in properties:
            if key not in known:
                raise ConfigurationError(f"attention_shapes[{name}] may have {', '.join(known)}, but has {key!r}")
        parsed[name] = {key: value for key, value in properties.items() if value is not None}
    return parsed


def flat_settings(cfg: Any) -> Dict[str, Any]:
    """The settings of a config by flat names, with the sizes that attention depends on."""
    sides = {side_of(site): getattr(cfg, side_of(site)) for site in SITES}
    names = ("embed_dim", "attention_heads")
    return {**vars(cfg), **{f"{side}_{name}": getattr(own, name) for side, own in sides.items() for name in names}}
