r"""How far a computed sum, dot product or matrix product may be from the exact one, element by element.

Exact means: in real numbers, from the values given. Two bounds come for every result. The *certain* one is a theorem:
a result outside it was not computed as its accumulator says. The *likely* one replaces worst cases by what independent
roundings do; a result outside it is suspicious, but data that makes roundings depend on each other may get there.

The textbook bounds a sum's error by `gamma(n, u)` times the sum of |a_k b_k|, and, likely, by `likely_gamma`, which
grows as sqrt(n) only (Higham and Mary 2019). That holds for any order and any data, and is far off for most. The bounds
here follow the accumulator's own order instead (a running error analysis, Wilkinson 1963), at the cost of a few
evaluations of the product. They rest on these facts about every intermediate result c, of exact value S:

1.  |c| <= min(|S| + T, A). T bounds |c - S| so far. A sums |terms|: what is cut toward zero never grows beyond that;
    other roundings enlarge A by what they may add.
2.  An operation rounds to the spacing q of numbers of that magnitude, among subnormals to theirs, so that it errs by at
    most q/2 to nearest, by less than q otherwise, and underflow needs no term of its own. To nearest, c + x errs by at
    most |x|, because c itself is among the choices: T never outgrows A.
3.  All terms are multiples of some power of two g, and so is every sum of them. q <= g rounds nothing; multiples of g
    lose at most q - g toward zero. Sums that fit, and sums of subnormals, are thus seen to be exact: their bound is 0.
4.  A tensor core cuts every term of a group toward zero to multiples of d = 2^(E-F) (`precision._fused`). A term t of
    lowest bit g_t loses at most min(|t|, d - g_t), and nothing if d <= g_t. E is at most that of the products, which is
    known, or that of |c|, bounded by 1; c itself is cut only where products stand more than F + 1 - bits binades above
    it. The sum, a multiple of d, is then cut to 24 or 14 bits, or rounded to float16, as in 2 and 3.
5.  Kahan's sum is s - e, e the compensation. With y = x - e + d0, s' = s + y + d1, e' = ((s' - s) + d2 - y) + d3,
    s' - e' = (s - e) + x + d0 - d2 - d3: only d0, d2, d3 add up, and e itself is left in the end. To nearest, d2 and d3
    are 0 where |s| >= |y| (Dekker 1971). That is 2u sum|x| + O(n u^2) sum|x| or better, with nothing hidden in the O.

The likely bound is |M| + r + l sqrt(V): errors of mean M (known to r) that lie in intervals of half-widths h, V the sum
of h^2. If, given the roundings before it, every error has the mean assumed, a result is outside with probability 2^-20
at most (Azuma and Hoeffding: l = sqrt(2 ln(2 n / 2^-20)) for n roundings). The means are 0 to nearest, and *where bits
are cut, half the spacing toward zero*: truncation is biased, its errors add up as n, not sqrt(n), and M says so. An x
smaller than the spacing of what it is added to is no matter of chance: it is lost, or counts as one spacing. M says
that, too, so that a sum which stagnates is likely to be as far off as it is.

All is evaluated in float64 and rounded up, by 2^-44 in each step. That a float64 product is taken for the exact one
costs nothing where float64 is exact, and is paid for elsewhere.

Domain: where an operand is NaN or infinite, or an intermediate result might exceed the largest number of its format,
the bounds are inf, which claims nothing. Integers: 0, or inf where the sum may wrap. With a directed rounding, or to
odd, every step may enlarge the sum by its spacing, so that over many steps of few digits T grows as (1 + eps)^n.

Sources: N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., 3.1, 4.2 and 4.3; Higham and Mary, "A
new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019; Connolly, Higham and Mary,
"Stochastic rounding and its probabilistic backward error analysis", SIAM J. Sci. Comput. 43(1), 2021 (martingales).

>>> import numpy as np, precision as P
>>> x = P.round_to(np.random.default_rng(0).random((1, 4096), np.float32), "float8_e4m3fn")
>>> exact = (x.astype(np.float64) ** 2).sum()
>>> for name in ("hopper.cublas.float8_e4m3fn.fast_accum", "hopper.cublas.float8_e4m3fn"):
...     error, bound = P.matmul(x, x.T, accumulator=name).item() - exact, P.bounds.matmul_bound(x, x.T, name)
...     print(f"{error:.3f}: certain {bound.certain.item():.3f}, likely {bound.likely.item():.3f}")
-76.535: certain 161.036, likely 111.214
-0.671: certain 1.330, likely 1.098
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from precision import accumulate, tensor_cores
from precision._array import FLOAT64, LAYOUTS
from precision._growth import UP, Array, Factor, Rule, Sum, compensated, fused
from precision.accumulate import Accumulator
from precision.codec import decode
from precision.formats import FORMATS, AnyFormat, Format, IntFormat, get_format
from precision.policies import Rounding, get_policy, mode_of
from precision.tensor_cores import Instruction, TensorCore

__all__ = ["FAILURE", "Bound", "dot_bound", "gamma", "likely_gamma", "matmul_bound", "sum_bound", "unit_roundoff"]

FAILURE = 2.0**-20
"""The probability with which a likely bound may fail for one result, if its assumption holds."""

_OUTPUTS = 1 << 12  # evaluated together: their state stays in a core's cache
_TERMS = 1 << 20  # of a pairwise sum, held together


class Bound(NamedTuple):
    """Absolute error bounds, float64, shaped as the result: `certain`, and `likely`, which is never larger."""

    certain: Any
    likely: Any


# --- the textbook's ---------------------------------------------------------------------------------------------------


def unit_roundoff(fmt: Format | str, rounding: Rounding | str = "nearest_even") -> float:
    """The largest relative error of one rounding of a normal number: eps/2 to nearest, eps in every other mode.

    Directed and stochastic roundings and `to_odd` may take the farther neighbour. Subnormal numbers err by more.
    Raises TypeError for an integer format, ValueError for an unknown name.
    """
    found = get_format(fmt)
    if not isinstance(found, Format):
        raise TypeError(f"{found.name} is an integer format, which has no unit roundoff: its rounding errs by 0.5 or 1")
    return found.eps / 2 if mode_of(rounding).startswith("nearest") else found.eps


def gamma(n: Any, u: float) -> Any:
    """n u / (1 - n u), which bounds the relative error of n roundings in a row; inf where n u >= 1. (Higham, 3.1)

    A sum of n terms in any order errs by at most gamma(n - 1, u) times the sum of their magnitudes, a dot product by
    gamma(n, u), barring underflow and overflow. `n` is a number or an array of them, and so is the result.
    Raises ValueError for a negative n, and for a u that is not between 0 and 1.
    """
    nu = np.asarray(_count(n) * _roundoff(u))
    with np.errstate(divide="ignore"):
        return _plain(np.where(nu < 1, nu / np.maximum(1 - nu, 0), np.inf))


def likely_gamma(n: Any, u: float, failure: float = FAILURE) -> Any:
    """gamma(n, u) for n roundings whose errors have mean 0 given those before: about sqrt(n) u, at most gamma(n, u).

    exp(l sqrt(n) u + n u^2 / (1 - u)) - 1 with l = sqrt(2 ln(2 n / failure)) / (1 - u): with probability 1 - failure it
    holds for all n products of up to n roundings in an inner product (Higham and Mary 2019, theorems 2.4 and 3.1).
    Rounding to nearest of varied data comes near the assumption, stochastic rounding meets it. *Truncation does not*:
    its errors have one sign and add up as n, and only `gamma` holds. Nor does rounding to nearest in a sum so large
    that terms are lost in it. `sum_bound`, `dot_bound` and `matmul_bound` treat both.
    Raises as `gamma`, and ValueError for a failure that is no probability.
    """
    _real("failure", failure)
    if not 0 < failure < 1:
        raise ValueError(f"failure is {failure!r}; it is a probability, more than 0 and less than 1")
    n, u = _count(n), _roundoff(u)
    sigmas = np.sqrt(2 * np.log(2 * np.maximum(n, 1) / failure)) / (1 - u)
    found = np.expm1(np.minimum(sigmas * np.sqrt(n) * u + n * u * u / (1 - u), 700))
    return _plain(np.minimum(found, gamma(n, u)))


def _plain(x: Array) -> Any:
    return x if x.ndim else x.item()


def _count(n: Any) -> Any:
    given = n
    try:
        n = np.asarray(n, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"n is {given!r}; it counts roundings: a number, or an array of them") from None
    if not (n >= 0).all():
        raise ValueError(f"n is {n}; it counts roundings: 0 or more")
    return n


def _real(what: str, value: Any) -> None:
    if not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{what} is {value!r}; it must be a number, more than 0 and less than 1")


def _roundoff(u: float) -> float:
    _real("u", u)
    if not 0 < u < 1:
        raise ValueError(f"u is {u!r}; a unit roundoff is more than 0 and less than 1: see unit_roundoff(format)")
    return u


# --- the bounds -------------------------------------------------------------------------------------------------------


def sum_bound(x: Any, accumulator: Accumulator | AnyFormat | str, axis: int = -1) -> Bound:
    """Bounds on |P.sum(x, accumulator=accumulator, axis=axis) - the exact sum|, shaped as the sum.

    Arguments, and what is raised for wrong ones, as `sum`. The bounds are NumPy arrays, or tensors on x's device.
    """
    chosen = accumulate._chosen(accumulator)
    if not isinstance(chosen, Accumulator):
        raise TypeError(f"{accumulator!r} is a tensor core, which multiplies: use dot_bound(x, ones, accumulator)")
    xp, (x,) = accumulate._arrays(chosen, x=x)
    return _bound(chosen, xp.moveaxis(x, accumulate._axis(axis, x), -1))


def dot_bound(a: Any, b: Any, accumulator: Accumulator | TensorCore | AnyFormat | str) -> Bound:
    """Bounds on |P.dot(a, b, accumulator=accumulator) - the exact dot product|, shaped as that; as `matmul_bound`."""
    chosen, a, b = _resolved(accumulator, a, b)
    accumulate._check_vectors(a, b)
    return _bound(chosen, a, b)


def matmul_bound(a: Any, b: Any, accumulator: Accumulator | TensorCore | AnyFormat | str) -> Bound:
    """Bounds on |P.matmul(a, b, accumulator=accumulator) - the exact product|, for every element.

    `a` (..., M, K), `b` (..., K, N) and `accumulator` as `matmul`, which also says what is raised for wrong ones. They
    include the rounding of float32 operands to tfloat32 and of a result to another format, where that is part of the
    accumulator. inf where an operand of the row or column is not finite, and where an intermediate result may overflow.
    NumPy arrays, or tensors on a's device; computed on the CPU, in M N K steps of some float64 operations.
    """
    chosen, a, b = _resolved(accumulator, a, b)
    accumulate._check_matrices(a, b)
    return _bound(chosen, a[..., :, None, :], b.swapaxes(-1, -2)[..., None, :, :])


def _resolved(accumulator: Any, a: Any, b: Any) -> tuple[Accumulator | TensorCore, Any, Any]:
    """What `matmul` makes of its arguments."""
    chosen = accumulate._chosen(accumulator)
    if isinstance(chosen, Accumulator):
        return chosen, *accumulate._arrays(chosen, a=a, b=b)[1]
    return chosen, *tensor_cores._same_place(a=a, b=b)


def _bound(chosen: Accumulator | TensorCore, x: Any, y: Any = None) -> Bound:
    """Bounds of the sums over the last axis: of x, or of the products x·y."""
    a = _Operand.of(chosen, 0, x)
    b = _Operand(*2 * (np.ones((1, a.used.shape[-1])),), a.emin) if y is None else _Operand.of(chosen, 1, y)
    n = a.used.shape[-1]
    sigmas = math.sqrt(2 * math.log(2 * (2 * n + 2) / FAILURE))

    def evaluate(a: _Operand, b: _Operand, shape: tuple[int, ...]) -> tuple[Array, Array]:
        if isinstance(chosen, Accumulator):
            policy = get_policy(chosen.policy, chosen.format)
            rule = Rule.of(_float(chosen.format), sigmas, chosen.rounding, policy.subnormals)
            total = _accumulated(chosen, a, b, shape, rule, y is not None and chosen.products == "rounded")
        else:
            row, output = chosen.instruction, chosen.output
            integers = isinstance(row.a, IntFormat)
            total = _integers(row, a, b, shape) if integers else _tensor_core(chosen, a, b, shape, sigmas)
            if output is not None and output != row.accumulator:
                total = total.rounded(Rule.of(output, sigmas), total.unit)
        changed = _change(a, b) if a.changed or b.changed else 0.0
        claimed = np.isfinite(a.given).all(-1) & np.isfinite(b.given).all(-1) & ~np.isnan(total.certain)
        certain = np.where(claimed, (total.certain + changed) * UP, np.inf)
        likely = np.abs(total.mean) + total.radius + sigmas * np.sqrt(total.variance) + changed
        return certain, np.where(np.isfinite(certain), np.fmin(likely * UP, certain), np.inf)

    tree = isinstance(chosen, Accumulator) and chosen.order == "pairwise"
    with np.errstate(all="ignore"):  # infinities and NaN are computed with, on purpose
        bounds = _in_tiles(evaluate, max(1, _TERMS // max(n, 1)) if tree else _OUTPUTS, a, b)
    bounds = [bound.reshape(bound.shape[1:]) for bound in bounds]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        bounds = [torch.from_numpy(bound).to(x.device) for bound in bounds]
    return Bound(*bounds)


def _in_tiles(evaluate: Callable[..., tuple[Array, Array]], limit: int, a: _Operand, b: _Operand) -> list[Array]:
    """`evaluate` of at most `limit` outputs at a time, put together."""
    shape = np.broadcast_shapes(a.used.shape[:-1], b.used.shape[:-1])
    if math.prod(shape) <= limit or max(shape) == 1:
        return [np.broadcast_to(x, shape).copy() for x in evaluate(a, b, shape)]
    axis = int(np.argmax(shape))
    half = shape[axis] // 2
    parts = [
        _in_tiles(evaluate, limit, *(x.part(axis - len(shape) - 1, part) for x in (a, b)))
        for part in (slice(0, half), slice(half, None))
    ]
    return [np.concatenate(pair, axis=axis) for pair in zip(*parts, strict=True)]


# --- operands and formats ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """The values given and, after rounding or flushing, used (0 for what is not finite): float64, (1, ..., terms)."""

    given: Array
    used: Array
    emin: int

    @staticmethod
    def of(chosen: Accumulator | TensorCore, which: int, x: Any) -> _Operand:
        if isinstance(chosen, Accumulator):
            fmt = _float(chosen.format)
            given = used = _float64(x)[None]
            if get_policy(chosen.policy, fmt).subnormals in ("flush_inputs", "flush"):
                used = np.where(np.abs(given) < fmt.smallest_normal, 0.0, given)
            emin = fmt.emin
        else:
            row = chosen.instruction
            operand = (row.a, row.b)[which]
            codes = chosen._operand(x[None], operand, "ab"[which], chosen.rounds_inputs)
            word = FORMATS["float32"] if operand.name == "tfloat32" else operand
            used = _float64(decode(codes, word, "float64"))
            given = _float64(x)[None] if chosen.rounds_inputs else used
            emin = FORMATS["float16"].emin if row.emulated else word.emin if isinstance(word, Format) else 0
        finite = np.isfinite(used)
        if not finite.all():
            given, used = np.where(finite, given, np.nan), np.where(finite, used, 0.0)
        return _Operand(given, used, emin)

    @property
    def changed(self) -> bool:
        return self.given is not self.used

    def part(self, axis: int, which: slice) -> _Operand:
        """Some of the outputs' rows; an axis of one row serves all of them."""
        if self.used.ndim < -axis or self.used.shape[axis] == 1:
            return self
        index = (..., which, *(slice(None),) * (-1 - axis))
        used = self.used[index]
        return _Operand(self.given[index] if self.changed else used, used, self.emin)

    def factor(self, multiple: int = 1, order: list[int] | None = None, ndim: int = 0) -> Factor:
        """Terms first, padded with zeros to a multiple, each of these multiples in `order`; outputs of `ndim` axes."""
        used = self.used.reshape((1,) * (ndim + 1 - self.used.ndim) + self.used.shape)
        value = np.moveaxis(used, -1, 0)
        padding = np.zeros((-len(value) % multiple, *value.shape[1:]))
        value = np.concatenate([value, padding])
        if order is not None:
            value = value[[i + j for i in range(0, len(value), multiple) for j in order]]
        return Factor.of(value, self.emin)


