"""What quantization lost: figures of one array and its codes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from precision import _blockwise as bw
from precision._measure import Scales
from precision.formats import IntFormat
from precision.quantization import Quantized, cut, on_numpy, to_array
from precision.scaling import integer_range


def losses(q: Quantized, x: Any) -> dict[str, Any]:
    """Figures of an array x and what it was quantized to.

    elements          how many there are; finite ones are what the other figures count
    sqnr_db           10 log10(sum x^2 / sum (x - y)^2), in dB, in float64; inf where nothing was lost
    max_abs_error     the largest |x - y|
    max_ulp           the largest |x - y| in units of the last place of the element format at y, times the scale: at
                      most 0.5 unless clipped
    clipped           elements beyond the largest value of their block that were brought back to it
    underflowed       elements that are not zero, and became zero
    nonfinite         elements that are Inf or NaN
    nbytes, bits_per_element  of codes and scales, as stored
    """
    if tuple(x.shape) != q.shape:
        raise ValueError(f"x has shape {tuple(x.shape)}; what was quantized has {q.shape}")
    blocks = q.blocks
    scales, y = q.measured(), q.dequantize("float64")
    if bw.is_tensor(x):
        x, y, scales = to_array(x.detach().cpu()), y.cpu().numpy(), on_numpy(scales)
    view, values = bw.padded(np.asarray(x), blocks), bw.padded(y, blocks)
    signal = noise = 0.0
    worst = ulps = 0.0
    clipped = underflowed = 0
    nonfinite = 0
    for piece in bw.pieces(blocks.view) if view.size else ():
        given = bw.in_float64(view[piece])
        got, part = values[piece], cut(scales, piece, blocks.kept)
        finite = np.isfinite(given) & np.isfinite(got)
        nonfinite += int((~np.isfinite(given)).sum())
        a, b = np.where(finite, given, 0.0), np.where(finite, got, 0.0)
        error = np.abs(a - b)
        signal += float((a * a).sum())
        noise += float((error * error).sum())
        worst = max(worst, float(error.max(initial=0.0)))
        unit, low, high = _grid(np.abs(b), part, q)
        beyond = (a > high + unit / 2) | (a < low - unit / 2)
        ulps = max(
            ulps, float(np.where(finite & ~beyond & (unit > 0), error / np.where(unit > 0, unit, 1), 0).max(initial=0))
        )
        clipped += int((finite & beyond).sum())
        underflowed += int((finite & (a != 0) & (b == 0)).sum())
    count = int(np.prod(q.shape))
    return {
        "scheme": q.scheme.name,
        "elements": count,
        "sqnr_db": math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf,
        "max_abs_error": worst,
        "max_ulp": ulps,
        "clipped": clipped,
        "underflowed": underflowed,
        "nonfinite": nonfinite,
        "nbytes": q.nbytes,
        "bits_per_element": 8 * q.nbytes / count if count else 0.0,
    }


def _grid(size: Any, part: Scales, q: Quantized) -> tuple[Any, Any, Any]:
    """The spacing of the values at magnitudes `size`, and the least and largest value, times the scale."""
    s = q.scheme
    scale = bw.in_float64(part.value)
    scale = np.where(np.isfinite(scale), scale, 0.0)
    if part.tensor is not None:
        scale = scale * bw.in_float64(np.asarray(part.tensor))
    if s.is_power:
        scale = np.where(scale > 0, np.ldexp(scale, -s.fraction_bits), 0.0)
    fmt = s.element
    if isinstance(fmt, IntFormat):
        low, high = integer_range(fmt, s.restricted)
        zero: Any = (0 if fmt.signed or s.is_power else 1 << fmt.bits >> 1) if part.zero is None else part.zero
        return scale + 0 * size, (low - zero) * scale, (high - zero) * scale
    units = size / np.where(scale > 0, scale, 1.0)
    exponent = np.maximum(np.frexp(units)[1] - 1, fmt.emin)
    return np.ldexp(scale + 0 * units, exponent - fmt.mantissa_bits), -fmt.max * scale, fmt.max * scale
