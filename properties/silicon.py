"""Real GPU bits: what the casts of one NVIDIA H200 gave for every float32, and whether our emulator gives the same.

Each of 39 casts (PTX `cvt`, CUDA headers, torch on CUDA) was run on all 2^32 float32 patterns. The outputs travel as
1024 digests a cast, one per chunk of 2^22 consecutive patterns, so that one wrong code in 2^32 is seen; 31 tables from
16-bit and narrower formats travel in full. A row of `CASTS` or `TABLES` says which rounding under which policy the card
performs; where its cast is not one of those, the row names a *recipe*: a few lines with the observed fact.

Source: recorded on 2026-11-29 on the machine that `RECORDED` describes; docs/silicon.md lists rows, recipes, omissions.

>>> from properties.silicon import replay
>>> replay("ptx_cvt_rn_satfinite_e4m3x2_f32", chunks=[0, 510]).mismatching_chunks
()
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import precision as P
from precision.formats import get_format
from precision.policies import Policy

__all__ = [
    "CASTS",
    "CHUNK",
    "CHUNKS",
    "RECORDED",
    "TABLES",
    "Cast",
    "Replay",
    "casts",
    "digest",
    "document",
    "key_chunks",
    "multipliers",
    "recording",
    "replay",
    "replay_table",
    "tables",
]

Array = NDArray[Any]
Codes = Callable[[Array], Array]

RECORDED: Mapping[str, str] = {
    "gpu": "NVIDIA H200 (one card, sm_90)",
    "driver": "580.159.04",
    "nvcc": "13.0.88",
    "torch": "2.11.0+cu130",
    "date": "2026-11-29",
}
"""Where every recording comes from."""

CHUNK = 1 << 22
"""Inputs in a chunk: chunk c holds the float32 patterns c * 2^22 to (c + 1) * 2^22 - 1, half a binade."""
CHUNKS = 1 << 10
"""Chunks in a cast: 1024 * 2^22 = 2^32."""
BLOCK = 1 << 14  # elements whose scratch stays in a core's cache


class Encode(Protocol):
    """What is judged: `precision.encode`, or anything with its signature."""

    def __call__(self, x: Array, fmt: str, /, *, rounding: str, policy: Policy | str) -> Array: ...


# --- recipes: input patterns and the row's plain encoding, to the recorded patterns -----------------------------------


def _plain(bits: Array, encode: Codes) -> Array:
    """The code itself."""
    return encode(bits)


def _low_byte(bits: Array, encode: Codes) -> Array:
    """The low byte of the int32: torch converts to int32, saturating, then truncates, so 256.0 -> 0, +Inf -> 0xff."""
    return encode(bits).astype(np.uint8)


def _tf32(bits: Array, encode: Codes) -> Array:
    """The 19-bit code stands at the top of a float32 word."""
    return encode(bits) << 13


def _rna_tf32(bits: Array, encode: Codes) -> Array:
    """NaN is only cut to 19 bits, so a NaN with a small payload, 0x7f800001 to 0x7f801fff, comes out as infinity."""
    return np.where(_is_nan(bits), bits & 0xFFFFE000, _tf32(bits, encode))


def _rna_satfinite_tf32(bits: Array, encode: Codes) -> Array:
    """NaN is cut to 19 bits less one tf32 ulp, so a NaN with a small payload comes out as the largest finite value."""
    return np.where(_is_nan(bits), (bits & 0xFFFFE000) - 0x2000, _tf32(bits, encode))


def _torch_e8m0(bits: Array, encode: Codes) -> Array:
    """All of (2^-127, 2^-126) goes *up* to 2^-126, as if 2^-127 were half way from a zero that the format lacks.

    Rounding to the nearest value would send what is below 1.5 * 2^-127 down to 2^-127.
    """
    magnitude = bits & 0x7FFFFFFF
    return np.where((magnitude > 0x00400000) & (magnitude < 0x00800000), np.uint8(1), encode(bits))


def _bf16_nan_kept(bits: Array, encode: Codes) -> Array:
    """bfloat16 to float32 is a shift by 16 bits for NaN, too: sign and payload stay, nothing is made quiet."""
    return np.where((bits & 0x7FFF) > 0x7F80, bits.astype(np.uint32) << 16, encode(bits))


def _is_nan(bits: Array) -> Array:
    result: Array = (bits & 0x7FFFFFFF) > 0x7F800000
    return result


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cast:
    """One recording: `source` patterns to `format` codes by one rounding under one policy, then a recipe.

    `policy` is a preset of `precision.POLICIES` or a `Policy`. `recipe(bits, encode)` takes the input patterns and a
    function from patterns to the row's codes, and returns the recorded patterns. `note` says what to know of the row.
    """

    name: str
    format: str
    rounding: str
    policy: str | Policy
    note: str = ""
    recipe: Callable[[Array, Codes], Array] = _plain
    source: str = "float32"

    def codes(self, bits: Array, encode: Encode = P.encode) -> Array:
        """The patterns that this row expects from the card for input patterns, as `encode` computes them."""

        def plain(patterns: Array) -> Array:
            x = _values(patterns, self.source)
            return encode(x, self.format, rounding=self.rounding, policy=self.policy)

        return self.recipe(bits, plain)


def _values(bits: Array, source: str) -> Array:
    """Input patterns as an array to encode: of their own dtype where NumPy has it, else decoded, which is exact."""
    if source in ("float32", "float16"):
        return bits.view(source)
    values: Array = P.decode(bits, source)
    return values


_RNE, _RNA, _RZ, _RP = "nearest_even", "nearest_away", "toward_zero", "toward_positive"
_SAME = "same digests as "

CASTS: tuple[Cast, ...] = (
    # recording, format, rounding, policy, note, recipe
    Cast("ptx_cvt_rn_f16_f32", "float16", _RNE, "ptx"),
    Cast("ptx_cvt_rn_f16x2_f32_hilane", "float16", _RNE, "ptx", _SAME + "ptx_cvt_rn_f16_f32"),
    Cast("cuda_float2half_rn", "float16", _RNE, "ptx", _SAME + "ptx_cvt_rn_f16_f32"),
    Cast("torch_cuda_to_float16", "float16", _RNE, "ptx", _SAME + "ptx_cvt_rn_f16_f32"),
    Cast("ptx_cvt_rz_f16_f32", "float16", _RZ, "ptx", "finite overflow gives max, ±Inf stays"),
    Cast("ptx_cvt_rn_satfinite_f16x2_f32", "float16", _RNE, "ptx_satfinite"),
    Cast("ptx_cvt_rn_bf16_f32", "bfloat16", _RNE, "ptx"),
    Cast("cuda_float2bfloat16_rn", "bfloat16", _RNE, "ptx", _SAME + "ptx_cvt_rn_bf16_f32"),
    Cast("torch_cuda_to_bfloat16", "bfloat16", _RNE, "ptx", _SAME + "ptx_cvt_rn_bf16_f32"),
    Cast("ptx_cvt_rz_bf16_f32", "bfloat16", _RZ, "ptx", "finite overflow gives max, ±Inf stays"),
    Cast("ptx_cvt_rn_satfinite_bf16x2_f32", "bfloat16", _RNE, "ptx_satfinite"),
    Cast("ptx_cvt_rn_tf32_f32", "tfloat32", _RNE, "ptx", recipe=_tf32),
    Cast("ptx_cvt_rz_tf32_f32", "tfloat32", _RZ, "ptx", "finite overflow cannot happen", _tf32),
    Cast("ptx_cvt_rna_tf32_f32", "tfloat32", _RNA, "ptx", "integer code, not a conversion unit", _rna_tf32),
    Cast("ptx_cvt_rna_satfinite_tf32_f32", "tfloat32", _RNA, "ptx_satfinite", "integer code, too", _rna_satfinite_tf32),
    Cast("ptx_cvt_rn_satfinite_e4m3x2_f32", "float8_e4m3fn", _RNE, "ptx_satfinite"),
    Cast("ptx_cvt_rn_satfinite_e4m3x2_f32_hilane", "float8_e4m3fn", _RNE, "ptx_satfinite", _SAME + "the low lane"),
    Cast("cuda_fp8_e4m3_satfinite", "float8_e4m3fn", _RNE, "ptx_satfinite", _SAME + "ptx_cvt_rn_satfinite_e4m3x2_f32"),
    Cast("cuda_fp8_e4m3_nosat", "float8_e4m3fn", _RNE, "cuda_nosat", "overflow, ±Inf: ±NaN; NaN drops its sign"),
    Cast("torch_cuda_to_float8_e4m3fn", "float8_e4m3fn", _RNE, "torch_2_11", "NaN keeps its sign"),
    Cast("torch_cuda_to_float8_e4m3fnuz", "float8_e4m3fnuz", _RNE, "torch_2_11"),
    Cast("ptx_cvt_rn_satfinite_e5m2x2_f32", "float8_e5m2", _RNE, "ptx_satfinite"),
    Cast("cuda_fp8_e5m2_satfinite", "float8_e5m2", _RNE, "ptx_satfinite", _SAME + "ptx_cvt_rn_satfinite_e5m2x2_f32"),
    Cast("cuda_fp8_e5m2_nosat", "float8_e5m2", _RNE, "cuda_nosat"),
    Cast("torch_cuda_to_float8_e5m2", "float8_e5m2", _RNE, "torch_2_11", "NaN keeps its sign"),
    Cast("torch_cuda_to_float8_e5m2fnuz", "float8_e5m2fnuz", _RNE, "torch_2_11"),
    Cast("cuda_e8m0_rz_satfinite", "float8_e8m0fnu", _RZ, "ptx_satfinite", "drops the sign first; zero gives 2^-127"),
    Cast("cuda_e8m0_rz_nosat", "float8_e8m0fnu", _RZ, "cuda_nosat", "±Inf gives NaN"),
    Cast("cuda_e8m0_rp_satfinite", "float8_e8m0fnu", _RP, "ptx_satfinite", "overflow and ±Inf give max"),
    Cast("cuda_e8m0_rp_nosat", "float8_e8m0fnu", _RP, "cuda_nosat", "overflow and ±Inf give NaN"),
    Cast("torch_cuda_to_float8_e8m0fnu", "float8_e8m0fnu", _RNE, "torch_2_11", "the sign is dropped", _torch_e8m0),
    Cast("cuda_fp6_e2m3_rn", "float6_e2m3fn", _RNE, "ptx_satfinite", "NaN gives +max, whatever its sign"),
    Cast("cuda_fp6_e3m2_rn", "float6_e3m2fn", _RNE, "ptx_satfinite", "NaN gives +max, whatever its sign"),
    Cast("cuda_fp4_e2m1_rn", "float4_e2m1fn", _RNE, "ptx_satfinite", "NaN gives +max, whatever its sign"),
    Cast("ptx_cvt_rni_sat_s8_f32", "int8", _RNE, "ptx_satfinite", "NaN gives 0"),
    Cast("ptx_cvt_rni_sat_u8_f32", "uint8", _RNE, "ptx_satfinite", "NaN and everything negative give 0"),
    Cast("ptx_cvt_rni_s32_f32", "int32", _RNE, "ptx", "saturates without .sat; NaN gives 0"),
    Cast("ptx_cvt_rzi_s32_f32", "int32", _RZ, "ptx", "saturates without .sat; NaN gives 0"),
    Cast("torch_cuda_to_int8", "int32", _RZ, "ptx", "wraps beyond 8 bits, unlike .sat", _low_byte),
)  # fmt: skip
"""The 39 casts from float32, all 2^32 inputs each."""

_F16, _BF16 = "float16", "bfloat16"

TABLES: tuple[Cast, ...] = (
    Cast("ptx_cvt_rn_satfinite_e4m3x2_f16x2_lo", "float8_e4m3fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("ptx_cvt_rn_satfinite_e4m3x2_f16x2_hi", "float8_e4m3fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("ptx_cvt_rn_satfinite_e5m2x2_f16x2_lo", "float8_e5m2", _RNE, "ptx_satfinite", source=_F16),
    Cast("ptx_cvt_rn_satfinite_e5m2x2_f16x2_hi", "float8_e5m2", _RNE, "ptx_satfinite", source=_F16),
    Cast("ptx_cvt_rni_sat_s8_f16", "int8", _RNE, "ptx_satfinite", source=_F16),
    Cast("ptx_cvt_f32_f16", "float32", _RNE, "ptx", "every NaN gives 0x7fffffff", source=_F16),
    Cast("ptx_cvt_f32_bf16", "float32", _RNE, "ptx", recipe=_bf16_nan_kept, source=_BF16),
    Cast("cuda_halfraw_to_e4m3_nosat", "float8_e4m3fn", _RNE, "cuda_nosat", source=_F16),
    Cast("cuda_halfraw_to_e5m2_nosat", "float8_e5m2", _RNE, "cuda_nosat", source=_F16),
    Cast("cuda_halfraw_to_e4m3_satfinite", "float8_e4m3fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("cuda_halfraw_to_e5m2_satfinite", "float8_e5m2", _RNE, "ptx_satfinite", source=_F16),
    Cast("cuda_halfraw_to_e2m1_rn", "float4_e2m1fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("cuda_halfraw_to_e2m3_rn", "float6_e2m3fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("cuda_halfraw_to_e3m2_rn", "float6_e3m2fn", _RNE, "ptx_satfinite", source=_F16),
    Cast("cuda_bfloat16raw_to_e4m3_nosat", "float8_e4m3fn", _RNE, "cuda_nosat", source=_BF16),
    Cast("cuda_bfloat16raw_to_e5m2_nosat", "float8_e5m2", _RNE, "cuda_nosat", source=_BF16),
    Cast("cuda_bfloat16raw_to_e4m3_satfinite", "float8_e4m3fn", _RNE, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e5m2_satfinite", "float8_e5m2", _RNE, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e2m1_rn", "float4_e2m1fn", _RNE, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e2m3_rn", "float6_e2m3fn", _RNE, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e3m2_rn", "float6_e3m2fn", _RNE, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e8m0_rz_satfinite", "float8_e8m0fnu", _RZ, "ptx_satfinite", source=_BF16),
    Cast("cuda_bfloat16raw_to_e8m0_rp_satfinite", "float8_e8m0fnu", _RP, "ptx_satfinite", source=_BF16),
    Cast("decode_ptx_cvt_rn_f16x2_e4m3x2", "float16", _RNE, "ptx", "NaN gives 0x7fff", source="float8_e4m3fn"),
    Cast("decode_ptx_cvt_rn_f16x2_e5m2x2", "float16", _RNE, "ptx", "NaN gives 0x7fff", source="float8_e5m2"),
    Cast("decode_cuda_fp8_e4m3_to_halfraw", "float16", _RNE, "ptx", "NaN gives 0x7fff", source="float8_e4m3fn"),
    Cast("decode_cuda_fp8_e5m2_to_halfraw", "float16", _RNE, "ptx", "NaN gives 0x7fff", source="float8_e5m2"),
    Cast("decode_cuda_fp6_e2m3_to_halfraw", "float16", _RNE, "ptx", source="float6_e2m3fn"),
    Cast("decode_cuda_fp6_e3m2_to_halfraw", "float16", _RNE, "ptx", source="float6_e3m2fn"),
    Cast("decode_cuda_fp4_e2m1_to_halfraw", "float16", _RNE, "ptx", source="float4_e2m1fn"),
    Cast("decode_cuda_e8m0_to_bf16raw", "bfloat16", _RNE, "ptx", "NaN gives 0x7fff", source="float8_e8m0fnu"),
)  # fmt: skip
"""The 31 conversions from 16-bit and narrower formats: every input, every output."""

OMITTED: Mapping[str, str] = {
    "ex2.approx, lg2.approx, rcp.approx, rsqrt.approx, tanh.approx, `__expf`, `expf`": (
        "recorded, but no casts: special functions, computed from tables that NVIDIA does not publish"
    ),
    "cvt with .relu, .rs (stochastic), .rm": "not recorded",
    "cvt to e2m1x2, e2m3x2, e3m2x2, ue8m0x2": (
        "instructions that an H200 (sm_90) lacks; the casts to these formats above are the CUDA headers', in software"
    ),
}
"""What was recorded and is not replayed, or was not recorded, and why."""


def casts() -> dict[str, Cast]:
    """The rows of `CASTS` by name of the recording."""
    return {row.name: row for row in CASTS}


def tables() -> dict[str, Cast]:
    """The rows of `TABLES` by name of the recording."""
    return {row.name: row for row in TABLES}


def _row(name: str, rows: dict[str, Cast], what: str) -> Cast:
    if name not in rows:
        raise ValueError(f"no {what} is named {name!r}: use one of {', '.join(rows)}")
    return rows[name]


# --- digests and replay -----------------------------------------------------------------------------------------------


@cache
def _recordings() -> dict[str, Array]:
    with resources.files("properties").joinpath("data/silicon_casts.npz").open("rb") as file, np.load(file) as stored:
        found = {name: stored[name] for name in stored.files}
    for name, first in found.pop("same_as"):  # identical recordings are stored once
        found[str(name)] = found[str(first)]
    for array in found.values():
        array.setflags(write=False)
    return found


def recording(name: str) -> Array:
    """What the card gave: uint64[1024], the digests of a cast's chunks, or a table's output patterns by input pattern.

    Raises ValueError for an unknown name.
    """
    _row(name, casts() | tables(), "recording")
    return _recordings()[name]


@cache
def multipliers() -> tuple[Array, int]:
    """Factors of a digest, splitmix64(i) | 1 for i = 0 .. 2^22 - 1, and their sum mod 2^64.

    Source: Steele, Lea, Flood, OOPSLA 2014.
    """
    z = np.arange(1, CHUNK + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    z |= np.uint64(1)
    return z, int(z.sum(dtype=np.uint64))


def digest(codes: Array) -> int:
    """The digest of a chunk's output patterns: sum over i of (code_i + 1) * m(i) mod 2^64, i from 0 inside the chunk.

    m(i) is odd, so no single wrong code goes unseen. Raises ValueError unless `codes` are 2^22 unsigned integers.
    """
    flat = np.asarray(codes).reshape(-1)
    if flat.dtype.kind != "u" or flat.size != CHUNK:
        raise ValueError(f"codes are {flat.size} {flat.dtype}; a digest is of the {CHUNK} unsigned codes of a chunk")
    factors, total = multipliers()
    wide = np.empty(BLOCK, np.uint64)
    for i in range(0, CHUNK, BLOCK):  # one pass, in blocks that stay in cache; uint64 wraps as it should
        wide[...] = flat[i : i + BLOCK]
        total += int(np.dot(wide, factors[i : i + BLOCK]))
    return total % (1 << 64)


@dataclass(frozen=True)
class Replay:
    """The verdict on one cast: the chunks compared, those whose digest differs from the card's, seconds taken."""

    name: str
    chunks: tuple[int, ...]
    mismatching_chunks: tuple[int, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.mismatching_chunks

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: {len(self.chunks)} of {CHUNKS} chunks compared, all as on the card"
        first = self.mismatching_chunks[0] * CHUNK
        return (
            f"{self.name}: {len(self.mismatching_chunks)} of {len(self.chunks)} chunks differ from the card, "
            f"the first is float32 patterns 0x{first:08x} to 0x{first + CHUNK - 1:08x}"
        )


def replay(
    name: str,
    chunks: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    encode: Encode = P.encode,
) -> Replay:
    """Whether `encode` gives the card's bits on the given chunks of float32 patterns: all 1024 (2^32 inputs) if None.

    All chunks take some 10 s of one core for most casts, 90 s for those to int32; the 39 casts together 10 minutes, or
    5 with numba (the `fast` extra).
    Rounding and policy are the row's; NaN, ±Inf, -0 and subnormals are inputs like any other, and NaN codes must be the
    card's. `progress(done, of)` is called after each chunk.
    Raises ValueError for an unknown name or a chunk outside 0 to 1023.
    """
    row = _row(name, casts(), "cast")
    todo = tuple(range(CHUNKS)) if chunks is None else tuple(chunks)
    for chunk in todo:
        if not 0 <= chunk < CHUNKS:
            raise ValueError(f"chunk is {chunk}; the chunks of a cast are 0 to {CHUNKS - 1}")
    start = time.perf_counter()
    expected = recording(name)
    first = np.arange(CHUNK, dtype=np.uint32)
    bits = np.empty_like(first)
    wrong = []
    for done, chunk in enumerate(todo, 1):
        np.add(first, np.uint32(chunk * CHUNK), out=bits)
        if digest(row.codes(bits, encode)) != int(expected[chunk]):
            wrong.append(chunk)
        if progress is not None:
            progress(done, len(todo))
    return Replay(name, todo, tuple(wrong), time.perf_counter() - start)


def replay_table(name: str, *, encode: Encode = P.encode) -> Array:
    """The input patterns of a table whose output is not the card's: empty when all is well.

    Raises ValueError for an unknown name.
    """
    row = _row(name, tables(), "table")
    expected = recording(name)
    bits = np.arange(expected.size, dtype=f"uint{8 if expected.size <= 256 else 16}")
    return np.nonzero(row.codes(bits, encode) != expected)[0]


def key_chunks(name: str) -> tuple[int, ...]:
    """The few chunks of a cast where something happens, 14 to 20 of 1024: what a quick check replays.

    For both signs: zero and float32's subnormals, the format's underflow threshold, smallest normal value and overflow
    threshold (each with the chunk below where it begins one), float32's largest values, infinity and NaN.
    """
    fmt = get_format(_row(name, casts(), "cast").format)
    thresholds = (fmt.underflow_threshold, fmt.smallest_normal, fmt.overflow_threshold)
    patterns = [int(np.float32(t).view(np.uint32)) for t in thresholds if t is not None]
    patterns += [1, 0x7F800000, 0x7FC00000]
    positive = {chunk for pattern in patterns for chunk in (pattern // CHUNK, (pattern - 1) // CHUNK)}
    return tuple(sorted(positive | {chunk + CHUNKS // 2 for chunk in positive}))


# --- the page in docs/ ------------------------------------------------------------------------------------------------

_PAGE = """# The casts of a real GPU, bit for bit

<!-- Written by `properties.silicon.document`: change that, then `python -m properties.silicon > docs/silicon.md`. -->

{count} casts of one {gpu} were run on all 2^32 float32 patterns, and {tables} conversions from
narrower formats on every code. Recorded {date}: driver {driver}, nvcc {nvcc}, torch {torch}.
The rows below say which rounding and policy of `precision` give the same bits, NaN codes included.

A cast is compared by {chunks} digests, one per chunk of 2^22 consecutive patterns: the sum of (code_i + 1) * m(i)
mod 2^64, with m(i) = splitmix64(i) | 1 and i counted inside the chunk. m(i) is odd, so a single wrong code never goes
unseen. Digests and tables travel in the wheel (`properties/data/silicon_casts.npz`).

This is one card and one driver: another GPU, CUDA or torch may differ. torch 2.13's cast to float8_e4m3fn does: it
saturates.

## Run it

```
python -c "from properties.silicon import *; print(replay('torch_cuda_to_int8', key_chunks('torch_cuda_to_int8')))"
pytest tests/test_silicon.py          # key chunks of every cast, all tables: about 20 s
tox -e exhaustive                     # all 1024 chunks of every cast: about 10 minutes of one core, 5 on two
```

`replay(name, encode=mine)` judges any function with the signature of `precision.encode`.

## Record your GPU

```
halfulp silicon                                       # casts, matrix instructions, products: a minute on an H200
halfulp silicon --instructions "wgmma*" --outputs 1e9 --no-casts
halfulp silicon --replay silicon-nvidia-h200.npz      # judge a recording again, without a GPU
```

This needs an NVIDIA GPU and a CUDA build of torch, no toolkit: NVRTC, which torch brings, compiles inline PTX. It runs
the casts below that are instructions or torch's own, every `mma.sync` and `wgmma` instruction that the GPU has, and
products of `torch.mm` and `torch._scaled_mm`; compares every output with the emulator for that architecture; shows the
first mismatch of each in bits and values; and writes a recording. What the GPU or the compiler lacks is listed with
what it takes. Exit status 1 says that something differs.

## Casts from float32

{cast_rows}

## From 16-bit and narrower formats, every code

{table_rows}

## Recipes

Where the card's cast is not one rounding under one policy, the row's codes go through one of these.

{recipes}

## Left out

{omitted}
"""


def document(replays: Iterable[Replay]) -> str:
    """The page docs/silicon.md: every row with policy, recipe and verdict; "not run" for a cast without a `Replay`."""
    found = {r.name: r for r in replays}

    def row(cast: Cast, verdict: str) -> str:
        recipe = "" if cast.recipe is _plain else _title(cast.recipe)
        conversion = cast.format if cast.source == "float32" else f"{cast.source} → {cast.format}"
        return f"| {cast.name} | {conversion} | {cast.rounding} | {cast.policy} | {recipe} | {verdict} | {cast.note} |"

    def cast_verdict(name: str) -> str:
        r = found.get(name)
        return "not run" if r is None else f"{len(r.chunks) - len(r.mismatching_chunks)} of {len(r.chunks)} chunks"

    def table_verdict(name: str) -> str:
        size = recording(name).size
        return f"{size - replay_table(name).size} of {size} codes"

    header = "| recording | conversion | rounding | policy | recipe | as on the card | note |\n" + "|---" * 7 + "|\n"
    recipes = {_title(c.recipe): c.recipe for c in (*CASTS, *TABLES) if c.recipe is not _plain}
    return _PAGE.format(
        **RECORDED,
        count=len(CASTS),
        tables=len(TABLES),
        chunks=CHUNKS,
        cast_rows=header + "\n".join(row(c, cast_verdict(c.name)) for c in CASTS),
        table_rows=header + "\n".join(row(c, table_verdict(c.name)) for c in TABLES),
        recipes="\n".join(f"- **{title}**: {' '.join((f.__doc__ or '').split())}" for title, f in recipes.items()),
        omitted="\n".join(f"- **{what}**: {why}." for what, why in OMITTED.items()),
    )


def _title(recipe: Callable[[Array, Codes], Array]) -> str:
    return recipe.__name__.strip("_").replace("_", " ")


if __name__ == "__main__":
    verdicts = []
    for cast_name in casts():
        verdicts.append(replay(cast_name))
        print(verdicts[-1], file=sys.stderr)
    print(document(verdicts), end="")
