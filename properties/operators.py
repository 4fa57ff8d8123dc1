"""Arithmetic and products of matrices that can be judged: the protocols, and adapters for this project and its peers.

An *arithmetic* computes add, sub, mul, div, sqrt or fma in a format and rounds the result to it. Like a codec it states
the `Policy` it claims for overflow, infinities, NaN and subnormals, and is judged by that.

A *dot* multiplies matrices, in one or several ways; each `Product` states its operands, what it adds in and in which
order, as far as it says so, and is judged by that.

Importing this module loads neither torch nor ml_dtypes: a subject loads what it needs.

>>> import numpy as np
>>> from properties.subjects import load
>>> ours = load("ours", "arithmetic")
>>> ours.apply("add", (np.float32([1]), np.float32([0.0625])), P.float8_e4m3fn, "nearest_even")
array([1.], dtype=float32)
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

import precision as P
from precision import Accumulator, tensor_cores
from precision.tensor_cores import TensorCore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from precision.policies import Policy

    Array = NDArray[Any]

__all__ = [
    "ARITHMETICS",
    "DOTS",
    "Arithmetic",
    "Dot",
    "MlDtypesArithmetic",
    "NumpyDot",
    "OurArithmetic",
    "OurDot",
    "Product",
    "TorchArithmetic",
    "TorchDot",
]


# --- Arithmetic -------------------------------------------------------------------------------------------------------


class Arithmetic(Protocol):
    """A set of operations, each rounded to a format: what every subject of the laws on arithmetic must offer.

    It may also have `findings`, a mapping from patterns of law ids that are known to be broken to what was found, which
    the pytest suite expects to fail.
    """

    name: str
    version: str
    formats: Sequence[AnyFormat | str]

    def policy(self, fmt: AnyFormat | str) -> Policy:
        """What it claims to do with overflow, infinity, NaN, subnormals, and results without a code."""

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        """The rounding modes it offers, by the names of `precision.ROUNDINGS`."""

    def operations(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        """What it computes, of add, sub, mul, div, sqrt and fma (a * b + c)."""

    def apply(self, operation: str, operands: tuple[Array, ...], fmt: AnyFormat, rounding: str) -> Array:
        """The results as float32 or float64 values, for arrays of one shape of values of `fmt`.

        The operands are float32, or float64 where that does not hold the format's values.
        """


class OurArithmetic:
    """`precision.add` and its siblings, under any one policy."""

    def __init__(self, policy: Policy | str = "ieee") -> None:
        self._policy = policy
        self.name = "ours" if policy == "ieee" else f"ours/{policy}"
        self.version = P.__version__
        self.formats: Sequence[AnyFormat | str] = tuple(f.name for f in P.formats() if isinstance(f, P.Format))

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy(self._policy, P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return P.ROUNDINGS

    def operations(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("add", "sub", "mul", "div", "sqrt", "fma")

    def apply(self, operation: str, operands: tuple[Array, ...], fmt: AnyFormat, rounding: str) -> Array:
        results: Array = getattr(P, operation)(*operands, fmt, rounding=rounding, policy=self._policy)
        return results


class MlDtypesArithmetic:
    """The operators of ml_dtypes' arrays, and NumPy's sqrt of them: computed in float32, and rounded.

    That is right wherever float32 neither overflows nor underflows: it has 2p + 2 digits and more (Figueroa, 1995).
    """

    # Seen with ml_dtypes 0.6.0.
    findings: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "arithmetic.error_is_at_most_half_an_ulp[float8_e8m0fnu]",
            "arithmetic.agrees_with_exact_rationals[float8_e8m0fnu]",
        ),
        "products and quotients below 2^-150 are zero in float32, which becomes NaN",
    )

    def __init__(self) -> None:
        import ml_dtypes

        self.name = "ml_dtypes"
        self.version = ml_dtypes.__version__
        self.formats = tuple(f.name for f in P.formats() if isinstance(f, P.Format) and hasattr(ml_dtypes, f.name))

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy("ml_dtypes", P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("nearest_even",)

    def operations(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("add", "sub", "mul", "div", "sqrt")

    def apply(self, operation: str, operands: tuple[Array, ...], fmt: AnyFormat, rounding: str) -> Array:
        compute: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
        with np.errstate(all="ignore"):
            result: Array = compute[operation](*(x.astype(fmt.numpy_dtype) for x in operands)).astype(np.float32)
        return result


class TorchArithmetic:
    """The operators of torch's tensors of 16 bits and more: computed in float32 where the dtype is narrower.

    There is no fma: `addcmul` says nothing about how it rounds.
    """

    def __init__(self, device: str = "cpu") -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("subject 'torch_cuda' needs a CUDA device, and torch finds none")
        self._torch = torch
        self._device = device
        self.name = "torch" if device == "cpu" else "torch_cuda"
        self.version = str(torch.__version__)
        self.formats = ("float64", "float32", "float16", "bfloat16")
        # Seen with torch 2.13.0 and its MKL 2024.2: sqrt(2.7626114) is one ulp off.
        mkl = device == "cpu" and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        self.findings = {pattern: "MKL's square root is not always the nearest" for pattern in _MKL_ROOTS if mkl}

    def policy(self, fmt: AnyFormat | str) -> Policy:
        return P.get_policy("torch", P.get_format(fmt))

    def roundings(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("nearest_even",)

    def operations(self, fmt: AnyFormat | str) -> tuple[str, ...]:
        return ("add", "sub", "mul", "div", "sqrt")

    def apply(self, operation: str, operands: tuple[Array, ...], fmt: AnyFormat, rounding: str) -> Array:
        x = [self._torch.from_numpy(part).to(self._device, fmt.torch_dtype) for part in operands]
        values: Array = getattr(self._torch, operation)(*x).to("cpu", self._torch.float64).numpy()
        return values


_MKL_ROOTS = (
    "arithmetic.error_is_at_most_half_an_ulp[float32]",
    "arithmetic.agrees_with_exact_rationals[float32]",
    "arithmetic.agrees_with_exact_rationals[float64]",
)


ARITHMETICS: dict[str, Callable[[], Any]] = {
    "ours": OurArithmetic,
    "ml_dtypes": MlDtypesArithmetic,
    "torch": TorchArithmetic,
    "torch_cuda": functools.partial(TorchArithmetic, "cuda"),
}
"""The arithmetics known by name. "ours/saturate" is ours under another policy."""


# --- Products of matrices ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """One way to multiply matrices, and what it claims.

    name         as it stands in law ids
    a, b         formats of the operands
    accumulator  how it adds: a `precision.Accumulator`, or a `precision.tensor_cores.TensorCore`; or only the format of
                 its sums, which are added in an order of the library's own. An integer format wraps
    output       the format that the sum is rounded to, once, to nearest even (None: that of the sums)
    """

    name: str
    a: AnyFormat
    b: AnyFormat
    accumulator: Accumulator | TensorCore | AnyFormat
    output: AnyFormat | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def core(self) -> TensorCore | None:
        """The tensor core, if it claims to be one."""
        return self.accumulator if isinstance(self.accumulator, TensorCore) else None

    @property
    def sums(self) -> AnyFormat:
        """The format of the sums."""
        if isinstance(self.accumulator, P.Format | P.IntFormat):
            return self.accumulator
        return P.get_format(self.accumulator.format)

    @property
    def result(self) -> AnyFormat:
        """The format of the result."""
        inner = self.core.output if self.core else None
        return self.output or inner or self.sums

    @property
    def order(self) -> str:
        """That of its accumulator, "groups" of a tensor core, "any" where none is claimed."""
        return "groups" if self.core else getattr(self.accumulator, "order", "any")

    @property
    def digits(self) -> int:
        """Significant bits of the sums."""
        if self.core is None or isinstance(self.sums, P.IntFormat):
            return self.sums.mantissa_bits + 1
        registers = self.core.promote or self.core.slice_k  # float32, whatever the instruction keeps
        return 24 if registers else self.core.instruction.result_bits


class Dot(Protocol):
    """Products of matrices: what every subject of the laws on dots must offer.

    `formats` are those of the left operands. It may have `findings`, as an `Arithmetic` has.
    """

    name: str
    version: str
    formats: Sequence[AnyFormat | str]
    products: Sequence[Product]

    def matmul(self, a: Array, b: Array, product: Product) -> Array:
        """a (M, K) times b (K, N), as float32, float64 or integer values of the product's result.

        Operands are float32, or float64 where that does not hold their format's values; of integer formats, too.
        """


def _formats(products: Iterable[Product]) -> tuple[AnyFormat, ...]:
    return tuple(dict.fromkeys(product.a for product in products))


def _ways(operand: str, **accumulators: Accumulator) -> list[Product]:
    """Products of an operand format with itself, named by it and the keyword."""
    fmt = P.get_format(operand)
    return [Product(f"{operand}.{name}", fmt, fmt, accumulator) for name, accumulator in accumulators.items()]


class OurDot:
    """`precision.matmul`: accumulators of every order, and every tensor core that differs from the others."""

    def __init__(self) -> None:
        self.name = "ours"
        self.version = P.__version__
        found = [
            *_ways(
                "float32",
                fma=Accumulator("float32", products="exact"),
                sequential=Accumulator("float32"),
                pairwise=Accumulator("float32", order="pairwise"),
            ),
            *_ways(
                "float16",
                float16=Accumulator("float16"),
                pairwise=Accumulator("float16", order="pairwise"),
                truncating=Accumulator("float16", products="exact", rounding="toward_zero"),
            ),
            *_ways(
                "bfloat16",
                bfloat16=Accumulator("bfloat16"),
                fma=Accumulator("bfloat16", products="exact"),
                pairwise=Accumulator("bfloat16", order="pairwise"),
                blocked=Accumulator("bfloat16", order="blocked", block=8),
                kahan=Accumulator("bfloat16", order="kahan"),
            ),
            *_ways(
                "float8_e4m3fn",
                float16=Accumulator("float16"),
                blocked=Accumulator("float32", order="blocked", block=16),
                down=Accumulator("float8_e5m2", rounding="toward_negative"),
            ),
            *_cores(),
        ]
        self.products: Sequence[Product] = found
        self.formats: Sequence[AnyFormat | str] = _formats(found)

    def matmul(self, a: Array, b: Array, product: Product) -> Array:
        accumulator: Any = product.accumulator
        result: Array = P.matmul(a, b, accumulator=accumulator)
        return result if product.output is None else P.round_to(result, product.output, policy="ieee")


def _cores() -> list[Product]:
    """One tensor core of each arithmetic, and some that saturate, split K or round their result."""
    different: dict[Any, TensorCore] = {}
    for name in tensor_cores.accumulators():
        core = tensor_cores.get_accumulator(name)
        row = core.instruction
        key = replace(row, arch="", name="", evidence="literature", k=row.k if row.emulated else row.group)
        different.setdefault(replace(core, name="", evidence="literature", instruction=key), core)
    saturating = tensor_cores.get_instruction("wgmma.m64n8k32.s32.s8.s8.satfinite", "hopper")
    more = [
        TensorCore("hopper.wgmma.int8.satfinite", saturating),
        tensor_cores.get_accumulator("hopper.cublas.bfloat16.to_bfloat16"),
        tensor_cores.get_accumulator("hopper.cublas.float16.split_k_32"),
    ]
    return [Product(core.name, *core.operands, core) for core in (*different.values(), *more)]


class NumpyDot:
    """NumPy's `@`: BLAS for float32 and float64, and ml_dtypes' arrays made float32; float16 by its own loop."""

    def __init__(self, *names: str) -> None:
        self.name = "ml_dtypes" if names else "numpy"
        self.version = importlib.metadata.version(self.name)
        formats = [P.get_format(name) for name in names or ("float64", "float32")]
        float32 = P.get_format("float32")
        found = [Product(f.name, f, f, float32 if f.bits < 32 else f) for f in formats]
        if not names:
            half = P.get_format("float16")
            found.append(Product("float16", half, half, Accumulator("float32"), half))
        self.products: Sequence[Product] = found
        self.formats: Sequence[AnyFormat | str] = _formats(found)

    def matmul(self, a: Array, b: Array, product: Product) -> Array:
        with np.errstate(all="ignore"):
            left, right = a.astype(product.a.numpy_dtype), b.astype(product.b.numpy_dtype)
            result: Array = (left @ right).astype(np.float64)
        return result


class TorchDot:
    """`torch.matmul` on the CPU, or on a CUDA device: sums in float32, or float64, in an order of its own.

    On a Hopper the sums of 16-bit operands are those of its tensor cores, as recorded of cuBLAS on an H200, when the
    product is large enough that K is not split: so operands are padded with zeros to 2048 rows and columns.
    """

    def __init__(self, device: str = "cpu") -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("subject 'torch_cuda' needs a CUDA device, and torch finds none")
        self._torch, self._device = torch, device
        self.name = "torch" if device == "cpu" else "torch_cuda"
        self.version = str(torch.__version__)
        self._hopper = device == "cuda" and torch.cuda.get_device_capability()[0] == 9
        formats = {name: P.get_format(name) for name in ("float64", "float32", "float16", "bfloat16")}
        found = [Product(n, f, f, formats["float32"] if f.bits < 32 else f, f) for n, f in formats.items()]
        if self._hopper:
            cores = {n: tensor_cores.get_accumulator(f"hopper.cublas.{n}") for n in ("float16", "bfloat16")}
            found[2:] = [Product(f"{n}.hopper", formats[n], formats[n], core, formats[n]) for n, core in cores.items()]
        if device == "cpu":
            found += [Product(f.name, f, f, f) for f in map(P.get_format, ("int8", "int32"))]
        self.products: Sequence[Product] = found
        self.formats: Sequence[AnyFormat | str] = _formats(found)

    def matmul(self, a: Array, b: Array, product: Product) -> Array:
        torch = self._torch
        (m, k), n = a.shape, b.shape[1]
        large = (2048, -(-k // 64) * 64) if self._hopper and product.core else (m, k)
        left = torch.zeros(large, dtype=product.a.torch_dtype, device=self._device)
        right = torch.zeros(
            (large[1], max(n, large[0]) if large != (m, k) else n), dtype=left.dtype, device=self._device
        )
        left[:m, :k] = torch.from_numpy(a).to(self._device, left.dtype)
        right[:k, :n] = torch.from_numpy(b).to(self._device, left.dtype)
        values: Array = torch.matmul(left, right)[:m, :n].to("cpu", torch.float64).numpy()
        return values


DOTS: dict[str, Callable[[], Any]] = {
    "ours": OurDot,
    "numpy": NumpyDot,
    "ml_dtypes": functools.partial(NumpyDot, "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
    "torch": TorchDot,
    "torch_cuda": functools.partial(TorchDot, "cuda"),
}
"""The products of matrices known by name."""
