"""Writes docs/accumulation.md and draws docs/accumulation.svg: `python docs/accumulation.py` (matplotlib, `plots`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import precision as P

DEPTHS = (64, 256, 1024, 4096, 16384)
SHOWN = DEPTHS[2:]  # in the table
OUTPUTS = 32  # rows and columns; half as many where each term is an operation on an array
BLOCKED = P.Accumulator("bfloat16", order="blocked", block=128)
PAIRWISE = P.Accumulator("bfloat16", order="pairwise")
KAHAN = P.Accumulator("bfloat16", order="kahan")


class Row(NamedTuple):
    """An accumulator, the format of its operands, and what an H200 returned at K = 4096 and 16384.

    As on the card: relative error of normal data, relative error of uniform data.
    """

    title: str
    accumulator: P.Accumulator | str
    operands: str
    card: tuple[str, str] = ("", "")


ROWS = (
    Row("FP8, fast accumulation", "hopper.cublas.float8_e4m3fn.fast_accum", "float8_e4m3fn",
        ("1.3e-3, 3.1e-3", "**6.6e-2, 2.5e-1**")),
    Row("FP8, promoted every 128", "hopper.cublas.float8_e4m3fn", "float8_e4m3fn",
        ("1.3e-4, 1.3e-4", "5.0e-4, 5.0e-4")),
    Row("float16, float16 sums", "hopper.cublas.float16.fp16_accumulation", "float16",
        ("2.4e-3, 4.7e-3", "1.7e-3, 3.7e-3")),
    Row("float16, float32 sums", "hopper.cublas.float16", "float16", ("4.9e-6, 1.9e-5", "2.4e-5, 9.6e-5")),
    Row("bfloat16, float32 sums", "hopper.cublas.bfloat16", "bfloat16", ("4.4e-6, 1.9e-5", "1.1e-5, 7.2e-5")),
    Row("float32 as TF32", "hopper.cublas.tfloat32", "float32", ("2.9e-4, 3.0e-4", "2.8e-5, 1.1e-4")),
    Row("bfloat16, one by one", "bfloat16", "bfloat16"),
    Row("bfloat16, blocks of 128", BLOCKED, "bfloat16"),
    Row("bfloat16, pairwise", PAIRWISE, "bfloat16"),
    Row("bfloat16, compensated", KAHAN, "bfloat16"),
    Row("float32, one by one", "float32", "bfloat16"),
)  # fmt: skip


class Errors(NamedTuple):
    """Relative to the exact product in the Frobenius norm; the mean error over the mean magnitude of the product."""

    normal: float
    uniform: float
    bias: float


def measure(row: Row, k: int) -> Errors:
    """The errors of one accumulator on normal and on uniform [0, 1) operands."""
    rng = np.random.default_rng(k)
    shape = (OUTPUTS if row.card[0] else OUTPUTS // 2, k)
    drawn = [np.stack([rng.standard_normal(shape), rng.random(shape)]) for _ in range(2)]
    a, b = (P.round_to(x, row.operands).astype(np.float32) for x in drawn)
    b = b.swapaxes(1, 2)
    exact = np.float64(a) @ np.float64(b)
    error = P.matmul(a, b, accumulator=row.accumulator) - exact
    norm = np.sqrt((error**2).sum((1, 2)) / (exact**2).sum((1, 2)))
    return Errors(float(norm[0]), float(norm[1]), float(error[1].mean() / np.abs(exact[1]).mean()))


def small(x: float) -> str:
    """1.3e-04 as 1.3e-4."""
    return f"{x:.1e}".replace("e-0", "e-") if x else "0"


def line(row: Row, errors: dict[int, Errors]) -> str:
    """One line of the table."""
    cells = [", ".join(small(errors[k].normal) for k in SHOWN), row.card[0]]
    cells += [", ".join(small(errors[k].uniform) for k in SHOWN), ", ".join(f"{small(errors[k].bias)}" for k in SHOWN)]
    return f"| {' | '.join([row.title, *cells, row.card[1]])} |"


def losses() -> str:
    """What of the average product is lost, by the unit that products are cut to."""
    x, y = P.round_to(np.random.default_rng(0).random((2, 1 << 20), np.float32), "float8_e4m3fn").astype(np.float64)
    product = x * y
    lines = []
    for exponent in (5, 7, 8, 9, 10, 11, 12):
        unit = 2.0 ** (exponent - 13)
        share = (product % unit).mean() / product.mean()
        lines.append(f"| {2**exponent} to {2 ** (exponent + 1)} | 2^{exponent - 13} | {100 * share:.2g} % |")
    return "\n".join(lines)


PAGE = """# What accumulation costs

<!-- Written by docs/accumulation.py: change that. -->

A product of two 8-bit numbers is exact in every unit that multiplies them. What a matrix product loses it loses in the
*sums*: to the format they are kept in, to the order they are taken in, and to whether low bits are rounded or cut. All
figures below are computed by `P.matmul` on a CPU, bit for bit as the accumulator named would; `python
docs/accumulation.py` writes this page and draws the plot.

