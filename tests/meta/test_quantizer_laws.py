"""Every law on quantizers fails on a planted bug, every bug dies, ours passes all, and peers fail only where we say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import precision as P
import properties
from properties.kinds import KINDS
from properties.laws import laws
from properties.quantizers import OurQuantizer, Quantization, Quantized
from properties.subjects import load

Array = np.ndarray[Any, Any]

E2M1, E4M3, E8M0 = (P.get_format(name) for name in ("float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu"))
INT8, UINT8, INT4 = (P.get_format(name) for name in ("int8", "uint8", "int4"))

# Schemes of every kind, in small blocks.
BLOCK: dict[str, Any] = {"granularity": "block", "block": 8, "ragged": True}
FP4 = Quantization("fp4", E2M1, scale_format=E8M0, rule="ocp_floor", **BLOCK)
UP = replace(FP4, name="up", rule="rceil")
CEIL = replace(FP4, name="ceil", rule="ceil")
EVEN = replace(FP4, name="even", rule="even")
NVIDIA = replace(FP4, name="nvidia", rule="nvidia")
TWO = Quantization("two", E2M1, scale_format=E4M3, tensor_scale=True, **BLOCK)
CHANNEL = Quantization("channel", INT8, granularity="channel")
TENSOR = Quantization("tensor", E4M3)
AFFINE = Quantization("affine", INT4, rule="ends", symmetric=False, **BLOCK)
GIVEN = Quantization(
    "given", UINT8, rule="given", symmetric=False, scale=(0.5,), zero_point=(127,), infinity="clip", nan="zero"
)
DIVIDE = replace(GIVEN, name="divide", scale=(0.1,), division="divide")
RECIPROCAL = replace(GIVEN, name="reciprocal", scale=(0.1,), division="reciprocal")
FUSED = replace(RECIPROCAL, name="fused", zero_point_order="fused")
SUMMED = replace(GIVEN, name="summed", division="divide", zero_point_order="before_rounding")
NARROW = replace(GIVEN, name="narrow", element=INT8, restricted=True, zero_point=(0,), symmetric=True)
EVERY = (
    FP4, UP, CEIL, EVEN, NVIDIA, TWO, CHANNEL, TENSOR, AFFINE, GIVEN, DIVIDE, RECIPROCAL, FUSED, SUMMED, NARROW,
)  # fmt: skip


class Plain:
    """A quantizer in plain NumPy, one step a method: where bugs are planted."""

    name = "plain"
    version = "1"
    findings: ClassVar[dict[str, str]] = {}

    def __init__(self, *schemes: Quantization) -> None:
        self.schemes = schemes or EVERY
        self.formats = tuple(dict.fromkeys(s.element for s in self.schemes))

    # Blocks and scales

    def width(self, x: Array, s: Quantization) -> int:
        return s.block if s.granularity == "block" else x.shape[1]

    def cut(self, x: Array, s: Quantization) -> Array:
        if s.granularity == "tensor":
            return x.reshape(1, 1, -1)
        width = self.width(x, s)
        return np.pad(x, ((0, 0), (0, -x.shape[1] % width))).reshape(x.shape[0], -1, width)

    def amax(self, view: Array, s: Quantization) -> Array:
        return np.abs(view).max(2, keepdims=True)

    def exponent(self, amax: Array, s: Quantization) -> Array:
        fraction, exponent = np.frexp(amax)
        if s.rule == "ceil":
            return exponent - (fraction == 0.5) - 2
        if s.rule == "even":  # E2M1: one bit after the point
            return exponent - 1 + (fraction >= 0.875) - 2
        if s.rule == "rceil":
            return exponent - 1 + (fraction > 0.75) - 2
        if s.rule == "nvidia":
            fraction, exponent = np.frexp(amax.astype(np.float32) * (np.float32(1) / np.float32(6)))
            return np.where(fraction == 0, -999, exponent - (fraction == 0.5))
        return exponent - 1 - 2

    def tensor_scale(self, view: Array, s: Quantization) -> Any:
        amax = np.float32(np.float64(np.abs(view).max()) / (6 * 448))
        return amax if amax > 0 else np.float32(1)

    def zero_range(self, view: Array) -> tuple[Array, Array]:
        return np.minimum(view.min(2, keepdims=True), 0), np.maximum(view.max(2, keepdims=True), 0)

    def zero_of(self, low: Array, scale: Array, s: Quantization) -> Array:
        qmin, qmax = int(s.element.min), int(s.element.max)
        return np.clip(np.rint(qmin - low / scale), qmin, qmax)

    def scales(self, view: Array, s: Quantization) -> tuple[Array, Array, Any]:
        """Scales and zero points, and the tensor's scale, for a float64 view."""
        none = np.zeros((view.shape[0], view.shape[1], 1))
        if s.scale:
            return none + np.float64(np.float32(s.scale[0])), none + s.zero_point[0], None
        bad = ~np.isfinite(view).all(2, keepdims=True)
        view = np.where(bad, 0.0, view)
        zero, tensor = none, None
        if s.rule == "ends":
            low, high = self.zero_range(view)
            scale = ((high - low) / (int(s.element.max) - int(s.element.min))).astype(np.float32).astype(np.float64)
            scale = np.where(high == low, 1.0, np.maximum(scale, 2.0**-149))
            zero = self.zero_of(low, scale, s)
        elif s.rule != "amax":
            scale = self.power(np.clip(self.exponent(self.amax(view, s), s), -127, 127))
        else:
            amax = self.amax(view, s)
            tensor = self.tensor_scale(view, s) if s.tensor_scale else None
            scale = self.fitted(amax / (float(s.element.max) * (1.0 if tensor is None else float(tensor))), s)
            scale = scale if s.tensor_scale else np.where(amax == 0, 1.0, np.maximum(scale, 2.0**-149))
        return np.where(bad, np.nan, scale), zero, tensor

    def power(self, exponent: Array) -> Array:
        return np.ldexp(1.0, exponent)

    def fitted(self, scale: Array, s: Quantization) -> Array:
        if s.scale_format.name == "float32":
            return scale.astype(np.float32).astype(np.float64)
        return self.table(np.minimum(scale, 448), np.arange(127), E4M3)

    # Elements

    def table(self, u: Array, codes: Array, fmt: Any) -> Array:
        """u to the nearest of the format's values of these codes, ties to the even code."""
        values = P.decode(codes.astype(np.uint8), fmt).astype(np.float64)
        middle = (values[:-1] + values[1:]) / 2
        low, high = (np.searchsorted(middle, np.abs(u), side) for side in ("left", "right"))
        return np.copysign(values[np.where(low % 2 == 0, low, high)], u)

    def units(self, x: Array, scale: Array, s: Quantization) -> Array:
        if s.division == "divide":
            return (x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)
        if s.division == "reciprocal":
            return (x.astype(np.float32) * (np.float32(1) / scale.astype(np.float32))).astype(np.float64)
        return x / np.where(scale == 0, 2.0**-600, scale)

    def whole(self, u: Array) -> Array:
        return np.rint(u)

    def summed(self, u: Array, x: Array, scale: Array, zero: Array, s: Quantization) -> Array:
        if s.zero_point_order == "after_rounding":
            return self.whole(u) + zero
        if s.zero_point_order == "fused":
            inverse = np.float32(1) / scale.astype(np.float32)
            parts = (np.broadcast_to(part, x.shape).astype(np.float32) for part in (x, inverse, zero))
            return self.whole(np.float64(P.fma(*parts, "float32", policy="ieee")))
        return self.whole(np.float64((u + zero).astype(np.float32)))

    def clipped(self, n: Array, low: Any, high: Any) -> Array:
        return np.clip(n, low, high)

    def nan(self, zero: Array) -> Array:
        return zero

    def elements(self, x: Array, scale: Array, zero: Array, s: Quantization) -> Array:
        """The integer, or the value, of each element."""
        u = self.units(x, scale, s)
        if not isinstance(s.element, P.IntFormat):
            return self.table(np.where(np.isnan(u), 0, u), np.arange(s.element.max_code + 1), s.element)
        n = self.summed(u, x, scale, zero, s)
        low, high = int(s.element.min) + s.restricted, int(s.element.max)
        return np.where(np.isnan(u), self.nan(zero + np.zeros(n.shape)), self.clipped(n, low, high))

    def coded(self, n: Array, s: Quantization) -> Array:
        if isinstance(s.element, P.IntFormat):
            return (np.where(np.isnan(n), 0, n).astype(np.int64) & ((1 << s.element.bits) - 1)).astype(np.uint8)
        return P.encode(n, s.element)

    def values(self, n: Array, scale: Array, zero: Array, tensor: Any, s: Quantization) -> Array:
        return ((n - zero) * scale * (1.0 if tensor is None else np.float64(tensor))).astype(np.float32)

    def packed(self, codes: Array, s: Quantization) -> Array:
        flat = codes.reshape(-1)
        if s.element.bits == 8:
            return flat
        flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
        return flat[::2] | flat[1::2] << 4

    def quantize(self, x: Array, s: Quantization) -> Quantized:
        with np.errstate(all="ignore"):
            view = self.cut(x.astype(np.float64), s)
            scale, zero, tensor = self.scales(view, s)
            whole = scale * (1.0 if tensor is None else np.float64(tensor))
            n = self.elements(view, whole, zero, s)

            def back(y: Array) -> Array:
                return np.ascontiguousarray(y.reshape(x.shape[0], -1)[:, : x.shape[1]])

            codes, values = back(self.coded(n, s)), back(self.values(n, scale, zero, tensor, s))
        shape = {"tensor": (), "channel": scale.shape[:1], "block": scale.shape[:2]}[s.granularity]
        zeros = None if s.symmetric else zero.reshape(shape)
        return Quantized(values, codes, self.stored(scale.reshape(shape)), zeros, tensor, self.packed(codes, s))

    def stored(self, scales: Array) -> Array:
        return scales.astype(np.float32)

    def fake_quantize(self, x: Array, s: Quantization) -> Array:
        return self.quantize(x, s).values

    def gradient(self, x: Array, s: Quantization) -> Array:
        q = self.quantize(x, s)
        assert q.scales is not None
        with np.errstate(all="ignore"):
            scale = np.repeat(
                np.atleast_2d(q.scales.reshape(-1, 1) if s.granularity == "channel" else q.scales), self.width(x, s), 1
            )
            scale = scale[:, : x.shape[1]] if s.granularity == "block" else scale[:, :1]
            scale = scale * (1.0 if q.tensor_scale is None else np.float64(q.tensor_scale))
            zero = (
                0
                if q.zero_points is None
                else np.float64(
                    q.zero_points.reshape(scale[:, :1].shape)
                    if q.zero_points.ndim < 2
                    else np.repeat(q.zero_points, s.block, 1)[:, : x.shape[1]]
                )
            )
            return self.passes(self.units(x.astype(np.float64), scale, s), zero, s).astype(np.float32)

    def passes(self, u: Array, zero: Any, s: Quantization) -> Array:
        if isinstance(s.element, P.IntFormat):
            n = np.rint(u) + zero
            return (n >= int(s.element.min) + s.restricted) & (n <= int(s.element.max))
        last = float(s.element.max) + (1.0 if s.element is E2M1 else 16.0)
        return np.abs(u) <= last


