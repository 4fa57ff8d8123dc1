"""The fused dot product and add of a tensor core: one integer definition, evaluated exactly in floating point.

`Rule` holds its parameters. For one output, products a_k·b_k (k over one group) and an addend c:

1. An operand is a sign, an integer significand and an exponent; a subnormal has the exponent emin of its format and is
   not normalised. A product has the exponent ea + eb, also when its significand lies in [2, 4).
2. E = max(exponents of the non-zero products and of a non-zero c, floor). Zero terms take no part.
3. Every term is cut to F fractional bits below 2^E, toward zero by magnitude. There is no sticky bit.
4. The cut terms are summed exactly, all at once: no order, no intermediate rounding.
5. The sum is brought to `bits` significant bits, toward zero or to nearest even; subnormals of the result's format are
   kept, what reaches 2^(emax+1) becomes infinity, and a zero is +0.
6. A NaN, infinity times zero, or infinities of both signs give a NaN; else an infinity gives itself.

Why float64 evaluates this without a single rounding but the definition's own. With s = 2^(F-E):

* s·a is a scaling by a power of two and (s·a)·b has at most 22 significant bits, so both are exact: operands are zero
  or 2^-149 ... 2^128, s is 2^-300 ... 2^330, so nothing overflows or underflows, and no subnormal float64 appears that
  a process flushing them could lose.
* `trunc` makes step 3: integers of magnitude below 4·2^F. 33 of them sum below 2^33, so every partial sum is an exact
  integer in any order. float32 serves alike where the sum stays within 2^24 (F = 13) and exponents are small.
* Sum/s and its quotient by the quantum of the result are exact (powers of two); `trunc` or `rint` then rounds, once.
* The float64 rules for NaN and infinities are those of step 6. Sums that start from +0 never end at -0, except by
  cutting a negative sum to zero, which the caller's final `+ 0.0` mends.

The same lines run on NumPy arrays and on tensors; on CUDA two of the loops are fused kernels. Work is done in tiles of
outputs, and operands are decoded in panels of K, so the scratch is bounded whatever the sizes are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from precision.codec import decode
from precision.formats import AnyFormat, Format

EXPONENT = 0x7FF << 52  # the exponent field of a float64, in place
BIAS = 1023
ZERO = 8192  # the negated exponent of a zero: above all others, and its double fits int16
TILE = {"cpu": 1 << 15, "cuda": 1 << 22}  # outputs at a time: scratch that stays in a core's caches, or fills a GPU
ROW = {"cpu": 1 << 10, "cuda": 1 << 22}  # columns of a tile: long inner loops
PANEL = {"cpu": 1 << 20, "cuda": 1 << 26}  # operand elements decoded at a time


@dataclass(frozen=True)
class Rule:
    """The parameters of the definition: a result of `bits` significant bits in the format `result`.

    `floor` None is no floor, `nearest` False cuts the result toward zero.
    """

    group: int
    fraction_bits: int
    floor: int | None
    bits: int
    result: Format
    nearest: bool


@dataclass(frozen=True)
class Side:
    """One operand matrix as codes of shape (matrices, rows, K): A by its rows, B by its columns."""

    codes: Any
    fmt: AnyFormat
    emin: int  # the exponent of subnormals: another format's where the operand is converted first

    def panel(self, xp: Any, start: int, stop: int, multiple: int, order: list[int] | None) -> tuple[Any, Any]:
        """(values, exponents negated) of columns start to stop: K first, zeros up to a `multiple`, each in `order`."""
        values = decode(self.codes[:, :, start:stop], self.fmt, "float64")
        matrices, rows, k = values.shape
        v = xp.zeros((-(-k // multiple) * multiple, matrices, rows), dtype=xp.float64, device=values.device)
        v[:k] = xp.moveaxis(values, 2, 0)
        if order is not None:
            v = v[[i + j for i in range(0, len(v), multiple) for j in order]]
        exponent = xp.clip(((v.view(xp.int64) >> 52) & 0x7FF) - BIAS, self.emin, None)
        return v, _cast(xp, xp.where(v == 0, ZERO, -exponent), xp.int16)


def _cast(xp: Any, x: Any, dtype: Any) -> Any:
    result = xp.empty(x.shape, dtype=dtype, device=x.device)
    result[...] = x
    return result


def _clip(xp: Any, x: Any, low: int | None, high: int, out: Any = None) -> Any:
    """x between bounds; NumPy's own `clip` takes longer to begin than small tiles to compute."""
    if xp is not np:
        return xp.clip(x, low, high, out=out)
    return np.minimum(x if low is None else np.maximum(x, low, out=out), high, out=out)


