"""The table of formats against published figures, what names mean, and which custom formats can exist.

`tests/test_exact.py` checks every derived fact against brute force; here are the figures as the specifications print
them, so that neither the table nor the brute force can be wrong in the same way.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import exact

# What the specifications print: max, overflow threshold T and its tie, smallest normal and subnormal, zero threshold t.
FIGURES = [
    ("float16", 65504, 65520, "overflows", 2**-14, 2**-24, 2**-25),
    ("bfloat16", (2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127, "overflows", 2**-126, 2**-133, 2**-134),
    ("tfloat32", (2 - 2**-10) * 2.0**127, (2 - 2**-11) * 2.0**127, "overflows", 2**-126, 2**-136, 2**-137),
    ("float32", (2 - 2**-23) * 2.0**127, (2 - 2**-24) * 2.0**127, "overflows", 2**-126, 2**-149, 2**-150),
    ("float8_e5m2", 57344, 61440, "overflows", 2**-14, 2**-16, 2**-17),
    ("float8_e5m2fnuz", 57344, 61440, "overflows", 2**-15, 2**-17, 2**-18),
    ("float8_e4m3", 240, 248, "overflows", 2**-6, 2**-9, 2**-10),
    ("float8_e4m3fn", 448, 464, "max", 2**-6, 2**-9, 2**-10),
    ("float8_e4m3fnuz", 240, 248, "overflows", 2**-7, 2**-10, 2**-11),
    ("float8_e4m3b11fnuz", 30, 31, "overflows", 2**-10, 2**-13, 2**-14),
    ("float8_e3m4", 15.5, 15.75, "overflows", 2**-2, 2**-6, 2**-7),
    ("float8_e8m0fnu", 2.0**127, 1.5 * 2.0**127, "overflows", 2**-127, 2**-127, None),
    ("float6_e3m2fn", 28, 30, "overflows", 2**-2, 2**-4, 2**-5),
    ("float6_e2m3fn", 7.5, 7.75, "overflows", 1, 2**-3, 2**-4),
    ("float4_e2m1fn", 6, 7, "overflows", 1, 0.5, 0.25),
    ("int2", 1, 1.5, "overflows", 1, 1, 0.5),
    ("int4", 7, 7.5, "overflows", 1, 1, 0.5),
    ("int8", 127, 127.5, "overflows", 1, 1, 0.5),
    ("uint2", 3, 3.5, "overflows", 1, 1, 0.5),
    ("uint4", 15, 15.5, "overflows", 1, 1, 0.5),
    ("uint8", 255, 255.5, "overflows", 1, 1, 0.5),
    ("int16", 32767, 32767.5, "overflows", 1, 1, 0.5),
    ("int32", 2147483647, 2147483647.5, "overflows", 1, 1, 0.5),
]
# bits, min, eps, number of values, NaN code, infinity code
CODES = [
    ("float64", 64, -sys.float_info.max, 2**-52, 2 * 0x7FF0000000000000 - 1, 0x7FF8000000000000, 0x7FF0000000000000),
    ("float32", 32, -(2 - 2**-23) * 2.0**127, 2**-23, 2 * 0x7F800000 - 1, 0x7FC00000, 0x7F800000),
    ("tfloat32", 19, -(2 - 2**-10) * 2.0**127, 2**-10, 2 * 0x3FC00 - 1, 0x3FE00, 0x3FC00),
    ("float16", 16, -65504, 2**-10, 2 * 0x7C00 - 1, 0x7E00, 0x7C00),
    ("bfloat16", 16, -(2 - 2**-7) * 2.0**127, 2**-7, 2 * 0x7F80 - 1, 0x7FC0, 0x7F80),
    ("float8_e5m2", 8, -57344, 2**-2, 247, 0x7E, 0x7C),
    ("float8_e5m2fnuz", 8, -57344, 2**-2, 255, 0x80, None),
    ("float8_e4m3", 8, -240, 2**-3, 239, 0x7C, 0x78),
    ("float8_e4m3fn", 8, -448, 2**-3, 253, 0x7F, None),
    ("float8_e4m3fnuz", 8, -240, 2**-3, 255, 0x80, None),
    ("float8_e4m3b11fnuz", 8, -30, 2**-3, 255, 0x80, None),
    ("float8_e3m4", 8, -15.5, 2**-4, 223, 0x78, 0x70),
    ("float8_e8m0fnu", 8, 2.0**-127, 1, 255, 0xFF, None),
    ("float6_e3m2fn", 6, -28, 2**-2, 63, None, None),
    ("float6_e2m3fn", 6, -7.5, 2**-3, 63, None, None),
    ("float4_e2m1fn", 4, -6, 2**-1, 15, None, None),
    ("int2", 2, -2, 1, 4, None, None),
    ("int4", 4, -8, 1, 16, None, None),
    ("int8", 8, -128, 1, 256, None, None),
    ("uint2", 2, 0, 1, 4, None, None),
    ("uint4", 4, 0, 1, 16, None, None),
    ("uint8", 8, 0, 1, 256, None, None),
    ("int16", 16, -32768, 1, 65536, None, None),
    ("int32", 32, -2147483648, 1, 2**32, None, None),
]


@pytest.mark.parametrize(("name", "largest", "overflow", "tie", "normal", "least", "zero"), FIGURES, ids=lambda x: x)
def test_thresholds_are_the_published_ones(
    name: str, largest: float, overflow: float, tie: str, normal: float, least: float, zero: float | None
) -> None:
    f = P.get_format(name)
    assert (f.max, f.overflow_threshold, f.overflow_tie) == (largest, overflow, tie)
    assert (f.smallest_normal, f.smallest_subnormal, f.underflow_threshold) == (normal, least, zero)


@pytest.mark.parametrize(("name", "bits", "least", "eps", "count", "nan", "infinity"), CODES, ids=lambda x: x)
def test_codes_are_the_published_ones(
    name: str, bits: int, least: float, eps: float, count: int, nan: int | None, infinity: int | None
) -> None:
    f = P.get_format(name)
    assert (f.bits, f.min, f.eps, f.number_of_values) == (bits, least, eps, count)
    assert (f.quiet_nan_code, f.infinity_code) == (nan, infinity)


def test_thresholds_of_float64_are_exact_fractions() -> None:
    f = P.float64
    assert f.overflow_threshold == Fraction(2) ** 1024 - Fraction(2) ** 970
    assert f.underflow_threshold == Fraction(1, 2**1075)
    assert (f.max, f.smallest_normal, f.smallest_subnormal) == (sys.float_info.max, sys.float_info.min, 5e-324)
    assert {name for name, *_ in CODES} == {"float64", *(name for name, *_ in FIGURES)} == set(P.FORMATS)


@pytest.mark.parametrize("fmt", P.formats(), ids=str)
def test_just_past_the_thresholds_the_oracle_overflows_and_underflows(fmt: P.Format | P.IntFormat) -> None:
    """The prose of `Format`: |x| < T does not overflow, |x| > T does, a tie as `overflow_tie` says; |x| <= t is zero."""
    # A grid that goes on above max shows what overflow is: the code after max, infinity or NaN, or saturated.
    infinite = P.Policy(overflow="infinity", infinity="infinity")
    top = Fraction(fmt.overflow_threshold)
    nudge = Fraction(1, 2**1200)
    codes = [exact.round(x, fmt, policy=infinite) for x in (top - nudge, top, top + nudge)]
    beyond = exact.round(top * 2, fmt, policy=infinite)
    assert codes == [fmt.max_code, beyond if fmt.overflow_tie == "overflows" else fmt.max_code, beyond]
    assert (beyond != fmt.max_code) == (fmt.infinities or fmt.has_nan)
    if fmt.underflow_threshold is None:
        assert exact.round(nudge, fmt) == 0
        assert exact.round_value(0, fmt).value == Fraction(fmt.smallest_subnormal)
    else:
        least = Fraction(fmt.underflow_threshold)
        assert [exact.round(x, fmt) for x in (least - nudge, least, least + nudge)] == [0, 0, 1]


def test_the_table_is_complete_and_in_order() -> None:
    assert [f.name for f in P.formats()] == list(P.FORMATS) == ["float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e3m4", "float8_e8m0fnu", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn", "int2", "int4", "int8", "uint2", "uint4", "uint8", "int16", "int32"]  # fmt: skip
    for f in P.formats():
        assert getattr(P, f.name) is P.get_format(f.name) is P.get_format(f) is f
        assert str(f) == f.name
        assert f.source
        assert f.name in dir(P)


# --- Names --------------------------------------------------------------------------------------

ALIASES = [
    ("float64", "double fp64 f64 binary64 Float64 torch.float64 torch.double e11m52"),
    ("float32", "float single fp32 f32 FP32 binary32 torch.float torch.float32 e8m23"),
    ("tfloat32", "tf32 TF32 TensorFloat32 e8m10"),
    ("float16", "half fp16 f16 FP16 binary16 torch.half np.float16 numpy.float16 jnp.float16 e5m10"),
    (
        "bfloat16",
        "bf16 BF16 torch.bfloat16 BFloat16 brainfloat16 ml_dtypes.bfloat16 jax.numpy.bfloat16 tf.bfloat16 __nv_bfloat16 e8m7",
    ),
    ("float8_e5m2", "e5m2 E5M2 FLOAT8E5M2 f8E5M2 fp8_e5m2 FP8-E5M2 torch.float8_e5m2 OCP_E5M2 __nv_fp8_e5m2"),
    ("float8_e5m2fnuz", "e5m2fnuz FLOAT8E5M2FNUZ f8E5M2FNUZ torch.float8_e5m2fnuz"),
    ("float8_e4m3", "float8_e4m3"),
    ("float8_e4m3fn", "e4m3fn E4M3FN FLOAT8E4M3FN f8E4M3FN fp8_e4m3fn torch.float8_e4m3fn OCP_E4M3 ocp-e4m3 F8_E4M3"),
    ("float8_e4m3fnuz", "e4m3fnuz FLOAT8E4M3FNUZ f8E4M3FNUZ torch.float8_e4m3fnuz"),
    ("float8_e4m3b11fnuz", "e4m3b11fnuz f8E4M3B11FNUZ"),
    ("float8_e3m4", "e3m4 f8E3M4"),
    ("float8_e8m0fnu", "e8m0 e8m0fnu ue8m0 UE8M0 f8E8M0FNU FLOAT8E8M0 torch.float8_e8m0fnu"),
    ("float6_e3m2fn", "e3m2 e3m2fn fp6_e3m2 f6E3M2FN FLOAT6E3M2"),
    ("float6_e2m3fn", "e2m3 e2m3fn fp6_e2m3 f6E2M3FN FLOAT6E2M3"),
    ("float4_e2m1fn", "e2m1 e2m1fn fp4 fp4_e2m1 f4E2M1FN FLOAT4E2M1 float4 nvfp4 __nv_fp4_e2m1"),
    ("int8", "int8 INT8 torch.int8"),
    ("uint4", "uint4 UINT4 torch.uint4"),
]


@pytest.mark.parametrize(
    ("name", "alias"),
    [(name, alias) for name, aliases in ALIASES for alias in aliases.split()],
    ids=lambda x: x,
)
def test_aliases(name: str, alias: str) -> None:
    assert P.get_format(alias).name == name


DTYPES = [
    *(getattr(torch, f.name) for f in P.formats() if hasattr(torch, f.name)),
    *(np.dtype(n) for n in ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", ">f4", ">i2")),
    *(np.dtype(getattr(ml_dtypes, f.name)) for f in P.formats() if hasattr(ml_dtypes, f.name)),
    *(getattr(ml_dtypes, f.name) for f in P.formats() if hasattr(ml_dtypes, f.name)),
    np.float16, np.float32, np.float64, np.int8,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_dtype_objects_are_names(dtype: object) -> None:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    assert P.get_format(dtype).name == str(name).removeprefix("torch.")


@pytest.mark.parametrize("fmt", P.formats(), ids=str)
def test_dtypes_have_the_same_encoding(fmt: P.Format | P.IntFormat) -> None:
    numpy_type = getattr(np, fmt.name, getattr(ml_dtypes, fmt.name, None))
    assert fmt.numpy_dtype == (None if numpy_type is None else np.dtype(numpy_type))
    expected = getattr(torch, fmt.name, None) if fmt.bits >= 8 else None
    assert fmt.torch_dtype == expected
    if fmt.torch_dtype is not None:
        assert fmt.torch_dtype.itemsize * 8 == fmt.bits
        if fmt.torch_dtype.is_floating_point:
            info = torch.finfo(fmt.torch_dtype)
            assert (info.bits, info.max, info.min) == (fmt.bits, fmt.max, fmt.min)
            assert info.smallest_normal == fmt.smallest_normal
            if fmt.name != "float8_e5m2fnuz":  # torch 2.13 says 0.125; the next value above 1 is 1.25
                assert info.eps == fmt.eps
    if numpy_type is not None and fmt.name in dir(ml_dtypes) and isinstance(fmt, P.Format):
        limits = ml_dtypes.finfo(numpy_type)
        assert (float(limits.max), float(limits.min)) == (fmt.max, fmt.min)
        assert float(limits.smallest_subnormal) == fmt.smallest_subnormal
        assert float(limits.smallest_normal) == fmt.smallest_normal


def test_a_custom_format_has_no_dtype_even_under_a_known_name() -> None:
    same_name = P.Format("float16", 5, 10, nan="none", infinities=False)
    assert (same_name.numpy_dtype, same_name.torch_dtype) == (None, None)
    assert P.get_format(same_name) is same_name
    assert same_name != P.float16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e4m3", "ambiguous: say float8_e4m3fn (OCP E4M3: torch, NVIDIA, ONNX) or float8_e4m3 (IEEE rules"),
        ("FP8_E4M3", "ambiguous: say float8_e4m3fn (OCP E4M3"),
        ("f8E4M3", "ambiguous: say float8_e4m3fn (OCP E4M3"),
        ("fp8", "ambiguous: say float8_e4m3fn or float8_e5m2"),
        ("float6", "ambiguous: say float6_e3m2fn or float6_e2m3fn"),
        ("e4m3fnu", "unknown format 'e4m3fnu': did you mean float8_e4m3fn"),
        ("flaot16", "did you mean float16"),
        ("int", "did you mean int8 or int4"),
        ("uint16", "unknown format 'uint16': did you mean int16"),
        ("hoper.float8_e4m3fn", "unknown format 'hoper.float8_e4m3fn': did you mean float8_e4m3fn"),
        ("hopper.cublas.bfloat16", "unknown format 'hopper.cublas.bfloat16'"),
        ("torch.cuda.float16", "unknown format 'torch.cuda.float16'"),
        ("nonsense.float32", "did you mean tfloat32 or float32"),
        ("", "unknown format ''"),
    ],
)
def test_ambiguous_and_unknown_names_say_what_may_be_meant(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="format") as refused:
        P.get_format(name)
    assert text in str(refused.value)
    assert name in str(refused.value)
    with pytest.raises(ValueError, match="format"):
        P.round_to(np.float32([1]), name)


@pytest.mark.parametrize(
    "thing", [None, 8, 1.5, ["float16"], {}, float, b"float16", object()], ids=lambda x: type(x).__name__
)
def test_what_is_no_name_is_a_type_error(thing: object) -> None:
    with pytest.raises(TypeError, match="a format is a Format, a name or a dtype, not"):
        P.get_format(thing)


def test_a_missing_attribute_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'precision' has no attribute 'float9'"):
        _ = P.float9


# --- Custom formats -----------------------------------------------------------------------------


def values(fmt: P.Format) -> list[float]:
    return [float(x) for x in P.values(fmt)]


def test_p3109_like_format() -> None:
    """IEEE P3109's binary8p3: bias 2^(e-1), one zero, one NaN at the sign bit, infinities at the ends."""
    f = P.Format("binary8p3", 5, 2, bias=16, infinities=True, nan="negative_zero")
    assert (f.bits, f.max, f.smallest_subnormal, f.number_of_values) == (8, 49152, 2**-17, 253)
    assert (f.infinity_code, f.quiet_nan_code, f.has_negative_zero) == (0x7F, 0x80, False)
    assert P.decode(np.uint8([0x7F, 0xFF]), f).tolist() == [np.inf, -np.inf]
    assert np.isnan(P.decode(np.uint8(0x80), f))
    assert P.encode(np.float32([-0.0, -1e-9, 1e9, np.nan, 49152, 53248, 53250]), f, policy="ieee").tolist() == [
        0, 0, 0x7F, 0x80, 0x7E, 0x7E, 0x7F,
    ]  # fmt: skip


