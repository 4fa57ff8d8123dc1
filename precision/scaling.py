"""Scales: which elements share one, what is measured of them, and the scale that follows.

A *block* is a set of elements that share a scale. `Blocks` says which: all of a tensor, one index of a channel axis,
a vector along an axis, or runs and tiles of it. A *scale rule* makes a scale of the block's largest magnitude (amax).
Rules for scales that are powers of two read exponents from bit patterns, never from a logarithm, so they are exact at
every power of two and its neighbours, subnormals included.

Sources: OCP Microscaling Formats (MX) v1.0, 6.3; PTX ISA `cvt.rp.satfinite.ue8m0x2.f32`; for the rules' names torchao's
`ScaleCalculationMode` (floor, ceil, even, rceil). Affine integers: Jacob et al., arXiv 1712.05877, and ONNX
QuantizeLinear.

>>> import numpy as np
>>> x = np.float32([[127.99999, 1, 0, -3], [960, 957, 2, 1]])
>>> [power_of_two(np.abs(x).max(1), "float8_e4m3fn", rule).tolist() for rule in ("ocp_floor", "rceil")]
[[0.25, 2.0], [0.5, 4.0]]
>>> affine_parameters(-1.0, 3.0, "uint8")
(0.01568627543747425, 64)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision._array import FLOAT32, FLOAT64, NUMPY, Layout
from precision.formats import AnyFormat, Format, IntFormat, get_format
from precision.rounding import round_to

__all__ = [
    "GRANULARITIES",
    "POWER_RULES",
    "Blocks",
    "affine_parameters",
    "blocks_of",
    "identify_scale_rule",
    "power_of_two",
]

GRANULARITIES = ("tensor", "channel", "row", "block")
"""What shares a scale: everything; one index of `axis`; one vector along `axis`; `block` neighbours along `axis`."""

POWER_RULES = ("ocp_floor", "ceil", "even", "rceil", "nvidia")
"""Rules for scales that are powers of two; see `power_of_two`."""


# --- Which elements share a scale -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """The blocks of an array: `view`, a shape it is reshaped to after padding, and the axes that a scale spans.

    shape   of the array                         padded  the shape with ragged ends filled up
    view    of the padded array, axes split      spans   axes of the view that share a scale
    scales  shape of the scales: the view without `spans` (that of the array's rank for tiles and runs)
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    view: tuple[int, ...]
    spans: tuple[int, ...]
    scales: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of scales that broadcasts against the view."""
        return tuple(1 if i in self.spans else n for i, n in enumerate(self.view))

    @property
    def ragged(self) -> bool:
        """Whether some block is shorter than the others."""
        return self.padded != self.shape

    @property
    def size(self) -> int:
        """Elements of a whole block."""
        return math.prod(self.view[i] for i in self.spans)


def blocks_of(
    shape: tuple[int, ...], granularity: str, block: int | tuple[int, int] | None = None, axis: int | None = None
) -> Blocks:
    """The blocks of an array of this shape.

    `axis` is the channel axis of "channel" (default 0), the axis that a scale runs along for "row" and "block" (default
    -1), and without a meaning for "tensor" and tiles, `block=(rows, columns)` of the last two axes.
    Raises ValueError for an unknown granularity, a block below 1, an axis that the array does not have.
    """
    rank = len(shape)
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity is {granularity!r}; it must be one of {', '.join(GRANULARITIES)}")
    if granularity == "tensor":
        view = shape or (1,)  # a single number is seen as an array of one
        return Blocks(shape, shape, view, tuple(range(len(view))), ())
    if isinstance(block, tuple):
        return _tiles(shape, block)
    if rank == 0:
        raise ValueError(f"a single number has no axis for granularity {granularity!r}: use 'tensor', or reshape it")
    at = (0 if granularity == "channel" else -1) if axis is None else axis
    if not -rank <= at < rank:
        raise ValueError(f"axis is {at}; an array of shape {shape} has axes {-rank} to {rank - 1}")
    at %= rank
    if granularity == "channel":
        return Blocks(shape, shape, shape, tuple(i for i in range(rank) if i != at), (shape[at],))
    if granularity == "row":
        return Blocks(shape, shape, shape, (at,), shape[:at] + shape[at + 1 :])
    assert isinstance(block, int)
    count = -(-shape[at] // block)
    padded = (*shape[:at], count * block, *shape[at + 1 :])
    view = (*shape[:at], count, block, *shape[at + 1 :])
    return Blocks(shape, padded, view, (at + 1,), (*shape[:at], count, *shape[at + 1 :]))


def _tiles(shape: tuple[int, ...], block: tuple[int, int]) -> Blocks:
    if len(shape) < 2:
        raise ValueError(f"tiles of {block[0]} by {block[1]} need two axes; the array has shape {shape}")
    *before, rows, columns = shape
    counts = [-(-n // b) for n, b in zip((rows, columns), block, strict=True)]
    padded = (*before, counts[0] * block[0], counts[1] * block[1])
    view = (*before, counts[0], block[0], counts[1], block[1])
    lead = len(before)
    return Blocks(shape, padded, view, (lead + 1, lead + 3), (*before, *counts))


# --- Powers of two ----------------------------------------------------------------------------------------------------


def largest_parts(fmt: AnyFormat) -> tuple[int, int]:
    """The largest value of a format as (fraction * 2^52, exponent): max = (1 + fraction) * 2^exponent."""
    mantissa, exponent = math.frexp(fmt.max)
    return int((2 * mantissa - 1) * 2**52), exponent - 1


def power_exponent(amax: Any, element: AnyFormat, rule: str, layout: Layout, ops: Any) -> Any:
    """The exponent that a rule gives for blocks of largest magnitude `amax`, a bit pattern (see `power_of_two`).

    Integers of the pattern's width, not yet clamped; of zero far below any exponent in use.
    """
    m, implicit = layout.mantissa_bits, layout.implicit
    if rule == "nvidia":
        amax, layout = _times_reciprocal(amax, element, layout, ops)
        m, implicit = layout.mantissa_bits, layout.implicit
    # A subnormal is the small integer of its pattern, times the smallest one.
    subnormal = amax < implicit
    magnitude = ops.where(subnormal, ops.float_pattern(amax, layout), amax)
    exponent = (magnitude >> m) - layout.bias - ops.where(subnormal, layout.bias - 1 + m + 0 * amax, 0 * amax)
    fraction = magnitude & (implicit - 1)
    if rule == "nvidia":
        return exponent + ops.where(fraction > 0, 1 + 0 * amax, 0 * amax)
    largest, emax = largest_parts(element)
    if rule == "ceil":
        exponent = exponent + ops.where(fraction > 0, 1 + 0 * amax, 0 * amax)
    elif rule == "even":
        digits = element.mantissa_bits if isinstance(element, Format) else element.bits - 2
        exponent = exponent + ((fraction + (1 << (m - digits - 1))) >> m)
    elif rule == "rceil":
        exponent = exponent + ops.where(fraction > largest >> (52 - m), 1 + 0 * amax, 0 * amax)
    return exponent - emax


def _times_reciprocal(amax: Any, element: AnyFormat, layout: Layout, ops: Any) -> tuple[Any, Layout]:
    """The pattern of float32(amax * float32(1 / max)), in float64's layout: the product of two float32 is exact there.

    A subnormal float32 result is rounded to its own spacing, and so is everything: by adding and taking away.
    """
    reciprocal = float(np.float32(1) / np.float32(element.max))
    wide = as_float64(amax, layout, ops)
    product = round_to(wide * reciprocal, "float32", policy="ieee")
    return ops.as_pattern(product), FLOAT64


def as_float64(pattern: Any, layout: Layout, ops: Any) -> Any:
    """The float64 values of non-negative patterns, by integer operations (right under flush-to-zero)."""
    from precision._patterns import _widen

    return ops.as_float(pattern if layout is FLOAT64 else _widen(pattern, layout, ops))


def power_of_two(amax: Any, element: AnyFormat | str, rule: str = "ocp_floor") -> Any:
    """The power of two that scales blocks of largest magnitude `amax` to an element format, as float64.

    With emax the exponent of the largest element value (8 for E4M3, 2 for E2M1; of an integer format that of its max):

    * ocp_floor: 2^(floor(log2 amax) - emax), OCP MX 6.3. The largest element may be clipped;
    * ceil: 2^(ceil(log2 amax) - emax);
    * even: as ocp_floor, of amax rounded half up to the element's significant digits (torchao EVEN);
    * rceil: the smallest power of two with amax <= max * 2^k: nothing is clipped;
    * nvidia: float32(amax * float32(1 / max)) rounded up to a power of two: rceil but for that rounding (PTX
      cvt.rp.satfinite.ue8m0x2.f32 as Transformer Engine calls it).

    `amax` are non-negative finite float32 or float64 numbers, of which float32 are read as they are. Zero gives 0.
    Raises ValueError for an unknown rule and for negative, infinite or NaN amax.
    """
    if rule not in POWER_RULES:
        raise ValueError(f"scale rule is {rule!r}; for powers of two it must be one of {', '.join(POWER_RULES)}")
    a = np.asarray(amax)
    a = a if a.dtype in (np.float32, np.float64) else a.astype(np.float64)
    if not (np.isfinite(a) & (a >= 0)).all():
        raise ValueError("amax holds negative, infinite or NaN magnitudes; a scale is made of finite ones, at least 0")
    layout = FLOAT32 if a.dtype == np.float32 else FLOAT64
    pattern = np.atleast_1d(a).view(f"int{layout.bits}")
    exponent = power_exponent(pattern, get_format(element), rule, layout, NUMPY)
    result = np.where(pattern == 0, 0.0, np.ldexp(1.0, exponent.astype(np.int64)))
    return result.reshape(a.shape)[()]


def identify_scale_rule(
    values: Any, scales: Any, element: AnyFormat | str, *, block: int | tuple[int, int] = 32, axis: int | None = None
) -> tuple[str, ...]:
    """The rules that give these scales for blocks of these values: which rule a checkpoint was made with.

    `values` are what was quantized (NumPy or torch), `scales` float powers of two, in the shape that `quantize` gives
    them, or E8M0 codes (uint8). Blocks of zeros, of Inf and of NaN say nothing. Scales of a rule are taken clamped to
    E8M0's exponents. Several rules remain where the values cannot tell them apart, none where no rule gives the scales.

    >>> import numpy as np, precision as P
    >>> x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    >>> q = P.quantize(x, P.scheme("mxfp4", scale_rule="even"))
    >>> P.identify_scale_rule(x, q.scales, "float4_e2m1fn")
    ('even',)
    """
    from precision._blockwise import padded
    from precision.codec import decode
    from precision.quantization import quantize
    from precision.schemes import scheme

    def array(x: Any) -> Any:
        return np.asarray(x.detach().cpu().float().numpy() if hasattr(x, "detach") and x.is_floating_point() else x)

    fmt = get_format(element)
    given = array(scales)
    given = np.asarray(decode(given, "float8_e8m0fnu") if given.dtype == np.uint8 else given, np.float64)
    x = array(values)
    found = []
    for rule in POWER_RULES:
        made = scheme("mxfp4", element=fmt, block=block, scale_rule=rule, fraction_bits=6 if fmt.name == "int8" else 0)
        q = quantize(x, made, axis)
        ours = np.asarray(q.scales, np.float64)
        if ours.shape != given.shape:
            raise ValueError(f"scales have shape {given.shape}; blocks of {block} of these values have {ours.shape}")
        told = np.isfinite(ours) & (padded(x, q.blocks) != 0).any(axis=q.blocks.spans)
        if np.array_equal(ours[told], given[told]):
            found.append(rule)
    return tuple(found)


# --- Affine integers --------------------------------------------------------------------------------------------------


def affine_parameters(
    low: Any,
    high: Any,
    fmt: IntFormat | str,
    *,
    symmetric: bool = False,
    restricted: bool = False,
    scale_format: Format | str = "float32",
) -> tuple[Any, Any]:
    """The scale and zero point that map [low, high], made to hold 0, to the integers of a format.

    Asymmetric: scale = (high - low) / (qmax - qmin), rounded once to `scale_format`, and zero_point = qmin - low /
    scale, rounded once, ties to even, and clamped to [qmin, qmax], so that 0.0 is an integer. Symmetric: scale =
    max(-low, high) / qmax, zero_point 0, or the middle of an unsigned format. `restricted` leaves out the most negative
    integer, so that [-127, 127] is used of int8. Where low = high = 0 the scale is 1.

    Numbers, or arrays of one shape; float64 scales, integer zero points. Raises ValueError for bounds that are not
    finite or low above high, and for a symmetric unsigned format together with `restricted`.
    """
    from precision._blockwise import odd

    f = get_format(fmt)
    if not isinstance(f, IntFormat):
        raise ValueError(f"{f.name} has no zero point: affine parameters are those of an integer format")
    lo, hi = (np.asarray(x, np.float64) for x in (low, high))
    if not (np.isfinite(lo) & np.isfinite(hi)).all() or (lo > hi).any():
        raise ValueError(f"the range is {low!r} to {high!r}; it must be finite, and not reversed")
    qmin, qmax = integer_range(f, restricted)
    lo, hi = np.minimum(lo, 0.0), np.maximum(hi, 0.0)
    if symmetric:
        middle = 0 if f.signed else (1 << f.bits) >> 1
        size, steps, fixed = np.maximum(-lo, hi), qmax - middle, middle
    else:
        size, steps, fixed = odd("sub", hi, lo), qmax - qmin, None
    scale = round_to(odd("div", size, float(steps)), scale_format, policy="saturate")
    scale = np.where(scale == 0, np.where(size == 0, 1.0, get_format(scale_format).smallest_subnormal), scale)
    if fixed is not None:
        zero = np.full(lo.shape, fixed, np.int64)
    else:
        zero = np.clip(round_to(odd("sub", float(qmin), odd("div", lo, scale)), "int32"), qmin, qmax).astype(np.int64)
    return (float(scale), int(zero)) if scale.ndim == 0 else (scale, zero)


def integer_range(fmt: IntFormat, restricted: bool) -> tuple[int, int]:
    """The least and largest integer in use."""
    if restricted and not fmt.signed:
        raise ValueError(f"{fmt.name} is unsigned: restricted leaves out the most negative integer, which it has not")
    return int(fmt.min) + restricted, int(fmt.max)
