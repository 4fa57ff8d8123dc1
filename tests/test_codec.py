"""Codes: decoding against the oracle, packed bytes as they are laid out, neighbours against brute force, interchange."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import exact

Array = np.ndarray[Any, Any]
AnyFormat = P.Format | P.IntFormat

FORMATS = P.formats()
SIXTEEN = [f for f in FORMATS if f.bits <= 16]  # those whose codes are enumerated
WIDE = [f for f in FORMATS if f.bits > 16]
PACKED = [f for f in FORMATS if f.bits <= 8]
CUSTOM = [
    P.Format("e2m0", 2, 0, infinities=False, nan="none"),
    P.Format("e3m0", 3, 0, infinities=True, nan="all_ones"),
    P.Format("u7", 4, 3, infinities=False, nan="all_ones", signed=False),
    P.Format("e4m4", 4, 4),
    P.Format("binary8p3", 5, 2, bias=16, infinities=True, nan="negative_zero"),
    P.Format("tiny", 4, 3, bias=160, infinities=False, nan="none"),
    P.Format("u6", 4, 2, infinities=True, nan="all_ones", signed=False),
    P.Format("no_zero", 5, 2, infinities=True, nan="all_ones", signed=False, zero=False),
    P.Format("e7m7", 7, 7, bias=100),
    P.IntFormat("int5", 5),
    P.IntFormat("uint3", 3, signed=False),
    P.IntFormat("int12", 12),
]


def by_format(formats: Any) -> Any:
    return pytest.mark.parametrize("fmt", formats, ids=str)


def bits(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def code_dtype(fmt: AnyFormat) -> Any:
    return next(f"uint{n}" for n in (8, 16, 32, 64) if fmt.bits <= n)


def all_codes(fmt: AnyFormat) -> Array:
    return np.arange(1 << fmt.bits, dtype=code_dtype(fmt))


def some_codes(fmt: AnyFormat) -> Array:
    """Codes of a wide format: the ends of every binade, the NaNs, and at random."""
    top = 1 << fmt.bits
    m = fmt.mantissa_bits if isinstance(fmt, P.Format) else 4
    step = max(1, (top >> m) // 600)
    ends = {((k << m) + d) % top for k in range(0, top >> m, step) for d in (-2, -1, 0, 1, 2, 1 << (m - 1))}
    random = np.random.default_rng(fmt.bits).integers(0, top, 1500, dtype=np.uint64)
    return np.array(sorted(ends | set(random.tolist())), np.uint64).astype(code_dtype(fmt))


def expected(codes: Array, fmt: AnyFormat, dtype: Any) -> Array:
    """The bits that codes decode to: by the oracle; a NaN quiet, with its sign and (as in IEEE 754) its payload."""
    uint, m = f"u{np.dtype(dtype).itemsize}", np.finfo(dtype).nmant
    answers = []
    for code in codes.tolist():
        number = exact.decode(code, fmt)
        if number.kind != "nan":
            answers.append(int(np.array(float(number), dtype).view(uint)))
            continue
        quiet = int(np.array(np.inf, dtype).view(uint)) | 1 << (m - 1)
        assert isinstance(fmt, P.Format)
        if fmt.nan == "ieee":
            quiet |= (code & ((1 << fmt.mantissa_bits) - 1)) << (m - fmt.mantissa_bits)
        answers.append(quiet | number.negative << (8 * np.dtype(dtype).itemsize - 1))
    return np.array(answers, uint)


# --- decode -------------------------------------------------------------------------------------


@by_format([*SIXTEEN, *CUSTOM])
def test_every_code_decodes_as_the_oracle_says(fmt: AnyFormat) -> None:
    codes = all_codes(fmt)
    value = P.decode(codes, fmt)
    assert value.dtype == (np.float64 if fmt.name == "tiny" else np.float32)
    assert np.array_equal(bits(value), expected(codes, fmt, value.dtype))
    if value.dtype == np.float32:
        with np.errstate(invalid="ignore"):
            assert np.array_equal(P.decode(codes, fmt, "float64"), value.astype(np.float64), equal_nan=True)
        assert np.array_equal(bits(P.decode(codes[-9:], fmt, "float64")), expected(codes[-9:], fmt, np.float64))


@by_format(WIDE)
def test_codes_of_wide_formats_decode_as_the_oracle_says(fmt: AnyFormat) -> None:
    codes = some_codes(fmt)
    value = P.decode(codes, fmt)
    assert value.dtype == (np.float32 if fmt.name in ("float32", "tfloat32") else np.float64)
    assert np.array_equal(bits(value), expected(codes, fmt, value.dtype))
    assert np.array_equal(bits(P.decode(codes[::9], fmt, "float64")), expected(codes[::9], fmt, np.float64))


@by_format(FORMATS)
def test_every_code_survives_decode_and_encode(fmt: AnyFormat) -> None:
    """NaN codes become the canonical one: the quiet NaN, of their sign if the policy keeps it."""
    codes = all_codes(fmt) if fmt.bits <= 16 else some_codes(fmt)
    nan = P.classify(codes, fmt) == P.CLASSES.index("nan")
    for rounding, name in itertools.product(("nearest_even", "toward_zero", "to_odd"), ("ieee", "ml_dtypes", "torch")):
        policy = P.get_policy(name, fmt)
        again = P.encode(P.decode(codes, fmt), fmt, rounding=rounding, policy=policy)
        want = codes.copy()
        if fmt.has_nan:
            code = fmt.all_ones_nan_code if policy.nan.startswith("all_ones") else fmt.quiet_nan_code
            sign = fmt.sign_mask if policy.nan.endswith("signed") and fmt.has_negative_zero else 0
            want[nan] = code | (codes[nan] & codes.dtype.type(sign))
        if policy.infinity == "saturate" and fmt.infinities:
            continue
        assert again.dtype == codes.dtype
        assert np.array_equal(again, want), (rounding, name)


@by_format(FORMATS)
def test_decode_takes_any_integers_and_any_shape(fmt: AnyFormat) -> None:
    codes = (all_codes(fmt) if fmt.bits <= 8 else some_codes(fmt))[:254]
    want = bits(P.decode(codes, fmt))
    for dtype in (np.int64, np.uint64, np.int32, np.uint16, "<u4", ">u4", ">i8"):
        if np.iinfo(np.dtype(dtype)).max >= int(codes.max()):
            assert np.array_equal(bits(P.decode(codes.astype(dtype), fmt)), want)
    even = codes[: codes.size & ~1]
    square = P.decode(even.reshape(2, -1), fmt)
    assert square.shape == (2, even.size // 2)
    assert np.array_equal(bits(P.decode(even.reshape(2, -1).T[::-1], fmt)), bits(square).T[::-1])
    assert P.decode(codes[:0].reshape(0, 3), fmt).shape == (0, 3)
    long = np.resize(codes, 3001)
    assert np.array_equal(bits(P.decode(long, fmt)), np.resize(want, 3001))
    assert np.array_equal(bits(P.decode(np.resize(codes, 6000)[::2], fmt)), np.resize(want, 6000)[::2])
    one = P.decode(codes[3], fmt)
    assert isinstance(one, np.generic)
    assert one.tobytes() == P.decode(codes[3:4], fmt).tobytes() == P.decode(np.array(codes[3]), fmt).tobytes()
    assert P.decode(codes[:3].tolist(), fmt).tobytes() == P.decode(codes[:3], fmt).tobytes()


def test_decoded_nans_from_threads() -> None:
    """Known cases: a scale of 128 is a number and 255 is NaN; 0x7f and 0xff are NaN in E4M3FN, 0x80 in FNUZ."""
    assert str(P.decode(np.uint8([134, 255, 0, 254]), "float8_e8m0fnu").tolist()) == str(
        [128.0, float("nan"), 2.0**-127, 2.0**127]
    )
    assert np.isnan(P.decode(np.uint8([0x7F, 0xFF]), "float8_e4m3fn")).all()
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"):
        assert np.flatnonzero(np.isnan(P.decode(np.arange(256, dtype=np.uint8), name))).tolist() == [0x80]
        assert P.CLASSES[int(P.classify(np.uint8(0x80), name))] == "nan"
    assert P.decode(np.uint8([0, 1, 0x80]), "float8_e5m2").tolist() == [0, 2**-16, -0.0]
    assert np.array_equal(
        P.decode(np.arange(0x7C00, dtype=np.uint16), "float16"), np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    )


# --- torch --------------------------------------------------------------------------------------


@by_format(FORMATS)
def test_torch_codes_are_numpy_codes(fmt: AnyFormat) -> None:
    """encode, decode, classify: the same bits, in torch's unsigned dtypes."""
    codes = all_codes(fmt) if fmt.bits <= 16 else some_codes(fmt)
    for dtype in (code_dtype(fmt), "int64"):
        c = torch.from_numpy(
            codes.view(f"int{codes.itemsize * 8}" if dtype == "int64" and fmt.bits == 64 else codes.dtype).copy()
        )
        if dtype == "int64":
            if fmt.bits == 64:
                continue  # half of the codes are negative as int64
            c = torch.from_numpy(codes.astype(np.int64))
        value = P.decode(c, fmt)
        assert np.array_equal(bits(value.numpy()), bits(P.decode(codes, fmt)))
        assert np.array_equal(P.classify(c, fmt).numpy(), P.classify(codes, fmt))
    again = P.encode(value if fmt.bits < 64 else P.decode(torch.from_numpy(codes.copy()), fmt), fmt, policy="torch")
    assert again.dtype == getattr(torch, code_dtype(fmt))
    assert np.array_equal(again.numpy(), P.encode(P.decode(codes, fmt), fmt, policy="torch"))


