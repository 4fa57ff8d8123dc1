"""The definition of a job compiled by numba into one vectorised loop: the optional `fast` extra.

The loop is written by recording `_patterns` (no table: AVX lanes do arithmetic faster than they gather) and kept, with
numba's compiled code beside it, in the user's cache folder, so that only the first process ever pays for compiling.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]

from precision._array import Layout, NumbaRecorder, Term
from precision._patterns import Job

Definition = Callable[[list[Term], NumbaRecorder], Any]
"""Records what to do with one pattern of each operand; gives the result."""


def source(title: str, layout: Layout, operands: int, definition: Definition) -> str:
    """A Python module with the function `loop(u0, …, out)` for arrays of unsigned patterns and results."""
    recorder = NumbaRecorder(wide=layout.width == 64)
    names = [f"u{k}" for k in range(operands)]
    for k, u in enumerate(names):
        first = f"int32({u}[i]) & int32(0xFFFF)" if layout.bits == 16 else f"int{layout.bits}({u}[i])"
        recorder.lines.append(f"x{k} = int{layout.width}({first})")
    result = recorder.text(definition([Term(f"x{k}", recorder) for k in range(operands)], recorder))
    body = "\n        ".join([*recorder.lines, f"out[i] = {result}"])
    return (
        f"# {title}\nfrom numba import njit\nfrom numpy import float32, float64, int32, int64, sqrt\n\n\n"
        f"@njit(cache=True, error_model='numpy')\ndef loop({', '.join(names)}, out):\n"
        f"    for i in range(out.size):\n        {body}\n"
    )


def loop(title: str, layout: Layout, operands: int, definition: Definition) -> Any:
    """The compiled loop over arrays of equal length."""
    text = source(title, layout, operands, definition)
    name = "halfulp_" + hashlib.sha256(text.encode() + numba.__version__.encode()).hexdigest()[:24]
    path = _folder() / f"{name}.py"
    if not path.exists() or path.read_text() != text:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)  # whole or not at all, whoever else writes it
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where numba looks for it when it loads the compiled code
    spec.loader.exec_module(module)
    return module.loop


@cache
def compiled(job: Job, layout: Layout) -> Any:
    """The compiled loop of a job: `loop(u, out)`."""
    title = f"{job.kind} {layout.name} to {job.fmt.name}, {job.mode}, {job.policy}"
    return loop(title, layout, 1, lambda x, recorder: job(x[0], layout, recorder))


@cache
def _folder() -> Path:
    try:
        root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
        folder = Path(root) / "halfulp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # no such user, no home, a file in the way
        pass
    return Path(tempfile.mkdtemp(prefix="halfulp-"))
