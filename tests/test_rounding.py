"""The fast path against the oracle, at every input where a cast can go wrong; nothing is compared by tolerance.

`precision.exact` works on rationals and shares no code with what is judged here. Its answers are codes; what `round_to`
must give for a code is read off `exact.decode`. Where the oracle is too slow for every point (the 16-bit formats), the
inputs are made *from* the grid, so that the right answer is known without computing it.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import precision as P
from precision import _engine, exact

Array = np.ndarray[Any, Any]
AnyFormat = P.Format | P.IntFormat

FORMATS = P.formats()
NARROW = [f for f in FORMATS if f.bits <= 8]
WIDE = [f for f in FORMATS if f.bits > 8]
SIXTEEN = [f for f in FORMATS if f.bits == 16]
FLOAT_DTYPES = {16: np.dtype(np.float16), 32: np.dtype(np.float32), 64: np.dtype(np.float64)}

# Each choice that a preset does not make, and mixtures.
CUSTOM = {
    "flush_inputs": P.Policy(subnormals="flush_inputs"),
    "flush_results": P.Policy(overflow="infinity", infinity="infinity", subnormals="flush_results"),
    "flush": P.Policy(subnormals="flush", nan="all_ones_signed", missing_nan="opposite_zero"),
    "missing_max": P.Policy(missing_nan="max", nan="all_ones", negative="clamp"),
    "missing_zero": P.Policy(missing_nan="zero", nan="quiet_signed", negative="magnitude", zero="nan"),
    "only_overflow": P.Policy(overflow="infinity", infinity="saturate", missing_nan="opposite_zero", negative="clamp"),
    "only_infinity": P.Policy(overflow="saturate", infinity="infinity", nan="all_ones_signed", zero="nan"),
}


def by_format(formats: Any) -> Any:
    return pytest.mark.parametrize("fmt", formats, ids=str)


@pytest.fixture(autouse=True)
def _without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops compiled by the `fast` extra take a second each to compile: they have tests of their own below."""
    monkeypatch.setattr(_engine, "_numba", lambda: None)


# --- inputs and answers ---------------------------------------------------------------------------


