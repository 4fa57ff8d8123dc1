"""Every law on casts, on the subject that --subject names: all critical inputs, and then what Hypothesis draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import properties
from properties import strategies

if TYPE_CHECKING:
    from properties.subjects import Codec


_latest: dict[Any, list[Any]] = {}


def _inputs(subject: Codec, fmt: Any) -> list[Any]:
    """The inputs of a format, kept until the next format's turn."""
    if fmt not in _latest:
        _latest.clear()
        _latest[fmt] = properties.inputs(subject, fmt)
    return _latest[fmt]


def test_law(law_case: properties.Case, subject: Codec) -> None:
    found = properties.verdict(law_case, subject, _inputs(subject, law_case.fmt))
    if found.status == "unsupported":
        pytest.skip(found.detail)
    if found.status != "holds":
        pytest.fail(found.detail, pytrace=False)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law_on_drawn_inputs(drawn_law: list[properties.Case], subject: Codec, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(drawn_law), label="case")
    x = data.draw(strategies.inputs(case.fmt), label="x")
    found = properties.verdict(case, subject, [x])
    if found.status not in ("holds", "unsupported"):
        pytest.fail(found.detail, pytrace=False)
