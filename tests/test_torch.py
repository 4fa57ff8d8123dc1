"""torch: tensors of every shape, the same bits compiled, on CUDA, under flush-to-zero and from many threads.

NumPy's results are proven in `test_rounding` and `test_codec`; here torch must give the same bits.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision import _engine
from properties.laws._grid import critical_inputs, random_inputs

# torch's compiler imports modules of its own that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

Array = np.ndarray[Any, Any]
AnyFormat = P.Format | P.IntFormat

FORMATS = P.formats()
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CUSTOM = [
    P.Policy(subnormals="flush", nan="all_ones_signed", missing_nan="opposite_zero", negative="clamp"),
    P.Policy(overflow="infinity", infinity="saturate", subnormals="flush_results", missing_nan="zero", zero="nan"),
]


def bits(t: torch.Tensor) -> Array:
    """The bit patterns of a tensor, as a NumPy array."""
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.detach().cpu().contiguous().view(plain).numpy()


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    __tracebackhide__ = True
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    a, b = bits(got), bits(want)
    if not np.array_equal(a, b):
        i = np.argwhere(a != b)
        pytest.fail(
            f"{len(i)} of {a.size} differ, first at {tuple(i[0])}: got {a[tuple(i[0])]:#x}, right {b[tuple(i[0])]:#x}"
        )


def holding(x: torch.Tensor, fmt: AnyFormat) -> torch.Tensor:
    """`x`, or `x` as float64 where `round_to` refuses its dtype."""
    try:
        P.round_to(x[:0], fmt)
    except ValueError:
        return x.to(torch.float64)
    return x


def some_inputs(fmt: AnyFormat | str, dtype: Any = np.float32, count: int = 20_000) -> torch.Tensor:
    """Critical inputs of a format (for wide ones, that many of them) and random patterns, as a tensor."""
    x = critical_inputs(fmt, dtype)
    if x.size > count:
        x = np.random.default_rng(0).choice(x, count, replace=False)
    return torch.from_numpy(np.concatenate([x, random_inputs(1003, dtype)]))


def policies(fmt: AnyFormat) -> list[Any]:
    """The presets by name, one for each distinct policy, and two others."""
    return [*{P.get_policy(name, fmt): name for name in reversed(P.POLICIES)}.values(), *CUSTOM]


# --- tensors of any kind --------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "0-d": lambda t: t[0, 0],
    "empty": lambda t: t[:0],
    "empty rows": lambda t: t[:, :0],
    "one": lambda t: t[1:2, 1:2],
    "contiguous": lambda t: t,
    "transposed": lambda t: t.T,
    "every third": lambda t: t[::2, ::3],
    "column": lambda t: t[:, 1],
    "offset": lambda t: t[1:, 2:],
    "expanded": lambda t: t[:, :1].expand(-1, 7),
    "expanded 0-d": lambda t: t[0, 0].expand(3, 4),
    "4-d": lambda t: t.reshape(2, 3, 2, 5).permute(3, 0, 2, 1),
    "flipped": lambda t: t.flip(0),
}


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.int8, torch.int32, torch.int64], ids=lambda d: str(d).removeprefix("torch.")
)
def test_views(view: str, dtype: torch.dtype) -> None:
    base = (torch.arange(60, dtype=torch.float64).reshape(6, 10) - 23.7).to(dtype)
    x = VIEWS[view](base)
    flat = torch.tensor(x.flatten().tolist(), dtype=torch.float64)
    rounded = P.round_to(x, "float8_e5m2")
    assert (rounded.dtype, rounded.shape) == (dtype, x.shape)
    if rounded.numel():
        assert rounded.flatten().to(torch.float64).tolist() == P.round_to(flat, "float8_e5m2").tolist()
    codes = P.encode(x, "float8_e5m2")
    assert (codes.dtype, codes.shape) == (torch.uint8, x.shape)
    assert torch.equal(codes.flatten(), P.encode(flat, "float8_e5m2"))
    assert torch.equal(P.decode(codes, "float8_e5m2").to(torch.float64), rounded.to(torch.float64))
    assert torch.equal(base, (torch.arange(60, dtype=torch.float64).reshape(6, 10) - 23.7).to(dtype))  # untouched


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_random_bits_follow_the_view(view: str) -> None:
    """Broadcast random bits are of the element, whatever the strides."""
    x = VIEWS[view](torch.linspace(-30, 30, 60).reshape(6, 10))
    r = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(1))
    got = P.round_to(x, "float8_e4m3fn", rounding=P.stochastic(random_bits=r, bits=8))
    for i in itertools.product(*map(range, x.shape)):
        one = P.round_to(x[i].numpy(), "float8_e4m3fn", rounding=P.stochastic(random_bits=int(r[i]), bits=8))
        assert got[i] == float(one)


@pytest.mark.parametrize(
    "view", ["reversed", "transposed", "negative rows", "every third", "broadcast", "fortran", "0-d", "empty"]
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8", ">f2", "i4", ">i8", "u2", "bfloat16"])
def test_numpy_views(view: str, dtype: str) -> None:
    """The same for arrays: negative strides, other byte orders, bfloat16 of ml_dtypes."""
    dt = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    base = (np.arange(60.0).reshape(6, 10) - (0 if dt.kind == "u" else 23.7)).astype(dt)
    x = {
        "reversed": lambda: base[::-1, ::-1],
        "transposed": lambda: base.T,
        "negative rows": lambda: base[4:1:-2],
        "every third": lambda: base[:, ::3],
        "broadcast": lambda: np.broadcast_to(base[0], (4, 10)),
        "fortran": lambda: np.asfortranarray(base),
        "0-d": lambda: base[2, 3, ...],
        "empty": lambda: base[:0],
    }[view]()
    want = P.round_to(x.astype(np.float64), "float8_e4m3fn")
    got = P.round_to(x, "float8_e4m3fn")
    assert (got.dtype, got.shape) == (dt, x.shape)
    assert np.array_equal(got.astype(np.float64), want)
    codes = P.encode(x, "float8_e4m3fn")
    assert (codes.dtype, codes.shape) == (np.uint8, x.shape)
    assert np.array_equal(P.decode(codes, "float8_e4m3fn").astype(np.float64), want)


def test_scalars_and_lists() -> None:
    assert isinstance(P.round_to(np.float32(0.3), "float8_e4m3fn"), np.float32)
    assert P.round_to(0.3, "float8_e4m3fn").shape == ()
    assert P.round_to([[0.3, 448], [1e9, -0.0]], "float8_e4m3fn").tolist() == [[0.3125, 448], [448, -0.0]]
    assert P.round_to(17, "float8_e4m3fn") == 16
    assert P.encode(ml_dtypes.bfloat16(464), "float8_e4m3fn") == 0x7E
    assert P.encode(torch.tensor(464.0), "float8_e4m3fn").shape == ()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_eager_tensors_have_numpys_bits(fmt: AnyFormat, dtype: Any) -> None:
    x = some_inputs(fmt, dtype, 3000)
    for rounding, policy in zip(P.ROUNDINGS, itertools.cycle(policies(fmt)), strict=False):
        how = {"rounding": rounding, "policy": policy}
        same(P.encode(x, fmt, **how), torch.from_numpy(P.encode(x.numpy(), fmt, **how)))
        y = holding(x, fmt)
        same(P.round_to(y, fmt, **how), torch.from_numpy(P.round_to(y.numpy(), fmt, **how)))


def test_bfloat16_tensors_have_the_bits_of_ml_dtypes_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "_numba", lambda: None)  # whose loops take long to compile
    pattern = np.arange(1 << 16, dtype=np.uint16)
    tensor, array = torch.from_numpy(pattern.view(np.int16)).view(torch.bfloat16), pattern.view(ml_dtypes.bfloat16)
    for name in ("float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "bfloat16", "int8"):
        for policy in ("ieee", "torch"):
            assert np.array_equal(bits(P.round_to(tensor, name, policy=policy)).view(np.uint16),
                                  P.round_to(array, name, policy=policy).view(np.uint16))  # fmt: skip
            assert np.array_equal(P.encode(tensor, name, policy=policy).numpy(), P.encode(array, name, policy=policy))


def test_gradients_are_refused_and_parameters_accepted_without() -> None:
    x = torch.tensor([0.3, 1000.0], requires_grad=True)
    for call in (P.round_to, P.encode, P.ulp, P.next_up, P.next_down):
        with pytest.raises(
            ValueError, match=r"x requires grad, and rounding has no useful derivative: pass x\.detach\(\)"
        ):
            call(x, "float8_e4m3fn")
        with pytest.raises(ValueError, match="fake_quantize"):
            call(torch.nn.Parameter(x.detach()), "float8_e4m3fn")
        with torch.no_grad():
            want = call(x.detach(), "float8_e4m3fn")
            for given in (x, torch.nn.Parameter(x.detach()), x * 1):
                got = call(given, "float8_e4m3fn")
                assert type(got) is torch.Tensor
                assert not got.requires_grad
                same(got, want)
    with torch.inference_mode():
        same(P.round_to(x * 1, "float8_e4m3fn"), torch.tensor([0.3125, 448.0]))
    through = x + (P.round_to(x.detach(), "float8_e4m3fn") - x).detach()  # as the message says
    through.sum().backward()
    assert (through.tolist(), x.grad.tolist()) == ([0.3125, 448.0], [1, 1])


def test_conjugate_and_negative_bits_are_resolved() -> None:
    """`.imag` of a conjugated tensor is a view that negates when read."""
    z = torch.tensor([1 + 0.3j, 2 - 1000j])
    lazy = z.conj().imag
    assert lazy.is_neg()
    same(P.round_to(lazy, "float8_e4m3fn"), torch.tensor([-0.3125, 448.0]))
    assert P.encode(lazy, "float8_e4m3fn").tolist() == [0xAA, 0x7E]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float16", "int4"])
def test_meta_tensors_have_the_shapes_and_dtypes_of_others(name: str) -> None:
    fmt = P.get_format(name)
    for dtype in (torch.float32, torch.float16, torch.int32):
        x = torch.ones(3, 5).to(dtype)
        codes = P.encode(x, fmt)
        calls = [(fn, x) for fn in (P.round_to, P.encode, P.ulp, P.next_up, P.next_down)]
        calls += [(fn, codes) for fn in (P.decode, P.classify, *([P.pack] if fmt.bits <= 8 else []))]
        for fn, given in calls:
            real, unreal = fn(given, fmt), fn(given.to("meta"), fmt)
            assert unreal.is_meta
            assert (unreal.shape, unreal.dtype) == (real.shape, real.dtype), fn
    with pytest.raises(ValueError, match="a policy that raises for NaN cannot be traced"):
        P.encode(torch.empty(3, device="meta"), "float8_e5m2", policy=P.Policy(nan="raise"))


# --- torch.compile ------------------------------------------------------------------------------

# (function, format, rounding, policy, input dtype): each compiles for some seconds, so the default run has few.
COMPILED = [
    ("round_to", "float8_e4m3fn", "nearest_even", "saturate", np.float32),
    ("round_to", "bfloat16", "nearest_even", "ieee", np.float32),
    ("encode", "float4_e2m1fn", "to_odd", CUSTOM[0], np.float16),
    ("round_to", "float16", "stochastic", "ieee", np.float32),
]
MORE = [
    ("encode", "tfloat32", "toward_positive", "ieee", np.float32),
    ("encode", "float8_e8m0fnu", "toward_positive", "ml_dtypes", np.float32),
    ("round_to", "int8", "nearest_away", "saturate", np.float64),
    *((kind, "float8_e4m3fn", None, None, np.float32) for kind in ("ulp", "next_up", "next_down")),
]
MORE += [
    (kind, fmt.name, P.ROUNDINGS[(i + j) % 6], policies(fmt)[(i * 2 + j) % len(policies(fmt))], dtype)
    for i, fmt in enumerate(FORMATS)
    for j, (kind, dtype) in enumerate([("round_to", np.float64), ("encode", np.float32), ("encode", np.float64)])
]


def _short(x: Any) -> str:
    """A test's id: a custom policy is "custom", a dtype its name."""
    return "custom" if isinstance(x, P.Policy) else str(getattr(x, "__name__", x))


