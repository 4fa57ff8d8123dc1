"""Laws of arithmetic: where the results of add, sub, mul, div, sqrt and fma in a format must land.

Each law is called as `law(subject, fmt, rounding, x)` with a `properties.operators.Arithmetic`, a format, a rounding
mode and operands: an array of shape (3, n) of values of the format (`operands` has those that matter), of which an
operation takes the first one, two or three rows. It judges all operations that it speaks about and the subject offers.
Answers are compared by bits: the sign of zero counts; NaN is compared by class.

The yardstick is float64 with the side on which it errs (`properties.laws._operations`), which is exact for formats that
float32 holds and shares nothing with `precision.arithmetic`; `agrees_with_exact_rationals` ties both to
`precision.exact`. float64 itself is judged by that, and by the laws that need no yardstick.

Sources: IEEE 754-2019 sections 4.3 (rounding), 5.4.1 (operations), 6.1-6.3 (infinities, NaN, signs of zero), 7.2-7.5
(invalid operation, division by zero, overflow, underflow).

>>> import numpy as np
>>> from properties.laws import laws
>>> from properties.subjects import load
>>> law = laws("arithmetic")["fma_adds_to_the_exact_product"]
>>> law(load("ours", "arithmetic"), "float8_e4m3fn", "nearest_even", operands("float8_e4m3fn"))
>>> class Twice:
...     name = "two roundings"
...     def policy(self, fmt): return P.get_policy("ieee", fmt)
...     def operations(self, fmt): return ("mul", "add", "fma")
...     def apply(self, operation, x, fmt, rounding):
...         return P.add(P.mul(x[0], x[1], fmt), x[2], fmt)
>>> law(Twice(), "float8_e4m3fn", "nearest_even", operands("float8_e4m3fn"))  # doctest: +ELLIPSIS
Traceback (most recent call last):
properties.laws.Broken: arithmetic.fma_adds_to_the_exact_product[float8_e4m3fn]: fma(a, b, -(a * b rounded)) is ...
  at        fma(-1.5 = 1_0111_100, 0.6875 = 0_0110_011, 1.0 = 0_0111_000)
  got       0.0 = 0_0000_000
  expected  -0.03125 = 1_0010_000
  result    exactly -0.03125
  this is what a product rounded before the sum gives
...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from precision import exact
from properties.laws import Broken, Unsupported, law
from properties.laws._grid import MIRROR, answer, limit, on_grid, overflowed, rounded_size, same, signed, wide
from properties.laws._operations import (
    ARITY,
    Exact,
    dtype_of,
    is_finite,
    measurable,
    nearest,
    operands,
    require,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from precision.policies import Policy
    from properties.operators import Arithmetic

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]
    Operands = Any  # a row for each: an array of them, or a sequence of arrays that broadcast

__all__ = ["operands"]

_NEAREST = ("nearest_even", "nearest_away")
_SIDED = ("toward_zero", "toward_positive", "toward_negative")
_IEEE = "IEEE 754-2019"

# --- Asking and refusing --------------------------------------------------------------------------------------------


def _offered(subject: Arithmetic, fmt: AnyFormat, *wanted: str) -> list[str]:
    """The operations that the subject offers, of those wanted (all if none is named)."""
    has = subject.operations(fmt)
    found = [name for name in ARITY if name in has and name in (wanted or ARITY)]
    if not found:
        raise Unsupported(f"{subject.name} has no {', '.join(wanted or ARITY)} in {fmt.name}")
    return found


def _ask(subject: Arithmetic, operation: str, x: Operands, fmt: AnyFormat, rounding: str) -> Floats:
    """What the subject makes of operands, given as copies, in a dtype that holds them."""
    with np.errstate(all="ignore"):
        arrays = [np.array(part, dtype_of(fmt)) for part in np.broadcast_arrays(*x)]
    y = answer(subject.apply(operation, tuple(arrays), fmt, rounding))
    if y.shape != arrays[0].shape:
        raise Broken(
            where=f"{operation} of arrays of shape {arrays[0].shape}",
            got=f"shape {y.shape}",
            expected=f"shape {arrays[0].shape}",
            fmt=fmt.name,
            rounding=rounding,
        )
    return wide(y)


def _judge(
    subject: Arithmetic,
    operation: str,
    x: Operands,
    expected: Floats,
    fmt: AnyFormat,
    rounding: str,
    *notes: str,
) -> None:
    """Require exactly `expected`."""
    x, expected = [np.atleast_1d(part) for part in x], np.atleast_1d(expected)
    if expected.size:
        got = _ask(subject, operation, x, fmt, rounding)
        require(same(got, expected), operation, x, got, expected, fmt, rounding, *notes)


def _welcome(subject: Arithmetic, fmt: AnyFormat, x: Array) -> Floats:
    """The operands as float64, without the subnormal ones that the policy takes for zero."""
    x = wide(x)
    if subject.policy(fmt).subnormals not in ("flush_inputs", "flush"):
        return x
    return np.asarray(x[:, ((np.abs(x) >= fmt.smallest_normal) | (x == 0) | np.isnan(x)).all(0)])


def _values(subject: Arithmetic, fmt: AnyFormat, x: Array, *, most: int = 256) -> Floats:
    """Finite values among the operands, sorted, each once, with both zeros; at most so many, evenly picked."""
    v = _welcome(subject, fmt, x[:1])[0]
    v = v[np.isfinite(v)]
    v = v[np.unique(v.view(np.int64), return_index=True)[1]]
    v = v[np.lexsort((~np.signbit(v), v))]
    return np.asarray(v[np.unique(np.linspace(0, v.size - 1, min(v.size, most)).astype(int))] if v.size else v)


def _opposite(v: Floats, fmt: AnyFormat) -> Floats:
    """-v; 0 where the format has no -0."""
    return -v if fmt.has_negative_zero else 0.0 - v


def _sign(negative: Bools) -> Floats:
    return np.where(negative, -1.0, 1.0)


def _finite(
    subject: Arithmetic, fmt: AnyFormat, rounding: str, x: Array, *, beyond: bool = False
) -> Iterator[tuple[str, Floats, Exact]]:
    """For each operation the operands with a finite result in range (or `beyond` it), and where that lies.

    In range: not flushed, of a sign and not a zero that the format lacks; the result at most max once it is rounded.
    """
    policy = subject.policy(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt):
        some = x[: ARITY[operation]]
        some = some[:, is_finite(operation, some)]
        e = Exact.of(operation, some, fmt)
        good = (fmt.signed | ~e.negative | (e.size == 0)) & (fmt.zero | (e.size > 0))
        if policy.subnormals in ("flush_results", "flush"):
            good &= (e.size >= 2 * fmt.smallest_normal) | (e.size == 0)
        good &= (e.high >= fmt.max) if beyond else (e.rounded(rounding) <= fmt.max)
        yield operation, some[:, good], e[good]


def _nan(subject: Arithmetic, fmt: AnyFormat, x: Floats) -> tuple[Floats, Bools]:
    """What a NaN becomes by the policy, and whether it says so: not of an exception, nor of a zero of unknown sign."""
    policy = subject.policy(fmt)
    choice = policy.nan if fmt.has_nan else policy.missing_nan or "max"
    value = np.nan if fmt.has_nan else fmt.max if choice == "max" else 0.0
    return np.full(x.shape[1:], value), np.full(x.shape[1:], choice not in ("raise", "opposite_zero"))


def _calm(subject: Arithmetic, operation: str, fmt: AnyFormat, x: Floats) -> Floats:
    """The operands without those that give a NaN where the policy says to raise for it."""
    policy = subject.policy(fmt)
    choice = policy.nan if fmt.has_nan else policy.missing_nan
    return np.asarray(x[:, ~np.isnan(nearest(operation, x))]) if choice == "raise" else x


def _measured(fmt: AnyFormat, *_: Any) -> bool:
    return measurable(fmt)


def _signed(fmt: AnyFormat, *_: Any) -> bool:
    return fmt.signed and fmt.zero


def _gradual(fmt: AnyFormat, rounding: str, policy: Policy) -> bool:
    return fmt.zero and policy.subnormals == "keep"


# --- Rounded once, right ----------------------------------------------------------------------------------------------


@law("arithmetic", source=f"{_IEEE} 4.3: an exact result is delivered", applies=_measured)
def exact_results_are_returned(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A result that is a value of the format is returned as it is, in every mode."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        kept = e.exact & (e.size > 0)
        expected = signed(e.size, _sign(e.negative), fmt)
        _judge(subject, operation, some[:, kept], expected[kept], fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 4.3.1",
    applies=lambda fmt, rounding, policy: measurable(fmt) and rounding in _NEAREST,
)
def error_is_at_most_half_an_ulp(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """No value of the format is nearer to the exact result than what is returned."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        got, negative = _ask(subject, operation, some, fmt, rounding), _sign(e.negative)
        right = (got == negative * e.low) & (e.half <= 0) | (got == negative * e.high) & (e.half >= 0)
        right |= (got == negative * e.low) & (e.low == e.high)
        require(right, operation, some, got, signed(e.rounded(rounding), negative, fmt), fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 4.3.1 roundTiesToEven",
    applies=lambda fmt, rounding, policy: measurable(fmt) and fmt.mantissa_bits > 0 and rounding == "nearest_even",
)
def ties_go_to_even(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """An exact result half way between two values gives the even one."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        expected = signed(np.where(e.odd, e.high, e.low), _sign(e.negative), fmt)
        _judge(subject, operation, some[:, e.tie], expected[e.tie], fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 4.3.1 roundTiesToAway",
    applies=lambda fmt, rounding, policy: measurable(fmt) and rounding == "nearest_away",
)
def ties_go_away_from_zero(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """An exact result half way between two values gives the larger in magnitude."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        _judge(subject, operation, some[:, e.tie], signed(e.high, _sign(e.negative), fmt)[e.tie], fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 4.3.2",
    applies=lambda fmt, rounding, policy: measurable(fmt) and rounding in _SIDED,
)
def directed_results_stay_on_their_side(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A directed mode gives the neighbour on its own side of the exact result: less than one ulp off, never past it."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        outward = (
            np.zeros(e.size.shape, bool) if rounding == "toward_zero" else e.negative == (rounding == "toward_negative")
        )
        expected = signed(np.where(outward, e.high, e.low), _sign(e.negative), fmt)
        kept = e.size > 0
        _judge(subject, operation, some[:, kept], expected[kept], fmt, rounding)


