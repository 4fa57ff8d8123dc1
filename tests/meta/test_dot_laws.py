"""Every law on products of matrices fails on a planted bug, every bug dies, ours passes all, and so do its peers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

import precision as P
import properties
from precision.accumulate import Accumulator
from precision.tensor_cores import Instruction
from properties.laws import laws
from properties.laws.dots import matrices
from properties.operators import OurDot, Product
from properties.subjects import load

Array = np.ndarray[Any, Any]
Matmul = Callable[[Array, Array, Product], Array]

OURS = {product.name: product for product in OurDot().products}
F32, BF16, I8, I32 = (P.get_format(name) for name in ("float32", "bfloat16", "int8", "int32"))
# Sums of a library that does not say in which order it adds; rounded to bfloat16 in the end; integers that wrap.
ANY = Product("any", F32, F32, F32)
ANY_BF16 = Product("any.to_bfloat16", BF16, BF16, F32, BF16)
ANY_I8, ANY_I32 = Product("int8", I8, I8, I8), Product("int8.int32", I8, I8, I32)


def right(a: Array, b: Array, product: Product) -> Array:
    """What ours gives; where no order is claimed, the exact product rounded, or wrapped."""
    if product.order != "any":
        return OurDot().matmul(a, b, product)
    if isinstance(product.sums, P.IntFormat):
        return wrap(a.astype(np.int64) @ b.astype(np.int64), product.sums)
    sums = P.round_to(a.astype(np.float64) @ b.astype(np.float64), product.sums, policy="ieee")
    return P.round_to(sums, product.result, policy="ieee")


def wrap(total: Array, fmt: Any) -> Array:
    return ((total - int(fmt.min)) % (1 << fmt.bits) + int(fmt.min)).astype(np.float64)


class Planted(OurDot):
    """One product, ours or with another `matmul`."""

    def __init__(self, product: Product, wrong: Matmul = right) -> None:
        super().__init__()
        self.name = "planted"
        self.products, self.formats = [product], (product.a,)
        self.wrong = wrong

    def matmul(self, a: Array, b: Array, product: Product) -> Array:
        with np.errstate(all="ignore"):
            return self.wrong(a, b, product)


# --- Bugs of what adds ------------------------------------------------------------------------------------------------


def adds(**changes: Any) -> Matmul:
    """With another accumulator than is declared."""

    def matmul(a: Array, b: Array, product: Product) -> Array:
        sums = P.matmul(a, b, accumulator=replace(product.accumulator, **changes))
        return P.round_to(sums, product.result, policy="ieee")

    return matmul


def core(**changes: Any) -> Matmul:
    """With another tensor core: fields of an `Instruction` or of the `TensorCore`."""
    of_row = {name: changes[name] for name in changes if name in {f.name for f in fields(Instruction)}}
    of_core = {name: value for name, value in changes.items() if name not in of_row}

    def matmul(a: Array, b: Array, product: Product) -> Array:
        row = replace(product.core.instruction, **of_row)
        return replace(product.core, name="planted", instruction=row, **of_core).matmul(a, b)

    return matmul


def fused(
    a: Array,
    b: Array,
    product: Product,
    *,
    cut: Callable[[Array], Array] = np.trunc,
    emin: int | None = None,
    normalised: bool = False,
    zeros_count: bool = False,
    addend_counts: bool = True,
    addend_is_cut: bool = True,
    rounding: str = "toward_zero",
) -> Array:
    """A chain of groups in float64, as an emulator would have it: right as it stands, wrong in what is changed."""
    row = product.core.instruction
    finite = np.outer(np.isfinite(a).all(1), np.isfinite(b).all(0))
    x, y = (np.where(np.isfinite(z), z, 0).astype(np.float64) for z in (a, b.T))
    none, c = -9999, np.zeros(finite.shape)

    def exponents(z: Array, least: int) -> Array:
        return np.where(z == 0, least if zeros_count else none, np.maximum(np.frexp(z)[1] - 1, least))

    for start in range(0, a.shape[1], row.group):
        left, right_ = x[:, None, start : start + row.group], y[None, :, start : start + row.group]
        terms = left * right_
        least = [fmt.emin if emin is None else emin for fmt in (row.a, row.b)]
        size = exponents(left, least[0]) + exponents(right_, least[1])
        size = exponents(terms, 2 * none) if normalised else size
        largest = size.max(-1)
        if addend_counts:
            largest = np.maximum(largest, np.where(c == 0, none, np.frexp(c)[1] - 1))
        unit = np.ldexp(1.0, np.where(largest < -5000, 0, np.maximum(largest, row.floor)) - row.fraction_bits)
        total = cut(terms / unit[..., None]).sum(-1) * unit + (cut(c / unit) * unit if addend_is_cut else c)
        kept = P.Format(name="kept", exponent_bits=product.sums.exponent_bits, mantissa_bits=row.result_bits - 1)
        c = P.round_to(total, kept, rounding=rounding, policy="ieee") + 0.0
    return np.where(finite, c, right(a, b, product))


def stepwise(a: Array, b: Array, product: Product, add: Callable[..., Array]) -> Array:
    """total, state = add(step, total, state, term), step being one operation of the format."""

    def step(operation: str, *x: Array) -> Array:
        return getattr(P, operation)(*x, product.sums)

    total = state = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total, state = add(step, total, state, (a[:, k, None], b[None, k]))
    return total


def neumaier(step: Any, total: Array, lost: Array, pair: Any) -> tuple[Array, Array]:
    """What was lost is added at once, instead of being taken from the next term."""
    term = step("mul", *pair)
    after = step("add", total, term)
    larger, smaller = np.where(abs(total) >= abs(term), (total, term), (term, total))
    back = step("add", step("sub", larger, after), smaller)
    return step("add", after, step("add", lost, back)), np.zeros_like(lost)


def kahan_in_float32(step: Any, total: Array, lost: Array, pair: Any) -> tuple[Array, Array]:
    term = step("mul", *pair) - lost
    after = step("add", total, term)
    return after, (after - total) - term


def kahan_with_fma(step: Any, total: Array, lost: Array, pair: Any) -> tuple[Array, Array]:
    term = step("fma", *pair, -lost)
    after = step("add", total, term)
    return after, step("sub", step("sub", after, total), term)


def tree(split: Callable[[list[int]], tuple[list[int], list[int]]]) -> Matmul:
    """Pairwise, but halved by `split`: zeros fill up the tree, and -1 stands for them."""

    def leaves(those: list[int], width: int) -> list[int]:
        if len(those) <= 1:
            return [*those, *[-1] * (width - len(those))]
        return [k for part in split(those) for k in leaves(part, width // 2)]

    def matmul(a: Array, b: Array, product: Product) -> Array:
        order = leaves(list(range(a.shape[1])), 1 << max(a.shape[1] - 1, 0).bit_length())
        a, b = np.pad(a, ((0, 0), (0, 1))), np.pad(b, ((0, 1), (0, 0)))
        return right(a[:, order], b[order], product)

    return matmul


def pairwise_within_blocks(a: Array, b: Array, product: Product) -> Array:
    accumulator, total = Accumulator(product.sums, order="pairwise"), np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for start in range(0, a.shape[1], product.accumulator.block):
        part = slice(start, start + product.accumulator.block)
        total = P.add(total, P.matmul(a[:, part], b[part], accumulator=accumulator), product.sums)
    return total


def no_last_block(a: Array, b: Array, product: Product) -> Array:
    """What is left of K goes straight into the total."""
    whole = a.shape[1] // product.accumulator.block * product.accumulator.block
    total = right(a[:, :whole], b[:whole], product)
    for k in range(whole, a.shape[1]):
        total = P.add(total, P.mul(a[:, k, None], b[None, k], product.sums), product.sums)
    return total


def split_k(a: Array, b: Array, product: Product) -> Array:
    half = a.shape[1] // 2
    return P.add(right(a[:, :half], b[:half], product), right(a[:, half:], b[half:], product), product.sums)


# --- Bugs of what is added, and where ---------------------------------------------------------------------------------


def operands(a: Callable[..., Array] = lambda x: x, b: Callable[..., Array] = lambda x: x) -> Matmul:
    """Right, of other operands."""
    return lambda x, y, product: right(a(x).astype(x.dtype), b(y).astype(y.dtype), product)


def columns(which: Callable[[int], Any]) -> Matmul:
    """Right, of other columns of a and rows of b: `which` of how many."""

    def matmul(a: Array, b: Array, product: Product) -> Array:
        chosen = np.array(which(a.shape[1]), int)
        return right(a[:, chosen], b[chosen], product)

    return matmul


def whole_tiles(k: int) -> Any:
    return range(k if k < 8 else k // 8 * 8)


def last_tile_from_the_end(k: int) -> Any:
    return range(k) if k < 8 or k % 8 == 0 else [*range(k // 8 * 8), *range(k - 8, k)]


def clamped(k: int) -> Any:
    return np.minimum(range(-(-k // 8) * 8), k - 1)


def instead(where: Callable[..., Any], value: Any) -> Matmul:
    """Right, but `value` where `where(result, a, b)`."""

    def matmul(a: Array, b: Array, product: Product) -> Array:
        y = right(a, b, product)
        return np.where(where(y, a, b), value(y) if callable(value) else value, y)

    return matmul


def finite(y: Array, a: Array, b: Array) -> Array:
    """Which results have finite operands."""
    return np.outer(np.isfinite(a).all(1), np.isfinite(b).all(0))


def invalid(y: Array, a: Array, b: Array) -> Array:
    """Which results are NaN, of operands that are not."""
    return np.isnan(y) & ~np.isnan(a).any(1)[:, None] & ~np.isnan(b).any(0)


def masked(a: Array, b: Array, product: Product) -> Array:
    """Terms with a zero are skipped, as sparse kernels do."""
    terms = a[:, :, None] * b[None]
    skipped = np.where((a[:, :, None] == 0) | (b[None] == 0), 0, terms)
    special = np.where(np.isfinite(skipped), 0, skipped).sum(1)
    clean = [np.where(np.isfinite(x), x, 0).astype(x.dtype) for x in (a, b)]
    return np.where(special == 0, right(*clean, product), special)


def minus_zero(a: Array, b: Array, product: Product) -> Array:
    """The accumulator is the first product, and not +0 plus that: so -0 survives."""
    y = right(a, b, product)
    return np.where((y == 0) & np.signbit(a[:, :, None] * b[None]).all(1) & (a.shape[1] > 0), -0.0, y)


def empty(value: float) -> Matmul:
    return lambda a, b, product: right(a, b, product) if a.shape[1] else np.full((a.shape[0], b.shape[1]), value)


def other_loop_for_the_last_row(a: Array, b: Array, product: Product) -> Array:
    return np.concatenate([right(a[:-1], b, product), P.matmul(a[-1:], b, accumulator=product.sums)])


def last_columns_exchanged(a: Array, b: Array, product: Product) -> Array:
    y = right(a, b, product)
    return y if y.shape[1] < 2 else np.concatenate([y[:, :-2], y[:, -1:], y[:, -2:-1]], axis=1)


def through(between: str) -> Matmul:
    """The result is rounded to another format first."""

    def matmul(a: Array, b: Array, product: Product) -> Array:
        plain = right(a, b, replace(product, output=None, accumulator=output_of(product.accumulator, None)))
        return P.round_to(P.round_to(plain, between, policy="ieee"), product.result, policy="ieee")

    return matmul


def rounded_last(rounding: str) -> Matmul:
    """The result is rounded by another mode."""

    def matmul(a: Array, b: Array, product: Product) -> Array:
        plain = right(a, b, replace(product, output=None, accumulator=output_of(product.accumulator, None)))
        return P.round_to(plain, product.result, rounding=rounding, policy="ieee")

    return matmul


def output_of(accumulator: Any, output: Any) -> Any:
    return replace(accumulator, output=output) if hasattr(accumulator, "output") else accumulator


def not_rounded_last(a: Array, b: Array, product: Product) -> Array:
    return right(a, b, replace(product, output=None, accumulator=output_of(product.accumulator, None)))


def fixed_point(a: Array, b: Array, product: Product) -> Array:
    return np.round(right(a, b, product) * 2.0**20) * 2.0**-20


def as_tfloat32(x: Array, rounding: str = "nearest_even") -> Array:
    return P.round_to(x, "tfloat32", rounding=rounding, policy="ieee")


def flushed(x: Array) -> Array:
    return np.where(abs(x) < 2.0**-126, 0 * x, x)


def saturated(a: Array, b: Array, product: Product) -> Array:
    total = a.astype(np.int64) @ b.astype(np.int64)
    return np.clip(total, int(product.sums.min), int(product.sums.max)).astype(np.float64)


def unsigned(a: Array, b: Array, product: Product) -> Array:
    return wrap((a.astype(np.int64) & 255) @ b.astype(np.int64), product.sums)


def pairs_in_int16(a: Array, b: Array, product: Product) -> Array:
    """As x86's vpmaddubsw: pairs of products saturate in 16 bits."""
    a, b = (np.pad(x.astype(np.int64), pad) for x, pad in ((a, ((0, 0), (0, 1))), (b, ((0, 1), (0, 0)))))
    total = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for i, j in np.ndindex(total.shape):
        terms = a[i] * b[:, j]
        total[i, j] = np.clip(terms[: len(terms) // 2 * 2].reshape(-1, 2).sum(1), -(1 << 15), (1 << 15) - 1).sum()
    return wrap(total, product.sums)


def in_float32(a: Array, b: Array, product: Product) -> Array:
    total = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    return wrap(np.rint(total).astype(np.int64), product.sums)


@dataclass(frozen=True)
class Bug:
    product: Product | str
    matmul: Matmul
    kills: str  # the laws that must fail, by name

    @property
    def declared(self) -> Product:
        return OURS[self.product] if isinstance(self.product, str) else self.product


def emulator(**changes: Any) -> Matmul:
    return functools.partial(fused, **changes)


BUGS = {
    # Which terms.
    "what is left of K is dropped": Bug(ANY, columns(whole_tiles), "every_position_counts_once an_infinity_stays_one"),
    "of a sequential sum, too": Bug(
        "bfloat16.bfloat16",
        columns(whole_tiles),
        "a_longer_sum_continues_the_shorter_one zeros_may_be_appended error_is_within_the_certain_bound",
    ),
    "the last tile overlaps the one before": Bug(
        ANY, columns(last_tile_from_the_end), "every_position_counts_once error_is_within_the_certain_bound"
    ),
    "the last term fills up the tile": Bug(
        ANY, columns(clamped), "every_position_counts_once a_single_product_is_rounded_once"
    ),
    "columns from the 33rd on are the first ones": Bug(
        ANY, lambda a, b, product: right(a, b[:, np.arange(b.shape[1]) % 32], product), "every_position_counts_once"
    ),
    "rows from the 33rd on are the first ones": Bug(
        ANY, lambda a, b, product: right(a[np.arange(len(a)) % 32], b, product), "every_position_counts_once"
    ),
    "the last two columns are exchanged": Bug(
        ANY, last_columns_exchanged, "sums_that_fit_are_exact error_is_within_the_certain_bound"
    ),
    "the last row goes through another loop": Bug(
        "bfloat16.pairwise", other_loop_for_the_last_row, "rows_and_columns_are_independent"
    ),
    # Orders.
    "sequential is pairwise": Bug(
        "bfloat16.bfloat16",
        adds(order="pairwise"),
        "a_longer_sum_continues_the_shorter_one results_are_those_of_the_declared_steps",
    ),
    "pairwise is sequential": Bug(
        "bfloat16.pairwise", adds(order="sequential"), "halves_are_added results_are_those_of_the_declared_steps"
    ),
    "from the end": Bug("bfloat16.pairwise", columns(lambda k: range(k)[::-1]), "halves_are_added"),
    "halves by the middle": Bug(
        "bfloat16.pairwise",
        tree(lambda k: (k[: len(k) // 2], k[len(k) // 2 :])),
        "halves_are_added zeros_may_be_appended",
    ),
    "every other term first": Bug("bfloat16.pairwise", tree(lambda k: (k[::2], k[1::2])), "halves_are_added"),
    "K is split": Bug("bfloat16.bfloat16", split_k, "zeros_may_be_appended a_longer_sum_continues_the_shorter_one"),
    "blocks of half the size": Bug(
        "bfloat16.blocked", adds(block=4), "blocks_are_added a_longer_sum_continues_the_shorter_one"
    ),
    "blocks of twice the size": Bug("bfloat16.blocked", adds(block=16), "blocks_are_added"),
    "blocks ignored": Bug("bfloat16.blocked", adds(order="sequential", block=None), "blocks_are_added"),
    "pairwise within blocks": Bug("bfloat16.blocked", pairwise_within_blocks, "a_longer_sum_continues_the_shorter_one"),
    "no last block": Bug("bfloat16.blocked", no_last_block, "blocks_are_added"),
    "no compensation": Bug("bfloat16.kahan", adds(order="sequential"), "results_are_those_of_the_declared_steps"),
    "another compensation": Bug(
        "bfloat16.kahan",
        functools.partial(stepwise, add=neumaier),
        "results_are_those_of_the_declared_steps",
    ),
    "a compensation in float32": Bug(
        "bfloat16.kahan", functools.partial(stepwise, add=kahan_in_float32), "results_are_those_of_the_declared_steps"
    ),
    "a compensation by fma": Bug(
        "bfloat16.kahan", functools.partial(stepwise, add=kahan_with_fma), "results_are_those_of_the_declared_steps"
    ),
    # What a sum keeps.
    "float32 sums instead of bfloat16": Bug(
        "bfloat16.pairwise",
        adds(format="float32"),
        "halves_are_added products_are_rounded_or_exact_as_declared",
    ),
    "bfloat16 sums instead of float32": Bug(
        ANY_BF16, lambda a, b, product: P.matmul(a, b, accumulator="bfloat16"), "error_is_within_the_certain_bound"
    ),
    "float16 sums instead of float32": Bug(
        ANY,
        lambda a, b, product: P.matmul(a, b, accumulator="float16"),
        "the_accumulator_has_the_declared_digits what_overflows_becomes_infinity subnormal_sums_are_kept",
    ),
    "rounded products": Bug(
        "bfloat16.fma",
        adds(products="rounded"),
        "products_are_rounded_or_exact_as_declared a_longer_sum_continues_the_shorter_one",
    ),
    "exact products": Bug("bfloat16.bfloat16", adds(products="exact"), "products_are_rounded_or_exact_as_declared"),
    "sums truncated": Bug(
        "bfloat16.bfloat16",
        adds(rounding="toward_zero"),
        "a_single_product_is_rounded_once what_overflows_becomes_infinity",
    ),
    "sums rounded where truncation is declared": Bug(
        "float16.truncating", adds(rounding="nearest_even"), "a_single_product_is_rounded_once"
    ),
    "ties of sums away": Bug(
        "bfloat16.bfloat16", adds(rounding="nearest_away"), "the_accumulator_has_the_declared_digits"
    ),
    "sums rounded down, as integers are shifted": Bug(
        "float16.truncating",
        adds(rounding="toward_negative"),
        "opposite_operands_give_opposite_results exact_zero_sums_are_plus_zero",
    ),
    "a fixed point": Bug(ANY, fixed_point, "powers_of_two_scale subnormal_sums_are_kept"),
    "operands are tfloat32": Bug(
        ANY, operands(as_tfloat32, as_tfloat32), "a_single_product_is_rounded_once error_is_within_the_certain_bound"
    ),
    "subnormal operands flushed": Bug(ANY, operands(flushed, flushed), "a_single_product_is_rounded_once"),
    "subnormal results flushed": Bug(
        ANY,
        lambda a, b, product: flushed(right(a, b, product)),
        "subnormal_sums_are_kept a_single_product_is_rounded_once",
    ),
    "only sums flushed": Bug(
        ANY, instead(lambda y, a, b: (abs(y) < 2.0**-126) & (a.shape[1] > 1), 0.0), "subnormal_sums_are_kept"
    ),
    "the left operand flushed": Bug(
        OURS["hopper.wgmma.float8_e4m3fn"],
        operands(a=lambda x: np.where(abs(x) < 2.0**-6, 0 * x, x)),
        "operands_may_be_exchanged a_single_product_is_rounded_once",
    ),
    "the result rounded to float16 first": Bug(
        ANY_BF16, through("float16"), "a_single_product_is_rounded_once what_overflows_becomes_infinity"
    ),
    "a tensor core's result rounded to float16 first": Bug(
        "hopper.cublas.bfloat16.to_bfloat16", through("float16"), "a_single_product_is_rounded_once"
    ),
    "the result rounded to bfloat16 first": Bug(ANY, through("bfloat16"), "the_accumulator_has_the_declared_digits"),
    "the result truncated": Bug(ANY_BF16, rounded_last("toward_zero"), "a_single_product_is_rounded_once"),
    "the result not rounded": Bug(
        "hopper.cublas.bfloat16.to_bfloat16", not_rounded_last, "results_have_the_declared_digits"
    ),
    # NaN, infinities, zeros.
    "zeros skip what they meet": Bug(
        ANY, masked, "a_nan_reaches_its_row_and_no_other invalid_products_and_sums_give_nan"
    ),
    "NaN lost on the right": Bug(
        ANY, operands(b=lambda x: np.where(np.isnan(x), 0, x)), "a_nan_reaches_its_row_and_no_other"
    ),
    "one NaN spoils all": Bug(
        ANY,
        instead(lambda y, a, b: np.isnan(a).any() | np.isnan(b).any(), np.nan),
        "a_nan_reaches_its_row_and_no_other",
    ),
    "invalid is zero": Bug(ANY, instead(invalid, 0.0), "invalid_products_and_sums_give_nan"),
    "invalid is infinity": Bug("hopper.mma.bfloat16", instead(invalid, np.inf), "invalid_products_and_sums_give_nan"),
    "infinities are taken for max": Bug(
        ANY,
        lambda a, b, product: np.clip(right(a, b, product), -product.result.max, product.result.max),
        "an_infinity_stays_one what_overflows_becomes_infinity",
    ),
    "overflow saturates": Bug(
        ANY,
        instead(lambda y, a, b: finite(y, a, b) & np.isinf(y), lambda y: np.copysign(F32.max, y)),
        "what_overflows_becomes_infinity",
    ),
    "a truncated sum that overflows stays at max": Bug(
        "hopper.mma.bfloat16",
        instead(lambda y, a, b: finite(y, a, b) & np.isinf(y), lambda y: np.copysign(F32.max, y)),
        "what_overflows_becomes_infinity",
    ),
    "the largest binade overflows": Bug(
        "hopper.mma.float16.fp16_accumulation",
        instead(lambda y, a, b: abs(y) >= 2.0**15, lambda y: np.copysign(np.inf, y)),
        "what_overflows_becomes_infinity",
    ),
    "-0 survives": Bug(ANY, minus_zero, "exact_zero_sums_are_plus_zero"),
    "what cancels is -0": Bug(
        ANY, instead(lambda y, a, b: (y == 0) & (a.shape[1] > 1), -0.0), "exact_zero_sums_are_plus_zero"
    ),
    "an empty sum is -0": Bug(ANY, empty(-0.0), "an_empty_sum_is_zero"),
    "an empty sum is what was in memory": Bug(ANY, empty(np.nan), "an_empty_sum_is_zero"),
    # Tensor cores.
    "F is 24, not 25": Bug("hopper.mma.bfloat16", core(fraction_bits=24), "terms_are_cut_at_the_declared_bit"),
    "F is 25, not 24": Bug("ampere.mma.bfloat16", core(fraction_bits=25), "terms_are_cut_at_the_declared_bit"),
    "F is 25, not 13": Bug(
        "hopper.wgmma.float8_e4m3fn",
        core(fraction_bits=25),
        "terms_are_cut_at_the_declared_bit results_are_those_of_the_declared_steps",
    ),
    "24 bits of a result, not 14": Bug(
        "hopper.wgmma.float8_e4m3fn",
        core(result_bits=24),
        "results_have_the_declared_digits the_accumulator_has_the_declared_digits",
    ),
    "the same behind a promotion": Bug(
        "hopper.cublas.float8_e4m3fn", core(result_bits=24), "the_accumulator_has_the_declared_digits"
    ),
    "float16 sums are rounded at the end only": Bug(
        "hopper.mma.float16.fp16_accumulation",
        lambda a, b, product: P.round_to(
            core(accumulator=F32, result_bits=24)(a, b, product), "float16", policy="ieee"
        ),
        "the_accumulator_has_the_declared_digits",
    ),
    "terms are rounded, not cut": Bug(
        "hopper.wgmma.float8_e4m3fn", emulator(cut=np.rint), "terms_are_cut_at_the_declared_bit"
    ),
    "terms are shifted, which rounds down": Bug(
        "hopper.wgmma.float8_e4m3fn",
        emulator(cut=np.floor),
        "opposite_operands_give_opposite_results terms_are_cut_at_the_declared_bit",
    ),
    "terms are not cut": Bug(
        "hopper.mma.bfloat16",
        emulator(cut=lambda x: x),
        "terms_are_cut_at_the_declared_bit a_group_has_the_declared_size exponents_have_the_declared_floor",
    ),
    "the result is rounded to nearest": Bug(
        "hopper.mma.bfloat16",
        emulator(rounding="nearest_even"),
        "results_are_those_of_the_declared_steps a_single_product_is_rounded_once",
    ),
    "the addend is not aligned": Bug(
        "hopper.mma.bfloat16", emulator(addend_counts=False, addend_is_cut=False), "terms_are_cut_at_the_declared_bit"
    ),
    "the addend is not cut": Bug(
        "hopper.mma.bfloat16", emulator(addend_is_cut=False), "terms_are_cut_at_the_declared_bit"
    ),
    "products are normalised first": Bug(
        "hopper.mma.bfloat16", emulator(normalised=True), "terms_have_the_exponents_of_their_operands"
    ),
    "subnormal operands are normalised": Bug(
        "hopper.mma.bfloat16", emulator(emin=-200), "terms_have_the_exponents_of_their_operands"
    ),
    "zeros count with what they meet": Bug(
        "hopper.mma.bfloat16",
        emulator(zeros_count=True),
        "zeros_may_be_appended terms_have_the_exponents_of_their_operands",
    ),
    "no floor": Bug("hopper.mma.bfloat16", core(floor=None), "exponents_have_the_declared_floor"),
    "the floor of float16 results one too high": Bug(
        "hopper.mma.float16.fp16_accumulation", core(floor=-20), "exponents_have_the_declared_floor"
    ),
    "groups of 8, not 16": Bug(
        "hopper.mma.bfloat16",
        core(group=8),
        "order_within_a_group_does_not_matter a_group_has_the_declared_size",
    ),
    "groups of 16, not 8": Bug("ampere.mma.bfloat16", core(group=16, k=16), "a_group_has_the_declared_size"),
    "a chain of fused multiply-adds": Bug(
        "hopper.mma.bfloat16",
        lambda a, b, product: P.matmul(a, b, accumulator=Accumulator("float32", products="exact")),
        "order_within_a_group_does_not_matter terms_are_cut_at_the_declared_bit",
    ),
    "no promotion": Bug("hopper.cublas.float8_e4m3fn", core(promote=None), "sums_restart_after_the_declared_interval"),
    "promotion twice as often": Bug(
        "hopper.cublas.float8_e4m3fn", core(promote=64), "sums_restart_after_the_declared_interval"
    ),
    "promotion half as often": Bug(
        "hopper.cublas.float8_e4m3fn", core(promote=256), "sums_restart_after_the_declared_interval"
    ),
    "K is not split": Bug(
        "hopper.cublas.float16.split_k_32", core(slice_k=None), "sums_restart_after_the_declared_interval"
    ),
    "an emulated instruction adds to its addend": Bug(
        "hopper.mma.float8_e4m3fn", core(emulated=False), "sums_restart_after_the_declared_interval"
    ),
    "operands cut to tfloat32": Bug(
        "hopper.cublas.tfloat32",
        operands(*[functools.partial(as_tfloat32, rounding="toward_zero")] * 2),
        "operands_are_rounded_to_nearest_as_declared",
    ),
    # Integers.
    "sums saturate": Bug(ANY_I8, saturated, "integers_wrap_or_saturate_as_declared error_is_within_the_certain_bound"),
    "sums of an instruction saturate": Bug(
        "turing.mma.int8", core(saturates=True), "integers_wrap_or_saturate_as_declared"
    ),
    "sums wrap": Bug("hopper.wgmma.int8.satfinite", core(saturates=False), "integers_wrap_or_saturate_as_declared"),
    "sums saturate once, in the end": Bug(
        "hopper.wgmma.int8.satfinite", saturated, "integers_wrap_or_saturate_as_declared"
    ),
    "int8 read as uint8": Bug(
        ANY_I32, unsigned, "operands_may_be_exchanged sums_that_fit_are_exact error_is_within_the_certain_bound"
    ),
    "pairs saturate in 16 bits": Bug(ANY_I32, pairs_in_int16, "integers_wrap_or_saturate_as_declared"),
    "integers are added in float32": Bug(ANY_I32, in_float32, "integers_wrap_or_saturate_as_declared"),
}


def verdict(bug: Bug, law: str) -> properties.Verdict:
    """Of one law, by name, on a planted bug."""
    family = next(family for family in ("dots", "accumulators") if law in laws(family))
    (found,) = properties.judge(Planted(bug.declared, bug.matmul), only=f"{family}.{law}")
    return found


@functools.cache
def found_in_ours(product: Product) -> list[str]:
    return [v.detail for v in properties.judge(Planted(product)) if v.status != "holds"]


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_dies_by_the_laws_that_speak_of_it(name: str) -> None:
    bug = BUGS[name]
    assert {law: verdict(bug, law).status for law in bug.kills.split()} == dict.fromkeys(bug.kills.split(), "broken")
    assert found_in_ours(bug.declared) == []


def test_no_law_is_without_a_planted_bug_that_it_is_named_for() -> None:
    named = {law for bug in BUGS.values() for law in bug.kills.split()}
    assert named == set(laws("dots")) | set(laws("accumulators"))


@pytest.mark.parametrize("name", ["hopper.wgmma.float8_e4m3fn", "hopper.mma.bfloat16"])
def test_the_emulator_that_bugs_are_planted_in_is_right_without_them(name: str) -> None:
    with np.errstate(all="ignore"):
        for x in matrices(OURS[name], each=3):
            a, b = x.a.astype(np.float32), x.b.astype(np.float32)
            got, expected = fused(a, b, OURS[name]), right(a, b, OURS[name])
            told = ~np.isinf(expected) | ~finite(expected, a, b)  # it knows no overflow
            np.testing.assert_array_equal(got[told], expected[told])


# --- How a failure reads ----------------------------------------------------------------------------------------------


def test_a_counterexample_says_which_terms_of_which_element() -> None:
    assert verdict(BUGS["groups of 16, not 8"], "a_group_has_the_declared_size").detail == (
        "accumulators.a_group_has_the_declared_size[ampere.mma.bfloat16]: What 2^t and its opposite cut as the last term "
        "of their group, they do not as the first one of the next.\n"
        "  at        1.0 * 1.0 + -1.0 * 1.0 + 0.00018310546875 * 0.000244140625 (columns 0, 1, 8)\n"
        "  got       0.0\n"
        "  expected  4.470348358154297e-08\n"
        "  wrong     1 of 4"
    )
    assert verdict(BUGS["the last tile overlaps the one before"], "every_position_counts_once").detail.endswith(
        "  at        element [9, 0] of a product of (17, 17) and (17, 2) matrices, unit vectors: 1.0 * 1.0 (column 9)\n"
        "  got       2.0\n"
        "  expected  1.0\n"
        "  wrong     14 of 34"
    )


def test_a_counterexample_says_how_far_it_may_be_off_and_what_was_changed() -> None:
    lines = verdict(BUGS["the last tile overlaps the one before"], "error_is_within_the_certain_bound").detail.split(
        "\n"
    )
    assert re.fullmatch(
        r"  at        element \[\d, \d\] of a product of .* \.\.\. \(\d+ terms that are not zero\)", lines[1]
    )
    assert re.fullmatch(r"  expected  -?\d+\.\d+ ± \d\.\d+e-\d\d", lines[3])
    assert (
        "\n  b[14, 1] is NaN\n" in verdict(BUGS["NaN lost on the right"], "a_nan_reaches_its_row_and_no_other").detail
    )
    wraps = verdict(BUGS["sums saturate"], "error_is_within_the_certain_bound").detail
    assert "\n  expected  -107.0\n  the exact product modulo 2^8\n" in wraps
    added = verdict(BUGS["blocks ignored"], "blocks_are_added").detail
    assert re.search(r"\n  \d+ terms before, and a block of \d\n", added)


def test_a_wrong_shape_is_broken() -> None:
    mine = Planted(ANY, lambda a, b, product: right(a, b, product)[:1])
    with pytest.raises(
        properties.Broken, match=r"at        a of shape \(2, 43\) times b of shape \(43, 2\)(?s:.*)shape \(2, 2\)"
    ):
        properties.check("dots.error_is_within_the_certain_bound", mine, max_examples=0)


def test_what_is_raised_is_an_error_and_what_cannot_be_asked_is_unsupported() -> None:
    def no_empty_sums(a: Array, b: Array, product: Product) -> Array:
        if a.shape[1] == 0:
            raise RuntimeError("no")
        return right(a, b, product)

    four = Planted(OURS["blackwell.tcgen05.float4_e2m1fn"], no_empty_sums)
    found = {v.law.partition(".")[2]: v for v in properties.judge(four)}
    assert found["an_empty_sum_is_zero"].status == "error"
    unsupported = {law: v.detail for law, v in found.items() if v.status == "unsupported"}
    assert set(unsupported) == {
        "the_accumulator_has_the_declared_digits",
        "terms_are_cut_at_the_declared_bit",
        "a_group_has_the_declared_size",
        "terms_have_the_exponents_of_their_operands",
    }
    assert unsupported["terms_are_cut_at_the_declared_bit"] == (
        "blackwell.tcgen05.float4_e2m1fn: its operands make no products 26 binades apart"
    )


def test_check_finds_what_only_drawing_finds() -> None:
    """A kernel whose path for short sums forgets the last term."""
    short = columns(lambda k: range(k - 1 if 1 < k < 8 else k))
    law, mine = "dots.error_is_within_the_certain_bound", Planted(ANY_I32, short)
    properties.check(law, mine, max_examples=0)
    with pytest.raises(properties.Broken, match="error_is_within_the_certain_bound"):
        properties.check(law, mine)


# --- Ours and its peers -----------------------------------------------------------------------------------------------


def parameters(product: Product) -> Any:
    """What a product declares, but for the formats of its operands and of sums that are rounded step by step."""
    if product.core is None:
        return product.order, product.accumulator.products, product.accumulator.rounding
    row = product.core.instruction
    numbers = row.group, row.fraction_bits, row.floor, row.result_bits, row.emulated, row.saturates
    return numbers, product.core.promote, product.core.slice_k, product.core.output


SOME = {parameters(product): product for product in OURS.values() if product.a.bits > 4}  # FP4 makes too few terms


@pytest.mark.parametrize("product", SOME.values(), ids=str)
def test_ours_obeys_every_law(product: Product) -> None:
    """One product of each accumulator; `halfulp verify` judges all."""
    assert found_in_ours(product) == []


@pytest.mark.parametrize("name", ["numpy", "ml_dtypes", "torch"])
def test_peers_break_the_laws_only_where_we_say(name: str) -> None:
    pytest.importorskip(name)
    subject = load(name, "dots")
    findings: dict[str, str] = getattr(subject, "findings", {})
    found = [v for v in properties.judge(subject, deep=True) if not v.ok]
    assert [v.detail for v in found if not any(properties.matches(p, v.id) for p in findings)] == []
    for pattern in findings:
        assert any(properties.matches(pattern, v.id) for v in found), f"{pattern} is a finding no longer"


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no law on dots is called '.*': did you mean dots\.halves_are_added\?"):
        properties.check("dots.halfs_are_added", "ours")
    with pytest.raises(ValueError, match="unknown subject 'nump': did you mean 'numpy'"):
        load("nump", "dots")
    with pytest.raises(ValueError, match="numpy does not offer int8; it offers float64, float32, float16"):
        properties.check("dots.rows_and_columns_are_independent", "numpy", formats=["int8"])
    with pytest.raises(ValueError, match=r"dots\.halves_are_added has no meaning for numpy in "):
        properties.check("dots.halves_are_added", "numpy")