def round_result(xp: Any, v: Any, scratch: Any, fmt: Format, bits: int, *, nearest: bool) -> None:
    """Step 5 in place: `v` holds float64 that are zero, normal, infinite or NaN; `scratch` is int64 of its shape.

    The largest power of two within |v|, at least 2^emin, times 2^(1-bits) is the quantum. Overflow costs no branch: the
    scale back goes through 2^1024, which is infinity, exactly for results of 2^(emax+1) and above.
    """
    up = BIAS - fmt.emax
    scratch[...] = v.view(xp.int64)
    scratch &= EXPONENT
    _clip(xp, scratch, (BIAS + fmt.emin) << 52, (BIAS + 400) << 52, scratch)
    quantum = scratch.view(xp.float64)
    quantum *= 2.0 ** (1 - bits)
    v /= quantum
    (xp.trunc if not nearest else np.rint if xp is np else xp.round)(v, out=v)  # to nearest: ties to even
    quantum *= 2.0**up
    v *= quantum
    v *= 2.0**-up


def add_nearest(xp: Any, register: Any, v: Any, scratch: Any, fmt: Format) -> None:
    """register <- register + v, as one IEEE 754 addition in `fmt` (float16 or float32), to nearest even, in place.

    float64 has more than 2·24 + 1 bits, so its sum, rounded again, is the sum rounded once (Figueroa 1995).
    """
    register += v
    round_result(xp, register, scratch, fmt, fmt.mantissa_bits + 1, nearest=True)


def _scale(xp: Any, field: Any, scratch: Any, dtype: Any) -> Any:
    """2^(field - 1023) from its exponent field: float64 in int64 scratch, or float32 in int32 scratch."""
    scratch[...] = field
    if dtype == xp.float32:
        scratch -= BIAS - 127
        scratch <<= 23
    else:
        scratch <<= 52
    return scratch.view(dtype)


class Loops:
    """The two loops over k of a group, on arrays: several k at a time where the tile is small."""

    def __init__(self, xp: Any, shape: tuple[int, ...], work: Any, device: Any, at_once: int) -> None:
        self.xp = xp
        self.fields = xp.empty((at_once, *shape), dtype=xp.int16, device=device)
        self.terms = xp.empty((at_once, *shape), dtype=work, device=device)

    def lowest(self, field: Any, na: Any, nb: Any) -> Any:
        """min(field, na_k + nb_k over k)."""
        xp, step = self.xp, len(self.fields)
        for k in range(0, len(na), step):
            part = self.fields[: len(na) - k]
            xp.add(na[k : k + step], nb[k : k + step], out=part)
            xp.minimum(field, part[0] if len(part) == 1 else xp.amin(part, 0), out=field)
        return field

    def cut(self, total: Any, s: Any, a: Any, b: Any) -> Any:
        """total + the sum over k of trunc(s·a_k·b_k)."""
        xp, step = self.xp, len(self.terms)
        for k in range(0, len(a), step):
            part = self.terms[: len(a) - k]
            xp.multiply(s, a[k : k + step], out=part)
            xp.multiply(part, b[k : k + step], out=part)
            xp.trunc(part, out=part)
            xp.add(total, part[0] if len(part) == 1 else part.sum(0), out=total)
        return total


@cache
def _jiterated(name: str, count: int) -> Any:
    """An elementwise CUDA kernel, by torch's NVRTC jiterator: one step of a loop for `count` values of k."""
    import torch

    start, term = {
        "lowest": ("T x", "T s = a{0} + b{0}; x = s < x ? s : x;"),
        "cut": ("T x, T s", "x += trunc(s * a{0} * b{0});"),
    }[name]
    arguments = ", ".join([start, *(f"T a{k}, T b{k}" for k in range(count))])
    body = " ".join(f"{{{{ {term} }}}}".format(k) for k in range(count))
    source = f"template <typename T> T {name}({arguments}) {{ {body} return x; }}"
    return torch.cuda.jiterator._create_jit_fn(source)  # type: ignore[no-untyped-call, unused-ignore]


