"""Draws docs/halfulp.svg: `python docs/figure.py` (needs matplotlib, the `plots` extra)."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "halfulp", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402

import attention as A  # noqa: E402
import precision as P  # noqa: E402

NAMES = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int4")
X = 2.3


def grids(axis: plt.Axes) -> None:
    """The values of five formats between 0 and 8, and where 2.3 goes in each."""
    axis.axvline(X, color="0.6", lw=1, ls=":")
    axis.text(X, len(NAMES) - 0.35, f"x = {X}", ha="center", color="0.4")
    for row, name in enumerate(NAMES):
        y = len(NAMES) - 1 - row
        values = P.values(name)
        values = values[(values >= 0) & (values <= 8)]
        axis.vlines(values, y - 0.22, y + 0.22, color="C0", lw=0.8)
        rounded = float(P.round_to(np.float32(X), name))
        axis.plot(rounded, y, "o", color="C3", ms=5)
        axis.text(8.25, y, f"{rounded:g}", color="C3", va="center")
    axis.set_yticks(range(len(NAMES)), reversed(NAMES))
    axis.set_xlim(-0.1, 9)
    axis.set_ylim(-0.5, len(NAMES) - 0.1)
    axis.set_title("every value between 0 and 8, and one number rounded", loc="left")


def bounds(axis: plt.Axes) -> None:
    """Error against the certain bound, per element of one attention, for three dtypes."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, 96, 64)
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    for color, dtype in zip(("C2", "C1", "C4"), (torch.bfloat16, torch.float16, torch.float32), strict=True):
        q, k, v = (t.to(dtype) for t in exact)
        mask = A.causal()
        out = A.flash_attention(q, k, v, mask=mask).out.double()
        truth = A.standard_attention(q.double(), k.double(), v.double(), mask=mask, precision=torch.float64).out
        bound = A.error_bound(q, k, v, mask=mask, tile_k=64).certain.out
        error = (out - truth).abs().reshape(-1)[::7]
        keep = error > 0
        axis.plot(bound.reshape(-1)[::7][keep], error[keep], ".", ms=2, color=color, alpha=0.5, rasterized=True)
        axis.plot([], [], "o", ms=4, color=color, label=str(dtype).removeprefix("torch."))
    low, high = 1e-9, 1e-1
    axis.plot([low, high], [low, high], color="0.3", lw=1)
    axis.text(2e-8, 6e-8, "error = bound: never above", rotation=38, color="0.3")
    axis.set(xscale="log", yscale="log", xlim=(1e-8, high), ylim=(1e-12, high), xlabel="certain bound", ylabel="error")
    axis.legend(frameon=False, loc="lower right")
    axis.set_title("flash attention: every element's error is proven", loc="left")


def main() -> None:
    """Draw both halves."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(1.15, 1), layout="constrained", dpi=150)
    grids(axes[0])
    bounds(axes[1])
    figure.savefig(Path(__file__).with_name("halfulp.svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
