"""The operations of `arithmetic`, each once in float64 with the sign of its error, and once in Python's integers.

The float64 half uses only Python's operators and the functions of a back end (`_array`), so NumPy, torch, a tracing
compiler and the recorder of CUDA kernels run the same lines. What compilers see ("narrow": operands of at most 24
digits) does not depend on whether they fuse a product with a sum: every product that is followed by one is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precision import _patterns
from precision._array import FLOAT64
from precision._patterns import Job

# --- The operations in float64: the rounded result, and a number with the sign of its error ---------------------------


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b, and its error exactly (Knuth). An infinite or NaN sum has a NaN for error, which is neither sign."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _halves(x: Any, ops: Any) -> tuple[Any, Any]:
    """x as a sum of two numbers of 26 digits each: rounded to 26 digits in integers, and the rest (Dekker's split)."""
    high = ops.as_float((ops.as_pattern(x) + (1 << 26)) & -(1 << 27))
    return high, x - high


def _two_product(a: Any, b: Any, ops: Any) -> tuple[Any, Any]:
    """a * b, and its error exactly. Every partial product has at most 52 digits, so it is exact."""
    p = a * b
    (ah, al), (bh, bl) = _halves(a, ops), _halves(b, ops)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _add(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    return _two_sum(x[0], x[1])


def _sub(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    return _two_sum(x[0], x[1] * -1)


def _mul(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    return (x[0] * x[1], None) if narrow else _two_product(x[0], x[1], ops)


def _fma(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    a, b, c = x
    if narrow:
        return _two_sum(a * b, c)
    p, low = _two_product(a, b, ops)
    s, e = _two_sum(p, c)
    # The exact result is s + e + low. What the sum of e and low leaves behind, e2, is below the last digit of all else:
    # rounded to odd, that sum makes no tie of what is none. Beside an infinity both are NaN, and count as none.
    t, e2 = _two_sum(ops.where(e == e, e, 0.0), ops.where(low == low, low, 0.0))
    t = ops.as_float(rounded_to_odd(ops.as_pattern(t), e2, ops))
    total, e = _two_sum(s, t)
    return ops.where(t == 0, s, total), ops.where(e == 0, e2, e)  # s + 0 would lose a -0


def _div(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    a, b = x
    q = a / b
    if narrow:
        high, low = _halves(q, ops)  # times 24 digits of b: both products, and the first difference, are exact
        r = (a - high * b) - low * b
    else:
        p, e = _two_product(q, b, ops)
        r = (a - p) - e
    return q, ops.where(b < 0, r * -1, r)


def _sqrt(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    r = ops.sqrt(x[0])
    high, low = _halves(r, ops)  # their products are exact, and so are the first two differences
    return r, ((x[0] - high * high) - (high * low) * 2) - low * low


def _same(x: Any, narrow: bool, ops: Any) -> tuple[Any, Any]:
    return x[0], None


@dataclass(frozen=True)
class Operation:
    """An operation: how float64 computes it, how integers do, and how many operands it takes."""

    name: str
    compute: Callable[[Any, bool, Any], tuple[Any, Any]]
    arity: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Their names, in what is said about them."""
        return ("x",) if self.arity == 1 else ("a", "b", "c")[: self.arity]

    def exact(self, narrow: bool) -> bool:
        """Whether float64 holds every result."""
        return self.compute is _same or (self.compute is _mul and narrow)


ADD, SUB, MUL = Operation("add", _add, 2), Operation("sub", _sub, 2), Operation("mul", _mul, 2)
DIV, SQRT, FMA = Operation("div", _div, 2), Operation("sqrt", _sqrt, 1), Operation("fma", _fma, 3)
CONVERT = Operation("convert", _same, 1)


def nearest(operation: Operation, patterns: list[Any], narrow: bool, mode: str, signed_nan: bool, ops: Any) -> Any:
    """(pattern, error) of the float64 result rounded to nearest, with IEEE's sign of zero and the NaN handed on."""
    s, e = operation.compute([ops.as_float(u) for u in patterns], narrow, ops)
    u = ops.as_pattern(s)
    if mode == "toward_negative" and operation.compute in (_add, _sub, _fma):
        u = ops.where(s == 0, _zero_sum(operation, patterns, ops), u)
    if signed_nan:  # else rounding makes one NaN of all
        nan: Any = FLOAT64.quiet_nan
        sources = patterns
        if operation is FMA:  # NaN of the product first
            product = (patterns[0] & FLOAT64.magnitude, patterns[1] & FLOAT64.magnitude)
            invalid = ((product[0] == 0) & (product[1] == FLOAT64.infinity)) | (
                (product[1] == 0) & (product[0] == FLOAT64.infinity)
            )
            c = patterns[2]
            nan = ops.where(((c & FLOAT64.magnitude) > FLOAT64.infinity) & (invalid == 0), c, nan)
            sources = patterns[:2]
        for x in reversed(sources):
            nan = ops.where((x & FLOAT64.magnitude) > FLOAT64.infinity, x, nan)
        u = ops.where((u & FLOAT64.magnitude) > FLOAT64.infinity, nan, u)
    return u, e


def _zero_sum(operation: Operation, patterns: list[Any], ops: Any) -> Any:
    """A zero sum toward negative: -0, unless both terms are +0 (IEEE 754-2019 6.3)."""
    a, b = patterns[0], patterns[-1]
    if operation is FMA:
        a = a ^ patterns[1]
    if operation is SUB:
        b = b ^ FLOAT64.sign
    return (a | b) & FLOAT64.sign


def rounded_to_odd(u: Any, e: Any, ops: Any) -> Any:
    """The float64 pattern u, nearest to the exact result that is off by something of e's sign, rounded to odd."""
    grows = ops.where(u < 0, e < 0, e > 0)
    shrinks = ops.where(u < 0, e > 0, e < 0)
    return u + ops.where((u & 1) != 0, 0, ops.where(grows, 1, ops.where(shrinks, -1, 0 * u)))


# --- In Python's integers, for what float64 cannot do -----------------------------------------------------------------


def _integer(pattern: int) -> tuple[int, int]:
    """(significand with its sign, exponent) of a finite float64 pattern."""
    field, m = (pattern >> 52) & 2047, pattern & ((1 << 52) - 1)
    m |= (1 << 52) if field else 0
    return (-m if pattern < 0 else m), max(field, 1) - 1075


def exactly(operation: Operation, patterns: list[int], mode: str) -> tuple[bool, int, int]:
    """(negative, m, e): the magnitude of the result is m * 2^e, or between that and the next smaller even m."""
    (a, ea), *rest = map(_integer, patterns)
    b, eb = rest[0] if rest else (1, 0)
    negative = (patterns[0] ^ (patterns[1] if rest else 0)) < 0
    if operation is SQRT:
        shift = 240 + (ea & 1)
        root = math.isqrt(a << shift)
        return patterns[0] < 0, (root << 1) | (root * root != a << shift), (ea - shift) // 2 - 1
    if operation is DIV:
        quotient, r = divmod(abs(a) << 240, abs(b))
        return negative, (quotient << 1) | (r != 0), ea - eb - 241
    if operation is MUL:
        return negative, abs(a * b), ea + eb
    if operation is CONVERT:
        return patterns[0] < 0, abs(a), ea
    if operation is FMA:
        terms = (a * b, ea + eb, negative), (*rest[1], patterns[2] < 0)
    else:
        flip = operation is SUB
        terms = (a, ea, patterns[0] < 0), (-b if flip else b, eb, (patterns[1] < 0) != flip)
    e = min(t[1] for t in terms)
    total = sum(t[0] << (t[1] - e) for t in terms)
    signs = {t[2] for t in terms}
    zero_sign = signs.pop() if len(signs) == 1 else mode == "toward_negative"
    return (total < 0 if total else zero_sign), abs(total), e


def odd_pattern(negative: bool, m: int, e: int) -> int:
    """The float64 pattern of m * 2^e rounded to odd; beyond the largest number, that."""
    lowest = max(m.bit_length() + e - 53, -1074)
    drop = lowest - e
    if drop > 0:
        m, e = (m >> drop) | (m & ((1 << drop) - 1) != 0), lowest
    u = FLOAT64.infinity - 1 if m.bit_length() + e > 1024 else FLOAT64.pattern(m, e)
    return u + FLOAT64.sign if negative else u


def rounded_in_integers(negative: bool, m: int, e: int, job: Job, random: int, *, bounded: bool = True) -> int:
    """The m of m * 2^e rounded to the format's digits and, if bounded, to no less than its smallest spacing."""
    lowest = m.bit_length() + e - job.fmt.mantissa_bits - 1
    if bounded:
        lowest = max(lowest, job.fmt.emin - job.fmt.mantissa_bits)
    return _patterns.round_integer(m, max(lowest - e, 0), negative, job, random)


def exceeds(m: int, e: int, m2: int, e2: int) -> bool:
    return m << max(e - e2, 0) > m2 << max(e2 - e, 0)


def _overflows_to_infinity(mode: str, negative: bool) -> bool:
    if mode in ("toward_positive", "toward_negative"):
        return negative == (mode == "toward_negative")
    return mode not in ("toward_zero", "to_odd")


def final_pattern(negative: bool, m: int, e: int, job: Job, random: int) -> int:
    """The float64 pattern of m * 2^e rounded once to a format of many digits; what it lacks is left to the job."""
    fmt = job.fmt
    if negative and m and not fmt.signed:
        if job.policy.negative != "magnitude":
            return FLOAT64.pattern(1, 0) + FLOAT64.sign  # all negative numbers are alike, and none shall become -0
        negative = False
    if m and not fmt.zero and exceeds(*fmt.least_parts, m, e):
        return FLOAT64.pattern(*fmt.least_parts)
    m = rounded_in_integers(negative, m, e, job, random)
    if exceeds(m, e, *job.fmt.max_parts):
        infinite = job.policy.overflow == "infinity" and _overflows_to_infinity(job.mode, negative)
        u = FLOAT64.infinity if infinite else FLOAT64.pattern(*job.fmt.max_parts)
    else:
        u = FLOAT64.pattern(m, e)
    return u + FLOAT64.sign if negative else u
