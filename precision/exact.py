"""The oracle: rounding and the basic operations on exact rationals, slow and obvious.

A value is a `fractions.Fraction`, or what has none: an infinity, a NaN, a zero with its sign (`Number`). To round, the
two neighbours are looked up in the list of a format's values and the rounding picks one. No algorithm is shared with
`rounding`, `codec` or `arithmetic`, which this module judges: of a format it reads the stored fields, of a policy the
choices, of a rounding the name and the random bits.

Rules followed: IEEE 754-2019 section 3.4 (encodings), 4.3 (rounding attributes), 5.4.1 (operations), 6 (infinities,
NaNs, sign of zero), 7.4 (overflow), 9.4 (empty sums); OCP OFP8 1.0 section 5; OCP MX 1.0 sections 5.3, 5.4 (E8M0).

Every function that rounds takes these keywords (`How`):

rounding  a name of `precision.ROUNDINGS`, or `precision.stochastic(random_bits=..., bits=...)`
policy    a preset's name or a `precision.Policy`. `round` converts, so its default is "saturate", as that of `encode`;
          the operations are IEEE operations, so theirs is "ieee": overflow and x/0 give infinity or NaN
source    the format the operands come from: needed, and used, only by a policy that flushes subnormal inputs
result    "value": floats (exact: float64 holds every value of every format); "code": the format's codes; "number":
          `Number` records; "flags": the frozenset of the IEEE exceptions raised, by the names that `precision.Flags`
          explains. `round` gives codes unless told otherwise, `round_value` numbers, the operations values

Operands are taken exactly as they are: int, float, Fraction, `Number`, NumPy and ml_dtypes scalars; or (nested) lists,
NumPy arrays and tensors of them, which broadcast. Scalars give a scalar, anything else a NumPy array.

>>> from fractions import Fraction
>>> from precision import exact
>>> exact.round(Fraction(1, 3), "float8_e4m3fn"), exact.round_value(Fraction(1, 3), "float8_e4m3fn").value
(43, Fraction(11, 32))
>>> exact.add(448, 16, "float8_e4m3fn"), exact.fma(3, 5, 2**-9, "float8_e4m3fn", rounding="toward_positive")
(448.0, 16.0)
>>> exact.div([1, -1, 0], 0, "float16")
array([ inf, -inf,  nan])
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from precision.formats import AnyFormat, Format, IntFormat, get_format
from precision.policies import ROUNDINGS, Policy, Rounding, get_policy

__all__ = [
    "How",
    "Number",
    "add",
    "decode",
    "div",
    "dot",
    "fma",
    "mul",
    "round",
    "round_value",
    "sqrt",
    "sub",
    "sum",
    "values",
]

Answer = Any
"""A float, int or `Number` for scalar operands, else a NumPy array of them: no narrower type says this usefully."""


class How(TypedDict, total=False):
    """The keywords of every function that rounds; the module's docstring says what they mean."""

    rounding: str | Rounding
    policy: str | Policy
    source: AnyFormat | str | None
    result: Literal["value", "code", "number", "flags"]


