"""Array arithmetic against `precision.exact`: every pair of the small formats, adversarial pairs of the others."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import exact

parametrize = pytest.mark.parametrize
FLOATS = [f for f in P.formats() if isinstance(f, P.Format)]
SMALL = [f.name for f in FLOATS if f.bits <= 8]
WIDE = ["float16", "bfloat16", "tfloat32", "float32", "float64"]


# --- every pair -------------------------------------------------------------------------------------------------------

EXACT = {
    "add": exact._total,
    "sub": lambda mode, a, b: exact._total(mode, a, exact._opposite(b)),
    "mul": lambda mode, a, b: exact._product(a, b),
    "div": lambda mode, a, b: exact._quotient(a, b),
}


UNIT = 200  # every value of a format of 8 bits, and every midpoint of two, is a multiple of 2^-UNIT


def breakpoints(f: P.Format) -> list[int]:
    """The magnitudes between which roundings are constant, in units of 2^-UNIT: values, midpoints, one step past max."""
    sizes = [int(value * 2**UNIT) for value, _ in exact.values(f)]
    sizes.append(2 * sizes[-1] - sizes[-2])
    return sorted({*sizes, *((a + b) // 2 for a, b in itertools.pairwise([0, *sizes])), 0})


def exact_pairs(name: str, f: P.Format, numbers: list[exact.Number], mode: str) -> tuple[list[exact.Number], list[int]]:
    """An exact result for each class of results that every rounding takes alike, and the class of each pair.

    A class is a sign and a breakpoint, or the open interval between two; zeros, infinities and NaN are their own.
    """
    points = breakpoints(f)
    sizes = [int(x.value * 2**UNIT) for x in numbers]
    place: dict[Any, int] = {}
    results, index = [], []
    for (x, n), (y, m) in itertools.product(zip(numbers, sizes, strict=True), repeat=2):
        if not (n and m) or (name == "add" and n == -m) or (name == "sub" and n == m):
            key: Any = EXACT[name](mode, x, y)
        else:
            if name == "div":
                size, rest = divmod(abs(n) << UNIT, abs(m))
            elif name == "mul":
                size, rest = divmod(abs(n * m), 1 << UNIT)
            else:
                size, rest = abs(n + m if name == "add" else n - m), 0
            negative = (n + m if name == "add" else n - m) < 0 if name in ("add", "sub") else (n < 0) != (m < 0)
            at = bisect.bisect_right(points, size)
            key = negative, at, rest == 0 and points[at - 1] == size
        place.setdefault(key, len(results))
        if place[key] == len(results):
            results.append(EXACT[name](mode, x, y))
        index.append(place[key])
    return results, index


@parametrize("name", EXACT)
@parametrize("fmt", SMALL)
def test_every_pair_of_codes_in_every_mode(fmt: str, name: str) -> None:
    f = P.get_format(fmt)
    x = P.decode(np.arange(1 << f.bits), f, dtype="float32")
    a, b = np.repeat(x, x.size), np.tile(x, x.size)
    numbers = [exact.Number.of(v) for v in x]
    for modes in (["toward_negative"], [m for m in P.ROUNDINGS if m != "toward_negative"]):  # the sign of a zero sum
        results, index = exact_pairs(name, f, numbers, modes[0])
        for mode in modes:
            want = np.array([exact.round(number, f, rounding=mode, policy="ieee") for number in results])[index]
            got = getattr(P, name)(a, b, f, result="code", rounding=mode)
            assert np.array_equal(got, want), first_difference(got, want, a, b)


def first_difference(got: Any, want: Any, *operands: Any) -> str:
    i = int(np.flatnonzero(got != want)[0])
    return f"{[x[i] for x in operands]}: {got[i]:#x}, right is {want[i]:#x} ({np.count_nonzero(got != want)} differ)"


@parametrize("fmt", SMALL)
def test_square_root_of_every_code(fmt: str) -> None:
    x = P.decode(np.arange(1 << P.get_format(fmt).bits), fmt, dtype="float32")
    for mode in P.ROUNDINGS:
        got, want = (which(x, fmt, rounding=mode, result="code") for which in (P.sqrt, exact.sqrt))
        assert np.array_equal(got, want), first_difference(got, want, x)


@parametrize("fmt", ["float16", "bfloat16"])
def test_square_root_of_every_16_bit_code(fmt: str) -> None:
    """Each code in one of the modes, the next code in the next: `exhaustive` takes each in all of them."""
    square_roots(fmt, every=False)


def square_roots(fmt: str, *, every: bool) -> None:
    x = P.decode(np.arange(1 << 16), fmt, dtype="float32")
    for k, mode in enumerate(P.ROUNDINGS):
        some = x if every else x[k :: len(P.ROUNDINGS)]
        got, want = (which(some, fmt, rounding=mode, result="code") for which in (P.sqrt, exact.sqrt))
        assert np.array_equal(got, want), first_difference(got, want, some)


@pytest.mark.exhaustive
@parametrize("fmt", ["float16", "bfloat16"])
def test_square_root_of_every_16_bit_code_in_every_mode(fmt: str) -> None:
    square_roots(fmt, every=True)


# --- 16 bits and more: near-ties, cancellation, subnormal results, overflow, far addends -----------------------------


def adversarial(f: P.Format, count: int, seed: int) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Operands by operation, values of `f` in float64: some drawn as codes, most built to land on a breakpoint."""
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, f.max, -f.max, f.smallest_subnormal, f.smallest_normal]

    def codes(n: int) -> Any:
        bits = rng.integers(0, 1 << f.bits, n, np.uint64)
        x = P.decode(bits.astype(f"uint{max(8, 1 << (f.bits - 1).bit_length())}"), f, dtype="float64")
        x[: len(special)] = special
        return rng.permutation(x)

    def near(x: Any) -> Any:
        """A few ulps around x, as a value of the format."""
        return P.round_to(x * (1 + rng.integers(-3, 4, x.size) * f.eps), f, policy="ieee")

    a, b, c = codes(count), codes(count), codes(count)
    with np.errstate(all="ignore"):
        scale = 2.0 ** rng.integers(f.emin - f.mantissa_bits, f.emax, count)
        small = 2.0 ** rng.integers(-12, 12, count)
        tie = P.ulp(a, f) / 2  # half an ulp of a: the sum is a tie, or nearly
        ones = P.round_to(1 + rng.integers(0, 1 << f.mantissa_bits, count) * f.eps, f)
        product = P.round_to(-a * b, f, policy="ieee")
        root = P.round_to(np.abs(ones * small), f)
        return {
            "add": [np.concatenate([a, a, a, a]), np.concatenate([b, near(-a), near(tie), P.round_to(scale, f)])],
            "mul": [
                np.concatenate([a, ones, P.round_to(ones * scale, f)]),
                np.concatenate([b, near(1 / ones), near(f.smallest_normal / scale)]),
            ],
            "div": [
                np.concatenate([a, near(ones * root), P.round_to(ones * scale, f)]),
                np.concatenate([b, root, near(scale / f.max)]),
            ],
            "sqrt": [np.concatenate([np.abs(a), near(root * root), -np.abs(a[:20])])],
            "fma": [
                np.concatenate([a, a, ones, ones]),
                np.concatenate([b, b, near(1 / ones), small]),
                np.concatenate([c, product, P.round_to(scale, f), near(-ones * small)]),
            ],
        }


