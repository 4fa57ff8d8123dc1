"""Runs a job of `_patterns` on whatever array the caller has.

* NumPy arrays and CPU tensors: one gather from a *sticky-compressed table*. A float32 pattern is shifted right until
  only sign, exponent and m + 2 mantissa bits remain, and the last of them is OR-ed with everything shifted out. Each
  value of the format and each midpoint between two has zeros in and below that bit, so no rounding boundary falls
  inside a class of patterns with the same index, and one member of the class, `index << shift`, answers for all. The
  table is the exact definition called on 2^(11+m) patterns, whatever mode and policy: no branch for NaN or overflow.
* Formats too wide for a table, and few elements for a large one: the definition itself, in blocks that stay in cache.
* CUDA tensors: the definition recorded as C and compiled into one elementwise kernel by torch's NVRTC jiterator.
* Tensors that a compiler traces, or of another device: the definition on tensors.

With numba installed (the `fast` extra) larger CPU arrays take the recorded definition as one compiled loop.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from precision import _patterns
from precision._array import (
    FLOAT32,
    FLOAT64,
    INTEGERS,
    LAYOUTS,
    NUMPY,
    TORCH,
    CudaRecorder,
    Layout,
    Term,
)
from precision._patterns import Job
from precision.formats import AnyFormat, Format

BLOCK = 1 << 16  # elements whose scratch arrays stay in a core's cache
SMALL_TABLE = 1 << 16  # entries of a table that is built at once, in a few milliseconds
COMPILE_FROM = 1 << 16  # elements from which a compiled loop is worth its call
_scratch = threading.local()


def code_dtype(fmt: AnyFormat) -> np.dtype[Any]:
    """The unsigned integer type of the codes of a format."""
    return np.dtype(
        "uint8" if fmt.bits <= 8 else "uint16" if fmt.bits <= 16 else "uint32" if fmt.bits <= 32 else "uint64"
    )


def apply(job: Job, x: Any, random: Any = None) -> Any:
    """The job on any array; a Python scalar or list counts as a NumPy array, a NumPy scalar stays one."""
    if type(x) is np.ndarray:
        return _numpy(job, x, random)
    check_unmasked(x, "x")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch(job, x, random, torch)
    if isinstance(x, bool | int | float | list | tuple | np.ndarray | np.generic):
        result = _numpy(job, _array_of(x), random)
        return result[()] if isinstance(x, np.generic) else result
    raise TypeError(f"x is a {type(x).__module__}.{type(x).__name__}; pass a NumPy array, a torch tensor or numbers")


def check_unmasked(x: Any, what: str) -> None:
    """Refuse an array whose mask NumPy would drop without a word."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array, whose mask would be lost: pass {what}.filled(...) or {what}.data")


def broadcast_shape(**operands: Any) -> tuple[int, ...]:
    """The shape that arrays broadcast to; ValueError, with their names and shapes, if they do not."""
    try:
        return np.broadcast_shapes(*(tuple(x.shape) for x in operands.values()))
    except ValueError:
        shapes = " and ".join(f"{name} {tuple(x.shape)}" for name, x in operands.items())
        raise ValueError(
            f"shapes do not broadcast: {shapes}; from the last dimension on, lengths must be equal, or one of them 1"
        ) from None


def _array_of(x: Any) -> np.ndarray[Any, Any]:
    """Python numbers as an array, unless NumPy would round an integer to make one type of them."""
    a = np.asarray(x)
    if a.dtype.kind == "f" and not isinstance(x, np.ndarray | np.generic | float):
        for item in np.array(x, dtype=object).reshape(-1).tolist():
            if isinstance(item, int) and int(float(item)) != item:
                raise ValueError(
                    f"x mixes {item} with numbers of another type, and float64 does not hold it: pass an array "
                    "of int64 or uint64"
                )
    return a


# --- what the input is ------------------------------------------------------------------------------------------------


@cache
def _numpy_layout(dtype: np.dtype[Any]) -> Layout | None:
    """The layout of a float dtype, None for an integer one; TypeError for the rest."""
    name = dtype.name
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name in INTEGERS:
        return None
    raise TypeError(_refused_dtype(name))


