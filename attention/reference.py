"""Standard attention, the specification: all scores, all probabilities, one line each, in float64 when asked.

    S = scale * Q K^T      P = softmax(S) over the keys a query may see      out = P V      lse = log sum exp S

Source: Vaswani et al. 2017 (arXiv 1706.03762) equation 1. What that equation leaves open is fixed here: a query that
may see no key gets out 0 and lse -inf, and a key that may not be seen contributes nothing even if it holds NaN or Inf.

>>> import torch
>>> from attention.reference import standard_attention
>>> v = torch.tensor([[[[1.0], [3.0]]]])
>>> out, lse = standard_attention(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), v)
>>> out.item(), round(lse.item(), 4)
(2.0, 0.6931)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention.masks import Mask, full, visible_nonfinite

__all__ = ["DTYPES", "AttentionResult", "check_problem", "check_tile", "full_precision", "standard_attention"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class AttentionResult(NamedTuple):
    """What every attention function returns: always both, always in this order.

    `out` is (batch, query heads, queries, value_dim) in the dtype of the inputs; `lse` is (batch, query heads,
    queries), the natural logarithm of the sum of exp(score) over the keys a query may see, in float32 (float64 for
    float64 inputs).
    """

    out: Tensor
    lse: Tensor


def standard_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    precision: torch.dtype | None = None,
) -> AttentionResult:
    """Attention by materialising the score and the probability matrix; differentiable by autograd.

    q is (batch, heads, queries, head_dim), k (batch, kv_heads, keys, head_dim), v (batch, kv_heads, keys, value_dim);
    heads is a multiple of kv_heads, and query head h uses key head h // (heads / kv_heads). Any length or dimension may
    be 0. `mask` None allows every key. `scale` multiplies the scores, None meaning 1/sqrt(head_dim).

    Numbers: inputs are taken exactly into float32 (float64 stays float64), everything is computed there, nothing is
    rounded to a lower precision in between, and `out` is rounded once (nearest even) to the dtype of the inputs.
    `precision=torch.float64` (or torch.float32) computes there instead and returns both results unrounded: the truth
    that others are judged by. Autocast and reduced-precision products (TF32) are off inside.
    NaN in a query gives NaN in its row; NaN or Inf in a key or value reaches just the queries that may see it, as NaN
    or as what IEEE arithmetic makes of it. A row whose allowed scores are all -inf counts as empty: out 0, lse -inf.
    Zeros of out may have either sign. Subnormals are kept. Overflow of a score beyond the range it is computed in is
    not caught: it gives Inf or NaN (float16 inputs cannot cause it).

    Raises TypeError or ValueError for inputs that do not fit together, saying what was given and what is allowed.
    """
    mask, scale = check_problem(q, k, v, mask, scale)
    if precision not in (None, torch.float32, torch.float64):
        raise ValueError(f"precision is {precision!r}; it must be torch.float32, torch.float64 or None (by the inputs)")
    dtype = precision or torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // max(k.shape[1], 1)
    allowed = mask.materialize(q.shape[-2], k.shape[-2], q.device)
    empty = ~allowed.any(-1)

    with full_precision(q.device):
        queries = q.to(dtype)
        keys, strange_keys = visible_nonfinite(k.to(dtype).repeat_interleave(group, 1), allowed)
        values, strange_values = visible_nonfinite(v.to(dtype).repeat_interleave(group, 1), allowed)

        scores = queries @ keys.mT
        if strange_keys is not None:
            scores = scores + torch.einsum("bhid,bhijd->bhij", queries, strange_keys)
        scores = torch.where(allowed, scores * scale, -math.inf)

        highest = scores.detach().amax(-1) if k.shape[-2] else scores.new_full(scores.shape[:-1], -math.inf)
        empty = empty | (highest == -math.inf)
        highest = torch.where(empty, 0.0, highest)
        weights = torch.exp(scores - highest.unsqueeze(-1))
        total = torch.where(empty, 1.0, weights.sum(-1))
        probabilities = weights / total.unsqueeze(-1)

        out = probabilities @ values
        if strange_values is not None:
            out = out + torch.einsum("bhij,bhijd->bhid", probabilities, strange_values)
        lse = torch.where(empty, -math.inf, highest + total.log())
    return AttentionResult(out if precision else out.to(q.dtype), lse)


def check_problem(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float | None) -> tuple[Mask, float]:
    """The mask and the scale to use, after checking that the inputs fit together; used by every implementation.

    Raises TypeError for something that is not a tensor, Mask or number or has another dtype, ValueError otherwise.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; it must be a torch tensor (batch, heads, length, dim)")
        if x.ndim != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must have 4 axes (batch, heads, length, dim)")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} is {x.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
        if x.dtype != q.dtype:
            raise TypeError(f"q is {q.dtype} but {name} is {x.dtype}; convert one of them, nothing is promoted here")
        if x.device != q.device:
            raise ValueError(f"q is on {q.device} but {name} is on {x.device}; move one of them")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"q has batch {q.shape[0]} but {name} has {x.shape[0]}; expand one of them")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q has head_dim {q.shape[-1]} but k has {k.shape[-1]}; they must be equal (v may differ)")
    if v.shape[1] != k.shape[1]:
        raise ValueError(f"k has {k.shape[1]} heads but v has {v.shape[1]}; they must be equal")
    if v.shape[2] != k.shape[2]:
        raise ValueError(f"k has length {k.shape[2]} but v has {v.shape[2]}; they must be equal")
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(f"q has {heads} heads and k has {kv_heads}; the first must be a multiple of the second")
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; it must be a Mask, such as causal('bottom_right'), or None")
    mask = full() if mask is None else mask
    mask.classify(range(1), range(1), q.shape[2], k.shape[2])  # raises if the mask does not fit these lengths
    if scale is None:
        return mask, 1 / math.sqrt(max(q.shape[-1], 1))  # head_dim 0: every score is 0 whatever the scale
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"scale is a {type(scale).__name__}; it must be a number or None (1/sqrt(head_dim))")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be finite")
    return mask, float(scale)


def check_tile(name: str, size: int) -> None:
    """Raises TypeError or ValueError unless `size`, called `name` by the caller, is a number of rows or columns."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} is a {type(size).__name__}; it must be an int of at least 1")
    if size < 1:
        raise ValueError(f"{name} is {size}; it must be at least 1")


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in the precision of their operands: no autocast, no TF32 or bfloat16 for float32.

    The two torch settings are process-wide: they are changed only when the caller lowered them, and put back.
    """
    parts: list[Any] = [getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)]
    backends = [part for part in parts if hasattr(part, "fp32_precision")]
    if backends:
        lowered = [(b, b.fp32_precision) for b in backends if b.fp32_precision not in ("none", "ieee")]
        for backend, _ in lowered:
            backend.fp32_precision = "ieee"
    else:  # torch < 2.9
        legacy = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if backends:
            for backend, precision in lowered:
                backend.fp32_precision = precision
        else:
            torch.set_float32_matmul_precision(legacy)