OPERATIONS = ["add", "sub", "mul", "div", "sqrt", "fma"]
POLICIES = {
    "ieee": "ieee",
    "saturate": "saturate",
    "torch": "torch",
    "ml_dtypes": "ml_dtypes",
    "mixed": P.Policy(overflow="saturate", infinity="infinity", nan="quiet_signed", subnormals="flush_results"),
    "flush": P.Policy(overflow="infinity", nan="all_ones_signed", subnormals="flush"),
}


@parametrize("name", OPERATIONS)
@parametrize("fmt", WIDE)
def test_adversarial_operands_of_wide_formats(fmt: str, name: str) -> None:
    """Each mode with the next policy, from float64 and, where it holds the operands, from float32."""
    f = P.get_format(fmt)
    operands = adversarial(f, 60, seed=1)["add" if name == "sub" else name]
    for (k, mode), source in itertools.product(enumerate(P.ROUNDINGS), ["float32", "float64"]):
        if source == "float32" and fmt == "float64":
            continue
        policy = list(POLICIES.values())[(k + len(name)) % len(POLICIES)]
        x = [y.astype(source) for y in operands]
        flags = P.Flags()
        how: dict[str, Any] = {"rounding": mode, "policy": policy}
        got = getattr(P, name)(*x, f, result="code", **how)
        want = getattr(exact, name)(*x, f, result="code", source=source, **how)
        assert np.array_equal(got, want), first_difference(got, want, *x)
        again = getattr(P, name)(*x, f, result="code", flags=flags, **how)
        assert np.array_equal(got, again)
        raised = getattr(exact, name)(*x, f, result="flags", source=source, **how)
        for flag in dataclasses.fields(flags):
            mine, right = getattr(flags, flag.name), np.array([flag.name in r for r in raised])
            assert np.array_equal(mine, right), (flag.name, mode, [y[mine != right][0] for y in x])