![Relative error and bias of eleven accumulators against K](accumulation.svg)

## A sum that stops

A sum of n digits takes no notice of a term below half its last digit. The sum of ones in bfloat16 (8 digits) stops at
256, where the next number is 258 and 257 is a tie that goes to the even 256. The order decides:

```python
>>> import numpy as np, precision as P
>>> ones = np.ones(5120, np.float32)
>>> float(P.sum(ones, accumulator="bfloat16"))
256.0
>>> float(P.sum(ones, accumulator=P.Accumulator("bfloat16", order="pairwise")))
5120.0
>>> float(P.sum(ones, accumulator=P.Accumulator("bfloat16", order="blocked", block=128)))
5120.0

```

One large term swamps many small ones; added last, it does not:

```python
>>> swamped = np.float32([2.0**24] + [1.0] * 1000)
>>> float(P.sum(swamped, accumulator="float32") - 2.0**24), float(P.sum(swamped[::-1], accumulator="float32") - 2.0**24)
(0.0, 1000.0)
>>> x = 1 / np.arange(1, 4097, dtype=np.float32) ** 2        # the sum is 1.6447
>>> float(P.sum(x, accumulator="float16")), float(P.sum(x[::-1], accumulator="float16"))
(1.626953125, 1.64453125)

```

## Eight bits: a quarter of the result

Hopper's FP8 instruction lines 32 products and the accumulator up at the largest exponent among them, E, and cuts each
to a multiple of 2^(E-13), [toward zero](tensor_cores.md). While the sum grows, so does that unit, and nothing but the
sum decides it. These are products of uniform numbers from [0, 1), whose mean is 1/4:

| accumulator | cut to multiples of | lost of the average product |
| --- | --- | --- |
{losses}

Every cut goes the same way, so nothing averages out: the loss is a *bias*. At K = 16384 the exact sum is about 4096,
and a quarter of it is gone. With `use_fast_accum=False`, cuBLAS starts from zero every 128 elements and adds what it
has to a float32, rounded to nearest: within 128 elements the sum reaches 32, products lose as little as the first line
says, and longer sums lose no more. Promotion keeps the unit small; that the float32 is wide would not help without it.

```python
>>> rng = np.random.default_rng(0)
>>> x, y = (P.round_to(rng.random((1, 16384), np.float32), "float8_e4m3fn") for _ in range(2))
>>> exact = (x.astype(np.float64) * y).sum()
>>> for name in ("hopper.cublas.float8_e4m3fn.fast_accum", "hopper.cublas.float8_e4m3fn"):
...     print(f"{{100 * (float(P.matmul(x, y.T, accumulator=name)[0, 0]) / exact - 1):+.3f}} %")
{fast} %
{promoted} %

```

Normal data, of both signs, hides this: its sums grow as the root of K only, and cuts of positive and negative products
cancel in part. Activations after a ReLU, attention weights, squares and norms are not normal data.

## Sixteen bits: a small bias of the same kind

The float32 accumulator of a tensor core is no float32 addition, either. It is *cut* to 24 bits after every group of
products, so on positive data its error is a bias that grows as K: compare the lines "float32 sums" below with "float32,
one by one", which is rounded to nearest. On normal data that is a hundredth of what rounding the operands to bfloat16
has cost before. On positive data the roundings of the operands average out over K, and the cuts do not:

```python
>>> u, v = (rng.random((16, 16384)) for _ in range(2))
>>> p, q = (P.round_to(x, "bfloat16").astype(np.float32) for x in (u, v))
>>> size = np.linalg.norm(u @ v.T)
>>> operands = np.linalg.norm(p.astype(np.float64) @ q.T - u @ v.T) / size
>>> sums = np.linalg.norm(P.matmul(p, q.T, accumulator="hopper.cublas.bfloat16") - p.astype(np.float64) @ q.T) / size
>>> f"{{operands:.1e}} from rounding the operands, {{sums:.1e}} from the sums"
'{sixteen}'

```

With `allow_fp16_accumulation`, sums are rounded to nearest, to 11 digits every 16 elements. Such errors average out
while the 16 products together are large beside the last digit; at K = 16384 they no longer are, and a bias begins.

## The table

Relative error (Frobenius norm) at K = {depths}; operands normal or uniform in [0, 1), rounded to the format
named first (in the last line bfloat16) before anything is compared. The bias is the mean error over the mean result.
{outputs} x {outputs} outputs, {half} x {half} in the last five lines. "H200": the same, measured on one NVIDIA H200
with torch 2.11 (CUDA 13.0) on 2026-11-29, M = N = 2048, other random operands, K = 4096 and 16384.

| sums | normal | H200 | uniform | bias, uniform | H200, uniform |
| --- | --- | --- | --- | --- | --- |
{table}

Of float32 as TF32, normal, nearly all is the rounding of the operands to 11 digits. The last five lines are sums of
products that are rounded to the accumulator's format, too; no unit of a GPU is claimed to compute them.

## How far off it can be

