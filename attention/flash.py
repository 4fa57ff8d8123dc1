"""Tiled attention with an online softmax: never holds more than one tile of the score matrix.

For one tile of queries, going over the tiles of keys, it keeps for every row the largest score m seen so far, the sum
l of exp(score - m), and the unnormalised output a; a tile that raises m first rescales l and a by exp(old m - new m).
The result is a / l and m + log l.

Source: Milakov & Gimelshein 2018 (arXiv 1805.02867), the online normaliser; Dao et al. 2022 and 2023 (arXiv 2205.14135,
2307.08691), its use in tiles with the division at the end.

>>> import torch
>>> from attention.flash import flash_attention
>>> q = k = torch.eye(4).reshape(1, 1, 4, 4) * 1000
>>> bool((flash_attention(q, k, k, tile_q=3, tile_k=2).out == k).all())
True
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention.masks import Mask, visible_nonfinite
from attention.reference import AttentionResult, check_problem, check_tile, full_precision

__all__ = ["flash_attention"]

IMPLEMENTATIONS = ("eager",)


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    tile_q: int = 64,
    tile_k: int = 64,
    implementation: str = "eager",
) -> AttentionResult:
    """Attention tile by tile, as FlashAttention computes it; forward only.

    Shapes, `mask`, `scale` and what NaN, Inf, subnormals and overflow do are those of `standard_attention`. Keys and
    values shared by a group of query heads are repeated one tile at a time only. Tiles hold `tile_q` queries and
    `tile_k` keys, the last ones fewer; neither has to divide anything. Tiles the mask rules out are skipped.

    Numbers: scores, exponentials, l and a are float32 for float16, bfloat16 and float32 inputs (which convert exactly)
    and float64 for float64. The probabilities enter l as they are and are rounded (nearest even) to the dtype of the
    inputs before they multiply the values, as in FlashAttention; `out` is rounded once more at the end.
    `error_bound(..., tile_k=tile_k)` bounds the error of exactly this. The bits depend on `tile_k` (within twice that
    bound), but, the sign of a zero aside, not on keys that a query may not see, nor on repeating shared heads.

    Raises ValueError for a tensor that requires grad while autograd is recording (there is no backward yet:
    `standard_attention` has one), for tile sizes below 1 and for an unknown implementation; otherwise as
    `standard_attention` does.
    """
    mask, scale = check_problem(q, k, v, mask, scale)
    check_tile("tile_q", tile_q)
    check_tile("tile_k", tile_k)
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; it must be one of {', '.join(IMPLEMENTATIONS)}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "flash_attention has no backward yet and an input requires grad: use standard_attention, which autograd "
            "differentiates, or call this under torch.no_grad()"
        )
    with full_precision(q.device):
        return _eager(q, k, v, mask, scale, tile_q, tile_k)


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, tile_q: int, tile_k: int) -> AttentionResult:
    batch, heads, n_queries, _ = q.shape
    kv_heads, n_keys, value_dim = v.shape[1:]
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty(batch, heads, n_queries, value_dim)
    lse = q.new_empty(batch, heads, n_queries, dtype=dtype)
    values_finite = bool(v.isfinite().all())

    def for_every_head(tile: Tensor) -> Tensor:
        """A tile of keys or values in the dtype of the computation, shared heads repeated."""
        return tile.to(dtype).repeat_interleave(heads // max(kv_heads, 1), 1)

    for q_start in range(0, n_queries, tile_q):
        rows = range(q_start, min(q_start + tile_q, n_queries))
        queries = q[:, :, q_start : rows.stop].to(dtype)
        highest = queries.new_full(queries.shape[:-1], -math.inf)
        total = torch.zeros_like(highest)
        accumulated = queries.new_zeros(*highest.shape, value_dim)

        for k_start in range(0, n_keys, tile_k):
            columns = range(k_start, min(k_start + tile_k, n_keys))
            kind = mask.classify(rows, columns, n_queries, n_keys)
            if kind == "empty":
                continue
            keys = for_every_head(k[:, :, k_start : columns.stop])
            values, strange = for_every_head(v[:, :, k_start : columns.stop]), None
            scores = (queries @ keys.mT) * scale
            if kind == "partial":
                i = torch.arange(rows.start, rows.stop, device=q.device).unsqueeze(-1)
                j = torch.arange(columns.start, columns.stop, device=q.device)
                allowed = mask.allowed(i, j, n_queries, n_keys)
                scores = torch.where(allowed, scores, -math.inf)
                if not values_finite:
                    values, strange = visible_nonfinite(values, allowed)

            new_highest = torch.maximum(highest, scores.amax(-1))
            # A row that has seen no key yet: subtract 0, so that exp gives 0 and not exp(-inf + inf) = NaN.
            shift = torch.where(new_highest == -math.inf, 0.0, new_highest)
            weights = torch.exp(scores - shift.unsqueeze(-1))
            rescale = torch.exp(highest - shift)
            total = rescale * total + weights.sum(-1)
            weights = weights.to(q.dtype).to(dtype)
            accumulated = rescale.unsqueeze(-1) * accumulated + weights @ values
            if strange is not None:
                accumulated = accumulated + torch.einsum("bhij,bhijd->bhid", weights, strange)
            highest = new_highest

        out[:, :, q_start : rows.stop] = accumulated / torch.where(total == 0, 1.0, total).unsqueeze(-1)
        lse[:, :, q_start : rows.stop] = highest + total.log()  # an empty row: -inf + log 0 = -inf
    return AttentionResult(out, lse)
