"""torch's quantizers and observers, torchao's and ONNX's, bit for bit; where they differ, exactly how.

torch 2.13 on x86: quantize_per_tensor multiplies by 1 / scale and adds the zero point in one fma, quantize_per_channel
rounds the product first, fake_quantize rounds before it adds. torchao and onnx are no dependencies of this project.
"""

from __future__ import annotations

import itertools
import logging
import math
import platform
import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import precision as P

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

Array = np.ndarray[Any, Any]
parametrize = pytest.mark.parametrize
INF, NAN = math.inf, math.nan
GIVEN = [(0.1, 3), (0.3, 1), (1 / 3, 5), (0.02351, 128), (7.123e-5, 0), (1.0, 1), (2.5, 255), (1e-30, 7), (1e30, 7)]
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere torch has other loops")


def hard(scale: float, seed: int = 0, special: bool = True) -> Array:
    """Ties of a scale, with float32 neighbours, random patterns, and what is no number."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        ties = ((rng.integers(-300, 500, 4000) + rng.choice([0, 0.5], 4000)) * scale).astype(np.float32)
        ties = (ties.view(np.int32) + rng.integers(-3, 4, 4000).astype(np.int32)).view(np.float32)
    random = rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([ties, random, np.float32([INF, -INF, NAN, -NAN, 0.0, -0.0, 1e-45, 3.4e38])])
    return x if special else x[np.isfinite(x)]


def quiet(call: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args)


# --- torch's integers -------------------------------------------------------------------------------------------------


@x86
@parametrize(("scale", "zero"), GIVEN)
@parametrize(("fmt", "dtype"), [("uint8", torch.quint8), ("int8", torch.qint8)])
def test_quantize_per_tensor(fmt: str, dtype: torch.dtype, scale: float, zero: int) -> None:
    zero -= 128 * (fmt == "int8")
    x = hard(scale)
    theirs = quiet(torch.quantize_per_tensor, torch.from_numpy(x), scale, zero, dtype)
    ours = P.quantize(x, P.scheme(fmt, preset="torch_quantize", scale=scale, zero_point=zero))
    want = theirs.int_repr().numpy().view(np.uint8)
    assert np.array_equal(ours.codes, want), x[ours.codes != want][:4]
    with np.errstate(all="ignore"):
        assert np.array_equal(ours.dequantize(), (ours.codes.view(want.dtype if fmt == "uint8" else np.int8).astype(np.float32) - zero) * np.float32(scale))  # fmt: skip
    in_torch = P.quantize(torch.from_numpy(x), P.scheme(fmt, preset="torch_quantize", scale=scale, zero_point=zero))
    assert np.array_equal(in_torch.codes.numpy(), want)


@x86
@parametrize("fmt", ["uint8", "int8"])
def test_quantize_per_channel(fmt: str) -> None:
    scales, zeros = (np.array(column) for column in zip(*GIVEN, strict=True))
    zeros = zeros - 128 * (fmt == "int8")
    x = np.stack([hard(s, i) for i, s in enumerate(scales)])
    dtype = torch.quint8 if fmt == "uint8" else torch.qint8
    theirs = quiet(torch.quantize_per_channel, torch.from_numpy(x), torch.tensor(scales), torch.tensor(zeros), 0, dtype)
    s = P.scheme(fmt, preset="torch_quantize", granularity="channel", scale=scales, zero_point=zeros)
    want = theirs.int_repr().numpy().view(np.uint8)
    got = P.quantize(x, s).codes
    assert np.array_equal(got, want), [(x[k], got[k], want[k]) for k in zip(*np.nonzero(got != want), strict=True)][:4]


@parametrize(("low", "high", "fmt"), [(0, 255, "uint8"), (-128, 127, "int8"), (-127, 127, "int8"), (-8, 7, "int4"), (0, 15, "uint4"), (-2, 1, "int2")])  # fmt: skip
def test_fake_quantize_per_tensor(low: int, high: int, fmt: str) -> None:
    for scale, zero in GIVEN:
        zero = min(max(zero, low), high)
        x = torch.from_numpy(hard(scale))
        theirs = torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high)
        s = P.scheme(fmt, preset="torch_fake_quantize", scale=scale, zero_point=zero, restricted=low == -127)
        ours = P.fake_quantize(x, s)
        wrong = ~((ours == theirs) | (ours.isnan() & theirs.isnan()))
        assert not wrong.any(), (scale, zero, x[wrong][:3], ours[wrong][:3], theirs[wrong][:3])


def test_fake_quantize_per_channel() -> None:
    scales, zeros = (torch.tensor(column) for column in zip(*GIVEN, strict=True))
    x = torch.from_numpy(np.stack([hard(float(s), i) for i, s in enumerate(scales)]))
    theirs = torch.fake_quantize_per_channel_affine(x, scales.float(), zeros.int(), 0, 0, 255)
    s = P.scheme("uint8", preset="torch_fake_quantize", granularity="channel", scale=scales, zero_point=zeros)
    ours = P.fake_quantize(x, s)
    finite = ~(x * (1 / scales.float())[:, None] >= 2.0**63)  # which become the least integer there
    assert torch.equal(ours[finite], theirs[finite])
    least = ((0.0 - zeros.float()) * scales.float())[:, None].expand_as(x)
    assert torch.equal(theirs[~finite], least[~finite])
    assert (ours[~finite] >= least[~finite]).all()


def test_where_they_differ() -> None:
    x = torch.tensor([2.5, NAN])
    assert torch.fake_quantize_per_tensor_affine(x, 1.0, 1, -128, 127).tolist() == [2.0, -129.0]
    assert quiet(torch.quantize_per_tensor, x, 1.0, 1, torch.qint8).dequantize().tolist() == [3.0, 126.0]
    found = {preset: P.quantize(x, P.scheme("int8", preset=preset, scale=1.0, zero_point=1)).dequantize().tolist() for preset in P.schemes.PRESETS}  # fmt: skip
    assert found == {"onnx": [2.0, 0.0], "torch_quantize": [3.0, 126.0], "torch_fake_quantize": [2.0, -129.0]}


@parametrize("gradient", ["clipped"])
@parametrize(("scale", "zero"), [(0.1, 3), (1.0, 1), (0.3, 0)])
def test_the_gradient_of_fake_quantize(gradient: str, scale: float, zero: int) -> None:
    x = hard(scale, special=False)
    mine, other = (torch.from_numpy(x.copy()).requires_grad_() for _ in range(2))
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal(x.size).astype(np.float32))
    s = P.scheme("uint8", preset="torch_fake_quantize", scale=scale, zero_point=zero)
    (P.fake_quantize(mine, s, gradient=gradient) * weights).sum().backward()
    (torch.fake_quantize_per_tensor_affine(other, scale, zero, 0, 255) * weights).sum().backward()
    assert mine.grad is not None
    assert other.grad is not None
    assert torch.equal(mine.grad, other.grad)


def test_the_learnt_scale_of_torch() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 500)
    scales, zeros = torch.tensor([0.1, 0.02, 0.3, 0.007]), torch.tensor([0.0, 3.0, -5.0, 0.0])
    weights = torch.randn_like(x)
    grads = []
    for ours in (True, False):
        a, s, z = (t.clone().requires_grad_() for t in (x, scales, zeros))
        if ours:
            made = P.scheme("int8", preset="torch_fake_quantize", granularity="channel", symmetric=False)
            y = P.fake_quantize(a, made, gradient="range", scale=s, zero_point=z)
        else:
            y = torch._fake_quantize_learnable_per_channel_affine(a, s, z, 0, -128, 127)
        (y * weights).sum().backward()
        grads.append((y.detach(), a.grad, s.grad, z.grad))
    (y, gx, gs, gz), (y2, gx2, gs2, gz2) = grads
    assert torch.equal(y, y2)
    assert torch.equal(gx, gx2)
    torch.testing.assert_close(gs, gs2, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gz, gz2, rtol=1e-4, atol=1e-5)


# --- torch's observers ------------------------------------------------------------------------------------------------


def ao() -> types.ModuleType:
    return pytest.importorskip("torch.ao.quantization.observer")


def batches(count: int = 5, shape: tuple[int, ...] = (6, 40)) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape) * (1 + i) for i in range(count)]


@parametrize("moving", [False, True])
@parametrize("per_channel", [False, True])
def test_observed_ranges(moving: bool, per_channel: bool) -> None:
    module, data = ao(), batches()
    name = ("MovingAverage" if moving else "") + ("PerChannel" if per_channel else "") + "MinMaxObserver"
    theirs = quiet(getattr(module, name))
    observer: Any = P.observers.MovingAverage(0.01) if moving else "absmax"
    run = P.observers.Calibration(
        P.scheme("uint8", granularity="channel" if per_channel else "tensor", symmetric=False, observer=observer)
    )
    for x in data:
        theirs(x)
        run.observe(x)
    assert run.known is not None
    for got, want in zip(run.known, (theirs.min_val, theirs.max_val), strict=True):
        want = want.numpy().reshape(-1)
        assert np.array_equal(got, want) if not moving else np.allclose(got, want, rtol=3e-7, atol=0)
    scale, zero = quiet(theirs.calculate_qparams)
    made = run.scheme()
    np.testing.assert_allclose(np.ravel(made.scale), scale.numpy().ravel(), rtol=5e-7)
    assert np.abs(np.ravel(made.zero_point) - zero.numpy().ravel()).max() <= 1


# --- torchao ----------------------------------------------------------------------------------------------------------


def torchao_mx() -> types.SimpleNamespace:
    logging.disable(logging.CRITICAL)  # compiled parts of other Pythons, which it cannot load
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("torchao")
            mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
            nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
            return types.SimpleNamespace(mx=mx, nvfp4=nvfp4)
    finally:
        logging.disable(logging.NOTSET)


RULES = {"FLOOR": "ocp_floor", "CEIL": "ceil", "EVEN": "even", "RCEIL": "rceil"}
MX = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2, "mxfp4": "float4_e2m1fn_x2", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2"}  # fmt: skip


def mx_data(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((512, 64)).astype(np.float32) * np.exp2(rng.integers(-90, 90, (512, 1))).astype(np.float32)
    x[::7, 3] = np.exp2(np.floor(np.log2(np.abs(x[::7]).max(1)))) * 2  # amax a power of two
    x[5, :32] = 0
    return x


@parametrize("mode", RULES)
@parametrize("name", MX)
def test_torchao_mx(name: str, mode: str) -> None:
    module = torchao_mx().mx
    element = getattr(torch, MX[name]) if name == "mxfp4" else MX[name]
    element = {
        "fp6_e2m3": getattr(module, "DTYPE_FP6_E2M3", None),
        "fp6_e3m2": getattr(module, "DTYPE_FP6_E3M2", None),
    }.get(element, element)
    x = mx_data(0)
    scale, data = quiet(module.to_mx, torch.from_numpy(x), element, 32, getattr(module.ScaleCalculationMode, mode))
    ours = P.quantize(x, P.scheme(name, scale_rule=RULES[mode]))
    codes = scale.view(torch.uint8).numpy().reshape(ours.scales.shape)
    want = data.view(torch.uint8).numpy()
    want = P.unpack(want.ravel(), "float4_e2m1fn", x.shape) if name == "mxfp4" else want.reshape(x.shape)
    differ = ours.scale_codes != codes
    if mode == "RCEIL":  # ceil(log2(amax / max)) in float32: too small next to max * 2^k in 0.18
        assert differ.sum() <= 8
        assert (codes[differ] < ours.scale_codes[differ]).all()
    else:
        assert not differ.any()
    same = np.repeat(~differ & (codes > 0), 32, axis=1)  # code 0, 2^-127, is treated as 2^-126 there
    assert np.array_equal(ours.codes[same], want[same])


def test_torchao_nvfp4() -> None:
    module = torchao_mx().nvfp4
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(256, 256).bfloat16().float()
        x[3], x[7, :16] = 0, 1e-6
        total = module.per_tensor_amax_to_scale(x.abs().max())
        scale, data = quiet(module.nvfp4_quantize, x, 16, total)
        ours = P.quantize(x, P.scheme("nvfp4", recipe="torchao"))
        assert ours.tensor_scale == total
        assert torch.equal(ours.scale_codes, scale.view(torch.uint8).reshape(ours.scales.shape))
        assert torch.equal(ours.packed, data.view(torch.uint8).ravel())


# --- ONNX -------------------------------------------------------------------------------------------------------------


def onnx_rounded(x: Array, scale: np.float32, zero: int, low: int, high: int) -> Array:
    """QuantizeLinear as its text says, in float32: saturate(round(x / scale) + zero_point), ties to even."""
    with np.errstate(all="ignore"):
        q = np.rint(x / scale).astype(np.float64) + zero
    return np.clip(q, low, high).astype(np.int64)


@parametrize("fmt", ["uint8", "int8", "int4", "uint4"])
def test_onnx_quantize_linear_by_its_text(fmt: str) -> None:
    f = P.get_format(fmt)
    for scale, zero in GIVEN:
        zero = int(min(max(zero, f.min), f.max))
        x = hard(scale)
        x = x[~np.isnan(x)]
        s = P.scheme(fmt, preset="onnx", scale=scale, zero_point=zero)
        want = onnx_rounded(x, np.float32(scale), zero, int(f.min), int(f.max))
        assert np.array_equal(P.quantize(x, s).codes, want & ((1 << f.bits) - 1)), (scale, zero)
        assert torch.equal(P.quantize(torch.from_numpy(x), s).codes, torch.from_numpy((want & ((1 << f.bits) - 1)).astype(np.uint8)))  # fmt: skip


@parametrize("fmt", ["uint8", "int8"])
def test_onnx_reference(fmt: str) -> None:
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference")
    kind = {"uint8": np.uint8, "int8": np.int8}[fmt]
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    node = onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    inputs = [onnx.helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", onnx.TensorProto.FLOAT, [None]), ("s", onnx.TensorProto.FLOAT, []), ("z", element, []))]  # fmt: skip
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.helper.make_tensor_value_info("y", element, [None])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    for (scale, zero), seed in itertools.product(GIVEN, range(2)):
        zero -= 128 * (fmt == "int8")
        x = hard(scale, seed, special=False)
        with np.errstate(all="ignore"):
            x = x[np.abs(x / np.float32(scale)) < 2.0**30]  # its reference converts to 32-bit integers
        (want,) = evaluator.ReferenceEvaluator(model).run(None, {"x": x, "s": np.float32(scale), "z": kind(zero)})
        assert np.array_equal(P.quantize(x, P.scheme(fmt, preset="onnx", scale=scale, zero_point=zero)).codes.view(kind), want)  # fmt: skip
