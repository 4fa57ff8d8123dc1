"""The gradient of `fake_quantize`: straight through the rounding, in torch's autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from precision import _blockwise as bw
from precision._elements import fused_sum, in_units, like, rounding_of
from precision._measure import middle
from precision.formats import IntFormat
from precision.quantization import Quantized, prepared, quantize, random_of, round_trip
from precision.rounding import round_to
from precision.scaling import integer_range
from precision.schemes import Scheme


def apply(x: Any, s: Scheme, axis: int | None, gradient: str, scale: Any, zero_point: Any) -> Any:
    """`fake_quantize` of a tensor."""
    if scale is not None:
        zero = None if zero_point is None else bw_integers(zero_point)
        s = replace(s, scale=scale.detach() if bw.is_tensor(scale) else scale, zero_point=zero)
    if not torch.is_grad_enabled() or not any(bw.is_tensor(t) and t.requires_grad for t in (x, scale, zero_point)):
        return round_trip(x.detach(), s, axis)
    learns = gradient == "range"
    return _StraightThrough.apply(x, scale if learns else None, zero_point if learns else None, s, axis, gradient)  # type: ignore[no-untyped-call]


def bw_integers(zero_point: Any) -> Any:
    """A zero point that is being learnt, to the nearest integer."""
    return zero_point.detach().round() if bw.is_tensor(zero_point) else zero_point


def inside(x: Any, q: Quantized) -> tuple[Any, Any]:
    """Where elements were not clipped, in the view of the blocks, and the elements in units of their scales."""
    s = q.scheme
    _, _, blocks = prepared(x, s, q.axis, "quantize")
    scales, view = q.measured(), bw.padded(x, blocks)
    units = in_units(view, scales, s)
    good = units == units if scales.bad is None else (units == units) & ~scales.bad
    rounding = rounding_of(s, random_of(s, blocks, view))
    if not isinstance(s.element, IntFormat):
        return (round_to(units, s.endless, rounding=rounding).abs() <= s.element.max) & good, units
    low, high = integer_range(s.element, s.restricted)
    zero: Any = middle(s) if scales.zero is None else scales.zero
    if s.is_power or s.zero_point_order == "after_rounding" or scales.zero is None:
        rounded = round_to(units, s.endless, rounding=rounding) + (0 if s.is_power else zero)
    else:
        added = fused_sum(view, scales) if s.zero_point_order == "fused" else bw.total(units, like(zero, units))
        rounded = round_to(added, s.endless, rounding=rounding)
    return (rounded >= low) & (rounded <= high) & good, units


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, zero_point: Any, s: Scheme, axis: Any, gradient: str) -> Any:
        q = quantize(x.detach(), s, axis)
        y = q.dequantize()
        ctx.gradient, ctx.blocks = gradient, q.blocks
        ctx.learns = (scale is not None, zero_point is not None)
        if gradient == "pass":
            return y
        kept, units = inside(x.detach(), q)
        saved = [kept]
        if gradient == "range":
            steps = bw.padded(y, q.blocks) / q.scales.reshape(q.blocks.kept)
            saved += [torch.where(kept, steps - units.to(steps.dtype), steps), q.scales]
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        if ctx.gradient == "pass":
            return g, None, None, None, None, None
        kept, *more = ctx.saved_tensors
        blocks = ctx.blocks
        view = bw.padded(g, blocks)
        gx = bw.cropped(torch.where(kept, view, torch.zeros_like(view)), blocks)
        gs = gz = None
        if ctx.gradient == "range":
            slope, scales = more
            gs = _summed(view * slope, blocks) if ctx.learns[0] else None
            lost = torch.where(kept, torch.zeros_like(view), view)
            gz = -_summed(lost, blocks) * scales if ctx.learns[1] else None
        return gx, gs, gz, None, None, None


def _summed(x: Any, blocks: Any) -> Any:
    """The sum over each block, in the shape of the scales."""
    return (x.sum(blocks.spans) if blocks.spans else x).reshape(blocks.scales)