def _refused_dtype(
    name: str, what: str = "x", allowed: str = "float16, bfloat16, float32, float64 and integers"
) -> str:
    if name == "float4_e2m1fn_x2":
        return packed_dtype(what)
    if name.startswith(("float8", "float6", "float4", "int4", "int2", "uint4", "uint2")):
        decoded = "P.decode(x)" if what == "x" else "P.decode"
        return f"{what} has dtype {name}: its elements are codes; decode them first ({decoded}), allowed are {allowed}"
    if name == "bool":
        return f"{what} has dtype bool; convert it to a number type first, allowed are {allowed}"
    return f"{what} has dtype {name}; allowed are {allowed}"


def packed_dtype(what: str) -> str:
    """What to do with torch's dtype of two FP4 codes in a byte."""
    return (
        f"the dtype of {what} is float4_e2m1fn_x2, two codes in each byte: take them apart with "
        "P.unpack(x.view(torch.uint8), 'float4_e2m1fn', shape), the last dimension of shape being twice as long"
    )


def check_dense(x: Any, what: str) -> None:
    """Refuse a tensor whose elements are not one strided array."""
    if x.is_nested:
        raise TypeError(
            f"the layout of {what} is nested: pass the parts, {what}.unbind(), or {what}.to_padded_tensor(0.0)"
        )
    if x.layout is not sys.modules["torch"].strided:
        raise TypeError(
            f"the layout of {what} is {x.layout}: pass {what}.to_dense(), or the values alone as a dense tensor"
        )


def _check_holds(
    job: Job, layout: Layout, what: str = "x", instead: str = "use encode(), which takes any input"
) -> None:
    layout = job.into or layout
    if job.kind != "encode" and not _patterns.holds(layout, job.fmt):
        # A dtype that holds x as well: float16 and bfloat16 do not hold each other.
        remedy = "float32" if layout.bits == 16 and _patterns.holds(FLOAT32, job.fmt) else "float64"
        raise ValueError(
            f"{layout.name} cannot hold every value of {job.fmt.name}: convert {what} to {remedy} first, or {instead}"
        )


def _nan_refused(job: Job) -> ValueError:
    return ValueError(
        f"x contains NaN, and the policy says to raise for one; {job.fmt.name}: see Policy.nan and missing_nan"
    )


