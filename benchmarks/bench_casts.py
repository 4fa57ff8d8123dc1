"""Rounding, encoding and decoding against torch, ml_dtypes and a plain copy, on one CPU thread or a CUDA device.

`pytest benchmarks -m "not cuda"` and `pytest benchmarks -m cuda`. Each answer is checked before it is timed. Our
CPU kernels are both measured: the NumPy table, and the compiled loop where the `fast` extra (numba) is installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import _engine
from precision.rounding import job as make_job

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # compilers and peers warn of what is not ours

FORMATS8 = ("float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float4_e2m1fn")


@pytest.fixture(params=["table", "numba"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of our CPU kernels runs: the NumPy table, or the compiled loop of the `fast` extra."""
    if request.param == "table":
        monkeypatch.setattr(_engine, "_numba", lambda: None)
    else:
        pytest.importorskip("numba", reason="the fast extra is not installed")
    return str(request.param)


def _run(benchmark: Any, who: str, group: str, n: int, function: Callable[[], Any]) -> None:
    benchmark.group = group
    benchmark.extra_info.update(who=who, elements=n)
    function()
    benchmark(function)


def _same(ours: Any, theirs: Any) -> bool:
    """Equal values, NaN alike, where neither overflows (the peers' policies differ there)."""
    a, b = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    kept = np.isfinite(a) & np.isfinite(b) & (np.abs(a) < np.max(np.abs(a[np.isfinite(a)])))
    return bool(np.array_equal(a[kept].view(np.uint32), b[kept].view(np.uint32)))


SIZES = (1 << 12, 1 << 20)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FORMATS8)
def bench_round(benchmark: Any, values: Any, kernel: str, name: str, n: int) -> None:
    x = values(n)
    if name.startswith("float8"):
        t = torch.from_numpy(x)
        assert _same(P.round_to(x, name), t.to(getattr(torch, name)).to(torch.float32).numpy())
    _run(benchmark, f"ours ({kernel})", f"round {name} | {n}", n, lambda: P.round_to(x, name))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FORMATS8)
@pytest.mark.parametrize("who", ["torch", "ml_dtypes", "copy"])
def bench_round_peers(benchmark: Any, values: Any, who: str, name: str, n: int) -> None:
    x = values(n)
    t, group = torch.from_numpy(x), f"round {name} | {n}"
    if who == "torch":
        dtype = getattr(torch, name, None)
        if dtype is None:
            pytest.skip(f"torch has no {name}")
        _run(benchmark, who, group, n, lambda: t.to(dtype).to(torch.float32))
    elif who == "ml_dtypes":
        narrow = getattr(ml_dtypes, name)
        with np.errstate(all="ignore"):
            _run(benchmark, who, group, n, lambda: x.astype(narrow).astype(np.float32))
    else:
        _run(benchmark, who, group, n, x.copy)


@pytest.mark.parametrize("rounding", [*P.ROUNDINGS, "stochastic"])
def bench_round_modes(benchmark: Any, values: Any, kernel: str, rounding: str) -> None:
    n = 1 << 20
    x = values(n)
    if rounding == "stochastic":
        r = np.random.default_rng(1).integers(0, 256, n, dtype=np.uint32)
        how: Any = P.stochastic(random_bits=r, bits=8)
    else:
        how = rounding
    _run(
        benchmark,
        rounding,
        f"round float8_e4m3fn by mode ({kernel}) | {n}",
        n,
        lambda: P.round_to(x, "e4m3fn", rounding=how),
    )


