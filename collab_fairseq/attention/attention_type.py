"""The interface of an attention type: its settings, its description and its conversion to standard heads."""

from typing import Any, ClassVar, Dict, List, Mapping, Sequence

from torch import Tensor, nn

from .errors import AttentionError
from .factors import HeadMaps, ScoreWeights, affine, standard_heads


def is_given(value: Any) -> bool:
    """Whether a setting without a default value is given: neither None nor False."""
    return value is not None and value is not False


def check_groups(name: str, number: int, num_heads: int) -> None:
    """Raise ValueError unless the heads can be divided into this number of equal groups."""
    if number < 1 or num_heads % number != 0:
        raise ValueError(f"{name} must divide the {num_heads} heads; got {number}")


class AttentionType:
    """Base of :class:`.AttentionLayer`, whose subclasses are the attention types.

    Class attributes:
        type_name: name of the attention type.
        collaborative: whether ``--collaborative-heads`` selects it.
        settings: argument of the layer → setting of a model (a flag) that has its value, besides those of every layer.
        chosen_by: the argument that selects this type unless it is None or False; empty if the type needs none.
        kernels: names of its kernels.
    """

    type_name: ClassVar[str]
    collaborative: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, str]] = {}
    chosen_by: ClassVar[str] = ""
    kernels: ClassVar[Sequence[str]]

    num_heads: int
    key_heads: int
    value_heads: int
    scale: float
    q_proj: nn.Linear

    @classmethod
    def arguments(cls, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Dict[str, Any]:
        """Arguments of the layer in a model with these settings, and with ``overrides`` for this layer alone.

        A setting that is missing or None leaves the layer's default.
        """
        values = {argument: settings.get(name) for argument, name in cls.settings.items()}
        return {**{argument: value for argument, value in values.items() if value is not None}, **overrides}

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
        """The equivalent standard heads, for exports. AttentionError: there are none."""
        raise AttentionError(f"{type(self).__name__} has no form as standard heads")

    def _head_map(self, projection: nn.Linear, groups: int) -> Tensor:
        """The map of every head, (H, d, inputs + 1) as in :class:`.HeadMaps`, from a projection for groups of heads."""
        joined = affine(projection)
        return joined.view(groups, -1, joined.size(1)).repeat_interleave(self.num_heads // groups, dim=0)

    def score_weights(self) -> ScoreWeights:
        """The logits in the form of collaborative heads, for conversion. AttentionError: there is no such form."""
        dtype = self.q_proj.weight.dtype
        maps = self.head_maps()
        query = maps.query.detach().flatten(0, 1).to(dtype)
        key = maps.key.detach().flatten(0, 1).to(dtype)
        bias = None if self.q_proj.bias is None else query[:, -1]
        return ScoreWeights(standard_heads(query[:, :-1], key[:, :-1], self.num_heads), self.scale, bias)
