"""What the benchmarks share: the same data for all, and a table of ratios to the peers measured in the same run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.get_closest_marker("cuda") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("cuda"):
                    item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def values() -> Any:
    """float32 with everything in it: N(0,1) over 24 binades, 2 % tiny, 1 % huge, NaN, infinities, zeros."""

    def make(n: int) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(0)
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-12, 13, n)).astype(np.float32)
        kind = rng.random(n)
        x[kind < 0.02] *= np.float32(1e-8)
        x[kind > 0.99] *= np.float32(2.0**40)
        for low, special in ((0.5, np.nan), (0.6, np.inf), (0.7, 0.0)):
            x[(kind > low) & (kind < low + 0.001)] = special
        return x

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Per group: elements a second, and the ratio of ours to each peer (and to a copy) of the same run."""
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for bench in getattr(session, "benchmarks", []):
        if bench.has_error or not bench.stats.data:
            continue
        elements = bench.extra_info.get("elements", 1)
        seconds = bench.extra_info.get("cuda_seconds", bench.stats.min)
        groups[bench.group or bench.name][bench.extra_info.get("who", bench.name)] = elements / seconds
    if not groups:
        return
    terminalreporter.section("ratios to peers, fastest round of each, in this run")
    for group, speeds in groups.items():
        terminalreporter.line(
            f"{group}: " + " · ".join(f"{who} {speed / 1e6:.0f} M/s" for who, speed in speeds.items())
        )
        peers = {who: speed for who, speed in speeds.items() if not who.startswith("ours")}
        for ours in (who for who in speeds if who.startswith("ours") and peers):
            ratios = " · ".join(f"{speeds[ours] / speed:.2f} × {who}" for who, speed in peers.items())
            terminalreporter.line(f"    {ours}: {ratios}")