def _compile(fn: Any, backend: str = "inductor") -> Any:
    """In one graph; the backend "aot_eager" traces all the way down too, but runs the operations one by one."""
    torch._dynamo.reset()
    return torch.compile(fn, fullgraph=True, backend=backend)


def _same_compiled(kind: str, name: str, rounding: Any, policy: Any, dtype: Any) -> None:
    x = some_inputs(name, dtype, 20_000)
    call = getattr(P, kind)
    if rounding == "stochastic":
        random = torch.randint(0, 1 << 11, x.shape, generator=torch.Generator().manual_seed(2))

        def fn(x: torch.Tensor) -> Any:
            return call(x, name, rounding=P.stochastic(random_bits=random, bits=11), policy=policy)

    else:
        how = {"rounding": rounding, "policy": policy} if rounding else {}

        def fn(x: torch.Tensor) -> Any:
            return call(x, name, **how)

    compiled, want = _compile(fn), fn(x)
    same(compiled(x), want)
    if torch.set_flush_denormal(True):
        try:
            flushed = compiled(x)
        finally:
            torch.set_flush_denormal(False)
        same(flushed, want)


@pytest.mark.parametrize(("kind", "name", "rounding", "policy", "dtype"), COMPILED, ids=_short)
def test_compiled_is_eager(kind: str, name: str, rounding: str, policy: Any, dtype: Any) -> None:
    """With fullgraph=True, on critical inputs, the subnormals among them; and again under flush-to-zero."""
    _same_compiled(kind, name, rounding, policy, dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "name", "rounding", "policy", "dtype"), MORE, ids=_short)