def test_torch_codes_of_every_stride() -> None:
    codes = torch.arange(240, dtype=torch.uint8).reshape(12, 20)
    want = P.decode(codes, "float8_e4m3fn")
    for view in (
        lambda t: t.T,
        lambda t: t[::3, 1::4],
        lambda t: t[0, 0],
        lambda t: t[:0],
        lambda t: t[3].expand(5, 20),
    ):
        got = P.decode(view(codes), "float8_e4m3fn")
        assert torch.equal(got.view(torch.int32), view(want).view(torch.int32))
        assert got.shape == view(want).shape
    wide = torch.arange(0, 65536, 7, dtype=torch.int32).to(torch.uint16)
    assert torch.equal(
        P.decode(wide[::2], "bfloat16").view(torch.int32), P.decode(wide, "bfloat16").view(torch.int32)[::2]
    )


# --- pack ---------------------------------------------------------------------------------------


def _dense(codes: Array, width: int) -> bytes:
    """The little-endian bit string of ceil(n·b/8) bytes, element i at bits i·b and up: as one long Python integer."""
    number = sum(int(c) << (i * width) for i, c in enumerate(codes))
    return number.to_bytes(-(-len(codes) * width // 8), "little")


@by_format([*PACKED, *(f for f in CUSTOM if f.bits <= 8)])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 257])
def test_packed_bytes_are_the_dense_bit_string(fmt: AnyFormat, length: int) -> None:
    codes = np.random.default_rng(length).integers(0, 1 << fmt.bits, length, dtype=np.uint8)
    packed = P.pack(codes, fmt)
    assert packed.dtype == np.uint8
    assert packed.tobytes() == _dense(codes, fmt.bits)
    assert np.array_equal(P.unpack(packed, fmt, length), codes)
    assert np.array_equal(P.unpack(packed.tobytes(), fmt, (length,)), codes)
    tensor = P.pack(torch.from_numpy(codes), fmt)
    assert tensor.dtype == torch.uint8
    assert np.array_equal(tensor.numpy(), packed)
    back = P.unpack(tensor, fmt, (1, length))
    assert back.shape == (1, length)
    assert np.array_equal(back.numpy()[0], codes)


