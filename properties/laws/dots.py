"""Laws of products of matrices: what a sum of products must be, whatever adds it, and in the order that is declared.

Each law is called as `law(subject, product, x)` with a `properties.operators.Dot`, one of its `Product`s and a pair of
matrices (`matrices` has those that matter). Answers are compared by bits; NaN by class.

What is exact is computed in Python's integers; a declared order is recomputed step by step (`properties.laws._sums`).
How far a result may be off is what `precision.bounds` proves for its accumulator; where only the format of the sums is
claimed, the bound of any order. What tells accumulators apart is in `properties.laws.accumulators`.

Sources: IEEE 754-2019 5.4.1, 6.2, 6.3 and 9.4 (sums leave the order open); Higham, Accuracy and Stability of Numerical
Algorithms, 3.1 and 4.2; `precision._fused` for tensor cores.

>>> from properties.laws import laws
>>> from properties.operators import OurDot
>>> ours = OurDot()
>>> product = next(p for p in ours.products if p.name == "bfloat16.pairwise")
>>> ours.matmul = lambda a, b, product: P.matmul(a, b, accumulator="bfloat16")  # another order than is declared
>>> x = Matrices(np.array([[256.0, 0.0, 1.0, 1.0]]), np.ones((4, 1)), "")
>>> laws("dots")["halves_are_added"](ours, product, x)
Traceback (most recent call last):
properties.laws.Broken: dots.halves_are_added[bfloat16.pairwise]: A pairwise sum is that of its first 2^n terms, half \
of them or more, plus that of the others, rounded once.
  at        256.0 * 1.0 + 1.0 * 1.0 + 1.0 * 1.0 (columns 0, 2, 3)
  got       256.0
  expected  258.0
  the sums of 2 and of 2 terms, added
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws import law
from properties.laws._grid import on_grid, same
from properties.laws._matrices import FAMILIES, Matrices, exact_product, fraction, judge, matrices, multiply, require
from properties.laws._operations import measurable
from properties.laws._sums import (
    Steps,
    grid,
    instruction,
    is_declared,
    is_float,
    is_fused,
    is_symmetric,
    is_visible,
    recomputed,
    rounding,
    saturates,
    taken,
    wrapped,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from properties.operators import Dot, Product

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

__all__ = ["FAMILIES", "Matrices", "matrices"]

_IEEE = "IEEE 754-2019"


# --- Order ------------------------------------------------------------------------------------------------------------


@law(
    "dots",
    source="x + 0 is x; precision._fused: zero terms take no part",
    applies=lambda product: is_declared(product) and product.order != "kahan",  # which adds what it lost before
)
def zeros_may_be_appended(subject: Dot, product: Product, x: Matrices) -> None:
    """Zeros after the last column of a change nothing, whatever numbers stand in b's rows; nor do zeros in b."""
    a, b = (np.where(np.isinf(y), 1.0, y) for y in x[:2])  # which zeros would make NaN of
    got = multiply(subject, product, a, b)
    for more, left, right in ((1, 0.0, float(product.b.max)), (39, float(product.a.max), 0.0)):
        longer = Matrices(
            np.pad(a, ((0, 0), (0, more)), constant_values=left),
            np.pad(b, ((0, more), (0, 0)), constant_values=right),
            x.family,
        )
        again = multiply(subject, product, longer.a, longer.b)
        unchanged = same(again, got) | ((again == 0) & (got == 0))  # the sign of a sum that underflows
        require(unchanged, product, longer, again, got, f"with {more} terms of {left} * {right} appended")


@law("dots", source="every element is a sum of its own", applies=is_declared)
def rows_and_columns_are_independent(subject: Dot, product: Product, x: Matrices) -> None:
    """Rows and columns in another order, or alone, give the same elements."""
    got = multiply(subject, product, x.a, x.b)
    turned = Matrices(x.a[::-1], x.b[:, ::-1], x.family)
    judge(subject, product, turned, got[::-1, ::-1].copy(), "rows and columns reversed")
    alone = Matrices(x.a[-1:], x.b[:, :1], x.family)
    judge(subject, product, alone, got[-1:, :1].copy(), "a row and a column alone")


