"""Sums, dot products and matrix products with a chosen accumulator: what it rounds, and in which order it adds.

An `Accumulator` is a format and an order; every step is one correctly rounded operation of `arithmetic`. A tensor
core (`tensor_cores`) is chosen by its name instead. Nothing is reordered for speed, so results have the same bits
everywhere.

Orders, for terms t0 t1 … (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.1-4.3):

sequential  ((0 + t0) + t1) + …
pairwise    neighbours are added, then neighbours of these sums, and so on; what has no neighbour waits a level
blocked     sequential sums of `block` terms each, and these added in sequence (a "promotion interval")
kahan       compensated: y = t - c; s' = s + y; c = (s' - s) - y, each operation rounded

>>> import numpy as np, precision as P
>>> ones = np.ones(5120, np.float32)
>>> P.sum(ones, accumulator="bfloat16"), P.sum(ones, accumulator=P.Accumulator("bfloat16", order="pairwise"))
(array(256., dtype=float32), array(5120., dtype=float32))
>>> a = np.float32([[2**12, 1, 1, 1]])
>>> [P.matmul(x, x.T, accumulator="float32").item() for x in (a, a[:, ::-1])]
[16777216.0, 16777220.0]
"""

from __future__ import annotations

import difflib
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import numpy as np

from precision import _engine, _instructions, _patterns, arithmetic, codec
from precision._array import FLOAT32, FLOAT64, Layout
from precision.formats import FORMATS, AnyFormat, Format, get_format
from precision.policies import ROUNDINGS, Policy, get_policy, mode_of

__all__ = ["Accumulator", "dot", "matmul", "sum"]

ORDERS = ("sequential", "pairwise", "blocked", "kahan")
TILE = 1 << 22  # products that a pairwise or compensated matmul holds at a time


@dataclass(frozen=True)
class Accumulator:
    """How terms are added: the format of every intermediate result, and the order.

    format    a floating-point format or its name
    order     "sequential", "pairwise", "blocked" (with `block`, the number of terms of a block) or "kahan"
    products  of `dot` and `matmul`: "rounded" to the format before they are added, or "exact": each step of a
              sequential or blocked order is a fused multiply-add, rounded once
    rounding  one of `ROUNDINGS`, of every operation; stochastic rounding has its bits per operation and is refused
    policy    of every operation: overflow, NaN, subnormals

    Raises ValueError for other names, a block without order="blocked" or the reverse, and exact products in another
    order; TypeError for an integer format.
    """

    format: Format | str
    order: Literal["sequential", "pairwise", "blocked", "kahan"] = "sequential"
    block: int | None = None
    products: Literal["rounded", "exact"] = "rounded"
    rounding: str = "nearest_even"
    policy: Policy | str = "ieee"

    def __post_init__(self) -> None:
        fmt = get_format(self.format)
        if not isinstance(fmt, Format):
            raise TypeError(f"{fmt.name} is an integer format; integer sums are those of tensor_cores, or NumPy's own")
        object.__setattr__(self, "format", fmt)  # a name, resolved
        get_policy(self.policy, fmt)
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; it must be one of {', '.join(ORDERS)}")
        if mode_of(self.rounding) not in ROUNDINGS:
            raise ValueError(f"an accumulator's rounding is one of {', '.join(ROUNDINGS)}: stochastic ones need bits")
        if self.products not in ("rounded", "exact"):
            raise ValueError(f"products is {self.products!r}; it must be 'rounded' or 'exact'")
        if self.products == "exact" and self.order not in ("sequential", "blocked"):
            raise ValueError(
                f"products='exact' is a chain of fused multiply-adds, which order={self.order!r} is not: use "
                "order='sequential' or 'blocked', or products='rounded'"
            )
        if self.block is not None and hasattr(self.block, "__index__") and not isinstance(self.block, bool):
            object.__setattr__(self, "block", index(self.block))  # of NumPy's integers, too
        is_count = isinstance(self.block, int) and not isinstance(self.block, bool) and self.block >= 1
        if (self.order == "blocked") != is_count or not (self.block is None or is_count):
            raise ValueError(
                f"order={self.order!r} with block={self.block!r}: order='blocked' takes a block of at least 1 term, "
                "and no other order takes one"
            )

    def rounded(self, operation: Callable[..., Any], *operands: Any) -> Any:
        """The operation of `arithmetic` on values, rounded as this accumulator does."""
        return operation(*operands, self.format, rounding=self.rounding, policy=self.policy)


