"""Laws of quantizers: what elements and values must be, given their scales; what may be changed without changing them.

Each law is called as `law(subject, scheme, x)` with a `properties.quantizers.Quantizer`, one of its `Quantization`s and
a matrix (`matrices` has those that matter). A quantizer is judged by its own scales; those are judged by the laws in
`properties.laws.scales`. What needs codes or scales is not asked of one that gives values only.

Where "exact" is claimed, each comparison is exact; else float32's roundings are allowed for, and where an order of
operations is declared it is repeated in NumPy's float32.

Sources: OCP Microscaling Formats (MX) v1.0, 5 and 6; ONNX QuantizeLinear; Jacob et al., arXiv 1712.05877; Bengio et
al., arXiv 1308.3432 (straight-through gradients).

>>> from properties.laws import laws
>>> from properties.quantizers import OurQuantizer
>>> ours = OurQuantizer()
>>> right, int8 = ours.quantize, next(q for q in ours.schemes if q.name == "int8.channel")
>>> def truncated(x, scheme):
...     q = right(x, scheme)
...     scales = q.scales.reshape(-1, 1)
...     n = np.trunc(x / scales)
...     return q._replace(codes=n.astype(np.int8).view(np.uint8), values=(n * scales).astype(np.float32))
>>> ours.quantize = truncated
>>> x = Rows(np.float32([[127, 1.75]]), "mine")
>>> laws("quantizers")["no_other_value_is_nearer"](ours, int8, x)
Traceback (most recent call last):
properties.laws.Broken: quantizers.no_other_value_is_nearer[int8.channel]: No other value of the element format, times \
the scale, is nearer to an element.
  at        element [0, 1] of a matrix of shape (1, 2), mine: x = 1.75 (float32 0x3fe00000)
  got       1.0
  expected  between 0.5 and 1.5 times the scale: x is 1.75 times
  wrong     1 of 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from properties.laws import Unsupported, law
from properties.laws._blocks import (
    FAMILIES,
    SLACK,
    Rows,
    amax_of,
    blocked,
    ends_of,
    matrices,
    nearest_even,
    neighbours,
    parts_from,
    require,
    same_values,
    spread,
    taken,
    values_from,
)
from properties.laws._grid import answer, same, wide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from properties.laws._blocks import Taken
    from properties.quantizers import Quantization, Quantizer

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]

__all__ = ["FAMILIES", "Rows", "matrices"]

_MX = "OCP MX 1.0"


# --- Codes and values -------------------------------------------------------------------------------------------------


@law("quantizers", source=f"{_MX} 5.2: a value is scale times element; Jacob et al.: (code - zero point) * scale")
def values_are_codes_times_scales(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A value is what its code means, without its zero point, times its scale, rounded once to float32."""
    got = taken(subject, scheme, x.x)
    if got.codes is None:
        raise Unsupported(f"{subject.name} gives no codes of {scheme.name}")
    with np.errstate(over="ignore", invalid="ignore"):
        exact = got.v * got.scale
        expected = wide(exact.astype(np.float32))
        near = np.abs(got.values - exact) <= np.abs(exact) * SLACK + 2.0**-149
    right = same_values(got.values, expected) | ~np.isfinite(got.scale) & np.isnan(got.values)
    if scheme.division != "exact" and scheme.tensor_scale:
        right |= near
    require(right, scheme, x.x, got.values, expected, x.family)


