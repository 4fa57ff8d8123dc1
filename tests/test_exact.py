"""The oracle against the specifications' own numbers, brute force, NumPy and ml_dtypes; derived facts against it.

`precision.exact` judges the fast path, so nothing here uses `precision.rounding` or `codec` to compute a value.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
import random
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import precision as P
from precision import exact
from precision.exact import Number

INF, NAN = math.inf, math.nan
FORMATS = [f for f in P.formats() if isinstance(f, P.Format)]
SMALL = [f for f in P.formats() if f.bits <= 8]
ENUMERABLE = [f for f in P.formats() if f.bits <= 16]
parametrize = pytest.mark.parametrize


def same(got: float, want: float) -> bool:
    """Equal as numbers, with the sign of a zero; any NaN is any NaN."""
    return (got != got and want != want) or (got == want and math.copysign(1, got) == math.copysign(1, want))


def custom_formats(count: int, seed: int, exponents: int = 5, mantissas: int = 4) -> list[P.Format]:
    """Random formats of every shape that can exist."""
    draw = random.Random(seed)
    found: list[P.Format] = []
    while len(found) < count:
        signed = draw.random() < 0.75
        try:
            found.append(
                P.Format(
                    name=f"custom{len(found)}",
                    exponent_bits=draw.randint(1, exponents),
                    mantissa_bits=draw.randint(0, mantissas),
                    bias=draw.choice([None, draw.randint(-9, 40)]),
                    infinities=draw.random() < 0.5,
                    nan=draw.choice(["ieee", "all_ones", "negative_zero", "none"]),
                    signed=signed,
                    zero=signed or draw.random() < 0.5,
                )
            )
        except ValueError:
            continue  # this one cannot exist
    return found


# --- Numbers --------------------------------------------------------------------------------------


def test_number_takes_every_scalar_exactly() -> None:
    third = Fraction(1, 3)
    for x, value in [
        (3, 3), (-(2**70) - 1, -(2**70) - 1), (0.1, Fraction(0.1)), (third, third), (np.int64(-7), -7),
        (np.float16(0.1), Fraction(1638, 2**14)), (np.float32(0.1), Fraction(13421773, 2**27)),
        (np.longdouble(1) + np.longdouble(2) ** -60, Fraction(float(np.longdouble(2) ** -60)) + 1),
        (ml_dtypes.bfloat16(3.140625), Fraction(3.140625)), (ml_dtypes.float8_e4m3fn(448), 448),
        (ml_dtypes.int4(-8), -8),
    ]:  # fmt: skip
        if isinstance(x, np.longdouble) and np.finfo(np.longdouble).nmant < 60:
            continue
        assert Number.of(x) == Number("finite", value < 0, Fraction(value))
    assert Number.of(-0.0) == Number("finite", True) != Number.of(0.0) == Number.of(0)
    assert Number.of(np.float32("-inf")) == Number("infinity", True)
    assert [Number.of(x).negative for x in (NAN, math.copysign(NAN, -1), np.float16(-NAN))] == [False, True, True]
    assert Number.of(Number.of(0.5)) == Number.of(0.5)


def test_number_refuses_what_is_no_real_number() -> None:
    for x in (True, np.bool_(True), 1j, "1", None, b"1", np.datetime64("2020")):
        with pytest.raises(TypeError, match=r"is no real number: give int, float, Fraction"):
            Number.of(x)
    with pytest.raises(TypeError, match="no real number"):
        exact.round([[1, 2], [3]], "float16")
    with pytest.raises(ValueError, match="no Number is of kind 'finite' with negative=True, value=1"):
        Number("finite", True, Fraction(1))


def test_number_becomes_a_float_only_exactly() -> None:
    assert [float(Number.of(x)) for x in (0.1, -INF, 2**1023)] == [0.1, -INF, 2.0**1023]
    assert same(float(Number.of(-0.0)), -0.0)
    assert math.copysign(1, float(Number("nan", True))) == -1
    for x in (Fraction(1, 3), 2**1024, 2**53 + 1):
        with pytest.raises(ValueError, match="float64 does not hold"):
            float(Number.of(x))


# --- Decoding -------------------------------------------------------------------------------------

CODES = [  # OCP OFP8 1.0 tables 1-2; OCP MX 1.0 tables 2-7; IEEE 754-2019 table 3.5; arXiv 2206.02915 table 1
    ("float8_e4m3fn", {0x00: 0.0, 0x80: -0.0, 0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x7E: 448.0, 0x7F: NAN,
        0xFF: NAN}),
    ("float8_e5m2", {0x01: 2**-16, 0x03: 3 * 2**-16, 0x04: 2**-14, 0x7B: 57344.0, 0x7C: INF, 0xFC: -INF, 0x7D: NAN,
        0xFF: NAN}),
    ("float8_e4m3fnuz", {0x00: 0.0, 0x80: NAN, 0x01: 2**-10, 0x7F: 240.0, 0xFF: -240.0}),
    ("float8_e5m2fnuz", {0x80: NAN, 0x01: 2**-17, 0x7F: 57344.0, 0xFF: -57344.0}),
    ("float8_e4m3b11fnuz", {0x80: NAN, 0x01: 2**-13, 0x7F: 30.0}),
    ("float8_e4m3", {0x77: 240.0, 0x78: INF, 0x79: NAN}),
    ("float8_e3m4", {0x01: 2**-6, 0x6F: 15.5, 0x70: INF, 0x71: NAN}),
    ("float8_e8m0fnu", {0: 2.0**-127, 127: 1.0, 134: 128.0, 254: 2.0**127, 255: NAN}),
    ("float6_e3m2fn", {0x01: 0.0625, 0x04: 0.25, 0x1F: 28.0, 0x20: -0.0, 0x3F: -28.0}),
    ("float6_e2m3fn", {0x01: 0.125, 0x08: 1.0, 0x1F: 7.5, 0x3F: -7.5}),
    ("float4_e2m1fn", dict(enumerate([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0,
        -4.0, -6.0]))),
    ("float16", {0x0001: 2**-24, 0x0400: 2**-14, 0x7BFF: 65504.0, 0x7C00: INF, 0x7E00: NAN, 0x8000: -0.0}),
    ("bfloat16", {0x0001: 2.0**-133, 0x0080: 2.0**-126, 0x7F7F: (2 - 2**-7) * 2.0**127, 0x7F80: INF, 0x7FC0: NAN}),
    ("tfloat32", {0x00001: 2.0**-136, 0x1FC00: 1.0, 0x3FC00: INF, 0x3FE00: NAN, 0x40000: -0.0}),
    ("float32", {0x00000001: 2.0**-149, 0x3F800000: 1.0, 0x7F800000: INF, 0xFFC00000: NAN}),
    ("float64", {1: 2.0**-1074, 0x3FF << 52: 1.0, 0x7FEFFFFFFFFFFFFF: float(np.finfo(float).max), 0xFFF << 52: -INF}),
    ("int4", {0: 0.0, 7: 7.0, 8: -8.0, 15: -1.0}),
    ("uint4", {15: 15.0}),
    ("int32", {0x7FFFFFFF: 2.0**31 - 1, 0x80000000: -(2.0**31)}),
]  # fmt: skip


@parametrize(("fmt", "codes"), CODES, ids=[row[0] for row in CODES])
def test_decode_gives_the_specifications_values(fmt: str, codes: dict[int, float]) -> None:
    for code, value in codes.items():
        assert same(float(exact.decode(code, fmt)), value), (hex(code), value)


@parametrize("fmt", ENUMERABLE, ids=str)
def test_decode_agrees_with_ml_dtypes_on_every_code(fmt: P.Format) -> None:
    codes = np.arange(1 << fmt.bits, dtype=np.uint16 if fmt.bits > 8 else np.uint8)
    theirs = codes.astype(np.int8 if fmt.name.startswith("int") and fmt.bits < 8 else codes.dtype)
    if fmt.bits < 8 and isinstance(fmt, P.IntFormat):  # ml_dtypes wants small integers sign-extended in their byte
        theirs = np.where(codes >> (fmt.bits - 1), codes | (0xFF << fmt.bits & 0xFF), codes) if fmt.signed else codes
    want = theirs.astype(codes.dtype).view(fmt.numpy_dtype).astype(np.float32)
    ours = np.array([float(exact.decode(c, fmt)) for c in range(1 << fmt.bits)], dtype=np.float32)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


@parametrize("fmt", ENUMERABLE, ids=str)
def test_values_are_the_codes_in_order(fmt: P.Format) -> None:
    listed = exact.values(fmt)
    assert [code for _, code in listed] == list(range(len(listed)))
    assert [exact.decode(code, fmt).value for _, code in listed] == [value for value, _ in listed]
    assert all(a < b for (a, _), (b, _) in itertools.pairwise(listed))
    assert len(listed) == fmt.max_code + 1


@parametrize("fmt", ENUMERABLE, ids=str)
def test_every_code_rounds_to_itself_in_every_mode(fmt: P.Format) -> None:
    numbers = [exact.decode(code, fmt) for code in range(1 << fmt.bits)]
    modes = P.ROUNDINGS if fmt.bits <= 8 else ("nearest_even",)
    for mode in modes:
        policy = P.Policy(overflow="infinity", infinity="infinity", nan="quiet_signed")
        codes = exact.round(numbers, fmt, rounding=mode, policy=policy)
        assert all(code == want or numbers[want].kind == "nan" for want, code in enumerate(codes.tolist()))
        assert all(exact.decode(codes[i], fmt) == x for i, x in enumerate(numbers) if x.kind == "nan")


def test_bad_codes_and_long_lists_are_refused() -> None:
    for code in (-1, 256):
        with pytest.raises(ValueError, match=rf"float8_e4m3fn: code {code} is outside 0 \.\. 255"):
            exact.decode(code, "float8_e4m3fn")
    with pytest.raises(ValueError, match=r"tfloat32 has 19 bits: values\(\) lists formats of at most 16"):
        exact.values("tfloat32")


# --- Rounding: numbers from specifications and bug reports ----------------------------------------

ROUNDED = [  # input, format, policy, code
    # E4M3: 464 is the tie of 448 (even) and 480 (the NaN's place); OCP OFP8 1.0 5.2.1; pytorch#150756
    (448, "float8_e4m3fn", "ieee", 0x7E), (449, "float8_e4m3fn", "ieee", 0x7E), (464, "float8_e4m3fn", "ieee", 0x7E),
    (465, "float8_e4m3fn", "ieee", 0x7F), (-465, "float8_e4m3fn", "ieee", 0xFF),
    (465, "float8_e4m3fn", "saturate", 0x7E),
    (464 + Fraction(1, 10**30), "float8_e4m3fn", "ieee", 0x7F), (INF, "float8_e4m3fn", "ieee", 0x7F),
    (INF, "float8_e4m3fn", "saturate", 0x7E), (-INF, "float8_e4m3fn", "saturate", 0xFE),
    (1000, "float8_e4m3fn", "torch", 0x7E), (1000, "float8_e4m3fn", "torch_2_11", 0x7F),
    (NAN, "float8_e4m3fn", "saturate", 0x7F), (-0.0, "float8_e4m3fn", "ieee", 0x80),
    # ml_dtypes#221, bitstring#342, Microfloats.jl PR 25, Float8s.jl#22
    (4.25, "float8_e4m3fn", "ieee", 0x48), (232.03683, "float8_e4m3fn", "ieee", 0x77),
    (1.31640625, "float8_e4m3fn", "ieee", 0x3B), (0.000538887, "float8_e4m3fn", "ieee", 0x00),
    (2**-10, "float8_e4m3fn", "ieee", 0x00), (1.0625, "float8_e4m3fn", "ieee", 0x38),
    # rounded once, not through float32: julia#40315, PR 57809, halide PR 8906
    (1.0625 + 2**-40, "float8_e4m3fn", "ieee", 0x39), (63343.99805, "float16", "ieee", 0x7BBB),
    (1 + 2**-11 + 2**-40, "float16", "ieee", 0x3C01), (1 + 2**-8 + 2**-40, "bfloat16", "ieee", 0x3F81),
    (2**25 + 2**17 + 1, "bfloat16", "ieee", 0x4C01),
    # overflow ties of formats whose largest significand is odd
    (65519, "float16", "ieee", 0x7BFF), (65520, "float16", "ieee", 0x7C00), (65520, "float16", "saturate", 0x7BFF),
    (Fraction(2**128) - 2**119, "bfloat16", "ieee", 0x7F80), (61439, "float8_e5m2", "ieee", 0x7B),
    (61440, "float8_e5m2", "ieee", 0x7C), (-61440, "float8_e5m2", "saturate", 0xFB), (INF, "float8_e5m2", "ieee", 0x7C),
    # subnormals: jax#38995, numpy#22704, pytorch#92233, tvm#20315, tt-metal PR 19882
    (2.0**-133, "bfloat16", "ieee", 0x0001), (2.0**-134, "bfloat16", "ieee", 0x0000),
    (3.14, "bfloat16", "ieee", 0x4049),
    (float(np.uint32(0x34200000).view(np.float32)), "float16", "ieee", 0x0002),
    (float(np.uint32(0x34600000).view(np.float32)), "float16", "ieee", 0x0004),
    (float(np.uint32(0x40001000).view(np.float32)), "float16", "ieee", 0x4000),
    (6.407499313354492e-06, "float16", "ieee", 0x006C), (2**-16, "float8_e5m2", "ieee", 0x01),
    # a tiny negative number into FNUZ is +0: its code with a sign is NaN; onnxruntime PR 18473
    (-1e-5, "float8_e4m3fnuz", "ieee", 0x00), (-1e-7, "float8_e5m2fnuz", "ieee", 0x00),
    (-0.0, "float8_e4m3fnuz", "ieee", 0x00),
    (NAN, "float8_e4m3fnuz", "ieee", 0x80), (1e9, "float8_e4m3fnuz", "ieee", 0x80),
    (INF, "float8_e4m3fnuz", "onnx", 0x80),
    (1e9, "float8_e4m3fnuz", "onnx", 0x7F), (-1e9, "float8_e5m2fnuz", "saturate", 0xFF),
    # E8M0: the significand is 1, odd, so ties go up; no zero, no sign
    (1.25, "float8_e8m0fnu", "ieee", 127), (1.5, "float8_e8m0fnu", "ieee", 128), (3.0, "float8_e8m0fnu", "ieee", 129),
    (2.5, "float8_e8m0fnu", "ieee", 128), (1.5 * 2.0**127, "float8_e8m0fnu", "ieee", 255),
    (1.5 * 2.0**127, "float8_e8m0fnu", "saturate", 254), (2.0**-149, "float8_e8m0fnu", "ieee", 0),
    (0.0, "float8_e8m0fnu", "saturate", 0), (0.0, "float8_e8m0fnu", "ml_dtypes", 255),
    (-2.0, "float8_e8m0fnu", "ml_dtypes", 255),
    (-2.0, "float8_e8m0fnu", "torch", 128), (-2.0, "float8_e8m0fnu", P.Policy(negative="clamp"), 0),
    (-INF, "float8_e8m0fnu", P.Policy(negative="clamp"), 0), (-INF, "float8_e8m0fnu", "ptx_satfinite", 254),
    # formats with numbers only
    (5, "float4_e2m1fn", "ieee", 6), (7, "float4_e2m1fn", "ieee", 7), (0.25, "float4_e2m1fn", "ieee", 0),
    (0.75, "float4_e2m1fn", "ieee", 2), (-1e9, "float4_e2m1fn", "ieee", 15), (INF, "float6_e3m2fn", "ieee", 0x1F),
    (NAN, "float4_e2m1fn", "ptx_satfinite", 7), (math.copysign(NAN, -1), "float4_e2m1fn", "saturate", 7),
    (NAN, "float4_e2m1fn", "ml_dtypes", 8), (math.copysign(NAN, -1), "float4_e2m1fn", "ml_dtypes", 0),
    (NAN, "float4_e2m1fn", P.Policy(missing_nan="zero"), 0),
    # integers saturate whatever the policy; ties to even; ONNX INT4 (openvino#38158)
    (2.5, "int4", "ieee", 2), (3.5, "int4", "ieee", 4), (-2.5, "int4", "ieee", 14), (300, "int4", "ieee", 7),
    (-9, "int4", "ieee", 8), (127.5, "int8", "saturate", 127), (-128.5, "int8", "saturate", 128),
    (INF, "uint8", "ieee", 255),
    (-INF, "int8", "ieee", 128), (-3.0, "uint8", "ieee", 0), (-0.0, "int8", "ieee", 0), (NAN, "int8", "saturate", 0),
    (NAN, "int8", P.Policy(missing_nan="max"), 127),
    # NaN codes: quiet bit only, all ones, sign kept or dropped (H200 gives 0x7fff; torch keeps the sign)
    (math.copysign(NAN, -1), "float16", "ieee", 0x7E00), (math.copysign(NAN, -1), "float16", "ml_dtypes", 0xFE00),
    (math.copysign(NAN, -1), "float16", "ptx", 0x7FFF), (math.copysign(NAN, -1), "bfloat16", "torch", 0xFFFF),
    (NAN, "float8_e5m2", P.Policy(nan="quiet"), 0x7E), (NAN, "float8_e5m2", P.Policy(nan="all_ones"), 0x7F),
]  # fmt: skip


def test_nearest_even_gives_the_reported_codes() -> None:
    wrong = [(x, f, hex(got), hex(want)) for x, f, p, want in ROUNDED if (got := exact.round(x, f, policy=p)) != want]
    assert not wrong


MODES = [  # input, format, then the code by nearest_away, toward_zero, toward_positive, toward_negative, to_odd
    (1.0625, "float8_e4m3fn", (0x39, 0x38, 0x39, 0x38, 0x39)),
    (-1.0625, "float8_e4m3fn", (0xB9, 0xB8, 0xB8, 0xB9, 0xB9)),
    (1.1875, "float8_e4m3fn", (0x3A, 0x39, 0x3A, 0x39, 0x39)),
    (2**-10, "float8_e4m3fn", (0x01, 0x00, 0x01, 0x00, 0x01)),
    (-(2.0**-40), "float8_e4m3fn", (0x80, 0x80, 0x80, 0x81, 0x81)),
    (450, "float8_e4m3fn", (0x7E, 0x7E, 0x7F, 0x7E, 0x7E)),  # to_odd: 480 overflows, and to_odd overflows to max
    (-1e9, "float8_e5m2", (0xFC, 0xFB, 0xFB, 0xFC, 0xFB)),
    (1e9, "float8_e5m2", (0x7C, 0x7B, 0x7C, 0x7B, 0x7B)),
    (1e9, "float4_e2m1fn", (7, 7, 7, 7, 7)),
    (1.5, "float8_e8m0fnu", (128, 127, 128, 127, 127)),
    (2.0**-149, "float8_e8m0fnu", (0, 0, 0, 0, 0)),
    (2.0**-126.5, "float8_e8m0fnu", (0, 0, 1, 0, 0)),
    (-1e-7, "float8_e5m2fnuz", (0x00, 0x00, 0x00, 0x81, 0x81)),
    (2.5, "int4", (3, 2, 3, 2, 3)),
    (-7.5, "int4", (8, 9, 9, 8, 9)),
    (-8.4, "int4", (8, 8, 8, 8, 8)),
]


def test_other_modes_give_these_codes() -> None:
    for x, fmt, want in MODES:
        got = tuple(exact.round(x, fmt, rounding=mode, policy="ieee") for mode in P.ROUNDINGS[1:])
        assert got == want, (x, fmt)


def test_no_mantissa_bit_rounds_as_its_significand_one_says() -> None:
    """IEEE 754-2019 4.3.1: with both significands odd a tie takes the larger magnitude; zero is even."""
    fmt = P.Format(name="e4m0", exponent_bits=4, mantissa_bits=0, infinities=True, nan="none")
    tiny = exact.decode(1, fmt).value
    assert [exact.round(tiny * k / 2, fmt) for k in (1, 2, 3, 5, 6)] == [0, 1, 2, 2, 3]
    assert [exact.round(tiny * k / 4, fmt, rounding="to_odd") for k in (1, 4, 7, 9)] == [1, 1, 1, 2]


def test_subnormals_are_flushed_as_the_policy_says() -> None:
    def code(x: float, source: str, subnormals: str, **how: str) -> int:
        return int(exact.round(x, "float8_e5m2", policy=P.Policy(subnormals=subnormals), source=source, **how))

    assert [code(x, "float16", "flush_inputs") for x in (2**-14, -(2**-15), 2**-16)] == [0x04, 0x80, 0x00]
    assert [code(x, "float32", "flush_inputs") for x in (2**-14, -(2**-15), 2**-16)] == [0x04, 0x82, 0x01]
    assert [code(x, "float32", "flush_results") for x in (2**-14, 2**-14 - 2**-20, -(2**-15))] == [0x04, 0x04, 0x80]
    assert code(2**-15, "float32", "flush", rounding="toward_positive") == 0
    assert code(2**-15, "float16", "keep") == 0x02
    negative = P.Policy(subnormals="flush_results")
    assert exact.round(-(2.0**-9), "float8_e4m3fnuz", policy=negative) == 0  # no -0
    assert exact.round(2.0**-127, "float8_e8m0fnu", policy=negative) == 0  # the smallest value, a normal number
    with pytest.raises(ValueError, match="policy subnormals='flush' needs source="):
        exact.round(1, "float16", policy=P.Policy(subnormals="flush"))


def test_unsigned_formats_do_as_the_policy_says() -> None:
    """The magnitude is taken before rounding: an H200's E8M0 conversion toward +Inf gives -x the code of x, always."""
    up = {"rounding": "toward_positive", "policy": "cuda_nosat"}
    assert exact.round([1.25, -1.25, 2.0**-126.5, -(2.0**-126.5)], "float8_e8m0fnu", **up).tolist() == [128, 128, 1, 1]
    ieee = P.Format(name="u8", exponent_bits=4, mantissa_bits=4, signed=False)
    for nan, code in (("quiet", 0xF8), ("all_ones_signed", 0xFF)):
        policy = P.Policy(overflow="infinity", infinity="infinity", nan=nan)
        assert exact.round([-1, -INF, -NAN, -0.0, INF], ieee, policy=policy).tolist() == [code, code, code, 0, 0xF0]
    assert exact.round([-1, -INF], ieee, policy=P.Policy(negative="clamp")).tolist() == [0, 0]
    assert exact.round([-1.5, -INF], ieee, policy=P.Policy(negative="magnitude")).tolist() == [0x78, 0xEF]
    numbers_only = P.Format(
        name="u4", exponent_bits=3, mantissa_bits=1, infinities=False, nan="none", signed=False, zero=False
    )
    policy = P.Policy(negative="nan", zero="nan")  # there is no NaN: the smallest value
    assert exact.round([0, -0.0, -5, -INF], numbers_only, policy=policy).tolist() == [0, 0, 0, 0]


