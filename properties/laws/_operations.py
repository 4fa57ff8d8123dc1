"""The yardstick of the laws on arithmetic: operands that matter, and between which values an exact result lies.

Formats whose values float32 holds have significands of at most 24 bits and midpoints of at most 25. So float64 can tell
exactly on which side of such a number t an exact result is, without ever computing it: the error of a sum is a float64
(Knuth's TwoSum), a product of two significands is exact, and a quotient or root is compared by t * b or t * t, which
are exact, too. From that follow its neighbours, whether it is a tie, and what every mode makes of it (`Exact`). Nothing
here uses `precision.arithmetic` or `precision.rounding`; `agrees_with_exact_rationals` ties it to `precision.exact`.

Sources: IEEE 754-2019 4.3, 5.4.1; Knuth, TAOCP 2, 4.2.2 (the error of a sum).

>>> import numpy as np
>>> import precision as P
>>> exact = Exact.of("div", (np.float64([1, 1]), np.float64([3, 8])), P.float8_e4m3fn)
>>> exact.low, exact.high, exact.rounded("toward_positive")
(array([0.3125, 0.125 ]), array([0.34375, 0.125  ]), array([0.34375, 0.125  ]))
>>> operands("float8_e4m3fn").shape[0]
3
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws import Broken
from properties.laws._grid import all_codes, below, on_grid, rounded_size, value_text, values_of, wide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]
    Operands = Any  # a row for each: an array of them, or a sequence of arrays that broadcast

ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
"""The operations by name, and how many operands each takes."""


def measurable(fmt: AnyFormat) -> bool:
    """Whether the yardstick serves: float32 holds the format's values."""
    return fmt.mantissa_bits <= 23 and fmt.emax <= 127 and fmt.emin - fmt.mantissa_bits >= -149


# --- The exact result -------------------------------------------------------------------------------------------------


def nearest(operation: str, operands: Operands) -> Floats:
    """The float64 nearest to the exact result, or IEEE's infinity or NaN; of a zero the sign is that of nearest modes.

    Whatever float64 itself returns but for fma, whose product is exact.
    """
    a = operands[0]
    b, c = (operands[min(i, len(operands) - 1)] for i in (1, 2))
    with np.errstate(all="ignore"):
        if operation == "fma":
            product = a * b
            too_large = np.isinf(product) & np.isfinite(a) & np.isfinite(b)  # for float64: of float64 operands
            return np.asarray(np.where(too_large, np.copysign(np.finfo(np.float64).max, product), product) + c)
        if operation == "sqrt":
            return np.asarray(np.sqrt(a))
        compute = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[operation]
        return np.asarray(compute(a, b))


def side(operation: str, operands: Operands, t: Floats) -> NDArray[np.float64]:
    """A number with the sign of (exact result - t): 0 where they are equal. t has at most 25 significant bits.

    Of a root, t must not be negative. Meaningless where the result is infinite or NaN.
    """
    with np.errstate(all="ignore"):
        if operation == "mul":
            return np.asarray(operands[0] * operands[1] - t, np.float64)
        if operation == "div":
            a, b = operands
            return np.asarray((a - t * b) * np.sign(b))
        if operation == "sqrt":
            return np.asarray(operands[0] - t * t)
        a, b = (operands[0] * operands[1], operands[2]) if operation == "fma" else operands
        if operation == "sub":
            b = -b
        s = a + b
        v = s - a
        error = (a - (s - v)) + (b - v)
        return np.asarray(
            np.where(s == t, error, s - t)
        )  # s > t implies a + b > t, since rounding is monotone and t is a float64


def is_finite(operation: str, operands: Operands) -> Bools:
    """Where finite operands have a finite exact result: not x/0, nor the root of a negative number."""
    found: Bools = np.logical_and.reduce([np.isfinite(x) for x in operands])
    if operation == "div":
        found &= operands[1] != 0
    if operation == "sqrt":
        found &= operands[0] >= 0
    return found


