"""Every law on arithmetic fails on a planted bug, every bug dies, ours passes all, and peers fail only where we say."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import precision as P
import properties
from properties.laws import laws
from properties.operators import OurArithmetic
from properties.subjects import load

Array = np.ndarray[Any, Any]
Apply = Callable[[OurArithmetic, str, tuple[Array, ...], Any, str], Array]

# IEEE formats in few values: 64 codes, so that all pairs are 4096.
NARROW = P.Format(name="e3m2", exponent_bits=3, mantissa_bits=2)
UNEVEN = P.Format(name="e2m3", exponent_bits=2, mantissa_bits=3)
WIDER = P.Format(name="e4m2", exponent_bits=4, mantissa_bits=2)


class Planted(OurArithmetic):
    """Ours with another `apply`."""

    def __init__(self, policy: Any, fmt: Any, wrong: Apply | None = None) -> None:
        super().__init__(policy)
        self.formats = (fmt,)
        self.name = "planted"
        self.right = OurArithmetic(policy)
        self.wrong = wrong

    def apply(self, operation: str, operands: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
        with np.errstate(all="ignore"):
            if self.wrong is None:
                return super().apply(operation, operands, fmt, rounding)
            return self.wrong(self.right, operation, operands, fmt, rounding)


def mode(name: str, *only: str) -> Apply:
    """Always the mode `name`, in these operations."""

    def apply(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
        return right.apply(operation, x, fmt, name if operation in (only or (operation,)) else rounding)

    return apply


def through(between: str) -> Apply:
    """Rounded to another format first."""

    def apply(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
        wide = tuple(part.astype(np.float64) for part in x)
        detour = right.apply(operation, wide, P.get_format(between), "nearest_even")
        return P.round_to(detour, fmt, rounding=rounding, policy=right.policy(fmt))

    return apply


def instead(where: Callable[..., Any], value: Any, *only: str) -> Apply:
    """Right, but `value` (or what it makes of right results and operands) where `where(*operands)`; in some operations."""

    def apply(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
        y = right.apply(operation, x, fmt, rounding)
        if operation not in only:
            return y
        return np.where(where(*x), value(y, *x) if callable(value) else value, y)

    return apply


def everywhere(value: Callable[[Array], Array]) -> Apply:
    """Another result, from the right one, in all operations."""
    return lambda right, operation, x, fmt, rounding: value(right.apply(operation, x, fmt, rounding))


def mul_then_add(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    if operation != "fma":
        return right.apply(operation, x, fmt, rounding)
    return right.apply("add", (right.apply("mul", x[:2], fmt, rounding), x[2]), fmt, rounding)


def from_plus_zero(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    """fma adds to a register that started from +0, which no -0 survives."""
    return right.apply(operation, x, fmt, rounding) + (0.0 if operation == "fma" else -0.0)


def reciprocal(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    if operation != "div":
        return right.apply(operation, x, fmt, rounding)
    return right.apply("mul", (x[0], right.apply("div", (np.ones_like(x[1]), x[1]), fmt, rounding)), fmt, rounding)


def without_guard_digit(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    """A subtraction that shifts the smaller operand's last digits out first, as early supercomputers did."""
    if operation not in ("add", "sub"):
        return right.apply(operation, x, fmt, rounding)
    step = np.ldexp(1.0, np.frexp(np.where(np.isfinite(x[0]), x[0], 0))[1] - fmt.mantissa_bits - 1)
    step = np.maximum(step, fmt.smallest_subnormal)
    b = np.where(np.abs(x[1]) < np.abs(x[0]), np.trunc(x[1] / step) * step, x[1]).astype(x[1].dtype)
    return right.apply(operation, (x[0], b), fmt, rounding)