def test_raising_policies_name_the_rule() -> None:
    with pytest.raises(ValueError, match="float16: the input has a NaN and the policy says nan='raise'"):
        exact.round(NAN, "float16", policy=P.Policy(nan="raise"))
    with pytest.raises(ValueError, match="int8: the input has a NaN and the policy says missing_nan='raise'"):
        exact.round(NAN, "int8", policy=P.Policy(nan="quiet", missing_nan="raise"))
    assert exact.round(1e9, "float8_e4m3fn", policy=P.Policy(overflow="infinity", nan="raise")) == 0x7F


# --- Rounding: against brute force ----------------------------------------------------------------


def brute_force(x: Fraction, fmt: P.Format, mode: str) -> set[Fraction]:
    """The values that a rounding of x may give, from the definition: the nearest, or the nearest on one side."""
    finite = {n.value for c in range(1 << fmt.bits) if (n := exact.decode(c, fmt)).kind == "finite"}
    side = {
        "toward_positive": lambda v: v >= x,
        "toward_negative": lambda v: v <= x,
        "toward_zero": lambda v: abs(v) <= abs(x) and v * x >= 0,
    }.get(mode, lambda v: True)
    allowed = [v for v in finite if side(v)]
    distance = min(abs(v - x) for v in allowed)
    return {v for v in allowed if abs(v - x) == distance}


