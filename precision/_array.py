"""The private NumPy-or-torch seam: what an array holds, its bit patterns, and the few operations that rounding needs.

The algorithms of `rounding`, `codec` and `arithmetic` are written once, with Python operators and the few functions of
a back end: `where`, `float_pattern`, `wide` and `narrow` on integers, `as_float`, `as_pattern` and `sqrt` on float64.
The back ends are

* `NUMPY`: arrays, eagerly (this builds the lookup tables, and serves the wide formats);
* `TORCH`: tensors of any device, also while torch.compile traces;
* `Recorder`: writes each operation down as a line of source code, so that the same algorithm becomes one fused CUDA
  kernel (through torch's NVRTC jiterator) or one loop compiled by numba (the `fast` extra).

torch is never imported from here: it is used when the caller's array shows that it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)  # four objects, compared by identity
class Layout:
    """An IEEE 754 interchange format as a container of values: where its fields are in a bit pattern.

    Patterns are held in signed integers of `width` bits, 16-bit ones widened to 32 so that no operation overflows.
    """

    name: str
    bits: int
    mantissa_bits: int
    bias: int

    @property
    def width(self) -> int:
        return 64 if self.bits == 64 else 32

    @property
    def sign(self) -> int:
        """The sign bit, as the (negative, where it fills the integer) constant that Python operators need."""
        return 0x8000 if self.bits == 16 else -(1 << (self.bits - 1))

    @property
    def magnitude(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << (self.bits - 1 - self.mantissa_bits)) - 1) << self.mantissa_bits

    @property
    def implicit(self) -> int:
        """The smallest normal number; also the significand's implicit bit."""
        return 1 << self.mantissa_bits

    @property
    def quiet_nan(self) -> int:
        return self.infinity | (self.implicit >> 1)

    def pattern(self, significand: int, exponent: int) -> int:
        """The bit pattern of significand · 2^exponent (non-negative), which this format holds exactly."""
        if significand == 0:
            return 0
        leading = significand.bit_length() - 1
        binade = max(leading + exponent, 1 - self.bias)  # below the first, subnormals have its spacing
        shift = exponent - (binade - self.mantissa_bits)
        aligned = significand << shift if shift >= 0 else significand >> -shift
        return aligned + ((binade + self.bias - 1) << self.mantissa_bits)


FLOAT16 = Layout("float16", 16, 10, 15)
BFLOAT16 = Layout("bfloat16", 16, 7, 127)
FLOAT32 = Layout("float32", 32, 23, 127)
FLOAT64 = Layout("float64", 64, 52, 1023)
LAYOUTS = {layout.name: layout for layout in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)}
INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


class NumpyOps:
    """Integer arrays of the pattern's width, eagerly."""

    where = staticmethod(np.where)

    @staticmethod
    def float_pattern(integer: Any, layout: Layout) -> Any:
        """The pattern of a small positive integer: exact, and never subnormal, so safe from flush-to-zero."""
        return integer.astype(layout.name).view(f"int{layout.bits}")

    @staticmethod
    def wide(pattern: Any) -> Any:
        return pattern.astype(np.int64)

    @staticmethod
    def narrow(pattern: Any) -> Any:
        return pattern.astype(np.int32)

    @staticmethod
    def as_float(pattern: Any) -> Any:
        return pattern.view(np.float64)

    @staticmethod
    def as_pattern(x: Any) -> Any:
        return x.view(np.int64)

    sqrt = staticmethod(np.sqrt)


