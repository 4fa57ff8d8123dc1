"""Blockwise quantization of an array: magnitudes, scales, elements, in cache-sized pieces or as one graph.

Three steps, each written once for NumPy arrays and torch tensors: `measured` (the largest magnitude, or the ends of the
range, of each block), `scaled` (elements in units of their scale) and `restored` (the way back). Rounding is the job of
`_engine`, which runs it as a table, a compiled loop, a CUDA kernel or a traced graph.

Where a scale is a power of two only bit patterns are shifted, so nothing is lost to a product that underflows, and
flush-to-zero changes nothing. Everywhere else the order of the floating-point operations is the scheme's: "exact" means
the quotient of real numbers rounded once. It is taken in float64: x has at most 24 significant bits and a scale (with
its tensor scale) at most 28, so a quotient that is no tie of an element format of p digits is at least 2^-(29 + p) away
from it, relatively, which 53 bits keep apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from precision import arithmetic, codec
from precision._array import BFLOAT16, FLOAT32, FLOAT64, LAYOUTS, NUMPY, TORCH, Layout
from precision._operations import DIV, MUL, SUB, nearest, rounded_to_odd
from precision.scaling import Blocks

PIECE = 1 << 16  # elements of which several arrays stay in a core's cache


# --- Seam: NumPy and torch --------------------------------------------------------------------------------------------


def is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


_by_dtype: dict[Any, Layout] = {}


def layout_of(x: Any) -> Layout:
    """The layout of a float array or tensor."""
    if is_tensor(x):
        return LAYOUTS[str(x.dtype).removeprefix("torch.")]
    found = _by_dtype.get(x.dtype)
    if found is None:
        found = _by_dtype[x.dtype] = LAYOUTS[x.dtype.name]
    return found


def working(layout: Layout) -> Layout:
    """What elements of a dtype are computed in: float32, or float64 for float64."""
    return FLOAT64 if layout is FLOAT64 else FLOAT32


def widened(x: Any) -> Any:
    """Floats of any dtype as their working dtype; exact, and by integers where hardware might flush a subnormal."""
    if is_tensor(x):
        torch = sys.modules["torch"]
        return x if x.dtype == torch.float64 else x.to(torch.float32)
    layout = layout_of(x)
    if layout is BFLOAT16:
        return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x if layout in (FLOAT32, FLOAT64) else x.astype(np.float32)


def pattern(x: Any) -> Any:
    """The bit patterns of float32 or float64 elements as signed integers."""
    if is_tensor(x):
        torch = sys.modules["torch"]
        return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    return x.view(np.int64 if x.dtype == np.float64 else np.int32)


def unpattern(u: Any) -> Any:
    """The floats of bit patterns."""
    if is_tensor(u):
        torch = sys.modules["torch"]
        return u.view(torch.float64 if u.dtype == torch.int64 else torch.float32)
    return u.view(np.float64 if u.dtype == np.int64 else np.float32)


def in_float64(x: Any) -> Any:
    """Floats as float64, exactly."""
    if is_tensor(x):
        return x.to(sys.modules["torch"].float64)
    if x.dtype != np.float64 and arithmetic._flushes():
        layout = layout_of(x)
        return arithmetic._widened(pattern(x), layout, NUMPY).view(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is no news
        return x.astype(np.float64, copy=False)


def in_float32(x: Any) -> Any:
    """float64 elements rounded once to float32, subnormals included."""
    if is_tensor(x):
        return x.to(sys.modules["torch"].float32)
    if arithmetic._flushes():
        return np.asarray(codec.encode(x, "float32", policy="ieee")).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float64).astype(np.float32)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Elementwise choice between arrays, or an array and a number of its kind."""
    if is_tensor(condition):
        return sys.modules["torch"].where(condition, a, b)
    return np.where(condition, a, b)


def full(value: float, like: Any) -> Any:
    """A number in every place of an array."""
    if is_tensor(like):
        return sys.modules["torch"].full_like(like, value)
    return np.full_like(like, value)


def product(a: Any, b: Any) -> Any:
    """a · b in their dtype, rounded to nearest even, also where the processor flushes subnormals."""
    if is_tensor(a):
        return a * b
    if a.dtype == np.float32 and arithmetic._flushes():
        return arithmetic.mul(a, b, "float32", policy="ieee")
    with np.errstate(all="ignore"):
        return a * b