BRUTE = [f for f in (*SMALL, *custom_formats(12, seed=1, exponents=4, mantissas=3)) if f.zero]


@parametrize("fmt", BRUTE, ids=str)
def test_rounding_is_the_nearest_value_by_brute_force(fmt: P.Format) -> None:
    draw = random.Random(fmt.name)
    listed = [v for v, _ in exact.values(fmt)]
    positions = [draw.choice((0, Fraction(1, 2), Fraction(draw.random()))) for _ in range(40)]
    for position in positions:
        i = draw.randrange(len(listed) - 1)
        x = (listed[i] + position * (listed[i + 1] - listed[i])) * draw.choice((1, -1))
        if x < Fraction(fmt.min):
            x = -x
        for mode in ("nearest_even", "nearest_away", "toward_zero", "toward_positive", "toward_negative"):
            want = brute_force(x, fmt, mode)
            got = exact.round_value(x, fmt, rounding=mode)
            assert got.value in want, (x, mode)
            if len(want) == 2:  # a tie
                further = abs(got.value) == max(map(abs, want))
                even = exact.round(abs(x), fmt) % 2 == 0
                assert further if mode == "nearest_away" else even or fmt.mantissa_bits == 0, (x, mode)


@parametrize("fmt", ["float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu", "float16", "int8"], ids=str)
def test_stochastic_rounding_counts_out_the_dropped_fraction(fmt: str) -> None:
    """Over all random numbers of n bits the magnitude goes up floor(fraction * 2^n) times, also from the last value."""
    bits = 6
    draws = np.arange(1 << bits)
    lows = [3, 7] if fmt == "float4_e2m1fn" else [3, 100, int(P.get_format(fmt).max_code)]
    for low, fraction in itertools.product(lows, (Fraction(0), Fraction(1, 3), Fraction(5, 64), Fraction(999, 1000))):
        a = exact.decode(low, fmt).value
        ends_there = low == P.get_format(fmt).max_code
        step = 1 if fmt == "int8" else a if fmt == "float8_e8m0fnu" else a - exact.decode(low - 1, fmt).value
        x = a + fraction * step
        rounding = P.stochastic(random_bits=draws, bits=bits)
        codes = exact.round(x, fmt, rounding=rounding, policy="ieee")
        up = math.floor(fraction * 2**bits)
        above = exact.round(INF, fmt, policy="ieee") if ends_there else low + 1
        assert codes.tolist() == [low] * (64 - up) + [above] * up, (x, codes)


