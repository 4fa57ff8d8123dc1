"""The oracle of scaled formats: scales, blocks and affine integers on exact rationals, slow and obvious.

It judges `scaling`, `schemes` and `quantization` and shares no code with them. A scale is a `fractions.Fraction`, a
logarithm is found by comparing fractions, and every rounding is one of `precision.exact`. Values are taken exactly as
they are: Python, NumPy and ml_dtypes scalars, Fractions, `exact.Number`.

Sources: OCP Microscaling Formats (MX) v1.0, 5.2 (blocks), 5.3 (elements), 5.4.1 (E8M0) and 6.3 (conversion); PTX ISA,
`cvt.rp.satfinite.ue8m0x2.f32`, and NVIDIA Transformer Engine, which calls it with amax * (1 / max) ("nvidia"); torchao
`ScaleCalculationMode` ("floor", "ceil", "even", "rceil"); NVIDIA, "Pretraining LLMs with NVFP4", arXiv 2509.25149, 2
(two levels of scales); Jacob et al., arXiv 1712.05877, 2.1 and ONNX QuantizeLinear (affine integers).

>>> from precision import exact_scaling
>>> {rule: float(exact_scaling.scale(150, "float8_e4m3fn", rule)) for rule in exact_scaling.POWER_RULES}
{'ocp_floor': 0.5, 'ceil': 1.0, 'even': 0.5, 'rceil': 0.5, 'nvidia': 0.5}
>>> block = exact_scaling.mx_block([960, 957, -0.0], "float8_e4m3fn")
>>> block.exponent, block.codes, [float(v) for v in block.values]
(1, (126, 126, 128), [896.0, 896.0, -0.0])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypedDict, Unpack

from precision import exact
from precision.exact import Number
from precision.formats import AnyFormat, Format, IntFormat, get_format
from precision.policies import Policy, Rounding

__all__ = [
    "POWER_RULES",
    "Affine",
    "Block",
    "TwoLevel",
    "affine",
    "affine_parameters",
    "mx_block",
    "scale",
    "two_level",
]

POWER_RULES = ("ocp_floor", "ceil", "even", "rceil", "nvidia")
"""The rules that give powers of two; `scale` knows "amax", too."""

_INFINITE, _NAN = Number("infinity"), Number("nan")


class Elements(TypedDict, total=False):
    """How elements are rounded: `rounding` and `policy` of `precision.exact`, by default those of its `round`."""

    rounding: str | Rounding
    policy: str | Policy


# --- Powers of two ----------------------------------------------------------------------------------------------------


def _power(k: int) -> Fraction:
    return Fraction(2) ** k


def _floor_log2(x: Fraction) -> int:
    """The k with 2^k <= x < 2^(k+1), of a positive number."""
    k = x.numerator.bit_length() - x.denominator.bit_length()  # this one or the next lower one
    return k if _power(k) <= x else k - 1


def _ceil_log2(x: Fraction) -> int:
    """The k with 2^(k-1) < x <= 2^k, of a positive number."""
    k = _floor_log2(x)
    return k if x == _power(k) else k + 1


def _largest(fmt: AnyFormat) -> Fraction:
    """The largest value of a format."""
    value: Fraction = exact.round_value(_INFINITE, fmt, policy="saturate").value
    return value


def _smallest(fmt: Format) -> Fraction:
    """The smallest positive value of a format: that of its first code, or of the one after zero."""
    return exact.decode(1 if fmt.zero else 0, fmt).value


def _digits(element: AnyFormat) -> int:
    """The significant binary digits of the largest element value after the first one."""
    return element.mantissa_bits if isinstance(element, Format) else int(_largest(element)).bit_length() - 1


def _exponent(amax: Fraction, element: AnyFormat, largest: Fraction, rule: str) -> int:
    """The exponent that a rule of real numbers gives for a positive amax, not clamped."""
    emax = _floor_log2(largest)
    if rule == "ocp_floor":
        return _floor_log2(amax) - emax
    if rule == "ceil":
        return _ceil_log2(amax) - emax
    if rule == "even":
        spacing = _power(_floor_log2(amax) - _digits(element))
        return _floor_log2((amax / spacing + Fraction(1, 2)) // 1 * spacing) - emax
    assert rule == "rceil"
    return _ceil_log2(amax / largest)


def scale(
    amax: Any,
    element: AnyFormat | str,
    rule: str = "ocp_floor",
    scale_format: Format | str = "float8_e8m0fnu",
    *,
    fraction_bits: int = 0,
) -> Fraction:
    """The scale that a rule gives for a block whose largest magnitude is `amax`, exactly.

    With max the largest element value (its integers times 2^-fraction_bits) and emax = floor(log2 max):

    ocp_floor  2^(floor(log2 amax) - emax): OCP MX v1.0, 6.3
    ceil       2^(ceil(log2 amax) - emax)
    even       2^(floor(log2 a) - emax), a = amax rounded to the significant digits of max, a tie up
    rceil      the smallest 2^k with amax <= max * 2^k
    nvidia     the smallest 2^k not below float32(amax * float32(1 / max)), every operation rounded to nearest even
    amax       amax / max, rounded once to `scale_format`, to nearest even, saturating

    Powers of two are clamped to those that `scale_format` holds: E8M0's are 2^-127 to 2^127, float32's 2^-149 to 2^127.
    An amax of 0 gives the smallest of them; "amax" gives 0, or the smallest value of a format without zero.

    MXINT8 is element="int8" with fraction_bits=6 (OCP MX v1.0, 5.3.4). Raises ValueError for an unknown rule and for an
    amax that is negative, infinite or NaN.

    >>> [float(scale(a, "float8_e4m3fn", "amax", "float32")) for a in (448, 0)]
    [1.0, 0.0]
    """
    fmt, target, a = get_format(element), get_format(scale_format), Number.of(amax)
    if rule not in (*POWER_RULES, "amax"):
        raise ValueError(f"scale rule is {rule!r}; it must be one of {', '.join(POWER_RULES)}, amax")
    if not isinstance(target, Format):
        raise ValueError(f"scale_format is {target.name}; it must be a floating-point format")
    if a.kind != "finite" or a.value < 0:
        raise ValueError(f"amax is {amax!r}; a scale is made of a finite magnitude, at least 0")
    largest = _largest(fmt) / _power(fraction_bits)
    if rule == "amax":
        value: Fraction = exact.round_value(a.value / largest, target, policy="saturate").value
        return value
    least, most = _floor_log2(_smallest(target)), _floor_log2(_largest(target))
    if rule == "nvidia":
        a = exact.mul(a, exact.div(1, largest, "float32"), "float32", result="number")
        if a.kind == "infinity":
            return _power(most)
    if not a.value:
        return _power(least)
    exponent = _ceil_log2(a.value) if rule == "nvidia" else _exponent(a.value, fmt, largest, rule)
    return _power(min(max(exponent, least), most))


# --- Blocks with one scale --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block: the exponent of its scale, None of a scale that is NaN; the codes and exact values of its elements."""

    exponent: int | None
    codes: tuple[int, ...]
    values: tuple[Number, ...]


