"""Arithmetic on arrays, rounded once: add, sub, mul, div, sqrt, fma, and conversion between any two formats.

Every operation is computed in float64 and *rounded to odd* there: where the float64 result is inexact, the one of its
two neighbours with an odd significand is taken. Rounding that to a format of at most 51 digits gives what rounding the
exact result gives, in every mode: neither a value of the format nor a midpoint of two (at most 52 digits) lies strictly
between the exact result and its odd neighbour (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008). Whether float64 was exact, and on which
side it erred, is read from the exact error of a sum (Knuth's TwoSum) or of a product (Dekker), or from the sign of the
remainder of a quotient or root. Nothing in there overflows or becomes subnormal:

* operands of at most 32 bits are values between 2^-149 and 2^128, their products, quotients and sums between 2^-298 and
  2^278, and float64 is normal from 2^-1022 to 2^1024. Products of two significands of 24 bits are exact;
* float64 operands outside 2^-400 .. 2^400 and results in float64 itself (53 digits) are computed in Python's integers,
  element by element: right, and slow. Nearest-even results in float64 within that range are the hardware's.

Sources: IEEE 754-2019 5.4.1 (operations), 6.1-6.3 (infinities, NaN, signs of zero), 7 (exceptions).

>>> import numpy as np, precision as P
>>> a, b = np.float32([448, 1, 3]), np.float32([16, 2**-5, 1 / 3])
>>> P.add(a, b, "float8_e4m3fn"), P.fma(a, b, a, "bfloat16", rounding="toward_positive")
(array([448.  ,   1.  ,   3.25], dtype=float32), array([7.61600e+03, 1.03125e+00, 4.03125e+00], dtype=float32))
>>> flags = P.Flags()
>>> P.div(np.float32([1, -1, 0, 1]), np.float32([3, 0, 0, 4]), "float16", flags=flags)
array([0.33325195,       -inf,        nan, 0.25      ], dtype=float32)
>>> flags.raised, flags.divide_by_zero
(('invalid', 'divide_by_zero', 'inexact'), array([False,  True, False, False]))
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, reduce
from operator import and_
from typing import Any, Literal

import numpy as np

from precision import _engine, _patterns, codec
from precision._array import FLOAT32, FLOAT64, INTEGERS, LAYOUTS, NUMPY, TORCH, CudaRecorder, Layout, Term
from precision._operations import (
    ADD,
    CONVERT,
    DIV,
    FMA,
    MUL,
    SQRT,
    SUB,
    Operation,
    _integer,
    exactly,
    exceeds,
    final_pattern,
    nearest,
    odd_pattern,
    rounded_in_integers,
    rounded_to_odd,
)
from precision._patterns import Job
from precision.formats import AnyFormat, Format, get_format
from precision.policies import Policy, Rounding, get_policy
from precision.rounding import job as make_job
from precision.rounding import round_to

__all__ = ["Flags", "add", "convert", "div", "fma", "mul", "sqrt", "sub"]

COMPILE_FROM = 1 << 16  # elements from which a compiled loop is worth its call
BLOCK = 1 << 15  # elements: a few float64 arrays of that size stay in a core's cache
ODD_DIGITS = 51  # up to which float64 rounded to odd has two digits to spare
SAFE = (1023 - 400) << 52, (1023 + 400) << 52  # patterns of the float64 magnitudes whose error terms are exact


@dataclass
class Flags:
    """The IEEE 754 exceptions of the last operation it was given to, as boolean arrays of the result's shape.

    invalid         a NaN from operands that are none (Inf - Inf, 0 * Inf, 0/0, Inf/Inf, the root of a negative number),
                    or a number, or -Inf, that an unsigned or zero-less format turns into NaN
    divide_by_zero  an exact infinity from finite operands: x/0
    overflow        finite operands, and the result, rounded as if the exponent had no limit, is beyond max
    underflow       the result is inexact and, rounded as if the exponent had no limit, below smallest_normal
    inexact         the result is not the exact one (overflow included)

    A negative result of an unsigned format is never an overflow: it is invalid where the policy makes a NaN of it, and
    inexact where it clamps; with negative="magnitude" the flags are those of the magnitude, and inexact.
    Tininess is thus detected after rounding, as x86 does; IEEE 754-2019 7.5 leaves the choice. Flushing a subnormal
    result is inexact. Always NumPy arrays, also for tensors.
    """

    invalid: Any = None
    divide_by_zero: Any = None
    overflow: Any = None
    underflow: Any = None
    inexact: Any = None

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of the flags that some element raised."""
        return tuple(f.name for f in fields(self) if np.any(getattr(self, f.name)))


