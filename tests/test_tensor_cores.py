"""The tensor-core models against an oracle in Python integers, their laws, and what they refuse."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import tensor_cores
from precision.tensor_cores import INSTRUCTIONS, Instruction, get_accumulator, get_instruction

# --- the oracle: one output at a time, as the definition reads --------------------------------------------------------

INFINITY, NOT_A_NUMBER = "infinity", "nan"
FIELDS = {
    "float32": (8, 23), "tfloat32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7),
    "float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2), "float4_e2m1fn": (2, 1),
}  # fmt: skip


def parts(code: int, name: str) -> tuple[int, int | str, int]:
    """(sign, significand as an integer, exponent of its unit), or a special in place of the significand."""
    e, m = FIELDS[name]
    if name == "tfloat32":
        code &= 0xFFFFE000
    sign = -1 if code >> (e + m) else 1
    field, trailing = code >> m & ((1 << e) - 1), code & ((1 << m) - 1)
    if name == "float8_e4m3fn" and (field, trailing) == (15, 7):
        return sign, NOT_A_NUMBER, 0
    if name not in ("float8_e4m3fn", "float4_e2m1fn") and field == (1 << e) - 1:
        return sign, NOT_A_NUMBER if trailing else INFINITY, 0
    bias = (1 << (e - 1)) - 1
    return (sign, trailing, 1 - bias - m) if field == 0 else (sign, trailing + (1 << m), field - bias - m)


def exponent(significand: int, unit: int, name: str) -> int:
    """The exponent that is compared: of the leading bit of a normal number's significand, subnormal or not."""
    return unit + FIELDS[name][1]


def to_code(value: Fraction, name: str, bits: int, nearest: bool) -> int:
    """A value as a code of float32 or float16, of so many significant bits, cut toward zero or to nearest even."""
    e, m = FIELDS[name]
    emin, emax = 2 - (1 << (e - 1)), (1 << (e - 1)) - 1
    if not value:
        return 0
    size = abs(value)
    binade = emin
    while size >= Fraction(2) ** (binade + 1):
        binade += 1
    steps = size / Fraction(2) ** (binade - bits + 1)
    whole = math.floor(steps)
    if nearest and (steps - whole > Fraction(1, 2) or (steps - whole == Fraction(1, 2) and whole % 2)):
        whole += 1
    units = whole << (m + 1 - bits)  # of the format's own spacing in this binade
    code = units + ((binade - emin) << m)
    code = min(code, (2 * emax + 1) << m)  # infinity
    return code | (1 << (e + m)) if value < 0 and code else code


def fused(row: Instruction, a: list[int], b: list[int], c: int) -> int:
    """One group: the six steps of the definition."""
    result = row.accumulator.name
    e, m = FIELDS[result]
    nan = (1 << (e + m)) - 1
    terms: list[tuple[int, int, int]] = []  # (integer, exponent of its unit, exponent compared)
    infinities = set()
    for x, y in zip(a, b, strict=True):
        names = ("float16", "float16") if row.emulated else (row.a.name, row.b.name)
        (sx, vx, ux), (sy, vy, uy) = parts(x, names[0]), parts(y, names[1])
        if NOT_A_NUMBER in (vx, vy) or (INFINITY in (vx, vy) and 0 in (vx, vy)):
            return nan
        if INFINITY in (vx, vy):
            infinities.add(sx * sy)
        elif vx and vy:
            compared = exponent(int(vx), ux, names[0]) + exponent(int(vy), uy, names[1])
            terms.append((sx * sy * int(vx) * int(vy), ux + uy, compared))
    sc, vc, uc = parts(c, result)
    if vc == NOT_A_NUMBER:
        return nan
    if vc == INFINITY:
        infinities.add(sc)
    elif vc:
        terms.append((sc * int(vc), uc, exponent(int(vc), uc, result)))
    if infinities:
        return nan if len(infinities) == 2 else (((1 << e) - 1) << m) | (1 << (e + m) if -1 in infinities else 0)
    top = max([t for *_, t in terms] + ([] if row.floor is None else [row.floor]), default=0)
    assert row.fraction_bits is not None
    unit = top - row.fraction_bits
    total = sum(int(n * Fraction(2) ** (u - unit)) for n, u, _ in terms)  # int() cuts toward zero
    return to_code(total * Fraction(2) ** unit, result, row.result_bits, result == "float16")


