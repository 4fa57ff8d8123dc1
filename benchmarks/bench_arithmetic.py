"""Correctly rounded operations against `round_to` of the same array, and accumulators; on one CPU thread or CUDA.

`pytest benchmarks/bench_arithmetic.py -m "not cuda"` and `-m cuda`. An element is one result. The peers of an operation
are `round_to` of one operand, ml_dtypes' own operator where it has one, and torch's in its own 16-bit types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

FORMATS = ("float8_e4m3fn", "float16", "bfloat16")
OPERATIONS = {"add": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
N = 1 << 20


def _operands(name: str, n: int = N) -> list[Any]:
    rng = np.random.default_rng(0)
    return [P.round_to(np.abs(rng.standard_normal(n)).astype(np.float32), name) for _ in range(3)]


def _run(benchmark: Any, who: str, group: str, n: int, function: Callable[[], Any]) -> None:
    benchmark.group = group
    benchmark.extra_info.update(who=who, elements=n)
    function()
    benchmark(function)


@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", FORMATS)
def bench_operation(benchmark: Any, name: str, operation: str, mode: str) -> None:
    x = _operands(name)[: OPERATIONS[operation]]
    wide = getattr(P, operation)(*(y[:999].astype(np.float64) for y in x), name, rounding=mode)
    assert np.array_equal(getattr(P, operation)(*(y[:999] for y in x), name, rounding=mode), wide)
    _run(benchmark, "ours", f"{operation} {name} {mode}", N, lambda: getattr(P, operation)(*x, name, rounding=mode))


@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", FORMATS)
def bench_round_to(benchmark: Any, name: str, operation: str, mode: str) -> None:
    x = _operands(name)[0]
    _run(benchmark, "round_to", f"{operation} {name} {mode}", N, lambda: P.round_to(x, name, rounding=mode))


@pytest.mark.parametrize("operation", ["add", "mul", "div"])
@pytest.mark.parametrize("name", FORMATS)
def bench_ml_dtypes(benchmark: Any, name: str, operation: str) -> None:
    a, b, _ = (P.to_dtype(P.encode(x, name), name) for x in _operands(name))
    assert a.dtype == getattr(ml_dtypes, name, np.float16)
    function = {"add": np.add, "mul": np.multiply, "div": np.divide}[operation]
    who = "numpy" if name == "float16" else "ml_dtypes"
    _run(benchmark, who, f"{operation} {name} nearest_even", N, lambda: function(a, b))


@pytest.mark.parametrize("m", [64, 128, 256])
@pytest.mark.parametrize("order", ["sequential", "pairwise"])
def bench_matmul(benchmark: Any, order: str, m: int) -> None:
    """Time is linear in M·N·K."""
    a, b = _operands("bfloat16", m * 128)[:2]
    a, b = a.reshape(m, 128), b.reshape(128, m)
    accumulator = P.Accumulator("bfloat16", order=order)  # type: ignore[arg-type]
    group = f"matmul {order} bfloat16 | {m}x128x{m}"
    _run(benchmark, "ours", group, m * m * 128, lambda: P.matmul(a, b, accumulator=accumulator))


@pytest.mark.cuda
@pytest.mark.parametrize("who", ["ours", "round_to", "copy"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", FORMATS)
def bench_operation_cuda(benchmark: Any, name: str, operation: str, who: str) -> None:
    n = 1 << 26
    x = [torch.randn(n, device="cuda").abs() for _ in range(OPERATIONS[operation])]
    x = [P.round_to(y, name) for y in x]
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: getattr(P, operation)(*x, name),
        "round_to": lambda: P.round_to(x[0], name),
        "copy": x[0].clone,
    }
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(12):
        start.record()
        calls[who]()
        stop.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    benchmark.group = f"{operation} {name} | cuda"
    benchmark.extra_info.update(who=who, elements=n, cuda_seconds=min(seconds))
    benchmark.pedantic(calls[who], rounds=3)
