"""The bounds of sums and products: never left by what they are about, left by planted bugs, inf where they claim nothing.

Exact results are Python's integers. Run as a script, it prints how loose the bounds are: `python tests/test_bounds.py`.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import precision as P
from precision import bounds
from precision.bounds import dot_bound, gamma, likely_gamma, matmul_bound, sum_bound, unit_roundoff
from precision.tensor_cores import TensorCore, accumulators, get_accumulator

# --- the oracle: exact products -----------------------------------------------------------------------------------------


def integers(x: Any) -> tuple[np.ndarray, int]:
    """(integers, e): the array is exactly the integers times 2^-e."""
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    e = 53 - int(exponent.min(initial=53))
    whole = [int(f) << (int(n) - 53 + e) for f, n in zip((fraction * 2.0**53).ravel(), exponent.ravel(), strict=True)]
    return np.array([*whole, None], dtype=object)[:-1].reshape(np.shape(x)), e


def leaves(computed: Any, a: Any, b: Any, bound: Any) -> np.ndarray:
    """Where |computed - a·b| > bound, in exact arithmetic."""
    (p, e), (q, f) = integers(a), integers(b)
    exact = p @ q if p.shape[-1] else np.zeros((p.shape[0], q.shape[1]), object)
    outside = [
        not math.isinf(limit) and abs(Fraction(c) - Fraction(int(s), 2 ** (e + f))) > Fraction(limit)
        for c, s, limit in zip(np.float64(computed).flat, exact.flat, np.float64(bound).flat, strict=True)
    ]
    return np.array(outside, bool).reshape(exact.shape)


def magnitude(a: Any, b: Any) -> Any:
    return np.abs(np.float64(a)) @ np.abs(np.float64(b))


# --- data and accumulators ----------------------------------------------------------------------------------------------

FAMILIES = ("normal", "uniform", "wide", "cancelling", "huge", "equal", "alternating", "tiny", "integers")


def data(family: str, shape: tuple[int, int], fmt: Any, rng: np.random.Generator) -> np.ndarray:
    """(rows, K) values of a format."""
    rows, k = shape
    fmt = P.get_format(fmt)
    if isinstance(fmt, P.IntFormat):
        return rng.integers(int(fmt.min), int(fmt.max) + 1, shape).astype(fmt.numpy_dtype)
    if family == "uniform":
        x = rng.random(shape)
    elif family == "wide":
        low, high = max(fmt.emin - 2, -60), min(fmt.emax, 60)
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(low, high // 2, shape)
    elif family == "cancelling":
        x = rng.standard_normal(shape)
        x[:, k // 2 : 2 * (k // 2)] = -x[:, : k // 2] * (1 + rng.integers(-1, 2, (rows, k // 2)) * 2.0**-6)
    elif family == "huge":
        x = rng.standard_normal(shape) * 2.0**-4
        if k:
            x[np.arange(rows), rng.integers(0, k, rows)] = min(fmt.max / 4, 2.0**20)
    elif family == "equal":
        x = np.full(shape, rng.random())
    elif family == "alternating":
        x = rng.random() * (-1.0) ** np.arange(k) + np.zeros(shape)
    elif family == "tiny":
        x = rng.integers(-20, 21, shape) * fmt.smallest_subnormal
    elif family == "integers":
        x = rng.integers(0, 3, shape).astype(float)
    else:
        x = rng.standard_normal(shape)
    dtype = np.float32 if fmt.bits <= 32 else np.float64
    return P.round_to(x, fmt).astype(dtype)


def kinds() -> list[str]:
    """A name for every tensor core that differs in more than its operands' formats, and the variants of a product."""
    found: dict[Any, str] = {}
    for name in accumulators():
        core = get_accumulator(name)
        row = core.instruction
        integer = row.fraction_bits is None
        key = (row.group, row.fraction_bits, row.floor, row.result_bits, row.emulated, row.k, core.promote, integer)
        found.setdefault((*key, row.a.bits, core.rounds_inputs), name)
    variants = [
        "hopper.cublas.bfloat16.to_bfloat16",
        "hopper.cublas.float16.to_float8_e4m3fn",
        "hopper.cublas.bfloat16.split_k_64",
        "hopper.cublas.float8_e4m3fn.split_k_256.to_bfloat16",
        "hopper.cublas.tfloat32.to_float16",
        "hopper.wgmma.int8.to_bfloat16",
        "blackwell.tcgen05.float4_e2m1fn.float8_e5m2",
    ]
    return [*found.values(), *variants]


