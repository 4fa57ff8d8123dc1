"""Strategies draw what they promise, reach what matters, and refuse bad arguments with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

import precision as P
from properties import strategies
from properties.laws._grid import below, values_of
from properties.laws.casts import critical_inputs, random_inputs

QUICK = settings(database=None, max_examples=4000, deadline=None, derandomize=True)
FLOATS = [fmt for fmt in P.formats() if isinstance(fmt, P.Format)]


@pytest.mark.parametrize("fmt", P.formats(), ids=str)
@given(data=st.data())
def test_codes_are_codes(fmt: Any, data: st.DataObject) -> None:
    code = data.draw(strategies.codes(fmt), label="code")
    assert 0 <= code < 1 << fmt.bits


@pytest.mark.parametrize("fmt", FLOATS, ids=str)
@given(data=st.data())
def test_codes_without_nan_and_infinity_are_finite(fmt: Any, data: st.DataObject) -> None:
    code = data.draw(strategies.codes(fmt, allow_nan=False, allow_infinity=False), label="code")
    assert np.isfinite(values_of(np.array([code], np.uint64), fmt))[0]


@pytest.mark.parametrize("fmt", P.formats(), ids=str)
@given(data=st.data())
def test_values_are_values_of_the_format(fmt: Any, data: st.DataObject) -> None:
    value = data.draw(strategies.values(fmt, allow_nan=False), label="value")
    assert P.round_to(np.float64([value]), fmt, policy="ieee")[0] == value


@pytest.mark.parametrize(
    "wanted",
    [
        np.isnan,
        lambda x: x == 0 and np.signbit(x),
        np.isinf,
        lambda x: 0 < abs(x) < np.finfo(np.float32).tiny,
    ],
    ids=["nan", "negative zero", "infinity", "subnormal"],
)
def test_float32_patterns_reach_what_floats_rarely_do(wanted: Any) -> None:
    find(strategies.float32_patterns(), lambda bits: wanted(np.uint32(bits).view(np.float32)), settings=QUICK)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "bfloat16", "float4_e2m1fn", "tfloat32", "int8"])
def test_near_ties_reach_ties_and_both_their_neighbours(fmt: str) -> None:
    info = P.get_format(fmt)

    def off_tie(bits: int) -> int | None:
        """How many steps of float32 the pattern is beyond a tie, if it is within one."""
        for steps in (-1, 0, 1):
            size = (bits & 0x7FFFFFFF) - steps
            if 0 < size < 0x7F800000:
                x = np.array([size], np.uint32).view(np.float32)
                low, high, _ = below(x, info)
                if low[0] < high[0] and float(x[0]) - low[0] == high[0] - float(x[0]):
                    return steps
        return None

    for steps in (-1, 0, 1):
        find(strategies.near_ties(fmt), lambda bits, steps=steps: off_tie(bits) == steps, settings=QUICK)


@given(strategies.arrays(strategies.float32_patterns(), min_size=2, max_size=5))
def test_arrays_have_the_dtype_and_size_asked_for(x: Any) -> None:
    assert x.dtype == np.float32
    assert x.ndim == 1
    assert 2 <= x.size <= 5


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@given(data=st.data())
def test_other_dtypes(dtype: Any, data: st.DataObject) -> None:
    assert data.draw(strategies.inputs("float8_e5m2", dtype=dtype)).dtype == dtype


def test_bad_arguments_are_refused_with_a_remedy() -> None:
    with pytest.raises(InvalidArgument, match="unknown format 'float8_e4m3fm': did you mean float8_e4m3fn"):
        strategies.codes("float8_e4m3fm")
    with pytest.raises(InvalidArgument, match="dtype is int32; patterns are drawn for float16, float32, float64"):
        strategies.near_ties("float8_e4m3fn", dtype=np.int32)
    with pytest.raises(InvalidArgument, match=r"dtype is >f4; patterns are drawn for .* in native byte order"):
        strategies.inputs("float8_e4m3fn", dtype=">f4")
    with pytest.raises(InvalidArgument, match="must satisfy 0 <= min_size <= max_size"):
        strategies.arrays(strategies.float32_patterns(), min_size=3, max_size=2)


@pytest.mark.parametrize(
    "fmt", ["float32", "float16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "int8", "int32"]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_critical_inputs_have_the_special_ones_of_both_signs(fmt: str, dtype: Any) -> None:
    x = critical_inputs(fmt, dtype)
    uint = np.dtype(f"u{np.dtype(dtype).itemsize}")
    sign = uint.type(1 << (8 * uint.itemsize - 1))
    patterns = x.view(uint)
    assert not x.flags.writeable
    assert np.array_equal(patterns, np.unique(patterns))
    assert np.array_equal(patterns[patterns >= sign] - sign, patterns[patterns < sign])
    assert x[0] == 0
    assert np.isinf(x).sum() == 2
    assert np.isnan(x).any()
    if dtype == np.float32:
        assert {0x7F800001, 0x7F810000} <= set(patterns[np.isnan(x)].tolist())


@pytest.mark.parametrize("fmt", [fmt for fmt in P.formats() if fmt.bits <= 16], ids=str)
def test_critical_inputs_have_every_value_midpoint_and_neighbour(fmt: Any) -> None:
    x = set(critical_inputs(fmt).view(np.uint32).tolist())
    values = np.unique(np.abs(P.values(fmt).astype(np.float64)))
    values = values[np.isfinite(values)]
    middles = values[:-1] / 2 + values[1:] / 2
    threshold = np.float64(fmt.overflow_threshold)
    for points in (values, middles, threshold[None]):
        patterns = points.astype(np.float32).view(np.uint32).astype(np.int64)
        reach = 2 if fmt.bits <= 8 else 1
        for steps in range(-reach, reach + 1):
            moved = patterns + steps
            assert set(moved[(moved >= 0) & (moved <= 0x7F800000)].tolist()) <= x


def test_random_inputs_repeat_by_their_seed() -> None:
    a, b, c = random_inputs(64, seed=1), random_inputs(64, seed=1), random_inputs(64, seed=2)
    assert np.array_equal(a.view(np.uint32), b.view(np.uint32))
    assert not np.array_equal(a.view(np.uint32), c.view(np.uint32))


def test_critical_inputs_refuse_other_dtypes() -> None:
    with pytest.raises(TypeError, match="critical inputs are float16, float32 or float64, not int8"):
        critical_inputs("float8_e4m3fn", np.int8)