# --- Numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number: a Fraction, or what has none: an infinity, a NaN, and the sign of a zero.

    `negative` is the sign of every kind (a NaN has one too); `value` is 0 unless the kind is "finite". Two Numbers are
    equal when kind, sign and value are: -0 differs from +0, and a NaN equals the NaN of its sign.
    Raises ValueError when sign and value contradict each other.
    """

    kind: Literal["finite", "infinity", "nan"] = "finite"
    negative: bool = False
    value: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        sign = self.value.numerator
        if sign and (self.kind != "finite" or (sign < 0) != self.negative):
            raise ValueError(f"no Number is of kind {self.kind!r} with negative={self.negative}, value={self.value}")

    @classmethod
    def of(cls, x: Any) -> Number:
        """The exact number that a Python, NumPy or ml_dtypes scalar is; -0.0 and the sign of a NaN are kept.

        Raises TypeError for anything that is not a real number (bool, complex and str among others).
        """
        if isinstance(x, Number):
            return x
        if isinstance(x, np.generic) and not isinstance(x, np.longdouble):
            x = x.tolist()  # the Python number of the same value, of ml_dtypes scalars as well
        if isinstance(x, float | np.longdouble):
            negative = bool(np.signbit(x))
            if x != x:
                return cls("nan", negative)
            if abs(x) == math.inf:
                return cls("infinity", negative)
            return cls("finite", negative, Fraction(*x.as_integer_ratio()))
        if isinstance(x, int | Fraction) and x is not True and x is not False:
            return cls("finite", x < 0, Fraction(x))
        raise TypeError(f"{x!r} is no real number: give int, float, Fraction, exact.Number, arrays or lists of them")

    @property
    def is_zero(self) -> bool:
        return self.kind == "finite" and not self.value.numerator

    def __float__(self) -> float:
        """The float of the same value; raises ValueError where there is none, because nothing is rounded here."""
        if self.kind == "finite" and not self.is_zero:
            if abs(self.value) < 1 << 1024 and Fraction(float(self.value)) == self.value:
                return float(self.value)
            raise ValueError(f"float64 does not hold {self.value}: use .value, or exact.round_value(x, 'float64')")
        size = {"finite": 0.0, "infinity": math.inf, "nan": math.nan}[self.kind]
        return math.copysign(size, -1.0 if self.negative else 1.0)


def _opposite(x: Number) -> Number:
    """-x; a NaN is left alone, as subtraction hands on the NaN it was given."""
    return x if x.kind == "nan" else Number(x.kind, not x.negative, -x.value)


# --- Formats, from the prose of their specifications ----------------------------------------------


def _bits(fmt: AnyFormat) -> int:
    return fmt.bits if isinstance(fmt, IntFormat) else fmt.signed + fmt.exponent_bits + fmt.mantissa_bits


def _ones(fmt: Format) -> int:
    """The code with every bit below the sign set."""
    return (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1


def _infinity_code(fmt: Format) -> int | None:
    """Positive infinity: the code just below the NaNs, or the last one where these are elsewhere."""
    if not fmt.infinities:
        return None
    if fmt.nan == "ieee":
        return ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
    return _ones(fmt) - 1 if fmt.nan == "all_ones" else _ones(fmt)


def _is_nan(sign: int, magnitude: int, fmt: Format) -> bool:
    if fmt.nan == "ieee":
        exponent, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
        return exponent == (1 << fmt.exponent_bits) - 1 and mantissa != 0
    if fmt.nan == "all_ones":
        return magnitude == _ones(fmt)
    return fmt.nan == "negative_zero" and sign == 1 and magnitude == 0


def _largest(fmt: AnyFormat, negative: bool) -> int:
    """The magnitude's code of the finite number of a sign that is farthest from zero (of an integer: its magnitude)."""
    if isinstance(fmt, IntFormat):
        if not fmt.signed:
            return 0 if negative else (1 << fmt.bits) - 1
        return (1 << (fmt.bits - 1)) - (0 if negative else 1)
    infinity = _infinity_code(fmt)
    if infinity is not None:
        return infinity - 1
    return _ones(fmt) - 1 if fmt.nan == "all_ones" else _ones(fmt)


def _steps(code: int, fmt: AnyFormat) -> int:
    """What a magnitude's code is worth in units of `_spacing`, as if no code were special."""
    if isinstance(fmt, IntFormat):
        return code
    exponent, mantissa = divmod(code, 1 << fmt.mantissa_bits)
    if not fmt.zero:  # every exponent is that of a normal number
        return ((1 << fmt.mantissa_bits) + mantissa) << exponent
    if exponent == 0:  # zero and the subnormals
        return mantissa
    return ((1 << fmt.mantissa_bits) + mantissa) << (exponent - 1)


@cache
def _smallest_normal(fmt: AnyFormat) -> Fraction:
    if isinstance(fmt, IntFormat):
        return Fraction(1)
    bias = (1 << (fmt.exponent_bits - 1)) - 1 if fmt.bias is None else fmt.bias
    return Fraction(2) ** (int(fmt.zero) - bias)


@cache
def _spacing(fmt: AnyFormat) -> Fraction:
    """The distance of the two values nearest to zero; every value is a multiple of it."""
    return Fraction(1) if isinstance(fmt, IntFormat) else _smallest_normal(fmt) / (1 << fmt.mantissa_bits)


