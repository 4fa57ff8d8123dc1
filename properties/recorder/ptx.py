"""The GPU's own instructions as functions on tensors: matrix multiply-add and casts, by name, through inline PTX.

An instruction's name says everything that its kernel needs, so there is one kernel template for all:

    mma.m16n8k16.f32.f16.f16.f32         `mma.sync`: shape, types of D, A, B and C
    wgmma.m64n8k32.f32.e4m3.e5m2         `wgmma.mma_async`: A from registers, B from shared memory; types of D, A and B
    wgmma.smemA.m64n8k16.f32.f16.f16     the same with A from shared memory, too
    mma.chain8.m16n8k16.f32.f16.f16.f32  eight of them, one after the other in ascending K, on one accumulator

Source: NVIDIA, PTX ISA 9.0: 9.7.14 (mma fragments), 9.7.15 (wgmma fragments, core matrices, descriptors), 9.7.9.22
(cvt). What an instruction needs of GPU and compiler is from its "PTX ISA Notes" and "Target ISA Notes".

>>> from properties.recorder.ptx import parse
>>> it = parse("wgmma.m64n8k32.f32.e4m3.e5m2")
>>> it.k, it.a, it.b, it.d, it.ptx
(32, 'e4m3', 'e5m2', 'f32', 'wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2')
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from properties.recorder.nvrtc import Gpu, Kernel, Unavailable, compiler

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CASTS", "FORMATS", "INSTRUCTIONS", "Cast", "Instruction", "cast", "mma", "parse"]

FORMATS: Mapping[str, str] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "tfloat32",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "s8": "int8",
    "s32": "int32",
}
"""PTX types to names of formats. A tf32 operand is a float32 word whose low 13 bits the hardware ignores."""

_FP8 = ("e4m3", "e5m2")
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "s32": 32}
_NAME = re.compile(
    r"(?P<unit>mma|wgmma)(?P<shared>\.smemA)?(\.chain(?P<steps>\d+))?\.m(?P<m>\d+)n8k(?P<k>\d+)(\.satfinite)?"
    r"\.(?P<d>f32|f16|s32)\.(?P<a>f16|bf16|tf32|e4m3|e5m2|s8)\.(?P<b>f16|bf16|tf32|e4m3|e5m2|s8)(\.(f32|f16|s32))?(\.satfinite)?"
)


# --- Matrix multiply-add ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction: `k` terms a step from types `a` and `b`, `steps` steps, accumulator and result of type `d`.

    `rows` is the m of its shape, 16 for one warp or 64 for a group of four; n is always 8.
    """

    name: str
    rows: int
    k: int
    d: str
    a: str
    b: str
    steps: int = 1
    shared: bool = False
    satfinite: bool = False

    @property
    def group(self) -> bool:
        """Whether it is a `wgmma`."""
        return self.rows == 64

    @property
    def step(self) -> str:
        """The name of a single step, which is the instruction that a chain repeats; where A comes from is left out."""
        return re.sub(r"\.(smemA|chain\d+)", "", self.name)

    @property
    def ptx(self) -> str:
        """The instruction without its operands."""
        saturating = ".satfinite" * self.satfinite
        shape, types = f"m{self.rows}n8k{self.k}", f"{self.d}.{self.a}.{self.b}"
        if self.group:
            return f"wgmma.mma_async.sync.aligned.{shape}.{types}{saturating}"
        return f"mma.sync.aligned.{shape}.row.col{saturating}.{types}.{self.d}"

    def missing(self, capability: tuple[int, int], cuda: tuple[int, int]) -> str:
        """What a GPU of this capability and a compiler of this CUDA version lack: "" if nothing."""
        if self.group:
            need, isa, since = "sm_90a", "8.0", (12, 0)
            lacks = capability != (9, 0)
        else:
            fp8 = self.a in _FP8
            least = (8, 9) if fp8 else (7, 5) if self.a == "f16" and self.k == 8 else (8, 0)
            plain = self.d == "f32" and self.k == 32
            isa, since = ("7.0", (11, 0)) if not fp8 else ("8.4", (12, 4)) if plain else ("8.7", (12, 8))
            need, lacks = f"sm_{least[0]}{least[1]}", capability < least
        if lacks:
            return f"needs {need}"
        return "" if cuda >= since else f"needs PTX ISA {isa}, which CUDA {since[0]}.{since[1]} brought"

    def source(self) -> str:
        """Its kernel: one block of four warps computes a tile of 64 rows and 8 columns."""
        words = self.k * _BITS[self.a] // 32  # of a row of A or a column of B in a step: 8, or 4 for half the K
        accumulators, left, right = (4 if _BITS[self.d] == 32 else 2), words // 2, words // 4
        if self.group:
            left, right = (0, 0) if self.shared else (left, 0)
        registers = iter(range(accumulators + left + right))
        result, a, b = (
            "{" + ", ".join(f"%{next(registers)}" for _ in range(count)) + "}" for count in (accumulators, left, right)
        )
        first = accumulators + left
        if not self.group:
            operands, inputs = f"{result}, {a}, {b}, {result}", [f'"r"(y[{i}])' for i in range(right)]
        else:
            negations = "" if self.a == "s8" else ", 1, 1"
            transposes = "" if _BITS[self.a] != 16 else ", 0, 0" if self.shared else ", 0"
            source_a = f"%{first}" if self.shared else a
            operands = f"{result}, {source_a}, %{first + self.shared}, add{negations}{transposes}"
            inputs = ['"l"(DESCRIPTOR(left, s))'] * self.shared + ['"l"(DESCRIPTOR(right, s))']
        inputs = [f'"r"(x[s][{i}])' for i in range(left)] + inputs
        outputs = ", ".join(f'"+r"(sum[{i}])' for i in range(accumulators))
        text = f"{{ .reg .pred add; setp.eq.u32 add, 0, 0; {self.ptx} {operands}; }}"
        defines = {
            "WORDS": words,
            "STEPS": self.steps,
            "SUMS": accumulators,
            "WGMMA": int(self.group),
            "SHARED_A": int(self.shared),
            "MULTIPLY_ADD": f'asm volatile("{text}" : {outputs} : {", ".join(inputs)} : "memory")',
            "WAIT": f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {outputs} : : "memory")',
        }
        return "\n".join(f"#define {name} {value}" for name, value in defines.items()) + _MMA


