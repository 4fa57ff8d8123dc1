"""Quantization of a whole array, scales included, against torchao, torch and a copy; on one CPU thread or CUDA.

`pytest benchmarks/bench_quantize.py -m "not cuda"` and `-m cuda`. An element is one number of the array. On CUDA the
peer is a copy of the float32 array, and the bytes that a scheme must move, read once and written once (nvfp4 reads
twice: its tensor scale comes first), are in `extra_info["bytes"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import precision as P

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

N = 1 << 24
SCHEMES: dict[str, dict[str, Any]] = {
    "mxfp8_e4m3": {},
    "mxfp6_e3m2": {},
    "mxfp4": {},
    "nvfp4": {},
    "int8": {"granularity": "channel"},
}


def _data(n: int, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    return torch.randn(n // 4096, 4096, device=device)


def _run(benchmark: Any, who: str, group: str, n: int, function: Callable[[], Any]) -> None:
    benchmark.group = group
    benchmark.extra_info.update(who=who, elements=n)
    function()
    benchmark.pedantic(function, rounds=5)


@pytest.mark.parametrize("name", SCHEMES)
def bench_quantize(benchmark: Any, name: str) -> None:
    x, scheme = _data(N), P.scheme(name, **SCHEMES[name])
    _run(benchmark, "ours", f"quantize {name}", N, lambda: P.quantize(x, scheme))


@pytest.mark.parametrize("name", SCHEMES)
def bench_fake_quantize(benchmark: Any, name: str) -> None:
    x, scheme = _data(N), P.scheme(name, **SCHEMES[name])
    _run(benchmark, "ours", f"fake_quantize {name}", N, lambda: P.fake_quantize(x, scheme))


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e3m2", "mxfp4"])
def bench_torchao_mx(benchmark: Any, name: str) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    element = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp6_e3m2": "fp6_e3m2", "mxfp4": torch.float4_e2m1fn_x2}[name]
    x = _data(N)
    scales = mx.to_mx(x[:64], element, 32)[0].view(torch.uint8)
    assert torch.equal(scales, P.quantize(x[:64], name).scale_codes)
    _run(benchmark, "torchao", f"quantize {name}", N, lambda: mx.to_mx(x, element, 32))


def bench_torchao_nvfp4(benchmark: Any) -> None:
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = _data(N)
    _run(
        benchmark,
        "torchao",
        "quantize nvfp4",
        N,
        lambda: nv.nvfp4_quantize(x, 16, nv.per_tensor_amax_to_scale(x.abs().max())),
    )


def bench_torchao_int8(benchmark: Any) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    x = _data(N)

    def call() -> Any:
        how = (primitives.MappingType.SYMMETRIC, (1, 4096), torch.int8, -128, 127)
        scale, zero = primitives.choose_qparams_affine(x, *how)
        return primitives.quantize_affine(x, (1, 4096), scale, zero, torch.int8, -128, 127)

    _run(benchmark, "torchao", "quantize int8", N, call)


def bench_torch_int8(benchmark: Any) -> None:
    """With the scales measured, as ours are."""
    x = _data(N)
    zeros = torch.zeros(len(x), dtype=torch.int64)
    _run(
        benchmark,
        "torch",
        "quantize int8",
        N,
        lambda: torch.quantize_per_channel(x, x.abs().amax(1) / 127, zeros, 0, torch.qint8),
    )


@pytest.mark.cuda
@pytest.mark.parametrize("who", ["ours, compiled", "copy"])
@pytest.mark.parametrize("name", SCHEMES)
def bench_quantize_cuda(benchmark: Any, name: str, who: str) -> None:
    n = 1 << 28
    x, scheme = _data(n, "cuda"), P.scheme(name, **SCHEMES[name])
    y = torch.empty_like(x)

    def quantize(x: Any) -> Any:
        q = P.quantize(x, scheme)
        return q.packed, q.scales

    compiled = torch.compile(quantize, fullgraph=True)
    packed, scales = compiled(x)
    call = {"ours, compiled": lambda: compiled(x), "copy": lambda: y.copy_(x)}[who]
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(12):
        start.record()
        call()
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    read = 2 if scheme.tensor_scale else 1
    moved = 4 * n * read + packed.nbytes + scales.nbytes if who != "copy" else 8 * n
    benchmark.extra_info.update(cuda_seconds=min(seconds), bytes=moved)
    _run(benchmark, who, f"quantize {name}, CUDA", n, call)
