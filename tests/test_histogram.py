"""The figures of a histogram against direct computation on exact rationals and against ml_dtypes."""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import precision as P
from precision.histogram import Figures, Histogram, Wanted, absmax_scale, measure

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float32")
}
TARGETS = [f for f in P.formats() if f.bits <= 16 and f.signed]


def sample(dtype: np.dtype, n: int = 300, seed: int = 0) -> np.ndarray:
    """Values over the binades around 1, with zeros of both signs, infinities and NaN where there are, and outliers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp2(rng.integers(-30, 12, n))
    x[:8] = [0.0, -0.0, 1e-9, -1e-9, 448, -464, 465, 70000]
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(np.float32).astype(dtype)
        x[8:11] = np.array([np.nan, np.inf, -np.inf], np.float32).astype(dtype)
    return x


@functools.cache
def grid_of(fmt) -> list[Fraction]:
    """The magnitudes of a format, ascending: the index is the code, so its parity decides ties."""
    return [Fraction(v) for v in np.unique(np.abs(P.values(fmt).astype(np.float64))) if math.isfinite(v)]


def direct(x: np.ndarray, fmt, scale: float | None) -> Figures:
    """Figures by rounding each value on its own, in rational numbers, by search among the format's values."""
    grid = grid_of(fmt)
    values = [Fraction(float(v)) for v in x.astype(np.float64) if math.isfinite(v) and v != 0]
    s = Fraction(1 if scale is None else scale)
    threshold, tie_overflows = Fraction(fmt.overflow_threshold), fmt.overflow_tie == "overflows"
    clipped = to_zero = 0
    noise = Fraction(0)
    for v in values:
        q = abs(v) / s
        above = bisect.bisect_right(grid, q)
        if above == len(grid):
            rounded = grid[-1]
            clipped += q > threshold or (q == threshold and tie_overflows)
            assert isinstance(fmt, P.Format), "the scaled integers of these tests never clip"
        else:
            low, high = grid[above - 1], grid[above]
            up = 2 * q > low + high or (2 * q == low + high and above % 2 == 0)
            rounded = high if up else low
        to_zero += rounded == 0
        noise += (abs(v) - rounded * s) ** 2
    return Figures(len(values), clipped, to_zero, sum((v * v for v in values), Fraction(0)), noise)


def same(ours: Figures, exact: Figures, relative: float = 1e-12) -> None:
    assert (ours.values, ours.clipped, ours.to_zero) == (exact.values, exact.clipped, exact.to_zero)
    for mine, true in ((ours.signal, exact.signal), (ours.noise, exact.noise)):
        assert mine is not None
        assert true is not None
        assert abs(mine - true) <= relative * true
    if ours.sqnr_db is not None and math.isfinite(ours.sqnr_db):
        assert exact.sqnr_db is not None
        assert math.isclose(ours.sqnr_db, exact.sqnr_db, rel_tol=1e-12, abs_tol=1e-11)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("source", DTYPES)
def test_figures_are_those_of_rounding_each_value(source, target):
    x = sample(DTYPES[source])
    codes = x.view(f"u{x.itemsize}")
    unscaled, scaled = Wanted(target, False), Wanted(target, True)
    wanted = [scaled] if isinstance(target, P.IntFormat) else [unscaled, scaled]
    h, figures = measure(lambda: [codes[:7], codes[7:]], source, wanted)
    assert h == Histogram.of(x)
    for row, f in zip(wanted, figures, strict=True):
        scale = absmax_scale(h.amax, target) if row.scaled else None
        same(f, direct(x, target, scale))
        assert f.mass == pytest.approx(
            float(np.nansum(np.abs(x.astype(np.float64)[np.isfinite(x.astype(np.float64))])))
        )
        if not h.wide:
            assert h.figures(target, scale=scale) == f


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float6_e2m3fn", "float4_e2m1fn"]
)
def test_figures_agree_with_ml_dtypes_on_every_float16(name):
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)].astype(np.float32)
    fmt = P.get_format(name)
    rounded = np.clip(x, -fmt.max, fmt.max).astype(getattr(ml_dtypes, name)).astype(np.float64)
    f = Histogram.of(x.astype(np.float16)).figures(name)
    assert f.to_zero == np.count_nonzero((rounded == 0) & (x != 0))
    assert math.isclose(f.noise, math.fsum((x - rounded) ** 2), rel_tol=1e-13)