# --- NumPy ------------------------------------------------------------------------------------------------------------


class Task:
    """One operation into one format, checked and resolved: what all its blocks share."""

    def __init__(
        self, operation: Operation, job: Job, layout: Layout, flush_inputs: bool, refuses_nan: bool = False
    ) -> None:
        self.operation = operation
        self.job = job  # rounds float64 patterns; the flushing of inputs and the refusal of NaN are taken out of it
        self.layout = layout  # of the operands
        self.flush_inputs = flush_inputs
        self.refuses_nan = refuses_nan
        self.narrow = layout is not FLOAT64
        digits = job.fmt.mantissa_bits + 1
        # Whether float64 rounded to odd has enough digits (or is exact anyway).
        self.through_odd = digits + job.random_bits <= ODD_DIGITS or operation.exact(self.narrow)
        # Whether the definition is all there is to do, so that one kernel or loop can do it.
        self.fusible = self.narrow and self.through_odd and not refuses_nan
        # Whether float32 rounded to odd has enough digits, too: CUDA has quick instructions for it.
        in_float32 = _patterns.aligned(FLOAT32, job.fmt) and (layout is FLOAT32 or job.kind == "encode")
        self.through_float32 = in_float32 and digits <= 22 and not job.random_bits
        # Whether float64's own nearest result is the answer.
        self.native = job.mode == "nearest_even" and digits == 53
        # The digits of the operands, and of the results, for which float32 is enough; 0 if it never is.
        self.short = 0
        if layout is FLOAT32 and not job.random_bits:
            if job.fmt.name == "float32" and job.mode == "nearest_even" and operation is not FMA:
                self.short = digits  # float32's own nearest result is the answer
            elif digits <= 11 and _patterns.aligned(FLOAT32, job.fmt):
                self.short = digits
        # Whether float32's nearest result is not, and has to be rounded to odd.
        self.short_of_odd = operation is FMA or (operation in (ADD, SUB) and not job.mode.startswith("nearest"))
        # What a negative result becomes: itself, or what the policy says of a format without a sign.
        lacking = "clamp" if job.policy.negative == "nan" and not job.fmt.has_nan else job.policy.negative
        self.negative = "kept" if job.fmt.signed else lacking
        self.signed_nan = job.policy.nan.endswith("signed") or job.policy.missing_nan == "opposite_zero"

    @cached_property
    def in_float64(self) -> Job:
        """The same rounding, to a float64 pattern."""
        return replace(self.job, kind="round", into=None)

    @cached_property
    def unbounded(self) -> Job:
        """The same rounding to as many digits, with (nearly) all of float64's exponents."""
        m = self.job.fmt.mantissa_bits
        wide = Format("unbounded", 11, m) if m else Format("unbounded", 10, 0, infinities=False, nan="none")
        return replace(self.in_float64, fmt=wide, policy=get_policy("ieee", wide))

    @cached_property
    def finished(self) -> Job:
        """What is left to do with a finite result that is rounded already: an infinity is the overflow's."""
        policy = replace(self.job.policy, infinity="infinity")
        return replace(self.job, mode="toward_zero", random_bits=0, policy=policy)


def _block(task: Task, patterns: list[Any], random: Any, raised: np.ndarray[Any, Any] | None) -> Any:
    """The results of some elements, from float64 patterns; `raised` receives the flags, a row each."""
    operation, job = task.operation, task.job
    inputs: Any = patterns
    apart: list[int] = []
    if not task.narrow or not task.through_odd:
        native = task.native and raised is None
        inputs = np.broadcast_arrays(*patterns)
        magnitudes = [u & FLOAT64.magnitude for u in inputs]
        numbers = [(a != 0) & (a < FLOAT64.infinity) for a in magnitudes]
        wild = [n & ((a < SAFE[0]) | (a > SAFE[1])) for n, a in zip(numbers, magnitudes, strict=True)]
        slow = _has_result(operation, inputs)
        if task.through_odd or native:
            slow &= np.logical_or.reduce(wild)
        apart = np.flatnonzero(slow).tolist()
        # Beside Inf, NaN and zero only the sign of a number counts: float64 shall not overflow or flush it.
        patterns = [np.where(w, (u & FLOAT64.sign) | (1023 << 52), u) for w, u in zip(wild, inputs, strict=True)]
    z, e = nearest(operation, patterns, task.narrow, job.mode, task.signed_nan, NUMPY)
    _check_nan(task, z, FLOAT64)
    if e is not None and task.through_odd:
        z = rounded_to_odd(z, e, NUMPY)
    exact = [exactly(operation, [int(u[i]) for u in inputs], job.mode) for i in apart]
    r = [0] * len(apart) if random is None else random[apart].tolist()
    if task.through_odd and apart:
        z[apart] = [odd_pattern(*parts) for parts in exact]
    out = _engine._numpy_patterns(job, z.view(np.uint64), FLOAT64, random)
    if apart and not task.through_odd:
        final = [final_pattern(*parts, job, bits) for parts, bits in zip(exact, r, strict=True)]
        out[apart] = _engine._numpy_patterns(task.finished, np.array(final, np.int64).view(np.uint64), FLOAT64, None)
    if raised is not None:
        raised[0], raised[1] = _invalid(operation, inputs, z), _by_zero(operation, inputs)
        if task.negative == "nan":
            raised[0] |= z == FLOAT64.sign | FLOAT64.infinity
        if task.through_odd:
            _inexact_flags(task, z, random, raised)
        else:
            if not job.fmt.zero:
                raised[np.ix_([0, 2, 3, 4], z & FLOAT64.magnitude == 0)] = np.c_[
                    list(_exact_flags(task, False, 0, 0, 0))
                ]
            for i, parts, bits in zip(apart, exact, r, strict=True):
                raised[[0, 2, 3, 4], i] = _exact_flags(task, *parts, bits)
    return out


