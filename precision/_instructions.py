"""The table of tensor-core instructions: which groups they sum, how many bits they keep, who has verified it.

Sources: recordings of an H200, replayed in the tests; recordings of eight GPUs that Khattak and Mikaitis published
(arXiv 2510.15884, 2512.07004; replayed by us on 2026-11-30: 48 sets, 240 000 outputs, none differs, but not kept here);
Xie et al., MMA-Sim, arXiv 2511.10909; Fasi et al., PeerJ CS 7:e330 (2021); PTX ISA `mma`, `wgmma`, `tcgen05.mma` for
names and shapes.

>>> from precision._instructions import get_instruction
>>> row = get_instruction("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3", "sm_90a")
>>> row.name, row.group, row.fraction_bits, row.result_bits, row.verified
('wgmma.m64n8k32.f32.e4m3.e4m3', 32, 13, 14, True)
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from precision.formats import FORMATS, AnyFormat

_TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "tfloat32",
    "f32": "float32",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e2m1": "float4_e2m1fn",
    "s8": "int8",
    "u8": "uint8",
    "s32": "int32",
}
"""PTX type names."""


@dataclass(frozen=True)
class Instruction:
    """One row: an instruction of an architecture. M and N do not matter to the arithmetic, so any are accepted.

    arch, name      the architecture, and the instruction in PTX words: family, shape, result, A, B, (addend)
    a, b            formats of the operands; a tfloat32 operand is a 32-bit word whose low 13 bits are ignored
    accumulator     format of addend and result
    k               columns of A that one instruction takes
    group           products that are summed at once; several groups in one instruction form a chain in ascending k
    fraction_bits   F: bits kept below the largest exponent of a group (None: integers, exact)
    floor           the least that exponent can be (None: no floor is known or visible)
    result_bits     significant bits of the result: 24 or 14, cut toward zero; 11, rounded to nearest even
    emulated        made by the compiler of two float16 groups, k mod 4 in (0, 1) then (2, 3), from zero, whose result
                    is added to the addend, rounded to nearest even
    saturates       integers: the total is clamped, once an instruction, instead of wrapping mod 2^32
    evidence        "measured": recorded by us on an H200; "published": agrees with recordings of Khattak and Mikaitis;
                    "literature": only described
    """

    arch: str
    name: str
    a: AnyFormat
    b: AnyFormat
    accumulator: AnyFormat
    k: int
    group: int
    fraction_bits: int | None
    floor: int | None
    result_bits: int
    emulated: bool
    saturates: bool
    evidence: Literal["measured", "published", "literature"]

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def verified(self) -> bool:
        """Whether we have run it on hardware."""
        return self.evidence == "measured"

    @property
    def source(self) -> str:
        return _EVIDENCE[self.evidence]

    def __str__(self) -> str:
        return f"{self.arch} {self.name}"


_EVIDENCE = {
    "measured": "recorded on an H200 (CUDA 13.0, driver 580.159.04, 2026-11-30): 1e9 outputs each, none differs",
    "published": "Khattak and Mikaitis, arXiv 2512.07004, recordings of a V100, A100, A2, RTX 1000 Ada, L40S and B200",
    "literature": "Xie et al., MMA-Sim, arXiv 2511.10909; floors as in Khattak and Mikaitis, arXiv 2512.07004",
}

_PAIRS = {
    "fp8": ("e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2"),
    "f8f4": tuple(f"{x}.{y}" for x in ("e4m3", "e5m2", "e2m1") for y in ("e4m3", "e5m2", "e2m1")),
    "int8": ("s8.s8", "s8.u8", "u8.s8", "u8.u8"),
}
"""Operands that a row of the table stands for, A and B; any other name stands for itself on both sides."""

# The table. Columns: architecture, instruction, operands, result, group, F, floor, bits of the result, how, evidence.
# Published recordings of f16, bf16 and tf32 fill one group only: that it is no larger rests on MMA-Sim and Fasi et al.
# An integer row stands for the wrapping instruction and for that with .satfinite. An instruction's first row counts.
_TABLE: tuple[tuple[str, str, str, str, int, int | None, int | None, int, str, str], ...] = (
    ("volta",         "mma.m8n8k4",       "f16",      "f32",  4,   23, None, 24, "",         "published"),
    ("volta",         "mma.m8n8k4",       "f16",      "f16",  4,   23,  -19, 11, "",         "published"),
    # No recording of a Turing is published: the floors are assumed to be those of Ampere.
    ("turing",        "mma.m8n8k4",       "f16",      "f32",  4,   24, -132, 24, "",         "literature"),
    ("turing",        "mma.m8n8k4",       "f16",      "f16",  4,   24,  -20, 11, "",         "literature"),
    ("turing",        "mma.m16n8k8",      "f16",      "f32",  8,   24, -132, 24, "",         "literature"),
    ("turing",        "mma.m16n8k8",      "f16",      "f16",  8,   24,  -20, 11, "",         "literature"),
    ("turing",        "mma.m8n8k16",      "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("ampere",        "mma.m16n8k8",      "f16 bf16", "f32",  8,   24, -132, 24, "",         "published"),
    ("ampere",        "mma.m16n8k8",      "f16",      "f16",  8,   24,  -20, 11, "",         "published"),
    ("ampere",        "mma.m16n8k16",     "f16 bf16", "f32",  8,   24, -132, 24, "",         "published"),
    ("ampere",        "mma.m16n8k16",     "f16",      "f16",  8,   24,  -20, 11, "",         "published"),
    ("ampere",        "mma.m16n8k4",      "tf32",     "f32",  4,   24, -132, 24, "",         "published"),
    ("ampere",        "mma.m16n8k8",      "tf32",     "f32",  4,   24, -132, 24, "",         "published"),
    ("ampere",        "mma.m8n8k16",      "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("ampere",        "mma.m16n8k16",     "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("ampere",        "mma.m16n8k32",     "int8",     "s32", 32, None, None, 32, "",         "literature"),
    ("ada",           "mma.m16n8k8",      "f16 bf16", "f32",  8,   24, -132, 24, "",         "published"),
    ("ada",           "mma.m16n8k8",      "f16",      "f16",  8,   24,  -20, 11, "",         "published"),
    ("ada",           "mma.m16n8k16",     "f16 bf16", "f32",  8,   24, -132, 24, "",         "published"),
    ("ada",           "mma.m16n8k16",     "f16",      "f16",  8,   24,  -20, 11, "",         "published"),
    ("ada",           "mma.m16n8k4",      "tf32",     "f32",  4,   24, -132, 24, "",         "published"),
    ("ada",           "mma.m16n8k8",      "tf32",     "f32",  4,   24, -132, 24, "",         "published"),
    ("ada",           "mma.m16n8k16",     "fp8",      "f32", 16,   13, -132, 14, "",         "literature"),
    ("ada",           "mma.m16n8k16",     "fp8",      "f16", 16,   13,  -20, 11, "",         "literature"),
    ("ada",           "mma.m16n8k32",     "fp8",      "f32", 16,   13, -132, 14, "",         "published"),
    ("ada",           "mma.m16n8k32",     "fp8",      "f16", 16,   13,  -20, 11, "",         "published"),
    ("ada",           "mma.m8n8k16",      "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("ada",           "mma.m16n8k16",     "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("ada",           "mma.m16n8k32",     "int8",     "s32", 32, None, None, 32, "",         "literature"),
    ("hopper",        "mma.m16n8k8",      "f16 bf16", "f32",  8,   25, -133, 24, "",         "measured"),
    ("hopper",        "mma.m16n8k8",      "f16",      "f16",  8,   25,  -21, 11, "",         "measured"),
    ("hopper",        "mma.m16n8k16",     "f16 bf16", "f32", 16,   25, -133, 24, "",         "measured"),
    ("hopper",        "mma.m16n8k16",     "f16",      "f16", 16,   25,  -21, 11, "",         "measured"),
    ("hopper",        "mma.m16n8k4",      "tf32",     "f32",  4,   25, -133, 24, "",         "measured"),
    ("hopper",        "mma.m16n8k8",      "tf32",     "f32",  8,   25, -133, 24, "",         "measured"),
    ("hopper",        "mma.m16n8k16",     "fp8",      "f32",  8,   25, -133, 24, "emulated", "measured"),
    ("hopper",        "mma.m16n8k16",     "fp8",      "f16",  8,   25,  -21, 11, "emulated", "measured"),
    ("hopper",        "mma.m16n8k32",     "fp8",      "f32", 16,   25, -133, 24, "emulated", "measured"),
    ("hopper",        "mma.m16n8k32",     "fp8",      "f16", 16,   25,  -21, 11, "emulated", "measured"),
    ("hopper",        "mma.m8n8k16",      "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("hopper",        "mma.m16n8k16",     "int8",     "s32", 16, None, None, 32, "",         "literature"),
    ("hopper",        "mma.m16n8k32",     "s8",       "s32", 32, None, None, 32, "",         "measured"),
    ("hopper",        "mma.m16n8k32",     "int8",     "s32", 32, None, None, 32, "",         "literature"),
    ("hopper",        "wgmma.m64n8k16",   "f16 bf16", "f32", 16,   25, -133, 24, "",         "measured"),
    ("hopper",        "wgmma.m64n8k16",   "f16",      "f16", 16,   25,  -21, 11, "",         "measured"),
    ("hopper",        "wgmma.m64n8k8",    "tf32",     "f32",  8,   25, -133, 24, "",         "measured"),
    ("hopper",        "wgmma.m64n8k32",   "fp8",      "f32", 32,   13, -133, 14, "",         "measured"),
    ("hopper",        "wgmma.m64n8k32",   "fp8",      "f16", 32,   13,  -21, 11, "",         "measured"),
    ("hopper",        "wgmma.m64n8k32",   "s8",       "s32", 32, None, None, 32, "",         "measured"),
    ("hopper",        "wgmma.m64n8k32",   "int8",     "s32", 32, None, None, 32, "",         "literature"),
    ("blackwell",     "mma.m16n8k8",      "f16 bf16", "f32",  8,   25, -133, 24, "",         "published"),
    ("blackwell",     "mma.m16n8k8",      "f16",      "f16",  8,   25,  -21, 11, "",         "published"),
    ("blackwell",     "mma.m16n8k16",     "f16 bf16", "f32", 16,   25, -133, 24, "",         "published"),
    ("blackwell",     "mma.m16n8k16",     "f16",      "f16", 16,   25,  -21, 11, "",         "published"),
    ("blackwell",     "mma.m16n8k4",      "tf32",     "f32",  4,   25, -133, 24, "",         "published"),
    ("blackwell",     "mma.m16n8k8",      "tf32",     "f32",  8,   25, -133, 24, "",         "published"),
    ("blackwell",     "mma.m16n8k16",     "fp8",      "f32",  8,   25, -133, 24, "emulated", "literature"),
    ("blackwell",     "mma.m16n8k16",     "fp8",      "f16",  8,   25,  -21, 11, "emulated", "literature"),
    # Models of a B200 give these group 32, F 25; its recordings agree with Hopper's emulation instead, bit for bit.
    ("blackwell",     "mma.m16n8k32",     "fp8",      "f32", 16,   25, -133, 24, "emulated", "published"),
    ("blackwell",     "mma.m16n8k32",     "fp8",      "f16", 16,   25,  -21, 11, "emulated", "published"),
    ("blackwell",     "mma.m16n8k32",     "int8",     "s32", 32, None, None, 32, "",         "literature"),
    ("blackwell",     "tcgen05.m64n8k16", "f16 bf16", "f32", 16,   25, -133, 24, "",         "literature"),
    ("blackwell",     "tcgen05.m64n8k16", "f16",      "f16", 16,   25,  -21, 11, "",         "literature"),
    ("blackwell",     "tcgen05.m64n8k8",  "tf32",     "f32",  8,   25, -133, 24, "",         "literature"),
    ("blackwell",     "tcgen05.m64n8k32", "f8f4",     "f32", 32,   25, -133, 24, "",         "literature"),
    ("blackwell",     "tcgen05.m64n8k32", "f8f4",     "f16", 32,   25,  -21, 11, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k8",      "f16 bf16", "f32",  8,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k8",      "f16",      "f16",  8,   25,  -21, 11, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k16",     "f16 bf16", "f32", 16,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k16",     "f16",      "f16", 16,   25,  -21, 11, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k4",      "tf32",     "f32",  4,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k8",      "tf32",     "f32",  8,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k16",     "fp8",      "f32", 16,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k16",     "fp8",      "f16", 16,   25,  -21, 11, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k32",     "f8f4",     "f32", 32,   25, -133, 24, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k32",     "f8f4",     "f16", 32,   25,  -21, 11, "",         "literature"),
    ("rtx_blackwell", "mma.m16n8k32",     "int8",     "s32", 32, None, None, 32, "",         "literature"),
)  # fmt: skip

ARCHITECTURES = tuple(dict.fromkeys(row[0] for row in _TABLE))
"""Architectures, oldest first."""

_ARCH_ALIASES = {
    "sm_70": "volta", "v100": "volta", "sm_75": "turing", "t4": "turing",
    "sm_80": "ampere", "sm_86": "ampere", "a100": "ampere", "a2": "ampere", "a30": "ampere", "a40": "ampere",
    "sm_89": "ada", "ada lovelace": "ada", "l4": "ada", "l40": "ada", "l40s": "ada",
    "sm_90": "hopper", "sm_90a": "hopper", "h100": "hopper", "h200": "hopper", "gh200": "hopper",
    "sm_100": "blackwell", "sm_100a": "blackwell", "b200": "blackwell",
    "sm_120": "rtx_blackwell", "sm_120a": "rtx_blackwell", "rtx blackwell": "rtx_blackwell",
}  # fmt: skip


def find_architecture(name: str) -> str | None:
    """The architecture of a name, an `sm_90` or a GPU's name, in any case; None for anything else."""
    known = _ARCH_ALIASES.get(name.lower(), name.lower())
    return known if known in ARCHITECTURES else None


