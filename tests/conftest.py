"""Settings of this repository's own tests, and the one place that skips what the machine lacks."""

from __future__ import annotations

import os

import pytest

# Before anything imports torch: a fixed summation order, and no threads fighting over few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["properties.plugin", "pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """The first call of torch is slow, so no example has a deadline."""
    from hypothesis import settings

    settings.register_profile("default", parent=settings.get_profile("default"), deadline=None)
    if settings.get_current_profile_name() == "default":
        settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("cuda")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
