"""Tensor cores bit for bit: what matrix instructions and the products built from them return, from Volta to Blackwell.

`INSTRUCTIONS` is one table: architecture and instruction -> group size, fraction bits, floor, result, and how far the
row is verified. The arithmetic they share is defined in `precision._fused`; only integers differ (exact sums). A
product of matrices is a chain of instructions in ascending K; a `TensorCore` adds what a library does around the chain.

Sources: recordings of an H200, instructions and whole products of cuBLAS (replayed in tests/agree/test_silicon_mma.py);
`precision._instructions` names those of the table.

>>> import numpy as np, precision as P
>>> a, b = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16)
>>> codes = P.mma(a, b, None, instruction="mma.m16n8k16.f32.f16.f16.f32", arch="hopper")
>>> P.decode(codes, "float32")[0, 0]
np.float32(16.0)
>>> x = np.full((1, 16384), 0.75, np.float32)  # the sum is 9216; but 0.5625 is cut to nothing beside 8192
>>> P.tensor_cores.get_accumulator("hopper.cublas.float8_e4m3fn.fast_accum").matmul(x, x.T)
array([[8194.]], dtype=float32)
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from typing import Any

import numpy as np

from precision import _engine
from precision._array import INTEGERS
from precision._fused import Rule, Side, add_nearest, batches, chain, matrices
from precision._instructions import ARCHITECTURES, INSTRUCTIONS, Instruction, find_architecture, get_instruction
from precision.codec import decode, encode, from_dtype, to_dtype
from precision.formats import FORMATS, AnyFormat, Format, IntFormat, get_format

__all__ = [
    "ARCHITECTURES",
    "INSTRUCTIONS",
    "Instruction",
    "TensorCore",
    "accumulators",
    "get_accumulator",
    "get_instruction",
    "mma",
]


# --- instructions -----------------------------------------------------------------------------------------------------


def mma(a: Any, b: Any, c: Any = None, *, instruction: Instruction | str, arch: str | None = None) -> Any:
    """The codes of a·b + c as an instruction returns them: a (..., M, K), b (..., K, N), c (..., M, N) or None (zero).

    Operands are unsigned integer codes, or arrays of the format's own dtype (NumPy, ml_dtypes, torch), whose bits are
    taken; NumPy or torch, all of one library and device. The result: unsigned codes of the accumulator format, same
    library. A tfloat32 operand is a 32-bit word, the bits of a float32, whose low 13 bits are ignored.
    Any M and N; leading dimensions broadcast. A K of several instructions is a chain in ascending K, each taking the
    result of the one before as its addend. A K that ends within an instruction is padded with zeros: zero products take
    no part in a group, so that is what the hardware is given, too. With K = 0 the result is c's value.

    Subnormals are kept. NaN, 0·Inf and Inf - Inf give the NaN whose code is all ones but the sign (0x7fffffff, 0x7fff);
    overflow gives infinity; zero is +0. Integers wrap mod 2^32, or with .satfinite are clamped once an instruction.
    Time grows as M·N·K. Memory: the operands' codes, 8 bytes an output, and scratch of fixed size.

    Raises ValueError for shapes that do not multiply, codes out of range, arrays of another format, an instruction that
    the architecture lacks; TypeError for what is no array of codes and for mixed libraries or devices.
    """
    row = get_instruction(instruction, arch)
    a, b, c = _same_place(a=a, b=b, c=c)
    a, b = _codes(a, row.a, "a", row), _codes(b, row.b, "b", row)
    start = None
    if c is not None:
        c = _codes(c, row.accumulator, "c", row)
        start = decode(c, row.accumulator, "float64")
    return _result_codes(_product(row, a, b, start), row)


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _same_place(**arrays: Any) -> list[Any]:
    """The arrays, lists and numbers made NumPy arrays; TypeError when they are of several libraries or devices."""
    places = {}
    for name, x in arrays.items():
        if x is None:
            continue
        if _is_tensor(x):
            _engine.check_dense(x, name)
        else:
            _engine.check_unmasked(x, name)
            arrays[name] = x if isinstance(x, np.ndarray) else np.asarray(x)
        places[name] = f"torch on {x.device}" if _is_tensor(x) else "NumPy"
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} is {place}" for name, place in places.items())
        raise TypeError(f"operands are in several places: {where}; bring them to one library and device")
    return list(arrays.values())


def _word(fmt: AnyFormat) -> AnyFormat:
    """The format of the codes that stand for an operand: a tfloat32 travels in a float32."""
    return FORMATS["float32"] if fmt.name == "tfloat32" else fmt


def _no_matrix(what: str, x: Any) -> str:
    return f"{what} has shape {tuple(x.shape)}; an operand is a matrix, or several in leading dimensions"


def _codes(x: Any, fmt: AnyFormat, what: str, row: Instruction) -> Any:
    """The codes of one operand as unsigned integers of the format's width."""
    word = _word(fmt)
    dtype = str(x.dtype).removeprefix("torch.")
    if x.ndim < 2:
        raise ValueError(_no_matrix(what, x))
    if dtype == word.name and dtype != "uint8":
        return from_dtype(x)[0]
    code = _engine.code_dtype(word).name
    integer = re.fullmatch(r"(u?)int(8|16|32|64)", dtype)
    if integer is None or (integer[1] and int(integer[2]) < word.bits):
        raise ValueError(
            f"{what} has dtype {dtype}; {row} takes {fmt.name}: codes as {code}, or an array of dtype {word.name}"
        )
    if dtype == code and word.bits in (8, 16, 32):
        return x
    wide = x.to(sys.modules["torch"].int64) if _is_tensor(x) else x.astype(np.int64)
    low, high = (int(wide.min()), int(wide.max())) if 0 not in x.shape else (0, 0)
    if low < 0 or high >= 1 << word.bits:  # uint64 from 2^63 on has become negative
        remedy = ""
        if integer[1] == "" and int(integer[2]) == word.bits:  # torch's usual container of codes
            remedy = f": if these are its bits, pass {what}.view({'torch' if _is_tensor(x) else 'np'}.{code})"
        raise ValueError(
            f"{what} has codes from {low} to {high}; {fmt.name} has codes 0 to {(1 << word.bits) - 1}{remedy}"
        )
    return wide.to(getattr(sys.modules["torch"], code)) if _is_tensor(x) else wide.astype(code)