def _check_nan(task: Task, results: Any, layout: Layout) -> None:
    if task.refuses_nan and bool(((results & layout.magnitude) > layout.infinity).any()):
        raise ValueError(
            f"an operand is NaN, or this {task.operation.name} makes one, and the policy says to raise for one; "
            f"{task.job.fmt.name}: see Policy.nan and missing_nan"
        )


# --- Exceptions -------------------------------------------------------------------------------------------------------


def _has_result(operation: Operation, patterns: Any) -> Any:
    """Where finite operands have a finite result: not x/0, 0/0, nor the root of a negative number."""
    found = reduce(and_, [(u & FLOAT64.magnitude) < FLOAT64.infinity for u in patterns])
    if operation is DIV:
        found &= patterns[1] & FLOAT64.magnitude != 0
    if operation is SQRT:
        found &= (patterns[0] >= 0) | (patterns[0] == FLOAT64.sign)
    return found


def _invalid(operation: Operation, patterns: Any, z: Any) -> Any:
    """A NaN from operands that are none."""
    none = reduce(
        and_, [(u & FLOAT64.magnitude) <= FLOAT64.infinity for u in patterns]
    )  # a number has a shape of its own
    return none & ((z & FLOAT64.magnitude) > FLOAT64.infinity)


def _by_zero(operation: Operation, patterns: Any) -> Any:
    if operation is not DIV:
        return False
    a = patterns[0] & FLOAT64.magnitude
    return (a != 0) & (a < FLOAT64.infinity) & (patterns[1] & FLOAT64.magnitude == 0)


def _inexact_flags(task: Task, z: Any, random: Any, raised: Any) -> None:
    """Adds to the flags what rounding does to finite results, exact or rounded to odd."""
    fmt = task.job.fmt
    a = z & FLOAT64.magnitude
    number, below = a < FLOAT64.infinity, (z < 0) & (a != 0)
    size, free = (
        _engine._numpy_patterns(job, np.ascontiguousarray(u).view(np.uint64), FLOAT64, random).view(np.int64)
        & FLOAT64.magnitude
        for job, u in ((task.in_float64, z), (task.unbounded, a if task.negative == "magnitude" else z))
    )
    over = free > FLOAT64.pattern(*fmt.max_parts)
    if task.negative in ("nan", "clamp"):  # too large is not what is wrong with a number below all of the format
        over &= ~below
    inexact = (size != a) | over
    if not fmt.signed:
        inexact |= below
    became_nan = number & (size > FLOAT64.infinity) & ~over
    raised[0] |= became_nan
    raised[2:] = over, inexact & (free < FLOAT64.pattern(1, fmt.emin)), inexact
    raised[2:] &= number & ~became_nan


def _exact_flags(task: Task, negative: bool, m: int, e: int, random: int) -> tuple[bool, bool, bool, bool]:
    """(invalid, overflow, underflow, inexact) of one result."""
    job, fmt, smallest_normal = task.job, task.job.fmt, (1, task.job.fmt.emin)
    below = negative and m != 0 and not fmt.signed
    if (below and task.negative == "nan") or (m == 0 and not fmt.zero and fmt.has_nan and job.policy.zero == "nan"):
        return True, False, False, False
    negative &= fmt.signed or task.negative != "magnitude"
    rounded = rounded_in_integers(negative, m, e, job, random)
    free = rounded_in_integers(negative, m, e, job, random, bounded=False)
    over = exceeds(free, e, *fmt.max_parts) and not (below and negative)
    flushed = job.policy.subnormals == "flush_results" and rounded > 0 and exceeds(*smallest_normal, rounded, e)
    raised_to_least = not fmt.zero and exceeds(*fmt.least_parts, m, e)
    inexact = rounded != m or over or flushed or below or raised_to_least
    return False, over, inexact and exceeds(*smallest_normal, free, e), inexact