class FusedLoops:
    """The same loops on a CUDA device, three k to a kernel (which takes at most eight arrays)."""

    def lowest(self, field: Any, na: Any, nb: Any) -> Any:
        for k in range(0, len(na), 3):
            pairs = [x for pair in zip(na[k : k + 3], nb[k : k + 3], strict=True) for x in pair]
            field = _jiterated("lowest", len(pairs) // 2)(field, *pairs)
        return field

    def cut(self, total: Any, s: Any, a: Any, b: Any) -> Any:
        for k in range(0, len(a), 3):
            pairs = [x for pair in zip(a[k : k + 3], b[k : k + 3], strict=True) for x in pair]
            total = _jiterated("cut", len(pairs) // 2)(total, s, *pairs)
        return total


def _loops(xp: Any, shape: tuple[int, ...], work: Any, device: Any, group: int) -> Loops | FusedLoops:
    kind = "cpu" if str(device) == "cpu" else "cuda"
    if kind == "cuda" and hasattr(xp.cuda, "jiterator"):
        return FusedLoops()
    outputs = shape[0] * shape[1] * shape[2]
    return Loops(xp, shape, work, device, max(min(group, TILE[kind] // outputs), 1))


def _tile(
    xp: Any, rule: Rule, a: Any, na: Any, b: Any, nb: Any, c: Any, low: int, high: int, promote: int | None
) -> Any:
    """All groups of one panel, one after the other, for a tile of outputs: what becomes of `c` (float64).

    `na` + `nb` is the exponent field of 2^(F - ea - eb), so the smallest over the terms is that of s. It is bounded by
    `low`, where every product is cut to zero and c, which has no more bits than the result, is kept; and for float32
    products by `high`, beyond which all of them are zero.
    """
    device, work = c.device, a.dtype
    loops = _loops(xp, c.shape, work, device, rule.group)
    lift = BIAS + rule.fraction_bits
    top = lift + 300 if rule.floor is None else lift - rule.floor
    least = lift - rule.result.emin
    field, other = (xp.empty(c.shape, dtype=xp.int16, device=device) for _ in range(2))
    scratch, u = xp.empty(c.shape, dtype=xp.int64, device=device), xp.empty(c.shape, dtype=xp.float64, device=device)
    scratch32 = xp.empty(c.shape, dtype=xp.int32, device=device) if work == xp.float32 else None
    total = xp.empty(c.shape, dtype=work, device=device)
    register = c
    if promote is not None:
        c = xp.zeros(c.shape, dtype=xp.float64, device=device)
    for g in range(0, len(a), rule.group):
        group = slice(g, g + rule.group)
        scratch[...] = c.view(xp.int64)
        scratch >>= 52
        scratch &= 0x7FF
        other[...] = scratch
        xp.negative(other, out=other)
        other += lift + BIAS
        _clip(xp, other, None, least, other)
        field = loops.lowest(xp.where(c == 0, ZERO, other), na[group], nb[group])
        _clip(xp, field, low, top, field)
        s = _scale(xp, field, scratch, xp.float64)
        xp.multiply(c, s, out=u)
        xp.trunc(u, out=u)
        total[...] = 0
        scale = s if scratch32 is None else _scale(xp, _clip(xp, field, None, high), scratch32, xp.float32)
        total = loops.cut(total, scale, a[group], b[group])
        u += total
        xp.divide(u, s, out=c)
        round_result(xp, c, scratch, rule.result, rule.bits, nearest=rule.nearest)
        if promote is not None and ((g + rule.group) % promote == 0 or g + rule.group == len(a)):
            add_nearest(xp, register, c, scratch, rule.result)
            c[...] = 0
    return c if promote is None else register


def _tiles(shape: tuple[int, int, int], size: int, row: int) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks of about `size` outputs that cover all: several matrices, or a part of one with at most `row` columns."""
    batch, m, n = shape
    if m * n <= size:
        step = size // (m * n)
        for first in range(0, batch, step):
            yield slice(first, first + step), slice(0, m), slice(0, n)
        return
    width = min(n, row)
    height = max(size // width, 1)
    for matrix in range(batch):
        for i in range(0, m, height):
            for j in range(0, n, width):
                yield slice(matrix, matrix + 1), slice(i, i + height), slice(j, j + width)


def matrices(index: Any) -> Any:
    """An index array as a slice where it is constant or counts up, so that operands are viewed instead of copied."""
    first, steps = int(index[0]), np.diff(index)
    if not steps.any():
        return slice(first, first + 1)
    return slice(first, first + len(index)) if bool((steps == 1).all()) else index.tolist()


def _chosen(codes: Any, index: Any) -> Any:
    """The matrices of an index array; torch gathers signed integers of every width."""
    which = matrices(index)
    if isinstance(codes, np.ndarray) or isinstance(which, slice):
        return codes[which]
    signed = getattr(sys.modules["torch"], f"int{8 * codes.element_size()}")
    return codes.view(signed)[which].view(codes.dtype)


def batches(
    sides: tuple[Side, Side], c: Any, pairs: Any, unit: int
) -> Iterator[tuple[tuple[Side, Side], Any, Any, int]]:
    """(sides, c, pairs, columns of a panel) for parts of a batch so small that a panel of `unit` columns fits."""
    kind = "cpu" if str(c.device) == "cpu" else "cuda"
    rows = sum(side.codes.shape[0] * side.codes.shape[1] for side in sides)
    batch = c.shape[0]
    if rows * unit <= PANEL[kind] or batch == 1:
        yield sides, c, pairs, -(-PANEL[kind] // rows // unit) * unit
        return
    step = max(PANEL[kind] // (unit * (c.shape[1] + c.shape[2])), 1)
    for first in range(0, batch, step):
        part = slice(first, first + step)
        a, b = (replace(side, codes=_chosen(side.codes, i[part])) for side, i in zip(sides, pairs, strict=True))
        count = np.arange(len(pairs[0][part]))
        yield from batches((a, b), c[part], (count % len(a.codes), count % len(b.codes)), unit)


def chain(
    rule: Rule,
    sides: tuple[Side, Side],
    c: Any,
    pairs: tuple[Any, Any],
    *,
    step: int,
    order: list[int] | None = None,
    promote: int | None = None,
) -> None:
    """c <- the groups of K in ascending order, c being the addend of the first: in place, float64 (batch, M, N).

    `pairs` says, for every matrix of the batch, which matrix of either side it multiplies. `step` is the K of an
    instruction: K is padded with zeros to a multiple of it. `order` says which of its columns an instruction takes
    first. With `promote` (a multiple of `step`) the chain starts from zero every `promote` columns, and what it reached
    is added to c, rounded to nearest even.
    """
    xp: Any = np if isinstance(c, np.ndarray) else sys.modules["torch"]
    if c.shape[2] < c.shape[1]:  # long inner loops: products commute
        sides, c, pairs = sides[::-1], xp.moveaxis(c, 1, 2), pairs[::-1]
    lift, kind = BIAS + rule.fraction_bits, "cpu" if str(c.device) == "cpu" else "cuda"
    least, most = (sum(side.emin for side in sides), sum(side.fmt.emax for side in sides))
    low, high = BIAS - most - 3, lift - least
    narrow = rule.group << (rule.fraction_bits + 2) <= 1 << 24 and least > -40 and most < 40
    for (a, b), whole, (ia, ib), columns in batches(sides, c, pairs, promote or step):
        k = a.codes.shape[2]
        for start in range(0, k, columns):
            (va, na), (vb, nb) = (x.panel(xp, start, min(start + columns, k), step, order) for x in (a, b))
            nb += lift
            if narrow:
                va, vb = _cast(xp, va, xp.float32), _cast(xp, vb, xp.float32)
            for part, i, j in _tiles(whole.shape, TILE[kind], ROW[kind]):
                left, right = (matrices(ia[part]), i, None), (matrices(ib[part]), None, j)
                operands = va[:, *left], na[:, *left], vb[:, *right], nb[:, *right]
                tile = _cast(xp, whole[part, i, j], xp.float64)
                whole[part, i, j] = _tile(xp, rule, *operands, tile, low, high, promote)
