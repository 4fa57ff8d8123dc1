"""Rounding: any array to the nearest representable values of a format, in seven modes under explicit policies.

A *rounding* chooses between the two neighbours of a value; a *policy* says what happens where rounding has no answer:
overflow, infinities, NaN, subnormals, and what an unsigned or zero-less format lacks. Sources: IEEE 754-2019 section
4.3 (attributes), 7.4 (overflow); OCP OFP8 1.0 section 5 (saturating and non-saturating conversion); PTX ISA `cvt`.

>>> import numpy as np, precision as P
>>> x = np.float32([1.0625, 464, 465, -1e-9])
>>> P.round_to(x, "float8_e4m3fn", policy="ieee")
array([  1., 448.,  nan,  -0.], dtype=float32)
>>> P.round_to(x, "float8_e4m3fn", rounding="toward_positive")  # policy="saturate"
array([  1.125, 448.   , 448.   ,  -0.   ], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from precision import _engine
from precision._patterns import Job
from precision.formats import AnyFormat, Format, get_format

__all__ = ["POLICIES", "ROUNDINGS", "Policy", "Rounding", "get_policy", "round_to", "stochastic"]

ArrayT = TypeVar("ArrayT")

ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "toward_positive", "toward_negative", "to_odd")
"""The deterministic roundings by name; `stochastic(...)` makes the seventh."""


@dataclass(frozen=True, eq=False)
class Rounding:
    """A rounding: one of `ROUNDINGS`, or "stochastic" with its random bits. Made by `stochastic`."""

    name: str
    random_bits: Any = field(default=None, repr=False)
    bits: int = 0

    def __post_init__(self) -> None:
        if self.name not in (*ROUNDINGS, "stochastic") or (self.name == "stochastic") != (self.bits != 0):
            raise ValueError(
                f"no rounding is named {self.name!r} with {self.bits} random bits: use one of "
                f"{', '.join(ROUNDINGS)}, or P.stochastic(random_bits=..., bits=...)"
            )


def stochastic(*, random_bits: Any, bits: int) -> Rounding:
    """Stochastic rounding with the caller's random integers: no hidden state, so a run can be repeated.

    Let f in [0, 1) be the part of |x| below the format's spacing, as a fraction of it. The magnitude rounds up iff
    floor(f * 2^bits) + r >= 2^bits, so with r uniform on 0 .. 2^bits - 1 it does with probability f cut to `bits`
    binary digits: unbiased when `bits` covers every dropped bit, biased toward zero by less than 2^-bits of a spacing
    otherwise. A result beyond max overflows under the policy as in nearest modes.

    `random_bits` is an integer array or tensor that broadcasts to the input's shape, every element in [0, 2^bits).
    Raises ValueError for `bits` outside 1 to 32, TypeError for random bits that are no integers. Source: Croci et al.,
    "Stochastic rounding: implementation, error analysis and applications", R. Soc. Open Sci. 2022, SR with limited
    bits.
    """
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"bits is {bits!r}; it must be an int from 1 to 32")
    if not 1 <= bits <= 32:
        raise ValueError(f"bits is {bits}; stochastic rounding takes 1 to 32 random bits")
    return Rounding("stochastic", random_bits, bits)


@dataclass(frozen=True)
class Policy:
    """What a conversion does where rounding alone has no answer; every choice is separate.

    overflow     "saturate": a finite value that rounds beyond max becomes ±max. "infinity": as IEEE 754-2019 7.4:
                 nearest and stochastic give infinity; toward_zero and to_odd give ±max; a directed mode gives infinity
                 only in its direction. A format without infinities gives NaN of that sign, one without NaN ±max.
                 Integers have neither, so they always saturate.
    infinity     what ±Inf becomes, in any mode: "saturate": ±max; "infinity": itself, else NaN of that sign, else ±max.
    nan          which NaN a NaN becomes: "quiet" (only the quiet bit set, positive), "all_ones" (NVIDIA's, positive),
                 "quiet_signed", "all_ones_signed" (the input's sign kept), "raise" (ValueError; not while tracing).
    missing_nan  NaN into a format that has none: "max" (largest positive), "zero", "opposite_zero" (-0 for +NaN, +0 for
                 -NaN), "raise"; None is "max" for floating-point formats (as NVIDIA hardware) and "zero" for integers.
    subnormals   "keep"; "flush_inputs": a subnormal of the input's own dtype counts as zero; "flush_results": a result
                 below smallest_normal becomes zero after rounding, sign kept; "flush": both.
    negative     a negative, non-zero input of an unsigned floating-point format: "nan" (where it has one, else as
                 "clamp"), "clamp" (to zero or the smallest value), "magnitude" (the sign is dropped).
    zero         zero into a format without zero (E8M0): "smallest" or "nan".
    """

    overflow: Literal["saturate", "infinity"] = "saturate"
    infinity: Literal["saturate", "infinity"] = "saturate"
    nan: Literal["quiet", "quiet_signed", "all_ones", "all_ones_signed", "raise"] = "quiet"
    missing_nan: Literal["max", "zero", "opposite_zero", "raise"] | None = None
    subnormals: Literal["keep", "flush_inputs", "flush_results", "flush"] = "keep"
    negative: Literal["nan", "clamp", "magnitude"] = "nan"
    zero: Literal["smallest", "nan"] = "smallest"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value not in _CHOICES[f.name]:
                allowed = ", ".join(repr(c) for c in _CHOICES[f.name])
                raise ValueError(f"policy {f.name} is {value!r}; it must be one of {allowed}")


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "overflow": ("saturate", "infinity"),
    "infinity": ("saturate", "infinity"),
    "nan": ("quiet", "quiet_signed", "all_ones", "all_ones_signed", "raise"),
    "missing_nan": (None, "max", "zero", "opposite_zero", "raise"),
    "subnormals": ("keep", "flush_inputs", "flush_results", "flush"),
    "negative": ("nan", "clamp", "magnitude"),
    "zero": ("smallest", "nan"),
}

_SATURATE = Policy()
_IEEE = Policy(overflow="infinity", infinity="infinity")
_CUDA_NOSAT = Policy(overflow="infinity", infinity="infinity", nan="all_ones", negative="magnitude")
_CUDA_SAT = Policy(nan="all_ones", negative="magnitude")
_TORCH = Policy(overflow="infinity", infinity="infinity", nan="all_ones_signed", negative="magnitude")
_TORCH_SAT = Policy(nan="all_ones_signed")
_ML_DTYPES = Policy(
    overflow="infinity", infinity="infinity", nan="quiet_signed", missing_nan="opposite_zero", zero="nan"
)
_ONNX_FNUZ = Policy(overflow="saturate", infinity="infinity")


def _named(fmt: AnyFormat, *names: str) -> bool:
    return fmt.name in names


POLICIES: dict[str, Callable[[AnyFormat], Policy]] = {
    "saturate": lambda fmt: _SATURATE,
    "ieee": lambda fmt: _IEEE,
    "ptx": lambda fmt: _CUDA_NOSAT,
    "ptx_satfinite": lambda fmt: _CUDA_SAT,
    "cuda_nosat": lambda fmt: _CUDA_NOSAT,
    "torch": lambda fmt: _TORCH_SAT if _named(fmt, "float8_e4m3fn") else _TORCH,
    "torch_2_11": lambda fmt: _TORCH,
    "ml_dtypes": lambda fmt: _ML_DTYPES,
    "onnx": lambda fmt: _ONNX_FNUZ if isinstance(fmt, Format) and fmt.nan == "negative_zero" else _SATURATE,
}
"""Policies by name, each a function of the format, since a library may treat formats differently.

"saturate": OCP saturating conversion. "ieee": IEEE 754 and OCP non-saturating. "ptx": PTX `cvt` without .satfinite, as
recorded on an H200 (NaN 0x7fff, sign dropped); "ptx_satfinite": with it, and `cuda_fp8.h` SATFINITE; "cuda_nosat":
`cuda_fp8.h` NOSAT. "torch": torch 2.12 and later (`float8_e4m3fn` saturates, infinities too; everything else does not);
"torch_2_11": up to 2.11. "ml_dtypes": ml_dtypes 0.6. "onnx": the ONNX Cast tables with saturate=1.
"""


def get_policy(policy: Policy | str, fmt: AnyFormat | str) -> Policy:
    """The policy of a preset name for a format; a `Policy` is returned as it is.

    Raises ValueError for an unknown name, TypeError for anything else.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"a policy is a Policy or a preset's name ({', '.join(POLICIES)}), not {policy!r}")
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}, or P.Policy(overflow=..., ...)")
    return POLICIES[policy](get_format(fmt))


