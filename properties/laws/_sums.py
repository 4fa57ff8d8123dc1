"""What a product of matrices claims of its sums, and its sums recomputed, step by step, as it claims them.

Steps are taken in float64 on the format's grid (`properties.laws._grid`, `properties.laws._operations`), which shares
nothing with `precision.accumulate` or `precision.tensor_cores`. A sum is *told* where all its steps are finite and in
range: what becomes of the others is said by laws of their own.

>>> import numpy as np
>>> from properties.operators import OurDot
>>> kahan = next(product for product in OurDot().products if product.name == "bfloat16.kahan")
>>> ones = np.ones((1, 1024))
>>> recomputed(kahan, ones, ones.T)
(array([[1024.]]), array([[ True]]))
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws import Unsupported
from properties.laws._grid import rounded_size
from properties.laws._operations import Exact, is_finite, measurable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from precision._instructions import Instruction
    from precision.formats import AnyFormat
    from properties.operators import Product

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


# --- Claims -----------------------------------------------------------------------------------------------------------


def is_float(product: Product, *_: Any) -> bool:
    return isinstance(product.sums, P.Format)


def is_declared(product: Product, *_: Any) -> bool:
    """Whether it says in which order it adds."""
    return product.order != "any" or not is_float(product)


def is_fused(product: Product, *_: Any) -> bool:
    """Whether it claims the groups of a tensor core."""
    return product.core is not None and product.core.instruction.fraction_bits is not None


def is_symmetric(product: Product, *_: Any) -> bool:
    """Whether its roundings do not look at the sign."""
    return is_float(product) and rounding(product) not in ("toward_positive", "toward_negative")


def is_visible(product: Product, *_: Any) -> bool:
    """Whether the result is the sum itself, in a format that the yardstick measures."""
    return is_float(product) and product.result == product.sums and measurable(product.sums)


def rounding(product: Product) -> str:
    """How a sum is rounded: of tensor cores the instruction's result."""
    if product.core is not None:
        return "nearest_even" if product.core.instruction.result_bits == 11 else "toward_zero"
    return getattr(product.accumulator, "rounding", "nearest_even")


def saturates(product: Product) -> bool:
    """Whether integers are clamped, once an instruction, instead of wrapping."""
    return product.core is not None and product.core.instruction.saturates


def digits(product: Product) -> int:
    """Significant bits of one sum: of a tensor core, of one instruction's result."""
    return product.digits if product.core is None else product.core.instruction.result_bits


def grid(fmt: AnyFormat, digits: int) -> AnyFormat:
    """The format with so many digits."""
    if isinstance(fmt, P.IntFormat) or fmt.mantissa_bits + 1 == digits:
        return fmt
    return P.Format("cut", fmt.exponent_bits, digits - 1)


def wrapped(total: int, fmt: AnyFormat) -> int:
    """An integer modulo 2^bits, among those of the format."""
    return (total - int(fmt.min)) % (1 << fmt.bits) + int(fmt.min)


def delivered(sums: Floats, product: Product) -> Floats:
    """Sums rounded to the format of the result, which holds them."""
    if product.result == product.sums:
        return sums
    return np.copysign(rounded_size(sums, product.result, "nearest_even"), sums)


def instruction(product: Product) -> tuple[Instruction, int]:
    """Of a tensor core that `is_fused`: its row, and F, the bits kept below the largest exponent."""
    assert product.core is not None
    row = product.core.instruction
    assert row.fraction_bits is not None
    return row, row.fraction_bits


# --- Terms that a product can have ------------------------------------------------------------------------------------


def exponents(fmt: AnyFormat) -> tuple[int, int]:
    """The least and largest powers of two in a floating-point format."""
    return fmt.emin - fmt.mantissa_bits, fmt.emax


def term_exponents(product: Product) -> tuple[int, int]:
    """The least and largest powers of two that are a product of its operands."""
    (low, high), (other_low, other_high) = exponents(product.a), exponents(product.b)
    return low + other_low, high + other_high