def test_random_bits_must_fit() -> None:
    with pytest.raises(ValueError, match=r"random bits 16 are outside 0 \.\. 15, what 4 bits hold"):
        exact.round([0.3, 0.4], "float16", rounding=P.stochastic(random_bits=[3, 16], bits=4))
    with pytest.raises(ValueError, match="unknown rounding 'stochastic': use one of nearest_even"):
        exact.round(0.3, "float16", rounding="stochastic")


@parametrize("source", ["float32", "float64"])
@parametrize("target", ["float16", "float32"])
def test_rounding_agrees_with_numpy_casts(source: str, target: str) -> None:
    """NumPy rounds float64 to float16 and float32 once, IEEE rules throughout."""
    width = {"float32": np.uint32, "float64": np.uint64}[source]
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << (32 if source == "float32" else 52), 1500, dtype=np.uint64)
    if source == "float64":  # around the range of the target: exponents 2^-160 to 2^159
        bits += rng.integers(863, 1183, 1500, dtype=np.uint64) << np.uint64(52)
        bits += rng.integers(0, 2, 1500, dtype=np.uint64) << np.uint64(63)
    x = bits.astype(width).view(source)
    x = np.concatenate([x, np.array([0.0, -0.0, INF, -INF], dtype=source)])
    with np.errstate(all="ignore"):
        want = x.astype(target)
    got = exact.round_value(x, target, policy="ieee", result="value")
    assert all(same(a, b) for a, b in zip(got.tolist(), want.tolist(), strict=True))