def _product(
    row: Instruction, a: Any, b: Any, start: Any, promote: int | None = None, slice_k: int | None = None
) -> Any:
    """a·b + start as float64, from codes; `start`, float64, is None for zero. For the options see `TensorCore`."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: a (..., M, K) times b (..., K, N) needs the same K, "
            f"not {a.shape[-1]} and {b.shape[-2]}"
        )
    if start is not None and tuple(start.shape[-2:]) != (a.shape[-2], b.shape[-1]):
        expected = f"(..., {a.shape[-2]}, {b.shape[-1]})"
        raise ValueError(f"c has shape {tuple(start.shape)}; the product of a and b is {expected}")
    shapes = [tuple(x.shape[:-2]) for x in (a, b, start) if x is not None]
    try:
        batch = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"leading dimensions do not broadcast: {' and '.join(map(str, shapes))}") from None
    if not _is_tensor(a) or a.device.type != "cpu":
        return _computed(row, a, b, start, batch, promote, slice_k)
    arrays = [None if x is None else x.numpy() for x in (a, b, start)]  # the same memory
    result = _computed(row, arrays[0], arrays[1], arrays[2], batch, promote, slice_k)
    return sys.modules["torch"].from_numpy(result)


def _computed(
    row: Instruction, a: Any, b: Any, start: Any, batch: tuple[int, ...], promote: int | None, slice_k: int | None
) -> Any:
    """What `_product` returns, by the lines for NumPy or for tensors."""
    m, k, n = int(a.shape[-2]), int(a.shape[-1]), int(b.shape[-1])
    xp: Any = sys.modules["torch"] if _is_tensor(a) else np
    total = xp.zeros((*batch, m, n), dtype=xp.float64, device=a.device)
    if start is not None:
        total[...] = start
    total = total.reshape((math.prod(batch), m, n))
    left = a.reshape((math.prod(a.shape[:-2]), m, k))
    right = xp.moveaxis(b, -1, -2).reshape((math.prod(b.shape[:-2]), n, k))
    counts = [np.arange(x.shape[0]).reshape(given.shape[:-2]) for x, given in ((left, a), (right, b))]
    pairs = tuple(np.broadcast_to(count, batch).reshape(-1) for count in counts)
    run = _integer_chain if isinstance(row.a, IntFormat) else _float_chain
    if 0 in (*total.shape, k):
        return total.reshape((*batch, m, n))
    with np.errstate(all="ignore"):  # infinities and NaN are computed with, on purpose
        if slice_k is None:
            run(row, left, right, total, pairs, promote)
        else:
            for first in range(0, k, slice_k):
                part = xp.zeros(total.shape, dtype=xp.float64, device=a.device)
                columns = slice(first, first + slice_k)
                run(row, left[..., columns], right[..., columns], part, pairs, promote)
                assert isinstance(row.accumulator, Format)
                add_nearest(xp, total, part, xp.empty(total.shape, dtype=xp.int64, device=a.device), row.accumulator)
        total += 0.0  # -0, from a negative sum that was cut to zero, is +0
    return total.reshape(*batch, m, n)


@cache
def _rule(row: Instruction) -> Rule:
    """The parameters of the fused sum of an instruction."""
    result, bits = row.accumulator, row.fraction_bits
    assert isinstance(result, Format)
    assert bits is not None
    return Rule(row.group, bits, row.floor, row.result_bits, result, result.name == "float16")


def _float_chain(row: Instruction, left: Any, right: Any, total: Any, pairs: Any, promote: int | None) -> None:
    def side(codes: Any, fmt: AnyFormat) -> Side:
        word = _word(fmt)
        if fmt.name == "tfloat32":
            codes = _without_low_bits(codes)
        return Side(codes, word, FORMATS["float16"].emin if row.emulated else word.emin)

    order = None
    if row.emulated:
        order = sorted(range(row.k), key=lambda k: k % 4 >= 2)
        promote = row.k
    sides = side(left, row.a), side(right, row.b)
    chain(_rule(row), sides, total, pairs, step=row.k, order=order, promote=promote)


def _without_low_bits(words: Any) -> Any:
    """The words of a tfloat32 operand with the 13 bits cleared that the hardware ignores: a NaN may become infinity."""
    if not _is_tensor(words):
        return words & np.uint32(0xFFFFE000)
    torch = sys.modules["torch"]
    return (words.view(torch.int32) & -0x2000).view(torch.uint32)


def _integer_chain(row: Instruction, left: Any, right: Any, total: Any, pairs: Any, promote: int | None) -> None:
    """Exact sums: float64 holds them (|a·b| <= 2^16, so up to K = 2^36), and wrapping commutes with adding."""
    xp: Any = sys.modules["torch"] if _is_tensor(total) else np
    sides = Side(left, row.a, 0), Side(right, row.b, 0)
    for (a, b), whole, (ia, ib), columns in batches(sides, total, pairs, row.k):
        step = row.k if row.saturates else columns
        for first in range(0, left.shape[2], step):
            part = slice(first, first + step)
            x, y = decode(a.codes[..., part], row.a, "float64"), decode(b.codes[..., part], row.b, "float64")
            whole += xp.matmul(x[matrices(ia)], xp.moveaxis(y[matrices(ib)], 1, 2))
            if row.saturates:
                xp.clip(whole, -(2.0**31), 2.0**31 - 1, out=whole)
    if not row.saturates:
        total -= xp.floor((total + 2.0**31) / 2.0**32) * 2.0**32


def _result_codes(total: Any, row: Instruction) -> Any:
    if isinstance(row.accumulator, Format):
        return encode(total, row.accumulator, policy="ptx")
    if _is_tensor(total):
        torch = sys.modules["torch"]
        return total.to(torch.int64).to(torch.int32).view(torch.uint32)
    return total.astype(np.int64).astype(np.int32).view(np.uint32)


# --- products ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorCore:
    """A product of matrices as a library computes it with one instruction.

    instruction   the chain's steps, in ascending K, from zero
    promote       no fast accumulation: the chain restarts from zero every `promote` elements of K, and what it reached
                  is added to a float32, rounded to nearest even (None: one chain)
    slice_k       split-K: the chain (with its promotion) runs on slices of `slice_k` elements of K, and their results
                  are added in order, rounded to nearest even (None: not split)
    rounds_inputs tfloat32: values of float32 are rounded to nearest even first; otherwise every operand must be exact
    output        format that the result is rounded to, once, to nearest even (None: the accumulator's)
    evidence      as that of an instruction, for the whole product
    """

    name: str
    instruction: Instruction
    promote: int | None = None
    slice_k: int | None = None
    rounds_inputs: bool = False
    output: AnyFormat | None = None
    evidence: str = "literature"

    def __post_init__(self) -> None:
        if self.output is not None:
            object.__setattr__(self, "output", get_format(self.output))
            if isinstance(self.output, IntFormat) and self.output != self.format:
                raise ValueError(
                    f"output is {self.output.name}, an integer format: a result is rounded to a floating-point one. "
                    "P.quantize makes integers of it"
                )
        for what in ("promote", "slice_k"):
            value, k = getattr(self, what), self.instruction.k
            if hasattr(value, "__index__"):
                value = index(value)
                object.__setattr__(self, what, value)
            if value is not None and (not isinstance(value, int) or value < k or value % k):
                raise ValueError(f"{what} is {value!r}; {self.instruction} takes a positive multiple of its K, {k}")
            if value is not None and (isinstance(self.instruction.a, IntFormat) or self.instruction.emulated):
                raise ValueError(f"{what} is {value}; {self.instruction} has no chain of float32 sums to restart")

    @property
    def operands(self) -> tuple[AnyFormat, AnyFormat]:
        """The formats of a and b."""
        return self.instruction.a, self.instruction.b

    @property
    def format(self) -> AnyFormat:
        """The format of the sums."""
        return self.instruction.accumulator

    def matmul(self, a: Any, b: Any, c: Any = None) -> Any:
        """a·b (+ c) of values: a (..., M, K), b (..., K, N), c (..., M, N); float32 (int32 for integers), same library.

        Operands hold values of the operand formats, in any dtype (integers for integer formats only), and c values of
        the accumulator format, the addend of the first step (with `promote` or `slice_k`: of the first sum). Scales are
        the caller's to apply. NaN, infinities, zeros, overflow and subnormals as `mma`; a final cast overflows as the
        "ieee" policy says.
        Raises ValueError for shapes that do not multiply and for a value that the format does not hold, naming it;
        TypeError for mixed libraries or devices, and for integers, which might be codes, as floating-point operands.
        """
        a, b, c = _same_place(a=a, b=b, c=c)
        row = self.instruction
        rounds = self.rounds_inputs
        a, b = self._operand(a, row.a, "a", rounds), self._operand(b, row.b, "b", rounds)
        start = None if c is None else decode(self._operand(c, row.accumulator, "c"), row.accumulator, "float64")
        total = _product(row, a, b, start, self.promote, self.slice_k)
        codes = _result_codes(total, row)
        if self.output is not None and self.output != row.accumulator:
            return decode(encode(total, self.output, policy="ieee"), self.output)
        if row.accumulator.name == "float16":
            return decode(codes, row.accumulator)
        return to_dtype(codes, row.accumulator)

    def _operand(self, x: Any, fmt: AnyFormat, what: str, rounds: bool = False) -> Any:
        """The codes of values that the format holds."""
        if x.ndim < 2:
            raise ValueError(_no_matrix(what, x))
        if _is_tensor(x) and x.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise ValueError(
                f"{what} requires grad, and this product has no derivative of its own: pass {what}.detach(), or use "
                "torch.no_grad()"
            )
        dtype = str(x.dtype).removeprefix("torch.")
        if isinstance(fmt, Format) and dtype in INTEGERS:
            raise TypeError(
                f"{what} has dtype {dtype}, and {self.name} takes values of {fmt.name}: decode codes, "
                f"P.decode({what}, {fmt.name!r}), or convert numbers to a float dtype"
            )
        own = FORMATS.get(dtype)
        if own == fmt and fmt.name != "uint8":
            return from_dtype(x)[0]
        if isinstance(own, Format) and own.bits <= 16:
            x = decode(from_dtype(x)[0], own)
        exact = FORMATS["float32"] if rounds else fmt
        codes = encode(x, exact, policy="ieee")
        lost = _lost(x, codes, exact)
        if bool(lost.any()):
            raise ValueError(
                f"{what} holds {x[lost].reshape(-1)[0].item()}, which {exact.name} does not: {self.name} takes values "
                f"of {exact.name}; round first, P.round_to({what}, {exact.name!r})"
            )
        if fmt.name != "tfloat32":
            return codes
        codes = encode(x, fmt, policy="ieee")  # 19 bits: the upper ones of a float32
        if not _is_tensor(codes):
            return codes << np.uint32(13)
        torch = sys.modules["torch"]
        return (codes.view(torch.int32) << 13).view(torch.uint32)


def _lost(x: Any, codes: Any, fmt: AnyFormat) -> Any:
    """Where codes do not have the value of x: by bits, since a process that flushes subnormals takes them for zero."""
    name = str(x.dtype).removeprefix("torch.")
    if name not in ("float32", "float64"):  # integers
        return decode(codes, fmt) != x
    back = decode(codes, fmt, name)
    xp: Any = sys.modules["torch"] if _is_tensor(x) else np
    integer = xp.int32 if name == "float32" else xp.int64
    p, q = back.view(integer), x.view(integer)
    return (p != q) & ((p | q) << 1 != 0) & ((back == back) | (x == x))


# Products of cuBLAS on an H200 (torch 2.11, CUDA 13.0), each compared with blocks of 512 x 512 outputs, K = 1024 to
# 16384. Columns: name, instruction, promotion, whether float32 inputs are rounded.
_MEASURED: tuple[tuple[str, str, int | None, bool], ...] = (
    ("hopper.cublas.bfloat16",                 "wgmma.m64n8k16.f32.bf16.bf16", None, False),
    ("hopper.cublas.float16",                  "wgmma.m64n8k16.f32.f16.f16",   None, False),
    ("hopper.cublas.float16.fp16_accumulation", "wgmma.m64n8k16.f16.f16.f16",  None, False),
    ("hopper.cublas.tfloat32",                 "wgmma.m64n8k8.f32.tf32.tf32",  None, True),
    ("hopper.cublas.float8_e4m3fn",            "wgmma.m64n8k32.f32.e4m3.e4m3", 128,  False),
    ("hopper.cublas.float8_e4m3fn.fast_accum", "wgmma.m64n8k32.f32.e4m3.e4m3", None, False),
    ("hopper.cublas.float8_e5m2.float8_e4m3fn", "wgmma.m64n8k32.f32.e5m2.e4m3", 128, False),
    ("hopper.cublas.float8_e5m2.float8_e4m3fn.fast_accum", "wgmma.m64n8k32.f32.e5m2.e4m3", None, False),
)  # fmt: skip


@cache
def _accumulators() -> dict[str, TensorCore]:
    found: dict[str, TensorCore] = {}
    for row in INSTRUCTIONS:
        if row.saturates:
            continue
        operands = row.a.name if row.a == row.b else f"{row.a.name}.{row.b.name}"
        name = f"{row.arch}.{row.family}.{operands}" + ".fp16_accumulation" * (row.accumulator.name == "float16")
        if name not in found or found[name].instruction.k < row.k:  # a product takes the deepest instruction there is
            found[name] = TensorCore(name, row, evidence=row.evidence)
    for name, instruction, promote, rounds in _MEASURED:
        row = get_instruction(instruction, "hopper")
        found[name] = TensorCore(name, row, promote, rounds_inputs=rounds, evidence="measured")
    return found


def accumulators() -> tuple[str, ...]:
    """The names that `get_accumulator` knows: architecture, unit or library, operand format or formats, variant.

    `hopper.mma.X`, `hopper.wgmma.X`, `blackwell.tcgen05.X`: a plain chain of the instruction of the largest K.
    `hopper.cublas.X`: what cuBLAS returned on an H200.
    """
    return tuple(_accumulators())


def get_accumulator(name: str | TensorCore) -> TensorCore:
    """The tensor core of a name; ".split_k_1408" after it cuts K into slices of 1408, ".to_bfloat16" rounds the result.

    "hopper.cublas.bfloat16.split_k_1408" is what cuBLAS did for M, N of 64 to 128; whether it splits, and how, is its
    own choice for each shape. The architecture may be an `sm_90` or a GPU's name (`h100`), in any case. Raises
    ValueError for an unknown name, with those it may have meant, for an option given twice, and for a result rounded to
    an integer format.
    """
    if isinstance(name, TensorCore):
        return name
    if not isinstance(name, str):
        raise TypeError(f"an accumulator is a name or a TensorCore, not {name!r}: see P.tensor_cores.accumulators()")
    plain = re.sub(r"(\.split_k_\d+|\.to_\w+)+$", "", name, flags=re.IGNORECASE)
    options = name.removeprefix(plain)
    arch, dot, rest = plain.lower().partition(".")
    plain = f"{find_architecture(arch) or arch}{dot}{rest}"
    found = _accumulators().get(plain)
    if found is None:
        near = difflib.get_close_matches(plain, _accumulators(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"unknown accumulator {name!r}: {hint}P.tensor_cores.accumulators() lists all")
    for option in filter(None, options.split(".")):
        slices = option.lower().startswith("split_k_")
        if (found.slice_k if slices else found.output) is not None:
            what = "cuts K" if slices else "rounds its result"
            raise ValueError(
                f"accumulator {name!r} {what} twice: leave one .{'split_k_' if slices else 'to_'}... in it"
            )
        found = replace(found, name=f"{plain}{options.lower()}")
        if slices:
            found = replace(found, slice_k=int(option[len("split_k_") :]))
        else:
            found = replace(found, output=get_format(option[len("to_") :]))
    return found
