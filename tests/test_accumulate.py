"""Accumulators: the classics to the bit, and every order against a slow loop over the oracle."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import exact

parametrize = pytest.mark.parametrize
ORDERS = [
    {"order": "sequential"},
    {"order": "pairwise"},
    {"order": "blocked", "block": 3},
    {"order": "kahan"},
    {"order": "sequential", "products": "exact"},
    {"order": "blocked", "block": 4, "products": "exact"},
]


class Slow:
    """One number at a time, by the oracle: the definitions of the orders, spelled out."""

    def __init__(self, fmt: str, order: str, block: int = 0, products: str = "rounded", **how: Any) -> None:
        self.fmt, self.order, self.block, self.products, self.how = fmt, order, block, products, how

    def op(self, name: str, *operands: float) -> float:
        return float(getattr(exact, name)(*map(float, operands), self.fmt, **self.how))

    def run(self, terms: list[Any], step: Any) -> float:
        total = 0.0
        for term in terms:
            total = step(total, term)
        return total

    def total(self, terms: list[Any], step: Any = None) -> float:
        step = step or (lambda total, term: self.op("add", total, term))
        if self.order == "blocked":
            blocks = [self.run(list(block), step) for block in itertools.batched(terms, self.block)]
            return self.run(blocks, lambda total, term: self.op("add", total, term))
        if self.order == "pairwise":
            level = list(terms)
            while len(level) > 1:
                level = [self.op("add", *pair) if len(pair) == 2 else pair[0] for pair in itertools.batched(level, 2)]
            return self.op("add", level[0], 0.0) if level else 0.0
        if self.order == "kahan":
            total = lost = 0.0
            for term in terms:
                y = self.op("sub", term, lost)
                after = self.op("add", total, y)
                lost = self.op("sub", self.op("sub", after, total), y)
                total = after
            return total
        return self.run(terms, step)

    def dot(self, a: Any, b: Any) -> float:
        if self.products == "exact":
            return self.total(list(zip(a, b, strict=True)), lambda total, pair: self.op("fma", *pair, total))
        return self.total([self.op("mul", x, y) for x, y in zip(a, b, strict=True)])


if not hasattr(itertools, "batched"):  # Python 3.11

    def batched(items: Any, n: int) -> Any:
        items = list(items)
        return [tuple(items[i : i + n]) for i in range(0, len(items), n)]

    itertools.batched = batched  # type: ignore[attr-defined]


def operands(fmt: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    return P.round_to(x, fmt).astype(np.float32)


@parametrize("order", ORDERS, ids=lambda o: "-".join(map(str, o.values())))
@parametrize("fmt", ["float8_e4m3fn", "bfloat16", "float16", "float32"])
def test_every_order_is_the_slow_loop(fmt: str, order: dict[str, Any]) -> None:
    a, b = operands("float8_e4m3fn", (3, 11), 1), operands("float8_e4m3fn", (11, 2), 2)
    for rounding in ("nearest_even", "toward_zero"):
        accumulator = P.Accumulator(fmt, rounding=rounding, **order)
        slow = Slow(fmt, rounding=rounding, **order)
        want = np.array([[slow.dot(row, column) for column in b.T] for row in a])
        assert np.array_equal(P.matmul(a, b, accumulator=accumulator), want, equal_nan=True)
        assert np.array_equal(P.dot(a, b.T[:1], accumulator=accumulator), want[:, 0], equal_nan=True)
        sums = np.array([slow.total(list(row)) for row in a])
        assert np.array_equal(P.sum(a, accumulator=accumulator), sums, equal_nan=True)
        assert np.array_equal(P.sum(a.T, accumulator=accumulator, axis=0), sums, equal_nan=True)


@parametrize("n", range(10))
def test_lengths(n: int) -> None:
    x = operands("bfloat16", (n,), n)
    for order in ORDERS[:4]:
        assert P.sum(x, accumulator=P.Accumulator("bfloat16", **order)) == Slow("bfloat16", **order).total(list(x))


def test_ones_stop_where_the_spacing_is_two() -> None:
    ones = np.ones(5120, np.float32)
    for fmt, stop in (("bfloat16", 256), ("float16", 2048), ("float8_e4m3fn", 16), ("float32", 5120)):
        assert P.sum(ones, accumulator=fmt) == stop
    assert P.sum(ones, accumulator=P.Accumulator("bfloat16", order="pairwise")) == 5120
    assert P.sum(ones, accumulator=P.Accumulator("bfloat16", order="kahan")) == 5120
    assert P.sum(ones, accumulator=P.Accumulator("bfloat16", order="blocked", block=64)) == 5120
    assert (
        P.sum(ones, accumulator=P.Accumulator("bfloat16", rounding="toward_positive")) == 2.0**46
    )  # a binade in 128 steps
    assert P.sum(ones, accumulator=P.Accumulator("bfloat16", rounding="toward_zero")) == 256


def test_swamping_and_order() -> None:
    small_last, small_first = np.float32([2**11, *[0.5] * 64]), np.float32([*[0.5] * 64, 2**11])
    assert P.sum(small_last, accumulator="float16") == 2048
    assert P.sum(small_first, accumulator="float16") == 2080
    big = np.float32([1, 2**30, 1, -(2**30)])
    assert P.sum(big, accumulator="float32") == 0
    assert P.sum(big[[1, 3, 0, 2]], accumulator="float32") == 2
    assert P.dot(big, np.float32([1, 1, 1, 1]), accumulator="float64") == 2


def test_fused_products_keep_what_rounded_ones_lose() -> None:
    x = np.float32([1 + 2**-10, -(1 + 2**-9)])
    y = np.float32([1 + 2**-10, 1])
    assert P.dot(x, y, accumulator=P.Accumulator("float16", products="exact")) == 0
    assert P.dot(x[::-1], y[::-1], accumulator=P.Accumulator("float16", products="exact")) == 2**-20
    assert P.dot(x, y, accumulator="float16") == 0


def test_specials_and_signs_of_zero() -> None:
    inf, nan = np.inf, np.nan
    for x, want in (([inf, -inf], nan), ([nan, 1], nan), ([inf, 1], inf), ([60000, 60000, -60000], inf)):
        got = P.sum(np.float32(x), accumulator="float16")
        assert got == want or (np.isnan(got) and np.isnan(want))
    saturated = P.Accumulator("float16", policy="saturate")
    assert P.sum(np.float32([60000, 60000, -60000]), accumulator=saturated) == np.float32(5504)
    for order in ORDERS[:4]:
        assert np.signbit(P.sum(np.float32([-0.0]), accumulator=P.Accumulator("float16", **order))) == np.False_
        assert P.sum(np.zeros((2, 0), np.float32), accumulator=P.Accumulator("float16", **order)).tolist() == [0, 0]


@parametrize("order", ORDERS, ids=lambda o: "-".join(map(str, o.values())))
def test_tensors_batches_and_dtypes(order: dict[str, Any]) -> None:
    a, b = operands("bfloat16", (2, 1, 5, 7), 3), operands("bfloat16", (3, 7, 4), 4)
    accumulator = P.Accumulator("float32", **order)
    want = P.matmul(a, b, accumulator=accumulator)
    assert want.shape == (2, 3, 5, 4)
    assert np.array_equal(want[1, 2, 3:, :2], P.matmul(a[1, 0, 3:], b[2, :, :2], accumulator=accumulator))
    narrow = P.matmul(a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16), accumulator=accumulator)
    assert narrow.dtype == np.float32
    assert np.array_equal(narrow, want)
    tensors = torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16()
    got = P.matmul(*tensors, accumulator=accumulator)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), want)
    half = P.Accumulator("bfloat16", **order)
    assert P.matmul(*tensors, accumulator=half).dtype == torch.bfloat16
    assert np.array_equal(P.sum(tensors[0], accumulator=half, axis=2).float(), P.sum(a, accumulator=half, axis=2))


def test_large_pairwise_products_go_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands("bfloat16", (9, 6), 5), operands("bfloat16", (6, 4), 6)
    accumulator = P.Accumulator("bfloat16", order="pairwise")
    whole = P.matmul(a, b, accumulator=accumulator)
    monkeypatch.setattr("precision.accumulate.TILE", 50)
    assert np.array_equal(P.matmul(a, b, accumulator=accumulator), whole)


def test_counts_of_numpy_and_lists() -> None:
    ones = np.ones(64, np.float32)
    chosen = P.Accumulator("bfloat16", order="blocked", block=np.int64(8))  # type: ignore[arg-type]
    assert chosen == P.Accumulator("bfloat16", order="blocked", block=8)
    assert P.sum(ones, accumulator=chosen, axis=np.int8(0)) == 64  # type: ignore[arg-type]
    core = P.tensor_cores.get_accumulator("hopper.cublas.bfloat16")
    assert dataclasses.replace(core, slice_k=np.int64(32)) == dataclasses.replace(core, slice_k=32)
    for accumulator in ("bfloat16", "hopper.cublas.bfloat16"):
        assert P.dot([1.0, 2.0], [3.0, 4.0], accumulator=accumulator) == 11
        assert P.matmul([[1.0, 2.0]], [[3.0], [4.0]], accumulator=accumulator) == 11


def test_tensor_cores_by_name() -> None:
    a, b = operands("float8_e4m3fn", (4, 100), 7), operands("float8_e4m3fn", (100, 3), 8)
    name = "hopper.wgmma.float8_e4m3fn"
    want = P.tensor_cores.get_accumulator(name).matmul(a, b)
    assert want.shape == (4, 3)
    assert np.array_equal(P.matmul(a, b, accumulator=name), want)
    assert np.array_equal(P.dot(a, np.broadcast_to(b.T[0], a.shape), accumulator=name), want[:, 0])


@parametrize("arch", ["Hopper", "h100", "H200", "sm_90", "SM_90a"])
def test_architectures_have_the_names_that_instructions_take(arch: str) -> None:
    """A sum of bfloat16 stops at 256; the tensor core, whose sum is a float32, does not."""
    x = np.full((1, 16384), 0.75, np.float32)
    for rest in ("cublas.bfloat16", "wgmma.BFloat16"):
        assert P.matmul(x, x.T, accumulator=f"{arch}.{rest}") == 9216
        name = f"hopper.{rest.lower()}"
        assert P.tensor_cores.get_accumulator(f"{arch}.{rest}") == P.tensor_cores.get_accumulator(name)
        assert P.bounds.matmul_bound(x, x.T, f"{arch}.{rest}") == P.bounds.matmul_bound(x, x.T, name)
    split = P.tensor_cores.get_accumulator(f"{arch}.cublas.bfloat16.Split_k_1408.to_BF16")
    assert (split.name, split.slice_k) == ("hopper.cublas.bfloat16.split_k_1408.to_bf16", 1408)


X = np.ones((2, 3), np.float32)
LEADING = "leading dimensions do not broadcast"


@parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: P.matmul(X, X, accumulator="float32"),
            ValueError,
            r"a has shape \(2, 3\) and b \(2, 3\): a matrix prod",
        ),
        (lambda: P.dot(X, X[:, :2], accumulator="float32"), ValueError, "the last dimensions must be equal"),
        (lambda: P.sum(X, accumulator="float32", axis=2), ValueError, "axis is 2, and x has 2 dimensions"),
        (lambda: P.sum(np.float32(1), accumulator="float32"), ValueError, "axis is -1, and x has 0 dimensions"),
        (lambda: P.matmul(X, torch.ones(3, 2), accumulator="float32"), TypeError, "a is a ndarray, b is a Tensor"),
        (
            lambda: P.sum(X, accumulator="hopper.wgmma.bfloat16"),
            TypeError,
            "is a tensor core, which multiplies: use dot",
        ),
        (lambda: P.sum(X.astype(int), accumulator="float32"), TypeError, "dtype int64: convert it to a float dtype"),
        (
            lambda: P.matmul(X, X.T, accumulator="bfloat61"),
            ValueError,
            "unknown accumulator 'bfloat61': did you mean bflo",
        ),
        (lambda: P.matmul(X, X.T, accumulator="hopper.wgmma.float61"), ValueError, "hopper.wgmma"),
        (
            lambda: P.matmul(X, X.T, accumulator="hoper.cublas.float8_e4m3fn"),
            ValueError,
            "unknown accumulator 'hoper.cublas.float8_e4m3fn': did you mean hopper.cublas.float8_e4m3fn",
        ),
        (
            lambda: P.dot(X[0, 0], X[0, 0], accumulator="hopper.cublas.bfloat16"),
            ValueError,
            "the last dimensions must be",
        ),
        (
            lambda: P.dot(X, X[:, :2], accumulator="hopper.cublas.bfloat16"),
            ValueError,
            r"a has shape \(2, 3\) and b \(2, 2\)",
        ),
        *(
            (
                lambda n=n: P.dot(np.ones((2, 3)), np.ones((4, 3)), accumulator=n),
                ValueError,
                rf"b \(4, 3\): {LEADING}, \(2,\)",
            )
            for n in ("float32", "hopper.cublas.bfloat16")
        ),
        (
            lambda: P.matmul(np.ones((2, 1, 3)), np.ones((4, 3, 1)), accumulator="float32"),
            ValueError,
            rf"a has shape \(2, 1, 3\) and b \(4, 3, 1\): {LEADING}, \(2,\) and \(4,\)",
        ),
        *(
            (
                lambda axis=axis: P.sum(X, accumulator="float32", axis=axis),
                TypeError,
                "it must be an int: a sum goes along",
            )
            for axis in (None, "x", (0,), 0.5, True)
        ),
        *(
            (
                lambda n=n: P.matmul(np.ma.masked_array(X), X.T, accumulator=n),
                TypeError,
                "a is a masked array, whose mask",
            )
            for n in ("float32", "hopper.cublas.bfloat16")
        ),
        (lambda: P.sum(np.ma.masked_array(X), accumulator="float32"), TypeError, r"pass x.filled\(...\) or x.data"),
        (
            lambda: P.sum(torch.ones(3).to_sparse(), accumulator="float32"),
            TypeError,
            r"torch.sparse_coo: pass x.to_dense",
        ),
        *(
            (
                lambda n=n: P.matmul(torch.eye(3), torch.eye(3).to_sparse(), accumulator=n),
                TypeError,
                "layout of b is torch",
            )
            for n in ("float32", "hopper.cublas.bfloat16")
        ),
        (
            lambda: P.sum(X.astype(str), accumulator="float32"),
            TypeError,
            "; allowed are float16, bfloat16, float32 and float",
        ),
        (lambda: P.sum(X, accumulator="nonsense.float32"), ValueError, "unknown accumulator 'nonsense.float32'"),
        (lambda: P.Accumulator("hopper.cublas.bfloat16"), ValueError, "unknown format 'hopper.cublas.bfloat16'"),
        (
            lambda: P.sum(X, accumulator="fp8"),
            ValueError,
            "format 'fp8' is ambiguous: say float8_e4m3fn or float8_e5m2",
        ),
        (
            lambda: P.Accumulator("int32"),
            TypeError,
            "int32 is an integer format; integer sums are those of tensor_cores",
        ),
        (
            lambda: P.Accumulator("float32", order="random"),
            ValueError,
            "order is 'random'; it must be one of sequential",
        ),
        (lambda: P.Accumulator("float32", order="blocked"), ValueError, "takes a block of at least 1 term"),
        (lambda: P.Accumulator("float32", block=4), ValueError, "no other order takes one"),
        (lambda: P.Accumulator("float32", order="blocked", block=0), ValueError, "block=0"),
        (lambda: P.Accumulator("float32", products="fused"), ValueError, "products is 'fused'; it must be 'rounded'"),
        (
            lambda: P.Accumulator("float32", "kahan", products="exact"),
            ValueError,
            "chain of fused multiply-adds, which",
        ),
        (lambda: P.Accumulator("float32", rounding="stochastic"), ValueError, "stochastic rounding is P.stochastic"),
        (
            lambda: P.Accumulator("float32", rounding=P.stochastic(random_bits=0, bits=4)),  # type: ignore[arg-type]
            ValueError,
            "stochastic ones need bits",
        ),
        (lambda: P.Accumulator("float32", policy="strict"), ValueError, "unknown policy 'strict'"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
