"""Casts, recorded and judged: all 2^32 float32 patterns by digest, narrower formats by every code.

The right digests travel with the package (`properties.silicon`): what an H200 gave, and what the emulator gives.
Where torch has changed a cast since, they are computed by the emulator on the device.

Source: `properties.silicon` for rows, digests and tables; `properties.recorder.ptx` for the instructions.

>>> from properties.recorder.casts import names
>>> len(names()), "ptx_cvt_rn_satfinite_e4m3x2_f32" in names(), "cuda_fp8_e4m3_nosat" in names()
(40, True, False)
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties import silicon
from properties.recorder.findings import Array, Card, Finding, operand, to_numpy
from properties.recorder.nvrtc import Gpu, Unavailable
from properties.recorder.ptx import CASTS, cast

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HEADERS", "digests", "names", "on_gpu", "record", "replay"]

_TORCH = "torch_cuda_to_"
_AT_ONCE = 4  # chunks of 2^22 patterns
_COUNTED = 2  # differing chunks whose wrong codes are counted

HEADERS = "they are functions of cuda_fp8.h and other headers, which come with a CUDA toolkit and not with torch"
"""Why the other conversions of `properties.silicon` are not recorded."""


def names() -> list[str]:
    """The conversions of `properties.silicon` that are instructions or torch's."""
    return [name for name in (*silicon.casts(), *silicon.tables()) if name in CASTS or name.startswith(_TORCH)]


def on_gpu(gpu: Gpu, name: str, first: int, count: int) -> Tensor:
    """Codes, as int64, that this GPU gives for `count` patterns from `first`; raises Unavailable."""
    import torch

    if name in CASTS:
        return cast(gpu, name, first, count).to(torch.int64) & 0xFFFFFFFF
    dtype = getattr(torch, name.removeprefix(_TORCH), None)
    if dtype is None:
        raise Unavailable(f"torch {torch.__version__} has no {name.removeprefix(_TORCH)}")
    out = _patterns(first, count, "cuda").to(dtype)
    if out.element_size() == 1:
        return out.view(torch.uint8).to(torch.int64)
    return out.view(torch.int16).to(torch.int64) & 0xFFFF


def _patterns(first: int, count: int, device: str) -> Tensor:
    """The float32 values of consecutive patterns."""
    import torch

    return torch.arange(first, first + count, device=device).to(torch.int32).view(torch.float32)


def digests(codes: Tensor) -> list[int]:
    """The digest of each row of 2^22 codes (int64), as `properties.silicon.digest` has it."""
    import torch

    factors = torch.from_numpy(silicon.multipliers()[0].view(np.int64)).to(codes.device)
    return [int(x) % (1 << 64) for x in ((codes + 1) * factors).sum(-1).tolist()]


def _row(name: str, torch_version: str) -> tuple[silicon.Cast, bool]:
    """The row of a conversion under a version of torch, and whether it is as it was on the H200, with torch 2.11."""
    row = (silicon.casts() | silicon.tables())[name]
    numbers = tuple(int(n) for n in re.findall(r"\d+", torch_version)[:2])
    if row.policy != "torch_2_11" or numbers < (2, 13):
        return row, True
    return replace(row, policy="torch"), P.get_policy("torch", row.format) == P.get_policy("torch_2_11", row.format)


def record(card: Card, arrays: dict[str, Array], name: str, torch_version: str) -> Finding:
    """Run a cast on all float32 patterns, or a conversion from a narrower format on every code, and judge it."""
    start = time.perf_counter()
    row, same = _row(name, torch_version)
    try:
        if row.source != "float32":
            expected = silicon.recording(name)
            arrays[f"cast/{name}"] = to_numpy(card.cast(name, 0, expected.size)).astype(expected.dtype)
            return _judge_table(row, arrays[f"cast/{name}"])
        found: list[int] = []
        for chunk in range(0, silicon.CHUNKS, _AT_ONCE):
            codes = card.cast(name, chunk * silicon.CHUNK, _AT_ONCE * silicon.CHUNK)
            found += digests(codes.view(_AT_ONCE, silicon.CHUNK))
    except Unavailable as lacking:
        return Finding("cast", name, note=f"not recorded: {lacking}")
    arrays[f"cast/{name}"] = np.array(found, np.uint64)
    expected = silicon.recording(name) if same else np.array(list(_emulated(row, card.device)), np.uint64)
    wrong = np.nonzero(arrays[f"cast/{name}"] != expected)[0].tolist()
    count, first = 0, None
    for chunk in wrong[:_COUNTED]:
        got = to_numpy(card.cast(name, chunk * silicon.CHUNK, silicon.CHUNK))
        bits = np.arange(chunk * silicon.CHUNK, (chunk + 1) * silicon.CHUNK, dtype=np.uint32)
        right = row.codes(bits)
        at = np.nonzero(got != right)[0]
        count += len(at)
        if first is None and len(at):
            first = _example(row, bits[at[0]], got[at[0]].astype(right.dtype), right[at[0]])
    note = f"{len(wrong)} of {silicon.CHUNKS} chunks differ, mismatches of the first {_COUNTED}" if wrong else ""
    seconds = round(time.perf_counter() - start, 3)
    return Finding("cast", name, 1 << 32, max(count, len(wrong)), note, first, seconds)


def replay(arrays: dict[str, Array], finding: Finding, torch_version: str) -> Finding:
    """Judge a recorded conversion again. Digests that nobody has are computed where something happens in the format."""
    row, same = _row(finding.name, torch_version)
    got = arrays[f"cast/{finding.name}"]
    if row.source != "float32":
        return _judge_table(row, got)
    if same:
        expected = {chunk: int(x) for chunk, x in enumerate(silicon.recording(finding.name))}
    else:
        bits = np.arange(silicon.CHUNK, dtype=np.uint32)
        chunks = silicon.key_chunks(finding.name)
        expected = {c: silicon.digest(row.codes(bits + np.uint32(c * silicon.CHUNK))) for c in chunks}
    wrong = [chunk for chunk, right in expected.items() if int(got[chunk]) != right]
    note = f"{len(wrong)} of {len(expected)} chunks differ, counted once each" if wrong else ""
    outputs = len(expected) * silicon.CHUNK
    return Finding("cast", finding.name, outputs, len(wrong), note, finding.first if wrong else None)


def _emulated(row: silicon.Cast, device: str) -> Iterator[int]:
    """The digests of a row without a recipe, computed on the device."""
    import torch

    for chunk in range(silicon.CHUNKS):
        x = _patterns(chunk * silicon.CHUNK, silicon.CHUNK, device)
        codes = P.encode(x, row.format, rounding=row.rounding, policy=row.policy)
        yield from digests(codes.to(torch.int64)[None])


def _judge_table(row: silicon.Cast, got: Array) -> Finding:
    expected = silicon.recording(row.name)
    wrong = np.nonzero(got != expected)[0]
    first = None
    if len(wrong):
        bits = np.array(wrong[0], f"uint{8 if expected.size <= 256 else 16}")
        first = _example(row, bits, got[wrong[0]], expected[wrong[0]])
    return Finding("cast", row.name, expected.size, len(wrong), "", first)


def _example(row: silicon.Cast, bits: Any, got: Any, right: Any) -> dict[str, Any]:
    kind = "tf32" if row.format == "tfloat32" else row.format
    shown = {"x": operand(bits, row.source), "got": operand(got, kind), "expected": operand(right, kind)}
    return {"where": "in ascending order of patterns", **shown}