@dataclass(frozen=True)
class Exact:
    """Where the exact magnitudes of finite results lie on a format's grid, continued above max.

    `low` <= |exact| <= `high` are neighbours, equal where it is on the grid, or below the smallest value of a format
    without zero; `odd` says whether the significand of `low` is odd, `half` is the sign of |exact| - their midpoint.
    `size` is the float64 nearest to the magnitude, `negative` the sign: of a zero sum, that of nearest modes.
    """

    low: Floats
    high: Floats
    odd: Bools
    half: Floats
    size: Floats
    negative: Bools

    @classmethod
    def of(cls, operation: str, operands: Operands, fmt: AnyFormat) -> Exact:
        """Of operands with finite results, in a format that is `measurable`."""
        z = nearest(operation, operands)
        size, negative = np.abs(z), np.signbit(z)
        sign = np.where(negative, -1.0, 1.0)
        low, high, odd = below(size, fmt)
        off = side(operation, operands, z) * sign
        for where, beyond in (((low == size) & (off < 0), 0.0), ((high == size) & (off > 0), np.inf)):
            if where.any():  # float64 rounded to a value of the format: its other neighbour is beyond the result
                near = below(np.nextafter(size[where], beyond), fmt)
                low[where], high[where], odd[where] = near
        half = np.sign(side(operation, operands, sign * (low + high) / 2) * sign)
        return cls(low, high, odd, half, size, negative)

    def __getitem__(self, kept: Bools) -> Exact:
        """Those of some operands."""
        return Exact(*(getattr(self, f.name)[kept] for f in fields(self)))

    @property
    def exact(self) -> Bools:
        """Where the result is a value on the grid, zero included."""
        found: Bools = (self.low == self.high) & (self.low == self.size)
        return found

    @property
    def tie(self) -> Bools:
        found: Bools = (self.low < self.high) & (self.half == 0)
        return found

    def rounded(self, rounding: str) -> Floats:
        """The magnitudes rounded on the continued grid by a mode."""
        up = {
            "nearest_even": (self.half > 0) | ((self.half == 0) & self.odd),
            "nearest_away": self.half >= 0,
            "toward_zero": np.zeros_like(self.odd),
            "toward_positive": ~self.negative,
            "toward_negative": self.negative,
            "to_odd": ~self.odd,
        }[rounding]
        return np.where(up, self.high, self.low)

    def through(self, between: AnyFormat, fmt: AnyFormat, rounding: str) -> Floats:
        """The magnitudes rounded to nearest even in the format `between` first: wrong where that makes a tie of them.

        Nearest float64 is right only where that is exact or not close to a tie of `between`: this names a suspicion.
        """
        return rounded_size(rounded_size(self.size, between, "nearest_even"), fmt, rounding)


# --- Operands ---------------------------------------------------------------------------------------------------------


def dtype_of(fmt: AnyFormat) -> Any:
    """The dtype in which operands are given: float32, or float64 where that does not hold the values."""
    return np.float32 if measurable(fmt) else np.float64


def every_value(fmt: AnyFormat) -> Floats:
    """The value of every code up to 8 bits, each once; of wider formats a few hundred; NaN once. Sorted, NaN last."""
    codes = all_codes(fmt) if fmt.bits <= 8 else _corner_codes(fmt)
    v = values_of(codes, fmt)
    v = np.concatenate([v[~np.isnan(v)], v[np.isnan(v)][:1]])
    return v[np.argsort(v, kind="stable")]