def step(row: Instruction, a: list[int], b: list[int], c: int) -> int:
    """One instruction."""
    if row.fraction_bits is None:
        signed = [(x - 256 * (x > 127)) if row.a.name == "int8" else x for x in a]
        other = [(y - 256 * (y > 127)) if row.b.name == "int8" else y for y in b]
        total = sum(x * y for x, y in zip(signed, other, strict=True)) + c - (c >> 31 << 32)
        return (max(-(2**31), min(total, 2**31 - 1)) if row.saturates else total) & 0xFFFFFFFF
    if not row.emulated:
        for k in range(0, row.k, row.group):
            c = fused(row, a[k : k + row.group], b[k : k + row.group], c)
        return c
    a = [half(x, row.a.name) for x in a]
    b = [half(y, row.b.name) for y in b]
    first = [k for k in range(row.k) if k % 4 in (0, 1)]
    second = [k for k in range(row.k) if k % 4 in (2, 3)]
    t = fused(row, [a[k] for k in first], [b[k] for k in first], 0)
    t = fused(row, [a[k] for k in second], [b[k] for k in second], t)
    name = row.accumulator.name
    e, m = FIELDS[name]
    (s1, v1, u1), (s2, v2, u2) = parts(t, name), parts(c, name)
    if NOT_A_NUMBER in (v1, v2) or (v1 == v2 == INFINITY and s1 != s2):
        return (1 << (e + m)) - 1
    if INFINITY in (v1, v2):
        return t if v1 == INFINITY else c
    return to_code(s1 * v1 * Fraction(2) ** u1 + s2 * v2 * Fraction(2) ** u2, name, m + 1, True)


def half(code: int, name: str) -> int:
    """An FP8 code as the float16 of the same value."""
    sign, v, u = parts(code, name)
    if isinstance(v, str):
        return 0x7FFF if v == NOT_A_NUMBER else 0x7C00 if sign > 0 else 0xFC00
    return to_code(sign * v * Fraction(2) ** u, "float16", 11, True)


def oracle(row: Instruction, a: Any, b: Any, c: Any) -> Any:
    """Codes for codes: a (M, K), b (K, N), c (M, N), K a multiple of the instruction's."""
    d = np.empty(c.shape, np.uint32 if row.accumulator.bits == 32 else np.uint16)
    for i, j in itertools.product(*map(range, c.shape)):
        at = int(c[i, j])
        for k in range(0, a.shape[1], row.k):
            at = step(row, a[i, k : k + row.k].tolist(), b[k : k + row.k, j].tolist(), at)
        d[i, j] = at
    return d


# --- operands ---------------------------------------------------------------------------------------------------------


def width(fmt: Any) -> int:
    return 32 if fmt.name == "tfloat32" else fmt.bits


def codes_near(rng: Any, fmt: Any, shape: tuple[int, ...], low: float, high: float) -> Any:
    """Codes whose exponent field lies in a part of its range; a third are zero, a few have a special neighbour."""
    if isinstance(fmt, P.IntFormat):
        return rng.integers(0, 1 << fmt.bits, shape).astype(np.uint32)
    e, m = FIELDS[fmt.name]
    field = rng.integers(int(low * ((1 << e) - 1)), int(high * ((1 << e) - 1)) + 1, shape)
    code = (rng.integers(0, 2, shape) << (e + m)) | (field << m) | rng.integers(0, 1 << m, shape)
    return np.where(rng.random(shape) < 0.3, code & (1 << (e + m)), code).astype(np.uint32)


def cases(row: Instruction, seed: int) -> Any:
    """Every class of operands once: anything, tiny, huge, near one, cancelling, all zero, specials."""
    rng = np.random.default_rng(seed)
    m, n, k = 2, 3, row.k * (1 + (row.k <= 8))
    for low, high, c_low, c_high in (
        (0, 1, 0, 1),
        (0, 0.1, 0, 0.3),
        (0, 0, 0, 0.1),
        (0.4, 0.6, 0.4, 0.7),
        (0.8, 0.99, 0.9, 0.99),
    ):
        a, b = codes_near(rng, row.a, (m, k), low, high), codes_near(rng, row.b, (k, n), low, high)
        yield a, b, codes_near(rng, row.accumulator, (m, n), c_low, c_high)
    sign_a, sign_c = 1 << (width(row.a) - 1), 1 << (row.accumulator.bits - 1)
    yield a * 0 + sign_a, b * 0, np.zeros((m, n), np.uint32) + sign_c  # -0 everywhere
    a, b = codes_near(rng, row.a, (m, k), 0.4, 0.6), codes_near(rng, row.b, (k, n), 0.45, 0.55)
    if row.a == row.b and not isinstance(row.a, P.IntFormat):  # x·y - x·y and a rest of c
        a[:, 1::2], b[1::2] = a[:, ::2] ^ sign_a, b[::2]
        yield a, b, codes_near(rng, row.accumulator, (m, n), 0, 0.5)