def bits(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def wide(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN; its sign is what matters
        return x.astype(np.float64)


def grid(fmt: AnyFormat) -> list[Fraction]:
    """The magnitudes of the format's grid, to two steps beyond max; of a wide format, those at the ends of binades."""
    top = fmt.max_code + 2
    if isinstance(fmt, P.IntFormat):
        some = (
            range(top + 1)
            if fmt.bits <= 8
            else {0, 1, 2, top, *(2**k + d for k in range(fmt.bits) for d in (-1, 0, 1))}
        )
        return [Fraction(n) for n in sorted(some)]
    m = fmt.mantissa_bits
    if fmt.bits <= 9:
        codes: Any = range(top + 1)
    else:
        binades = range(0, top >> m, max(1, (top >> m) // 40))
        some = {(k << m) + d for k in binades for d in (-1, 0, 1, (1 << m) // 3)} | {1, 2, *range(top - 4, top + 1)}
        codes = sorted(code for code in some if 0 <= code <= top)
    return [fmt.value_of_magnitude(code) for code in codes]


@cache
def critical(fmt: AnyFormat, dtype: np.dtype[Any]) -> Array:
    """Grid points, midpoints and quarters, each with its neighbours in `dtype`; powers of two; zeros, ends, NaNs."""
    info, uint = np.finfo(dtype), f"u{dtype.itemsize}"
    infinity = int(np.array(np.inf, dtype).view(uint))
    points = grid(fmt)
    between = [a + (b - a) * Fraction(part, 4) for a, b in itertools.pairwise(points) for part in (1, 2)]
    points += [*between, points[0] / 2, points[0] / 4 if points[0] else points[1] / 4]
    finite = [p for p in points if p <= int(info.max)]
    # float() and the cast round, which only moves a point that the dtype cannot hold: to a neighbour of it.
    with np.errstate(under="ignore"):
        centres = np.array([float(p) for p in finite]).astype(dtype).view(uint).astype(np.int64)
    m = info.nmant
    step = 1 if dtype.itemsize < 8 else 13
    edges = np.arange(0, infinity >> m, step, dtype=np.int64) << m
    ends = np.array([0, 1, 2, (1 << m) - 1, 1 << m, infinity - 1, infinity], np.int64)
    nans = infinity + np.array([1, 1 << (m - 4), (1 << (m - 1)) - 1, 1 << (m - 1), (1 << (m - 1)) + 1, (1 << m) - 1])
    near = (centres[:, None] + np.array([-1, 0, 1])).ravel()
    half = np.unique(np.concatenate([near[(near >= 0) & (near < infinity)], edges, ends, nans])).astype(uint)
    x = np.concatenate([half, half | np.array(1 << (8 * dtype.itemsize - 1), uint)]).view(dtype)
    x.setflags(write=False)
    return x


def oracle(x: Array, fmt: AnyFormat, **how: Any) -> Array:
    """The codes that exact rationals give."""
    codes: Array = exact.round(wide(x).tolist(), fmt, source=x.dtype.name, **how)
    return codes


@cache
def _pattern(code: int, fmt: AnyFormat, dtype: np.dtype[Any]) -> int:
    """The bits of a code's value in a dtype; a NaN is quiet, with the code's sign and (as in IEEE 754) its payload."""
    number, uint, m = exact.decode(code, fmt), f"u{dtype.itemsize}", np.finfo(dtype).nmant
    if number.kind != "nan":
        return int(np.array(float(number)).astype(dtype).view(uint))
    quiet = int(np.array(np.inf, dtype).view(uint)) | 1 << (m - 1)
    assert isinstance(fmt, P.Format)
    if fmt.nan == "ieee":
        quiet |= (code & ((1 << fmt.mantissa_bits) - 1)) << (m - fmt.mantissa_bits)
    return quiet | (number.negative << (8 * dtype.itemsize - 1))


def patterns(codes: Array, fmt: AnyFormat, dtype: np.dtype[Any]) -> Array:
    distinct, where = np.unique(codes, return_inverse=True)
    return np.array([_pattern(int(c), fmt, dtype) for c in distinct], f"u{dtype.itemsize}")[where]


def holds(dtype: np.dtype[Any], fmt: AnyFormat) -> bool:
    """Whether every finite value of the format is one of the dtype's."""
    info, significand = np.finfo(dtype), fmt.mantissa_bits + isinstance(fmt, P.Format)
    spacing = Fraction(1) if isinstance(fmt, P.IntFormat) else Fraction(2) ** (fmt.emin - fmt.mantissa_bits)
    smallest = Fraction(2) ** (int(info.minexp) - info.nmant)
    whole = significand <= info.nmant + 1 and fmt.max <= float(info.max)
    return whole and (spacing if fmt.zero else Fraction(fmt.smallest_subnormal)) >= smallest


def check(x: Array, fmt: AnyFormat, codes: Array, **how: Any) -> None:
    """`encode` gives the codes, and `round_to` their values, to the bit."""
    got = P.encode(x, fmt, **how)
    assert got.dtype == codes.dtype
    _same(got, codes, x, fmt, how)
    if holds(x.dtype, fmt):
        rounded = P.round_to(x, fmt, **how)
        assert rounded.dtype == x.dtype
        _same(bits(rounded), patterns(codes, fmt, x.dtype), x, fmt, how)


def _same(got: Array, want: Array, x: Array, fmt: AnyFormat, how: Any) -> None:
    __tracebackhide__ = True
    if not np.array_equal(got, want):
        i = np.flatnonzero(got != want)
        lines = [f"{x[j]!r} ({bits(x)[j]:#x}): got {got[j]:#x}, right {want[j]:#x}" for j in i[:5]]
        pytest.fail(f"{fmt} {how}: {i.size} of {got.size} differ\n" + "\n".join(lines))


# --- every format, mode and policy --------------------------------------------------------------


@by_format(NARROW)
def test_every_mode(fmt: AnyFormat) -> None:
    """Formats of up to 8 bits: every value, midpoint, quarter, threshold and special, from float32 and float64."""
    x32, x64 = critical(fmt, FLOAT_DTYPES[32]), critical(fmt, FLOAT_DTYPES[64])
    both, where = np.unique(np.concatenate([bits(wide(x32)), bits(x64)]), return_inverse=True)
    distinct = both.view(np.float64)
    for rounding, policy in itertools.product(P.ROUNDINGS, ("saturate", "ieee")):
        codes = oracle(distinct, fmt, rounding=rounding, policy=policy)[where]
        check(x32, fmt, codes[: x32.size], rounding=rounding, policy=policy)
        check(x64, fmt, codes[x32.size :], rounding=rounding, policy=policy)


def _policies(fmt: AnyFormat) -> dict[str, Any]:
    """Presets by name and customs, one for each distinct policy."""
    distinct = {P.get_policy(name, fmt): name for name in reversed(P.POLICIES)}
    return {name: name for name in distinct.values()} | CUSTOM


def _ends(x: Array, fmt: AnyFormat, count: int) -> Array:
    """Where policies differ: specials, and the inputs around zero, both smallest normals and both ends of the range."""
    size = np.abs(wide(x))
    with np.errstate(invalid="ignore"):
        order = np.sort(np.unique(size[np.isfinite(size)]))
    points = (0, fmt.smallest_subnormal, fmt.smallest_normal, fmt.max, np.inf, float(np.finfo(x.dtype).smallest_normal))
    at = [np.searchsorted(order, p) for p in points]
    near = np.unique(np.concatenate([order[max(0, i - count) : i + count] for i in at]))
    return x[np.isin(size, near) | ~np.isfinite(size)]


@by_format(NARROW)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_every_policy(fmt: AnyFormat, dtype: Any) -> None:
    """All presets and some customs in all modes: at the ends against the oracle, and elsewhere as every other policy."""
    x = critical(fmt, np.dtype(dtype))
    ends = _ends(x, fmt, 6)
    with np.errstate(invalid="ignore"):
        least = max(fmt.smallest_normal, float(np.finfo(x.dtype).smallest_normal))
        inside = (np.abs(wide(x)) >= least) & (np.abs(wide(x)) <= fmt.max)
        inside &= (wide(x) >= 0) if isinstance(fmt, P.Format) and not fmt.signed else (wide(x) >= fmt.min)
    middle = x[inside]
    for rounding in P.ROUNDINGS:
        usual = P.encode(middle, fmt, rounding=rounding, policy="saturate")
        for policy in _policies(fmt).values():
            check(ends, fmt, oracle(ends, fmt, rounding=rounding, policy=policy), rounding=rounding, policy=policy)
            assert np.array_equal(P.encode(middle, fmt, rounding=rounding, policy=policy), usual)


@by_format(WIDE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_wide_formats_by_binade(fmt: AnyFormat, dtype: Any) -> None:
    """Formats of more than 8 bits: a few points of every part of the range, and all ends, in every mode."""
    x = critical(fmt, np.dtype(dtype))
    some = np.concatenate([_ends(x, fmt, 3), np.random.default_rng(fmt.bits).choice(x, 120)])
    policies: list[Any] = list(_policies(fmt).values())
    for i, rounding in enumerate(P.ROUNDINGS):
        for policy in ("saturate", "ieee"):
            check(some, fmt, oracle(some, fmt, rounding=rounding, policy=policy), rounding=rounding, policy=policy)
        few = _ends(x, fmt, 2)
        for policy in policies[i % 3 :: 3]:
            check(few, fmt, oracle(few, fmt, rounding=rounding, policy=policy), rounding=rounding, policy=policy)


@pytest.mark.exhaustive
@by_format(FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_everything_everywhere(fmt: AnyFormat, dtype: Any) -> None:
    """Every critical input (of wide formats, some hundreds) in every mode under every policy, against the oracle."""
    x = critical(fmt, np.dtype(dtype))
    if fmt.bits > 8:
        x = np.random.default_rng(8).choice(x, 600)
    for rounding, policy in itertools.product(P.ROUNDINGS, _policies(fmt).values()):
        check(x, fmt, oracle(x, fmt, rounding=rounding, policy=policy), rounding=rounding, policy=policy)


# --- the 16-bit formats, in full ----------------------------------------------------------------


def _between(fmt: P.Format | P.IntFormat) -> tuple[Array, Array]:
    """The codes 0 .. max_code - 1 and their values, as float64; consecutive codes are neighbours."""
    codes = np.arange(fmt.max_code)
    if isinstance(fmt, P.IntFormat):
        return codes, codes.astype(np.float64)
    return codes, np.array([float(value) for value, _ in exact.values(fmt)][:-1])


def _right(code: Array, position: str, odd: Array, rounding: str, negative: bool) -> Array:
    """The code of what lies strictly between the values of `code` and `code + 1`, below, at or above their middle."""
    up = {
        "nearest_even": odd if position == "middle" else np.full(odd.shape, position == "above"),
        "nearest_away": np.full(odd.shape, position != "below"),
        "toward_zero": np.zeros(odd.shape, bool),
        "toward_positive": np.full(odd.shape, not negative),
        "toward_negative": np.full(odd.shape, negative),
        "to_odd": ~odd,
    }[rounding]
    return code + up


@by_format(SIXTEEN)
@pytest.mark.parametrize("rounding", P.ROUNDINGS)
def test_between_all_values_of_16_bit_formats(fmt: AnyFormat, rounding: str) -> None:
    """Each midpoint, what is one step of float32 and float64 off it, and off the values: known by construction."""
    code, value = _between(fmt)
    above = np.append(value[1:], fmt.max)
    middle, odd = (value + above) / 2, code % 2 == 1
    for dtype in (np.float32, np.float64):
        center = middle.astype(dtype)
        exactly = center == middle  # float32 cannot hold half of its own smallest number, which some bfloat16 need
        low, high, small, large = (np.nextafter(a.astype(dtype), b.astype(dtype)) for a, b in (
            (center, value), (center, above), (value, above), (above, value)))  # fmt: skip
        parts = [(center[exactly], "middle", exactly)]
        parts += [(low, "below", low > value), (high, "above", high < above)]
        parts += [
            (small, "below", (small > value) & (small < middle)),
            (large, "above", (large < above) & (large > middle)),
        ]
        for negative in (False, True):
            assert np.array_equal(
                P.encode(np.copysign(value, -1 if negative else 1).astype(dtype), fmt, rounding=rounding),
                _signed(code, fmt, negative),
            )
            for x, position, where in parts:
                x = x if x.size == where.sum() else x[where]
                right = _signed(_right(code[where], position, odd[where], rounding, negative), fmt, negative)
                got = P.encode(-x if negative else x, fmt, rounding=rounding)
                _same(got, right, -x if negative else x, fmt, (rounding, position, dtype.__name__))


def _signed(code: Array, fmt: AnyFormat, negative: bool) -> Array:
    if isinstance(fmt, P.IntFormat):
        code = -code if negative else code
        return (code & ((1 << fmt.bits) - 1)).astype(np.uint16)
    return (code | (fmt.sign_mask if negative else 0)).astype(np.uint16)


# --- other inputs -------------------------------------------------------------------------------


def _all_16_bit_patterns(dtype: Any) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


@by_format(FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__)
def test_16_bit_inputs_in_full_are_as_the_same_values_in_float32(fmt: AnyFormat, dtype: Any) -> None:
    """Each mode under a few policies, in turn; what is flushed differs, and is tested below."""
    x = _all_16_bit_patterns(dtype)
    with np.errstate(invalid="ignore"):
        same = x.astype(np.float32)
    policies = [p for p in _policies(fmt).values() if p not in (CUSTOM["flush_inputs"], CUSTOM["flush"])]
    for i, rounding in enumerate(P.ROUNDINGS):
        for policy in policies[(i + fmt.bits) % 4 :: 4] if fmt.bits <= 8 else policies[i : i + 1]:
            codes = P.encode(same, fmt, rounding=rounding, policy=policy)
            _same(P.encode(x, fmt, rounding=rounding, policy=policy), codes, x, fmt, (rounding, policy))
            if dtype is np.float16 and holds(np.dtype(dtype), fmt):
                rounded = P.round_to(x, fmt, rounding=rounding, policy=policy)
                _same(bits(rounded), patterns(codes, fmt, np.dtype(dtype)), x, fmt, (rounding, policy))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float8_e4m3fn", np.float16),
        ("float8_e5m2fnuz", ml_dtypes.bfloat16),
        ("float8_e8m0fnu", ml_dtypes.bfloat16),
        ("float4_e2m1fn", np.float16),
        ("int4", ml_dtypes.bfloat16),
    ],
)
def test_16_bit_inputs_in_full_against_the_oracle(name: str, dtype: Any) -> None:
    x, fmt = _all_16_bit_patterns(dtype), P.get_format(name)
    codes = oracle(x, fmt, policy="ieee")
    _same(P.encode(x, fmt, policy="ieee"), codes, x, fmt, dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_flushed_inputs_are_the_subnormals_of_their_own_dtype(dtype: Any) -> None:
    info = ml_dtypes.finfo(dtype)
    tiny, normal = info.smallest_subnormal, info.smallest_normal
    below = np.array([bits(np.array([normal], dtype)) - 1]).view(dtype).ravel()[0]
    x = np.array([tiny, below, normal, -tiny, -normal], dtype)
    fmt = P.Format("wide", 11, 10)
    flushed = P.decode(P.encode(x, fmt, policy=P.Policy(subnormals="flush_inputs"), rounding="toward_zero"), fmt)
    assert flushed.tolist() == [0, 0, float(normal), 0, -float(normal)]
    assert np.signbit(flushed[3])
    up = P.encode(x[:2], fmt, policy=P.Policy(subnormals="flush_inputs"), rounding="toward_positive")
    assert not up.any()


INTEGER_DTYPES = [np.dtype(f"{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)]


def _integers(dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    if dtype.itemsize == 1:
        return np.arange(info.min, info.max + 1, dtype=dtype)
    powers = {2**k + d for k in range(65) for d in (-1, 0, 1)} | {2**k + 2 ** (k - j) + d for k in range(3, 65)
              for j in (3, 4, 9, 12) if j <= k for d in (-1, 0, 1)}  # fmt: skip
    chosen = {n for p in powers for n in (p, -p) if info.min <= n <= info.max} | {info.min, info.max, info.max - 1}
    return np.array(sorted(chosen), dtype)


@cache
def _value(code: int, fmt: AnyFormat) -> Fraction:
    number = exact.decode(code, fmt)
    return number.value if number.kind == "finite" else Fraction(1, 2)  # 1/2: no integer dtype holds it


@by_format(FORMATS)
def test_integers_are_rounded_once(fmt: AnyFormat) -> None:
    """int8 to uint64 at powers of two, ties and both ends, in every mode; where the dtype can hold it, `round_to` too."""
    for dtype in INTEGER_DTYPES:
        x = _integers(dtype)
        if dtype.itemsize > 1:
            x = np.concatenate([x[:3], x[-3:], np.random.default_rng(0).choice(x, 120 if fmt.bits <= 8 else 40)])
        numbers = np.array([exact.Number.of(n) for n in x.tolist()], object)
        for rounding in P.ROUNDINGS:
            codes = exact.round(numbers, fmt, rounding=rounding)
            assert np.array_equal(P.encode(x, fmt, rounding=rounding), codes), (dtype, rounding)
            values = [_value(c, fmt) for c in codes.tolist()]
            info = np.iinfo(dtype)
            fits = np.array([info.min <= v <= info.max and v.denominator == 1 for v in values])
            rounded = P.round_to(x[fits], fmt, rounding=rounding)
            assert rounded.dtype == dtype
            assert rounded.tolist() == [int(v) for v, fit in zip(values, fits, strict=True) if fit]
            if not fits.all():
                with pytest.raises(ValueError, match=f"x has dtype {dtype}, which cannot hold the rounded value"):
                    P.round_to(x, fmt, rounding=rounding)


@pytest.mark.parametrize("rounding", P.ROUNDINGS)
def test_int64_to_float64_in_every_mode(rounding: str) -> None:
    x = np.array(
        [2**53 - 1, 2**53 + 1, 2**53 + 2, 2**53 + 3, 2**54 + 2, 2**62 + 2**9, 2**63 - 1, -(2**63), -(2**63) + 1, 0]
    )
    x = np.concatenate([x, -x[1:7]])
    codes = exact.round([exact.Number.of(n) for n in x.tolist()], "float64", rounding=rounding)
    assert np.array_equal(P.encode(x, "float64", rounding=rounding), codes)
    for n, code in zip(x, codes, strict=True):  # NumPy scalars and 0-d arrays: no warning of an overflow, no other path
        assert P.encode(n, "float64", rounding=rounding) == P.encode(np.array(n), "float64", rounding=rounding) == code
    u = np.array([2**64 - 1, 2**63, 2**63 + 1, 2**64 - 1024, 2**64 - 1025], np.uint64)
    codes = exact.round([exact.Number.of(n) for n in u.tolist()], "float64", rounding=rounding)
    assert np.array_equal(P.encode(u, "float64", rounding=rounding), codes)


def test_integers_stochastically() -> None:
    x = np.array([2**53 + 1, 2**24 + 1, 1000, -(2**62) - 3, 7, -9, 2**63 - 1], np.int64)
    for fmt, bits_, r in itertools.product(
        ("float64", "float32", "bfloat16", "float8_e4m3fn", "int8"), (1, 4, 11, 32), (0, 1, -1)
    ):
        random = np.full(x.shape, r % 2**bits_)
        how = {"rounding": P.stochastic(random_bits=random, bits=bits_)}
        want = exact.round([exact.Number.of(n) for n in x.tolist()], fmt, **how)
        assert np.array_equal(P.encode(x, fmt, **how), want), (fmt, bits_, r)


@pytest.mark.parametrize("seed", range(4))
def test_random_custom_formats(seed: int) -> None:
    """Formats of every shape that can exist, in a mode and policy each, from every float dtype."""
    draw = np.random.default_rng(seed)
    made = 0
    while made < 25:
        signed = bool(draw.random() < 0.75)
        try:
            fmt = P.Format(
                name="custom", exponent_bits=int(draw.integers(1, 9)), mantissa_bits=int(draw.choice([0, 0, 1, 2, 3, 5, 7])),
                bias=[None, int(draw.integers(-9, 40)), int(draw.integers(60, 160)), int(draw.integers(-120, 300))][
                    int(draw.integers(4))],
                infinities=bool(draw.random() < 0.5), nan=str(draw.choice(["ieee", "all_ones", "negative_zero", "none"])),
                signed=signed, zero=signed or bool(draw.random() < 0.5),
            )  # fmt: skip
        except ValueError:
            continue  # this one cannot exist
        made += 1
        policies = list(_policies(fmt).values())
        for dtype in FLOAT_DTYPES.values():
            rounding, policy = str(draw.choice(P.ROUNDINGS)), policies[int(draw.integers(len(policies)))]
            x = draw.choice(critical.__wrapped__(fmt, dtype), 250)
            check(x, fmt, oracle(x, fmt, rounding=rounding, policy=policy), rounding=rounding, policy=policy)


# --- stochastic rounding ------------------------------------------------------------------------


def _quarters(fmt: AnyFormat, dtype: Any = np.float32) -> Array:
    """Every quarter of the way between neighbours, both signs, and just beside it."""
    points = grid(fmt)
    parts = [a + (b - a) * Fraction(k, 4) for a, b in itertools.pairwise(points) for k in range(4)]
    x = np.array([float(p) for p in parts if p <= 3e38]).astype(dtype)
    return np.concatenate([x, -x, np.nextafter(x[1::7], dtype(0)), np.nextafter(x[::7], dtype(np.inf))])


@by_format(NARROW)
def test_stochastic_with_all_words_of_a_few_bits(fmt: AnyFormat) -> None:
    """All 2^n random words for n = 1, 2, 3, at every quarter between values, under two policies."""
    x = _quarters(fmt)
    for n in (1, 2, 3):
        policy = "ieee" if n == 2 else "saturate"
        for word in range(1 << n):
            how = {"rounding": P.stochastic(random_bits=word, bits=n), "policy": policy}
            check(x, fmt, oracle(x, fmt, **how), **how)


@by_format(FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
def test_stochastic_with_any_number_of_bits(fmt: AnyFormat, dtype: Any) -> None:
    """The random words at which the decision turns, and their neighbours, for n from 1 to 32."""
    draw = np.random.default_rng(3)
    x = np.unique(
        np.concatenate(
            [_ends(critical(fmt, np.dtype(dtype)), fmt, 4), draw.choice(critical(fmt, np.dtype(dtype)), 200)]
        )
    )
    x = x[np.isfinite(x)]
    x = draw.choice(x, min(x.size, 90 if fmt.bits <= 8 else 40), replace=False)
    for n in (1, 2, 5, 8, 11, 16, 20, 23, 24, 29, 30, 31, 32) if fmt.bits <= 8 else (1, 8, 16, 23, 24, 32):
        turn = np.array([_turning_word(v, fmt, n) for v in x.tolist()], np.int64)
        for random in (turn, turn - 1, draw.integers(0, 1 << n, x.size)):
            random = np.clip(random, 0, (1 << n) - 1)
            policy = P.Policy(subnormals="flush") if n == 5 else "ieee"
            how = {"rounding": P.stochastic(random_bits=random, bits=n), "policy": policy}
            check(x, fmt, oracle(x, fmt, **how), **how)


def _turning_word(x: float, fmt: AnyFormat, n: int) -> int:
    """The smallest word that rounds |x| up: 2^n - floor(2^n · (the part of |x| below its last place))."""
    size = abs(Fraction(x))
    spacing = Fraction(1)
    if isinstance(fmt, P.Format):
        binade = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, fmt.emin)
        while binade >= fmt.emin and size >= Fraction(2) ** (binade + 1):
            binade += 1
        spacing = Fraction(2) ** (binade - fmt.mantissa_bits)
    return (1 << n) - int((size / spacing % 1) * 2**n)


@pytest.mark.parametrize("x", [1.00390625 + 2**-20, -3.14159, 2**-130 + 2**-149, 1e-45, 65535.99, -1.1754942e-38])
def test_stochastic_mean_is_exact(x: float) -> None:
    """float32 to bfloat16 drops 16 bits: the mean over all 2^16 words is the float32 number itself, exactly."""
    words = np.arange(1 << 16)
    y = P.round_to(np.full(words.shape, x, np.float32), "bfloat16", rounding=P.stochastic(random_bits=words, bits=16))
    values, counts = np.unique(y, return_counts=True)
    mean = sum(Fraction(float(v)) * int(c) for v, c in zip(values, counts, strict=True)) / len(words)
    assert mean == Fraction(float(np.float32(x)))
    assert len(values) == 2


@pytest.mark.parametrize("x", [1.0999999, -17.3, 300.00003])
def test_stochastic_mean_is_exact_for_fp8(x: float) -> None:
    """float32 to E4M3 drops 20 bits of a normal number."""
    words = np.arange(1 << 20)
    rounding = P.stochastic(random_bits=words, bits=20)
    y = P.round_to(np.full(words.shape, x, np.float32), "float8_e4m3fn", rounding=rounding)
    values, counts = np.unique(y, return_counts=True)
    total = sum(Fraction(float(v)) * int(c) for v, c in zip(values, counts, strict=True))
    assert total == Fraction(float(np.float32(x))) * len(words)


# --- ways through the engine --------------------------------------------------------------------


def _some_patterns(count: int, dtype: Any) -> Array:
    return np.frombuffer(np.random.default_rng(5).bytes(count * np.dtype(dtype).itemsize), dtype)


@by_format(FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_tables_have_the_answers_of_the_definition(fmt: AnyFormat, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table is built once many elements have asked for it, and until then the definition serves."""
    asked = _engine.Table.asked
    ways = (lambda table, elements: None), (lambda table, elements: asked(table, 1 << 30))
    x = np.concatenate([critical(fmt, np.dtype(dtype)), _some_patterns(20_000, dtype)])
    random = P.stochastic(random_bits=np.arange(x.size) % 16, bits=4)
    for rounding in (P.ROUNDINGS[fmt.bits % 6], random):
        results = []
        for way in ways:
            monkeypatch.setattr(_engine.Table, "asked", way)
            results.append(P.encode(x, fmt, rounding=rounding, policy="torch"))
        _same(*results, x, fmt, rounding)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "float16", "float32", "int8", "int16"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_long_arrays_are_as_short_ones(name: str, dtype: Any) -> None:
    """Across the engine's blocks, whose scratch arrays are shared between calls."""
    x = _some_patterns(2 * _engine.BLOCK + 77, dtype)
    piece = 997
    short = np.concatenate([P.encode(x[i : i + piece], name) for i in range(0, x.size, piece)])
    assert np.array_equal(P.encode(x, name), short)
    random = np.random.default_rng(6).integers(0, 1 << 9, x.size)
    long = P.encode(x, name, rounding=P.stochastic(random_bits=random, bits=9))
    for i in (0, _engine.BLOCK - 500, x.size - piece):
        part = slice(i, i + piece)
        how = {"rounding": P.stochastic(random_bits=random[part], bits=9)}
        assert np.array_equal(long[part], P.encode(x[part], name, **how))


def _compiled_jobs() -> list[Any]:
    """Every format, mode, policy and input dtype at least once, with few jobs: each takes a second to compile."""
    dtypes = (np.float32, np.float64, np.float16)
    jobs = []
    for i, fmt in enumerate(FORMATS):
        policies = list(_policies(fmt))
        for kind, j in (("encode", i), ("round_to", i + 1)):
            dtype: Any = dtypes[j % 3]
            if kind == "round_to" and not holds(np.dtype(dtype), fmt):
                dtype = np.float64
            jobs.append((kind, fmt, P.ROUNDINGS[j % 6], policies[j % len(policies)], dtype))
    return jobs


@pytest.mark.parametrize(("kind", "fmt", "rounding", "policy", "dtype"), _compiled_jobs(), ids=str)
def test_compiled_loops(
    kind: str, fmt: AnyFormat, rounding: str, policy: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba's loops give the bits of NumPy's tables."""
    pytest.importorskip("numba", reason="needs numba: the `fast` extra")
    from precision import _numba

    x = np.concatenate([critical(fmt, np.dtype(dtype)), _some_patterns(1000, dtype)])
    how = {"rounding": rounding, "policy": _policies(fmt)[policy]}
    plain = getattr(P, kind)(x, fmt, **how)
    monkeypatch.setattr(_engine, "_numba", lambda: _numba)
    monkeypatch.setattr(_engine, "COMPILE_FROM", 1)
    compiled = getattr(P, kind)(x, fmt, **how)
    assert compiled.dtype == plain.dtype
    _same(bits(compiled), bits(plain), x, fmt, how)


# --- cases that went wrong elsewhere ------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
E4M3, E5M2, E2M1, E8M0 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu"
F16, BF16 = "float16", "bfloat16"
D = np.float64
# Threads about casts: (where, format, inputs, right values under "saturate", or under the policy or rounding that is named).
# A str is a float32 pattern, an int an int64, D(…) a float64, any other number a float32.
CASES: list[tuple[str, str, list[Any], list[float], dict[str, str]]] = [
    ("ml_dtypes#400", E4M3, [448.0, 464.0, 465.0, 1000.0, INF, NAN, -INF], [448, 448, 448, 448, 448, NAN, -448], {}),
    ("ml_dtypes#400", E4M3, [448.0, 464.0, 465.0, 1000.0, INF, NAN], [448, 448, NAN, NAN, NAN, NAN], {"policy": "ieee"}),
    ("ao#1912", E4M3, [1000.0, INF, -1000.0, NAN], [448, 448, -448, NAN], {"policy": "torch"}),
    ("ao#1912", E4M3, [1000.0, INF, 464.0], [NAN, NAN, 448], {"policy": "torch_2_11"}),
    ("ao#1912", E5M2, [61440.0, 61439.0, INF], [INF, 57344, INF], {"policy": "torch"}),
    ("ao#1912", "float8_e4m3fnuz", [248.0, 247.0, INF], [NAN, 240, NAN], {"policy": "torch"}),
    ("pytorch#150756", E4M3, [449.0, 464.0], [448, 448], {"policy": "ieee"}),
    ("ml_dtypes#221", E4M3, [4.25], [4], {}),
    ("bitstring#342", E4M3, [232.03683], [240], {}),
    ("Microfloats.jl#25", E4M3, [1.31640625], [1.375], {}),
    ("julia#40315", F16, [D(63343.99805), D(1 + 2**-11 + 2**-40), D(1 + 2**-11 + 2**-52)], [63328, 1.0009765625, 1.0009765625], {}),
    ("julia#40315", BF16, [D(1 + 2**-8 + 2**-40)], [1.0078125], {}),
    ("julia#40315", E4M3, [D(1.0625 + 2**-40), D(1 + 2**-4 + 2**-36 + 2**-48)], [1.125, 1.125], {}),
    ("julia#40315", E5M2, [D(1 + 2**-3 + 2**-39)], [1.25], {}),
    ("julia#40315", E2M1, [D(1.25 + 2**-40)], [1.5], {}),
    ("julia#40315", "float6_e2m3fn", [D(1.0625 + 2**-40)], [1.125], {}),
    ("int64 through float32", BF16, [2**25 + 2**17 + 1, 2**24 + 2**16 + 1, -(2**24) - 2**16 - 1], [33816576, 16908288, -16908288], {}),
    ("jax#38995", BF16, [D(2.0**-133), D(2.0**-134), D(2.0**-134 + 2.0**-180)], [2.0**-133, 0, 2.0**-133], {}),
    ("numpy#22704", F16, ["34200000", "34600000", "40001000"], [2 * 2.0**-24, 4 * 2.0**-24, 2], {}),
    ("numpy#25568", F16, [-32767.0, 3811.0], [-32768, 3812], {}),
    ("numpy#25568", BF16, [3811.0], [3808], {}),
    ("pytorch#92233", F16, [6.407499313354492e-06], [108 * 2.0**-24], {}),
    ("tt-metal#19882", BF16, [3.14], [3.140625], {}),
    ("onnx#5456", E4M3, [1.0625, "7fa00000"], [1, NAN], {}),
    ("onnxruntime#18473", "float8_e4m3fnuz", [-1e-5, -1e-9], [0, 0], {}),
    ("onnxruntime#18473", "float8_e5m2fnuz", [-1e-7], [0], {}),
    ("onnxruntime#28435", E8M0, [1.25, 1.5, 2.5, 3.0, 12.0, 1.5 * 2.0**127], [1, 2, 2, 4, 16, 2.0**127], {}),
    ("onnxruntime#28435", E8M0, [1.5 * 2.0**127, INF], [NAN, NAN], {"policy": "ieee"}),
    ("onnx#7784", E8M0, [1.125, 1.25, 5.0, 3.0, 2.0**-127], [2, 2, 8, 4, 2.0**-127], {"rounding": "toward_positive"}),
    ("onnx#7784", E8M0, ["00000001", 0.0, "00400001"], [2.0**-127, 2.0**-127, 2.0**-126], {"rounding": "toward_positive"}),
    ("sglang#25733", E8M0, [1.5, 1.0], [2, 1], {"rounding": "toward_positive"}),
    ("E8M0 has no sign and no zero", E8M0, [0.0, -1.0, -2.0], [NAN, NAN, NAN], {"policy": "ml_dtypes"}),
    ("E8M0 has no sign and no zero", E8M0, [0.0, -1.0, -2.0], [2.0**-127, 1, 2], {"policy": "torch"}),
    ("E8M0 has no sign and no zero", E8M0, [0.0, -1.0], [2.0**-127, NAN], {}),
    ("E8M0 below 2^-126", E8M0, ["00000001", "00400000", "005fffff", "00600000", "007fffff"],
     [2.0**-127, 2.0**-127, 2.0**-127, 2.0**-126, 2.0**-126], {}),
    ("Float8s.jl#22", E4M3, [0.000538887], [0], {}),
    ("tvm#20315", E5M2, [0.0, 2.0**-16], [0, 2.0**-16], {}),
    ("torch-xpu-ops#2951", E4M3, [-0.0], [-0.0], {}),
    ("pytorch half()", F16, [90000.0, 70000.0], [INF, INF], {"policy": "ieee"}),
    ("QPyTorch#23", F16, [1 + 2.0**-11], [1], {}),
    ("QPyTorch#48", "float32", [3.0, -2.0], [3, -2], {}),
    ("gfloat#49", BF16, [D(6.6461399789245764e35)], [6.620178494631905e35], {"rounding": "toward_zero"}),
    ("onnx#6220", "float8_e4m3fnuz", [INF, 1000.0], [NAN, 240], {"policy": "onnx"}),
    ("aiter#974", E2M1, [-1.25, 0.25000006, 0.25, 0.75, 1.25, 5.0, 7.0], [-1, 0.5, 0, 1, 1, 4, 6], {}),
    # The same kinds of fault, as peers show them
    ("zero one binade past emax", F16, [65536.0, -87040.0, 65520.0], [INF, -INF, INF], {"policy": "ieee"}),
    ("zero one binade past emax", BF16, ["7f7fffff"], [INF], {"policy": "ieee"}),
    ("zero one binade past emax", "float8_e4m3", [300.0], [INF], {"policy": "ieee"}),
    ("zero one binade past emax", E2M1, [4.0, 6.03125], [4, 6], {"policy": "ieee"}),
    ("beyond max kept as finite", E5M2, [61440.0], [INF], {"policy": "ieee"}),
    ("subnormals by log2", F16, ["b4d00014", "33000001", "33000000"], [-7 * 2.0**-24, 2.0**-24, 0], {}),
    ("subnormals flushed or enlarged", BF16, ["00400000", "00030000", "00010000"], [2.0**-127, 3 * 2.0**-133, 2.0**-133], {}),
    ("subnormals flushed or enlarged", E5M2, ["37010000"], [2.0**-16], {}),
    ("ties away", BF16, [-16547840.0], [-16515072], {}),
    ("below half, up", F16, ["b2fffbdc", "32ffffff"], [-0.0, 0], {}),
    ("below half, up", E4M3, ["3a7ffffd", "3a7fffff"], [0, 0], {}),
    ("below half, up", E5M2, ["36ffffff"], [0], {}),
    ("below half, up", E2M1, ["3e7fffff"], [0], {}),
    ("through float16", E5M2, ["47500fb0", "c290070e", "476ff3b9"], [57344, -80, 57344], {"policy": "ieee"}),
    ("through float16", E4M3, ["43d7ffbe"], [416], {}),
    ("off the grid", E4M3, ["3b090000", "3a810000"], [2.0**-9, 2.0**-9], {}),
    ("NaN payload carried away", E5M2, ["7f810000", "7ff50000"], [NAN, NAN], {"policy": "ieee"}),
    ("NaN payload carried away", BF16, ["7f80684a", "ffffc9c1"], [NAN, NAN], {"policy": "ieee"}),
    ("480", E4M3, ["43e90000", -494.0], [448, -448], {}),
    ("480", E4M3, ["43e90000", -494.0], [NAN, NAN], {"policy": "ieee"}),
    ("ties down", E4M3, [432.0, -11.5], [448, -12], {}),
    ("mode of the value, not of its size", E4M3, [-1.0625, 1.0625], [-1.125, 1.125], {"rounding": "nearest_away"}),
    ("odd for exact values", E4M3, [1.0, 2.0, 1.01], [1, 2, 1.125], {"rounding": "to_odd"}),
    ("carry into the smallest normal", "float8_e3m4", [0.24609375], [0.25], {}),
    # Integers
    ("pytorch#106780", "int8", [INF, -INF, NAN, 127.5, -128.5, 128.0, -129.0], [127, -128, 0, 127, -128, 127, -128], {}),
    ("onnxruntime#3442", "int8", [-129.0, -128.0, -127.5, 127.0, 128.0], [-128, -128, -128, 127, 127], {}),
    ("onnxruntime#18576", "uint8", [2.11, 2.5, 5.5, 62.5, INF, -INF], [2, 2, 6, 62, 255, 0], {}),
    ("openvino#38158", "int4", [2.5, 3.5, -2.5, 7.6, 8.0, 8.5, -7.6, -9.0, 300.0, NAN], [2, 4, -2, 7, 7, 7, -8, -8, 7, 0], {}),
    ("pytorch#87556", "int32", [NAN, 1e20, -1e20, 2147483648.0], [0, 2147483647, -2147483648, 2147483647], {}),
    ("pytorch#87556", "uint8", [-3.1415927, 300.0], [0, 255], {}),
]  # fmt: skip


def _input(numbers: list[Any]) -> Array:
    if all(isinstance(n, int) for n in numbers):
        return np.array(numbers, np.int64)
    if any(isinstance(n, np.float64) for n in numbers):
        return np.array(numbers, np.float64)
    return np.array([int(n, 16) if isinstance(n, str) else bits(np.float32(n)) for n in numbers], np.uint32).view(
        np.float32
    )


@pytest.mark.parametrize(
    ("name", "numbers", "right", "how"), [case[1:] for case in CASES], ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_cases_that_went_wrong_elsewhere(
    name: str, numbers: list[Any], right: list[float], how: dict[str, str]
) -> None:
    got = P.decode(P.encode(_input(numbers), name, **how), name, "float64")
    assert [str(v) for v in got.tolist()] == [str(float(v)) for v in right]