# --- The derived facts of formats -----------------------------------------------------------------


def check_derived_facts(fmt: P.Format) -> None:
    """Every derived field, from all codes decoded by the specification and from what rounding does."""
    numbers = [exact.decode(code, fmt) for code in range(1 << fmt.bits)]
    with pytest.raises(ValueError, match="is outside"):
        exact.decode(1 << fmt.bits, fmt)
    finite = {x.value for x in numbers if x.kind == "finite"}
    m, half = fmt.mantissa_bits, 1 << (fmt.bits - fmt.signed)
    assert fmt.number_of_values == len(finite)
    assert (fmt.max, fmt.min) == (max(finite), min(finite))
    assert fmt.max_code == max(c for c, x in enumerate(numbers[:half]) if x.kind == "finite")
    assert numbers[fmt.max_code].value == fmt.max
    smallest = min(v for v in finite if v > 0)
    normal = smallest * 2**m if fmt.zero else smallest
    assert (fmt.smallest_subnormal, fmt.smallest_normal) == (smallest, normal)
    assert Fraction(2) ** fmt.emin == normal
    assert fmt.eps == Fraction(1, 2**m)

    # Special codes.
    assert fmt.sign_mask == (half if fmt.signed else 0)
    assert [c for c, x in enumerate(numbers) if x == Number("infinity")] == [
        c for c in [fmt.infinity_code] if c is not None
    ]
    assert fmt.has_negative_zero == (Number("finite", True) in numbers)
    nans = [c for c, x in enumerate(numbers) if x.kind == "nan"]
    assert fmt.has_nan == bool(nans)
    positive = [c for c in nans if c < half or fmt.nan == "negative_zero"]
    if not nans:
        assert (fmt.quiet_nan_code, fmt.all_ones_nan_code) == (None, None)
    else:
        quiet = [exact.round(NAN, fmt, policy=P.Policy(nan=rule)) for rule in ("quiet", "all_ones")]
        assert [fmt.quiet_nan_code, fmt.all_ones_nan_code] == quiet
        assert {fmt.quiet_nan_code, fmt.all_ones_nan_code} <= set(positive)
        assert fmt.all_ones_nan_code == max(positive)
        if fmt.nan == "ieee":  # the quiet bit, and no payload
            assert fmt.quiet_nan_code == min(positive) + 2 ** (m - 1) - 1

    # Thresholds: the grid goes on past max with the spacing of max's binade.
    top = Fraction(fmt.max)
    binade = Fraction(2) ** (math.floor(math.log2(fmt.max)))  # far from where log2 could err: fmt.max has few bits
    step = max(binade, normal) / 2**m
    if top >= normal:
        assert Fraction(2) ** fmt.emax == binade
    threshold = Fraction(fmt.overflow_threshold)
    assert threshold == top + step / 2
    assert fmt.overflow_tie == ("overflows" if (top / step) % 2 else "max")
    ieee = P.Policy(overflow="infinity", infinity="infinity")
    beyond = exact.round(INF, fmt, policy=ieee)
    near = [exact.round(threshold + k * step / 2**40, fmt, policy=ieee) for k in (-1, 0, 1)]
    assert near == [fmt.max_code, beyond if fmt.overflow_tie == "overflows" else fmt.max_code, beyond]
    if not fmt.zero:
        assert fmt.underflow_threshold is None
        assert exact.round(smallest / 2**50, fmt) == 0 == exact.round(smallest, fmt)
    else:
        assert fmt.underflow_threshold == smallest / 2
        assert [exact.round(smallest / 2 + k * smallest / 2**40, fmt) for k in (-1, 0, 1)] == [0, 0, 1]