def test_packed_layout_in_words() -> None:
    """FP4: the first element in the low nibble. FP6: four codes in three bytes, first in the low bits."""
    assert P.pack(np.uint8([1, 2, 3]), "float4_e2m1fn").tolist() == [0x21, 0x03]
    assert P.pack(np.uint8([0b000001, 0b000010, 0b000100, 0b001000]), "float6_e3m2fn").tolist() == [
        0b10_000001, 0b0100_0000, 0b001000_00,
    ]  # fmt: skip
    assert P.pack(np.uint8([3, 0, 1, 2]), "int2").tolist() == [0b10_01_00_11]
    assert P.pack(np.uint8([200, 7]), "float8_e5m2").tolist() == [200, 7]


def test_packing_flattens_and_copies() -> None:
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(P.unpack(P.pack(codes.T, "float4_e2m1fn"), "float4_e2m1fn", (4, 3)), codes.T)
    assert np.array_equal(P.unpack(P.pack(codes[:, ::-2], "uint4"), "uint4", (3, 2)), codes[:, ::-2])
    same = P.pack(codes, "uint8")
    same[0] = 99
    assert codes[0, 0] == 0
    unpacked = P.unpack(P.pack(codes, "uint8"), "uint8", (12,))
    unpacked[0] = 99
    packed = P.pack(torch.arange(5, dtype=torch.int64), "uint8")
    assert packed.tolist() == [0, 1, 2, 3, 4]