@pytest.mark.parametrize("name", [n for n in DTYPES if n != "float32"])
def test_every_code_is_counted_as_what_it_is(name):
    fmt = P.get_format(name)
    codes = np.arange(1 << fmt.bits, dtype=f"u{fmt.bits // 8}")
    with np.errstate(invalid="ignore"):  # signaling NaN
        x = codes.view(DTYPES[name]).astype(np.float64)
    h = Histogram(name)
    h.add(codes)
    assert (h.size, h.nan, h.infinite) == (codes.size, np.isnan(x).sum(), np.isinf(x).sum())
    finite = x[np.isfinite(x)]
    assert h.zeros == (finite == 0).sum()
    assert h.subnormal == ((np.abs(finite) < fmt.smallest_normal) & (finite != 0)).sum()
    assert h.values + h.zeros + h.nan + h.infinite == h.size
    assert h.amax == fmt.max


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_formats_are_counted_though_a_bin_mixes_kinds(name):
    tiny = np.finfo(name).smallest_subnormal
    x = np.array([0.0, -0.0, tiny, -tiny, 1.0, np.finfo(name).max, np.inf, -np.inf, np.nan, np.nan], name)
    x[-1:].view(f"u{x.itemsize}")[0] = np.array(np.inf, name).view(f"u{x.itemsize}") + 1  # a NaN in the low half only
    h = Histogram.of(x)
    assert (h.zeros, h.subnormal, h.values, h.infinite, h.nan) == (2, 2, 4, 2, 2)
    assert h.amax == np.finfo(name).max
    assert Histogram.of(np.array([tiny, 0], name)).amax == tiny


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
def test_recounting_the_cut_bins_gives_the_counts_of_all_values(name, scaled):
    rng = np.random.default_rng(1)
    wide = np.dtype(f"u{np.dtype(name).itemsize}")
    x = [sample(np.dtype(name), 4000, seed=2)]
    for fmt in TARGETS:  # both sides of every threshold, and the threshold
        for t in (fmt.overflow_threshold, fmt.underflow_threshold, fmt.underflow_threshold / 3):
            at = np.array([t, -t], name).view(wide)
            x.append(np.concatenate([at - 1, at, at + 1]).view(name))
    noise = rng.integers(0, 1 << 32, 20000, dtype=np.uint64) << (32 if name == "float64" else 0)
    x.append(noise.astype(wide).view(name))
    codes = np.concatenate(x).view(wide)
    wanted = [Wanted(fmt, scaled) for fmt in TARGETS]
    _, exact = measure(lambda: [codes], name, wanted)
    _, fast = measure(lambda: [codes[:999], codes[999:]], name, wanted, fast=True)
    for row, a, b in zip(wanted, exact, fast, strict=True):
        assert (a.values, a.clipped, a.to_zero) == (b.values, b.clipped, b.to_zero), row
        assert b.noise is None
        assert b.sqnr == "–"


def test_a_second_look_is_taken_only_where_a_threshold_cuts_an_occupied_bin():
    x = np.float32([1, 2, -3, 0, -0.0, 70000])
    reads = []

    def read():
        reads.append(1)
        return [x.view(np.uint32)]

    measure(read, "float32", [Wanted(P.float16, False), Wanted(P.bfloat16, False)], fast=True)
    assert len(reads) == 1
    x[0] = 65519  # shares its high half with 65520, the threshold
    _, (f, _) = measure(read, "float32", [Wanted(P.float16, False), Wanted(P.bfloat16, False)], fast=True)
    assert len(reads) == 3
    assert f.clipped == 1


def test_bfloat16_values_stored_as_float32_have_the_same_figures():
    x = sample(DTYPES["bfloat16"], 70000)
    wanted = [Wanted(f, s) for f in TARGETS for s in (False, True)]
    narrow, a = measure(lambda: [x.view(np.uint16)], "bfloat16", wanted)
    wide, b = measure(lambda: [x.astype(np.float32).view(np.uint32)], "float32", wanted)
    assert (narrow.size, narrow.nan, narrow.infinite, narrow.zeros, narrow.amax) == (
        *(wide.size, wide.nan, wide.infinite, wide.zeros, wide.amax),
    )
    for mine, other in zip(a, b, strict=True):
        same(mine, other, relative=1e-13)


floats = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


@given(floats, floats, floats)
def test_histograms_are_a_monoid(a, b, c):
    ha, hb, hc = map(Histogram.of, (a, b, c))
    assert Histogram.of(np.concatenate([a, b])) == ha + hb == hb + ha
    assert (ha + hb) + hc == ha + (hb + hc)
    assert ha + Histogram("float32") == ha


@given(floats, floats)
@settings(max_examples=50)
def test_figures_of_parts_add_up(a, b):
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = a.astype(np.float16), b.astype(np.float16)
    for fmt in (P.float8_e5m2, P.float4_e2m1fn):
        parts, whole = Histogram.of(a).figures(fmt) + Histogram.of(b).figures(fmt), Histogram.of(np.concatenate([a, b]))
        same(whole.figures(fmt), parts, relative=1e-14)
        assert parts + Figures() == parts


def test_minus_zero_is_a_zero_and_not_an_underflow():
    f = Histogram.of(np.float32([-1e-9, 1e-9, 0, -0.0, 1]).astype(ml_dtypes.bfloat16)).figures("float8_e4m3fn")
    assert (f.values, f.to_zero, f.clipped) == (3, 2, 0)
    assert f.to_zero_share == 2 / 3


def test_bfloat16_beyond_float16_is_clipped():
    f = Histogram.of(np.float32([70000, 1]).astype(ml_dtypes.bfloat16)).figures("float16")
    assert (f.values, f.clipped, f.clipped_share) == (2, 1, 0.5)
    assert f.noise == (70144 - 65504) ** 2  # 70000 is 70144 in bfloat16