def _float64(x: Any) -> Array:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().cpu()
    if str(x.dtype).removeprefix("torch.") in LAYOUTS:  # float32's subnormals, too, in a process that flushes them
        x = accumulate._as(x, FLOAT64)
    return np.asarray(x).astype(np.float64)


def _float(fmt: AnyFormat | str) -> Format:
    found = get_format(fmt)
    assert isinstance(found, Format)
    return found


# --- orders -----------------------------------------------------------------------------------------------------------


def _accumulated(
    chosen: Accumulator, a: _Operand, b: _Operand, shape: tuple[int, ...], rule: Rule, multiplies: bool
) -> Sum:
    """The sum of the products, in the accumulator's order; the products rounded first if it `multiplies`."""
    n = a.used.shape[-1]
    left, right = a.factor(ndim=len(shape)), b.factor(ndim=len(shape))

    def terms(start: int, stop: int) -> Sum:
        part = slice(start, stop)
        found = Sum.products(left.part(part), right.part(part))
        found = found.map(lambda x: np.broadcast_to(x, (len(x), *shape)).copy())
        if multiplies:
            return found.rounded(rule, found.unit, found.exact)
        found.on_grid = bool((rule.spacing(found.size) <= found.unit).all())
        return found

    def one_by_one(start: int, stop: int) -> Iterator[Sum]:
        held = max(1, _TERMS // 4 // max(1, math.prod(shape)))
        for first in range(start, stop, held):
            some = terms(first, min(first + held, stop))
            yield from (some.part(k) for k in range(len(some.exact)))

    if chosen.order == "kahan":
        return compensated(one_by_one(0, n), shape, rule)
    if chosen.order == "pairwise":
        level = terms(0, n)
        while n > 1:
            even = n - n % 2
            sums = level.part(slice(0, even, 2)).add(level.part(slice(1, even, 2)), rule)
            level = sums.followed_by(level.part(slice(even, None)))
            n = len(level.exact)
        return level.part(0).add(Sum.zero(shape), rule) if n else Sum.zero(shape)
    total = Sum.zero(shape)
    for start in range(0, n, chosen.block or max(n, 1)):
        block = Sum.zero(shape)
        for term in one_by_one(start, min(start + (chosen.block or n), n)):
            block = block.add(term, rule)
        total = total.add(block, rule)
    return total


# --- tensor cores -----------------------------------------------------------------------------------------------------


def _tensor_core(core: TensorCore, a: _Operand, b: _Operand, shape: tuple[int, ...], sigmas: float) -> Sum:
    """A chain of groups, with all that a library does around it."""
    row, k = core.instruction, a.used.shape[-1]
    result, bits = _float(row.accumulator), row.fraction_bits
    assert bits is not None
    nearest = Rule.of(result, sigmas)
    rule = nearest if result.name == "float16" else replace(nearest, bits=row.result_bits, mode="toward_zero")
    order, promote = None, core.promote
    if row.emulated:
        order, promote = sorted(range(row.k), key=lambda k: k % 4 >= 2), row.k
    left, right = (x.factor(row.k, order, len(shape)) for x in (a, b))

    def chain(start: int, stop: int) -> Sum:
        register, c = Sum.zero(shape), Sum.zero(shape)
        for g in range(start, stop, row.group):
            part = slice(g, g + row.group)
            c = fused(c, left.part(part), right.part(part), bits, row.floor, rule)
            if promote is not None and (g + row.group - start) % promote == 0:
                register, c = register.add(c, nearest), Sum.zero(shape)
        return register.add(c, nearest) if promote is not None else c

    k += -k % row.k
    if core.slice_k is None:
        return chain(0, k)
    total = Sum.zero(shape)
    for start in range(0, k, core.slice_k):
        total = total.add(chain(start, min(start + core.slice_k, k)), nearest)
    return total


def _integers(row: Instruction, a: _Operand, b: _Operand, shape: tuple[int, ...]) -> Sum:
    """Exact, unless it wraps or, with saturation, is clamped on the way."""
    total, fmt = Sum.zero(shape), row.accumulator
    total.exact += np.einsum("...k,...k->...", a.used, b.used)
    size = np.einsum("...k,...k->...", np.abs(a.used), np.abs(b.used))
    fits = size <= fmt.max if row.saturates else (total.exact >= fmt.min) & (total.exact <= fmt.max)
    total.size, total.certain, total.unit = np.abs(total.exact), np.where(fits, 0.0, np.inf), np.ones(shape)
    return total


def _change(a: _Operand, b: _Operand) -> Array:
    """|used - given| of the exact sums of products, at most."""
    given = [np.where(np.isfinite(x.given), x.given, 0.0) for x in (a, b)]
    parts = (a.used - given[0], b.used), (given[0], b.used - given[1])
    total, size = (sum(np.einsum("...k,...k->...", f(x), f(y)) for x, y in parts) for f in (np.positive, np.abs))
    found: Array = np.abs(total) + size * (a.used.shape[-1] + 4) * 2.0**-52
    return found