def narrowed(x: Any, fmt: Any) -> Any:
    return x.astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[max(8, width(fmt))])


DISTINCT = list(
    {replace(i, arch="", name="", k=i.k, evidence="literature"): i for i in reversed(INSTRUCTIONS)}.values()
)


@pytest.mark.parametrize("row", DISTINCT, ids=str)
def test_every_row_is_the_definition(row: Instruction) -> None:
    for number, (a, b, c) in enumerate(cases(row, 7)):
        got = P.mma(narrowed(a, row.a), narrowed(b, row.b), narrowed(c, row.accumulator), instruction=row)
        want = oracle(row, a, b, c)
        assert got.dtype == want.dtype
        assert np.array_equal(got, want), (number, [hex(x) for x in (*got[got != want], *want[got != want])])


def test_hopper_keeps_no_more_than_the_definition_says() -> None:
    """The classics: 2^25 + 1 - 2^25 in one group of 25 bits, of 13 bits, and in two groups."""

    def total(name: str, arch: str, values: list[float]) -> float:
        row = get_instruction(name, arch)
        a = np.zeros((1, row.k), np.float32)
        a[0, : len(values)] = values
        b = np.ones((row.k, 1), np.float32)
        return float(P.decode(P.mma(P.encode(a, row.a), P.encode(b, row.b), None, instruction=row), "float32")[0, 0])

    big, rest = 2.0**15, 2.0**-11
    assert total("mma.m16n8k16.f32.f16.f16.f32", "hopper", [big, -big, rest]) == 0  # 2^-11 is 26 bits below 2^15
    assert total("mma.m16n8k16.f32.f16.f16.f32", "hopper", [big, -big, 2 * rest]) == 2 * rest
    assert total("mma.m16n8k16.f32.f16.f16.f32", "ampere", [big, -big, 2 * rest]) == 0
    assert total("mma.m16n8k16.f32.f16.f16.f32", "ampere", [big, -big, *[0] * 6, rest]) == rest  # the second group
    assert total("wgmma.m64n8k32.f32.e4m3.e4m3", "hopper", [256, -256, 1 / 64]) == 0
    assert total("mma.m16n8k32.f32.e4m3.e4m3.f32", "hopper", [256, -256, 1 / 64]) == 1 / 64


# --- laws -------------------------------------------------------------------------------------------------------------

NAMED = [
    ("mma.m8n8k4.f32.f16.f16.f32", "volta"),
    ("mma.m16n8k16.f16.f16.f16.f16", "ampere"),
    ("mma.m16n8k8.f32.tf32.tf32.f32", "ada"),
    ("mma.m16n8k32.f32.e4m3.e5m2.f32", "hopper"),
    ("wgmma.m64n8k32.f32.e5m2.e4m3", "hopper"),
    ("wgmma.m64n8k16.f32.bf16.bf16", "hopper"),
    ("tcgen05.m64n8k32.f16.e2m1.e4m3", "blackwell"),
    ("mma.m16n8k32.satfinite.s32.s8.u8.s32", "ampere"),
]


