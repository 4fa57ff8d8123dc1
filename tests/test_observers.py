"""Observers against their definitions written out, and many batches against what each framework does with them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import precision as P
from precision.observers import AbsMax, Calibration, Entropy, History, MovingAverage, Mse, Observer, Percentile

Array = np.ndarray[Any, Any]
parametrize = pytest.mark.parametrize


def data(seed: int = 0, shape: tuple[int, ...] = (5, 300)) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    x.flat[::97] *= 9
    return x.astype(np.float32)


# --- One array --------------------------------------------------------------------------------------------------------


def test_absmax_is_what_is_measured_without_an_observer() -> None:
    x = data()
    for name in ("int8", "uint8", "mxfp4", "nvfp4", "float8_e4m3fn"):
        for symmetric in (True, False) if "int" in name and name != "mxint8" else (True,):
            s = P.scheme(name, symmetric=symmetric)
            watched = P.quantize(x, P.scheme(name, symmetric=symmetric, observer="absmax"))
            plain = P.quantize(x, s)
            assert np.array_equal(watched.codes, plain.codes)
            assert np.array_equal(watched.scales, plain.scales)


def percentile(row: list[float], p: float) -> float:
    """Linear between the two nearest of the sorted numbers."""
    ordered = sorted(row)
    at = (len(ordered) - 1) * p / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@parametrize("p", [51.0, 90.0, 99.0, 99.9, 100.0])
def test_percentile(p: float) -> None:
    x = data(1)
    q = P.quantize(x, P.scheme("int8", granularity="channel", observer=Percentile(p)))
    for row, scale in zip(x, q.scales, strict=True):
        assert float(scale) * 127 == pytest.approx(percentile([abs(float(v)) for v in row], p), rel=2e-7)
    low, high = Percentile(p).range(x, P.scheme("uint8"))
    for i, row in enumerate(x):
        assert (low[i], high[i]) == pytest.approx(
            tuple(percentile([float(v) for v in row], e) for e in (100 - p, p)), rel=1e-12
        )
    if p == 100:
        assert np.array_equal(q.scales, P.quantize(x, P.scheme("int8", granularity="channel")).scales)


def test_percentile_clips_what_is_beyond() -> None:
    x = np.float32([*[1.0] * 999, 1000.0])
    q = P.quantize(x, P.scheme("int8", observer=Percentile(99.0)))
    assert float(q.scales) == np.float32(1 / 127)
    assert q.dequantize()[-1] == 1.0
    assert q.report(x)["clipped"] == 1


@parametrize("bits", [8, 4, 2])
def test_mse_has_the_least_error_of_all_shares(bits: int) -> None:
    x = data(2)
    top = 2 ** (bits - 1) - 1
    shares = np.linspace(1.0, 0.25, 16)
    q = P.quantize(x, P.scheme(f"int{bits}", granularity="channel", observer=Mse(steps=16)))
    for row, scale in zip(x.astype(np.float64), q.scales.astype(np.float64), strict=True):
        errors = {}
        for share in shares:
            step = float(np.float32(np.float32(np.abs(row).max() * share) / np.float64(top)))
            y = np.clip(np.rint(row / step), -top - 1, top) * step
            errors[step] = ((y - row) ** 2).sum()
        y = np.clip(np.rint(row / scale), -top - 1, top) * scale
        assert ((y - row) ** 2).sum() == pytest.approx(min(errors.values()), rel=1e-9)
        assert min(abs(scale - step) for step in errors) < 1e-6 * scale
    assert P.quantize(x, P.scheme(f"int{bits}", granularity="channel", observer=Mse())).report(x)["sqnr_db"] >= P.quantize(x, P.scheme(f"int{bits}", granularity="channel")).report(x)["sqnr_db"]  # fmt: skip


@parametrize("name", ["uint4", "mxfp4", "nvfp4", "float8_e4m3fn"])
def test_mse_is_no_worse_than_the_full_range(name: str) -> None:
    x = data(3, (4, 64)) + (2 if name == "uint4" else 0)
    how: dict[str, Any] = {"symmetric": False} if name == "uint4" else {}
    with_it = P.quantize(x, P.scheme(name, observer=Mse(steps=8), **how)).report(x)
    assert with_it["sqnr_db"] >= P.quantize(x, P.scheme(name, **how)).report(x)["sqnr_db"] - 0.5


def divergence(row: Array, levels: int, bins: int) -> tuple[float, list[float]]:
    """The threshold of least divergence, with loops."""
    top = float(row.max())
    counts = [0] * bins
    for v in row:
        counts[min(int(v / top * bins), bins - 1)] += 1
    found = []
    for n in range(levels, bins + 1):
        p = [float(c) for c in counts[:n]]
        p[-1] += sum(counts[n:])
        q = [0.0] * n
        for level in range(levels):
            first, last = n * level // levels, n * (level + 1) // levels
            some = [i for i in range(first, last) if counts[i]]
            for i in some:
                q[i] = sum(counts[first:last]) / len(some)
        total = sum(q)
        found.append(
            sum(
                a / len(row) * math.log((a / len(row)) / max(b / max(total, 1.0), 1e-12))
                for a, b in zip(p, q, strict=True)
                if a
            )
        )
    best = min(range(len(found)), key=found.__getitem__)
    return (levels + best) / bins * top, found


def test_entropy_against_its_definition_in_loops() -> None:
    x = np.abs(data(4, (3, 4000)))
    low, high = Entropy(bins=64).range(x, P.scheme("int4"))
    for i in range(3):
        want, found = divergence(x[i].astype(np.float64), 8, 64)
        got = found[round(float(high[i]) / float(x[i].max()) * 64) - 8]
        assert got == pytest.approx(min(found), rel=1e-6)
        assert high[i] == pytest.approx(want, rel=1e-6)
    assert np.array_equal(low, -high)
    assert (high < x.max(1)).all()


def test_entropy_of_zeros_and_one_sided_ranges() -> None:
    assert P.quantize(np.zeros(50, np.float32), P.scheme("int8", observer="entropy")).scales == 1
    x = np.abs(data(5, (1, 3000)))
    low, high = Entropy(512).range(x, P.scheme("uint4", symmetric=False))
    assert low == 0
    assert 0 < high <= x.max()
    with pytest.raises(ValueError, match=r"bins is 128; int8 needs more than 128"):
        Entropy(128).range(x, P.scheme("int8"))


@parametrize("name", ["percentile", Mse(steps=12), Entropy(bins=140), "moving_average", "history"], ids=str)
def test_torch_and_numpy_observe_the_same(name: Any) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = (data(6, (4, 96)).astype(np.float64) * (1 + 2.0**-40)).astype(dtype)
        for s in (
            P.scheme("int8", observer=name),
            P.scheme("uint4", symmetric=False, granularity="channel", observer=name),
            P.scheme("mxfp4", observer=name),
        ):
            ours, theirs = P.quantize(x, s), P.quantize(torch.from_numpy(x), s)
            assert np.array_equal(ours.codes, theirs.codes.numpy())
            assert np.array_equal(ours.scales, theirs.scales.numpy())
            a, b = Calibration(s), Calibration(s)
            a.observe(x)
            b.observe(torch.from_numpy(x))
            assert np.array_equal(a.scheme().scale, b.scheme().scale)


# --- Many batches -----------------------------------------------------------------------------------------------------


def test_the_range_of_batches_is_that_of_all() -> None:
    batches = [data(i) * (i + 1) for i in range(4)]
    for s in (
        P.scheme("int8", observer="absmax"),
        P.scheme("uint8", symmetric=False),
        P.scheme("int4", granularity="channel", symmetric=False),
        P.scheme("float8_e4m3fn"),
    ):
        run = Calibration(s)
        for x in batches:
            run.observe(x)
        made, whole = (
            run.scheme(),
            P.quantize(
                np.concatenate(batches, axis=1),
                P.scheme(s.element.name, granularity=s.granularity, symmetric=s.symmetric),
            ),
        )
        assert np.array_equal(np.ravel(made.scale), np.ravel(whole.scales))
        if made.zero_point is not None:
            assert np.array_equal(np.ravel(made.zero_point), np.ravel(whole.zero_points))
        q = P.quantize(batches[0], made)
        assert np.array_equal(q.scales, whole.scales)
        assert made.observer is None


def test_moving_average_by_hand() -> None:
    run = Calibration(P.scheme("int8", observer=MovingAverage(0.5)))
    for top, want in ((2.0, 2.0), (4.0, 3.0), (0.0, 1.5), (1.5, 1.5)):
        run.observe(np.float32([top, -top]))
        assert run.known is not None
        assert run.known[1].tolist() == [want]
        assert float(run.scheme().scale) == np.float32(want / 127)


@parametrize("algorithm", ["max", "most_recent"])
@parametrize("margin", [0, 2, -1])
def test_history_is_delayed_scaling(algorithm: Any, margin: int) -> None:
    """Transformer Engine's rule: amax of the history, scale 2^margin * amax / max; without one, the scale before."""
    run = Calibration(P.scheme("float8_e4m3fn", observer=History(length=3, algorithm=algorithm, margin=margin)))
    seen: list[float] = []
    scale = None
    for top in (1.0, 8.0, 2.0, 0.0, 4.0, math.inf, math.nan, 3.0, 0.0, 0.0, 0.0, 0.0, 5.0):
        run.observe(np.float32([top, -0.5 * top, 0.0]) if math.isfinite(top) else np.float32([top, 0, 0]))
        seen = [*seen, top if math.isfinite(top) else 0.0][-3:]
        amax = max(seen) if algorithm == "max" else seen[-1]
        scale = amax if amax > 0 or scale is None else scale
        assert float(run.scheme().scale) == np.float32(scale * 2.0**margin / 448), top


