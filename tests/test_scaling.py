"""Scales: which elements share one, every rule at every power of two, affine integers, the rule of a checkpoint.

The rules are defined here once more, on integers: a float32 magnitude is n * 2^-149. Nothing is taken from a logarithm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import exact_scaling
from precision.scaling import POWER_RULES, affine_parameters, blocks_of, identify_scale_rule, power_of_two

Array = np.ndarray[Any, Any]
parametrize = pytest.mark.parametrize

# OCP MX v1.0, 5.3: the largest value as whole * 2^power, emax, digits after the first one.
ELEMENTS = {
    "float8_e4m3fn": (7, 6, 8, 3),
    "float8_e5m2": (7, 13, 15, 2),
    "float6_e3m2fn": (7, 2, 4, 2),
    "float6_e2m3fn": (15, -1, 2, 3),
    "float4_e2m1fn": (3, 1, 2, 1),
    "int8": (127, 0, 6, 6),
    "int4": (7, 0, 2, 2),
}
MX = {"mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp6_e3m2": "float6_e3m2fn", "mxfp6_e2m3": "float6_e2m3fn", "mxfp4": "float4_e2m1fn", "mxint8": "int8"}  # fmt: skip


# --- The rules on integers --------------------------------------------------------------------------------------------


def not_above(a: int, p: int, b: int, q: int) -> bool:
    """a * 2^p <= b * 2^q."""
    return a << max(p - q, 0) <= b << max(q - p, 0)


def to_float32(n: int, p: int) -> tuple[int, int]:
    """n * 2^p rounded to 24 digits, not below 2^-149, a tie to even."""
    drop = max(n.bit_length() - 24, -149 - p, 0)
    kept, rest = n >> drop, n & ((1 << drop) - 1)
    half = 1 << drop >> 1
    up = rest > half or (rest == half and drop > 0 and kept & 1)
    return kept + up, p + drop


def expected(n: int, element: str, rule: str, p: int = -149) -> int:
    """The exponent that a rule gives for n * 2^p, n > 0."""
    whole, power, emax, digits = ELEMENTS[element]
    floor = n.bit_length() - 1 + p
    if rule == "ocp_floor":
        return floor - emax
    if rule == "ceil":
        return floor + (n & (n - 1) != 0) - emax
    if rule == "even":
        drop = n.bit_length() - 1 - digits
        if drop > 0:
            n = n + (1 << drop >> 1) >> drop << drop
        return n.bit_length() - 1 + p - emax
    if rule == "rceil":
        k = floor - emax
        return k if not_above(n, p, whole, power + k) else k + 1
    assert rule == "nvidia"
    reciprocal, q = to_float32(
        (1 << 60) // whole + 1, -60 - power
    )  # 1 / max; no tie, so that a bit more does not matter
    product, r = to_float32(n * reciprocal, p + q)
    return product.bit_length() - 1 + r + (product & (product - 1) != 0) if product else -(10**6)


def test_the_definition_rounds_as_float32() -> None:
    for whole, power, *_ in ELEMENTS.values():
        m, q = to_float32((1 << 60) // whole + 1, -60 - power)
        assert math.ldexp(m, q) == float(np.float32(1) / np.float32(math.ldexp(whole, power)))
    rng = np.random.default_rng(0)
    a = rng.integers(1, 0x7F800000, 2000, dtype=np.uint32).view(np.float32)
    for x in a.tolist():
        m, q = to_float32(int(Fraction(x) * 2**149) * 3, -149 - 30)
        assert Fraction(m) * Fraction(2) ** q == Fraction(float(np.float32(x * 3 * 2.0**-30)))


def integers(a: Array) -> list[int]:
    """n of n * 2^-149, of non-negative finite float32."""
    u = a.view(np.uint32).astype(np.int64)
    exponent, fraction = u >> 23, u & 0x7FFFFF
    return [
        f if e == 0 else (f | 1 << 23) << (e - 1) for e, f in zip(exponent.tolist(), fraction.tolist(), strict=True)
    ]


def around(values: Array, steps: int) -> Array:
    """Positive finite float32 numbers and those up to `steps` float32 steps away."""
    u = values.astype(np.float32).view(np.uint32).astype(np.int64)
    near = np.unique(u[:, None] + np.arange(-steps, steps + 1))
    return near[(near > 0) & (near < 0x7F800000)].astype(np.uint32).view(np.float32)


def powers(factor: float = 1.0) -> Array:
    """factor * 2^k, as far as float32 reaches."""
    with np.errstate(all="ignore"):
        all_of_them = np.ldexp(factor, np.arange(-165, 130)).astype(np.float32)
    return all_of_them[(all_of_them > 0) & np.isfinite(all_of_them)]


def critical(element: str) -> Array:
    """All powers of two and 44 steps on either side; the largest element times them, what rounds up, and 4 steps."""
    whole, power, _, digits = ELEMENTS[element]
    tie = 2 - 2.0 ** -(digits + 1)
    found = [around(powers(), 44), around(powers(math.ldexp(whole, power)), 4), around(powers(tie), 4)]
    random = np.random.default_rng(1).integers(1, 0x7F800000, 2000, dtype=np.uint32).view(np.float32)
    return np.unique(np.concatenate([*found, random, np.arange(1, 300, dtype=np.uint32).view(np.float32)]))


@parametrize("element", ELEMENTS)
def test_every_rule_is_exact_at_every_power_of_two(element: str) -> None:
    amax = critical(element)
    assert amax.size > 24_000
    whole = integers(amax)
    for rule in POWER_RULES:
        right = np.array([expected(n, element, rule) for n in whole])
        got = power_of_two(amax, element, rule)
        want = np.ldexp(1.0, np.maximum(right, -10_000))
        assert got.dtype == np.float64
        wrong = got != want
        assert not wrong.any(), f"{rule} of {amax[wrong][0]!r}: {got[wrong][0]}, right 2^{right[wrong][0]}"


@parametrize("name", MX)
def test_scales_of_blocks_are_those_clamped_to_the_format(name: str) -> None:
    element = MX[name]
    amax = critical(element)
    x = np.zeros((amax.size, 32), np.float32)
    x[np.arange(amax.size), np.arange(amax.size) % 32] = amax * np.where(np.arange(amax.size) % 3, 1, -1)
    whole, bits = integers(amax), 6 * (element == "int8")
    for rule in POWER_RULES:
        exponents = np.array([expected(n, element, rule) + bits for n in whole])
        q = P.quantize(x, P.scheme(name, scale_rule=rule))
        assert np.array_equal(q.scale_codes[:, 0], exponents.clip(-127, 127) + 127), rule
        assert np.array_equal(q.scales[:, 0].astype(np.float64), np.ldexp(1.0, exponents.clip(-127, 127)))
    q = P.quantize(torch.from_numpy(x), name)
    assert np.array_equal(q.scales[:, 0].numpy(), P.quantize(x, name).scales[:, 0])
    wide = P.quantize(x, P.scheme(name, scale_format="power_of_two", scale_rule="rceil"))
    exponents = np.array([expected(n, element, "rceil") + bits for n in whole])
    assert np.array_equal(wide.scales[:, 0].astype(np.float64), np.ldexp(1.0, exponents.clip(-149, 127)))


@parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=["float16", "bfloat16", "float64"])
def test_rules_on_other_dtypes(dtype: Any) -> None:
    if dtype == np.float64:  # beyond float32, and with digits below its
        k = np.array([-1074, -1073, -1023, -1022, -1021, -400, -151, -150, -127, 0, 1, 127, 128, 129, 300, 1022, 1023])
        u = np.ldexp(1.0, k).view(np.int64)[:, None] + np.arange(-44, 45)
        tops = np.outer([448.0, 57344.0, 6.0, 7.5, 28.0, 127.0], np.ldexp(1.0, k[3:-2])).ravel().view(np.int64)
        u = np.concatenate([u.ravel(), (tops[:, None] + np.arange(-3, 4)).ravel()])
        amax = np.unique(u[(u > 0) & (u < 0x7FF0000000000000)]).view(np.float64)
        scale, rules = 1 << 1074, [r for r in POWER_RULES if r != "nvidia"]
    else:
        amax = np.arange(1, 0x7C00 if dtype == np.float16 else 0x7F80, dtype=np.uint16).view(dtype)
        scale, rules = 1 << 149, list(POWER_RULES)
    whole = [int(Fraction(float(a)) * scale) for a in amax]
    for element in ("float8_e4m3fn", "float4_e2m1fn", "float6_e2m3fn"):
        for rule in rules:
            right = [expected(n, element, rule, 1 - scale.bit_length()) for n in whole]
            got = power_of_two(amax if dtype == np.float64 else amax.astype(np.float32), element, rule)
            assert np.array_equal(got, np.ldexp(1.0, np.array(right))), (element, rule)
            q = P.quantize(amax[:, None], P.scheme("mxfp4", element=element, scale_rule=rule))
            assert np.array_equal(q.scale_codes[:, 0], np.array(right).clip(-127, 127) + 127), (element, rule)


def test_nvidia_of_float64_is_that_of_the_product_rounded_to_float32() -> None:
    # 6 * (1 + 2^-52): float32 of the product is 1, and 2^130 * 6 is beyond float32
    assert power_of_two(np.nextafter(6.0, 7.0), "float4_e2m1fn", "nvidia") == 1.0
    assert power_of_two(np.nextafter(6.0, 7.0), "float4_e2m1fn", "rceil") == 2.0
    q = P.quantize(np.float64([[6 * 2.0**130]]), P.scheme("mxfp4", scale_rule="nvidia"))
    assert q.scale_codes.item() == 254


@parametrize("rule", POWER_RULES)
def test_the_oracle_agrees_on_a_sample(rule: str) -> None:
    for element in ("float8_e4m3fn", "float4_e2m1fn", "int8"):
        amax = critical(element)
        for a in np.random.default_rng(2).choice(amax, 150, replace=False):
            want = exact_scaling.scale(a, element, rule, "float64")
            assert Fraction(float(power_of_two(a, element, rule))) == want, (element, a)


def test_planted_logarithms_are_seen() -> None:
    """Peers' scales from float32 log2: wrong below nearly every power of two."""
    amax = around(powers()[30:-2], 44)
    with np.errstate(all="ignore"):
        logarithm = np.floor(np.log2(amax.astype(np.float32))).astype(np.float64)
    right = np.log2(power_of_two(amax, "float4_e2m1fn")) + 2
    below = powers()[30:-2].view(np.uint32) - np.uint32(1)
    wrong = (
        np.floor(np.log2(below.view(np.float32))) != np.log2(power_of_two(below.view(np.float32), "float4_e2m1fn")) + 2
    )
    assert (logarithm != right).any()
    assert wrong.sum() > 200