def decode(code: int, fmt: AnyFormat | str) -> Number:
    """The number that a code of `fmt` stands for; an integer format's codes are two's complement.

    NaN codes keep their sign (the one NaN of a "negative_zero" format is positive); -0, infinities and subnormals are
    what the format says. Raises ValueError for a code outside 0 .. 2^bits - 1.
    """
    fmt, code = get_format(fmt), int(code)
    bits = _bits(fmt)
    if not 0 <= code < 1 << bits:
        raise ValueError(f"{fmt.name}: code {code} is outside 0 .. {(1 << bits) - 1}")
    if isinstance(fmt, IntFormat):
        return Number.of(code - (1 << bits) if fmt.signed and code >> (bits - 1) else code)
    sign, magnitude = divmod(code, _ones(fmt) + 1)
    if _is_nan(sign, magnitude, fmt):
        return Number("nan", sign == 1 and fmt.nan != "negative_zero")
    if magnitude == _infinity_code(fmt):
        return Number("infinity", sign == 1)
    return Number("finite", sign == 1, (-1) ** sign * _steps(magnitude, fmt) * _spacing(fmt))


def values(fmt: AnyFormat | str) -> list[tuple[Fraction, int]]:
    """Every finite value of `fmt` that is not negative with its code, ascending; zero appears once, as +0.

    Raises ValueError for a format of more than 16 bits, whose list would be too long.
    """
    fmt = get_format(fmt)
    if _bits(fmt) > 16:
        raise ValueError(f"{fmt.name} has {_bits(fmt)} bits: values() lists formats of at most 16; decode single codes")
    return [(_steps(code, fmt) * _spacing(fmt), code) for code in range(_largest(fmt, False) + 1)]


# --- Rounding -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mode:
    """A rounding's name, with its random number below 2^bits if it is stochastic."""

    name: str
    random: int = 0
    bits: int = 0

    def away(self, dropped: Fraction, below_is_odd: bool, negative: bool) -> bool:
        """Whether to take the neighbour away from zero; 0 < `dropped` < 1 is how far on the way the value is."""
        half = Fraction(1, 2)
        if self.name == "nearest_even":  # with both significands odd, the larger magnitude: IEEE 754-2019 4.3.1
            return dropped > half or (dropped == half and below_is_odd)
        if self.name == "nearest_away":
            return dropped >= half
        if self.name == "toward_positive":
            return not negative
        if self.name == "toward_negative":
            return negative
        if self.name == "to_odd":
            return not below_is_odd
        if self.name == "stochastic":
            return math.floor(dropped * (1 << self.bits)) + self.random >= 1 << self.bits
        return False  # toward_zero

    def overflows_to_infinity(self, negative: bool) -> bool:
        """IEEE 754-2019 7.4: not where the rounding points back to the largest value."""
        if self.name in ("toward_positive", "toward_negative"):
            return negative == (self.name == "toward_negative")
        return self.name not in ("toward_zero", "to_odd")


def _odd(code: int, fmt: AnyFormat) -> bool:
    """Whether the significand of a magnitude's code is odd. With no mantissa bit it is 1, except that of zero."""
    if isinstance(fmt, Format) and fmt.mantissa_bits == 0:
        return code > 0 or not fmt.zero
    return code % 2 == 1


def _finite(magnitude: int, negative: bool, fmt: AnyFormat) -> int:
    """The code of a magnitude's code and a sign; a zero is positive where the format has no -0."""
    if not negative or (magnitude == 0 and isinstance(fmt, Format) and fmt.nan == "negative_zero"):
        return magnitude
    if isinstance(fmt, IntFormat):
        return -magnitude % (1 << fmt.bits)
    return magnitude + _ones(fmt) + 1 if fmt.signed else magnitude


def _nan(negative: bool, fmt: AnyFormat, policy: Policy) -> int | None:
    """The NaN of a sign: with only the quiet bit set or, if the policy says so, with all mantissa bits set."""
    if isinstance(fmt, IntFormat) or fmt.nan == "none":
        return None
    if fmt.nan == "negative_zero":
        return _ones(fmt) + 1
    code = _ones(fmt)
    if fmt.nan == "ieee" and not policy.nan.startswith("all_ones"):
        code -= (1 << (fmt.mantissa_bits - 1)) - 1
    return _finite(code, negative, fmt)