def operands(row: Instruction, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    fmts = (row.a, row.b, row.accumulator)
    return [narrowed(codes_near(rng, f, s, 0.3, 0.7), f) for f, s in zip(fmts, shapes, strict=False)]


@pytest.mark.parametrize(("name", "arch"), NAMED)
def test_padding_with_zeros_changes_nothing(name: str, arch: str) -> None:
    row = get_instruction(name, arch)
    k = 2 * row.k + row.k // 2 + 1
    a, b, c = operands(row, (5, k), (k, 4), (5, 4))
    short = P.mma(a, b, c, instruction=row)
    more = -k % row.k
    padded = P.mma(np.pad(a, ((0, 0), (0, more))), np.pad(b, ((0, more), (0, 0))), c, instruction=row)
    assert np.array_equal(short, padded)
    assert np.array_equal(padded, oracle(row, np.pad(a, ((0, 0), (0, more))), np.pad(b, ((0, more), (0, 0))), c))
    # Further instructions of zeros return the addend that the first has rounded.
    zeros = P.mma(np.zeros((5, 3 * row.k), a.dtype), np.zeros((3 * row.k, 4), b.dtype), short, instruction=row)
    assert np.array_equal(zeros, short)


@pytest.mark.parametrize(("name", "arch"), NAMED)
def test_a_long_k_is_a_chain_and_a_batch_its_matrices(name: str, arch: str) -> None:
    row = get_instruction(name, arch)
    k = 3 * row.k
    a, b, c = operands(row, (2, 1, 6, k), (3, k, 9), (3, 6, 9))
    whole = P.mma(a, b, c, instruction=row)
    assert whole.shape == (2, 3, 6, 9)
    for i, j in itertools.product(range(2), range(3)):
        at = c[j]
        for s in range(0, k, row.k):
            at = P.mma(a[i, 0, :, s : s + row.k], b[j, s : s + row.k], at, instruction=row)
        assert np.array_equal(whole[i, j], at)
        # transposed, the products are the same
        if row.a == row.b:
            turned = P.mma(b[j].T, a[i, 0].T, c[j].T, instruction=row)
            assert np.array_equal(whole[i, j], turned.T)
    sign = c.dtype.type(1 << (8 * c.itemsize - 1))
    c = np.where(c == sign, 0, c) if row.fraction_bits is not None else c
    nothing = P.mma(a[:, :, :, :0], b[:, :0], c, instruction=row)
    assert np.array_equal(nothing, np.broadcast_to(c, (2, 3, 6, 9)))
    assert P.mma(a[..., :0, :], b, c[..., :0, :], instruction=row).shape == (2, 3, 0, 9)


@pytest.mark.parametrize(("name", "arch"), [n for n in NAMED if not get_instruction(*n).emulated])
def test_the_order_within_a_group_does_not_matter(name: str, arch: str) -> None:
    row = get_instruction(name, arch)
    a, b, c = operands(row, (4, row.group), (row.group, 4), (4, 4))
    p = np.random.default_rng(0).permutation(row.group)
    assert np.array_equal(P.mma(a[:, p], b[p], c, instruction=row), P.mma(a, b, c, instruction=row))


@pytest.mark.parametrize(("name", "arch"), NAMED)
def test_tiles_panels_and_batches_leave_no_trace(name: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from precision import _fused

    row = get_instruction(name, arch)
    k = 3 * row.k
    a, b, c = operands(row, (2, 1, 7, k), (3, k, 11), (3, 7, 11))
    whole = P.mma(a, b, c, instruction=row)
    tensors = [torch.from_numpy(x) for x in (a, b)]
    start = P.decode(torch.from_numpy(c), row.accumulator, "float64")
    for size in (1, 40, 100, 5000):
        monkeypatch.setattr(_fused, "TILE", {"cpu": size})
        monkeypatch.setattr(_fused, "ROW", {"cpu": 5})
        monkeypatch.setattr(_fused, "PANEL", {"cpu": 30 if size < 5000 else 3000})
        assert np.array_equal(P.mma(a, b, c, instruction=row), whole)
        if size >= 100:
            total = tensor_cores._computed(row, *tensors, start, (2, 3), None, None)
            assert np.array_equal(tensor_cores._result_codes(total, row).numpy(), whole)


@pytest.mark.parametrize(("name", "arch"), NAMED)
def test_the_lines_for_tensors_agree(name: str, arch: str) -> None:
    row = get_instruction(name, arch)
    k = 2 * row.k + 1
    a, b, c = operands(row, (2, 5, k), (k, 9), (5, 9))
    expected = P.mma(a, b, c, instruction=row)
    ta, tb, tc = (torch.from_numpy(x) for x in (a, b, c))
    assert np.array_equal(P.mma(ta, tb, tc, instruction=row).numpy(), expected)
    start = P.decode(tc, row.accumulator, "float64")
    total = tensor_cores._computed(row, ta, tb, start, (2,), None, None)  # as on a GPU
    assert np.array_equal(tensor_cores._result_codes(total, row).numpy(), expected)


@pytest.mark.parametrize(("name", "arch"), NAMED)
def test_a_process_that_flushes_subnormals_gets_the_same_bits(name: str, arch: str) -> None:
    row = get_instruction(name, arch)
    rng = np.random.default_rng(5)
    a = narrowed(codes_near(rng, row.a, (8, 2 * row.k), 0, 0.3), row.a)
    b = narrowed(codes_near(rng, row.b, (2 * row.k, 8), 0, 0.3), row.b)
    c = narrowed(codes_near(rng, row.accumulator, (8, 8), 0, 0.05), row.accumulator)
    expected = P.mma(a, b, c, instruction=row)
    assert torch.set_flush_denormal(True)
    try:
        assert np.array_equal(P.mma(a, b, c, instruction=row), expected)
    finally:
        torch.set_flush_denormal(False)


def test_scratch_does_not_grow_with_k_or_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    from precision import _fused

    monkeypatch.setattr(_fused, "TILE", {"cpu": 1 << 10})
    monkeypatch.setattr(_fused, "PANEL", {"cpu": 1 << 12})

    def peak(m: int, n: int, k: int) -> int:
        a, b = np.zeros((m, k), np.uint8), np.zeros((k, n), np.uint8)
        tracemalloc.start()
        P.mma(a, b, None, instruction="wgmma.m64n8k32.f32.e4m3.e4m3", arch="hopper")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(32, 32, 256)  # what is made once
    small = peak(32, 32, 256)
    assert peak(32, 32, 2048) < 1.1 * small  # 16 panels instead of 2
    more = peak(224, 224, 32) - peak(128, 128, 32)  # 49 tiles instead of 16
    assert more < (224 * 224 - 128 * 128) * 16  # sums of 8 bytes and codes of 4


# --- arrays of the formats' own dtypes --------------------------------------------------------------------------------


def test_native_dtypes_are_taken_by_their_bits() -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((4, 32), (32, 8)))
    e4m3, bf16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
    for name, dtype, torch_dtype in (
        ("wgmma.m64n8k32.f32.e4m3.e4m3", e4m3, torch.float8_e4m3fn),
        ("wgmma.m64n8k16.f32.bf16.bf16", bf16, torch.bfloat16),
        ("wgmma.m64n8k16.f32.f16.f16", np.float16, torch.float16),
        ("wgmma.m64n8k8.f32.tf32.tf32", np.float32, torch.float32),
    ):
        a, b, c = x.astype(dtype), y.astype(dtype), np.ones((4, 8), np.float32)
        code = f"uint{8 * a.itemsize}"
        expected = P.mma(a.view(code), b.view(code), c.view(np.uint32), instruction=name, arch="hopper")
        assert expected.dtype == np.uint32
        assert np.array_equal(P.mma(a, b, c, instruction=name, arch="sm_90a"), expected)
        ta = torch.from_numpy(a.view(f"int{8 * a.itemsize}")).view(torch_dtype)
        tb = torch.from_numpy(b.view(f"int{8 * a.itemsize}")).view(torch_dtype)
        d = P.mma(ta, tb, torch.from_numpy(c), instruction=name, arch="H200")
        assert d.dtype == torch.uint32
        assert np.array_equal(d.numpy(), expected)
    s8 = rng.integers(-128, 128, (4, 32)).astype(np.int8)
    d = P.mma(s8, s8.T, np.full((4, 4), -5, np.int32), instruction="mma.m16n8k32.s32.s8.s8.s32", arch="hopper")
    assert np.array_equal(d.view(np.int32), s8.astype(np.int64) @ s8.T.astype(np.int64) - 5)
    half = P.mma(
        np.ones((2, 16), np.float16),
        np.ones((16, 2), np.float16),
        instruction="mma.m16n8k16.f16.f16.f16.f16",
        arch="a100",
    )
    assert half.tolist() == [[0x4C00, 0x4C00]] * 2
    wide = P.mma(
        x.astype(e4m3).view(np.uint8).astype(np.int64),
        y.astype(e4m3),
        instruction="wgmma.m64n8k32.f32.e4m3.e4m3",
        arch="hopper",
    )
    assert np.array_equal(
        wide, P.mma(x.astype(e4m3), y.astype(e4m3), instruction="wgmma.m64n8k32.f32.e4m3.e4m3", arch="hopper")
    )


def test_names_as_in_ptx() -> None:
    for given, name in (
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "mma.m16n8k16.f32.bf16.bf16.f32"),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "mma.m16n8k32.satfinite.s32.s8.s8.s32"),
        ("wgmma.mma_async.sync.aligned.m64n256k32.f16.e5m2.e4m3", "wgmma.m64n8k32.f16.e5m2.e4m3"),
        ("wgmma.smemA.m64n8k16.f32.f16.f16", "wgmma.m64n8k16.f32.f16.f16"),
        ("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite", "wgmma.m64n8k32.s32.s8.s8.satfinite"),
        ("WGMMA.chain8.m64n8k16.f32.f16.f16", "wgmma.m64n8k16.f32.f16.f16"),
    ):
        assert get_instruction(given, "hopper").name == name
    assert get_instruction("mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e2m1.f32", "sm_120a").group == 32
    assert get_instruction("tcgen05.mma.cta_group::1.kind::f16.m128n256k16.f32.f16.f16", "b200").verified is False
    for row in INSTRUCTIONS:
        assert get_instruction(row.name, row.arch) is row
        assert row.k % row.group == 0
        assert row.source


