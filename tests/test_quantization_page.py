"""The page docs/quantization.md is what its script writes: all that can be told without the model (tests/real has it)."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("quantization_page", DOCS / "quantization.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules["quantization_page"] = page
spec.loader.exec_module(page)

TEXT = (DOCS / "quantization.md").read_text("utf-8")
TABLE = TEXT.split("| --- |")[-1].split("\n\n")[0].splitlines()[1:]
LAYER = 4 * [(384, 384)] + [(1536, 384), (384, 1536)]


def test_the_text_is_the_scripts():
    pattern = ".+?".join(re.escape(part) for part in re.split(r"\{[a-z0-9]+\}", page.PAGE))
    assert re.fullmatch(pattern, TEXT, re.DOTALL)


def test_every_scheme_has_its_line():
    assert [line.split("|")[1].strip() for line in TABLE] == [row.title for row in page.ROWS]
    assert f"[{len(page.ROWS)} schemes]" in TEXT
    assert f"Loss of {len(page.ROWS)} schemes" in TEXT
    assert len(set(page.SENTENCES)) == 80


def stored_bits(s: page.P.Scheme, rows: int, columns: int) -> int:
    """Counted by hand: the codes, scales and zero points of a matrix."""
    match s.granularity, s.block:
        case "tensor", None:
            scales = 1
        case "row", None:
            scales = rows
        case "block", (height, width):
            scales = math.ceil(rows / height) * math.ceil(columns / width)
        case "block", run:
            scales = rows * math.ceil(columns / run)
    each = s.scale_format.bits + (0 if s.symmetric else s.element.bits)
    return rows * columns * s.element.bits + scales * each + 32 * s.tensor_scale


@pytest.mark.parametrize(("row", "line"), [*zip(page.ROWS, TABLE, strict=True)], ids=[row.title for row in page.ROWS])
def test_bits_and_bytes(row, line):
    bits, megabytes = (cell.strip() for cell in line.split("|")[2:4])
    elements = sum(math.prod(shape) for shape in LAYER)
    if isinstance(row.scheme, str):
        total = elements * page.P.get_format(row.scheme).bits
    else:
        total = sum(stored_bits(row.scheme, *shape) for shape in LAYER)
        if row.scheme.block is not None:
            assert row.scheme.bits_per_element == pytest.approx(total / elements, abs=1e-3)
    assert (bits, megabytes) == (f"{total / elements:.3f}", f"{6 * total / 8e6:.2f}")


def test_word_pieces():
    pieces = {
        p: i for i, p in enumerate(["[UNK]", "[CLS]", "[SEP]", "em", "##bed", "##ding", "embed", "!", "'", "cafe"])
    }
    assert page.words("Café's\tend—now!") == ["cafe", "'", "s", "end", "—", "now", "!"]
    assert page.tokens("Embedding! CAFÉ xyz", pieces) == [1, 6, 5, 7, 9, 0, 2]


def test_tau_counts_pairs():
    generator = torch.Generator().manual_seed(0)
    a = torch.nn.functional.normalize(torch.randn(12, 3, generator=generator, dtype=torch.float64), dim=1)
    b = torch.nn.functional.normalize(torch.randn(12, 3, generator=generator, dtype=torch.float64), dim=1)
    assert page.tau(a, a) == 1
    found = []
    for i in range(12):
        x, y = ([float(s[i] @ s[j]) for j in range(12) if j != i] for s in (a, b))
        signs = [math.copysign(1, (x[j] - x[k]) * (y[j] - y[k])) for j in range(11) for k in range(j)]
        found.append(sum(signs) / len(signs))
    assert page.tau(a, b) == pytest.approx(sum(found) / 12)
    assert [set(row.tolist()) for row in page.nearest(a)] == [
        set(sorted((j for j in range(12) if j != i), key=lambda j: -float(a[i] @ a[j]))[:5]) for i in range(12)
    ]
