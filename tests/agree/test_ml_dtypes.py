"""ml_dtypes (and NumPy's own float16) against the policy "ml_dtypes", bit for bit from float32.

Where it differs, the exact set of inputs is asserted, so that a change in either is noticed. NaN codes are compared as
bits too, except those of NumPy's float16, which keeps upper payload bits: there any NaN is any NaN.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import precision as P
from properties.laws._grid import critical_inputs, random_inputs

Array = np.ndarray[Any, Any]

FLOATS = [f for f in P.formats() if isinstance(f, P.Format) and f.bits <= 16 and f.numpy_dtype is not None]
E8M0 = P.float8_e8m0fnu
by_format = pytest.mark.parametrize("fmt", FLOATS, ids=str)


def inputs(fmt: P.Format) -> Array:
    """Every high half of float32 with six low halves; every value and midpoint with its neighbours."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    critical = critical_inputs(fmt).view(np.uint32)
    return np.unique(np.concatenate([(high[:, None] | low).ravel(), critical])).view(np.float32)


def theirs(x: Array, fmt: P.Format | P.IntFormat) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(P.from_dtype(x.astype(fmt.numpy_dtype))[0])


def differ(a: Array, b: Array, fmt: P.Format | P.IntFormat) -> Array:
    """Where codes differ; in float16, where they differ and are not both NaN."""
    if fmt.name != "float16":
        return np.asarray(a != b)
    nan = P.CLASSES.index("nan")
    return np.asarray((a != b) & ~((P.classify(a, fmt) == nan) & (P.classify(b, fmt) == nan)))


@by_format
def test_float32_casts(fmt: P.Format) -> None:
    x = inputs(fmt)
    wrong = differ(theirs(x, fmt), P.encode(x, fmt, policy="ml_dtypes"), fmt)
    finding = np.zeros(x.shape, bool)
    if fmt is E8M0:
        # A finding: float32 is subnormal here, and the leading bit is taken for one half of a step.
        finding = (x > 2**-127) & (x < 1.5 * 2**-127)
        assert (theirs(x[finding], fmt) == 1).all()
        assert (P.encode(x[finding], fmt) == 0).all()
        assert finding.any()
    assert np.array_equal(wrong, finding)


@by_format
def test_16_bit_casts(fmt: P.Format) -> None:
    """From every float16 and every bfloat16."""
    pattern = np.arange(1 << 16, dtype=np.uint16)
    for x in (pattern.view(np.float16), pattern.view(ml_dtypes.bfloat16)):
        wrong = differ(theirs(x, fmt), P.encode(x, fmt, policy="ml_dtypes"), fmt)
        with np.errstate(invalid="ignore"):
            wide = x.astype(np.float64)
        finding = (wide > 2**-127) & (wide < 1.5 * 2**-127) if fmt is E8M0 else np.zeros(x.shape, bool)
        if fmt.bits == 16:  # a cast to itself keeps the payload, and one between the two may
            wrong &= ~np.isnan(wide)
        assert np.array_equal(wrong, finding)


@by_format
def test_float64_casts_go_through_float32(fmt: P.Format) -> None:
    """A finding: two roundings. They differ from one exactly where our rounding of the float32 differs from it."""
    x = np.concatenate([critical_inputs(fmt, np.float64)[::7], random_inputs(20_000, np.float64)])
    if fmt.name == "float16":  # NumPy's own cast rounds once
        assert not differ(theirs(x, fmt), P.encode(x, fmt, policy="ml_dtypes"), fmt).any()
        return
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
    assert np.array_equal(theirs(x, fmt), theirs(narrow, fmt))
    once, twice = P.encode(x, fmt, policy="ml_dtypes"), P.encode(narrow, fmt, policy="ml_dtypes")
    doubly = once != twice
    assert doubly.any()
    if fmt is not E8M0:
        assert np.array_equal(theirs(x, fmt) != once, doubly)


def test_known_double_roundings() -> None:
    for name, x, right, got in [
        ("bfloat16", 1 + 2**-8 + 2**-40, 1.0078125, 1),
        ("float8_e4m3fn", 1.0625 + 2**-40, 1.125, 1),
        ("float8_e5m2", 1.125 + 2**-40, 1.25, 1),
        ("float4_e2m1fn", 1.25 + 2**-40, 1.5, 1),
        ("float6_e2m3fn", 1.0625 + 2**-40, 1.125, 1),
        ("bfloat16", 2**25 + 2**17 + 1, 33816576, 33554432),
        ("bfloat16", 2**24 + 2**16 + 1, 16908288, 16777216),
    ]:
        fmt, array = P.get_format(name), np.array([x])
        assert float(array.astype(fmt.numpy_dtype)[0]) == got
        assert P.decode(P.encode(array, fmt), fmt) == right
    # The scalar constructors of two paths of one library: bfloat16's rounds twice as well, the narrower ones' once.
    assert float(ml_dtypes.bfloat16(1 + 2**-8 + 2**-40)) == 1
    assert float(ml_dtypes.float8_e4m3fn(1.0625 + 2**-40)) == 1.125
    assert float(ml_dtypes.float8_e5m2(1.125 + 2**-40)) == 1.25
    assert float(ml_dtypes.float4_e2m1fn(1.25 + 2**-40)) == 1.5


@pytest.mark.parametrize("fmt", [f for f in P.formats() if f.bits <= 16 and f.numpy_dtype is not None], ids=str)
def test_decoding(fmt: P.Format | P.IntFormat) -> None:
    """Every code, to float32: equal bits; a NaN is a NaN, whose sign is that of the code."""
    codes = np.arange(1 << fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16)
    with np.errstate(all="ignore"):
        got = P.to_dtype(codes, fmt).astype(np.float32)
    want = P.decode(codes, fmt)
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))
    if isinstance(fmt, P.Format) and fmt.has_negative_zero:
        assert np.array_equal(np.signbit(got[~number]), np.signbit(want[~number]))


def test_small_integers_truncate_and_wrap() -> None:
    """A finding: as C casts do. Ours round to nearest and saturate."""
    x = np.float32([2.5, 3.5, -2.5, 7.6, 8, 8.5, -7.6, -9, 300, -1.5])
    assert x.astype(ml_dtypes.int4).astype(int).tolist() == [2, 3, -2, 7, -8, -8, -7, 7, -4, -1]
    assert P.decode(P.encode(x, "int4"), "int4").tolist() == [2, 4, -2, 7, 7, 7, -8, -8, 7, -2]
    whole = np.arange(-8, 8).astype(np.float32)
    assert np.array_equal(theirs(whole, P.int4), P.encode(whole, "int4"))
