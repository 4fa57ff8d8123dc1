"""Laws of casts: what codes mean, and where rounding into a format must land.

Each law is called as `law(subject, fmt, rounding, x)` with a `properties.subjects.Codec`, a format, a rounding mode and
an array of float32 (or float64) inputs of which it takes those it speaks about; some bring inputs of their own. Answers
are compared by bits: the sign of zero counts, and NaN is compared by class, except where the policy names the code.

The yardstick is plain float64 arithmetic on the format's grid (`properties.laws._grid`), which is exact for these
inputs and shares nothing with `precision.rounding`; `agrees_with_exact_rationals` ties both to `precision.exact`.

Sources: IEEE 754-2019 sections 4.3 (rounding), 6.2 (NaN), 6.3 (sign of zero), 7.4 (overflow); OCP OFP8 1.0 section 5;
OCP MX 1.0 section 5.3.

>>> from properties.laws import laws
>>> from properties.subjects import from_function, load
>>> law = laws("rounding")["ties_go_to_even"]
>>> law(load("ours"), "float8_e4m3fn", "nearest_even", np.float32([1.0625, 464.0]))
>>> away = from_function(lambda x, f, r: np.floor(x * 8 + 0.5) / 8, formats=["float8_e4m3fn"])  # right only in [1, 2)
>>> law(away, "float8_e4m3fn", "nearest_even", np.float32([1.0, 1.0625]))
Traceback (most recent call last):
properties.laws.Broken: rounding.ties_go_to_even[float8_e4m3fn]: A tie between two neighbours goes to the even one.
  at        x = 1.0625 (float32 0x3f880000)
  got       1.125 = 0_0111_001
  expected  1.0 = 0_0111_000
  neighbours 1.0 = 0_0111_000 and 1.125 = 0_0111_001
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from precision import exact
from properties.laws import Broken, Unsupported, law
from properties.laws._grid import (
    MIRROR,
    NAN_PATTERNS,
    all_codes,
    answer,
    around,
    below,
    code_text,
    critical_inputs,
    limit,
    magnitude,
    on_grid,
    overflowed,
    random_inputs,
    require,
    require_codes,
    rounded_size,
    same,
    signed,
    some_codes,
    value_text,
    values_of,
    wide,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from precision.policies import Policy
    from properties.subjects import Codec

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]

__all__ = ["critical_inputs", "random_inputs"]

_NEAREST = ("nearest_even", "nearest_away")
_SIDED = ("toward_zero", "toward_positive", "toward_negative")
_IEEE = "IEEE 754-2019 4.3"

# --- Asking and refusing --------------------------------------------------------------------------------------------


def _round(subject: Codec, x: Array, fmt: AnyFormat, rounding: str) -> Floats:
    y = answer(subject.round(x.copy(), fmt, rounding))  # a copy: a subject that works in place must not hide it
    if y.shape != x.shape:
        raise Broken(
            where=f"an array of shape {x.shape}",
            got=f"shape {y.shape}",
            expected=f"shape {x.shape}",
            fmt=fmt.name,
            rounding=rounding,
        )
    return wide(y)


def _judge(subject: Codec, x: Array, expected: Floats, fmt: AnyFormat, rounding: str, *notes: str) -> None:
    """Round x and require exactly `expected`."""
    if x.size:
        got = _round(subject, x, fmt, rounding)
        require(same(got, expected), x, got, expected, fmt, rounding, *notes)


def _offers(subject: Codec, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(subject, name, None)
    if method is None:
        raise Unsupported(f"{subject.name} has no {name}()")
    return method


def _in_range(x: Array, fmt: AnyFormat, policy: Policy) -> Bools:
    """Finite x under the plain rule: within [min, max], not flushed, of a sign and not a zero that the format lacks."""
    size = np.abs(wide(x))
    with np.errstate(invalid="ignore"):
        good = size <= limit(x, fmt)
    if isinstance(fmt, P.Format) and not fmt.signed:
        good &= ~np.signbit(x)
    if not fmt.zero:
        good &= size > 0
    if policy.subnormals in ("flush_results", "flush"):
        good &= size >= 2 * fmt.smallest_normal
    return good & ~_flushed(x, policy)


def _flushed(x: Array, policy: Policy) -> Bools:
    """Which x are subnormals of their dtype that the policy takes for zero."""
    tiny: Bools = np.abs(x) < np.finfo(x.dtype).smallest_normal
    return tiny & (policy.subnormals in ("flush_inputs", "flush"))


def _welcome(x: Array, fmt: AnyFormat, policy: Policy) -> Array:
    """x without NaN where the policy is to raise for it."""
    missing = policy.missing_nan == "raise"
    return x[~np.isnan(x)] if (policy.nan == "raise" if fmt.has_nan else missing) else x


# --- Codes ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def _exact_values(fmt: AnyFormat) -> Floats:
    """What `all_codes` mean, whoever is judged."""
    return np.array([float(exact.decode(int(code), fmt)) for code in all_codes(fmt)])


@law("decoding", source="the format's row in precision.formats")
def every_code_decodes_right(subject: Codec, fmt: AnyFormat | str) -> None:
    """Every code decodes to the value its bits say."""
    fmt = P.get_format(fmt)
    decode = _offers(subject, "decode")
    codes, expected = all_codes(fmt), _exact_values(fmt)
    got = wide(answer(decode(codes, fmt)))
    require_codes(same(got, expected), codes, got, expected, fmt)


@law("encoding", source="every value has one code; only NaN may have several")
def decode_encode_is_identity(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A code decoded and encoded again is the same code, in every mode."""
    fmt = P.get_format(fmt)
    encode, policy = _offers(subject, "encode"), subject.policy(fmt)
    codes = all_codes(fmt)
    values = values_of(codes, fmt)
    with np.errstate(all="ignore"):
        given = values.astype(x.dtype)
    kept = (given.astype(np.float64) == values) & (np.isfinite(values) | (policy.infinity == "infinity"))
    if policy.subnormals != "keep":
        kept &= (np.abs(values) >= max(fmt.smallest_normal, float(np.finfo(x.dtype).smallest_normal))) | (values == 0)
    codes, given = codes[kept], given[kept]
    got = answer(encode(given, fmt, rounding))
    require_codes(got == codes, codes, got, codes, fmt, rounding)


