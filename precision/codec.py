"""Codes: the bit patterns of a format's values, packed storage, and the neighbours of a value.

A code is an unsigned integer with the format's bits at the bottom: sign, exponent, mantissa, as IEEE 754-2019 3.4 lays
them out; two's complement for integers. Codes travel as uint8, uint16, uint32 or uint64, the narrowest that fits.
4-bit and 6-bit codes pack densely with the first element in the low bits (ONNX INT4/FLOAT4E2M1; OCP MX leaves it open).

>>> import numpy as np, precision as P
>>> c = P.encode(np.float32([-0.5, 448, 0.001]), "float8_e4m3fn"); c
array([176, 126,   1], dtype=uint8)
>>> P.decode(c, "float8_e4m3fn")
array([-5.000000e-01,  4.480000e+02,  1.953125e-03], dtype=float32)
>>> P.pack(np.uint8([1, 2, 3]), "float4_e2m1fn")
array([33,  3], dtype=uint8)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from operator import index
from typing import Any

import numpy as np

from precision import _engine, _patterns
from precision._array import FLOAT32, FLOAT64, INTEGERS, NUMPY, TORCH, Layout
from precision.formats import FORMATS, AnyFormat, IntFormat, get_format
from precision.policies import Policy, Rounding
from precision.rounding import job

__all__ = [
    "CLASSES",
    "classify",
    "decode",
    "encode",
    "from_dtype",
    "next_down",
    "next_up",
    "pack",
    "to_dtype",
    "ulp",
    "unpack",
    "values",
]

CLASSES = ("zero", "subnormal", "normal", "infinity", "nan")
"""What `classify` returns, by index."""


def encode(
    x: Any, fmt: AnyFormat | str, *, rounding: Rounding | str = "nearest_even", policy: Policy | str = "saturate"
) -> Any:
    """The codes of every element rounded once to `fmt`: `round_to`'s rounding and policies, for any input dtype.

    Same library, shape and device as `x`; unsigned integers of the narrowest width that holds the format's bits.
    An array of another low-precision dtype (ml_dtypes, torch.float8_*) is decoded exactly first.
    Raises what `round_to` raises, except that no input dtype is too narrow.
    """
    todo, random = job("encode", fmt, rounding, policy)
    if _format_of_dtype(x) is not None:
        x = decode(x)
    return _engine.apply(todo, x, random)


def decode(codes: Any, fmt: AnyFormat | str | None = None, dtype: Any = None) -> Any:
    """The exact values of codes: float32, or float64 where float32 cannot hold the format (float64, int32).

    `codes` are integers in [0, 2^bits) (NumPy or torch), or an array of a dtype that has a format (`ml_dtypes.*`,
    `torch.float8_*`), whose bits are taken; `fmt` may then be left out. `dtype` asks for "float32", "float64" or the
    library's dtype of that name. NaN codes give a quiet NaN (their payload and sign kept in IEEE-like formats).
    Raises ValueError for codes out of range or a dtype that cannot hold the values, TypeError for codes that are no
    integers.
    """
    if fmt is None and _format_of_dtype(codes) is None:
        raise TypeError(
            "decode needs a format, decode(codes, fmt), unless the codes have a dtype of ml_dtypes or torch.float8_*"
        )
    codes, f = _given(codes, fmt)
    layout = _decoded_layout(f, dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(codes, torch.Tensor):
        return _decode_torch(codes, f, layout, torch)
    c = _codes(codes, f)
    if f.bits <= 16:
        result = (
            _decode_table(f, layout).take(c, mode="wrap") if c.size < 512 or f.bits > 8 else _decode_pairs(c, f, layout)
        )
    else:
        pattern = _patterns.decode(c.astype(np.int64), f, layout, NUMPY)
        result = np.asarray(pattern).astype(f"int{layout.bits}").view(layout.name)
    return result[()] if isinstance(codes, np.generic) else result


def _decoded_layout(f: AnyFormat, dtype: Any) -> Layout:
    if dtype is None:
        return FLOAT32 if _patterns.holds(FLOAT32, f) else FLOAT64
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", None) or dtype).removeprefix("torch.")
    if not isinstance(dtype, str) and isinstance(dtype, type):
        name = np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise ValueError(f"decode gives float32 or float64, not {dtype!r}; cast the result, which is exact")
    layout = FLOAT32 if name == "float32" else FLOAT64
    if not _patterns.holds(layout, f):
        raise ValueError(f"float32 cannot hold every value of {f.name}: use dtype='float64'")
    return layout


def _given(codes: Any, fmt: AnyFormat | str | None) -> tuple[Any, AnyFormat]:
    """Codes and their format; an array of a low-precision dtype has its own, which must be the one that is named."""
    own = _format_of_dtype(codes)
    if own is None:
        return codes, get_format(fmt)
    if fmt is not None and get_format(fmt) != own:
        raise ValueError(
            f"codes have dtype {own.name}, not {get_format(fmt).name}: name that format, or pass their bits"
        )
    return from_dtype(codes)


def _no_codes(dtype: Any, f: AnyFormat) -> TypeError:
    return TypeError(
        f"codes have dtype {dtype}; they must be integers in [0, 2^{f.bits}) of {f.name}: P.encode(x, fmt) makes codes "
        "of values, and P.from_dtype(x) takes those of a native dtype"
    )


def _codes(codes: Any, f: AnyFormat) -> np.ndarray[Any, Any]:
    _engine.check_unmasked(codes, "codes")
    c = np.asarray(codes)
    if not c.size and not isinstance(codes, np.ndarray | np.generic):
        c = c.astype(np.uint8)  # [] has no dtype of its own
    if c.dtype.kind not in "iu":
        raise _no_codes(c.dtype, f)
    if c.size and not (c.dtype.kind == "u" and c.dtype.itemsize * 8 <= f.bits):
        low, high = int(c.min()), int(c.max())
        if low < 0 or high >= 1 << f.bits:
            raise ValueError(f"codes reach from {low} to {high}; {f.name} has codes 0 to {(1 << f.bits) - 1}")
    return c


@cache
def _decode_table(f: AnyFormat, layout: Layout) -> np.ndarray[Any, Any]:
    codes = np.arange(1 << f.bits, dtype=np.int64 if layout.bits == 64 else np.int32)
    pattern = _patterns.decode(codes, f, layout, NUMPY)
    table: np.ndarray[Any, Any] = pattern.astype(f"int{layout.bits}").view(layout.name)
    table.setflags(write=False)
    return table


@cache
def _pair_table(f: AnyFormat, layout: Layout) -> np.ndarray[Any, Any]:
    """Two codes to two values: index = low byte's code | high byte's code << 8."""
    one = np.resize(_decode_table(f, layout), 256)
    pairs = np.empty((256, 256, 2), layout.name)
    pairs[..., 0], pairs[..., 1] = one[None, :], one[:, None]
    if sys.byteorder == "big":
        pairs = pairs[..., ::-1]
    return np.ascontiguousarray(pairs).reshape(-1).view("complex64" if layout.bits == 32 else "complex128")


def _decode_pairs(c: np.ndarray[Any, Any], f: AnyFormat, layout: Layout) -> np.ndarray[Any, Any]:
    """8-bit and narrower codes, two to a gather: half the gathers of a table of single codes."""
    c8 = np.ascontiguousarray(c, np.uint8).reshape(-1)
    out = np.empty(c8.size, layout.name)
    even = c8.size & ~1
    pairs, table = c8[:even].view(np.uint16), _pair_table(f, layout)
    into = out[:even].view(table.dtype)
    for i in range(0, pairs.size, _engine.BLOCK >> 2):
        block = slice(i, i + (_engine.BLOCK >> 2))
        table.take(pairs[block].astype(np.intp), out=into[block], mode="wrap")
    if even != c8.size:
        out[even:] = _decode_table(f, layout)[c8[even:]]
    return out.reshape(c.shape)


def _check_torch_codes(codes: Any, f: AnyFormat, torch: Any) -> bool:
    """Refuse what are no codes of a format; whether a compiler traces, when only the dtype can be seen."""
    _engine.check_dense(codes, "codes")
    if codes.dtype == getattr(torch, "float4_e2m1fn_x2", None):
        raise TypeError(_engine.packed_dtype("codes"))
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise _no_codes(codes.dtype, f)
    traced = _engine.is_traced(codes, torch)
    unsigned = codes.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    if traced or not codes.numel() or (unsigned and codes.element_size() * 8 <= f.bits):
        return traced
    c = codes.to(torch.int64)  # uint64 from 2^63 on becomes negative: no code either, of formats narrower than 64 bits
    if bool(((c < 0) | (c >> min(f.bits, 63) != 0)).any()):
        low, high = (0, 2**64 - 1) if codes.dtype == torch.uint64 else (int(c.min()), int(c.max()))
        raise ValueError(f"codes reach from {low} to {high}; {f.name} has codes 0 to {(1 << f.bits) - 1}")
    return traced


def _decode_torch(codes: Any, f: AnyFormat, layout: Layout, torch: Any) -> Any:
    traced = _check_torch_codes(codes, f, torch)
    if not traced and codes.device.type == "cpu":
        return torch.from_numpy(np.asarray(decode(codes.numpy(), f, layout.name)))
    c = _int64(codes, torch)
    if not traced and f.bits <= 16:
        table = torch.from_numpy(np.array(_decode_table(f, layout))).to(codes.device)
        return table.index_select(0, c.reshape(-1)).reshape(codes.shape)
    pattern = _patterns.decode(c if layout.bits == 64 else c.to(torch.int32), f, layout, TORCH)
    return pattern.to(torch.int64 if layout.bits == 64 else torch.int32).view(getattr(torch, layout.name))


def _int64(codes: Any, torch: Any) -> Any:
    """Codes as int64, those of 64 bits by their bits: torch has few operations on its wider unsigned dtypes."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(codes.dtype)
    if signed is None or codes.element_size() == 8:
        return codes.to(torch.int64) if signed is None else codes.view(signed)
    return codes.view(signed).to(torch.int64) & ((1 << (8 * codes.element_size())) - 1)


