"""The yardstick of the laws on quantizers: matrices that matter, the scale that a rule means, how a failure reads.

A float32 has 24 bits, a scale at most 28, an element at most 17, so that products and midpoints are float64 arithmetic
without an error; exponents are those of `frexp`. Nothing here uses `precision.scaling` or `precision.quantization`.

>>> import numpy as np
>>> from properties.quantizers import OurQuantizer
>>> mxfp4 = OurQuantizer().schemes[0]
>>> expected_scales(np.array([6.0, np.nextafter(np.float32(8), 0), 8.0]), mxfp4)[0]
array([1., 1., 2.])
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from properties.laws import Broken, Unsupported
from properties.laws._grid import answer, magnitude, rounded_size, values_of, wide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from properties.quantizers import Quantization, Quantized, Quantizer

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Array = NDArray[Any]

SLACK = 2.0**-20
"""How far float32 arithmetic in an order that is not declared may be off, relatively."""


class Rows(NamedTuple):
    """A float32 matrix, whose rows are cut into blocks, and what kind of numbers it holds."""

    x: Array
    family: str


# --- What shares a scale ----------------------------------------------------------------------------------------------


def blocked(x: Array, scheme: Quantization, fill: float = 0.0) -> Array:
    """The matrix with its blocks as the last axis: (rows, blocks, elements), ends filled."""
    if scheme.granularity != "block":
        return x.reshape(1, 1, -1) if scheme.granularity == "tensor" else x[:, None, :]
    more = -x.shape[1] % scheme.block
    return np.pad(x, ((0, 0), (0, more)), constant_values=fill).reshape(x.shape[0], -1, scheme.block)


def spread(per_block: Array, shape: tuple[int, ...], scheme: Quantization) -> Array:
    """What is said of each block, (rows, blocks), for each element."""
    if scheme.granularity == "block":
        return np.repeat(per_block, scheme.block, axis=1)[:, : shape[1]]
    return (
        np.broadcast_to(per_block.reshape(-1, 1), shape)
        if scheme.granularity == "channel"
        else (np.broadcast_to(per_block.reshape(1, 1), shape))
    )


def amax_of(x: Array, scheme: Quantization) -> Floats:
    """The largest magnitude of each block: (rows, blocks)."""
    return np.asarray(np.abs(blocked(wide(x), scheme)).max(axis=2, initial=0.0))


# --- The elements -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def integers_of(scheme: Quantization) -> tuple[int, int]:
    """The least and largest integer of an element."""
    return int(scheme.element.min) + scheme.restricted, int(scheme.element.max)


def largest_of(scheme: Quantization) -> float:
    """The largest value of an element."""
    return float(scheme.element.max) * 2.0**-scheme.fraction_bits


@functools.lru_cache(maxsize=64)
def sizes_of(scheme: Quantization) -> Floats:
    """The magnitudes of a float element, in order; their place is the code without its sign."""
    fmt = scheme.element
    return magnitude(np.arange(fmt.max_code + 1), fmt)


def ends_of(scheme: Quantization, zero: Any) -> tuple[Any, Any]:
    """The least and largest value of an element with this zero point."""
    if not scheme.is_integer:
        return -largest_of(scheme) + 0.0 * zero, largest_of(scheme) + 0.0 * zero
    unit = 2.0**-scheme.fraction_bits
    low, high = integers_of(scheme)
    return (low - zero) * unit, (high - zero) * unit


def neighbours(v: Floats, scheme: Quantization) -> tuple[Floats, Floats, Bools]:
    """The values before and after v on the grid of the elements, which goes on above max; and whether v is even."""
    if scheme.is_integer:
        unit = 2.0**-scheme.fraction_bits
        return v - unit, v + unit, np.asarray(v / unit % 2 == 0)
    sizes = np.append(sizes_of(scheme), magnitude(np.array(scheme.element.max_code + 1), scheme.element))
    with np.errstate(invalid="ignore"):
        i = np.minimum(np.searchsorted(sizes, np.abs(v)), sizes.size - 2)
    up, down = sizes[i + 1], np.where(i == 0, -sizes[1], sizes[np.maximum(i - 1, 0)])
    negative = np.signbit(v) & (i > 0)
    return np.where(negative, -up, down), np.where(negative, -down, up), i % 2 == 0


def nearest_even(u: Floats, scheme: Quantization) -> Floats:
    """u rounded to the grid of the elements, which goes on above max."""
    if scheme.is_integer:
        return np.asarray(np.ldexp(np.rint(np.ldexp(u, scheme.fraction_bits)), -scheme.fraction_bits))
    with np.errstate(invalid="ignore"):
        size = rounded_size(u, scheme.element, "nearest_even")
    return np.copysign(np.where(np.isfinite(u), size, np.abs(u)), u)


# --- The scales -------------------------------------------------------------------------------------------------------


def exponents_of(amax: Floats, scheme: Quantization) -> NDArray[np.int64]:
    """The exponent that a rule for powers of two gives for amax above 0, within those of the scale format."""
    fraction, exponent = np.frexp(amax)
    top = largest_of(scheme)
    emax = int(np.frexp(top)[1]) - 1
    if scheme.rule == "nvidia":
        with np.errstate(under="ignore"):
            amax = wide(amax.astype(np.float32) * (np.float32(1) / np.float32(scheme.element.max)))
        fraction, exponent = np.frexp(amax)
        found = np.where(amax == 0, -(1 << 12), exponent - (fraction == 0.5)) + scheme.fraction_bits
    elif scheme.rule == "ceil":
        found = exponent - (fraction == 0.5) - emax
    elif scheme.rule == "even":
        digits = scheme.element.bits - 2 if scheme.is_integer else scheme.element.mantissa_bits
        carried = np.floor(np.ldexp(fraction, digits + 1) + 0.5) == np.ldexp(1.0, digits + 1)
        found = exponent - 1 + carried - emax
    else:
        found = exponent - 1 - emax
        if scheme.rule == "rceil":
            found = found + (amax > np.ldexp(top, found))
    fmt = scheme.scale_format
    low = fmt.emin if fmt.mantissa_bits == 0 else fmt.emin - fmt.mantissa_bits
    return np.asarray(np.clip(found, low, fmt.emax))


def expected_scales(amax: Floats, scheme: Quantization, tensor: float = 1.0) -> tuple[Floats, Floats]:
    """The least and largest scale that a block of this amax above 0 may have: the same one where all is exact."""
    if scheme.is_power:
        found = np.ldexp(1.0, exponents_of(amax, scheme))
        return found, found
    top = _top(scheme)
    slack = 0.0 if scheme.division == "exact" else SLACK
    low, high = (_in_scale_format(amax / (top * tensor) * (1 + sign * slack), scheme) for sign in (-1, 1))
    return low, high


def _top(scheme: Quantization) -> float:
    """What amax is divided by: of unsigned integers the way up from the middle."""
    unsigned = scheme.is_integer and not scheme.element.signed
    return float(scheme.element.max) - (1 << scheme.element.bits >> 1) if unsigned else largest_of(scheme)


def _in_scale_format(q: Floats, scheme: Quantization) -> Floats:
    fmt = scheme.scale_format
    found = np.minimum(rounded_size(q, fmt, "nearest_even"), fmt.max)
    return np.maximum(found, scheme.smallest_scale)


# --- Asking -----------------------------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """What a quantizer made of a matrix: for each element unless said otherwise, in float64."""

    x: Floats
    values: Floats  # as it gave them
    v: Floats  # the element's value, without its zero point
    scale: Floats  # times that of the tensor
    zero: Floats
    scales: Floats  # of the blocks, (rows, blocks)
    zeros: Floats
    tensor: float
    codes: Array | None

    @property
    def good(self) -> Bools:
        """Which elements are numbers of a block with a positive scale."""
        with np.errstate(invalid="ignore"):
            return np.isfinite(self.x) & (self.scale > 0) & np.isfinite(self.scale)


def values_from(subject: Quantizer, scheme: Quantization, x: Array) -> Floats:
    """What the subject's `fake_quantize` gives, as float64."""
    got = answer(subject.fake_quantize(x.copy(), scheme))
    _shape(scheme, x, "values", got, x.shape)
    return wide(got)


