"""What an attention type declares for flags, checks, tables, conversion and exports."""

from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor, nn

from .factors import HeadMaps, ReparamError, ScoreWeights, affine, standard_heads


class Flag(NamedTuple):
    """A setting of an attention type: a flag of the whole model and an argument of the layer.

    Attributes:
        name: of the setting; ``kv_heads`` is the flag ``--kv-heads``. argument: of the layer.
        help: for the command line.
        type: of a value. choices: the only values. default: None where the layer has one of its own; such a flag is
            rejected in a model without attention of its type.
        own: whether a single layer may have another value (``attention_shapes``).
        lasting: whether a trained layer depends on it, and not only how training starts.
        words: for tables, with ``{}`` for the value and ``{s}`` for the s of a plural.
    """

    name: str
    argument: str
    help: str
    type: Any = int
    default: Any = None
    choices: Tuple[str, ...] = ()
    own: bool = True
    lasting: bool = True
    words: Optional[str] = None

    def of(self, settings: Any) -> Any:
        """The value in the settings of a model, a mapping by name."""
        value = settings.get(self.name, self.default)
        return str(value) if self.choices else value


def check_groups(name: str, number: int, num_heads: int) -> None:
    """Raise ValueError unless the heads can be divided into this number of equal groups."""
    if number < 1 or num_heads % number != 0:
        raise ValueError(f"{name} must divide the {num_heads} heads, but is {number}")


class AttentionType:
    """Base of :class:`.AttentionLayer`, whose subclasses are the attention types.

    Attributes of the class:
        type_name: its name. collaborative: whether it is of the heads that ``--collaborative-heads`` names.
        flags: what may be set. chosen_by: the flag whose value chooses this type; None: it needs none.
        kernels: names of the ways to compute it.
    """

    type_name: ClassVar[str]
    collaborative: ClassVar[bool] = False
    flags: ClassVar[Tuple[Flag, ...]] = ()
    chosen_by: ClassVar[Optional[str]] = None
    kernels: ClassVar[Sequence[str]]

    num_heads: int
    key_heads: int
    value_heads: int
    scale: float
    q_proj: nn.Linear

    @classmethod
    def arguments(cls, settings: Mapping[str, Any], own: Mapping[str, Any]) -> Dict[str, Any]:
        """Arguments of a layer that follow from flags; ``own``: those that it has of its own, which take precedence."""
        return {flag.argument: flag.of(settings) for flag in cls.flags}

    def summary(self) -> str:
        """The heads in words, for the page of a model."""
        raise NotImplementedError

    def shared(self) -> List[str]:
        """Which of ``keys`` and ``values`` several heads have in common, so that none can be removed by itself."""
        return list(self._groups())

    def _groups(self) -> Dict[str, int]:
        groups = {"keys": self.key_heads, "values": self.value_heads}
        return {name: number for name, number in groups.items() if number < self.num_heads}

    def _in_groups(self) -> str:
        shared = [f"{number} for {name}" for name, number in self._groups().items()]
        return f", in groups: {' and '.join(shared)}" if shared else ""

    def head_maps(self) -> HeadMaps:
        """The layer as standard heads, which exports write.

        Raises:
            ReparamError: standard heads cannot compute the same.
        """
        raise ReparamError(f"{type(self).__name__} has no form as standard heads")

    def _head_map(self, projection: nn.Linear, groups: int) -> Tensor:
        """The map of every head, (H, d, inputs + 1) as in :class:`.HeadMaps`, from a projection for groups of heads."""
        joined = affine(projection)
        return joined.view(groups, -1, joined.size(1)).repeat_interleave(self.num_heads // groups, dim=0)

    def score_weights(self) -> ScoreWeights:
        """The scores in the form of collaborative heads, which conversion begins with; values stay as they are.

        Raises:
            ReparamError: collaborative heads cannot compute the same.
        """
        query, key = (each.detach().flatten(0, 1).to(self.q_proj.weight.dtype) for each in self.head_maps()[:2])
        bias = None if self.q_proj.bias is None else query[:, -1]
        return ScoreWeights(standard_heads(query[:, :-1], key[:, :-1], self.num_heads), self.scale, bias)
