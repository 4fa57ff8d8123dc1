"""What the tests of the suite have in common: one law on all inputs that matter, or on one that Hypothesis drew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import properties
from properties.kinds import kind_of

if TYPE_CHECKING:
    from hypothesis import strategies as st

_latest: dict[Any, list[Any]] = {}


def require(case: properties.Case, subject: Any) -> None:
    """Fail the test with the counterexample, and without a traceback, unless the law holds in the case."""
    of = kind_of(case.law.id).name, case.fmt
    if of not in _latest:  # kept until the next format's turn
        _latest.clear()
        _latest[of] = properties.inputs(subject, case)
    found = properties.verdict(case, subject, _latest[of])
    if found.status == "unsupported":
        pytest.skip(found.detail)
    if found.status != "holds":
        pytest.fail(found.detail, pytrace=False)


def require_drawn(case: properties.Case, subject: Any, data: st.DataObject) -> None:
    """The same on inputs that are drawn; what is not offered was skipped already."""
    x = data.draw(kind_of(case.law.id).drawn(case), label="x")
    found = properties.verdict(case, subject, [x])
    if found.status not in ("holds", "unsupported"):
        pytest.fail(found.detail, pytrace=False)