# --- products ---------------------------------------------------------------------------------------------------------


def test_every_accumulator_multiplies() -> None:
    x = np.array([[1, 0, 2, 1, 1, 0, 1]], np.float32)
    for name in tensor_cores.accumulators():
        core = get_accumulator(name)
        assert core.name == name
        d = core.matmul(x, x.T)
        assert d.dtype == (np.int32 if name.rsplit(".", 1)[-1] in ("int8", "uint8") else np.float32)
        assert d.tolist() == [[8]], name
        assert core.matmul(x, x.T, np.array([[3]], d.dtype)).tolist() == [[11]]
        assert core.operands == (core.instruction.a, core.instruction.b)


def test_promotion_is_float32_sums_of_short_chains() -> None:
    rng = np.random.default_rng(1)
    x, y = (P.round_to(rng.random(s).astype(np.float32), "float8_e4m3fn") for s in ((3, 1000), (1000, 5)))
    fast = get_accumulator("hopper.cublas.float8_e4m3fn.fast_accum")
    expected = np.zeros((3, 5), np.float32)
    for k in range(0, 1000, 128):
        expected += fast.matmul(x[:, k : k + 128], y[k : k + 128])
    assert np.array_equal(get_accumulator("hopper.cublas.float8_e4m3fn").matmul(x, y), expected)
    assert np.array_equal(replace(fast, promote=128).matmul(x, y), expected)
    split = np.zeros((3, 5), np.float32)
    for k in range(0, 1000, 384):
        split += get_accumulator("hopper.cublas.float8_e4m3fn").matmul(x[:, k : k + 384], y[k : k + 384])
    assert np.array_equal(get_accumulator("hopper.cublas.float8_e4m3fn.split_k_384").matmul(x, y), split)
    c = np.float32([[1, 2, 3, 4, 5]] * 3)  # the register's first value
    expected = c.copy()
    for k in range(0, 1000, 128):
        expected += fast.matmul(x[:, k : k + 128], y[k : k + 128])
    assert np.array_equal(get_accumulator("hopper.cublas.float8_e4m3fn").matmul(x, y, c), expected)