@pytest.mark.parametrize("source", ["float32", "float64", "torch"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
def bench_round_sources(benchmark: Any, values: Any, kernel: str, name: str, source: str) -> None:
    n = 1 << 20
    x = values(n)
    x = torch.from_numpy(x) if source == "torch" else x.astype(source)
    _run(benchmark, source, f"round {name} by source ({kernel}) | {n}", n, lambda: P.round_to(x, name))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("who", ["ours", "torch", "ml_dtypes"])
@pytest.mark.parametrize("direction", ["encode", "decode"])
def bench_codes(
    benchmark: Any, values: Any, monkeypatch: pytest.MonkeyPatch, direction: str, who: str, name: str
) -> None:
    monkeypatch.setattr(_engine, "_numba", lambda: None)
    n = 1 << 20
    x, group = values(n), f"{direction} {name} | {n}"
    narrow, dtype = getattr(ml_dtypes, name), getattr(torch, name, None)
    codes = P.encode(x, name)
    if who == "ours":
        function: Callable[[], Any] = (
            (lambda: P.encode(x, name)) if direction == "encode" else lambda: P.decode(codes, name)
        )
    elif who == "torch":
        if dtype is None:
            pytest.skip(f"torch has no {name}")
        t, c = torch.from_numpy(x), torch.from_numpy(codes).view(dtype)
        function = (lambda: t.to(dtype)) if direction == "encode" else lambda: c.to(torch.float32)
    else:
        c8 = codes.view(narrow)
        function = (lambda: x.astype(narrow)) if direction == "encode" else lambda: c8.astype(np.float32)
    with np.errstate(all="ignore"):
        _run(benchmark, who, group, n, function)


@pytest.mark.parametrize("name", FORMATS8)
def bench_table_build(benchmark: Any, name: str) -> None:
    """Building one table from the definition: the cost of the first call."""
    job, _ = make_job("round", name, "nearest_even", "saturate")
    build = _engine._plan.__wrapped__
    _run(benchmark, name, "build a table", 1, lambda: build(job, _engine.FLOAT32))


@pytest.mark.parametrize("module", ["numpy", "precision"])
def bench_import(benchmark: Any, module: str) -> None:
    benchmark.group = "import"
    benchmark.extra_info.update(who=module, elements=1)
    benchmark.pedantic(subprocess.run, ([sys.executable, "-c", f"import {module}"],), {"check": True}, rounds=10)


# --- CUDA -------------------------------------------------------------------------------------------------------------


def _cuda_seconds(function: Callable[[], Any], seconds: float = 0.4) -> float:
    """The median over event-timed calls, after enough calls that the clocks have risen."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    count = max(10, min(400, int(seconds * 1e3 / max(start.elapsed_time(end), 1e-3))))
    for _ in range(count):
        function()
    times = []
    for _ in range(count):
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times)) / 1e3


CUDA = ("copy", "add one, compiled", "ours, eager", "ours", "torch")


@pytest.mark.cuda
@pytest.mark.parametrize("who", CUDA)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "bfloat16", "float16"])
def bench_cuda_round(benchmark: Any, name: str, who: str) -> None:
    n = 1 << 28
    x = torch.randn(n, device="cuda")
    torch._dynamo.reset()
    if who == "copy":
        out = torch.empty_like(x)
        function: Callable[[], Any] = lambda: out.copy_(x)  # noqa: E731
    elif who == "add one, compiled":
        function = _call(torch.compile(lambda x: (x.view(torch.int32) + 1).view(torch.float32), fullgraph=True), x)
    elif who == "ours, eager":
        function = _call(lambda x: P.round_to(x, name), x)
    elif who == "ours":
        function = _call(torch.compile(lambda x: P.round_to(x, name), fullgraph=True), x)
        small = x[: 1 << 20].clone()
        assert torch.equal(
            function()[: 1 << 20].cpu().view(torch.int32), P.round_to(small.cpu(), name).view(torch.int32)
        )
    else:
        dtype = getattr(torch, name, None)
        if dtype is None:
            pytest.skip(f"torch has no {name}")
        function = _call(lambda x: x.to(dtype).to(torch.float32), x)
    function()
    seconds = _cuda_seconds(function)
    benchmark.group = f"CUDA round {name} | {n}"
    benchmark.extra_info.update(who=who, elements=n, cuda_seconds=seconds, tb_per_s=8 * n / seconds / 1e12)
    benchmark.pedantic(lambda: (function(), torch.cuda.synchronize()), rounds=5)


def _call(function: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: function(x)
