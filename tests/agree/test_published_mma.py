"""Recordings of a V100 to a B200 by Khattak and Mikaitis: the rows that we have not run ourselves, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision as P
from precision.tensor_cores import INSTRUCTIONS, get_instruction

FILE = Path(__file__).parents[1] / "data" / "published_mma" / "recordings.npz"
TYPES = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
GPUS = {"V100": "volta", "A100": "ampere", "A2": "ampere", "Ada": "ada", "L40S": "ada", "H100": "hopper", "H200": "hopper", "B200": "blackwell"}  # fmt: skip
SHAPES = {"fp16": "m16n8k16", "bf16": "m16n8k16", "tf32": "m16n8k8", "E4M3": "m16n8k32", "E5M2": "m16n8k32"}


@cache
def recordings() -> dict[str, Any]:
    with np.load(FILE) as file:
        found = {key: file[key] for key in file.files}
    return found | {name: found[as_stored] for name, as_stored in found.pop("same").tolist()}


SETS = sorted(key.rpartition(".d") for key in recordings() if ".dfp" in key)


def run(gpu: str, fmt: str, result: str, **change: Any) -> tuple[Any, Any]:
    """(ours, recorded)."""
    a, b, c, d = (recordings()[f"{gpu}.{fmt}.{which}"] for which in ("a", "b", "c", f"d{result}"))
    result = result.replace("fp", "f")
    name = f"mma.{SHAPES[fmt]}.{result}.{TYPES[fmt]}.{TYPES[fmt]}.{result}"
    if gpu == "V100":
        name = f"mma.m8n8k4.{result}.f16.f16.{result}"
    if GPUS[gpu] == "hopper" and fmt in ("E4M3", "E5M2") and result == "f32":
        name, c = f"wgmma.m64n8k32.f32.{TYPES[fmt]}.{TYPES[fmt]}", np.zeros_like(c)
    if result == "f16":
        c = P.encode(c.view(np.float32), "float16", policy="ieee")
    row = replace(get_instruction(name, GPUS[gpu]), **change)
    return P.mma(a[:, None, :], b[:, :, None], c[:, None, None], instruction=row)[:, 0, 0], d


@pytest.mark.parametrize(("gpu_and_format", "result"), [(x, z) for x, _, z in SETS])
def test_results_are_as_published(gpu_and_format: str, result: str) -> None:
    gpu, fmt = gpu_and_format.split(".")
    got, d = run(gpu, fmt, result)
    assert np.array_equal(got, d)


@pytest.mark.parametrize(
    ("gpu", "fmt", "change"),
    [
        ("V100", "fp16", {"fraction_bits": 24}),
        ("A100", "fp16", {"fraction_bits": 25}),
        ("A100", "bf16", {"group": 4}),  # a larger group is not seen: all but 8 products are zero (of tf32, all but 4)
        ("A100", "tf32", {"group": 2}),
        ("Ada", "E4M3", {"group": 32}),
        ("Ada", "E5M2", {"fraction_bits": 14}),
        ("L40S", "fp16", {"fraction_bits": 23}),
        ("B200", "fp16", {"fraction_bits": 24}),
        ("B200", "E4M3", {"emulated": False, "group": 32}),  # as models of a B200 have it
        ("B200", "E5M2", {"emulated": False, "group": 32}),
        ("H100", "E5M2", {"group": 16}),
    ],
)
def test_a_wrong_row_is_seen(gpu: str, fmt: str, change: dict[str, Any]) -> None:
    got, d = run(gpu, fmt, "fp32", **change)
    assert (got != d).any()


def test_what_counts_as_published_is_replayed() -> None:
    """By architecture, operands and result: recordings do not tell the shapes of one generation apart."""
    replayed = {(GPUS[x.split(".")[0]], TYPES[x.split(".")[1]], z.replace("fp", "f")) for x, _, z in SETS}
    short = {f: t for t, f in (("f16", "float16"), ("bf16", "bfloat16"), ("tf32", "tfloat32"), ("f32", "float32"), ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"))}  # fmt: skip
    for row in INSTRUCTIONS:
        if row.evidence == "published" and row.a == row.b:
            assert (row.arch, short[row.a.name], short[row.accumulator.name]) in replayed, row
