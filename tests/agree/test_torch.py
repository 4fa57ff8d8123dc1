"""torch's CPU casts against the policy of its version ("torch" from 2.12 on), bit for bit from float32.

The codes of NaN are compared as bits in the 8-bit formats. In float16 torch keeps upper payload bits, and in bfloat16 the
code of a NaN depends on strides and processor; there any NaN is any NaN. Where torch differs otherwise, the exact set of
inputs is asserted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import precision as P
from properties import peers
from properties.laws._grid import critical_inputs, random_inputs

Array = np.ndarray[Any, Any]

FLOATS = [f for f in P.formats() if isinstance(f, P.Format) and f.bits <= 16 and f.torch_dtype is not None]
E8M0 = P.float8_e8m0fnu
POLICY = peers.followed("torch")
by_format = pytest.mark.parametrize("fmt", FLOATS, ids=str)


def inputs(fmt: P.Format) -> Array:
    """Every high half of float32 with six low halves; every value and midpoint with its neighbours."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    critical = critical_inputs(fmt).view(np.uint32)
    return np.unique(np.concatenate([(high[:, None] | low).ravel(), critical])).view(np.float32)


def theirs(x: Array | torch.Tensor, fmt: P.Format) -> Array:
    tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return np.asarray(P.from_dtype(tensor.to(fmt.torch_dtype))[0].numpy())


def differ(a: Array, b: Array, fmt: P.Format) -> Array:
    """Where codes differ; in 16-bit formats, where they differ and are not both NaN."""
    if fmt.bits == 8:
        return np.asarray(a != b)
    nan = P.CLASSES.index("nan")
    return np.asarray((a != b) & ~((P.classify(a, fmt) == nan) & (P.classify(b, fmt) == nan)))


def finding(x: Array, fmt: P.Format) -> Array:
    """E8M0 between 2^-127 and 1.5 · 2^-127, of both signs, whose sign torch drops: they become 2^-126."""
    with np.errstate(invalid="ignore"):
        size = np.abs(x.astype(np.float64))
    return (size > 2**-127) & (size < 1.5 * 2**-127) if fmt is E8M0 else np.zeros(x.shape, bool)


@by_format
def test_float32_casts(fmt: P.Format) -> None:
    x = inputs(fmt)
    codes = theirs(x, fmt)
    assert np.array_equal(differ(codes, P.encode(x, fmt, policy=POLICY), fmt), finding(x, fmt))
    if fmt is E8M0:
        assert (codes[finding(x, fmt)] == 1).all()
        assert finding(x, fmt).any()


@by_format
def test_strided_tensors(fmt: P.Format) -> None:
    """torch has other code for strided tensors than for contiguous ones, and tails of the vectorised loops."""
    x = inputs(fmt)[::37]
    twice = torch.from_numpy(np.repeat(x, 2))[::2]
    assert not twice.is_contiguous()
    wrong = differ(theirs(twice, fmt), P.encode(x, fmt, policy=POLICY), fmt)
    assert np.array_equal(wrong, finding(x, fmt))
    for n in (1, 3, 7, 9, 17):
        part = x[-n:]
        assert np.array_equal(differ(theirs(part, fmt), P.encode(part, fmt, policy=POLICY), fmt), finding(part, fmt))


@by_format
def test_16_bit_casts(fmt: P.Format) -> None:
    """From every float16 and every bfloat16."""
    pattern = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for x in (pattern.view(torch.float16), pattern.view(torch.bfloat16)):
        wide = x.to(torch.float64).numpy()
        wrong = differ(theirs(x, fmt), P.encode(x, fmt, policy=POLICY).numpy(), fmt)
        assert np.array_equal(wrong, finding(wide, fmt))


@by_format
def test_float64_casts_go_through_float32(fmt: P.Format) -> None:
    """A finding: two roundings. They differ from one exactly where our rounding of the float32 differs from it."""
    x = np.concatenate([critical_inputs(fmt, np.float64)[::7], random_inputs(20_000, np.float64)])
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
    assert not differ(theirs(x, fmt), theirs(narrow, fmt), fmt).any()
    once, twice = P.encode(x, fmt, policy=POLICY), P.encode(narrow, fmt, policy=POLICY)
    doubly = differ(once, twice, fmt)
    assert doubly.any()
    if fmt is not E8M0:
        assert np.array_equal(differ(theirs(x, fmt), once, fmt), doubly)


def test_known_double_roundings() -> None:
    for name, x, right, got in [
        ("float16", 63343.99805, 63328, 63360),
        ("float16", 1 + 2**-11 + 2**-40, 1.0009765625, 1),
        ("bfloat16", 1 + 2**-8 + 2**-40, 1.0078125, 1),
        ("float8_e4m3fn", 1.0625 + 2**-40, 1.125, 1),
        ("float8_e5m2", 1.125 + 2**-40, 1.25, 1),
        ("bfloat16", 2**25 + 2**17 + 1, 33816576, 33554432),
        ("bfloat16", 2**24 + 2**16 + 1, 16908288, 16777216),
    ]:
        fmt, tensor = (
            P.get_format(name),
            torch.tensor([x], dtype=torch.float64 if isinstance(x, float) else torch.int64),
        )
        assert tensor.to(fmt.torch_dtype).to(torch.float64).item() == got
        assert P.decode(P.encode(tensor, fmt), fmt).item() == right
        if name in ("float16", "bfloat16") and isinstance(x, float):
            assert torch.tensor(x, dtype=fmt.torch_dtype).item() == got


def test_known_overflow_of_this_version() -> None:
    """From 2.12 on E4M3FN saturates, infinities too (pytorch PR 178817); the other formats never do."""
    x = torch.tensor([448.0, 464, 465, 1000, float("inf"), float("-inf")])
    got = x.to(torch.float8_e4m3fn).to(torch.float32)
    if POLICY == "torch":
        assert got.tolist() == [448, 448, 448, 448, 448, -448]
    else:
        assert torch.isnan(got).tolist() == [False, False, True, True, True, True]
    assert torch.tensor([61440.0, float("inf")]).to(torch.float8_e5m2).to(torch.float32).tolist() == [float("inf")] * 2
    assert torch.isnan(torch.tensor([248.0, float("inf")]).to(torch.float8_e4m3fnuz).to(torch.float32)).all()


@by_format
def test_decoding(fmt: P.Format) -> None:
    """Every code, to float32: equal bits; a NaN is a NaN."""
    codes = torch.from_numpy(np.arange(1 << fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16))
    got, want = P.to_dtype(codes, fmt).to(torch.float32).numpy(), P.decode(codes, fmt).numpy()
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


def test_integers_truncate_and_wrap() -> None:
    """A finding: as C casts do, and differently for NaN and infinities from one machine to the next. Ours saturate."""
    x = torch.tensor([2.5, -2.5, 3.7, -3.7, 126.9])
    assert x.to(torch.int8).tolist() == [2, -2, 3, -3, 126]
    assert P.decode(P.encode(x, "int8"), "int8").tolist() == [2, -2, 4, -4, 127]


def test_fake_quantize_rounds_as_ours_and_sends_nan_to_the_lowest_level() -> None:
    x = torch.from_numpy(critical_inputs("int8").copy())
    got = torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -128, 127)
    nan = torch.isnan(x)
    assert (got[nan] == -128).all()
    assert torch.equal(got[~nan], P.round_to(x, "int8")[~nan])