def _from_nan(negative: bool, fmt: AnyFormat, policy: Policy) -> int:
    nan = _nan(negative and policy.nan.endswith("signed"), fmt, policy)
    rule, choice = ("missing_nan", policy.missing_nan) if nan is None else ("nan", policy.nan)
    if choice == "raise":
        raise ValueError(f"{fmt.name}: the input has a NaN and the policy says {rule}='raise'")
    if nan is not None:
        return nan
    if choice == "opposite_zero":
        return _finite(0, not negative, fmt)
    if choice == "zero" or (choice is None and isinstance(fmt, IntFormat)):
        return 0
    return _largest(fmt, False)


def _infinite(negative: bool, fmt: AnyFormat, policy: Policy) -> int:
    """Infinity of a sign; in a format without, the NaN of that sign; without either, the largest value."""
    if isinstance(fmt, Format) and fmt.infinities:
        return _finite(_largest(fmt, negative) + 1, negative, fmt)
    nan = _nan(negative, fmt, policy)
    return _finite(_largest(fmt, negative), negative, fmt) if nan is None else nan


def _round(x: Number, fmt: AnyFormat, mode: _Mode, policy: Policy) -> int:
    """The code of `x` rounded once."""
    if x.kind == "nan":
        return _from_nan(x.negative, fmt, policy)
    nan = _nan(False, fmt, policy)
    if isinstance(fmt, Format) and not fmt.signed and x.negative and not x.is_zero:
        if policy.negative != "magnitude":
            return nan if policy.negative == "nan" and nan is not None else 0  # 0: zero, or the smallest value
        x = _opposite(x)
    if isinstance(fmt, Format) and not fmt.zero and x.is_zero:
        return nan if policy.zero == "nan" and nan is not None else 0
    largest = _largest(fmt, x.negative)
    if x.kind == "infinity":
        to_infinity = policy.infinity == "infinity"
        return _infinite(x.negative, fmt, policy) if to_infinity else _finite(largest, x.negative, fmt)

    # `below`: the code of the greatest magnitude up to |x|, in a list that ends with the first one past the largest.
    steps = abs(x.value) / _spacing(fmt)
    beyond = largest + 1
    below = bisect_right(range(beyond + 1), math.floor(steps), key=lambda code: _steps(code, fmt)) - 1
    if below == beyond:
        rounded = beyond
    elif below < 0:  # only in a format without zero: the smallest value
        rounded = 0
    else:
        low, high = _steps(below, fmt), _steps(below + 1, fmt)
        inexact = steps != low
        rounded = below + (inexact and mode.away((steps - low) / (high - low), _odd(below, fmt), x.negative))

    if rounded == beyond:
        if policy.overflow == "infinity" and mode.overflows_to_infinity(x.negative):
            return _infinite(x.negative, fmt, policy)
        return _finite(largest, x.negative, fmt)
    if policy.subnormals in ("flush_results", "flush") and _steps(rounded, fmt) * _spacing(fmt) < _smallest_normal(fmt):
        rounded = 0
    return _finite(rounded, x.negative, fmt)


def _unlimited(size: Fraction, negative: bool, fmt: Format, mode: _Mode) -> Fraction:
    """A positive number rounded to the format's digits as if its exponent had no limits."""
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    spacing = Fraction(2) ** (exponent - fmt.mantissa_bits)
    steps, dropped = divmod(size / spacing, 1)
    return (steps + (dropped > 0 and mode.away(dropped, steps % 2 == 1, negative))) * spacing