@pytest.mark.parametrize(
    ("value", "clipped"), [(464, 0), (466, 1), (-464, 0), (-466, 1)], ids=["464", "466", "-464", "-466"]
)
def test_what_rounds_to_max_is_not_clipped(value, clipped):
    assert Histogram.of(np.float16([value])).figures("float8_e4m3fn").clipped == clipped


@pytest.mark.parametrize(("value", "clipped"), [(127.25, 0), (127.5, 1), (-128.5, 0), (-128.75, 1), (-128, 0)], ids=str)
def test_integers_clip_unevenly(value, clipped):
    f = Histogram.of(np.float32([value]).astype(np.float16)).figures("int8")
    assert f.clipped == clipped


def test_sqnr_is_a_word_where_it_is_no_number():
    exact = Histogram.of(np.float16([1, 0, np.nan])).figures("float8_e4m3fn")
    assert (exact.sqnr, exact.sqnr_db) == ("exact", math.inf)
    for empty in (np.float16([0, -0.0]), np.float16([]), np.float16([np.inf, np.nan])):
        f = Histogram.of(empty).figures("float8_e4m3fn")
        assert (f.sqnr, f.sqnr_db, f.to_zero_share, f.clipped_share) == ("all zero", None, 0, 0)
    assert Histogram.of(np.float16([1e-6])).figures("float8_e4m3fn").sqnr_db == 0


def test_float64_far_from_one_neither_overflows_nor_underflows():
    for unit in (2.0**-1000, 2.0**-500, 1.0, 2.0**500, 2.0**1000):
        x = np.float64([1, 1.1, -1.7]) * unit
        _, (f,) = measure(lambda x=x: [x.view(np.uint64)], "float64", [Wanted(P.bfloat16, False)])
        _, (g,) = measure(lambda: [np.float64([1, 1.1, -1.7]).view(np.uint64)], "float64", [Wanted(P.bfloat16, False)])
        assert f.signal == g.signal * Fraction(unit) ** 2
        if unit == 1:
            assert f.noise == g.noise
        else:
            assert f.noise > 0
    _, (f,) = measure(lambda: [np.float64([1, 2.0**-700]).view(np.uint64)], "float64", [Wanted(P.bfloat16, False)])
    assert f.noise == Fraction(1, 2**1400)
    assert f.sqnr_db == pytest.approx(14000 * math.log10(2))


@pytest.mark.parametrize("fmt", TARGETS, ids=str)
def test_the_scale_takes_the_largest_value_into_the_format(fmt):
    rng = np.random.default_rng(3)
    largest = np.exp2(rng.uniform(-149, 128, 2000)).astype(np.float32).astype(np.float64)
    for amax in largest:
        scale = absmax_scale(amax, fmt)
        assert scale == np.float32(scale) >= np.float32(2.0**-126)
        assert amax / scale < fmt.overflow_threshold
    assert absmax_scale(0.0, fmt) == 1
    assert absmax_scale(fmt.max * 0.25, fmt) == 0.25
    assert math.isfinite(absmax_scale(1.7e308, fmt))


def test_a_scaled_value_near_a_tie_goes_to_its_own_side():
    rng = np.random.default_rng(4)
    found = 0
    for amax in rng.uniform(448, 896, 300).astype(np.float32):
        scale = absmax_scale(float(amax), P.float8_e4m3fn)
        x = np.float32(1.0625 * scale)  # near the tie between 1 and 1.125
        above = Fraction(float(x)) / Fraction(scale) > Fraction(17, 16)
        if above and x / np.float32(scale) == 1.0625:  # float32 arithmetic would take it for the tie, and go to 1
            found += 1
            pair = np.array([x, amax], np.float32)
            _, (f,) = measure(lambda pair=pair: [pair.view(np.uint32)], "float32", [Wanted(P.float8_e4m3fn, True)])
            noise = (Fraction(float(x)) - Fraction(9, 8) * Fraction(scale)) ** 2
            noise += (Fraction(float(amax)) - 448 * Fraction(scale)) ** 2
            assert abs(f.noise - noise) <= noise * Fraction(1, 10**13)
    assert found > 20


def test_strides_and_shapes_do_not_matter():
    x = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    assert Histogram.of(x[::-1, :, ::2]) == Histogram.of(np.ascontiguousarray(x[:, :, ::2]))
    assert Histogram.of(np.float16(3)).size == 1


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="float formats of at most 16 bits, float32 or float64, not of int8"):
        Histogram("int8")
    with pytest.raises(ValueError, match="not of tfloat32"):
        Histogram("tfloat32")
    with pytest.raises(ValueError, match="do not add"):
        Histogram("float16") + Histogram("bfloat16")
    with pytest.raises(ValueError, match="use measure"):
        Histogram("float32").figures("float16")
    with pytest.raises(ValueError, match="must be below 16, not 16"):
        Histogram("float4_e2m1fn").add(np.uint8([1, 16]))
    with pytest.raises(TypeError, match="no dtype of a named format"):
        Histogram.of(np.array([1j]))
