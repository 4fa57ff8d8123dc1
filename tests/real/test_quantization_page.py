"""The figures of docs/quantization.md are what its script measures of the model (`tox -e real`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.real
DOCS = Path(__file__).parents[2] / "docs"
spec = importlib.util.spec_from_file_location("quantization_figures", DOCS / "quantization.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
sys.modules["quantization_figures"] = page
spec.loader.exec_module(page)

TEXT = (DOCS / "quantization.md").read_text("utf-8")
FIGURES: dict[str, page.Figures] = {}


@pytest.fixture(scope="module")
def model():
    try:
        page.folder()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    return page.Model()


def figures(row, model):
    if row.title not in FIGURES:
        FIGURES[row.title] = page.measure(row, model)
    return FIGURES[row.title]


# Written down from transformers 5.24: BertTokenizer, BertModel in float64, mean over the tokens, unit length.
HARD = "Café naïveté: it's 3.14% of $5—déjà vu!"
HARD_TOKENS = [
    101, 7668, 15743, 2618, 1024, 2009, 1005, 1055, 1017, 1012, 2403, 1003, 1997, 1002, 1019, 1517, 2139, 3900, 24728,
    999, 102,
]  # fmt: skip
WORD = "antidisestablishmentarianism  xqzzkjw\tfoo_bar"
WORD_TOKENS = [
    101, 3424, 10521, 4355, 7875, 13602, 3672, 12199, 2964, 1060, 4160, 13213, 2243, 3501, 2860, 29379, 1035, 3347, 102
]  # fmt: skip
FIRST = [-0.0249759128, -0.0338669769, 0.0295823353, 0.0160832163, -0.1515892404, -0.0350362529]
FIRST_HARD = [-0.0096996950, -0.0180386925, 0.0422739668, 0.0444028093]
SIMILAR = [1.0, 0.3387635760, 0.3978366287, 0.2313528785, 0.3909415518, 0.3215119903, 0.4358337897, 0.2214131089]


def test_the_forward_pass_is_that_of_transformers(model):
    pieces = page.vocabulary()
    assert page.tokens(HARD, pieces) == HARD_TOKENS
    assert page.tokens(WORD, pieces) == WORD_TOKENS
    with torch.no_grad():  # of several lengths, so that some are padded
        found = page.embed([*page.SENTENCES[:8], HARD], model.wide)
        single = page.embed([*page.SENTENCES[:8], HARD], model.given, torch.float32)
    assert found[0, :6].tolist() == pytest.approx(FIRST, abs=1e-9)
    assert found[8, :4].tolist() == pytest.approx(FIRST_HARD, abs=1e-9)
    assert (found[0] @ found[:8].T).tolist() == pytest.approx(SIMILAR, abs=1e-9)
    torch.testing.assert_close(single.double(), found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("row", page.ROWS, ids=lambda row: row.title)
def test_a_line_of_the_table(row, model):
    """To the digit: the forward pass is in float64, so no machine's order of sums shows in what is printed."""
    assert page.line(row, figures(row, model)) in TEXT.splitlines()


def test_the_page_is_what_the_script_writes(model):
    assert page.page({row.title: figures(row, model) for row in page.ROWS}, model) == TEXT


def test_what_the_page_says_of_the_figures(model):
    f = {row.title: figures(row, model) for row in page.ROWS}
    loss = {title: found.mean for title, found in f.items()}
    sqnr = {title: found.sqnr for title, found in f.items()}
    assert loss["int8"] > loss["nvfp4"]
    assert sqnr["int8, rows"] - sqnr["int8"] > 20
    best = min(loss[t] for t in loss if t.startswith(("float8", "mxfp8")))
    assert 0.2 < loss["int8, rows"] / best < 0.3
    for title in ("float8_e4m3fn, rows", "float8_e4m3fn, tiles of 128 x 128", "mxfp8_e4m3, rceil"):
        assert loss[title] == pytest.approx(loss["float8_e4m3fn"], rel=0.1)
    assert loss["mxfp8_e4m3"] > 1.25 * loss["float8_e4m3fn"]
    assert loss["mxfp6_e2m3"] == pytest.approx(loss["mxfp8_e4m3"], rel=0.15)
    assert loss["mxfp6_e3m2"] == pytest.approx(loss["mxfp8_e5m2"], rel=0.01)
    rules = {rule: loss[f"mxfp4, {rule}"] for rule in page.P.scaling.POWER_RULES}
    assert rules["ceil"] > 1.5 * rules["rceil"] > 1.5 * rules["ocp_floor"] >= 1.5 * rules["even"]
    assert rules["nvidia"] == rules["rceil"]
    assert sqnr["nvfp4 with int4 elements"] > sqnr["nvfp4"]
    assert loss["nvfp4 with int4 elements"] > 1.2 * loss["nvfp4"]
    assert loss["uint4, blocks of 32"] == pytest.approx(loss["nvfp4"], rel=0.1)
    for title in ("nvfp4, te", "nvfp4, torchao"):
        assert loss[title] == pytest.approx(loss["nvfp4"], rel=0.001)
    assert loss["int4, blocks of 32"] / loss["int4, blocks of 32, mse"] > loss["nvfp4"] / loss["nvfp4, mse"]
    assert min(loss[t] for t in loss if "int2" in t) > 0.25


def test_ceil_never_uses_the_largest_element(model):
    q = page.P.quantize(model.given[page.LINEAR[0]], page.P.scheme("mxfp4", scale_rule="ceil"))
    assert int((q.codes & 7).max()) == 6  # the code of 4
    q = page.P.quantize(model.given[page.LINEAR[0]], page.P.scheme("mxfp4", scale_rule="rceil"))
    assert int((q.codes & 7).max()) == 7
