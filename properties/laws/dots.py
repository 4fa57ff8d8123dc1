"""Laws of products of matrices: what a sum of products must be, whatever adds it, and what a declared accumulator does.

Each law is called as `law(subject, product, x)` with a `properties.operators.Dot`, one of its `Product`s and a pair of
matrices (`matrices` has those that matter). The laws of the family "accumulators" bring the few numbers that tell
accumulators apart, and are called with None. Answers are compared by bits; NaN by class.

What is exact is computed in Python's integers; a rounding is judged by float64 on the format's grid
(`properties.laws._grid`, `properties.laws._operations`), which shares nothing with `precision.accumulate` or
`precision.tensor_cores`. How far a result may be off is what `precision.bounds` proves for its accumulator; where only
the format of the sums is claimed, the bound of any order.

Sources: IEEE 754-2019 5.4.1, 6.1-6.3 and 9.4 (sums leave the order open); Higham, Accuracy and Stability of Numerical
Algorithms, 3.1 and 4.2; `precision._fused` for tensor cores.

>>> from properties.laws import laws
>>> from properties.operators import OurDot
>>> ours = OurDot()
>>> product = next(p for p in ours.products if p.name == "bfloat16.bfloat16")
>>> law = laws("accumulators")["the_accumulator_has_the_declared_digits"]
>>> law(ours, product, None)
>>> ours.matmul = lambda a, b, product: P.matmul(a, b, accumulator="float16")  # more digits than were declared
>>> law(ours, product, None)
Traceback (most recent call last):
properties.laws.Broken: accumulators.the_accumulator_has_the_declared_digits[bfloat16.bfloat16]: A term of half a unit \
of the last digit of a power of two is lost beside it, one of a whole unit is not.
  at        1.0 * 1.0 + 0.0625 * 0.0625
  got       1.00390625
  expected  1.0
  wrong     1 of 4
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws import Unsupported, law
from properties.laws._grid import on_grid, rounded_size, same, values_of
from properties.laws._matrices import (
    FAMILIES,
    Matrices,
    exact_product,
    fit,
    fraction,
    judge,
    judge_rows,
    matrices,
    multiply,
    require,
)
from properties.laws._operations import Exact, is_finite, measurable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from properties.operators import Dot, Product

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

__all__ = ["FAMILIES", "Matrices", "matrices"]

_IEEE = "IEEE 754-2019"


# --- What a product claims --------------------------------------------------------------------------------------------


def _float(product: Product, *_: Any) -> bool:
    return isinstance(product.sums, P.Format)


def _declared(product: Product, *_: Any) -> bool:
    """Whether it says in which order it adds."""
    return product.order != "any" or not _float(product)


def _symmetric(product: Product, *_: Any) -> bool:
    return _float(product) and _rounding(product) not in ("toward_positive", "toward_negative")


def _visible(product: Product, *_: Any) -> bool:
    """Whether the result is the sum itself, in a format that the yardstick measures."""
    return _float(product) and product.result == product.sums and measurable(product.sums)


def _rounding(product: Product) -> str:
    """How a sum is rounded: of tensor cores the instruction's result."""
    if product.core is not None:
        return "nearest_even" if product.core.instruction.result_bits == 11 else "toward_zero"
    return getattr(product.accumulator, "rounding", "nearest_even")


def _digits(product: Product) -> int:
    """Significant bits of one sum: of a tensor core, of one instruction's result."""
    return product.digits if product.core is None else product.core.instruction.result_bits


def _grid(fmt: AnyFormat, digits: int) -> AnyFormat:
    """The format with so many digits."""
    if isinstance(fmt, P.IntFormat) or fmt.mantissa_bits + 1 == digits:
        return fmt
    return P.Format("cut", fmt.exponent_bits, digits - 1)


def _settled(x: Floats, product: Product) -> Floats:
    """Exact numbers, in range, as sums of one term: rounded to the format of the sums, then to that of the result."""
    size = rounded_size(x, _grid(product.sums, _digits(product)), _rounding(product))
    y = np.where(np.signbit(x), -size, size)
    if product.result != product.sums:
        y = np.copysign(rounded_size(y, product.result, "nearest_even"), y)
    return y + 0.0 if product.core or _float(product) else y


