"""What a checkpoint would lose in each format: overflow, underflow, SQNR and bytes, tensor by tensor.

`inspect` reads safetensors (a file, a folder, an index of shards), .npy, .npz and torch .pt/.pth files. Structure comes
first, from headers alone: every fault of every file is one line of an `InspectionError`, before any data is read. Then
the tensors are streamed through one small buffer into `precision.histogram`: memory does not grow with the file, and
nothing in a file is ever executed. The result is plain data: `str()` or `tables()` for a terminal, `as_dict()` for
JSON, `csv_rows()`.

Source of the figures: `precision.histogram`. They are errors of the stored values, not of the task a model solves.

>>> import numpy as np, pathlib, tempfile, precision as P
>>> with tempfile.TemporaryDirectory() as folder:
...     np.save(pathlib.Path(folder, "w.npy"), np.float32([70000, 1, -1e-9, 0]))
...     found = P.inspection.inspect(folder, check=["float16"])
>>> found.exit_status, [(t.name, t.amax) for t in found.overflowing("float16")]
(1, [('w', 70000.0)])
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from precision._checkpoints import gather
from precision._tensor_files import BUFFER, InspectionError, Stored
from precision.formats import AnyFormat, Format, IntFormat, formats, get_format
from precision.histogram import SCALE_RULE, Codes, Figures, Wanted, absmax_scale, measure

__all__ = ["DEFAULT", "Inspection", "InspectionError", "Table", "TensorReport", "inspect", "rows"]

DEFAULT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "float4_e2m1fn")
"""The formats that `inspect` judges unless told otherwise."""

Progress = Callable[[int, int, str], None]


class Table(NamedTuple):
    """A table of texts, for whatever draws it; str() aligns it: first and last column are words, the rest numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        sides = ["<", *[">"] * (len(widths) - 2), "<"]
        return "\n".join(
            "  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(line, sides, widths, strict=True)).rstrip()
            for line in lines
        )