def test_a_scale_from_history_does_not_know_its_batch() -> None:
    run = Calibration(P.scheme("float8_e4m3fn", observer="history"))
    run.observe(np.float32([1, -2]))
    q = P.quantize(np.float32([1, 100, -100]), run.scheme())
    assert q.dequantize().tolist() == [1, 2, -2]
    assert q.report(np.float32([1, 100, -100]))["clipped"] == 2


def test_calibration_of_blocks_and_recipes() -> None:
    x = data(7, (4, 64))
    for name in ("mxfp4", "mxfp8_e4m3"):
        run = Calibration(P.scheme(name))
        run.observe(x)
        made = run.scheme()
        assert np.array_equal(P.quantize(x, made).codes, P.quantize(x, name).codes)
        assert np.array_equal(P.quantize(x, made).scales, P.quantize(x, name).scales)


class Constant(Observer):
    def range(self, x: Any, scheme: P.Scheme) -> Any:
        return np.full(len(x), -3.0), np.full(len(x), 5.0)


def test_an_observer_of_ones_own() -> None:
    q = P.quantize(data(), P.scheme("int8", observer=Constant()))
    assert float(q.scales) == np.float32(5 / 127)
    q = P.quantize(data(), P.scheme("uint8", symmetric=False, observer=Constant()))
    assert (float(q.scales), int(q.zero_points)) == (np.float32(8 / 255), 96)
    assert P.quantize(data(), P.scheme("mxfp4", observer=Constant())).scales.tolist() == [[1.0] * 10] * 5
    with pytest.raises(NotImplementedError):
        Observer().range(data(), P.scheme("int8"))
    assert AbsMax().merged(None, (np.zeros(1), np.ones(1)))[1] == 1


@parametrize(
    ("call", "message"),
    [
        (lambda: Percentile(50), "percentile is 50; it must be above 50 and at most 100"),
        (lambda: Percentile(100.5), "percentile is 100.5; it must be above 50"),
        (lambda: History(length=0), "history of length 0 and algorithm 'max': the length must be at least 1, the algorithm 'max' or 'most_recent'"),
        (lambda: History(algorithm="mean"), "history of length 1024 and algorithm 'mean'"),  # type: ignore[arg-type]
        (lambda: Calibration(P.scheme("int8")).scheme(), "nothing was observed yet: call observe(x) first"),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_batches_have_scales_of_one_shape() -> None:
    run = Calibration(P.scheme("int8", granularity="channel"))
    run.observe(data())
    with pytest.raises(ValueError, match=re.escape("this batch has scales of shape (6,), the ones before of (5,)")):
        run.observe(data(0, (6, 3)))
