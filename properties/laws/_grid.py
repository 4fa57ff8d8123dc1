"""The yardstick of the laws on casts: inputs that matter, the format's grid in plain float64, how a failure reads.

float64 holds exactly every float16 and float32 input, and every value and midpoint of formats of up to 52 significand
bits, so on the grid "the two neighbours", "half way" and "odd" are float64 arithmetic without an error. Nothing here
uses `precision.rounding` or `precision.codec`; `agrees_with_exact_rationals` ties it to `precision.exact`.

Source: IEEE 754-2019 sections 3.3 (the grid), 4.3 (directions) and 7.4 (overflow).

>>> import numpy as np
>>> import precision as P
>>> below(np.float32([1.0625]), P.float8_e4m3fn)
(array([1.]), array([1.125]), array([False]))
>>> critical_inputs("float4_e2m1fn").size
2698
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws import Broken

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from precision.formats import AnyFormat

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]

MIRROR = {"toward_positive": "toward_negative", "toward_negative": "toward_positive"}
"""Each mode that looks at the sign, and the one that mirrors it."""

# NaNs whose payload lies where a cast drops it (a carry then makes them infinite), quiet, signalling, full.
NAN_PATTERNS = (0x7FC00000, 0x7F800001, 0x7F810000, 0x7FA00000, 0x7F80684A, 0x7FF50000, 0x7FFFFFFF, 0x7FBFFFFF)


# --- Inputs ---------------------------------------------------------------------------------------------------------


def magnitude(code: Array, fmt: AnyFormat) -> Floats:
    """The values of codes without a sign bit, on the grid continued above max (compare Format.value_of_magnitude)."""
    code = np.asarray(code, np.int64)
    exponent, low = code >> fmt.mantissa_bits, (code & ((1 << fmt.mantissa_bits) - 1)).astype(np.float64)
    full = float(1 << fmt.mantissa_bits)
    scale = fmt.emin - fmt.mantissa_bits
    significand = full + low
    if fmt.zero:
        significand, exponent = np.where(exponent == 0, low, full + low), np.maximum(exponent - 1, 0)
    with np.errstate(over="ignore"):  # beyond max, for float64 itself
        values: Floats = np.ldexp(significand, exponent + scale)
    return values


def values_of(codes: Array, fmt: AnyFormat) -> Floats:
    """The values of codes: infinities and NaN where the format's row says."""
    codes = np.asarray(codes).astype(np.uint64)
    sign = np.uint64(fmt.sign_mask)
    negative = (codes & sign) != 0
    if isinstance(fmt, P.IntFormat):
        return codes.astype(np.float64) - np.where(negative, 2.0**fmt.bits, 0)
    size = (codes & ~sign).astype(np.int64)
    value = np.where(size <= fmt.max_code, magnitude(np.minimum(size, fmt.max_code), fmt), np.nan)
    if fmt.infinities:
        value = np.where(size == fmt.infinity_code, np.inf, value)
    value = np.where(negative, -value, value)
    return np.where(codes == sign, np.nan, value) if fmt.nan == "negative_zero" else value