# --- Operands ---------------------------------------------------------------------------------------------------------


def _numpy(task: Task, operands: list[np.ndarray[Any, Any]], random: Any, flags: Flags | None) -> np.ndarray[Any, Any]:
    """The results, as unsigned integers, for arrays of patterns of the task's layout, unsigned too."""
    shape = _engine.broadcast_shape(**dict(zip(task.operation.operands, operands, strict=True)))
    parts = [(x if x.size == 1 or x.shape == shape else np.broadcast_to(x, shape)).reshape(-1) for x in operands]
    unsigned = operands[0].dtype.type
    out = np.empty(shape, _engine.code_dtype(task.job.fmt) if task.job.kind == "encode" else unsigned)
    flat = out.reshape(-1)
    if task.job.random_bits:
        random = _engine._numpy_random(random, task.job.random_bits, shape).reshape(-1)
    compiles = flat.size >= COMPILE_FROM and task.fusible and flags is None and random is None
    compiled = _compiled_loop(task) if compiles and _engine._numba() is not None else None
    raised = None if flags is None else np.zeros((5, flat.size), bool)
    flushes = _flushes()
    with np.errstate(all="ignore"):
        for i in range(0, flat.size, BLOCK):
            block = slice(i, i + BLOCK)
            pieces = [u if u.size == 1 else u[block] for u in parts]
            if task.flush_inputs:
                pieces = [_flushed(u, task.layout) for u in pieces]
            if task.short and raised is None and not flushes and not (compiled and task.short_of_odd):
                z = _in_float32(task, pieces)
                if z is not None:
                    _check_nan(task, z, FLOAT32)
                    _engine._numpy_patterns(task.job, z, FLOAT32, None, flat[block])
                    continue
            if compiled:
                rest = flat[i:]
                compiled(*(np.broadcast_to(u, rest.shape) if u.size == 1 else u[i:] for u in parts), rest)
                break
            patterns = [_float64_patterns(u, task.layout, flushes) for u in pieces]
            r = random[block] if task.job.random_bits else None
            flat[block] = _block(task, patterns, r, None if raised is None else raised[:, block])
    if flags is not None and raised is not None:
        for f, row in zip(fields(flags), raised, strict=True):
            setattr(flags, f.name, row.reshape(shape))
    return out


@cache
def _compiled_loop(task: Task) -> Any:
    """The definition as one loop, compiled by numba (the `fast` extra)."""
    job, layout = task.job, task.layout
    title = f"{task.operation.name} {layout.name} to {job.fmt.name}, {job.kind}, {job.mode}, {job.policy}"
    define = lambda x, recorder: _defined(task, x, recorder, None)  # noqa: E731
    return _engine._numba().loop(title, layout, task.operation.arity, define)


def _flushed(u: np.ndarray[Any, Any], layout: Layout) -> Any:
    unsigned = u.dtype.type
    subnormal = u & unsigned(layout.magnitude) < unsigned(layout.implicit)
    return np.where(subnormal, u & unsigned(layout.magnitude + 1), u)