def test_handed_exponents() -> None:
    assert power_of_two(np.uint32(0x42FFFFFF).view(np.float32), "float8_e5m2") == 2.0 ** (6 - 15)  # 127.99999
    assert (
        power_of_two(np.uint32(0x39E00001).view(np.float32), "float8_e4m3fn", "rceil") == 2.0**-19
    )  # torchao 0.18: -20
    by_rule = {rule: power_of_two(150.0, "float8_e4m3fn", rule) for rule in POWER_RULES}
    assert by_rule == {"ocp_floor": 0.5, "ceil": 1.0, "even": 0.5, "rceil": 0.5, "nvidia": 0.5}
    assert power_of_two(np.float32([[0, 6], [12, 6.0000005]]), "float4_e2m1fn", "rceil").tolist() == [[0, 1], [2, 2]]


def test_power_of_two_takes_numbers_and_integers() -> None:
    assert power_of_two(6, "float4_e2m1fn") == 1.0
    assert power_of_two(np.float16(6), "float4_e2m1fn") == 1.0
    assert power_of_two([], "float4_e2m1fn").shape == (0,)
    assert power_of_two(np.zeros((2, 3)), "float4_e2m1fn", "ceil").tolist() == [[0] * 3] * 2
    assert isinstance(power_of_two(6.0, "float4_e2m1fn"), float)