# --- native dtypes ----------------------------------------------------------------------------------------------------


def _format_of_dtype(x: Any) -> AnyFormat | None:
    """The format of an array of a low-precision dtype; None for float16 and wider, bfloat16 and ordinary integers."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        name = str(x.dtype).removeprefix("torch.")
    elif isinstance(x, np.ndarray | np.generic):
        if x.dtype.isbuiltin != 2:  # 2: registered by another package; the kind does not say (ml_dtypes' E5M2 has "f")
            return None
        name = x.dtype.name
    else:
        return None
    fmt = FORMATS.get(name)
    return fmt if fmt is not None and (fmt.bits < 8 or name.startswith("float8")) else None


def from_dtype(x: Any) -> tuple[Any, AnyFormat]:
    """(codes, format) of an array of a native dtype (NumPy, ml_dtypes, torch), by bits: nothing is rounded.

    Raises TypeError for a dtype that is no format's.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _engine.check_dense(x, "x")
        if x.dtype == getattr(torch, "float4_e2m1fn_x2", None):
            raise TypeError(_engine.packed_dtype("x"))
        fmt = FORMATS.get(str(x.dtype).removeprefix("torch."))
        if fmt is not None and fmt.bits >= 8:
            return x.view(getattr(torch, _engine.code_dtype(fmt).name)), fmt
    elif isinstance(x, np.ndarray | np.generic):
        _engine.check_unmasked(x, "x")
        fmt = FORMATS.get(x.dtype.name)
        if fmt is not None:
            native = np.asarray(x, x.dtype.newbyteorder("="))
            codes = native.view(_engine.code_dtype(fmt))
            # ml_dtypes keeps a 2- or 4-bit integer sign-extended in its byte.
            return (
                codes & codes.dtype.type((1 << fmt.bits) - 1) if isinstance(fmt, IntFormat) and fmt.bits < 8 else codes
            ), fmt
    raise TypeError(
        f"x has no dtype of a named format ({getattr(x, 'dtype', type(x).__name__)}); P.formats() lists them"
    )