def total(a: Any, b: Any) -> Any:
    """a + b in their dtype."""
    if is_tensor(a):
        return a + b
    with np.errstate(all="ignore"):
        return a + b


def quotient(a: Any, b: Any) -> Any:
    """a / b in their dtype, rounded to nearest even: of float32 through float64.

    A quotient of two float32 numbers is at least 2^-50, relatively, from what float32 could take for a tie, so rounding
    to float64 first is innocuous. Compilers for GPUs divide float32 only approximately, but float64 rightly.
    """
    if is_tensor(a):
        torch = sys.modules["torch"]
        if a.dtype == torch.float64:
            return a / b
        return (a.to(torch.float64) / b.to(torch.float64)).to(torch.float32)
    if a.dtype == np.float32 and arithmetic._flushes():
        return arithmetic.div(a, b, "float32", policy="ieee")
    with np.errstate(all="ignore"):
        return a / b


def odd(operation: str, a: Any, b: Any, *, wide: bool = True) -> Any:
    """a and b in float64 by an operation of `arithmetic`, rounded to odd, so that rounding again is as rounding once.

    `wide`: of any float64 numbers; else of float32 ones and their quotients, whose errors do not underflow: traceable.
    """
    if wide:
        return getattr(arithmetic, operation)(a, b, "float64", rounding="to_odd", policy="ieee")
    patterns = [pattern(a), pattern(full(b, a) if isinstance(b, float) else b)]
    if is_tensor(a):
        found, error = nearest(_ODD[operation], patterns, False, "to_odd", False, TORCH)
        return unpattern(rounded_to_odd(found, error, TORCH))
    with np.errstate(all="ignore"):
        found, error = nearest(_ODD[operation], patterns, False, "to_odd", False, NUMPY)
        return unpattern(rounded_to_odd(found, error, NUMPY))


_ODD = {"sub": SUB, "mul": MUL, "div": DIV}


# --- The largest magnitude of each block ------------------------------------------------------------------------------


def padded(x: Any, blocks: Blocks) -> Any:
    """The array with zeros after ragged ends, as the view of its blocks."""
    if blocks.ragged:
        more = [p - n for p, n in zip(blocks.padded, blocks.shape, strict=True)]
        if is_tensor(x):
            pads = [n for after in reversed(more) for n in (0, after)]
            x = sys.modules["torch"].nn.functional.pad(x, pads)
        else:
            x = np.pad(x, [(0, after) for after in more])
    return x.reshape(blocks.view)


def cropped(x: Any, blocks: Blocks) -> Any:
    """What `padded` added is taken away again, and the shape is the array's."""
    x = x.reshape(blocks.padded)
    if blocks.ragged:
        x = x[tuple(slice(n) for n in blocks.shape)]
    return x


