"""The interface of an attention type: its flags, its description and its conversion to standard heads."""

from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor, nn

from .factors import HeadMaps, ReparamError, ScoreWeights, affine, standard_heads


class Flag(NamedTuple):
    """A setting of an attention type: a command-line flag of the model and an argument of the layer.

    Attributes:
        name: name of the setting; ``kv_heads`` is the flag ``--kv-heads``.
        argument: name of the layer's argument.
        help: help text of the flag.
        type: type of the value.
        default: default value. None: the layer has its own default, and the flag is rejected if no layer of the model
            has this attention type.
        choices: allowed values; empty: any value of the type.
        per_layer: whether ``attention_shapes`` may give a single layer a different value.
        persistent: whether a trained layer depends on the setting; False if only its initialization does.
        label: text for tables; ``{}`` stands for the value and ``{s}`` for the plural s.
    """

    name: str
    argument: str
    help: str
    type: Any = int
    default: Any = None
    choices: Tuple[str, ...] = ()
    per_layer: bool = True
    persistent: bool = True
    label: Optional[str] = None

    def of(self, settings: Any) -> Any:
        """The value in the settings of a model, a mapping by name."""
        value = settings.get(self.name, self.default)
        return str(value) if self.choices and value is not None else value


def check_groups(name: str, number: int, num_heads: int) -> None:
    """Raise ValueError unless the heads can be divided into this number of equal groups."""
    if number < 1 or num_heads % number != 0:
        raise ValueError(f"{name} must divide the {num_heads} heads; got {number}")


class AttentionType:
    """Base of :class:`.AttentionLayer`, whose subclasses are the attention types.

    Class attributes:
        type_name: name of the attention type.
        collaborative: whether ``--collaborative-heads`` selects it.
        flags: settings of the attention type.
        chosen_by: name of the flag that selects this type unless it has its default; None if the type needs no flag.
        kernels: names of its kernels.
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
    def arguments(cls, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Dict[str, Any]:
        """Layer arguments that follow from the flags. ``overrides``: arguments of this layer, which take precedence."""
        return {flag.argument: flag.of(settings) for flag in cls.flags}

    def summary(self) -> str:
        """A description of the heads for model cards."""
        raise NotImplementedError

    def shared(self) -> List[str]:
        """Which of ``keys`` and ``values`` are shared by groups of heads, so that no single head can be removed."""
        return list(self._groups())

    def _groups(self) -> Dict[str, int]:
        groups = {"keys": self.key_heads, "values": self.value_heads}
        return {name: number for name, number in groups.items() if number < self.num_heads}

    def _in_groups(self) -> str:
        shared = [f"{number} for {name}" for name, number in self._groups().items()]
        return f", in groups: {' and '.join(shared)}" if shared else ""

    def head_maps(self) -> HeadMaps:
        """The equivalent standard heads, for exports. ReparamError: there are none."""
        raise ReparamError(f"{type(self).__name__} has no form as standard heads")

    def _head_map(self, projection: nn.Linear, groups: int) -> Tensor:
        """The map of every head, (H, d, inputs + 1) as in :class:`.HeadMaps`, from a projection for groups of heads."""
        joined = affine(projection)
        return joined.view(groups, -1, joined.size(1)).repeat_interleave(self.num_heads // groups, dim=0)

    def score_weights(self) -> ScoreWeights:
        """The scores in the form of collaborative heads, for conversion. ReparamError: there is no such form."""
        dtype = self.q_proj.weight.dtype
        maps = self.head_maps()
        query = maps.query.detach().flatten(0, 1).to(dtype)
        key = maps.key.detach().flatten(0, 1).to(dtype)
        bias = None if self.q_proj.bias is None else query[:, -1]
        return ScoreWeights(standard_heads(query[:, :-1], key[:, :-1], self.num_heads), self.scale, bias)
