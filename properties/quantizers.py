"""Quantizers that can be judged: the protocol, and adapters for this project and its peers.

A *quantizer* turns float32 matrices into elements of few bits with scales, in one or several ways; each `Quantization`
states its elements, what shares a scale, how scales are made and in what order things are rounded, as far as it says
so, and is judged by that.

Importing this module loads neither torch nor ml_dtypes: a subject loads what it needs.

>>> import numpy as np
>>> from properties.subjects import load
>>> ours = load("ours", "quantizers")
>>> mxfp4 = next(q for q in ours.schemes if q.name == "mxfp4")
>>> ours.fake_quantize(np.float32([[0.3, -1.2, 5.2, 7.9]]), mxfp4)
array([[ 0.5, -1. ,  6. ,  6. ]], dtype=float32)
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

import precision as P

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat, Format

    Array = NDArray[Any]

__all__ = [
    "QUANTIZERS",
    "GfloatQuantizer",
    "MlDtypesQuantizer",
    "OurQuantizer",
    "Quantization",
    "Quantized",
    "Quantizer",
    "TorchQuantizer",
    "TorchaoQuantizer",
]

_FLOAT32: Format = P.get_format("float32")  # type: ignore[assignment]
_E8M0: Format = P.get_format("float8_e8m0fnu")  # type: ignore[assignment]


@dataclass(frozen=True)
class Quantization:
    """One way to quantize a matrix, and what it claims.

    name           as it stands in law ids
    element        format of the elements
    fraction_bits  of an integer element: a code n means n * 2^-fraction_bits (6 of MXINT8)
    granularity    what shares a scale: "tensor", "channel" (a row) or "block" (`block` neighbours in a row)
    scale_format   of the scales
    rule           of scales that are powers of two: "ocp_floor", "ceil", "even", "rceil", "nvidia"
                   (`precision.scaling.power_of_two`); "amax": amax / max, rounded once; "ends": (high - low) / (number
                   of steps) with a zero point; "any"; of given scales "given"
    tensor_scale   whether block scales are relative to a float32 scale of the tensor, amax / (max * scale format's max)
    division       how an element is made of x and its scale: "exact" (rounded once, as the scales are), "divide" (by
                   the scale, in float32), "reciprocal" (times 1 / scale, both in float32), "any" (in float32)
    symmetric      without a zero point
    restricted     the most negative integer is not used
    zero_point_order "after_rounding", "before_rounding", "fused" (of x * (1 / scale) + zero_point), "any"
    ties           "even", "away" or "any"
    scale, zero_point  given ones: one, or one for each channel, of matrices with that many rows
    smallest_scale lower ones are made this
    infinity       "nan": a block with Inf or NaN is NaN; "clip": Inf goes to the end of its sign; "any"
    nan            of given scales: what a NaN becomes: "zero" (0.0), "integer_zero", "max", "min", "any"
    ragged         whether a row may end within a block
    padded         whether packed rows are filled with zeros to whole blocks
    """

    name: str
    element: AnyFormat
    fraction_bits: int = 0
    granularity: str = "tensor"
    block: int = 0
    scale_format: Format = _FLOAT32
    rule: str = "amax"
    tensor_scale: bool = False
    division: str = "exact"
    symmetric: bool = True
    restricted: bool = False
    zero_point_order: str = "after_rounding"
    ties: str = "even"
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    smallest_scale: float = 0.0
    infinity: str = "nan"
    nan: str = "any"
    ragged: bool = False
    padded: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def is_integer(self) -> bool:
        return isinstance(self.element, P.IntFormat)

    @property
    def is_power(self) -> bool:
        """Whether every scale is a power of two by one of the rules."""
        return self.rule in ("ocp_floor", "ceil", "even", "rceil", "nvidia")

    @property
    def is_measured(self) -> bool:
        return not self.scale


class Quantized(NamedTuple):
    """A quantized matrix: what is None is not told.

    values      what the elements stand for, float32, in the shape of the matrix
    codes       of the elements, unsigned, in that shape
    scales      0-d; (rows,) of "channel"; (rows, blocks of a row) of "block"
    zero_points integers, of the same shape
    tensor_scale  0-d
    packed      the codes in bytes, row after row, the first in the lowest bits
    """

    values: Array
    codes: Array | None = None
    scales: Array | None = None
    zero_points: Array | None = None
    tensor_scale: Array | None = None
    packed: Array | None = None


class Quantizer(Protocol):
    """What every subject of the laws on quantizers must offer.

    `formats` are those of the elements. A quantizer may also have, and is judged on them only then:
    `quantize(x, scheme) -> Quantized`; `gradient(x, scheme) -> the gradient of sum(fake_quantize(x))`, straight through
    the rounding and zero where an element is clipped; `findings`, as a `Codec` has.
    """

    name: str
    version: str
    formats: Sequence[AnyFormat | str]
    schemes: Sequence[Quantization]

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        """The values that the elements of a float32 matrix stand for, float32."""


def _formats(schemes: Iterable[Quantization]) -> tuple[AnyFormat, ...]:
    return tuple(dict.fromkeys(scheme.element for scheme in schemes))


# --- Ours -------------------------------------------------------------------------------------------------------------

# Given scales and zero points: a power of two, so that there are ties, and one that float32 rounds.
_GIVEN = {"half": 0.5, "tenth": 0.1}
_PRESETS = {
    "onnx": {"division": "divide", "nan": "zero"},
    "torch_quantize": {"division": "reciprocal", "zero_point_order": "fused", "nan": "max"},
    "torch_fake_quantize": {"division": "reciprocal", "nan": "min"},
}


def _mx(name: str, element: str, rule: str = "ocp_floor", **more: Any) -> Quantization:
    found = {"granularity": "block", "block": 32, "scale_format": _E8M0, "rule": rule, "ragged": True, **more}
    return Quantization(name, P.get_format(element), **found)


def _nv(name: str, **more: Any) -> Quantization:
    e2m1, e4m3 = P.get_format("float4_e2m1fn"), P.get_format("float8_e4m3fn")
    found = {"granularity": "block", "block": 16, "scale_format": e4m3, "tensor_scale": True, "ragged": True, **more}
    return Quantization(name, e2m1, **found)


def _our_schemes() -> dict[Quantization, P.Scheme]:
    """What is claimed of each scheme of ours."""
    found: dict[Quantization, P.Scheme] = {}

    def add(claim: Quantization, scheme: str, **options: Any) -> None:
        found[claim] = P.scheme(scheme, **options)

    fp4 = "float4_e2m1fn"
    for name, element in (
        ("mxfp4", fp4), ("mxfp8_e4m3", "float8_e4m3fn"), ("mxfp8_e5m2", "float8_e5m2"),
        ("mxfp6_e3m2", "float6_e3m2fn"), ("mxfp6_e2m3", "float6_e2m3fn"),
    ):  # fmt: skip
        add(_mx(name, element), name)
    add(_mx("mxint8", "int8", fraction_bits=6), "mxint8")
    for name, element, rule in (
        ("mxfp4", fp4, "ceil"), ("mxfp4", fp4, "even"), ("mxfp4", fp4, "rceil"), ("mxfp4", fp4, "nvidia"),
        ("mxfp8_e4m3", "float8_e4m3fn", "rceil"), ("mxfp8_e4m3", "float8_e4m3fn", "even"),
        ("mxfp6_e2m3", "float6_e2m3fn", "nvidia"),
    ):  # fmt: skip
        add(_mx(f"{name}.{rule}", element, rule), name, scale_rule=rule)
    add(_mx("mxint8.rceil", "int8", "rceil", fraction_bits=6), "mxint8", scale_rule="rceil")
    add(_mx("mxfp4.pad", fp4, padded=True), "mxfp4", ragged="pad")
    add(_nv("nvfp4"), "nvfp4")
    add(_nv("nvfp4.te", division="any"), "nvfp4", recipe="te")
    smallest = P.get_format("float8_e4m3fn").smallest_normal
    add(_nv("nvfp4.torchao", division="any", smallest_scale=smallest), "nvfp4", recipe="torchao")
    int8, uint8, int4, e4m3 = (P.get_format(name) for name in ("int8", "uint8", "int4", "float8_e4m3fn"))
    add(Quantization("int8", int8), "int8")
    add(Quantization("int8.channel", int8, granularity="channel"), "int8", granularity="channel")
    add(
        Quantization("int8.restricted", int8, granularity="channel", restricted=True),
        "int8", granularity="channel", restricted=True,
    )  # fmt: skip
    two: Any = {"granularity": "channel", "rule": "ocp_floor"}
    add(Quantization("int8.power_of_two", int8, **two), "int8", granularity="channel", scale_format="power_of_two")
    add(Quantization("uint8.affine", uint8, rule="ends", symmetric=False), "uint8", symmetric=False)
    affine: Any = {"granularity": "block", "block": 32, "symmetric": False}
    claim = Quantization("int4.affine", int4, rule="ends", ragged=True, **affine)
    add(claim, "int4", **affine)
    half: Any = P.get_format("float16")
    claim = Quantization("int4.group", int4, granularity="block", block=24, scale_format=half, ragged=True)
    add(claim, "int4", block=24, scale_format="float16")
    add(Quantization("float8", e4m3), "float8_e4m3fn")
    add(Quantization("float8.channel", e4m3, granularity="channel"), "float8_e4m3fn", granularity="channel")
    add(_mx("mxfp4.columns", fp4), "mxfp4")
    add(_mx("mxfp8_e4m3.tiles", "float8_e4m3fn", ragged=False), "mxfp8_e4m3", block=(4, 8))
    add(_mx("mxfp6_e3m2.tensor", "float6_e3m2fn"), "mxfp6_e3m2")
    add(_nv("nvfp4.tensor"), "nvfp4")
    add(Quantization("int8.columns", int8, granularity="channel"), "int8", granularity="channel")
    add(Quantization("int4.affine.tensor", int4, rule="ends", ragged=True, **affine), "int4", **affine)
    for preset, claims in _PRESETS.items():
        for name, scale in _GIVEN.items():
            more: Any = {"rule": "given", "symmetric": False, "infinity": "clip", **claims}
            claim = Quantization(f"uint8.{preset}.{name}", uint8, scale=(scale,), zero_point=(127,), **more)
            add(claim, "uint8", preset=preset, scale=scale, zero_point=127)
    more = {"rule": "given", "symmetric": False, "infinity": "clip", "nan": "zero"}
    claim = Quantization(
        "int8.given", int8, granularity="channel", scale=(0.5, 0.1, 3.0), zero_point=(0, -7, 90), **more
    )
    options: Any = {"granularity": "channel", "symmetric": False}
    add(claim, "int8", scale=[0.5, 0.1, 3.0], zero_point=[0, -7, 90], **options)
    return found


class OurQuantizer:
    """`precision.quantize` and `precision.fake_quantize`, in schemes of every kind.

    In those named "...columns" scales run along the first axis of the matrix, turned; in "...tiles" a block of 32 is
    laid out as 4 rows of 8; "...tensor" is torch's.
    """

    def __init__(self) -> None:
        self.name = "ours"
        self.version = P.__version__
        self._schemes = _our_schemes()
        self.schemes: Sequence[Quantization] = tuple(self._schemes)
        self.formats: Sequence[AnyFormat | str] = _formats(self.schemes)

    def quantize(self, x: Array, scheme: Quantization) -> Quantized:
        there, back, axis = _layout(x, scheme)
        q = P.quantize(there(x), self._schemes[scheme], axis)
        moved = axis is not None or scheme.name.endswith("tiles")  # the codes are packed in another order
        scales, zeros = (a if a is None or axis is None else a.T for a in (q.scales, q.zero_points))
        packed = None if moved else q.packed
        return Quantized(back(q.dequantize()), back(q.codes), scales, zeros, q.tensor_scale, packed)

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        there, back, axis = _layout(x, scheme)
        values: Array = np.asarray(back(P.fake_quantize(there(x), self._schemes[scheme], axis)))
        return values

    def gradient(self, x: Array, scheme: Quantization) -> Array:
        import torch

        there, back, axis = _layout(x, scheme)
        leaf = torch.as_tensor(there(x)).requires_grad_()
        P.fake_quantize(leaf, self._schemes[scheme], axis).sum().backward()
        assert leaf.grad is not None
        found: Array = np.asarray(back(leaf.grad.numpy()))
        return found


def _layout(x: Array, scheme: Quantization) -> tuple[Callable[[Any], Any], Callable[[Any], Any], int | None]:
    """How a matrix is handed over, how what has its shape comes back, and the axis."""
    kind = scheme.name.rpartition(".")[2]
    if kind == "columns":
        axis = 0 if scheme.granularity == "block" else 1
        return (lambda a: np.ascontiguousarray(a.T)), (lambda a: a.T), axis
    if kind == "tiles":
        rows, columns = x.shape

        def there(a: Any) -> Any:
            return np.ascontiguousarray(a.reshape(rows, -1, 4, 8).transpose(0, 2, 1, 3)).reshape(rows * 4, -1)

        def back(a: Any) -> Any:
            return np.ascontiguousarray(a.reshape(rows, 4, -1, 8).transpose(0, 2, 1, 3)).reshape(rows, columns)

        return there, back, None
    if kind == "tensor" and scheme.granularity != "tensor":
        import torch

        return torch.from_numpy, (lambda a: a), None
    return (lambda a: a), (lambda a: a), None


# --- Peers ------------------------------------------------------------------------------------------------------------


class MlDtypesQuantizer:
    """`x.astype(ml_dtypes.int4)`, the cast, taken for a quantizer of scale 1; it truncates and wraps."""

    # Seen with ml_dtypes 0.6.0.
    findings: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "quantizers.no_other_value_is_nearer[*]",
            "quantizers.ties_are_broken_as_declared[*]",
            "quantizers.error_is_at_most_half_a_step[*]",
            "quantizers.elements_are_clipped_at_the_ends[*]",
            "quantizers.larger_elements_have_larger_values[*]",
            "quantizers.opposite_elements_have_opposite_values[*]",
            "extremes.infinities_go_to_the_end_of_their_sign[*]",
        ),
        "a cast to int4 or uint4 truncates and wraps",
    )

    def __init__(self) -> None:
        import ml_dtypes

        self.name = "ml_dtypes"
        self.version = ml_dtypes.__version__
        claims: Any = {"rule": "given", "scale": (1.0,), "infinity": "clip"}
        self.schemes = tuple(Quantization(name, P.get_format(name), **claims) for name in ("int4", "uint4"))
        self.formats = _formats(self.schemes)

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        import ml_dtypes

        with np.errstate(all="ignore"):
            values: Array = x.astype(getattr(ml_dtypes, scheme.element.name)).astype(np.float32)
        return values


class TorchQuantizer:
    """torch's `quantize_per_tensor` and `quantize_per_channel`, its fake quantization, and torch.ao's observers."""

    # Seen with torch 2.13.0 on a CPU.
    findings: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            (
                "quantizers.no_other_value_is_nearer[fake_quantize_per_channel]",
                "quantizers.elements_are_clipped_at_the_ends[fake_quantize_per_channel]",
                "quantizers.elements_are_those_of_the_declared_order[fake_quantize_per_channel]",
                "quantizers.larger_elements_have_larger_values[fake_quantize_per_channel]",
                "extremes.infinities_go_to_the_end_of_their_sign[fake_quantize_per_channel]",
            ),
            "x / scale of 2^63 and more, +Inf included, becomes the least integer",
        ),
        **dict.fromkeys(
            (
                "scales.scales_are_values_of_their_format[minmax_observer*]",
                "scales.scales_and_zero_points_hold_the_range[minmax_observer*]",
                "scales.zero_is_exact[minmax_observer*]",
            ),
            "high - low overflows float32, and so does the scale",
        ),
    }

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.name = "torch"
        self.version = str(torch.__version__)
        int8, uint8 = (P.get_format(name) for name in ("int8", "uint8"))
        given: Any = {"rule": "given", "symmetric": False, "infinity": "clip", "division": "reciprocal"}
        found = []
        for name, scale in _GIVEN.items():
            one: Any = {"scale": (scale,), "zero_point": (127,), **given}
            found += [
                Quantization(f"quantize_per_tensor.{name}", uint8, zero_point_order="fused", nan="max", **one),
                Quantization(f"fake_quantize_per_tensor.{name}", uint8, nan="min", **one),
            ]
        several: Any = {"granularity": "channel", "scale": (0.5, 0.1, 3.0), "zero_point": (0, -7, 90), **given}
        found += [
            Quantization(
                "quantize_per_channel", int8, zero_point_order="before_rounding", nan="integer_zero", **several
            ),
            Quantization("fake_quantize_per_channel", int8, nan="min", **several),
        ]
        if hasattr(torch, "ao") and hasattr(torch.ao, "quantization"):
            eps = float(np.finfo(np.float32).eps)
            measured: Any = {
                "rule": "ends", "symmetric": False, "division": "any", "zero_point_order": "any",
                "smallest_scale": eps, "infinity": "any",
            }  # fmt: skip
            found += [
                Quantization("minmax_observer", uint8, **measured),
                Quantization("minmax_observer.channel", int8, granularity="channel", **measured),
            ]
        self.schemes: Sequence[Quantization] = found
        self.formats = _formats(found)

    def _parameters(self, x: Any, scheme: Quantization) -> tuple[Any, Any]:
        torch = self._torch
        if scheme.scale:
            return torch.tensor(scheme.scale), torch.tensor(scheme.zero_point)
        ao = torch.ao.quantization
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if scheme.granularity == "tensor":
                observer = ao.MinMaxObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine)
            else:
                observer = ao.PerChannelMinMaxObserver(ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_affine)
            observer(x)
            scale, zero = observer.calculate_qparams()
        return scale, zero

    def _range(self, scheme: Quantization) -> tuple[int, int]:
        return int(scheme.element.min), int(scheme.element.max)

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        if not scheme.name.startswith("fake"):
            return self.quantize(x, scheme).values
        values: Array = self._fake(self._torch.from_numpy(x), scheme).numpy()
        return values

    def _fake(self, x: Any, scheme: Quantization) -> Any:
        torch, (scale, zero) = self._torch, self._parameters(x, scheme)
        low, high = self._range(scheme)
        if scheme.granularity == "tensor":
            return torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0].int(), low, high)
        return torch.fake_quantize_per_channel_affine(x, scale, zero.int(), 0, low, high)

    def quantize(self, x: Array, scheme: Quantization) -> Quantized:
        from properties.laws import Unsupported

        if scheme.name.startswith("fake"):
            raise Unsupported("fake_quantize gives no codes")
        torch, tensor = self._torch, self._torch.from_numpy(x)
        scale, zero = self._parameters(tensor, scheme)
        dtype = torch.qint8 if scheme.element.signed else torch.quint8
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if scheme.granularity == "tensor":
                q = torch.quantize_per_tensor(tensor, float(scale.reshape(())), int(zero.reshape(())), dtype)
                scale, zero = scale.reshape(()), zero.reshape(())
            else:
                q = torch.quantize_per_channel(tensor, scale, zero, 0, dtype)
            codes = q.int_repr().numpy().view(np.uint8)
            values = q.dequantize().numpy()
        return Quantized(values, codes, scale.numpy(), zero.numpy(), packed=codes.reshape(-1))

    def gradient(self, x: Array, scheme: Quantization) -> Array:
        from properties.laws import Unsupported

        if not scheme.name.startswith("fake"):
            raise Unsupported("only fake_quantize has a gradient")
        leaf = self._torch.from_numpy(x).requires_grad_()
        self._fake(leaf, scheme).sum().backward()
        found: Array = leaf.grad.numpy()  # type: ignore[union-attr]
        return found


class TorchaoQuantizer:
    """torchao's MX tensors, in each of its modes, and its NVFP4 tensors."""

    # Seen with torchao 0.18.0.
    findings: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            (
                "quantizers.no_other_value_is_nearer[mx*]",
                "quantizers.error_is_at_most_half_a_step[mx*]",
                "quantizers.elements_are_clipped_at_the_ends[mxfp4*]",
                "quantizers.what_was_quantized_stays[mx*]",
            ),
            "elements of a block whose scale is 2^-127 are divided by 2^-126",
        ),
        **dict.fromkeys(
            (
                "extremes.exponents_are_right_beside_powers_of_two[*.rceil]",
                "extremes.the_largest_element_is_not_clipped[*.rceil]",
            ),
            "RCEIL is ceil(log2(amax / max)) in float32, too small just above max * 2^k",
        ),
        "extremes.blocks_with_infinities_or_nan_are_nan[mx*]": "an Inf counts as a number of exponent 128",
        "extremes.zeros_give_zeros[nvfp4]": "the tensor scale of a tensor of zeros is 0, and 0 / 0 is NaN",
    }

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mx_tensor, nvfp4_tensor = (
                importlib.import_module(f"torchao.prototype.mx_formats.{name}")
                for name in ("mx_tensor", "nvfp4_tensor")
            )

        self._mx, self._nv = mx_tensor, nvfp4_tensor
        self.name = "torchao"
        self.version = importlib.metadata.version("torchao")
        smallest = P.get_format("float8_e4m3fn").smallest_normal
        rules = {"ocp_floor": "", "ceil": ".ceil", "even": ".even", "rceil": ".rceil"}
        found = [_mx(f"mxfp4{text}", "float4_e2m1fn", rule, ragged=False) for rule, text in rules.items()]
        found += [_mx(f"mxfp8_e4m3{text}", "float8_e4m3fn", rule, ragged=False) for rule, text in rules.items()]
        found += [
            _mx("mxfp8_e5m2", "float8_e5m2", ragged=False),
            _mx("mxfp6_e3m2", "float6_e3m2fn", ragged=False),
            _mx("mxfp6_e2m3", "float6_e2m3fn", ragged=False),
            _nv("nvfp4", division="any", smallest_scale=smallest, ragged=False, infinity="any"),
        ]
        self.schemes: Sequence[Quantization] = found
        self.formats = _formats(found)

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        return self.quantize(x, scheme).values

    def quantize(self, x: Array, scheme: Quantization) -> Quantized:
        import torch

        tensor = torch.from_numpy(x)
        if scheme.tensor_scale:
            total = self._nv.per_tensor_amax_to_scale(tensor.abs().max())
            q = self._nv.NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=total)
            packed = q.qdata.view(torch.uint8).numpy()
            codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(x.shape)
            scales = q.scale.float().reshape(x.shape[0], -1).numpy()
            return Quantized(
                q.dequantize(torch.float32).numpy(), codes, scales, None, total.numpy(), packed.reshape(-1)
            )
        elements: dict[str, Any] = {
            "float4_e2m1fn": torch.float4_e2m1fn_x2, "float8_e4m3fn": torch.float8_e4m3fn,
            "float8_e5m2": torch.float8_e5m2, "float6_e3m2fn": "fp6_e3m2", "float6_e2m3fn": "fp6_e2m3",
        }  # fmt: skip
        element = elements[scheme.element.name]
        mode = self._mx.ScaleCalculationMode[scheme.rule.removeprefix("ocp_").upper()]
        scale, data = self._mx.to_mx(tensor, element, scheme.block, mode)
        values = self._mx.to_dtype(data, scale, element, scheme.block, torch.float32).numpy()
        codes = data.view(torch.uint8).numpy().reshape(x.shape[0], -1)
        packed = codes.reshape(-1) if scheme.element.bits != 6 else None  # which are not packed
        if scheme.element.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(x.shape)
        exponents = scale.view(torch.uint8).numpy().astype(np.int64).reshape(x.shape[0], -1)
        scales = np.where(exponents == 255, np.nan, np.ldexp(1.0, exponents - 127)).astype(np.float32)
        return Quantized(values, codes, scales, packed=packed)