# --- Which elements share a scale -------------------------------------------------------------------------------------


def groups(shape: tuple[int, ...], granularity: str, block: Any, axis: int | None) -> dict[tuple[int, ...], set[int]]:
    """Flat indices of the array by index of their scale, written down element by element."""
    found: dict[tuple[int, ...], set[int]] = {}
    for flat, index in enumerate(np.ndindex(*shape)):
        if granularity == "tensor":
            key: tuple[int, ...] = ()
        elif isinstance(block, tuple):
            key = (*index[:-2], index[-2] // block[0], index[-1] // block[1])
        elif granularity == "channel":
            key = (index[0 if axis is None else axis],)
        else:
            at = (-1 if axis is None else axis) % len(shape)
            mine = () if granularity == "row" else (index[at] // block,)
            key = (*index[:at], *mine, *index[at + 1 :])
        found.setdefault(key, set()).add(flat)
    return found


GROUPED = [
    ((), "tensor", None, None), ((7,), "tensor", None, None), ((2, 3, 4), "tensor", None, None),
    ((5,), "channel", None, None), ((2, 3, 4), "channel", None, None), ((2, 3, 4), "channel", None, 1), ((2, 3, 4), "channel", None, -1),
    ((5,), "row", None, None), ((2, 3, 4), "row", None, None), ((2, 3, 4), "row", None, 0), ((2, 3, 4), "row", None, -2),
    ((8,), "block", 4, None), ((9,), "block", 4, None), ((2, 3, 9), "block", 4, None), ((9, 2, 3), "block", 4, 0), ((2, 9, 3), "block", 4, 1), ((2, 9, 3), "block", 4, -2), ((3,), "block", 8, None),
    ((4, 6), "block", (2, 3), None), ((5, 7), "block", (2, 3), None), ((2, 5, 7), "block", (2, 3), None), ((1, 1), "block", (4, 4), None), ((4, 6), "block", (1, 3), None), ((2, 3), "block", 1, None),
]  # fmt: skip


@parametrize(("shape", "granularity", "block", "axis"), GROUPED, ids=str)
def test_blocks_hold_the_elements_that_share_a_scale(shape: Any, granularity: str, block: Any, axis: Any) -> None:
    want = groups(shape, granularity, block, axis)
    b = blocks_of(shape, granularity, block, axis)
    numbers = np.full(b.padded, -1)
    numbers[tuple(slice(n) for n in shape)] = np.arange(math.prod(shape)).reshape(shape)
    split = numbers.reshape(b.view)
    for key, members in want.items():
        index = np.unravel_index(np.ravel_multi_index(key, b.scales), b.kept) if b.scales else (0,) * len(b.kept)
        where = tuple(slice(None) if i in b.spans else int(index[i]) for i in range(len(b.view)))
        got = split[where].ravel()
        assert set(got[got >= 0].tolist()) == members
        assert got.size == b.size
    assert math.prod(b.scales) == len(want)
    assert b.ragged == (b.padded != shape)
    # and the scales of `quantize` are those of these elements
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    options = {"granularity": granularity} | ({} if block is None else {"block": block})
    q = P.quantize(x, P.scheme("int8", **options), axis)
    assert q.scales.shape == b.scales
    for key, members in want.items():
        assert q.scales[key] == np.float32(np.abs(x.ravel()[list(members)]).max() / np.float64(127))


@parametrize(
    ("call", "message"),
    [
        (lambda: blocks_of((3,), "column"), "granularity is 'column'; it must be one of tensor, channel, row, block"),
        (lambda: blocks_of((), "channel"), "a single number has no axis for granularity 'channel': use 'tensor', or reshape it"),
        (lambda: blocks_of((), "block", 32), "a single number has no axis for granularity 'block'"),
        (lambda: blocks_of((2, 3), "row", None, 2), r"axis is 2; an array of shape (2, 3) has axes -2 to 1"),
        (lambda: blocks_of((2, 3), "block", 4, -3), r"axis is -3; an array of shape (2, 3) has axes -2 to 1"),
        (lambda: blocks_of((4,), "block", (2, 2)), r"tiles of 2 by 2 need two axes; the array has shape (4,)"),
        (lambda: power_of_two(1.0, "int8", "amax"), "scale rule is 'amax'; for powers of two it must be one of ocp_floor, ceil, even, rceil, nvidia"),
        (lambda: power_of_two(-1.0, "int8"), "amax holds negative, infinite or NaN magnitudes; a scale is made of finite ones, at least 0"),
        (lambda: power_of_two(math.inf, "int8"), "amax holds negative, infinite or NaN"),
        (lambda: power_of_two(np.float32([1, math.nan]), "int8"), "amax holds negative, infinite or NaN"),
        (lambda: affine_parameters(0, 1, "float16"), "float16 has no zero point: affine parameters are those of an integer format"),
        (lambda: affine_parameters(1, 0, "int8"), "the range is 1 to 0; it must be finite, and not reversed"),
        (lambda: affine_parameters(0, math.inf, "int8"), "the range is 0 to inf; it must be finite"),
        (lambda: affine_parameters([0, math.nan], [1, 1], "int8"), "it must be finite"),
        (lambda: affine_parameters(0, 1, "uint8", symmetric=True, restricted=True), "uint8 is unsigned: restricted leaves out the most negative integer"),
        (lambda: identify_scale_rule(np.zeros((2, 32)), np.ones(2), "float4_e2m1fn"), r"scales have shape (2,); blocks of 32 of these values have (2, 1)"),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# --- Affine integers --------------------------------------------------------------------------------------------------


def ranges() -> list[tuple[float, float]]:
    rng = np.random.default_rng(4)
    random = np.sort(rng.standard_normal((60, 2)) * np.exp2(rng.integers(-140, 120, (60, 1))), axis=1)
    tiny = float(np.float32(2**-149))
    # 255 * m + 2^-23, m the middle of two float32: 57 digits, of which a float64 difference keeps 53
    m = (1 << 24) + 2 * (1 << 20) + 1
    whole = 255 * m
    high = float(whole - 1)
    hair = [(-(1 + 2.0**-23), high)] if float(np.float32(high)) == high else []
    return [
        (-1, 3), (0, 0), (-1, 0), (1, 255), (-255, -1), (-63.5, 191.5), (-62.5, 192.5), (-63.5, 190.5), (0, tiny), (-tiny, tiny),
        (-3e38, 3e38), (-2.0**-60, 255 * (1 + 2.0**-24)), (0, 255 * (1 + 2.0**-24)), (-1e-30, 1e30), (-254, 100), (-127, 127), *hair, *random.tolist(),
    ]  # fmt: skip


@parametrize("fmt", ["int8", "uint8", "int4", "uint4", "int2", "uint2"])
@parametrize("scale_format", ["float32", "bfloat16", "float8_e4m3fn"])
def test_affine_parameters_against_exact_rationals(fmt: str, scale_format: str) -> None:
    low, high = np.array(ranges(), np.float64).T
    choices = [{}, {"symmetric": True}] + [{"restricted": True}, {"symmetric": True, "restricted": True}] * (
        fmt[0] == "i"
    )
    for how in choices:
        want = [exact_scaling.affine_parameters(a, b, fmt, scale_format=scale_format, **how) for a, b in ranges()]
        scales, zeros = affine_parameters(low, high, fmt, scale_format=scale_format, **how)
        for i, (step, zero) in enumerate(want):
            assert (Fraction(scales[i]), zeros[i]) == (step, zero), (how, ranges()[i])
            assert affine_parameters(low[i], high[i], fmt, scale_format=scale_format, **how) == (float(step), zero)


# --- The rule of a checkpoint -----------------------------------------------------------------------------------------


@parametrize("name", MX)
def test_identify_scale_rule(name: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 256)).astype(np.float32)
    element = MX[name]
    for rule in POWER_RULES:
        q = P.quantize(x, P.scheme(name, scale_rule=rule))
        found = identify_scale_rule(x, q.scales, element)
        assert rule in found
        others = {
            r for r in POWER_RULES if np.array_equal(P.quantize(x, P.scheme(name, scale_rule=r)).scales, q.scales)
        }
        assert set(found) == others
        assert ("nvidia" in found) == ("rceil" in found)
        assert identify_scale_rule(torch.from_numpy(x), torch.from_numpy(q.scale_codes), element) == found
        assert identify_scale_rule(x.astype(np.float64), q.scales.astype(np.float64), element) == found
    assert (
        len({identify_scale_rule(x, P.quantize(x, P.scheme(name, scale_rule=r)).scales, element) for r in POWER_RULES})
        == 4
    )
    assert identify_scale_rule(x, np.full((64, 8), 2.0**-30), element) == ()


def test_identify_scale_rule_by_axis_tiles_and_what_says_nothing() -> None:
    x = np.random.default_rng(6).standard_normal((96, 40)).astype(np.float32)
    q = P.quantize(x, P.scheme("mxfp4", scale_rule="ceil"), axis=0)
    assert identify_scale_rule(x, q.scales, "float4_e2m1fn", axis=0) == ("ceil",)
    q = P.quantize(x, P.scheme("mxfp4", scale_rule="even", block=(8, 8)))
    assert identify_scale_rule(x, q.scales, "float4_e2m1fn", block=(8, 8)) == ("even",)
    q = P.quantize(x, P.scheme("mxfp4", scale_rule="even", block=16))  # ragged: 40 = 2 * 16 + 8
    assert identify_scale_rule(x, q.scales, "float4_e2m1fn", block=16) == ("even",)
    zeros = np.zeros((2, 64), np.float32)
    assert identify_scale_rule(zeros, np.ones((2, 2)), "float4_e2m1fn") == POWER_RULES
    x = np.float32([[1.0] * 31 + [math.inf], [1.0] * 31 + [math.nan]])
    assert identify_scale_rule(x, np.float32([[1], [2]]), "float4_e2m1fn") == POWER_RULES
    one = np.full((1, 32), 4.0, np.float32)  # a power of two: all agree but those that see the largest element
    assert identify_scale_rule(one, np.float32([[1.0]]), "float4_e2m1fn") == POWER_RULES