def to_dtype(codes: Any, fmt: AnyFormat | str) -> Any:
    """The array of the format's native dtype (`fmt.numpy_dtype` or `fmt.torch_dtype`) with these codes, by bits.

    Raises ValueError for codes out of range and for a format without a dtype in the library.
    """
    codes, f = _given(codes, fmt)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(codes, torch.Tensor):
        if f.torch_dtype is None:
            raise ValueError(f"torch has no dtype for {f.name}: keep the codes, or P.decode them")
        _check_torch_codes(codes, f, torch)
        return codes.to(getattr(torch, f"uint{f.bits}")).view(f.torch_dtype)
    if f.numpy_dtype is None:
        raise ValueError(f"neither NumPy nor ml_dtypes has a dtype for {f.name}: keep the codes, or P.decode them")
    c = _codes(codes, f).astype(_engine.code_dtype(f))
    if isinstance(f, IntFormat) and f.bits < 8:
        c = np.where(c & f.sign_mask, c | (0xFF & ~((1 << f.bits) - 1)), c).astype(np.uint8)
    return c.view(f.numpy_dtype)


# --- packed storage ---------------------------------------------------------------------------------------------------


def _packing(fmt: AnyFormat | str) -> tuple[AnyFormat, int, int]:
    """(format, codes in a group, bytes of a group)."""
    f = get_format(fmt)
    if f.bits > 8:
        raise ValueError(
            f"{f.name} has {f.bits} bits; pack and unpack take formats of 1 to 8 bits, view wider codes as bytes"
        )
    group = 8 // math.gcd(f.bits, 8)
    return f, group, group * f.bits // 8


