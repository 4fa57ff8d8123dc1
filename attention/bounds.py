r"""How far an attention output and its log-sum-exp may be from the exact ones, element by element, proven.

Exact means: computed in real numbers from the stored inputs. Two bounds are given. The *certain* one is a theorem about
any order of summation and any rounding errors within the model below; a result outside it is wrong. The *likely* one
replaces worst cases by five standard deviations of independent roundings (Higham & Mary 2019, doi 10.1137/18M1226312);
a result outside it is suspicious, and data that makes the roundings dependent (equal queries, say) may exceed it.

The computation that is judged takes the inputs exactly to an accumulation format of unit roundoff u (float32: 2^-24,
float64: 2^-53), computes scores and exponentials there, subtracting some running maximum in up to T tiles of keys,
rounds the probabilities to the input format (unit roundoff u_P; 0 if that is the accumulation format), sums them
unrounded, multiplies the rounded ones with the values, accumulates with u, divides, and rounds to the output format.

Notation, for one query i, its allowed keys j = 1..n and value column c. gamma_k = k u / (1 - k u) bounds k roundings in
a row; s score, m largest score, w softmax weight, o exact output, l exact log-sum-exp, Z = sum_j exp(s_j - m) >= 1,
sigma the scale, d the head dim, t the error of one operation that underflows (half the smallest subnormal; the smallest
normal number where subnormals may be flushed).

1.  Score:  delta_j = |sigma| gamma_d (1+4u) sum_c|q_c k_jc| + t (|sigma| sum_c(|q_c|+|k_jc|+1) + sum_c|q_c k_jc| + 1).
    Each product meets at most d roundings in any order of summation; d + 4 where q and k may be scaled beforehand.
2.  Exponent, in nats:  theta_j = delta_j + 4u|s_j| + u (m - s_j + 2 max delta) + 4 (1+T) u.
    4u|s|: rounding sigma and its product, also with log2(e) folded in. The subtraction of the maximum rounds by
    u (m' - s_j); the rescalings telescope: rounding m'-m'' in each adds up to u (m - s_j) whatever the number of tiles.
    Each of the own exponential and at most T rescaling ones errs by 4u: 2 ulp, argument included.
3.  Weights off by factors exp(+-theta) move the quotient sum(w v)/sum(w) by at most
      C = sum_j w_j (exp theta_j - 1) |v_jc - o_c| / D,   D = sum_j w_j exp(-theta_j),
    and no further than the farthest allowed value from o. They enter centred on o: constant values cost nothing.
4.  Roundings of the sums and of the probabilities enter uncentred; a term meets h = min(tile_k, n) + 2T of them, where
    T counts tiles with a visible key, and h = n + 2T, T = keys/16 + 2, where the order of summation is unknown:
      kappa = u_P + gamma_h (1 + u_P),   A = sum_j w_j exp(theta_j) |v_jc| / D <= max_j |v_jc|.
5.  Underflow, in units in which the largest weight is 1, over the computed sum Z' = max(1, Z D exp(-max theta)):
      U = ((eta_P/2 + T 2^-126) sum_j|v_jc| + 2 h t) / Z' + 2t,   eta_P smallest subnormal of the P format.
6.  E = (C + kappa A + U + gamma_h (|o| + C)) / (1 - gamma_h), then division: E += 2u (1+u) (|o| + E), and the output:
      **|out - o| <= E + u_io (|o| + E) + eta_io/2.**
7.  **|lse - l| <= sum_j w_j (exp theta_j - 1)/D + gamma_h/(1 - gamma_h) + 3u (1+u) (|l| + |m| + |log Z| + 1).**

Domain: finite inputs, sum|q k| and sum|v| below half the largest accumulator, |s| < 2^127 ln 2 (2^1023 ln 2), |o| + E
within the output format. Outside it the bound is +inf, which claims nothing; the NaN and Inf rules of the
implementation hold there. A row that sees no key has bound 0: out 0 and lse -inf are exact.

Derivation: error analysis of softmax quotients, with N. J. Higham, *Accuracy and Stability of Numerical Algorithms*,
2nd ed., chapter 3 for gamma_k; the rounding of probabilities as a bias: arXiv 2510.04212.

>>> import torch
>>> from attention.bounds import error_bound
>>> x = torch.ones(1, 1, 3, 2)
>>> bound = error_bound(x, x, x)
>>> bound.certain.out.shape, bool((bound.certain.out < 1e-5).all())
(torch.Size([1, 1, 3, 2]), True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attention.masks import Mask
from attention.reference import check_problem, check_tile, full_precision

__all__ = ["Bounds", "ErrorBound", "error_bound"]

_EXP_ERROR = 4.0  # of one exponential, in units of u
_LAMBDA = 5.0  # standard deviations of the likely bound
_ELEMENTS = 1 << 21  # of the (queries, keys, value_dim) array held at once


class Bounds(NamedTuple):
    """Absolute error bounds in float64: `out` shaped as the output, `lse` as the log-sum-exp."""

    out: Tensor
    lse: Tensor


class ErrorBound(NamedTuple):
    """`certain`: never exceeded by a correct implementation. `likely`: exceeded by dependent roundings only."""

    certain: Bounds
    likely: Bounds


def error_bound(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    tile_k: int | None = None,
) -> ErrorBound:
    """Bounds on |computed - exact| for every element of out and lse, for attention of these stored inputs.

    `q`, `k`, `v`, `mask` and `scale` as in `standard_attention`; their dtype is also that of the output. `tile_k` None
    judges an unknown implementation: any order of summation, tiles of 16 keys or more, the scale applied to q and k
    beforehand or not, probabilities rounded or not, subnormals kept or flushed, u doubled for 16-bit inputs, as some
    accumulators cut off instead of rounding; but not a lower precision (TF32 for float32, scores stored in bfloat16).
    `tile_k=n` judges `flash_attention` with that tile size, whose chains of roundings are known, which is tighter;
    subnormals must not be flushed.

    Computed in float64 and enlarged by 2^-20 of itself to pay for that. Comparing with a result computed in float64,
    not in real numbers, costs nothing for inputs of 32 bits or fewer and a second bound for float64 inputs. +inf where
    nothing is claimed (see Domain in the module docstring), 0 for rows that see no key.

    Raises as `standard_attention`; ValueError for a tile size below 1.
    """
    mask, scale = check_problem(q, k, v, mask, scale)
    if tile_k is not None:
        check_tile("tile_k", tile_k)
        tile_k = min(tile_k, max(k.shape[-2], 1))
    allowed = mask.materialize(q.shape[2], k.shape[2], q.device)
    arithmetic = _Arithmetic.of(q, allowed, tile_k)
    group = q.shape[1] // max(k.shape[1], 1)
    q, k, v = (x.detach().double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))

    batch, heads, n_queries, _ = q.shape
    n_keys, value_dim = v.shape[2:]
    shape = (batch, heads, n_queries)
    result = ErrorBound(*(Bounds(q.new_zeros(*shape, value_dim), q.new_zeros(shape)) for _ in ErrorBound._fields))
    if n_keys == 0:
        return result
    rows = max(1, _ELEMENTS // max(1, batch * heads * n_keys * value_dim))
    with full_precision(q.device), torch.no_grad():
        for start in range(0, n_queries, rows):
            part = slice(start, start + rows)
            bounds = _bound_rows(q[:, :, part], k, v, allowed[part], scale, arithmetic.rows(part))
            for whole, piece in zip(result, bounds, strict=True):
                whole.out[:, :, part], whole.lse[:, :, part] = piece
    return result


@dataclass(frozen=True)
class _Arithmetic:
    """What the bound knows about a computation; tensors have one entry per query, shape (queries, 1)."""

    u: float  # unit roundoff of scores, exponentials and sums
    t: float  # error of one of their operations that underflows
    flushed: float  # error of an exponential that underflows: the smallest normal number, as some exp flush
    largest: float  # finite number of the accumulation format
    u_p: float  # unit roundoff of the rounding of probabilities
    eta_p: float  # and the smallest subnormal of the format they are rounded to
    u_out: float
    eta_out: float
    largest_out: float
    score_chain: int  # roundings that one product in q . k may meet
    tiles: Tensor  # T
    exponentials: Tensor  # that one weight may be multiplied from: its own and the rescalings
    chain: Tensor  # h

    @staticmethod
    def of(q: Tensor, allowed: Tensor, tile_k: int | None) -> _Arithmetic:
        accumulator = torch.finfo(torch.promote_types(q.dtype, torch.float32))
        io = torch.finfo(q.dtype)
        rounds_p = io.bits < accumulator.bits
        n_keys = allowed.shape[-1]
        n = allowed.sum(-1, keepdim=True).double()
        if tile_k is None:
            # Tiles of at least 16 keys, one more for a split of the keys. A tile of b keys has chains of b roundings,
            # and b + 2 ceil(n/b) <= n + 2 ceil(n/16): n covers every order of summation in such tiles.
            tiles = torch.minimum(n, torch.full_like(n, n_keys // 16 + 2))
            chain, exponentials = n + 2 * tiles, tiles + 1
        else:
            # A tile without an allowed key adds exact zeros and rescales by exp(0) = 1, so it does not count.
            padded = torch.nn.functional.pad(allowed, (0, -n_keys % tile_k))
            in_tiles = padded.reshape(allowed.shape[0], -(-n_keys // tile_k), tile_k)
            tiles = in_tiles.any(-1).sum(-1, keepdim=True).double()
            chain, exponentials = n.clamp(max=tile_k) + 2 * tiles, tiles
        return _Arithmetic(
            # Tensor cores cut low bits off when they accumulate 16-bit products in float32 (observed on H200).
            u=accumulator.eps / 2 * (2 if tile_k is None and rounds_p else 1),
            t=accumulator.smallest_normal * (1.0 if tile_k is None else accumulator.eps),
            flushed=accumulator.smallest_normal,
            largest=accumulator.max,
            u_p=io.eps / 2 if rounds_p else 0.0,
            eta_p=io.smallest_normal * io.eps if rounds_p else 0.0,
            u_out=io.eps / 2,
            eta_out=io.smallest_normal * io.eps,
            largest_out=io.max,
            score_chain=q.shape[-1] + (4 if tile_k is None else 0),  # 4: sqrt(scale) applied to q and to k beforehand
            tiles=tiles,
            exponentials=exponentials,
            chain=chain,
        )

    def rows(self, part: slice) -> _Arithmetic:
        """The same for some of the queries."""
        return replace(self, tiles=self.tiles[part], exponentials=self.exponentials[part], chain=self.chain[part])

    def gamma(self, roundings: Tensor, likely: bool) -> Tensor:
        """The relative error of that many roundings in a row; +inf where they are too many to say."""
        ku = roundings * self.u
        worst = torch.where(ku < 1, ku / (1 - ku), math.inf)
        if not likely:
            return worst
        return torch.minimum(worst, torch.expm1(_LAMBDA * roundings.sqrt() * self.u + ku * self.u / (1 - self.u)))


def _bound_rows(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, a: _Arithmetic) -> ErrorBound:
    """Both bounds for some queries against all keys (at least one): the formulas of the module docstring in order."""
    # What is outside the domain is computed with zeros in its place and claimed nothing in the end.
    strange_row = ~q.isfinite().all(-1, keepdim=True) | (allowed & ~k.isfinite().all(-1).unsqueeze(-2)).any(-1, True)
    seen = allowed.double()
    strange_out = (seen @ (~v.isfinite()).double() > 0) | strange_row
    q, k, v = (torch.where(x.isfinite(), x, 0.0) for x in (q, k, v))

    sigma, u = abs(scale), a.u
    size = torch.where(allowed, q.abs() @ k.abs().mT, 0.0)  # sum_c |q_c k_jc|
    parts = torch.where(allowed, q.abs().sum(-1, True) + k.abs().sum(-1).unsqueeze(-2) + q.shape[-1], 0.0)
    s = (q @ k.mT) * scale
    highest = torch.where(allowed, s, -math.inf).amax(-1, True)
    empty = highest == -math.inf
    highest = torch.where(empty, 0.0, highest)
    s = torch.where(allowed, s, highest)  # any finite value: its weight is zero
    e = torch.where(allowed, torch.exp(s - highest), 0.0)
    z = torch.where(empty, 1.0, e.sum(-1, True))
    w = e / z
    o = w @ v
    seen_v = seen @ v.abs()  # sum_j |v_jc|
    strange_row = strange_row | ~((size < a.largest / 2) & (sigma * size < a.largest * math.log(2) / 2)).all(-1, True)
    strange_out = strange_out | strange_row | ~(seen_v < a.largest / 2)
    distance = (v.unsqueeze(-3) - o.unsqueeze(-2)).abs()  # (..., queries, keys, value_dim)
    squared = distance.square()

    def bounds(likely: bool) -> Bounds:
        score_gamma = a.gamma(q.new_tensor(float(a.score_chain)), likely)
        delta = sigma * score_gamma * (1 + 4 * u) * size + a.t * (sigma * parts + size + 1)
        own = delta + u * (highest - s + 2 * delta.amax(-1, True)) + 3 * u * s.abs() + _EXP_ERROR * u
        # The rounding of the scale and the rescaling exponentials are the same for several keys.
        theta = own + u * s.abs() + _EXP_ERROR * (a.exponentials - 1) * u
        worst_theta = theta.amax(-1, True)
        # w (exp theta - 1), also where w underflows or exp theta overflows float64.
        far = torch.where(allowed, torch.exp(s - highest + theta), 0.0) / z
        grown = torch.where(theta < 1, w * torch.expm1(theta), far)
        d = (w * torch.exp(-theta)).sum(-1, True)
        gamma_h = a.gamma(a.chain, likely)

        c = _weighted(grown, distance)
        lse = grown.sum(-1, True)
        p_error = a.u_p * ((w + grown) @ v.abs())
        if likely:
            # Errors of each key's own roundings add in quadrature, those shared by several keys do not.
            own = torch.where(theta < 1, w * torch.expm1(own), 0.0)
            spread = _LAMBDA / math.sqrt(3)
            c = torch.minimum(c, _weighted(grown - own, distance) + spread * _weighted(own.square(), squared).sqrt())
            lse = torch.minimum(lse, (grown - own).sum(-1, True) + spread * own.square().sum(-1, True).sqrt())
            p_error = torch.minimum(p_error, a.u_p * spread * ((w + grown).square() @ v.square()).sqrt())
        c, p_error, size_o = c / d, p_error / d, ((w + grown) @ v.abs()) / d
        if bool((worst_theta >= 1).any()):  # the exponents may be off by anything: out is still among the values
            farthest = torch.where(allowed.unsqueeze(-1), distance, 0.0).amax(-2)
            c, size_o = torch.fmin(c, farthest), torch.fmin(size_o, o.abs() + farthest)
            p_error = torch.fmin(p_error, a.u_p * size_o)
        underflow = (a.eta_p / 2 + a.exponentials * a.flushed) * seen_v + 2 * a.chain * a.t
        underflow = underflow / (z * d * torch.exp(-worst_theta)).clamp(min=1) + 2 * a.t
        error = c + p_error + gamma_h * (1 + a.u_p) * size_o + underflow + gamma_h * (o.abs() + c)
        error = torch.where(gamma_h < 1, error / (1 - gamma_h), math.inf)
        error = error + 2 * u * (1 + u) * (o.abs() + error)
        claimed = ~strange_out & (o.abs() + error <= a.largest_out)
        out = error + a.u_out * (o.abs() + error) + a.eta_out / 2

        lse = torch.fmin(lse / d, worst_theta) + torch.where(gamma_h < 1, gamma_h / (1 - gamma_h), math.inf)
        log_z = z.log()
        lse = lse + 3 * u * (1 + u) * ((highest + log_z).abs() + highest.abs() + log_z + 1)
        inflate = 1 + 2.0**-20
        out = torch.where(empty, 0.0, torch.where(claimed, out * inflate, math.inf))
        lse = torch.where(empty, 0.0, torch.where(strange_row, math.inf, lse * inflate))
        return Bounds(out, lse.squeeze(-1))

    certain, likely = bounds(likely=False), bounds(likely=True)
    return ErrorBound(certain, Bounds(*(torch.minimum(a, b) for a, b in zip(certain, likely, strict=True))))


def _weighted(weights: Tensor, x: Tensor) -> Tensor:
    """sum_j weights[i, j] x[i, j, c]."""
    return (weights.unsqueeze(-2) @ x).squeeze(-2)
