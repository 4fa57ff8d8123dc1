"""One mergeable histogram of bit patterns from which every format's figures follow.

A tensor of a format of at most 16 bits has at most 65 536 different values, so the number of times each code occurs
says everything about rounding it: how much of it another format clips or turns to zero, and the SQNR, exactly, unscaled
or scaled, for any number of formats at the price of one pass. For float32 and float64 the high 16 bits are counted. A
bin then holds many values, and `measure` looks at the values again: at all of them (figures as exact as for 16-bit
sources), or with `fast` only at those in bins that a threshold cuts through (counts as exact, no SQNR).

Source: the definitions of overflow and underflow are IEEE 754-2019 7.4 and 7.5 (thresholds: `precision.formats`);
SQNR = 10 log10(sum x^2 / sum (x - x')^2).

>>> import numpy as np, precision as P
>>> h = P.histogram.Histogram.of(np.float16([1, -2, 3000, 1e-5, 0, np.inf]))
>>> f = h.figures("float8_e4m3fn")
>>> f.values, f.clipped, f.to_zero, f"{f.sqnr_db:.3f} dB"
(4, 1, 1, '1.405 dB')
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precision.codec import CLASSES, classify, decode, from_dtype
from precision.formats import AnyFormat, Format, IntFormat, get_format
from precision.rounding import round_to

__all__ = ["SCALE_RULE", "Figures", "Histogram", "Wanted", "absmax_scale", "measure"]

SCALE_RULE = "absmax, float32 scale"
"""The rule of `absmax_scale`: one scale per tensor, the largest finite magnitude goes onto the format's max."""

_ZERO, _SUBNORMAL, _NORMAL, _INFINITY, _NAN = range(len(CLASSES))
_INDEX = 1 << 18  # codes per bincount: bincount wants intp, and a reused 2 MiB of them stays in cache
_BLOCK = 1 << 15  # values per step of an exact pass: 256 KiB of float64
_LITTLE = int(np.little_endian)

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


class _Scratch(threading.local):
    index: npt.NDArray[np.intp] | None = None


_scratch = _Scratch()


class Wanted(NamedTuple):
    """One row of figures: a target format, as it is or after dividing by the tensor's `absmax_scale`."""

    fmt: AnyFormat
    scaled: bool