@parametrize("name", OPERATIONS)
@parametrize("fmt", [*SMALL, "float16", "bfloat16", "float32", "float64"])
def test_stochastic_rounding_of_any_operands(fmt: str, name: str) -> None:
    """Random operands of 53 and of 24 digits, random bits of every number that may need more than float64 holds."""
    rng = np.random.default_rng(2)
    for bits, source in itertools.product([1, 8, 32], ["float32", "float64"]):
        if source == "float32" and fmt == "float64":
            continue
        operands = [
            (rng.standard_normal(150) * 2.0 ** rng.integers(-30, 30, 150)).astype(source)
            for _ in range({"sqrt": 1, "fma": 3}.get(name, 2))
        ]
        mode = P.stochastic(random_bits=rng.integers(0, 1 << bits, 150), bits=bits)
        got, want = (getattr(where, name)(*operands, fmt, rounding=mode, result="code") for where in (P, exact))
        assert np.array_equal(got, want), first_difference(got, want, *operands)


@parametrize("mode", P.ROUNDINGS)
@parametrize("fmt", ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float6_e3m2fn", "float4_e2m1fn"])
def test_operands_between_values_of_the_format(fmt: str, mode: str) -> None:
    """Midpoints of subnormals have few digits: float32 operands may lie on one, and a hair's breadth beside it."""
    f = P.get_format(fmt)
    halves = (np.arange(1, 4 << f.mantissa_bits) * (f.smallest_subnormal / 2)).astype(np.float32)
    halves = halves[np.frexp(halves)[0] * (2 << f.mantissa_bits) % 1 == 0]  # of as many digits as the format has
    for sign, j in itertools.product((1, -1), (23, 24, 26, 31, 40)):
        hair = np.ldexp(np.float32(sign), np.frexp(halves)[1] - j).astype(np.float32)
        for name in ("add", "sub"):
            got = getattr(P, name)(halves, hair, f, rounding=mode)
            want = getattr(exact, name)(halves, hair, f, rounding=mode)
            assert np.array_equal(got.view(np.int32), np.float32(want).view(np.int32)), (name, sign, j)
        product = np.float32([0.5, 2.0, 1.0])[:, None]
        for name in ("mul", "div"):
            got = getattr(P, name)(halves[None], product, f, rounding=mode)
            a, b = np.broadcast_arrays(halves[None], product)
            want = np.float32(getattr(exact, name)(a, b, f, rounding=mode))
            assert np.array_equal(got.view(np.int32), want.view(np.int32)), name


def test_fma_with_addends_60_binades_apart() -> None:
    """float64 alone would lose the addend: 1 + 2^-11 is a tie of float16, and 2^-60 breaks it."""
    a, b = np.float32([1 + 2**-10, 1 + 2**-10, 65504]), np.float32([1, 1, 1])
    tie = np.float32(2**-11) * a
    for far, up in ((2**-70, True), (-(2**-70), False)):
        exact_sum = P.fma(np.float64(1 + 2**-11), np.float64(1), np.float64(far), "float16")
        assert exact_sum == (1 + 2**-10 if up else 1)
    assert P.fma(a, b, tie * 0 + np.float32(2**-126), "float16", rounding="toward_positive")[0] == 1 + 2**-9
    assert P.fma(np.float32(2**64), np.float32(2**-64), np.float32(2**-149), "bfloat16", rounding="to_odd") == 1 + 2**-7
    assert np.isinf(P.fma(a, b, tie, "float16")[2])


@parametrize("policy", POLICIES)
def test_policies_from_every_layout(policy: str) -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 16, (3, 400), dtype=np.uint16)
    for layout in ("float16", "bfloat16", "float32"):
        x = bits.view(ml_dtypes.bfloat16 if layout == "bfloat16" else np.float16)
        x = list(x.astype(np.float32) if layout == "float32" else x)
        for name, fmt in itertools.product(OPERATIONS, ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]):
            operands = x[: {"sqrt": 1, "fma": 3}.get(name, 2)]
            how: dict[str, Any] = {"policy": POLICIES[policy], "result": "code", "rounding": "toward_negative"}
            got = getattr(P, name)(*operands, fmt, **how)
            want = getattr(exact, name)(*operands, fmt, source=layout, **how)
            assert np.array_equal(got, want), first_difference(got, want, *operands)


