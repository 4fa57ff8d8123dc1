"""Elements: from numbers and scales to codes, and back.

`codes` and `values` work on a piece of an array, or on all of a tensor; what they are given of a scale broadcasts.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from precision import _blockwise as bw
from precision import _engine, arithmetic, codec
from precision._measure import Scales, any_, middle, zeros
from precision.formats import AnyFormat, IntFormat, get_format
from precision.policies import Rounding
from precision.rounding import job, round_to
from precision.scaling import integer_range
from precision.schemes import Scheme


def in_units(x: Any, scales: Scales, s: Scheme) -> Any:
    """x in units of its scale, in float32 or float64, to be rounded to the element format."""
    if s.is_power:
        nearest = s.rounding in ("nearest_even", "nearest_away")
        return bw.shifted(x, scales.exponent, s.least, s.scale_exponents[0], nearest=nearest, clean=scales.clean)
    x = bw.widened(x)
    if scales.factor is not None and bw.layout_of(x).bits == 32:
        return bw.product(x, scales.factor)
    if s.division == "divide" and bw.layout_of(x).bits == 32:
        return bw.quotient(x, scales.value)
    scale = bw.in_float64(scales.value)
    if scales.tensor is not None:
        scale = scale * bw.in_float64(scales.tensor)
    scale = bw.where(scale == 0, bw.full(2.0**-600, scale), scale)  # of what is no zero the largest element
    if bw.layout_of(x).bits == 64:
        return _divided(x, scale)
    return bw.quotient(bw.in_float64(x), scale)


def _divided(x: Any, scale: Any) -> Any:
    """float64 x / scale, rounded to odd: a float64 has too many digits to be divided in float64 and rounded again."""
    return arithmetic.div(x, scale, "float64", rounding="to_odd", policy="ieee")


def codes_of(x: Any, scales: Scales, s: Scheme, random: Any = None) -> Any:
    """The codes of elements (a piece of an array, or all of a tensor)."""
    fused = s.zero_point_order == "fused" and scales.zero is not None
    y = fused_sum(x, scales) if fused else in_units(x, scales, s)
    rounding = rounding_of(s, random)
    if not s.is_integer:
        if scales.bad is not None:
            y = bw.where(scales.bad, bw.full(math.nan, y), y)
        codes = _encoded(y, s.element, rounding, s.policy)
        if scales.bad is not None and not s.element.has_nan:
            codes = bw.where(scales.bad, zeros(codes), codes)
        return codes
    return _integer_codes(y, scales, s, rounding)


def rounding_of(s: Scheme, random: Any) -> Any:
    """The rounding of a scheme, with the random bits of a piece."""
    return s.rounding if random is None else Rounding("stochastic", random, s.rounding.bits)  # type: ignore[union-attr]


def fused_sum(x: Any, scales: Scales) -> Any:
    """x * (1 / scale) + zero_point, rounded once."""
    x = bw.widened(x)
    a, b, c = (
        bw.where(x != x, zeros(x), x),
        bw.where(x == x, scales.factor, scales.factor),
        like(scales.zero, x) + zeros(x),
    )
    y = arithmetic.fma(a, b, c, "float64" if bw.layout_of(x).bits == 64 else "float32", policy="ieee")
    return bw.where(x != x, bw.full(math.nan, y), y)


def _encoded(y: Any, fmt: AnyFormat, rounding: Any, policy: Any) -> Any:
    todo, random = job("encode", fmt, rounding, policy)
    return _engine.apply(todo, y, random)


def _integer_codes(y: Any, scales: Scales, s: Scheme, rounding: Any) -> Any:
    """The codes of an integer format, zero point added and clipped.

    What is clipped is y: rounding is monotone, so nothing changes, and integers of two bits more hold the rest.
    """
    fmt: IntFormat = s.element  # type: ignore[assignment]
    low, high = integer_range(fmt, s.restricted)
    zero = middle(s) if scales.zero is None else scales.zero
    added = s.zero_point_order == "fused" and scales.zero is not None
    if not scales.clean:
        y = _without_nan(y, zero, scales, s, added)
    if isinstance(zero, int) and zero == 0:
        return _encoded(y.clip(low, None) if s.restricted else y, fmt, rounding, "saturate")
    if added or s.zero_point_order == "before_rounding":
        y = y if added else bw.total(y, like(zero, y))
        return _encoded(y.clip(low, high), fmt, rounding, "saturate")
    least, most = low - like(zero, y), high - like(zero, y)
    y = bw.where(y < least, least + zeros(y), bw.where(y > most, most + zeros(y), y))
    n = _encoded(y, s.endless, rounding, "saturate")
    return _added(n, zero, (1 << fmt.bits) - 1, _engine.code_dtype(fmt))


def _without_nan(y: Any, zero: Any, scales: Scales, s: Scheme, added: bool) -> Any:
    """Elements with what the scheme says in place of NaN; `added`: they have their zero point already."""
    if s.missing_nan == "raise" and any_(y != y):
        raise ValueError("x contains NaN, and the scheme says missing_nan='raise': see Scheme.missing_nan")
    nothing = zeros(y) + like(zero, y) if added else zeros(y)  # what stands for 0.0
    instead = nothing
    if s.missing_nan in ("max", "min"):
        instead = bw.full(math.inf if s.missing_nan == "max" else -math.inf, y)
    elif s.missing_nan == "integer_zero":
        instead = nothing - like(zero, y)
    y = bw.where(y != y, instead, y)
    return y if scales.bad is None else bw.where(scales.bad, nothing, y)


def _added(codes: Any, zero: Any, mask: int, dtype: Any) -> Any:
    """Codes with a zero point added, in two's complement."""
    if bw.is_tensor(codes):
        torch = sys.modules["torch"]
        codes = codes if codes.dtype == torch.uint8 else codes.view(torch.int16)
        return ((codes.to(torch.int32) + zero) & mask).to(getattr(torch, dtype.name))
    zero = zero if isinstance(zero, int) else zero.astype(codes.dtype)  # modulo 2^16, as the codes
    return (
        (codes + codes.dtype.type(zero) if isinstance(zero, int) else codes + zero) & codes.dtype.type(mask)
    ).astype(dtype)