def power(product: Product, exponent: int, share: float = 1.0) -> tuple[float, float]:
    """A left and a right factor whose product is `share` * 2^exponent, the larger part in the left one."""
    low, high = exponents(product.b)
    right = min(max(exponent - exponent // 2, low), high)
    left_low, left_high = exponents(product.a)
    left_low += share != 1
    left = exponent - right
    if not left_low <= left <= left_high:
        left = min(max(left, left_low), left_high)
        right = exponent - left
    return share * 2.0**left, 2.0**right


def top(product: Product, span: int, least: int | None = None) -> int:
    """An exponent t such that the operands make 2^t and 2^(t - span), and the sums hold them; near 0.

    Raises Unsupported where there is none.
    """
    low, high = term_exponents(product)
    low += 1  # one digit to spare, for 1.5 * 2^n
    floors = [low, *(exponents(fmt)[0] for fmt in (product.sums, product.result))]
    bottom = max([*floors, *([] if least is None else [least])]) + span
    high = min(high, product.sums.emax - 2, product.result.emax - 2)
    if bottom > high:
        raise Unsupported(f"{product.name}: its operands make no products {span} binades apart")
    return min(max(0, bottom), high)


def sum_of(terms: Mapping[int, tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The left and right factors of terms given by their column, with zeros in the columns between."""
    columns = range(max(terms) + 1)
    left, right = zip(*(terms.get(column, (0.0, 0.0)) for column in columns), strict=True)
    return list(left), list(right)


def taken(row: Instruction, count: int) -> list[int]:
    """The first `count` columns, a multiple of the instruction's, in the order in which its groups take them."""
    within = sorted(range(row.k), key=lambda k: k % 4 >= 2) if row.emulated else range(row.k)
    return [first + k for first in range(0, count, row.k) for k in within]


def groups(product: Product, count: int) -> list[list[int]]:
    """The columns of a tensor core's first groups, in the order in which it takes them."""
    row, _ = instruction(product)
    columns = taken(row, count * row.k)
    return [columns[i * row.group :][: row.group] for i in range(count)]


# --- Sums, step by step -----------------------------------------------------------------------------------------------


class Steps:
    """Operations on arrays of one shape, each rounded once; `told` is where all had finite results in range."""

    def __init__(self, fmt: AnyFormat, rounding: str, told: Bools) -> None:
        self.fmt, self.rounding, self.told = fmt, rounding, told

    def __call__(self, operation: str, *operands: Floats) -> Floats:
        x = [np.broadcast_to(part, self.told.shape) for part in operands]
        self.told = self.told & is_finite(operation, x)
        exact = Exact.of(operation, [np.where(self.told, part, 1.0) for part in x], self.fmt)
        size = exact.rounded(self.rounding)
        self.told &= size <= self.fmt.max
        return np.where(exact.negative, -size, size)


def recomputed(product: Product, a: Floats, b: Floats) -> tuple[Floats, Bools]:
    """The results of a product that declares its order, and which of them are told; the sign of a zero is not."""
    told: Bools = np.outer(np.isfinite(a).all(1), np.isfinite(b).all(0))
    a, b = (np.where(np.isfinite(x), x, 0.0) for x in (a, b))
    sums, told = (_in_groups if is_fused(product) else _in_order)(product, a, b, told)
    results = delivered(np.where(told, sums, 0.0), product)
    return results, told & (np.abs(results) <= product.result.max)


def _in_order(product: Product, a: Floats, b: Floats, told: Bools) -> tuple[Floats, Bools]:
    """As `precision.accumulate` defines its orders."""
    accumulator: Any = product.accumulator
    step, zero, columns = Steps(product.sums, rounding(product), told), np.zeros(told.shape), range(a.shape[1])

    def added(total: Floats, k: int) -> Floats:
        if accumulator.products == "exact":
            return step("fma", a[:, k, None], b[None, k], total)
        return step("add", total, step("mul", a[:, k, None], b[None, k]))

    if accumulator.order in ("sequential", "blocked"):
        total = zero
        for start in columns[:: accumulator.block or max(len(columns), 1)]:
            block = functools.reduce(added, columns[start:][: accumulator.block], zero)
            total = step("add", total, block)
        return total, step.told
    terms = [step("mul", a[:, k, None], b[None, k]) for k in columns]
    if accumulator.order == "pairwise":
        while len(terms) > 1:
            pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
            terms = [step("add", *pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return terms[0] if terms else zero, step.told
    total, lost = zero, zero
    for term in terms:
        corrected = step("sub", term, lost)
        after = step("add", total, corrected)
        total, lost = after, step("sub", step("sub", after, total), corrected)
    return total, step.told


_NONE = -(1 << 14)
"""The exponent of a zero: below all others."""


def _in_groups(product: Product, a: Floats, b: Floats, told: Bools) -> tuple[Floats, Bools]:
    """As the header of `precision._fused` and `TensorCore` define them."""
    core, fmt = product.core, product.sums
    assert core is not None
    row, k = core.instruction, a.shape[1]
    result = grid(fmt, row.result_bits)
    x, y = a[:, None, :], b.T[None]
    least = [P.float16.emin if row.emulated else operand.emin for operand in (row.a, row.b)]
    terms = x * y
    sizes = np.maximum(_exponent(x), least[0]) + np.maximum(_exponent(y), least[1])
    sizes = np.where(terms == 0, _NONE, sizes)
    register = Steps(fmt, "nearest_even", told)
    chain, promoted, total = (np.zeros(told.shape) for _ in range(3))
    promote, padded = row.k if row.emulated else core.promote, -(-k // row.k) * row.k
    for start in range(0, padded, row.group):
        group = [column for column in taken(row, padded)[start : start + row.group] if column < k]
        chain = _group(row, terms[:, :, group], sizes[:, :, group], chain, result)
        register.told &= np.abs(chain) <= fmt.max
        end = start + row.group
        if promote is not None and (end % promote == 0 or end == padded):
            promoted, chain = register("add", promoted, chain), np.zeros(told.shape)
        if core.slice_k is not None and (end % core.slice_k == 0 or end == padded):
            total = register("add", total, promoted + chain)
            chain = promoted = np.zeros(told.shape)
    return total + promoted + chain, register.told


def _exponent(x: Floats) -> NDArray[np.int_]:
    """That of the leading digit."""
    return np.where(x == 0, _NONE, np.frexp(x)[1] - 1)


def _group(row: Instruction, terms: Floats, sizes: NDArray[np.int_], addend: Floats, result: AnyFormat) -> Floats:
    """Addend and terms cut F bits below the largest exponent, summed exactly, and rounded once.

    A cut term has at most F + 2 bits, and there are few: float64 holds all sums of them.
    """
    assert row.fraction_bits is not None
    floor = _NONE if row.floor is None else row.floor
    own = np.where(addend == 0, _NONE, np.maximum(_exponent(addend), result.emin))
    largest = np.maximum(sizes.max(-1, initial=floor), own)
    unit = np.where(largest == _NONE, 0, largest - row.fraction_bits)
    cut = np.trunc(np.ldexp(terms, -unit[..., None])).sum(-1) + np.trunc(np.ldexp(addend, -unit))
    total = np.ldexp(cut, unit)
    size = rounded_size(total, result, "nearest_even" if row.result_bits == 11 else "toward_zero")
    return np.where(total < 0, -size, size)