def test_tfloat32_products_round_their_inputs_and_chains_refuse_to() -> None:
    x = np.float32([[1 + 2**-11, 1 + 3 * 2**-11]])  # ties: to 1 and to 1 + 2^-9
    eye = np.eye(2, dtype=np.float32)
    assert get_accumulator("hopper.cublas.tfloat32").matmul(x, eye).tolist() == [[1, 1 + 2**-9]]
    with pytest.raises(
        ValueError, match=r"a holds 1\.00048828125, which tfloat32 does not.*P\.round_to\(a, 'tfloat32'\)"
    ):
        get_accumulator("hopper.wgmma.tfloat32").matmul(x, eye)
    cut = P.mma(x, eye, None, instruction="wgmma.m64n8k8.f32.tf32.tf32", arch="hopper")
    assert P.decode(cut, "float32").tolist() == [[1, 1 + 2**-10]]


def test_the_result_is_rounded_once() -> None:
    rng = np.random.default_rng(1)
    x = P.round_to(rng.standard_normal((8, 64)).astype(np.float32), "bfloat16")
    full = get_accumulator("hopper.cublas.bfloat16").matmul(x, x.T)
    for fmt in ("bfloat16", "float16", "float8_e4m3fn"):
        rounded = get_accumulator(f"hopper.cublas.bfloat16.to_{fmt}").matmul(x, x.T)
        assert np.array_equal(rounded, P.round_to(full, fmt, policy="ieee"), equal_nan=True)
        assert rounded.dtype == np.float32


def test_values_of_any_dtype_and_library() -> None:
    rng = np.random.default_rng(1)
    x = P.round_to(rng.standard_normal((8, 40)), "float8_e5m2")
    core = get_accumulator("hopper.wgmma.float8_e5m2")
    expected = core.matmul(x, x.T)
    for other in (
        x.astype(np.float32),
        x.astype(ml_dtypes.float8_e5m2),
        x.astype(np.float16),
        x.astype(ml_dtypes.bfloat16),
    ):
        assert np.array_equal(core.matmul(other, other.T), expected)
    t = torch.from_numpy(x)
    for tensor in (t, t.to(torch.float32), t.to(torch.float32).to(torch.float8_e5m2), t.to(torch.bfloat16)):
        d = core.matmul(tensor, tensor.T)
        assert d.dtype == torch.float32
        assert np.array_equal(d.numpy(), expected)
    specials = np.float32([[np.inf, 1], [np.nan, 1], [-0.0, -0.0]])
    with np.errstate(invalid="ignore"):
        d = get_accumulator("hopper.wgmma.bfloat16").matmul(specials, np.float32([[1], [1]]))
    assert d.view(np.uint32).tolist() == [[0x7F800000], [0x7FFFFFFF], [0]]
    assert np.array_equal(
        get_accumulator("hopper.mma.int8").matmul(np.float64([[-0.0, 3]]), np.int64([[1], [-2]])), [[-6]]
    )
    # float8 values that another format holds
    narrow = np.float32([[1, 2]]).astype(ml_dtypes.float8_e4m3fn)
    assert get_accumulator("hopper.wgmma.float16").matmul(narrow, narrow.T).tolist() == [[5]]