def _flags(
    operands: list[Number], x: Number, rounded: Number, fmt: AnyFormat, mode: _Mode, policy: Policy
) -> frozenset[str]:
    """The exceptions of an operation with the exact result `x`."""
    assert isinstance(fmt, Format)
    kinds = {y.kind for y in operands}
    if x.kind == "nan":
        return frozenset() if "nan" in kinds else frozenset({"invalid"})
    lacks_sign = x.negative and not x.is_zero and not fmt.signed
    if lacks_sign and policy.negative == "nan" and rounded.kind == "nan":
        by_zero = x.kind == "infinity" and "infinity" not in kinds
        return frozenset({"invalid", "divide_by_zero"} if by_zero else {"invalid"})
    if x.kind == "infinity":
        return frozenset() if "infinity" in kinds else frozenset({"divide_by_zero"})
    size = abs(x.value)
    drops_sign = lacks_sign and policy.negative == "magnitude"
    free = _unlimited(size, x.negative and not drops_sign, fmt, mode) if size else size
    if lacks_sign and not drops_sign:  # the smallest value of the format, whatever the size
        return frozenset({"inexact", "underflow"} if free < _smallest_normal(fmt) else {"inexact"})
    if free > _steps(_largest(fmt, False), fmt) * _spacing(fmt):
        return frozenset({"overflow", "inexact"})
    if rounded.kind == "nan":
        return frozenset({"invalid"})
    if rounded.value == x.value:
        return frozenset()
    return frozenset({"inexact", "underflow"} if free < _smallest_normal(fmt) else {"inexact"})


# --- From operands to results ---------------------------------------------------------------------

_SCALARS = (int, float, Fraction, Number, np.generic)
Operand = Number | npt.NDArray[np.object_]


def _numbers(x: Any) -> Operand:
    """The Number, or the array of Numbers, that an operand is."""
    if isinstance(x, _SCALARS):
        return Number.of(x)
    if hasattr(x, "tolist"):  # NumPy and torch: gives Python numbers of the same values, of float32 and bfloat16 too
        items = np.array(x.tolist(), dtype=object).reshape(tuple(x.shape))
    else:
        items = np.array(x, dtype=object)
    if not items.shape:
        return Number.of(items[()])
    with np.errstate(all="ignore"):  # the flags are of whatever was computed before: a signalling NaN's conversion, say
        numbers: npt.NDArray[np.object_] = np.frompyfunc(Number.of, 1, 1)(items)
    return numbers


def _rows(*operands: Any) -> list[npt.NDArray[np.object_]]:
    """The operands as arrays of tuples: of the Numbers along the last axis, after broadcasting."""
    arrays = np.broadcast_arrays(*(np.asarray(_numbers(x), dtype=object) for x in operands))
    if arrays[0].ndim == 0:
        raise ValueError("sum and dot work along the last axis, and a scalar has none; give a list or an array")
    rows = [np.empty(array.shape[:-1], dtype=object) for array in arrays]
    for row, array in zip(rows, arrays, strict=True):
        for index in np.ndindex(row.shape):
            row[index] = tuple(array[index])
    return rows


def _flush(x: Any, smallest_normal: Fraction) -> Any:
    """Zero of the same sign for a subnormal Number; a tuple element by element."""
    if isinstance(x, tuple):
        return tuple(_flush(y, smallest_normal) for y in x)
    return Number("finite", x.negative) if x.kind == "finite" and abs(x.value) < smallest_normal else x


