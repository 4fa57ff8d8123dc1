"""Operands for matrix instructions, drawn on the device: random ones, and those that tell one arithmetic from another.

Codes are drawn, not floats: sign, exponent and significand each by itself, in the formats of the instruction. `FLOATS`
and `INTEGERS` are the classes, a function each; a draw has the same number of batch elements of every class.

Source: the classes aim at what tensor cores are known to differ in, by Fasi, Higham, Mikaitis and Pranesh, PeerJ CS
7:e330 (2021), and Khattak and Mikaitis, arXiv 2512.07004: bits kept in alignment, the floor of its exponent,
normalisation, subnormals, order, output rounding, special values.

>>> from properties.recorder.operands import FLOATS, draw
>>> a, bt, c, classes = draw("f32", "f16", "f16", k=16, m=64, n=8, per_class=1, seed=0, device="cpu")
>>> a.shape[0] == len(FLOATS), classes[:2], a.dtype
(True, ['normal', 'uniform'], torch.uint16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import precision as P

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

__all__ = ["FLOATS", "INTEGERS", "draw"]

PATTERNS: Mapping[str, str] = {
    "f32": "float32",
    "tf32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""PTX types to formats in which codes are drawn: a tf32 operand is a float32 word."""


class Floats:
    """Draws codes of one format as int64, of a given shape."""

    def __init__(self, kind: str, shape: tuple[int, ...], generator: Generator) -> None:
        fmt = P.get_format(PATTERNS[kind])
        assert isinstance(fmt, P.Format)
        assert fmt.bias is not None
        self.fmt, self.shape, self.generator = fmt, shape, generator
        self.sign, self.mantissa, self.bias = 1 << (fmt.bits - 1), fmt.mantissa_bits, fmt.bias
        import numpy as np

        self.max = int(P.encode(np.float64(fmt.max), fmt))
        self.top = (self.max >> self.mantissa) - self.bias  # exponent of the largest value
        self.bottom = 1 - self.bias  # exponent of the smallest normal one

    def integers(self, low: int, high: int) -> Tensor:
        """Uniform in low to high, both included."""
        import torch

        device = self.generator.device
        return torch.randint(low, high + 1, self.shape, generator=self.generator, device=device, dtype=torch.int64)

    def one_in(self, n: int) -> Tensor:
        """A mask that is true for one element in n."""
        return self.integers(1, n) == 1

    def signs(self) -> Tensor:
        """±0."""
        return self.integers(0, 1) * self.sign

    def exponents(self, low: int, high: int) -> Tensor:
        """Either sign, exponents uniform in low to high as far as the format has them, any significand.

        Below the smallest normal exponent come the subnormals, of which there is one binade more than field values.
        """
        field = self.integers(low + self.bias, high + self.bias).clamp(0, self.top + self.bias)
        code = (field << self.mantissa) + self.integers(0, (1 << self.mantissa) - 1)
        return code.clamp(max=self.max) + self.signs()

    def powers(self, low: int, high: int) -> Tensor:
        """The same with at most two significant bits."""
        rest = (1 << self.mantissa) - 1 ^ 1 << max(self.mantissa - 1, 0)
        return self.exponents(low, high) & ~rest

    def finite(self) -> Tensor:
        """All finite codes, alike."""
        return self.integers(0, self.max) + self.signs()

    def patterns(self) -> Tensor:
        """All codes, alike."""
        return self.integers(0, 2 * self.sign - 1)

    def rounded(self, x: Tensor) -> Tensor:
        """The codes nearest to values, overflow to max."""
        import torch

        codes: Tensor = P.encode(x.to(torch.float32), self.fmt)
        return codes.to(torch.int64)

    def normals(self, scale: float = 1.0) -> Tensor:
        """The normal distribution."""
        import torch

        return self.rounded(scale * torch.randn(self.shape, generator=self.generator, device=self.generator.device))

    def uniforms(self, scale: float = 1.0) -> Tensor:
        """The uniform distribution on [0, scale)."""
        import torch

        return self.rounded(scale * torch.rand(self.shape, generator=self.generator, device=self.generator.device))

    def sprinkled(self, codes: Tensor, n: int) -> Tensor:
        """One in n replaced by ±0, ±infinity (of a format that has one) or NaN."""
        import torch

        extremes = [0, self.max + 1, 2 * self.sign - 1 - self.sign]
        chosen = torch.tensor(extremes, device=codes.device)[self.integers(0, len(extremes) - 1)]
        return torch.where(self.one_in(n), chosen + self.signs(), codes)


@dataclass(frozen=True)
class Operands:
    """What a class draws from: A, B (its columns as rows) and C of one instruction."""

    a: Floats
    b: Floats
    c: Floats


