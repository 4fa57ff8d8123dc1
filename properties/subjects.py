"""What can be judged: the protocols `Codec` and `Attention`, and adapters for this project and its peers.

A codec rounds float32 (or more) to the values of a narrow format, and may encode and decode. It states the formats it
offers and the `Policy` it claims for each: overflow, infinity, NaN and zero have several legal answers (OCP OFP8 1.0
section 5.2; OCP MX 1.0 section 6), so a subject is judged by its own claim, and by the same law for everything else.

An attention is a function of three tensors. Importing this module loads no torch: a subject loads what it needs.

>>> from properties.subjects import from_function, load
>>> ours = load("ours")
>>> ours.name, ours.policy("float8_e4m3fn").overflow
('ours', 'saturate')
>>> mine = from_function(lambda x, fmt, rounding: x, formats=["float32"])  # keeps float32 as it is
>>> mine.roundings("float32")
('nearest_even',)
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

import precision as P
from properties.kinds import KINDS, kinds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from attention import AttentionResult
    from attention.masks import Alignment
    from precision.formats import AnyFormat
    from precision.policies import Policy

    Array = NDArray[Any]

__all__ = [
    "SUBJECTS",
    "Attention",
    "Codec",
    "FunctionCodec",
    "Gfloat",
    "MlDtypes",
    "OurAttention",
    "Ours",
    "Torch",
    "from_function",
    "load",
    "named",
]


class Codec(Protocol):
    """A set of casts: what every subject of the laws on casts must offer.

    A subject may also have, and is judged on them only then:
    `encode(x, fmt, rounding) -> unsigned codes`, `decode(codes, fmt) -> float32 or float64`,
    `round_stochastic(x, fmt, random_bits, bits)`; `inputs`, the input dtypes it claims to round once (("float32",)
    where it is missing; add "float64" and "int64"); `findings`, a mapping from patterns of law ids that are known to be
    broken to what was found, which the pytest suite expects to fail.
    """

    name: str
    version: str
    formats: Sequence[AnyFormat | str]

    def policy(self, fmt: AnyFormat | str) -> Policy:
        """What it claims to do with overflow, infinity, NaN, subnormals, and negative or zero input without a code."""

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        """The rounding modes it offers into `fmt`, by the names of `precision.ROUNDINGS`."""

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        """The nearest values of `fmt` by `rounding`, in the shape of `x`, as float32 or float64."""


def _codes_dtype(bits: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64


class Ours:
    """`precision` itself, under any one policy."""

    inputs = ("float32", "float64", "int64")

    def __init__(self, policy: Policy | str = "saturate") -> None:
        self._policy = policy
        self.name = "ours" if policy == "saturate" else f"ours/{policy}"
        self.version = P.__version__
        self.formats: Sequence[AnyFormat | str] = tuple(P.FORMATS)

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy(self._policy, P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return (*P.ROUNDINGS, "stochastic")

    @staticmethod
    def _holding(x: Array, fmt: AnyFormat) -> Array:
        """`x`, widened where its dtype does not hold the format's values, which `round_to` refuses."""
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return x.astype(np.float64) if fmt.mantissa_bits > 23 and x.dtype != np.float64 else x

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        if x.dtype.kind in "iu":  # not all values are integers: round_to, whose result has the dtype of x, would refuse
            return self.decode(self.encode(x, fmt, rounding), fmt)
        rounded: Array = P.round_to(self._holding(x, fmt), fmt, rounding=rounding, policy=self._policy)
        return rounded

    def round_stochastic(self, x: Array, fmt: AnyFormat, random_bits: Array, bits: int) -> Array:
        rounding = P.stochastic(random_bits=random_bits, bits=bits)
        rounded: Array = P.round_to(self._holding(x, fmt), fmt, rounding=rounding, policy=self._policy)
        return rounded

    def encode(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        codes: Array = P.encode(x, fmt, rounding=rounding, policy=self._policy)
        return codes

    def decode(self, codes: Array, fmt: AnyFormat) -> Array:
        values: Array = P.decode(codes, fmt)
        return values


# float32 holds the numbers below 2^-126 as subnormals, and these casts take the leading bit for one half of a step.
# Seen with ml_dtypes 0.6.0 and torch 2.13.0 (CPU): 1.0000002 * 2^-127 becomes 2^-126.
_E8M0_SUBNORMALS = {
    "rounding.result_is_the_nearest[float8_e8m0fnu]": "everything between 2^-127 and 2^-126 becomes 2^-126",
    "rounding.tiny_numbers_vanish_only_below_the_threshold[float8_e8m0fnu]": "everything above 2^-127 becomes 2^-126",
    "rounding.agrees_with_exact_rationals[float8_e8m0fnu]": "everything between 2^-127 and 2^-126 becomes 2^-126",
}


class MlDtypes:
    """ml_dtypes' float casts: nearest even from float32.

    float64 is not among its `inputs`: those casts go through float32 and round twice. Its int2 and int4 casts truncate
    and wrap, which is no rounding of any name, so they are not offered.
    """

    findings: ClassVar[dict[str, str]] = _E8M0_SUBNORMALS

    def __init__(self) -> None:
        import ml_dtypes

        self.name = "ml_dtypes"
        self.version = ml_dtypes.__version__
        self.formats = tuple(f.name for f in P.formats() if isinstance(f, P.Format) and hasattr(ml_dtypes, f.name))

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy("ml_dtypes", P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("nearest_even",)

    def _cast(self, x: Array, fmt: AnyFormat) -> Array:
        with np.errstate(all="ignore"):
            return x.astype(fmt.numpy_dtype)

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        with np.errstate(all="ignore"):
            return self._cast(x, fmt).astype(np.float32)

    def encode(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        return self._cast(x, fmt).view(_codes_dtype(fmt.bits))

    def decode(self, codes: Array, fmt: AnyFormat) -> Array:
        dtype = fmt.numpy_dtype
        assert dtype is not None
        with np.errstate(all="ignore"):
            return codes.view(dtype).astype(np.float32)


class Torch:
    """torch's CPU casts: nearest even from float32.

    float64 is not among its `inputs`: those casts go through float32 and round twice. The overflow of E4M3FN changed
    in torch 2.12 (pytorch PR 178817), so the policy follows the installed version. Casts to integers truncate, so they
    are not offered.
    """

    findings: ClassVar[dict[str, str]] = _E8M0_SUBNORMALS | {
        "encoding.nan_has_the_code_of_the_policy[float16]": "the upper payload bits of a NaN are kept",
        "encoding.nan_has_the_code_of_the_policy[bfloat16]": "contiguous NaNs become 0xffff, strided ones 0x7fc0",
    }

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.name = "torch"
        self.version = str(torch.__version__)
        release = tuple(int(part) for part in self.version.split("+")[0].split(".")[:2])
        self._policy = "torch" if release >= (2, 12) else "torch_2_11"
        wanted = (f for f in P.formats() if isinstance(f, P.Format) and f.bits <= 16)
        self.formats = tuple(f.name for f in wanted if f.torch_dtype is not None)

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy(self._policy, P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("nearest_even",)

    def _cast(self, x: Array, fmt: AnyFormat) -> Any:
        return self._torch.from_numpy(np.array(x)).to(fmt.torch_dtype)

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        result: Array = self._cast(x, fmt).to(self._torch.float32).numpy()
        return result

    def encode(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        bits: Array = self._cast(x, fmt).view(self._torch.uint8 if fmt.bits == 8 else self._torch.int16).numpy()
        return bits.view(_codes_dtype(fmt.bits))

    def decode(self, codes: Array, fmt: AnyFormat) -> Array:
        bits = self._torch.from_numpy(np.array(codes).view(np.uint8 if fmt.bits == 8 else np.int16))
        dtype = fmt.torch_dtype
        assert dtype is not None
        result: Array = bits.view(dtype).to(self._torch.float32).numpy()
        return result


class Gfloat:
    """gfloat's array functions, non-saturating where the format has an infinity or a NaN, else saturating."""

    inputs = ("float32", "float64")
    # Seen with gfloat 0.5.2.
    findings: ClassVar[dict[str, str]] = {
        **{
            f"encoding.nan_has_the_code_of_the_policy[{name}*]": "every NaN becomes the negative one with all bits set"
            for name in ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")
        },
        "rounding.nan_stays_nan[float6_*]": "round_ndarray documents a ValueError, and returns NaN",
        "rounding.nan_stays_nan[float4_*]": "round_ndarray documents a ValueError, and returns NaN",
        "rounding.result_is_representable[float8_e8m0fnu*]": "negative numbers stay as they are, zero stays zero",
        "rounding.negatives_without_a_code_follow_the_policy[float8_e8m0fnu*]": "negative numbers are only rounded",
        "rounding.zero_without_a_code_follows_the_policy[float8_e8m0fnu*]": "zero stays zero",
        "rounding.tiny_numbers_vanish_only_below_the_threshold[float8_e8m0fnu*]": "the grid goes on below 2^-127",
        "rounding.directed_rounding_stays_on_its_side[float8_e8m0fnu*]": "the grid goes on below 2^-127",
        "rounding.agrees_with_exact_rationals[float8_e8m0fnu*]": "negative numbers stay as they are",
        "rounding.ties_go_to_even[float8_e8m0fnu]": "ties go to the even code, not up (the significand 1 is odd)",
        "rounding.powers_of_two_pass_through[float8_e8m0fnu]": "ties go to the even code: every other one up",
        "rounding.overflow_starts_at_the_threshold[float8_e8m0fnu]": "the tie 1.5 * 2^127 goes to the even code 254",
        "encoding.encode_agrees_with_round[float8_e8m0fnu*]": "codes of numbers that are no values wrap",
    }
    _NAMES: ClassVar[dict[str, str]] = {
        "float32": "binary32",
        "float16": "binary16",
        "bfloat16": "bfloat16",
        "float8_e5m2": "ocp_e5m2",
        "float8_e4m3fn": "ocp_e4m3",
        "float6_e3m2fn": "ocp_e3m2",
        "float6_e2m3fn": "ocp_e2m3",
        "float4_e2m1fn": "ocp_e2m1",
        "float8_e8m0fnu": "ocp_e8m0",
    }
    _MODES: ClassVar[dict[str, str]] = {
        "nearest_even": "TiesToEven",
        "nearest_away": "TiesToAway",
        "toward_zero": "TowardZero",
        "toward_positive": "TowardPositive",
        "toward_negative": "TowardNegative",
    }

    def __init__(self) -> None:
        import gfloat
        import gfloat.formats

        self._gfloat = gfloat
        self._info = {name: getattr(gfloat.formats, f"format_info_{theirs}") for name, theirs in self._NAMES.items()}
        self.name = "gfloat"
        self.version = importlib.metadata.version("gfloat")
        self.formats = tuple(self._NAMES)

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.Policy(overflow="infinity", infinity="infinity", nan="all_ones", missing_nan="raise")

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return tuple(self._MODES)

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        mode = self._gfloat.RoundMode[self._MODES[rounding]]
        saturate = not (fmt.infinities or fmt.has_nan)
        with np.errstate(all="ignore"):
            result: Array = self._gfloat.round_ndarray(self._info[fmt.name], x, mode, saturate)
        return result

    def encode(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        codes: Array = self._gfloat.encode_ndarray(self._info[fmt.name], self.round(x, fmt, rounding))
        return codes

    def decode(self, codes: Array, fmt: AnyFormat) -> Array:
        values: Array = self._gfloat.decode_ndarray(self._info[fmt.name], codes.astype(np.int64))
        return values


class FunctionCodec:
    """One function `fn(x, fmt, rounding)` as a subject; made by `from_function`."""

    def __init__(
        self,
        fn: Callable[[Array, AnyFormat, str], Array],
        formats: tuple[AnyFormat, ...],
        policy: Policy | str,
        roundings: tuple[str, ...],
        name: str,
        version: str,
    ) -> None:
        self._fn, self._policy, self._roundings = fn, policy, roundings
        self.formats, self.name, self.version = formats, name, version

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy(self._policy, P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return self._roundings

    def round(self, x: Array, fmt: AnyFormat, rounding: str) -> Array:
        return self._fn(x, fmt, rounding)


def from_function(
    fn: Callable[[Array, AnyFormat, str], Array],
    *,
    formats: Iterable[AnyFormat | str],
    policy: Policy | str = "saturate",
    roundings: Iterable[str] = ("nearest_even",),
    name: str | None = None,
    version: str = "",
) -> FunctionCodec:
    """A subject made of one rounding function `fn(x, fmt, rounding)`: float32 array in, rounded values out.

    The values may come as an array of any dtype that holds them, or as a tensor (of bfloat16, say, on any device).
    Raises ValueError for an unknown format, policy or rounding mode, and where there are none.
    """
    names = tuple(P.get_format(fmt) for fmt in ([formats] if isinstance(formats, str) else formats))
    modes = tuple([roundings] if isinstance(roundings, str) else roundings)
    if not names or not modes:
        what = "formats" if not names else "roundings"
        raise ValueError(f"{what} is empty, so that there is nothing to judge: name at least one")
    unknown = [mode for mode in modes if mode not in P.ROUNDINGS]
    if unknown:
        raise ValueError(f"unknown rounding {unknown[0]!r}: it must be one of {', '.join(P.ROUNDINGS)}")
    made = FunctionCodec(fn, names, policy, modes, name or str(getattr(fn, "__name__", "function")), version)
    for fmt in names:
        made.policy(fmt)
    return made


SUBJECTS: dict[str, Callable[[], Any]] = {"ours": Ours, "ml_dtypes": MlDtypes, "torch": Torch, "gfloat": Gfloat}
"""The codecs known by name. "ours/ieee" is ours under another policy."""

_REQUIRED = {
    "casts": ("name", "version", "formats", "policy", "roundings", "round"),
    "arithmetic": ("name", "version", "formats", "policy", "roundings", "operations", "apply"),
    "dots": ("name", "version", "formats", "products", "matmul"),
    "quantizers": ("name", "version", "formats", "schemes", "fake_quantize"),
}

UNDER_A_POLICY = ("casts", "arithmetic")
"""The kinds of which "ours/POLICY" is one."""


def named(kind: str) -> dict[str, Callable[..., Any]]:
    """The subjects of a kind by name."""
    from properties.operators import ARITHMETICS, DOTS
    from properties.quantizers import QUANTIZERS

    return {"casts": SUBJECTS, "arithmetic": ARITHMETICS, "dots": DOTS, "quantizers": QUANTIZERS}[kind]


def load(spec: str, kind: str = "casts") -> Any:
    """The subject of a name, of one kind ("casts", "arithmetic", "dots", "quantizers"), or of "module:object".

    The object is an instance, or a callable that makes one, of whatever kinds. Raises ValueError when there is no such
    subject, or its library or module cannot be imported; TypeError when the object lacks part of the protocol of its
    kind. Both say what to do.
    """
    table = named(kind)
    if ":" in spec:
        subject: Any = _import(spec)
        _complete(spec, subject)
        return subject
    if spec.startswith("ours/") and kind in UNDER_A_POLICY:
        subject = table["ours"](spec.removeprefix("ours/"))
        subject.policy("float32")  # refuses an unknown policy here rather than in the first law
        return subject
    if spec in table:
        try:
            return table[spec]()
        except ImportError as missing:
            raise ValueError(f"subject {spec!r} needs a package that is not installed: pip install {spec}") from missing
    near = difflib.get_close_matches(spec, table, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown subject {spec!r}: {hint}known are {', '.join(table)}; give your own as module:object")


def _complete(spec: str, subject: object) -> None:
    """Refuse what lacks part of the protocol of its kinds: what is of none, as an incomplete codec."""
    for kind in kinds(subject) or [KINDS["casts"]]:
        lacking = [part for part in _REQUIRED[kind.name] if not hasattr(subject, part)]
        if lacking:
            raise TypeError(
                f"subject {spec!r} is a {type(subject).__name__} without {', '.join(lacking)}; "
                f"see {_PROTOCOLS[kind.name]}, or wrap one function with properties.from_function"
            )


_PROTOCOLS = {
    "casts": "properties.subjects.Codec",
    "arithmetic": "properties.operators.Arithmetic",
    "dots": "properties.operators.Dot",
    "quantizers": "properties.quantizers.Quantizer",
}


def _import(spec: str) -> Any:
    module, _, path = spec.partition(":")
    try:
        thing: Any = importlib.import_module(module)
    except ImportError as failed:
        raise ValueError(f"subject {spec!r}: module {module!r} cannot be imported ({failed})") from failed
    for part in path.split("."):
        if not hasattr(thing, part):
            raise ValueError(f"subject {spec!r}: {module!r} has no {path!r}")
        thing = getattr(thing, part)
    if not callable(thing) or (kinds(thing) and not isinstance(thing, type)):
        return thing
    try:
        inspect.signature(thing).bind()
    except TypeError:
        raise TypeError(
            f"subject {spec!r} is a {type(thing).__name__} that takes arguments: wrap a cast, "
            f"codec = properties.from_function({path}, formats=[...]), and give {module}:codec"
        ) from None
    return thing()


# --- Attention --------------------------------------------------------------------------------------------------------


class Attention(Protocol):
    """Attention of (batch, heads, length, dim) tensors, fewer key and value heads than query heads included.

    The options it is passed are `causal="top_left"|"bottom_right"` and `scale=`, only where the problem has them, and
    `tile_q=`, `tile_k=` if it takes both. It may have an attribute `tile_k`: it then claims to sum as
    `attention.flash_attention` does with that tile size and is judged by the tighter bound.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, /, **options: Any) -> Any:
        """out, or (out, lse) with a natural lse, or an object that unpacks into them."""


class OurAttention:
    """`attention.flash_attention`, computed on a device (by default where the tensors are; the answer comes back)."""

    def __init__(self, tile_q: int = 64, tile_k: int = 64, *, device: str = "") -> None:
        self.name = f"ours on {device}" if device else "ours"
        self.device = device
        self.tile_q = tile_q
        self.tile_k = tile_k

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: Alignment | None = None,
        scale: float | None = None,
        tile_q: int | None = None,
        tile_k: int | None = None,
    ) -> AttentionResult:
        """Attention with these tiles, those of the constructor by default."""
        import attention as A

        mask = A.causal(causal) if causal else None
        tile_q, tile_k = tile_q or self.tile_q, tile_k or self.tile_k
        home = q.device
        q, k, v = (x.to(self.device or home) for x in (q, k, v))
        out, lse = A.flash_attention(q, k, v, mask=mask, scale=scale, tile_q=tile_q, tile_k=tile_k)
        return A.AttentionResult(out.to(home), lse.to(home))