def test_all_pairs_of_fp4_codes_have_their_byte() -> None:
    low, high = np.meshgrid(np.arange(16), np.arange(16))
    packed = P.pack(np.stack([low.ravel(), high.ravel()], axis=-1), "float4_e2m1fn")
    assert np.array_equal(packed, np.arange(256))


# --- neighbours ---------------------------------------------------------------------------------


def _points(fmt: AnyFormat) -> Array:
    """float64 numbers around and between values, beyond the ends, zeros, infinities and NaN."""
    values = np.unique(P.decode(all_codes(fmt), fmt, "float64"))
    values = values[np.isfinite(values)]
    if values.size > 4000:
        values = np.concatenate([values[:40], values[-40:], values[np.abs(values) < 40 * fmt.smallest_subnormal],
                                 np.random.default_rng(0).choice(values, 600)])  # fmt: skip
    near = [np.nextafter(values, np.inf), np.nextafter(values, -np.inf), values + np.spacing(values) * 2**20]
    ends = [0.0, -0.0, 1e300, -1e300, 5e-324, -5e-324, np.inf, -np.inf, np.nan]
    return np.concatenate([values, *near, ends])


@by_format([*SIXTEEN, *CUSTOM])
def test_neighbours_are_those_in_the_list_of_values(fmt: AnyFormat) -> None:
    values = P.values(fmt).astype(np.float64)
    ladder = np.unique(values)  # one zero
    x = _points(fmt)
    up, down = P.next_up(x, fmt), P.next_down(x, fmt)
    above = ladder[np.minimum(np.searchsorted(ladder, x, "right"), ladder.size - 1)]
    below = ladder[np.maximum(np.searchsorted(ladder, x, "left") - 1, 0)]
    nan = np.isnan(x)
    assert np.isnan(up[nan]).all()
    assert np.isnan(down[nan]).all()
    assert np.array_equal(up[~nan], above[~nan])
    assert np.array_equal(down[~nan], below[~nan])
    # IEEE 754-2019 5.3.1: nextUp of the negative number nearest to zero is -0, nextDown of the positive one +0.
    assert np.array_equal(np.signbit(up[up == 0]), np.full((up == 0).sum(), fmt.has_negative_zero) & (x[up == 0] < 0))
    assert not np.signbit(down[down == 0]).any()


