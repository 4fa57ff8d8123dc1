"""Tensor-core models against a plain int64 evaluation of the definition, and their growth with M·N·K.

`pytest benchmarks/bench_tensor_cores.py -m "not cuda"` and `-m cuda`. An element is one multiply-add. Answers are
compared with those of the plain evaluation before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import precision as P
from precision.tensor_cores import Instruction, get_accumulator, get_instruction

torch.set_num_threads(1)

NAMES = (
    "wgmma.m64n8k16.f32.f16.f16",
    "wgmma.m64n8k32.f32.e4m3.e4m3",
    "wgmma.m64n8k8.f32.tf32.tf32",
    "mma.m16n8k32.f32.e4m3.e4m3.f32",
)
PRODUCTS = ("hopper.cublas.float8_e4m3fn", "hopper.cublas.float8_e4m3fn.fast_accum", "hopper.cublas.bfloat16")
FIELDS = {"float16": (5, 10), "float8_e4m3fn": (4, 3), "float32": (8, 23)}


def _parts(codes: Any, name: str) -> tuple[Any, Any]:
    """Signed integer significands and the exponents that are compared."""
    e, m = FIELDS[name]
    c = codes.astype(np.int64)
    field, size = c >> m & ((1 << e) - 1), c & ((1 << m) - 1)
    size = np.where(field > 0, size + (1 << m), size)
    return np.where(c >> (e + m) != 0, -size, size), np.maximum(field, 1) - ((1 << (e - 1)) - 1)


def plain(row: Instruction, a: Any, b: Any) -> Any:
    """The definition on int64 arrays, finite operands, float32 results, blocks of 64 x 64 outputs: the peer."""
    (sa, ea), (sb, eb) = _parts(a, row.a.name), _parts(b, row.b.name)
    m2, low, bits = 2 * FIELDS[row.a.name][1], -(1 << 20), row.fraction_bits
    assert bits is not None
    out = np.empty((a.shape[0], b.shape[1]), np.uint32)
    for i in range(0, a.shape[0], 64):
        for j in range(0, b.shape[1], 64):
            code = np.zeros((min(64, a.shape[0] - i), min(64, b.shape[1] - j)), np.int64)
            for k in range(0, a.shape[1], row.group):
                ks = slice(k, k + row.group)
                p = sa[i : i + 64, None, ks] * sb[ks, j : j + 64].T[None]
                e = ea[i : i + 64, None, ks] + eb[ks, j : j + 64].T[None]
                sc, ec = _parts(code, "float32")
                top = np.maximum(np.where(p != 0, e, low).max(-1), np.where(sc != 0, ec, low))
                top = np.maximum(top, row.floor)
                total = _aligned(p, e - top[..., None] + bits - m2).sum(-1) + _aligned(sc, ec - top + bits - 23)
                size = np.abs(total)
                length = np.frexp(size.astype(np.float64))[1].astype(np.int64)  # exact below 2^53
                binade = np.maximum(length - 1 + top - bits, -126)
                drop = binade - row.result_bits + 1 - (top - bits)
                units = np.where(drop >= 0, size >> np.clip(drop, 0, 62), size << np.clip(-drop, 0, 62))
                units <<= 24 - row.result_bits
                code = np.where(size == 0, 0, units + ((binade + 126) << 23)) | np.where(total < 0, 1 << 31, 0)
            out[i : i + 64, j : j + 64] = code
    return out


def _aligned(n: Any, shift: Any) -> Any:
    size = np.abs(n)
    return np.sign(n) * np.where(shift >= 0, size << np.clip(shift, 0, 40), size >> np.clip(-shift, 0, 62))


def _operands(row: Instruction, m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    words = ["float32" if f.name == "tfloat32" else f for f in (row.a, row.b)]
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    return P.encode(x, words[0]), P.encode(y, words[1])


def _run(benchmark: Any, who: str, group: str, size: int, function: Callable[[], Any]) -> None:
    benchmark.group = group
    benchmark.extra_info.update(who=who, elements=size)
    benchmark.pedantic(function, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("name", NAMES)
def bench_mma(benchmark: Any, name: str) -> None:
    row = get_instruction(name, "hopper")
    a, b = _operands(row, 512, 512, 512)
    if not row.emulated and row.a.name in FIELDS:
        small = slice(0, 96), slice(0, 80)
        assert np.array_equal(
            P.mma(a[small[0]], b[:, small[1]], instruction=row), plain(row, a[small[0]], b[:, small[1]])
        )
    _run(benchmark, "ours", f"{name} | multiply-adds", 512**3, lambda: P.mma(a, b, instruction=row))


@pytest.mark.parametrize("name", NAMES[:2])
def bench_mma_peer(benchmark: Any, name: str) -> None:
    row = get_instruction(name, "hopper")
    a, b = _operands(row, 128, 128, 512)
    _run(benchmark, "plain int64", f"{name} | multiply-adds", 128 * 128 * 512, lambda: plain(row, a, b))


@pytest.mark.parametrize("size", [(256, 256, 512), (512, 512, 512), (512, 512, 2048)], ids=str)
@pytest.mark.parametrize("name", NAMES[:2])
def bench_growth(benchmark: Any, name: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    row = get_instruction(name, "hopper")
    a, b = _operands(row, m, n, k)
    _run(benchmark, f"{m} x {n} x {k}", f"{name} | growth", m * n * k, lambda: P.mma(a, b, instruction=row))


@pytest.mark.parametrize("name", PRODUCTS)
def bench_product(benchmark: Any, name: str) -> None:
    core = get_accumulator(name)
    rng = np.random.default_rng(0)
    x = P.round_to(rng.standard_normal((512, 512)).astype(np.float32), core.operands[0])
    _run(benchmark, name, "products | 512 x 512 x 512", 512**3, lambda: core.matmul(x, x.T))


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(1024, 1024, 4096), (2048, 2048, 4096), (4096, 4096, 4096)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def bench_mma_cuda(benchmark: Any, name: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    row = get_instruction(name, "hopper")
    a, b = _operands(row, m, n, k)
    on_device = [torch.from_numpy(x).cuda() for x in (a, b)]
    small = P.mma(on_device[0][:64], on_device[1][:, :64], instruction=row).cpu().numpy()
    assert np.array_equal(small, P.mma(a[:64], b[:, :64], instruction=row))

    def run() -> None:
        P.mma(*on_device, instruction=row)
        torch.cuda.synchronize()

    _run(benchmark, f"{m} x {n} x {k}", f"{name} | cuda", m * n * k, run)