_MMA = """
typedef unsigned int word;
#define ROW (STEPS * WORDS)
#define SUM_ROW (SUMS * 2)  // words of a tile's row of D
// K-major without swizzle: core matrices of 8 rows of 16 bytes; 128 bytes to the next in K, 256 to the next 8 rows.
#define DESCRIPTOR(base, s) \\
    ((unsigned long long)((((word)__cvta_generic_to_shared(base[s])) & 0x3ffff) >> 4) | 8ull << 16 | 16ull << 32)

__device__ inline word core(word row, word k) { return row / 8 * 64 + k / 4 * 32 + row % 8 * 4 + k % 4; }

extern "C" __global__ void __launch_bounds__(128)
run(const word* a, const word* bt, const word* c, word* d, word m_tiles, word n_tiles) {
    const word lane = threadIdx.x % 32, q = lane % 4, n_tile = blockIdx.x % n_tiles, m_tile = blockIdx.x / n_tiles;
    const size_t first = (size_t)m_tile * 64, row = first + threadIdx.x / 32 * 16 + lane / 4;
    const word* b = bt + ((size_t)(m_tile / m_tiles) * n_tiles + n_tile) * 8 * ROW;
    const size_t stride = (size_t)n_tiles * SUM_ROW, at = row * stride + n_tile * SUM_ROW + q * (SUM_ROW / 4);

    word sum[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sum[i] = c[at + i / (SUMS / 2) * 8 * stride + i % (SUMS / 2)];
#if !SHARED_A
    word x[STEPS][WORDS / 2];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int i = 0; i < WORDS / 2; i++) x[s][i] = a[(row + i % 2 * 8) * ROW + s * WORDS + i / 2 * 4 + q];
#endif

#if WGMMA
    __shared__ __align__(128) word right[STEPS][64];
    for (int i = threadIdx.x; i < 8 * ROW; i += 128) right[i % ROW / 8][core(i / ROW, i % 8)] = b[i];
#if SHARED_A
    __shared__ __align__(128) word left[STEPS][512];
    for (int i = threadIdx.x; i < 64 * ROW; i += 128) left[i % ROW / 8][core(i / ROW, i % 8)] = a[first * ROW + i];
#endif
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#if !WGMMA
        word y[WORDS / 4];
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) y[i] = b[lane / 4 * ROW + s * WORDS + i * 4 + q];
#endif
        MULTIPLY_ADD;
    }
#if WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    WAIT;
#endif
#pragma unroll
    for (int i = 0; i < SUMS; i++) d[at + i / (SUMS / 2) * 8 * stride + i % (SUMS / 2)] = sum[i];
}
"""


