"""gfloat's array functions against ours under overflow="infinity", infinity="infinity", from float32 as float64.

gfloat keeps NaN as NaN where a format has none (its encoder refuses or wraps that), and gives every NaN one code, so any
NaN is any NaN here; overflow to NaN and infinity is compared. Its five modes agree on every number outside E8M0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import precision as P
from properties.laws._grid import critical_inputs

gfloat = pytest.importorskip("gfloat", reason="needs gfloat: the `peers` extra")

Array = np.ndarray[Any, Any]

FORMATS = {
    "float32": "binary32",
    "float16": "binary16",
    "bfloat16": "bfloat16",
    "float8_e5m2": "ocp_e5m2",
    "float8_e4m3fn": "ocp_e4m3",
    "float6_e3m2fn": "ocp_e3m2",
    "float6_e2m3fn": "ocp_e2m3",
    "float4_e2m1fn": "ocp_e2m1",
}
MODES = {
    "nearest_even": "TiesToEven",
    "nearest_away": "TiesToAway",
    "toward_zero": "TowardZero",
    "toward_positive": "TowardPositive",
    "toward_negative": "TowardNegative",
}
IEEE = P.Policy(overflow="infinity", infinity="infinity")
by_format = pytest.mark.parametrize("name", FORMATS)
by_mode = pytest.mark.parametrize("mode", MODES)


def info(name: str) -> Any:
    from gfloat import formats

    return getattr(formats, f"format_info_{FORMATS.get(name, 'ocp_e8m0')}")


def inputs(name: str, count: int = 60_000) -> Array:
    """High halves of float32 with low ones, every value and midpoint with its neighbours (of wide formats, some)."""
    high = np.arange(0, 1 << 16, 5, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    critical = critical_inputs(name).view(np.uint32)
    if critical.size > count:
        critical = np.random.default_rng(0).choice(critical, count, replace=False)
    return np.unique(np.concatenate([(high[:, None] | low).ravel(), critical])).view(np.float32)


def theirs(x: Array, name: str, mode: str, *random: Any) -> Array:
    fmt = P.get_format(name)
    saturate = not (fmt.infinities or fmt.has_nan)  # what their sat=False cannot mean
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        return np.asarray(gfloat.round_ndarray(info(name), wide, gfloat.RoundMode[mode], saturate, *random))


def differ(a: Array, b: Array) -> Array:
    """Where numbers differ, as bits; any NaN is any NaN."""
    wide = b.astype(np.float64)
    return np.asarray((a.view(np.uint64) != wide.view(np.uint64)) & ~(np.isnan(a) & np.isnan(wide)))


@by_format
@by_mode
def test_rounding(name: str, mode: str) -> None:
    x = inputs(name)
    with np.errstate(invalid="ignore"):
        x = x if P.get_format(name).has_nan else x[~np.isnan(x)]  # theirs stays NaN, which is no value of the format
    wrong = differ(theirs(x, name, MODES[mode]), P.round_to(x, name, rounding=mode, policy=IEEE))
    assert not wrong.any(), x[wrong][:5]


@by_format
def test_float64_is_rounded_once(name: str) -> None:
    """As ours: the only one of the peers that does not go through float32."""
    x = critical_inputs(name, np.float64)
    x = np.random.default_rng(1).choice(x[np.isfinite(x)], 20_000)
    assert not differ(theirs(x, name, "TiesToEven"), P.round_to(x, name, policy=IEEE)).any()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float6_e2m3fn", "bfloat16"])
@pytest.mark.parametrize("bits", [1, 3, 8, 16])
def test_stochastic_rounding_is_their_fastest(name: str, bits: int) -> None:
    """Their StochasticFastest is our definition: floor(f · 2^n) + r >= 2^n. The other three round f first."""
    x = critical_inputs(name)
    x = np.random.default_rng(2).choice(x[np.isfinite(x)], 6000)
    random = np.random.default_rng(3).integers(0, 1 << bits, x.size)
    ours = P.round_to(x, name, rounding=P.stochastic(random_bits=random, bits=bits), policy=IEEE)
    assert not differ(theirs(x, name, "StochasticFastest", random, bits), ours).any()


@by_format
def test_decoding(name: str) -> None:
    fmt = P.get_format(name)
    codes = np.arange(1 << fmt.bits) if fmt.bits <= 8 else np.random.default_rng(4).integers(0, 1 << fmt.bits, 3000)
    got = np.asarray(gfloat.decode_ndarray(info(name), codes.astype(np.int64)))
    assert not differ(got, P.decode(codes, name, "float64")).any()


@by_format
def test_encoding(name: str) -> None:
    """Codes of rounded numbers; every NaN of theirs is the negative one with all bits set."""
    fmt = P.get_format(name)
    x = inputs(name)
    with np.errstate(invalid="ignore"):
        nan = np.isnan(x)
    x = x[~nan]
    rounded = P.round_to(x, name, policy=IEEE).astype(np.float64)
    got = np.asarray(gfloat.encode_ndarray(info(name), rounded)).astype(np.uint64)
    want = P.encode(x, name, policy=IEEE).astype(np.uint64)
    number = ~np.isnan(rounded)
    assert np.array_equal(got[number], want[number])
    if fmt.has_nan:
        assert (got[~number] == (1 << fmt.bits) - 1).all()


@by_mode
def test_e8m0_above_its_smallest_value(mode: str) -> None:
    """A finding: ties go to the even code, not up; so 3 becomes 2, and 1.5 · 2^127 stays in range."""
    x = critical_inputs("float8_e8m0fnu")
    x = x[(x >= 2**-127) & np.isfinite(x)]
    wrong = differ(
        theirs(x, "float8_e8m0fnu", MODES[mode]), P.round_to(x, "float8_e8m0fnu", rounding=mode, policy=IEEE)
    )
    fraction, exponent = np.frexp(x)
    tie_above_even = (fraction == 0.75) & ((exponent - 1 + 127) % 2 == 0)
    assert np.array_equal(wrong, tie_above_even if mode == "nearest_even" else np.zeros(x.shape, bool))


def test_e8m0_below_its_smallest_value() -> None:
    """A finding: round_ndarray goes on below 2^-127 and through negative numbers, and codes of those wrap."""
    x = np.float32([0, -1, 2**-149, 2**-130])
    assert theirs(x, "float8_e8m0fnu", "TiesToEven").tolist() == [0, -1, 2**-149, 2**-130]
    assert int(gfloat.encode_ndarray(info("float8_e8m0fnu"), np.array([-1.0]))[0]) % 2**64 == 2**64 - 1
    assert gfloat.encode_float(info("float8_e8m0fnu"), gfloat.round_float(info("float8_e8m0fnu"), -1.0)) == 255
