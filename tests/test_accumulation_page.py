"""The page docs/accumulation.md is what the accumulators do, and what an H200 measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("accumulation_page", DOCS / "accumulation.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)

LINES = {
    line.split("|")[1].strip(): line
    for line in (DOCS / "accumulation.md").read_text("utf-8").splitlines()
    if "|" in line
}


@pytest.mark.parametrize("row", [row for row in page.ROWS if row.card[0]], ids=lambda row: row.title)
def test_the_first_column_is_what_the_script_computes(row):
    cells = LINES[row.title].split("|")
    found = page.measure(row, page.SHOWN[0])
    shown = [cells[i].split(",")[0].strip() for i in (2, 4, 5)]
    assert shown == [page.small(x) for x in found]


@pytest.mark.parametrize("row", [row for row in page.ROWS if row.card[0]], ids=lambda row: row.title)
def test_the_figures_are_those_of_the_card(row):
    """Both are samples of the same arithmetic on other random operands."""
    cells = LINES[row.title].split("|")
    for computed, card in ((cells[2], cells[3]), (cells[4], cells[6])):
        ours = [float(x) for x in computed.split(",")][1:]
        theirs = [float(x) for x in card.replace("*", "").split(",")]
        assert ours == pytest.approx(theirs, rel=0.1)


def test_the_rest_of_the_page_is_the_scripts():
    text = (DOCS / "accumulation.md").read_text("utf-8")
    assert page.losses() in text
    for part in page.PAGE.split("{")[0].splitlines()[:20]:
        assert part in text