def _compute(
    operation: Callable[..., Number],
    operands: Sequence[Any],
    fmt: AnyFormat | str,
    *,
    rounding: str | Rounding = "nearest_even",
    policy: str | Policy = "ieee",
    source: AnyFormat | str | None = None,
    result: str = "value",
) -> Answer:
    """`operation(mode, *operands)`, elementwise and exact, then rounded once."""
    target = get_format(fmt)
    chosen = get_policy(policy, target)
    if result not in ("value", "code", "number", "flags"):
        raise ValueError(f"result is {result!r}; it must be 'value', 'code', 'number' or 'flags'")
    if result == "flags" and isinstance(target, IntFormat):
        raise ValueError(f"{target.name} is an integer format; IEEE 754 flags are those of floating-point formats")
    random: Any = 0
    if isinstance(rounding, Rounding) and rounding.name == "stochastic":
        random = rounding.random_bits.tolist() if hasattr(rounding.random_bits, "tolist") else rounding.random_bits
        name, bits = rounding.name, rounding.bits
    elif rounding in ROUNDINGS:
        name, bits = rounding, 0
    else:
        ways = f"{', '.join(ROUNDINGS)} or P.stochastic(random_bits=..., bits=...)"
        raise ValueError(f"unknown rounding {rounding!r}: use one of {ways}")
    smallest_normal = None
    if chosen.subnormals in ("flush_inputs", "flush"):
        if source is None:
            raise ValueError(f"policy subnormals={chosen.subnormals!r} needs source=, the format the operands are from")
        smallest_normal = _smallest_normal(get_format(source))

    def one(random: int, *row: Any) -> Any:
        if not 0 <= random < 1 << bits:
            raise ValueError(f"random bits {random} are outside 0 .. {(1 << bits) - 1}, what {bits} bits hold")
        if smallest_normal is not None:
            row = _flush(row, smallest_normal)
        mode = _Mode(name, int(random), bits)
        x = operation(mode.name, *row)
        code = _round(x, target, mode, chosen)
        if result == "flags":
            operands = [y for item in row for y in (item if isinstance(item, tuple) else (item,))]
            return _flags(operands, x, decode(code, target), target, mode, chosen)
        return code if result == "code" else decode(code, target) if result == "number" else float(decode(code, target))

    if isinstance(random, int) and all(isinstance(x, Number) for x in operands):
        return one(random, *operands)
    arrays = np.broadcast_arrays(*(np.asarray(x, dtype=object) for x in (random, *operands)))
    with np.errstate(all="ignore"):  # as above: nothing here computes with floats
        answers = np.frompyfunc(one, len(arrays), 1)(*arrays)
    if arrays[0].ndim == 0:
        return answers
    width = next(width for width in (8, 16, 32, 64) if _bits(target) <= width)
    return answers.astype({"value": np.float64, "code": f"uint{width}"}.get(result, object))


# --- The operations -------------------------------------------------------------------------------


def _total(mode: str, *terms: Number) -> Number:
    """The exact sum. Section 6.3: an exact zero is +0 (-0 toward_negative), but zeros of one sign keep it."""
    for x in terms:
        if x.kind == "nan":
            return x
    infinities = {x.negative for x in terms if x.kind == "infinity"}
    if infinities:
        return Number("nan") if len(infinities) == 2 else Number("infinity", infinities.pop())
    total = Fraction(0)
    for x in terms:
        total += x.value
    signs = {x.negative for x in terms}
    if total or not terms:
        return Number("finite", total < 0, total)
    # One sign and a sum of zero: every term is the zero of that sign.
    return Number("finite", signs.pop() if len(signs) == 1 else mode == "toward_negative")


def _product(a: Number, b: Number) -> Number:
    if "nan" in (a.kind, b.kind):
        return a if a.kind == "nan" else b
    negative = a.negative != b.negative
    if "infinity" in (a.kind, b.kind):
        return Number("nan") if a.is_zero or b.is_zero else Number("infinity", negative)
    return Number("finite", negative, a.value * b.value)


def _quotient(a: Number, b: Number) -> Number:
    if "nan" in (a.kind, b.kind):
        return a if a.kind == "nan" else b
    negative = a.negative != b.negative
    if (a.is_zero and b.is_zero) or a.kind == b.kind == "infinity":
        return Number("nan")
    if a.kind == "infinity" or b.is_zero:
        return Number("infinity", negative)
    return Number("finite", negative, Fraction(0) if b.kind == "infinity" else a.value / b.value)


def _root(x: Number, spacing: Fraction) -> Number:
    """The square root or, where it is irrational, a fraction that every rounding to multiples of `spacing` takes alike.

    With s = floor(root * 2^k), an inexact root lies strictly between s / 2^k and (s + 1) / 2^k; so does their middle.
    2^-k divides the spacing, half of it (ties) and 2^-32 of it (stochastic rounding), hence all that a rounding
    compares with: nothing of that lies between the two.
    """
    if x.kind == "nan" or x.is_zero:
        return x
    if x.negative:
        return Number("nan")
    if x.kind == "infinity":
        return x
    k = 32 + spacing.denominator.bit_length()
    scaled = x.value * 4**k
    s = math.isqrt(math.floor(scaled))
    return Number("finite", False, (s if s * s == scaled else s + Fraction(1, 2)) / Fraction(2**k))


