"""The scales of an array: what is measured of its blocks, and the scale that a scheme makes of it.

Everything but the magnitudes themselves is a few operations on one number for each block, in float64 where the scheme
is "exact" (see `_blockwise`), in float32 in the order of a recipe.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from precision import _blockwise as bw
from precision import _engine
from precision._array import FLOAT32, FLOAT64, NUMPY, TORCH, Layout
from precision.formats import IntFormat
from precision.rounding import round_to
from precision.scaling import Blocks, as_float64, integer_range, power_exponent
from precision.schemes import Scheme


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales of an array, in the shape `Blocks.kept`, and what the elements are computed with."""

    value: Any  # float32, or float64 in a wider format; NaN where a block holds Inf or NaN
    exponent: Any = None  # of powers of two, integers
    zero: Any = None  # zero points, integers
    tensor: Any = None  # 0-d float32
    factor: Any = None  # what x is multiplied by, in recipes and for "reciprocal"
    bad: Any = None  # where the value is NaN
    clean: bool = False  # whether there is neither Inf nor NaN


def is_traced(x: Any) -> bool:
    return bw.is_tensor(x) and _engine.is_traced(x, sys.modules["torch"])


def any_(condition: Any) -> bool:
    """Whether one is true; False while a compiler traces, which cannot know."""
    return not is_traced(condition) and bool(condition.any())


def measured(view: Any, blocks: Blocks, s: Scheme) -> Scales:
    """The scales of an array that is padded and split into blocks."""
    if s.scale is not None:
        return _given(view, blocks, s)
    found = _from_range(view, blocks, s)
    clean = found.bad is None and s.observer is None and s.nonfinite != "finite"
    return replace(found, clean=clean)


def _from_range(view: Any, blocks: Blocks, s: Scheme) -> Scales:
    layout = bw.working(bw.layout_of(view))
    ops = TORCH if bw.is_tensor(view) else NUMPY
    if not s.symmetric:
        return _affine(view, blocks, s)
    if s.observer is not None:
        low, high = _observed(view, blocks, s)
        amax = bw.pattern(bw.where(-low > high, -low, high))
    else:
        amax = bw.largest(view, blocks, finite=s.nonfinite == "finite")
    bad = amax >= layout.infinity
    if s.nonfinite == "raise" and any_(bad):
        raise _nonfinite()
    amax = ops.where(bad, 0 * amax, amax)
    zero = amax == 0
    if s.is_power:
        low_exponent, high_exponent = s.scale_exponents
        exponent = power_exponent(amax, s.element, s.scale_rule, layout, ops)
        exponent = _as_dtype(exponent.clip(low_exponent, high_exponent), amax)  # a rule may need float64's patterns
        if s.zero_block == "one":
            exponent = ops.where(zero, -s.fraction_bits + 0 * exponent, exponent)
        value = bw.power_values(exponent + s.fraction_bits, view)
        return _marked(value, bad, exponent=exponent)
    return _by_amax(amax, zero, bad, layout, s, ops)


def _as_dtype(x: Any, like: Any) -> Any:
    return x.to(like.dtype) if bw.is_tensor(x) else x.astype(like.dtype)


def _nonfinite() -> ValueError:
    return ValueError("x contains Inf or NaN, and the scheme says nonfinite='raise': see Scheme.nonfinite")


def _marked(value: Any, bad: Any, **more: Any) -> Scales:
    """Scales with NaN where the block holds Inf or NaN."""
    if not is_traced(bad) and not any_(bad):
        return Scales(value, **more)
    return Scales(bw.where(bad, bw.full(math.nan, value), value), bad=bad, **more)


def _by_amax(amax: Any, zero: Any, bad: Any, layout: Layout, s: Scheme, ops: Any) -> Scales:
    """Scales in a float format: amax / max."""
    fmt, largest = s.scale_format, float(_positive_max(s))
    wide = as_float64(amax, layout, ops)
    tensor: Any = None
    if s.recipe == "te":
        return _transformer_engine(wide, bad, s)
    if s.tensor_scale:
        most = _max(wide)
        tensor = bw.in_float32(bw.odd("div", most, largest * fmt.max, wide=layout.bits == 64))
        tensor = bw.where(tensor == 0, bw.full(1.0, tensor), tensor)
        if s.recipe == "torchao":
            return _torchao(wide, bad, tensor, s)
        largest = bw.in_float64(tensor) * largest
    scale = round_to(bw.odd("div", wide, largest, wide=layout.bits == 64), fmt, policy="saturate")
    if s.zero_block != "zero":
        scale = bw.where(scale == 0, bw.full(fmt.smallest_subnormal, scale), scale)
    empty = {"zero": 0.0, "one": 1.0, "smallest": fmt.smallest_subnormal}[s.zero_block]
    scale = bw.where(zero, bw.full(empty, scale), scale)
    found = _marked(bw.in_float32(scale), bad, tensor=tensor)
    return replace(found, factor=factor_of(found.value, tensor, s))