@by_format([*SIXTEEN, *CUSTOM])
def test_ulp_is_the_distance_of_neighbours(fmt: AnyFormat) -> None:
    """Where x and the next value away from zero are both finite; beyond, that of the last binade."""
    x = _points(fmt)
    got = P.ulp(x, fmt)
    assert np.isnan(got[~np.isfinite(x)]).all()
    finite = np.isfinite(x)
    size, step = np.abs(x[finite]), got[finite]
    ladder = np.unique(np.abs(P.values(fmt).astype(np.float64)))
    ladder = ladder[np.isfinite(ladder)]
    if isinstance(fmt, P.IntFormat):
        assert (step == 1).all()
        return
    at = np.searchsorted(ladder, size, "right") - 1  # the last value up to |x|
    inner = (at >= 0) & (at < ladder.size - 1)
    assert np.array_equal(step[inner], ladder[at[inner] + 1] - ladder[at[inner]])
    assert (step[at < 0] == fmt.smallest_subnormal * 2.0**-fmt.mantissa_bits).all()
    last = 2.0 ** (fmt.emax - fmt.mantissa_bits) if fmt.max >= fmt.smallest_normal else fmt.smallest_subnormal
    assert (step[at == ladder.size - 1] == last).all()


def test_neighbours_from_threads() -> None:
    """numpy#15977: below infinity is 65504, and its ulp is 32, not infinite; pytorch#190740: above 0 in bfloat16 is 2^-133."""
    assert P.next_down(np.float16(np.inf), "float16") == 65504
    assert P.ulp(np.float16(65504), "float16") == 32
    assert P.next_up(np.float32(0), "bfloat16") == 2.0**-133
    assert P.next_up(torch.zeros(1, dtype=torch.bfloat16), "bfloat16").view(torch.int16).item() == 1
    assert P.ulp(np.float32([-32767, 3811]), "float16").tolist() == [16, 2]
    assert P.ulp(np.float32([3811, 256, 255.99]), "bfloat16").tolist() == [16, 2, 1]
    up = P.next_up(np.array([-5e-324, 5e-324, np.finfo(np.float64).max, -np.inf, 0.1]), "float64")
    assert up.tolist() == [-0.0, 1e-323, np.inf, -np.finfo(np.float64).max, np.nextafter(0.1, 1)]
    assert np.signbit(up[0])
    assert P.next_down(np.array([np.inf, -np.inf, 0.0]), "float64").tolist() == [
        np.finfo(np.float64).max,
        -np.inf,
        -5e-324,
    ]
    fnuz = np.float32([240, 300, np.inf, -np.inf, -300])
    assert P.next_up(fnuz, "float8_e4m3fnuz").tolist() == [240, 240, 240, -240, -240]
    assert P.next_down(fnuz, "float8_e4m3fnuz").tolist() == [224, 240, 240, -240, -240]


@pytest.mark.parametrize("fn", [P.next_up, P.next_down, P.ulp], ids=lambda f: f.__name__)
def test_neighbours_keep_library_dtype_and_shape(fn: Any) -> None:
    x = np.array([[0.1, -3], [7, 1e-3]])
    want = fn(x, "float8_e4m3fn")
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ">f4", ">f8"):
        if dtype is ml_dtypes.bfloat16:
            continue
        got = fn(x.astype(dtype), "float8_e4m3fn")
        assert got.dtype == np.dtype(dtype)
        assert np.array_equal(got.astype(np.float64), want)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        got = fn(torch.from_numpy(x).to(dtype).T, "float8_e4m3fn")
        assert got.dtype == dtype
        assert np.array_equal(got.to(torch.float64).numpy(), want.T)
    got = fn(x.astype(ml_dtypes.bfloat16), "float8_e4m3fn")
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.astype(np.float64), want)
    assert isinstance(fn(np.float32(0.1), "float8_e4m3fn"), np.float32)
    assert fn(np.array(0.1), "float8_e4m3fn").shape == ()
    assert fn(np.array([3, -7]), "int8").dtype == np.float64
    assert fn(torch.tensor([3, -7]), "int8").dtype == torch.float64
    assert fn(np.zeros((0, 2), np.float32), "int8").shape == (0, 2)
    assert fn([1.5, 2], "int8").shape == (2,)