def _amax(numbers: Iterable[Number]) -> Fraction:
    """The largest finite magnitude; 0 of none."""
    return max((abs(x.value) for x in numbers), default=Fraction(0))


def _divided(x: Number, by: Fraction) -> Number:
    """x / by, of a `by` that is not negative: x / 0 is infinite, and 0 / 0 is that 0."""
    if x.kind != "finite" or x.is_zero:
        return x
    return Number("finite", x.negative, x.value / by) if by else Number("infinity", x.negative)


def _multiplied(x: Number, by: Fraction) -> Number:
    """x * by, of a `by` that is not negative; the sign of x is that of the zero, too."""
    return Number("finite", x.negative, x.value * by) if x.kind == "finite" else x


def _codes(numbers: list[Number], element: AnyFormat, how: Elements) -> tuple[int, ...]:
    return tuple(int(code) for code in exact.round(numbers, element, **how)) if numbers else ()


def _no_codes(count: int, element: AnyFormat) -> tuple[int, ...]:
    """What stands in a block whose scale is NaN, where no code has a meaning: the element's NaN or, without one, 0."""
    return (int(exact.round(_NAN, element, policy=Policy(missing_nan="zero"))),) * count


def _specials(numbers: list[Number], nonfinite: str) -> bool:
    """Whether the block's scale is NaN; ValueError for a choice that there is not, and under "raise"."""
    if nonfinite not in ("nan", "finite", "raise"):
        raise ValueError(f"nonfinite is {nonfinite!r}; it must be one of nan, finite, raise")
    special = any(x.kind != "finite" for x in numbers)
    if special and nonfinite == "raise":
        raise ValueError("the block holds Inf or NaN, and nonfinite is 'raise'")
    return special and nonfinite == "nan"