Codes = tuple["Tensor", "Tensor", "Tensor"]


def _normal(o: Operands) -> Codes:
    return o.a.normals(), o.b.normals(), o.c.normals(o.a.shape[-1] ** 0.5)


def _uniform(o: Operands) -> Codes:
    return o.a.uniforms(), o.b.uniforms(), o.c.uniforms(o.a.shape[-1] / 2)


def _finite(o: Operands) -> Codes:
    return o.a.finite(), o.b.finite(), o.c.finite()


def _patterns(o: Operands) -> Codes:
    return o.a.patterns(), o.b.patterns(), o.c.patterns()


def _close(o: Operands) -> Codes:
    return o.a.exponents(-2, 2), o.b.exponents(-2, 2), o.c.exponents(-4, 6)


def _subnormals(o: Operands) -> Codes:
    """A subnormal or next to it; so is C, or it is of the products' size."""
    import torch

    a, b = o.a.exponents(o.a.bottom - 1, o.a.bottom + 1), o.b.exponents(-6, 6)
    near = o.c.exponents(o.a.bottom - 8, o.a.bottom + 8)
    return a, b, torch.where(o.c.one_in(2), near, o.c.exponents(o.c.bottom - 1, o.c.bottom + 1))


def _cancellation(o: Operands) -> Codes:
    """Products 2 i and 2 i + 1 cancel, but for a last bit here and there."""
    a, b, c = o.a.exponents(-3, 3), o.b.exponents(-3, 3), o.c.exponents(-30, 0)
    a[..., 1::2] = a[..., ::2]
    b[..., 1::2] = b[..., ::2] ^ o.b.sign
    return a, b ^ o.b.one_in(8).to(b.dtype), c


def _addend_cancels(o: Operands) -> Codes:
    """C cancels the first product, the others are far below it."""
    a, b = o.a.exponents(-8, -2), o.b.exponents(-8, -2)
    a[..., 0], b[..., 0] = o.a.exponents(1, 3)[..., 0], o.b.exponents(1, 3)[..., 0]
    first = [P.decode(codes[..., 0].to(_dtype(f.fmt.bits)), f.fmt) for codes, f in ((a, o.a), (b, o.b))]
    return a, b, o.c.rounded(-first[0][:, :, None] * first[1][:, None, :])