def test_compiled_is_eager_for_every_format(kind: str, name: str, rounding: str, policy: Any, dtype: Any) -> None:
    _same_compiled(kind, name, rounding, policy, dtype)


def test_compiled_bfloat16_through_codes_and_back() -> None:
    """A whole cast in one graph: encode, decode and arithmetic around it; all bfloat16 patterns."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return P.decode(P.encode(x, "float8_e5m2", policy="ieee"), "float8_e5m2") * 2

    same(_compile(fn)(x), fn(x))


def test_one_graph_of_everything_that_is_traced() -> None:
    """Neighbours, classes, codes packed and unpacked, integers: what is no rounding of floats, in one graph."""
    x = some_inputs("float8_e4m3fn", count=3000)
    integers = torch.tensor([0, 1, -1, 17, -300, 2**24 + 1, 2**53 + 1, -(2**60) - 3, 2**63 - 1, -(2**63)])
    codes = P.encode(x, "float6_e3m2fn")

    def fn(x: torch.Tensor, codes: torch.Tensor, integers: torch.Tensor) -> list[Any]:
        packed = P.pack(codes, "float6_e3m2fn")
        return [
            P.ulp(x, "bfloat16"),
            P.next_up(x, "float8_e4m3fn"),
            P.next_down(x, "int8"),
            P.classify(codes, "float6_e3m2fn"),
            packed,
            P.unpack(packed, "float6_e3m2fn", codes.shape),
            P.encode(integers, "float8_e4m3fn", rounding="to_odd"),
            P.encode(integers.to(torch.uint64), "int16"),
            P.round_to(integers.to(torch.int16), "bfloat16", rounding="toward_zero"),
        ]

    for got, want in zip(_compile(fn, "aot_eager")(x, codes, integers), fn(x, codes, integers), strict=True):
        same(got, want)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_the_definition_on_tensors_is_the_table(fmt: AnyFormat) -> None:
    """What a compiler traces, run eagerly through a tensor subclass: every mode, every policy."""

    class Traced(torch.Tensor):
        pass

    for dtype in (np.float32, np.float64):
        x = some_inputs(fmt, dtype, 2000)
        for i, (rounding, policy) in enumerate(itertools.product(P.ROUNDINGS, policies(fmt))):
            if i % (7 if fmt.bits > 8 else 1 if dtype is np.float32 else 5):
                continue  # the tables of wide formats take long to build
            how = {"rounding": rounding, "policy": policy}
            same(P.encode(x.as_subclass(Traced), fmt, **how).as_subclass(torch.Tensor), P.encode(x, fmt, **how))
            y = holding(x, fmt)
            same(P.round_to(y.as_subclass(Traced), fmt, **how).as_subclass(torch.Tensor), P.round_to(y, fmt, **how))
        random = torch.randint(0, 1 << 9, x.shape, generator=torch.Generator().manual_seed(3))
        how = {"rounding": P.stochastic(random_bits=random, bits=9), "policy": "ieee"}
        same(P.encode(x.as_subclass(Traced), fmt, **how).as_subclass(torch.Tensor), P.encode(x, fmt, **how))
        for neighbour in (P.ulp, P.next_up, P.next_down):
            y = holding(x, fmt)
            same(neighbour(y.as_subclass(Traced), fmt).as_subclass(torch.Tensor), neighbour(y, fmt))
        codes = P.encode(x, fmt, policy="ieee")
        if fmt.bits < 64:
            traced = P.decode(codes.to(torch.int64).as_subclass(Traced), fmt)
            same(traced.as_subclass(torch.Tensor), P.decode(codes, fmt))


def test_what_cannot_be_traced_is_refused() -> None:
    x = torch.tensor([1.0])
    raising = P.Policy(nan="raise")
    with pytest.raises(Exception, match=r"a policy that raises for NaN cannot be traced: choose another Policy\.nan"):
        _compile(lambda x: P.encode(x, "float8_e5m2", policy=raising), "eager")(x)
    with pytest.raises(
        Exception, match="64-bit integers are not rounded to more than 40 significand bits, random ones"
    ):
        _compile(lambda x: P.encode(x, "float64"), "eager")(torch.tensor([1]))
    rounded = _compile(lambda x: P.round_to(x, "float8_e5m2"), "aot_eager")
    assert rounded(torch.tensor([5, 9], dtype=torch.int8)).tolist() == [5, 8]
    with pytest.raises(
        RuntimeError, match=r"x has dtype torch.int8, which cannot hold every rounded value: use float64"
    ):
        rounded(torch.tensor([5, 127], dtype=torch.int8))
    torch._dynamo.reset()


# --- flush-to-zero and threads ------------------------------------------------------------------

DIGESTS = """
    import hashlib, sys
    import numpy as np, torch
    flush = sys.argv[1] == "flush"
    if flush:
        assert torch.set_flush_denormal(True), "unsupported"
        subnormal = np.array([1], np.uint32).view(np.float32)
        assert (subnormal * np.float32(1))[0].view(np.uint32) == 0, "NumPy is not flushed"
    import precision as P

    def patterns(width):
        tops = np.arange(1 << 12, dtype=np.uint64) << np.uint64(width - 12)
        lows = np.array([0, 1, (1 << (width - 13)) - 1, 1 << (width - 13), (1 << (width - 13)) + 1], np.uint64)
        small = np.arange(1 << 10, dtype=np.uint64)
        return np.concatenate([(tops[:, None] | lows).ravel(), small]).astype(f"u{width // 8}")

    f32, f64 = patterns(32).view(np.float32), patterns(64).view(np.float64)
    halves = np.arange((1 << 16) - 1, dtype=np.uint16)  # too few for a loop of the `fast` extra, which takes long to compile
    f16, bf16 = halves.view(np.float16), torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16)
    t32, t64 = torch.from_numpy(f32), torch.from_numpy(f64)

    def show(what, *results):
        h = hashlib.sha256()
        for r in results:
            if isinstance(r, torch.Tensor):
                r = r.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[r.element_size()])
                r = r.numpy()
            h.update(np.ascontiguousarray(r).tobytes())
        print(what, h.hexdigest())

    modes = P.ROUNDINGS
    for i, f in enumerate(P.formats()):
        mode, policy = modes[i % 6], ("ieee", "saturate", "ml_dtypes", P.Policy(subnormals="flush"))[i % 4]
        how = dict(rounding=mode, policy=policy)
        show(f"encode {f}", *(P.encode(x, f, **how) for x in (f32, f64, f16, bf16, t32, t64)))
        if f.bits <= 8:
            show(f"nearest {f}", *(P.encode(x, f) for x in (f32, f64, bf16)))
            show(f"long {f}", P.encode(np.resize(f32, 70_000), f))
        random = P.stochastic(random_bits=np.arange(f32.size) % 256, bits=8)
        show(f"stochastic {f}", P.encode(f32, f, rounding=random), P.encode(f64, f, rounding=random))
        show(f"round_to {f}", P.round_to(f64, f, **how), P.round_to(t64, f, **how))
        if f.mantissa_bits <= 23:
            show(f"round_to float32 {f}", P.round_to(f32, f, **how), P.round_to(t32, f, **how))
        codes = P.encode(f64, f, policy="ieee")
        show(f"decode {f}", codes, P.decode(codes, f), P.decode(torch.from_numpy(codes), f))
        wide = f.bits in range(9, 20)  # whose tables take long to build, two of which are enough
        neighbours = [] if wide and f.name != "float16" else [P.next_up(f64, f), P.next_down(f64, f), P.ulp(f64, f)]
        show(f"neighbours {f}", *neighbours, P.classify(codes, f))
        if f.bits <= 16:
            show(f"values {f}", P.values(f))
            show(f"facts {f}", np.array([f.max, f.smallest_normal]))
    for f, x in (("float16", f16), ("bfloat16", bf16), ("float32", t32)):
        show(f"neighbours in {f}", P.next_up(x, f), P.next_down(x, f), P.ulp(x, f))