def mx_block(
    values: Iterable[Any],
    element: AnyFormat | str,
    *,
    rule: str = "ocp_floor",
    scale_format: Format | str = "float8_e8m0fnu",
    zero_block: str = "smallest",
    nonfinite: str = "nan",
    fraction_bits: int = 0,
    **how: Unpack[Elements],
) -> Block:
    """A block of elements with one scale that is a power of two: OCP MX v1.0, 5.2 and 6.3.

    An element is value / scale (times 2^fraction_bits), rounded once as `how` says: by default to nearest even, beyond
    the largest element to it. -0 is kept where the element has one. Blocks may have any length.

    zero_block  the scale of a block of zeros: "smallest" of the format, or "one"
    nonfinite   a block that holds Inf or NaN: "nan": its scale is NaN, and so are all its values; "finite": its scale
                is that of its other elements, and Inf and NaN are rounded as `how` says; "raise"

    The values are exact, not rounded to a dtype. Raises ValueError for other choices, and as `scale`.

    >>> mx_block([1, float("inf")], "float4_e2m1fn").exponent is None
    True
    >>> mx_block([0, 0], "float4_e2m1fn").exponent
    -127
    """
    if zero_block not in ("smallest", "one"):
        raise ValueError(f"zero_block is {zero_block!r}; for powers of two it must be one of smallest, one")
    if rule not in POWER_RULES:
        raise ValueError(f"scale rule is {rule!r}; for powers of two it must be one of {', '.join(POWER_RULES)}")
    fmt, numbers = get_format(element), [Number.of(x) for x in values]
    if _specials(numbers, nonfinite):
        return Block(None, _no_codes(len(numbers), fmt), (_NAN,) * len(numbers))
    amax = _amax(numbers)
    shared = scale(amax, fmt, rule, scale_format, fraction_bits=fraction_bits)
    if not amax and zero_block == "one":
        shared = Fraction(1)
    unit = shared / _power(fraction_bits)
    codes = _codes([_divided(x, unit) for x in numbers], fmt, how)
    return Block(_floor_log2(shared), codes, tuple(_multiplied(exact.decode(c, fmt), unit) for c in codes))


# --- Two levels of scales ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoLevel:
    """A tensor with a scale, and blocks with scales in it: the exact recipe of NVFP4.

    The scales of blocks are those that are stored: a value is its element times the scale of its block times that of
    the tensor.
    """

    tensor_scale: Fraction
    scales: tuple[Number, ...]
    scale_codes: tuple[int, ...]
    codes: tuple[int, ...]
    values: tuple[Number, ...]


def two_level(
    values: Iterable[Any],
    element: AnyFormat | str = "float4_e2m1fn",
    block: int = 16,
    scale_format: Format | str = "float8_e4m3fn",
    *,
    zero_block: str = "zero",
    nonfinite: str = "nan",
    **how: Unpack[Elements],
) -> TwoLevel:
    """A tensor (its elements in a row) in blocks of `block`; the last one may be shorter. arXiv 2509.25149, 2.

    The tensor's scale is amax / (element max * scale max), rounded once to float32; 1 where that is 0. A block's scale
    is its amax / (element max * tensor scale), rounded once to `scale_format`, to nearest even, saturating; an element
    is x / (block's scale * tensor's scale), rounded once as `how` says. Nothing else is rounded.

    zero_block  the scale of a block of zeros: "zero", "smallest" or "one". Where it is "zero" a block whose scale
                rounds to zero keeps it, and what is not zero in it becomes the largest element, times zero; elsewhere
                it has the smallest scale
    nonfinite   a block that holds Inf or NaN: "nan": its scale is NaN, and so are its values, and it does not count for
                the tensor's scale; "finite", "raise": as `mx_block`

    Raises ValueError for other choices, and for a scale format without the NaN or the zero that a choice needs.

    >>> t = two_level([2688, 6] + [0] * 14 + [6 / 256])
    >>> float(t.tensor_scale), [float(s) for s in t.scales], [t.codes[i] for i in (0, 1, 16)]
    (1.0, [448.0, 0.00390625], [7, 0, 7])
    """
    if zero_block not in ("zero", "smallest", "one"):
        raise ValueError(f"zero_block is {zero_block!r}; it must be one of zero, smallest, one")
    if block < 1:
        raise ValueError(f"block is {block!r}; it must be a number of elements of at least 1")
    fmt, target, numbers = get_format(element), get_format(scale_format), [Number.of(x) for x in values]
    if not isinstance(target, Format) or target.nan == "none" or not target.zero:
        raise ValueError(f"scale_format is {target.name}; it must be a floating-point format with a zero and a NaN")
    blocks = [numbers[i : i + block] for i in range(0, len(numbers), block)]
    special = [_specials(b, nonfinite) for b in blocks]
    largest = _largest(fmt)
    tensor_amax = max((_amax(b) for b, bad in zip(blocks, special, strict=True) if not bad), default=Fraction(0))
    tensor = exact.round_value(tensor_amax / (largest * _largest(target)), "float32").value or Fraction(1)

    scales: list[Number] = []
    codes: list[int] = []
    found: list[Number] = []
    for numbers, bad in zip(blocks, special, strict=True):
        if bad:
            scales.append(_NAN)
            codes += _no_codes(len(numbers), fmt)
            found += [_NAN] * len(numbers)
            continue
        amax = _amax(numbers)
        shared = scale(amax / tensor, fmt, "amax", target)
        if zero_block != "zero" and not shared:
            shared = _smallest(target) if amax or zero_block == "smallest" else Fraction(1)
        scales.append(Number("finite", False, shared))
        unit = shared * tensor
        made = _codes([_divided(x, unit) for x in numbers], fmt, how)
        codes += made
        found += [_multiplied(exact.decode(c, fmt), unit) for c in made]
    return TwoLevel(tensor, tuple(scales), _codes(scales, target, {}), tuple(codes), tuple(found))


