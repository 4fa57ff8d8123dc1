"""The choices of a conversion: which neighbour (`Rounding`), and what where rounding has no answer (`Policy`).

A *rounding* chooses between the two neighbours of a value; a *policy* says what happens at overflow, infinities, NaN,
subnormals, and with what an unsigned or zero-less format lacks. Sources: IEEE 754-2019 section 4.3 (attributes), 7.4
(overflow); OCP OFP8 1.0 section 5 (saturating and non-saturating conversion); PTX ISA `cvt`.

>>> import precision as P
>>> P.get_policy("torch", "float8_e4m3fn").overflow, P.get_policy("torch", "float8_e5m2").overflow
('saturate', 'infinity')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, Literal

from precision.formats import AnyFormat, Format, get_format

__all__ = ["POLICIES", "ROUNDINGS", "Policy", "Rounding", "get_policy", "stochastic"]

ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "toward_positive", "toward_negative", "to_odd")
"""The deterministic roundings by name; `stochastic(...)` makes the seventh."""


@dataclass(frozen=True, eq=False)
class Rounding:
    """A rounding: one of `ROUNDINGS`, or "stochastic" with its random bits. Made by `stochastic`."""

    name: str
    random_bits: Any = field(default=None, repr=False)
    bits: int = 0

    def __post_init__(self) -> None:
        if self.name == "stochastic":
            object.__setattr__(self, "bits", _random_bits(self.bits))
        if self.name not in (*ROUNDINGS, "stochastic") or (self.name == "stochastic") != (self.bits != 0):
            raise ValueError(
                f"no rounding is named {self.name!r} with {self.bits} random bits: use one of "
                f"{', '.join(ROUNDINGS)}, or P.stochastic(random_bits=..., bits=...)"
            )


def _random_bits(bits: Any) -> int:
    """A number of random bits, checked; integers of NumPy become Python's, which do not overflow."""
    if isinstance(bits, bool) or not hasattr(bits, "__index__"):
        raise TypeError(f"bits is {bits!r}; it must be an int from 1 to 32")
    if not 1 <= bits <= 32:
        raise ValueError(f"bits is {bits}; stochastic rounding takes 1 to 32 random bits")
    return index(bits)


def stochastic(*, random_bits: Any, bits: int) -> Rounding:
    """Stochastic rounding with the caller's random integers: no hidden state, so a run can be repeated.

    Let f in [0, 1) be the part of |x| below the format's spacing, as a fraction of it. The magnitude rounds up iff
    floor(f * 2^bits) + r >= 2^bits, so with r uniform on 0 .. 2^bits - 1 it does with probability f cut to `bits`
    binary digits: unbiased when `bits` covers every dropped bit, biased toward zero by less than 2^-bits of a spacing
    otherwise. A result beyond max overflows under the policy as in nearest modes.

    `random_bits` is an integer array or tensor that broadcasts to the input's shape, every element in [0, 2^bits).
    On CUDA and while a compiler traces the range is not checked, which would wait for the device: the low bits count.
    Raises ValueError for `bits` outside 1 to 32, TypeError for random bits that are no integers. Source: Croci et al.,
    "Stochastic rounding: implementation, error analysis and applications", R. Soc. Open Sci. 2022, SR with limited
    bits.
    """
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
"torch_2_11": up to 2.11; NaN codes are those of its casts to 8 bits: on the CPU those to float16 keep upper payload
bits, and those to bfloat16 depend on the processor (docs/peers.md). "ml_dtypes": ml_dtypes 0.6. "onnx": the ONNX Cast
tables with saturate=1.
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


def mode_of(rounding: Any) -> str:
    """The name of a rounding that a caller gave, checked."""
    if isinstance(rounding, Rounding):
        return rounding.name
    if not isinstance(rounding, str):
        raise TypeError(f"a rounding is a name ({', '.join(ROUNDINGS)}) or P.stochastic(...), not {rounding!r}")
    if rounding not in ROUNDINGS:
        extra = "; stochastic rounding is P.stochastic(random_bits=..., bits=...)" if "stoch" in rounding else ""
        raise ValueError(f"unknown rounding {rounding!r}: use one of {', '.join(ROUNDINGS)}{extra}")
    return rounding