@by_format(FORMATS)
def test_values_are_sorted_and_complete(fmt: AnyFormat) -> None:
    if fmt.bits > 16:
        with pytest.raises(ValueError, match=r"values\(\) lists formats of at most 16 bits"):
            P.values(fmt)
        return
    values = P.values(fmt).astype(np.float64)
    assert (np.diff(values) >= 0).all()
    zeros = values[values == 0]
    assert np.signbit(zeros).tolist() == ([True, False] if fmt.has_negative_zero else [False] if fmt.zero else [])
    finite = {exact.decode(c, fmt).value for c in range(1 << fmt.bits) if exact.decode(c, fmt).kind == "finite"}
    assert {Fraction(v) for v in values[np.isfinite(values)].tolist()} == finite
    assert np.isinf(values).sum() == 2 * fmt.infinities
    assert len(finite) == fmt.number_of_values


@by_format([*SIXTEEN, *CUSTOM])
def test_classes(fmt: AnyFormat) -> None:
    smallest = Fraction(fmt.smallest_normal)
    for code, index in zip(range(1 << fmt.bits), P.classify(all_codes(fmt), fmt).tolist(), strict=True):
        number = exact.decode(code, fmt)
        want = number.kind
        if want == "finite":
            want = "zero" if number.is_zero else "normal" if abs(number.value) >= smallest else "subnormal"
        assert P.CLASSES[index] == want, code


# --- interchange --------------------------------------------------------------------------------

ML = [f for f in FORMATS if hasattr(ml_dtypes, f.name) or hasattr(np, f.name)]
TORCH = [f for f in FORMATS if f.bits >= 8 and hasattr(torch, f.name)]


@by_format(ML)
def test_numpy_and_ml_dtypes_arrays_by_bits(fmt: AnyFormat) -> None:
    codes = all_codes(fmt) if fmt.bits <= 16 else some_codes(fmt)
    native = P.to_dtype(codes, fmt)
    assert native.dtype == fmt.numpy_dtype
    back, found = P.from_dtype(native)
    assert found is fmt
    assert back.dtype == codes.dtype
    assert np.array_equal(back, codes)  # NaN payloads included
    with np.errstate(invalid="ignore"):
        theirs = native.astype(np.float64)
    ours = P.decode(codes, fmt, "float64")
    assert np.array_equal(theirs, ours, equal_nan=True)
    assert np.array_equal(np.signbit(theirs[theirs == 0]), np.signbit(ours[ours == 0]))
    if fmt.name.startswith(("float8", "float6_", "float4")) or fmt.bits < 8:  # these say what their codes mean
        assert np.array_equal(bits(P.decode(native)), bits(P.decode(codes, fmt)))
        assert np.array_equal(bits(P.decode(native, fmt)), bits(P.decode(codes, fmt)))
        assert np.array_equal(P.classify(native, fmt), P.classify(codes, fmt))
        assert np.array_equal(P.encode(native, "float32"), P.encode(P.decode(codes, fmt), "float32"))


@by_format(TORCH)
def test_torch_tensors_by_bits(fmt: AnyFormat) -> None:
    codes = torch.from_numpy(all_codes(fmt) if fmt.bits <= 16 else some_codes(fmt))
    native = P.to_dtype(codes, fmt)
    assert native.dtype == fmt.torch_dtype
    back, found = P.from_dtype(native)
    assert found is fmt
    assert np.array_equal(back.numpy(), codes.numpy())
    theirs, ours = native.to(torch.float64), P.decode(codes, fmt, "float64")
    assert torch.equal(torch.nan_to_num(theirs, nan=0.123), torch.nan_to_num(ours, nan=0.123))
    assert torch.equal(torch.signbit(theirs[theirs == 0]), torch.signbit(ours[ours == 0]))
    if fmt.name.startswith("float8"):
        assert torch.equal(P.decode(native).view(torch.int32), P.decode(codes, fmt).view(torch.int32))
        assert torch.equal(
            P.encode(native, "float32").view(torch.int32), P.encode(P.decode(codes, fmt), "float32").view(torch.int32)
        )


