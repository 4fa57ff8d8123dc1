"""`fake_quantize`: the values of `quantize`, gradients against their formulas, and the same bits compiled."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import precision as P

# torch's compiler imports modules of its own that it has deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore:.*should not be instantiated:DeprecationWarning"
)

parametrize = pytest.mark.parametrize

SCHEMES = {
    **{name: P.scheme(name) for name in P.schemes.SCHEMES},
    "te": P.scheme("nvfp4", recipe="te"), "torchao": P.scheme("nvfp4", recipe="torchao"),
    "channel": P.scheme("int8", granularity="channel"), "row": P.scheme("int4", granularity="row", scale_format="bfloat16"),
    "group": P.scheme("uint4", block=8, symmetric=False), "tiles": P.scheme("float8_e4m3fn", block=(2, 4)),
    "given": P.scheme("int8", preset="torch_quantize", scale=0.05, zero_point=-5), "onnx": P.scheme("uint8", preset="onnx", scale=0.05, zero_point=3),
    "before": P.scheme("uint4", symmetric=False, zero_point_order="before_rounding"), "finite": P.scheme("mxfp4", nonfinite="finite"),
    "two levels": P.scheme("int8", block=8, tensor_scale=True), "toward zero": P.scheme("mxfp8_e4m3", rounding="toward_zero"),
    "rceil": P.scheme("mxfp4", scale_rule="rceil"), "power": P.scheme("int4", scale_format="power_of_two", block=8),
}  # fmt: skip


def sample(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (4, 64), special: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape) * 2.0 ** torch.randint(-4, 5, shape)
    if special:
        x[0, 0], x[1, 3], x[2, 5], x[3, 1:4] = math.inf, math.nan, -math.inf, torch.tensor([-0.0, 1e-45, 1e-39])
    return x.to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    __tracebackhide__ = True
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    wrong = a.detach().contiguous().view(whole) != b.detach().contiguous().view(whole)
    assert not wrong.any(), (wrong.nonzero()[:4], a[wrong][:4], b[wrong][:4])


# --- Values and straight-through gradients ----------------------------------------------------------------------------


@parametrize("name", SCHEMES)
def test_values_are_those_of_quantize_with_and_without_a_gradient(name: str) -> None:
    s = SCHEMES[name]
    for dtype, special in itertools.product((torch.float32, torch.bfloat16, torch.float64), (False, True)):
        x = sample(dtype, special=special)
        want = P.quantize(x, s).dequantize()
        same(P.fake_quantize(x, s), want)
        for gradient in ("clipped", "pass"):
            same(P.fake_quantize(x.clone().requires_grad_(), s, gradient=gradient), want)
        with torch.no_grad():
            assert not P.fake_quantize(x.clone().requires_grad_(), s).requires_grad


@parametrize("name", SCHEMES)
def test_the_gradient_is_zero_exactly_where_something_was_clipped(name: str) -> None:
    s = SCHEMES[name]
    x = sample().requires_grad_()
    weights = torch.randn_like(x)
    y = P.fake_quantize(x, s)
    (y * weights).sum().backward()
    assert x.grad is not None
    passed = x.grad != 0
    assert torch.equal(x.grad[passed], weights[passed])
    # what was not clipped is within a step of its value; what was, is the end of its block's range
    q = P.quantize(x.detach(), s)
    report = q.report(x.detach())
    if s.rounding == "nearest_even" and "torch" not in name and name not in ("te", "given"):
        assert abs(int((~passed).sum()) - report["clipped"]) <= 1
    assert (y.detach()[~passed].abs() <= x.detach()[~passed].abs()).all()
    other = sample().requires_grad_()
    (P.fake_quantize(other, s, gradient="pass") * weights).sum().backward()
    assert other.grad is not None
    assert torch.equal(other.grad, weights)


def test_clipped_elements_by_hand() -> None:
    x = torch.tensor([[960.0, 957.0, 895.0, 1.0, 928.0, 927.0]], requires_grad=True)
    P.fake_quantize(x, "mxfp8_e4m3").sum().backward()  # scale 2: 480, 478.5, 447.5, .5, 464 (a tie, to 448), 463.5
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0, 1, 1, 1, 1]]
    x = torch.tensor([127.4, 127.5, -128.5, -128.6, -129.0, math.inf, math.nan, 0.0], requires_grad=True)
    P.fake_quantize(x, P.scheme("int8", scale=1.0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 0, 1, 0, 0, 0, 0, 1]  # -128.5 is rounded to the even -128
    x = torch.tensor([7.5, -8.5, 8.0], requires_grad=True)
    P.fake_quantize(x, P.scheme("int4", scale=1.0, rounding="toward_zero")).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 0]
    for rounding, grads in (("nearest_even", [0, 0, 1]), ("toward_zero", [1, 1, 1]), ("toward_positive", [0, 0, 0])):
        x = torch.tensor([[7.5, 7.0, 6.5]], requires_grad=True)  # scale 1; after 6 the grid goes on with 8
        P.fake_quantize(x, P.scheme("mxfp4", rounding=rounding)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [grads]


@parametrize(("preset", "x", "grad"), [("torch_quantize", -1.5, 1), ("torch_quantize", -1.625, 0), ("torch_fake_quantize", -1.5, 0), ("onnx", -1.5, 0), ("torch_quantize", -0.5, 1), ("onnx", -0.5, 1), ("torch_quantize", 253.5, 1), ("onnx", 254.5, 1), ("torch_quantize", 254.5, 0)])  # fmt: skip
def test_ties_at_the_ends_of_the_range(preset: str, x: float, grad: float) -> None:
    """With zero point 1: round(x) + 1, or round(x + 1), in 0 to 255."""
    a = torch.tensor([x], requires_grad=True)
    P.fake_quantize(a, P.scheme("uint8", preset=preset, scale=1.0, zero_point=1)).sum().backward()
    assert a.grad is not None
    order = round(x) + 1 if preset != "torch_quantize" else round(x + 1)
    assert (0 <= order <= 255) == bool(grad)
    assert a.grad.tolist() == [grad]


def test_one_rounding_or_two_at_the_end_of_the_range() -> None:
    """1.55 * 10 - 8 is just below 7.5, and rounded to 7; 1.55 * 10 in float32 is 15.5, and 7.5 is rounded to 8."""
    for preset, grad in (("torch_quantize", 1), ("torch_fake_quantize", 0), ("onnx", 1)):
        a = torch.tensor([1.55], requires_grad=True)
        P.fake_quantize(a, P.scheme("int4", preset=preset, scale=0.1, zero_point=-8)).sum().backward()
        assert a.grad is not None
        assert a.grad.tolist() == [grad]
        codes = P.quantize(a.detach(), P.scheme("int8", preset=preset, scale=0.1, zero_point=-8)).codes
        assert codes.tolist() == [7 if grad else 8]


def test_blocks_with_nan_have_no_gradient() -> None:
    x = sample(special=True).requires_grad_()
    P.fake_quantize(x, "mxfp4").sum().backward()
    assert x.grad is not None
    assert not x.grad[0, :32].any()
    assert not x.grad[1, :32].any()
    assert x.grad[1, 32:].any()
    assert torch.isfinite(x.grad).all()


# --- The learnt range -------------------------------------------------------------------------------------------------


@parametrize(("granularity", "shape"), [("tensor", ()), ("channel", (4,)), ("row", (4,)), ("block", (4, 8))])
@parametrize("name", ["int4", "float4_e2m1fn", "float8_e4m3fn"])
def test_the_gradient_of_a_scale_by_its_formula(name: str, granularity: str, shape: tuple[int, ...]) -> None:
    x = sample(torch.float64).requires_grad_()
    scale = (torch.rand(shape, dtype=torch.float64) * 0.5 + 0.1).float().requires_grad_()
    weights = torch.randn(x.shape, dtype=torch.float64)
    s = P.scheme(name, granularity=granularity, **({"block": 8} if granularity == "block" else {}))
    y = P.fake_quantize(x, s, gradient="range", scale=scale)
    (y * weights).sum().backward()
    assert scale.grad is not None
    assert x.grad is not None
    wide = scale.detach().double()
    each = wide.reshape(*shape, *[1] * (2 - len(shape))) if granularity != "block" else wide.repeat_interleave(8, 1)
    n = y.detach() / each
    inside = x.grad != 0
    slope = torch.where(inside, n - x.detach() / each, n) * weights
    want = (
        slope.sum()
        if granularity == "tensor"
        else slope.sum(1)
        if granularity != "block"
        else slope.reshape(4, 8, 8).sum(2)
    )
    torch.testing.assert_close(scale.grad.double(), want, rtol=1e-5, atol=1e-5)
    assert scale.grad.shape == scale.shape


def test_the_smooth_parts_by_finite_differences() -> None:
    """Where an element is clipped, y = (n - z) s is smooth in s and, through s (n - z), in z; inside x's slope is 1."""
    s = P.scheme("uint4", symmetric=False)
    x = torch.tensor([100.0, 50.0, -80.0, 33.0], dtype=torch.float64)  # all clipped, at 15 and at 0
    scale, zero = torch.tensor(0.5, requires_grad=True), torch.tensor(6.0, requires_grad=True)
    y = P.fake_quantize(x, s, gradient="range", scale=scale, zero_point=zero)
    y.sum().backward()
    assert scale.grad is not None
    assert zero.grad is not None

    def total(step: float, point: float) -> float:
        return float(P.fake_quantize(x, s, scale=step, zero_point=int(point)).sum())

    assert scale.grad.item() == pytest.approx((total(0.5 + 2**-10, 6) - total(0.5 - 2**-10, 6)) / 2**-9, rel=1e-6)
    assert zero.grad.item() == pytest.approx((total(0.5, 7) - total(0.5, 5)) / 2, rel=1e-6)