def _positive_max(s: Scheme) -> float:
    """What the largest magnitude is divided by: of unsigned integers the way up from the middle."""
    if isinstance(s.element, IntFormat) and not s.element.signed:
        return float(s.element.max) - (1 << s.element.bits >> 1)
    return float(s.element.max)


def _max(x: Any) -> Any:
    """The largest of all, 0-d; 0 of none."""
    if bw.is_tensor(x):
        return x.max() if x.numel() else x.new_zeros(())
    return np.asarray(x.max(initial=0.0))


FLOAT32_MAX = float(np.finfo(np.float32).max)


def _transformer_engine(wide: Any, bad: Any, s: Scheme) -> Scales:
    """NVFP4 in the order of Transformer Engine's reference (2026-08): everything in float32."""
    fmt, largest = s.scale_format, float(s.element.max)
    amax = bw.in_float32(wide)
    encode = bw.quotient(bw.full(largest * fmt.max, _max(amax)), _max(amax))
    encode = bw.where(encode > FLOAT32_MAX, bw.full(FLOAT32_MAX, encode), encode)
    decode = bw.quotient(bw.full(1.0, encode), encode)
    multiplier = bw.product(encode, bw.full(float(np.float32(1) / np.float32(largest)), encode))
    scale = bw.product(amax, multiplier)
    scale = round_to(bw.where(scale > fmt.max, bw.full(fmt.max, scale), scale), fmt, policy="saturate")
    return replace(_marked(scale, bad, tensor=decode), factor=factor_of(scale, decode, s))


def _torchao(wide: Any, bad: Any, tensor: Any, s: Scheme) -> Scales:
    """NVFP4 in the order of torchao 0.18: everything in float32, scales from the smallest normal number on."""
    fmt = s.scale_format
    amax = bw.in_float32(wide)
    scale = bw.quotient(bw.quotient(amax, bw.full(s.element.max, amax)), tensor)
    scale = bw.where(scale < fmt.smallest_normal, bw.full(fmt.smallest_normal, scale), scale)
    scale = round_to(scale, fmt, policy="saturate")
    return replace(_marked(scale, bad, tensor=tensor), factor=factor_of(scale, tensor, s))


def factor_of(value: Any, tensor: Any, s: Scheme) -> Any:
    """What float32 elements are multiplied by, of a scheme that multiplies them; else None."""
    if s.recipe == "te":
        factor = bw.quotient(bw.full(1.0, value), bw.product(value, tensor))
        return bw.where(factor > FLOAT32_MAX, bw.full(FLOAT32_MAX, factor), factor)
    if s.recipe == "torchao":
        return bw.quotient(bw.quotient(bw.full(1.0, tensor), tensor), value)
    return bw.quotient(bw.full(1.0, value), value) if s.division == "reciprocal" else None


def _observed(view: Any, blocks: Blocks, s: Scheme) -> tuple[Any, Any]:
    """The range that the observer chooses for each block, in the working dtype."""
    if is_traced(view):
        raise ValueError("an observer cannot be traced: measure with P.observers.Calibration, and use its scheme()")
    assert s.observer is not None
    x = bw.widened(view.detach()).cpu().numpy() if bw.is_tensor(view) else bw.widened(view)
    low, high = s.observer.range(matrix(x, blocks), s)
    found = [np.asarray(end, x.dtype).reshape(blocks.kept) for end in (low, high)]
    if bw.is_tensor(view):
        torch = sys.modules["torch"]
        dtype = bw.widened(view[:0] if view.ndim else view).dtype
        found = [torch.from_numpy(end).to(view.device, dtype) for end in found]
    return found[0], found[1]


def matrix(x: Any, blocks: Blocks) -> Any:
    """One row for each block."""
    rest = [i for i in range(x.ndim) if i not in blocks.spans]
    return x.transpose(*rest, *blocks.spans).reshape(-1, blocks.size)