A = P.Accumulator
LITTLE = P.Format("little", exponent_bits=4, mantissa_bits=2)
ACCUMULATORS = [
    *(
        A(name)
        for name in ("float32", "float16", "bfloat16", "tfloat32", "float64", "float8_e4m3fn", "float8_e5m2fnuz")
    ),
    *(A(name, "pairwise") for name in ("float32", "bfloat16", "float8_e5m2")),
    *(A(name, "kahan") for name in ("float32", "bfloat16", "float8_e4m3fn", "float64")),
    A("float32", "blocked", 7),
    A("bfloat16", "blocked", 16, products="exact"),
    A("float16", products="exact"),
    A("float32", products="exact"),
    A(LITTLE),
    A(LITTLE, "kahan"),
    A(LITTLE, "pairwise"),
    *(A("bfloat16", rounding=mode) for mode in ("toward_zero", "toward_positive", "toward_negative", "to_odd")),
    A("float32", rounding="nearest_away", policy="saturate"),
    A("bfloat16", "kahan", rounding="toward_zero"),
    A("float16", "kahan", rounding="toward_positive"),
    A("float16", "pairwise", rounding="toward_zero"),
    A("float16", "blocked", 5, rounding="to_odd"),
    *(A("float16", policy=P.Policy(subnormals=how)) for how in ("flush_inputs", "flush_results", "flush")),
    A("bfloat16", "kahan", policy=P.Policy(subnormals="flush")),
    A("float16", products="exact", policy=P.Policy(subnormals="flush")),
    A("float16", "pairwise", rounding="toward_zero", policy=P.Policy(subnormals="flush")),
]


def called(a: A) -> str:
    parts = [str(a.format), a.order, a.block, a.products, a.rounding, getattr(a.policy, "subnormals", a.policy)]
    return "-".join(str(part) for part in parts if part not in (None, "rounded", "nearest_even", "ieee"))


