"""Bit-exact low-precision numbers on NumPy and torch, CPU and GPU.

`import precision as P` loads NumPy only. Formats (`P.float8_e4m3fn`, `P.get_format`), rounding (`P.round_to`), codes
(`P.encode`, `P.decode`, `P.pack`), and the oracle they are proven against (`P.exact`).

>>> import numpy as np, precision as P
>>> P.round_to(np.float32([0.3, 1000.0]), P.float8_e4m3fn)
array([3.125e-01, 4.480e+02], dtype=float32)
"""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any as _Any

from precision.accumulate import Accumulator, dot, matmul, sum
from precision.arithmetic import Flags, add, convert, div, fma, mul, sqrt, sub
from precision.codec import (
    CLASSES,
    classify,
    decode,
    encode,
    from_dtype,
    next_down,
    next_up,
    pack,
    to_dtype,
    ulp,
    unpack,
    values,
)
from precision.formats import FORMATS, Format, IntFormat, formats, get_format
from precision.policies import POLICIES, ROUNDINGS, Policy, Rounding, get_policy, stochastic
from precision.rounding import round_to

try:
    __version__ = _version("halfulp")
except _PackageNotFoundError:  # a bare checkout on the path
    __version__ = "0+checkout"

_LAZY = (
    "bounds",
    "exact",
    "histogram",
    "inspection",
    "observers",
    "quantization",
    "scaling",
    "schemes",
    "tensor_cores",
)
_LAZY_NAMES = {
    "Quantized": "quantization",
    "Scheme": "schemes",
    "fake_quantize": "quantization",
    "identify_scale_rule": "scaling",
    "mma": "tensor_cores",
    "quantize": "quantization",
    "scheme": "schemes",
}

__all__ = [
    "CLASSES",
    "FORMATS",
    "POLICIES",
    "ROUNDINGS",
    "Accumulator",
    "Flags",
    "Format",
    "IntFormat",
    "Policy",
    "Quantized",
    "Rounding",
    "Scheme",
    "add",
    "bounds",
    "classify",
    "convert",
    "decode",
    "div",
    "dot",
    "encode",
    "exact",
    "fake_quantize",
    "fma",
    "formats",
    "from_dtype",
    "get_format",
    "get_policy",
    "histogram",
    "identify_scale_rule",
    "inspection",
    "matmul",
    "mma",
    "mul",
    "next_down",
    "next_up",
    "observers",
    "pack",
    "quantization",
    "quantize",
    "round_to",
    "scaling",
    "scheme",
    "schemes",
    "sqrt",
    "stochastic",
    "sub",
    "sum",
    "tensor_cores",
    "to_dtype",
    "ulp",
    "unpack",
    "values",
]


def __getattr__(name: str) -> _Any:
    """The formats by name, and the modules that are loaded when first used."""
    if name in FORMATS:
        return FORMATS[name]
    if name in _LAZY:
        return _import_module(f"precision.{name}")
    if name in _LAZY_NAMES:
        return getattr(_import_module(f"precision.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module 'precision' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FORMATS, *_LAZY, *_LAZY_NAMES})
