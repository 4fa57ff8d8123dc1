"""`halfulp inspect` on a generated checkpoint in the page cache: bytes a second, all default formats together."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision import inspection

SIZES = {"BF16": 1 << 28, "F16": 1 << 28, "F32": 1 << 26}


def _write(path: Path, dtype: str, size: int) -> None:
    """One safetensors file of normal numbers, in tensors of 16 MiB."""
    rng = np.random.default_rng(0)
    chunk, width = 1 << 24, 4 if dtype == "F32" else 2
    header = {
        f"layer.{i}": {
            "dtype": dtype,
            "shape": [chunk // width],
            "data_offsets": [i * chunk, (i + 1) * chunk],
        }
        for i in range(size // chunk)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in header:
            x = (rng.standard_normal(chunk // width) * 0.02).astype(np.float32)
            if dtype == "BF16":
                file.write((x.view(np.uint32) >> 16).astype(np.uint16).tobytes())
            else:
                file.write(x.astype(np.float16 if dtype == "F16" else np.float32).tobytes())


@pytest.mark.parametrize("dtype", SIZES)
def bench_inspect(benchmark: Any, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    _write(path, dtype, SIZES[dtype])
    benchmark.group = "inspect, bytes a second"
    benchmark.extra_info.update(who=dtype, elements=SIZES[dtype])
    found = benchmark.pedantic(lambda: inspection.inspect([path]), rounds=3, warmup_rounds=1)
    assert found.exit_status == 0