def _in_float32(task: Task, patterns: list[Any]) -> Any:
    """The float32 patterns of results that round as the exact ones do, or None where float32 cannot tell.

    float32 itself, rounded to nearest, needs no argument. Else for operands of at most p = `task.short` digits, the
    format's, with 2p + 2 <= 24. What a rounding compares with are
    breakpoints: numbers of at most p + 1 digits. The nearest float32 is on the same side of all of them as the exact
    result, unless it is a breakpoint itself, and inexact. Now

    * a product has at most 2p digits: exact. A quotient or root that is not exact differs from every breakpoint by more
      than half a unit of the last of 2p + 2 digits (Figueroa, "When is double rounding innocuous?", 1995);
    * a sum is inexact only if one term is less than 2^(p - 24) of the other. Its nearest float32 may have p digits:
      no midpoint of the format while that is normal, so the nearest modes round it rightly;
    * otherwise (directed sums, fma, and sums among the format's subnormals, whose midpoints have p digits and fewer) a
      breakpoint is replaced by its odd neighbour toward the exact result.

    All of it while results are normal: zeros and subnormals from others, and infinities, are looked at one by one.
    """
    operation, p, mode = task.operation, task.short, task.job.mode
    bits = patterns[0]
    for u in patterns[1:]:
        bits = bits | u
    if np.bitwise_or.reduce(bits) & np.uint32((1 << (24 - p)) - 1):
        return None
    x = [u.view(np.float32) for u in patterns]
    a = x[0]
    if operation is ADD or operation is SUB:
        b = x[1] if operation is ADD else -x[1]
        s = a + b
    elif operation is FMA:
        a, b = x[0] * x[1], x[2]
        if not _usual(a.view(np.uint32), patterns[:2], FLOAT32.implicit):
            return None
        s = a + b
    else:
        s = a * x[1] if operation is MUL else a / x[1] if operation is DIV else np.sqrt(a)
    z = s.view(np.uint32)
    if not _usual(z, patterns, 0 if operation in (ADD, SUB, FMA) or p == 24 else FLOAT32.implicit):
        return None
    if task.signed_nan and np.isnan(s).any():
        return None
    odd = task.short_of_odd
    if not odd and p != 24 and (operation is ADD or operation is SUB):
        below = np.uint32(FLOAT32.pattern(1, task.job.fmt.emin) - 1)
        odd = bool(((z & np.uint32(FLOAT32.magnitude)) - np.uint32(1) < below).any())  # 0 - 1 is the largest integer
    if odd:
        if mode == "toward_negative" and not s.all():
            return None
        breakpoints = z & np.uint32((1 << (23 - p)) - 1) == 0
        at: Any = np.flatnonzero(breakpoints)
        if 2 * at.size > z.size:
            at = slice(None)
        a, b, s = (y if y.size == 1 else y[at] for y in (a, b, s))
        t = s - a
        e = (a - (s - t)) + (b - t)
        away = ((s.view(np.int32) ^ e.view(np.int32)) >> 31) | 1
        moves = (np.abs(e) > 0) & breakpoints[at]  # off an even number, not onto one; Inf and NaN have a NaN for e
        z[at] += np.where(moves, away, 0).view(np.uint32)
    return z


def _usual(z: Any, operands: list[Any], least: int) -> bool:
    """Whether every float32 result is finite and at least `least` in magnitude, or follows from a zero, Inf or NaN."""
    apart = (z & np.uint32(FLOAT32.magnitude)) - np.uint32(least) >= np.uint32(FLOAT32.infinity - least)
    at = np.flatnonzero(apart)
    if not at.size:
        return True
    found = np.zeros(at.shape, bool)
    for u in operands:
        a = (u if u.size == 1 else u[at]) & np.uint32(FLOAT32.magnitude)
        found = found | (a == 0) | (a >= np.uint32(FLOAT32.infinity))
    return bool(np.all(found))


def _held(u: np.ndarray[Any, Any], source: Layout, layout: Layout) -> Any:
    """Patterns of one layout as those of the same values in another: no subnormal is flushed, no NaN is warned of."""
    if source is layout:
        return u
    with np.errstate(all="ignore"):
        if layout is FLOAT64:
            return _float64_patterns(u, source, _flushes()).view(np.uint64)
        if source.name == "bfloat16":
            return u.astype(np.uint32) << np.uint32(16)
        return u.view(np.float16).astype(np.float32).view(np.uint32)


def _float64_patterns(u: np.ndarray[Any, Any], layout: Layout, flushes: bool) -> Any:
    """Patterns of any layout as float64 patterns of the same values."""
    if layout is FLOAT64:
        return u.view(np.int64)
    if flushes or layout.name == "float16":
        return _widened(u.astype(np.int32), layout, NUMPY)
    if layout.name == "bfloat16":
        u = u.astype(np.uint32) << np.uint32(16)
    return u.view(np.float32).astype(np.float64).view(np.int64)


def _widened(u: Any, layout: Layout, ops: Any) -> Any:
    """The same in integers, which no flush-to-zero reaches."""
    wide = _patterns._widen(u & layout.magnitude, layout, ops)
    return ops.where((u & layout.sign) != 0, wide | FLOAT64.sign, wide)


def _flushes() -> bool:
    """Whether this thread's processor takes float32 subnormals for zero, or makes zeros of them."""
    return not np.array(2, np.int32).view(np.float32) * np.float32(0.5) > 0