@law(
    "arithmetic",
    source="Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008: rounding to odd",
    applies=lambda fmt, rounding, policy: measurable(fmt) and rounding == "to_odd",
)
def the_inexact_becomes_odd(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A result that is no value of the format becomes the neighbour with an odd significand."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        kept = e.low < e.high
        expected = signed(np.where(e.odd, e.low, e.high), _sign(e.negative), fmt)
        _judge(subject, operation, some[:, kept], expected[kept], fmt, rounding)


@law("arithmetic", source="Figueroa, When is double rounding innocuous?, 1995", applies=_measured)
def results_are_rounded_once(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A result makes no stop at float16, bfloat16, float32 or float64 that would show."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        once = e.rounded(rounding)
        away = np.minimum(np.abs(e.size - e.low / 2 - e.high / 2), np.minimum(e.size - e.low, e.high - e.size))
        detours: dict[str, Floats] = {}
        for between in map(P.get_format, ("float16", "bfloat16", "float32", "float64")):
            if between.mantissa_bits > fmt.mantissa_bits:
                close = (e.low < e.high) & (e.size <= between.max)
                close &= away <= np.maximum(np.ldexp(e.size, -between.mantissa_bits), between.smallest_subnormal)
                twice = once.copy()
                twice[close] = e[close].through(between, fmt, rounding)
                detours[between.name] = np.where(twice <= fmt.max, twice, once)
        kept = np.zeros(once.shape, bool)
        for twice in detours.values():
            kept |= twice != once
        if not kept.any():
            continue
        some, sign = some[:, kept], _sign(e.negative[kept])
        got, expected = _ask(subject, operation, some, fmt, rounding), signed(once[kept], sign, fmt)
        right = same(got, expected)
        stops = [name for name, y in detours.items() if same(got, signed(y[kept], sign, fmt))[~right].all()]
        notes = [f"this is what rounding to {' or '.join(stops)} first gives"] if stops else []
        require(right, operation, some, got, expected, fmt, rounding, *notes)


# --- Algebra ----------------------------------------------------------------------------------------------------------


@law("arithmetic", source=f"{_IEEE} 5.4.1: a rounded function of the exact result")
def sums_and_products_commute(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """a + b is b + a, and a * b is b * a, bit for bit, within fma, too."""
    fmt = P.get_format(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt, "add", "mul", "fma"):
        some = _calm(subject, operation, fmt, x[: ARITY[operation]])
        other = _ask(subject, operation, [some[1], some[0], *some[2:]], fmt, rounding)
        decided = _nan(subject, fmt, some)[1] | ~np.isnan(nearest(operation, some))
        _judge(subject, operation, some[:, decided], other[decided], fmt, rounding, "the operands exchanged")


@law("arithmetic", source=f"{_IEEE} 4.3: each mode is a monotone function")
def monotone_in_each_operand(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A larger operand never gives a smaller sum; nor a smaller product or quotient, for a positive partner."""
    fmt = P.get_format(fmt)
    v = _values(subject, fmt, x, most=1 << 8 if fmt.bits <= 8 else 1 << 6 if measurable(fmt) else 1 << 5)
    a, b, divisors = v[:, None], v[None, :], v[None, v != 0]
    # The operands, along whose first axis the result rises if `rises` is positive, and falls if it is negative.
    trials: dict[str, list[tuple[list[Floats], Floats]]] = {
        "add": [([a, b], np.ones(1))],
        "sub": [([a, b], np.ones(1)), ([b, a], -np.ones(1))],
        "mul": [([a, b], np.sign(b)), ([b, a], np.sign(b))],
        "div": [([a, divisors], np.sign(divisors)), ([b, a[v > 0]], -np.sign(b)), ([b, a[v < 0]], -np.sign(b))],
        "sqrt": [([a[(v > 0) | ~np.signbit(v)]], np.ones(1))],
        "fma": [([b, b[:, ::-1], a], np.ones(1)), ([a, b, b[:, ::-1]], np.sign(b))],
    }
    for operation in _offered(subject, fmt, *([] if _signed(fmt) else [o for o in ARITY if o != "sub"])):
        for given, rises in trials[operation]:
            shape = np.broadcast_shapes(*(g.shape for g in given))
            if 0 in shape:
                continue
            full = [np.broadcast_to(g, shape) for g in given]
            got = _ask(subject, operation, full, fmt, rounding)
            with np.errstate(invalid="ignore"):
                up = got * rises
            ceiling = np.fmax.accumulate(np.where(np.isnan(up), -np.inf, up), axis=0)
            right = np.isnan(up) | (rises == 0)
            right[:1] = True
            right[1:] |= up[1:] >= ceiling[:-1]
            text = "not on the wrong side of what the neighbouring operands give"
            require(right, operation, full, got, text, fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 4.3.2: toward positive mirrors toward negative", applies=_signed)
def opposite_operands_give_opposite_results(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Changing the sign of what changes the result's sign does only that, where up and down change places."""
    fmt = P.get_format(fmt)
    mirror = MIRROR.get(rounding, rounding)
    if mirror not in subject.roundings(fmt):
        raise Unsupported(f"{subject.name} has no {mirror}")
    x = _welcome(subject, fmt, x)
    quotient = (1, -1) if fmt.has_negative_zero else (-1, 1)  # without a -0 no divisor zero has an opposite
    flips = {"add": (-1, -1), "sub": (-1, -1), "mul": (-1, 1), "div": quotient, "fma": (-1, 1, -1)}
    for operation in _offered(subject, fmt, *flips):
        some = x[: ARITY[operation]]
        z = nearest(operation, some)
        some = some[:, ~np.isnan(z) & ((z != 0) | (operation in ("mul", "div")))]
        given = [v if sign > 0 else _opposite(v, fmt) for v, sign in zip(some, flips[operation], strict=True)]
        expected = _opposite(_ask(subject, operation, given, fmt, mirror), fmt)
        _judge(subject, operation, some, expected, fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 6.3: the sign of a product or quotient", applies=_signed)
def products_and_quotients_have_the_product_of_the_signs(
    subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array
) -> None:
    """a * b and a / b are negative when one operand is, zero and infinite results included."""
    fmt = P.get_format(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt, "mul", "div"):
        some = x[:2]
        some = some[:, ~np.isnan(nearest(operation, some))]
        got = _ask(subject, operation, some, fmt, rounding)
        negative = np.signbit(some[0]) != np.signbit(some[1])
        expected = np.where(got == 0, negative & fmt.has_negative_zero, negative)
        right = np.isnan(got) | (np.signbit(got) == expected)
        require(right, operation, some, got, np.copysign(got, _sign(expected)), fmt, rounding)


@law(
    "arithmetic",
    source="Sterbenz, Floating-Point Computation, 1974, theorem 4.3.1",
    applies=lambda fmt, *_: measurable(fmt) and fmt.signed and fmt.zero,
)
def near_numbers_subtract_exactly(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Where y/2 <= x <= 2y, the difference x - y has no rounding error."""
    fmt = P.get_format(fmt)
    a, b = _welcome(subject, fmt, x)[:2]
    with np.errstate(invalid="ignore", over="ignore"):
        near = (a * b > 0) & (np.abs(b) <= 2 * np.abs(a)) & (np.abs(a) <= 2 * np.abs(b)) & (a != b)
        near &= np.isfinite(a) & np.isfinite(b)
    a, b = a[near], b[near]
    keeps = subject.policy(fmt).subnormals == "keep"
    kept = keeps | (np.abs(a - b) >= fmt.smallest_normal)
    for operation in _offered(subject, fmt, "add", "sub"):
        other = b if operation == "sub" else -b
        _judge(subject, operation, [a[kept], other[kept]], (a - b)[kept], fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 6.3: zero sums", applies=_signed)
def a_number_minus_itself_is_plus_zero(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """x - x, x + (-x) and 1 * x + (-x) are +0, and -0 toward negative."""
    fmt = P.get_format(fmt)
    v = _values(subject, fmt, x)
    opposite = _opposite(v, fmt)
    one, zero = np.ones(v.shape), -0.0 if rounding == "toward_negative" and fmt.has_negative_zero else 0.0
    given = {"add": [v, opposite], "sub": [v, v]} | ({"fma": [one, v, opposite]} if _has(fmt, 1.0) else {})
    for operation in _offered(subject, fmt, *given):
        _judge(subject, operation, given[operation], np.full(v.shape, zero), fmt, rounding)


def _has(fmt: AnyFormat, value: float) -> bool:
    """Whether the format has a number."""
    x = np.array([value])
    return bool(on_grid(x, fmt)[0] and value <= fmt.max and value >= fmt.smallest_subnormal)


def _neutral(fmt: AnyFormat, rounding: str) -> float:
    """The zero that changes no number when it is added: -0, or +0 toward negative."""
    return 0.0 if rounding == "toward_negative" or not fmt.has_negative_zero else -0.0


def _normal(subject: Arithmetic, fmt: AnyFormat, v: Floats) -> Floats:
    """Without the values that the policy flushes."""
    keeps = subject.policy(fmt).subnormals == "keep"
    return np.asarray(v[keeps | (np.abs(v) >= fmt.smallest_normal) | (v == 0)])


@law("arithmetic", source=f"{_IEEE} 6.3: zero sums", applies=_signed)
def adding_nothing_changes_nothing(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """x + (-0) and x - (+0) are x, zeros of both signs included; toward negative it is the other zero."""
    fmt = P.get_format(fmt)
    v, zero = _normal(subject, fmt, _values(subject, fmt, x)), _neutral(fmt, rounding)
    zeros = np.full(v.shape, zero)
    for operation in _offered(subject, fmt, "add", "sub"):
        other = zeros if operation == "add" else _opposite(zeros, fmt)
        _judge(subject, operation, [v, other], v, fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 5.4.1", applies=lambda fmt, *_: _has(fmt, 1.0))
def one_changes_nothing(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """x * 1, x / 1 and x * 1 + (-0) are x; x / x is 1."""
    fmt = P.get_format(fmt)
    v = _normal(subject, fmt, _values(subject, fmt, x))
    one, zero = np.ones(v.shape), np.full(v.shape, _neutral(fmt, rounding))
    given = {"mul": [v, one], "div": [v, one]} | ({"fma": [v, one, zero]} if _signed(fmt) else {})
    for operation in _offered(subject, fmt, *given):
        _judge(subject, operation, given[operation], v, fmt, rounding)
        if operation == "div":
            some = v[v != 0]
            _judge(subject, operation, [some, some], np.ones(some.shape), fmt, rounding)


@law("arithmetic", source="the significand does not change", applies=lambda fmt, *_: measurable(fmt))
def powers_of_two_scale_exactly(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Multiplying or dividing by a power of two is exact, unless the result is too small or too large."""
    fmt = P.get_format(fmt)
    v = _normal(subject, fmt, _values(subject, fmt, x))
    powers = np.ldexp(1.0, np.unique(np.linspace(fmt.emin, fmt.emax, 17).astype(int)))
    a, b = (g.ravel() for g in np.meshgrid(v[v != 0], powers, indexing="ij"))
    for operation in _offered(subject, fmt, "mul", "div"):
        z = a * b if operation == "mul" else a / b
        kept = on_grid(z, fmt) & (np.abs(z) <= fmt.max)
        kept &= (subject.policy(fmt).subnormals == "keep") | (np.abs(z) >= fmt.smallest_normal)
        kept &= fmt.zero | (np.abs(z) >= fmt.smallest_normal)
        _judge(subject, operation, [a[kept], b[kept]], z[kept], fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 5.4.1 squareRoot", applies=_measured)
def the_root_of_a_square_is_the_number(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """sqrt(x * x) is |x| where x * x is a value of the format; sqrt(-0) is -0."""
    fmt = P.get_format(fmt)
    _offered(subject, fmt, "sqrt")
    v = np.abs(_values(subject, fmt, x, most=1 << 12))
    v = v[v * v <= fmt.max]
    v = v[on_grid(v * v, fmt)]
    squares = _normal(subject, fmt, v * v)
    squares = np.concatenate([squares[squares >= fmt.smallest_subnormal], [0.0, -0.0] if _signed(fmt) else []])
    roots = np.copysign(np.sqrt(squares), squares)  # exact: they are squares
    if not fmt.has_negative_zero:
        squares, roots = squares + 0.0, roots + 0.0
    _judge(subject, "sqrt", [squares], roots, fmt, rounding)


# --- fma --------------------------------------------------------------------------------------------------------------


@law(
    "arithmetic",
    source=f"{_IEEE} 5.4.1 fusedMultiplyAdd: as if with unbounded range and precision, rounding only once",
    applies=lambda fmt, rounding, policy: measurable(fmt) and _signed(fmt) and rounding in _NEAREST,
)
def fma_adds_to_the_exact_product(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """fma(a, b, -(a * b rounded)) is the rounding error of the product, exactly."""
    fmt = P.get_format(fmt)
    _offered(subject, fmt, "fma")
    a, b = _welcome(subject, fmt, x)[:2]
    with np.errstate(all="ignore"):
        product = a * b
        size = rounded_size(product, fmt, "nearest_even")
        c = signed(size, -product, fmt)
        error = product + c
        kept = np.isfinite(product) & (size <= fmt.max) & (error != 0) & on_grid(error, fmt)
        if subject.policy(fmt).subnormals != "keep":
            kept &= (np.abs(error) >= fmt.smallest_normal) & (size >= fmt.smallest_normal)
    given, expected = [a[kept], b[kept], c[kept]], error[kept]
    if not expected.size:
        return
    got = _ask(subject, "fma", given, fmt, rounding)
    right = same(got, expected)
    note = ["this is what a product rounded before the sum gives"] if (got[~right] == 0).all() else []
    require(right, "fma", given, got, expected, fmt, rounding, *note)


@law("arithmetic", source=f"{_IEEE} 5.4.1, 6.3", applies=_signed)
def fma_with_a_zero_is_the_product(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """fma(a, b, 0) is a * b, where the zero has the sign of the product."""
    fmt = P.get_format(fmt)
    if len(_offered(subject, fmt, "mul", "fma")) < 2:
        raise Unsupported(f"{subject.name} has not both mul and fma in {fmt.name}")
    a, b = _calm(subject, "mul", fmt, _welcome(subject, fmt, x)[:2])
    a, b = (y[_nan(subject, fmt, a[None])[1] | ~np.isnan(nearest("mul", [a, b]))] for y in (a, b))
    zero = np.where((np.signbit(a) != np.signbit(b)) & fmt.has_negative_zero, -0.0, 0.0)
    expected = _ask(subject, "mul", [a, b], fmt, rounding)
    _judge(subject, "fma", [a, b, zero], expected, fmt, rounding, "mul gives what is expected")


@law("arithmetic", source=f"{_IEEE} 5.4.1", applies=lambda fmt, *_: _has(fmt, 1.0))
def fma_with_a_one_is_the_sum(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """fma(a, 1, b) is a + b."""
    fmt = P.get_format(fmt)
    if len(_offered(subject, fmt, "add", "fma")) < 2:
        raise Unsupported(f"{subject.name} has not both add and fma in {fmt.name}")
    a, b = _calm(subject, "add", fmt, _welcome(subject, fmt, x)[:2])
    expected = _ask(subject, "add", [a, b], fmt, rounding)
    _judge(subject, "fma", [a, np.ones(a.shape), b], expected, fmt, rounding, "add gives what is expected")


# --- Underflow and overflow -------------------------------------------------------------------------------------------


@law(
    "arithmetic",
    source=f"{_IEEE} 3.4, 7.5: gradual underflow",
    applies=lambda fmt, rounding, policy: measurable(fmt) and _gradual(fmt, rounding, policy),
)
def subnormal_results_are_kept(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Results below the smallest normal number are rounded like all others, not flushed to zero."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x):
        kept = (e.size > 0) & (e.size < fmt.smallest_normal)
        expected = signed(e.rounded(rounding), _sign(e.negative), fmt)
        _judge(subject, operation, some[:, kept], expected[kept], fmt, rounding)


@law(
    "arithmetic",
    source="gradual underflow: Kahan and Palmer, On a proposed floating-point standard, 1979",
    applies=lambda fmt, rounding, policy: _signed(fmt) and _gradual(fmt, rounding, policy),
)
def different_numbers_have_a_difference(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """x - y is zero only where x equals y."""
    fmt = P.get_format(fmt)
    a, b = _welcome(subject, fmt, x)[:2]
    kept = np.isfinite(a) & np.isfinite(b) & (a != b)
    a, b = a[kept], b[kept]
    for operation in _offered(subject, fmt, "add", "sub"):
        given = [a, b] if operation == "sub" else [a, _opposite(b, fmt)]
        if a.size:
            got = _ask(subject, operation, given, fmt, rounding)
            require(got != 0, operation, given, got, "a number other than zero", fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 7.4; the policy's overflow", applies=_measured)
def overflow_starts_at_the_threshold(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Rounding comes first: what rounds to at most max gives that; what rounds beyond follows the policy."""
    fmt = P.get_format(fmt)
    for operation, some, e in _finite(subject, fmt, rounding, x, beyond=True):
        size, sign = e.rounded(rounding), _sign(e.negative)
        beyond = overflowed(sign, fmt, subject.policy(fmt).overflow, rounding)
        _judge(subject, operation, some, np.where(size <= limit(sign, fmt), sign * size, beyond), fmt, rounding)


# --- Infinity and NaN -------------------------------------------------------------------------------------------------


@law("arithmetic", source=f"{_IEEE} 6.2", applies=lambda fmt, rounding, policy: fmt.has_nan and policy.nan != "raise")
def nan_operands_give_nan(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """A NaN operand gives NaN, whatever the others are."""
    fmt = P.get_format(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt):
        some = x[: ARITY[operation]]
        some = some[:, np.isnan(some).any(0)]
        _judge(subject, operation, some, np.full(some.shape[1:], np.nan), fmt, rounding)


@law("arithmetic", source=f"{_IEEE} 7.2; the policy's nan and missing_nan", applies=_signed)
def invalid_operations_give_nan(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Inf - Inf, 0 * Inf, 0 / 0, Inf / Inf and roots of negative numbers give NaN, or what the policy has for it."""
    fmt = P.get_format(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt):
        some = x[: ARITY[operation]]
        some = some[:, np.isnan(nearest(operation, some)) & ~np.isnan(some).any(0)]
        expected, decided = _nan(subject, fmt, some)
        _judge(subject, operation, some[:, decided], expected[decided], fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 6.1; the policy's infinity",
    applies=lambda fmt, *_: fmt.infinities and fmt.zero,
)
def infinities_are_the_limits_of_numbers(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """An infinity with a number gives what ever larger numbers would: x + Inf is Inf, x / Inf is a zero."""
    fmt = P.get_format(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt):
        some = x[: ARITY[operation]]
        z = nearest(operation, some)
        kept = np.isinf(some).any(0) & ~np.isnan(z)
        some, z = some[:, kept], z[kept]
        expected = np.where(np.isinf(z), overflowed(z, fmt, subject.policy(fmt).infinity), signed(np.abs(z), z, fmt))
        _judge(subject, operation, some, expected, fmt, rounding)


@law(
    "arithmetic",
    source=f"{_IEEE} 7.3; the policy's infinity",
    applies=lambda fmt, *_: fmt.zero and (fmt.signed or not fmt.infinities),
)
def division_by_zero_gives_infinity(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """x / 0 is an exact infinity with the product of the signs, or what the policy has for it, in every mode."""
    fmt = P.get_format(fmt)
    _offered(subject, fmt, "div")
    v = _values(subject, fmt, x)
    v = v[v != 0]
    zeros = [0.0, -0.0] if fmt.has_negative_zero else [0.0]
    a, b = (g.ravel() for g in np.meshgrid(v, zeros, indexing="ij"))
    with np.errstate(divide="ignore"):
        expected = overflowed(a / b, fmt, subject.policy(fmt).infinity)
    _judge(subject, "div", [a, b], expected, fmt, rounding)


# --- The oracle -------------------------------------------------------------------------------------------------------


@law("arithmetic", source="precision.exact: the definition on rational numbers")
def agrees_with_exact_rationals(subject: Arithmetic, fmt: AnyFormat | str, rounding: str, x: Array) -> None:
    """Results are what exact rational arithmetic gives under the subject's policy, on some dozens of operands each."""
    fmt = P.get_format(fmt)
    policy = subject.policy(fmt)
    x = _welcome(subject, fmt, x)
    for operation in _offered(subject, fmt):
        some = _calm(subject, operation, fmt, x[: ARITY[operation]])
        decided = _nan(subject, fmt, some)[1] | ~np.isnan(nearest(operation, some))
        some = some[:, decided]
        each = 64 if measurable(fmt) else 256
        some = some[:, np.unique(np.linspace(0, some.shape[1] - 1, min(some.shape[1], each)).astype(int))]
        if some.size:
            compute = getattr(exact, operation)
            expected = compute(*some, fmt, rounding=rounding, policy=policy, source=fmt)
            _judge(subject, operation, some, expected, fmt, rounding)
