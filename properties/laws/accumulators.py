"""Laws of accumulators: the few numbers that tell what adds a product of matrices, and how.

Each law is called as `law(subject, product, None)` with a `properties.operators.Dot` and one of its `Product`s, and
brings its own matrices; what must hold of any is in `properties.laws.dots`. Answers are compared by bits; NaN by class.

Most laws have powers of two for terms: which of them is lost beside which says how many digits a sum keeps, where a
tensor core cuts, how many terms it takes at once, and after how many the sums start anew.

Sources: IEEE 754-2019 5.4.1, 6.1, 6.3, 7.2, 7.4 and 9.4; `precision._fused` and `precision._instructions` for tensor
cores; PTX ISA `mma` for integers.

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
from typing import TYPE_CHECKING

import numpy as np

import precision as P
from properties.laws import Unsupported, law
from properties.laws._grid import overflowed, rounded_size, values_of
from properties.laws._matrices import Matrices, fit, judge, judge_rows, multiply, require
from properties.laws._operations import measurable
from properties.laws._sums import (
    delivered,
    digits,
    exponents,
    groups,
    instruction,
    is_declared,
    is_float,
    is_fused,
    is_symmetric,
    power,
    recomputed,
    rounding,
    saturates,
    sum_of,
    taken,
    term_exponents,
    top,
    wrapped,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from properties.operators import Dot, Product

    Floats = NDArray[np.float64]
    Term = tuple[float, float]  # its factors
    Row = tuple[list[float], list[float], float]  # those of many, and their sum

_IEEE = "IEEE 754-2019"


# --- Specials ---------------------------------------------------------------------------------------------------------


def _has_infinities(product: Product) -> bool:
    return product.a.infinities or product.b.infinities


def _from_either_side(product: Product, *rows: Row) -> list[Row]:
    """Rows with infinities on the left, where a has them, and the same with the sides changed, where b has them."""
    found = list(rows) if product.a.infinities else []
    return found + [(right, left, expected) for left, right, expected in rows if product.b.infinities]


@law(
    "accumulators",
    source=f"{_IEEE} 7.2",
    applies=lambda product: _has_infinities(product) and product.result.has_nan,
)
def invalid_products_and_sums_give_nan(subject: Dot, product: Product, x: None) -> None:
    """Inf * 0 and Inf - Inf are NaN, wherever in the sum they stand."""
    inf, nan = math.inf, math.nan
    rows = _from_either_side(
        product,
        ([inf, 1], [0, 1], nan),
        ([1, -inf], [1, -0.0], nan),
        ([inf, 1, -inf], [1, 1, 1], nan),
        ([-inf, *[0.5] * 40, inf], [1, *[1] * 40, 1], nan),  # far apart
    )
    if product.a.infinities and product.b.infinities:
        rows += [([1, inf, inf], [1, 1, -inf], nan), ([inf, *[0.5] * 40, -1], [1, *[1] * 40, inf], nan)]
    judge_rows(subject, product, *rows)


@law(
    "accumulators",
    source=f"{_IEEE} 6.1",
    applies=lambda product: (
        is_float(product) and _has_infinities(product) and product.result.infinities and product.order != "kahan"
    ),
)
def an_infinity_stays_one(subject: Dot, product: Product, x: None) -> None:
    """Inf among numbers gives Inf with the sign of its product. (A compensated sum makes NaN of it: Inf - Inf.)"""
    inf = math.inf
    rows = _from_either_side(
        product,
        ([1, inf, -2], [1, 1, 1], inf),
        ([-inf, 1], [2, 1], -inf),
        ([-inf, 1, -inf], [-1, 1, -1], inf),
        ([*[-1] * 40, inf], [1] * 41, inf),
    )
    judge_rows(subject, product, *rows)


def _overflows(product: Product) -> bool:
    return (
        is_float(product)
        and product.result.infinities
        and product.sums.infinities
        and product.order != "kahan"
        and term_exponents(product)[1] >= product.result.emax
    )


@law("accumulators", source=f"{_IEEE} 7.4; precision._fused, step 5", applies=_overflows)
def what_overflows_becomes_infinity(subject: Dot, product: Product, x: None) -> None:
    """Twice the largest power of two is Inf as a sum, or the largest number if rounded that way; 1.5 times is not.

    A tensor core makes Inf of it, although it truncates. (A compensated sum makes NaN of Inf.)
    """
    e = product.result.emax
    large, half = power(product, e), power(product, e - 1)
    rows: list[Row] = [([large[0], half[0]], [large[1], half[1]], 1.5 * 2.0**e)]
    for sign in (1, -1) if product.a.signed else (1,):
        size, mode = np.array([sign * 2.0**e]), "nearest_even" if product.core else rounding(product)
        if product.sums.emax == e:
            size = overflowed(size, product.sums, "infinity", mode)
        if product.result != product.sums:  # which holds twice that, or has become Inf, or its own largest number
            size = overflowed(size, product.result, "infinity")
        rows.append(([sign * large[0]] * 2, [large[1]] * 2, float(size[0])))
    judge_rows(subject, product, *rows)


@law("accumulators", source=f"{_IEEE} 6.3; precision._fused", applies=is_symmetric)
def exact_zero_sums_are_plus_zero(subject: Dot, product: Product, x: None) -> None:
    """What cancels exactly is +0, and so is a sum of zeros of either sign."""
    rows: list[Row] = [([0.0, 0.0], [1, 1], 0.0)]
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


def _has_subnormal_sums(product: Product) -> bool:
    low, high = term_exponents(product)
    return is_float(product) and product.result.mantissa_bits > 0 and low < product.result.emin <= high


@law("accumulators", source=f"{_IEEE} 3.3, 5.4.1", applies=_has_subnormal_sums)
def subnormal_sums_are_kept(subject: Dot, product: Product, x: None) -> None:
    """The difference of normal numbers is a subnormal one where it is so small, and not flushed to zero."""
    e = product.result.emin
    some, one = power(product, e, 1.5), power(product, e)
    judge_rows(subject, product, ([some[0], -one[0]] if product.a.signed else [], [some[1], one[1]], 2.0 ** (e - 1)))


# --- What an accumulator is -------------------------------------------------------------------------------------------


@law(
    "accumulators",
    source=f"{_IEEE} 5.4.1",
    applies=lambda product: all(map(measurable, (product.a, product.b, product.sums, product.result))),
)
def a_single_product_is_rounded_once(subject: Dot, product: Product, x: None) -> None:
    """With K = 1 the result is the product, rounded to the format of the sums and then to that of the result."""
    random = np.random.default_rng(1)
    a, b = _single(product.a, random)[:, None], _single(product.b, random)[None]
    if not is_float(product):
        expected = a * b
        told = (expected <= product.sums.max) & (expected >= product.sums.min)
    elif is_declared(product):
        expected, told = recomputed(product, a, b)
    else:
        sums = np.copysign(rounded_size(a * b, product.sums, "nearest_even"), a * b)
        expected = delivered(sums, product)
        told = (np.abs(sums) <= product.sums.max) & (np.abs(expected) <= product.result.max)
    got = multiply(subject, product, a, b)
    require(~told | (got == expected), product, Matrices(a, b, "of one column"), got, expected)


def _single(fmt: AnyFormat, random: np.random.Generator) -> Floats:
    """Two dozen finite values: drawn over all codes, and around 1."""
    x = values_of(random.integers(0, 1 << fmt.bits, 18, np.uint64), fmt)
    near = fit(np.array([1.0, 1.25, -1.75, 1 + fmt.eps, 2 - fmt.eps, fmt.smallest_subnormal]), fmt)
    x = np.concatenate([x, near])
    return x[np.isfinite(x)]


@law("accumulators", source="a sum of one term")
def every_position_counts_once(subject: Dot, product: Product, x: None) -> None:
    """A unit matrix times b is b, and a times one is a, whatever K is: no term is lost, counted twice or misplaced."""
    for k in (1, 2, 3, 5, 8, 17, 33, 64, 131):
        some = np.stack([np.arange(k) % 3 + 1.0, np.arange(k) % 2 + 1.0])
        a, b = fit(some, product.a), fit(some.T, product.b)
        judge(subject, product, Matrices(np.eye(k), b, "unit vectors"), b)
        judge(subject, product, Matrices(a, np.eye(k), "unit vectors"), a)


@law("accumulators", source="integers of few digits")
def sums_that_fit_are_exact(subject: Dot, product: Product, x: None) -> None:
    """Small integers are added exactly, as long as every partial sum has no more digits than the sums."""
    held = min(digits(product), product.result.mantissa_bits + 1)
    if product.core is not None and product.core.instruction.fraction_bits is not None:
        held = min(held, product.core.instruction.fraction_bits)
    room = min(2.0**held, float(product.result.max), float(product.sums.max))
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
    source=f"{_IEEE} 5.4.1: fusedMultiplyAdd rounds once",
    applies=lambda product: (
        product.order in ("sequential", "pairwise", "blocked", "kahan")
        and getattr(product.accumulator, "block", None) != 1
        and product.a == product.b == product.sums == product.result
        and is_symmetric(product)
    ),
)
def products_are_rounded_or_exact_as_declared(subject: Dot, product: Product, x: None) -> None:
    """(1 + 2e) - (1 + e)(1 + e) is -e^2 with exact products, and 0 with rounded ones."""
    eps = product.a.eps
    exact = getattr(product.accumulator, "products", "rounded") == "exact"
    judge_rows(subject, product, ([1 + 2 * eps, -1 - eps], [1, 1 + eps], -eps * eps if exact else 0.0))


# --- What is lost -----------------------------------------------------------------------------------------------------


def _minus(term: Term) -> Term:
    return -term[0], term[1]


def _shows(product: Product) -> bool:
    """Whether the result has all digits of the sums."""
    return product.result.mantissa_bits + 1 >= digits(product)


@law(
    "accumulators",
    source="the format's row in precision.formats; precision._instructions: bits of the result",
    applies=lambda product: (
        is_float(product)
        and rounding(product) in ("nearest_even", "toward_zero", "toward_negative")
        and (_shows(product) or is_fused(product) or product.order in ("sequential", "blocked"))
    ),
)
def the_accumulator_has_the_declared_digits(subject: Dot, product: Product, x: None) -> None:
    """A term of half a unit of the last digit of a power of two is lost beside it, one of a whole unit is not.

    Of a tensor core, in the group where the power of two is the sum of halves, so that nothing is cut, and in the next.
    """
    bits = digits(product)
    t = top(product, bits)
    large, half = power(product, t), power(product, t - 1)
    rows: list[Row] = []
    for exponent, rest in ((t - bits, 0.0), (t - bits + 1, 2.0 ** (t - bits + 1))):
        small = power(product, exponent)
        if is_fused(product):
            first, second, third = groups(product, 3)
            whole = {first[0]: half, first[1]: half}
            rows.append((*sum_of(whole | {second[0]: small, third[0]: _minus(large)}), rest))
            here = whole | {first[2]: small}
        else:
            here, second = {0: large, 1: small}, [2]
        if _shows(product):
            rows.append((*sum_of(here), 2.0**t + rest))
        else:  # taken away again, it shows
            rows.append((*sum_of(here | {second[0]: _minus(large)}), rest))
    judge_rows(subject, product, *rows)


def _at_the_cut(product: Product) -> tuple[Term, Term, Term]:
    """Of a tensor core: a term 2^t, one that is kept beside it, 2^(t-F), and one that is not, 3/4 of that."""
    bits = instruction(product)[1]
    t = top(product, bits + 1, exponents(product.result)[0] + 1)  # so that sums hold what is not kept
    return power(product, t), power(product, t - bits), power(product, t - bits - 1, 1.5)


@law("accumulators", source="precision._fused, step 3: cut below F bits of the largest exponent", applies=is_fused)
def terms_are_cut_at_the_declared_bit(subject: Dot, product: Product, x: None) -> None:
    """Beside 2^t, and with it taken away again, a group keeps 2^(t-F), and nothing of what is less in magnitude.

    That holds of a term, of what an earlier group has left, and of terms where the earlier group has left 2^t.
    """
    large, kept, lost = _at_the_cut(product)
    first, second, third = groups(product, 3)
    rows = []
    for small, rest in ((kept, math.prod(kept)), (lost, 0.0), (_minus(lost), 0.0)):
        rows.append((*sum_of({first[0]: large, first[1]: small, first[2]: _minus(large)}), rest))
        rows.append((*sum_of({first[0]: small, second[0]: large, second[1]: _minus(large)}), rest))
    many = dict.fromkeys(second, lost)
    rows.append((*sum_of({first[0]: large} | many | {third[0]: _minus(large)}), 0.0))
    judge_rows(subject, product, *rows)


@law("accumulators", source="precision._instructions: group", applies=is_fused)
def a_group_has_the_declared_size(subject: Dot, product: Product, x: None) -> None:
    """What 2^t and its opposite cut as the last term of their group, they do not as the first one of the next."""
    large, _, small = _at_the_cut(product)
    first, second = groups(product, 2)
    both = {first[0]: large, first[1]: _minus(large)}
    last, next_one = (sum_of(both | {column: small}) for column in (first[-1], second[0]))
    judge_rows(subject, product, (*last, 0.0), (*next_one, math.prod(small)))


@law("accumulators", source="precision._fused, steps 1 and 2", applies=is_fused)
def terms_have_the_exponents_of_their_operands(subject: Dot, product: Product, x: None) -> None:
    """A term counts with its operands' exponents, added: in [2, 4) not one more, subnormal as emin, a zero not at all.

    So 1.5 * 1.5 keeps beside it what 1 keeps, but a subnormal operand only what the smallest normal one would.
    """
    rows: list[Row] = []
    row, bits = instruction(product)
    first, second, third, *_ = groups(product, 1)[0]
    try:
        (left, right), kept, _ = _at_the_cut(product)
        large = 1.5 * left, 1.5 * right
        rows.append((*sum_of({first: large, second: kept, third: _minus(large)}), math.prod(kept)))
    except Unsupported:
        pass
    for on_left in (True, False):
        fmt, other = (product.a, product.b) if on_left else (product.b, product.a)
        least = P.float16.emin if row.emulated else fmt.emin
        cut = least + other.emax - bits  # the last bit kept where one operand counts as emin
        if cut - 1 <= term_exponents(product)[0] or cut < exponents(product.result)[0]:
            continue  # no smaller terms are made, or seen
        lost, half = power(product, cut - 1, 1.5), power(product, cut - 1)
        most, tiny = 2.0**other.emax, fmt.smallest_subnormal
        zero, small = ((0.0, most), (tiny, most)) if on_left else ((most, 0.0), (most, tiny))
        rows.append((*sum_of({first: zero, second: half, third: half}), 2.0**cut))
        if tiny < 2.0**least:
            rows.append((*sum_of({first: small, second: lost, third: _minus(small)}), 0.0))
    if not rows:
        raise Unsupported(f"{product.name}: its operands make no terms so small that an exponent tells")
    judge_rows(subject, product, *rows)


def _floor_shows(product: Product) -> bool:
    """Whether the operands make terms of half of what the floor keeps, and the result is the sum."""
    if not is_fused(product) or product.result != product.sums:
        return False
    row, bits = instruction(product)
    return row.floor is not None and term_exponents(product)[0] < row.floor - bits


@law("accumulators", source="precision._fused, step 2: the floor", applies=_floor_shows)
def exponents_have_the_declared_floor(subject: Dot, product: Product, x: None) -> None:
    """However small all terms are, a group keeps 2^(floor-F), and nothing of what is less.

    Both show where they make the smallest number of the result, or not.
    """
    row, bits = instruction(product)
    assert row.floor is not None
    kept, lost = (power(product, row.floor - bits - less) for less in (0, 1))
    smallest = exponents(product.result)[0]
    one, half = power(product, smallest), power(product, smallest - 1)
    sums: list[tuple[list[Term], int]]
    if rounding(product) == "nearest_even":  # up beyond the half, which is rounded to zero
        sums = [([half, kept], 1), ([half, lost, lost], 0)]
    else:
        sums = [([one, _minus(kept)], 0), ([one, _minus(kept), lost, lost], 0), ([one, _minus(lost)], 1)]
    rows = [(*sum_of(dict(enumerate(terms))), count * 2.0**smallest) for terms, count in sums]
    judge_rows(subject, product, *rows)


def _restarts(product: Product) -> int | None:
    """After how many columns the chain of a truncating tensor core starts from zero."""
    if product.core is None or not is_fused(product) or rounding(product) == "nearest_even":
        return None
    row = product.core.instruction
    own = row.k if row.emulated else None
    found = [interval for interval in (own, product.core.promote, product.core.slice_k) if interval is not None]
    return min(found, default=None)


@law(
    "accumulators",
    source="precision.tensor_cores: promote, slice_k; precision._instructions: emulated",
    applies=lambda product: _restarts(product) is not None,
)
def sums_restart_after_the_declared_interval(subject: Dot, product: Product, x: None) -> None:
    """What 2^t swallows as the last term of its interval, is added to it, to nearest, as the first one of the next."""
    interval, row = _restarts(product), instruction(product)[0]
    assert interval is not None
    bits, ulp = digits(product), 2.0**-23
    t = top(product, bits + 1)
    large, small = power(product, t), power(product, t - bits, 1.5)
    columns = taken(row, 2 * interval + row.k)
    last, start, later = columns[interval - 1], columns[interval], columns[2 * interval]
    rest = np.rint(math.prod(small) / 2.0**t / ulp) * ulp * 2.0**t
    judge_rows(
        subject,
        product,
        (*sum_of({0: large, last: small, start: _minus(large)}), 0.0),
        (*sum_of({0: large, start: small, later: _minus(large)}), float(rest)),
    )


@law(
    "accumulators",
    source="precision.tensor_cores: rounds_inputs",
    applies=lambda product: product.core is not None and product.core.rounds_inputs,
)
def operands_are_rounded_to_nearest_as_declared(subject: Dot, product: Product, x: None) -> None:
    """Operands that the format does not hold, in float32, are rounded to nearest even before they are multiplied."""
    for left, fmt in ((True, product.a), (False, product.b)):
        halves = np.array([1.0, 1.0 + 2**-6, 1 - 2**-6, 3.0]) * fmt.eps / 2
        given = np.concatenate([1 + halves, -1 - halves, [fmt.smallest_normal * (1 + 3 * fmt.eps / 2)]])
        rounded = np.copysign(rounded_size(given, fmt, "nearest_even"), given)
        one = np.ones((1, 1))
        some = Matrices(given[:, None], one, "") if left else Matrices(one, given[None], "")
        judge(subject, product, some, rounded[:, None] if left else rounded[None], f"{'a' if left else 'b'} is rounded")


# --- Integers ---------------------------------------------------------------------------------------------------------


@law(
    "accumulators",
    source="PTX ISA mma: .satfinite; two's complement otherwise",
    applies=lambda product: isinstance(product.sums, P.IntFormat),
)
def integers_wrap_or_saturate_as_declared(subject: Dot, product: Product, x: None) -> None:
    """A sum beyond the integers of its format is taken modulo 2^bits, or clamped, where that is claimed, on the way.

    On the way: once an instruction, so that terms of the other sign bring it back.
    """
    fmt = product.sums
    a, b = (np.array([x.max, x.min] if x.signed else [x.max], np.float64) for x in (product.a, product.b))
    step = product.core.instruction.k if product.core is not None else 1
    steps = int(fmt.max // (abs(a).min() * abs(b).min())) // step + 2
    if steps * step > 1 << 18:
        raise Unsupported(f"{product.name}: its sums overflow only beyond {steps * step} terms")
    left, right = (np.repeat(x[:, None], (steps + 1) * step, axis=1) for x in (a, b))
    side, other = (left, product.a) if product.a.signed else (right, product.b)
    side[:, -step:] = np.minimum(-side[:, -step:], other.max) if other.signed else 0
    expected = np.zeros((len(a), len(b)))
    for i, j in np.ndindex(expected.shape):
        total = 0
        for column, terms in ((0, steps * step), (-1, step)):
            total += terms * int(left[i, column]) * int(right[j, column])
            if saturates(product):
                total = min(max(total, int(fmt.min)), int(fmt.max))
        expected[i, j] = total if saturates(product) else wrapped(total, fmt)
    judge(subject, product, Matrices(left, right.T, "the largest integers"), expected)
