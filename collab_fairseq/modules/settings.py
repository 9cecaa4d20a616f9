"""Which attention of a transformer is collaborative, and how large each one is."""

from typing import Any, Dict, FrozenSet, Mapping, Optional

from collab_fairseq.attention import COLLABORATIVE_KERNELS, INITIAL_MIXING, STANDARD_KERNELS

#: the three places of attention in a transformer: encoder self-attention, encoder–decoder attention, decoder
#: self-attention
SITES = ("encoder", "cross", "decoder")

#: site → the setting of its key dim, where that is not ``key_dim``
KEY_DIMS = {site: f"{site}_key_dim" for site in SITES}

#: names of ``--attention-init``
INITS = ("default", "authors")
#: names of ``--mixing-init``
MIXINGS = tuple(INITIAL_MIXING)
#: names of ``--attention-kernel``, and those among them that standard heads have
KERNELS = ("auto", *COLLABORATIVE_KERNELS)
KERNELS_OF_STANDARD_HEADS = ("auto", *STANDARD_KERNELS)
#: kernels that are gone → which to use
GONE_KERNELS = {"sdpa_one_key": "sdpa"}


#: what one attention layer may have of its own, where conversion or pruning made it differ: whether its heads
#: collaborate; the number of heads and the value width of each; the rest as in :mod:`collab_fairseq.attention`
OF_ONE_LAYER = (
    "collaborative", "num_heads", "head_dim", "key_dim", "value_heads", "kv_heads", "kv_latent_dim", "scale",
    "query_bias", "key_bias", "value_bias", "out_bias", "content_bias",
)  # fmt: skip


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
    """The config field ``attention_shapes``: place → properties among :data:`OF_ONE_LAYER`, those that are not None.

    Raises:
        ConfigurationError: a key that is not ``site.layer``, or an unknown property, by name.
    """
    parsed = {}
    for place, properties in (shapes or {}).items():
        site, _, layer = place.partition(".")
        if site not in SITES or not layer.isdigit():
            raise ConfigurationError(f"attention_shapes must be keyed like encoder.0 or cross.3, but has {place!r}")
        for name in properties:
            if name not in OF_ONE_LAYER:
                known = ", ".join(OF_ONE_LAYER)
                raise ConfigurationError(f"attention_shapes[{place}] may have {known}, but has {name!r}")
        parsed[place] = {name: value for name, value in properties.items() if value is not None}
    return parsed