def test_exactness_is_judged_by_bits() -> None:
    tiny, rest = np.float32([[2.0**-133]]), np.float32([[2.0**-149]])  # bfloat16 holds the first
    assert torch.set_flush_denormal(True)
    try:
        core = get_accumulator("hopper.wgmma.bfloat16")
        assert core.matmul(tiny, np.float32([[1]])).view(np.uint32) == 1 << 16
        with pytest.raises(ValueError, match=r"a holds .*, which bfloat16 does not"):
            core.matmul(rest, np.float32([[1]]))
    finally:
        torch.set_flush_denormal(False)


def test_fp8_accumulation_loses_a_quarter() -> None:
    """Uniform data, K = 16384: 14 bits stop growing; promotion every 128 cures it."""
    rng = np.random.default_rng(0)
    x, y = (P.round_to(rng.random(s).astype(np.float32), "float8_e4m3fn") for s in ((4, 16384), (16384, 4)))
    exact = x.astype(np.float64) @ y.astype(np.float64)
    bias = {
        n: float(np.mean(get_accumulator(f"hopper.cublas.float8_e4m3fn{n}").matmul(x, y) / exact - 1))
        for n in ("", ".fast_accum")
    }
    assert -0.26 < bias[".fast_accum"] < -0.23
    assert -6e-4 < bias[""] < -4e-4


# --- what is refused --------------------------------------------------------------------------------------------------