def _ties(o: Operands) -> Codes:
    """Few bits in the products, all of them in C, which is larger by about its precision."""
    return o.a.powers(-1, 1), o.b.powers(-1, 1), o.c.exponents(o.c.mantissa // 2 - 2, o.c.mantissa + 3)


def _alignment(o: Operands) -> Codes:
    """Gaps between exponents of about 0, 13 and 25: what is shifted out to the right."""
    import torch

    def steps(f: Floats) -> Tensor:
        high = 8 if o.c.top > 30 else 4
        return torch.where(f.one_in(2), f.exponents(high - 16, high - 9), f.exponents(high - 1, high))

    return steps(o.a), steps(o.b), o.c.exponents(-12, 18)


def _overflow(o: Operands) -> Codes:
    """C next to overflow, products up to it, as far as the formats go."""
    high = min(o.b.top, o.c.top - o.a.top - 3)
    return o.a.exponents(o.a.top - 1, o.a.top), o.b.exponents(high - 26, high), o.c.exponents(o.c.top - 1, o.c.top)


def _specials(o: Operands) -> Codes:
    """Few enough that some outputs are finite, some infinite and some NaN."""
    k = o.a.shape[-1]
    a, b = o.a.sprinkled(o.a.exponents(-4, 4), 4 * k), o.b.sprinkled(o.b.exponents(-4, 4), 4 * k)
    return a, b, o.c.sprinkled(o.c.exponents(-8, 8), 8)


def _zeros(o: Operands) -> Codes:
    import torch

    def sparse(f: Floats, n: int) -> Tensor:
        return torch.where(f.one_in(n), f.finite(), f.signs())

    return sparse(o.a, 3), sparse(o.b, 3), sparse(o.c, 2)


def _minus_zeros(o: Operands) -> Codes:
    """Every term is a zero, all of them -0 in half of the rows."""
    b = o.b.finite() & ~o.b.sign
    a, c = o.a.signs(), o.c.signs()
    a[:, ::2], c[:, ::2] = o.a.sign, o.c.sign
    return a, b, c


def _huge_addend(o: Operands) -> Codes:
    return o.a.exponents(-6, 2), o.b.exponents(-6, 2), o.c.exponents(min(24, o.c.top - 3), o.c.top)


def _tiny(o: Operands) -> Codes:
    """No addend, and products around the smallest values of the result: where an alignment has its floor."""
    import torch

    middle = (o.c.bottom - o.c.mantissa // 2) // 2

    def low(f: Floats) -> Tensor:
        return f.exponents(max(middle - 7, f.bottom - 3), max(middle + 5, f.bottom + 2))

    return low(o.a), low(o.b), torch.where(o.c.one_in(4), o.c.exponents(o.c.bottom - 1, o.c.bottom), o.c.signs())


def _integers(o: Operands) -> Codes:
    """Small whole numbers: every sum is exact."""
    return o.a.rounded(o.a.integers(-8, 8)), o.b.rounded(o.b.integers(-8, 8)), o.c.rounded(o.c.integers(-512, 512))


def _single(o: Operands) -> Codes:
    """One product, or a few, and no addend in half of the outputs."""
    import torch

    k = o.a.shape[-1]
    a, c = torch.where(o.a.one_in(k), o.a.exponents(-9, 8), 0), o.c.exponents(-24, 15)
    return a, o.b.exponents(-9, 5), torch.where(o.c.one_in(2), 0, c)


FLOATS: Mapping[str, Callable[[Operands], Codes]] = {
    "normal": _normal,
    "uniform": _uniform,
    "finite": _finite,
    "patterns": _patterns,
    "close": _close,
    "subnormals": _subnormals,
    "cancellation": _cancellation,
    "addend cancels": _addend_cancels,
    "ties": _ties,
    "alignment": _alignment,
    "overflow": _overflow,
    "specials": _specials,
    "zeros": _zeros,
    "minus zeros": _minus_zeros,
    "huge addend": _huge_addend,
    "tiny": _tiny,
    "integers": _integers,
    "single": _single,
}
"""Classes of operands for float instructions."""


@dataclass(frozen=True)
class Whole:
    """Draws whole numbers of one shape."""

    shape: tuple[int, ...]
    generator: Generator

    def between(self, low: int, high: int) -> Tensor:
        """Uniform in low to high, both included."""
        import torch

        device = self.generator.device
        return torch.randint(low, high + 1, self.shape, generator=self.generator, device=device, dtype=torch.int64)


_MOST = 2**31 - 1


def _extremes(a: Whole, b: Whole, c: Whole) -> Codes:
    def ends(w: Whole) -> Tensor:
        return -128 + 255 * w.between(0, 1) + w.between(0, 1) * w.between(0, 1)

    return ends(a), ends(b), c.between(-1, 1) * (_MOST - 1) + c.between(-1, 1)


INTEGERS: Mapping[str, Callable[[Whole, Whole, Whole], Codes]] = {
    "any": lambda a, b, c: (a.between(-128, 127), b.between(-128, 127), c.between(-_MOST - 1, _MOST)),
    "extremes": _extremes,
    "wrap": lambda a, b, c: (a.between(-128, 127), b.between(-128, 127), c.between(_MOST - (1 << 19), _MOST) * -1),
    "zeros": lambda a, b, c: (a.between(-1, 1), b.between(-1, 1), c.between(-2, 2)),
}
"""Classes of operands for integer instructions."""


def draw(
    d: str, a: str, b: str, *, k: int, m: int, n: int, per_class: int, seed: int, device: str
) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """A (batch, m, k), B with its columns as rows (batch, n, k) and C (batch, m, n) as unsigned codes, and the classes.

    `d`, `a` and `b` are PTX types. Batch element i is of class i mod the number of classes, whose name is in the list.
    The low 13 bits of tf32 operands, which the hardware ignores, are random in every other element of a class.
    The same seed on the same kind of device and version of torch draws the same operands.
    """
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    shapes = (per_class, m, k), (per_class, n, k), (per_class, m, n)
    drawn: list[Codes] = []
    if d == "s32":
        names = list(INTEGERS)
        drawn = [call(*(Whole(shape, generator) for shape in shapes)) for call in INTEGERS.values()]
    else:
        names = list(FLOATS)
        floats = [Floats(kind, shape, generator) for kind, shape in zip((a, b, d), shapes, strict=True)]
        drawn = [call(Operands(*floats)) for call in FLOATS.values()]
    found = []
    for kind, codes in zip((a, b, d), zip(*drawn, strict=True), strict=True):
        stacked = torch.stack(codes, 1)  # (per_class, class, ...)
        if kind == "tf32":
            stacked[::2] &= ~0x1FFF
        found.append(stacked.flatten(0, 1).to(_dtype(_BITS[kind])))
    return found[0], found[1], found[2], names * per_class


_BITS = {"s8": 8, "s32": 32} | {kind: P.get_format(name).bits for kind, name in PATTERNS.items()}


def _dtype(bits: int) -> torch.dtype:
    import torch

    return {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[bits]