def _apply(
    operation: Operation,
    operands: tuple[Any, ...],
    fmt: Any,
    rounding: Any,
    policy: Any,
    result: str,
    flags: Flags | None,
) -> Any:
    """The operation on whatever arrays the caller has."""
    if flags is not None and not isinstance(flags, Flags):
        raise TypeError(f"flags is {flags!r}; pass a P.Flags() to be filled, or None")
    if result not in ("value", "code"):
        raise ValueError(f"result is {result!r}; it must be 'value' or 'code'")
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in operands):
        return _torch(operation, operands, fmt, rounding, policy, result, flags, torch)
    for x, name in zip(operands, operation.operands, strict=True):
        _engine.check_unmasked(x, name)
    arrays: list[Any] = [x if _is_number(x) else np.asarray(x) for x in operands]
    layout, dtype = _common_dtype(tuple(x.dtype for x in arrays if not _is_number(x)))
    task, random = _task(operation, fmt, rounding, policy, result, layout)
    out = _numpy(task, [_patterns_of(x, layout) for x in arrays], random, flags)
    if result == "value":
        out = out.view(dtype)
    return out[()] if all(isinstance(x, np.generic) for x in operands) else out


def _patterns_of(x: Any, layout: Layout) -> Any:
    """A Python number, or an array, as patterns of the layout that the operands have in common."""
    if _is_number(x):
        return np.array(_number(x, layout), f"uint{layout.bits}")
    own = LAYOUTS[x.dtype.name]
    native = x.astype(x.dtype.newbyteorder("="), order="C", copy=False)
    return _held(native.view(f"uint{own.bits}"), own, layout)


def _is_number(x: Any) -> bool:
    return type(x) in (int, float)


_tasks: dict[Any, Task] = {}


def _task(operation: Operation, fmt: Any, rounding: Any, policy: Any, result: str, layout: Layout) -> tuple[Task, Any]:
    """The checked task of a call, cached, and its random bits."""
    target = get_format(fmt)
    if not isinstance(target, Format):
        raise TypeError(f"{target.name} is an integer format; arithmetic rounds to a floating-point format")
    chosen = get_policy(policy, target)
    flush_inputs = chosen.subnormals in ("flush_inputs", "flush")
    if flush_inputs:
        chosen = replace(chosen, subnormals="flush_results" if chosen.subnormals == "flush" else "keep")
    refuses_nan = (chosen.nan if target.has_nan else chosen.missing_nan) == "raise"
    if refuses_nan:
        chosen = replace(chosen, nan="quiet", missing_nan=None)
    kind = {"value": "round", "code": "encode"}[result]
    job, random = make_job(kind, target, rounding, chosen, layout)
    key = operation, job, flush_inputs, refuses_nan
    found = _tasks.get(key)
    if found is None:
        _engine._check_holds(job, layout, "an operand", "ask for codes, result='code'")
        if len(_tasks) > 4096:
            _tasks.clear()
        found = _tasks[key] = Task(operation, job, layout, flush_inputs, refuses_nan)
    return found, random


def _common_layout(names: list[str]) -> Layout:
    """The smallest layout that holds the values of all dtypes; Python numbers take the others' dtype."""
    for name in names:
        if name not in LAYOUTS:
            if name in INTEGERS:
                raise TypeError(f"an operand has dtype {name}: convert it to a float dtype that holds its values")
            raise TypeError(_engine._refused_dtype(name, "an operand", "float16, bfloat16, float32 and float64"))
    if len(set(names)) == 1:
        return LAYOUTS[names[0]]
    return FLOAT64 if "float64" in names or not names else FLOAT32


@cache
def _common_dtype(dtypes: tuple[np.dtype[Any], ...]) -> tuple[Layout, np.dtype[Any]]:
    """The layout and dtype that hold the values of all."""
    layout = _common_layout([d.name for d in dtypes])
    return layout, next((d.newbyteorder("=") for d in dtypes if d.name == layout.name), None) or np.dtype(layout.name)


def _number(x: Any, layout: Layout) -> int:
    """The pattern of a Python number in the layout of the arrays beside it, which must hold it: all in integers."""
    try:
        value = float(x)
    except OverflowError:
        value = 0.0
    (u,) = struct.unpack("<q", struct.pack("<d", value))
    a = u & FLOAT64.magnitude
    holds = value != value or value == x
    if a >= FLOAT64.infinity:
        found = layout.infinity if a == FLOAT64.infinity else layout.quiet_nan
    else:
        m, e = _integer(a)
        zeros = max((m & -m).bit_length() - 1, 0)
        m, e = m >> zeros, e + zeros
        in_range = e >= 1 - layout.bias - layout.mantissa_bits and m.bit_length() + e <= layout.bias + 1
        holds = holds and (m == 0 or (in_range and m.bit_length() <= layout.mantissa_bits + 1))
        found = layout.pattern(m, e) if holds else 0
    if not holds:
        shown = repr(x) if isinstance(x, float) or x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"
        remedy = "no dtype here holds it: round it" if layout is FLOAT64 else "pass it as an array of a wider one"
        raise ValueError(f"{shown} is no value of the other operands' dtype {layout.name}: {remedy}")
    return found | int(u < 0) << (layout.bits - 1)