# --- Affine integers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """Integers with a scale and a zero point: (integer - zero_point) * scale is the value, exactly."""

    integers: tuple[int, ...]
    values: tuple[Fraction, ...]


def _integer_range(fmt: AnyFormat, restricted: bool) -> tuple[int, int]:
    if not isinstance(fmt, IntFormat):
        raise ValueError(f"{fmt.name} has no zero point: affine quantization is that of an integer format")
    if not fmt.signed:
        if restricted:
            raise ValueError(f"{fmt.name} is unsigned: restricted leaves out the most negative integer, which it lacks")
        return 0, (1 << fmt.bits) - 1
    top = 1 << (fmt.bits - 1)
    return (1 - top if restricted else -top), top - 1


def _nearest(x: Fraction) -> int:
    """The nearest integer, of two the even one."""
    below = x // 1
    half = x - below - Fraction(1, 2)
    return below + (half > 0 or (half == 0 and below % 2 == 1))


def _steps(x: Number, step: Fraction, zero_point: int, order: str, division: str) -> Number:
    """What is rounded to an integer: x in steps, with the zero point unless it is added later."""
    y: Number
    if division == "exact":
        y = _divided(x, step)
        return Number.of(y.value + zero_point) if order == "before_rounding" and y.kind == "finite" else y
    if division == "divide":
        y = exact.div(x, step, "float32", result="number")
    else:
        reciprocal = exact.div(1, step, "float32", result="number")
        if order == "fused":
            y = exact.fma(x, reciprocal, zero_point, "float32", result="number")
            return y
        y = exact.mul(x, reciprocal, "float32", result="number")
    if order == "before_rounding":
        y = exact.add(y, zero_point, "float32", result="number")
    return y