def parse(name: str) -> Instruction:
    """The instruction of a name; raises ValueError for a name that is none."""
    found = _NAME.fullmatch(name)
    if found is None or (found["unit"] == "wgmma") != (found["m"] == "64"):
        raise ValueError(f"no matrix instruction is named {name!r}: use one of {', '.join(INSTRUCTIONS)}")
    return Instruction(
        name,
        int(found["m"]),
        int(found["k"]),
        found["d"],
        found["a"],
        found["b"],
        int(found["steps"] or 1),
        found["shared"] is not None,
        ".satfinite" in name,
    )


def _names() -> dict[tuple[str, str, str, int], list[str]]:
    """The instructions by the operands that they share: types of D, A and B, and the longest K."""
    found: dict[tuple[str, str, str, int], list[str]] = {}
    for d, a, k in (("f32", "f16", 16), ("f16", "f16", 16), ("f32", "bf16", 16), ("f32", "tf32", 8)):
        names = [f"mma.m16n8k{k}.{d}.{a}.{a}.{d}", f"wgmma.m64n8k{k}.{d}.{a}.{a}"]
        names += [f"wgmma.smemA.m64n8k{k}.{d}.{a}.{a}", f"mma.m16n8k{k // 2}.{d}.{a}.{a}.{d}"]
        found[d, a, a, k] = names
    for d in ("f32", "f16"):
        for a in _FP8:
            for b in _FP8:
                names = [f"mma.m16n8k32.{d}.{a}.{b}.{d}", f"wgmma.m64n8k32.{d}.{a}.{b}"]
                names += [f"wgmma.smemA.m64n8k32.{d}.{a}.{b}", f"mma.m16n8k16.{d}.{a}.{b}.{d}"]
                found[d, a, b, 32] = names
    s8 = "s32.s8.s8"
    names = [f"mma.m16n8k32.{s8}.s32", f"mma.m16n8k32.satfinite.{s8}.s32"]
    found["s32", "s8", "s8", 32] = [*names, f"wgmma.m64n8k32.{s8}", f"wgmma.m64n8k32.{s8}.satfinite"]
    for d, a, k in (("f32", "f16", 16), ("f32", "e4m3", 32), ("f16", "e4m3", 32)):
        names = [f"mma.chain8.m16n8k{k}.{d}.{a}.{a}.{d}", f"wgmma.chain8.m64n8k{k}.{d}.{a}.{a}"]
        found[d, a, a, 8 * k] = names
    return found


OPERAND_SETS = _names()
INSTRUCTIONS = tuple(name for names in OPERAND_SETS.values() for name in names)