@parametrize("fmt", [f for f in ENUMERABLE if isinstance(f, P.Format)], ids=str)
def test_derived_facts_of_the_named_formats(fmt: P.Format) -> None:
    check_derived_facts(fmt)


def test_derived_facts_of_custom_formats() -> None:
    drawn = custom_formats(200, seed=3)
    assert {(f.nan, f.infinities, f.signed, f.zero, f.mantissa_bits == 0) for f in drawn} >= {
        ("ieee", True, True, True, False), ("all_ones", True, True, True, True), ("none", False, False, False, True),
        ("negative_zero", True, True, True, False), ("all_ones", False, False, False, False),
        ("none", True, False, True, False),
    }  # fmt: skip
    for fmt in drawn:
        try:
            check_derived_facts(fmt)
        except AssertionError as error:
            error.add_note(repr(fmt))
            raise


@parametrize("name", ["float32", "float64"])
def test_derived_facts_of_wide_formats_are_numpys(name: str) -> None:
    fmt, info = P.get_format(name), np.finfo(name)
    top = Fraction(float(info.max))
    assert (fmt.max, fmt.min, fmt.eps) == (info.max, info.min, info.eps)
    assert (fmt.smallest_normal, fmt.smallest_subnormal) == (info.smallest_normal, info.smallest_subnormal)
    assert fmt.number_of_values == 2 * (2**fmt.exponent_bits - 1) * 2**fmt.mantissa_bits - 1
    assert fmt.overflow_threshold == top + (Fraction(2) ** (info.maxexp - 1)) / 2**info.nmant / 2
    assert fmt.overflow_tie == "overflows"
    assert Fraction(fmt.underflow_threshold) == Fraction(float(info.smallest_subnormal)) / 2


def test_derived_facts_of_tfloat32() -> None:
    """As float32 in range and float16 in precision: NVIDIA A100 whitepaper."""
    f = P.tfloat32
    assert (f.bits, f.max, f.smallest_normal, f.eps) == (19, (2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-10)
    assert (f.smallest_subnormal, f.overflow_threshold, f.overflow_tie) == (
        2.0**-136,
        (2 - 2.0**-11) * 2.0**127,
        "overflows",
    )
    assert (f.underflow_threshold, f.number_of_values) == (2.0**-137, 2 * 255 * 2**10 - 1)


@parametrize("fmt", [f for f in P.formats() if isinstance(f, P.IntFormat)], ids=str)
def test_derived_facts_of_integers(fmt: P.IntFormat) -> None:
    low, high = (-(2 ** (fmt.bits - 1)), 2 ** (fmt.bits - 1) - 1) if fmt.signed else (0, 2**fmt.bits - 1)
    assert (fmt.min, fmt.max, fmt.number_of_values, fmt.max_code) == (low, high, 2**fmt.bits, high)
    assert (fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps, fmt.underflow_threshold) == (1, 1, 1, 0.5)
    assert (fmt.overflow_threshold, fmt.overflow_tie) == (high + 0.5, "overflows")
    assert fmt.sign_mask == (2 ** (fmt.bits - 1) if fmt.signed else 0)
    for x in (low, high, low - 1, high + 1, high - Fraction(1, 2), low + Fraction(1, 2)):
        clipped = min(max(x, low), high)
        even = [v for v in (math.floor(clipped), math.ceil(clipped)) if v % 2 == 0 or v == clipped]
        assert exact.round_value(x, fmt).value == even[0]


# --- The operations -------------------------------------------------------------------------------

NUMPY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}