def test_formats_without_a_mantissa() -> None:
    """e2m0: 0, 1, 2, 4; every significand is 1, hence odd: a tie goes up, but one between 0 and 1 to 0."""
    f = P.Format("e2m0", 2, 0, bias=1, infinities=False, nan="none")
    assert values(f) == [-4, -2, -1, -0.0, 0, 1, 2, 4]
    assert (f.overflow_threshold, f.overflow_tie, f.underflow_threshold) == (6, "overflows", 0.5)
    x = np.float32([0.5, 0.50001, 1.5, 1.49, 3, 2.99, 6, -3, -0.5])
    assert P.round_to(x, f).tolist() == [0, 1, 2, 1, 4, 2, 4, -4, -0.0]
    assert np.signbit(P.round_to(x, f)[-1])


def test_unsigned_formats() -> None:
    f = P.Format("u4", 2, 2, infinities=False, nan="none", signed=False)
    assert (f.bits, f.min, f.max, f.sign_mask) == (4, 0, 7, 0)
    assert values(f) == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7]
    x = np.float32([-3, -0.0, 0.3, np.nan])
    assert P.encode(x, f).tolist() == [0, 0, 1, 15]
    assert P.encode(x, f, policy=P.Policy(negative="magnitude")).tolist() == [10, 0, 1, 15]
    with_nan = P.Format("u4n", 2, 2, infinities=False, nan="all_ones", signed=False)
    assert P.encode(x, with_nan).tolist() == [15, 0, 1, 15]
    assert P.encode(x, with_nan, policy=P.Policy(negative="clamp")).tolist() == [0, 0, 1, 15]