def round(x: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """`x` rounded once to `fmt`: its code, unless `result` says otherwise.

    Default policy "saturate": beyond max, and ±Inf, to ±max; NaN stays NaN or, where there is none, becomes +max (0 in
    integers); subnormals kept; -0 kept where the format has it; ties to the even significand, up if both are odd.
    Raises ValueError for unknown names and for a NaN under a "raise" policy; TypeError for what is no number.
    Source: IEEE 754-2019 4.3, 7.4; OCP OFP8 1.0 section 5.
    """
    how = {"policy": "saturate", "result": "code"} | how
    return _compute(lambda mode, a: a, [_numbers(x)], fmt, **how)


def round_value(x: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """As `round`, but the exact `Number` unless `result` says otherwise."""
    how = {"result": "number"} | how
    return round(x, fmt, **how)


def add(a: Any, b: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """a + b rounded once to `fmt`.

    Inf - Inf is NaN; the first NaN operand is handed on, an invalid operation gives a positive one, and `policy.nan`
    makes a code of it; x + (-x) is +0, or -0 toward_negative; zeros of one sign keep it. Overflow, subnormals and ties
    as `round` under the policy "ieee". Raises as `round`. Source: IEEE 754-2019 5.4.1, 6.1-6.3.
    """
    return _compute(_total, [_numbers(a), _numbers(b)], fmt, **how)


def sub(a: Any, b: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """a - b rounded once to `fmt`: `add` of the opposite number; a NaN operand keeps its sign."""
    return _compute(lambda mode, x, y: _total(mode, x, _opposite(y)), [_numbers(a), _numbers(b)], fmt, **how)


def mul(a: Any, b: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """a * b rounded once to `fmt`; 0 * Inf is NaN, and the sign of every other result is the product of the signs.

    NaN, overflow, subnormals and ties as `add`. Raises as `round`. Source: IEEE 754-2019 5.4.1, 6.3, 7.2.
    """
    return _compute(lambda mode, x, y: _product(x, y), [_numbers(a), _numbers(b)], fmt, **how)


def div(a: Any, b: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """a / b rounded once to `fmt`; 0/0 and Inf/Inf are NaN, x/0 is the infinity of the product of the signs.

    NaN, overflow, subnormals and ties as `add`. Raises as `round`. Source: IEEE 754-2019 5.4.1, 6.3, 7.2, 7.3.
    """
    return _compute(lambda mode, x, y: _quotient(x, y), [_numbers(a), _numbers(b)], fmt, **how)


def sqrt(x: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """The square root rounded once to `fmt`, by integer square root; that of -0 is -0, of anything else negative NaN.

    NaN, overflow, subnormals and ties as `add`. Raises as `round`. Source: IEEE 754-2019 5.4.1, 6.3, 7.2.
    """
    spacing = _spacing(get_format(fmt))
    return _compute(lambda mode, y: _root(y, spacing), [_numbers(x)], fmt, **how)


def fma(a: Any, b: Any, c: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """a * b + c rounded once to `fmt`; NaN where the product or the sum is; a zero has the sign that `add` gives it.

    NaN, overflow, subnormals and ties as `add`. Raises as `round`. Source: IEEE 754-2019 5.4.1, 6.3, 7.2.
    """
    operands = [_numbers(a), _numbers(b), _numbers(c)]
    return _compute(lambda mode, x, y, z: _total(mode, _product(x, y), z), operands, fmt, **how)


def sum(x: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """The exact sum along the last axis, (..., n) -> (...), rounded once to `fmt`; an empty sum is +0.

    Any NaN, and infinities of both signs, give NaN; all terms -0 give -0. NaN, overflow, subnormals and ties as `add`.
    Raises as `round`, and ValueError for a scalar. Source: IEEE 754-2019 9.4, 6.3.
    """
    return _compute(lambda mode, row: _total(mode, *row), _rows(x), fmt, **how)


def dot(a: Any, b: Any, fmt: AnyFormat | str, **how: Unpack[How]) -> Answer:
    """The exact dot product along the last axis, (..., n) and (..., n) -> (...), rounded once to `fmt`.

    Specials as `mul`, then `sum`; the operands broadcast. Raises as `sum`. Source: IEEE 754-2019 9.4, 6.3.
    """
    return _compute(lambda mode, x, y: _total(mode, *map(_product, x, y)), _rows(a, b), fmt, **how)
