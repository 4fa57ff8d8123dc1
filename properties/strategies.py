"""Hypothesis strategies that draw codes and bit patterns, never floats: NaN payloads, -0, subnormals, ties appear.

A strategy of floats spends its examples where casts are right. Here an input is a pattern, half of the time within two
steps of a value, a midpoint or a threshold of the format. (What is finite needs no drawing: `critical_inputs` has it.)

>>> from properties import strategies
>>> P.decode(np.uint8([strategies.codes("float4_e2m1fn").example()]), "float4_e2m1fn")  # doctest: +SKIP
array([-1.5], dtype=float32)
>>> strategies.near_ties("fp7")
Traceback (most recent call last):
hypothesis.errors.InvalidArgument: unknown format 'fp7': ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

import precision as P
from properties.laws._blocks import Rows, drawn, families
from properties.laws._grid import NAN_PATTERNS, magnitude, values_of
from properties.laws._matrices import Matrices
from properties.laws._operations import dtype_of

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy
    from numpy.typing import DTypeLike, NDArray

    from precision import AnyFormat
    from properties.operators import Product
    from properties.quantizers import Quantization

__all__ = [
    "arrays",
    "codes",
    "float32_patterns",
    "inputs",
    "matrices",
    "near_ties",
    "operands",
    "patterns",
    "rows",
    "values",
]

# Trailing significand bits and exponent bits of what patterns are made of.
_LAYOUTS = {"float16": (10, 5), "float32": (23, 8), "float64": (52, 11)}


def _format(fmt: AnyFormat | str) -> AnyFormat:
    try:
        return P.get_format(fmt)
    except (ValueError, TypeError) as wrong:
        raise InvalidArgument(str(wrong)) from wrong


def _layout(dtype: DTypeLike) -> tuple[int, int]:
    found = np.dtype(dtype)
    if found.name not in _LAYOUTS or not found.isnative:
        raise InvalidArgument(f"dtype is {found}; patterns are drawn for {', '.join(_LAYOUTS)}, in native byte order")
    return _LAYOUTS[found.name]


def codes(fmt: AnyFormat | str, *, allow_nan: bool = True, allow_infinity: bool = True) -> SearchStrategy[int]:
    """Codes of a format, as ints; shrink toward code 0.

    Raises InvalidArgument for an unknown format.
    """
    fmt = _format(fmt)
    every = st.integers(0, (1 << fmt.bits) - 1)
    if isinstance(fmt, P.IntFormat) or (allow_nan and allow_infinity):
        return every
    mask, top = fmt.sign_mask, fmt.max_code
    special = {fmt.infinity_code} if fmt.infinities else set()

    def allowed(code: int) -> bool:
        size = code & ~mask
        if size in special:
            return allow_infinity
        is_nan = size > top or (fmt.nan == "negative_zero" and code == mask)
        return allow_nan or not is_nan

    return every.filter(allowed)


def values(fmt: AnyFormat | str, *, allow_nan: bool = True, allow_infinity: bool = True) -> SearchStrategy[float]:
    """Values of a format, as Python floats made from codes; shrink toward +0.

    Raises InvalidArgument for an unknown format.
    """
    fmt = _format(fmt)
    dtype = np.uint8 if fmt.bits <= 8 else np.uint16 if fmt.bits <= 16 else np.uint32 if fmt.bits <= 32 else np.uint64
    drawn = codes(fmt, allow_nan=allow_nan, allow_infinity=allow_infinity)
    return drawn.map(lambda code: float(P.decode(np.array(code, dtype), fmt)))


@st.composite
def patterns(draw: DrawFn, *, dtype: DTypeLike = np.float32) -> int:
    """Bit patterns of a dtype, as ints: every exponent equally likely, mantissas at random or with few bits set.

    `dtype` is float16, float32 or float64. Raises InvalidArgument for another.
    """
    m, e = _layout(dtype)
    mantissa = draw(
        st.one_of(st.integers(0, m - 1).map(lambda bit: (1 << m) - (1 << bit)), st.integers(0, (1 << m) - 1))
    )
    exponent = draw(st.integers(0, (1 << e) - 1))
    negative = draw(st.booleans())
    return (negative << (m + e)) | (exponent << m) | mantissa


def float32_patterns() -> SearchStrategy[int]:
    """Bit patterns of float32, as ints: NaN payloads, infinities, -0 and subnormals among them."""
    return st.one_of(patterns(), st.sampled_from([0x7F800000, 0xFF800000, *NAN_PATTERNS]))


@st.composite
def _near_ties(draw: DrawFn, fmt: AnyFormat, dtype: DTypeLike) -> int:
    m, e = _layout(dtype)
    uint = np.dtype(f"u{np.dtype(dtype).itemsize}")
    top, binade = fmt.max_code + 1, 1 << fmt.mantissa_bits
    code = draw(
        st.one_of(
            st.integers(0, top),
            st.integers(max(0, top - 2), top),  # the overflow threshold
            st.integers(0, min(3, top)),  # the underflow threshold
            st.integers(0, top // binade).map(lambda k: k * binade),  # the binades' edges
        )
    )
    low, high = magnitude(np.array([code, code + 1]), fmt)
    point = draw(st.sampled_from([low / 2 + high / 2, low]))
    with np.errstate(over="ignore"):
        centre = int(np.array(min(point, float(np.finfo(dtype).max))).astype(dtype).view(uint))
    size = min(max(centre + draw(st.integers(-2, 2)), 0), ((1 << e) - 1) << m)
    return (draw(st.booleans()) << (m + e)) | size


def near_ties(fmt: AnyFormat | str, *, dtype: DTypeLike = np.float32) -> SearchStrategy[int]:
    """Bit patterns of a dtype within two steps of a value or midpoint of the format; thresholds and binade edges often.

    `dtype` is float16, float32 or float64. Raises InvalidArgument for another, and for an unknown format.
    """
    _layout(dtype)
    return _near_ties(_format(fmt), dtype)


def arrays(
    elements: SearchStrategy[int], *, dtype: DTypeLike = np.float32, min_size: int = 1, max_size: int = 32
) -> SearchStrategy[NDArray[Any]]:
    """One-dimensional arrays of a dtype whose elements have the drawn bit patterns.

    `dtype` is float16, float32 or float64. Raises InvalidArgument for another, and for sizes out of order.
    """
    _layout(dtype)
    if not 0 <= min_size <= max_size:
        raise InvalidArgument(
            f"min_size={min_size} and max_size={max_size}; they must satisfy 0 <= min_size <= max_size"
        )
    uint = np.dtype(f"u{np.dtype(dtype).itemsize}")
    drawn = st.lists(elements, min_size=min_size, max_size=max_size)
    return drawn.map(lambda bits: np.array(bits, uint).view(dtype))


def inputs(fmt: AnyFormat | str, *, dtype: DTypeLike = np.float32, max_size: int = 32) -> SearchStrategy[NDArray[Any]]:
    """Arrays of inputs for a cast to `fmt`: near its ties, and anywhere.

    `dtype` is float16, float32 or float64. Raises InvalidArgument for another, and for an unknown format.
    """
    return arrays(st.one_of(near_ties(fmt, dtype=dtype), patterns(dtype=dtype)), dtype=dtype, max_size=max_size)


@st.composite
def operands(draw: DrawFn, fmt: AnyFormat | str, *, max_size: int = 12) -> NDArray[Any]:
    """Operands of a format for arithmetic, of shape (3, n): any codes, often a few steps from each other.

    float32, or float64 where that does not hold the format's values. Raises InvalidArgument for an unknown format.
    """
    fmt = _format(fmt)
    size = 1 << fmt.bits
    step = st.one_of(st.integers(0, size - 1), st.integers(-3, 3).map(lambda n: n % size))
    near = st.tuples(step, step.map(lambda n: n ^ fmt.sign_mask), st.booleans(), st.booleans())
    rows = []
    for first, (a, b, close, opposite) in draw(st.lists(st.tuples(codes(fmt), near), min_size=1, max_size=max_size)):
        second = (first + a) % size if close else a
        rows.append((first, second, (second + b) % size if opposite else b))
    found: NDArray[Any] = values_of(np.array(rows, np.uint64).T, fmt).astype(dtype_of(fmt))
    return found


@st.composite
def matrices(draw: DrawFn, product: Product, *, max_k: int = 24) -> Matrices:
    """Small matrices of the operands of a product, of few different codes each, NaN and infinities among them.

    `product` is a `properties.operators.Product`.
    """
    m, k, n = draw(st.integers(1, 3)), draw(st.integers(1, max_k)), draw(st.integers(1, 3))

    def drawn(fmt: AnyFormat, shape: tuple[int, int]) -> NDArray[np.float64]:
        some = draw(st.lists(codes(fmt), min_size=1, max_size=6))
        seed = draw(st.integers(0, 1 << 16))
        chosen = np.random.default_rng(seed).choice(np.array(some, np.uint64), shape)
        return values_of(chosen, fmt)

    return Matrices(drawn(product.a, (m, k)), drawn(product.b, (k, n)), "drawn")


@st.composite
def rows(draw: DrawFn, scheme: Quantization) -> Rows:
    """Small float32 matrices for a quantizer: of any family of numbers, with some elements of any finite pattern.

    Those of the family "ties" stand at and beside midpoints and values of the elements, in units of their scale.
    `scheme` is a `properties.quantizers.Quantization`.
    """
    family = draw(st.sampled_from(families(scheme)))
    found = drawn(scheme, family, np.random.default_rng(draw(st.integers(0, 1 << 32))))
    x = found.x.copy()
    finite = patterns().map(lambda bits: float(np.array(bits, np.uint32).view(np.float32))).filter(np.isfinite)
    near = st.sampled_from([0.0, -0.0, 2.0**-149, 1.0, 6.0, 3.0e38, *map(float, x.ravel()[:8])])
    places = st.tuples(st.integers(0, x.shape[0] - 1), st.integers(0, x.shape[1] - 1))
    for place, value in draw(st.lists(st.tuples(places, st.one_of(near, finite)), max_size=4)):
        x[place] = value
    return Rows(x, f"{family}, drawn")