Method = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    kills: str  # the laws that must fail, by name
    schemes: tuple[Quantization, ...]
    methods: dict[str, Method]

    def planted(self) -> Plain:
        return type("Planted", (Plain,), {"name": "planted", **self.methods})(*self.schemes)


def bug(kills: str, *schemes: Quantization, **methods: Method) -> Bug:
    return Bug(kills, schemes, methods)


def result(change: Callable[[Quantized, Array], Quantized]) -> Method:
    """Another result of quantize, made of the right one."""
    return lambda self, x, s: change(Plain.quantize(self, x, s), x)


def by_logarithm(self: Plain, amax: Array, s: Quantization) -> Array:
    with np.errstate(divide="ignore"):
        return np.nan_to_num(np.floor(np.log2(amax.astype(np.float32))), neginf=-999).astype(int) - 2


def torch_infinity(self: Plain, n: Array, low: Any, high: Any) -> Array:
    return np.where(n == np.inf, low, np.clip(n, low, high))


def first_of(view: Array) -> Array:
    return np.abs(view[:, :, :1])


def zigzag(self: Plain, amax: Array, s: Quantization) -> Array:
    """An exponent that steps back within a binade."""
    fraction, exponent = np.frexp(amax)
    return exponent - 3 - (fraction > 0.9)


