"""Laws of the scales and zero points of quantizers, and of what is zero, infinite or no number.

Laws of "scales" are called as `law(subject, scheme, x)`, as those of `properties.laws.quantizers`; laws of "extremes"
as `law(subject, scheme)`: they bring blocks whose largest magnitudes stand beside powers of two, zeros, Inf and NaN.

Sources: OCP Microscaling Formats (MX) v1.0, 6.3; NVIDIA, arXiv 2509.25149 (NVFP4); Jacob et al., arXiv 1712.05877, and
ONNX QuantizeLinear (zero points); the rules as `precision.scaling.power_of_two` defines them.

>>> from properties.laws import laws
>>> from properties.quantizers import OurQuantizer
>>> ours = OurQuantizer()
>>> right, mxfp4 = ours.quantize, ours.schemes[0]
>>> def by_logarithm(x, scheme):  # in float32, as some libraries do
...     q = right(x, scheme)
...     amax = np.abs(x).max(1, keepdims=True)
...     return q._replace(scales=np.exp2(np.clip(np.floor(np.log2(amax)) - 2, -127, 127)).astype(np.float32))
>>> ours.quantize = by_logarithm
>>> laws("extremes")["exponents_are_right_beside_powers_of_two"](ours, mxfp4)
Traceback (most recent call last):
properties.laws.Broken: extremes.exponents_are_right_beside_powers_of_two[mxfp4]: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from properties.laws import law
from properties.laws._blocks import (
    SLACK,
    Rows,
    amax_of,
    amaxes,
    blocked,
    drawn,
    ends_of,
    expected_scales,
    integers_of,
    largest_of,
    require,
    same_values,
    shape_of,
    spread,
    taken,
    told_exactly,
    values_from,
    with_amax,
)
from properties.laws._grid import on_grid, same, wide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from properties.laws._blocks import Taken
    from properties.quantizers import Quantization, Quantizer

    Floats = NDArray[np.float64]
    Array = NDArray[Any]

_MX = "OCP MX 1.0 6.3"


def _is_measured(scheme: Quantization) -> bool:
    return not scheme.scale


def _is_by_amax(scheme: Quantization) -> bool:
    return told_exactly(scheme) and scheme.rule != "ends"


# --- Scales -----------------------------------------------------------------------------------------------------------


@law("scales", source=f"{_MX}; precision.scaling.power_of_two; precision.schemes", applies=_is_by_amax)
def scales_follow_the_declared_rule(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The scale of a block is what the declared rule makes of its largest magnitude, rounded once to its format."""
    _follow_the_rule(taken(subject, scheme, x.x), scheme, x)


def _follow_the_rule(got: Taken, scheme: Quantization, x: Rows) -> None:
    amax = amax_of(x.x, scheme)
    some = amax > 0
    low, high = expected_scales(np.where(some, amax, 1.0), scheme, got.tensor)
    right = (got.scales >= low) & (got.scales <= high)
    if not scheme.is_power:  # what underflows may be the smallest scale
        right |= (low == 0) & (got.scales == scheme.scale_format.smallest_subnormal)
    require(right | ~some, scheme, x.x, got.scales, low, x.family)


