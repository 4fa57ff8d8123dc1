"""The oracle of scaled formats against the specifications' own numbers, handed cases and recorded bits of others.

`precision.exact_scaling` judges `scaling` and `quantization`, so nothing here uses them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import platform
import warnings
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import precision as P
from precision import exact, exact_scaling
from precision.exact import Number
from precision.exact_scaling import POWER_RULES, affine, affine_parameters, mx_block, scale, two_level

INF, NAN = math.inf, math.nan
parametrize = pytest.mark.parametrize

# OCP MX v1.0, 5.3: largest value and emax of the element formats; INT8 has six fraction bits.
MX = {
    "float8_e4m3fn": (448, 8, 0),
    "float8_e5m2": (57344, 15, 0),
    "float6_e3m2fn": (28, 4, 0),
    "float6_e2m3fn": (Fraction(15, 2), 2, 0),
    "float4_e2m1fn": (6, 2, 0),
    "int8": (Fraction(127, 64), 0, 6),
}


def two(k: int) -> Fraction:
    return Fraction(2) ** k


def float32(pattern: int) -> np.float32:
    return np.uint32(pattern).view(np.float32)[()]


def near(value: Fraction | int, steps: int) -> list[tuple[int, Fraction]]:
    """The float32 numbers up to `steps` float32 steps from a positive float32 number, with their distance in steps."""
    pattern = int(np.float32(float(value)).view(np.uint32))
    patterns = range(max(pattern - steps, 1), min(pattern + steps + 1, 0x7F800000))
    return [(u - pattern, Fraction(float(float32(u)))) for u in patterns]


def floats(numbers: Any) -> list[float]:
    return [float(x) for x in numbers]


# --- Powers of two ----------------------------------------------------------------------------------------------------


@parametrize("k", [*range(-126, 128)])
def test_floor_and_ceil_read_the_exponent_right_at_every_power_of_two(k: int) -> None:
    # microxcaling's log2 is wrong for 250 of 254 powers, up to 44 steps below
    for distance, amax in near(two(k), 44)[::11] + near(two(k), 2):
        floor = k - (distance < 0)
        ceil = k + (distance > 0)
        assert scale(amax, "float4_e2m1fn", "ocp_floor", "float32") == two(floor - 2)
        assert scale(amax, "float4_e2m1fn", "ceil", "float32") == two(min(ceil - 2, 127))


@parametrize(("element", "largest", "emax", "bits"), [(e, *row) for e, row in MX.items()])
def test_rules_at_the_largest_element(element: str, largest: Fraction, emax: int, bits: int) -> None:
    def by(rule: str, amax: Fraction) -> Fraction:
        return scale(amax, element, rule, fraction_bits=bits)

    for k in (*range(-110, 110, 11), -1, 0):
        top = largest * two(k)
        for distance, amax in near(top, 4):
            assert by("rceil", amax) == two(k + (distance > 0))
            # float32(64 / 127) is below 64 / 127, so that the next step still gives 2^k; the other reciprocals are above
            assert by("nvidia", amax) == two(k + (distance > (element == "int8")))
            assert by("ocp_floor", amax) == two(k)
            assert by("ceil", amax) == two(k + 1)
        assert by("even", top) == two(k)


def test_even_rounds_the_digits_of_the_element_half_up() -> None:
    # E2M1 has one digit after the first: 1.75 is half way from 1.5 to 2, and goes up
    for k in (-100, -3, 0, 77):
        assert scale(Fraction(7, 4) * two(k), "float4_e2m1fn", "even") == two(k - 1)
        assert scale(near(Fraction(7, 4) * two(k), 1)[0][1], "float4_e2m1fn", "even") == two(k - 2)
        # E4M3: three digits, half way is 1.9375; INT8: six, 1.9921875
        assert scale(Fraction(31, 16) * two(k), "float8_e4m3fn", "even") == two(k - 7)
        assert scale(near(Fraction(31, 16) * two(k), 1)[0][1], "float8_e4m3fn", "even") == two(k - 8)
        assert scale(Fraction(255, 128) * two(k), "int8", "even", fraction_bits=6) == two(k + 1)
        assert scale(near(Fraction(255, 128) * two(k), 1)[0][1], "int8", "even", fraction_bits=6) == two(k)


def test_handed_scales() -> None:
    by = {rule: scale(150, "float8_e4m3fn", rule) for rule in POWER_RULES}
    assert (by["ocp_floor"], by["ceil"], by["rceil"]) == (two(-1), 1, two(-1))
    assert scale(float32(0x42FFFFFF), "float8_e5m2") == two(6 - 15)  # 127.99999
    assert scale(float32(0x39E00001), "float8_e4m3fn", "rceil") == two(-19)  # torchao 0.18: 2^-20


@parametrize(
    ("element", "floor", "others"),
    [("float8_e4m3fn", 246, 247), ("float8_e5m2", 239, 240), ("float6_e3m2fn", 250, 251), ("float6_e2m3fn", 252, 253), ("float4_e2m1fn", 252, 253)],
)  # fmt: skip
def test_scales_of_the_largest_float32_as_torchao_has_them(element: str, floor: int, others: int) -> None:
    largest = float32(0x7F7FFFFF)
    codes = {rule: exact.round(scale(largest, element, rule), "float8_e8m0fnu") for rule in POWER_RULES}
    assert codes == dict.fromkeys(POWER_RULES, others) | {"ocp_floor": floor}


@parametrize("element", [element for element in MX if element != "int8"])
def test_nvidia_differs_from_rceil_at_one_float32(element: str) -> None:
    # max * 2^-127 and one step: the product rounds to 2^-127, a subnormal. Everywhere else the two agree.
    largest, _, _ = MX[element]
    different = []
    for k in (*range(-148, -120), *range(-3, 4), *range(100, 110)):
        for distance, amax in near(largest * two(k), 3):
            rules = [scale(amax, element, rule) for rule in ("nvidia", "rceil")]
            if rules[0] != rules[1]:
                different.append((k, distance, rules))
    assert different == [(-127, 1, [two(-127), two(-126)])]


@parametrize(("x", "power"), [(1, 0), (float32(0x3F800001), 1), (1.5, 1), (3, 2), (two(-127), -127), (two(-149), -127), (float32(0x00400001), -126), (two(-126), -126), (float32(0x7F000000), 127), (float32(0x7F7FFFFF), 127)])  # fmt: skip
def test_nvidia_of_an_element_whose_largest_is_one_is_cvt_rp_satfinite_ue8m0(x: Any, power: int) -> None:
    one = P.Format(name="one", exponent_bits=1, mantissa_bits=1, bias=1, infinities=False, nan="all_ones")
    assert float(exact.round_value(INF, one).value) == 1.0
    assert scale(x, one, "nvidia") == scale(x, one, "rceil") == two(power)


@parametrize("rule", POWER_RULES)
def test_powers_are_clamped_to_the_scale_format(rule: str) -> None:
    assert scale(0, "float8_e4m3fn", rule) == two(-127)
    assert scale(two(-149), "float8_e4m3fn", rule) == two(-127)
    assert scale(0, "float4_e2m1fn", rule, "float32") == two(-149)
    assert scale(1e300, "float4_e2m1fn", rule) == two(127)
    assert scale(1e300, "float8_e4m3fn", rule, "float32") == two(127)
    assert scale(two(-140), "float4_e2m1fn", "ocp_floor", "float32") == two(-142)


@parametrize("rule", POWER_RULES)
@parametrize("element", MX)
def test_laws_of_power_rules(rule: str, element: str) -> None:
    largest, _, bits = MX[element]
    rng = np.random.default_rng(0)
    magnitudes = sorted(Fraction(float(x)) for x in np.exp2(rng.uniform(-60, 60, 200)).astype(np.float32))
    scales = [scale(a, element, rule, fraction_bits=bits) for a in magnitudes]
    assert scales == sorted(scales)
    for a, s in zip(magnitudes, scales, strict=True):
        assert scale(a * 8, element, rule, fraction_bits=bits) == s * 8
        if rule == "rceil":
            assert a <= largest * s
            assert a > largest * s / 2
        if rule == "ceil":
            assert a <= largest * s
        if rule == "ocp_floor":
            assert s <= a / largest * 2
            assert a < 2 * largest * s


def test_amax_over_max_is_rounded_once() -> None:
    assert scale(1, "int8", "amax", "float32") == Fraction(float(np.float32(1) / np.float32(127)))
    assert scale(1, "float8_e4m3fn", "amax", "bfloat16") == Fraction(float(ml_dtypes.bfloat16(1 / 448)))
    assert scale(6 * 1000, "float4_e2m1fn", "amax", "float8_e4m3fn") == 448
    assert scale(6 * two(-8), "float4_e2m1fn", "amax", "float8_e4m3fn") == two(-8)
    assert scale(0, "float4_e2m1fn", "amax", "float8_e4m3fn") == 0
    # half way between 1 and 1.125 goes to even; a hair more does not, though float32 would not see it
    assert scale(6 * Fraction(17, 16), "float4_e2m1fn", "amax", "float8_e4m3fn") == 1
    assert scale(6 * (Fraction(17, 16) + two(-80)), "float4_e2m1fn", "amax", "float8_e4m3fn") == Fraction(9, 8)


# --- Blocks -----------------------------------------------------------------------------------------------------------


def test_microxcaling_4_957_becomes_896() -> None:
    floor, up = mx_block([960, 957], "float8_e4m3fn"), mx_block([960, 957], "float8_e4m3fn", rule="rceil")
    assert (floor.exponent, floats(floor.values)) == (1, [896, 896])
    assert (up.exponent, floats(up.values)) == (2, [960, 960])
    assert floor.codes == (0x7E, 0x7E)
    assert up.codes == (0x77, 0x77)


def test_every_element_value_times_a_power_of_two_is_kept() -> None:
    for element, (_, _, bits) in MX.items():
        for k in (-80, -1, 0, 33):
            members = [v * two(k - bits) for v, _ in exact.values(element)]
            block = mx_block(members, element, fraction_bits=bits)
            assert (block.exponent, block.codes) == (k, tuple(code for _, code in exact.values(element)))
            assert [v.value for v in block.values] == members


def test_mxint8_has_six_fraction_bits() -> None:
    block = mx_block([1.984375, -1.0, 1 / 64, 1 / 128, 3 / 128], "int8", fraction_bits=6)
    assert (block.exponent, block.codes) == (0, (127, 0xC0, 1, 0, 2))
    assert floats(block.values) == [1.984375, -1.0, 1 / 64, 0.0, 1 / 32]
    assert mx_block([1.999], "int8", fraction_bits=6).codes == (127,)
    assert mx_block([-1.999], "int8", fraction_bits=6).codes == (128,)  # -2 is a code of INT8, used or not: 5.3.4


def test_zero_blocks() -> None:
    block = mx_block([0.0, -0.0], "float4_e2m1fn")
    assert (block.exponent, block.codes) == (-127, (0, 8))
    assert [(v.value, v.negative) for v in block.values] == [(0, False), (0, True)]
    assert mx_block([0.0], "float4_e2m1fn", zero_block="one").exponent == 0
    assert mx_block([two(-149)], "float4_e2m1fn", zero_block="one").exponent == -127
    assert mx_block([], "float4_e2m1fn") == exact_scaling.Block(-127, (), ())


def test_blocks_of_subnormals_are_exact() -> None:
    # torchao 0.18 gives 2^-128 (floor) and 0 (rceil) for this block
    block = mx_block([two(-127)] * 3, "float8_e4m3fn")
    assert (block.exponent, [v.value for v in block.values]) == (-127, [two(-127)] * 3)
    smallest = mx_block([two(-149), 3 * two(-137)], "float8_e4m3fn")
    assert (smallest.exponent, [v.value for v in smallest.values]) == (-127, [0, 2 * two(-136)])


@parametrize("special", [INF, -INF, NAN])
def test_blocks_with_infinity_or_nan(special: float) -> None:
    block = mx_block([1.0, special], "float8_e4m3fn")
    assert (block.exponent, block.codes) == (None, (0x7F, 0x7F))
    assert [v.kind for v in block.values] == ["nan", "nan"]
    assert mx_block([1.0, special], "float4_e2m1fn").codes == (0, 0)
    kept = mx_block([1.0, special], "float8_e4m3fn", nonfinite="finite")
    assert kept.exponent == -8
    assert kept.codes[0] == 0x78
    assert kept.codes[1] == {INF: 0x7E, -INF: 0xFE}.get(special, 0x7F)
    with pytest.raises(ValueError, match="holds Inf or NaN, and nonfinite is 'raise'"):
        mx_block([1.0, special], "float8_e4m3fn", nonfinite="raise")


def test_elements_take_roundings_and_policies() -> None:
    values = [4, 1.25, -1.25]
    assert floats(mx_block(values, "float4_e2m1fn").values) == [4, 1, -1]
    assert floats(mx_block(values, "float4_e2m1fn", rounding="nearest_away").values) == [4, 1.5, -1.5]
    assert floats(mx_block(values, "float4_e2m1fn", rounding="toward_positive").values) == [4, 1.5, -1]
    up = P.stochastic(random_bits=np.array([0, 1, 3]), bits=2)
    assert floats(mx_block(values, "float4_e2m1fn", rounding=up).values) == [4, 1, -1.5]
    over = mx_block([448 * 1.2], "float8_e4m3fn", policy="ieee")
    assert (over.exponent, over.values[0].kind) == (1, "finite")
    assert mx_block([511.0], "float8_e4m3fn", policy="ieee").values[0].kind == "nan"


@parametrize("rule", POWER_RULES)
@parametrize("element", MX)
def test_laws_of_blocks(rule: str, element: str) -> None:
    largest, _, bits = MX[element]
    rng = np.random.default_rng(1)
    for n in range(1, 33, 4):
        x = [Fraction(float(v)) for v in (rng.standard_normal(n) * np.exp2(rng.integers(-9, 9, n))).astype(np.float32)]
        block = mx_block(x, element, rule=rule, fraction_bits=bits)
        assert block.exponent is not None
        shared = two(block.exponent)
        for v, y, code in zip(x, block.values, block.codes, strict=True):
            # error at most half the element's spacing, unless clipped
            inside = abs(v) <= largest * shared
            neighbours = [s * y * shared / two(bits) for y, _ in exact.values(element) for s in (1, -1)]
            nearest = min(abs(v - w) for w in neighbours)
            assert abs(v - y.value) <= nearest + (0 if inside else abs(v) - largest * shared)
            assert exact.decode(code, element).value * shared / two(bits) == y.value
        if rule == "ocp_floor":  # the scale is that of the largest one's binade, which it does not leave: saturation
            assert mx_block(block.values, element, fraction_bits=bits) == block
        shifted = mx_block([v * 4 for v in x], element, rule=rule, fraction_bits=bits)
        assert (shifted.exponent, shifted.codes) == (block.exponent + 2, block.codes)
        turned = mx_block(x[::-1], element, rule=rule, fraction_bits=bits)
        assert (turned.exponent, turned.codes) == (block.exponent, block.codes[::-1])
        if rule in ("rceil", "ceil"):
            assert max(abs(v) for v in x) <= largest * shared


# --- Two levels -------------------------------------------------------------------------------------------------------


def test_nvfp4_scales_are_those_of_the_paper() -> None:
    # the tensor's largest magnitude is 6 * 448: its scale is 1, and a block's scale its amax / 6
    x = [2688.0] + [0.0] * 15 + [6.0, -3.0] + [0.5] * 14 + [6 * 2.0**-8] + [0.0] * 15 + [0.0] * 16
    t = two_level(x)
    assert t.tensor_scale == 1
    assert floats(t.scales) == [448, 1, 2.0**-8, 0]  # 2^-8 is a subnormal of E4M3: torchao stores 2^-6
    assert t.scale_codes == (0x7E, 0x38, 2, 0)
    assert t.codes[:1] + t.codes[16:19] + t.codes[32:33] == (7, 7, 13, 1, 7)
    assert floats(t.values) == x
    half = two_level([v / 2 for v in x])
    assert (half.tensor_scale, half.scale_codes, half.codes) == (two(-1), t.scale_codes, t.codes)


def test_two_levels_round_tensor_scale_block_scale_and_element_once_each() -> None:
    x = [1.0, 0.3, -0.07]
    t = two_level(x, block=2)
    g = Fraction(float(np.float32(1.0) / np.float32(2688)))
    assert t.tensor_scale == g
    s = [exact.round_value(Fraction(v) / (6 * g), "float8_e4m3fn").value for v in (1.0, 0.07)]
    assert [v.value for v in t.scales] == s
    want = [exact.round_value(Fraction(v) / (s[i // 2] * g), "float4_e2m1fn").value for i, v in enumerate(x)]
    assert [v.value for v in t.values] == [w * s[i // 2] * g for i, w in enumerate(want)]


def test_a_block_scale_is_one_quotient() -> None:
    # amax / tensor_scale rounded to float32 is a tie of E4M3, and would go to an even code
    for tensor_amax, amax, code in (
        (0x3F810D35, 0x3D540369, 91),
        (0x3F8CE599, 0x3D11EDCC, 87),
        (0x3FC373A6, 0x3D6D5593, 89),
    ):
        t = two_level([float32(tensor_amax), float32(amax)], block=1)
        assert t.tensor_scale == Fraction(float(float32(tensor_amax) / np.float32(2688)))
        assert t.scale_codes[1] == code
        exactly = Fraction(float(float32(amax))) / (6 * t.tensor_scale)
        neighbours = [exact.decode(code + d, "float8_e4m3fn").value for d in (-1, 0, 1)]
        assert min(neighbours, key=lambda v: abs(v - exactly)) == neighbours[1]


def test_two_levels_of_zeros() -> None:
    t = two_level([0.0] * 16 + [-0.0])
    assert (t.tensor_scale, t.scale_codes, t.codes) == (1, (0, 0), (0,) * 16 + (8,))
    assert all(v.is_zero for v in t.values)
    t = two_level([6.0] + [0.0] * 31)  # ao#4713: never NaN
    assert t.scales[1].is_zero
    assert two_level([6.0] + [0.0] * 31, zero_block="smallest").scale_codes[1] == 1
    assert two_level([6.0] + [0.0] * 31, zero_block="one").scale_codes[1] == 0x38
    assert two_level([]) == exact_scaling.TwoLevel(Fraction(1), (), (), (), ())


def test_a_block_whose_scale_rounds_to_zero() -> None:
    x = [2688.0] + [0.0] * 15 + [2.0**-9, -(2.0**-9), 0.0]
    t = two_level(x)
    assert (floats(t.scales), t.codes[16:]) == ([448, 0], (7, 15, 0))
    assert all(v.is_zero for v in t.values[16:])
    t = two_level(x, zero_block="one")
    assert floats(t.scales) == [448, 2.0**-9]
    assert floats(t.values[16:]) == [2.0**-9, -(2.0**-9), 0]


@parametrize("special", [INF, NAN])
def test_two_levels_with_infinity_or_nan(special: float) -> None:
    t = two_level([special] + [1e30] * 15 + [2688.0])
    assert (t.tensor_scale, t.scale_codes, t.codes[:2]) == (1, (0x7F, 0x7E), (0, 0))
    assert {v.kind for v in t.values[:16]} == {"nan"}
    assert t.values[16].value == 2688
    t = two_level([special, 2688.0, -1.0], nonfinite="finite")
    assert (t.tensor_scale, floats(t.scales), t.codes) == (1, [448], (7, 7, 8))
    with pytest.raises(ValueError, match="nonfinite is 'raise'"):
        two_level([special], nonfinite="raise")


# --- Affine integers --------------------------------------------------------------------------------------------------


def test_handed_affine_cases() -> None:
    # pytorch PR 37188: zero point before or after rounding
    assert affine([2.5], "uint8", 1, 1).integers == (3,)
    assert affine([2.5], "uint8", 1, 1, zero_point_order="before_rounding").integers == (4,)
    # tinygrad PR 9301: divide or multiply by 1 / s
    s, x = np.float32(0.1), np.float32(1.55)
    assert affine([x], "uint8", s, division="divide").integers == (15,)
    assert affine([x], "uint8", s, division="reciprocal").integers == (16,)
    assert affine([x], "uint8", s).integers == (15,)  # the float32 numbers' quotient is below 15.5
    x = float32(0x3EE66667)  # the quotient is above 4.5, but not by a float32 step
    assert [affine([x], "uint8", s, division=d).integers[0] for d in ("exact", "divide")] == [5, 4]
    # torch 2.13 on x86: quantize_per_tensor is fused, quantize_per_channel is not
    orders = ("fused", "before_rounding", "after_rounding")
    x = float32(0x3E7FFFFE)
    assert [affine([x], "uint8", s, 3, zero_point_order=o, division="reciprocal").integers[0] for o in orders] == [
        5,
        6,
        5,
    ]
    # pytorch 116992, 133557: infinity is clipped at its own end
    assert affine([1, INF, -INF, 26], "int8", s, division="reciprocal").integers == (10, 127, -128, 127)
    assert affine([INF], "uint8", 1, 133).integers == (255,)
    # ORT 3442, openvino 38158, ml_dtypes int4
    assert affine([-129, -128, 127, 128], "int8", 1).integers == (-128, -128, 127, 127)
    assert affine([-129, -128, 127], "int8", 1, restricted=True).integers == (-127, -127, 127)
    assert affine([2.5, 3.5, -2.5, 7.6, 8, -9, 300], "int4", 1).integers == (2, 4, -2, 7, 7, -8, 7)


def test_affine_nan() -> None:
    for missing, integer in (("zero", 5), ("max", 255), ("min", 0)):
        assert affine([NAN], "uint8", 1, 5, missing_nan=missing).integers == (integer,)
    assert affine([NAN], "uint8", 1, 5).values == (0,)
    with pytest.raises(ValueError, match="the values hold NaN, and missing_nan is 'raise'"):
        affine([NAN], "uint8", 1, missing_nan="raise")
    # 1 / scale is beyond float32: 0 * Inf
    assert affine([0.0, 1e-30], "int8", 1e-39, division="reciprocal", missing_nan="min").integers == (-128, 127)
    assert affine([0.0, 1e-30], "int8", 1e-39, division="divide").integers == (0, 127)


def test_affine_values_are_exact() -> None:
    found = affine([0.26, -0.3], "int8", Fraction(1, 10), 3)
    assert found.integers == (6, 0)
    assert found.values == (Fraction(3, 10), Fraction(-3, 10))
    assert affine([0.26], "int8", 0.1, 3, division="divide").values == (3 * Fraction(float(np.float32(0.1))),)


@parametrize("fmt", ["int8", "uint8", "int4", "uint4", "int2", "uint2"])
def test_affine_error_is_at_most_half_a_step_inside(fmt: str) -> None:
    f = P.get_format(fmt)
    step = Fraction(3, 7)
    for zero_point, order in itertools.product((int(f.min), 0, 1, int(f.max)), ("after_rounding", "before_rounding")):
        inside = [
            (q - zero_point + Fraction(d, 8)) * step
            for q in range(int(f.min), int(f.max) + 1)
            for d in (-4, -3, 0, 3, 4)
        ]
        found = affine(inside, fmt, step, zero_point, zero_point_order=order)
        for x, y in zip(inside, found.values, strict=True):
            assert abs(x - y) <= step / 2
        assert affine([0], fmt, step, zero_point).values == (0,)


def test_affine_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    for s, z in ((0.1, 3), (0.3, 1), (1 / 3, 5), (0.02351, 128), (7.123e-5, 0), (1.0, 1), (1e-39, 3), (3e38, 3)):
        with np.errstate(all="ignore"):
            ties = ((rng.integers(-200, 400, 60) + 0.5) * s).astype(np.float32)
            ties = (ties.view(np.int32) + rng.integers(-3, 4, 60).astype(np.int32)).view(np.float32)
            random = rng.integers(0, 1 << 32, 40, dtype=np.uint32).view(np.float32)
            x = np.concatenate([ties, random, np.float32([INF, -INF, NAN, 0.0, -0.0, 1e-45])])
        tensor = torch.from_numpy(x)
        ours = affine(x, "uint8", s, z, division="reciprocal", missing_nan="min")
        with np.errstate(all="ignore"):
            step = np.float32(s)
            values = (np.float32(ours.integers) - np.float32(z)) * step
        theirs = torch.fake_quantize_per_tensor_affine(tensor, s, z, 0, 255).numpy()
        np.testing.assert_array_equal(values, theirs)
        if platform.machine() != "x86_64":
            continue  # elsewhere torch has other loops
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = torch.quantize_per_tensor(tensor, s, z, torch.quint8).int_repr().tolist()
            per_channel = torch.quantize_per_channel(
                tensor[None], torch.tensor([s]), torch.tensor([z]), 0, torch.quint8
            )
        fused = affine(x, "uint8", s, z, zero_point_order="fused", division="reciprocal", missing_nan="max")
        before = affine(x, "uint8", s, z, zero_point_order="before_rounding", division="reciprocal", missing_nan="min")
        assert list(fused.integers) == whole
        assert list(before.integers) == per_channel.int_repr()[0].tolist()


def test_affine_parameters() -> None:
    step, zero_point = affine_parameters(-1, 3, "uint8")
    assert (step, zero_point) == (Fraction(float(np.float32(4) / np.float32(255))), 64)
    assert affine_parameters(-1, 3, "int8") == (step, -64)
    assert affine_parameters(1, 255, "uint8") == (1, 0)  # widened to hold 0
    assert affine_parameters(-255, -1, "uint8") == (1, 255)
    assert affine_parameters(-63.5, 191.5, "uint8") == (1, 64)  # 63.5: to even
    assert affine_parameters(-62.5, 192.5, "uint8") == (1, 62)
    assert affine_parameters(-63.5, 190.5, "int8", restricted=True) == (1, -64)  # -127 + 63.5, not -127 + 64
    assert affine_parameters(-1, 0, "uint8", scale_format="float8_e4m3fn") == (two(-8), 255)  # clamped: 256
    assert affine_parameters(0, 0, "int8") == (1, -128)
    assert affine_parameters(0, 0, "int8", symmetric=True) == (1, 0)
    assert affine_parameters(-254, 100, "int8", symmetric=True) == (2, 0)
    assert affine_parameters(-254, 100, "uint8", symmetric=True) == (2, 128)
    assert affine_parameters(-127, 127, "int8", restricted=True) == (1, 0)
    assert affine_parameters(0, two(-149), "int8") == (two(-149), -128)
    assert affine_parameters(0, 1, "uint8", scale_format="bfloat16")[0] == Fraction(float(ml_dtypes.bfloat16(1 / 255)))
    # a hair above a tie, which the difference in float64 loses: 255 * (1 + 2^-24) + 2^-60
    high = 255 * (1 + two(-24))
    assert affine_parameters(0, high, "uint8")[0] == 1
    assert affine_parameters(-two(-60), high, "uint8")[0] == 1 + two(-23)


@parametrize("fmt", ["int8", "uint8", "int4", "uint2"])
def test_zero_is_represented_exactly_and_the_ends_are_within_a_step(fmt: str) -> None:
    rng = np.random.default_rng(3)
    for low, high in np.sort(rng.standard_normal((100, 2)) * 10, axis=1):
        step, zero_point = affine_parameters(low, high, fmt)
        assert affine([0.0], fmt, step, zero_point).values == (0,)
        ends = affine([low, high], fmt, step, zero_point)
        for x, y in zip((low, high), ends.values, strict=True):
            assert abs(Fraction(x) - y) <= step * (1 + two(-14))


# --- What is refused --------------------------------------------------------------------------------------------------


@parametrize(
    ("call", "message"),
    [
        (lambda: scale(1, "int8", "log2"), "scale rule is 'log2'; it must be one of ocp_floor, ceil, even, rceil, nvidia, amax"),
        (lambda: scale(1, "int8", "ceil", "int8"), "scale_format is int8; it must be a floating-point format"),
        (lambda: scale(-1, "int8"), "amax is -1; a scale is made of a finite magnitude, at least 0"),
        (lambda: scale(INF, "int8"), "amax is inf"),
        (lambda: scale(NAN, "int8"), "amax is nan"),
        (lambda: mx_block([1], "int8", rule="amax"), "for powers of two it must be one of ocp_floor"),
        (lambda: mx_block([1], "int8", zero_block="zero"), "zero_block is 'zero'; for powers of two it must be one of smallest, one"),
        (lambda: mx_block([1], "int8", nonfinite="inf"), "nonfinite is 'inf'; it must be one of nan, finite, raise"),
        (lambda: two_level([1], zero_block="none"), "zero_block is 'none'; it must be one of zero, smallest, one"),
        (lambda: two_level([1], block=0), "block is 0; it must be a number of elements of at least 1"),
        (lambda: two_level([1], scale_format="float8_e8m0fnu"), "scale_format is float8_e8m0fnu; it must be a floating-point format with a zero and a NaN"),
        (lambda: affine([1], "float16", 1), "float16 has no zero point: affine quantization is that of an integer format"),
        (lambda: affine([1], "uint8", 1, restricted=True), "uint8 is unsigned: restricted leaves out the most negative integer"),
        (lambda: affine([1], "uint8", 1, division="shift"), "division is 'shift'; it must be one of exact, divide, reciprocal"),
        (lambda: affine([1], "uint8", 1, zero_point_order="never"), "zero_point_order is 'never'; it must be one of"),
        (lambda: affine([1], "uint8", 1, zero_point_order="fused"), "zero_point_order 'fused' is x \\* \\(1 / scale\\) \\+ zero_point; division is 'exact'"),
        (lambda: affine([1], "uint8", 1, missing_nan="one"), "missing_nan is 'one'; it must be one of zero, max, min, raise"),
        (lambda: affine([1], "uint8", 0), "scale is 0; it must be positive and finite"),
        (lambda: affine([1], "uint8", 1e-60, division="divide"), "scale is 1e-60; it must be positive and finite"),
        (lambda: affine([1], "uint8", 1, 256), "zero_point is 256; it must be an integer from 0 to 255"),
        (lambda: affine_parameters(1, 0, "int8"), "the range is 1 to 0; it must be finite, and not reversed"),
        (lambda: affine_parameters(0, INF, "int8"), "the range is 0 to inf"),
        (lambda: affine_parameters(0, 1, "float16"), "float16 has no zero point"),
        (lambda: affine_parameters(0, 1, "int8", scale_format="int8"), "scale_format is int8"),
    ],
)  # fmt: skip
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_it_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(inspect.getsource(exact_scaling))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {m for m in modules if m and m.startswith("precision")} == {"precision", "precision.exact", "precision.formats", "precision.policies"}  # fmt: skip
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"emax", "emin", "max_parts", "least_parts", "frexp", "log2", "ldexp"}
    assert Number.of(1).value == 1