# --- torch ------------------------------------------------------------------------------------------------------------


def _torch(
    operation: Operation,
    operands: tuple[Any, ...],
    fmt: Any,
    rounding: Any,
    policy: Any,
    result: str,
    flags: Flags | None,
    torch: Any,
) -> Any:
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    device = tensors[0].device
    for x in operands:
        if not isinstance(x, torch.Tensor) and not _is_number(x):
            raise TypeError(f"operands are tensors and a {type(x).__name__}: pass tensors and Python numbers only")
    if any(x.device != device for x in tensors):
        devices = ", ".join(sorted({str(x.device) for x in tensors}))
        raise ValueError(f"operands are on {devices}: move them to one device")
    if any(x.requires_grad for x in tensors) and torch.is_grad_enabled():
        raise ValueError("an operand requires grad, and rounding has no useful derivative: use x.detach() or no_grad()")
    for x, name in zip(operands, operation.operands, strict=True):
        if isinstance(x, torch.Tensor):
            _engine.check_dense(x, name)
    layout = _common_layout([str(x.dtype).removeprefix("torch.") for x in tensors])
    dtype = getattr(torch, layout.name)
    task, random = _task(operation, fmt, rounding, policy, result, layout)
    integer = _engine._torch_integer(torch, layout.bits)
    traced = any(_engine.is_traced(x, torch) for x in tensors)
    fusible = task.fusible and flags is None
    if traced and not fusible:
        raise TypeError(
            "float64 operands, results of more than 51 digits (stochastic bits counted), policies that raise and flags "
            "cannot be traced: call this outside of torch.compile, or with float32 tensors"
        )
    if not traced and (device.type == "cpu" or not fusible):
        arrays = [_cpu_patterns(x, layout, torch) for x in operands]
        out = torch.from_numpy(_numpy(task, arrays, random, flags)).to(device)
        return out if result == "code" else out.view(integer).view(dtype)
    patterns = []
    for x in operands:
        if isinstance(
            x, torch.Tensor
        ):  # to float32 if at all, from dtypes whose subnormals are normal there or shifted
            patterns.append(x.to(dtype).resolve_neg().view(integer))
        else:
            u = _number(x, layout)
            patterns.append(torch.tensor(u - ((u >> (layout.bits - 1)) << layout.bits), dtype=integer, device=device))
    if not traced:
        _engine.broadcast_shape(**dict(zip(operation.operands, patterns, strict=True)))
    if task.job.random_bits:
        shape = torch.broadcast_shapes(*(x.shape for x in patterns))
        random = _engine._torch_random(random, task.job.random_bits, shape, device, torch)
    if not traced and device.type == "cuda":
        out = _cuda_kernel(task)(patterns, random)
    else:
        if layout.bits == 16:
            patterns = [u.to(torch.int32) & 0xFFFF for u in patterns]
        out = _defined(task, patterns, TORCH, random)
    if result == "code":
        return _engine._torch_codes(out, task.job.fmt, torch)
    return out.to(integer).view(dtype)


def _cpu_patterns(x: Any, layout: Layout, torch: Any) -> Any:
    """`_patterns_of` a tensor, whose memory NumPy shares if it is the CPU's."""
    if not isinstance(x, torch.Tensor):
        return _patterns_of(x, layout)
    own = LAYOUTS[str(x.dtype).removeprefix("torch.")]
    x = x.detach().cpu().resolve_neg().contiguous()
    return _held(x.view(_engine._torch_integer(torch, own.bits)).numpy().view(f"uint{own.bits}"), own, layout)


def _defined(task: Task, patterns: list[Any], ops: Any, random: Any) -> Any:
    """The whole of a narrow operation, in terms that every back end has."""
    layout, job = task.layout, task.job
    if task.flush_inputs:
        patterns = [ops.where((u & layout.magnitude) < layout.implicit, u & layout.sign, u) for u in patterns]
    native = isinstance(ops, CudaRecorder) and not task.signed_nan
    if native and layout.name != "float16":
        wide = [ops.float64_of(u, layout) for u in patterns]
    else:
        wide = [_widened(u, layout, ops) for u in patterns]
    z, e = nearest(task.operation, wide, True, job.mode, task.signed_nan, ops)
    z = z if e is None else rounded_to_odd(z, e, ops)
    if native and task.through_float32:
        return job(ops.odd_float32(z), FLOAT32, ops, random)
    return job(z, FLOAT64, ops, random)