def test_a_format_without_special_codes_uses_them_all() -> None:
    f = P.Format(name="my7", exponent_bits=3, mantissa_bits=3, bias=3, infinities=False, nan="none")
    assert (f.bits, f.max, f.number_of_values, f.has_nan, f.quiet_nan_code) == (7, 30, 127, False, None)
    assert len(values(f)) == 128  # both zeros
    only_infinity = P.Format("e3m2inf", 3, 2, infinities=True, nan="none")
    assert (only_infinity.infinity_code, only_infinity.max) == (0x1F, 24)
    assert P.encode(np.float32([np.inf, np.nan, 1e9]), only_infinity, policy="ieee").tolist() == [0x1F, 0x1E, 0x1F]


def test_a_bias_moves_the_range_only() -> None:
    for bias in (-5, 0, 7, 40, 120):
        f = P.Format("e4m3moved", 4, 3, bias=bias, infinities=False, nan="all_ones")
        assert [v * 2.0 ** (bias - 7) for v in values(f)] == values(P.float8_e4m3fn)
    assert P.Format("e4m3", 4, 3).bias == 7


def test_a_format_below_float32s_normal_numbers() -> None:
    """Its smallest values are subnormal in float32, and below: float64 holds them."""
    f = P.Format("tiny", 4, 3, bias=160, infinities=False, nan="none")
    assert f.smallest_subnormal == 2.0**-162
    assert P.decode(np.uint8([1, 0x7F]), f).dtype == np.float64
    assert P.round_to(np.array([1.06 * 2.0**-159, 1.0]), f).tolist() == [2.0**-159, f.max]


