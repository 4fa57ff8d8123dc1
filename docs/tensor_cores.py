"""Writes docs/tensor_cores.md: `python docs/tensor_cores.py > docs/tensor_cores.md`."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import numpy as np

from precision.tensor_cores import INSTRUCTIONS, Instruction, accumulators

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "silicon-nvidia-h200.npz"

PAGE = """# What a tensor core computes

<!-- Written by docs/tensor_cores.py: change that. -->

A matrix instruction is no chain of fused multiply-adds. It multiplies exactly, lines all products of a *group* and the
addend up at the largest exponent among them, **cuts** each to F bits below that, adds them exactly as integers, and
turns the sum into the result once. One definition with four numbers covers every instruction from Volta to Blackwell:

1. a product's exponent is the sum of its operands' exponents, also where the significands' product is 2 or more;
   subnormals are not normalised, zeros take no part;
2. E is the largest of these, of the addend's exponent and of the *floor*;
3. each term is cut to a multiple of 2^(E - F), toward zero, with no sticky bit;
4. the sum is exact, so the order inside a group does not matter;
5. the *result*: float32 cut to 24 significant bits (14 in the FP8 instructions of Ada and Hopper), or float16 rounded
   to nearest even; overflow is infinity, a zero is +0, and the only NaN has a code of all ones but the sign.

```python
>>> import numpy as np, precision as P
>>> one, tiny = np.float16([[1.0] + [2.0**-13] * 15]), np.ones((16, 1), np.float16)
>>> codes = P.mma(one, tiny, None, instruction="mma.m16n8k16.f32.f16.f16.f32", arch="hopper")
>>> P.decode(codes, "float32")                 # float16 products, exact
array([[1.001831]], dtype=float32)
>>> x = P.round_to(np.float32([[1.0] + [2.0**-7] * 31]), "float8_e4m3fn")
>>> y = P.round_to(np.float32([[1.0]] + [[2.0**-7]] * 31), "float8_e4m3fn")
>>> P.matmul(x, y, accumulator="hopper.wgmma.float8_e4m3fn")   # 31 products of 2^-14, cut to nothing
array([[1.]], dtype=float32)
>>> P.matmul(x, y, accumulator="hopper.mma.float8_e4m3fn")     # the other FP8 instruction keeps them
array([[1.0018921]], dtype=float32)

```

What cuBLAS makes of the instructions has a name, too: {products}. They take a suffix for slices of K that are added
afterwards, and for a last cast: `hopper.cublas.bfloat16.split_k_1408.to_bfloat16`.
[What accumulation costs](accumulation.md) compares them.

## On a real {gpu}

`halfulp silicon --outputs 1e9`, {date}, driver {driver}, torch {torch}: **{total:,} outputs, {mismatches} differ** from
the emulator. Operands are fresh random ones and 22 adversarial classes (wide exponents, subnormals, cancellation,
near-ties, overflow, specials, zeros, an addend that dwarfs the products, …); the tests replay the tiles that were kept.

| what | how many | outputs of each | differ |
| --- | --- | --- | --- |
{summary}

Not recorded, with the reason that the command prints:

{missing}

## The table

"measured": recorded by us as above. "published": agrees with the recordings of Khattak and Mikaitis (arXiv 2512.07004;
a V100, A100, A2, RTX 1000 Ada, L40S and B200; replayed on 2026-11-30: 240 000 outputs, none differs). "literature":
only described (Xie et al., MMA-Sim, arXiv 2511.10909; Fasi et al., PeerJ CS 7:e330, 2021). *emulated*: the compiler
makes it of two float16 groups and one IEEE addition.

| architecture | instruction | operands | result | group | F | floor | significant bits | verified |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""

KINDS = {
    "mma": "matrix instructions",
    "chain": "chains of 8 instructions",
    "cast": "casts: every float32, or every code of a narrower format",
    "product": "whole products (torch)",
}


def table() -> str:
    """Instructions that differ in their operands only share a row."""
    lines = []

    def alike(i: Instruction) -> tuple[object, ...]:
        shape = ".".join(i.name.split(".")[:2])
        how = "emulated" if i.emulated else ""
        return i.arch, shape, i.accumulator.name, i.group, i.fraction_bits, i.floor, i.result_bits, how, i.evidence

    for key, members in groupby((i for i in INSTRUCTIONS if not i.saturates), alike):
        arch, shape, result, group, fraction, floor, bits, how, evidence = key
        pairs = list(dict.fromkeys((i.a.name, i.b.name) for i in members))
        names = list(dict.fromkeys(a for a, _ in pairs))
        every = len(pairs) == len(names) ** 2 > 1
        operands = "any of " + ", ".join(names) if every else ", ".join(a if a == b else f"{a}·{b}" for a, b in pairs)
        cells = [arch, f"{shape} {how}".strip(), operands, result, group, fraction, floor, bits, evidence]
        lines.append("| " + " | ".join("" if c is None else str(c) for c in cells) + " |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    with np.load(RECORDING) as file:
        summary = json.loads(str(file["summary"]))
    findings = [f | {"kind": "chain" if "chain" in f["name"] else f["kind"]} for f in summary["findings"]]
    judged = [f for f in findings if f["outputs"]]
    lines = []
    for kind, members in groupby(judged, lambda f: f["kind"]):
        found = list(members)
        outputs = sorted({f["outputs"] for f in found})
        count = f"{outputs[0]:,}" if len(outputs) == 1 else f"{outputs[0]:,} to {outputs[-1]:,}"
        lines.append(f"| {KINDS.get(kind, kind)} | {len(found)} | {count} | {sum(f['mismatches'] for f in found)} |")
    missing = [f"- {f['name']}: {f['note'].removeprefix('not recorded: ')}" for f in findings if not f["outputs"]]
    products = ", ".join(f"`{name}`" for name in accumulators() if ".cublas." in name)
    return PAGE.format(
        **{key: summary["environment"][key] for key in ("gpu", "driver", "torch", "date")},
        products=products,
        total=sum(f["outputs"] for f in judged),
        mismatches=sum(f["mismatches"] for f in judged),
        summary="\n".join(lines),
        missing="\n".join(missing),
        rows=table(),
    )


if __name__ == "__main__":
    print(page(), end="")