def tail_dropped(q: Quantized, x: Array) -> Quantized:
    values = q.values.copy()
    values[:, x.shape[1] // 8 * 8 :] = 0
    return q._replace(values=values)


BUGS = {
    "exponents by a logarithm in float32": bug("exponents_are_right_beside_powers_of_two", FP4, exponent=by_logarithm),
    "floor where ceil is declared": bug(
        "scales_follow_the_declared_rule the_largest_element_is_not_clipped exponents_are_right_beside_powers_of_two",
        UP, CEIL,
        exponent=lambda self, amax, s: np.frexp(amax)[1] - 3,
    ),
    "rceil compares in float32 with half a step to spare": bug(
        "the_largest_element_is_not_clipped", UP,
        exponent=lambda self, amax, s: np.frexp(amax)[1] - 3 + (np.frexp(amax)[0] > 0.75000006),
    ),
    "integers wrap": bug(
        "elements_are_clipped_at_the_ends larger_elements_have_larger_values no_other_value_is_nearer "
        "infinities_go_to_the_end_of_their_sign",
        GIVEN,
        clipped=lambda self, n, low, high: np.where(np.isfinite(n), n % 256, 0),
    ),
    "the end of the range is one too early": bug(
        "elements_are_clipped_at_the_ends", GIVEN, clipped=lambda self, n, low, high: np.clip(n, low, high - 1)
    ),
    "-0 is lost": bug(
        "the_sign_of_zero_is_kept", FP4,
        table=lambda self, u, codes, fmt: Plain.table(self, u, codes, fmt) + 0.0,
    ),
    "the first nibble in the high bits": bug(
        "packed_codes_are_the_codes", FP4,
        packed=lambda self, codes, s: np.uint8(Plain.packed(self, codes, s) << 4) | Plain.packed(self, codes, s) >> 4,
    ),
    "a block of zeros is divided by its scale, zero": bug(
        "zeros_give_zeros", CHANNEL,
        scales=lambda self, view, s: (self.amax(view, s) / 127, np.zeros((*view.shape[:2], 1)), None),
        units=lambda self, x, scale, s: x / scale,
        nan=lambda self, zero: zero + np.nan,
    ),
    "scales are stored transposed": bug(
        "values_are_codes_times_scales", FP4, stored=lambda self, scales: scales.T.reshape(scales.shape)
    ),
    "the zero point is added before rounding": bug(
        "ties_are_broken_as_declared", GIVEN,
        summed=lambda self, u, x, scale, zero, s: np.rint(u + zero),
    ),
    "the zero point is added after rounding": bug(
        "ties_are_broken_as_declared", SUMMED,
        summed=lambda self, u, x, scale, zero, s: np.rint(u) + zero,
    ),
    "the sum is rounded before it is fused": bug(
        "elements_are_those_of_the_declared_order", FUSED,
        summed=lambda self, u, x, scale, zero, s: np.rint(np.float64(np.float32(u + zero))),
    ),
    "times the reciprocal instead of a division": bug(
        "elements_are_those_of_the_declared_order", DIVIDE,
        units=lambda self, x, scale, s: np.float64(np.float32(x) * (np.float32(1) / np.float32(scale))),
    ),
    "a division instead of times the reciprocal": bug(
        "elements_are_those_of_the_declared_order", RECIPROCAL,
        units=lambda self, x, scale, s: np.float64(np.float32(x) / np.float32(scale)),
    ),
    "the restricted range is ignored": bug(
        "values_are_on_the_grid_of_their_scale", NARROW, clipped=lambda self, n, low, high: np.clip(n, -128, 127)
    ),
    "blocks are two elements too long": bug(
        "blocks_are_independent",
        FP4,
        amax=lambda self, view, s: np.maximum(
            Plain.amax(self, view, s), np.abs(np.pad(view, ((0, 0), (0, 1), (0, 0)))[:, 1:, :2]).max(2, keepdims=True)
        ),
    ),
    "the tensor's amax for every block": bug(
        "blocks_are_independent scales_follow_the_declared_rule", FP4, CHANNEL,
        amax=lambda self, view, s: np.abs(view).max() + 0 * view[:, :, :1],
    ),
    "a subnormal scale is flushed": bug(
        "scales_are_values_of_their_format scales_follow_the_declared_rule", FP4,
        power=lambda self, exponent: np.where(exponent < -126, 0.0, np.ldexp(1.0, exponent)),
    ),
    "scales stay in float32": bug(
        "scales_are_values_of_their_format", TWO,
        fitted=lambda self, scale, s: np.float64(np.float32(np.minimum(scale, 448))),
    ),
    "the ragged tail is dropped": bug(
        "a_short_last_block_is_as_one_filled_with_zeros", FP4, quantize=result(tail_dropped)
    ),
    "clipped elements keep their gradient": bug(
        "clipped_elements_have_no_gradient", FP4, CHANNEL, GIVEN, passes=lambda self, u, zero, s: np.isfinite(u)
    ),
    "the ends of the range have no gradient": bug(
        "elements_inside_the_range_pass_their_gradient", GIVEN,
        passes=lambda self, u, zero, s: (np.rint(u) + zero > 0) & (np.rint(u) + zero < 255),
    ),
    "truncation": bug(
        "no_other_value_is_nearer error_is_at_most_half_a_step", CHANNEL, GIVEN, whole=lambda self, u: np.trunc(u)
    ),
    "half is added, then floor": bug(
        "ties_are_broken_as_declared", GIVEN, whole=lambda self, u: np.floor(u + 0.5)
    ),
    "ties away": bug(
        "ties_are_broken_as_declared", CHANNEL,
        whole=lambda self, u: np.copysign(np.floor(np.abs(u) + 0.5), u),
    ),
    "the first element for the largest": bug(
        "order_within_a_block_does_not_matter scales_follow_the_declared_rule", CHANNEL,
        amax=lambda self, view, s: first_of(view) + (first_of(view) == 0),
    ),
    "the largest element without its magnitude": bug(
        "opposite_elements_have_opposite_values", FP4,
        amax=lambda self, view, s: np.maximum(view.max(2, keepdims=True), 0),
    ),
    "dequantized with another zero point": bug(
        "what_was_quantized_stays values_are_codes_times_scales zero_is_exact", GIVEN,
        values=lambda self, n, scale, zero, tensor, s: Plain.values(self, n, scale, zero - 1, tensor, s),
    ),
    "values beyond the largest element": bug(
        "what_was_quantized_stays", EVEN, FP4,
        fake_quantize=lambda self, x, s: np.clip(x, -8, 8) * np.float32(0.75),
    ),
    "fake quantization by another path": bug(
        "fake_quantize_gives_the_values_of_the_codes", TWO,
        fake_quantize=lambda self, x, s: P.fake_quantize(x, P.scheme("nvfp4", block=8, recipe="torchao")),
    ),
    "the range need not hold zero": bug(
        "scales_and_zero_points_hold_the_range", AFFINE,
        zero_range=lambda self, view: (view.min(2, keepdims=True), view.max(2, keepdims=True)),
    ),
    "a zero point outside the range": bug(
        "zero_points_are_integers_of_the_element", AFFINE,
        zero_of=lambda self, low, scale, s: Plain.zero_of(self, low, scale, s) + 16 * (low == 0),
    ),
    "a zero point is not rounded": bug(
        "zero_points_are_integers_of_the_element zero_is_exact", AFFINE,
        zero_of=lambda self, low, scale, s: -8 - low / scale,
    ),
    "the tensor's scale by its mean": bug(
        "the_tensor_scale_is_that_of_its_largest_element", TWO,
        tensor_scale=lambda self, view, s: np.float32(max(np.abs(view).mean() / 448, 2.0**-126)),
    ),
    "a small number is added to amax": bug(
        "powers_of_two_scale scales_follow_the_declared_rule", CHANNEL,
        amax=lambda self, view, s: Plain.amax(self, view, s) + 1e-4,
    ),
    "an exponent steps back": bug("larger_blocks_have_larger_scales", FP4, exponent=zigzag),
    "+Inf goes to the least integer": bug("infinities_go_to_the_end_of_their_sign", GIVEN, clipped=torch_infinity),
    "NaN is the integer 0": bug("nan_becomes_what_is_declared", GIVEN, nan=lambda self, zero: 0 * zero),
    "Inf and NaN count as zero": bug(
        "blocks_with_infinities_or_nan_are_nan", FP4, CHANNEL,
        cut=lambda self, x, s: np.where(np.isfinite(y := Plain.cut(self, x, s)), y, 0.0),
    ),
}  # fmt: skip


def broken(subject: Any, only: str = "*") -> dict[str, properties.Verdict]:
    """What a subject breaks, by the law's name: of several schemes the first."""
    found: dict[str, properties.Verdict] = {}
    for v in properties.judge(subject, only=only):
        if not v.ok:
            found.setdefault(v.law.partition(".")[2], v)
    return found


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_dies_by_the_law_that_speaks_of_it(name: str) -> None:
    found = broken(BUGS[name].planted())
    assert set(BUGS[name].kills.split()) <= set(found)
    assert {verdict.status for verdict in found.values()} == {"broken"}


def test_every_law_is_named_by_a_planted_bug() -> None:
    named = {law for bug in BUGS.values() for law in bug.kills.split()}
    assert named == {law for family in KINDS["quantizers"].families for law in laws(family)}


@pytest.mark.parametrize("scheme", EVERY, ids=str)
def test_the_plain_quantizer_without_a_bug_obeys_every_law(scheme: Quantization) -> None:
    assert [v.detail for v in properties.judge(Plain(scheme)) if v.status != "holds"] == []


@pytest.mark.parametrize("scheme", OurQuantizer().schemes, ids=str)
def test_ours_obeys_every_law(scheme: Quantization) -> None:
    ours = OurQuantizer()
    ours.schemes = [s for s in ours.schemes if s.name == scheme.name]
    found = {v.id: v.detail for v in properties.judge(ours, formats=[scheme.element]) if v.status != "holds"}
    moved = scheme.name.endswith(("columns", "tiles"))  # codes are packed in another order than the matrix has
    assert list(found) == [f"quantizers.packed_codes_are_the_codes[{scheme.name}]"] * moved


@pytest.mark.parametrize("name", ["ml_dtypes", "torch", "torchao", "gfloat"])
def test_peers_break_the_laws_only_where_we_say(name: str) -> None:
    pytest.importorskip(name)
    subject = load(name, "quantizers")
    if name == "gfloat":  # block by block, in Python
        subject.schemes = subject.schemes[:1]
    found = [v for v in properties.judge(subject, formats=[s.element for s in subject.schemes]) if not v.ok]
    findings: dict[str, str] = subject.findings
    assert [v.detail for v in found if not any(properties.matches(p, v.id) for p in findings)] == []
    for pattern in findings:
        assert any(properties.matches(pattern, v.id) for v in found), f"{pattern} is a finding no longer"


def test_a_counterexample_says_element_block_and_how_many() -> None:
    found = broken(BUGS["exponents by a logarithm in float32"].planted(), "extremes.exponents*")
    lines = found["exponents_are_right_beside_powers_of_two"].detail.splitlines()
    assert lines[0].startswith(
        "extremes.exponents_are_right_beside_powers_of_two[fp4]: The exponent of a scale is right"
    )
    assert re.match(r"  at        block \[\d+, 0\] of a matrix .*: largest element .* \(float32 0x", lines[1])
    assert lines[-1].startswith("  wrong     ")
    found = broken(BUGS["truncation"].planted(), "quantizers.no_other*")
    lines = found["no_other_value_is_nearer"].detail.splitlines()
    assert lines[1].startswith("  at        element [")
    assert "times the scale: x is" in lines[3]


def test_a_wrong_shape_is_broken_and_what_lacks_is_unsupported() -> None:
    class ValuesOnly:
        name, version, schemes, formats = "values", "1", (FP4, GIVEN), (E2M1, UINT8)

        def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
            return Plain().fake_quantize(x, scheme)

    found = {v.id: v for v in properties.judge(ValuesOnly())}
    assert found["quantizers.packed_codes_are_the_codes[fp4]"].status == "unsupported"
    assert found["scales.scales_follow_the_declared_rule[fp4]"].status == "unsupported"
    assert found["quantizers.no_other_value_is_nearer[given]"].status == "holds"
    assert found["quantizers.blocks_are_independent[fp4]"].status == "holds"
    short = bug("", FP4, quantize=result(lambda q, x: q._replace(values=q.values[:, :-1]))).planted()
    with pytest.raises(properties.Broken, match=r"got       values of shape \(6, 31\)"):
        properties.check("quantizers.values_are_codes_times_scales", short, max_examples=0)


def test_check_finds_what_only_drawing_finds() -> None:
    """A kernel that truncates a matrix that holds a number near the largest of float32."""
    law, mine = (
        "quantizers.no_other_value_is_nearer",
        bug("", GIVEN, whole=lambda self, u: np.rint(u) if (np.abs(u) < 5e38).all() else np.trunc(u)).planted(),
    )
    properties.check(law, mine, max_examples=0)
    with pytest.raises(properties.Broken, match="no_other_value_is_nearer"):
        properties.check(law, mine, max_examples=300)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no law on quantizers is called '.*': did you mean scales\.zero_is_exact"):
        properties.check("scales.zero_is_exat", "ours")
    with pytest.raises(ValueError, match="unknown subject 'torchoa': did you mean 'torchao'"):
        load("torchoa", "quantizers")
    with pytest.raises(ValueError, match="unknown subject 'ours/saturate'"):
        load("ours/saturate", "quantizers")