def _exponents(fmt: AnyFormat) -> tuple[int, int]:
    """The least and largest powers of two in a floating-point format."""
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def _power(product: Product, exponent: int, share: float = 1.0) -> tuple[float, float]:
    """A left and a right factor whose product is `share` * 2^exponent, the larger part in the left one."""
    low, high = _exponents(product.b)
    right = min(max(exponent - exponent // 2, low), high)
    left_low, left_high = _exponents(product.a)
    left_low += share != 1
    left = exponent - right
    if not left_low <= left <= left_high:
        left = min(max(left, left_low), left_high)
        right = exponent - left
    return share * 2.0**left, 2.0**right


def _top(product: Product, span: int, least: int | None = None) -> int:
    """An exponent t such that the operands make 2^t and 2^(t - span), and the sums hold them; near 0.

    Raises Unsupported where there is none.
    """
    low = _exponents(product.a)[0] + _exponents(product.b)[0] + 1  # one digit to spare, for 1.5 * 2^n
    high = _exponents(product.a)[1] + _exponents(product.b)[1]
    floors = [low, *(_exponents(fmt)[0] for fmt in (product.sums, product.result))]
    bottom = max([*floors, *([] if least is None else [least])]) + span
    top = min(high, product.sums.emax - 2, product.result.emax - 2)
    if bottom > top:
        raise Unsupported(f"{product.name}: its operands make no products {span} binades apart")
    return min(max(0, bottom), top)


# --- Order ------------------------------------------------------------------------------------------------------------


@law("dots", source="x + 0 is x; precision._fused: zero terms take no part", applies=_declared)
def zeros_may_be_appended(subject: Dot, product: Product, x: Matrices) -> None:
    """Zeros after the last column of a and row of b change nothing."""
    a, b = (np.where(np.isinf(y), 1.0, y) for y in x[:2])  # which zeros would make NaN of
    got = multiply(subject, product, a, b)
    for more in (1, 39):
        longer = Matrices(np.pad(a, ((0, 0), (0, more))), np.pad(b, ((0, more), (0, 0))), x.family)
        again = multiply(subject, product, longer.a, longer.b)
        right = same(again, got) | ((again == 0) & (got == 0))  # the sign of a sum that underflows
        if product.order == "kahan":
            right |= ~np.isfinite(got)  # a compensation of Inf is NaN
        require(right, product, longer, again, got, f"with {more} zeros appended")


@law("dots", source="every element is a sum of its own", applies=_declared)
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
    applies=lambda product: _declared(product) and product.a == product.b,
)
def operands_may_be_exchanged(subject: Dot, product: Product, x: Matrices) -> None:
    """b' times a', the transposed matrices, is the transposed product of a and b."""
    got = multiply(subject, product, x.a, x.b)
    judge(subject, product, Matrices(x.b.T, x.a.T, x.family), got.T.copy(), "exchanged and transposed")


@law(
    "dots",
    source="precision._fused: a group is summed exactly, at once",
    applies=lambda product: product.core is not None and _float(product) and not product.core.instruction.emulated,
)
def order_within_a_group_does_not_matter(subject: Dot, product: Product, x: Matrices) -> None:
    """A tensor core gives the same for the columns of one group in any order."""
    assert product.core is not None
    group, k = product.core.instruction.group, x.a.shape[1]
    got = multiply(subject, product, x.a, x.b)
    starts = range(0, k, group)
    orders = (
        [i for s in starts for i in reversed(range(s, min(s + group, k)))],
        [i for s in starts for i in (*range(s + 1, min(s + group, k)), s)],
    )
    for order in orders:
        if len(order) == k:
            judge(subject, product, Matrices(x.a[:, order], x.b[order], x.family), got, f"in groups of {group}")


def _added(
    product: Product, total: Floats, a: Floats | None, b: Floats | None, term: Floats | None = None
) -> tuple[Floats, Bools]:
    """total + a * b as the accumulator adds it, or total + term; and where that is told: in range and finite."""
    fmt, mode = product.sums, _rounding(product)
    told = np.ones(total.shape, bool)

    def step(operation: str, *x: Floats) -> Floats:
        x = tuple(np.broadcast_to(part, total.shape) for part in x)
        finite = is_finite(operation, x) & told
        told[...] &= finite
        e = Exact.of(operation, [np.where(finite, part, 1.0) for part in x], fmt)
        size = e.rounded(mode)
        told[...] &= size <= fmt.max
        return np.where(e.negative, -size, size)

    if a is not None and b is not None:
        if product.accumulator.products == "exact":  # type: ignore[union-attr]
            return step("fma", a, b, total), told
        term = step("mul", a, b)
    assert term is not None
    result = step("add", total, term)
    return result, told


def _require_sum(
    product: Product, x: Matrices, got: Floats, expected: Floats, told: Bools, note: str, *parts: Floats
) -> None:
    """Require it where the parts are finite; the sign of a zero is another law's."""
    known = told & np.logical_and.reduce([np.isfinite(part) for part in parts])
    right = ~known | (got == expected)
    require(right, product, x, got, expected, note)


@law(
    "dots",
    source="precision.accumulate: sequential",
    applies=lambda product: product.order == "sequential" and _visible(product),
)
def a_longer_sum_continues_the_shorter_one(subject: Dot, product: Product, x: Matrices) -> None:
    """A sequential sum of k + 1 terms is that of k terms plus the last, rounded once."""
    k = x.a.shape[1]
    for n in sorted({1, 2, 3, k // 2, k - 1}):
        shorter = multiply(subject, product, x.a[:, :n], x.b[:n])
        longer = Matrices(x.a[:, : n + 1], x.b[: n + 1], x.family)
        got = multiply(subject, product, longer.a, longer.b)
        expected, told = _added(product, shorter, x.a[:, n, None], x.b[None, n])
        _require_sum(product, longer, got, expected, told, f"the sum of {n} terms, and one more", shorter)


@law(
    "dots",
    source="precision.accumulate: pairwise",
    applies=lambda product: product.order == "pairwise" and _visible(product),
)
def halves_are_added(subject: Dot, product: Product, x: Matrices) -> None:
    """A pairwise sum of 2^n terms is the sum of its halves, rounded once."""
    n = 1 << (x.a.shape[1].bit_length() - 1)
    while n > 1:
        whole = Matrices(x.a[:, :n], x.b[:n], x.family)
        left, right = (multiply(subject, product, x.a[:, s], x.b[s]) for s in (slice(n // 2), slice(n // 2, n)))
        got = multiply(subject, product, whole.a, whole.b)
        expected, told = _added(product, left, None, None, right)
        _require_sum(product, whole, got, expected, told, f"the sums of {n // 2} terms each, added", left, right)
        n //= 4


@law(
    "dots",
    source="precision.accumulate: blocked",
    applies=lambda product: product.order == "blocked" and _visible(product),
)
def blocks_are_added(subject: Dot, product: Product, x: Matrices) -> None:
    """A blocked sum is that of the blocks before plus that of the last block, rounded once."""
    block: int = product.accumulator.block  # type: ignore[union-attr,assignment]
    for n in range(block, x.a.shape[1], block):
        some = Matrices(x.a[:, : n + block], x.b[: n + block], x.family)
        before = multiply(subject, product, x.a[:, :n], x.b[:n])
        last = multiply(subject, product, some.a[:, n:], some.b[n:])
        got = multiply(subject, product, some.a, some.b)
        expected, told = _added(product, before, None, None, last)
        _require_sum(product, some, got, expected, told, f"{n} terms before, and a block of {block}", before, last)


# --- Accuracy ---------------------------------------------------------------------------------------------------------


@law("dots", source="precision.bounds; Higham, 3.1: any order")
def error_is_within_the_certain_bound(subject: Dot, product: Product, x: Matrices) -> None:
    """The result differs from the exact product by no more than its accumulator can make of it."""
    finite = np.outer(np.isfinite(x.a).all(1), np.isfinite(x.b).all(0))
    a, b = np.where(np.isfinite(x.a), x.a, 0.0), np.where(np.isfinite(x.b), x.b, 0.0)
    got, limit = multiply(subject, product, x.a, x.b), _limits(product, a, b)
    right, truth = np.ones(got.shape, bool), np.zeros(got.shape, object)
    sums, _, e = exact_product(a, b)
    for i, j in np.ndindex(got.shape):
        value = fraction(int(sums[i, j]), e)
        truth[i, j] = f"{_float_of(value)!r} \u00b1 {limit[i, j]:.3g}"
        if finite[i, j] and limit[i, j] < math.inf:
            error = abs(Fraction(float(got[i, j])) - value) if np.isfinite(got[i, j]) else math.inf
            right[i, j] = error <= Fraction(float(limit[i, j]))
    require(right, product, x, got, truth)


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
        if isinstance(fmt, P.IntFormat):
            return np.where(size < fmt.max, 0.0, np.inf)
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
    applies=lambda product: _float(product) and isinstance(product.a, P.Format),
)
def powers_of_two_scale(subject: Dot, product: Product, x: Matrices) -> None:
    """Doubling or halving a doubles or halves the result, where nothing is subnormal or overflows."""
    if not (np.isfinite(x.a).all() and np.isfinite(x.b).all()):
        return
    _, sizes, e = exact_product(x.a, x.b)
    floor = product.core.instruction.floor if product.core else None
    least = max(product.sums.emin, product.result.emin, floor or -(1 << 12))
    largest = max((int(size).bit_length() for size in sizes.flat), default=0) + e
    got = multiply(subject, product, x.a, x.b)
    for s in (1, -1):
        scaled = np.ldexp(x.a, s)
        fits = on_grid(scaled, product.a).all() and (np.abs(scaled) <= product.a.max).all()
        if fits and e + min(s, 0) >= least and largest + s < min(product.sums.emax, product.result.emax):
            judge(subject, product, Matrices(scaled, x.b, x.family), np.ldexp(got, s), "a scaled by a power of two")


@law(
    "dots",
    source=f"{_IEEE} 6.3; cutting and rounding to nearest do not look at the sign",
    applies=lambda product: _symmetric(product) and isinstance(product.a, P.Format) and product.a.signed,
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
        right &= on_grid(got, _grid(fmt, product.digits))
    right |= (np.isinf(got) & fmt.infinities) | (np.isnan(got) & fmt.has_nan)
    require(right, product, x, got, f"a value of {fmt.name}, of {min(product.digits, fmt.mantissa_bits + 1)} digits")


# --- Specials ---------------------------------------------------------------------------------------------------------


def _nan_to_nan(product: Product, *_: Any) -> bool:
    return product.a.has_nan and product.result.has_nan


@law("dots", source=f"{_IEEE} 6.2", applies=_nan_to_nan)
def a_nan_reaches_its_row_and_no_other(subject: Dot, product: Product, x: Matrices) -> None:
    """A NaN in a makes NaN of its whole row of the result, zeros in b or not, and leaves the others alone."""
    a = x.a.copy()
    row, column = a.shape[0] // 2, a.shape[1] // 3
    a[row, column] = np.nan
    b = x.b.copy()
    b[column, ::2] = 0.0
    before = multiply(subject, product, np.delete(a, row, 0), b) if a.shape[0] > 1 else np.zeros((0, b.shape[1]))
    got = multiply(subject, product, a, b)
    expected = np.insert(before, row, np.nan, axis=0)
    right = same(got, expected) if _declared(product) else np.isnan(got[row]) | (np.arange(len(got)) != row)[:, None]
    require(right, product, Matrices(a, b, x.family), got, expected, f"a[{row}, {column}] is NaN")


@law(
    "accumulators",
    source=f"{_IEEE} 7.2",
    applies=lambda product: _nan_to_nan(product) and product.a.infinities and product.b.infinities,
)
def invalid_products_and_sums_give_nan(subject: Dot, product: Product, x: None) -> None:
    """Inf * 0 and Inf - Inf are NaN, wherever in the sum they stand."""
    inf = math.inf
    rows: list[tuple[list[float], list[float]]]
    rows = [([inf, 1], [0, 1]), ([1, -0.0], [1, inf]), ([inf, 1, -inf], [1, 1, 1]), ([1, inf, inf], [1, 1, -inf])]
    rows.append(([inf, *[0.5] * 40, -1], [1, *[1.0] * 40, inf]))  # far apart
    judge_rows(subject, product, *((left, right, math.nan) for left, right in rows))


@law(
    "accumulators",
    source=f"{_IEEE} 6.1",
    applies=lambda product: (
        _float(product) and product.a.infinities and product.result.infinities and product.order != "kahan"
    ),
)
def an_infinity_stays_one(subject: Dot, product: Product, x: None) -> None:
    """Inf among numbers gives Inf with the sign of its product. (A compensated sum makes NaN of it: Inf - Inf.)"""
    inf = math.inf
    rows: list[tuple[list[float], list[float], float]]
    rows = [([1, inf, -2], [1, 1, 1], inf), ([-inf, 1], [2, 1], -inf), ([-inf, 1, -inf], [-1, 1, -1], inf)]
    judge_rows(subject, product, *rows, ([*[-1.0] * 40, inf], [1.0] * 41, inf))


@law("accumulators", source=f"{_IEEE} 6.3; precision._fused", applies=_symmetric)
def exact_zero_sums_are_plus_zero(subject: Dot, product: Product, x: None) -> None:
    """What cancels exactly is +0, and so is a sum of zeros of either sign."""
    rows: list[tuple[list[float], list[float], float]] = [([0.0, 0.0], [1, 1], 0.0)]
    if product.a.has_negative_zero:
        rows += [([-0.0, -0.0], [1, 1], 0.0), ([0.0, -0.0], [1, 1], 0.0), ([-0.0] * 3, [0.0] * 3, 0.0)]
    if product.a.signed:
        rows += [([1.5, -1.5], [1, 1], 0.0), ([-1, 2, -1], [1, 1, 1], 0.0)]
    if isinstance(product.a, P.IntFormat):
        rows = [([-1, 1] if product.a.signed else [0, 0], [1, 1], 0.0)]
    judge_rows(subject, product, *rows)


@law("accumulators", source=f"{_IEEE} 9.4: an empty sum is +0")
def an_empty_sum_is_zero(subject: Dot, product: Product, x: None) -> None:
    """With K = 0 every element is +0."""
    judge(subject, product, Matrices(np.zeros((3, 0)), np.zeros((0, 2)), "empty"), np.zeros((3, 2)))


# --- What an accumulator is -------------------------------------------------------------------------------------------


@law("accumulators", source=f"{_IEEE} 5.4.1", applies=lambda product: measurable(product.a) and _measured(product))
def a_single_product_is_rounded_once(subject: Dot, product: Product, x: None) -> None:
    """With K = 1 the result is the product, rounded to the format of the sums and then to that of the result."""
    random = np.random.default_rng(1)
    a, b = (_single(fmt, random) for fmt in (product.a, product.b))
    exact = a[:, None] * b[None, :]
    if _float(product):
        exact = _cut(a[:, None], b[None, :], exact, product)
        expected = _settled(exact, product)
        fits = (np.abs(expected) <= product.result.max) & (np.abs(exact) < product.sums.max)
    else:
        expected, fits = exact, (exact <= product.sums.max) & (exact >= product.sums.min)
    got = multiply(subject, product, a[:, None], b[None, :])
    right = ~fits | (got == expected)
    require(right, product, Matrices(a[:, None], b[None, :], "of one column"), got, expected)


def _measured(product: Product) -> bool:
    return measurable(product.sums) and measurable(product.result)


def _single(fmt: AnyFormat, random: np.random.Generator) -> Floats:
    """Two dozen finite values: drawn over all codes, and around 1."""
    x = values_of(random.integers(0, 1 << fmt.bits, 18, np.uint64), fmt)
    near = fit(np.array([1.0, 1.25, -1.75, 1 + fmt.eps, 2 - fmt.eps, fmt.smallest_subnormal]), fmt)
    x = np.concatenate([x, near])
    return x[np.isfinite(x)]


def _cut(a: Floats, b: Floats, exact: Floats, product: Product) -> Floats:
    """Products of a tensor core, as one instruction takes them into the sum: cut below F bits and its floor."""
    row = product.core.instruction if product.core else None
    if row is None or row.fraction_bits is None or row.floor is None:
        return exact
    exponents = [np.maximum(np.frexp(x)[1] - 1, fmt.emin) for x, fmt in ((a, row.a), (b, row.b))]
    step = np.ldexp(1.0, np.maximum(exponents[0] + exponents[1], row.floor) - row.fraction_bits)
    return np.asarray(np.trunc(exact / step) * step)


@law("accumulators", source="a sum of one term")
def every_position_counts_once(subject: Dot, product: Product, x: None) -> None:
    """Ones on the diagonal of a return the rows of b, whatever K is: no term is lost or counted twice."""
    for k in (1, 2, 3, 5, 8, 17, 33, 64, 131):
        b = fit(np.stack([np.arange(k) % 3 + 1.0, np.arange(k) % 2 + 1.0], axis=1), product.b)
        judge(subject, product, Matrices(np.eye(k), b, "unit vectors"), b)


@law("accumulators", source="integers of few digits")
def sums_that_fit_are_exact(subject: Dot, product: Product, x: None) -> None:
    """Small integers are added exactly, as long as every partial sum has no more digits than the sums."""
    digits = min(_digits(product), product.result.mantissa_bits + 1)
    if product.core is not None and product.core.instruction.fraction_bits is not None:
        digits = min(digits, product.core.instruction.fraction_bits)
    room = min(2.0**digits, float(product.result.max), float(product.sums.max))
    k = int(min(room // 4, 40))
    random = np.random.default_rng(2)
    a, b = random.integers(0, 3, (4, k)).astype(float), random.integers(0, 3, (k, 3)).astype(float)
    a[0], b[:, 0] = 2.0, 2.0
    a[1] = 1.0
    if product.a.signed:
        a[2] *= np.where(np.arange(k) % 2, -1.0, 1.0)
        a[3] *= -1
    judge(subject, product, Matrices(a, b, "small integers"), a @ b + 0.0)


@law(
    "accumulators",
    source="the format's row in precision.formats; precision._instructions: bits of the result",
    applies=lambda product: (
        _float(product)
        and _rounding(product) in ("nearest_even", "toward_zero", "toward_negative")
        and (product.result.mantissa_bits + 1 >= _digits(product) or product.order in ("sequential", "blocked"))
    ),
)
def the_accumulator_has_the_declared_digits(subject: Dot, product: Product, x: None) -> None:
    """A term of half a unit of the last digit of a power of two is lost beside it, one of a whole unit is not."""
    digits = _digits(product)
    hidden = product.result.mantissa_bits + 1 < digits  # by the rounding of the result: taken away again, it shows
    t = _top(product, digits)
    large, rows = _power(product, t), []
    for exponent, lost in ((t - digits, True), (t - digits + 1, False)):
        small = _power(product, exponent)
        left, right = [large[0], small[0]], [large[1], small[1]]
        if hidden:
            left, right = [*left, -large[0]], [*right, large[1]]
        rest = 0.0 if lost else 2.0**exponent
        rows.append((left, right, rest if hidden else 2.0**t + rest))
    judge_rows(subject, product, *rows)


@law(
    "accumulators",
    source="precision._fused, step 3: cut below F bits of the largest exponent",
    applies=lambda product: product.core is not None and product.core.instruction.fraction_bits is not None,
)
def terms_are_cut_at_the_declared_bit(subject: Dot, product: Product, x: None) -> None:
    """Beside 2^t, and with it taken away again, a group keeps 2^(t-F), and nothing of what is less."""
    assert product.core is not None
    row = product.core.instruction
    bits = row.fraction_bits
    assert bits is not None
    t = _top(product, bits + 1, _exponents(product.result)[0] - 1)
    large, kept, lost = _power(product, t), _power(product, t - bits), _power(product, t - bits - 1, 1.5)
    places = (0, 1, 4) if row.emulated else (0, 1, 2)
    rows = []
    for small, rest in ((kept, 2.0 ** (t - bits)), (lost, 0.0)):
        left, right = np.zeros(places[-1] + 1), np.zeros(places[-1] + 1)
        left[list(places)] = large[0], small[0], -large[0]
        right[list(places)] = large[1], small[1], large[1]
        rows.append((left.tolist(), right.tolist(), rest))
    judge_rows(subject, product, *rows)


@law(
    "accumulators",
    source=f"{_IEEE} 5.4.1: fusedMultiplyAdd rounds once",
    applies=lambda product: (
        product.order in ("sequential", "pairwise")
        and product.a == product.b == product.sums == product.result
        and _symmetric(product)
    ),
)
def products_are_rounded_or_exact_as_declared(subject: Dot, product: Product, x: None) -> None:
    """(1 + 2e) - (1 + e)(1 + e) is -e^2 with exact products, and 0 with rounded ones."""
    eps = product.a.eps
    exact = getattr(product.accumulator, "products", "rounded") == "exact"
    judge_rows(subject, product, ([1 + 2 * eps, -1 - eps], [1, 1 + eps], -eps * eps if exact else 0.0))


@law(
    "accumulators",
    source="PTX ISA mma: .satfinite; two's complement otherwise",
    applies=lambda product: isinstance(product.sums, P.IntFormat),
)
def integers_wrap_or_saturate_as_declared(subject: Dot, product: Product, x: None) -> None:
    """A sum beyond the integers of its format is taken modulo 2^bits, or clamped where that is claimed."""
    fmt = product.sums
    a = np.array([product.a.max, product.a.min if product.a.signed else product.a.max], np.float64)
    largest = int(product.b.max)
    k = int(fmt.max // (largest * int(product.a.max))) + 2
    if k > 1 << 18:
        raise Unsupported(f"{product.name}: its sums overflow only beyond {k} terms")
    left, right = np.repeat(a[:, None], k, axis=1), np.full((k, 1), float(largest))
    saturates = product.core is not None and product.core.instruction.saturates
    expected = []
    for value in a:
        total = int(value) * largest * k
        wrapped = (total - int(fmt.min)) % (1 << fmt.bits) + int(fmt.min)
        expected.append([float(min(max(total, int(fmt.min)), int(fmt.max)) if saturates else wrapped)])
    judge(subject, product, Matrices(left, right, "the largest integers"), np.array(expected))