`P.bounds` bounds the error of each element: certainly, and likely, which takes into account that cuts are biased. A
result outside the first was not computed by that accumulator:

```python
>>> for name in ("hopper.cublas.float8_e4m3fn.fast_accum", "hopper.cublas.float8_e4m3fn"):
...     error = abs(float(P.matmul(x, y.T, accumulator=name)[0, 0]) - exact)
...     bound = P.bounds.matmul_bound(x, y.T, name)
...     print(f"{{error:.1f}}: likely below {{bound.likely.item():.1f}}, certainly below {{bound.certain.item():.1f}}")
{bounds}

```

What the textbook says, gamma(K, u) times the sum of magnitudes, needs K u < 1: for an accumulator of 14 bits, which is
cut, so that u = 2^-13, it says nothing from K = 8192 on. `likely_gamma`, which grows as the root of K, is for roundings
without bias: the tensor cores' float32 sums above, of uniform data and cut, err by more than it says for float32.

```python
>>> u = P.bounds.unit_roundoff("float32")
>>> gammas = P.bounds.gamma(16384, 2.0**-13), P.bounds.gamma(16384, u), P.bounds.likely_gamma(16384, u)
>>> [f"{{bound:.2g}}" for bound in gammas]
['inf', '0.00098', '{likely}']

```
"""


def sixteen(rng: np.random.Generator) -> str:
    """What rounding operands to bfloat16 costs, and what summing them does."""
    u, v = (rng.random((16, 16384)) for _ in range(2))
    p, q = (P.round_to(x, "bfloat16").astype(np.float32) for x in (u, v))
    size, rounded = np.linalg.norm(u @ v.T), p.astype(np.float64) @ q.T
    operands = np.linalg.norm(rounded - u @ v.T) / size
    sums = np.linalg.norm(P.matmul(p, q.T, accumulator="hopper.cublas.bfloat16") - rounded) / size
    return f"{operands:.1e} from rounding the operands, {sums:.1e} from the sums"


def page(errors: dict[Row, dict[int, Errors]]) -> str:
    """docs/accumulation.md."""
    rng = np.random.default_rng(0)
    x, y = (P.round_to(rng.random((1, 16384), np.float32), "float8_e4m3fn") for _ in range(2))
    exact = (x.astype(np.float64) * y).sum()
    relative, bounds = [], []
    for row in ROWS[:2]:
        error = float(P.matmul(x, y.T, accumulator=row.accumulator)[0, 0]) - exact
        bound = P.bounds.matmul_bound(x, y.T, row.accumulator)
        relative.append(f"{100 * error / exact:+.3f}")
        likely, certain = bound.likely.item(), bound.certain.item()
        bounds.append(f"{abs(error):.1f}: likely below {likely:.1f}, certainly below {certain:.1f}")
    return PAGE.format(
        losses=losses(), fast=relative[0], promoted=relative[1], sixteen=sixteen(rng),
        likely=f"{P.bounds.likely_gamma(16384, 2.0**-24):.2g}", bounds="\n".join(bounds),
        depths=", ".join(map(str, SHOWN)), outputs=OUTPUTS, half=OUTPUTS // 2,
        table="\n".join(line(row, errors[row]) for row in ROWS),
    )  # fmt: skip


def draw(errors: dict[Row, dict[int, Errors]], path: Path) -> None:
    """docs/accumulation.svg."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "halfulp", "font.size": 9})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained", sharey=True, dpi=150)
    for number, row in enumerate(ROWS):
        core = isinstance(row.accumulator, str) and "." in row.accumulator
        style = {"color": f"C{number % 10}" if number < 10 else "k", "ls": "-" if core else "--", "lw": 1.4, "ms": 3}
        for axis, values in zip(
            axes, zip(*((e.normal, abs(e.bias)) for e in errors[row].values()), strict=True), strict=True
        ):
            axis.plot(DEPTHS, values, marker=".", label=row.title, **style)
        for axis, card in zip(axes, row.card, strict=True):
            if card and not (axis is axes[1] and row.title == "float16, float16 sums"):  # no bias, by the card
                points = [float(text) for text in card.replace("*", "").split(",")]
                axis.plot(DEPTHS[-2:], points, "o", mfc="none", color=style["color"], ms=7)
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="K", xticks=DEPTHS, xticklabels=DEPTHS, ylim=(1e-9, 2))
        axis.minorticks_off()
        axis.grid(axis="y", color="0.92")
    axes[0].set_title("normal operands: relative error", loc="left")
    axes[1].set_title("uniform operands: relative bias, mostly negative", loc="left")
    axes[0].plot([], [], "o", mfc="none", color="0.4", ms=7, label="measured on an H200")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


def main() -> None:
    """Write the page, draw the plot."""
    errors = {}
    for row in ROWS:
        print(row.title, file=sys.stderr)
        errors[row] = {k: measure(row, k) for k in DEPTHS}
    here = Path(__file__)
    draw(errors, here.with_suffix(".svg"))
    here.with_suffix(".md").write_text(page(errors), encoding="utf-8")


if __name__ == "__main__":
    main()