@law(
    "scales",
    source="Jacob et al., 2.3; ONNX QuantizeLinear: scale and zero point",
    applies=lambda scheme: scheme.rule == "ends",
)
def scales_and_zero_points_hold_the_range(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """An affine scale is the range, made to hold zero, over the number of steps; the zero point is where zero falls."""
    got = taken(subject, scheme, x.x)
    low, high = np.minimum(blocked(wide(x.x), scheme).min(2), 0), np.maximum(blocked(wide(x.x), scheme).max(2), 0)
    qmin, qmax = integers_of(scheme)
    exact = (high - low) / (qmax - qmin)
    slack = 2.0**-50 if scheme.division == "exact" else 2.0**-22
    fmt = scheme.scale_format
    tiny = fmt.smallest_subnormal
    with np.errstate(over="ignore"):
        least, most = (np.maximum(exact * (1 + s * slack), scheme.smallest_scale) for s in (-1, 1))
        ends = [wide(y.astype(np.float32)) if fmt.name == "float32" else y for y in (least, most)]
    right = (got.scales >= ends[0]) & (got.scales <= np.maximum(ends[1], tiny)) | (high == low)
    require(right, scheme, x.x, got.scales, exact, x.family)
    with np.errstate(all="ignore"):
        zero = qmin - low / got.scales
    right = np.abs(got.zeros - np.clip(zero, qmin, qmax)) <= 0.5 + 256 * slack
    require(right | (high == low), scheme, x.x, got.zeros, np.clip(np.rint(zero), qmin, qmax), x.family, "zero point")


@law("scales", source="the scheme's scale format", applies=_is_measured)
def scales_are_values_of_their_format(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A scale is a number of the declared format, not negative; a power of two where the rule makes such."""
    got = taken(subject, scheme, x.x)
    fmt, scales = scheme.scale_format, got.scales
    right = on_grid(scales, fmt) & (scales >= 0) & (scales <= fmt.max) & ~np.signbit(scales)
    right &= (scales > 0) | (fmt.zero and not scheme.is_power)
    if scheme.is_power:
        right &= np.frexp(scales)[0] == 0.5
    require(right, scheme, x.x, scales, f"a value of {fmt.name}", x.family)


@law("scales", source="NVIDIA, 2025: the second level of NVFP4", applies=lambda scheme: scheme.tensor_scale)
def the_tensor_scale_is_that_of_its_largest_element(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """The scale of the tensor takes its largest element to the largest element value times the largest scale."""
    got = taken(subject, scheme, x.x)
    amax = float(np.abs(wide(x.x)).max(initial=0))
    exact = amax / (largest_of(scheme) * scheme.scale_format.max)
    slack = 0.0 if scheme.division == "exact" else SLACK
    low, high = (float(np.float32(exact * (1 + s * slack))) for s in (-1, 1))
    right = np.array([[low <= got.tensor <= high or exact < 2.0**-126]])
    require(right, scheme, x.x, got.tensor, low, x.family, f"amax of the tensor is {amax!r}")


@law("scales", source="exponents do not change significands", applies=_is_measured)
def powers_of_two_scale(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A matrix times a power of two has its values and scales times that, where none leaves its range."""
    amax = amax_of(x.x, scheme)
    if not (amax > 0).any():
        return
    smallest, largest = amax[amax > 0].min(), amax.max()
    fmt = scheme.scale_format
    floor = -100.0 if fmt.name in ("float32", "float8_e8m0fnu") or scheme.tensor_scale else fmt.emin + 8.0
    ceiling = 120.0 if fmt.bits == 32 or scheme.tensor_scale else min(fmt.emax + 2.0, 120.0)
    got = None
    for k in (1, -3, 5):
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(x.x, k)
        if not (np.ldexp(scaled, -k) == x.x).all() or min(k, 0) + np.log2(smallest) < floor:
            continue
        if max(k, 0) + np.log2(largest) > ceiling or scheme.smallest_scale > 1e-9:
            continue
        got = taken(subject, scheme, x.x) if got is None else got
        again = taken(subject, scheme, scaled)
        scale, expected = again.scales * again.tensor, np.ldexp(got.scales * got.tensor, k)
        some = amax > 0
        require(~some | (scale == expected), scheme, scaled, scale, expected, x.family, f"times 2^{k}: the scale")
        values = np.ldexp(got.values, k)
        ok = (again.values == values) | (np.abs(values) < 2.0**-120)
        require(ok, scheme, scaled, again.values, values, x.family, f"times 2^{k}")


@law("scales", source="Jacob et al., 2.1: zero is exactly represented", applies=lambda scheme: scheme.is_integer)
def zero_is_exact(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """0.0 gets the value 0.0, whatever else is in its block, and -0.0, too."""
    some = x.x.copy()
    some[:, 1::3], some[:, 2::3] = 0.0, -0.0
    got = values_from(subject, scheme, some)
    require((got == 0) | (some != 0), scheme, some, got, np.zeros(got.shape), x.family)


@law(
    "scales",
    source="ONNX QuantizeLinear: the zero point is of the type of the result",
    applies=lambda scheme: scheme.is_integer and not scheme.symmetric,
)
def zero_points_are_integers_of_the_element(subject: Quantizer, scheme: Quantization, x: Rows) -> None:
    """A zero point is an integer in the range of the elements; it is the element of 0.0."""
    some = x.x.copy()
    some[:, 1::3] = 0.0
    got = taken(subject, scheme, some)
    low, high = integers_of(scheme)
    right = (got.zeros >= low) & (got.zeros <= high) & (got.zeros == np.rint(got.zeros))
    require(right, scheme, some, got.zeros, f"an integer from {low} to {high}", x.family)
    require((got.v == 0) | (some != 0), scheme, some, got.v + got.zero, got.zero, x.family)


# --- Extremes ---------------------------------------------------------------------------------------------------------


@law("extremes", source=f"{_MX}: floor(log2 amax), of amax as it is", applies=lambda scheme: scheme.is_power)
def exponents_are_right_beside_powers_of_two(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """The exponent of a scale is right where amax is at, or a few float32 steps beside, a power of two or max times it.

    A logarithm in float32 is wrong up to 44 steps below.
    """
    for x in with_amax(scheme, amaxes(scheme)):
        _follow_the_rule(taken(subject, scheme, x), scheme, Rows(x, "beside powers of two"))


@law(
    "extremes",
    source="the rule: the smallest power of two that clips nothing",
    applies=lambda scheme: scheme.rule in ("rceil", "ceil"),
)
def the_largest_element_is_not_clipped(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """Rounding up gives a scale under which amax is no more than the largest element value."""
    for x in with_amax(scheme, amaxes(scheme)):
        got = taken(subject, scheme, x)
        amax = amax_of(x, scheme)
        limit = got.scales * largest_of(scheme)
        require(amax <= limit, scheme, x, limit, "the largest element or more", "beside powers of two", "scale * max")


@law("extremes", source="a scale is a monotone function of amax", applies=_is_measured)
def larger_blocks_have_larger_scales(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """Of two blocks with the same proportions, the one of the larger amax does not get the smaller scale."""
    size = np.sort(np.concatenate([amaxes(scheme), np.linspace(1, 9, 33, dtype=np.float32)]))
    size = size[(size > 2.0**-100) & (size < 2.0**100)]
    width = scheme.block if scheme.granularity == "block" else 16
    share = np.zeros(width, np.float32)
    share[0], share[1] = 1.0, -0.5
    x = size[:, None] * share
    parts = [x] if scheme.granularity != "tensor" else [row[None] for row in x]
    scales = np.concatenate([(t.scales * t.tensor).ravel() for t in (taken(subject, scheme, y) for y in parts)])
    right = np.append(np.diff(scales) >= 0, True)
    expected = np.append(scales[1:], scales[-1])
    if scheme.granularity == "tensor" and not right.all():
        i = int(np.argmin(right))
        found = Rows(parts[i], "")
        require(np.array([[False]]), scheme, found.x, scales[i], f"at most {expected[i]!r}", "one of many")
    require(right.reshape(-1, 1), scheme, x, scales.reshape(-1, 1), "at most that of the next larger block", "growing")


@law("extremes", source=f"{_MX}: zeros are zeros, whatever the scale")
def zeros_give_zeros(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """Blocks of zeros are zeros, never NaN, beside others and when there is nothing else; their scale is a number."""
    rows, columns = shape_of(scheme)
    x = np.ones((rows, columns), np.float32)
    whole = blocked(x, scheme).copy()
    whole[:, ::2] = 0.0
    some = whole.reshape(-1)[: x.size].reshape(x.shape).copy()
    for y in (np.zeros_like(x), -np.zeros_like(x), some):
        values = values_from(subject, scheme, y)
        require((values == 0) | (y != 0), scheme, y, values, np.zeros(x.shape), "zeros")
        if callable(getattr(subject, "quantize", None)) and not scheme.scale:
            scales = taken(subject, scheme, y).scales
            require(np.isfinite(scales), scheme, y, scales, "a number", "zeros", "the scale")


def _with(scheme: Quantization, value: float) -> tuple[Array, Array]:
    """A matrix with one such element in the middle of every second block, and where it stands."""
    random = np.random.default_rng(1)
    x = drawn(scheme, "normal", random).x
    whole = blocked(x, scheme).copy()
    mark = np.zeros(whole.shape, bool)
    mark[:, ::2, whole.shape[2] // 2] = True
    whole[mark] = value
    return whole.reshape(x.shape), mark.reshape(x.shape)


@law("extremes", source="ONNX QuantizeLinear: saturates", applies=lambda scheme: scheme.infinity == "clip")
def infinities_go_to_the_end_of_their_sign(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """+Inf becomes the largest value, -Inf the least, and no other element is touched."""
    for value in (np.inf, -np.inf):
        x, mark = _with(scheme, value)
        got = taken(subject, scheme, x)
        before = values_from(subject, scheme, np.where(mark, np.float32(0), x))
        v = ends_of(scheme, got.zero)[int(value > 0)]
        with np.errstate(invalid="ignore"):
            expected = np.where(mark, wide((v * got.scale).astype(np.float32)), before)
        require(same_values(got.values, expected), scheme, x, got.values, expected, "infinities")


@law(
    "extremes",
    source="precision.schemes: missing_nan; the library's documents",
    applies=lambda scheme: bool(scheme.scale) and scheme.nan != "any",
)
def nan_becomes_what_is_declared(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """A NaN becomes 0.0, the integer 0, the largest or the least value, as declared, whatever its sign and payload."""
    for bits in (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF):
        nan = np.array(bits, np.uint32).view(np.float32)
        x, mark = _with(scheme, 1.0)
        x[mark] = nan
        got = taken(subject, scheme, x)
        low, high = ends_of(scheme, got.zero)
        v = {"zero": 0 * got.zero, "integer_zero": -got.zero, "max": high, "min": low}[scheme.nan]
        expected = np.where(mark, wide((v * got.scale).astype(np.float32)), got.values)
        require(same_values(got.values, expected), scheme, x, got.values, expected, f"NaN of bits {bits:#x}")


@law(
    "extremes",
    source="precision.schemes: nonfinite",
    applies=lambda scheme: _is_measured(scheme) and scheme.infinity == "nan" and not scheme.tensor_scale,
)
def blocks_with_infinities_or_nan_are_nan(subject: Quantizer, scheme: Quantization, _: None = None) -> None:
    """An Inf or NaN makes every value of its block NaN, and touches no other block."""
    for value in (np.inf, -np.inf, np.nan):
        x, mark = _with(scheme, value)
        hit = spread(np.asarray(blocked(mark, scheme).any(2)), x.shape, scheme)
        got = values_from(subject, scheme, x)
        before = values_from(subject, scheme, np.where(mark, np.float32(0), x))
        right = np.where(hit, np.isnan(got), same(got, before))
        require(right, scheme, x, got, np.where(hit, np.nan, before), f"blocks with {value!r}")