def mma(gpu: Gpu, name: str, a: Tensor, bt: Tensor, c: Tensor) -> Tensor:
    """D of D = A B + C by the instruction of a name, for codes as unsigned integers on the device.

    a is (batch, M, K), bt is B with its columns as rows, (batch, N, K), c is (batch, M, N); M is a multiple of 64, N of
    8, and K that of the instruction times its steps; a longer K is cut. Every output is written once, over a poison.
    Raises Unavailable if the GPU or the compiler lacks the instruction.
    """
    import torch

    it = parse(name)
    k = it.k * it.steps
    batch, m, n = c.shape
    if m % 64 or n % 8 or a.shape[:2] != (batch, m) or bt.shape[:2] != (batch, n) or min(a.shape[2], bt.shape[2]) < k:
        shapes = ", ".join(str(tuple(t.shape)) for t in (a, bt, c))
        raise ValueError(
            f"a, bt, c are {shapes}; {name} takes (batch, 64 i, {k}), (batch, 8 j, {k}), (batch, 64 i, 8 j)"
        )
    a, bt, c = (t.contiguous() for t in (a[..., :k], bt[..., :k], c))
    d = torch.empty_like(c)
    d.view(torch.uint8).fill_(0xA5)
    _kernel(gpu, name)(batch * (m // 64) * (n // 8), 128, a, bt, c, d, m // 64, n // 8)
    return d


@functools.cache
def _kernel(gpu: Gpu, name: str) -> Kernel:
    it = parse(name)
    missing = it.missing(gpu.capability, compiler().version)
    if missing:
        raise Unavailable(missing)
    return gpu.compile(it.source())


# --- Casts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cast:
    """A conversion: PTX statements that leave the outcome in register `result`, of which `bits` from `shift` count.

    They find the input as .f32 `x`, its low half as .b16 `i`, and a zero of each kind, `zero` and `none`.
    `least` is the compute capability that it takes; `only` says that it belongs to architectures with "a" targets.
    """

    ptx: str
    result: str
    bits: int
    least: tuple[int, int]
    shift: int = 0
    blackwell: bool = False

    def missing(self, capability: tuple[int, int]) -> str:
        """What a GPU of this capability lacks: "" if nothing."""
        if self.blackwell and capability < (10, 0):
            return "needs sm_100a or sm_120a"
        return "" if capability >= self.least else f"needs sm_{self.least[0]}{self.least[1]}"

    def source(self) -> str:
        """Its kernel: outputs for `count` consecutive input patterns from `first`."""
        move = "cvt.u32.u16 %0, h;" if self.result == "h" else "mov.b32 %0, w;"
        return _CAST.format(ptx=self.ptx, move=move, shift=self.shift, mask=f"{(1 << self.bits) - 1:#x}u")


_CAST = """
extern "C" __global__ void run(unsigned* out, unsigned first, unsigned count) {{
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, result;
    if (at >= count) return;
    asm volatile("{{ .reg .f32 x, zero; .reg .b16 i, none, h; .reg .b32 w; .reg .b8 e, f;"
                 "mov.b32 x, %1; cvt.u16.u32 i, %1; mov.f32 zero, 0f00000000; mov.b16 none, 0;"
                 "{ptx} {move} }}" : "=r"(result) : "r"(first + at));
    out[at] = result >> {shift} & {mask};
}}
"""

CASTS: Mapping[str, Cast] = {
    "ptx_cvt_rn_f16_f32": Cast("cvt.rn.f16.f32 h, x;", "h", 16, (5, 3)),
    "ptx_cvt_rz_f16_f32": Cast("cvt.rz.f16.f32 h, x;", "h", 16, (5, 3)),
    "ptx_cvt_rn_f16x2_f32_hilane": Cast("cvt.rn.f16x2.f32 w, x, zero;", "w", 16, (8, 0), 16),
    "ptx_cvt_rn_satfinite_f16x2_f32": Cast("cvt.rn.satfinite.f16x2.f32 w, zero, x;", "w", 16, (8, 0)),
    "ptx_cvt_rn_bf16_f32": Cast("cvt.rn.bf16.f32 h, x;", "h", 16, (8, 0)),
    "ptx_cvt_rz_bf16_f32": Cast("cvt.rz.bf16.f32 h, x;", "h", 16, (8, 0)),
    "ptx_cvt_rn_satfinite_bf16x2_f32": Cast("cvt.rn.satfinite.bf16x2.f32 w, zero, x;", "w", 16, (8, 0)),
    "ptx_cvt_rn_tf32_f32": Cast("cvt.rn.tf32.f32 w, x;", "w", 32, (9, 0)),
    "ptx_cvt_rz_tf32_f32": Cast("cvt.rz.tf32.f32 w, x;", "w", 32, (9, 0)),
    "ptx_cvt_rna_tf32_f32": Cast("cvt.rna.tf32.f32 w, x;", "w", 32, (8, 0)),
    "ptx_cvt_rna_satfinite_tf32_f32": Cast("cvt.rna.satfinite.tf32.f32 w, x;", "w", 32, (8, 0)),
    "ptx_cvt_rn_satfinite_e4m3x2_f32": Cast("cvt.rn.satfinite.e4m3x2.f32 h, zero, x;", "h", 8, (8, 9)),
    "ptx_cvt_rn_satfinite_e4m3x2_f32_hilane": Cast("cvt.rn.satfinite.e4m3x2.f32 h, x, zero;", "h", 8, (8, 9), 8),
    "ptx_cvt_rn_satfinite_e5m2x2_f32": Cast("cvt.rn.satfinite.e5m2x2.f32 h, zero, x;", "h", 8, (8, 9)),
    "ptx_cvt_rni_sat_s8_f32": Cast("cvt.rni.sat.s8.f32 w, x;", "w", 8, (5, 0)),
    "ptx_cvt_rni_sat_u8_f32": Cast("cvt.rni.sat.u8.f32 w, x;", "w", 8, (5, 0)),
    "ptx_cvt_rni_s32_f32": Cast("cvt.rni.s32.f32 w, x;", "w", 32, (5, 0)),
    "ptx_cvt_rzi_s32_f32": Cast("cvt.rzi.s32.f32 w, x;", "w", 32, (5, 0)),
    # Blackwell has instructions for what the CUDA headers do in software elsewhere.
    "cuda_fp6_e2m3_rn": Cast("cvt.rn.satfinite.e2m3x2.f32 h, zero, x;", "h", 8, (10, 0), blackwell=True),
    "cuda_fp6_e3m2_rn": Cast("cvt.rn.satfinite.e3m2x2.f32 h, zero, x;", "h", 8, (10, 0), blackwell=True),
    "cuda_fp4_e2m1_rn": Cast(
        "cvt.rn.satfinite.e2m1x2.f32 e, zero, x; mov.b32 w, {e, f, f, f};",
        "w",
        4,
        (10, 0),
        blackwell=True,
    ),
    "cuda_e8m0_rz_satfinite": Cast("cvt.rz.satfinite.ue8m0x2.f32 h, zero, x;", "h", 8, (10, 0), blackwell=True),
    "cuda_e8m0_rp_satfinite": Cast("cvt.rp.satfinite.ue8m0x2.f32 h, zero, x;", "h", 8, (10, 0), blackwell=True),
    # From narrower formats: every code of the input.
    "ptx_cvt_f32_f16": Cast("cvt.f32.f16 x, i; mov.b32 w, x;", "w", 32, (5, 3)),
    "ptx_cvt_f32_bf16": Cast("cvt.f32.bf16 x, i; mov.b32 w, x;", "w", 32, (8, 0)),
    "ptx_cvt_rni_sat_s8_f16": Cast("cvt.rni.sat.s8.f16 w, i;", "w", 8, (5, 3)),
    "ptx_cvt_rn_satfinite_e4m3x2_f16x2_lo": Cast(
        "mov.b32 w, {i, none}; cvt.rn.satfinite.e4m3x2.f16x2 h, w;", "h", 8, (8, 9)
    ),
    "ptx_cvt_rn_satfinite_e4m3x2_f16x2_hi": Cast(
        "mov.b32 w, {none, i}; cvt.rn.satfinite.e4m3x2.f16x2 h, w;", "h", 8, (8, 9), 8
    ),
    "ptx_cvt_rn_satfinite_e5m2x2_f16x2_lo": Cast(
        "mov.b32 w, {i, none}; cvt.rn.satfinite.e5m2x2.f16x2 h, w;", "h", 8, (8, 9)
    ),
    "ptx_cvt_rn_satfinite_e5m2x2_f16x2_hi": Cast(
        "mov.b32 w, {none, i}; cvt.rn.satfinite.e5m2x2.f16x2 h, w;", "h", 8, (8, 9), 8
    ),
    "decode_ptx_cvt_rn_f16x2_e4m3x2": Cast("cvt.rn.f16x2.e4m3x2 w, i;", "w", 16, (8, 9)),
    "decode_ptx_cvt_rn_f16x2_e5m2x2": Cast("cvt.rn.f16x2.e5m2x2 w, i;", "w", 16, (8, 9)),
}
"""The recorded conversions that are PTX instructions, by the names of `properties.silicon`."""


def cast(gpu: Gpu, name: str, first: int, count: int) -> Tensor:
    """Outputs (int32, zero-extended) of a conversion for `count` input patterns from `first`; raises Unavailable."""
    import torch

    out = torch.empty(count, dtype=torch.int32, device="cuda")
    _cast_kernel(gpu, name)(-(-count // 256), 256, out, first, count)
    return out


@functools.cache
def _cast_kernel(gpu: Gpu, name: str) -> Kernel:
    row = CASTS[name]
    missing = row.missing(gpu.capability)
    if missing:
        raise Unavailable(missing)
    return gpu.compile(row.source())