def test_conversion_between_any_two_formats() -> None:
    small = [f for f in P.formats() if f.bits <= 8]
    for source, target in itertools.product(small, small):
        codes = np.arange(1 << source.bits)
        got = P.convert(codes, source, target, rounding="nearest_away", policy="ieee")
        numbers = np.array([exact.decode(c, source) for c in codes.tolist()], dtype=object)
        want = exact.round(numbers, target, rounding="nearest_away", policy="ieee")
        assert np.array_equal(got, want), (source.name, target.name)
        if isinstance(target, P.Format):
            flags = P.Flags()
            assert np.array_equal(
                P.convert(codes, source, target, rounding="nearest_away", policy="ieee", flags=flags), got
            )
            raised = exact.round(numbers, target, rounding="nearest_away", policy="ieee", result="flags")
            for flag in dataclasses.fields(flags):
                right = np.array([flag.name in r for r in raised])
                assert np.array_equal(getattr(flags, flag.name), right), (source.name, target.name, flag.name)


ONE_SIGN = [
    P.float8_e8m0fnu,
    P.Format("unsigned", 3, 2, signed=False),
    P.Format("unsigned without NaN", 3, 2, signed=False, nan="none", infinities=False),
    P.Format("unsigned of 53 digits", 8, 52, signed=False),
    P.Format("scale of 53 digits", 8, 52, signed=False, zero=False),
    P.Format("scale of 52 digits", 5, 51, signed=False, zero=False, nan="none", infinities=False),
]


@parametrize("negative", ["nan", "clamp", "magnitude"])
@parametrize("f", ONE_SIGN, ids=lambda f: f.name)
def test_results_and_flags_of_formats_that_lack_sign_or_zero(f: P.Format, negative: str) -> None:
    """-7 and -6e38 are alike: what is wrong with them is the sign, not the size."""
    ends = [f.max, float(f.overflow_threshold), f.max * (1 + f.eps), f.smallest_subnormal, f.smallest_subnormal / 4]
    x = np.float64([*ends, *(-y for y in ends), 0.0, -0.0, 1, -7, 1 / 3, -1 / 3, np.inf, -np.inf, np.nan])
    a, b = np.repeat(x, x.size), np.tile(x, x.size)
    cases = itertools.product(["smallest", "nan"], ["toward_positive", "nearest_even", "toward_negative"])
    for (zero, mode), name in zip(cases, itertools.cycle(["mul", "div", "sub"])):
        policy = P.Policy(negative=negative, zero=zero, overflow="infinity", infinity="infinity")  # type: ignore[arg-type]
        how: dict[str, Any] = {"rounding": mode, "policy": policy}
        flags = P.Flags()
        got = getattr(P, name)(a, b, f, result="code", flags=flags, **how)
        want = getattr(exact, name)(a, b, f, result="code", **how)
        assert np.array_equal(got, want), first_difference(got, want, a, b)
        raised = getattr(exact, name)(a, b, f, result="flags", **how)
        for flag in dataclasses.fields(flags):
            mine, right = getattr(flags, flag.name), np.array([flag.name in r for r in raised])
            assert np.array_equal(mine, right), (flag.name, name, mode, a[mine != right][0], b[mine != right][0])