class TorchOps:
    """Integer tensors of the pattern's width, eagerly or while a compiler traces."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        torch = sys.modules["torch"]
        if isinstance(a, int) and isinstance(b, int):  # two plain numbers would become int64 whatever the width
            dtype = torch.int32 if all(-(2**31) <= v < 2**31 for v in (a, b)) else torch.int64
            a = torch.full((), a, dtype=dtype, device=condition.device)
        return torch.where(condition, a, b)

    @staticmethod
    def float_pattern(integer: Any, layout: Layout) -> Any:
        torch = sys.modules["torch"]
        if layout.bits == 64:
            return integer.to(torch.float64).view(torch.int64)
        return integer.to(torch.float32).view(torch.int32)

    @staticmethod
    def wide(pattern: Any) -> Any:
        return pattern.to(sys.modules["torch"].int64)

    @staticmethod
    def narrow(pattern: Any) -> Any:
        return pattern.to(sys.modules["torch"].int32)

    @staticmethod
    def as_float(pattern: Any) -> Any:
        return pattern.view(sys.modules["torch"].float64)

    @staticmethod
    def as_pattern(x: Any) -> Any:
        return x.view(sys.modules["torch"].int64)

    @staticmethod
    def sqrt(x: Any) -> Any:
        return x.sqrt()


NUMPY, TORCH = NumpyOps(), TorchOps()


class Recorder:
    """A back end that writes source code: each operation becomes one line, the whole algorithm one fused kernel."""

    def __init__(self, *, wide: bool) -> None:
        self.lines: list[str] = []
        self.is_wide = wide  # constants are 64-bit from here on

    def text(self, value: Any) -> str:
        return value.name if isinstance(value, Term) else self.constant(int(value))

    def emit(self, expression: str, *, real: bool = False) -> Term:
        name = f"t{len(self.lines)}"
        self.lines.append(self.assignment(name, expression))
        return Term(name, self, real)

    def constant(self, value: int) -> str:
        raise NotImplementedError

    def assignment(self, name: str, expression: str) -> str:
        raise NotImplementedError

    def arithmetic(self, expression: str) -> str:
        return expression


def _is_real(x: Any) -> bool:
    return isinstance(x, Term) and x.is_real


class CudaRecorder(Recorder):
    """CUDA C++, whose integers are `int` and `long long`."""

    def constant(self, value: int) -> str:
        lowest = -(1 << (63 if self.is_wide else 31))
        suffix = "LL" if self.is_wide else ""
        return f"({value + 1}{suffix} - 1)" if value == lowest else f"{value}{suffix}"

    def assignment(self, name: str, expression: str) -> str:
        return f"const auto {name} = {expression};"

    def where(self, condition: Any, a: Any, b: Any) -> Term:
        return self.emit(f"{self.text(condition)} ? {self.text(a)} : {self.text(b)}", real=_is_real(a))

    def float_pattern(self, integer: Any, layout: Layout) -> Term:
        if layout.bits == 64:
            return self.emit(f"__double_as_longlong((double){self.text(integer)})")
        return self.emit(f"__float_as_int((float){self.text(integer)})")

    def wide(self, pattern: Any) -> Term:
        self.is_wide = True
        return self.emit(f"(long long){self.text(pattern)}")

    def narrow(self, pattern: Any) -> Term:
        self.is_wide = False
        return self.emit(f"(int){self.text(pattern)}")

    def as_float(self, pattern: Any) -> Term:
        return self.emit(f"__longlong_as_double({self.text(pattern)})", real=True)

    def as_pattern(self, x: Any) -> Term:
        return self.emit(f"__double_as_longlong({self.text(x)})")

    def sqrt(self, x: Any) -> Term:
        return self.emit(f"sqrt({self.text(x)})", real=True)

    def float64_of(self, pattern: Any, layout: Layout) -> Term:
        """The float64 pattern of a float32 or bfloat16 one, by the hardware: exact, except for which NaN."""
        self.is_wide = True
        bits = self.text(pattern) if layout.bits == 32 else f"{self.text(pattern)} << 16"
        return self.emit(f"__double_as_longlong((double)__int_as_float((int)({bits})))")

    def odd_float32(self, pattern: Any) -> Term:
        """The float32 pattern of a float64 one, rounded to odd: cut, and its last bit set if that lost something."""
        x = self.emit(f"__longlong_as_double({self.text(pattern)})", real=True)
        cut = self.emit(f"__double2float_rz({x.name})", real=True)
        self.is_wide = False
        return self.emit(f"__float_as_int({cut.name}) | ((double){cut.name} != {x.name} ? 1 : 0)")

    def function(self, parameters: list[str], result: Any) -> str:
        """The recorded lines as the function template that torch's jiterator takes."""
        lines = "\n  ".join([*self.lines, f"return (T){self.text(result)};"])
        return f"template <typename T> T halfulp({', '.join(f'T {x}' for x in parameters)}) {{\n  {lines}\n}}"


class NumbaRecorder(Recorder):
    """Python for numba, which widens every sum of int32 to int64, half the SIMD lanes: each is cut back at once."""

    def constant(self, value: int) -> str:
        return f"{'int64' if self.is_wide else 'int32'}({value})"

    def assignment(self, name: str, expression: str) -> str:
        return f"{name} = {expression}"

    def arithmetic(self, expression: str) -> str:
        return f"{'int64' if self.is_wide else 'int32'}({expression})"

    def where(self, condition: Any, a: Any, b: Any) -> Term:
        return self.emit(f"{self.text(a)} if {self.text(condition)} else {self.text(b)}", real=_is_real(a))

    def float_pattern(self, integer: Any, layout: Layout) -> Term:
        return self.emit(f"float{layout.bits}({self.text(integer)}).view(int{layout.bits})")

    def wide(self, pattern: Any) -> Term:
        self.is_wide = True
        return self.emit(f"int64({self.text(pattern)})")

    def narrow(self, pattern: Any) -> Term:
        self.is_wide = False
        return self.emit(f"int32({self.text(pattern)})")

    def as_float(self, pattern: Any) -> Term:
        return self.emit(f"int64({self.text(pattern)}).view(float64)", real=True)

    def as_pattern(self, x: Any) -> Term:
        return self.emit(f"float64({self.text(x)}).view(int64)")

    def sqrt(self, x: Any) -> Term:
        return self.emit(f"sqrt({self.text(x)})", real=True)


def _operator(symbol: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    compares = symbol[0] in "<>=!" and symbol not in ("<<", ">>")

    def record(self: Term, other: Any) -> Term:
        r = self.recorder
        left, right = r.text(self), r.text(other)
        expression = f"{right} {symbol} {left}" if swapped else f"{left} {symbol} {right}"
        real = not compares and (self.is_real or _is_real(other))
        return r.emit(expression if compares or real else r.arithmetic(expression), real=real)

    return record


class Term:
    """One recorded value: a name in the source being written, and whether it is a floating-point number."""

    def __init__(self, name: str, recorder: Recorder, is_real: bool = False) -> None:
        self.name, self.recorder, self.is_real = name, recorder, is_real

    __hash__ = None  # type: ignore[assignment]
    __and__, __rand__ = _operator("&"), _operator("&", swapped=True)
    __xor__ = _operator("^")
    __or__, __ror__ = _operator("|"), _operator("|", swapped=True)
    __add__, __radd__ = _operator("+"), _operator("+", swapped=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", swapped=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", swapped=True)
    __truediv__ = _operator("/")
    __rshift__ = _operator(">>")
    __lshift__, __rlshift__ = _operator("<<"), _operator("<<", swapped=True)
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")
    __eq__, __ne__ = _operator("=="), _operator("!=")