@dataclass(frozen=True)
class Figures:
    """What rounding some values to a format did to them; `+` merges the figures of parts, exactly.

    `values` counts the finite, non-zero values: shares are of these. `clipped` of them lie beyond the overflow
    threshold (they round beyond max; infinities are not among them), `to_zero` of them round to zero (-0 is zero).
    `signal` is sum x^2 and `noise` is sum (x - x')^2 over the finite values, a clipped value entering as ±max; each is
    exact up to a relative 1e-14 for the additions (None: not computed). `mass` is sum |x|, and `lost_mass` the part of
    it that became zero, in float64.
    """

    values: int = 0
    clipped: int = 0
    to_zero: int = 0
    signal: Fraction | None = Fraction(0)
    noise: Fraction | None = Fraction(0)
    mass: float = 0.0
    lost_mass: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        def both(a: Fraction | None, b: Fraction | None) -> Fraction | None:
            return None if a is None or b is None else a + b

        return Figures(
            self.values + other.values,
            self.clipped + other.clipped,
            self.to_zero + other.to_zero,
            both(self.signal, other.signal),
            both(self.noise, other.noise),
            self.mass + other.mass,
            self.lost_mass + other.lost_mass,
        )

    @property
    def clipped_share(self) -> float:
        return self.clipped / self.values if self.values else 0.0

    @property
    def to_zero_share(self) -> float:
        return self.to_zero / self.values if self.values else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization-noise ratio in dB: inf where nothing changed, None where not computed or all zero."""
        if not self.signal or self.noise is None:
            return None
        if not self.noise:
            return math.inf
        ratio = self.signal / self.noise
        try:
            return 10 * math.log10(ratio)
        except (OverflowError, ValueError):  # beyond float64's range; log10 takes integers of any size
            return 10 * (math.log10(ratio.numerator) - math.log10(ratio.denominator))

    @property
    def sqnr(self) -> str:
        """The SQNR as people read it: dB with one decimal, "exact", "all zero", or "–" where not computed."""
        if not self.values:
            return "all zero"
        db = self.sqnr_db
        return "–" if db is None else "exact" if db == math.inf else f"{db:.1f}"


class Histogram:
    """How often each code of `fmt` occurs: 2^bits bins, or 65 536 bins of the high 16 bits of wider formats.

    Counts are integers, so `+` is exact, associative and commutative, and an empty histogram is its zero. NaN, ±Inf, ±0
    and subnormals have bins or counters of their own: any bits at all can be counted.
    """

    def __init__(self, fmt: AnyFormat | str) -> None:
        resolved = get_format(fmt)
        if not isinstance(resolved, Format) or (resolved.bits > 16 and resolved.name not in ("float32", "float64")):
            raise ValueError(
                f"a histogram counts codes of float formats of at most 16 bits, float32 or float64, not of {resolved}"
            )
        self.fmt = resolved
        self.counts: Ints = np.zeros(1 << min(resolved.bits, 16), np.int64)
        # What the bins of wide formats do not tell: zeros from subnormals, infinities from NaN, the largest magnitude.
        self._zeros = self._infinite = self._largest = 0
        self._found: npt.NDArray[np.intp] | None = None  # the occupied bins, until something is added

    @classmethod
    def of(cls, x: Any) -> Histogram:
        """The histogram of an array or CPU tensor of a floating-point dtype, any shape and strides.

        Raises TypeError for a dtype that is no format's.
        """
        codes, fmt = from_dtype(x)
        histogram = cls(fmt)
        flat = np.asarray(codes).reshape(-1)
        histogram.add(flat.view(f"u{flat.itemsize}"))
        return histogram

    @property
    def wide(self) -> bool:
        """Whether a bin holds many values (float32 and float64)."""
        return self.fmt.bits > 16

    def add(self, codes: Codes) -> None:
        """Count a 1-D array of codes, of an unsigned dtype as wide as the format (uint8 for fewer than 8 bits)."""
        self._found = None
        if _scratch.index is None:
            _scratch.index = np.empty(_INDEX, np.intp)
        for start in range(0, codes.size, _INDEX):
            part = codes[start : start + _INDEX]
            index = _scratch.index[: part.size]
            np.copyto(index, _high_halves(part) if self.wide else part, casting="unsafe")
            counts = np.bincount(index, minlength=self.counts.size)
            if counts.size != self.counts.size:
                raise ValueError(f"codes of {self.fmt} must be below {self.counts.size}, not {counts.size - 1}")
            self.counts += counts
            if self.wide:
                self._add_wide(part, counts)

    def _add_wide(self, codes: Codes, counts: Ints) -> None:
        kind = codes.dtype.type
        infinity = kind(self.fmt.infinity_code or 0)
        top = int(infinity) >> (self.fmt.bits - 16)
        magnitude = codes & kind(self.fmt.sign_mask - 1)
        if counts[0] or counts[0x8000]:
            self._zeros += magnitude.size - int(np.count_nonzero(magnitude))
        if counts[top:0x8000].any() or counts[0x8000 + top :].any():
            self._infinite += int(np.count_nonzero(magnitude == infinity))
            magnitude = magnitude[magnitude < infinity]
        if magnitude.size:
            self._largest = max(self._largest, int(magnitude.max()))

    def __add__(self, other: Histogram) -> Histogram:
        if not isinstance(other, Histogram):
            return NotImplemented
        if self.fmt != other.fmt:
            raise ValueError(f"histograms of {self.fmt} and {other.fmt} do not add: they count different codes")
        both = Histogram(self.fmt)
        both.counts = self.counts + other.counts
        both._zeros, both._infinite = self._zeros + other._zeros, self._infinite + other._infinite
        both._largest = max(self._largest, other._largest)
        return both

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        mine, theirs = (self._zeros, self._infinite, self._largest), (other._zeros, other._infinite, other._largest)
        return self.fmt == other.fmt and mine == theirs and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _where(self, *kinds: int) -> npt.NDArray[np.intp]:
        """The occupied bins of some kinds."""
        if self._found is None:
            self._found = np.flatnonzero(self.counts)
        of = _bins(self.fmt)[1][self._found]
        return self._found[np.logical_or.reduce([of == kind for kind in kinds])]

    def _count(self, *kinds: int) -> int:
        return int(self.counts[self._where(*kinds)].sum())

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def nan(self) -> int:
        return self._count(_INFINITY, _NAN) - self._infinite if self.wide else self._count(_NAN)

    @property
    def infinite(self) -> int:
        return self._infinite if self.wide else self._count(_INFINITY)

    @property
    def zeros(self) -> int:
        """+0 and -0."""
        return self._zeros if self.wide else self._count(_ZERO)

    @property
    def subnormal(self) -> int:
        """Values below the smallest normal number of the format they are stored in, zeros apart."""
        return self._count(_ZERO, _SUBNORMAL) - self._zeros if self.wide else self._count(_SUBNORMAL)

    @property
    def values(self) -> int:
        """Finite values that are not zero."""
        return self._count(_ZERO, _SUBNORMAL, _NORMAL) - self.zeros

    @property
    def amax(self) -> float:
        """The largest finite magnitude, exactly; 0 where there is none."""
        if self.wide:
            return float(np.array(self._largest, f"u{self.fmt.bits // 8}").view(f"f{self.fmt.bits // 8}"))
        values = self._occupied()[0]
        return float(np.abs(values).max()) if values.size else 0.0

    def _occupied(self) -> tuple[Floats, Ints]:
        """The finite, non-zero values that occur, and how often."""
        found = self._where(_SUBNORMAL, _NORMAL)
        return _bins(self.fmt)[0][found], self.counts[found]

    def figures(self, fmt: AnyFormat | str, *, scale: float | None = None) -> Figures:
        """What rounding these values (divided by `scale`) to `fmt`, to nearest even and saturating, does to them.

        x becomes scale * round_to(x / scale): the quotient is rounded once, as if exact. See `Figures` for what NaN,
        infinities, zeros and clipped values count as. Raises ValueError for float32 and float64 histograms, whose bins
        do not determine it (`measure` does).
        """
        if self.wide:
            raise ValueError(
                f"the bins of a {self.fmt} histogram hold many values each: use measure(), which looks again"
            )
        return self._figures([Wanted(get_format(fmt), False)], scale)[0]

    def _figures(self, wanted: Sequence[Wanted], scale: float | None = None) -> list[Figures]:
        values, counts = self._occupied()
        amax = self.amax
        scales = [absmax_scale(amax, w.fmt) if w.scaled else scale for w in wanted]
        return _judge(values, counts, wanted, scales)

    def cut(self, fmt: AnyFormat, scale: float | None) -> tuple[Figures, npt.NDArray[np.bool_]]:
        """The counts that whole bins of a wide format decide, and a mask of the occupied bins that a threshold cuts.

        Rounding is monotonic: a bin whose smallest and largest value have the same fate has it as a whole.
        """
        size = self.fmt.bits // 8
        counts = self.counts.copy()
        counts[0] += counts[0x8000] - self._zeros  # the two bins around zero become one, without the zeros
        counts[0x8000] = 0
        found = np.flatnonzero(counts)
        found = found[_bins(self.fmt)[1][found] < _INFINITY]
        low = found.astype(f"u{size}") << (self.fmt.bits - 16)
        high = low | ((1 << (self.fmt.bits - 16)) - 1)
        low[found == 0] = 1
        ends = [codes.view(f"f{size}").astype(np.float64) for codes in (low, high)]
        (over, over_high), (zero, zero_high) = zip(*(_fate(x, fmt, scale) for x in ends), strict=True)
        whole = (over == over_high) & (zero == zero_high)
        mask = np.zeros(counts.size, np.bool_)
        mask[found[~whole]] = True
        mask[0x8000] = mask[0]
        clipped, to_zero = (int(counts[found[whole & fate]].sum()) for fate in (over, zero))
        return Figures(self.values, clipped, to_zero, None, None, math.nan, math.nan), mask


@lru_cache(maxsize=64)
def _bins(fmt: Format) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """The value of every bin and its index in CLASSES; of wide formats, of the bin's first code."""
    codes = np.arange(1 << min(fmt.bits, 16), dtype=f"u{max(fmt.bits + 7 >> 3, 1)}")
    codes <<= max(fmt.bits - 16, 0)
    values = decode(codes, fmt, dtype="float64")
    kinds = np.asarray(classify(codes, fmt), np.uint8)
    if fmt.bits > 16:  # the bins of infinity hold NaN too: both classes are told apart by a counter
        kinds[kinds == _NAN] = _INFINITY
    return values, kinds


