"""Every law on arithmetic, on the subject that --subject names: all pairs up to 8 bits, and then what is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.suite._judging import require, require_drawn

if TYPE_CHECKING:
    import properties
    from properties.operators import Arithmetic


def test_law(arithmetic_case: properties.Case, arithmetic: Arithmetic) -> None:
    require(arithmetic_case, arithmetic)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law_on_drawn_operands(
    drawn_arithmetic: list[properties.Case], arithmetic: Arithmetic, data: st.DataObject
) -> None:
    require_drawn(data.draw(st.sampled_from(drawn_arithmetic), label="case"), arithmetic, data)
