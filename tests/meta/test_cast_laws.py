"""Every law on casts fails on a planted bug, every bug dies, ours passes all, and peers fail only where we say."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import precision as P
import properties
from properties.laws import laws
from properties.subjects import Ours, load

Array = np.ndarray[Any, Any]
Cast = Callable[[Array, Any, str], Array]


class Planted(Ours):
    """Ours with another `round`, which its `encode` follows unless that is replaced, too."""

    def __init__(self, policy: Any, fmt: Any, **methods: Callable[..., Array]) -> None:
        super().__init__(policy)
        self.formats = (fmt,)
        right = Ours(policy)
        self.name = "planted"
        if "round" in methods:
            wrong = methods["round"]
            self.round = lambda x, fmt, rounding: wrong(right, x, fmt, rounding)
            if "encode" not in methods:
                self.encode = lambda x, fmt, rounding: right.encode(self.round(x, fmt, rounding), fmt, rounding)
        for name in ("encode", "decode", "round_stochastic"):
            if name in methods:
                setattr(self, name, lambda *args, wrong=methods[name]: wrong(right, *args))


def bits_of(x: Array) -> Array:
    return np.asarray(x, np.float32).view(np.uint32)


def quiet(f: Callable[..., Array]) -> Callable[..., Array]:
    """Planted bugs may overflow as they like."""

    def g(*args: Any) -> Array:
        with np.errstate(all="ignore"):
            return f(*args)

    return g


def through(between: str) -> Callable[..., Array]:
    @quiet
    def cast(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
        detour = P.round_to(np.asarray(x, np.float32 if between != "float32" else x.dtype), between, policy="ieee")
        return right.round(detour.astype(x.dtype), fmt, rounding)

    return cast


def instead(where: Callable[[Array], Any], value: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    """A right cast, but `value(x, right result)` where `where(x)`."""

    @quiet
    def cast(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
        y = right.round(x, fmt, rounding)
        return np.where(where(x), value(x, y), y)

    return cast


def mode(name: str, only: str | None = None) -> Callable[..., Array]:
    """Always the mode `name` (for negative numbers only, say, if `only` is "negative")."""

    def cast(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
        y, wrong = right.round(x, fmt, rounding), right.round(x, fmt, name)
        return wrong if only is None else np.where(np.signbit(x), wrong, y)

    return cast


@quiet
def carry(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
    """Round `NARROW` by adding to the pattern, NaN or not: a payload in the dropped bits becomes infinity."""
    u = bits_of(x).astype(np.uint64)
    up = (u + 0xFFFFF + ((u >> 21) & 1)) & 0xFFE00000
    return up.astype(np.uint32).view(np.float32)


@quiet
def half_added(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
    """Below the smallest value: add a half in float32, then floor. The float32 just below the threshold rounds up."""
    y = right.round(x, fmt, rounding)
    scaled = np.abs(x.astype(np.float32)) / np.float32(fmt.smallest_subnormal)
    floored = np.floor(scaled + np.float32(0.5)) * np.float32(fmt.smallest_subnormal)
    return np.where((scaled < 0.5) & (x != 0), np.copysign(floored, x), y)


@quiet
def ties_up(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
    """Ties toward +infinity: floor(x + half a step)."""
    y, away = right.round(x, fmt, rounding), right.round(x, fmt, "nearest_away")
    truncated = right.round(x, fmt, "toward_zero")
    tie = (np.abs(x - truncated) == np.abs(away - x)) & np.isfinite(x) & (np.abs(x) < fmt.max)
    return np.where(tie, np.where(np.signbit(x), truncated, away), y)


@quiet
def drift(right: Ours, x: Array, fmt: Any, rounding: str) -> Array:
    """Adds a little before rounding: what was a value moves on."""
    y = right.round(x, fmt, rounding)
    return np.where((y >= 1) & (y < 2), right.round(x * x.dtype.type(1.07), fmt, rounding), y)


# The exponent range of float32 and bfloat16, in few values.
NARROW = P.Format(name="e8m2", exponent_bits=8, mantissa_bits=2)


@dataclass(frozen=True)
class Bug:
    fmt: Any
    planted: dict[str, Callable[..., Array]]
    kills: str  # the laws that must fail, by name
    policy: Any = "ieee"
    rounding: str = "nearest_even"


# The first block is what issues in other libraries looked like; the second is there for the remaining laws.
BUGS = {
    "ties away": Bug("float8_e4m3fn", {"round": mode("nearest_away")}, "ties_go_to_even agrees_with_exact_rationals"),
    "truncation": Bug(
        "bfloat16", {"round": mode("toward_zero")}, "result_is_the_nearest overflow_starts_at_the_threshold"
    ),
    "double rounding through float16": Bug("float8_e4m3fn", {"round": through("float16")}, "float32_is_rounded_once"),
    "double rounding through bfloat16": Bug("float8_e5m2", {"round": through("bfloat16")}, "float32_is_rounded_once"),
    "double rounding through float32": Bug("float8_e4m3fn", {"round": through("float32")}, "float64_is_rounded_once"),
    "integers through float32": Bug(
        "bfloat16",
        {"round": lambda right, x, *how: right.round(x.astype(np.float32) if x.dtype == np.int64 else x, *how)},
        "integers_are_rounded_once",
    ),
    "subnormals flushed": Bug(
        "float8_e5m2",
        {"round": instead(lambda x: np.abs(x) < 2.0**-14, lambda x, y: y * 0)},
        "subnormals_are_kept values_are_fixed_points tiny_numbers_vanish_only_below_the_threshold",
    ),
    "464 overflows (>= instead of >)": Bug(
        "float8_e4m3fn",
        {"round": instead(lambda x: np.abs(x) >= 464, lambda x, y: np.nan)},
        "overflow_starts_at_the_threshold",
    ),
    "NaN payload carried into infinity": Bug(NARROW, {"round": carry}, "nan_stays_nan"),
    "-0 lost": Bug("float8_e5m2", {"round": lambda right, *call: right.round(*call) + 0.0}, "zero_keeps_its_sign"),
    "fnuz -1e-9 becomes NaN": Bug(
        "float8_e4m3fnuz",
        {"round": instead(lambda x: (x < 0) & (x > -(2.0**-11)), lambda x, y: np.nan)},
        "nothing_in_range_becomes_nan",
    ),
    "one exponent past emax becomes 0": Bug(
        "float8_e4m3",
        {"round": instead(lambda x: (np.abs(x) >= 256) & (np.abs(x) < 512), lambda x, y: 0.0)},
        "overflow_starts_at_the_threshold monotone",
    ),
    "infinity saturates where NaN is the rule": Bug(
        "float8_e4m3fn",
        {"round": instead(np.isinf, lambda x, y: np.copysign(448, x))},
        "infinity_follows_the_policy",
    ),
    "sign flipped where the target is as wide as float32": Bug(
        "float32",
        {"round": instead(lambda x: np.abs(x) > 1, lambda x, y: -y)},
        "a_wider_target_is_exact values_are_fixed_points result_is_the_nearest",
    ),
    "the last step is not monotone": Bug(
        "float6_e2m3fn",
        {"round": instead(lambda x: (np.abs(x) > 7.25) & (np.abs(x) < 7.75), lambda x, y: np.copysign(6.5, x))},
        "monotone",
    ),
    "one code decodes wrong": Bug(
        "float8_e4m3fn",
        {"decode": lambda right, codes, fmt: np.where(codes == 0x7E, 480, right.decode(codes, fmt))},
        "every_code_decodes_right",
    ),
    "the NaN code decodes to 480": Bug(
        "float8_e4m3fn",
        {"decode": lambda right, codes, fmt: np.nan_to_num(right.decode(codes, fmt), nan=480)},
        "every_code_decodes_right",
    ),
    "the top exponent is used as numbers": Bug(
        "float8_e4m3fn",
        {"round": instead(lambda x: (np.abs(x) > 464) & (np.abs(x) < 496), lambda x, y: np.copysign(480, x))},
        "result_is_representable overflow_starts_at_the_threshold",
    ),
    "infinity where the format has none": Bug(
        "float4_e2m1fn",
        {"round": instead(np.isinf, lambda x, y: x)},
        "result_is_representable infinity_follows_the_policy",
        policy="saturate",
    ),
    "a half is added in float32 below the smallest value": Bug(
        "float8_e5m2", {"round": half_added}, "tiny_numbers_vanish_only_below_the_threshold result_is_the_nearest"
    ),
    "E8M0 drops the sign": Bug(
        "float8_e8m0fnu",
        {"round": lambda right, x, *how: right.round(np.abs(x), *how)},
        "negatives_without_a_code_follow_the_policy",
    ),
    "E8M0 makes NaN of zero": Bug(
        "float8_e8m0fnu",
        {"round": instead(lambda x: x == 0, lambda x, y: np.nan)},
        "zero_without_a_code_follows_the_policy",
    ),
    "E8M0 ties to the even code": Bug(
        "float8_e8m0fnu",
        {"round": instead(lambda x: x == 3, lambda x, y: 2.0)},
        "ties_go_to_even powers_of_two_pass_through",
    ),
    "ties toward +infinity": Bug(
        "float8_e4m3fn", {"round": ties_up}, "mirrored_inputs_give_mirrored_results ties_go_to_even"
    ),
    "directed modes look at the magnitude": Bug(
        "float8_e4m3fn",
        {"round": mode("toward_negative", only="negative")},
        "directed_rounding_stays_on_its_side mirrored_inputs_give_mirrored_results",
        rounding="toward_positive",
    ),
    "to odd moves what is exact": Bug(
        "float8_e4m3fn",
        {"round": instead(lambda x: x == 1, lambda x, y: 1.125)},
        "the_inexact_becomes_odd values_are_fixed_points",
        rounding="to_odd",
    ),
    "nearest away goes to even": Bug(
        "float8_e4m3fn", {"round": mode("nearest_even")}, "ties_go_away_from_zero", rounding="nearest_away"
    ),
    "one binade truncates": Bug(
        "float8_e4m3",
        {
            "round": lambda right, x, f, r: np.where(
                np.abs(x) >= 2, right.round(x, f, "toward_zero"), right.round(x, f, r)
            )
        },
        "powers_of_two_pass_through",
    ),
    "rounding drifts": Bug("float8_e4m3fn", {"round": drift}, "idempotent"),
    "the encoder is off by one code": Bug(
        "float8_e5m2",
        {
            "encode": lambda right, *call: np.where(right.encode(*call) == 0x3C, 0x3D, right.encode(*call)).astype(
                np.uint8
            )
        },
        "decode_encode_is_identity encode_agrees_with_round",
    ),
    "the encoder rounds ties away": Bug(
        "float8_e5m2",
        {"encode": lambda right, x, fmt, rounding: right.encode(x, fmt, "nearest_away")},
        "encode_agrees_with_round",
    ),
    "NaN loses the sign it should keep": Bug(
        "float8_e5m2",
        {"encode": lambda right, x, *how: right.encode(np.where(np.isnan(x), np.float32(np.nan), x), *how)},
        "nan_has_the_code_of_the_policy",
        policy=P.Policy(overflow="infinity", infinity="infinity", nan="quiet_signed"),
    ),
    "one random bit too many": Bug(
        "float8_e4m3fn",
        {
            "round_stochastic": lambda right, x, fmt, r, n: right.round_stochastic(
                x, fmt, np.minimum(r + 1, 2**n - 1), n
            )
        },
        "rounds_up_as_often_as_the_fraction_says",
        rounding="stochastic",
    ),
}


def broken(subject: Any, fmt: Any, rounding: str) -> dict[str, properties.Verdict]:
    """The laws that do not hold, by name, in one format and mode."""
    judged = properties.judge(subject, formats=[fmt], roundings=[rounding])
    return {v.law.partition(".")[2]: v for v in judged if not v.ok}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_dies_by_the_law_that_speaks_of_it(name: str) -> None:
    bug = BUGS[name]
    found = broken(Planted(bug.policy, bug.fmt, **bug.planted), bug.fmt, bug.rounding)
    assert set(bug.kills.split()) <= set(found)
    assert not broken(Planted(bug.policy, bug.fmt), bug.fmt, bug.rounding)


def test_no_law_is_without_a_planted_bug_that_it_alone_is_named_for() -> None:
    named = {law for bug in BUGS.values() for law in bug.kills.split()}
    written = {name for family in ("decoding", "encoding", "rounding", "stochastic") for name in laws(family)}
    assert named == written


def test_a_counterexample_says_value_code_neighbours_and_how_many() -> None:
    bug = BUGS["ties away"]
    verdict = broken(Planted(bug.policy, bug.fmt, **bug.planted), bug.fmt, bug.rounding)["ties_go_to_even"]
    assert verdict.counterexample is not None
    assert verdict.counterexample.input_bits == (0x3A800000,)
    assert verdict.detail == (
        "rounding.ties_go_to_even[float8_e4m3fn]: A tie between two neighbours goes to the even one.\n"
        "  at        x = 0.0009765625 (float32 0x3a800000)\n"
        "  got       0.001953125 = 0_0000_001\n"
        "  expected  0.0 = 0_0000_000\n"
        "  neighbours 0.0 = 0_0000_000 and 0.001953125 = 0_0000_001\n"
        "  wrong     126 of 252"
    )


def test_double_rounding_is_named() -> None:
    bug = BUGS["double rounding through float16"]
    found = broken(Planted(bug.policy, bug.fmt, **bug.planted), bug.fmt, bug.rounding)["float32_is_rounded_once"]
    assert "this is what rounding to float16 first gives" in found.detail


def test_a_missing_ability_is_unsupported_and_an_exception_is_an_error() -> None:
    def refuse(x: Array, fmt: Any, rounding: str) -> Array:
        raise RuntimeError("no")

    mine = properties.from_function(refuse, formats=["float8_e4m3fn"])
    status = {v.law: v.status for v in properties.judge(mine)}
    assert status["decoding.every_code_decodes_right"] == "unsupported"
    assert status["rounding.float64_is_rounded_once"] == "unsupported"
    assert status["rounding.ties_go_to_even"] == "error"


def test_a_wrong_shape_is_broken() -> None:
    mine = properties.from_function(lambda x, fmt, rounding: x[:1], formats=["float8_e4m3fn"])
    with pytest.raises(properties.Broken, match="expected  shape"):
        properties.check("rounding.monotone", mine, max_examples=0)


# Of those of 16 bits, which take long and which `halfulp verify` judges, one.
@pytest.mark.parametrize("fmt", [fmt for fmt in P.formats() if fmt.bits != 16 or fmt is P.bfloat16], ids=str)
def test_ours_obeys_every_law(fmt: Any) -> None:
    assert [v.detail for v in properties.judge(Ours(), formats=[fmt]) if v.status != "holds"] == []


# Of the named ones, which `halfulp verify` judges in all formats, two.
POLICIES = {name: name for name in ("ieee", "ml_dtypes")} | {
    "flush": P.Policy(overflow="infinity", subnormals="flush"),
    "flush_inputs": P.Policy(infinity="infinity", subnormals="flush_inputs", missing_nan="zero"),
    "flush_results": P.Policy(subnormals="flush_results", negative="clamp", missing_nan="opposite_zero"),
    "raise": P.Policy(nan="raise", missing_nan="raise", negative="magnitude", zero="nan"),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_ours_obeys_every_law_under_every_policy(policy: Any) -> None:
    kinds = ["float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn", "uint4"]
    assert [v.detail for v in properties.judge(Ours(policy), formats=kinds) if v.status != "holds"] == []


@pytest.mark.parametrize("name", ["ml_dtypes", "torch", "gfloat"])
def test_peers_break_the_laws_only_where_we_say(name: str) -> None:
    pytest.importorskip(name)
    subject = load(name)
    findings: dict[str, str] = getattr(subject, "findings", {})
    narrow = [fmt for fmt in map(P.get_format, subject.formats) if fmt.bits <= 8]
    found = [v for v in properties.judge(subject, formats=narrow) if not v.ok]
    assert [v.detail for v in found if not any(properties.matches(p, v.id) for p in findings)] == []
    tried = [case.id for case in properties.cases(subject, formats=narrow)]
    for pattern in findings:
        if any(properties.matches(pattern, law_id) for law_id in tried):
            assert any(properties.matches(pattern, v.id) for v in found), f"{pattern} is a finding no longer"


def test_check_finds_what_only_drawing_finds() -> None:
    def short(x: Array, fmt: Any, rounding: str) -> Array:
        """A vectorised kernel whose path for short arrays truncates."""
        return P.round_to(x, fmt, rounding="toward_zero" if x.size < 8 else rounding)

    mine = properties.from_function(short, formats=["float4_e2m1fn"])
    properties.check("rounding.result_is_the_nearest", mine, max_examples=0)
    with pytest.raises(properties.Broken, match="result_is_the_nearest"):
        properties.check("rounding.result_is_the_nearest", mine, max_examples=300)


def test_a_counterexample_crosses_processes() -> None:
    wrong = properties.from_function(lambda x, fmt, rounding: -x, formats=["float4_e2m1fn"])
    found = next(v for v in properties.judge(wrong) if v.status == "broken")
    again = pickle.loads(pickle.dumps(found))
    assert str(again.counterexample) == str(found.counterexample) == found.detail
    assert vars(again.counterexample) == vars(found.counterexample)


def test_names_that_do_not_exist_are_refused() -> None:
    for law in ("rounding.ties_go_to_eve", "attention.causal_is_exact"):
        with pytest.raises(
            ValueError, match=rf"no law on casts is called '{law}': .*there are .*, rounding.ties_go_to_even,"
        ):
            properties.check(law, "ours", formats=["float4_e2m1fn"])
    with pytest.raises(ValueError, match=r"did you mean rounding\.ties_go_to_even\?"):
        properties.check("rounding.ties_go_to_eve", "ours")
    with pytest.raises(ValueError, match=r"ml_dtypes does not offer int8; it offers bfloat16, "):
        next(properties.judge(load("ml_dtypes"), formats=["int8"]))
    with pytest.raises(ValueError, match=r"ml_dtypes does not offer rounding 'to_odd'; it offers nearest_even"):
        next(properties.judge(load("ml_dtypes"), roundings=["to_odd"]))
    with pytest.raises(ValueError, match=r"unknown family of laws 'x': there are decoding, "):
        laws("x")


def test_nothing_to_judge_is_refused() -> None:
    """A check that judges nothing must not pass."""

    def same(x: Array, fmt: Any, rounding: str) -> Array:
        return x

    with pytest.raises(ValueError, match="formats is empty, so that there is nothing to judge: name at least one"):
        properties.from_function(same, formats=[])
    with pytest.raises(ValueError, match="roundings is empty, so that there is nothing to judge"):
        properties.from_function(same, formats=["float32"], roundings=[])
    mine = properties.from_function(same, formats=["float32"])
    for call in (
        lambda **how: properties.check("rounding.monotone", mine, **how),
        lambda **how: properties.judge(mine, **how),
    ):
        with pytest.raises(ValueError, match="no format to judge same in: name some"):
            call(formats=[])
        with pytest.raises(ValueError, match="no rounding to judge same in: name some, or leave roundings out"):
            call(roundings=[])
    mine.formats = ()
    with pytest.raises(ValueError, match="no format to judge same in: name some, or let the subject offer some"):
        properties.check("rounding.monotone", mine)


@pytest.mark.parametrize("law", ["rounding.ties_go_away_from_zero", "stochastic.*", "rounding.subnormals_are_kept"])
def test_a_law_that_does_not_apply_is_not_called_unknown(law: str) -> None:
    mine = properties.from_function(lambda x, fmt, rounding: x, formats=["float8_e8m0fnu"], name="mine")
    text = (
        rf"{law} has no meaning for mine in float8_e8m0fnu, modes nearest_even, under its policy: ask for another law"
    )
    with pytest.raises(ValueError, match=text.replace("*", r"\*")):
        properties.check(law, mine)


def test_a_subject_may_answer_in_torch() -> None:
    """In a dtype that NumPy does not have, and even with a gradient."""
    torch = pytest.importorskip("torch")

    def cast(x: Array, fmt: Any, rounding: str) -> Any:
        return torch.from_numpy(x).to(torch.bfloat16).requires_grad_()

    mine = properties.from_function(cast, formats=["bfloat16"], policy="torch")
    assert [v.detail for v in properties.judge(mine) if not v.ok] == []
    wrong = properties.from_function(lambda *call: cast(*call) * 2, formats=["bfloat16"], policy="torch")
    with pytest.raises(properties.Broken, match=r"got +2\.0 = 0_10000000_0000000"):
        properties.check("rounding.values_are_fixed_points", wrong)