def _corner_codes(fmt: AnyFormat) -> Array:
    """Codes of both signs: around zero, the smallest normal, 1, 2 and max, and of a few binades; infinity, NaN."""
    m, uint = fmt.mantissa_bits, np.dtype(f"u{max(1, (fmt.bits + 7) // 8 if fmt.bits != 19 else 4)}")
    one, top = (1 - fmt.emin) << m, fmt.max_code  # emin is the exponent of field 1, also where field 0 is a binade
    starts = [0, 1 << m, one, one + (1 << m), one + (7 << m), one - (9 << m), top + 1, top // 3, top // 7]
    size = np.unique(np.array(starts, np.int64)[:, None] + np.array([-2, -1, 0, 1, 2, 1 << max(m - 1, 0)]))
    size = size[(size >= 0) & (size <= (fmt.sign_mask or 1 << fmt.bits) - 1)].astype(np.uint64)
    return np.concatenate([size, size | np.uint64(fmt.sign_mask)]).astype(uint)


@functools.lru_cache(maxsize=32)
def operands(fmt: AnyFormat | str, *, count: int = 1 << 10, seed: int = 0) -> Array:
    """Operands of a format as a read-only array of shape (3, n): operations take the first one, two or three rows.

    Formats of at most 4 bits: all triples. Of at most 8: all pairs, with third operands that cancel the product, and
    others. Wider ones: all pairs of a few corners, `count` pairs of codes drawn evenly, and of nearly equal ones. All:
    products, quotients, roots and sums that are ties or the nearest thing to one, in the middle of the range, around
    the smallest normal number and around max; fused additions to them of what only one rounding can see.
    """
    fmt = P.get_format(fmt)
    random = np.random.default_rng(seed)
    v = every_value(fmt)
    v = v if fmt.bits <= 8 else np.concatenate([v[: -2 : 3 if measurable(fmt) else 9], v[-2:]])
    count = count if measurable(fmt) else count // 8  # of float64 the oracles are slow
    a, b = (g.ravel() for g in np.meshgrid(v, v, indexing="ij"))
    if fmt.bits <= 4:
        parts = [np.stack([g.ravel() for g in np.meshgrid(v, v, v, indexing="ij")])]
    else:
        parts = [np.stack([a, b, _third(a, b, fmt, random)])]
    if fmt.bits > 8:
        drawn = values_of(random.integers(0, 1 << fmt.bits, (3, count), np.uint64), fmt)
        parts += [drawn, np.stack([drawn[0], *_close(drawn[0], fmt, random), drawn[2]])]
        parts += [np.stack([*drawn[:2], _third(drawn[0], drawn[1], fmt, random)])]
    parts += [_near_ties(fmt, random, 48 if measurable(fmt) else 12)]
    x = np.concatenate(parts, axis=1)
    if not fmt.has_negative_zero:
        x = np.where(x == 0, 0.0, x)
    with np.errstate(all="ignore"):
        out: Array = x.astype(dtype_of(fmt))
    out.flags.writeable = False
    return out


def _third(a: Floats, b: Floats, fmt: AnyFormat, random: np.random.Generator) -> Floats:
    """Third operands of fma: alternately the opposite of the product, rounded, its neighbours, and anything."""
    values = every_value(fmt)
    with np.errstate(all="ignore"):
        product = np.where(np.isfinite(a * b), a * b, 0.0)
    size = rounded_size(product, fmt, "nearest_even") if fmt.mantissa_bits < 52 else np.abs(product)
    size = np.where(size <= fmt.max, size, values[random.integers(0, values.size, a.size)])
    cancels = np.where(np.signbit(product), size, -size) if fmt.signed else size
    return np.where(random.integers(0, 2, a.size) == 0, cancels, values[random.integers(0, values.size, a.size)])


def _close(a: Floats, fmt: AnyFormat, random: np.random.Generator) -> list[Floats]:
    """For each number one of its own or a near binade, of either sign: sums that cancel or just do not."""
    fraction, exponent = np.frexp(np.where(np.isfinite(a), a, 1.0))
    m = fmt.mantissa_bits
    digits = np.ldexp(fraction, m + 1) + random.integers(-3, 4, a.size)
    with np.errstate(over="ignore"):
        b = np.ldexp(digits, exponent - m - 1 + random.choice([0, 0, 0, -1, 1, -m, m], a.size))
    b = np.where(random.integers(0, 2, a.size) == 0, b, -b)
    return [np.where(_held(b, fmt), b, a)]


def _held(x: Floats, fmt: AnyFormat) -> Bools:
    """Which are finite values of the format."""
    with np.errstate(invalid="ignore"):
        good = on_grid(x, fmt) & (np.abs(x) <= fmt.max) & (fmt.zero | (x != 0)) & (fmt.signed | ~np.signbit(x))
    return np.asarray(good)


def _near_ties(fmt: AnyFormat, random: np.random.Generator, each: int) -> Floats:
    """Triples whose operations end at ties, or as near to them as operands of p digits can; (3, n)."""
    p = fmt.mantissa_bits + 1
    if p == 1:
        return np.zeros((3, 0))
    low, high = 1 << (p - 1), 1 << p
    some = sorted({low, high - 1, *(low + int(random.integers(0, low)) for _ in range(each))})
    odd = sorted({n | 1 for n in some})
    found: list[tuple[Fraction, Fraction, Fraction]] = []
    bottom, top = fmt.emin - p + 1, fmt.emax - p + 1  # exponents of significands of p digits
    middle = max(min(0, top), bottom)
    tiny = Fraction(fmt.smallest_subnormal)

    def scaled(n: int, e: int) -> Fraction:
        return n * Fraction(2) ** e

    # Products: the last p bits of n * b are what is wanted, for n = wanted / b modulo 2^p.
    for b in odd:
        for wanted in (low - 1, low, low + 1, low // 2 + 1, low // 2, 1, high - 1):
            n = wanted * pow(b, -1, high) % high
            if n >= low:
                for e in (2 * middle, fmt.emin - 2 * p + 1, fmt.emin - 2 * p, top - p):
                    pair = scaled(n, e - e // 2), scaled(b, e // 2)
                    found += [(*pair, (-1) ** n * tiny), (pair[1], -pair[0], -(pair[0] * pair[1]))]
    # Quotients: (m * b - d) / b is next to m, which has p + 1 digits, so that it is a midpoint.
    for b in odd:
        for d in (-3, -1, 1, 3):
            m = d * pow(b, -1, 2 * high) % (2 * high)
            n = (m * b - d) // (2 * high)
            found += [(scaled(n, middle + e), scaled(b, middle), tiny) for e in (0, fmt.emin - 1, fmt.emin, top - 1)]
    # Roots: the p leading digits of the square of an odd m of p + 1 digits; squares of p digits, too.
    for m in (*odd, *(high + n for n in odd), *range(1, 1 << (p // 2), max(1, (1 << (p // 2)) // each))):
        drop = max((m * m).bit_length() - p, 0)
        for n in {(m * m) >> drop, ((m * m) >> drop) + 1}:
            shift = drop - 2 * (m.bit_length() - 1)  # the square becomes one of a number in [1, 2)
            found += [(scaled(n, shift + 2 * e), scaled(m, 0), tiny) for e in (0, fmt.emin // 2, fmt.emax // 2)]
    # Sums: half a unit of the last digit, and its neighbours; as a product, too, whose last digit lies far below.
    up, down = Fraction(low + 1, low), Fraction(high - 2, high)
    for n in (*some[:6], *some[-6:]):
        for e in (middle, bottom + 1, bottom + p, top):
            for sign in (1, -1):
                step, whole = sign * Fraction(2) ** (e - 1), scaled(n, e)
                for share in (Fraction(1), up, Fraction(high - 1, high)):
                    found += [(whole, share * step, tiny), (share * step, Fraction(1), -whole)]
                found += [(up, down * step, whole), (up, up * step, whole), (down, down * step, whole)]
    rows = [[_float(part) for part in triple] for triple in dict.fromkeys(found)]
    x = np.array(rows, np.float64).T
    x = np.where(_held(x, fmt) | ~np.isin(np.arange(3)[:, None], [2]), x, fmt.smallest_subnormal)  # a third may go
    return np.asarray(x[:, np.logical_and.reduce([_held(row, fmt) for row in x])])


def _float(x: Fraction) -> float:
    """The float64 of the same value, or 0.3, which no format holds."""
    try:
        return float(x) if Fraction(float(x)) == x else 0.3
    except OverflowError:
        return 0.3


# --- How a failure reads ----------------------------------------------------------------------------------------------


def require(
    right: Bools,
    operation: str,
    operands: Operands,
    got: Floats,
    expected: Floats | str,
    fmt: AnyFormat,
    rounding: str,
    *notes: str,
) -> None:
    """Raise Broken with the simplest counterexample unless `right` is all true."""
    if right.all():
        return
    i = _simplest(~right, operands)
    at = [np.broadcast_to(x, right.shape).ravel()[i] for x in operands]
    lines = list(notes)
    one = [x.reshape(1) for x in at]
    if measurable(fmt) and is_finite(operation, one)[0]:
        exact = Exact.of(operation, one, fmt)
        about = "exactly" if side(operation, one, nearest(operation, one))[0] == 0 else "about"
        sign = -1.0 if exact.negative[0] else 1.0
        low, high = (value_text(sign * end[0], fmt) for end in (exact.low, exact.high))
        between = "" if exact.low[0] == exact.high[0] else f", between {low} and {high}"
        lines.insert(0, f"result    {about} {float(nearest(operation, one)[0])!r}{between}")
    held = [np.asarray(x, dtype_of(fmt)) for x in at]
    raise Broken(
        where=f"{operation}({', '.join(value_text(float(x), fmt) for x in at)})",
        got=value_text(float(got.ravel()[i]), fmt),
        expected=expected if isinstance(expected, str) else value_text(float(expected.ravel()[i]), fmt),
        fmt=fmt.name,
        rounding=rounding,
        input_bits=tuple(int(x.view(f"u{x.dtype.itemsize}")) for x in held),
        notes=tuple(lines),
        wrong=int((~right).sum()),
        of=right.size,
    )


def _simplest(wrong: Bools, operands: Operands) -> int:
    """The index of the wrong operands that are easiest to read: numbers, few significand bits, near 1, positive."""
    where = np.flatnonzero(wrong)
    hard, specials, negative = (np.zeros(where.size) for _ in range(3))
    for x in operands:
        chosen = wide(np.broadcast_to(x, wrong.shape).ravel()[where])
        finite = np.isfinite(chosen)
        fraction, exponent = np.frexp(np.where(finite, chosen, 0))
        whole = np.ldexp(np.abs(fraction), 53).astype(np.int64)
        hard += 53 - np.log2(np.maximum(whole & -whole, 1).astype(np.float64)) + np.abs(exponent - 1) / 4
        specials += ~finite
        negative += np.signbit(chosen)
    return int(where[np.lexsort((negative, hard, specials))[0]])
