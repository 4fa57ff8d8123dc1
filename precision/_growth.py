"""What is known of the error of a sum while it grows: the steps of the running analysis that `bounds` describes.

`Rule` is what one operation rounds to, `Sum` what is known of an array of computed sums; `Sum.add`, `fused` (a group of
a tensor core) and `compensated` (Kahan) are the operations. Symbols are those of the docstring of `precision.bounds`.

>>> import numpy as np
>>> from precision._growth import Factor, Rule, Sum
>>> from precision.formats import FORMATS
>>> one, little, less = (Sum.products(*2 * (Factor.of(np.array([x]), -126),)) for x in (1.0, 0.125, 0.0625))
>>> rule = Rule.of(FORMATS["bfloat16"], sigmas=5.0)
>>> one.add(little, rule).certain, one.add(less, rule).certain  # 1 + 2^-6 has 8 digits at most, 1 + 2^-8 has 9
(array([0.]), array([0.00390625]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from precision.formats import AnyFormat, IntFormat

Array = Any
"""NumPy arrays of float64."""

UP = 1 + 2.0**-44  # pays for the rounding of a few float64 operations


class Factor(NamedTuple):
    """One factor of the terms, which are along the first axis."""

    value: Array
    power: Array  # 2^exponent as a tensor core compares it: of a subnormal number that of its format; 0 for zero
    unit: Array  # the lowest bit that is set; inf for zero
    short: bool  # whether its products with another such factor are exact in float64

    @staticmethod
    def of(value: Array, emin: int) -> Factor:
        fraction, exponent = np.frexp(np.abs(value))
        bits = np.ldexp(fraction, 53).astype(np.int64)
        unit = np.where(bits == 0, np.inf, np.ldexp((bits & -bits).astype(np.float64), exponent - 53))
        short = bool((value.astype(np.float32) == value).all())
        return Factor(value, np.where(value == 0, 0.0, power(value, emin)), unit, short)

    def part(self, which: slice) -> Factor:
        return Factor(self.value[which], self.power[which], self.unit[which], self.short)


def power(v: Any, emin: int) -> Array:
    """The largest power of two within |v|, at least 2^emin; inf for what is not finite."""
    field = v.view(np.int64) & (0x7FF << 52)
    return np.maximum(field, (1023 + emin) << 52).view(np.float64)


@dataclass(frozen=True)
class Rule:
    """What an operation rounds to, and how."""

    bits: int
    emin: int
    largest: float
    mode: str
    sigmas: float  # half-widths that the sum of errors stays within, likely: l
    flushed: float = 0.0  # smaller operands and results may become zero
    signed: bool = True

    @staticmethod
    def of(fmt: AnyFormat, sigmas: float, mode: str = "nearest_even", subnormals: str = "keep") -> Rule:
        if isinstance(fmt, IntFormat):  # a spacing of 1
            largest = min(fmt.max, -fmt.min) if fmt.signed else fmt.max
            return Rule(fmt.bits, fmt.bits - 1, largest, mode, sigmas, signed=fmt.signed)
        flushed = fmt.smallest_normal if subnormals != "keep" or not fmt.zero else 0.0
        return Rule(fmt.mantissa_bits + 1, fmt.emin, fmt.max, mode, sigmas, flushed, fmt.signed)

    @property
    def nearest(self) -> bool:
        return self.mode.startswith("nearest")

    @property
    def least(self) -> float:
        """What divides every number of the format."""
        return 2.0 ** (self.emin + 1 - self.bits)

    def spacing(self, magnitude: Array) -> Array:
        return power(magnitude, self.emin) * 2.0 ** (1 - self.bits)

    def worst(self, magnitude: Array, unit: Any, limit: Any = np.inf) -> Array:
        """The largest error of an operation whose exact result is a multiple of `unit` up to a magnitude.

        To nearest it is at most `limit`, the distance to some number of the format. Where the two operands and the
        result may be flushed, each is off by less than the smallest normal number.
        """
        magnitude = magnitude + 2 * self.flushed
        q = self.spacing(magnitude)
        error = np.minimum(np.where(q > unit, q / 2, 0.0), limit) if self.nearest else np.maximum(q - unit, 0.0)
        if self.nearest or self.mode == "toward_zero":
            error = np.minimum(error, magnitude)
        return error + np.where(unit < self.flushed, 3 * self.flushed, 0.0) if self.flushed else error

    def expected(self, q: Array, unit: Any, added: Any, sign: Array) -> Array:
        """The mean error at the spacing q, of a result of that sign: known if `added` to a multiple of q is less."""
        size = np.abs(added)
        if self.nearest:
            return np.where(size < q, np.copysign(np.where(size <= q / 2, -size, q - size), added), 0.0)
        if self.mode == "to_odd":
            return np.zeros_like(q)
        down = {"toward_negative": 1.0, "toward_positive": -1.0, "toward_zero": sign}[self.mode]
        known = np.where(added * down < 0, q - size, size)  # rounded down, x > 0 is lost, and x < 0 is one spacing
        return -down * np.where(size < q, known, np.maximum(q - unit, 0.0) / 2)


@dataclass
class Sum:
    """What is known of computed sums c and their exact values S, in arrays of one shape."""

    on_grid: bool  # whether c is known to be a number of the format
    unit: Array  # g, which divides c and S
    exact: Array  # S in float64; `certain` and `variance` cover what that is off by
    size: Array  # A >= |c|
    certain: Array  # T >= |c - S|
    mean: Array  # M, that of c - S
    radius: Array  # r, how far that may be off
    variance: Array  # V

    @staticmethod
    def zero(shape: tuple[int, ...]) -> Sum:
        return Sum(True, np.full(shape, np.inf), *(np.zeros(shape) for _ in range(6)))

    @staticmethod
    def products(a: Factor, b: Factor) -> Sum:
        """One product each, not rounded."""
        exact, unit = a.value * b.value, a.unit * b.unit
        short = a.short and b.short
        size = np.abs(exact) * (1.0 if short else UP)
        found = Sum(False, unit, exact, size, *(np.zeros(exact.shape) for _ in range(4)))
        if not short:
            found.pay(2.0**53 * unit, size, 1)
            found.certain[size < 2.0**-1000] += 2.0**-1074  # float64's own underflow
        return found

    @property
    def arrays(self) -> list[Array]:
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def map(self, f: Callable[[Array], Array]) -> Sum:
        return Sum(self.on_grid, *map(f, self.arrays))

    def part(self, which: int | slice) -> Sum:
        """Some of the first axis."""
        return self.map(lambda x: x[which])

    def followed_by(self, other: Sum) -> Sum:
        """Both, along the first axis."""
        both = zip(self.arrays, other.arrays, strict=True)
        return Sum(self.on_grid and (other.on_grid or not len(other.exact)), *map(np.concatenate, both))

    def pay(self, exactly: Array, size: Array, count: int) -> None:
        """For float64 operations on numbers below `size`, which are exact up to `exactly`."""
        error = np.where(size <= exactly, 0.0, count * 2.0**-53 * size)
        self.certain += error
        self.variance += error**2

    def top(self) -> Array:
        """|c| at most."""
        return np.minimum(np.abs(self.exact) + self.certain, self.size)

    def bottom(self) -> Array:
        """|c| at least."""
        return np.maximum(np.abs(self.exact) - self.certain, 0.0)

    def likely(self, sigmas: float) -> tuple[Array, Array, Array]:
        """|c| at least and at most, likely, and its sign, 0 if that is open."""
        center = self.exact + self.mean
        size, spread = np.abs(center), self.radius + sigmas * np.sqrt(self.variance)
        most = np.minimum(size + spread, self.size)
        least = np.minimum(np.maximum(size - spread, 0.0), most)
        return least, most, np.where(size > spread, np.sign(center), 0.0)

    def joined(self, other: Sum) -> Sum:
        """The exact sum of both."""
        (unit, *mine), (unit_of_other, *others) = self.arrays, other.arrays
        total = Sum(False, np.minimum(unit, unit_of_other), *map(np.add, mine, others))
        total.pay(2.0**53 * total.unit, np.abs(total.exact), 1)
        return total

    def add(self, other: Sum, rule: Rule) -> Sum:
        """The sum of both, rounded."""
        total, top, tops = self.joined(other), self.top(), other.top()
        if self.on_grid and other.on_grid:  # the smaller is added to the larger
            added = np.where(top < tops, self.exact + self.mean, other.exact + other.mean)
            return total.rounded(rule, np.maximum(total.unit, rule.least), added, np.minimum(top, tops))
        if self.on_grid:
            return total.rounded(rule, total.unit, other.exact + other.mean, tops)
        if other.on_grid:
            return total.rounded(rule, total.unit, self.exact + self.mean, top)
        return total.rounded(rule, total.unit)

    def rounded(self, rule: Rule, unit: Array, added: Any = np.inf, limit: Any = np.inf) -> Sum:
        """This, changed to what rounding makes of it: of a multiple of `unit`, got by adding `added` to a number of the
        format, so that rounding to nearest errs by at most `limit`."""
        top, (least, most, sign) = self.top(), self.likely(rule.sigmas)
        worst, q = rule.worst(top, unit, limit), rule.spacing(most)
        half = np.where(q > unit, q if rule.mode == "to_odd" else q / 2, 0.0)
        if rule.nearest:
            half = np.minimum(half, np.abs(added))
            center = rule.spacing(np.abs(self.exact + self.mean))
            self.mean += np.where(center > unit, rule.expected(center, unit, added, sign), 0.0)
        else:
            high, low = (np.where(x > unit, rule.expected(x, unit, added, sign), 0.0) for x in (q, rule.spacing(least)))
            self.mean += (high + low) / 2
            self.radius += np.abs(high - low) / 2
            if rule.mode == "toward_zero":  # and of an unknown sign
                self.radius += np.where(sign == 0, half, 0.0)
        self.variance += half**2
        if rule.flushed:
            self.radius += np.where(unit < rule.flushed, 3 * rule.flushed, 0.0)
        if rule.mode != "toward_zero":
            self.size = (self.size + worst) * UP
        self.certain = (self.certain + worst) * UP
        self.certain[top > rule.largest] = np.inf
        self.radius[most > rule.largest] = np.inf
        if not rule.signed:
            self.certain[self.exact - self.certain < 0] = np.inf
            self.radius[self.exact - self.certain < 0] = np.inf
        self.on_grid = True
        return self


def compensated(terms: Iterable[Sum], shape: tuple[int, ...], rule: Rule) -> Sum:
    """Kahan's sum: `total` is s - e, whose exact value is that of the sum, and `left` >= |e|."""
    total, left = Sum.zero(shape), np.zeros(shape)
    dekker = rule.nearest and rule.bits > 1 and not rule.flushed
    for x in terms:
        before, low = np.abs(total.exact) + total.certain + left, np.abs(total.exact) - total.certain - left
        total = total.joined(x)
        unit = np.maximum(total.unit, rule.least)  # of the sums of numbers of the format
        y = x.top() + left
        d0 = rule.worst(y, unit, left) if x.on_grid else rule.worst(y, total.unit)
        y = y + d0
        after = np.abs(total.exact) + total.certain + d0
        d1 = rule.worst(after, unit, np.minimum(y, before))
        inexact = ~((low >= y) & dekker)
        d2 = np.where(inexact, rule.worst(y + d1, unit), 0.0)
        d3 = np.where(inexact, rule.worst(d1 + d2, unit), 0.0)
        left = (d1 + d2 + d3) * UP
        total.certain = (total.certain + d0 + d2 + d3) * UP
        total.variance += d0**2 if rule.nearest else 0.0
        total.radius += d2 + d3 + (0.0 if rule.nearest else d0)
        beyond = np.maximum(y + d1, after) > rule.largest
        total.certain[beyond] = total.radius[beyond] = np.inf
    total.certain = total.certain + left
    total.radius = total.radius + left
    return total


