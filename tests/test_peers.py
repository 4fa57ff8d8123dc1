"""The page docs/peers.md is what the installed libraries do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import precision as P
from properties import peers


def test_the_page_in_docs_is_what_the_libraries_do() -> None:
    """Byte for byte where the versions are those that it names; elsewhere it can be made."""
    made = peers.document()
    page = (Path(__file__).parents[1] / "docs" / "peers.md").read_text("utf-8")
    used = ", ".join(f"{name} {version}" for name, version in peers.versions().items())
    said = f"Made by running {used}, on the CPU"
    assert said in made
    if said in page:
        assert made == page


def test_a_library_that_is_missing_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    present = peers.versions()
    monkeypatch.setattr(peers, "versions", lambda: {k: v for k, v in present.items() if k != "gfloat"})
    assert "gfloat" not in " ".join(name for name, _ in peers.casts())
    assert "| gfloat" not in peers._edge_table("float4_e2m1fn")


def test_casts_give_codes_or_nothing() -> None:
    x = np.float32([1.5, -2])
    for who, cast in peers.casts():
        for fmt in P.formats():
            if isinstance(fmt, P.Format) and fmt.bits <= 16 and (codes := cast(x, fmt.name)) is not None:
                assert codes[0] == P.encode(x, fmt)[0], (who, fmt)


def test_texts() -> None:
    assert peers.show([0x7E, 0xFF, 0x80, 1], "float8_e4m3fn") == ["448", "NaN 0xff", "-0", "2^-9"]
    assert peers.show([-1, 2**64 - 1, 8], "float4_e2m1fn") == ["NaN, no code", "wrapped (18446744073709551615)", "-0"]
    assert peers.show([0x7C00, 0x7E00, 0x8400], "float16") == ["inf", "NaN", "-2^-14"]


def test_the_policy_of_torch_follows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, policy in (
        ("2.6.0", "torch_2_11"),
        ("2.11.0", "torch_2_11"),
        ("2.12.0", "torch"),
        ("2.13.1", "torch"),
    ):
        monkeypatch.setattr(peers, "versions", lambda version=version: {"torch": version})
        assert peers.followed("torch") == policy
    assert (peers.followed("ml_dtypes"), peers.followed("gfloat")) == ("ml_dtypes", "ieee")


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from properties import peers; print(peers._double_rounding())"],
        capture_output=True, text=True, check=False, cwd=Path(P.__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| 1.0625 + 2^-40 | float8_e4m3fn | 1.125 |" in done.stdout