def test_wide_custom_formats() -> None:
    f = P.Format("e11m40", 11, 40)
    assert f.bits == 52
    x = np.array([1 + 2**-41, 1 + 3 * 2**-41, np.inf, 1e308])
    assert P.encode(x, f, policy="ieee").dtype == np.uint64
    assert P.round_to(x, f, policy="ieee").tolist() == [
        1,
        1 + 2**-39,
        np.inf,
        float(exact.round(1e308, f, result="value")),
    ]
    assert P.IntFormat("int24", 24).max == 2**23 - 1
    assert P.round_to(np.float32([1e9, -1e9]), P.IntFormat("int24", 24)).tolist() == [2**23 - 1, -(2**23)]


def test_formats_are_values() -> None:
    """Equal fields are equal formats, usable as dictionary keys; the source is a remark."""
    a = P.Format("x", 4, 3, infinities=False, nan="all_ones")
    b = P.Format("x", 4, 3, bias=7, infinities=False, nan="all_ones", source="elsewhere")
    assert a == b != P.float8_e4m3fn
    assert {a: 1}[b] == 1
    assert dataclasses.replace(P.float8_e4m3fn, name="y", bias=8).smallest_subnormal == 2**-10
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.bias = 3  # type: ignore[misc]
    assert P.IntFormat("i5", 5) == P.IntFormat("i5", 5) != P.IntFormat("i5", 5, signed=False)