def _high_halves(codes: Codes) -> npt.NDArray[np.uint16]:
    """The high 16 bits of uint32 or uint64 codes, as a view."""
    per = codes.itemsize // 2
    return codes.view(np.uint16)[(per - 1) * _LITTLE :: per]


def absmax_scale(amax: float, fmt: AnyFormat) -> float:
    """The per-tensor scale that takes `amax` onto the format's max: amax / max, rounded to a normal float32.

    Never below 2^-126 (a subnormal scale has few bits, and `amax` would clip) nor above float32's max; 1 for amax = 0.
    """
    if amax == 0:
        return 1.0
    largest = np.finfo(np.float32).max
    return float(np.float32(min(max(amax / fmt.max, 2.0**-126), float(largest))))


def _quotient(x: Floats, scale: float | None) -> Floats:
    """x / scale, to be rounded as if exact.

    It is a float64, and yet no tie or threshold is missed or made where x has at most 24 bits, as in every source but
    float64: the scale has 24 bits and a tie at most 25, so an unequal x / scale is a relative 2^-49 or more from a tie.
    """
    return x if scale is None else x / scale


def _beyond(y: Values, fmt: AnyFormat) -> npt.NDArray[np.bool_]:
    """Which values round beyond the format's max (below its min)."""
    limit = float(fmt.overflow_threshold)
    if isinstance(fmt, IntFormat):
        return (y >= limit) | (y < fmt.min - 0.5)  # min is even: the tie at min - 1/2 goes there
    return np.abs(y) >= limit if fmt.overflow_tie == "overflows" else np.abs(y) > limit