def _mode(rounding: Any) -> str:
    if isinstance(rounding, Rounding):
        return rounding.name
    if not isinstance(rounding, str):
        raise TypeError(f"a rounding is a name ({', '.join(ROUNDINGS)}) or P.stochastic(...), not {rounding!r}")
    if rounding not in ROUNDINGS:
        extra = "; stochastic rounding is P.stochastic(random_bits=..., bits=...)" if "stoch" in rounding else ""
        raise ValueError(f"unknown rounding {rounding!r}: use one of {', '.join(ROUNDINGS)}{extra}")
    return rounding


_jobs: dict[Any, Job] = {}  # a dict, because compilers trace through lru_cache with a warning


def job(kind: str, fmt: Any, rounding: Any, policy: Any) -> tuple[Job, Any]:
    """The job of a call and its random bits (None unless stochastic): arguments checked, names resolved, cached."""
    stochastic = isinstance(rounding, Rounding) and rounding.name == "stochastic"
    key = (kind, fmt, ("stochastic", rounding.bits) if stochastic else rounding, policy)
    try:
        found = _jobs.get(key)
    except TypeError:  # something unhashable: the checks below have the clear message
        found = None
    if found is None:
        resolved = get_format(fmt)
        found = Job(kind, resolved, _mode(rounding), get_policy(policy, resolved), rounding.bits if stochastic else 0)
        if len(_jobs) > 4096:
            _jobs.clear()
        _jobs[key] = found
    return found, rounding.random_bits if stochastic else None


def round_to(
    x: ArrayT,
    fmt: AnyFormat | str,
    *,
    rounding: Rounding | str = "nearest_even",
    policy: Policy | str = "saturate",
) -> ArrayT:
    """Every element rounded once to a representable value of `fmt`; same library, shape, device and dtype as `x`.

    `x` is a NumPy array or torch tensor of float16, float32, float64, bfloat16 or integers, of any shape and strides
    (scalars and lists become NumPy arrays). Rounding is direct from the input's own bits, never through a narrower
    type. Defaults: round to nearest, ties to the even significand; beyond max, and ±Inf, saturate to ±max; NaN stays
    NaN, or becomes +max (0 for integers) where the format has none; subnormals are kept, and so is -0 where the format
    has one; ties of a format with no mantissa bit go up in magnitude (IEEE 754-2019 4.3.1). `policy` changes any of this.

    Works while torch.compile traces, with the same bits, and under flush-to-zero: only integer operations are used.

    Raises TypeError for other dtypes; ValueError for a dtype that cannot hold the format's values (naming one that
    can), a tensor that requires grad (use `fake_quantize`), an unknown name, random bits out of range, and under the
    "raise" policies for a NaN.
    """
    todo, random = job("round", fmt, rounding, policy)
    result: ArrayT = _engine.apply(todo, x, random)
    return result