@parametrize("fmt", ["float16", "float32", "float64"])
@parametrize("name", list(NUMPY))
def test_operations_agree_with_numpy(name: str, fmt: str) -> None:
    """Random bit patterns, then operands of nearby size so that sums round; float16 goes through float32 in NumPy,

    which is innocuous for these operations since 24 >= 2 * 11 + 2 (Figueroa 1995).
    """
    width = np.dtype(fmt).itemsize * 8
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (2, 600 * width // 8), dtype=np.uint8).view(fmt)
    mild = rng.normal(size=(2, 200)).astype(fmt)
    corner = [0.0, -0.0, INF, -INF, NAN, 1.0, float(np.finfo(fmt).max), float(np.finfo(fmt).smallest_subnormal)]
    pairs = np.array(list(itertools.product(corner, corner)), dtype=fmt).T
    a, b = np.concatenate([raw, mild, pairs], axis=1)
    operands = [a] if name == "sqrt" else [a, b]
    with np.errstate(all="ignore"):
        want = NUMPY[name](*operands)
    got = getattr(exact, name)(*operands, fmt)
    wrong = [i for i in range(a.size) if not same(got[i], float(want[i]))]
    assert not wrong, (name, a[wrong[0]], b[wrong[0]], got[wrong[0]], want[wrong[0]])


def test_float64_sums_agree_with_fsum() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(60, 12)) * 2.0 ** rng.integers(-60, 60, (60, 12))
    x = np.concatenate([x, -x[:, :11], rng.normal(size=(60, 1)) * 1e-30], axis=1)
    assert exact.sum(x, "float64").tolist() == [math.fsum(row) for row in x.tolist()]


def test_fma_and_dot_round_once() -> None:
    a = 1 + 2**-10
    assert exact.fma(a, 2 - a, -1, "float16") == -(2.0**-20)  # the product alone rounds to 1
    assert exact.add(exact.mul(a, 2 - a, "float16"), -1, "float16") == 0
    assert exact.dot([2048, 1, -2048], [1, 1, 1], "float16") == 1
    assert exact.dot([300, 300], [300, -300], "float16") == 0  # the products overflow float16
    assert exact.sum([2.0**60, 1, -(2.0**60)], "bfloat16") == 1
    rng = np.random.default_rng(7)
    x, y, z = rng.integers(0, 2**16, (3, 400), dtype=np.uint16).view(np.float16)
    products = exact.mul(x, y, "float64")  # 22 bits: exact
    pairs = zip(exact.fma(x, y, z, "float16"), exact.add(products, z, "float16"), strict=True)
    assert all(same(got, want) for got, want in pairs)


SPECIAL = [  # IEEE 754-2019 sections 6.1, 6.3, 7.2, 7.3
    ("add", (INF, -INF), NAN), ("add", (INF, 1), INF), ("add", (INF, INF), INF), ("sub", (INF, INF), NAN),
    ("sub", (-INF, INF), -INF), ("add", (NAN, INF), NAN),
    ("add", (0.0, -0.0), 0.0), ("add", (-0.0, -0.0), -0.0), ("sub", (-0.0, 0.0), -0.0), ("sub", (0.0, 0.0), 0.0),
    ("add", (1.5, -1.5), 0.0), ("sub", (-1.5, -1.5), 0.0), ("add", (-0.0, 1.0), 1.0),
    ("mul", (0.0, INF), NAN), ("mul", (-INF, 0.0), NAN), ("mul", (-INF, 2), -INF), ("mul", (-0.0, 3), -0.0),
    ("mul", (-0.0, -0.0), 0.0), ("mul", (-(2.0**-20), 2.0**-20), -0.0), ("mul", (-300, 300), -INF),
    ("div", (0.0, 0.0), NAN), ("div", (INF, -INF), NAN), ("div", (1, 0.0), INF), ("div", (1, -0.0), -INF),
    ("div", (-0.0, 5), -0.0), ("div", (5, -INF), -0.0), ("div", (-INF, 5), -INF), ("div", (-INF, 0.0), -INF),
    ("sqrt", (-0.0,), -0.0), ("sqrt", (-1e-30,), NAN), ("sqrt", (-INF,), NAN), ("sqrt", (INF,), INF),
    ("sqrt", (2.0,), 1.4140625), ("sqrt", (Fraction(9, 4),), 1.5), ("sqrt", (Fraction(1, 9),), 0.333251953125),
    ("fma", (INF, 0.0, 1.0), NAN), ("fma", (INF, 1, -INF), NAN), ("fma", (0.0, 3, -0.0), 0.0),
    ("fma", (-0.0, 3, -0.0), -0.0),
    ("fma", (2, 3, -6), 0.0), ("fma", (INF, 0.0, NAN), NAN), ("fma", (2, 3, -INF), -INF),
    ("sum", ([],), 0.0), ("sum", ([-0.0, -0.0],), -0.0), ("sum", ([-0.0, 0.0],), 0.0), ("sum", ([INF, 1, -INF],), NAN),
    ("sum", ([1, -INF],), -INF), ("dot", ([0.0, 1], [INF, 1]), NAN), ("dot", ([1, 1], [INF, -INF]), NAN),
    ("dot", ([-0.0, 1], [1, -0.0]), -0.0), ("dot", ([], []), 0.0),
]  # fmt: skip


def test_operations_follow_ieee_754_on_special_operands() -> None:
    for name, operands, want in SPECIAL:
        got = getattr(exact, name)(*operands, "float16")
        assert same(got, want), (name, operands, got)


def test_an_exact_zero_is_negative_toward_negative() -> None:
    down = {"rounding": "toward_negative"}
    for x in (
        exact.add(1.5, -1.5, "float16", **down), exact.sub(0.0, 0.0, "float16", **down),
        exact.add(0.0, -0.0, "float16", **down), exact.fma(2, 3, -6, "float16", **down),
        exact.sum([1, 2, -3], "float16", **down), exact.dot([1, 1], [5, -5], "float16", **down),
    ):  # fmt: skip
        assert same(x, -0.0)
    assert same(exact.add(0.0, 0.0, "float16", **down), 0.0)
    assert same(exact.sum([], "float16", **down), 0.0)
    assert same(exact.add(1.5, -1.5, "float8_e4m3fnuz", **down), 0.0)  # has no -0
    assert same(exact.mul(0.0, 5, "float16", **down), 0.0)


