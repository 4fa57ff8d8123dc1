"""Observers: which range of values a scale is made for.

An observer looks at the elements of each block, or of many batches (`Calibration`), and answers with a range. The scale
that maps it to the element format is the scheme's business, so every observer serves every scheme.

Sources: percentiles, MSE and entropy (KL) calibration as in Wu et al., arXiv 2004.09602, and Migacz, "8-bit Inference
with TensorRT", GTC 2017; delayed scaling from a history of magnitudes: NVIDIA Transformer Engine, DelayedScaling.

>>> import numpy as np, precision as P
>>> x = np.float32([*[1.0] * 999, 1000.0])
>>> q = P.quantize(x, P.scheme("int8", observer=P.observers.Percentile(99.0)))
>>> round(float(q.scales), 6), q.report()["clipped"]
(0.007874, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from precision.formats import FORMATS, IntFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.schemes import Scheme

    Floats = NDArray[np.floating[Any]]

_FLOAT32: Any = FORMATS["float32"]

__all__ = ["OBSERVERS", "AbsMax", "Calibration", "Entropy", "History", "MovingAverage", "Mse", "Observer", "Percentile"]


class Observer:
    """What answers with a range for each row of a matrix of elements."""

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        """The least and largest value to be represented of each row of x, (blocks, elements)."""
        raise NotImplementedError

    def merged(self, before: tuple[Floats, Floats] | None, now: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """The range of several batches: what is known, and that of one more."""
        if before is None:
            return now
        return np.minimum(before[0], now[0]), np.maximum(before[1], now[1])


@dataclass(frozen=True)
class AbsMax(Observer):
    """The least and the largest element."""

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        return x.min(1, initial=0.0), x.max(1, initial=0.0)


@dataclass(frozen=True)
class Percentile(Observer):
    """Symmetric schemes: the given percentile of the magnitudes, linear between neighbours; else both ends."""

    percentile: float = 99.99

    def __post_init__(self) -> None:
        if not 50 < self.percentile <= 100:
            raise ValueError(f"percentile is {self.percentile}; it must be above 50 and at most 100")

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        wide = x.astype(np.float64)
        if scheme.symmetric:
            high = np.percentile(np.abs(wide), self.percentile, axis=1)
            return -high, high
        low, high = np.percentile(wide, [100 - self.percentile, self.percentile], axis=1)
        return low, high


@dataclass(frozen=True)
class Mse(Observer):
    """The share of the full range, in steps, whose quantization has the least squared error."""

    steps: int = 64
    least: float = 0.25

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        from precision.quantization import quantize

        low, high = AbsMax().range(x, scheme)
        rows = replace(scheme, granularity="channel", block=None, tensor_scale=False, recipe="exact", observer=None)
        if scheme.tensor_scale:
            rows = replace(rows, scale_format=_FLOAT32)
        best, found = np.full(len(x), np.inf), np.ones(len(x))
        wide = x.astype(np.float64)
        for share in np.linspace(1.0, self.least, self.steps):
            y = quantize(x, replace(rows, observer=_Known(low * share, high * share)), axis=0).dequantize("float64")
            error = ((y - wide) ** 2).sum(1)
            better = error < best
            best, found = np.where(better, error, best), np.where(better, share, found)
        return low * found, high * found


@dataclass(frozen=True, eq=False)
class _Known(Observer):
    """A range that was found already."""

    low: Any
    high: Any

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        return self.low, self.high


@dataclass(frozen=True)
class Entropy(Observer):
    """The magnitude whose clipped and quantized histogram diverges least (Kullback-Leibler) from the original."""

    bins: int = 2048

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        fmt = scheme.element
        levels = 1 << (fmt.bits - 1) if isinstance(fmt, IntFormat) else (fmt.number_of_values + 1) // 2
        if not levels < self.bins:
            raise ValueError(f"bins is {self.bins}; {fmt.name} needs more than {levels}")
        high = np.array([_least_divergence(row, levels, self.bins) for row in np.abs(x).astype(np.float64)])
        low = -high if scheme.symmetric else np.maximum(x.min(1, initial=0.0), -high)
        return low, high if scheme.symmetric else np.minimum(x.max(1, initial=0.0), high)


def _least_divergence(row: NDArray[np.float64], levels: int, bins: int) -> float:
    """The threshold for one row of magnitudes."""
    most = float(row.max(initial=0.0))
    if most == 0:
        return 0.0
    counts, edges = np.histogram(row, bins, (0.0, most))
    best, found = np.inf, bins
    for n in range(levels, bins + 1):
        reference = counts[:n].astype(np.float64)
        merged = np.linspace(0, n, levels + 1).astype(np.int64)  # which bins one level stands for
        sums = np.add.reduceat(reference, merged[:-1])
        filled = np.add.reduceat((reference > 0).astype(np.float64), merged[:-1])
        spread = np.repeat(np.divide(sums, filled, out=np.zeros_like(sums), where=filled > 0), np.diff(merged))
        spread = np.where(reference > 0, spread, 0.0)
        reference[-1] += counts[n:].sum()
        p, q = reference / reference.sum(), spread / max(spread.sum(), 1.0)
        some = p > 0
        divergence = float(np.sum(p[some] * np.log(p[some] / np.maximum(q[some], 1e-12))))
        if divergence < best:
            best, found = divergence, n
    return float(edges[found])


@dataclass(frozen=True)
class MovingAverage(Observer):
    """Of several batches: range += constant * (that of the batch - range), as torch.ao MovingAverageMinMaxObserver."""

    constant: float = 0.01

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        return AbsMax().range(x, scheme)

    def merged(self, before: tuple[Floats, Floats] | None, now: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        if before is None:
            return now
        low, high = (old + self.constant * (new - old) for old, new in zip(before, now, strict=True))
        return low, high


@dataclass(frozen=True)
class History(Observer):
    """Delayed scaling: the largest magnitude of the last `length` batches, or the latest, times 2^margin.

    A batch without a finite magnitude above 0 leaves the scale as it was. A scale does not know the batch
    it is used for: what is larger saturates. Source: Transformer Engine,
    DelayedScaling (amax_history_len, amax_compute_algo, margin).
    """

    length: int = 1024
    algorithm: Literal["max", "most_recent"] = "max"
    margin: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.algorithm not in ("max", "most_recent"):
            raise ValueError(
                f"history of length {self.length} and algorithm {self.algorithm!r}: the length must be at least 1, the "
                "algorithm 'max' or 'most_recent'"
            )

    def range(self, x: Floats, scheme: Scheme) -> tuple[Floats, Floats]:
        high = np.abs(x).max(1, initial=0.0) * 2.0**self.margin
        return -high, high


OBSERVERS: dict[str, Observer] = {
    "absmax": AbsMax(),
    "percentile": Percentile(),
    "mse": Mse(),
    "entropy": Entropy(),
    "moving_average": MovingAverage(),
    "history": History(),
}
"""Observers by name, with their defaults."""


@dataclass
class Calibration:
    """The ranges of many batches, and the scheme with the scale that follows.

    >>> import numpy as np, precision as P
    >>> run = P.observers.Calibration(P.scheme("int8", observer="moving_average"))
    >>> for batch in (np.float32([1, -2]), np.float32([4, 0])):
    ...     run.observe(batch)
    >>> round(run.scheme().scale.item() * 127, 5)
    1.98
    """

    base: Scheme
    axis: int | None = None
    known: tuple[Any, Any] | None = None
    history: list[Any] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    def observe(self, x: Any) -> None:
        """Take one more batch into account; of the shape, along kept axes, of the others."""
        from precision import _blockwise as bw
        from precision._measure import matrix
        from precision.quantization import prepared

        x, s, blocks = prepared(x, self.base, self.axis, "quantize")
        view = bw.padded(x, blocks)
        view = bw.widened(view).cpu().numpy() if bw.is_tensor(view) else bw.widened(view)
        observer = s.observer or AbsMax()
        now = observer.range(matrix(view, blocks), s)
        if self.history and self.shape != blocks.scales:
            raise ValueError(f"this batch has scales of shape {blocks.scales}, the ones before of {self.shape}")
        self.shape = blocks.scales
        self.history.append(now)
        if isinstance(observer, History):
            self.history = self.history[-observer.length :]
            self.known = self._delayed(observer)
        else:
            self.history = self.history[-1:]
            self.known = observer.merged(self.known, now)

    def _delayed(self, observer: History) -> tuple[Any, Any]:
        """The range by the history; where it has none, the one before."""
        seen = np.array([high for _, high in self.history])
        seen = np.where(np.isfinite(seen), seen, 0.0)
        most = seen[-1] if observer.algorithm == "most_recent" else seen.max(0)
        old = np.zeros_like(most) if self.known is None else self.known[1]
        high = np.where(most > 0, most, old)
        return -high, high

    def scheme(self) -> Scheme:
        """The scheme with the scale, and zero point, of what was observed. Raises ValueError before the first batch."""
        from precision.quantization import quantize

        if self.known is None:
            raise ValueError("nothing was observed yet: call observe(x) first")
        low, high = (np.asarray(end, np.float64).reshape(-1) for end in self.known)
        rows = replace(self.base, granularity="channel", block=None, observer=_Known(low, high), recipe="exact")
        q = quantize(np.zeros((len(low), 1), np.float64), rows, axis=0)
        zero = None if q.zero_points is None else q.zero_points.reshape(self.shape)
        return replace(self.base, observer=None, scale=q.scales.reshape(self.shape), zero_point=zero)