A, B = np.zeros((4, 16), np.uint16), np.zeros((16, 8), np.uint16)
F16 = {"instruction": "mma.m16n8k16.f32.f16.f16.f32", "arch": "hopper"}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: P.mma(A, B[:8], **F16), ValueError, r"a has shape \(4, 16\) and b \(8, 8\).*needs the same K, not 16 and 8"),
        (lambda: P.mma(A[0], B, **F16), ValueError, r"a has shape \(16,\); an operand is a matrix"),
        (lambda: P.mma(A, B, np.zeros((4, 4), np.float32), **F16), ValueError, r"c has shape \(4, 4\); the product of a and b is \(\.\.\., 4, 8\)"),
        (lambda: P.mma(np.stack([A] * 2), np.stack([B] * 3), **F16), ValueError, r"leading dimensions do not broadcast: \(2,\) and \(3,\)"),
        (lambda: P.mma(A, B, np.zeros((4, 8), np.float16), **F16), ValueError, "c has dtype float16; hopper mma.m16n8k16.f32.f16.f16.f32 takes float32: codes as uint32, or an array of dtype float32"),
        (lambda: P.mma(A, B, np.zeros((4, 8), np.uint16), **F16), ValueError, "c has dtype uint16; .* takes float32"),
        (lambda: P.mma(A.astype(np.float32), B, **F16), ValueError, "a has dtype float32; .* takes float16: codes as uint16"),
        (lambda: P.mma(A.astype(np.int64) - 1, B, **F16), ValueError, "a has codes from -1 to -1; float16 has codes 0 to 65535"),
        (lambda: P.mma(A, torch.zeros(16, 8, dtype=torch.float16), **F16), TypeError, "operands are in several places: a is NumPy, b is torch on cpu"),
        (lambda: P.mma(torch.from_numpy(A), torch.zeros(16, 8, dtype=torch.float16, device="meta"), **F16), TypeError, "a is torch on cpu, b is torch on meta"),
        (lambda: get_accumulator("hopper.mma.float16").matmul(torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)), ValueError, r"a requires grad, .* pass a\.detach\(\)"),
        (lambda: P.mma(A, B, instruction="wgmma.m64n8k16.f32.f16.f16", arch="ampere"), ValueError, r"ampere has no instruction 'wgmma.m64n8k16.f32.f16.f16'; hopper has it\. It has: mma.m16n8k8.f32.f16"),
        (lambda: P.mma(A, B, instruction="mma.m16n8k16.f32.f16.bf16.f32", arch="hopper"), ValueError, "did you mean mma.m16n8k16.f32"),
        (lambda: P.mma(A, B, instruction="mma.m16n8k16.f32.f16.f16.f32", arch="gfx942"), ValueError, "unknown architecture 'gfx942': use one of volta, turing, ampere"),
        (lambda: P.mma(A, B, instruction=3, arch="hopper"), TypeError, "instruction is 3; it must be a name"),
        (lambda: P.mma(A, B, instruction="mma.m16n8k16.f32.f16.f16.f32"), TypeError, "arch is None; it must be a name"),
        (lambda: get_instruction("tcgen05.mma.kind::mxf8f6f4.block_scale.m128n8k32.f32.e4m3.e4m3", "blackwell"), ValueError, "block-scaled instructions are not modelled: no source states their floor"),
        (lambda: get_instruction("mma.sp.m16n8k32.f32.f16.f16.f32", "hopper"), ValueError, "sparse instructions are not modelled"),
        (lambda: get_instruction("mma.m8n8k4.f64.f64.f64.f64", "ampere"), ValueError, "float64 instructions are not modelled: .* P.fma"),
        (lambda: get_instruction("mma.m16n8k32.f32.e3m2.e3m2.f32", "rtx_blackwell"), ValueError, "FP6 operands are not modelled"),
        (lambda: get_accumulator("hopper.cublas.float8_e4m3"), ValueError, "unknown accumulator 'hopper.cublas.float8_e4m3': did you mean hopper.cublas.float8_e4m3fn"),
        (lambda: P.mma(A.astype(np.int16) - 1, B, **F16), ValueError, r"a has codes from -1 to -1; .* pass a\.view\(np\.uint16\)"),
        (lambda: P.mma(torch.zeros(4, 16, dtype=torch.int16) - 1, torch.from_numpy(B), **F16), ValueError, r"a\.view\(torch\.uint16\)"),
        (lambda: P.mma(np.ma.masked_array(A), B, **F16), TypeError, "a is a masked array, whose mask would be lost"),
        (lambda: P.matmul(A.astype(np.uint8), B.astype(np.uint8), accumulator="hopper.cublas.float8_e4m3fn"), TypeError, r"a has dtype uint8, and hopper.cublas.float8_e4m3fn takes values of float8_e4m3fn: decode codes, P\.decode\(a, 'float8_e4m3fn'\)"),
        (lambda: P.dot(torch.ones(4), torch.ones(4, dtype=torch.int64), accumulator="hopper.wgmma.bfloat16"), TypeError, "b has dtype int64, and hopper.wgmma.bfloat16 takes values of bfloat16"),
        (lambda: P.bounds.matmul_bound(A.astype(np.uint8), B.astype(np.uint8), "hopper.cublas.float8_e4m3fn"), TypeError, "a has dtype uint8, and hopper"),
        (lambda: get_accumulator(8), TypeError, "an accumulator is a name or a TensorCore, not 8"),
        (lambda: get_accumulator("hopper.cublas.bfloat16.split_k_100"), ValueError, "slice_k is 100; .* takes a positive multiple of its K, 16"),
        (lambda: get_accumulator("hopper.cublas.bfloat16.split_k_1408.split_k_64"), ValueError, r"cuts K twice: leave one \.split_k_"),
        (lambda: get_accumulator("hopper.cublas.bfloat16.to_float16.split_k_64.to_float16"), ValueError, r"rounds its result twice: leave one \.to_"),
        (lambda: get_accumulator("hopper.cublas.bfloat16.to_int8"), ValueError, "output is int8, an integer format"),
        (lambda: replace(get_accumulator("hopper.mma.int8"), output="uint8"), ValueError, "output is uint8, an integer format"),
        (lambda: replace(get_accumulator("hopper.mma.float8_e5m2"), promote=128), ValueError, "has no chain of float32 sums to restart"),
        (lambda: get_accumulator("hopper.wgmma.float8_e4m3fn").matmul(np.float32([[0.3]]), np.float32([[1]])), ValueError, r"a holds 0\.30000001192\d*, which float8_e4m3fn does not: hopper.wgmma.float8_e4m3fn takes values of float8_e4m3fn; round first, P.round_to\(a, 'float8_e4m3fn'\)"),
        (lambda: get_accumulator("hopper.wgmma.float8_e4m3fn").matmul(np.float32([[1]]), np.float32([[np.inf]])), ValueError, "b holds inf, which float8_e4m3fn does not"),
        (lambda: get_accumulator("hopper.mma.int8").matmul(np.float32([[128]]), np.float32([[1]])), ValueError, "a holds 128.0, which int8 does not"),
        (lambda: get_accumulator("hopper.wgmma.float16").matmul(np.float32([1, 2]), np.float32([[1]])), ValueError, r"a has shape \(2,\)"),
        (lambda: get_accumulator("hopper.cublas.tfloat32").matmul(np.array([[0.1]]), np.array([[1.0]])), ValueError, r"a holds 0\.1, which float32 does not"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_the_page_in_docs_is_what_the_table_says() -> None:
    docs = Path(__file__).parents[1] / "docs"
    made = subprocess.run([sys.executable, docs / "tensor_cores.py"], capture_output=True, check=True, encoding="utf-8")
    assert (docs / "tensor_cores.md").read_text("utf-8") == made.stdout