def affine(
    values: Iterable[Any],
    fmt: IntFormat | str,
    scale: Any,
    zero_point: int = 0,
    *,
    zero_point_order: str = "after_rounding",
    division: str = "exact",
    restricted: bool = False,
    missing_nan: str = "zero",
) -> Affine:
    """Integers of `fmt` for values in steps of `scale`; ties to even, what is outside clipped, also ±Inf.

    division          "exact": the quotient of the exact numbers; "divide": x / scale rounded to float32; "reciprocal":
                      x * (1 / scale), both rounded to float32. The last two round the scale to float32 first
    zero_point_order  "after_rounding": round(x / scale) + zero_point; "before_rounding": round(x / scale + zero_point),
                      the sum rounded to float32 unless exact; "fused": of "reciprocal", product and sum rounded once
    missing_nan       what NaN becomes: "zero" (the zero point), "max", "min", "raise". x * (1 / scale) is NaN, too,
                      where x is zero and 1 / scale beyond float32

    ONNX QuantizeLinear divides and adds afterwards. torch 2.13 on x86 multiplies: fake_quantize_per_tensor_affine adds
    afterwards, quantize_per_channel before, quantize_per_tensor before and fused. `restricted` leaves the most negative
    integer out. Raises ValueError for other choices, a scale that is not positive and finite (or becomes so in
    float32), a zero point that is no integer of the format.

    >>> orders = "after_rounding", "before_rounding"
    >>> [affine([2.5, 1000], "uint8", 1, 1, zero_point_order=order).integers for order in orders]
    [(3, 255), (4, 255)]
    """
    target, step = get_format(fmt), Number.of(scale)
    low, high = _integer_range(target, restricted)
    if division not in ("exact", "divide", "reciprocal"):
        raise ValueError(f"division is {division!r}; it must be one of exact, divide, reciprocal")
    if zero_point_order not in ("after_rounding", "before_rounding", "fused"):
        raise ValueError(
            f"zero_point_order is {zero_point_order!r}; it must be one of after_rounding, before_rounding, fused"
        )
    if zero_point_order == "fused" and division != "reciprocal":
        raise ValueError(f"zero_point_order 'fused' is x * (1 / scale) + zero_point; division is {division!r}")
    if missing_nan not in ("zero", "max", "min", "raise"):
        raise ValueError(f"missing_nan is {missing_nan!r}; it must be one of zero, max, min, raise")
    if division != "exact":
        step = exact.round_value(step, "float32", policy="ieee")
    if step.kind != "finite" or step.value <= 0:
        raise ValueError(f"scale is {scale!r}; it must be positive and finite")
    if not low <= zero_point <= high:
        raise ValueError(f"zero_point is {zero_point}; it must be an integer from {low} to {high}")

    def integer(value: Any) -> int:
        y = _steps(Number.of(value), step.value, zero_point, zero_point_order, division)
        if y.kind == "nan":
            if missing_nan == "raise":
                raise ValueError("the values hold NaN, and missing_nan is 'raise'")
            return {"zero": zero_point, "max": high, "min": low}[missing_nan]
        if y.kind == "infinity":
            return low if y.negative else high
        n = _nearest(y.value) + (zero_point if zero_point_order == "after_rounding" else 0)
        return min(max(n, low), high)

    integers = tuple(integer(value) for value in values)
    return Affine(integers, tuple((n - zero_point) * step.value for n in integers))


def affine_parameters(
    low: Any,
    high: Any,
    fmt: IntFormat | str,
    *,
    symmetric: bool = False,
    restricted: bool = False,
    scale_format: Format | str = "float32",
) -> tuple[Fraction, int]:
    """The scale and zero point that map [low, high], widened to hold 0, to the integers of a format.

    Asymmetric: scale = (high - low) / (qmax - qmin) rounded once to `scale_format`, to nearest even; zero_point =
    qmin - low / scale, rounded to nearest even and clamped to [qmin, qmax]. Symmetric: scale = max(-low, high) / qmax
    and zero_point 0; of an unsigned format zero_point is its middle, and the divisor qmax less that. The scale is 1
    where low = high = 0, and the format's smallest where it would round to 0. Source: arXiv 1712.05877, 2.1.

    Raises ValueError for a range that is reversed or not finite, and for `restricted` of an unsigned format.

    >>> scale, zero_point = affine_parameters(-1, 3, "uint8")
    >>> float(scale), zero_point
    (0.01568627543747425, 64)
    """
    target, grid, ends = get_format(fmt), get_format(scale_format), (Number.of(low), Number.of(high))
    qmin, qmax = _integer_range(target, restricted)
    if not isinstance(grid, Format):
        raise ValueError(f"scale_format is {grid.name}; it must be a floating-point format")
    if any(end.kind != "finite" for end in ends) or ends[0].value > ends[1].value:
        raise ValueError(f"the range is {low!r} to {high!r}; it must be finite, and not reversed")
    bottom, top = min(ends[0].value, Fraction(0)), max(ends[1].value, Fraction(0))
    middle = 0 if qmin < 0 else (qmax + 1) // 2
    size, count = (max(-bottom, top), qmax - middle) if symmetric else (top - bottom, qmax - qmin)
    step: Fraction = Fraction(1)
    if size:
        step = exact.round_value(size / count, grid, policy="saturate").value or _smallest(grid)
    return step, middle if symmetric else min(max(_nearest(qmin - bottom / step), qmin), qmax)
