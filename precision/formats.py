"""Every low-precision number format, one row each; all other facts are computed from the row.

A floating-point format is a sign bit, `exponent_bits`, `mantissa_bits` (trailing significand bits), a `bias`, and a
rule for its special codes. The codes of one sign, read as integers, grow with the value: zero, subnormals, normals,
then at most one infinity, then the NaNs. So every fact (largest value, thresholds, neighbours) is arithmetic on codes.

Sources: IEEE 754-2019 section 3; OCP OFP8 1.0 section 5 (E4M3, E5M2); OCP MX 1.0 section 5.3 (FP6, FP4, E8M0, INT8);
arXiv 2206.02915 (FNUZ); the NVIDIA A100 whitepaper (TF32); XLA/LLVM `APFloat` for the names `…fn`, `…fnuz`, `…b11fnuz`.

>>> import precision as P
>>> f = P.get_format("e4m3fn")
>>> f.max, f.smallest_subnormal, f.overflow_threshold, f.overflow_tie
(448.0, 0.001953125, 464.0, 'max')
>>> P.Format(name="my7", exponent_bits=3, mantissa_bits=3, bias=3, infinities=False, nan="none").max
30.0
"""

from __future__ import annotations

import difflib
import math
import re
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from operator import index
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["FORMATS", "AnyFormat", "Format", "IntFormat", "formats", "get_format"]

NaNRule = Literal["ieee", "all_ones", "negative_zero", "none"]
NAN_RULES: tuple[str, ...] = ("ieee", "all_ones", "negative_zero", "none")


def _number(x: Fraction) -> float | Fraction:
    """`x` as a float where a float holds it exactly (always, except thresholds of float64 itself)."""
    try:
        return float(x) if Fraction(float(x)) == x else x
    except OverflowError:
        return x


def _power_of_two(exponent: int) -> float:
    """2^exponent, subnormals built from bits: a process that flushes them must see the same formats."""
    if exponent >= -1022:
        return math.ldexp(1.0, exponent)
    value: float = struct.unpack("<d", struct.pack("<Q", 1 << (exponent + 1074)))[0]
    return value


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a format needs a name (a non-empty str), not {name!r}")


