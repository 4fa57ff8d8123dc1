"""Matrix instructions, recorded and judged: drawn operands in, every output compared with `precision.mma`.

Instructions that take the same operands share a draw. Operands and outputs of some tiles of every class are kept, to be
judged again, and so are the first wrong outputs with their operands.

Source: `precision.tensor_cores`, the model; `properties.recorder.operands`, the classes.

>>> from properties.recorder.multiply_add import choose
>>> choose(["mma.m16n8k*.f16.f16.f16.f16"])
['mma.m16n8k16.f16.f16.f16.f16', 'mma.m16n8k8.f16.f16.f16.f16']
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from precision import tensor_cores
from properties.recorder.findings import Array, Card, Finding, differing, operand, picked, to_numpy
from properties.recorder.nvrtc import Unavailable
from properties.recorder.operands import FLOATS, INTEGERS, draw
from properties.recorder.ptx import INSTRUCTIONS, OPERAND_SETS, parse

__all__ = ["choose", "record", "replay"]

Emulator = Callable[..., Any]
"""`precision.mma`, or what has its signature."""
Operands = tuple[str, str, str, int]

PER_CLASS, ROWS, COLUMNS = 2, 16, 8  # kept of a draw: batch elements of each class, and how much of each
EXAMPLES = 64  # wrong outputs kept of an instruction
_PARTS = ("a", "b", "c", "got", "expected")


def choose(wanted: Iterable[str] | None) -> list[str]:
    """The instructions that names or patterns ("wgmma*") stand for, all if None; raises ValueError for no match."""
    if wanted is None:
        return list(INSTRUCTIONS)
    found: set[str] = set()
    for pattern in wanted:
        matching = fnmatch.filter(INSTRUCTIONS, pattern)
        if not matching:
            raise ValueError(f"no instruction matches {pattern!r}: there are {', '.join(INSTRUCTIONS)}")
        found |= set(matching)
    return [name for name in INSTRUCTIONS if name in found]


def record(
    card: Card,
    arrays: dict[str, Array],
    key: Operands,
    names: Sequence[str],
    *,
    outputs: int,
    seed: int,
    emulator: Emulator,
    progress: Callable[[float], None] = lambda part: None,
) -> list[Finding]:
    """Run instructions on operands that they share, and judge at least `outputs` outputs of each.

    A chain of n steps gives an n-th of that. What is kept goes into `arrays`; `progress` is told the part that is done.
    """
    d, a_kind, b_kind, k = key
    outputs = -(-outputs // parse(names[0]).steps)
    size, per_class = ((256, 256), 8) if outputs >= 1 << 22 else ((64, 64), 2) if outputs >= 1 << 17 else ((64, 8), 2)
    classes = len(INTEGERS if d == "s32" else FLOATS)
    turns = -(-outputs // (size[0] * size[1] * per_class * classes))
    tallies = [_Tally(name, card.architecture, emulator) for name in names]
    for turn in range(turns):
        running = [tally for tally in tallies if tally.goes_on]
        if not running:
            break
        a, bt, c, drawn = draw(
            d, a_kind, b_kind, k=k, m=size[0], n=size[1], per_class=per_class, seed=seed + turn, device=card.device
        )
        kept, rows, columns = slice(PER_CLASS * classes), slice(ROWS), slice(COLUMNS)
        if turn == 0:
            operands = {"a": a[kept, rows], "bt": bt[kept, columns], "c": c[kept, rows, columns]}
            arrays |= {f"{_stem(key)}/{part}": to_numpy(x) for part, x in operands.items()}
            arrays[f"{_stem(key)}/class"] = np.array(drawn[kept])
        for tally in running:
            start = time.perf_counter()
            try:
                got = card.mma(tally.name, a, bt, c)
            except Unavailable as lacking:
                tally.note, tally.goes_on = f"not recorded: {lacking}", False
                continue
            if turn == 0:
                arrays[f"mma/{tally.name}/d"] = to_numpy(got[kept, rows, columns])
            tally.judge(a, bt, c, got, drawn)
            tally.seconds += time.perf_counter() - start
        progress((turn + 1) / turns)
    for tally in tallies:
        if tally.examples:
            stacked = [np.concatenate([e[i] for e in tally.examples])[:EXAMPLES] for i in range(len(_PARTS))]
            arrays |= {f"wrong/{tally.name}/{part}": x for part, x in zip(_PARTS, stacked, strict=True)}
    return [tally.finding() for tally in tallies]


def replay(arrays: dict[str, Array], name: str, architecture: str, emulator: Emulator) -> Finding:
    """Judge again what a recording kept of an instruction: its tiles, and its wrong outputs if there are any."""
    stem = _stem(next(key for key, names in OPERAND_SETS.items() if name in names))
    tally = _Tally(name, architecture, emulator)
    a, bt, c, classes = (arrays[f"{stem}/{part}"] for part in ("a", "bt", "c", "class"))
    tally.judge(a, bt, c, arrays[f"mma/{name}/d"], [str(x) for x in classes])
    if f"wrong/{name}/a" in arrays:
        a, b, c, got = (arrays[f"wrong/{name}/{part}"] for part in _PARTS[:4])
        where = ["of the wrong outputs that were kept"] * len(a)
        tally.judge(a[:, None], b[:, None], c[:, None, None], got[:, None, None], where)
    return tally.finding()


def _stem(key: Operands) -> str:
    return "mma/" + ".".join(map(str, key))


class _Tally:
    """Counts what differs for one instruction, and keeps examples."""

    def __init__(self, name: str, architecture: str, emulator: Emulator) -> None:
        self.name, self.architecture, self.emulator = name, architecture, emulator
        self.instruction = parse(name)
        self.outputs, self.mismatches, self.seconds = 0, 0, 0.0
        self.first: dict[str, Any] | None = None
        self.examples: list[tuple[Array, ...]] = []
        self.note, self.modelled, self.goes_on = "", True, True
        try:
            row = tensor_cores.get_instruction(name, architecture)
        except ValueError:
            self.note, self.modelled = f"not judged: there is no model of it for {architecture}", False
        else:
            self.note = "" if row.verified else f"the model is from: {row.source.partition(',')[0]}"

    def judge(self, a: Any, bt: Any, c: Any, got: Any, classes: Sequence[str]) -> None:
        """Compare outputs with the emulator's; operands and outputs are all of one library and device."""
        self.outputs += got.size if isinstance(got, np.ndarray) else got.numel()
        if not self.modelled:
            self.goes_on = False  # what is kept is all that this instruction is good for
            return
        it = self.instruction
        k = it.k * it.steps
        a, bt = a[..., :k], bt[..., :k]
        expected = self.emulator(a, bt.swapaxes(-1, -2), c, instruction=self.name, arch=self.architecture)
        count, at = differing(got, expected, EXAMPLES)
        self.mismatches += count
        if not count or sum(len(e[0]) for e in self.examples) >= EXAMPLES:
            return
        i, row, column = at
        found = (picked(a, (i, row)), picked(bt, (i, column)), *(picked(x, at) for x in (c, got, expected)))
        self.examples.append(found)
        if self.first is None:
            kinds = (it.a, it.b, it.d, it.d, it.d)
            self.first = {"where": f"of class {classes[int(i[0])]}"}
            self.first |= {p: operand(x[0], kind) for p, x, kind in zip(_PARTS, found, kinds, strict=True)}

    def finding(self) -> Finding:
        """The verdict."""
        mismatches = self.mismatches if self.modelled and self.outputs else None
        return Finding("mma", self.name, self.outputs, mismatches, self.note, self.first, round(self.seconds, 3))