def _rows() -> dict[tuple[str, ...], Instruction]:
    found: dict[tuple[str, ...], Instruction] = {}
    for arch, shape, operands, result, group, fraction_bits, floor, bits, how, evidence in _TABLE:
        for operand in operands.split():
            for pair in _PAIRS.get(operand, (f"{operand}.{operand}",)):
                x, y = pair.split(".")
                for saturates in (False, True) if result == "s32" else (False,):
                    name = f"{shape}.{result}.{pair}"
                    if shape.startswith("mma"):
                        name = f"{shape}{'.satfinite' * saturates}.{result}.{pair}.{result}"
                    elif saturates:
                        name += ".satfinite"
                    row = Instruction(
                        arch, name, FORMATS[_TYPES[x]], FORMATS[_TYPES[y]], FORMATS[_TYPES[result]],
                        int(shape.rpartition("k")[2]), group, fraction_bits, floor, bits,
                        how == "emulated", saturates, evidence,  # type: ignore[arg-type]
                    )  # fmt: skip
                    found.setdefault((arch, *_key(name)), row)
    return found


def _key(name: str) -> tuple[str, ...]:
    """What tells instructions of one architecture apart: PTX spellings, M and N of asynchronous ones do not."""
    words = re.sub(r"[\s_:]", "", name.lower()).split(".")
    types = [w for w in words if w in _TYPES]
    known = {"sync", "aligned", "row", "col", "mma", "mmaasync", "smema", "satfinite", "ctagroup1", "kindf8f6f4"}
    known |= {"kindf16", "kindtf32", "wgmma", "tcgen05"}
    rest = [w for w in words if w not in known and w not in _TYPES and not re.fullmatch(r"chain\d+|m\d+n\d+k\d+", w)]
    shapes = [w for w in words if re.fullmatch(r"m\d+n\d+k\d+", w)]
    family = words[0]
    shape = "".join(shapes) if family == "mma" else "".join(s.partition("k")[2] for s in shapes)
    if len(types) == 4 and types[0] == types[3]:
        types.pop()
    return family, shape, ".".join(types), "satfinite" if "satfinite" in words else "", ".".join(rest)