def sum(x: Any, *, accumulator: Accumulator | AnyFormat | str, axis: int = -1) -> Any:
    """The sum along an axis, every addition rounded by the accumulator.

    `x` is a NumPy array or torch tensor of float16, bfloat16, float32 or float64 with at least one dimension; its
    values are added as they are, whether or not the accumulator's format has them. The result has the dtype that holds
    both x's values and the format's, and the shape without that axis. A sum starts from +0, so an empty one, and one
    of -0 alone, is +0. NaN, infinities, overflow and subnormals as `add` under the accumulator's policy.
    Time is one array operation for each term; terms along other axes go together.

    Raises TypeError for other dtypes, for a tensor core (it only multiplies) and for an axis that is no int; ValueError
    for an axis out of range.
    """
    chosen = _chosen(accumulator)
    if not isinstance(chosen, Accumulator):
        raise TypeError(f"{accumulator!r} is a tensor core, which multiplies: use dot(x, ones, accumulator=...)")
    xp, (x,) = _arrays(chosen, x=x)
    return _added(chosen, xp.moveaxis(x, _axis(axis, x), -1), xp)


def _axis(axis: Any, x: Any) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis is {axis!r}; it must be an int: a sum goes along one dimension, x.reshape(-1) joins all")
    found: int = index(axis)
    if x.ndim == 0 or not -x.ndim <= found < x.ndim:
        raise ValueError(f"axis is {found}, and x has {x.ndim} dimensions: a sum goes along one of them")
    return found


def dot(a: Any, b: Any, *, accumulator: Accumulator | AnyFormat | str) -> Any:
    """The dot product along the last axis, (..., n) and (..., n) -> (...), with a chosen accumulator.

    As `matmul`, for vectors: leading dimensions broadcast.
    """
    chosen = _chosen(accumulator)
    xp, (a, b) = _arrays(chosen, a=a, b=b)
    _check_vectors(a, b)
    if not isinstance(chosen, Accumulator):
        return chosen.matmul(a[..., None, :], b[..., :, None])[..., 0, 0]
    return _multiplied(chosen, a, b, xp)


def _check_vectors(a: Any, b: Any) -> None:
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: the last dimensions must be equal")
    _check_leading(a, b, 1)


def _check_matrices(a: Any, b: Any) -> None:
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: a matrix product takes (..., M, K) by (..., K, N)"
        )
    _check_leading(a, b, 2)


def _check_leading(a: Any, b: Any, last: int) -> None:
    try:
        np.broadcast_shapes(tuple(a.shape[:-last]), tuple(b.shape[:-last]))
    except ValueError:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: leading dimensions do not broadcast, "
            f"{tuple(a.shape[:-last])} and {tuple(b.shape[:-last])}"
        ) from None


def matmul(a: Any, b: Any, *, accumulator: Accumulator | AnyFormat | str) -> Any:
    """The matrix product (..., M, K) by (..., K, N) -> (..., M, N), with a chosen accumulator.

    `accumulator` is an `Accumulator`, a format (its sequential one, products rounded) or the name of a tensor core
    ("hopper.wgmma.bfloat16", `tensor_cores.accumulators()` lists them), whose operands must be values of its formats.
    Operands are NumPy arrays or torch tensors (one library, one device) of float16, bfloat16, float32 or float64;
    leading dimensions broadcast. The result has the dtype that holds the operands' values and the format's; K = 0 gives
    +0. NaN, infinities, overflow and subnormals as `fma` and `add` under the accumulator's policy.

    Raises ValueError for shapes that do not multiply and unknown names (saying what was meant); TypeError for other
    dtypes and for operands of several libraries.
    """
    chosen = _chosen(accumulator)
    if not isinstance(chosen, Accumulator):
        return chosen.matmul(a, b)
    xp, (a, b) = _arrays(chosen, a=a, b=b)
    _check_matrices(a, b)
    left, right = a[..., :, None, :], xp.swapaxes(b, -1, -2)[..., None, :, :]
    if chosen.order in ("sequential", "blocked"):
        return _multiplied(chosen, left, right, xp)
    batch = math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    rows = max(1, TILE // max(1, batch * b.shape[-1] * b.shape[-2]))
    parts = [_multiplied(chosen, left[..., i : i + rows, :, :], right, xp) for i in range(0, a.shape[-2] or 1, rows)]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=-2)