def test_flags_of_negative_results_without_a_sign() -> None:
    """By hand, since the oracle could be wrong in the same way."""
    a, two = np.float32([-3e38, -3.5, -np.inf, 3e38, -1e-38]), np.float32([2])
    for negative, want in {
        "nan": ["invalid", "invalid", "invalid", "overflow inexact", "invalid"],
        "clamp": ["inexact", "inexact", "", "overflow inexact", "inexact"],
        "magnitude": ["overflow inexact", "inexact", "", "overflow inexact", "inexact"],
    }.items():
        flags = P.Flags()
        policy = P.Policy(overflow="infinity", infinity="infinity", negative=negative)  # type: ignore[arg-type]
        P.mul(a, two, "float8_e8m0fnu", policy=policy, flags=flags)
        names = [field.name for field in dataclasses.fields(flags)]
        found = [" ".join(name for name in names if getattr(flags, name)[i]) for i in range(a.size)]
        assert found == want, negative


@parametrize("name", ["float64", "float32"])
def test_flags_where_no_result_is_a_finite_number(name: str) -> None:
    zero, one = np.float64([0.0]), np.float64([1.0])
    for call, raised in [
        (lambda f: P.div(one, zero, name, flags=f), ("divide_by_zero",)),
        (lambda f: P.sqrt(-one, name, flags=f), ("invalid",)),
        (lambda f: P.div(zero, zero, name, flags=f), ("invalid",)),
        (lambda f: P.add(one * np.nan, one, name, flags=f), ()),
        (lambda f: P.fma(one * np.inf, one, one, name, flags=f), ()),
        (lambda f: P.add(one[:0], one, name, flags=f), ()),
    ]:
        flags = P.Flags()
        call(flags)
        assert flags.raised == raised


# --- arrays of every kind ---------------------------------------------------------------------------------------------


def test_shapes_dtypes_and_numbers() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert P.add(a, a[0], "float16").shape == (3, 4)
    assert np.array_equal(P.add(a[::-1, ::-2], a[:, :1], "float16"), (a[::-1, ::-2] + a[:, :1]))
    assert P.add(a.T, 1, "float16").dtype == np.float32
    assert P.mul(np.zeros((0, 4), np.float64), a[0], "float32").shape == (0, 4)
    assert P.mul(np.zeros((0, 4), np.float64), a[0], "float32").dtype == np.float64
    assert isinstance(P.add(np.float32(1), np.float32(2), "float16"), np.float32)
    assert P.add(1.0, 2, "float16").shape == ()
    half = np.float16([1.5])
    assert P.add(half, half, "float8_e5m2").dtype == np.float16
    assert P.add(half, half.astype(ml_dtypes.bfloat16), "float8_e5m2").dtype == np.float32
    big_endian = a.astype(">f4")
    assert np.array_equal(P.add(big_endian, a, "float16"), a + a)
    assert P.div(a, 3, "float8_e4m3fn", result="code").dtype == np.uint8


@pytest.mark.filterwarnings("error")
def test_python_numbers_are_taken_exactly() -> None:
    for name in ("float16", "bfloat16", "float32", "float64"):
        f = P.get_format(name)
        numbers = [0, -0.0, 1, -3.5, f.max, -f.smallest_subnormal, f.smallest_normal, -np.inf, np.nan, -(2**7)]
        for x in numbers:
            tensor = torch.zeros(2, dtype=getattr(torch, name))
            array = P.encode(np.float64([x]), f, policy="ieee")
            kept = P.encode(P.mul(tensor + 1, x, f), f, policy="ieee").numpy()
            assert np.array_equal(kept, np.repeat(array, 2)), (name, x)
            zeros = np.ones(2, ml_dtypes.bfloat16 if name == "bfloat16" else name)
            assert np.array_equal(P.mul(zeros, x, f, result="code"), kept), (name, x)
    assert P.convert([1], "float8_e5m2", "float64", result="value").dtype == np.float64
    assert P.convert([1], "float8_e5m2", "float64", result="value", flags=P.Flags()).tolist() == [2.0**-16]


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_a_nan() -> None:
    for bits, wider in (
        (np.uint32(0x7F800001), np.float64),
        (np.uint16(0x7C01), np.float32),
        (np.uint16(0x7C01), np.float64),
    ):
        signalling = np.array([bits]).view(np.float32 if bits.itemsize == 4 else np.float16)
        for x, y in ((signalling, wider([1])), (torch.from_numpy(signalling), torch.from_numpy(wider([1])))):
            assert np.isnan(np.asarray(P.add(x, y, "float16"))).all()