_BY_KEY = _rows()
INSTRUCTIONS: tuple[Instruction, ...] = tuple(_BY_KEY.values())
"""Every instruction that is modelled, by architecture."""

_NOT_MODELLED = {
    r"blockscale|scalevec|mxf8f6f4|mxf4|nvf4|block16|block32|ue8m0|ue4m3": "block-scaled instructions are not modelled"
    ": no source states their floor, and the one description of them (MMA-Sim) counts zeros as an H200 does not",
    r"(^|\.)sp(\.|$)|mmasp": "sparse instructions are not modelled: no source states how they group their products",
    r"f64": "float64 instructions are not modelled: they are chains of IEEE fma, which P.fma computes",
    r"e3m2|e2m3": "FP6 operands are not modelled: no source has looked at them",
    r"(^|\.)(b1|s4|u4)(\.|$)": "1- and 4-bit integers are not modelled",
}
"""Why an instruction is missing, by a pattern of its name."""


def get_instruction(instruction: Instruction | str, arch: str | None = None) -> Instruction:
    """The row of an instruction, named as here or in PTX (`mma.sync.aligned...`, any N of `wgmma`), and architecture.

    `arch` is one of `ARCHITECTURES`, an `sm_90` or a GPU's name (`h100`). Raises ValueError for an architecture or an
    instruction that is not modelled, listing those that are.
    """
    if isinstance(instruction, Instruction):
        return instruction
    for what, name in (("instruction", instruction), ("arch", arch)):
        if not isinstance(name, str):
            raise TypeError(f"{what} is {name!r}; it must be a name: see P.tensor_cores.INSTRUCTIONS, ARCHITECTURES")
    assert arch is not None
    known = find_architecture(arch)
    if known is None:
        raise ValueError(f"unknown architecture {arch!r}: use one of {', '.join(ARCHITECTURES)}")
    key = _key(instruction)
    row = _BY_KEY.get((known, *key))
    if row is not None:
        return row
    text = re.sub(r"[\s_:]", "", instruction.lower())
    why = next((f"; {reason}" for pattern, reason in _NOT_MODELLED.items() if re.search(pattern, text)), "")
    names = [i.name for i in INSTRUCTIONS if i.arch == known]
    others = [i.arch for i in INSTRUCTIONS if (*key,) == _key(i.name)]
    if others and not why:
        why = f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} it"
    near = difflib.get_close_matches(instruction.lower(), names, n=3, cutoff=0.6)
    meant = f"; did you mean {' or '.join(near)}" if near and not why else ""
    raise ValueError(f"{known} has no instruction {instruction!r}{why}{meant}. It has: {', '.join(names)}")