"""


def _digests(mode: str) -> dict[str, str]:
    environment = os.environ | {"PYTHONPATH": str(Path(P.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(DIGESTS), mode],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "AssertionError: unsupported" in done.stderr:
        pytest.skip("this processor cannot flush subnormals to zero")
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def test_flush_to_zero_changes_no_bit() -> None:
    """A process that sets flush-to-zero before anything is built: tables, casts, decoding, neighbours, sorting."""
    plain, flushed = _digests("plain"), _digests("flush")
    assert len(plain) > 7 * len(FORMATS)
    assert [name for name in plain if plain[name] != flushed.get(name)] == []


def test_concurrent_calls_build_and_use_the_same_tables() -> None:
    """Fresh formats, so that four threads race to build each table, and share scratch arrays if any are shared."""
    formats = [P.Format(f"racing{i}", 4, 3 - i % 3, bias=7 + i, infinities=False, nan="all_ones") for i in range(6)]
    inputs = [
        np.random.default_rng(i).normal(size=60_000).astype(d)  # too few for a loop of the `fast` extra
        for i, d in enumerate((np.float32, np.float64, np.float16))
    ]
    jobs = [(f, x, r) for f in formats for x in inputs for r in ("nearest_even", "to_odd")] * 4

    def run(job: Any) -> bytes:
        f, x, rounding = job
        if rounding == "to_odd":
            random = np.arange(x.size) % 16
            return bytes(P.encode(x, f, rounding=P.stochastic(random_bits=random, bits=4)).tobytes())
        return bytes(P.encode(torch.from_numpy(x) if x.itemsize < 8 else x, f).numpy().tobytes()
                     if x.itemsize < 8 else P.encode(x, f).tobytes())  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, jobs))
    assert [hashlib.sha256(r).digest() for r in results] == [hashlib.sha256(run(job)).digest() for job in jobs]


# --- CUDA ---------------------------------------------------------------------------------------


def _everything(fmt: AnyFormat) -> Iterator[tuple[str, Any]]:
    return itertools.product(P.ROUNDINGS, policies(fmt))


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_cuda_eager_is_cpu(fmt: AnyFormat) -> None:
    """Every mode and policy, from every float dtype; stochastic too; decoding, neighbours and integers."""
    tensors = [some_inputs(fmt, d) for d in (np.float32, np.float64)]
    half = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for rounding, policy in _everything(fmt):
        how = {"rounding": rounding, "policy": policy}
        for x in tensors:
            y = holding(x, fmt)
            same(P.encode(x.cuda(), fmt, **how), P.encode(x, fmt, **how))
            same(P.round_to(y.cuda(), fmt, **how), P.round_to(y, fmt, **how))
    for x in (half.view(torch.float16), half.view(torch.bfloat16)):
        for rounding in P.ROUNDINGS:
            same(P.encode(x.cuda(), fmt, rounding=rounding), P.encode(x, fmt, rounding=rounding))
    for x, n in itertools.product(tensors, (1, 8, 23, 32)):
        random = torch.randint(0, 1 << n, x.shape, generator=torch.Generator().manual_seed(n))
        cpu = P.encode(x, fmt, rounding=P.stochastic(random_bits=random, bits=n), policy="ieee")
        same(P.encode(x.cuda(), fmt, rounding=P.stochastic(random_bits=random.cuda(), bits=n), policy="ieee"), cpu)
    codes = P.encode(tensors[1], fmt, policy="ieee")
    same(P.decode(codes.cuda(), fmt), P.decode(codes, fmt))
    for fn in (P.next_up, P.next_down, P.ulp):
        same(fn(tensors[1].cuda(), fmt), fn(tensors[1], fmt))
    integers = torch.tensor([-(2**63), 2**63 - 1, 2**53 + 1, -7, 300, 0])
    same(P.encode(integers.cuda(), fmt), P.encode(integers, fmt))
    if fmt.bits <= 8:
        same(P.pack(codes.cuda(), fmt), P.pack(codes, fmt))
        same(P.unpack(P.pack(codes, fmt).cuda(), fmt, codes.shape), codes)


@pytest.mark.cuda
@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))
def test_cuda_views(view: str, dtype: torch.dtype) -> None:
    base = (torch.arange(60, dtype=torch.float64).reshape(6, 10) - 23.7).to(dtype)
    for call in (P.round_to, P.encode):
        got = call(VIEWS[view](base.cuda()), "float8_e5m2")
        assert got.is_cuda
        same(got, call(VIEWS[view](base), "float8_e5m2"))


@pytest.mark.cuda
@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_cuda_compiled_is_cpu(fmt: AnyFormat) -> None:
    """Every mode under every policy, the modes of a policy in one graph."""
    for i, policy in enumerate(policies(fmt)):
        x = some_inputs(fmt, (np.float32, np.float64)[i % 2])
        y = holding(x, fmt)

        def fn(x: torch.Tensor, y: torch.Tensor, policy: Any = policy) -> list[Any]:
            calls = [P.encode(x, fmt, rounding=r, policy=policy) for r in P.ROUNDINGS]
            return [*calls, *(P.round_to(y, fmt, rounding=r, policy=policy) for r in P.ROUNDINGS)]

        for got, want in zip(_compile(fn)(x.cuda(), y.cuda()), fn(x, y), strict=True):
            same(got, want)
    random = torch.randint(0, 1 << 11, x.shape, generator=torch.Generator().manual_seed(2))

    def stochastic(x: torch.Tensor, random: torch.Tensor) -> Any:
        return P.encode(x, fmt, rounding=P.stochastic(random_bits=random, bits=11), policy="ieee")

    same(_compile(stochastic)(x.cuda(), random.cuda()), stochastic(x, random))
