"""Every law on products of matrices, on the subject that --subject names: matrices that matter, then drawn ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.suite._judging import require, require_drawn

if TYPE_CHECKING:
    import properties
    from properties.operators import Dot


def test_law(dot_case: properties.Case, dot: Dot) -> None:
    require(dot_case, dot)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law_on_drawn_matrices(drawn_dot: list[properties.Case], dot: Dot, data: st.DataObject) -> None:
    require_drawn(data.draw(st.sampled_from(drawn_dot), label="case"), dot, data)
