"""What a recording is: findings, the environment they were found in, and arrays to judge again; the file and the table.

Source: this project. The file is a NumPy .npz archive (NEP 1) without pickles, whose entry `summary` is JSON.

>>> from properties.recorder.findings import Finding
>>> print(Finding("mma", "wgmma.m64n8k16.f32.f16.f16", note="not recorded: needs sm_90a"))
wgmma.m64n8k16.f32.f16.f16  not recorded: needs sm_90a
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

import precision as P
from properties.anatomy import decimal
from properties.recorder.ptx import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Card", "Finding", "Recording", "differing", "operand", "to_numpy"]

Array = NDArray[Any]


class Card(Protocol):
    """What is recorded: a GPU, or what stands for one in a test."""

    architecture: str
    device: str

    def environment(self) -> dict[str, str]:
        """What it is, and the versions of everything between it and us."""

    def mma(self, name: str, a: Tensor, bt: Tensor, c: Tensor) -> Tensor:
        """D = A B + C by an instruction, as `properties.recorder.ptx.mma` has it; raises Unavailable."""

    def cast(self, name: str, first: int, count: int) -> Tensor:
        """Codes, as int64, that a cast gives for `count` patterns from `first`; raises Unavailable."""

    def multiply(self, product: str, a: Tensor, bt: Tensor) -> Tensor:
        """A B by a product's name, for codes of A and of B with its columns as rows, in codes; raises Unavailable."""


@dataclass(frozen=True)
class Finding:
    """The verdict on an instruction, a cast or a product: outputs compared, and how many differ; None: not judged.

    `first` is the first output that differs: `where`, its operands, what came and what is right, in bits and values.
    """

    kind: Literal["mma", "cast", "product"]
    name: str
    outputs: int = 0
    mismatches: int | None = None
    note: str = ""
    first: dict[str, Any] | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches

    def __str__(self) -> str:
        if self.mismatches is None:
            return f"{self.name}  {self.note}"
        return (
            f"{self.name}  {self.outputs:,} outputs, {self.mismatches:,} mismatches{'; ' * bool(self.note)}{self.note}"
        )

    def decoded(self) -> str:
        """The first mismatch: a line of bits and one of values for each operand."""
        first = self.first or {}
        where = first.get("where", "")
        lines = [f"{self.name}: {self.mismatches or 0:,} of {self.outputs:,} outputs differ, the first {where}"]
        for name, shown in first.items():
            if name != "where":
                lines += [f"  {name:<9} {' '.join(shown['bits'])}", f"  {'':<9} {' '.join(shown['values'])}"]
        return "\n".join(lines)


@dataclass
class Recording:
    """Findings, the environment that they were found in, and arrays to judge again."""

    environment: dict[str, str]
    findings: list[Finding] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing that was judged differs."""
        return all(finding.ok for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON has it."""
        return {"ok": self.ok, "environment": self.environment, "findings": [asdict(f) for f in self.findings]}

    def save(self, path: Path) -> None:
        """Write `path`, an .npz file, and its summary beside it, which is the same with the suffix .json."""
        summary = json.dumps(self.as_dict(), indent=1, ensure_ascii=False)
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, summary=np.array(summary), **self.arrays)
        path.with_suffix(".json").write_text(summary + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote; raises ValueError for a file that is none, OSError for one that cannot be read."""
        try:
            with path.open("rb") as file, np.load(file) as stored:
                arrays = {name: stored[name] for name in stored.files}
            summary = json.loads(str(arrays.pop("summary")))
            return cls(dict(summary["environment"]), [Finding(**f) for f in summary["findings"]], arrays)
        except (AttributeError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as wrong:
            raise ValueError(f"{path} is no recording: give an .npz file that halfulp silicon wrote") from wrong

    def text(self) -> str:
        """A table of the findings, the first mismatch of each in full, the environment and a line that sums it up."""
        rows = [("instruction", "outputs", "mismatches", "")]
        for f in self.findings:
            judged = "" if f.mismatches is None else f"{f.mismatches:,}"
            rows.append((f.name, f"{f.outputs:,}" if f.outputs else "", judged, f.note))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{n:<{widths[0]}}  {o:>{widths[1]}}  {m:>{widths[2]}}  {note}".rstrip() for n, o, m, note in rows]
        blocks = ["\n".join(lines), *(f.decoded() for f in self.findings if f.first)]
        blocks.append("\n".join(f"{name:<13} {value}" for name, value in self.environment.items()))
        judged_ones = [f for f in self.findings if f.mismatches is not None]
        wrong = [f for f in judged_ones if f.mismatches]
        total = sum(f.outputs for f in judged_ones)
        if wrong:
            count = sum(f.mismatches or 0 for f in wrong)
            blocks.append(f"{len(wrong)} of {len(judged_ones)} differ: {count:,} of {total:,} outputs")
        elif judged_ones:
            blocks.append(f"{len(judged_ones)} judged, {total:,} outputs: all as the emulator has them")
        else:
            blocks.append("nothing was judged")
        return "\n\n".join(blocks)


# --- Codes of either library ------------------------------------------------------------------------------------------


def operand(codes: Any, kind: str) -> dict[str, list[str]]:
    """NumPy codes of a PTX type or a format, in bits and values; tf32 codes are float32 words."""
    array = np.atleast_1d(np.asarray(codes))
    plain = array >> np.uint32(13) if kind == "tf32" else array
    values = np.asarray(P.decode(plain, FORMATS.get(kind, kind)), np.float64).tolist()
    width = 2 * array.dtype.itemsize + 2
    return {"bits": [f"{int(c):#0{width}x}" for c in array], "values": [decimal(v) for v in values]}


def differing(got: Any, expected: Any, most: int) -> tuple[int, list[Array]]:
    """How many of two arrays' codes differ, and the indices of the first `most` of them, one array a dimension."""
    wrong = _signed(got) != _signed(expected)
    count = int(wrong.sum())
    if not count:
        return 0, []
    at = wrong.nonzero()
    return count, [to_numpy(x[:most]) for x in (at if isinstance(at, tuple) else at.unbind(1))]


def picked(codes: Any, at: Sequence[Array]) -> Array:
    """Elements, or rows, of an array by indices, as NumPy."""
    if isinstance(codes, np.ndarray):
        found: Array = codes[tuple(at)]
        return found
    import torch

    indices = tuple(torch.from_numpy(x).to(codes.device) for x in at)
    return to_numpy(_signed(codes)[indices].view(codes.dtype))


def to_numpy(codes: Any) -> Array:
    """The array itself, or a tensor's."""
    array: Array = codes if isinstance(codes, np.ndarray) else codes.contiguous().cpu().numpy()
    return array


def _signed(codes: Any) -> Any:
    """A view of tensors that torch's operators know, which unsigned 16 and 32 bits are not."""
    if isinstance(codes, np.ndarray):
        return codes
    import torch

    return codes.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[codes.element_size()])
