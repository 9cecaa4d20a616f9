"""The base of all attention layers: projections, masks, beams, the output, and the calls that models use."""

import math
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .cache import Attended, KeyValue, repeat_kv
from .errors import AttentionError
from .factors import HeadMaps, ScoreWeights, affine, standard_heads
from .masks import AttentionMask, combine, multiply_heads
from .projections import is_seq_first, linear, uninitialised

#: see :meth:`AttentionLayer.reset_parameters`
INITS = ("default", "authors")
_CALL = nn.Module.__call__


def forwarded(arguments: Dict[str, Any], *own: str) -> Dict[str, Any]:
    """The arguments of an ``__init__``, its ``locals()``, for that of the base class: all but its ``own`` ones."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__", *own)}


class _NoFastPath:
    """A weight that overrides torch functions, so that torch's encoder layers call their ``self_attn``.

    In evaluation, they otherwise compute standard heads from its weights (the fast path).
    """

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


def _is_rounded(number: float, exact: float) -> bool:
    """Whether a number is equal to another, or became different only when a state dict was rounded or averaged."""
    value = torch.tensor(exact, dtype=torch.float64, device="cpu")
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return any(math.isclose(number, float(value.to(dtype)), rel_tol=1e-6) for dtype in dtypes)


def check_groups(name: str, number: int, num_heads: int) -> None:
    """Raise ValueError unless the heads can be divided into this number of equal groups."""
    if number < 1 or num_heads % number != 0:
        raise ValueError(f"{name} must divide the {num_heads} heads; got {number}")


class AttentionLayer(nn.Module):
    """Base of all attention types, which :data:`.attention_types.ATTENTION_TYPES` lists.

    All arguments after ``key_dim`` are named arguments: torch's layer has others in these places.

    ``forward`` is :meth:`project` followed by :meth:`attend`; decoding calls the two separately. A subclass defines the
    cache entry (``_entry``), the outputs of its heads (``_head_outputs``), its :meth:`summary`, its form as standard
    heads (:meth:`head_maps`) and class attributes:

        type_name: name of the attention type.
        collaborative: whether ``--collaborative-heads`` selects it.
        settings: argument of the layer → setting of a model (a flag) that has its value, besides those of every layer.
        chosen_by: the argument that selects this type unless it is None or False; empty if the type needs none.
        kernels: names of its kernels.

    Args (also attributes, except for ``source_dim`` and the biases):
        embed_dim: E, width of queries and of the output.
        num_heads: H.
        key_dim: width of ``q_proj`` and ``k_proj``: D̃k for collaborative heads, H · dk for standard heads; default E.
        kdim, vdim: widths of the key and value inputs, as in torch; default E.
        head_dim: dv, value dimension of one head; default E / H.
        value_heads: G, groups of H / G neighbouring heads that share values; default H.
        key_heads: groups of neighbouring standard heads that share keys; default H.
        source_dim: input width of ``k_proj`` and ``v_proj``, if not ``kdim`` and ``vdim``.
        dropout: probability of dropping an attention weight in training.
        bias: default of the four biases below.
        query_bias, key_bias, value_bias, out_bias: whether the projection has a bias. The key bias never changes the
            output (softmax is shift-invariant) and has a zero gradient; the paper's models have one.
        scale: factor on the logits; default dv^-0.5 = (E/H)^-0.5 at every key dimension.
        init: ``default``, or ``authors`` as in the code of Cordonnier, Loukas, Jaggi (2020): see
            :meth:`reset_parameters`.
        kernel: ``auto`` or a name in :data:`.kernels.STANDARD` or, for collaborative heads, :data:`.COLLABORATIVE`.
        batch_first, add_bias_kv, add_zero_attn: of torch's layer; only the default values are supported.
        device, dtype: of the parameters.

    A state dict contains the number of heads and the scale. Loading it into a layer with a different scale multiplies
    the queries, so that the function is the same. A different number of heads raises an error, and so does a different
    scale if what it would be multiplied into is parametrised or replaced (pruning, weight normalisation, adapters).

    Attributes:
        hook: None, or a function that analyses call instead of ``_head_outputs``, with the original method as first
            argument: ``hook(compute, query, entry, mask, dropout, need_weights)``.

    Raises:
        TypeError: a size that is not an integer, or unnamed arguments after ``key_dim``.
        ValueError: inconsistent sizes or an unsupported value.
    """

    type_name: ClassVar[str]
    collaborative: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, str]] = {}
    chosen_by: ClassVar[str] = ""
    kernels: ClassVar[Sequence[str]]

    # read by torch.nn.TransformerEncoderLayer
    batch_first = True
    in_proj_bias = None
    in_proj_weight = _NoFastPath()
    _qkv_same_embed_dim = False
    #: parameters to which the logits are proportional
    _scaled: ClassVar[Tuple[str, ...]] = ("q_proj.weight", "q_proj.bias")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        key_dim: Optional[int] = None,
        *,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        head_dim: Optional[int] = None,
        value_heads: Optional[int] = None,
        key_heads: Optional[int] = None,
        source_dim: Optional[int] = None,
        dropout: float = 0.0,
        bias: bool = True,
        query_bias: Optional[bool] = None,
        key_bias: Optional[bool] = None,
        value_bias: Optional[bool] = None,
        out_bias: Optional[bool] = None,
        scale: Optional[float] = None,
        init: str = "default",
        kernel: str = "auto",
        batch_first: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        for name, value, supported in (
            ("batch_first", batch_first, True),
            ("add_bias_kv", add_bias_kv, False),
            ("add_zero_attn", add_zero_attn, False),
        ):
            if value != supported:
                raise ValueError(f"{name} must be {supported}; got {value}")
        key_dim = embed_dim if key_dim is None else key_dim
        for name, number in (("embed_dim", embed_dim), ("num_heads", num_heads), ("key_dim", key_dim)):
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                # torch's third argument is the dropout
                hint = f"; dropout is a named argument: dropout={number}" if name == "key_dim" else ""
                raise TypeError(f"{name} must be an integer; got {number!r}{hint}")
            if number < 1:
                raise ValueError(f"{name} must be positive; got {number}")
        if head_dim is None:
            if embed_dim % num_heads != 0:
                raise ValueError(f"embed_dim must be divisible by num_heads; got {embed_dim} and {num_heads}")
            head_dim = embed_dim // num_heads
        self.value_heads = num_heads if value_heads is None else value_heads
        self.key_heads = num_heads if key_heads is None else key_heads
        check_groups("value_heads", self.value_heads, num_heads)
        check_groups("key_heads", self.key_heads, num_heads)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}; got {init!r}")
        self.embed_dim, self.num_heads, self.key_dim, self.head_dim = embed_dim, num_heads, key_dim, head_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.init = init
        self.scale = float(head_dim**-0.5 if scale is None else scale)
        self.hook: Optional[Callable[..., Attended]] = None

        biases = [bias if each is None else each for each in (key_bias, value_bias, query_bias, out_bias)]
        # in this order, the projections draw the same random numbers as in fairseq's MultiheadAttention
        self.k_proj = uninitialised(source_dim or self.kdim, key_dim * self.key_heads // num_heads, biases[0])
        self.v_proj = uninitialised(source_dim or self.vdim, self.value_heads * head_dim, biases[1])
        self.q_proj = uninitialised(embed_dim, key_dim, biases[2])
        self.out_proj = uninitialised(num_heads * head_dim, embed_dim, biases[3])
        self._build()
        if kernel not in ("auto", *self.kernels):
            raise AttentionError(f"kernel must be auto or one of {', '.join(self.kernels)}; got {kernel!r}")
        self.kernel = kernel
        self.reset_parameters()
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    def _build(self) -> None:
        """Check the sizes of a subclass and create its further parameters; all arguments above are set."""

    def reset_parameters(self) -> None:
        """Set all parameters to initial values: Xavier weights, biases as in ``nn.Linear``, output bias zero.

        The gain of the query, key and value weights is 1/√2 if all inputs are as wide as the layer, otherwise 1. With
        ``init="authors"`` it is also 1 if the key dimension differs from that width. A seed gives the same values as a
        new layer, also after a start on torch's meta device (``to_empty``), and with FSDP2.
        """
        widths = {self.embed_dim, self.kdim, self.vdim}
        if self.init == "authors":
            widths.add(self.key_dim)
        gain = 1 / math.sqrt(2) if len(widths) == 1 else 1.0
        for child in self.children():
            if isinstance(child, nn.Linear):
                child.reset_parameters()
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def get_extra_state(self) -> Tensor:
        """What a state dict needs besides parameters: number of heads and scale, (2), in float64."""
        return torch.tensor([self.num_heads, self.scale], dtype=torch.float64, device="cpu")

    def _load_from_state_dict(
        self,
        state_dict: Dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        extra_state = state_dict.pop(prefix + "_extra_state", None)  # former versions and fairseq's models have none
        if extra_state is not None:
            heads, scale = extra_state.tolist()
            if not abs(heads - self.num_heads) < 0.5:  # moving averages round it
                error_msgs.append(f"{prefix}num_heads must be {heads:.0f}, as in the state dict; got {self.num_heads}")
            elif not _is_rounded(scale, self.scale):
                if self._scaled[0] not in dict(self.named_parameters()) or hasattr(self, "parametrizations"):
                    error_msgs.append(
                        f"{prefix}scale must be {scale}, as in the state dict, because {self._scaled[0]} or another "
                        f"parameter that the scale could be multiplied into is parametrised; got {self.scale}"
                    )
                for name in self._scaled:
                    if prefix + name in state_dict:
                        state_dict[prefix + name] = state_dict[prefix + name] * (scale / self.scale)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def split_heads(self, joined: Tensor, heads: Optional[int] = None) -> Tensor:
        """(N, T, heads · d) → (N, heads, T, d); default H heads."""
        heads = self.num_heads if heads is None else heads
        return joined.view(joined.size(0), joined.size(1), heads, joined.size(2) // heads).transpose(1, 2)

    def head_values(self, entry: KeyValue) -> Tensor:
        """The values of every head, (N, H, S, dv), from an entry of :meth:`project`."""
        return repeat_kv(entry.value, self.num_heads)

    def project(self, key: Tensor, value: Tensor) -> KeyValue:
        """Project keys (N, S, kdim) and values (N, S, vdim) to an entry for :meth:`attend`, which decoding caches."""
        if value is key:
            keys, values = linear(key, self.k_proj, self.v_proj)
        else:
            (keys,), (values,) = linear(key, self.k_proj), linear(value, self.v_proj)
        return self._entry(key, keys, values)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, KeyValue]:
        """Projected queries (N, T, key_dim) and the entry of :meth:`project`, in one product for the same input.

        Queries come first, as in fairseq, so that quantisation noise draws the same random numbers.
        """
        if query is key and value is key:
            queries, keys, values = linear(query, self.q_proj, self.k_proj, self.v_proj)
            return queries, self._entry(key, keys, values)
        (queries,) = linear(query, self.q_proj)
        return queries, self.project(key, value)

    def _entry(self, key: Tensor, keys: Tensor, values: Tensor) -> KeyValue:
        """The cache entry from key inputs (N, S, kdim), projected keys (N, S, ·) and values (N, S, G·dv)."""
        raise NotImplementedError

    def _head_outputs(
        self, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool
    ) -> Attended:
        """Outputs and weights of heads from projected queries (N, T, key_dim) and an additive mask."""
        raise NotImplementedError

    def attend(
        self,
        query: Tensor,
        entry: KeyValue,
        key_padding_mask: Union[Tensor, AttentionMask, None] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        head_multiplier: Optional[Tensor] = None,
        dropout: Optional[float] = None,
        projected: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attention of queries over projected keys and values.

        Args:
            query: (R, T, E). R is N, or N · B if B consecutive rows (beams) read the same row of the entry.
            entry: N rows of keys and values, from :meth:`project`.
            key_padding_mask: (N, S), boolean (True: padding) or additive; or what :func:`.masks.combine` made of it.
            need_weights: also return the attention weights.
            attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: hidden) or additive; not with beams.
            average_attn_weights: average the returned weights over heads.
            is_causal: position t sees keys up to t; only a hint with ``attn_mask``, as in torch; not with beams.
            head_multiplier: (H), (R, H) or (R, T, H), factor on the output of every head.
            dropout: probability of dropping a weight; default: the layer's in training, otherwise 0.
            projected: the query is already projected, (R, T, key_dim).

        Returns:
            output (R, T, E); weights before dropout, (R, T, S) averaged or (R, H, T, S), or None. A query that sees no
            key has zero weights and zero head outputs.

        Raises:
            ValueError: inconsistent shapes.
        """
        queries = query if projected else linear(query, self.q_proj)[0]
        query_rows, query_len, _ = query.shape
        rows, key_len = entry.value.size(0), entry.value.size(2)
        beams = query_rows // rows if rows > 0 else 1
        if beams * rows != query_rows:
            raise ValueError(f"query rows must be a multiple of the {rows} rows of keys; got {query_rows}")
        mask = combine(key_padding_mask, attn_mask, is_causal, (rows, self.num_heads, query_len, key_len), queries)
        additive, hidden = (None, None) if mask is None else mask
        if beams > 1 and additive is not None and additive.size(2) > 1:
            raise ValueError(
                "beams that share a row of keys must not have attn_mask or is_causal; "
                f"got a mask for each of {additive.size(2)} queries"
            )

        if dropout is None:
            dropout = self.dropout if self.training else 0.0
        # beams are further queries of the same row: (N·B, T, ·) → (N, B·T, ·)
        folded = queries.reshape(rows, beams * query_len, self.key_dim)
        if self.hook is None:
            outputs, weights = self._head_outputs(folded, entry, additive, dropout, need_weights)
        else:
            outputs, weights = self.hook(self._head_outputs, folded, entry, additive, dropout, need_weights)
        if hidden is not None:
            outputs = outputs.masked_fill(hidden, 0.0)

        # (N, H, B·T, dv) → (N, B·T, H, dv) → (R, T, H, dv), in the memory order of the query
        outputs = outputs.transpose(1, 2).reshape(query_rows, query_len, self.num_heads, self.head_dim)
        if is_seq_first(queries):
            outputs = outputs.transpose(0, 1).contiguous().transpose(0, 1)
        if head_multiplier is not None:
            outputs = multiply_heads(outputs, head_multiplier)
        (output,) = linear(outputs.flatten(2), self.out_proj)
        if not need_weights or weights is None:
            return output, None
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        # (N, H, B·T, S) → (N, B, H, T, S) → (R, H, T, S)
        weights = weights.view(rows, self.num_heads, beams, query_len, key_len).transpose(1, 2).flatten(0, 1)
        return output, weights.mean(dim=1) if average_attn_weights else weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward`` and hooks. ``torch.fx`` records the call as one node, as it does for torch's layer."""
        if nn.Module.__call__ is not _CALL:  # torch.fx replaces it while it traces
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, Proxy):
                    return self._as_node(argument.tracer, args, kwargs)
        return super().__call__(*args, **kwargs)

    def _as_node(self, tracer: Any, args: Any, kwargs: Any) -> Any:
        path = tracer.path_of_module(self)

        def leaf(*args: Any, **kwargs: Any) -> Any:
            return tracer.create_proxy("call_module", path, args, kwargs)

        # not create_proxy itself: tracers note in call_module which module they are in
        return tracer.call_module(self, leaf, args, kwargs)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Union[Tensor, AttentionMask, None] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        head_multiplier: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The call of ``torch.nn.MultiheadAttention(batch_first=True)``: :meth:`project`, then :meth:`attend`.

        query, key and value are (N, T, E), (N, S, kdim) and (N, S, vdim). For the other arguments and the results see
        :meth:`attend`.

        Raises:
            ValueError: the shapes do not match the layer, or see :meth:`attend`.
        """
        widths = ((query, self.embed_dim), (key, self.kdim), (value, self.vdim))
        fits = all(x.dim() == 3 and x.size(2) == width for x, width in widths)
        if not fits or query.size(0) != key.size(0) or key.shape[:2] != value.shape[:2]:
            raise ValueError(
                f"query, key and value must have shapes (N, T, {self.embed_dim}), (N, S, {self.kdim}) and "
                f"(N, S, {self.vdim}); got {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
            )
        queries, entry = self._project(query, key, value)
        return self.attend(
            queries,
            entry,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
            head_multiplier,
            projected=True,
        )

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

    def extra_repr(self) -> str:
        names = ("num_heads", "value_heads", "key_dim", "head_dim", "scale", "dropout")
        return ", ".join(f"{name}={getattr(self, name):.6g}" for name in names)
