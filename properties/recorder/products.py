"""Whole products as torch's CUDA libraries compute them, to be judged by a model of the library's accumulation.

Source: `torch.mm`, `torch._scaled_mm`, and the settings that choose what they accumulate in. The models are
`precision.tensor_cores`, by the name that stands with each product; which kernel runs is the library's choice, and a
product small enough to be split along K is another one. See docs/silicon.md for what was observed on which GPU.

>>> from properties.recorder.products import PRODUCTS
>>> PRODUCTS["float8_e4m3fn fast_accum -> float32"].accumulator
'cublas.float8_e4m3fn.fast_accum'
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import precision as P
from precision import tensor_cores
from properties.recorder.findings import Array, Card, Finding, differing, operand, picked, to_numpy
from properties.recorder.nvrtc import Unavailable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["PRODUCTS", "Product", "on_gpu", "record", "replay"]

SIZE = 2048  # rows of A and columns of B: large enough that no library splits along K
BLOCK = 512  # of them, judged
KEPT = (16, 8, 1024)  # rows of A, columns of B, and the K of the products that a recording keeps
LENGTHS = (1024, 4096)
DISTRIBUTIONS = ("normal", "uniform")


@dataclass(frozen=True)
class Product:
    """A product: formats of A, B and the result, the model it is judged by, and how torch is asked for it."""

    a: str
    b: str
    out: str
    accumulator: str
    call: Callable[[Tensor, Tensor, torch.dtype], Tensor]


@contextlib.contextmanager
def _setting(owner: Any, name: str, value: object) -> Iterator[None]:
    if not hasattr(owner, name):
        raise Unavailable(f"this torch has no {name}")
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _plain(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    import torch

    return torch.mm(a, b)


def _wider(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    import torch

    try:
        return torch.mm(a, b, out_dtype=out)
    except TypeError as old:
        raise Unavailable(f"torch {torch.__version__} has no torch.mm(..., out_dtype=)") from old


def _in_half(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    import torch

    with _setting(torch.backends.cuda.matmul, "allow_fp16_accumulation", True):
        return torch.mm(a, b)


def _in_tf32(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def _scaled(*, fast: bool) -> Callable[[Tensor, Tensor, torch.dtype], Tensor]:
    def call(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
        import torch

        if torch.cuda.get_device_capability() < (8, 9):
            raise Unavailable("needs sm_89")
        one = torch.ones((), device=a.device)
        product: Tensor = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out, use_fast_accum=fast)
        return product

    return call


def _products() -> dict[str, Product]:
    found: dict[str, Product] = {}
    for fmt in ("bfloat16", "float16"):
        found[f"{fmt} -> float32"] = Product(fmt, fmt, "float32", f"cublas.{fmt}", _wider)
        found[f"{fmt} -> {fmt}"] = Product(fmt, fmt, fmt, f"cublas.{fmt}", _plain)
    half = "float16"
    found["float16 in float16"] = Product(half, half, half, "cublas.float16.fp16_accumulation", _in_half)
    found["float32 in tfloat32"] = Product("float32", "float32", "float32", "cublas.tfloat32", _in_tf32)
    b = "float8_e4m3fn"
    for a in (b, "float8_e5m2"):
        both = b if a == b else f"{a}.{b}"
        for fast in (True, False):
            for out in ("float32", "bfloat16"):
                name = f"{both}{' fast_accum' * fast} -> {out}"
                found[name] = Product(a, b, out, f"cublas.{both}{'.fast_accum' * fast}", _scaled(fast=fast))
    return found


PRODUCTS: Mapping[str, Product] = _products()


def on_gpu(name: str, a: Tensor, bt: Tensor) -> Tensor:
    """A B for codes of A (M, K) and of B with its columns as rows (N, K), in codes; raises Unavailable."""
    import torch

    product = PRODUCTS[name]
    left, right, out = (getattr(torch, name) for name in (product.a, product.b, product.out))
    result = product.call(a.view(left), bt.view(right).t(), out)
    return result.view(torch.uint16 if result.element_size() == 2 else torch.uint32)


def record(card: Card, arrays: dict[str, Array], name: str, seed: int) -> Finding:
    """Multiply matrices of 2048 rows and columns, normal and uniform, and judge a block of each product."""
    import torch

    product, generator = PRODUCTS[name], torch.Generator(card.device).manual_seed(seed)
    tally = _Tally(name, card.architecture)
    start = time.perf_counter()
    for k in LENGTHS:
        for distribution in DISTRIBUTIONS:
            drawing = torch.randn if distribution == "normal" else torch.rand
            a, bt = (
                P.encode(drawing(SIZE, k, generator=generator, device=card.device), fmt)
                for fmt in (product.a, product.b)
            )
            try:
                got = card.multiply(name, a, bt)
            except (Unavailable, RuntimeError) as lacking:  # torch refuses what a library lacks by RuntimeError
                return Finding("product", name, note=f"not recorded: {' '.join(str(lacking).split())[:120]}")
            if k == KEPT[2]:
                rows, columns = slice(KEPT[0]), slice(KEPT[1])
                kept = {"a": a[rows], "bt": bt[columns], "out": got[rows, columns]}
                arrays |= {f"product/{name}/{distribution}/{part}": to_numpy(x) for part, x in kept.items()}
            block = slice(BLOCK)
            tally.judge(a[block], bt[block], got[block, block], distribution)
    return replace(tally.finding(), seconds=round(time.perf_counter() - start, 3))


def replay(arrays: dict[str, Array], finding: Finding, architecture: str) -> Finding:
    """Judge the kept part of a product again."""
    tally = _Tally(finding.name, architecture)
    for distribution in DISTRIBUTIONS:
        stem = f"product/{finding.name}/{distribution}"
        if f"{stem}/a" in arrays:
            a, bt, got = (arrays[f"{stem}/{part}"] for part in ("a", "bt", "out"))
            tally.judge(a, bt, got, distribution)
    return tally.finding() if tally.outputs else finding


class _Tally:
    """Counts what differs of a product from the model of its accumulation."""

    def __init__(self, name: str, architecture: str) -> None:
        self.name, self.product = name, PRODUCTS[name]
        self.outputs = self.mismatches = 0
        self.first: dict[str, Any] | None = None
        self.note = ""
        try:
            self.model: Any = tensor_cores.get_accumulator(f"{architecture}.{self.product.accumulator}")
        except ValueError:
            self.model, self.note = None, f"not judged: there is no model of it for {architecture}"

    def judge(self, a: Any, bt: Any, got: Any, where: str) -> None:
        """Compare codes of a product with the model's, all of one library and device."""
        self.outputs += got.shape[0] * got.shape[1]
        if self.model is None:
            return
        product = self.product
        values = self.model.matmul(P.decode(a, product.a), P.decode(bt, product.b).swapaxes(-1, -2))
        expected = P.encode(values, product.out, policy="ieee")
        count, at = differing(got, expected, 1)
        self.mismatches += count
        if count and self.first is None:
            i, j = (int(x[0]) for x in at)
            self.first = {"where": f"of {where} operands, K = {a.shape[1]}, row {i}, column {j}"}
            self.first |= {n: operand(picked(x, at), product.out) for n, x in (("got", got), ("expected", expected))}

    def finding(self) -> Finding:
        """The verdict."""
        return Finding(
            "product", self.name, self.outputs, None if self.model is None else self.mismatches, self.note, self.first
        )
