"""Every law on casts, on the subject that --subject names: all critical inputs, and then what Hypothesis draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.suite._judging import require, require_drawn

if TYPE_CHECKING:
    import properties
    from properties.subjects import Codec


def test_law(law_case: properties.Case, subject: Codec) -> None:
    require(law_case, subject)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law_on_drawn_inputs(drawn_law: list[properties.Case], subject: Codec, data: st.DataObject) -> None:
    require_drawn(data.draw(st.sampled_from(drawn_law), label="case"), subject, data)