@law("encoding", source="rounding and encoding are one decision")
def encode_agrees_with_round(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """The code of x decodes to x rounded."""
    fmt = P.get_format(fmt)
    encode = _offers(subject, "encode")
    x = _welcome(x, fmt, subject.policy(fmt))
    got, expected = values_of(answer(encode(x, fmt, rounding)), fmt), _round(subject, x, fmt, rounding)
    require(same(got, expected), x, got, expected, fmt, rounding)


@law("encoding", source="the policy's nan", applies=lambda fmt, rounding, policy: fmt.has_nan and policy.nan != "raise")
def nan_has_the_code_of_the_policy(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A NaN gets the code that the policy names, with or without its sign."""
    fmt = P.get_format(fmt)
    encode, policy = _offers(subject, "encode"), subject.policy(fmt)
    x = _nans(x)
    code = fmt.all_ones_nan_code if policy.nan.startswith("all_ones") else fmt.quiet_nan_code
    sign = np.signbit(x) & policy.nan.endswith("signed")
    expected = np.where(sign, np.uint64(fmt.sign_mask | (code or 0)), np.uint64(code or 0))
    got = answer(encode(x, fmt, rounding)).astype(np.uint64)
    right = got == expected
    require(right, x, got, expected, fmt, rounding, "as codes", text=lambda c: code_text(int(c), fmt))


# --- The nearest value ----------------------------------------------------------------------------------------------


def _finite_format(fmt: AnyFormat) -> bool:
    return isinstance(fmt, P.Format)


@law("rounding", source=f"{_IEEE}: an exact result is delivered unchanged")
def values_are_fixed_points(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A value of the format rounds to itself, sign of zero included."""
    fmt = P.get_format(fmt)
    missing = (x == 0) & np.signbit(x) & (not fmt.has_negative_zero)
    x = x[_in_range(x, fmt, subject.policy(fmt)) & on_grid(x, fmt) & ~missing]
    _judge(subject, x, wide(x), fmt, rounding)


@law("rounding", source="the format's row in precision.formats")
def result_is_representable(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Whatever is not NaN rounds to a value of the format, to an infinity or NaN only where it has one."""
    fmt = P.get_format(fmt)
    x = _welcome(x, fmt, subject.policy(fmt))
    x = x[~np.isnan(x)]
    y = _round(subject, x, fmt, rounding)
    right = on_grid(y, fmt) & (np.abs(y) <= limit(y, fmt))
    right &= (y != 0) | ~np.signbit(y) | fmt.has_negative_zero
    right |= (np.isinf(y) & fmt.infinities) | (np.isnan(y) & fmt.has_nan)
    require(right, x, y, f"a value of {fmt.name}", fmt, rounding)


@law("rounding", source=f"{_IEEE}.1", applies=lambda fmt, rounding, policy: rounding in _NEAREST)
def result_is_the_nearest(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """No value of the format is nearer to x than the result."""
    fmt = P.get_format(fmt)
    x = x[_in_range(x, fmt, subject.policy(fmt))]
    low, high, _ = below(x, fmt)
    size = np.abs(wide(x))
    y = _round(subject, x, fmt, rounding)
    with np.errstate(invalid="ignore"):
        right = np.abs(wide(x) - y) <= np.where(low <= size, np.minimum(size - low, high - size), high - size)
    require(right, x, y, signed(rounded_size(x, fmt, rounding), x, fmt), fmt, rounding)


def _ties(subject: Codec, x: Array, fmt: AnyFormat) -> Array:
    low, high, _ = below(x, fmt)
    size = np.abs(wide(x))
    with np.errstate(invalid="ignore"):
        tie = (size - low == high - size) & (low < high) & (high <= limit(x, fmt))
    ties: Array = x[_in_range(x, fmt, subject.policy(fmt)) & tie]
    return ties


@law("rounding", source=f"{_IEEE}.1 roundTiesToEven", applies=lambda fmt, rounding, policy: rounding == "nearest_even")
def ties_go_to_even(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A tie between two neighbours goes to the even one."""
    fmt = P.get_format(fmt)
    x = _ties(subject, x, fmt)
    low, high, odd = below(x, fmt)
    _judge(subject, x, signed(np.where(odd, high, low), x, fmt), fmt, rounding)


@law("rounding", source=f"{_IEEE}.1 roundTiesToAway", applies=lambda fmt, rounding, policy: rounding == "nearest_away")
def ties_go_away_from_zero(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A tie between two neighbours goes to the larger in magnitude."""
    fmt = P.get_format(fmt)
    x = _ties(subject, x, fmt)
    _judge(subject, x, signed(below(x, fmt)[1], x, fmt), fmt, rounding)


@law("rounding", source=f"{_IEEE}.2", applies=lambda fmt, rounding, policy: rounding in _SIDED)
def directed_rounding_stays_on_its_side(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A directed mode gives the neighbour on its own side of x: never past x, never one too far."""
    fmt = P.get_format(fmt)
    x = x[_in_range(x, fmt, subject.policy(fmt))]
    low, high, _ = below(x, fmt)
    outward = np.zeros(x.shape, bool) if rounding == "toward_zero" else np.signbit(x) == (rounding == "toward_negative")
    _judge(subject, x, signed(np.where(outward, high, low), x, fmt), fmt, rounding)


@law(
    "rounding",
    source="Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008: rounding to odd",
    applies=lambda fmt, rounding, policy: rounding == "to_odd",
)
def the_inexact_becomes_odd(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """What is no value of the format goes to the neighbour with an odd significand."""
    fmt = P.get_format(fmt)
    x = x[_in_range(x, fmt, subject.policy(fmt))]
    low, high, odd = below(x, fmt)
    _judge(subject, x, signed(np.where(odd, low, high), x, fmt), fmt, rounding)


# --- Shape of the function ------------------------------------------------------------------------------------------


@law("rounding", source=f"{_IEEE}: each mode is a monotone function")
def monotone(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A larger input never gives a smaller result."""
    fmt = P.get_format(fmt)
    x = x[np.isfinite(x) & (fmt.sign_mask != 0 or not isinstance(fmt, P.Format) or ~np.signbit(x))]
    x = np.sort(x)
    y = _round(subject, x, fmt, rounding)
    kept = ~np.isnan(y)
    x, y = x[kept], y[kept]
    if x.size:
        ceiling = np.concatenate([y[:1], np.maximum.accumulate(y)[:-1]])
        require(y >= ceiling, x, y, "at least what the next smaller input gives", fmt, rounding)


@law("rounding", source=f"{_IEEE}: roundTowardPositive mirrors roundTowardNegative", applies=lambda fmt, *_: fmt.signed)
def mirrored_inputs_give_mirrored_results(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """round(-x) is -round(x), where up and down change places."""
    fmt = P.get_format(fmt)
    mirror = MIRROR.get(rounding, rounding)
    if mirror not in subject.roundings(fmt):
        raise Unsupported(f"{subject.name} has no {mirror}")
    x = x[~np.isnan(x)]
    if isinstance(fmt, P.IntFormat):
        x = x[np.abs(wide(x)) <= fmt.max]
    expected = -_round(subject, -x, fmt, mirror)
    _judge(subject, x, expected if fmt.has_negative_zero else expected + 0.0, fmt, rounding)


@law("rounding", source=f"{_IEEE}: a value of the format is exact")
def idempotent(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Rounding what was rounded changes nothing."""
    fmt = P.get_format(fmt)
    once = _round(subject, _welcome(x, fmt, subject.policy(fmt)), fmt, rounding)
    with np.errstate(all="ignore"):
        again = once.astype(x.dtype)
    kept = again.astype(np.float64) == once
    if subject.policy(fmt).infinity == "saturate":
        kept &= np.isfinite(once)
    again, once = again[kept], once[kept]
    _judge(subject, again, once, fmt, rounding)


@law(
    "rounding",
    source="scaling by a power of two is exact",
    applies=lambda fmt, *_: _finite_format(fmt) and fmt.emax > fmt.emin,
)
def powers_of_two_pass_through(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Among normal numbers, scaling by a power of two before rounding is scaling after it."""
    fmt, every = P.get_format(fmt), x
    info = np.finfo(x.dtype)
    for i, k in enumerate((1, -3, 7)):
        x = every if fmt.bits <= 8 else every[i::3]  # of many, a third for each scale
        good = _in_range(x, fmt, subject.policy(fmt))
        with np.errstate(all="ignore"):
            scaled = np.ldexp(x, k)
            low, high = np.minimum(np.abs(x), np.abs(scaled)), np.maximum(np.abs(x), np.abs(scaled))
            both = good & (low >= max(fmt.smallest_normal, 2 * float(info.smallest_normal)))  # so that scaling is exact
        both &= np.isfinite(scaled) & (below(high, fmt)[1] <= limit(x, fmt))
        _judge(subject, scaled[both], np.ldexp(_round(subject, x[both], fmt, rounding), k), fmt, rounding)


# --- Once -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)  # the modes of a format, one after the other, ask for the same
def _off_ties(fmt: AnyFormat, between: AnyFormat, dtype: Any) -> Array:
    """Inputs that are neither a tie nor a value of `fmt`, but become one when they are rounded to `between` first."""
    values = magnitude(some_codes(fmt), fmt)
    points = np.concatenate([values, values[:-1] / 2 + values[1:] / 2])
    points = points[(points >= between.smallest_normal) & (points <= between.max) & on_grid(points, between)]
    spacing = np.ldexp(1.0, np.frexp(points)[1] - 1 - between.mantissa_bits)
    nearby = np.concatenate([points + share * spacing for share in (-0.24, -(2.0**-8), 2.0**-8, 0.24)])
    with np.errstate(all="ignore"):
        x = np.concatenate([around(points, np.zeros(0, dtype), 1), nearby.astype(dtype), (-nearby).astype(dtype)])
    low, high, _ = below(x, fmt)
    off: Array = x[(low < high) & (np.abs(wide(x)) - low != high - np.abs(wide(x)))]
    off.setflags(write=False)
    return off


def _once(subject: Codec, fmt: AnyFormat, rounding: str, dtype: Any, intermediates: tuple[AnyFormat, ...]) -> None:
    for between in intermediates:
        x = _off_ties(fmt, between, dtype)
        x = x[_in_range(x, fmt, subject.policy(fmt))]
        x = x[rounded_size(x, fmt, rounding) <= limit(x, fmt)]
        once, got = signed(rounded_size(x, fmt, rounding), x, fmt), _round(subject, x, fmt, rounding)
        first = signed(rounded_size(x, between, "nearest_even"), x, between)
        twice = signed(rounded_size(first, fmt, rounding), x, fmt)
        right = same(got, once)
        notes = [f"this is what rounding to {between.name} first gives"] if same(got, twice)[~right].all() else []
        require(right, x, got, once, fmt, rounding, *notes)


@law(
    "rounding",
    source="double rounding; users_ask: a float16 or bfloat16 detour",
    applies=lambda fmt, *_: fmt.mantissa_bits <= 9,
)
def float32_is_rounded_once(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A float32 is rounded directly, with no stop at float16 or bfloat16."""
    fmt = P.get_format(fmt)
    if x.dtype == np.float32:
        _once(subject, fmt, rounding, np.float32, (P.get_format("float16"), P.get_format("bfloat16")))


@law(
    "rounding",
    source="double rounding; torch and ml_dtypes pass through float32",
    applies=lambda fmt, *_: fmt.mantissa_bits <= 22,
)
def float64_is_rounded_once(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A float64 is rounded directly, with no stop at float32."""
    fmt = P.get_format(fmt)
    if "float64" not in getattr(subject, "inputs", ("float32",)):
        raise Unsupported(f"{subject.name} does not claim float64 inputs")
    if x.dtype == np.float64:
        _once(subject, fmt, rounding, np.float64, (P.get_format("float32"),))


@law("rounding", source=f"{_IEEE}; 5.4.1 convertFromInt: one rounding")
def integers_are_rounded_once(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """An int64 is rounded directly, with no stop at float32 or float64."""
    fmt = P.get_format(fmt)
    if "int64" not in getattr(subject, "inputs", ("float32",)):
        raise Unsupported(f"{subject.name} does not claim int64 inputs")
    if x.dtype != np.float32:
        return
    values = magnitude(some_codes(fmt), fmt)
    with np.errstate(over="ignore"):
        points = np.concatenate([values, values[:-1] / 2 + values[1:] / 2])
    points = np.unique(points[(points < 2.0**62) & (points == np.floor(points))])
    points = np.concatenate([points[:20], points[:: points.size // 40 | 1], 2.0 ** np.arange(40, 62, 3)])
    near = (points.astype(np.int64)[:, None] + np.array([-1, 0, 1])).ravel()
    whole = np.unique(np.concatenate([near, -near, np.array([2**63 - 1, -(2**63)])]))
    policy = subject.policy(fmt)
    expected = exact.round(whole, fmt, rounding=rounding, policy=policy, source="float64", result="value")
    got = _round(subject, whole, fmt, rounding)
    right = same(got, expected)
    if not right.all():
        wrong = np.flatnonzero(~right)
        i = int(wrong[np.lexsort((whole[wrong] < 0, np.abs(whole[wrong].astype(np.float64))))[0]])
        raise Broken(
            where=f"x = {whole[i]} (int64)",
            got=value_text(got[i], fmt),
            expected=value_text(expected[i], fmt),
            fmt=fmt.name,
            rounding=rounding,
            input_bits=(int(whole[i]) % 2**64,),
            wrong=int((~right).sum()),
            of=right.size,
        )


@law(
    "rounding",
    source=f"{_IEEE}: conversion to a wider format is exact",
    applies=lambda fmt, *_: _finite_format(fmt) and fmt.mantissa_bits >= 23 and fmt.emin <= -126 and fmt.emax >= 127,
)
def a_wider_target_is_exact(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Where the format holds every float32, rounding a float32 changes no bit."""
    fmt = P.get_format(fmt)
    with np.errstate(all="ignore"):
        x = x.astype(np.float32)
    x = x[_in_range(x, fmt, subject.policy(fmt))]
    _judge(subject, x, wide(x), fmt, rounding)


# --- Zero, subnormals, NaN, infinity, overflow ----------------------------------------------------------------------


@law("rounding", source="IEEE 754-2019 6.3; OCP OFP8 1.0 5: both formats have -0", applies=lambda fmt, *_: fmt.zero)
def zero_keeps_its_sign(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Zero stays zero, and zero results have the sign of their input, or + where the format has no -0."""
    fmt = P.get_format(fmt)
    x = np.concatenate([np.array([0.0, -0.0], x.dtype), x[np.isfinite(x)]])
    y = _round(subject, x, fmt, rounding)
    right = (np.signbit(y) == (np.signbit(x) & fmt.has_negative_zero)) | (y != 0)
    right[:2] &= y[:2] == 0
    require(right, x, y, signed(np.zeros(x.shape), x, fmt), fmt, rounding)


@law("rounding", source="the policy's zero", applies=lambda fmt, *_: not fmt.zero)
def zero_without_a_code_follows_the_policy(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Zero into a format that has none gives the smallest value or NaN, as the policy says."""
    fmt = P.get_format(fmt)
    x = np.array([0.0, -0.0], x.dtype)
    value = np.nan if subject.policy(fmt).zero == "nan" and fmt.has_nan else fmt.smallest_subnormal
    _judge(subject, x, np.full(x.shape, value), fmt, rounding)


@law("rounding", source="the policy's negative", applies=lambda fmt, *_: _finite_format(fmt) and not fmt.signed)
def negatives_without_a_code_follow_the_policy(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A negative number into an unsigned format gives NaN, its lower end, or its magnitude, as the policy says."""
    fmt = P.get_format(fmt)
    choice = subject.policy(fmt).negative
    x = x[(wide(x) < 0) & ~_flushed(x, subject.policy(fmt))]
    if choice == "magnitude":
        mirror = MIRROR.get(rounding, rounding)  # up and down mean the magnitude's, or the number's: both are met
        either = [_round(subject, -x, fmt, mode) for mode in {rounding, mirror} & set(subject.roundings(fmt))]
        y = _round(subject, x, fmt, rounding)
        right = np.any([same(y, e) for e in either], axis=0)
        require(right, x, y, either[0], fmt, rounding)
        return
    value = np.nan if choice == "nan" and fmt.has_nan else fmt.min
    _judge(subject, x, np.full(x.shape, value), fmt, rounding)


@law(
    "rounding",
    source="IEEE 754-2019 3.4; gradual underflow",
    applies=lambda fmt, rounding, policy: (
        _finite_format(fmt) and fmt.zero and fmt.mantissa_bits > 0 and policy.subnormals == "keep"
    ),
)
def subnormals_are_kept(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Every subnormal value of the format rounds to itself."""
    fmt = P.get_format(fmt)
    m = fmt.mantissa_bits
    values = magnitude(np.arange(1, 1 << m) if m <= 16 else np.unique(1 << np.arange(m)), fmt)
    x = around(values, x, 0)
    x = x[on_grid(x, fmt) & (fmt.signed | ~np.signbit(x)) & (x != 0)]
    _judge(subject, x, wide(x), fmt, rounding)


@law(
    "rounding",
    source="gradual underflow; the format's underflow_threshold",
    applies=lambda fmt, rounding, policy: policy.subnormals == "keep",
)
def tiny_numbers_vanish_only_below_the_threshold(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Below the smallest value the mode decides between zero and it, exactly from the threshold on."""
    fmt = P.get_format(fmt)
    least = fmt.smallest_subnormal
    info = np.finfo(x.dtype)
    points = np.array(
        [least * share for share in (0.25, 0.5, 0.75, 1, 1.25, 1.5)]
        + [1e-9, float(info.smallest_subnormal), float(info.tiny)]
    )
    x = around(points[points <= 1.5 * least], x)
    x = x[_in_range(x, fmt, subject.policy(fmt)) & (x != 0)]
    _judge(subject, x, signed(rounded_size(x, fmt, rounding), x, fmt), fmt, rounding)


@law("rounding", source="users_ask 8: the sign bit alone is NaN in FNUZ formats")
def nothing_in_range_becomes_nan(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A finite number within the format's range gives a finite number."""
    fmt = P.get_format(fmt)
    x = x[_in_range(x, fmt, subject.policy(fmt)) & np.isfinite(x)]
    y = _round(subject, x, fmt, rounding)
    require(np.isfinite(y), x, y, "a finite number", fmt, rounding)


def _nans(x: Array) -> Array:
    """The NaNs of x, and the payloads that casts are known to lose."""
    if x.dtype != np.float32:
        return x[np.isnan(x)]
    some = np.array(NAN_PATTERNS, np.uint32)
    return np.concatenate([some.view(np.float32), (some | np.uint32(1 << 31)).view(np.float32), x[np.isnan(x)]])


@law("rounding", source="IEEE 754-2019 6.2; the policy's nan and missing_nan")
def nan_stays_nan(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A NaN gives NaN whatever its payload, and where the format has none, what the policy says; never an infinity."""
    fmt = P.get_format(fmt)
    policy, x = subject.policy(fmt), _nans(x)
    instead = policy.missing_nan or ("max" if _finite_format(fmt) else "zero")
    if (policy.nan if fmt.has_nan else instead) == "raise":
        try:
            y = _round(subject, x[:1], fmt, rounding)
        except Exception:  # noqa: BLE001 - which one is the subject's affair
            return
        require(np.zeros(1, bool), x[:1], y, "an exception", fmt, rounding)
    if fmt.has_nan:
        expected = np.full(x.shape, np.nan)
    elif instead == "max":
        expected = np.full(x.shape, fmt.max)
    else:
        negative = ~np.signbit(x) if instead == "opposite_zero" and fmt.has_negative_zero else np.zeros(x.shape, bool)
        expected = np.where(negative, -0.0, 0.0) if fmt.zero else np.full(x.shape, fmt.min)
    _judge(subject, x, expected, fmt, rounding)


@law("rounding", source="OCP OFP8 1.0 5, saturating and non-saturating conversion; the policy's infinity")
def infinity_follows_the_policy(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """An infinity stays one, saturates, or becomes NaN, as the policy says and in every mode alike."""
    fmt = P.get_format(fmt)
    x = np.array([np.inf, -np.inf] if _has_sign(fmt) else [np.inf], x.dtype)
    choice = "saturate" if isinstance(fmt, P.IntFormat) else subject.policy(fmt).infinity
    _judge(subject, x, overflowed(x, fmt, choice), fmt, rounding)


def _has_sign(fmt: AnyFormat) -> bool:
    """Whether negative inputs are ordinary: not so in unsigned floating-point formats."""
    return fmt.signed or isinstance(fmt, P.IntFormat)


@law("rounding", source="IEEE 754-2019 7.4; OCP OFP8 1.0 5; the format's overflow_threshold and the policy's overflow")
def overflow_starts_at_the_threshold(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Rounding comes first: what rounds to at most max gives that; what rounds beyond follows the policy."""
    fmt = P.get_format(fmt)
    beyond = float(magnitude(np.array([fmt.max_code + 1]), fmt)[0])
    half = fmt.max / 2 + beyond / 2  # the threshold of the nearest modes
    with np.errstate(over="ignore"):
        points = np.concatenate(
            [
                [fmt.max, half, beyond, -fmt.min, -fmt.min + 0.5, -fmt.min + 1],
                fmt.max * 2.0 ** np.arange(1, 9),
            ]
        )
    x = np.concatenate([around(points[np.isfinite(points)], x), around(float(np.finfo(x.dtype).max), x), x])
    x = x[np.isfinite(x) & (np.abs(wide(x)) >= limit(x, fmt)) & (_has_sign(fmt) | ~np.signbit(x)) & (x != 0)]
    size = rounded_size(x, fmt, rounding)
    choice = "saturate" if isinstance(fmt, P.IntFormat) else subject.policy(fmt).overflow
    expected = np.where(size <= limit(x, fmt), signed(size, x, fmt), overflowed(x, fmt, choice, rounding))
    _judge(subject, x, expected, fmt, rounding)


# --- The oracle -----------------------------------------------------------------------------------------------------


@law("rounding", source="precision.exact: the definition on rational numbers")
def agrees_with_exact_rationals(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """The result is what exact rational arithmetic gives under the subject's policy, on a few hundred inputs."""
    fmt = P.get_format(fmt)
    policy = subject.policy(fmt)
    x = _welcome(x, fmt, policy)
    x = x[np.argsort(np.abs(x))]
    edges = np.searchsorted(np.abs(wide(x)), [fmt.smallest_subnormal, fmt.smallest_normal, fmt.max])
    spread = np.linspace(0, x.size - 1, 120).astype(int)
    chosen = np.concatenate([spread, (edges[:, None] + np.arange(-25, 25)).ravel()])
    x = x[np.unique(chosen[(chosen >= 0) & (chosen < x.size)])]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = exact.round(x, fmt, rounding=rounding, policy=policy, source=x.dtype.name, result="value")
    _judge(subject, x, expected, fmt, rounding)


@law("stochastic", source="the definition in precision.stochastic")
def rounds_up_as_often_as_the_fraction_says(subject: Codec, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """With n random bits r the magnitude rounds up exactly when floor(fraction * 2^n) + r reaches 2^n."""
    fmt = P.get_format(fmt)
    apply = _offers(subject, "round_stochastic")
    low, high, _ = below(x, fmt)
    x = x[_in_range(x, fmt, subject.policy(fmt)) & (high <= limit(x, fmt)) & (low <= high)]
    x = x[np.unique(np.linspace(0, x.size - 1, min(x.size, 400)).astype(int))] if x.size else x
    for bits in (1, 8):
        x2, random = (a.ravel() for a in np.broadcast_arrays(x[:, None], np.arange(1 << bits)))
        low, high, _ = below(x2, fmt)
        fraction = np.divide(np.abs(wide(x2)) - low, high - low, out=np.zeros(x2.shape), where=high > low)
        up = np.floor(np.ldexp(fraction, bits)) + random >= 1 << bits
        y = wide(answer(apply(x2, fmt, random, bits)))
        expected = signed(np.where(up, high, low), x2, fmt)
        require(same(y, expected), x2, y, expected, fmt, rounding, f"with {bits} random bits")
