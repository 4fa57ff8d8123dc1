"""Every law on quantizers, on the subject that --subject names: matrices that matter, then drawn ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.suite._judging import require, require_drawn

if TYPE_CHECKING:
    import properties
    from properties.quantizers import Quantizer


def test_law(quantizer_case: properties.Case, quantizer: Quantizer) -> None:
    require(quantizer_case, quantizer)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law_on_drawn_matrices(
    drawn_quantizer: list[properties.Case], quantizer: Quantizer, data: st.DataObject
) -> None:
    require_drawn(data.draw(st.sampled_from(drawn_quantizer), label="case"), quantizer, data)