def cuda_source(task: Task) -> str:
    """The definition of a narrow task as the C++ source of one elementwise function on patterns."""
    recorder = CudaRecorder(wide=True)
    names = [f"x{i}" for i in range(task.operation.arity)]
    mask = " & 0xffff" if task.layout.bits == 16 else ""
    recorder.lines.extend(f"const long long u{x} = (int){x}{mask};" for x in names)
    random = Term("r", recorder) if task.job.random_bits else None
    result = _defined(task, [Term(f"u{x}", recorder) for x in names], recorder, random)
    return recorder.function([*names, "r"] if task.job.random_bits else names, result)


@cache
def _cuda_kernel(task: Task) -> Any:
    """One elementwise kernel for integer patterns, compiled by NVRTC from the recorded definition."""
    return _engine.jiterated(cuda_source(task), task.job, task.layout)


# --- The public operations --------------------------------------------------------------------------------------------

Value = Literal["value", "code"]


def add(
    a: Any,
    b: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """a + b, exact, then rounded once to `fmt`.

    Operands are NumPy arrays or torch tensors (one library, one device) of float16, bfloat16, float32 or float64, any
    values, not only those of `fmt`; shapes broadcast, Python numbers take the arrays' dtype. The result is like the
    operands, of the dtype that holds them all (float32 for float16 with bfloat16), which must hold `fmt`'s values; or
    codes, with result="code". Overflow gives infinity or what `policy` says; Inf - Inf is NaN; of NaN operands the
    first is handed on, and `policy.nan` makes one of `fmt`'s of it; x + (-x) is +0, -0 toward_negative; zeros of one
    sign keep it; subnormals are kept, and policies that flush inputs flush those of the operands' own dtype.
    `flags`, a `Flags` to be filled, reports the IEEE exceptions (computed on the CPU).

    Works while torch.compile traces (not for float64, nor with flags) with the same bits, and under flush-to-zero.
    Raises TypeError for other dtypes (integers too: they need a float dtype that holds them), masked arrays, sparse
    tensors and integer formats; ValueError for shapes that do not broadcast, a dtype that cannot hold the results or a
    Python number, tensors that require grad or are on several devices, and unknown names.
    Source: IEEE 754-2019 5.4.1, 6.1-6.3, 7.
    """
    return _apply(ADD, (a, b), fmt, rounding, policy, result, flags)


def sub(
    a: Any,
    b: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """a - b, exact, then rounded once to `fmt`: `add` of the opposite number; a NaN operand keeps its sign."""
    return _apply(SUB, (a, b), fmt, rounding, policy, result, flags)


def mul(
    a: Any,
    b: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """a * b, exact, then rounded once to `fmt`; 0 * Inf is NaN, zeros have the product of the signs; else as `add`."""
    return _apply(MUL, (a, b), fmt, rounding, policy, result, flags)


def div(
    a: Any,
    b: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """a / b rounded once to `fmt`; 0/0 and Inf/Inf are NaN; x/0 an exact infinity (policy.infinity); else as `add`."""
    return _apply(DIV, (a, b), fmt, rounding, policy, result, flags)


def sqrt(
    x: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """The square root rounded once to `fmt`; of -0 it is -0, of any other negative number NaN; else as `add`."""
    return _apply(SQRT, (x,), fmt, rounding, policy, result, flags)


def fma(
    a: Any,
    b: Any,
    c: Any,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "ieee",
    result: Value = "value",
    flags: Flags | None = None,
) -> Any:
    """a * b + c, exact, then rounded once to `fmt`; NaN where the product or the sum is invalid; else as `add`."""
    return _apply(FMA, (a, b, c), fmt, rounding, policy, result, flags)


def convert(
    codes: Any,
    source: AnyFormat | str,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "saturate",
    result: Value = "code",
    flags: Flags | None = None,
) -> Any:
    """Codes of `source` as codes (or values) of `fmt`, rounded once.

    The conversion of `round_to` and `encode`, and their default policy; `flags` reports the IEEE exceptions into a
    floating-point format. Codes are integer arrays or tensors as `decode` takes them. Raises as `decode` and `encode`.
    """
    if result not in ("value", "code"):
        raise ValueError(f"result is {result!r}; it must be 'value' or 'code'")
    target = get_format(fmt)
    wide = result == "value" and not _patterns.holds(FLOAT32, target)
    x = codec.decode(codes, source, "float64" if wide else None)
    if flags is None:
        make = codec.encode if result == "code" else round_to
        return make(x, target, rounding=rounding, policy=policy)
    if not isinstance(target, Format):
        raise TypeError(f"{target.name} is an integer format; flags are those of conversions to floating-point formats")
    return _apply(CONVERT, (x,), target, rounding, policy, result, flags)