def pieces(view: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array of this shape into pieces of about `PIECE` elements, whole in the last axes."""
    inner, axis = 1, len(view)
    while axis > 0 and inner * view[axis - 1] <= PIECE:
        axis -= 1
        inner *= view[axis]
    if axis == 0:
        yield ()
        return
    step = max(1, PIECE // inner)
    for lead in np.ndindex(*view[: axis - 1]):
        for i in range(0, view[axis - 1], step):
            yield (*lead, slice(i, i + step))


def at(piece: tuple[Any, ...], kept: tuple[int, ...]) -> tuple[Any, ...]:
    """The index of a piece's scales in an array of shape `kept`; an axis of one element serves all."""
    return tuple(
        i if n != 1 else 0 if isinstance(i, int) else slice(0, 1)
        for i, n in zip(piece, kept[: len(piece)], strict=True)
    )


def _rows(blocks: Blocks) -> bool:
    """Whether every block is contiguous: its elements are the last axes."""
    return blocks.spans == tuple(range(len(blocks.view) - len(blocks.spans), len(blocks.view)))


def _reduce(m: Any, spans: tuple[int, ...], combine: Any) -> Any:
    """A reduction of a piece over axes, kept; over a short contiguous one in steps that double a sliding window."""
    if spans == (m.ndim - 1,) and 2 < m.shape[-1] <= 256 and m.size > m.shape[-1]:
        size, flat, window = m.shape[-1], m.reshape(-1), 1
        while 2 * window <= size:
            flat = combine(flat[: flat.size - window], flat[window:])
            window *= 2
        if window < size:
            rest = size - window
            flat = combine(flat[: flat.size - rest], flat[rest:])
        return flat[::size].reshape(*m.shape[:-1], 1)
    return combine.reduce(m, axis=spans, keepdims=True)


def largest(view: Any, blocks: Blocks, *, finite: bool) -> Any:
    """The largest magnitude of each block, as bit patterns of the working layout: Inf above all numbers, NaN above Inf.

    Of shape `blocks.kept`. With `finite` infinities and NaN count as zero.
    """
    if is_tensor(view):
        layout = working(layout_of(view))
        m = pattern(widened(view)) & layout.magnitude
        if finite:
            m = where(m >= layout.infinity, 0 * m, m)
        if not blocks.spans:
            return m
        return m.amax(blocks.spans, keepdim=True) if m.numel() else m.new_zeros(blocks.kept)
    layout = working(layout_of(view))
    out = np.zeros(blocks.kept, f"int{layout.bits}")
    for piece in pieces(blocks.view) if view.size else ():
        part = view[piece]
        m = pattern(np.ascontiguousarray(widened(part))) & layout.magnitude
        if finite:
            m = np.where(m >= layout.infinity, 0, m)
        gone = len(blocks.view) - m.ndim
        spans = tuple(axis - gone for axis in blocks.spans if axis >= gone)
        index = at(piece, blocks.kept)
        most = _reduce(m, spans, np.maximum) if spans else m
        np.maximum(out[index], most, out=out[index])
    return out


def ends(view: Any, blocks: Blocks) -> tuple[Any, Any]:
    """The least and largest element of each block (NaN if it has one), in the working dtype; shape `blocks.kept`."""
    if is_tensor(view):
        x = widened(view)
        if not x.numel():
            return x.new_zeros(blocks.kept), x.new_zeros(blocks.kept)
        return x.amin(blocks.spans, keepdim=True), x.amax(blocks.spans, keepdim=True)
    layout = working(layout_of(view))
    dtype = np.dtype(f"int{layout.bits}")
    some = bool(view.size)
    low, high = (np.full(blocks.kept, end * some, dtype) for end in (np.iinfo(dtype).max, np.iinfo(dtype).min))
    for piece in pieces(blocks.view) if some else ():
        key = pattern(np.ascontiguousarray(widened(view[piece])))
        key = np.where(key < 0, key ^ layout.magnitude, key)  # integers in the order of the numbers
        gone = len(blocks.view) - key.ndim
        spans = tuple(axis - gone for axis in blocks.spans if axis >= gone)
        index = at(piece, blocks.kept)
        np.minimum(low[index], key.min(spans, keepdims=True), out=low[index])
        np.maximum(high[index], key.max(spans, keepdims=True), out=high[index])
    low, high = (np.where(end < 0, end ^ layout.magnitude, end) for end in (low, high))
    return unpattern(low), unpattern(high)


# --- Elements in units of their scale ---------------------------------------------------------------------------------


def ldexp(magnitude: Any, exponent: Any, layout: Layout, ops: Any) -> Any:
    """|x| · 2^exponent of non-negative patterns, rounded to odd where it is subnormal; Inf and NaN are kept.

    Beyond the largest finite number it is that number. Rounding to odd keeps a later rounding to fewer digits right.
    """
    m, implicit = layout.mantissa_bits, layout.implicit
    subnormal = magnitude < implicit
    normal = ops.where(subnormal, ops.float_pattern(magnitude, layout), magnitude)
    field = (normal >> m) + exponent - ops.where(subnormal, (layout.bias - 1 + m) + 0 * magnitude, 0 * magnitude)
    fraction = normal & (implicit - 1)
    top = layout.infinity >> m
    inside = (ops.where(field < 1, 1 + 0 * field, ops.where(field >= top, top - 1 + 0 * field, field)) << m) | fraction
    inside = ops.where(field >= top, layout.infinity - 1 + 0 * inside, inside)
    drop = ops.where(field > 0, 0 * field, 1 - field)
    drop = ops.where(drop > m + 2, m + 2 + 0 * drop, drop)
    whole = fraction | implicit
    kept = whole >> drop
    odd = kept | ops.where((kept << drop) != whole, 1 + 0 * kept, 0 * kept)
    result = ops.where(field > 0, inside, odd)
    result = ops.where(magnitude == 0, 0 * result, result)
    return ops.where(magnitude >= layout.infinity, magnitude, result)


def shifted(x: Any, exponent: Any, least: int, lowest: int, *, nearest: bool, clean: bool = False) -> Any:
    """x · 2^-exponent for rounding to a format whose least value is 2^least, in the working dtype.

    What is below 2^(least - 2) counts only as not being zero, and where rounding is to nearest as zero, so few of its
    digits are kept. No exponent is below `lowest`. `clean`: x is known to hold neither Inf nor NaN.
    """
    x = widened(x)
    layout = layout_of(x)
    if is_tensor(x):
        if (
            nearest and x.is_cuda and layout is FLOAT32 and lowest >= -layout.bias
        ):  # a GPU keeps subnormals; what underflows is rounded to zero
            return x * unpattern(power(-exponent, layout, TORCH))
        u = pattern(x)
        return unpattern((u & layout.sign) | ldexp(u & layout.magnitude, -exponent, layout, TORCH))
    u = pattern(np.ascontiguousarray(x))
    m = u & layout.magnitude
    low = int(exponent.min(initial=0))
    near = low < 2 - layout.bias - least or int(exponent.max(initial=0)) > layout.bias
    if near or not (nearest or ((m == 0) | (m >= layout.implicit)).all()):
        return unpattern((u & layout.sign) | ldexp(m, -exponent, layout, NUMPY))
    result = np.subtract(m, (exponent << layout.mantissa_bits).astype(m.dtype))
    floor = _zeros(m) if nearest else np.minimum(m, 1)  # an array: NumPy's loops with a number are slower
    np.maximum(result, floor, out=result)
    if not nearest:
        np.multiply(result, m != 0, out=result)
    if not clean and (special := m >= layout.infinity).any():
        result = np.where(special, m, result)
    np.bitwise_and(u, layout.sign, out=m)
    np.bitwise_or(result, m, out=result)
    return unpattern(result)


_zero: dict[Any, np.ndarray[Any, Any]] = {}


def _zeros(like: np.ndarray[Any, Any]) -> Any:
    """An array of zeros, shared."""
    found = _zero.get(like.dtype)
    if found is None or found.size < like.size:
        found = _zero[like.dtype] = np.zeros(max(like.size, 2 * PIECE), like.dtype)
        found.setflags(write=False)
    return found[: like.size].reshape(like.shape)


def power(exponent: Any, layout: Layout, ops: Any) -> Any:
    """The patterns of 2^exponent, subnormal ones included; exponents are those of the layout."""
    field = exponent + layout.bias
    drop = ops.where(field < 1, 1 - field, 0 * field)
    normal = (field + drop - ops.where(field < 1, 1 + 0 * field, 0 * field)) << layout.mantissa_bits
    return ops.where(field < 1, (layout.implicit + 0 * field) >> drop, normal)


def power_values(exponent: Any, like: Any) -> Any:
    """2^exponent as float32, of the library of `like`."""
    if is_tensor(like):
        return unpattern(power(exponent.to(sys.modules["torch"].int32), FLOAT32, TORCH))
    return unpattern(np.asarray(power(exponent.astype(np.int32), FLOAT32, NUMPY)))


def exponent_of(scale: Any) -> Any:
    """The exponents of positive powers of two, float32 or float64, as integers of that width."""
    layout = layout_of(scale)
    ops = TORCH if is_tensor(scale) else NUMPY
    u = pattern(scale)
    subnormal = u < layout.implicit
    normal: Any = ops.where(subnormal, ops.float_pattern(u, layout), u)
    m = layout.mantissa_bits
    return (normal >> m) - layout.bias - ops.where(subnormal, (layout.bias - 1 + m) + 0 * u, 0 * u)


def restored(values: Any, exponent: Any) -> Any:
    """values · 2^exponent in their dtype, exact but for what is beyond it, which becomes infinite."""
    layout = layout_of(values)
    ops = TORCH if is_tensor(values) else NUMPY
    u = pattern(values)
    magnitude = u & layout.magnitude
    if not is_tensor(values) and exponent.size and magnitude.size:
        low, high, top = int(exponent.min()), int(exponent.max()), int(magnitude.max())
        least = 1 - layout.bias + 32  # above it values of up to 32 binades below 1 stay normal: a product is exact
        if low >= least and top < layout.infinity and high + (top >> layout.mantissa_bits) < 2 * layout.bias:
            with np.errstate(all="ignore"):
                return values * unpattern(power(exponent, layout, NUMPY))
    result = ldexp(magnitude, exponent, layout, ops)
    over = (result == layout.infinity - 1) & (magnitude < layout.infinity)
    result = ops.where(over, layout.infinity + 0 * result, result)
    return unpattern((u & layout.sign) | result)