def larger_first(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    """Exact only when the larger term comes first."""
    y = right.apply(operation, x, fmt, rounding)
    if operation != "add":
        return y
    return np.where(np.abs(x[0]) < np.abs(x[1]), right.apply(operation, x, fmt, "toward_zero"), y)


def by_magnitude(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    """Toward positive rounds the magnitude up, whatever the sign."""
    up, down = (right.apply(operation, x, fmt, name) for name in ("toward_positive", "toward_negative"))
    return np.where(np.signbit(up), down, up) if rounding == "toward_positive" else up


def ties_up(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
    """A tie goes toward positive infinity."""
    y, away = (right.apply(operation, x, fmt, name) for name in ("nearest_even", "nearest_away"))
    tie = (y != away) & np.isfinite(away)
    return np.where(tie | np.isinf(away), np.maximum(y, away), y)


@dataclass(frozen=True)
class Bug:
    apply: Apply
    kills: str  # the laws that must fail, by name
    fmt: Any = NARROW
    rounding: str = "nearest_even"
    policy: Any = "ieee"


BUGS = {
    "ties away": Bug(mode("nearest_away"), "ties_go_to_even agrees_with_exact_rationals"),
    "truncation": Bug(mode("toward_zero"), "error_is_at_most_half_an_ulp overflow_starts_at_the_threshold"),
    "double rounding through float16": Bug(through("float16"), "results_are_rounded_once", WIDER),
    "double rounding through float32": Bug(through("float32"), "results_are_rounded_once", "bfloat16"),
    "double rounding through float64": Bug(through("float64"), "results_are_rounded_once", "float32"),
    "subnormal results flushed": Bug(
        everywhere(lambda y: np.where(np.abs(y) < NARROW.smallest_normal, y * 0, y)),
        "subnormal_results_are_kept different_numbers_have_a_difference near_numbers_subtract_exactly "
        "exact_results_are_returned",
    ),
    "fma as mul, then add": Bug(mul_then_add, "fma_adds_to_the_exact_product"),
    "fma loses the -0 of a product": Bug(from_plus_zero, "fma_with_a_zero_is_the_product"),
    "fma truncates": Bug(mode("toward_zero", "fma"), "fma_with_a_one_is_the_sum"),
    "zero sums take the sign of the first term": Bug(
        instead(lambda a, b: a + b == 0, lambda y, a, b: np.copysign(0.0, a), "add"),
        "a_number_minus_itself_is_plus_zero",
    ),
    "toward negative zero sums are +0": Bug(
        instead(lambda a, b: a - b == 0, 0.0, "sub"), "a_number_minus_itself_is_plus_zero", rounding="toward_negative"
    ),
    "-0 + -0 is +0": Bug(instead(lambda a, b: a + b == 0, 0.0, "add"), "adding_nothing_changes_nothing"),
    "zero products are +0": Bug(
        instead(lambda a, b: a * b == 0, 0.0, "mul"),
        "products_and_quotients_have_the_product_of_the_signs one_changes_nothing",
    ),
    "division by the reciprocal": Bug(reciprocal, "error_is_at_most_half_an_ulp one_changes_nothing", UNEVEN),
    "no guard digit": Bug(without_guard_digit, "near_numbers_subtract_exactly"),
    "the smaller term first": Bug(larger_first, "sums_and_products_commute"),
    "one entry of the table is wrong": Bug(
        instead(lambda a, b: (a == 1.5) & (b == 1.25), 1.5, "mul"),
        "monotone_in_each_operand error_is_at_most_half_an_ulp",
        UNEVEN,
    ),
    "the last digit of a quotient by a large divisor": Bug(
        instead(lambda a, b: b == 4, lambda y, a, b: y + (y == 1.25) * 0.25, "div"), "powers_of_two_scale_exactly"
    ),
    "roots by a last step too many": Bug(
        instead(lambda x: x == 2.25, 1.625, "sqrt"), "the_root_of_a_square_is_the_number", UNEVEN
    ),
    "nearest away goes to even": Bug(mode("nearest_even"), "ties_go_away_from_zero", rounding="nearest_away"),
    "directed modes look at the magnitude": Bug(
        by_magnitude,
        "directed_results_stay_on_their_side opposite_operands_give_opposite_results",
        rounding="toward_positive",
    ),
    "ties toward +infinity": Bug(ties_up, "opposite_operands_give_opposite_results ties_go_to_even"),
    "to odd moves what is exact": Bug(
        instead(lambda a, b: a + b == 1, 1.25, "add"), "exact_results_are_returned", rounding="to_odd"
    ),
    "to odd truncates": Bug(mode("toward_zero"), "the_inexact_becomes_odd", rounding="to_odd"),
    "a NaN loses to a number": Bug(
        instead(lambda a, b: np.isnan(a), lambda y, a, b: b, "add"), "nan_operands_give_nan"
    ),
    "zero times infinity is zero": Bug(
        instead(lambda a, b: np.isnan(a * b) & ~np.isnan(a) & ~np.isnan(b), 0.0, "mul"), "invalid_operations_give_nan"
    ),
    "the root of a negative number is that of its magnitude": Bug(
        instead(lambda x: x < 0, lambda y, x: P.sqrt(-x, NARROW), "sqrt"), "invalid_operations_give_nan"
    ),
    "infinities are taken for max": Bug(
        everywhere(lambda y: np.clip(y, -NARROW.max, NARROW.max)),
        "infinities_are_the_limits_of_numbers division_by_zero_gives_infinity overflow_starts_at_the_threshold",
    ),
    "x / 0 is NaN": Bug(instead(lambda a, b: b == 0, np.nan, "div"), "division_by_zero_gives_infinity"),
    "the tie at the threshold saturates": Bug(
        instead(lambda a, b: a + b == 15, 14.0, "add"), "overflow_starts_at_the_threshold"
    ),
    "saturates where NaN is the rule": Bug(
        everywhere(lambda y: np.where(np.isnan(y), 448, y)),
        "overflow_starts_at_the_threshold division_by_zero_gives_infinity",
        "float8_e4m3fn",
    ),
}


def broken(bug: Bug, only: str = "*") -> dict[str, properties.Verdict]:
    """The laws that a planted bug breaks, by name."""
    planted = Planted(bug.policy, bug.fmt, bug.apply)
    judged = properties.judge(planted, formats=[bug.fmt], roundings=[bug.rounding], only=only)
    return {v.law.partition(".")[2]: v for v in judged if not v.ok}


@functools.cache
def found_in_ours(policy: Any, fmt: Any, rounding: str) -> list[str]:
    judged = properties.judge(Planted(policy, fmt), formats=[fmt], roundings=[rounding])
    return [v.detail for v in judged if not v.ok]


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_dies_by_the_law_that_speaks_of_it(name: str) -> None:
    bug = BUGS[name]
    found = broken(bug)
    assert set(bug.kills.split()) <= set(found)
    assert {verdict.status for verdict in found.values()} == {"broken"}
    assert found_in_ours(bug.policy, bug.fmt, bug.rounding) == []


def test_no_law_is_without_a_planted_bug_that_it_alone_is_named_for() -> None:
    named = {law for bug in BUGS.values() for law in bug.kills.split()}
    assert named == set(laws("arithmetic"))


def found_by(name: str, law: str) -> str:
    return broken(BUGS[name], f"arithmetic.{law}")[law].detail


def test_a_counterexample_says_operands_result_and_how_many() -> None:
    assert found_by("ties away", "ties_go_to_even") == (
        "arithmetic.ties_go_to_even[e3m2]: An exact result half way between two values gives the even one.\n"
        "  at        add(0.125 = 0_000_10, 1.0 = 0_011_00)\n"
        "  got       1.25 = 0_011_01\n"
        "  expected  1.0 = 0_011_00\n"
        "  result    exactly 1.125, between 1.0 = 0_011_00 and 1.25 = 0_011_01\n"
        "  wrong     338 of 613"
    )


def test_double_rounding_is_named() -> None:
    for between in ("float16", "float32", "float64"):
        found = found_by(f"double rounding through {between}", "results_are_rounded_once")
        assert re.search(rf"this is what rounding to .*{between}.* first gives", found)
    assert "this is what a product rounded before the sum gives" in found_by(
        "fma as mul, then add", "fma_adds_to_the_exact_product"
    )


def test_a_missing_operation_is_unsupported_and_an_exception_is_an_error() -> None:
    class Adder(OurArithmetic):
        def operations(self, fmt: Any) -> tuple[str, ...]:
            return ("add", "mul")

        def apply(self, operation: str, operands: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
            if operation == "mul":
                raise RuntimeError("no")
            return super().apply(operation, operands, fmt, rounding)

    status = {v.law: v.status for v in properties.judge(Adder(), formats=["float6_e2m3fn"], roundings=["toward_zero"])}
    assert status["arithmetic.the_root_of_a_square_is_the_number"] == "unsupported"
    assert status["arithmetic.near_numbers_subtract_exactly"] == "holds"
    assert status["arithmetic.exact_results_are_returned"] == "error"


def test_a_wrong_shape_is_broken() -> None:
    mine = Planted("ieee", NARROW, lambda right, operation, x, fmt, rounding: x[0][:1])
    with pytest.raises(properties.Broken, match="expected  shape"):
        properties.check("arithmetic.exact_results_are_returned", mine, max_examples=0)


def test_check_finds_what_only_drawing_finds() -> None:
    """A vectorised kernel whose path for short arrays truncates."""

    def short(right: OurArithmetic, operation: str, x: tuple[Array, ...], fmt: Any, rounding: str) -> Array:
        return right.apply(operation, x, fmt, "toward_zero" if x[0].size < 8 else rounding)

    mine = Planted("ieee", "float6_e3m2fn", short)
    how = {"formats": ["float6_e3m2fn"], "roundings": ["nearest_even"]}
    properties.check("arithmetic.error_is_at_most_half_an_ulp", mine, max_examples=0, **how)
    with pytest.raises(properties.Broken, match="error_is_at_most_half_an_ulp"):
        properties.check("arithmetic.error_is_at_most_half_an_ulp", mine, **how)


@pytest.mark.parametrize(
    "fmt",
    [
        *("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e8m0fnu", "float6_e3m2fn", "float4_e2m1fn"),
    ],
)
def test_ours_obeys_every_law(fmt: Any) -> None:
    """To nearest; `halfulp verify` judges every mode of all formats."""
    judged = properties.judge(OurArithmetic(), formats=[fmt], roundings=["nearest_even"])
    assert [v.detail for v in judged if v.status != "holds"] == []


POLICIES = {
    "saturate": "saturate",
    "ml_dtypes": "ml_dtypes",
    "flush_results": P.Policy(subnormals="flush_results", negative="clamp", missing_nan="opposite_zero"),
    "raise": P.Policy(infinity="infinity", nan="raise", missing_nan="raise", negative="magnitude", zero="nan"),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("fmt", [NARROW, "float4_e2m1fn"], ids=str)
def test_ours_obeys_every_law_under_every_policy_and_mode(policy: Any, fmt: Any) -> None:
    subject = Planted(policy, fmt)
    assert [v.detail for v in properties.judge(subject, formats=[fmt]) if v.status != "holds"] == []


@pytest.mark.parametrize("name", ["ml_dtypes", "torch"])
def test_peers_break_the_laws_only_where_we_say(name: str) -> None:
    pytest.importorskip(name)
    subject = load(name, "arithmetic")
    findings: dict[str, str] = subject.findings
    wanted = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn")
    some = [name for name in subject.formats if name in wanted]
    found = [v for v in properties.judge(subject, formats=some) if not v.ok]
    assert [v.detail for v in found if not any(properties.matches(p, v.id) for p in findings)] == []
    for pattern in findings:
        assert any(properties.matches(pattern, v.id) for v in found), f"{pattern} is a finding no longer"


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"no law on arithmetic is called '.*': did you mean arithmetic\.ties_go_to_even"
    ):
        properties.check("arithmetic.ties_go_to_eve", "ours")
    with pytest.raises(
        ValueError, match="unknown subject 'gfloat': known are ours, ml_dtypes, torch, torch_cuda; give"
    ):
        load("gfloat", "arithmetic")
    with pytest.raises(ValueError, match="unknown policy 'iee': use one of"):
        load("ours/iee", "arithmetic")
    with pytest.raises(ValueError, match=r"ml_dtypes does not offer float16; it offers bfloat16, "):
        properties.check("arithmetic.one_changes_nothing", "ml_dtypes", formats=["float16"])