IMPOSSIBLE = [
    ({"exponent_bits": 0}, ValueError, "f: exponent_bits is 0; it must be from 1 to 11"),
    ({"exponent_bits": 12}, ValueError, "f: exponent_bits is 12; it must be from 1 to 11"),
    ({"exponent_bits": -3}, ValueError, "f: exponent_bits is -3; it must be from 1 to 11"),
    ({"mantissa_bits": -1}, ValueError, "f: mantissa_bits is -1; it must be from 0 to 52"),
    ({"mantissa_bits": 53}, ValueError, "f: mantissa_bits is 53; it must be from 0 to 52"),
    ({"mantissa_bits": 2.0}, TypeError, "f: mantissa_bits is 2.0; it must be an int from 0 to 52"),
    ({"exponent_bits": True}, TypeError, "f: exponent_bits is True; it must be an int from 1 to 11"),
    ({"bias": 5000}, ValueError, "f: bias is 5000; it must be from -2000 to 2000"),
    ({"bias": "7"}, TypeError, "f: bias is '7'; it must be an int"),
    ({"nan": "some"}, ValueError, "f: nan is 'some'; it must be one of ieee, all_ones, negative_zero, none"),
    ({"infinities": 1}, TypeError, "f: infinities is 1; it must be True or False"),
    ({"signed": None}, TypeError, "f: signed is None; it must be True or False"),
    ({"infinities": False}, ValueError, "f: nan='ieee' reserves the top exponent for infinity and NaN, so it needs"),
    ({"mantissa_bits": 0}, ValueError, "mantissa_bits >= 1; use nan='all_ones' or nan='none'"),
    ({"nan": "negative_zero", "signed": False}, ValueError, "f: nan='negative_zero' is the sign bit alone; it needs"),
    ({"zero": False}, ValueError, "f: a format without zero must be unsigned (signed=False)"),
    ({"exponent_bits": 1, "mantissa_bits": 0, "nan": "all_ones", "infinities": False}, ValueError,
     "f: 1 exponent and 0 mantissa bits leave no finite non-zero value; add bits"),
    ({"exponent_bits": 8, "bias": -1500}, ValueError, "which float64 does not hold (2^-1074 to 2^1023); change bias"),
    ({"exponent_bits": 8, "bias": 1500}, ValueError, "which float64 does not hold (2^-1074 to 2^1023); change bias"),
    ({"name": ""}, TypeError, "a format needs a name (a non-empty str), not ''"),
    ({"name": None}, TypeError, "a format needs a name (a non-empty str), not None"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "error", "text"), IMPOSSIBLE, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_impossible_formats(fields: dict[str, object], error: type[Exception], text: str) -> None:
    arguments: dict[str, Any] = {"name": "f", "exponent_bits": 4, "mantissa_bits": 3} | fields
    with pytest.raises(error) as refused:
        P.Format(**arguments)
    assert text in str(refused.value)


@pytest.mark.parametrize("bits", [0, 1, 33, -4])
def test_impossible_integers(bits: int) -> None:
    with pytest.raises(ValueError, match=rf"^i: bits is {bits}; it must be from 2 to 32$"):
        P.IntFormat("i", bits)


def test_impossible_integers_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"^i: bits is 4.0; it must be an int from 2 to 32$"):
        P.IntFormat("i", 4.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^i: signed is 'yes'; it must be True or False$"):
        P.IntFormat("i", 4, "yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a format needs a name"):
        P.IntFormat("", 4)


def test_facts_need_no_torch_and_no_ml_dtypes() -> None:
    code = (
        "import sys, precision as P; [(f.max, f.overflow_threshold) for f in P.formats()]; P.get_format('torch.half');"
        "assert not {'torch', 'ml_dtypes'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