def fused(c: Sum, a: Factor, b: Factor, fraction_bits: int, floor: int | None, rule: Rule) -> Sum:
    """The products of one group and c, cut and summed as `precision._fused` says, and brought to the result's bits."""
    assert fraction_bits >= rule.bits - 1  # so that c, of these bits, is never cut for its own exponent
    cut = 2.0**-fraction_bits
    terms, units = a.value * b.value, a.unit * b.unit
    sizes = np.abs(terms)
    own = (a.power * b.power).max(0) * cut  # 2^(E-F) of the products alone
    if floor is not None:
        own = np.maximum(own, 2.0**floor * cut)

    def step(c: Array) -> Array:
        """2^(E-F)"""
        return np.maximum(own, np.where(c == 0, 0.0, power(c, rule.emin) * cut))

    def lost(step: Array) -> Array:
        return np.minimum(sizes, np.maximum(step - units, 0.0))

    def expected(step: Array, lost: Array) -> Array:
        # `units` are lowest bits: of what is cut, these are 1 and those above them random, which is step/2 on average.
        return np.copysign(np.where(sizes < step, lost, np.where(lost > 0, step / 2, 0.0)), terms)

    def lost_of_c(least: Array, most: Array) -> Array:
        return np.minimum(most, np.maximum(own - np.maximum(c.unit, rule.spacing(least)), 0.0))

    least, most, sign = c.likely(rule.sigmas)
    low, high = step(least), step(most)
    likely, of_c = lost(high), lost_of_c(least, most)
    mean, radius = expected(high, likely), 0.0
    if not np.array_equal(low, high):
        other = expected(low, lost(low))
        mean, radius = (mean + other) / 2, np.abs(mean - other).sum(0) / 2
    size, top, bottom = sizes.sum(0), c.top(), c.bottom()
    total = Sum(
        on_grid=False,
        unit=np.minimum(c.unit, units.min(0)),
        exact=c.exact + terms.sum(0),
        size=(c.size + size) * UP,
        certain=(c.certain + lost(step(top)).sum(0) + lost_of_c(bottom, top)) * UP,
        mean=c.mean - mean.sum(0) - sign * of_c / 2,
        radius=c.radius + radius + np.where(sign == 0, of_c / 2, 0.0),
        variance=c.variance + (likely**2).sum(0) / 4 + of_c**2 / 4,
    )
    total.pay(2.0**53 * total.unit, np.abs(c.exact) + size, len(terms) + 2)
    return total.rounded(rule, np.maximum(total.unit, step(bottom)))