def operands(accumulator: Any, family: str, rows: int, k: int, columns: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    if isinstance(accumulator, A):
        narrow = "float64" if accumulator.format == P.float64 else "float32"
        formats: Any = (rng.choice([narrow, accumulator.format.name]) if accumulator.format != LITTLE else LITTLE,) * 2
    else:
        core = get_accumulator(accumulator)
        formats = ("float32",) * 2 if core.rounds_inputs else core.operands
    return data(family, (rows, k), formats[0], rng), data(family, (columns, k), formats[1], rng).T


def never_left(accumulator: Any, drawn: dict[str, Any]) -> None:
    a, b = operands(accumulator, **drawn)
    certain, likely = matmul_bound(a, b, accumulator)
    assert certain.shape == likely.shape == (a.shape[0], b.shape[1])
    assert (likely <= certain).all()
    assert (certain >= 0).all()
    computed = P.matmul(a, b, accumulator=accumulator)
    assert not leaves(computed, a, b, certain).any()


def drawn(most: int) -> Any:
    choices = {"family": st.sampled_from(FAMILIES), "k": st.integers(0, most), "seed": st.integers(0, 2**32)}
    return st.fixed_dictionaries(choices | {"rows": st.integers(1, 4), "columns": st.integers(1, 4)})


# --- never left -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulator", ACCUMULATORS, ids=called)
@settings(max_examples=4, deadline=None)
@given(problem=drawn(40))
def test_no_product_leaves_the_certain_bound(accumulator, problem):
    never_left(accumulator, problem)


@pytest.mark.parametrize("name", kinds())
@settings(max_examples=5, deadline=None)
@given(problem=drawn(400))
def test_no_tensor_core_leaves_the_certain_bound(name, problem):
    never_left(name, problem)


@pytest.mark.parametrize("accumulator", ACCUMULATORS, ids=called)
@settings(max_examples=2, deadline=None)
@given(problem=drawn(40))
def test_no_sum_leaves_the_certain_bound(accumulator, problem):
    """Its terms need not be numbers of the format."""
    x = operands(accumulator, **problem)[0]
    certain, likely = sum_bound(x, accumulator)
    assert (likely <= certain).all()
    computed = P.sum(x, accumulator=accumulator)
    ones = np.ones((x.shape[1], 1))
    assert not leaves(computed[:, None], x, ones, certain[:, None]).any()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "accumulator", [*ACCUMULATORS, *accumulators()], ids=lambda a: a if isinstance(a, str) else called(a)
)
@settings(max_examples=300, deadline=None)
@given(problem=drawn(700))
def test_many_products_stay_within_the_certain_bound(accumulator, problem):
    never_left(accumulator, problem if isinstance(accumulator, str) else problem | {"k": problem["k"] // 7})


def test_the_evaluation_in_float64_is_paid_for():
    """Terms 2^60 apart, compensated sums that are better than float64's own, products that underflow."""
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((3, 90)) * 2.0 ** rng.integers(-300, 300, (3, 90))
    tiny = rng.standard_normal((4, 30)) * 2.0**-537
    cases = [(wide, accumulator) for accumulator in ("float64", "float32", A("float64", "pairwise"))]
    cases += [(tiny, accumulator) for accumulator in ("float64", A("float64", rounding="toward_positive"))]
    for a, accumulator in [
        *cases,
        (rng.random((4, 400)), A("float64", "kahan")),
        (tiny, A("float64", products="exact")),
    ]:
        assert not leaves(P.matmul(a, a.T, accumulator=accumulator), a, a.T, matmul_bound(a, a.T, accumulator)[0]).any()


# --- never left by adversaries: errors that come near the bound -----------------------------------------------------------


def steps(accumulator: A, state: Any, x: Any) -> Any:
    """What one term makes of a running sum (and its compensation)."""

    def do(operation: Any, left: Any, right: Any) -> Any:
        how = {"rounding": accumulator.rounding, "policy": accumulator.policy}
        return operation(left, right, accumulator.format, **how)

    total, lost = state
    if accumulator.order != "kahan":
        return do(P.add, total, x), np.zeros(len(x))
    term = do(P.sub, x, lost)
    after = do(P.add, total, term)
    return after, do(P.sub, do(P.sub, after, total), term)


GREEDY = [
    A("bfloat16"),
    A("float16", rounding="toward_zero"),
    A("bfloat16", rounding="to_odd"),
    A("bfloat16", "kahan"),
    A(LITTLE, "kahan"),
    A("bfloat16", "kahan", rounding="toward_zero"),
    A(LITTLE, "kahan", rounding="toward_negative"),
    A("float16", policy=P.Policy(subnormals="flush_results")),
    A("float16", policy=P.Policy(subnormals="flush_inputs")),
    A("float16", "kahan", policy=P.Policy(subnormals="flush")),
]


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("accumulator", GREEDY, ids=called)
def test_no_greedy_adversary_leaves_the_certain_bound_of_a_sum(accumulator, sign):
    """Each term is the one of many that puts the sum farthest off, to one side."""
    rng, fmt = np.random.default_rng(0), accumulator.format
    scale = fmt.smallest_normal if accumulator.policy != "ieee" else 0.01
    state, exact, x = (np.zeros(1), np.zeros(1)), 0.0, []
    for _ in range(40):
        terms = rng.choice([1, 1, 1, -1], 200) * scale * 2.0 ** rng.uniform(-3, 3, 200)
        terms = P.round_to(terms, fmt if len(x) % 2 else "float32")
        total, lost = steps(accumulator, state, terms)
        best = int(np.argmax(sign * (total - lost * (accumulator.order == "kahan") - (exact + terms))))
        state, exact = (total[[best]], lost[[best]]), exact + terms[best]
        x.append(terms[best])
        scale = max(scale, abs(exact) / 16)
    x = np.array([x])
    computed, ones = P.sum(x, accumulator=accumulator), np.ones((40, 1))
    assert computed == state[0]
    certain = sum_bound(x, accumulator).certain
    assert not leaves(computed[:, None], x, ones, certain[:, None]).any()
    if accumulator == A("bfloat16"):
        assert abs(computed[0] - exact) > 0.6 * certain[0]  # it is as tight as that


SMALL = P.Format("small", exponent_bits=4, mantissa_bits=2)


@pytest.mark.parametrize("rounding", [*P.ROUNDINGS])
@pytest.mark.parametrize("order", ["sequential", "pairwise", "kahan"])
def test_every_sum_of_a_few_numbers(order, rounding):
    """Of five terms, each one of nine numbers of three digits: exact in float64."""
    numbers = np.array([-14, -5, -1.75, -1, 0.875, 1.25, 1.5, 6, 10])
    x = np.stack(np.meshgrid(*5 * [numbers], indexing="ij"), -1).reshape(-1, 5)[:: 2 if order == "kahan" else 7]
    accumulator = A(SMALL, order, rounding=rounding)
    error = np.abs(P.sum(x, accumulator=accumulator) - x.sum(1))
    certain = sum_bound(x, accumulator).certain
    assert (error <= certain).all()
    assert (error / np.maximum(certain, 0.01)).max() > (0.99 if order != "kahan" else 0.5)  # somewhere it is attained


def test_a_sum_that_always_rounds_up_leaves_the_magnitudes_behind():
    """c is far above the exact sum, and above that of the magnitudes; its spacing is that of its own binade."""
    x = np.array([[128.0] + [0.51] * 128 + [1.01] * 100])
    computed, certain = P.sum(x, accumulator="bfloat16"), sum_bound(x, "bfloat16").certain
    assert computed == 256 + 2 * 100
    assert not leaves(computed[:, None], x, np.ones((229, 1)), certain[:, None]).any()
    assert certain < 1.1 * (computed - x.sum())


FLOATS = [name for name in kinds() if get_accumulator(name).instruction.fraction_bits is not None]


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_lost_beside_a_power_of_two(name):
    """Negative terms, cut to nothing, leave the sum where it is while the exact one falls below the power of two."""
    row = get_accumulator(name).instruction
    low = max(2.0 ** -(row.fraction_bits // 2), P.get_format(row.a).smallest_normal)
    high = 2.0**-row.fraction_bits / low * 2.0**6 * (2 - P.get_format(row.b).eps) / 2
    a, b = np.full((1, 9 * row.k), low), np.full((9 * row.k, 1), -high)
    a[:, : row.k], b[: row.k] = 0, 0
    a[0, 0] = b[0, 0] = 8.0
    if (P.round_to(b, row.b) == b).all():
        a, b = a.astype(np.float32), b.astype(np.float32)
        assert not leaves(P.matmul(a, b, accumulator=name), a, b, matmul_bound(a, b, name).certain).any()


@pytest.mark.parametrize("name", FLOATS)
def test_a_sum_that_is_cut_beside_products_that_cancel(name):
    core = get_accumulator(name)
    row = core.instruction
    most = 2.0**7 if row.accumulator == P.float16 else 2.0**30
    x, y = (min(2.0 ** int(math.log2(fmt.max)), most) for fmt in core.operands)
    rng = np.random.default_rng(1)
    a, b = (data("normal", (3, 4 * row.k), fmt, rng) for fmt in core.operands)
    a[:, 2 * row.k : 2 * row.k + 2], b[:, 2 * row.k : 2 * row.k + 2] = [x, -x], y
    assert not leaves(P.matmul(a, b.T, accumulator=name), a, b.T, matmul_bound(a, b.T, name).certain).any()


@pytest.mark.parametrize("name", ["hopper.cublas.float16", "volta.mma.float16", "ampere.mma.float16"])
def test_the_exponent_of_a_product_of_a_subnormal_number(name):
    a, b = np.float32([[2.0**-24, 2.0**-13 * (1 + 2.0**-10)]]), np.float32([[2.0**15], [2.0**-4]])
    computed = P.matmul(a, b, accumulator=name)
    assert computed != np.float64(a) @ np.float64(b)
    assert not leaves(computed, a, b, matmul_bound(a, b, name).certain).any()


@pytest.mark.parametrize("subnormals", ["flush_results", "flush_inputs", "flush"])
def test_flushed_sums(subnormals):
    accumulator, least = A("float16", policy=P.Policy(subnormals=subnormals)), 2.0**-14
    for terms in ([0.9] * 20, [1.5, -1, 2, -1.5, 1.25, -1.75, 1.5] * 4, [1.0, -0.96875] * 9 + [1.0]):
        x = np.array([terms]) * least
        computed, ones = P.sum(x, accumulator=accumulator), np.ones((x.shape[1], 1))
        assert not leaves(computed[:, None], x, ones, sum_bound(x, accumulator).certain[:, None]).any()


# --- likely -----------------------------------------------------------------------------------------------------------------


RANDOM = [*(A(name) for name in ("float32", "bfloat16", "float16", "float8_e5m2")), A("bfloat16", "pairwise")]
RANDOM += [A("bfloat16", "kahan"), A("bfloat16", "blocked", 64), A("bfloat16", rounding="toward_zero")]
RANDOM += [A("float32", rounding="toward_positive"), A("float32", products="exact")]


@pytest.mark.parametrize("family", ["normal", "uniform"])
@pytest.mark.parametrize("accumulator", [*RANDOM, *FLOATS], ids=lambda a: a if isinstance(a, str) else called(a))
def test_random_data_stays_within_the_likely_bound(accumulator, family):
    a, b = operands(accumulator, family, 4, 80 if isinstance(accumulator, A) else 256, 4, 7)
    assert not leaves(P.matmul(a, b, accumulator=accumulator), a, b, matmul_bound(a, b, accumulator).likely).any()


# --- left by what is not what it says -------------------------------------------------------------------------------------


def other_instruction(name: str, **change: Any) -> TensorCore:
    core = get_accumulator(name)
    return replace(core, instruction=replace(core.instruction, **change))


E4M3, FAST = "hopper.cublas.float8_e4m3fn", "hopper.cublas.float8_e4m3fn.fast_accum"
PLANTED: dict[str, tuple[Any, Any]] = {  # what runs, what it says it is
    "bfloat16 poses as float32": (A("bfloat16"), A("float32")),
    "float16 poses as float32": (A("float16"), A("float32")),
    "tfloat32 poses as float32": (A("tfloat32", "kahan"), A("float32", "kahan")),
    "truncation poses as rounding": (A("float32", rounding="toward_zero"), A("float32", "pairwise")),
    "sequential poses as pairwise": (A("bfloat16"), A("bfloat16", "pairwise")),
    "sequential poses as compensated": (A("bfloat16"), A("bfloat16", "kahan")),
    "sequential poses as blocked": (A("bfloat16"), A("bfloat16", "blocked", 32)),
    "fast accumulation poses as promoted": (FAST, E4M3),
    "promoted a quarter as often": (replace(get_accumulator(E4M3), promote=512), E4M3),
    "two bits fewer in alignment and result": (other_instruction(FAST, fraction_bits=11, result_bits=12), FAST),
    "two bits fewer in the result": (
        other_instruction("hopper.cublas.bfloat16", result_bits=22),
        "hopper.cublas.bfloat16",
    ),
    "14 bits pose as 24": (FAST, "blackwell.tcgen05.float8_e4m3fn"),
    "float16 poses as a float32 accumulator": ("hopper.wgmma.float16.fp16_accumulation", "hopper.wgmma.float16"),
    "the result is rounded to bfloat16 on the way": ("hopper.cublas.bfloat16.to_bfloat16", "hopper.cublas.bfloat16"),
    "inputs are cut to tfloat32": ("ampere.mma.tfloat32", "hopper.cublas.tfloat32"),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_accumulator_leaves_the_bound(plant):
    runs, says = PLANTED[plant]
    rng = np.random.default_rng(3)
    fmt = "bfloat16" if isinstance(runs, A) or "float16" in says else E4M3.rsplit(".", 1)[1]
    fmt = "float32" if says == "hopper.cublas.tfloat32" else fmt
    k = 1280 if not isinstance(runs, A) else 600 if plant.startswith("sequential") else 150
    a, b = data("uniform", (2, k), fmt, rng), data("uniform", (2, k), fmt, rng).T
    given = (P.round_to(x, "tfloat32", rounding="toward_zero") for x in (a, b)) if fmt == "float32" else (a, b)
    assert leaves(P.matmul(*given, accumulator=runs), a, b, matmul_bound(a, b, says).certain).all()
    assert not leaves(P.matmul(a, b, accumulator=says), a, b, matmul_bound(a, b, says).certain).any()


@pytest.mark.parametrize(
    "name", [A("float32"), A("float16", "kahan"), "hopper.cublas.bfloat16", E4M3, "ada.mma.float16"]
)
def test_a_dropped_term_leaves_the_bound(name):
    a, b = operands(name, "normal", 2, 96, 2, 11)
    k = int(np.argmax(np.abs(a[:, :, None] * b).min((0, 2))))
    computed = P.matmul(np.delete(a, k, 1), np.delete(b, k, 0), accumulator=name)
    assert leaves(computed, a, b, matmul_bound(a, b, name).certain).all()


# --- as tight as it can be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulator", [A("float32"), A("float16"), A("float32", "pairwise"), A("float32", "kahan"), *kinds()],
                         ids=lambda a: a if isinstance(a, str) else called(a))  # fmt: skip
def test_what_is_seen_to_be_exact_has_the_bound_0(accumulator):
    a, b = operands(accumulator, "integers", 2, 60, 2, 0)
    exact = np.float64(a) @ np.float64(b)
    bound = matmul_bound(a, b, accumulator)
    if getattr(accumulator, "output", None) is None and not (isinstance(accumulator, str) and ".to_" in accumulator):
        assert (bound.certain == 0).all()
        assert (P.matmul(a, b, accumulator=accumulator) == exact).all()


@pytest.mark.parametrize("order", ["sequential", "pairwise", "kahan"])
def test_it_is_within_the_textbook_bound(order):
    a, b = operands(A("float32", order), "normal", 4, 300, 4, 1)
    certain, u = matmul_bound(a, b, A("float32", order)).certain, unit_roundoff("float32")
    roundings = {"sequential": 300, "pairwise": 10, "kahan": 4}[order]
    assert (certain <= gamma(roundings, u) * magnitude(a, b)).all()


def looseness(accumulator: Any, family: str, k: int) -> tuple[float, float, float]:
    """The largest error of 16 x 16 outputs, relative to the mean of |a||b|; certain and likely bound, both over it."""
    a, b = operands(accumulator, family, 16, k, 16, 9)
    bound = matmul_bound(a, b, accumulator)
    (p, e), (q, f) = integers(a), integers(b)
    error = np.array([int(s) / 2 ** (e + f) for s in (p @ q).flat]).reshape(16, 16)
    worst = np.abs(np.float64(P.matmul(a, b, accumulator=accumulator)) - error).max()
    return worst / magnitude(a, b).mean(), bound.certain.max() / worst, bound.likely.max() / worst


@pytest.mark.parametrize(
    ("accumulator", "family", "certain", "likely"),
    [  # as measured, and a tenth more: K = 256
        (A("float32"), "normal", 23, 9.7),
        (A("float32"), "uniform", 9.1, 4.4),
        ("hopper.cublas.bfloat16", "normal", 3.3, 3.3),
        ("hopper.cublas.bfloat16", "uniform", 1.9, 1.9),
        ("hopper.cublas.float16.fp16_accumulation", "normal", 5.4, 5.4),
        (E4M3, "normal", 5.5, 4.4),
        (E4M3, "uniform", 1.5, 1.5),
        (FAST, "normal", 3.2, 2.8),
        (FAST, "uniform", 1.7, 1.7),
        (FAST, "cancelling", 7.8, 4.6),
        (FAST, "wide", 9.9, 3.7),
    ],
)
def test_how_loose_it_is(accumulator, family, certain, likely):
    found = looseness(accumulator, family, 256)
    assert 1 <= found[1] <= certain
    assert 1 <= found[2] <= likely


# --- where nothing is claimed ---------------------------------------------------------------------------------------------


def test_strange_operands_make_their_rows_and_columns_infinite():
    a, b = np.ones((3, 40), np.float32), np.ones((40, 2), np.float32)
    a[1, 7], b[3, 1] = np.nan, np.inf
    for accumulator in ("float32", A("bfloat16", "pairwise"), A("float16", "kahan"), "hopper.cublas.bfloat16"):
        certain, likely = matmul_bound(a, b, accumulator)
        assert np.isinf(certain).tolist() == np.isinf(likely).tolist() == [[False, True], [True, True], [False, True]]
        assert (certain[[0, 2], 0] == 0).all()


@pytest.mark.parametrize(
    "accumulator", [A("float16"), A("float16", "kahan"), "hopper.cublas.float16.fp16_accumulation"]
)
def test_what_may_overflow_has_no_bound(accumulator):
    a, b = np.full((1, 64), 32.0, np.float32), np.full((64, 1), 32.0, np.float32)
    assert np.isinf(P.matmul(a, b, accumulator=accumulator)).all()
    assert np.isinf(matmul_bound(a, b, accumulator).certain).all()
    assert np.isfinite(matmul_bound(a[:, :60], b[:60], accumulator).certain).all()
    assert np.isinf(matmul_bound(a, b, "hopper.cublas.float16.to_float16").certain).all()
    a[:, 32:] = -32  # the sum is 0, but not on the way
    b[:] = 64
    assert np.isinf(matmul_bound(a, b, accumulator).certain).all()


def test_integers_are_exact_until_they_wrap():
    a = np.full((1, 70_000), -128, np.int8)
    assert (matmul_bound(a, a.T, "hopper.wgmma.int8").certain == 0).all()
    a = np.full((1, 140_000), -128, np.int8)  # 2^14 * 140000 > 2^31
    for name in ("hopper.wgmma.int8", "hopper.wgmma.int8.to_bfloat16"):
        wraps = matmul_bound(a, a.T, name)
        assert np.isinf(wraps.certain).all()
        assert np.isinf(wraps.likely).all()


def test_what_is_not_certain_to_be_finite_is_not_likely_to_be():
    x = np.full((1, 40), 60000.0, np.float32) * np.where(np.arange(40) % 2, -1, 1).astype(np.float32)
    for accumulator in ("float16", *(P.Accumulator("float16", order=order) for order in ("pairwise", "kahan"))):
        bound = sum_bound(x, accumulator)
        assert np.isinf(bound.likely[np.isinf(bound.certain)]).all()


FLUSHED = """
import numpy as np, torch, precision as P
x = np.array([0x3F800000, 512], np.uint32).view(np.float32)  # 1 + 2^-140, whose second term is lost
assert torch.set_flush_denormal(True)
for y in (x, torch.from_numpy(x)):
    assert P.bounds.sum_bound(y, "float32").certain >= 2.0**-140
    assert P.bounds.matmul_bound(y[None], y[:, None] * 0 + 1, "float32").certain >= 2.0**-140
"""


def test_subnormal_terms_count_in_a_process_that_flushes_them():
    subprocess.run([sys.executable, "-c", FLUSHED], check=True, timeout=120)


@pytest.mark.parametrize(
    "accumulator", ["float32", A("float16", "pairwise"), A("float16", "kahan"), "hopper.wgmma.bfloat16"]
)
def test_empty_sums_are_exact(accumulator):
    bound = matmul_bound(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32), accumulator)
    assert bound.certain.shape == bound.likely.shape == (2, 3)
    assert not bound.certain.any()
    assert matmul_bound(np.ones((0, 5), np.float32), np.ones((5, 3), np.float32), accumulator).likely.shape == (0, 3)


# --- shapes and libraries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulator", [A("bfloat16", "pairwise"), A("float16", "blocked", 3), E4M3])
def test_batches_broadcast_and_tiles_do_not_matter(accumulator, monkeypatch):
    rng = np.random.default_rng(0)
    a = P.round_to(rng.standard_normal((2, 1, 3, 9), np.float32), "float8_e4m3fn")
    b = P.round_to(rng.standard_normal((4, 9, 5), np.float32), "float8_e4m3fn")
    whole = matmul_bound(a, b, accumulator)
    assert whole.certain.shape == P.matmul(a, b, accumulator=accumulator).shape == (2, 4, 3, 5)
    for i in range(2):
        for j in range(4):
            one = matmul_bound(a[i, 0], b[j], accumulator)
            assert (one.certain == whole.certain[i, j]).all()
            assert (one.likely == whole.likely[i, j]).all()
    monkeypatch.setattr(bounds, "_OUTPUTS", 2)
    monkeypatch.setattr(bounds, "_TERMS", 20)
    tiled = matmul_bound(a, b, accumulator)
    assert (tiled.certain == whole.certain).all()
    assert (tiled.likely == whole.likely).all()
    x, y = a[:, 0], b[:2, :, :3].swapaxes(1, 2)
    assert (
        dot_bound(x, y, accumulator).certain
        == np.einsum("iaa->ia", matmul_bound(x, y.swapaxes(1, 2), accumulator).certain)
    ).all()
    if accumulator != E4M3:
        assert (sum_bound(a, accumulator, axis=-2).certain == sum_bound(a.swapaxes(-1, -2), accumulator).certain).all()
        assert sum_bound(a, accumulator, axis=2).likely.shape == (2, 1, 9)


def test_tensors_in_tensors_out():
    rng = np.random.default_rng(0)
    a, b = (P.round_to(rng.standard_normal(shape, np.float32), "bfloat16") for shape in ((3, 50), (50, 4)))
    x, y = torch.from_numpy(a), torch.from_numpy(b).requires_grad_()
    for accumulator in ("bfloat16", "hopper.wgmma.bfloat16"):
        for left, right in ((x, y.detach()), (x.bfloat16(), y.detach().bfloat16())):
            bound = matmul_bound(left, right, accumulator)
            assert bound.certain.dtype == bound.likely.dtype == torch.float64
            assert (bound.certain.numpy() == matmul_bound(a, b, accumulator).certain).all()
            assert (dot_bound(left[0], right[:, 0], accumulator).likely.numpy() == bound.likely[0, 0].numpy()).all()
    assert (sum_bound(x, "bfloat16").certain.numpy() == sum_bound(a, "bfloat16").certain).all()
    assert dot_bound(a[0], b[:, 0], "float32").certain.shape == ()


# --- the textbook's -------------------------------------------------------------------------------------------------------


def test_gamma():
    for n, u in ((1, 2.0**-24), (300, 2.0**-8), (255, 2.0**-8), (4096, 2.0**-53)):
        exact = Fraction(n) * Fraction(u) / (1 - Fraction(n) * Fraction(u)) if n * u < 1 else math.inf
        assert gamma(n, u) == pytest.approx(float(exact), rel=1e-14)
    assert gamma(np.array([0, 256, 257]), 2.0**-8).tolist() == [0, math.inf, math.inf]
    assert unit_roundoff("bfloat16") == 2.0**-8
    assert (
        unit_roundoff("bfloat16", "toward_zero")
        == unit_roundoff(P.bfloat16, P.stochastic(random_bits=[3], bits=4))
        == 2.0**-7
    )


def test_likely_gamma_grows_as_the_root_and_bounds_random_products():
    n, u = 4096, 2.0**-24
    assert likely_gamma(0, u) == 0
    assert likely_gamma(4 * n, u) / likely_gamma(n, u) == pytest.approx(2, rel=0.05)
    assert likely_gamma(n, u) < gamma(n, u) / 8
    assert likely_gamma(n, u, failure=2.0**-40) > likely_gamma(n, u)
    assert (likely_gamma(np.arange(9), u) <= gamma(np.arange(9), u)).all()
    assert math.isfinite(likely_gamma(300, 2.0**-8))  # where n u > 1
    errors = np.random.default_rng(0).choice([-u, u], (1000, n))  # of stochastic rounding, at worst
    assert np.abs(np.expm1(np.log1p(errors).sum(1))).max() < likely_gamma(n, u)
    assert (np.abs(np.expm1(np.log1p(-np.abs(errors) / 2).sum(1))) > likely_gamma(n, u)).all()  # truncation: not so


# --- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gamma(-1, 0.5), ValueError, "n is -1.0; it counts roundings: 0 or more"),
        (lambda: gamma(3, 0), ValueError, r"u is 0; a unit roundoff is more than 0 and less than 1: see unit_roundoff"),
        (lambda: gamma("a", 0.1), TypeError, "n is 'a'; it counts roundings: a number, or an array of them"),
        (lambda: gamma(None, 0.1), ValueError, "n is nan; it counts roundings"),
        (lambda: gamma([[1], [2, 3]], 0.1), TypeError, "it counts roundings: a number, or an array of them"),
        (lambda: gamma(3, "u"), TypeError, "u is 'u'; it must be a number, more than 0 and less than 1"),
        (lambda: likely_gamma(3, None), TypeError, "u is None; it must be a number"),
        (lambda: likely_gamma(3, 0.1, "f"), TypeError, "failure is 'f'; it must be a number"),
        (lambda: sum_bound(np.ones((3, 2)), "float32", axis=None), TypeError, "axis is None; it must be an int"),
        (lambda: dot_bound(np.ones((2, 3)), np.ones((4, 3)), "float32"), ValueError, r"do not broadcast, \(2,\) and \(4,\)"),
        (lambda: matmul_bound(np.ones((2, 1, 3)), np.ones((4, 3, 1)), "hopper.wgmma.bfloat16"), ValueError, "do not broadcast"),
        (lambda: matmul_bound(np.ma.masked_array(np.ones((2, 2))), np.ones((2, 2)), "float32"), TypeError, "a is a masked"),
        (lambda: likely_gamma(3, 0.1, 0), ValueError, "failure is 0; it is a probability"),
        (lambda: unit_roundoff("int8"), TypeError, "int8 is an integer format, which has no unit roundoff"),
        (lambda: unit_roundoff("bfloat17"), ValueError, "bfloat17"),
        (lambda: sum_bound(np.ones(3), "hopper.wgmma.bfloat16"), TypeError, r"use dot_bound\(x, ones, accumulator\)"),
        (lambda: sum_bound(np.ones((3, 2)), "float32", axis=2), ValueError, "axis is 2, and x has 2 dimensions"),
        (lambda: dot_bound(np.ones(3), np.ones(4), "float32"), ValueError, "the last dimensions must be equal"),
        (lambda: matmul_bound(np.ones((2, 3)), np.ones((2, 3)), "float32"), ValueError, r"\(2, 3\) and b \(2, 3\)"),
        (lambda: matmul_bound(np.ones(3), np.ones(3), "float32"), ValueError, r"takes \(..., M, K\) by \(..., K, N\)"),
        (lambda: matmul_bound(np.ones((2, 2)), torch.ones(2, 2), "float32"), TypeError, "several libraries"),
        (lambda: matmul_bound(np.ones((2, 2)), torch.ones(2, 2), "hopper.wgmma.bfloat16"), TypeError, "several places"),
        (lambda: matmul_bound(np.full((1, 1), 0.1), np.ones((1, 1)), "hopper.wgmma.bfloat16"), ValueError, "a holds 0.1"),
        (lambda: matmul_bound(np.ones((2, 2)), np.ones((2, 2)), "hopper.wgmma.bfloat17"), ValueError, "unknown accumulator"),
        (lambda: matmul_bound(np.ones((2, 2), int), np.ones((2, 2), int), "float32"), TypeError, "int64"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(call, error, text):
    with pytest.raises(error, match=text):
        call()


def main() -> None:
    """The looseness of the bounds, printed."""
    print("accumulator, family, K: largest error / mean |a||b|, certain bound / largest error, likely bound / it")
    for accumulator in [*RANDOM, *kinds()]:
        for family in FAMILIES[:-1]:
            for k in (128, 2048):
                with np.errstate(all="ignore"):
                    found = looseness(accumulator, family, k)
                name = accumulator if isinstance(accumulator, str) else called(accumulator)
                print(f"{name:50} {family:11} {k:5}: {found[0]:8.1e} {found[1]:8.1f} {found[2]:8.1f}", flush=True)


if __name__ == "__main__":
    main()