def _count(name: str, what: str, value: Any, low: int, high: int) -> int:
    """A number of bits, checked; integers of NumPy become Python's, which do not overflow."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {what} is {value!r}; it must be an int from {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{name}: {what} is {value}; it must be from {low} to {high}")
    return index(value)


class _Grid:
    """What a floating-point and an integer format have in common."""

    name: str
    bits: int
    signed: bool

    @property
    def sign_mask(self) -> int:
        """The sign bit of a code (0 in an unsigned format)."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The NumPy or ml_dtypes dtype with this encoding, or None; loads ml_dtypes for what NumPy lacks."""
        import numpy as np

        if FORMATS.get(self.name) != self or self.name == "tfloat32":
            return None
        try:
            return np.dtype(self.name)
        except TypeError:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
            return dtype

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The torch dtype with this encoding, one element per code, or None; loads torch."""
        import torch

        # torch's sub-byte integer dtypes (int2, uint4, …) are shells without arithmetic or a stated packing.
        if FORMATS.get(self.name) != self or self.bits < 8:
            return None
        dtype = getattr(torch, self.name, None)
        return dtype if isinstance(dtype, torch.dtype) else None

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Format(_Grid):
    """A binary floating-point format of at most 64 bits whose values float64 holds exactly.

    `exponent_bits` and `mantissa_bits` count the stored fields; the significand has mantissa_bits + 1 bits. `bias` is
    2^(exponent_bits-1) - 1 unless given. `infinities` says whether each sign has an infinity. `nan` says which codes
    are NaN: "ieee" (top exponent, non-zero mantissa), "all_ones" (the one code per sign with all lower bits set),
    "negative_zero" (the sign bit alone: such a format has no -0), "none". `signed=False` drops the sign bit;
    `zero=False` makes exponent field 0 an ordinary binade, so there is neither zero nor a subnormal (E8M0).

    Derived: `bits`, `emin`, `emax`, `max`, `min`, `smallest_normal`, `smallest_subnormal` (the smallest positive value,
    which is `smallest_normal` in a format without subnormals), `eps` (1.0 to the next value, relative),
    `overflow_threshold` T with `overflow_tie`, `underflow_threshold` t, `max_code`, `number_of_values`.
    In round to nearest even a finite |x| > T overflows and |x| < T does not; |x| = T "overflows" or goes to "max"
    by `overflow_tie` (whether the last significand bit of max is odd). |x| <= t becomes zero; t is None without a zero.

    Raises ValueError or TypeError for a format that cannot exist, saying what is allowed.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    infinities: bool = True
    nan: NaNRule = "ieee"
    signed: bool = True
    zero: bool = True
    source: str = field(default="custom", compare=False, repr=False)

    bits: int = field(init=False, repr=False, compare=False)
    emin: int = field(init=False, repr=False, compare=False)
    emax: int = field(init=False, repr=False, compare=False)
    max_code: int = field(init=False, repr=False, compare=False)
    max: float = field(init=False, repr=False, compare=False)
    min: float = field(init=False, repr=False, compare=False)
    smallest_normal: float = field(init=False, repr=False, compare=False)
    smallest_subnormal: float = field(init=False, repr=False, compare=False)
    eps: float = field(init=False, repr=False, compare=False)
    overflow_threshold: float | Fraction = field(init=False, repr=False, compare=False)
    overflow_tie: Literal["max", "overflows"] = field(init=False, repr=False, compare=False)
    underflow_threshold: float | Fraction | None = field(init=False, repr=False, compare=False)
    number_of_values: int = field(init=False, repr=False, compare=False)
    # significand · 2^exponent of max, |min| and the smallest value: integers, because compilers trace through them.
    max_parts: tuple[int, int] = field(init=False, repr=False, compare=False)
    min_parts: tuple[int, int] = field(init=False, repr=False, compare=False)
    least_parts: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name, put = self.name, object.__setattr__
        _check_name(self.name)
        e = _count(name, "exponent_bits", self.exponent_bits, 1, 11)
        m = _count(name, "mantissa_bits", self.mantissa_bits, 0, 52)
        put(self, "exponent_bits", e)
        put(self, "mantissa_bits", m)
        for flag in ("infinities", "signed", "zero"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{name}: {flag} is {getattr(self, flag)!r}; it must be True or False")
        if self.nan not in NAN_RULES:
            raise ValueError(f"{name}: nan is {self.nan!r}; it must be one of {', '.join(NAN_RULES)}")
        if self.nan == "ieee" and (not self.infinities or m == 0):
            raise ValueError(
                f"{name}: nan='ieee' reserves the top exponent for infinity and NaN, so it needs infinities=True and "
                "mantissa_bits >= 1; use nan='all_ones' or nan='none'"
            )
        if self.nan == "negative_zero" and not (self.signed and self.zero):
            raise ValueError(f"{name}: nan='negative_zero' is the sign bit alone; it needs signed=True and zero=True")
        if self.signed and not self.zero:
            raise ValueError(f"{name}: a format without zero must be unsigned (signed=False)")
        bias = _count(name, "bias", (1 << (e - 1)) - 1 if self.bias is None else self.bias, -2000, 2000)
        put(self, "bias", bias)
        put(self, "bits", int(self.signed) + e + m)
        reserved = {"ieee": (1 << m) - 1, "all_ones": 1, "negative_zero": 0, "none": 0}[self.nan] + int(self.infinities)
        top = (1 << (e + m)) - 1 - reserved
        if top < 1:
            raise ValueError(f"{name}: {e} exponent and {m} mantissa bits leave no finite non-zero value; add bits")
        put(self, "max_code", top)
        put(self, "emin", (1 if self.zero else 0) - bias)
        biggest = self.value_of_magnitude(top)
        put(self, "emax", (top >> m) - bias)
        subnormal = self.zero and top < 1 << m
        put(self, "max_parts", (top, self.emin - m) if subnormal else ((1 << m) + top % (1 << m), self.emax - m))
        put(self, "min_parts", self.max_parts)
        put(self, "least_parts", (1, self.emin - m if self.zero else self.emin))
        smallest = self.value_of_magnitude(1 if self.zero else 0)
        if biggest >= Fraction(2) ** 1024 or self.emin < -1022 or smallest < Fraction(1, 2**1074):
            raise ValueError(
                f"{name}: its values reach from 2^{self.emin - m} to 2^{self.emax}, which float64 does not hold "
                "(2^-1074 to 2^1023); change bias or exponent_bits"
            )
        if self.emin != -1022 and self.least_parts[1] < -1022:
            raise ValueError(
                f"{name}: its subnormals reach 2^{self.emin - m}, below float64's normal numbers (2^-1022), and do not "
                "have float64's spacing; lower bias"
            )
        put(self, "max", float(biggest))
        put(self, "min", -self.max if self.signed else 0.0 if self.zero else _power_of_two(self.emin))
        put(self, "smallest_normal", 2.0**self.emin)
        put(self, "smallest_subnormal", _power_of_two(self.least_parts[1]))
        put(self, "eps", 2.0**-m)
        step = Fraction(2) ** (max(self.emax, self.emin) - m)
        put(self, "overflow_threshold", _number(biggest + step / 2))
        # With no mantissa bit the significand is 1: odd, so a tie goes away from zero (IEEE 754-2019 4.3.1).
        put(self, "overflow_tie", "overflows" if m == 0 or top & 1 else "max")
        put(self, "underflow_threshold", _number(smallest / 2) if self.zero else None)
        finite = top + 1 if not self.signed else 2 * (top + 1) - (self.nan == "negative_zero")
        put(self, "number_of_values", finite - (self.signed and self.zero and self.nan != "negative_zero"))

    def value_of_magnitude(self, code: int) -> Fraction:
        """The value of a code without its sign bit, as if no code were special: the grid, continued above `max`."""
        assert self.bias is not None
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        if exponent == 0 and self.zero:
            return Fraction(mantissa) * Fraction(2) ** (1 - self.bias - self.mantissa_bits)
        significand = (1 << self.mantissa_bits) + mantissa
        return Fraction(significand) * Fraction(2) ** (exponent - self.bias - self.mantissa_bits)

    @property
    def has_nan(self) -> bool:
        return self.nan != "none"

    @property
    def has_negative_zero(self) -> bool:
        return self.signed and self.zero and self.nan != "negative_zero"

    @property
    def infinity_code(self) -> int | None:
        return self.max_code + 1 if self.infinities else None

    @property
    def quiet_nan_code(self) -> int | None:
        """The positive NaN with only the quiet bit set; the one NaN there is in the other rules."""
        return {
            "ieee": self.max_code + 1 + ((1 << self.mantissa_bits) >> 1),
            "all_ones": (1 << (self.exponent_bits + self.mantissa_bits)) - 1,
            "negative_zero": self.sign_mask,
            "none": None,
        }[self.nan]

    @property
    def all_ones_nan_code(self) -> int | None:
        """The positive NaN with every mantissa bit set, which NVIDIA hardware returns."""
        return self.quiet_nan_code if self.nan != "ieee" else (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    __hash__ = _Grid.__hash__  # by name: quick


@dataclass(frozen=True)
class IntFormat(_Grid):
    """Two's complement (or unsigned) integers of 2 to 32 bits, as a grid of spacing 1 without infinity, NaN or -0.

    The derived names are those of `Format`; `smallest_normal` = `smallest_subnormal` = `eps` = 1.
    Raises ValueError or TypeError for a number of bits outside 2 to 32.
    """

    name: str
    bits: int
    signed: bool = True
    source: str = field(default="custom", compare=False, repr=False)

    max: float = field(init=False, repr=False, compare=False)
    min: float = field(init=False, repr=False, compare=False)
    emin: int = field(init=False, repr=False, compare=False)
    mantissa_bits: int = field(init=False, repr=False, compare=False)
    emax: int = field(init=False, repr=False, compare=False)
    max_code: int = field(init=False, repr=False, compare=False)
    max_parts: tuple[int, int] = field(init=False, repr=False, compare=False)
    min_parts: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        put = object.__setattr__
        put(self, "bits", _count(self.name, "bits", self.bits, 2, 32))
        if not isinstance(self.signed, bool):
            raise TypeError(f"{self.name}: signed is {self.signed!r}; it must be True or False")
        top = (1 << (self.bits - int(self.signed))) - 1
        put(self, "max", float(top))
        put(self, "min", float(-top - 1 if self.signed else 0))
        put(self, "max_code", top)
        put(self, "max_parts", (top, 0))
        put(self, "min_parts", (top + 1 if self.signed else 0, 0))
        put(self, "emax", self.bits - 1)
        # Seen as a float format, everything is subnormal: one spacing, 2^(emin - mantissa_bits) = 1.
        put(self, "mantissa_bits", self.bits - int(self.signed))
        put(self, "emin", self.bits - int(self.signed))

    smallest_normal = smallest_subnormal = eps = 1.0
    underflow_threshold = 0.5
    least_parts = (1, 0)
    infinities = has_nan = has_negative_zero = False
    zero = True
    infinity_code = quiet_nan_code = all_ones_nan_code = None

    @property
    def overflow_threshold(self) -> float:
        return self.max + 0.5

    @property
    def overflow_tie(self) -> Literal["max", "overflows"]:
        return "overflows"

    @property
    def number_of_values(self) -> int:
        return 1 << self.bits

    __hash__ = _Grid.__hash__  # by name: quick


AnyFormat = Format | IntFormat


# The table. Columns: exponent bits, mantissa bits, bias, infinities, NaN rule, signed, zero, source.
_FLOATS: tuple[tuple[str, int, int, int, bool, NaNRule, bool, bool, str], ...] = (
    ("float64",           11, 52, 1023, True,  "ieee",          True,  True,  "IEEE 754-2019 3.6, binary64"),
    ("float32",            8, 23,  127, True,  "ieee",          True,  True,  "IEEE 754-2019 3.6, binary32"),
    ("tfloat32",           8, 10,  127, True,  "ieee",          True,  True,  "NVIDIA A100 whitepaper; PTX cvt.tf32"),
    ("float16",            5, 10,   15, True,  "ieee",          True,  True,  "IEEE 754-2019 3.6, binary16"),
    ("bfloat16",           8,  7,  127, True,  "ieee",          True,  True,  "Google Cloud TPU; PTX ISA .bf16"),
    ("float8_e5m2",        5,  2,   15, True,  "ieee",          True,  True,  "OCP OFP8 1.0, E5M2; arXiv 2209.05433"),
    ("float8_e5m2fnuz",    5,  2,   16, False, "negative_zero", True,  True,  "arXiv 2206.02915; LLVM Float8E5M2FNUZ"),
    ("float8_e4m3",        4,  3,    7, True,  "ieee",          True,  True,  "LLVM Float8E4M3 (IEEE 754 rules)"),
    ("float8_e4m3fn",      4,  3,    7, False, "all_ones",      True,  True,  "OCP OFP8 1.0, E4M3; arXiv 2209.05433"),
    ("float8_e4m3fnuz",    4,  3,    8, False, "negative_zero", True,  True,  "arXiv 2206.02915; LLVM Float8E4M3FNUZ"),
    ("float8_e4m3b11fnuz", 4,  3,   11, False, "negative_zero", True,  True,  "arXiv 2110.15802; LLVM"),
    ("float8_e3m4",        3,  4,    3, True,  "ieee",          True,  True,  "LLVM Float8E3M4 (IEEE 754 rules)"),
    ("float8_e8m0fnu",     8,  0,  127, False, "all_ones",      False, False, "OCP MX 1.0 5.4.1, E8M0 scale"),
    ("float6_e3m2fn",      3,  2,    3, False, "none",          True,  True,  "OCP MX 1.0 5.3.2, FP6 E3M2"),
    ("float6_e2m3fn",      2,  3,    1, False, "none",          True,  True,  "OCP MX 1.0 5.3.2, FP6 E2M3"),
    ("float4_e2m1fn",      2,  1,    1, False, "none",          True,  True,  "OCP MX 1.0 5.3.3, FP4 E2M1"),
)  # fmt: skip
_INTEGERS: tuple[tuple[str, int, bool, str], ...] = (
    ("int2", 2, True, "two's complement; ml_dtypes int2"),
    ("int4", 4, True, "two's complement; ONNX INT4"),
    ("int8", 8, True, "two's complement; OCP MX 1.0 5.3.4 (as integers, before the 2^-6 scale)"),
    ("uint2", 2, False, "unsigned; ml_dtypes uint2"),
    ("uint4", 4, False, "unsigned; ONNX UINT4"),
    ("uint8", 8, False, "unsigned"),
    ("int16", 16, True, "two's complement"),
    ("int32", 32, True, "two's complement; the accumulator of integer matrix units"),
)

FORMATS: dict[str, AnyFormat] = {
    **{row[0]: Format(*row) for row in _FLOATS},
    **{row[0]: IntFormat(*row) for row in _INTEGERS},
}
"""Every named format, in table order."""

_SHORT = {  # spellings that no rule below derives; keys in the normal form of `_normal`
    "half": "float16", "fp16": "float16", "f16": "float16", "binary16": "float16", "e5m10": "float16",
    "bf16": "bfloat16", "brainfloat16": "bfloat16", "e8m7": "bfloat16",
    "tf32": "tfloat32", "tensorfloat32": "tfloat32", "e8m10": "tfloat32",
    "float": "float32", "single": "float32", "fp32": "float32", "f32": "float32", "binary32": "float32",
    "e8m23": "float32",
    "double": "float64", "fp64": "float64", "f64": "float64", "binary64": "float64", "e11m52": "float64",
    "ocpe4m3": "float8_e4m3fn", "ocpe5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu", "ue8m0": "float8_e8m0fnu", "float8e8m0": "float8_e8m0fnu",
    "e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn", "float6e3m2": "float6_e3m2fn", "float6e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn", "float4e2m1": "float4_e2m1fn", "float4": "float4_e2m1fn",
}  # fmt: skip
_AMBIGUOUS = {
    "e4m3": "float8_e4m3fn (OCP E4M3: torch, NVIDIA, ONNX) or float8_e4m3 (IEEE rules: LLVM, ml_dtypes)",
    "float8e4m3": "float8_e4m3fn (OCP E4M3: torch, NVIDIA, ONNX) or float8_e4m3 (IEEE rules: LLVM, ml_dtypes)",
    "float8": "float8_e4m3fn or float8_e5m2",
    "float6": "float6_e3m2fn or float6_e2m3fn",
}


_LIBRARIES = (
    r"torch|ml_dtypes|numpy|np|jax\.numpy|jnp|jax|tensorflow|tf|triton\.language|tl|onnx\.tensorproto|tensorproto"
)


def _normal(name: str) -> str:
    """Lower case, no prefix of a library, `fp`/`f` before a digit as `float`, no separators.

    Whatever else stands before a dot stays: a tensor core, however misspelled, is no format.
    """
    text = re.sub(r"[\s_\-]", "", re.sub(rf"^(?:{_LIBRARIES})\.", "", name.lower()))
    text = re.sub(r"^nv(?=fp|float|bf)", "", text)
    return re.sub(r"^(?:fp|f)(?=[468])", "float", text)


_ALIASES = {_normal(name): name for name in FORMATS if name != "float8_e4m3"}
_ALIASES |= {
    _normal(n).removeprefix(f"float{f.bits}"): n for n, f in FORMATS.items() if "_" in n and n != "float8_e4m3"
}
_ALIASES |= _SHORT


def formats() -> tuple[AnyFormat, ...]:
    """Every named format, in table order."""
    return tuple(FORMATS.values())


def get_format(fmt: AnyFormat | str | Any) -> AnyFormat:
    """The format of a name, an alias (torch, LLVM, ONNX, OCP and short spellings), a NumPy, ml_dtypes or torch dtype.

    A `Format` or `IntFormat` is returned as it is. Raises ValueError for an unknown or ambiguous name, with the names
    it may have meant; TypeError for anything that is no name.
    """
    if isinstance(fmt, Format | IntFormat):
        return fmt
    if not isinstance(fmt, str):
        kind = fmt if isinstance(fmt, type) else type(fmt)  # a dtype, or a scalar type such as np.float16
        if kind.__module__.partition(".")[0] not in ("torch", "numpy", "ml_dtypes"):
            raise TypeError(f"a format is a Format, a name or a dtype, not {fmt!r}")
        fmt = fmt.__name__ if isinstance(fmt, type) else str(getattr(fmt, "name", fmt))  # NumPy's, in any byte order
    if fmt in FORMATS:  # the exact name: also the one way to say float8_e4m3
        return FORMATS[fmt]
    if fmt == "F8_E4M3":  # as safetensors writes it, exactly: OCP's
        return FORMATS["float8_e4m3fn"]
    key = _normal(fmt)
    if key in _ALIASES:
        return FORMATS[_ALIASES[key]]
    if key in _AMBIGUOUS:
        raise ValueError(f"format {fmt!r} is ambiguous: say {_AMBIGUOUS[key]}")
    near = difflib.get_close_matches(key, _ALIASES, n=3, cutoff=0.5)
    names = list(dict.fromkeys(_ALIASES[k] for k in near)) or list(FORMATS)
    raise ValueError(f"unknown format {fmt!r}: did you mean {' or '.join(names[:3])}? P.formats() lists all")