def some_codes(fmt: AnyFormat) -> Array:
    """Codes without sign, to three beyond max: all up to 16 bits; of wider formats those at each binade's edges."""
    top = fmt.max_code + 3
    if fmt.bits <= 16:
        return np.arange(top + 1)
    m = fmt.mantissa_bits
    inside = np.array([0, 1, 2, 3, (1 << m) // 3, (1 << m) // 2 - 1, (1 << m) // 2, (1 << m) - 2, (1 << m) - 1])
    starts = np.arange((top >> m) + 1) << m
    if isinstance(fmt, P.IntFormat):  # one binade in this numbering: the powers of two instead
        starts, inside = 1 << np.arange(fmt.bits), np.arange(-3, 4)
    codes = np.unique(starts[:, None] + inside)
    return codes[(codes >= 0) & (codes <= top)]


def all_codes(fmt: AnyFormat) -> Array:
    """Every code up to 16 bits; of wider formats those at each binade's edges and the special ones, of both signs."""
    uint = np.uint8 if fmt.bits <= 8 else np.uint16 if fmt.bits <= 16 else np.uint32 if fmt.bits <= 32 else np.uint64
    if fmt.bits <= 16:
        return np.arange(1 << fmt.bits).astype(uint)
    size = some_codes(fmt).astype(np.uint64)
    if isinstance(fmt, P.IntFormat):
        size = size[size <= fmt.max_code]
        return np.concatenate([size, (1 << fmt.bits) - 1 - size]).astype(uint)
    return np.concatenate([size, size | np.uint64(fmt.sign_mask)]).astype(uint)


@functools.lru_cache(maxsize=64)
def critical_inputs(fmt: AnyFormat | str, dtype: DTypeLike = np.float32) -> Array:
    """The inputs at which a cast to `fmt` can go wrong, both signs, sorted by pattern, as a read-only array of `dtype`.

    Every value of the format (of formats wider than 16 bits: those around each binade's edges) and every midpoint, each
    with its neighbours at 1 and (of formats of up to 8 bits) 2 steps of `dtype`; the same around max and the overflow
    threshold; every power of two of `dtype` and its neighbours; zeros, subnormals of `dtype`, infinities, NaNs with
    payloads in high and low bits. For float64 also points just off each midpoint by less than float32 can see.

    `dtype` is float16, float32 or float64. Raises TypeError for another.
    """
    fmt, dtype = P.get_format(fmt), np.dtype(dtype)
    widths = {np.dtype(np.float16): np.uint16, np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}
    if dtype not in widths:
        raise TypeError(f"critical inputs are float16, float32 or float64, not {dtype}")
    uint = widths[dtype]
    info = np.finfo(dtype)
    values = magnitude(some_codes(fmt), fmt)
    between = np.concatenate([values[:-1] / 2 + values[1:] / 2, values[1:2] / 2 if fmt.zero else values[:1] / 2])
    points = np.concatenate([values, between, np.ldexp(1.0, np.arange(int(info.minexp), int(info.maxexp)))])
    with np.errstate(all="ignore"):
        centres = points[points <= float(info.max)].astype(dtype).view(uint).astype(np.int64)
    reach = 2 if fmt.bits <= 8 else 1
    patterns = centres[:, None] + np.arange(-reach, reach + 1)
    if dtype == np.float64:  # half of float32's spacing at the midpoint is 2^28 of float64's
        patterns = np.concatenate(
            [patterns, centres[:, None] + np.array([-(1 << 27), -(1 << 10), 1 << 10, 1 << 27])], axis=1
        )
    infinity = int(np.array(np.inf, dtype).view(uint))
    patterns = patterns[(patterns >= 0) & (patterns < infinity)]
    nans = np.array(NAN_PATTERNS, np.uint32).view(np.float32)
    few = np.array([0, 1, 2, 3, infinity - 1, infinity, infinity + 1], uint)
    with np.errstate(all="ignore"):
        few = np.concatenate([few, nans.astype(dtype).view(uint) if dtype != np.float32 else nans.view(uint)])
    half = np.unique(np.concatenate([patterns.astype(uint), few & uint((1 << (8 * dtype.itemsize - 1)) - 1)]))
    out = np.concatenate([half, half | uint(1 << (8 * dtype.itemsize - 1))]).view(dtype)
    out.flags.writeable = False
    return out


def random_inputs(count: int, dtype: DTypeLike = np.float32, *, seed: int = 0) -> Array:
    """`count` patterns of `dtype` drawn evenly, so every exponent, NaN payload and subnormal has its share."""
    dtype = np.dtype(dtype)
    return np.frombuffer(np.random.default_rng(seed).bytes(count * dtype.itemsize), dtype)


def around(points: Any, x: Array, steps: int = 2) -> Array:
    """`points` and their neighbours up to `steps` away, both signs, in the dtype of `x`, as far as they are finite."""
    uint = np.dtype(f"u{x.dtype.itemsize}")
    p = np.atleast_1d(np.asarray(points, np.float64))
    with np.errstate(all="ignore"):
        near = p[p <= float(np.finfo(x.dtype).max)].astype(x.dtype).view(uint).astype(np.int64)
    bits = np.unique(near[:, None] + np.arange(-steps, steps + 1))
    size = bits[(bits >= 0) & (bits < int(np.array(np.inf, x.dtype).view(uint)))].astype(uint).view(x.dtype)
    return np.concatenate([size, -size])


# --- The grid, in float64 --------


def wide(x: Array) -> Floats:
    with np.errstate(all="ignore"):  # a signalling NaN is no news here
        return np.asarray(x).astype(np.float64)


def below(x: Array, fmt: AnyFormat) -> tuple[Floats, Floats, Bools]:
    """The grid's neighbours of |x| (equal where |x| is on it), and whether the lower one's significand is odd.

    The grid goes on above max. Where the format has no zero, all below its smallest value has that one neighbour.
    """
    size = np.abs(wide(x))
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN have no neighbours
        exponent = np.maximum(np.frexp(size)[1] - 1, fmt.emin)
        count = np.floor(np.ldexp(size, fmt.mantissa_bits - exponent))
        low = np.ldexp(count, exponent - fmt.mantissa_bits)
        high = np.where(low == size, low, np.ldexp(count + 1, exponent - fmt.mantissa_bits))
        odd = count % 2 == 1
    if not fmt.zero:
        low = np.where(low == 0, high, low)
    return low, high, odd


def on_grid(x: Array, fmt: AnyFormat) -> Bools:
    """Whether |x| is a value of the grid continued above max; NaN and infinities are not."""
    same_size: Bools = below(x, fmt)[0] == np.abs(wide(x))
    return same_size


def rounded_size(x: Array, fmt: AnyFormat, rounding: str) -> Floats:
    """|x| rounded on the continued grid by a mode: the definition of the modes."""
    low, high, odd = below(x, fmt)
    size, negative = np.abs(wide(x)), np.signbit(x)
    with np.errstate(invalid="ignore"):
        to_low, to_high = size - low, high - size
    up = {
        "nearest_even": (to_high < to_low) | ((to_high == to_low) & odd),
        "nearest_away": to_high <= to_low,
        "toward_zero": np.zeros_like(odd),
        "toward_positive": ~negative,
        "toward_negative": negative,
        "to_odd": ~odd,
    }[rounding]
    return np.where(up, high, low)


def limit(x: Array, fmt: AnyFormat) -> Floats:
    """The largest magnitude on the side of x: max, or -min for a negative number."""
    return np.where(np.signbit(x), -fmt.min, fmt.max)


def signed(size: Floats, x: Array, fmt: AnyFormat) -> Floats:
    """`size` with the sign of x; zero keeps the sign only where the format has a -0."""
    result = np.where(np.signbit(x), -size, size)
    return result if fmt.has_negative_zero else result + 0.0


def overflowed(x: Array, fmt: AnyFormat, choice: str, rounding: str = "nearest_even") -> Floats:
    """What overflow becomes by `choice` ("saturate" or "infinity"; this by mode: IEEE 754-2019 7.4)."""
    limit = np.where(np.signbit(x), fmt.min, fmt.max)
    if choice == "saturate" or not (fmt.infinities or fmt.has_nan) or rounding in ("toward_zero", "to_odd"):
        return limit
    beyond = np.where(np.signbit(x), -np.inf, np.inf) if fmt.infinities else np.full(np.shape(x), np.nan)
    if rounding in MIRROR:
        return np.where(np.signbit(x) == (rounding == "toward_negative"), beyond, limit)
    return beyond


# --- Answers ----------------------------------------------------------------------------------------------------------


def answer(y: Any) -> Array:
    """What a subject gave, as an array: torch's tensors too, whose bfloat16 and float8 NumPy lacks, as float64."""
    if hasattr(y, "detach"):
        y = y.detach().cpu()
        y = y.double().numpy() if y.is_floating_point() else y.numpy()
    return np.asarray(y)


# --- How a failure reads --------------------------------------------------------------------------------------------


def same(a: Floats, b: Floats) -> Bools:
    """Equal bits, any NaN like any other."""
    equal: Bools = (np.isnan(a) & np.isnan(b)) | (a.view(np.uint64) == b.view(np.uint64))
    return equal


def value_text(value: float, fmt: AnyFormat) -> str:
    """A value and its code in binary, or that it has none; by search on the grid, so independent of any encoder."""
    if np.isnan(value):
        return "nan"
    shown = f"{float(value)!r}"
    one = np.array([value])
    if np.isinf(value):
        code = fmt.infinity_code
    elif abs(value) > float(limit(one, fmt)[0]) or not on_grid(one, fmt)[0]:
        code = None
    elif isinstance(fmt, P.IntFormat):
        return f"{shown} = {int(value) & ((1 << fmt.bits) - 1):0{fmt.bits}b}"
    else:
        low, high = 0, fmt.max_code
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if fmt.value_of_magnitude(middle) < abs(value) else (low, middle)
        code = low
    if code is None:
        return f"{shown} (not a value of {fmt.name})"
    return f"{shown} = {code_text(code | (fmt.sign_mask if np.signbit(value) else 0), fmt)}"


def code_text(code: int, fmt: AnyFormat) -> str:
    """A code in binary, fields apart: sign_exponent_mantissa."""
    digits = f"{code:0{fmt.bits}b}"
    if isinstance(fmt, P.IntFormat):
        return digits
    cuts = ([digits[:1], digits[1 : 1 + fmt.exponent_bits]] if fmt.signed else [digits[: fmt.exponent_bits]]) + (
        [digits[fmt.bits - fmt.mantissa_bits :]] if fmt.mantissa_bits else []
    )
    return "_".join(cuts)


def _input_text(x: Any) -> str:
    bits = int(x.view(f"u{x.dtype.itemsize}"))
    return f"{x.item()!r} ({x.dtype} {bits:#0{2 + 2 * x.dtype.itemsize}x})"


def _simplest(wrong: Bools, x: Array) -> int:
    """The index of the wrong input that is easiest to read: a number, few significand bits, near 1, positive."""
    where = np.flatnonzero(wrong)
    chosen = wide(x.ravel()[where])
    with np.errstate(invalid="ignore"):  # a signalling NaN
        fraction, exponent = np.frexp(chosen)
        whole = np.where(np.isfinite(fraction), np.ldexp(np.abs(fraction), 53), 0).astype(np.int64)
    length = 53 - np.log2(np.maximum(whole & -whole, 1).astype(np.float64))  # the significand without trailing zeros
    hard = length + np.abs(exponent - 1) / 4  # 1.0625 before 3 * 2^-134
    order = np.lexsort((np.signbit(chosen), hard, np.isnan(chosen)))
    return int(where[order[0]])


def require(
    right: Bools,
    x: Array,
    got: Array,
    expected: Array | str,
    fmt: AnyFormat,
    rounding: str,
    *notes: str,
    text: Callable[[Any], str] | None = None,
) -> None:
    """Raise Broken with the simplest counterexample unless `right` is all true; `text` writes an answer."""
    if right.all():
        return
    text = text or (lambda value: value_text(float(value), fmt))
    i = _simplest(~right, x)
    xi = x.ravel()[i]
    lines = list(notes)
    if np.isfinite(xi):
        low, high, _ = below(xi.reshape(1), fmt)
        sign = -1.0 if np.signbit(xi) else 1.0
        if low[0] != high[0]:
            lines.insert(0, f"neighbours {value_text(sign * low[0], fmt)} and {value_text(sign * high[0], fmt)}")
    want = expected if isinstance(expected, str) else text(expected.ravel()[i])
    raise Broken(
        where=f"x = {_input_text(xi)}",
        got=text(got.ravel()[i]),
        expected=want,
        fmt=fmt.name,
        rounding=rounding,
        input_bits=(int(xi.view(f"u{xi.dtype.itemsize}")),),
        notes=tuple(lines),
        wrong=int((~right).sum()),
        of=right.size,
    )


def require_codes(right: Bools, codes: Array, got: Any, expected: Any, fmt: AnyFormat, rounding: str = "") -> None:
    """Raise Broken for the first code unless `right` is all true; `got` and `expected` are values or codes."""
    if right.all():
        return
    i = int(np.flatnonzero(~right)[0])

    def text(answers: Any) -> str:
        answer = answers[i]
        return (
            code_text(int(answer), fmt) if np.issubdtype(answers.dtype, np.integer) else value_text(float(answer), fmt)
        )

    raise Broken(
        where=f"code {int(codes[i]):#04x} = {code_text(int(codes[i]), fmt)}",
        got=text(got),
        expected=text(expected),
        fmt=fmt.name,
        rounding=rounding,
        input_bits=(int(codes[i]),),
        wrong=int((~right).sum()),
        of=right.size,
    )