def test_large_arrays_mix_blocks_of_both_kinds() -> None:
    """Blocks that float32 can decide beside others, at the same positions as one by one."""
    rng = np.random.default_rng(5)
    x = P.round_to(rng.standard_normal((3, 90_000)).astype(np.float32), "bfloat16")
    x[:, 20_000:30_000] = rng.standard_normal((3, 10_000))
    x[:, 45_000] = np.inf
    for name, mode in itertools.product(OPERATIONS, ["nearest_even", "toward_positive"]):
        operands = x[: {"sqrt": 1, "fma": 3}.get(name, 2)]
        whole = getattr(P, name)(*operands, "bfloat16", rounding=mode)  # with numba, partly a compiled loop
        wide = getattr(P, name)(*operands.astype(np.float64), "bfloat16", rounding=mode)
        assert np.array_equal(whole.astype(np.float64).view(np.int64), wide.view(np.int64))


@parametrize("n", [3, 70_000])
def test_a_policy_may_raise_for_a_nan_that_the_operation_makes(n: int) -> None:
    strict = P.Policy(overflow="infinity", infinity="infinity", nan="raise")
    a, b = np.full(n, np.inf, np.float32), np.full(n, -np.inf, np.float32)
    assert np.isinf(P.sub(a, b, "float16", policy=strict)).all()
    for x, y in ((a, b), (torch.from_numpy(a), torch.from_numpy(b))):
        with pytest.raises(ValueError, match="NaN"):
            P.add(x, y, "float16", policy=strict)


@pytest.mark.filterwarnings("ignore")  # of the compiler
@parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["eager", "compiled"]
)  # compiling takes half a minute for each operation
def test_tensors_have_the_bits_of_arrays(device: str, compiled: bool) -> None:
    bits = np.random.default_rng(6).integers(0, 1 << 16, (3, 3000), dtype=np.uint16)
    bits[:, :6] = np.arange(6, dtype=np.uint16) * 0x4000
    wide = (bits.astype(np.uint32) << 16 | bits[::-1]).view(np.float32)
    names = ["div", "fma"] if compiled else OPERATIONS
    ways = [
        ("nearest_even", "torch"),
        ("toward_negative", "flush"),
        ("to_odd", "ieee"),
        ("toward_positive", "saturate"),
    ]
    cases = [
        (name, *way) for i, name in enumerate(names) for way in (ways[i % 2], ways[2 + i % 2])[: 1 if compiled else 2]
    ]

    def everything(x: Any, y: Any) -> list[Any]:
        out = []
        for name, mode, policy in cases:
            n = {"sqrt": 1, "fma": 3}.get(name, 2)
            how: dict[str, Any] = {"rounding": mode, "policy": POLICIES[policy]}
            out.append(getattr(P, name)(*x[:n], "bfloat16", **how))
            out.append(getattr(P, name)(*y[:n], "float8_e5m2", result="code", **how))
        return out

    run = torch.compile(everything, fullgraph=True) if compiled else everything
    x = list(torch.from_numpy(wide).to(device))
    y = list(torch.from_numpy(bits.view(np.int16)).to(device).view(torch.bfloat16))
    want = everything(list(wide), list(bits.view(ml_dtypes.bfloat16)))
    for case, got, right in zip(itertools.chain(*zip(cases, cases, strict=True)), run(x, y), want, strict=True):
        assert got.device.type == device
        assert got.cpu().numpy().tobytes() == right.tobytes(), case


def test_recorded_kernels_are_c() -> None:
    """What CUDA gets: one function per task, of every operand and the random bits."""
    from precision import arithmetic

    mode = P.stochastic(random_bits=0, bits=8)
    for operation, names in ((arithmetic.FMA, "T x0, T x1, T x2, T r"), (arithmetic.SQRT, "T x0, T r")):
        task, _ = arithmetic._task(operation, "float8_e4m3fn", mode, "torch", "value", arithmetic.FLOAT32)
        assert f"halfulp({names})" in arithmetic.cuda_source(task)


