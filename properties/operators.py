"""Arithmetic and products of matrices that can be judged: the protocols, and adapters for this project and its peers.

An *arithmetic* computes add, sub, mul, div, sqrt or fma in a format and rounds the result to it. Like a codec it states
the `Policy` it claims for overflow, infinities, NaN and subnormals, and is judged by that.

Importing this module loads neither torch nor ml_dtypes: a subject loads what it needs.

>>> import numpy as np
>>> from properties.subjects import load
>>> ours = load("ours", "arithmetic")
>>> ours.apply("add", (np.float32([1]), np.float32([0.0625])), P.float8_e4m3fn, "nearest_even")
array([1.], dtype=float32)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

import precision as P

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from precision.policies import Policy

    Array = NDArray[Any]

__all__ = ["ARITHMETICS", "Arithmetic", "MlDtypesArithmetic", "OurArithmetic", "TorchArithmetic"]


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


class Dot(Protocol):
    """To come."""


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
        mkl = device == "cpu" and torch.backends.mkl.is_available()
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


DOTS: dict[str, Callable[[], Any]] = {}

ARITHMETICS: dict[str, Callable[[], Any]] = {
    "ours": OurArithmetic,
    "ml_dtypes": MlDtypesArithmetic,
    "torch": TorchArithmetic,
    "torch_cuda": functools.partial(TorchArithmetic, "cuda"),
}
"""The arithmetics known by name. "ours/saturate" is ours under another policy."""