def pack(codes: Any, fmt: AnyFormat | str) -> Any:
    """The codes of one array as a dense 1-D uint8 array, first element in the low bits, zeros in the unused top bits.

    n codes of b bits take ceil(n·b/8) bytes: element i has bits i·b to i·b + b - 1 of the little-endian bit string.
    NumPy or torch (same device). Raises ValueError for codes out of range or formats wider than 8 bits.
    """
    codes, f = _given(codes, fmt)
    f, group, size = _packing(f)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(codes, torch.Tensor):
        _check_torch_codes(codes, f, torch)
        if f.bits == 4:
            c = codes.reshape(-1).to(torch.uint8)
            c = torch.nn.functional.pad(c, (0, 1)) if c.numel() & 1 else c
            return c[0::2] | (c[1::2] << 4)
        c = codes.reshape(-1).to(torch.int64)
        n = c.numel()
        c = torch.nn.functional.pad(c, (0, -n % group)).reshape(-1, group)
        word = sum(c[:, i] << (i * f.bits) for i in range(group))
        if isinstance(word, int):
            word = c[:, 0]
        packed = torch.stack([(word >> (8 * i)) & 0xFF for i in range(size)], dim=1)
        return packed.to(torch.uint8).reshape(-1)[: -(-n * f.bits // 8)]
    c = _codes(codes, f).astype(np.uint8).reshape(-1)
    n = c.size
    if f.bits == 8:
        return c.copy()
    if f.bits == 4:
        return _packed_pairs(c)
    c = np.pad(c, (0, -n % group)).reshape(-1, group)
    uint: Any = np.uint32 if size <= 4 else np.uint64  # a group of 5- or 7-bit codes is wider than 32 bits
    word = np.zeros(len(c), uint)
    for i in range(group):
        word |= c[:, i].astype(uint) << uint(i * f.bits)
    out = np.empty((len(c), size), np.uint8)
    for i in range(size):
        out[:, i] = word >> uint(8 * i) & uint(0xFF)
    return out.reshape(-1)[: -(-n * f.bits // 8)]


def _packed_pairs(c: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """4-bit codes, two to a byte: as 16-bit words whose halves move together."""
    words = np.append(c, np.uint8(0)) if c.size & 1 else np.ascontiguousarray(c)
    w = words.view("<u2")
    out = np.empty(w.size, np.uint8)
    for i in range(0, w.size, _engine.BLOCK):
        part = w[i : i + _engine.BLOCK]
        out[i : i + _engine.BLOCK] = part | (part >> np.uint16(4))
    return out


def unpack(packed: Any, fmt: AnyFormat | str, shape: int | Sequence[int]) -> Any:
    """The codes (uint8, of `shape`) that `pack` stored; the inverse of `pack` for every length.

    Raises ValueError when the number of bytes is not what the shape needs, TypeError for anything but uint8 bytes.
    """
    f, group, size = _packing(fmt)
    try:
        shape = tuple(map(index, shape)) if hasattr(shape, "__len__") else (index(shape),)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"shape is {shape!r}; it must be an int or a sequence of ints, each at least 0") from None
    n = math.prod(shape)
    if any(d < 0 for d in shape):
        raise ValueError(f"shape is {shape}; every dimension must be at least 0")
    need = -(-n * f.bits // 8)
    torch = sys.modules.get("torch")
    b: Any = packed
    if torch is not None and isinstance(packed, torch.Tensor):
        _engine.check_dense(packed, "packed")
    else:
        _engine.check_unmasked(packed, "packed")
        b = np.frombuffer(packed, np.uint8) if isinstance(packed, bytes | bytearray) else np.asarray(packed)
    if str(b.dtype).removeprefix("torch.") != "uint8":
        raise TypeError(f"packed codes are bytes (uint8), not {b.dtype}")
    b = b.reshape(-1)
    if len(b) != need:
        raise ValueError(
            f"{len(b)} bytes do not hold shape {shape} of {f.name}: {n} codes of {f.bits} bits take {need} bytes"
        )
    mask = (1 << f.bits) - 1
    if not isinstance(b, np.ndarray):
        assert torch is not None
        b = torch.nn.functional.pad(b.to(torch.int64), (0, -need % size)).reshape(-1, size)
        word = sum(b[:, i] << (8 * i) for i in range(size))
        codes = torch.stack([(word >> (i * f.bits)) & mask for i in range(group)], dim=1)
        return codes.to(torch.uint8).reshape(-1)[:n].reshape(shape)
    uint: Any = np.uint32 if size <= 4 else np.uint64
    b = np.pad(b, (0, -need % size)).reshape(-1, size).astype(uint)
    words = np.zeros(len(b), uint)
    for i in range(size):
        words |= b[:, i] << uint(8 * i)
    out = np.empty((len(b), group), np.uint8)
    for i in range(group):
        out[:, i] = words >> uint(i * f.bits) & uint(mask)
    return out.reshape(-1)[:n].reshape(shape)


# --- neighbours and classes -------------------------------------------------------------------------------------------


def values(fmt: AnyFormat | str) -> np.ndarray[Any, Any]:
    """Every value of a format of at most 16 bits, ascending: infinities included, NaN not, -0 before +0.

    float32, or float64 where float32 cannot hold them. Raises ValueError for wider formats.
    """
    f = get_format(fmt)
    if f.bits > 16:
        raise ValueError(f"{f.name} has 2^{f.bits} codes; values() lists formats of at most 16 bits")
    codes = np.arange(1 << f.bits, dtype=_engine.code_dtype(f))
    codes = codes[classify(codes, f) != CLASSES.index("nan")]
    # Sorted as codes: a comparison of subnormal values would depend on the process' flush-to-zero setting.
    every: np.ndarray[Any, Any] = decode(codes[np.lexsort((codes & f.sign_mask == 0, _order(codes, f)))], f)
    return every


def classify(codes: Any, fmt: AnyFormat | str) -> Any:
    """The class of each code as an index (uint8) into `CLASSES`: zero, subnormal, normal, infinity, nan.

    Every non-zero integer code is "normal". Raises as `decode` for bad codes.
    """
    codes, f = _given(codes, fmt)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(codes, torch.Tensor):
        _check_torch_codes(codes, f, torch)
        return _patterns.classify(_int64(codes, torch), f, TORCH).to(torch.uint8)
    c = _codes(codes, f)
    if f.bits <= 16:
        return np.asarray(_class_table(f).take(c, mode="wrap"))
    return _patterns.classify(c.astype(np.int64), f, NUMPY).astype(np.uint8)


@cache
def _class_table(f: AnyFormat) -> np.ndarray[Any, Any]:
    table: np.ndarray[Any, Any] = _patterns.classify(np.arange(1 << f.bits), f, NUMPY).astype(np.uint8)
    return table


def _order(code: np.ndarray[Any, Any], f: AnyFormat) -> np.ndarray[Any, Any]:
    """Integers in value order: 0 for both zeros, codes above, negated magnitudes below."""
    negative = code & code.dtype.type(f.sign_mask) != 0
    if isinstance(f, IntFormat):
        return np.asarray(code.astype(np.int64) - np.where(negative, 1 << f.bits, 0))
    size = (code & code.dtype.type((1 << (f.exponent_bits + f.mantissa_bits)) - 1)).astype(np.int64)
    order: np.ndarray[Any, Any] = np.where(negative, -size, size)
    return order


def _neighbour(kind: str, x: Any, fmt: AnyFormat | str, rounding: str, policy: Policy) -> Any:
    """One of `_patterns.NEIGHBOURS` of any real numbers; integers count as float64."""
    todo, _ = job(kind, fmt, rounding, policy)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _engine.check_dense(x, "x")
        if str(x.dtype).removeprefix("torch.") in INTEGERS:
            traced = _engine.is_traced(x, torch)
            x = x.to(torch.float64) if traced else torch.from_numpy(_exact_floats(x.cpu().numpy())).to(x.device)
        return _engine.apply(todo, x)
    if isinstance(x, int | list | tuple) and not isinstance(x, bool):
        x = _engine._array_of(x)
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu":
        x = _exact_floats(x)
    return _engine.apply(todo, x)


def _exact_floats(a: Any) -> Any:
    if a.dtype.itemsize == 8 and a.size and (int(a.max()) > 1 << 53 or int(a.min()) < -(1 << 53)):
        raise ValueError(f"x has integers from {a.min()} to {a.max()}; beyond 2^53 convert them to float64 first")
    return a.astype(np.float64)


def _step(kind: str, x: Any, fmt: AnyFormat | str, rounding: str) -> Any:
    f = get_format(fmt)
    beyond: Any = "infinity" if f.infinities else "saturate"
    return _neighbour(kind, x, f, rounding, Policy(overflow=beyond, infinity=beyond, negative="clamp"))


def next_up(x: Any, fmt: AnyFormat | str) -> Any:
    """The smallest value of `fmt` greater than each x (any real numbers): IEEE 754-2019 5.3.1 nextUp, on any grid.

    Above max: infinity where the format has one, else max itself. From -0 and +0 it is the smallest positive value;
    just below zero it gives -0 as IEEE's nextUp does, where the format has one. NaN gives NaN. The result is like x, of
    its float dtype (float64 for integers).
    Raises TypeError for what is no real number; ValueError for a dtype that cannot hold the format's values (naming one
    that can) and for integers beyond 2^53.
    """
    return _step("next_up", x, fmt, "toward_positive")


def next_down(x: Any, fmt: AnyFormat | str) -> Any:
    """The largest value of `fmt` less than each x: -next_up(-x), with the format's own smallest value at the end."""
    return _step("next_down", x, fmt, "toward_negative")


def ulp(x: Any, fmt: AnyFormat | str) -> Any:
    """The spacing of the format's grid at each x: 2^(max(floor(log2|x|), emin) - mantissa_bits), 1 for integers.

    For |x| beyond max it is the spacing at max; at a power of two, that of the binade above it (Goldberg's ulp).
    0 gives the smallest spacing, ±Inf and NaN give NaN. Exponents are read from bits, so subnormal x is exact.
    The result is like x, of its float dtype (float64 for integers). Raises as `next_up`.
    """
    return _neighbour("ulp", x, fmt, "toward_zero", Policy(negative="magnitude"))
