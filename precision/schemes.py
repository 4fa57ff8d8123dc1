"""Schemes: what elements, scales and order of operations a quantization has; the named ones, and those of libraries.

Sources: OCP Microscaling Formats (MX) v1.0, 5.2; NVIDIA, "Pretraining LLMs with NVFP4", arXiv 2509.25149; ONNX
QuantizeLinear; torch.quantize_per_tensor and torch.fake_quantize_per_tensor_affine (2.13).

>>> import precision as P
>>> P.scheme("nvfp4").bits_per_element, P.scheme("int4", block=128, scale_format="float16").bits_per_element
(4.5, 4.125)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from precision.formats import FORMATS, AnyFormat, Format, IntFormat, get_format
from precision.policies import Policy, Rounding, get_policy, mode_of
from precision.scaling import GRANULARITIES, POWER_RULES, integer_range

if TYPE_CHECKING:
    from precision.observers import Observer

__all__ = ["PRESETS", "SCHEMES", "Scheme", "scheme"]

_RECIPES = ("exact", "te", "torchao")
_DIVISIONS = ("exact", "divide", "reciprocal")
_ZERO_POINTS = ("after_rounding", "before_rounding", "fused")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "granularity": GRANULARITIES,
    "scale_rule": ("amax", *POWER_RULES),
    "recipe": _RECIPES,
    "zero_block": ("smallest", "zero", "one"),
    "nonfinite": ("nan", "finite", "raise"),
    "ragged": ("short", "pad", "raise"),
    "division": _DIVISIONS,
    "zero_point_order": _ZERO_POINTS,
    "missing_nan": ("zero", "integer_zero", "max", "min", "raise"),
}


@dataclass(frozen=True, eq=False)
class Scheme:
    """How an array is quantized; made by `scheme`, which documents every field."""

    name: str
    element: AnyFormat
    granularity: str = "tensor"
    block: int | tuple[int, int] | None = None
    scale_format: Format = FORMATS["float32"]  # type: ignore[assignment]
    scale_rule: str = "amax"
    tensor_scale: bool = False
    recipe: str = "exact"
    zero_block: str = "one"
    nonfinite: str = "nan"
    ragged: str = "short"
    symmetric: bool = True
    restricted: bool = False
    zero_point_order: str = "after_rounding"
    division: str = "exact"
    missing_nan: str = "zero"
    observer: Observer | None = None
    scale: Any = None
    zero_point: Any = None
    rounding: Rounding | str = "nearest_even"
    policy: Policy | str = "saturate"
    fraction_bits: int = 0

    def __post_init__(self) -> None:
        fmt = self.element
        endless = (
            IntFormat(f"int{fmt.bits + 2}", fmt.bits + 2)
            if isinstance(fmt, IntFormat)
            else Format(f"{fmt.name} without end", fmt.exponent_bits + 1, fmt.mantissa_bits, fmt.bias, False, "none")
        )
        object.__setattr__(self, "endless", endless)  # here, because compilers do not trace how a format is made

    endless: Any = field(init=False, repr=False, default=None)
    """The grid of the elements, continued beyond their range: for what is clipped, and for a zero point to be added."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_power(self) -> bool:
        """Whether scales are powers of two."""
        return self.scale_rule != "amax"

    @property
    def is_integer(self) -> bool:
        return isinstance(self.element, IntFormat)

    @property
    def least(self) -> int:
        """The exponent of the smallest positive element value."""
        return self.element.least_parts[1]

    @property
    def scale_exponents(self) -> tuple[int, int]:
        """The least and largest exponent of a scale, if it is a power of two: as element codes are multiplied by."""
        fmt = self.scale_format
        return fmt.least_parts[1] - self.fraction_bits, fmt.emax - self.fraction_bits

    @property
    def bits_per_element(self) -> float:
        """Bits stored for an element, with its share of the block's scale and zero point.

        Of "tensor", "channel" and "row", whose scales are shared by as many elements as the array has: none.
        """
        size = math.prod(self.block) if isinstance(self.block, tuple) else self.block
        zero = not self.symmetric or self.zero_point is not None
        shared = self.scale_format.bits + zero * self.element.bits
        return self.element.bits + (shared / size if size else 0.0)


# --- Schemes by name --------------------------------------------------------------------------------------------------


def _mx(name: str, element: str, **more: Any) -> dict[str, Any]:
    fmt = FORMATS["float8_e8m0fnu"]
    return {
        "name": name, "element": get_format(element), "granularity": "block", "block": 32, "scale_format": fmt,
        "scale_rule": "ocp_floor", "zero_block": "smallest", **more,
    }  # fmt: skip