def _chosen(accumulator: Any) -> Any:
    """An `Accumulator`, or a `TensorCore`."""
    if isinstance(accumulator, Accumulator):
        return accumulator
    if hasattr(accumulator, "matmul"):
        return accumulator
    if isinstance(accumulator, str) and accumulator not in FORMATS:
        from precision import tensor_cores

        if _instructions.find_architecture(accumulator.partition(".")[0]):
            return tensor_cores.get_accumulator(accumulator)
        try:
            get_format(accumulator)  # an alias
        except ValueError as error:
            if "ambiguous" in str(error):
                raise
            close = difflib.get_close_matches(accumulator.lower(), [*FORMATS, *tensor_cores.accumulators()], 3)
            meant = f"did you mean {' or '.join(close)}? " if close else ""
            raise ValueError(
                f"unknown accumulator {accumulator!r}: {meant}A format's name (P.formats()), a tensor core's "
                "(P.tensor_cores.accumulators()) or P.Accumulator(...) is allowed"
            ) from None
    return Accumulator(accumulator)


def _arrays(accumulator: Any, **operands: Any) -> tuple[Any, list[Any]]:
    """The library, and the operands; for an `Accumulator` in the dtype that holds their values and the format's."""
    torch = sys.modules.get("torch")
    tensors = [torch is not None and isinstance(x, torch.Tensor) for x in operands.values()]
    if any(tensors) and not all(tensors):
        kinds = ", ".join(f"{name} is a {type(x).__name__}" for name, x in operands.items())
        raise TypeError(f"operands are of several libraries: {kinds}; pass NumPy arrays only, or tensors only")
    for name, x in operands.items():
        if any(tensors):
            _engine.check_dense(x, name)
        _engine.check_unmasked(x, name)
    xp: Any = torch if any(tensors) else np
    arrays = [x if any(tensors) else np.asarray(x) for x in operands.values()]
    if not isinstance(accumulator, Accumulator):
        return xp, arrays
    layout = arithmetic._common_layout([str(x.dtype).removeprefix("torch.") for x in arrays])
    if not _patterns.holds(layout, accumulator.format):  # type: ignore[arg-type]
        layout = FLOAT32 if layout.bits == 16 and _patterns.holds(FLOAT32, accumulator.format) else FLOAT64  # type: ignore[arg-type]
    return xp, [_as(x, layout) for x in arrays]


def _as(x: Any, layout: Layout) -> Any:
    """The array in a dtype that holds its values: by their bits, whatever the processor does to subnormals."""
    name = str(x.dtype).removeprefix("torch.")
    return x if name == layout.name else codec.decode(codec.encode(x, name, policy="ieee"), name, layout.name)


def _zeros(shape: Any, like: Any, xp: Any) -> Any:
    return np.zeros(shape, like.dtype) if xp is np else xp.zeros(shape, dtype=like.dtype, device=like.device)


def _multiplied(accumulator: Accumulator, a: Any, b: Any, xp: Any) -> Any:
    """The sums over the last axis of a * b, which broadcast."""
    step = accumulator.rounded
    if accumulator.order in ("pairwise", "kahan"):
        return _added(accumulator, step(arithmetic.mul, a, b), xp)
    n = a.shape[-1]
    zero = _zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), a, xp)

    def more(total: Any, k: int) -> Any:
        if accumulator.products == "exact":
            return step(arithmetic.fma, a[..., k], b[..., k], total)
        return step(arithmetic.add, total, step(arithmetic.mul, a[..., k], b[..., k]))

    return _in_blocks(accumulator, zero, n, more)


def _in_blocks(accumulator: Accumulator, zero: Any, n: int, more: Callable[[Any, int], Any]) -> Any:
    """n terms, each added to a running total by `more`; a total for each block if the order says so."""
    if accumulator.block is None:
        return functools.reduce(more, range(n), zero)
    total = zero
    for start in range(0, n, accumulator.block):
        block = functools.reduce(more, range(start, min(start + accumulator.block, n)), zero)
        total = accumulator.rounded(arithmetic.add, total, block)
    return total


def _added(accumulator: Accumulator, x: Any, xp: Any) -> Any:
    """The sums over the last axis."""
    step, n = accumulator.rounded, x.shape[-1]
    zero = _zeros(x.shape[:-1], x, xp)
    if accumulator.order == "pairwise":
        while n > 1:
            waits = x[..., n - n % 2 :]
            x = step(arithmetic.add, x[..., 0 : n - 1 : 2], x[..., 1::2])
            x = xp.concatenate([x, waits], axis=-1) if n % 2 else x
            n = x.shape[-1]
        return step(arithmetic.add, x[..., 0], zero) if n else zero
    if accumulator.order == "kahan":
        total, lost = zero, zero
        for k in range(n):
            term = step(arithmetic.sub, x[..., k], lost)
            after = step(arithmetic.add, total, term)
            lost = step(arithmetic.sub, step(arithmetic.sub, after, total), term)
            total = after
        return total
    return _in_blocks(accumulator, zero, n, lambda total, k: step(arithmetic.add, total, x[..., k]))