def like(zero: Any, y: Any) -> Any:
    """A zero point as floats of the dtype of y."""
    if isinstance(zero, int):
        return float(zero)
    return zero.to(y.dtype) if bw.is_tensor(zero) else zero.astype(y.dtype)


def values_of(codes: Any, scales: Scales, s: Scheme, dtype: str) -> Any:
    """What codes and scales stand for, rounded once to a dtype (recipes in their order)."""
    if s.is_integer and not s.is_power:
        zero = middle(s) if scales.zero is None else scales.zero
        v = codec.decode(codes, s.element, "float32" if s.element.bits <= 16 else "float64")
        v = v - like(zero, v)
    else:
        wide = dtype == "float64" or (s.is_power and s.scale_exponents[0] + s.least < -149)
        v = codec.decode(codes, s.element, "float64" if wide else "float32")
    if s.is_power:
        out = bw.restored(v, _wide(scales.exponent) if wide else scales.exponent)
        if scales.bad is not None:
            out = bw.where(scales.bad, bw.full(math.nan, out), out)
        return _cast(out, dtype)
    if s.recipe != "exact" and dtype == "float32":
        out = bw.product(v, bw.product(scales.value, scales.tensor))
        return bw.where(out != out, bw.full(math.nan, out), out)
    scale = bw.in_float64(scales.value)
    if scales.tensor is not None:
        scale = scale * bw.in_float64(scales.tensor)
    out = bw.in_float64(v) * scale
    return _cast(bw.where(out != out, bw.full(math.nan, out), out), dtype)  # which NaN is the processor's choice


def _wide(exponent: Any) -> Any:
    return exponent.to(sys.modules["torch"].int64) if bw.is_tensor(exponent) else exponent.astype(np.int64)


def _cast(x: Any, dtype: str) -> Any:
    """float32 or float64 values rounded once to a float dtype by name; beyond its range they become infinite."""
    own = str(x.dtype).removeprefix("torch.")
    if dtype == own:
        return x
    if own == "float64" and dtype == "float32":
        return bw.in_float32(x)
    if bw.is_tensor(x):
        return round_to(x, dtype, policy="ieee").to(getattr(sys.modules["torch"], dtype))
    codes = np.asarray(codec.encode(x, dtype, policy="ieee"))  # a cast would flush subnormals where the processor does
    return codes.view(get_format(dtype).numpy_dtype)