@law(
    "dots",
    source=f"{_IEEE} 5.4.1: multiplication commutes",
    applies=lambda product: is_declared(product) and product.a == product.b,
)
def operands_may_be_exchanged(subject: Dot, product: Product, x: Matrices) -> None:
    """b' times a', the transposed matrices, is the transposed product of a and b."""
    got = multiply(subject, product, x.a, x.b)
    judge(subject, product, Matrices(x.b.T, x.a.T, x.family), got.T.copy(), "exchanged and transposed")


@law("dots", source="precision._fused: a group is summed exactly, at once", applies=is_fused)
def order_within_a_group_does_not_matter(subject: Dot, product: Product, x: Matrices) -> None:
    """A tensor core gives the same for the columns of one group in any order."""
    row, k = instruction(product)[0], x.a.shape[1]
    columns = taken(row, -(-k // row.k) * row.k)
    groups = [
        [column for column in columns[s : s + row.group] if column < k] for s in range(0, len(columns), row.group)
    ]
    got = multiply(subject, product, x.a, x.b)
    for turn in (lambda group: group[::-1], lambda group: [*group[1:], *group[:1]]):
        order = np.arange(k)
        for group in groups:
            order[group] = turn(group)
        judge(subject, product, Matrices(x.a[:, order], x.b[order], x.family), got, f"in groups of {row.group}")


def _require_sum(
    product: Product, x: Matrices, got: Floats, step: Steps, note: str, operation: str, *operands: Floats
) -> None:
    """Require what one operation gives, where it is finite; the sign of a zero is another law's."""
    expected = step(operation, *operands)
    require(~step.told | (got == expected), product, x, got, expected, note)


def _steps(product: Product, got: Floats) -> Steps:
    return Steps(product.sums, rounding(product), np.ones(got.shape, bool))


@law(
    "dots",
    source="precision.accumulate: sequential, blocked",
    applies=lambda product: product.order in ("sequential", "blocked") and is_visible(product),
)
def a_longer_sum_continues_the_shorter_one(subject: Dot, product: Product, x: Matrices) -> None:
    """A sequential sum of k + 1 terms, or one within a block, is that of k terms plus the last, rounded once."""
    accumulator: Any = product.accumulator
    k = min(x.a.shape[1], accumulator.block or x.a.shape[1])
    for n in sorted({1, 2, 3, k // 2, k - 1} & set(range(1, k))):
        shorter = multiply(subject, product, x.a[:, :n], x.b[:n])
        longer = Matrices(x.a[:, : n + 1], x.b[: n + 1], x.family)
        got = multiply(subject, product, longer.a, longer.b)
        step, pair, note = _steps(product, got), (x.a[:, n, None], x.b[None, n]), f"the sum of {n} terms, and one more"
        if accumulator.products == "exact":
            _require_sum(product, longer, got, step, note, "fma", *pair, shorter)
        else:
            _require_sum(product, longer, got, step, note, "add", shorter, step("mul", *pair))


@law(
    "dots",
    source="precision.accumulate: pairwise",
    applies=lambda product: product.order == "pairwise" and is_visible(product),
)
def halves_are_added(subject: Dot, product: Product, x: Matrices) -> None:
    """A pairwise sum is that of its first 2^n terms, half of them or more, plus that of the others, rounded once."""
    k = x.a.shape[1]
    for n in sorted({k, k - 1, 1 << (k.bit_length() - 1), 5, 3, 2} & set(range(2, k + 1))):
        half = 1 << ((n - 1).bit_length() - 1)
        whole = Matrices(x.a[:, :n], x.b[:n], x.family)
        parts = [multiply(subject, product, x.a[:, s], x.b[s]) for s in (slice(half), slice(half, n))]
        got = multiply(subject, product, whole.a, whole.b)
        note = f"the sums of {half} and of {n - half} terms, added"
        _require_sum(product, whole, got, _steps(product, got), note, "add", *parts)


@law(
    "dots",
    source="precision.accumulate: blocked",
    applies=lambda product: product.order == "blocked" and is_visible(product),
)
def blocks_are_added(subject: Dot, product: Product, x: Matrices) -> None:
    """A blocked sum is that of the blocks before plus that of the last block, full or not, rounded once."""
    block: int = product.accumulator.block  # type: ignore[union-attr,assignment]
    for n in range(block, x.a.shape[1], block):
        some = Matrices(x.a[:, : n + block], x.b[: n + block], x.family)
        parts = [multiply(subject, product, some.a[:, s], some.b[s]) for s in (slice(n), slice(n, None))]
        got = multiply(subject, product, some.a, some.b)
        note = f"{n} terms before, and a block of {some.a.shape[1] - n}"
        _require_sum(product, some, got, _steps(product, got), note, "add", *parts)


@law(
    "dots",
    source="precision.accumulate; precision._fused, steps 1 to 5",
    applies=lambda product: is_float(product) and product.order != "any" and measurable(product.sums),
)
def results_are_those_of_the_declared_steps(subject: Dot, product: Product, x: Matrices) -> None:
    """Whatever is declared, products, order, groups, intervals, roundings: taken step by step, that is the result."""
    got = multiply(subject, product, x.a, x.b)
    expected, told = recomputed(product, x.a, x.b)
    require(~told | (got == expected), product, x, got, expected)


# --- Accuracy ---------------------------------------------------------------------------------------------------------


@law("dots", source="precision.bounds; Higham, 3.1: any order")
def error_is_within_the_certain_bound(subject: Dot, product: Product, x: Matrices) -> None:
    """The result differs from the exact product by no more than its accumulator can make of it.

    Integers that wrap do not: they are the exact product, modulo 2^bits.
    """
    finite = np.outer(np.isfinite(x.a).all(1), np.isfinite(x.b).all(0))
    a, b = np.where(np.isfinite(x.a), x.a, 0.0), np.where(np.isfinite(x.b), x.b, 0.0)
    got, wraps = multiply(subject, product, x.a, x.b), not is_float(product) and not saturates(product)
    limit = np.zeros(got.shape) if wraps else _limits(product, a, b)
    right, truth = np.ones(got.shape, bool), np.zeros(got.shape, object)
    sums, _, e = exact_product(a, b)
    for i, j in np.ndindex(got.shape):
        value = fraction(int(sums[i, j]), e)
        if wraps:
            value = Fraction(wrapped(int(value), product.sums))
        truth[i, j] = repr(_float_of(value)) + ("" if limit[i, j] == 0 else f" \u00b1 {limit[i, j]:.3g}")
        if finite[i, j] and limit[i, j] < math.inf:
            error = abs(Fraction(float(got[i, j])) - value) if np.isfinite(got[i, j]) else math.inf
            right[i, j] = error <= Fraction(float(limit[i, j]))
    notes = (f"the exact product modulo 2^{product.sums.bits}",) if wraps else ()
    require(right, product, x, got, truth, *notes)


def _float_of(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf


def _limits(product: Product, a: Floats, b: Floats) -> Floats:
    """How far each element may be off: inf where it may overflow."""
    from precision import bounds

    fmt, k = product.sums, a.shape[1]
    with np.errstate(over="ignore"):
        size = np.abs(a) @ np.abs(b) * (1 + 2.0**-40)
    if product.order == "any":
        limit = bounds.gamma(k, fmt.eps / 2) * size + k * fmt.smallest_subnormal
        limit = np.where(size + limit < fmt.max, limit, np.inf)
    else:
        limit = bounds.matmul_bound(a, b, product.accumulator).certain
    inner = product.core.output or fmt if product.core else fmt
    if product.result != inner:
        largest = size + limit
        finite = largest < product.result.max
        exponent = np.maximum(np.frexp(np.where(finite, largest, 1.0))[1] - 1, product.result.emin)
        limit = np.where(finite, limit + np.ldexp(0.5, exponent - product.result.mantissa_bits), np.inf)
    return np.asarray(limit)


@law(
    "dots",
    source="exponents do not change significands",
    applies=lambda product: is_float(product) and isinstance(product.a, P.Format),
)
def powers_of_two_scale(subject: Dot, product: Product, x: Matrices) -> None:
    """Doubling or halving a doubles or halves the result, where nothing is subnormal or overflows.

    An accumulator may have subnormal operands as long as it does not round; a tensor core aligns terms by them.
    """
    if not (np.isfinite(x.a).all() and np.isfinite(x.b).all()):
        return
    _, sizes, e = exact_product(x.a, x.b)
    floor = product.core.instruction.floor if product.core else None
    least = max(product.sums.emin, product.result.emin, floor or -(1 << 12))
    grown = math.frexp((1 + product.sums.eps) ** x.a.shape[1])[1]  # by roundings, each away from zero
    largest = max((int(size).bit_length() for size in sizes.flat), default=0) + e + grown
    got = multiply(subject, product, x.a, x.b)
    for s in (1, -1):
        with np.errstate(over="ignore"):
            scaled, expected = np.ldexp(x.a, s), np.ldexp(got, s)
        fits = on_grid(scaled, product.a).all() and (np.abs(scaled) <= product.a.max).all()
        if is_fused(product):
            fits &= (np.minimum(np.abs(x.a), np.abs(scaled))[x.a != 0] >= product.a.smallest_normal).all()
        if fits and e + min(s, 0) >= least and largest + s < min(product.sums.emax, product.result.emax):
            judge(subject, product, Matrices(scaled, x.b, x.family), expected, "a scaled by a power of two")


@law(
    "dots",
    source=f"{_IEEE} 6.3; cutting and rounding to nearest do not look at the sign",
    applies=lambda product: is_symmetric(product) and isinstance(product.a, P.Format) and product.a.signed,
)
def opposite_operands_give_opposite_results(subject: Dot, product: Product, x: Matrices) -> None:
    """-a times b is -(a times b), but for the sign of a zero."""
    got = multiply(subject, product, x.a, x.b)
    turned = Matrices(-x.a if product.a.has_negative_zero else 0.0 - x.a, x.b, x.family)
    again = multiply(subject, product, turned.a, turned.b)
    require(same(again, -got) | ((again == 0) & (got == 0)), product, turned, again, -got, "a with its sign changed")


@law("dots", source="the format's row in precision.formats; precision._instructions: bits of the result")
def results_have_the_declared_digits(subject: Dot, product: Product, x: Matrices) -> None:
    """Every result is a value of the result's format, with no more significant bits than the sums have."""
    got = multiply(subject, product, x.a, x.b)
    fmt = product.result
    right = on_grid(got, fmt) & (got >= fmt.min) & (got <= fmt.max)
    if product.result == product.sums:
        right &= on_grid(got, grid(fmt, product.digits))
    right |= (np.isinf(got) & fmt.infinities) | (np.isnan(got) & fmt.has_nan)
    require(right, product, x, got, f"a value of {fmt.name}, of {min(product.digits, fmt.mantissa_bits + 1)} digits")


# --- Specials ---------------------------------------------------------------------------------------------------------


def _nan_to_nan(product: Product, *_: Any) -> bool:
    return product.a.has_nan and product.result.has_nan


@law(
    "dots",
    source=f"{_IEEE} 6.2",
    applies=lambda product: (product.a.has_nan or product.b.has_nan) and product.result.has_nan,
)
def a_nan_reaches_its_row_and_no_other(subject: Dot, product: Product, x: Matrices) -> None:
    """A NaN in a makes NaN of its row of the result, one in b of its column, though zeros face it, and of no other."""
    k = x.a.shape[1] // 3
    for left, fmt in ((True, product.a), (False, product.b)):
        if not fmt.has_nan:
            continue
        with_nan, without = (Matrices(x.a.copy(), x.b.copy(), x.family) for _ in range(2))
        row = (x.a.shape[0] if left else x.b.shape[1]) // 2
        for y, value in ((with_nan, np.nan), (without, 0.0)):
            mine, other = (y.a, y.b.T) if left else (y.b.T, y.a)
            mine[row, k] = value
            other[::2, k] = 0.0
        got, before = (multiply(subject, product, y.a, y.b) for y in (with_nan, without))
        hit = np.zeros(got.shape, bool)
        (hit if left else hit.T)[row] = True
        expected = np.where(hit, np.nan, before)
        right = same(got, expected)
        if not is_declared(product):  # which may add in another order, but makes NaN of nothing that is far from Inf
            with np.errstate(invalid="ignore", over="ignore"):
                calm = np.abs(without.a) @ np.abs(without.b) < min(product.sums.max, product.result.max) / 2
            right = np.where(hit, right, ~(calm & np.isnan(got)))
        require(right, product, with_nan, got, expected, f"{f'a[{row}, {k}]' if left else f'b[{k}, {row}]'} is NaN")