def test_gradcheck_where_all_is_clipped() -> None:
    x = torch.tensor([100.0, -50.0, 80.0], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64, requires_grad=True)
    s = P.scheme("int4", granularity="channel")
    # the scale is held in float32, so steps must be seen there
    assert torch.autograd.gradcheck(
        lambda a, b: P.fake_quantize(a, s, gradient="range", scale=b), (x, scale), eps=2**-8, atol=1e-5
    )
    assert torch.autograd.gradcheck(lambda a: P.fake_quantize(a, P.scheme("int4", scale=0.5)), (x,), eps=1e-3)


def test_training_a_scale_finds_one_of_small_error() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000)
    scale = torch.tensor(1.0, requires_grad=True)
    s = P.scheme("int4")
    optimizer = torch.optim.Adam([scale], lr=0.01)
    errors = []
    for _ in range(120):
        optimizer.zero_grad()
        error = (P.fake_quantize(x, s, gradient="range", scale=scale) - x).square().mean()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    best = min((P.fake_quantize(x, s, scale=float(v)) - x).square().mean().item() for v in np.linspace(0.1, 1, 91))
    assert errors[0] > 4 * best
    assert errors[-1] < 1.1 * best


def test_scales_given_to_fake_quantize() -> None:
    x = sample()
    for scale in (0.5, np.float32(0.5), torch.tensor(0.5)):
        same(P.fake_quantize(x, "int8", scale=scale), P.quantize(x, P.scheme("int8", scale=0.5)).dequantize())
    y = P.fake_quantize(x.numpy(), P.scheme("uint8", symmetric=False), scale=0.5, zero_point=7)
    assert np.array_equal(y, P.quantize(x.numpy(), P.scheme("uint8", scale=0.5, zero_point=7)).dequantize())