def _shape(scheme: Quantization, x: Array, what: str, got: Array, shape: tuple[int, ...]) -> None:
    if got.shape != shape:
        where = f"a matrix of shape {x.shape}"
        raise Broken(where=where, got=f"{what} of shape {got.shape}", expected=f"shape {shape}", fmt=scheme.name)


def parts_from(subject: Quantizer, scheme: Quantization, x: Array) -> Quantized:
    """What the subject's `quantize` gives, as arrays of the right shapes."""
    quantize = getattr(subject, "quantize", None)
    if quantize is None:
        raise Unsupported(f"{subject.name} has no quantize()")
    found: Quantized = quantize(x.copy(), scheme)
    found = found._replace(**{k: answer(part) for k, part in found._asdict().items() if part is not None})
    _shape(scheme, x, "values", found.values, x.shape)
    if found.codes is not None:
        _shape(scheme, x, "codes", found.codes, x.shape)
    shapes = {"tensor": (), "channel": x.shape[:1], "block": (x.shape[0], -(-x.shape[1] // max(scheme.block, 1)))}
    for name in ("scales", "zero_points"):
        part = getattr(found, name)
        if part is not None:
            _shape(scheme, x, name, part, shapes[scheme.granularity])
    return found


def taken(subject: Quantizer, scheme: Quantization, x: Array) -> Taken:
    """A quantized matrix with its scales; Unsupported where they are neither given nor told."""
    if getattr(subject, "quantize", None) is None or scheme.scale:
        try:
            parts = parts_from(subject, scheme, x)
        except Unsupported:
            parts = None
    else:
        parts = parts_from(subject, scheme, x)
    if parts is None or parts.scales is None:
        if not scheme.scale:
            raise Unsupported(f"{subject.name} does not tell the scales of {scheme.name}")
        scales = wide(np.array(scheme.scale, np.float32))
        zeros = wide(np.array(scheme.zero_point or (0,) * len(scheme.scale)))
        values = values_from(subject, scheme, x) if parts is None else wide(parts.values)
        codes = None if parts is None else parts.codes
    else:
        scales, values, codes = wide(parts.scales), wide(parts.values), parts.codes
        zeros = np.zeros(scales.shape) if parts.zero_points is None else wide(parts.zero_points)
    tensor = 1.0 if parts is None or parts.tensor_scale is None else float(parts.tensor_scale)
    shape = (-1, 1) if scheme.granularity == "channel" else (1, 1) if scheme.granularity == "tensor" else scales.shape
    scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    scale, zero = (spread(part, x.shape, scheme) for part in (scales * tensor, zeros))
    if codes is not None:
        v = values_of(codes, scheme.element) * 2.0**-scheme.fraction_bits - zero
        if not scheme.is_integer:
            v = v + 0.0 * zero if zeros.any() else values_of(codes, scheme.element)
    else:
        with np.errstate(all="ignore"):
            v = nearest_even(values / scale, scheme)
    return Taken(wide(x), values, v, scale, zero, scales, zeros, tensor, codes)


# --- How a failure reads ----------------------------------------------------------------------------------------------


def require(right: Bools, scheme: Quantization, x: Array, got: Any, expected: Any, family: str, *notes: str) -> None:
    """Raise Broken for the element (or, of a matrix of (rows, blocks), the block) that is easiest to read."""
    if np.all(right):
        return
    right, got = np.broadcast_to(right, np.shape(right)), np.asarray(got)
    wrong = np.argwhere(~np.atleast_2d(right))
    of_blocks = np.atleast_2d(right).shape != x.shape
    size = amax_of(x, scheme) if of_blocks else np.abs(wide(x))
    if size.shape == np.atleast_2d(right).shape:
        with np.errstate(all="ignore"):
            keys = [abs(np.log2(size[tuple(i)])) if 0 < size[tuple(i)] < np.inf else 2000.0 for i in wrong]
        first = tuple(int(k) for k in wrong[int(np.argmin(keys))])
    else:
        first = tuple(int(k) for k in wrong[0])

    def at(part: Any) -> str:
        if isinstance(part, str):
            return part
        found = np.atleast_2d(np.asarray(part))
        one = found[first] if found.shape == np.atleast_2d(right).shape else found.ravel()[0]
        return one if isinstance(one, str) else repr(one.item())

    if of_blocks:
        block = blocked(x, scheme)
        of = block[first] if first < block.shape[:2] else block[0, 0]
        largest = float(of[np.abs(of).argmax()])
        where = f"block {list(first)} of a matrix of shape {x.shape}, {family}: largest element {_text(largest)}"
    else:
        where = f"element {list(first)} of a matrix of shape {x.shape}, {family}: x = {_text(float(x[first]))}"
    raise Broken(
        where=where,
        got=at(got),
        expected=at(expected),
        fmt=scheme.name,
        notes=notes,
        wrong=int((~right).sum()),
        of=int(right.size),
    )


def _text(x: float) -> str:
    return f"{x!r} (float32 {int(np.float32(x).view(np.uint32)):#010x})"


# --- Matrices that matter ---------------------------------------------------------------------------------------------

FAMILIES = ("normal", "ties", "powers", "shifted", "wide", "tiny", "huge", "zeros", "ragged")
"""Kinds of matrices; "ties" are numbers at and beside midpoints and values of the elements, in units of the scale;
"shifted" rows do not reach zero."""


def shape_of(scheme: Quantization, blocks: int = 4) -> tuple[int, int]:
    """A small matrix: rows of some blocks."""
    rows = len(scheme.scale) if len(scheme.scale) > 1 else 1 if scheme.granularity == "tensor" else 6
    return rows, scheme.block * blocks if scheme.granularity == "block" else 48


def matrices(scheme: Quantization, *, each: int = 1, seed: int = 0) -> list[Rows]:
    """Matrices of every family, `each` of a family; more where one matrix has one scale."""
    random = np.random.default_rng(seed)
    many = each * (3 if scheme.granularity == "tensor" else 1)
    return [drawn(scheme, family, random) for family in families(scheme) for _ in range(many)]


def families(scheme: Quantization) -> tuple[str, ...]:
    """The families that a scheme speaks about: float32 arithmetic of two scales is lost among subnormals."""
    lost = scheme.tensor_scale and scheme.division != "exact"
    return tuple(family for family in FAMILIES if not (lost and family == "tiny"))


def drawn(scheme: Quantization, family: str, random: np.random.Generator) -> Rows:
    """A matrix of a family."""
    rows, columns = shape_of(scheme)
    x = random.standard_normal((rows, columns))
    if scheme.scale:
        return Rows(_given(scheme, family, x, random), family)
    if family == "shifted":
        x = (np.abs(x) + 1) * random.choice([-1.0, 3.0], (rows, 1))
    elif family in ("normal", "zeros", "ragged"):
        x = x * np.exp2(random.integers(-8, 9, (rows, 1)))
    elif family in ("ties", "powers"):
        amax = np.exp2(random.integers(-20, 21, amax_of(x, scheme).shape)) * random.choice(
            [1.0, 1.5, 1.75, largest_of(scheme) * 2.0**-3, float(random.uniform(1, 2))], amax_of(x, scheme).shape
        )
        if family == "powers":
            amax = _nudged(np.exp2(random.integers(-20, 21, amax.shape)), random)
        x = at_ties(x.shape, scheme, wide(amax.astype(np.float32)), random)
    elif family in ("tiny", "huge"):
        low, high = (-149, -118) if family == "tiny" else (96, 120)
        power = np.exp2(random.integers(low, high, (rows, 1)).astype(np.float64))
        power[0] = 1.4 * 2.0 ** (-126 if family == "tiny" else 119)  # about the least scale of E8M0
        x = x * power
    elif family == "wide":
        bits = random.integers(0, 1 << 32, (rows, columns), np.uint64).astype(np.uint32)
        x = wide(bits.view(np.float32))
        x = np.where(np.isfinite(x), x, 1.0)
        x[0, [0, 3]] = 3e38, -3e38  # a range that float32 does not hold
    if family == "zeros":
        whole = blocked(x, scheme).copy()
        whole[:, ::2] *= 0.0
        whole[:, :, 1::3] *= 0.0
        x = whole.reshape(rows, -1)[:, :columns]
    if family == "ragged" and scheme.ragged:
        x = x[:, : columns - scheme.block // 2 - 1]
    with np.errstate(over="ignore"):
        return Rows(np.clip(x, -3.0e38, 3.0e38).astype(np.float32), family)


def _nudged(x: Array, random: np.random.Generator) -> Array:
    steps = random.choice([-44, -2, -1, 0, 1, 2], x.shape)
    return (x.astype(np.float32).view(np.int32) + steps.astype(np.int32)).view(np.float32)


def at_ties(shape: tuple[int, int], scheme: Quantization, amax: Floats, random: np.random.Generator) -> Array:
    """Elements at midpoints and values of the grid of blocks of these amax, and beside them; amax stands in each."""
    low, high = (
        expected_scales(amax, scheme) if scheme.rule not in ("ends", "any") else (amax / largest_of(scheme),) * 2
    )
    scale = spread(np.asarray((low + high) / 2), shape, scheme)
    v = nearest_even(random.uniform(-1, 1, shape) ** random.choice([1, 3], shape) * largest_of(scheme) * 1.1, scheme)
    before, after, _ = neighbours(v, scheme)
    point = np.where(random.random(shape) < 0.4, (v + after) / 2, np.where(random.random(shape) < 0.5, v, before))
    with np.errstate(all="ignore"):
        x = (point * scale).astype(np.float32)
    x = (x.view(np.int32) + random.integers(-1, 2, shape).astype(np.int32)).view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(0))
    limit = spread(amax, shape, scheme)
    whole = blocked(np.clip(x, -limit, limit), scheme).copy()
    whole[np.arange(whole.shape[0])[:, None], np.arange(whole.shape[1]), random.integers(0, whole.shape[2])] = amax
    return np.asarray(whole.reshape(shape))


def _given(scheme: Quantization, family: str, x: Array, random: np.random.Generator) -> Array:
    """Numbers for a scale that does not follow them."""
    scale = np.array(scheme.scale, np.float32).reshape(-1, 1)
    zero = np.array(scheme.zero_point or (0,)).reshape(-1, 1)
    low, high = ends_of(scheme, zero)
    step = random.integers(-4, 5, x.shape) / 2
    if family in ("ties", "powers", "ragged"):
        point = np.floor(random.uniform(low - 3, high + 4, x.shape)) + 0.5 * (family != "powers")
        found = (point * scale).astype(np.float32)
        found = (found.view(np.int32) + random.integers(-1, 2, x.shape).astype(np.int32)).view(np.float32)
        beside = (random.random(x.shape) < 0.6) & np.isfinite(found)  # what is one step below the pattern of 0 is NaN
        return np.where(beside, found, (point * scale).astype(np.float32))
    if family in ("tiny", "huge", "wide"):
        power = {"tiny": (-149, 0), "huge": (8, 127), "wide": (-10, 40)}[family]
        return (x * np.exp2(random.integers(*power, x.shape)) / 8).astype(np.float32)
    if family == "zeros":
        return (np.where(random.random(x.shape) < 0.5, 0.0, step) * np.sign(x) * scale).astype(np.float32)
    return np.asarray((x * (high - low) / 3 * scale).astype(np.float32))


def with_amax(scheme: Quantization, amax: Array) -> list[Array]:
    """Matrices whose blocks have these largest magnitudes, in order, in different places; one each of "tensor"."""
    width = scheme.block if scheme.granularity == "block" else 16
    share = np.resize(np.array([0.0, 0.5, -0.25, 0.123, 0.9, -1.0, 0.0078125], np.float32), width)
    with np.errstate(under="ignore"):
        x = (amax.astype(np.float32)[:, None] * share).astype(np.float32)
    i = np.arange(amax.size)
    x[i, i % width] = np.where(i % 3 == 0, -amax, amax)
    return [x] if scheme.granularity != "tensor" else [row[None] for row in x]


def amaxes(scheme: Quantization) -> Array:
    """Powers of two and the largest element value times them, with their neighbours, from 2^-149 to float32's max."""
    few = scheme.granularity == "tensor"
    k = np.array([-126, -100, -30, -3, 0, 1, 7, 60, 126]) if few else np.arange(-149, 128)
    tops = np.array([1.0, largest_of(scheme) / 2.0 ** np.floor(np.log2(largest_of(scheme)))])
    found = []
    for top, steps in zip(tops, ([-44, -20, -2, -1, 0, 1], [-1, 0, 1, 2]), strict=True):
        points = np.ldexp(top, k)
        bits = points[points >= 2.0**-149].astype(np.float32).view(np.int32).astype(np.int64)
        found.append((bits[:, None] + (np.array([-1, 0, 1]) if few else np.array(steps))).ravel())
    near = np.unique(np.concatenate(found))
    near = near[(near > 0) & (near < 0x7F000000)].astype(np.int32)
    return np.asarray(near.view(np.float32))


def told_exactly(scheme: Quantization) -> bool:
    """Whether the rule of the scales is claimed."""
    return scheme.rule not in ("any", "given")


def same_values(a: Floats, b: Floats) -> Bools:
    """Equal numbers (zeros of any sign), any NaN like any other."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