def _affine(view: Any, blocks: Blocks, s: Scheme) -> Scales:
    """Scales and zero points of integers from the ends of the range."""
    low, high = _observed(view, blocks, s) if s.observer is not None else bw.ends(view, blocks)
    bad = ~(abs(low) < math.inf) | ~(abs(high) < math.inf)
    if s.nonfinite == "raise" and any_(bad):
        raise _nonfinite()
    if s.nonfinite == "finite" and (is_traced(view) or any_(bad)):
        x = bw.widened(view)
        low, high = bw.ends(bw.where(abs(x) < math.inf, x, zeros(x)), blocks)
        bad = bad & False
    lo, hi = (bw.in_float64(bw.where(bad, zeros(low), end)) for end in (low, high))
    none = zeros(lo)
    lo, hi = bw.where(bw.pattern(lo) < 0, lo, none), bw.where(bw.pattern(hi) > 0, hi, none)  # subnormals are no zeros
    qmin, qmax = integer_range(s.element, s.restricted)  # type: ignore[arg-type]
    fmt, wide = s.scale_format, bw.layout_of(view).bits == 64
    scale = round_to(
        bw.odd("div", bw.odd("sub", hi, lo, wide=wide), float(qmax - qmin), wide=wide), fmt, policy="saturate"
    )
    scale = bw.where(scale == 0, bw.full(fmt.smallest_subnormal, scale), scale)
    scale = bw.where(((bw.pattern(hi) | bw.pattern(lo)) & FLOAT64.magnitude) == 0, bw.full(1.0, scale), scale)
    zero = bw.odd("sub", bw.full(float(qmin), lo), bw.odd("div", lo, scale, wide=wide), wide=wide)
    zero = round_to(zero, "int32").clip(qmin, qmax)
    found = _marked(bw.in_float32(scale), bad, zero=_integers(zero))
    return replace(found, factor=factor_of(found.value, None, s))


def zeros(x: Any) -> Any:
    return sys.modules["torch"].zeros_like(x) if bw.is_tensor(x) else np.zeros_like(x)


def _integers(x: Any) -> Any:
    return x.to(sys.modules["torch"].int32) if bw.is_tensor(x) else np.asarray(x).astype(np.int32)


def _given(view: Any, blocks: Blocks, s: Scheme) -> Scales:
    """The scales that the scheme brings."""

    def shaped(given: Any, what: str, dtype: str) -> Any:
        if bw.is_tensor(view):
            torch = sys.modules["torch"]
            array = torch.as_tensor(given, device=view.device).detach().to(getattr(torch, dtype))
        else:
            array = np.asarray(given.detach().cpu() if bw.is_tensor(given) else given)
            if dtype == "float32" and array.dtype != np.float32:
                array = bw.in_float32(array)
            array = array.astype(dtype, copy=False)
        shape = tuple(array.shape)
        if shape not in ((), blocks.scales):
            raise ValueError(f"{what} has shape {shape}; these blocks have scales of shape {blocks.scales}")
        if shape:
            return array.reshape(blocks.kept)
        return array.expand(blocks.kept).clone() if bw.is_tensor(array) else np.full(blocks.kept, array, array.dtype)

    value = shaped(s.scale, "scale", "float32")
    u = bw.pattern(value)  # comparing floats may flush a subnormal
    if not is_traced(value) and bool(((u <= 0) | (u >= FLOAT32.infinity)).any()):
        raise ValueError("scale holds numbers that are zero, negative, infinite or NaN; it must be positive and finite")
    if s.is_power:
        exponent = bw.exponent_of(value)
        if not is_traced(value) and bool((bw.power_values(exponent, view) != value).any()):
            raise ValueError(f"scale holds numbers that are no powers of two, which {s.name} with {s.scale_rule} has")
        return Scales(value, exponent=exponent - s.fraction_bits)
    zero = None
    if s.is_integer and (s.zero_point is not None or not s.symmetric):
        zero = shaped(0 if s.zero_point is None else s.zero_point, "zero_point", "int32")
        low, high = int(s.element.min), int(s.element.max)
        if not is_traced(zero) and bool(((zero < low) | (zero > high)).any()):
            raise ValueError(f"zero_point must be an integer of {s.element.name}, {low} to {high}")
    return Scales(value, zero=zero, factor=factor_of(value, None, s))


def middle(s: Scheme) -> int:
    """The zero point of a symmetric scheme."""
    return 0 if s.element.signed else 1 << s.element.bits >> 1
