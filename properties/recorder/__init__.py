"""What this machine's GPU does, recorded and judged: casts, matrix instructions and whole products, bit for bit.

`record` runs instructions on a `Card`, which is this GPU, and judges every output by the emulator: casts of all 2^32
float32 patterns, matrix instructions on drawn operands, products of `torch.mm` and `torch._scaled_mm`. A `Recording`
holds the verdicts and, to be judged again anywhere without a GPU by `replay`, digests of the casts and some operands
and outputs of every class. What the GPU or the compiler lacks is a finding with a note, not a failure.

Nothing is needed beside torch's CUDA build and a driver: NVRTC, which torch brings, compiles inline PTX.

Source: NVIDIA, PTX ISA 9.0, for the instructions; `precision.tensor_cores`, `properties.silicon` for what is right.

>>> from properties.recorder import ThisGpu, Unavailable, find
>>> try:
...     print("there is one:", bool(ThisGpu(find()).architecture))
... except Unavailable as missing:
...     print("there is none:", "CUDA" in str(missing))  # doctest: +ELLIPSIS
there is ...: True
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import precision as P
from precision import tensor_cores
from properties import silicon
from properties.recorder import casts, multiply_add, products
from properties.recorder.findings import Card, Finding, Recording
from properties.recorder.multiply_add import Emulator
from properties.recorder.nvrtc import Gpu, Unavailable, compiler, find
from properties.recorder.ptx import OPERAND_SETS, mma

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Card", "Finding", "Recording", "ThisGpu", "Unavailable", "find", "record", "replay"]

TCGEN05 = "it takes a kernel that allocates tensor memory, describes operands in shared memory and waits on barriers"
"""Why a Blackwell is recorded through `mma.sync` only."""

Progress = Callable[[int, int, str], None]


class ThisGpu:
    """The `Card` that is a CUDA device of this machine."""

    device = "cuda"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.architecture = gpu, gpu.architecture

    def environment(self) -> dict[str, str]:
        """GPU, driver, compiler, torch and date; raises Unavailable without a compiler."""
        import torch

        major, minor = self.gpu.capability
        nvrtc = compiler()
        return {
            "gpu": self.gpu.name,
            "capability": f"{major}.{minor}",
            "architecture": self.architecture,
            "driver": self.gpu.driver,
            "compiler": f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]}, {nvrtc.target(self.gpu.capability)}",
            "torch": str(torch.__version__),
            "halfulp": P.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def mma(self, name: str, a: Tensor, bt: Tensor, c: Tensor) -> Tensor:
        """Through inline PTX."""
        return mma(self.gpu, name, a, bt, c)

    def cast(self, name: str, first: int, count: int) -> Tensor:
        """Through inline PTX, or torch's `to`."""
        return casts.on_gpu(self.gpu, name, first, count)

    def multiply(self, product: str, a: Tensor, bt: Tensor) -> Tensor:
        """Through torch."""
        return products.on_gpu(product, a, bt)


def record(
    card: Card,
    *,
    instructions: Iterable[str] | None = None,
    outputs: int = 10_000_000,
    cast: bool = True,
    product: bool = True,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
    emulator: Emulator | None = None,
) -> Recording:
    """Run and judge instructions (names or patterns; all if None), casts and products on a card.

    Each instruction gives at least `outputs` outputs, a chain of n at least an n-th of that, on operands drawn with
    `seed`. NaN, infinities, -0 and subnormals are among the operands, and are compared by bits like everything else.
    `progress(done, total, what)` is called now and then; `emulator` stands for `precision.mma`.
    Raises ValueError for instructions that there are not, for outputs below 1 and a seed outside 0 to 2^16 - 1.
    """
    if outputs < 1:
        raise ValueError(f"outputs is {outputs}; each instruction gives at least 1")
    if not 0 <= seed < 1 << 16:
        raise ValueError(f"seed is {seed}; it is 0 to {(1 << 16) - 1}")
    chosen = multiply_add.choose(instructions)
    judge = tensor_cores.mma if emulator is None else emulator
    sets = {key: [name for name in names if name in chosen] for key, names in OPERAND_SETS.items()}
    sets = {key: names for key, names in sets.items() if names}
    recording = Recording(card.environment() | {"seed": str(seed)})
    arrays, found = recording.arrays, recording.findings
    total, done = len(sets) + (len(casts.names()) if cast else 0) + (len(products.PRODUCTS) if product else 0), 0
    for number, (key, names) in enumerate(sets.items()):

        def tell(part: float, done: int = done, what: str = names[0]) -> None:
            progress(int(100 * (done + part)), 100 * total, what)

        tell(0)
        first = (seed << 40) + (number << 32)
        found += multiply_add.record(
            card, arrays, key, names, outputs=outputs, seed=first, emulator=judge, progress=tell
        )
        done += 1
    if card.architecture == "blackwell" and chosen:
        found.append(Finding("mma", "tcgen05.mma", note=f"not recorded: {TCGEN05}"))
    for name in casts.names() if cast else ():
        progress(100 * done, 100 * total, name)
        found.append(casts.record(card, arrays, name, recording.environment.get("torch", "")))
        done += 1
    if cast:
        left_out = len(silicon.CASTS) + len(silicon.TABLES) - len(casts.names())
        found.append(Finding("cast", f"{left_out} more conversions", note=f"not recorded: {casts.HEADERS}"))
    for name in products.PRODUCTS if product else ():
        progress(100 * done, 100 * total, name)
        found.append(products.record(card, arrays, name, seed))
        done += 1
    return recording


def replay(
    recording: Recording,
    *,
    progress: Progress = lambda done, total, what: None,
    emulator: Emulator | None = None,
) -> Recording:
    """Judge what a recording holds, on the CPU: tiles of every instruction, kept mismatches, digests, products.

    The result has the recording's environment and arrays, and fresh findings; what was not recorded keeps its note.
    """
    judge = tensor_cores.mma if emulator is None else emulator
    arrays, where = recording.arrays, recording.environment
    fresh = Recording(dict(where), [], arrays)
    for done, finding in enumerate(recording.findings):
        progress(done, len(recording.findings), finding.name)
        if finding.kind == "mma" and f"mma/{finding.name}/d" in arrays:
            finding = _kept(multiply_add.replay(arrays, finding.name, where["architecture"], judge), finding)
        elif finding.kind == "cast" and f"cast/{finding.name}" in arrays:
            finding = casts.replay(arrays, finding, where.get("torch", ""))
        elif finding.kind == "product":
            finding = _kept(products.replay(arrays, finding, where["architecture"]), finding)
        fresh.findings.append(finding)
    return fresh


def _kept(fresh: Finding, recorded: Finding) -> Finding:
    """A fresh verdict that says of how many recorded outputs it judges what was kept."""
    if recorded.mismatches is None or fresh.mismatches is None:
        return fresh
    then = f"kept of {recorded.outputs:,}, recorded with {recorded.mismatches:,} mismatches"
    return replace(fresh, note=f"{fresh.note}{'; ' * bool(fresh.note)}{then}")
