"""Rounding: any array to the nearest representable values of a format, in seven modes under explicit policies.

The modes and policies are in `policies`, the arithmetic in `_patterns`, what runs it on an array in `_engine`.

>>> import numpy as np, precision as P
>>> x = np.float32([1.0625, 464, 465, -1e-9])
>>> P.round_to(x, "float8_e4m3fn", policy="ieee")
array([  1., 448.,  nan,  -0.], dtype=float32)
>>> P.round_to(x, "float8_e4m3fn", rounding="toward_positive")  # policy="saturate"
array([  1.125, 448.   , 448.   ,  -0.   ], dtype=float32)
"""

from __future__ import annotations

from typing import Any, TypeVar

from precision import _engine
from precision._array import Layout
from precision._patterns import Job
from precision.formats import AnyFormat, get_format
from precision.policies import Policy, Rounding, get_policy, mode_of

__all__ = ["round_to"]

ArrayT = TypeVar("ArrayT")

_jobs: dict[Any, Job] = {}  # a dict, because compilers trace through lru_cache with a warning


def job(kind: str, fmt: Any, rounding: Any, policy: Any, into: Layout | None = None) -> tuple[Job, Any]:
    """The job of a call and its random bits (None unless stochastic): arguments checked, names resolved, cached."""
    stochastic = isinstance(rounding, Rounding) and rounding.name == "stochastic"
    key = (kind, fmt, ("stochastic", rounding.bits) if stochastic else rounding, policy, into)
    try:
        found = _jobs.get(key)
    except TypeError:  # something unhashable: the checks below have the clear message
        found = None
    if found is None:
        resolved = get_format(fmt)
        bits = rounding.bits if stochastic else 0
        found = Job(kind, resolved, mode_of(rounding), get_policy(policy, resolved), bits, into)
        if len(_jobs) > 4096:
            _jobs.clear()
        _jobs[key] = found
    return found, rounding.random_bits if stochastic else None


def round_to(
    x: ArrayT,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "saturate",
) -> ArrayT:
    """Every element rounded once to a representable value of `fmt`; same library, shape, device and dtype as `x`.

    `x` is a NumPy array or torch tensor of float16, float32, float64, bfloat16 or integers, of any shape and strides
    (scalars and lists become NumPy arrays). Rounding is direct from the input's own bits, never through a narrower
    type. Defaults: round to nearest, ties to the even significand; beyond max, and ±Inf, saturate to ±max; NaN stays
    NaN, or becomes +max (0 for integers) where the format has none; subnormals are kept, and so is -0 where the format
    has one; ties of a format with no mantissa bit go up in magnitude (IEEE 754-2019 4.3.1). `policy` changes this.

    Works while torch.compile traces, with the same bits, and under flush-to-zero: only integer operations are used.

    Raises TypeError for other dtypes, for sparse and nested tensors, and for 64-bit integers that a compiler traces to
    float64 or with many random bits; ValueError for a dtype that cannot hold the format's values (naming one that
    can), a tensor that requires grad, an unknown name, random bits out of range, and under the "raise" policies for a
    NaN.
    """
    todo, random = job("round", fmt, rounding, policy)
    result: ArrayT = _engine.apply(todo, x, random)
    return result