_NAMED: dict[str, dict[str, Any]] = {
    "mxfp8_e4m3": _mx("mxfp8_e4m3", "float8_e4m3fn"),
    "mxfp8_e5m2": _mx("mxfp8_e5m2", "float8_e5m2"),
    "mxfp6_e3m2": _mx("mxfp6_e3m2", "float6_e3m2fn"),
    "mxfp6_e2m3": _mx("mxfp6_e2m3", "float6_e2m3fn"),
    "mxfp4": _mx("mxfp4", "float4_e2m1fn"),
    "mxint8": _mx("mxint8", "int8", fraction_bits=6),
    "nvfp4": {
        "name": "nvfp4", "element": FORMATS["float4_e2m1fn"], "granularity": "block", "block": 16,
        "scale_format": FORMATS["float8_e4m3fn"], "tensor_scale": True, "zero_block": "zero",
    },
}  # fmt: skip
_NAMED |= {
    name: {"name": name, "element": fmt, "symmetric": not isinstance(fmt, IntFormat) or fmt.signed}
    for name, fmt in FORMATS.items()
    if fmt.bits <= 8 and name != "float8_e8m0fnu"
}
_SAME = {"mxfp8": "mxfp8_e4m3", "mxfp4_e2m1": "mxfp4", "nvfp4_e2m1": "nvfp4"}

SCHEMES = tuple(_NAMED)
"""The named schemes."""

PRESETS: dict[str, dict[str, Any]] = {
    "onnx": {"division": "divide", "zero_point_order": "after_rounding", "missing_nan": "zero"},
    "torch_quantize": {"division": "reciprocal", "zero_point_order": "fused", "missing_nan": "max"},
    "torch_fake_quantize": {"division": "reciprocal", "zero_point_order": "after_rounding", "missing_nan": "min"},
}
"""How others quantize to integers with a given scale and zero point: the choices that reproduce their bits.

"onnx": QuantizeLinear (its reference converts |x / scale| from 2^31 on, Inf and NaN as x86 does; here they saturate).
"torch_quantize": torch.quantize_per_tensor; with granularity="channel" quantize_per_channel, which rounds the product
before it adds the zero point, and makes NaN the integer 0. "torch_fake_quantize": fake_quantize_per_tensor_affine, and
per channel but for what is 2^63 steps or more, which becomes the least integer there (torch 2.13 on CPU).
"""
_PER_CHANNEL: dict[str, dict[str, Any]] = {
    "torch_quantize": {"zero_point_order": "before_rounding", "missing_nan": "integer_zero"},
}


def scheme(name: Any, *, preset: str | None = None, **options: Any) -> Scheme:
    """A scheme by name, with some of its choices made otherwise.

    element          the format of the elements (that of the name)
    granularity      "tensor", "channel" (a scale for each index of the axis), "row" (for each vector along it), "block"
                     ("group" is the same): runs of `block` elements along the axis, or tiles, `block=(rows, columns)`
    scale_format     format of the scales: "float32", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn"..., or
                     "power_of_two": float32, but only powers of two
    scale_rule       "amax": amax / max, rounded to nearest even, once, to the scale format. For powers of two:
                     "ocp_floor", "ceil", "even", "rceil", "nvidia" (`precision.scaling.power_of_two`)
    tensor_scale     True: a second, float32 scale for the whole tensor, amax / (element max * scale format's max), and
                     block scales relative to it
    recipe           order of operations where a scale is no power of two. "exact": every scale and element is the
                     quotient of real numbers, rounded once. "te": Transformer Engine's reference (x * (1 / (scale *
                     tensor_scale)), in float32); "torchao": torchao 0.18 (x * ((1 / tensor_scale) / scale), scales not
                     below the smallest normal number). The last two exist for "nvfp4"
    zero_block       scale of a block of zeros: "smallest" of the format, "zero" or "one"
    nonfinite        a block that holds Inf or NaN: "nan": so is its scale, and every value; "finite": its scale is that
                     of the other elements, Inf becomes the largest value, NaN what the policy says; "raise"
    ragged           an axis that blocks do not divide: "short": the last block has fewer elements; "pad": codes of
                     zeros are stored to its end; "raise"
    symmetric        of integers: whether zero_point is fixed, at 0 (of unsigned ones at the middle)
    restricted       of signed integers: the most negative one is not used
    division         of integers and of float formats with a float32 scale: "exact" (one rounding), "divide" (x / scale
                     rounded to float32 first), "reciprocal" (x * (1 / scale), both in float32)
    zero_point_order "after_rounding": round(x / scale) + zero_point; "before_rounding": round(x / scale + zero_point),
                     the sum rounded to the working dtype; "fused": that sum, with division="reciprocal", by one fma
    missing_nan      what NaN becomes in an integer format: "zero" (0.0), "integer_zero", "max", "min", "raise"
    observer         what the range of a block is, if not its largest magnitude: see `precision.observers`
    scale, zero_point  given instead of measured: numbers, or arrays of the shape of the scales
    rounding, policy  of the elements, as in `round_to`

    `preset` sets the choices that give the bits of a library; see `PRESETS`. Raises ValueError for unknown names and
    for choices that contradict each other.
    """
    if not options and preset is None and isinstance(name, str) and name in _MADE:
        return _MADE[name]  # which compilers can trace
    key: Any = _SAME.get(name, name) if isinstance(name, str) else name
    if key not in _NAMED:
        try:
            key = get_format(key).name
        except (ValueError, TypeError):
            key = None
        if key not in _NAMED:
            import difflib

            near = difflib.get_close_matches(str(name), [*_NAMED, *_SAME], n=3, cutoff=0.5)
            meant = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(_NAMED)}"
            raise ValueError(f"unknown scheme {name!r}: {meant}")
    made = dict(_NAMED[key])
    if preset is not None:
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}: use one of {', '.join(PRESETS)}")
        if not isinstance(made["element"], IntFormat):
            raise ValueError(f"preset {preset!r} is of integer schemes; {name} has elements of {made['element'].name}")
        made |= {**PRESETS[preset], "symmetric": False}
        if options.get("granularity", "tensor") != "tensor":
            made |= _PER_CHANNEL.get(preset, {})
    known = {f.name for f in fields(Scheme)} - {"name", "endless"}
    for option in options:
        if option not in known:
            raise ValueError(f"scheme has no option {option!r}: there are {', '.join(sorted(known))}, and preset")
    made |= options
    return _checked(made, options)