def _fate(x: Floats, fmt: AnyFormat, scale: float | None) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which finite values are clipped, and which become (or are) zero."""
    y = _quotient(x, scale)
    return _beyond(y, fmt), round_to(y, fmt) == 0


def _energy(x: Floats, counts: Ints | None) -> Fraction:
    """Sum of squares (weighted): pairwise additions of positive terms, a relative error below 1e-14."""
    squares = x * x
    total = float((squares if counts is None else squares * counts).sum())
    if 1e-250 < total < 1e250:
        return Fraction(total)
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0:
        return Fraction(0)
    # float64 squares overflow and underflow: bring the largest value to [1/2, 1) first.
    exponent = math.frexp(largest)[1]
    squares = np.ldexp(np.ldexp(x, -exponent // 2), -exponent - -exponent // 2) ** 2
    return Fraction(float((squares if counts is None else squares * counts).sum())) * Fraction(4) ** exponent


@np.errstate(
    over="ignore", under="ignore"
)  # of float64 sources: sums of 10^300 become infinite, squares of 10^-300 zero
def _judge(
    narrow: Values, counts: Ints | None, wanted: Sequence[Wanted], scales: Sequence[float | None]
) -> list[Figures]:
    """The figures of every row, of finite values that occur `counts` times (once, if None)."""
    x = narrow.astype(np.float64, copy=False)

    def number(mask: npt.NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(mask)) if counts is None else int(counts[mask].sum())

    magnitude = np.abs(x)
    peak = magnitude.max(initial=0.0, keepdims=True)
    values = number(x != 0)
    zeros = (x.size if counts is None else int(counts.sum())) - values
    mass = magnitude if counts is None else magnitude * counts
    signal, total_mass = _energy(x, counts), float(mass.sum())
    result = []
    for (fmt, _), scale in zip(wanted, scales, strict=True):
        y = narrow if scale is None else _quotient(x, scale)  # float32 rounds faster than float64
        may_clip = _beyond(_quotient(peak, scale), fmt)[0] or _beyond(_quotient(-peak, scale), fmt)[0]
        clipped = number(_beyond(y, fmt)) if may_clip else 0
        rounded = round_to(y, fmt).astype(np.float64, copy=False)
        zero = rounded == 0
        to_zero = number(zero) - zeros
        lost = float(mass[zero].sum()) if to_zero else 0.0
        if scale is not None:
            rounded *= scale  # exact: at most 24 + 24 bits
        np.subtract(x, rounded, out=rounded)  # exact unless clipped: a multiple of 2^-24 of the spacing
        result.append(Figures(values, clipped, to_zero, signal, _energy(rounded, counts), total_mass, lost))
    return result


def _finite(codes: Codes) -> Iterator[Values]:
    """Codes of float32 or float64 as values in small blocks, NaN and infinities replaced by zero."""
    for start in range(0, codes.size, _BLOCK):
        x = codes[start : start + _BLOCK].view(f"f{codes.itemsize}")
        finite = np.isfinite(x)
        yield x if finite.all() else np.where(finite, x, x.dtype.type(0))


def measure(
    read: Callable[[], Iterable[Codes]], fmt: AnyFormat | str, wanted: Sequence[Wanted], *, fast: bool = False
) -> tuple[Histogram, list[Figures]]:
    """The histogram of a stream of codes of `fmt`, and the figures of every wanted row, in constant memory.

    `read()` gives the codes anew, in 1-D pieces of any length: it is called once, for float32 and float64 sources twice
    where rows are wanted (the scale must be known first). All counts are exact, and the SQNR up to a relative 1e-14 of
    its sums. With `fast` the SQNR and lost mass of float32 and float64 sources are left out (None, NaN), and only the
    values in the at most four bins per row that a threshold cuts are looked at again, if there are any.
    """
    histogram = Histogram(fmt)
    for codes in read():
        histogram.add(codes)
    if not histogram.wide:
        return histogram, histogram._figures(wanted)
    amax = histogram.amax
    scales = [absmax_scale(amax, w.fmt) if w.scaled else None for w in wanted]
    if fast:
        return histogram, _recount(histogram, read, wanted, scales)
    figures = [Figures() for _ in wanted]
    if wanted:
        for codes in read():
            for x in _finite(codes):
                figures = [a + b for a, b in zip(figures, _judge(x, None, wanted, scales), strict=True)]
    return histogram, figures


def _recount(
    histogram: Histogram, read: Callable[[], Iterable[Codes]], wanted: Sequence[Wanted], scales: Sequence[float | None]
) -> list[Figures]:
    """The counts of every row, from whole bins and, where bins are cut, from a second look at the values in these."""
    decided = [histogram.cut(w.fmt, scale) for w, scale in zip(wanted, scales, strict=True)]
    figures = [f for f, _ in decided]
    open_bins = np.zeros(histogram.counts.size, np.bool_)
    for _, mask in decided:
        open_bins |= mask
    if not open_bins.any():
        return figures
    for codes in read():
        for start in range(0, codes.size, _INDEX):
            part = codes[start : start + _INDEX]
            part = part[open_bins.take(_high_halves(part))]
            bins = _high_halves(part)
            x = part.view(f"f{part.itemsize}").astype(np.float64)
            for row, ((fmt, _), scale, (_, mask)) in enumerate(zip(wanted, scales, decided, strict=True)):
                mine = x[mask[bins] & (x != 0)]
                if mine.size:
                    over, zero = (int(np.count_nonzero(fate)) for fate in _fate(mine, fmt, scale))
                    figures[row] += Figures(0, over, zero)
    return figures