def test_int4_of_ml_dtypes_holds_its_sign_in_the_whole_byte() -> None:
    codes = np.arange(16, dtype=np.uint8)
    native = P.to_dtype(codes, "int4")
    assert native.view(np.uint8).tolist() == [*range(8), *range(0xF8, 0x100)]
    assert native.astype(np.int32).tolist() == [*range(8), *range(-8, 0)]
    assert P.from_dtype(np.array([-8, 7, -1], ml_dtypes.int4))[0].tolist() == [8, 7, 15]
    assert P.pack(P.from_dtype(np.array([-8, 7], ml_dtypes.int4))[0], "int4").tolist() == [0x78]
    assert P.to_dtype(np.uint8([3, 2]), "int2").tolist() == [-1, -2]
    assert P.to_dtype(np.uint8([3, 2]), "uint2").tolist() == [3, 2]


def test_interchange_of_other_byte_orders_and_shapes() -> None:
    x = np.array([[1.5, -2.0], [np.inf, 6e-8]], ">f2")
    codes, fmt = P.from_dtype(x)
    assert fmt is P.float16
    assert codes.tolist() == [[0x3E00, 0xC000], [0x7C00, 1]]
    assert P.to_dtype(codes.astype(">u2"), "float16").tolist() == x.tolist()
    assert P.from_dtype(x.T[::-1])[0].tolist() == np.array(codes).T[::-1].tolist()
    assert P.from_dtype(np.float16(1.5))[0] == 0x3E00
    assert P.from_dtype(ml_dtypes.float8_e4m3fn(-448))[0] == 0xFE


def test_bytes_that_look_like_nans_pass_unchanged() -> None:
    """bitsandbytes#1945: bytes kept in a bfloat16 tensor must come back, payload, sign and all."""
    codes = np.arange(0x7F80, 0x8000, dtype=np.uint16)
    for native in (P.to_dtype(codes, "bfloat16"), P.to_dtype(torch.from_numpy(codes), "bfloat16")):
        assert np.array_equal(np.asarray(P.from_dtype(native)[0]), codes)
    # And encoding gives one code for a NaN, whatever the strides.
    x = np.full((64, 64), np.nan, np.float32)
    assert np.unique(P.encode(x, "bfloat16")).tolist() == np.unique(P.encode(x.T[::3], "bfloat16")).tolist() == [0x7FC0]
    t = torch.from_numpy(x)
    assert P.encode(t.T[::3], "bfloat16").numpy().max() == P.encode(t, "bfloat16").numpy().min() == 0x7FC0


@by_format([f for f in FORMATS if f not in ML])
def test_formats_without_a_dtype_say_so(fmt: AnyFormat) -> None:
    with pytest.raises(
        ValueError, match=f"neither NumPy nor ml_dtypes has a dtype for {fmt}: keep the codes, or P.decode"
    ):
        P.to_dtype(np.uint32([0]), fmt)


def test_encode_gives_the_codes_of_round_to() -> None:
    """The two are one rounding: the code of the rounded value is the code."""
    x = np.random.default_rng(1).normal(size=2000) * 2.0 ** np.random.default_rng(2).integers(-20, 20, 2000)
    for fmt in FORMATS:
        code, value = P.encode(x, fmt, policy="ieee"), P.round_to(x, fmt, policy="ieee")
        assert np.array_equal(P.decode(code, fmt, "float64"), value, equal_nan=True)