@parametrize("fmt", ["float16", "float8_e4m3fn", "float64", "int8"], ids=str)
def test_sqrt_is_between_its_neighbours_squares(fmt: str) -> None:
    draw = random.Random(8)
    for _ in range(150):
        x = Fraction(draw.randint(1, 10**4), draw.randint(1, 10**4)) * Fraction(4) ** draw.randint(-3, 0)
        down = exact.sqrt(x, fmt, rounding="toward_negative", result="number").value
        up = exact.sqrt(x, fmt, rounding="toward_positive", result="number").value
        near = exact.sqrt(x, fmt, result="number").value
        middle = (down + up) / 2
        assert down**2 <= x <= up**2
        assert exact.round(up, fmt) - exact.round(down, fmt) <= 1
        assert middle**2 == x or near == (up if middle**2 < x else down)


@parametrize(("fmt", "tie", "even"), [("int8", 2.5, 2), ("float8_e4m3fn", 1.0625, 1), ("float16", 2049, 2048)])
def test_sqrt_of_a_ties_square_is_a_tie(fmt: str, tie: float, even: float) -> None:
    square = Fraction(tie) ** 2
    assert exact.sqrt(square, fmt) == even
    assert exact.sqrt(square, fmt, rounding="nearest_away") > even
    for tiny in (Fraction(1, 10**30), -Fraction(1, 10**30)):
        assert (exact.sqrt(square + tiny, fmt) > even) == (tiny > 0)


def test_operations_saturate_or_give_nan_by_the_policy() -> None:
    assert math.isnan(exact.add(448, 17, "float8_e4m3fn"))
    assert exact.add(448, 17, "float8_e4m3fn", policy="saturate") == 448
    assert exact.div(1, 0, "float16", policy="saturate") == 65504
    assert exact.mul(200, 3, "int8") == 127
    assert exact.add(math.copysign(NAN, -1), 1, "float16", policy="torch", result="code") == 0xFFFF
    assert exact.sub(1, math.copysign(NAN, -1), "float16", policy="torch", result="code") == 0xFFFF
    assert exact.sub(INF, INF, "float16", policy="torch", result="code") == 0x7FFF
    flush = {"policy": P.Policy(subnormals="flush_inputs"), "source": "float16"}
    assert exact.add(2**-15, 1.5 * 2**-14, "float16", **flush) == 1.5 * 2**-14
    assert exact.sum([2**-15, 2**-15], "float16", **flush) == 0


# --- The interface --------------------------------------------------------------------------------


def test_results_take_the_shape_and_kind_asked_for() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert exact.add(a, 1, "float16").dtype == np.float64
    assert exact.add(a, [[1], [2]], "float16").tolist() == [[1, 2, 3], [5, 6, 7]]
    assert exact.dot(a, [1, 1, 1], "float16").tolist() == [3, 12]
    assert exact.sum(a, "float16").shape == (2,)
    assert exact.sum(np.zeros((4, 0)), "float16").tolist() == [0, 0, 0, 0]
    assert exact.add(np.zeros((0, 3)), 1, "float16").shape == (0, 3)
    assert exact.round(a.astype(ml_dtypes.bfloat16), "int8").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [exact.round([1], f).dtype for f in ("int4", "float16", "tfloat32", "float64")] == [
        np.uint8, np.uint16, np.uint32, np.uint64,
    ]  # fmt: skip
    assert exact.round(np.array(1.5), "float16") == exact.round(np.float32(1.5), "float16") == 0x3E00
    assert type(exact.round(np.array(1.5), "float16")) is int
    assert type(exact.add(np.float32(1), 1, "float16")) is float
    assert exact.round_value([1.5], "float16").tolist() == [Number.of(1.5)]
    assert exact.round_value(1.5, "float16", result="value") == 1.5
    assert exact.add(1, Fraction(1, 3), "float8_e4m3fn", result="number") == Number.of(Fraction(11, 8))
    assert P.exact is exact


def test_tensors_are_taken_by_value() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0, -0.0], dtype=torch.bfloat16)
    assert exact.round(x, "bfloat16").tolist() == [0x3F80, 0x4000, 0x8000]
    assert exact.add(x, torch.ones(()), "float16").tolist() == [2, 3, 1]


def test_bad_keywords_are_refused() -> None:
    with pytest.raises(ValueError, match=r"result is 'bits'; it must be 'value', 'code', 'number' or 'flags'"):
        exact.add(1, 2, "float16", result="bits")
    with pytest.raises(ValueError, match="unknown rounding 'up': use one of nearest_even"):
        exact.add(1, 2, "float16", rounding="up")
    with pytest.raises(TypeError, match="saturating"):
        exact.add(1, 2, "float16", saturating=True)
    with pytest.raises(ValueError, match="unknown format"):
        exact.round(1, "float17")
    with pytest.raises(ValueError, match="unknown policy"):
        exact.round(1, "float16", policy="wrap")
    for operation in (exact.sum, lambda x, f: exact.dot(x, x, f)):
        with pytest.raises(ValueError, match="sum and dot work along the last axis, and a scalar has none"):
            operation(1.0, "float16")


def test_the_oracle_reads_only_the_stored_fields_of_a_format() -> None:
    """Else a wrong derived field could make the oracle and what it judges agree."""
    stored = {field.name for field in dataclasses.fields(P.Format) if field.init}
    public = {name for name in (*vars(P.Format), *P.Format.__annotations__) if not name.startswith("_")}
    read = {node.attr for node in ast.walk(ast.parse(inspect.getsource(exact))) if isinstance(node, ast.Attribute)}
    assert read & public - stored <= {"bits"}  # a stored field of an IntFormat
    blank = P.Format(name="x", exponent_bits=4, mantissa_bits=3)
    object.__setattr__(blank, "bits", None)
    assert exact.round(1.0, blank, result="value") == 1.0