def _checked(made: dict[str, Any], given: dict[str, Any]) -> Scheme:
    """The scheme of these fields; ValueError for what is unknown or contradicts itself."""
    element = made["element"] = get_format(made["element"])
    if made.get("granularity") == "group":
        made["granularity"] = "block"
    block = made.get("block")
    if "granularity" not in given and "block" in given:
        made["granularity"] = "block"
    if made.get("scale_format") == "power_of_two":
        made["scale_format"] = FORMATS["float32"]
        made.setdefault("scale_rule", "ocp_floor")
    made["scale_format"] = get_format(made.get("scale_format", "float32"))
    if made["scale_format"].name == "float8_e8m0fnu":
        made.setdefault("scale_rule", "ocp_floor")
        made.setdefault("zero_block", "smallest")
    for option, allowed in _CHOICES.items():
        if option in made and made[option] not in allowed:
            raise ValueError(f"{option} is {made[option]!r}; it must be one of {', '.join(allowed)}")
    if (made.get("granularity") == "block") != (block is not None):
        if block is None:
            raise ValueError("granularity 'block' needs block=, the number of elements that share a scale")
        made["block"] = block = None
    if block is not None:
        made["block"] = _block(block)
    for option in ("tensor_scale", "symmetric", "restricted"):
        if option in made and not isinstance(made[option], bool):
            raise ValueError(f"{option} is {made[option]!r}; it must be True or False")
    if isinstance(made.get("observer"), str):
        from precision.observers import OBSERVERS

        if made["observer"] not in OBSERVERS:
            raise ValueError(
                f"observer is {made['observer']!r}; it must be one of {', '.join(OBSERVERS)}, or an Observer"
            )
        made["observer"] = OBSERVERS[made["observer"]]
    if isinstance(element, IntFormat) and element.bits > 16:
        raise ValueError(f"{element.name} is too wide: integers of up to 16 bits are quantized to")
    s = Scheme(**made)
    mode_of(s.rounding)
    get_policy(s.policy, element)
    if s.scale_format.bits > 32 or not isinstance(s.scale_format, Format):
        raise ValueError(f"scale_format is {s.scale_format.name}; it must be a float format of at most 32 bits")
    if s.scale_format.mantissa_bits == 0 and not s.is_power:
        raise ValueError(f"{s.scale_format.name} holds powers of two only: scale_rule must be {', '.join(POWER_RULES)}")
    if s.recipe != "exact" and not (s.tensor_scale and element.name == "float4_e2m1fn"):
        raise ValueError(f"recipe {s.recipe!r} is defined for nvfp4 with its tensor scale; {s.name} has 'exact'")
    if not s.scale_format.zero and s.zero_block == "zero":
        raise ValueError(f"{s.scale_format.name} has no zero: zero_block must be 'smallest' or 'one'")
    if s.is_integer:
        integer_range(element, s.restricted)  # type: ignore[arg-type]
    elif not s.symmetric or s.zero_point is not None or s.restricted:
        raise ValueError(f"zero points, symmetric=False and restricted are of integers; {element.name} has none")
    if s.zero_point_order == "fused" and s.division != "reciprocal":
        raise ValueError("zero_point_order 'fused' is x * (1 / scale) + zero_point: it needs division='reciprocal'")
    if not s.symmetric and (s.is_power or s.tensor_scale):
        raise ValueError("symmetric=False needs scale_rule='amax' and no tensor scale")
    if (s.scale is None) != (s.zero_point is None) and s.zero_point is not None:
        raise ValueError("zero_point is given without scale: give both")
    return s


def _block(block: Any) -> int | tuple[int, int]:
    parts = tuple(block) if isinstance(block, tuple | list) else (block,)
    if len(parts) not in (1, 2) or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in parts):
        raise ValueError(f"block is {block!r}; it must be a number of elements of at least 1, or (rows, columns)")
    return parts[0] if len(parts) == 1 else parts


_MADE: dict[str, Scheme] = {}
_MADE |= {name: scheme(name) for name in (*_NAMED, *_SAME)}