def _numpy_random(random: Any, bits: int, shape: tuple[int, ...]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(random, torch.Tensor):
        random = random.detach().cpu().numpy()
    check_unmasked(random, "random_bits")
    r = np.asarray(random)
    if r.dtype.kind not in "iu":
        raise TypeError(f"random_bits has dtype {r.dtype}; it must hold integers in [0, 2^{bits})")
    if r.size and (int(r.min()) < 0 or int(r.max()) >= 1 << bits):
        raise ValueError(
            f"random_bits reaches from {r.min()} to {r.max()}; with bits={bits} it must be in [0, 2^{bits})"
        )
    try:
        return np.broadcast_to(r, shape)
    except ValueError:
        raise ValueError(f"random_bits of shape {r.shape} does not broadcast to x's shape {shape}") from None


# --- NumPy ------------------------------------------------------------------------------------------------------------


class Table:
    """The answers to all indices. A large one is built when that is quicker than the definition for all who asked."""

    def __init__(self, size: int, build: Callable[[], np.ndarray[Any, Any]]) -> None:
        self._missing, self._build = size >> 2, build
        self.answers = build() if size <= SMALL_TABLE else None

    def asked(self, elements: int) -> np.ndarray[Any, Any] | None:
        """The answers, or None if so few elements asked so far that the definition is to do."""
        if self.answers is None:
            self._missing -= max(elements, 1024)  # what a call of the definition costs, however few there are
            if self._missing <= 0:
                self.answers = self._build()
        return self.answers


@dataclass(frozen=True, eq=False)
class Plan:
    """How CPU arrays of one layout do one job; built once."""

    pattern_dtype: np.dtype[Any]
    signed_dtype: np.dtype[Any]  # of the integers that the definition works on
    out_dtype: np.dtype[Any]
    raises_on_nan: bool
    table: Table | None = None
    shift: Any = 0
    mask: Any = 0
    rows: np.ndarray[Any, Any] | None = None  # where each sign and exponent has its part of the table, if compressed
    carry: Plan | None = None  # stochastic: what finishes after the random bits were added
    reduce: np.ndarray[Any, Any] | None = None  # stochastic: by how much the random bits shift right, per exponent
    keep: np.ndarray[Any, Any] | None = None  # stochastic: the mask that cuts, per exponent
    least: int = 0


@lru_cache(maxsize=1024)
def _plan(job: Job, layout: Layout) -> Plan:
    """Tables are built from the definition, with integer operations only (right under flush-to-zero)."""
    _check_holds(job, layout)
    fmt = job.fmt
    dtypes = (
        np.dtype(f"uint{layout.bits}"),
        np.dtype(f"int{layout.width}"),
        code_dtype(fmt) if job.kind == "encode" else np.dtype(f"uint{(job.into or layout).bits}"),
        (job.policy.nan if fmt.has_nan else job.policy.missing_nan) == "raise",
    )
    kept = _patterns.index_bits(layout, fmt) + 1
    shift = layout.mantissa_bits - kept
    if job.random_bits:
        flushes = job.policy.subnormals in ("flush_inputs", "flush")
        if layout is not FLOAT32 or not 0 <= shift <= 21 or layout.bits - shift > 21 or flushes:
            return Plan(*dtypes)
        if not _patterns.aligned(layout, fmt):
            return Plan(*dtypes)
        carry = _plan(Job(job.kind, fmt, "carried", job.policy), layout)
        exponent = np.maximum(np.arange(512) & 255, 1)  # field 0 has the spacing of field 1
        cleared = np.clip(layout.mantissa_bits - fmt.mantissa_bits + fmt.emin + layout.bias - exponent, 0, None)
        cleared = np.maximum(cleared, layout.mantissa_bits - fmt.mantissa_bits)
        reduce = np.where(cleared > layout.mantissa_bits, 31, layout.mantissa_bits - cleared).astype(np.uint32)
        keep = (0xFFFFFFFF << np.minimum(cleared, layout.mantissa_bits)).astype(np.uint32)
        return Plan(*dtypes, carry=carry, reduce=reduce, keep=keep, least=layout.pattern(*fmt.least_parts))
    if layout.bits == 16:
        return Plan(
            *dtypes, table=Table(1 << 16, partial(_build, job, layout, 0, np.zeros(1, np.int32), 16, dtypes[2]))
        )
    if shift < 0:
        return Plan(*dtypes)
    if layout.bits - shift <= (21 if layout.bits == 32 else 18):
        digits = layout.bits - shift
        return Plan(
            *dtypes,
            table=Table(1 << digits, partial(_build, job, layout, shift, np.zeros(1, dtypes[1]), digits, dtypes[2])),
            shift=_scalar(shift, layout),
            mask=_scalar((1 << shift) - 1, layout),
        )
    if layout is FLOAT64 and kept <= 13:
        # Exponents far below the smallest value do alike, so do those far above max: one part of the table for each.
        exponents = np.arange(2048)
        low = fmt.least_parts[1] - 2 + layout.bias  # the binade below least/2, and any lower one
        high = fmt.emax + 3 + layout.bias
        alike = np.where(exponents == 0, 0, np.clip(exponents, max(low, 1), min(high, 2046)))
        alike = np.where(exponents == 2047, 2047, alike)
        distinct, row = np.unique(np.concatenate([alike, alike + 2048]), return_inverse=True)
        starts = distinct << FLOAT64.mantissa_bits
        table = Table(starts.size << kept, partial(_build, job, layout, shift, starts, kept, dtypes[2]))
        rows = (row.reshape(-1) << kept) - (np.arange(4096) << kept)
        return Plan(
            *dtypes, table=table, shift=_scalar(shift, layout), mask=_scalar((1 << shift) - 1, layout), rows=rows
        )
    return Plan(*dtypes)


def _scalar(value: int, layout: Layout) -> Any:
    return np.array(value, f"uint{layout.bits}")  # a 0-d array: quicker in a ufunc than a Python or NumPy scalar


def _build(job: Job, layout: Layout, shift: int, starts: Any, digits: int, dtype: Any) -> np.ndarray[Any, Any]:
    """The answers to the 2^digits patterns, `shift` bits apart, from each of `starts` on."""
    patterns = (starts[:, None] | (np.arange(1 << digits) << shift)).astype(starts.dtype).reshape(-1)
    table: np.ndarray[Any, Any] = job(patterns, layout, NUMPY).astype(dtype)
    table.setflags(write=False)
    return table


def _numpy(job: Job, x: np.ndarray[Any, Any], random: Any) -> np.ndarray[Any, Any]:
    dtype = x.dtype
    layout = _numpy_layout(dtype)
    if not dtype.isnative:
        result = _numpy(job, x.astype(dtype.newbyteorder("=")), random)
        return result.astype(dtype) if job.kind != "encode" else result
    if job.random_bits:
        random = _numpy_random(random, job.random_bits, x.shape)
    if layout is None:
        return _numpy_integers(job, x, random)
    result = _numpy_patterns(job, x, layout, random)
    return result.view(dtype) if job.kind != "encode" else result


def _numpy_patterns(
    job: Job, x: np.ndarray[Any, Any], layout: Layout, random: Any, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """The results, as unsigned integers, for an array whose bytes are patterns of `layout`; in `out` if given."""
    plan = _plan(job, layout)
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    u = x.view(plan.pattern_dtype).reshape(-1)
    if plan.raises_on_nan and bool(((u & layout.magnitude) > layout.infinity).any()):
        raise _nan_refused(job)
    out = np.empty(x.shape, plan.out_dtype) if out is None else out
    flat = out.reshape(-1)
    if u.size >= COMPILE_FROM and not job.random_bits and (fast := _numba()) is not None:
        fast.compiled(job, layout)(u, flat)
        return out
    if plan.table is not None and (table := plan.table.asked(u.size)) is not None:
        _gather(u, plan, table, flat)
        return out
    r = None if random is None else np.ascontiguousarray(random).reshape(-1)
    carry = plan.carry.table if plan.carry is not None else None
    if carry is not None and r is not None and (table := carry.asked(u.size)) is not None:
        _stochastic(job, u, r, plan, table, flat)
        return out
    for i in range(0, u.size, BLOCK >> 3):
        block = slice(i, i + (BLOCK >> 3))
        flat[block] = _defined(job, u[block], layout, plan, None if r is None else r[block])
    return out


def _defined(job: Job, u: np.ndarray[Any, Any], layout: Layout, plan: Plan, random: Any) -> Any:
    pattern = u.astype(plan.signed_dtype) if layout.bits == 16 else u.view(plan.signed_dtype)
    return job(pattern, layout, NUMPY, None if random is None else random.astype(np.int64)).astype(plan.out_dtype)


def _gather(u: np.ndarray[Any, Any], plan: Plan, table: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """out[i] = table[index of u[i]], in blocks."""
    shift, mask = plan.shift, plan.mask
    word, index = _scratch_arrays(u.dtype)
    size = word.size
    for i in range(0, u.size, size):
        block = u[i : i + size]
        n = block.size
        w, k = word[:n], index[:n]
        if plan.rows is not None:
            np.right_shift(block, np.uint64(FLOAT64.mantissa_bits), w)
            plan.rows.take(w.view(np.intp), out=k, mode="wrap")
        if mask:
            # (u & mask) + mask carries into bit `shift` iff a bit below it is set; OR-ing that in is the sticky bit.
            np.bitwise_and(block, mask, w)
            np.add(w, mask, w)
            np.bitwise_or(block, w, w)
            np.right_shift(w, shift, w)
            block = w
        if plan.rows is not None:
            k += w.view(np.intp)
        elif w.itemsize == k.itemsize:
            k = w.view(np.intp)
        else:
            k[...] = block
        table.take(k, out=out[i : i + n], mode="wrap")


def _stochastic(
    job: Job,
    u: np.ndarray[Any, Any],
    r: np.ndarray[Any, Any],
    plan: Plan,
    table: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any],
) -> None:
    """float32: the random bits, shifted to just below the cut, are added to the pattern, and a table cuts.

    Values below the smallest (whose cut is above the pattern's mantissa) and the top binade, infinities and NaN (where
    the sum would run over) take the definition itself.
    """
    reduce, keep, carry = plan.reduce, plan.keep, plan.carry
    assert reduce is not None
    assert keep is not None
    assert carry is not None
    n, top = job.random_bits, FLOAT32.mantissa_bits
    size = min(BLOCK >> 2, max(u.size, 1))
    sums, words, index = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.intp)
    drop, lift = r.dtype.type(max(n - top, 0)), np.uint32(max(top - n, 0))
    for i in range(0, u.size, size):
        block, random = u[i : i + size], r[i : i + size]
        w, t, k, part = sums[: block.size], words[: block.size], index[: block.size], out[i : i + size]
        np.right_shift(block, np.uint32(top), t)
        k[...] = t
        w[...] = random >> drop
        np.left_shift(w, lift, w)
        reduce.take(k, out=t, mode="wrap")
        np.right_shift(w, t, w)
        np.add(w, block, w)
        # Cut here, where the exponent is still the one that was rounded at: the carry may have moved it.
        keep.take(k, out=t, mode="wrap")
        np.bitwise_and(w, t, w)
        _gather(w, carry, table, part)
        np.bitwise_and(block, np.uint32(FLOAT32.magnitude), t)
        apart = t >= np.uint32(254 << top)
        np.subtract(t, np.uint32(1), t)
        apart |= t < np.uint32(plan.least - 1)
        if apart.any():
            where = np.flatnonzero(apart)
            part[where] = _defined(job, block[where], FLOAT32, plan, random[where])


def _scratch_arrays(dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    arrays: dict[Any, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = _scratch.__dict__.setdefault("arrays", {})
    if dtype not in arrays:
        size = BLOCK >> 2 if dtype.itemsize == 8 else BLOCK
        arrays[dtype] = np.empty(size, dtype), np.empty(size, np.intp)
    return arrays[dtype]


@cache
def _numba() -> Any:
    """The module of compiled loops, where the `fast` extra is installed."""
    try:
        from precision import _numba as module
    except ImportError:
        return None
    return module


STICKY_BITS = 40  # of a significand and its random bits, that are decided by the 42 bits kept of an integer


def _integer_pattern(x: Any, negative: Any, ops: Any) -> tuple[Any, Any]:
    """The float64 patterns of 64-bit integers, and where they are not exact: 42 bits and a sticky one are kept."""
    a = ops.where(negative, 0 - x, x)  # the magnitude, as an unsigned number
    big = (a >= 1 << 53) | (a < 0)
    sticky = ((a >> 11) & ((1 << 53) - 1)) | ops.where((a & 2047) != 0, 1 + 0 * a, 0)
    pattern = ops.float_pattern(ops.where(big, sticky, a), FLOAT64) + ops.where(big, (11 << 52) + 0 * a, 0)
    return ops.where(negative, pattern | FLOAT64.sign, pattern), big


def _numpy_integers(job: Job, x: np.ndarray[Any, Any], random: Any) -> np.ndarray[Any, Any]:
    """Integers, each rounded once: exactly to float64 first, or with a sticky bit where float64 cannot hold them."""
    negative = x < 0 if x.dtype.kind == "i" else np.zeros(x.shape, bool)
    if x.dtype.itemsize < 8:
        exact = np.ascontiguousarray(x.astype(np.float64)).reshape(x.shape)
        result = _numpy_patterns(job, exact, FLOAT64, random)
    else:
        pattern, big = _integer_pattern(x.view(np.int64), negative, NUMPY)
        result = _numpy_patterns(job, np.ascontiguousarray(pattern).reshape(x.shape), FLOAT64, random)
        if job.fmt.mantissa_bits + job.random_bits > STICKY_BITS and bool(big.any()):  # Python's integers decide
            where = np.nonzero(big.reshape(-1))[0]
            r = None if random is None else random.reshape(-1)
            for i in where.tolist():
                value = int(x.reshape(-1)[i])
                digits = job.fmt.mantissa_bits + isinstance(job.fmt, Format)
                drop = max(abs(value).bit_length() - digits, job.fmt.least_parts[1], 0)
                below = value < 0 and (job.fmt.signed or job.policy.negative != "magnitude")
                y = _patterns.round_integer(abs(value), drop, below, job, None if r is None else int(r[i]))
                bits = np.array(math.copysign(float(y), value)).view(np.int64)
                part = Job(
                    job.kind, job.fmt, "nearest_even" if job.random_bits else job.mode, job.policy
                )  # may overflow
                result.reshape(-1)[i] = _numpy_patterns(part, bits, FLOAT64, None)
    if job.kind == "encode":
        return result
    values = result.view(np.float64)
    info = np.iinfo(x.dtype)
    fits = (values >= float(info.min)) & (values < float(info.max + 1)) & (np.floor(values) == values)
    if not bool(fits.all()):
        first = values.reshape(-1)[int(np.argmin(fits.reshape(-1)))]
        raise ValueError(
            f"x has dtype {x.dtype}, which cannot hold the rounded value {first}: convert x to float64 first, or "
            "use encode(), which takes any input"
        )
    return values.astype(x.dtype)


# --- torch ------------------------------------------------------------------------------------------------------------


def _torch(job: Job, x: Any, random: Any, torch: ModuleType) -> Any:
    check_dense(x, "x")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "x requires grad, and rounding has no useful derivative: pass x.detach() (or use torch.no_grad()) for the "
            "values alone; x + (P.round_to(x.detach(), fmt) - x).detach() has a straight-through gradient, which a "
            "later release calls P.fake_quantize"
        )
    traced = is_traced(x, torch)
    name = str(x.dtype).removeprefix("torch.")
    layout = LAYOUTS.get(name)
    if layout is None and name not in INTEGERS:
        raise TypeError(_refused_dtype(name))
    if not traced and (x.device.type == "cpu" or layout is None):
        return _torch_through_numpy(job, x, random, torch)
    if layout is None:
        return _traced_integers(job, x, random, torch)
    _check_holds(job, layout)
    _check_nan_policy(job, [x], traced, torch)
    if job.random_bits:
        random = _torch_random(random, job.random_bits, x.shape, x.device, torch)
    pattern = x.resolve_neg().view(_torch_integer(torch, layout.bits))
    if x.is_cuda and not traced:
        out = _cuda_kernel(job, layout)(pattern, random)
    else:
        if layout.bits == 16:
            pattern = pattern.to(torch.int32) & 0xFFFF
        out = job(pattern, layout, TORCH, random)
    if job.kind == "encode":
        return _torch_codes(out, job.fmt, torch)
    return out.to(_torch_integer(torch, layout.bits)).view(x.dtype)


def _traced_integers(job: Job, x: Any, random: Any, torch: ModuleType) -> Any:
    """Integer tensors that a compiler traces: as `_numpy_integers`, but Python's integers cannot help."""
    if x.element_size() == 8 and job.fmt.mantissa_bits + job.random_bits > STICKY_BITS:
        raise TypeError(
            f"while a compiler traces, 64-bit integers are not rounded to more than {STICKY_BITS} significand bits, "
            "random ones included: convert x to float64 first"
        )
    if x.element_size() < 8:
        result = _torch(job, x.to(torch.float64), random, torch)
    else:
        u = x.view(torch.int64)
        negative = u < 0 if x.dtype == torch.int64 else torch.zeros_like(u, dtype=torch.bool)
        result = _torch(job, _integer_pattern(u, negative, TORCH)[0].view(torch.float64), random, torch)
    if job.kind == "encode":
        return result
    info = torch.iinfo(x.dtype)
    fits = (result >= float(info.min)) & (result < float(info.max + 1)) & (result == result.floor())
    torch._assert_async(fits.all(), f"x has dtype {x.dtype}, which cannot hold every rounded value: use float64")
    return result.to(x.dtype)


def _check_nan_policy(job: Job, tensors: list[Any], traced: bool, torch: ModuleType) -> None:
    if (job.policy.nan if job.fmt.has_nan else job.policy.missing_nan) == "raise":
        if traced:
            raise ValueError("a policy that raises for NaN cannot be traced: choose another Policy.nan or missing_nan")
        if any(bool(torch.isnan(x).any()) for x in tensors):
            raise _nan_refused(job)


def _torch_random(random: Any, bits: int, shape: Any, device: Any, torch: ModuleType) -> Any:
    if not isinstance(random, torch.Tensor):
        random = torch.as_tensor(random, device=device)
    if random.is_floating_point() or random.is_complex() or random.dtype == torch.bool:
        raise TypeError(f"random_bits has dtype {random.dtype}; it must hold integers in [0, 2^{bits})")
    random = random.to(device, torch.int64) & ((1 << bits) - 1)
    if len(random.shape) > len(shape) or any(
        r not in (1, n) for r, n in zip(reversed(random.shape), reversed(shape), strict=False)
    ):
        raise ValueError(f"random_bits of shape {tuple(random.shape)} does not broadcast to x's shape {tuple(shape)}")
    return random


def is_traced(x: Any, torch: ModuleType) -> bool:
    """Whether there is no memory to look into: a compiler or a transform (vmap, jvp) sees the operations instead."""
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.is_meta:
        return True
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def _torch_integer(torch: ModuleType, bits: int) -> Any:
    return torch.int16 if bits == 16 else torch.int32 if bits == 32 else torch.int64


def _torch_codes(out: Any, fmt: AnyFormat, torch: ModuleType) -> Any:
    if fmt.bits <= 8:
        return out.to(torch.uint8)
    bits = code_dtype(fmt).itemsize * 8
    return out.to(_torch_integer(torch, bits)).view(getattr(torch, f"uint{bits}"))


def _torch_through_numpy(job: Job, x: Any, random: Any, torch: ModuleType) -> Any:
    """CPU tensors share their memory with the NumPy kernels (and integer tensors of other devices are copied there)."""
    device = x.device
    x = x.detach().cpu().resolve_neg()
    layout = LAYOUTS.get(str(x.dtype).removeprefix("torch."))
    if layout is None:
        return torch.from_numpy(_numpy(job, x.numpy(), random)).to(device)
    array = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    if job.random_bits:
        random = _numpy_random(random, job.random_bits, array.shape)
    out = _numpy_patterns(job, array, layout, random)
    if job.kind == "encode":
        return torch.from_numpy(out)
    return torch.from_numpy(out.view(f"int{layout.bits}")).view(x.dtype)


def cuda_source(job: Job, layout: Layout) -> str:
    """The definition of a job as the C++ source of one elementwise function on patterns."""
    recorder = CudaRecorder(wide=layout.width == 64 or job.random_bits > 0)
    cast = "(int)x & 0xffff" if layout.bits == 16 else "(long long)x" if recorder.is_wide else "(int)x"
    recorder.lines.append(f"const auto u = {cast};")
    result = job(Term("u", recorder), layout, recorder, Term("r", recorder) if job.random_bits else None)
    return recorder.function(["x", "r"] if job.random_bits else ["x"], result)


@cache
def _cuda_kernel(job: Job, layout: Layout) -> Any:
    """One elementwise kernel for integer patterns, compiled by NVRTC from the recorded definition."""
    kernel = jiterated(cuda_source(job, layout), job, layout)
    return lambda pattern, random: kernel([pattern], random)


def jiterated(source: str, job: Job, layout: Layout) -> Any:
    """What calls the compiled source on the patterns of one or several operands, and the random bits."""
    import torch

    kernel = torch.cuda.jiterator._create_jit_fn(source)  # type: ignore[no-untyped-call, unused-ignore]
    # The kernel returns the type it takes, so that type must hold the codes, too.
    wider = job.random_bits > 0 or (job.kind == "encode" and code_dtype(job.fmt).itemsize * 8 > layout.bits)

    def run(patterns: list[Any], random: Any) -> Any:
        patterns = [u.to(torch.int64) for u in patterns] if wider else patterns
        return kernel(*patterns, random) if job.random_bits else kernel(*patterns)

    return run