# --- Compiled ---------------------------------------------------------------------------------------------------------


def compiled_is_eager(s: Any, dtype: torch.dtype, backend: str, special: bool = True) -> None:
    __tracebackhide__ = True
    x = sample(dtype, special=special)
    torch._dynamo.reset()
    run = torch.compile(lambda t: P.fake_quantize(t, s), fullgraph=True, backend=backend)
    same(run(x), P.fake_quantize(x, s))


def test_a_scheme_by_name_is_traced() -> None:
    compiled_is_eager("mxfp4", torch.float32, "eager")


def test_compiled_is_eager() -> None:
    compiled_is_eager(SCHEMES["mxfp8_e4m3"], torch.float32, "inductor")


@parametrize("name", ["nvfp4", "torchao", "channel", "group", "given", "two levels"])
def test_traced_is_eager(name: str) -> None:
    compiled_is_eager(SCHEMES[name], torch.float32, "eager")


@pytest.mark.exhaustive
@parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@parametrize("name", SCHEMES)
def test_every_scheme_compiled_is_eager(name: str, dtype: torch.dtype) -> None:
    compiled_is_eager(SCHEMES[name], dtype, "inductor")


@parametrize("gradient", ["clipped", "range"])
def test_gradients_compiled(gradient: str) -> None:
    s = P.scheme("int8", granularity="channel")
    weights = torch.randn(4, 64)

    def run(call: Any) -> tuple[torch.Tensor, ...]:
        x, scale = sample().requires_grad_(), torch.full((4,), 0.02).requires_grad_()
        more = {"gradient": "range", "scale": scale} if gradient == "range" else {}
        (call(x, more) * weights).sum().backward()
        return tuple(t.grad for t in (x, scale) if t.grad is not None)

    def call(x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        y: torch.Tensor = P.fake_quantize(x, s, **more)
        return y

    torch._dynamo.reset()
    for got, want in zip(run(torch.compile(call, fullgraph=True, backend="aot_eager")), run(call), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_an_observer_cannot_be_traced() -> None:
    with pytest.raises(Exception, match="an observer cannot be traced"):
        compiled_is_eager(P.scheme("int8", observer="mse"), torch.float32, "eager")
