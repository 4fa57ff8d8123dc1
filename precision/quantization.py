"""Quantization: elements of few bits with scales, in every scheme by one call.

A `Scheme` says what the elements are, which of them share a scale, how a scale is made and in what order things are
rounded. `quantize` gives the packed codes and scales, `fake_quantize` the values they stand for, with a gradient.

Named schemes: every format of up to 8 bits ("float8_e4m3fn", "int8", "uint4": one float32 scale for the tensor unless
told otherwise), OCP MX ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8": blocks of 32, an
E8M0 scale) and "nvfp4" (blocks of 16, an E4M3 scale, a float32 scale for the tensor).

Sources: OCP Microscaling Formats (MX) v1.0; NVIDIA, "Pretraining LLMs with NVFP4", arXiv 2509.25149; ONNX
QuantizeLinear; torch.quantize_per_tensor and torch.fake_quantize_per_tensor_affine (2.13).

>>> import numpy as np, precision as P
>>> x = np.float32([[960, 957, -3, 0.5] * 8])
>>> q = P.quantize(x, "mxfp8_e4m3")
>>> q.scales.tolist(), q.dequantize()[0, :4].tolist()
([[2.0]], [896.0, 896.0, -3.0, 0.5])
>>> P.quantize(x, P.scheme("mxfp8_e4m3", scale_rule="rceil")).dequantize()[0, :4].tolist()
[960.0, 960.0, -3.0, 0.5]
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from precision import _blockwise as bw
from precision import _engine, codec
from precision._array import LAYOUTS
from precision._elements import codes_of, values_of
from precision._measure import Scales, any_, factor_of, is_traced, measured, zeros
from precision.formats import get_format
from precision.policies import Rounding
from precision.scaling import Blocks, blocks_of
from precision.schemes import Scheme
from precision.schemes import scheme as _scheme

__all__ = ["Quantized", "fake_quantize", "quantize"]


def prepared(x: Any, s: Any, axis: int | None, what: str) -> tuple[Any, Scheme, Blocks]:
    """The array as float NumPy array or tensor, the scheme, and the blocks; arguments checked."""
    s = s if isinstance(s, Scheme) else _scheme(s)
    if bw.is_tensor(x):
        torch = sys.modules["torch"]
        _engine.check_dense(x, "x")
        if x.requires_grad and torch.is_grad_enabled() and what == "quantize":
            raise ValueError(
                "x requires grad, and codes have none: pass x.detach(), or use P.fake_quantize, whose gradient is "
                "straight-through"
            )
        name = str(x.dtype).removeprefix("torch.")
        x = x.detach() if what == "quantize" else x
        if name not in LAYOUTS:
            if x.is_complex() or name == "bool" or x.is_floating_point():
                raise TypeError(_engine._refused_dtype(name))
            x = x.to(torch.float64)
    else:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError("x is a masked array, whose mask would be lost: pass x.filled(...) or x.data")
        if not isinstance(x, np.ndarray | np.generic | list | tuple | int | float):
            raise TypeError(
                f"x is a {type(x).__module__}.{type(x).__name__}; pass a NumPy array, a torch tensor or numbers"
            )
        x = np.asarray(x)
        if _engine._numpy_layout(x.dtype) is None:
            x = x.astype(np.float64)
        x = x.astype(x.dtype.newbyteorder("="), copy=False)
    blocks = blocks_of(tuple(x.shape), s.granularity, s.block, axis)
    if blocks.ragged and s.ragged == "raise":
        raise ValueError(
            f"an axis of shape {blocks.shape} is no multiple of the block {s.block}, and the scheme says ragged='raise'"
        )
    return x, s, blocks


def random_of(s: Scheme, blocks: Blocks, x: Any) -> Any:
    """The random bits of stochastic rounding, padded and split as x is; None for the other roundings."""
    if not isinstance(s.rounding, Rounding) or s.rounding.name != "stochastic":
        return None
    bits = s.rounding.random_bits
    if bw.is_tensor(x):
        torch = sys.modules["torch"]
        bits = torch.as_tensor(bits, device=x.device).broadcast_to(blocks.shape)
    else:
        bits = np.broadcast_to(np.asarray(bits.cpu() if bw.is_tensor(bits) else bits), blocks.shape)
    return bw.padded(bits, blocks)


def cut(scales: Scales, index: tuple[Any, ...], kept: tuple[int, ...]) -> Scales:
    """The scales of a piece."""
    where = bw.at(index, kept)

    def part(a: Any) -> Any:
        return a[where] if isinstance(a, np.ndarray) and a.ndim and a.shape == kept else a

    return Scales(*(part(getattr(scales, f.name)) for f in fields(Scales)))


def _each(view: Any, blocks: Blocks, scales: Scales, out: Any, call: Callable[..., Any], *more: Any) -> None:
    """out[piece] = call(view[piece], scales of the piece, ...) over an array."""
    for piece in bw.pieces(blocks.view) if view.size else ():
        part = cut(scales, piece, blocks.kept)
        out[piece] = call(np.ascontiguousarray(view[piece]), part, *(m if m is None else m[piece] for m in more))


@dataclass(frozen=True, eq=False)
class Quantized:
    """An array in few bits: what `quantize` gives.

    packed       its codes, dense: `scheme.element.bits` bits each, in the order of the array, first element in the low
                 bits (of 16-bit elements and of 8-bit ones the codes themselves)
    scales       float32 values, in the shape of the array without the axes that a scale spans
    zero_points  int32, of that shape, or None
    tensor_scale 0-d float32 or None
    shape, dtype of the array; `axis` as it was given
    """

    packed: Any
    scales: Any
    zero_points: Any
    tensor_scale: Any
    scheme: Scheme
    axis: int | None
    shape: tuple[int, ...]
    dtype: str
    source: Callable[[], Any] | None = None

    @property
    def blocks(self) -> Blocks:
        return blocks_of(self.shape, self.scheme.granularity, self.scheme.block, self.axis)

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of the stored codes: the array's, or padded to whole blocks."""
        return self.blocks.padded if self.scheme.ragged == "pad" else self.shape

    @property
    def codes(self) -> Any:
        """The codes, one unsigned integer each, in the shape of the array."""
        bits = self.scheme.element.bits
        codes = self.packed if bits >= 8 else codec.unpack(self.packed, self.scheme.element, self.stored)
        codes = codes.reshape(self.stored)
        return bw.cropped(codes, self.blocks) if self.stored != self.shape else codes

    @property
    def scale_codes(self) -> Any:
        """The scales as codes of the scheme's scale format."""
        return codec.encode(self.scales, self.scheme.scale_format, policy="ieee")

    @property
    def nbytes(self) -> int:
        """Bytes that the codes, scales, zero points and tensor scale take in their formats."""
        scales: int = math.prod(tuple(self.scales.shape))
        total: int = -(-math.prod(self.stored) * self.scheme.element.bits // 8)
        total += scales * -(-self.scheme.scale_format.bits // 8)
        if self.zero_points is not None:
            total += -(-scales * self.scheme.element.bits // 8)
        return total + (4 if self.tensor_scale is not None else 0)

    def measured(self) -> Scales:
        s, kept = self.scheme, self.blocks.kept
        value = self.scales.reshape(kept)
        bad = value != value
        zero = None if self.zero_points is None else self.zero_points.reshape(kept)
        if not s.is_power:
            factor = factor_of(value, self.tensor_scale, s)
            return Scales(value, zero=zero, tensor=self.tensor_scale, factor=factor, bad=bad)
        clean = bw.where(bad, zeros(value) + 1.0, value)
        some = bad if is_traced(bad) or any_(bad) else None
        return Scales(value, exponent=bw.exponent_of(clean) - s.fraction_bits, bad=some)

    def dequantize(self, dtype: Any = None) -> Any:
        """The values, in the dtype of the quantized array, or another float dtype by name or object.

        Each is code value * scale (* tensor scale), rounded once; recipes multiply in their order where the dtype is
        float32. A value beyond the dtype becomes infinite; a block whose scale is NaN is NaN.
        """
        name = self.dtype if dtype is None else str(getattr(dtype, "name", dtype)).removeprefix("torch.")
        if name not in LAYOUTS:
            raise ValueError(f"dequantize gives {', '.join(LAYOUTS)}, not {dtype!r}")
        s, blocks = self.scheme, self.blocks
        codes = bw.padded(self.codes, blocks)
        scales = self.measured()
        if bw.is_tensor(codes) and (codes.is_cuda or is_traced(codes)):
            return bw.cropped(values_of(codes, scales, s, name), blocks)
        torch = sys.modules.get("torch")
        as_torch = bw.is_tensor(codes)
        if as_torch:
            codes, scales = codes.numpy(), on_numpy(scales)
        out = np.empty(blocks.view, get_format(name).numpy_dtype)
        _each(codes, blocks, scales, out, lambda c, part: values_of(c, part, s, name))
        return to_tensor(bw.cropped(out, blocks), torch) if as_torch else bw.cropped(out, blocks)

    def report(self, x: Any = None) -> dict[str, Any]:
        """What was lost, as `precision._losses.losses` counts it; x is the array, if nothing else holds it any more."""
        from precision._losses import losses

        x = self.source() if x is None and self.source is not None else x
        if x is None:
            raise ValueError("the array that was quantized is gone: pass it, report(x)")
        return losses(self, x)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "source": None}


def on_numpy(scales: Scales) -> Scales:
    """Scales of CPU tensors as arrays."""
    return Scales(*(a.numpy() if bw.is_tensor(a) else a for a in (getattr(scales, f.name) for f in fields(Scales))))


def to_tensor(a: Any, torch: Any) -> Any:
    """A NumPy array as a CPU tensor, of ml_dtypes' bfloat16, too."""
    a = np.asarray(a, order="C")  # which keeps 0-d arrays as they are
    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def to_array(x: Any) -> Any:
    """A CPU tensor as a NumPy array that shares its memory."""
    torch = sys.modules["torch"]
    x = x.detach().resolve_neg().resolve_conj()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(get_format("bfloat16").numpy_dtype)
    return x.numpy()


def quantize(x: Any, scheme: Scheme | str, axis: int | None = None) -> Quantized:
    """x in the elements and scales of a scheme.

    x is a NumPy array or torch tensor of float16, bfloat16, float32, float64 or integers (which count as float64), of
    any shape. `axis` is the channel axis of "channel" (default: the first), the axis that a scale runs along for "row"
    and "block" (default: the last). Elements are rounded once from x / scale ("exact"), or in the order of the scheme's
    `division` or `recipe`. Inf and NaN: `Scheme.nonfinite`. -0 is kept where the element has it. Blocks of zeros:
    `Scheme.zero_block`.

    Works while torch.compile traces, with the same bits. Raises TypeError for other dtypes, ValueError for an unknown
    scheme, an axis that there is not, a tensor that requires grad, scales that do not fit.
    """
    source = _reference(x)
    x, s, blocks = prepared(x, scheme, axis, "quantize")
    name = str(x.dtype).removeprefix("torch.")
    if bw.is_tensor(x) and (x.is_cuda or is_traced(x)):
        return _quantized(bw.padded(x, blocks), s, blocks, axis, name, source)
    as_torch = bw.is_tensor(x)
    found = _quantized(bw.padded(to_array(x) if as_torch else x, blocks), s, blocks, axis, name, source)
    if not as_torch:
        return found
    torch = sys.modules["torch"]
    parts = {
        part: to_tensor(getattr(found, part), torch)
        for part in ("packed", "scales", "zero_points", "tensor_scale")
        if getattr(found, part) is not None
    }
    return replace(found, **parts)


def _reference(x: Any) -> Callable[[], Any] | None:
    """A weak reference to what is quantized, for its report."""
    return weakref.ref(x) if isinstance(x, np.ndarray) or (bw.is_tensor(x) and not is_traced(x)) else None


def _quantized(
    view: Any, s: Scheme, blocks: Blocks, axis: int | None, name: str, source: Callable[[], Any] | None
) -> Quantized:
    scales = measured(view, blocks, s)
    random = random_of(s, blocks, view)
    if bw.is_tensor(view):
        codes = codes_of(view, scales, s, random)
    else:
        codes = np.empty(blocks.view, _engine.code_dtype(s.element))
        _each(view, blocks, scales, codes, lambda x, part, r: codes_of(x, part, s, r), random)
    codes = codes.reshape(blocks.padded) if s.ragged == "pad" else bw.cropped(codes, blocks)
    packed = codes if s.element.bits >= 8 else codec.pack(codes, s.element)
    value, zero = scales.value, scales.zero
    value = value.reshape(blocks.scales)
    zero = None if zero is None else zero.reshape(blocks.scales)
    return Quantized(packed, value, zero, scales.tensor, s, axis, blocks.shape, name, source)


def round_trip(x: Any, s: Scheme, axis: int | None = None) -> Any:
    """What `quantize(x, s, axis).dequantize()` gives, without the codes being kept."""
    x, s, blocks = prepared(x, s, axis, "quantize")
    name = str(x.dtype).removeprefix("torch.")
    as_torch = bw.is_tensor(x)
    if as_torch and (x.is_cuda or is_traced(x)):
        view = bw.padded(x, blocks)
        scales = measured(view, blocks, s)
        return bw.cropped(values_of(codes_of(view, scales, s, random_of(s, blocks, view)), scales, s, name), blocks)
    view = bw.padded(to_array(x) if as_torch else x, blocks)
    scales = measured(view, blocks, s)
    out = np.empty(blocks.view, get_format(name).numpy_dtype)
    random = random_of(s, blocks, view)
    _each(view, blocks, scales, out, lambda x, part, r: values_of(codes_of(x, part, s, r), part, s, name), random)
    return to_tensor(bw.cropped(out, blocks), sys.modules["torch"]) if as_torch else bw.cropped(out, blocks)


# --- Values with a gradient -------------------------------------------------------------------------------------------

GRADIENTS = ("clipped", "pass", "range")
"""What `fake_quantize` does to a gradient."""


def fake_quantize(
    x: Any,
    scheme: Scheme | str,
    axis: int | None = None,
    *,
    gradient: str = "clipped",
    scale: Any = None,
    zero_point: Any = None,
) -> Any:
    """The values that `quantize(x, scheme, axis)` stands for, in the dtype of x; torch tensors with a gradient.

    gradient "clipped": that of the output where the element was not clipped, zero where it was; "pass": everywhere;
    "range": as "clipped", and `scale` (and `zero_point`), tensors in the shape of the scales, get theirs, too: of
    y = (n - zero_point) * scale with the rounding passed over, n - zero_point - x / scale inside and n - zero_point for
    clipped elements, summed over the block (LSQ, arXiv 1902.08153; LSQ+, arXiv 2004.09576).

    An element is clipped when rounding to the element's grid, continued without end, leaves its range; Inf and NaN are,
    and all of a block whose scale is NaN.
    `scale` and `zero_point` given here take the place of the scheme's. Bits, policies and errors as in `quantize`.
    """
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient is {gradient!r}; it must be one of {', '.join(GRADIENTS)}")
    s = scheme if isinstance(scheme, Scheme) else _scheme(scheme)
    if gradient == "range" and (scale is None or not bw.is_tensor(scale) or s.is_power or s.tensor_scale):
        raise ValueError("gradient 'range' learns scale=, a tensor, of a scheme whose scale_rule is 'amax'")
    if bw.is_tensor(x):
        from precision._straight_through import apply

        return apply(x, s, axis, gradient, scale, zero_point)
    if scale is not None:
        s = replace(s, scale=scale, zero_point=zero_point)
    return round_trip(x, s, axis)