@law("quantizers", source="one quantization, two results")
def fake_quantize_gives_the_values_of_the_codes(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The values of `fake_quantize` are those that `quantize` stores, bit for bit."""
    parts = parts_from(subject, scheme, x.x)
    got = values_from(subject, scheme, x.x)
    require(same(got, wide(parts.values)), scheme, x.x, got, wide(parts.values), x.family)


@law("quantizers", source="the scheme's element format and range")
def values_are_on_the_grid_of_their_scale(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """Every value is one of the element format, in its declared range, times the scale."""
    got = taken(subject, scheme, x.x)
    low, high = ends_of(scheme, got.zero)
    right = (got.v >= low) & (got.v <= high)
    if got.codes is None:
        with np.errstate(over="ignore", invalid="ignore"):
            right &= got.values == wide((got.v * got.scale).astype(np.float32))
    require(right | ~got.good, scheme, x.x, got.values, "a value of the grid", x.family)


@law("quantizers", source="dense storage, least significant bits first")
def packed_codes_are_the_codes(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The bits of the packed bytes, lowest first, are those of the codes, one after the other."""
    parts = parts_from(subject, scheme, x.x)
    if parts.packed is None or parts.codes is None:
        raise Unsupported(f"{subject.name} does not pack {scheme.name}")
    width = scheme.element.bits
    rows, columns = x.x.shape
    stored = columns + (-columns % scheme.block if scheme.padded else 0)
    bits = np.zeros(rows * stored * width, np.uint64)
    given = np.unpackbits(np.ascontiguousarray(parts.packed).view(np.uint8).reshape(-1), bitorder="little")[: bits.size]
    bits[: given.size] = given
    got = (bits.reshape(rows, stored, width) << np.arange(width, dtype=np.uint64)).sum(2)[:, :columns]
    codes = parts.codes.astype(np.uint64)
    require(got == codes, scheme, x.x, got, codes, x.family)


# --- The nearest ------------------------------------------------------------------------------------------------------


def _slack(got: Taken, scheme: Quantization) -> Floats:
    """How far, in x, float32 arithmetic may take an element from where it belongs."""
    if scheme.division == "exact":
        return np.zeros(got.x.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((np.abs(got.x) + np.abs(got.zero) * got.scale) * SLACK)


@law("quantizers", source="IEEE 754-2019 4.3.1, on the grid of the elements")
def no_other_value_is_nearer(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """No other value of the element format, times the scale, is nearer to an element."""
    got = taken(subject, scheme, x.x)
    before, after, _ = neighbours(got.v, scheme)
    low, high = ends_of(scheme, got.zero)
    slack = _slack(got, scheme)
    with np.errstate(all="ignore"):
        left, right = (before + got.v) / 2, (got.v + after) / 2
        right_side = (got.x <= right * got.scale + slack) | (got.v >= high)
        left_side = (got.x >= left * got.scale - slack) | (got.v <= low)
        units = got.x / got.scale
    expected = [
        f"between {a!r} and {b!r} times the scale: x is {u!r} times"
        for a, b, u in zip(left.ravel().tolist(), right.ravel().tolist(), units.ravel().tolist(), strict=True)
    ]
    _require_text((left_side & right_side) | ~got.good, scheme, x, got.v, expected)


def _require_text(right: Bools, scheme: Quantization, x: Rows, got: Floats, expected: list[str]) -> None:
    if not right.all():
        require(right, scheme, x.x, got, np.array(expected, object).reshape(got.shape), x.family)


@law("quantizers", source="IEEE 754-2019 4.3.1", applies=lambda scheme: scheme.ties != "any")
def ties_are_broken_as_declared(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """An element half way between two values goes to the even one, or away, before or after the zero point is added.

    Where float32 divides, only with scales that are powers of two, which it does exactly.
    """
    got = taken(subject, scheme, x.x)
    before, after, even = neighbours(got.v, scheme)
    low, high = ends_of(scheme, got.zero)
    with np.errstate(invalid="ignore", over="ignore"):
        below, above = (got.v + before) / 2 * got.scale == got.x, (got.v + after) / 2 * got.scale == got.x
    tie = (below | above) & got.good
    tie &= np.where(below, before >= low, after <= high)
    if scheme.division != "exact":
        tie &= (np.frexp(got.scale)[0] == 0.5) & (np.abs(got.x) > 2.0**-100)
    if scheme.zero_point_order in ("before_rounding", "fused"):
        even = np.asarray((got.v + got.zero) % 2 == 0)
    elif scheme.zero_point_order == "any":
        tie &= got.zero % 2 == 0
    right = even if scheme.ties == "even" else (below == (got.v > 0))
    require(right | ~tie, scheme, x.x, got.v, f"the {'even' if scheme.ties == 'even' else 'larger'} one", x.family)


@law("quantizers", source="rounding to nearest")
def error_is_at_most_half_a_step(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A value is off by no more than half the distance of the values on both sides of the element, inside the range."""
    got = taken(subject, scheme, x.x)
    low, high = ends_of(scheme, got.zero)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        inside = got.good & (got.x >= low * got.scale) & (got.x <= high * got.scale)
        size = np.maximum(np.frexp(got.x / got.scale)[1] - 1, getattr(scheme.element, "emin", 0))
        digits = 0 if scheme.is_integer else scheme.element.mantissa_bits
        step = 2.0**-scheme.fraction_bits if scheme.is_integer else np.ldexp(1.0, size - digits)
        stored = np.spacing(np.abs(got.values).astype(np.float32)).astype(np.float64)
        limit = step / 2 * got.scale + _slack(got, scheme) + (stored if not scheme.is_power else 0.0)
        right = np.abs(got.x - got.values) <= limit
    right |= ~inside | ~np.isfinite(got.values)
    require(right, scheme, x.x, got.values, f"x, up to {_first(limit, right)!r}", x.family)


def _first(limit: Any, right: Bools) -> float:
    return float(np.broadcast_to(limit, right.shape)[~right][0]) if not right.all() else 0.0


@law("quantizers", source=f"{_MX} 6.3: clamped to the largest magnitude; ONNX QuantizeLinear: saturates")
def elements_are_clipped_at_the_ends(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """An element beyond the largest or least value gets that value."""
    got = taken(subject, scheme, x.x)
    low, high = ends_of(scheme, got.zero)
    slack = _slack(got, scheme)
    with np.errstate(invalid="ignore", over="ignore"):
        above, below = got.x > high * got.scale + slack, got.x < low * got.scale - slack
    right = (~above | (got.v == high)) & (~below | (got.v == low)) | ~got.good
    require(right, scheme, x.x, got.v, np.where(above, high, low), x.family)


@law("quantizers", source="the declared division", applies=lambda scheme: scheme.division in ("divide", "reciprocal"))
def elements_are_those_of_the_declared_order(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """Scale and zero point are used in the declared order, each operation in float32."""
    got = taken(subject, scheme, x.x)
    with np.errstate(all="ignore"):
        scale, zero = got.scale.astype(np.float32), got.zero.astype(np.float32)
        inverse = np.float32(1) / scale
        units = x.x / scale if scheme.division == "divide" else x.x * inverse
        if scheme.zero_point_order == "after_rounding":
            v = nearest_even(wide(units), scheme)
        elif scheme.zero_point_order == "before_rounding":
            v = np.rint(wide(units + zero)) - got.zero
        else:
            v = np.rint(_fused(x.x, inverse, zero)) - got.zero
        expected = np.clip(v, *ends_of(scheme, got.zero))
    right = (got.v == expected) | ~got.good | (scheme.zero_point_order == "any")
    require(right, scheme, x.x, got.v, expected, x.family)


def _fused(x: Array, y: Array, z: Array) -> Floats:
    """x * y + z of float32, rounded once to float32: the sum in float64 is rounded to odd first."""
    product, addend = wide(x) * wide(y), wide(z)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits % 2 == 0) & np.isfinite(total), bits + np.where(toward > 0, 1, -1), bits)
    return wide(odd.view(np.float64).astype(np.float32))


def _reaches_further_down(scheme: Quantization) -> bool:
    return scheme.rule == "ocp_floor" and scheme.is_integer and not scheme.restricted


# --- What changes nothing ---------------------------------------------------------------------------------------------


@law(
    "quantizers",
    source="a value of the grid is exact; under a rule for powers of two, values keep it theirs",
    applies=lambda scheme: bool(scheme.scale) or (scheme.is_power and not _reaches_further_down(scheme)),
)
def what_was_quantized_stays(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """Quantizing values again, with the same scales or with those of a rule for powers of two, changes none.

    The most negative integer is a larger power of two than any other element: where a rule uses it, the scale grows.
    """
    once = values_from(subject, scheme, x.x)
    if not np.isfinite(once).all():
        return
    again = values_from(subject, scheme, once.astype(np.float32))
    right = same_values(again, once)
    require(right, scheme, once.astype(np.float32), again, once, x.family)


@law("quantizers", source="rounding and clipping are monotone functions")
def larger_elements_have_larger_values(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """Of two elements that share a scale, the larger one does not get the smaller value."""
    got = values_from(subject, scheme, x.x)
    numbers, values = blocked(wide(x.x), scheme, np.nan), blocked(got, scheme, np.nan)
    order = np.argsort(numbers, axis=2, kind="stable")
    values = np.take_along_axis(np.where(np.isnan(numbers), np.nan, values), order, 2)
    right = ~(values[:, :, 1:] < values[:, :, :-1])
    if not right.all():
        i, j, k = (int(n) for n in np.argwhere(~right)[0])
        pair = [float(numbers[i, j, order[i, j, n]]) for n in (k, k + 1)]
        low, high = (float(values[i, j, n]) for n in (k, k + 1))
        texts = f"{high!r} of {pair[1]!r}", f"at least {low!r}, that of {pair[0]!r}"
        mark = np.ones(right.shape[:2], bool)
        mark[i, j] = False
        require(mark, scheme, x.x, *texts, x.family)


@law(
    "quantizers",
    source="rounding to nearest and scales of magnitudes do not look at the sign",
    applies=lambda scheme: scheme.symmetric and scheme.element.signed,
)
def opposite_elements_have_opposite_values(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """-x has the values of x with their signs changed, where the element format has both."""
    got, turned = values_from(subject, scheme, x.x), values_from(subject, scheme, -x.x)
    right = same_values(turned, -got)
    if scheme.is_integer and not scheme.restricted:  # the least integer has no opposite
        right |= np.abs(got) != np.minimum(np.abs(got), np.abs(turned))
        right |= np.abs(turned) != np.minimum(np.abs(got), np.abs(turned))
    require(right, scheme, x.x, turned, -got, x.family, "of -x")


@law(
    "quantizers",
    source="the element's row in precision.formats",
    applies=lambda scheme: scheme.element.has_negative_zero,
)
def the_sign_of_zero_is_kept(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """-0, and what is negative and rounds to zero, becomes -0, where the element format has it."""
    with_zero = x.x.copy()
    with_zero[:, 1::2] = np.where(np.abs(with_zero[:, 1::2]) < amax_of(x.x, scheme).max(), -0.0, with_zero[:, 1::2])
    got = taken(subject, scheme, with_zero)
    right = (np.signbit(got.values) == np.signbit(with_zero)) | (got.values != 0) | ~got.good
    require(right, scheme, with_zero, got.values, np.copysign(0.0, with_zero), x.family)


@law("quantizers", source=f"{_MX} 5.2: one scale for k elements", applies=lambda scheme: not scheme.scale)
def order_within_a_block_does_not_matter(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """Elements of a block in another order have the same values in that order, and the block the same scale."""
    full = x.x[:, : x.x.shape[1] // max(scheme.block, 1) * max(scheme.block, 1)]
    if not full.size:
        return
    size = blocked(full, scheme).shape[2]
    order = np.random.default_rng(size).permutation(size)

    def turned(y: Array) -> Array:
        return np.ascontiguousarray(blocked(y, scheme)[:, :, order].reshape(y.shape))

    got, expected = values_from(subject, scheme, turned(full)), turned(values_from(subject, scheme, full))
    require(same(got, expected), scheme, turned(full), got, expected, x.family, "in another order")


@law(
    "quantizers",
    source=f"{_MX} 5.2: a block has its own scale",
    applies=lambda scheme: scheme.granularity != "tensor" and not scheme.tensor_scale and not scheme.scale,
)
def blocks_are_independent(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A block has the same values beside zeros, beside large numbers and alone."""
    got = values_from(subject, scheme, x.x)
    whole = blocked(x.x, scheme)
    rows, count, _ = whole.shape
    chosen = (np.arange(rows)[:, None] + np.arange(count)) % 3 == 1
    mine = spread(chosen, x.x.shape, scheme) if scheme.granularity == "block" else chosen[:, :1] & (x.x == x.x)
    for other in (0.0, 2.0**100):
        changed = np.where(mine, x.x, np.float32(other))
        again = values_from(subject, scheme, changed)
        require(same(again, got) | ~mine, scheme, x.x, again, got, x.family, f"beside blocks of {other!r}")
    width = scheme.block if scheme.granularity == "block" else x.x.shape[1]
    for i, j in {(0, 0), (rows - 1, 0), (rows - 1, count - 1)}:
        part = (slice(i, i + 1), slice(j * width, (j + 1) * width))
        again = values_from(subject, scheme, np.ascontiguousarray(x.x[part]))
        require(same(again, got[part]), scheme, x.x[part], again, got[part], x.family, "the block alone")


@law(
    "quantizers",
    source="precision.schemes: ragged; zeros take no part",
    applies=lambda scheme: scheme.ragged and scheme.granularity == "block",
)
def a_short_last_block_is_as_one_filled_with_zeros(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A row that ends within a block has the values that it has with zeros after it."""
    short = np.ascontiguousarray(x.x[:, : x.x.shape[1] - (2 if x.x.shape[1] % scheme.block else 3)])
    if not short.size:
        return
    filled = np.pad(short, ((0, 0), (0, -short.shape[1] % scheme.block)))
    got, expected = values_from(subject, scheme, short), values_from(subject, scheme, filled)[:, : short.shape[1]]
    require(same(got, expected), scheme, short, got, expected, x.family)


# --- Gradients --------------------------------------------------------------------------------------------------------


def _gradient(subject: Quantizer, scheme: Quantization, x: Rows) -> tuple[Taken, Floats]:
    of = getattr(subject, "gradient", None)
    if of is None:
        raise Unsupported(f"{subject.name} has no gradient()")
    return taken(subject, scheme, x.x), wide(answer(of(x.x.copy(), scheme)))


@law("quantizers", source="Bengio et al., 2013: straight through, where it is not saturated")
def clipped_elements_have_no_gradient(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The gradient is zero for an element that rounding takes beyond the largest or least value."""
    got, gradient = _gradient(subject, scheme, x)
    low, high = ends_of(scheme, got.zero)
    (least, _, _), (_, most, _) = neighbours(low, scheme), neighbours(high, scheme)
    slack = _slack(got, scheme)
    with np.errstate(invalid="ignore", over="ignore"):
        clipped = (got.x > (high + most) / 2 * got.scale + slack) | (got.x < (low + least) / 2 * got.scale - slack)
    require((gradient == 0) | ~(clipped & got.good), scheme, x.x, gradient, np.zeros(gradient.shape), x.family)


@law("quantizers", source="Bengio et al., 2013: straight through")
def elements_inside_the_range_pass_their_gradient(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The gradient of an element between the least and largest value is that of its value."""
    got, gradient = _gradient(subject, scheme, x)
    low, high = ends_of(scheme, got.zero)
    slack = _slack(got, scheme)
    with np.errstate(invalid="ignore", over="ignore"):
        inside = (got.x <= high * got.scale - slack) & (got.x >= low * got.scale + slack) & got.good
    require((gradient == 1) | ~inside, scheme, x.x, gradient, np.ones(gradient.shape), x.family)