@dataclass(frozen=True)
class TensorReport:
    """One tensor: where it is, what it holds, and its figures by row (none for integers and unknown dtypes).

    `size` counts elements: `values` finite and not zero, `zeros` (±0), `nan`, `infinite`. `subnormal` ones are below
    the smallest normal number of the dtype they are stored in. `amax` is the largest finite magnitude.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    size: int
    remark: str = ""
    inspected: bool = False
    values: int = 0
    zeros: int = 0
    nan: int = 0
    infinite: int = 0
    subnormal: int = 0
    amax: float = 0.0
    figures: dict[Wanted, Figures] = field(default_factory=dict)


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found. `exit_status` is 1 where a checked format overflows, else 0."""

    paths: tuple[str, ...]
    tensors: tuple[TensorReport, ...]
    rows: tuple[Wanted, ...]
    checked: tuple[AnyFormat, ...]
    remarks: tuple[str, ...]
    fast: bool = False

    @cached_property
    def judged(self) -> tuple[TensorReport, ...]:
        """The tensors that have figures."""
        return tuple(t for t in self.tensors if t.figures)

    @cached_property
    def totals(self) -> dict[Wanted, Figures]:
        """The figures of all judged tensors together, by row."""
        return {row: sum((t.figures[row] for t in self.judged), Figures()) for row in self.rows}

    @property
    def exit_status(self) -> int:
        """1 if a format asked for with `check` clips a value of any tensor, without a scale; else 0."""
        return int(any(self.overflowing(fmt) for fmt in self.checked))

    def overflowing(self, fmt: AnyFormat | str) -> list[TensorReport]:
        """The tensors with finite values that overflow an unscaled format, worst first.

        Raises ValueError for a format that was not judged unscaled.
        """
        row = Wanted(get_format(fmt), False)
        if row not in self.rows:
            raise ValueError(f"{row.fmt} was not judged unscaled; name it in check=")
        return [t for t in self.ranking(row) if t.figures[row].clipped]

    def ranking(self, row: Wanted) -> list[TensorReport]:
        """The judged tensors, worst first: those that clip, then the others, each by SQNR, then by share to zero."""

        def key(t: TensorReport) -> tuple[bool, float, float, str]:
            f = t.figures[row]
            db = f.sqnr_db
            return (not f.clipped, float("inf") if db is None else db, -f.to_zero_share, t.name)

        return sorted(self.judged, key=key)

    def nbytes(self, row: Wanted) -> int:
        """Bytes of the judged tensors in a row's format, densely packed, with a float32 scale each where scaled."""
        return sum(-(-t.size * row.fmt.bits // 8) + 4 * row.scaled for t in self.judged)

    def tables(self, top: int = 1) -> list[Table]:
        """The summary, and the `top` worst tensors of every row if more than one is asked for."""
        summary = []
        for row in self.rows:
            f, worst = self.totals[row], next(iter(self.ranking(row)), None)
            text = _verdict(worst, row) if worst and worst.figures[row].noise != 0 else "–"
            lost = (_share(f.clipped, f.values), _share(f.to_zero, f.values))
            summary.append((_label(row), _bytes(self.nbytes(row)), *lost, f.sqnr, text))
        result = [Table(("format", "bytes", "clipped", "to zero", "SQNR dB", "worst tensor"), tuple(summary))]
        if top > 1:
            worst_rows = []
            for row in self.rows:
                for t in self.ranking(row)[:top]:
                    f = t.figures[row]
                    lost = (_share(f.clipped, f.values), _share(f.to_zero, f.values))
                    worst_rows.append((_label(row), f"{t.amax:.4g}", *lost, f.sqnr, t.name))
            result.append(Table(("format", "largest", "clipped", "to zero", "SQNR dB", "tensor"), tuple(worst_rows)))
        return result

    def headline(self) -> str:
        """One line: what was read, and whether it is finite."""
        floats = [t for t in self.tensors if t.inspected]
        dtypes = {t.dtype: sum(o.nbytes for o in self.tensors if o.dtype == t.dtype) for t in floats}
        stored = ", ".join(f"{dtype} {_bytes(n)}" for dtype, n in dtypes.items())
        counted = {"NaN": sum(t.nan for t in floats), "Inf": sum(t.infinite for t in floats)}
        bad = [f"{n} {what}" for what, n in counted.items() if n]
        small = sum(t.subnormal for t in floats)
        others = len(self.tensors) - len(floats)
        parts = [
            ", ".join(self.paths),
            f"{len(floats)} float"
            + (f" + {others} other" if others else "")
            + f" tensor{'s' * (len(self.tensors) != 1)}",
            f"{_count(sum(t.size for t in floats))} values",
            stored or "no floats",
            " and ".join(bad) if bad else "finite",
            *([f"{_count(small)} subnormal"] if small else []),
        ]
        return "   ".join(parts)

    def notes(self) -> list[str]:
        """Remarks on the files, and tensors that were not inspected."""
        result = list(self.remarks)
        result += [f"{t.name}: {t.remark}" for t in self.tensors if t.remark]
        narrow = sum(1 for t in self.judged if t.dtype and t.nbytes * 8 < 16 * t.size)
        if narrow:
            result.append(
                f"{narrow} tensors are stored in 8 bits or fewer: judged as stored, scales kept apart not applied"
            )
        bad = [t for t in self.tensors if t.nan or t.infinite]
        result += [f"{t.name}: {t.nan} NaN, {t.infinite} Inf of {t.size}" for t in bad[:10]]
        if len(bad) > 10:
            result.append(f"{len(bad) - 10} more tensors hold NaN or Inf")
        return result

    def advice(self) -> list[str]:
        """What follows from the figures, and why, in lines.

        The rules, per tensor: any overflow; more than 1 % of the values and 0.1 % of sum |x| to zero; at least 10 dB
        below the median tensor.
        """
        result = []
        for row in self.rows:
            ranked = self.ranking(row)
            clipped = [t for t in ranked if t.figures[row].clipped]
            lost = [t for t in ranked if t.figures[row].to_zero_share > 0.01 and not _little_mass(t.figures[row])]
            if clipped:
                where = f"overflow in {_tensors(clipped)}, first {_verdict(clipped[0], row)}"
                result.append(f"{_label(row)}: {where}: use a scale")
            if lost:
                percent = sorted(round(100 * t.figures[row].to_zero_share) for t in lost)
                span = f"{percent[0]}–{percent[-1]} %" if percent[0] != percent[-1] else f"{percent[0]} %"
                remedy = "a scale per channel or block" if row.scaled else "a scale"
                part = _share(sum(t.size for t in lost), sum(t.size for t in self.judged))
                result.append(
                    f"{_label(row)}: {span} of the values become zero in {_tensors(lost)} with {part} of all values, "
                    f"first {lost[0].name}: use {remedy}, or keep these as they are"
                )
            decibels = [(db, t) for t in ranked if (db := t.figures[row].sqnr_db) is not None and db != float("inf")]
            if decibels:
                median = statistics.median(db for db, _ in decibels)
                low = [t for db, t in decibels if db <= median - 10 and t not in clipped and t not in lost]
                if low:
                    result.append(
                        f"{_label(row)}: at least 10 dB below the median tensor's {median:.1f} dB in {_tensors(low)}, "
                        f"first {low[0].name} ({low[0].figures[row].sqnr} dB): keep more bits there"
                    )
        vectors = sum(t.size for t in self.judged if len(t.shape) <= 1)
        if vectors and len(self.judged) > 1:
            share = _share(vectors, sum(t.size for t in self.judged))
            result.append(
                f"tensors of one dimension (biases, norms) are {share} of the values: keeping them costs little"
            )
        result.append("these are errors of the weights; what a task loses, only running the model tells")
        return result

    def listing(self) -> Table:
        """Every tensor, in the order of the files: what it holds, and how it is stored."""
        columns = ("tensor", "size", "zeros", "NaN", "Inf", "subnormal", "largest", "dtype and shape")
        lines = []
        for t in self.tensors:
            counts = map(str, (t.size, t.zeros, t.nan, t.infinite, t.subnormal))
            stored = f"{t.dtype} {'×'.join(map(str, t.shape)) or 'scalar'} {t.remark}".rstrip()
            lines.append((t.name, *counts, f"{t.amax:.6g}", stored))
        return Table(columns, tuple(lines))

    def text(self, top: int = 1) -> str:
        """All of it for a terminal; with the `top` worst tensors of every row if more than one is asked for."""
        accuracy = "; SQNR of float32 and float64 tensors left out (fast)" if self.fast else ""
        rule = f"shares are of finite non-zero values; tensor scale: {SCALE_RULE}{accuracy}"
        tables = ["\n\n".join(map(str, self.tables(top)))] if self.judged else []
        parts = [self.headline(), *tables, rule]
        parts += [f"note    {note}" for note in self.notes()] + [
            f"advice  {line}" for line in self.advice() if self.judged
        ]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it, without NaN and infinity: `sqnr_db` is null where `sqnr` is no number."""
        return {
            "paths": list(self.paths),
            "scale_rule": SCALE_RULE,
            "sqnr_of_wide_sources": "left out" if self.fast else "exact",
            "tensors": len(self.tensors),
            "inspected": sum(t.inspected for t in self.tensors),
            **{key: sum(getattr(t, key) for t in self.tensors) for key in ("nbytes", *_COUNTS)},
            "formats": [self._row_dict(row) for row in self.rows],
            "checked": [fmt.name for fmt in self.checked],
            "overflows": {fmt.name: [t.name for t in self.overflowing(fmt)] for fmt in self.checked},
            "per_tensor": [
                {
                    key: getattr(t, key)
                    for key in ("name", "file", "dtype", "nbytes", "remark", "inspected", *_COUNTS, "amax")
                }
                | {"shape": list(t.shape), "formats": [_figures_dict(t, row, f) for row, f in t.figures.items()]}
                for t in self.tensors
            ],
            "notes": self.notes(),
            "advice": self.advice(),
        }

    def _row_dict(self, row: Wanted) -> dict[str, Any]:
        worst = next(iter(self.ranking(row)), None)
        return {
            **_figures_dict(None, row, self.totals[row]),
            "nbytes": self.nbytes(row),
            "overflowing_tensors": sum(1 for t in self.judged if t.figures[row].clipped),
            "worst": worst and {"name": worst.name, "file": worst.file} | _figures_dict(worst, row, worst.figures[row]),
        }

    def csv_rows(self) -> Iterator[list[str | int | float | None]]:
        """A header, then a row for each tensor and format; tensors without figures have one row with the rest empty."""
        tensor = ("file", "name", "dtype", "shape", "nbytes", *_COUNTS, "amax", "remark")
        numbers = ("format", "scale", *_FIGURES)
        yield [*tensor, *numbers]
        for t in self.tensors:
            cells = ["×".join(map(str, t.shape)) if key == "shape" else getattr(t, key) for key in tensor]
            for row, f in t.figures.items():
                figures = _figures_dict(t, row, f)
                yield [*cells, *(figures[key] for key in numbers)]
            if not t.figures:
                yield [*cells, *(None for _ in numbers)]


_COUNTS = ("size", "values", "zeros", "nan", "infinite", "subnormal")
_FIGURES = ("clipped", "clipped_share", "to_zero", "to_zero_share", "sqnr_db", "sqnr")


def _figures_dict(t: TensorReport | None, row: Wanted, f: Figures) -> dict[str, Any]:
    scale: Any = "tensor" if row.scaled else "none"
    if t is not None:
        scale = absmax_scale(t.amax, row.fmt) if row.scaled else 1.0
    numbers = {key: getattr(f, key) for key in _FIGURES}
    return {"format": row.fmt.name, "scaled": row.scaled, "scale": scale} | numbers | {
        "sqnr_db": None if f.sqnr_db == float("inf") else f.sqnr_db
    }  # fmt: skip


def _label(row: Wanted) -> str:
    return f"{row.fmt}, tensor scale" if row.scaled else str(row.fmt)


def _count(n: int) -> str:
    return f"{n / 1e6:.1f} M" if n >= 10**6 else str(n)


def _bytes(n: int) -> str:
    return next(
        (f"{n / unit:.1f} {name}" for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if n >= unit), f"{n} B"
    )


def _share(part: int, whole: int) -> str:
    """A share in per cent, or the number where it is a tiny share."""
    if part == 0:
        return "0"
    return f"{part} of {_count(whole)}" if part < 1e-4 * whole else f"{100 * part / whole:#.3g}".rstrip(".") + " %"


def _tensors(found: Sequence[TensorReport]) -> str:
    return f"{len(found)} tensor{'s' * (len(found) != 1)}"


def _verdict(t: TensorReport, row: Wanted) -> str:
    """The worst of a tensor, in a few words."""
    f = t.figures[row]
    if f.clipped:
        scale = absmax_scale(t.amax, row.fmt) if row.scaled else 1.0
        return f"{t.name}  {f.clipped} of {f.values} clipped, {t.amax / scale:.6g} > {row.fmt.max:.6g}"
    zero = f"{_share(f.to_zero, f.values)} to zero, " if f.to_zero else ""
    return f"{t.name}  {zero}{f.sqnr} dB"


def _little_mass(f: Figures) -> bool:
    return f.lost_mass <= 1e-3 * f.mass  # False where they are not known (NaN)


def rows(
    names: Iterable[AnyFormat | str] | str = "default", check: Iterable[AnyFormat | str] = ()
) -> tuple[Wanted, ...]:
    """The rows of figures that formats stand for; "default", or "all": every signed float format of at most 16 bits.

    A format is judged as it is and with a scale per tensor, except: integers and formats of fewer than 8 bits only with
    a scale (nobody stores weights in them without; one in `check` is judged both ways), formats with float32's
    exponents only without one (it changes nothing).
    Raises ValueError for an unknown format, an unsigned one (weights are signed) and one of more than 32 bits.
    """
    if names == "default":
        names = DEFAULT
    elif names == "all":
        names = [f for f in formats() if isinstance(f, Format) and f.signed and f.bits <= 16]
    elif isinstance(names, str):
        names = [names]
    checked = [get_format(fmt) for fmt in check]
    result: dict[Wanted, None] = {}
    for fmt in (*(get_format(name) for name in names), *checked):
        if not fmt.signed or fmt.bits > 32:
            why = "is unsigned, and weights are signed" if not fmt.signed else f"has {fmt.bits} bits"
            raise ValueError(f"inspect judges signed formats of at most 32 bits; {fmt} {why}")
        wide_range = isinstance(fmt, Format) and fmt.exponent_bits >= 8
        if wide_range or fmt in checked or not (isinstance(fmt, IntFormat) or fmt.bits < 8):
            result[Wanted(fmt, False)] = None
        if not wide_range:
            result[Wanted(fmt, True)] = None
    return tuple(result)


def inspect(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    formats: Iterable[AnyFormat | str] | str = "default",
    check: Iterable[AnyFormat | str] = (),
    fast: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """What the tensors of checkpoints hold, and what rounding them (nearest even, saturating) to formats would lose.

    `paths` are files, indexes of shards, or folders; `formats` as in `rows`; `check` names formats whose unscaled
    overflow makes `exit_status` 1. Infinities and NaN are counted and take no part in shares and SQNR; -0 is a zero;
    subnormals are kept. Counts are exact, and the SQNR up to a relative 1e-14 of its sums. Sources of at most 16 bits
    are read once, float32 and float64 twice; with `fast` these have no SQNR (see `histogram.measure`). A scaled row
    divides by amax / max, rounded to float32. `progress(done, total, name)` is called as bytes are read.

    Raises InspectionError (a ValueError) with one line per fault for files that are missing, broken, truncated,
    inconsistent, pickled or hold no tensor; ValueError for unknown formats.
    """
    if isinstance(paths, str | PathLike):
        paths = [paths]
    places = [Path(path) for path in paths]
    if isinstance(check, str):
        check = [check]
    checked = tuple(dict.fromkeys(get_format(fmt) for fmt in check))
    wanted = rows(formats, checked)
    found = [gather(place) for place in places]
    faults = [fault for f in found for fault in f.faults]
    if faults or not found:
        raise InspectionError(*(faults or ["no path given: name files or folders"]))
    tensors = [t for f in found for t in f.tensors.values()]
    reader = _Reader(tensors, wanted, progress)
    reports = tuple(reader.report(t, wanted, fast) for t in tensors)
    remarks = tuple(remark for f in found for remark in f.remarks)
    return Inspection(tuple(map(str, places)), reports, wanted, checked, remarks, fast)


def _printable(name: str) -> str:
    """A name from a file, its control characters escaped: a terminal must not obey a checkpoint."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class _Reader:
    """Reads tensors through one buffer and tells the progress."""

    def __init__(self, tensors: Sequence[Stored], wanted: Sequence[Wanted], progress: Progress | None) -> None:
        self.buffer = np.empty(BUFFER, np.uint8)
        self.progress = progress
        passes = 2 if wanted else 1
        self.total = sum(t.nbytes * (passes if t.fmt.bits > 16 else 1) for t in tensors if t.fmt is not None)
        self.done = 0

    def _codes(self, t: Stored) -> Iterator[Codes]:
        assert t.fmt is not None
        for block in t.blocks(self.buffer):
            yield block
            self.done += block.size * t.fmt.bits // 8
            if self.progress is not None:
                self.progress(min(self.done, self.total), self.total, t.name)

    def report(self, t: Stored, wanted: Sequence[Wanted], fast: bool) -> TensorReport:
        if t.fmt is None:
            return TensorReport(_printable(t.name), str(t.file), t.dtype, t.shape, t.nbytes, t.size, t.remark)
        judged = wanted if t.fmt.signed else ()  # E8M0 holds scales: nothing to be rounded
        h, figures = measure(lambda: self._codes(t), t.fmt, judged, fast=fast)
        counts = {key: getattr(h, key) for key in ("values", "zeros", "nan", "infinite", "subnormal", "amax")}
        by_row = dict(zip(judged, figures, strict=True))
        return TensorReport(
            _printable(t.name),
            str(t.file),
            t.dtype,
            t.shape,
            t.nbytes,
            t.size,
            t.remark,
            True,
            figures=by_row,
            **counts,
        )