class GfloatQuantizer:
    """gfloat's block formats with its `compute_scale_amax`, block by block, on float32 arrays."""

    # Seen with gfloat 0.5.2.
    findings: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "scales.scales_follow_the_declared_rule[*]",
            "scales.powers_of_two_scale[*]",
            "extremes.exponents_are_right_beside_powers_of_two[*]",
        ),
        "floor(log2(amax)) in float32 is too large just below a power of two",
    )

    def __init__(self) -> None:
        import gfloat  # noqa: F401
        from gfloat import formats

        self._formats = formats
        self.name = "gfloat"
        self.version = importlib.metadata.version("gfloat")
        self.schemes = (
            _mx("mxfp4_e2m1", "float4_e2m1fn", infinity="any"),
            _mx("mxfp8_e4m3", "float8_e4m3fn", infinity="any"),
            _mx("mxfp6_e2m3", "float6_e2m3fn", infinity="any"),
        )
        self.formats = _formats(self.schemes)

    def fake_quantize(self, x: Array, scheme: Quantization) -> Array:
        return self.quantize(x, scheme).values

    def quantize(self, x: Array, scheme: Quantization) -> Quantized:
        from gfloat import block, decode_float

        info = getattr(self._formats, f"format_info_{scheme.name}")
        values, codes = np.zeros_like(x), np.zeros(x.shape, np.uint8)
        scales = np.zeros((x.shape[0], -(-x.shape[1] // scheme.block)), np.float32)
        with np.errstate(all="ignore"):
            for i, j in np.ndindex(*scales.shape):
                where = (i, slice(j * scheme.block, (j + 1) * scheme.block))
                scale = float(block.compute_scale_amax(info.etype.emax, x[where]))
                encoded = list(block.encode_block(info, scale, x[where] / np.float32(scale)))
                values[where] = np.fromiter(block.decode_block(info, encoded), float)
                scales[i, j] = decode_float(info.stype, encoded[0]).fval
                codes[where] = encoded[1:]
        return Quantized(values, codes, scales)


QUANTIZERS: dict[str, Callable[[], Any]] = {
    "ours": OurQuantizer,
    "ml_dtypes": MlDtypesQuantizer,
    "torch": TorchQuantizer,
    "torchao": TorchaoQuantizer,
    "gfloat": GfloatQuantizer,
}
"""The quantizers known by name."""
