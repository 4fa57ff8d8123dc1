"""Tensor-core instructions and whole products recorded on an H200, replayed bit for bit; and what each of them proves."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precision as P
from precision import tensor_cores
from precision.tensor_cores import INSTRUCTIONS, get_accumulator, get_instruction

DATA = Path(__file__).parents[1] / "data" / "silicon_mma"
SETS = sorted(path.stem for path in DATA.glob("*.npz") if not path.stem.startswith("gemm"))


@cache
def stored(name: str) -> dict[str, Any]:
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


RECORDED = [(name, instruction) for name in SETS for instruction in stored(name)["instructions"].tolist()]


def operands(name: str, instruction: str) -> tuple[Any, Any, Any, Any]:
    """a, b, c and the recorded d."""
    data = stored(name)
    k = data["a"].shape[-1] if "chain" in instruction else get_instruction(instruction, "hopper").k
    which = int(data["result"][data["instructions"].tolist().index(instruction)])
    return data["a"][..., :k], data["bt"][..., :k].swapaxes(1, 2), data["c"], data["d"][:, which]


@pytest.mark.parametrize(("name", "instruction"), RECORDED)
def test_instructions(name: str, instruction: str) -> None:
    a, b, c, d = operands(name, instruction)
    row = get_instruction(instruction, "hopper")
    got = P.mma(a, b, c, instruction=instruction, arch="hopper")
    wrong = np.argwhere(got != d)
    assert wrong.size == 0, (len(wrong), wrong[0], hex(got[tuple(wrong[0])]), hex(d[tuple(wrong[0])]))
    assert row.verified


@pytest.mark.parametrize(("name", "instruction"), RECORDED)
def test_instructions_on_tensors(name: str, instruction: str) -> None:
    """The lines that run on a GPU, on the first tiles."""
    a, b, c, d = (torch.from_numpy(x[:3].copy()) for x in operands(name, instruction))
    row = get_instruction(instruction, "hopper")
    start = P.decode(c, row.accumulator, "float64")
    total = tensor_cores._computed(row, a, b, start, (3,), None, None)
    assert torch.equal(tensor_cores._result_codes(total, row).view(torch.uint8), d.view(torch.uint8))


@pytest.mark.cuda
def test_instructions_on_a_gpu() -> None:
    for name, instruction in RECORDED:
        a, b, c, d = (torch.from_numpy(x.copy()) for x in operands(name, instruction))
        got = P.mma(a.cuda(), b.cuda(), c.cuda(), instruction=instruction, arch="hopper")
        assert torch.equal(got.cpu().view(torch.uint8), d.view(torch.uint8)), (name, instruction)


def test_what_counts_as_measured_is_recorded() -> None:
    """By the tiles here, or by the summary of `halfulp silicon` on the same card: 1e9 outputs an instruction."""
    names = {get_instruction(instruction, "hopper") for _, instruction in RECORDED}
    with np.load(DATA.parent / "silicon-nvidia-h200.npz") as file:
        summary = json.loads(str(file["summary"]))
    found = [f for f in summary["findings"] if f["kind"] == "mma" and "chain" not in f["name"]]
    assert all(f["mismatches"] == 0 and f["outputs"] >= 1_000_000_000 for f in found)
    names |= {get_instruction(f["name"].replace("smemA.", ""), "hopper") for f in found}
    assert names == {row for row in INSTRUCTIONS if row.verified}
    assert sum(stored(name)["c"].size * len(stored(name)["instructions"]) for name in SETS) == 1_261_568


# --- whole products ---------------------------------------------------------------------------------------------------

FORMATS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
E4M3, MIXED = "float8_e4m3fn", "float8_e5m2.float8_e4m3fn"
PRODUCTS = [  # accumulator, inputs, outputs
    ("bfloat16", "bf16", ("f32",)),
    ("bfloat16.to_bfloat16", "bf16", ("out_rpr0", "out_rpr1")),
    ("float16", "fp16", ("f32",)),
    ("float16.to_float16", "fp16", ("out_rpr0", "out_rpr1")),
    ("float16.fp16_accumulation", "fp16", ("f16acc",)),
    ("tfloat32", "tf32", ("1",)),
    (E4M3, "e4m3", ("f32_fast0",)),
    (f"{E4M3}.fast_accum", "e4m3", ("f32_fast1",)),
    (f"{E4M3}.to_bfloat16", "e4m3", ("bf16_fast0", "rowwise_bf16_fast0")),
    (f"{E4M3}.fast_accum.to_bfloat16", "e4m3", ("bf16_fast1", "rowwise_bf16_fast1")),
    (MIXED, "e5m2_e4m3", ("f32_fast0",)),
    (f"{MIXED}.fast_accum", "e5m2_e4m3", ("f32_fast1",)),
    (f"{MIXED}.to_bfloat16", "e5m2_e4m3", ("bf16_fast0",)),
    (f"{MIXED}.fast_accum.to_bfloat16", "e5m2_e4m3", ("bf16_fast1",)),
]


def same_bits(values: Any, codes: Any) -> bool:
    """Whether values, of the format whose width the codes have, are those codes."""
    if codes.dtype == np.uint32:
        return np.array_equal(values.view(np.uint32), codes)
    return any(np.array_equal(P.encode(values, fmt, policy="ieee"), codes) for fmt in ("bfloat16", "float16"))


@pytest.mark.parametrize("distribution", ["normal", "uniform01"])
@pytest.mark.parametrize(("accumulator", "inputs", "outputs"), PRODUCTS)
def test_products(accumulator: str, inputs: str, outputs: tuple[str, ...], distribution: str) -> None:
    data = stored("gemm")
    a, b = (data[f"{inputs}_{distribution}_{side}"] for side in ("a", "bt"))
    fmt_a, fmt_b = (FORMATS[part] for part in (inputs.split("_") * 2)[:2])
    core = get_accumulator(f"hopper.cublas.{accumulator}")
    d = core.matmul(P.decode(a, fmt_a), P.decode(b, fmt_b).T)
    for output in outputs:
        key = f"{inputs}_{distribution}_{output}"
        if "rowwise" in output:
            key = f"{inputs}_rowwise_{distribution}_{output.removeprefix('rowwise_')}"
            if key not in data:
                continue
        assert same_bits(d, data[key]), output
    assert core.evidence == "measured"


@pytest.mark.parametrize(
    "name", ["bf16_64_4096", "bf16_64_16384", "bf16_128_8192", "fp16_64_4096", "fp16_64_16384", "fp16_128_8192"]
)
def test_split_products(name: str) -> None:
    data, fmt = stored("gemm_splitk"), FORMATS[name[:4]]
    a, b = P.decode(data[f"{name}_a"], fmt), P.decode(data[f"{name}_bt"], fmt).T
    assert same_bits(get_accumulator(f"hopper.cublas.{fmt}.split_k_1408").matmul(a, b), data[f"{name}_f32"])
    for other in ("", ".split_k_1392", ".split_k_1424"):
        assert not same_bits(get_accumulator(f"hopper.cublas.{fmt}{other}").matmul(a, b), data[f"{name}_f32"])


# --- every number in a row is seen ------------------------------------------------------------------------------------

WRONG = [
    ("f16_f32", "wgmma.m64n8k16.f32.f16.f16", {"fraction_bits": 24}),
    ("f16_f32", "wgmma.m64n8k16.f32.f16.f16", {"fraction_bits": 26}),
    ("f16_f32", "wgmma.m64n8k16.f32.f16.f16", {"group": 8}),
    ("f16_f32", "wgmma.m64n8k16.f32.f16.f16", {"result_bits": 23}),
    ("chain8_f16_f32", "wgmma.chain8.m64n8k16.f32.f16.f16", {"group": 8}),
    ("bf16_f32_underflow", "mma.m16n8k16.f32.bf16.bf16.f32", {"floor": -132}),
    ("bf16_f32_underflow", "mma.m16n8k16.f32.bf16.bf16.f32", {"floor": -134}),
    ("bf16_f32_underflow", "mma.m16n8k16.f32.bf16.bf16.f32", {"floor": None}),
    ("f16_f16_underflow", "wgmma.m64n8k16.f16.f16.f16", {"floor": -20}),
    ("f16_f16_underflow", "wgmma.m64n8k16.f16.f16.f16", {"floor": -22}),
    ("tf32_f32_underflow", "wgmma.m64n8k8.f32.tf32.tf32", {"floor": -132}),
    ("tf32_f32", "mma.m16n8k8.f32.tf32.tf32.f32", {"group": 4}),
    ("e4m3_e4m3_f32", "wgmma.m64n8k32.f32.e4m3.e4m3", {"fraction_bits": 12}),
    ("e4m3_e4m3_f32", "wgmma.m64n8k32.f32.e4m3.e4m3", {"fraction_bits": 14}),
    ("e4m3_e4m3_f32", "wgmma.m64n8k32.f32.e4m3.e4m3", {"result_bits": 15}),
    ("e4m3_e4m3_f32", "wgmma.m64n8k32.f32.e4m3.e4m3", {"group": 16}),
    ("e4m3_e4m3_f32", "wgmma.m64n8k32.f32.e4m3.e4m3", {"emulated": True, "group": 16, "fraction_bits": 25, "result_bits": 24}),
    ("e5m2_e4m3_f32", "mma.m16n8k32.f32.e5m2.e4m3.f32", {"emulated": False}),
    ("e5m2_e4m3_f32", "mma.m16n8k32.f32.e5m2.e4m3.f32", {"fraction_bits": 24}),
    ("s8_s32", "mma.m16n8k32.s32.s8.s8.s32", {"saturates": True}),
    ("s8_s32", "wgmma.m64n8k32.s32.s8.s8.satfinite", {"saturates": False}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "instruction", "change"), WRONG)
def test_a_wrong_row_is_seen(name: str, instruction: str, change: dict[str, Any]) -> None:
    a, b, c, d = operands(name, instruction)
    row = replace(get_instruction(instruction, "hopper"), **change)
    assert (P.mma(a, b, c, instruction=row) != d).any()