FLUSHED = """
import ml_dtypes, numpy as np, torch, precision as P
x = P.decode(np.arange(0, 1 << 16, 7), "bfloat16")
y = x[::-1].copy()
cases = [(n, m) for n in ("add", "mul", "div", "fma", "sqrt") for m in ("nearest_even", "toward_positive")]
def everything():
    return b"".join(
        getattr(P, n)(*[x, y, y][: {"sqrt": 1, "fma": 3}.get(n, 2)], f, rounding=m, result="code").tobytes()
        for n, m in cases for f in ("bfloat16", "float32", "float16")
    )
subnormals = [np.array([n], f"uint{bits}") for n, bits in ((512, 16), (512, 32), (1, 32))]
mixed = [(u.view(ml_dtypes.bfloat16 if u.itemsize == 2 else np.float32), np.float64([0])) for u in subnormals]
mixed += [(x, x.dtype.type(0)[None].astype(np.float32)) for x in (u.view(np.float16) for u in subnormals[:1])]
mixed += [(x, np.float32([0])) for x, _ in mixed[:1]]
mixed += [(np.float32([0]), 2.0**-140), (np.float64([0]), 5e-324), (np.float16([0]), 2.0**-24)]
def tensor(x):
    if isinstance(x, float): return x
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else torch.from_numpy(x)
def beside_wider():
    # Operands that are converted before anything is computed: arrays, tensors, Python numbers.
    out = [P.add(a, b, "float64" if a.dtype == np.float64 or not isinstance(b, float) and b.dtype == np.float64
                 else "float16" if a.dtype == np.float16 and isinstance(b, float) else "float32") for a, b in mixed]
    again = [P.add(tensor(a), tensor(b), str(x.dtype)).numpy() for (a, b), x in zip(mixed, out, strict=True)]
    assert [x.tobytes() for x in out] == [x.tobytes() for x in again]
    assert all(x.view(f"u{x.itemsize}").all() for x in out)
    return b"".join(x.tobytes() for x in out)
first = beside_wider()
assert P.add(*mixed[1], "float64")[0] == 2.0**-140
before = everything()
assert torch.set_flush_denormal(True)
assert np.float32(1e-40) * np.float32(1) == 0
assert everything() == before
assert beside_wider() == first
"""


def test_flush_to_zero_changes_nothing() -> None:
    subprocess.run([sys.executable, "-c", FLUSHED], check=True, timeout=120)


# --- refusals ---------------------------------------------------------------------------------------------------------

X = np.float32([1, 2, 3])
T = torch.from_numpy(X)


@parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: P.add(X, np.arange(3), "float16"),
            TypeError,
            "an operand has dtype int64: convert it to a float dtype",
        ),
        (lambda: P.add(X, X, "int8"), TypeError, "int8 is an integer format; arithmetic rounds to a floating-point"),
        (
            lambda: P.add(X, X[:2], "float16"),
            ValueError,
            r"shapes do not broadcast: a \(3,\) and b \(2,\); from the last",
        ),
        (lambda: P.fma(T, T, T[:2], "float16"), ValueError, r"do not broadcast: a \(3,\) and b \(3,\) and c \(2,\)"),
        (
            lambda: P.add(X.astype(np.float16), 1, "bfloat16"),
            ValueError,
            "float16 cannot hold every value of bfloat16: convert an operand to float32 first, or ask for codes, result=",
        ),
        (
            lambda: P.add(X, 10**400, "float16"),
            ValueError,
            "an integer of 1329 bits is no value of the other operands'",
        ),
        (lambda: P.add(T, -(10**400), "float16"), ValueError, "an integer of 1329 bits is no value of the other"),
        (lambda: P.add(2**53 + 1, 1.0, "float16"), ValueError, "9007199254740993 is no value of .* float64: no dtype"),
        (lambda: P.add(X, 1e39, "float64"), ValueError, "float32 cannot hold every value of float64"),
        (lambda: P.add(X, 1e39, "float16"), ValueError, r"1e\+39 is no value of the other operands' dtype float32"),
        (lambda: P.add(T, 1e39, "float16"), ValueError, r"1e\+39 is no value of the other operands' dtype float32"),
        (
            lambda: P.add(T, 1.00390625 + 2**-40, "bfloat16"),
            ValueError,
            "1.0039062500009095 is no value .* float32: pass",
        ),
        (
            lambda: P.sub(T.half(), 1e5, "float16"),
            ValueError,
            "100000.0 is no value of the other operands' dtype float16",
        ),
        (
            lambda: P.add(T.half(), 2.0**-25, "float16"),
            ValueError,
            "e-08 is no value of the other operands' dtype float16",
        ),
        (
            lambda: P.add(T.bfloat16(), 257, "bfloat16"),
            ValueError,
            "257 is no value of the other operands' dtype bfloat16",
        ),
        (
            lambda: P.add(T.to_sparse(), T, "float16"),
            TypeError,
            r"the layout of a is torch.sparse_coo: pass a.to_dense\(\)",
        ),
        (lambda: P.mul(T, T.to_sparse(), "float16"), TypeError, "the layout of b is torch.sparse_coo"),
        (
            lambda: P.add(np.ma.masked_array(X, X > 1), X, "float16"),
            TypeError,
            "a is a masked array, whose mask would be",
        ),
        (
            lambda: P.sqrt(np.ma.masked_array(X, X > 1), "float16"),
            TypeError,
            "x is a masked array, whose mask would be",
        ),
        (lambda: P.add(X, "1", "float16"), TypeError, "; allowed are float16, bfloat16, float32 and float64$"),
        (
            lambda: P.add(X, None, "float16"),
            TypeError,
            "dtype object; allowed are float16, bfloat16, float32 and float64$",
        ),
        (
            lambda: P.add(X, X.astype(ml_dtypes.float8_e5m2), "float16"),
            TypeError,
            "operand has dtype float8_e5m2: its elem",
        ),
        (
            lambda: P.div(X * 0, 0, "float16", policy=P.Policy(nan="raise")),
            ValueError,
            "an operand is NaN, or this div makes one, and the policy says to raise for one; float16: see Policy.nan",
        ),
        (
            lambda: P.sub(X * np.inf, np.inf, "float4_e2m1fn", policy=P.Policy(missing_nan="raise")),
            ValueError,
            "or this sub makes one, and the policy says to raise for one; float4_e2m1fn",
        ),
        (
            lambda: P.convert([1], "int8", "float16", result="x"),
            ValueError,
            "result is 'x'; it must be 'value' or 'code'",
        ),  # type: ignore[arg-type]
        (lambda: P.add(X, 0.1, "float16"), ValueError, "0.1 is no value of the other operands' dtype float32"),
        (lambda: P.add(X, True, "float16"), TypeError, "dtype bool"),
        (lambda: P.add(X, X, "float16", flags=True), TypeError, "flags is True; pass a P.Flags"),
        (lambda: P.add(X, X, "float16", result="codes"), ValueError, "result is 'codes'; it must be 'value' or 'code'"),
        (lambda: P.add(X, torch.ones(3), "float16"), TypeError, "operands are tensors and a ndarray"),
        (
            lambda: P.add(torch.ones(3), torch.ones(3, device="meta"), "float16"),
            ValueError,
            "operands are on cpu, meta",
        ),
        (lambda: P.mul(torch.ones(3, requires_grad=True), 2, "float16"), ValueError, "an operand requires grad"),
        (lambda: P.sqrt(X.astype(complex), "float16"), TypeError, "dtype complex128"),
        (
            lambda: P.convert(np.arange(4), "uint4", "int8", flags=P.Flags()),
            TypeError,
            "int8 is an integer format; flags",
        ),
        (
            lambda: P.convert(np.arange(40), "uint4", "float16"),
            ValueError,
            "codes reach from 0 to 39; uint4 has codes 0 to 15",
        ),
        (lambda: P.add(X, X, "float17"), ValueError, "unknown format"),
    ],
)
def test_refusals(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.filterwarnings("ignore")
def test_float64_and_flags_are_not_traced() -> None:
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(Exception, match="cannot be traced"):
        torch.compile(lambda y: P.add(y, y, "float16"), fullgraph=True)(x)
