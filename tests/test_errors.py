"""Every refusal says what was given, what is allowed and what to do; nothing wrong passes silently.

Formats that cannot exist and names that mean nothing are in `test_formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P

ONE = np.float32([1.0])
NAN = float("nan")
E4M3, E2M1 = "float8_e4m3fn", "float4_e2m1fn"

Case = tuple[Callable[[], Any], type[Exception], str]


def refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def table(*cases: Case) -> Any:
    return pytest.mark.parametrize(("call", "error", "text"), cases, ids=[text for _, _, text in cases])


@table(
    (lambda: P.round_to(ONE, E4M3, rounding="RNE"), ValueError, "unknown rounding 'RNE': use one of nearest_even, nearest_away"),
    (lambda: P.round_to(ONE, E4M3, rounding="stochastic"), ValueError, "stochastic rounding is P.stochastic(random_bits=..., bits=...)"),
    (lambda: P.encode(ONE, E4M3, rounding=None), TypeError, "a rounding is a name (nearest_even, nearest_away, toward_zero"),
    (lambda: P.encode(ONE, E4M3, rounding=5), TypeError, "or P.stochastic(...), not 5"),
    (lambda: P.encode(ONE, E4M3, rounding=["nearest_even"]), TypeError, "not ['nearest_even']"),
    (lambda: P.Rounding("nearest"), ValueError, "no rounding is named 'nearest' with 0 random bits: use one of nearest_even"),
    (lambda: P.Rounding("stochastic"), ValueError, "bits is 0; stochastic rounding takes 1 to 32 random bits"),
    (lambda: P.encode(ONE, E4M3, policy="sat"), ValueError, "unknown policy 'sat': use one of saturate, ieee, ptx, ptx_satfinite"),
    (lambda: P.encode(ONE, E4M3, policy=None), TypeError, "a policy is a Policy or a preset's name (saturate, ieee, ptx"),
    (lambda: P.encode(ONE, E4M3, policy={"overflow": "infinity"}), TypeError, "not {'overflow': 'infinity'}"),
    (lambda: P.get_policy("torch", "e5m9"), ValueError, "unknown format 'e5m9': did you mean"),
    (lambda: P.Policy(overflow="clip"), ValueError, "policy overflow is 'clip'; it must be one of 'saturate', 'infinity'"),
    (lambda: P.Policy(infinity=None), ValueError, "policy infinity is None; it must be one of 'saturate', 'infinity'"),
    (lambda: P.Policy(nan="keep"), ValueError, "policy nan is 'keep'; it must be one of 'quiet', 'quiet_signed', 'all_ones'"),
    (lambda: P.Policy(missing_nan=["max"]), ValueError, "policy missing_nan is ['max']; it must be one of None, 'max', 'zero'"),
    (lambda: P.Policy(subnormals=True), ValueError, "policy subnormals is True; it must be one of 'keep', 'flush_inputs'"),
    (lambda: P.Policy(negative="zero"), ValueError, "policy negative is 'zero'; it must be one of 'nan', 'clamp', 'magnitude'"),
    (lambda: P.Policy(zero=0), ValueError, "policy zero is 0; it must be one of 'smallest', 'nan'"),
    (lambda: P.encode(ONE, ["float16"]), TypeError, "a format is a Format, a name or a dtype, not ['float16']"),
    (lambda: P.encode(ONE, {}, rounding={}, policy={}), TypeError, "a format is a Format, a name or a dtype, not {}"),
)  # fmt: skip
def test_names(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    refused(call, error, text)


def test_a_count_of_random_bits_is_no_rounding() -> None:
    """Not even after a stochastic call with that number of bits, whose plan is kept."""
    P.encode(ONE, E4M3, rounding=P.stochastic(random_bits=0, bits=7))
    refused(lambda: P.encode(ONE, E4M3, rounding=7), TypeError, "or P.stochastic(...), not 7")
    P.encode(ONE, E4M3, rounding=P.stochastic(random_bits=0, bits=1))
    refused(lambda: P.encode(ONE, E4M3, rounding=True), TypeError, "or P.stochastic(...), not True")


ALLOWED = "allowed are float16, bfloat16, float32, float64 and integers"
WRONG_DTYPES = {
    "object": (np.array([None]), f"x has dtype object; {ALLOWED}"),
    "mixed list": ([1.5, None], f"x has dtype object; {ALLOWED}"),
    "huge int": (10**30, f"x has dtype object; {ALLOWED}"),
    "complex": (np.array([1j]), f"x has dtype complex128; {ALLOWED}"),
    "string": (np.array(["1.0"]), f"; {ALLOWED}"),
    "date": (np.array(["2020"], "M8[Y]"), f"x has dtype datetime64[Y]; {ALLOWED}"),
    "longdouble": (np.longdouble([1]), f"; {ALLOWED}"),
    "bool": (np.array([True]), f"x has dtype bool; convert it to a number type first, {ALLOWED}"),
    "torch bool": (torch.tensor([True]), f"x has dtype bool; convert it to a number type first, {ALLOWED}"),
    "torch complex": (torch.tensor([1j]), f"x has dtype complex64; {ALLOWED}"),
}
WRONG_TYPES = {
    "str": ("1.0", "x is a builtins.str; pass a NumPy array, a torch tensor or numbers"),
    "None": (None, "x is a builtins.NoneType; pass a NumPy array, a torch tensor or numbers"),
    "dict": ({}, "x is a builtins.dict; pass a NumPy array, a torch tensor or numbers"),
    "range": (range(3), "x is a builtins.range; pass a NumPy array, a torch tensor or numbers"),
}


@pytest.mark.parametrize("what", [*WRONG_DTYPES, *WRONG_TYPES])
@pytest.mark.parametrize("fn", [P.round_to, P.encode], ids=lambda f: f.__name__)
def test_what_is_no_array_of_numbers(fn: Any, what: str) -> None:
    x, text = (WRONG_DTYPES | WRONG_TYPES)[what]
    refused(lambda: fn(x, E4M3), TypeError, text)


@pytest.mark.parametrize("what", WRONG_DTYPES)
@pytest.mark.parametrize("fn", [P.ulp, P.next_up, P.next_down], ids=lambda f: f.__name__)
def test_neighbours_of_what_is_no_number(fn: Any, what: str) -> None:
    x, text = WRONG_DTYPES[what]
    refused(lambda: fn(x, E4M3), TypeError, text)


def test_neighbours_of_integers_that_float64_does_not_hold() -> None:
    for x in (np.array([2**53 + 1]), np.array([-(2**53) - 1]), np.array([2**64 - 1], np.uint64), torch.tensor([2**60])):
        refused(lambda x=x: P.ulp(x, "int32"), ValueError, "; beyond 2^53 convert them to float64 first")
    assert P.ulp(np.array([2**53, -(2**53)]), "float64").tolist() == [2, 2]


@pytest.mark.parametrize("name", [E4M3, "float8_e5m2"])
def test_arrays_of_codes_are_encoded_but_not_rounded(name: str) -> None:
    """There is no wider dtype to put the result in that the caller would expect; `encode` has its own."""
    for x in (np.array([1.0], getattr(ml_dtypes, name)), torch.tensor([1.0]).to(getattr(torch, name))):
        refused(
            lambda x=x: P.round_to(x, E2M1), TypeError, f"x has dtype {name}: its elements are codes; decode them first"
        )
        assert P.encode(x, E2M1).tolist() == [2]


HOLDS = [
    (np.float16([1]), "bfloat16", "float32"),
    (np.float16([1]), "tfloat32", "float32"),
    (np.float16([1]), "float8_e8m0fnu", "float32"),
    (np.float16([1]), "int16", "float32"),
    (np.float16([1]), "int32", "float64"),
    (np.float32([1]), "int32", "float64"),
    (np.float32([1]), "float64", "float64"),
    (np.array([1], ml_dtypes.bfloat16), "float16", "float32"),
    (torch.tensor([1], dtype=torch.bfloat16), "float16", "float32"),
    (torch.tensor([1], dtype=torch.float16), "bfloat16", "float32"),
    (torch.tensor([1], dtype=torch.float32), "float64", "float64"),
]


@pytest.mark.parametrize(("x", "name", "remedy"), HOLDS, ids=[f"{x.dtype}-{name}" for x, name, _ in HOLDS])
def test_a_dtype_that_cannot_hold_the_format(x: Any, name: str, remedy: str) -> None:
    """The remedy holds the input, too: float16 and bfloat16 do not hold each other's values."""
    dtype = str(x.dtype).removeprefix("torch.")
    text = f"{dtype} cannot hold every value of {name}: convert x to {remedy} first, or use encode()"
    for fn in (P.round_to, P.ulp, P.next_up, P.next_down):
        refused(lambda fn=fn: fn(x, name), ValueError, text)
    assert P.decode(P.encode(x, name), name).tolist() == [1]


@table(
    (lambda: P.round_to(np.int8([100]), "float8_e3m4"), ValueError, "x has dtype int8, which cannot hold the rounded value 15.5"),
    (lambda: P.round_to(np.int8([127]), "float8_e5m2"), ValueError, "the rounded value 128.0: convert x to float64 first"),
    (lambda: P.round_to(np.int8([-1]), "float8_e8m0fnu"), ValueError, "which cannot hold the rounded value nan"),
    (lambda: P.round_to(np.int8([0]), "float8_e8m0fnu"), ValueError, "which cannot hold the rounded value 5.8774"),
    (lambda: P.round_to(np.int32([10**6]), "float8_e5m2", policy="ieee"), ValueError, "the rounded value inf"),
    (lambda: P.round_to(np.array([2**63 - 1]), "float64"), ValueError, "x has dtype int64, which cannot hold the rounded value 9.22"),
    (lambda: P.round_to(torch.tensor([127], dtype=torch.int8), "float8_e5m2"), ValueError, "or use encode(), which takes any input"),
)  # fmt: skip
def test_integers_that_the_dtype_cannot_hold(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    refused(call, error, text)


@pytest.mark.parametrize(
    "x",
    [np.float32([1, NAN]), np.float64([NAN]), np.float16([NAN]), np.array([NAN], ml_dtypes.bfloat16),
     torch.tensor([NAN]), torch.tensor([NAN], dtype=torch.bfloat16), np.float32(NAN), NAN],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)  # fmt: skip
def test_nans_that_raise(x: Any) -> None:
    nan, missing = P.Policy(nan="raise"), P.Policy(missing_nan="raise")
    refused(
        lambda: P.encode(x, "float8_e5m2", policy=nan),
        ValueError,
        "x contains NaN, and the policy says to raise for one; float8_e5m2",
    )
    refused(lambda: P.round_to(x, "float8_e5m2", policy=nan), ValueError, "see Policy.nan and missing_nan")
    refused(
        lambda: P.encode(x, E2M1, policy=missing),
        ValueError,
        "x contains NaN, and the policy says to raise for one; float4_e2m1fn",
    )
    refused(lambda: P.encode(x, "int8", policy=missing), ValueError, "the policy says to raise for one; int8")
    P.encode(x, E2M1, policy=nan)  # E2M1 has none: missing_nan decides
    P.encode(x, "float8_e5m2", policy=missing)
    P.encode(np.float32([1, np.inf]), "float8_e5m2", policy=nan)
    stochastic = P.stochastic(random_bits=0, bits=3)
    refused(lambda: P.encode(x, "float8_e5m2", policy=nan, rounding=stochastic), ValueError, "x contains NaN")


@table(
    (
        lambda: P.stochastic(random_bits=0, bits=0),
        ValueError,
        "bits is 0; stochastic rounding takes 1 to 32 random bits",
    ),
    (
        lambda: P.stochastic(random_bits=0, bits=33),
        ValueError,
        "bits is 33; stochastic rounding takes 1 to 32 random bits",
    ),
    (lambda: P.stochastic(random_bits=0, bits=True), TypeError, "bits is True; it must be an int from 1 to 32"),
    (lambda: P.stochastic(random_bits=0, bits=2.0), TypeError, "bits is 2.0; it must be an int from 1 to 32"),
)
def test_numbers_of_random_bits(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    refused(call, error, text)


@pytest.mark.parametrize("x", [np.float32([1, 2, 3]), np.float64([1, 2, 3]), np.array([1, 2, 3]), torch.tensor([1.0, 2, 3])],
                         ids=lambda x: str(x.dtype))  # fmt: skip
def test_random_bits(x: Any) -> None:
    for random, error, text in [
        (4, ValueError, "random_bits reaches from 4 to 4; with bits=2 it must be in [0, 2^2)"),
        (np.array([0, 1, -1]), ValueError, "random_bits reaches from -1 to 1; with bits=2 it must be in [0, 2^2)"),
        (torch.tensor([5]), ValueError, "random_bits reaches from 5 to 5"),
        (np.float32([0, 1, 2]), TypeError, "random_bits has dtype float32; it must hold integers in [0, 2^2)"),
        (torch.tensor([1.0]), TypeError, "random_bits has dtype float32; it must hold integers"),
        (np.array([True]), TypeError, "random_bits has dtype bool; it must hold integers"),
        (None, TypeError, "random_bits has dtype object; it must hold integers"),
        ([0, 1], ValueError, "random_bits of shape (2,) does not broadcast to x's shape (3,)"),
        (np.zeros((1, 3), int), ValueError, "random_bits of shape (1, 3) does not broadcast to x's shape (3,)"),
    ]:
        rounding = P.stochastic(random_bits=random, bits=2)
        refused(lambda rounding=rounding: P.encode(x, E4M3, rounding=rounding), error, text)


def test_random_bits_of_traced_tensors() -> None:
    """Where a compiler traces, the values cannot be looked at; dtype and shape can."""

    class Traced(torch.Tensor):
        pass

    x = torch.tensor([1.0, 2, 3]).as_subclass(Traced)
    for random, error, text in [
        (torch.tensor([1.0]), TypeError, "random_bits has dtype torch.float32; it must hold integers in [0, 2^2)"),
        (torch.tensor([[1, 1, 1]]), ValueError, "random_bits of shape (1, 3) does not broadcast to x's shape (3,)"),
        (torch.tensor([1, 1]), ValueError, "random_bits of shape (2,) does not broadcast to x's shape (3,)"),
    ]:
        rounding = P.stochastic(random_bits=random, bits=2)
        refused(lambda rounding=rounding: P.encode(x, E4M3, rounding=rounding), error, text)


# --- codes --------------------------------------------------------------------------------------

TAKES_CODES = [P.decode, P.classify, P.pack, P.to_dtype]


@pytest.mark.parametrize("fn", TAKES_CODES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("torch_too", [False, True], ids=["numpy", "torch"])
def test_codes_out_of_range(fn: Any, torch_too: bool) -> None:
    fmt, top = ("int8", 255) if fn is P.to_dtype else (E2M1, 15)
    for codes in ([0, top + 1], [-1, 3], [2**40]):
        x = torch.tensor(codes) if torch_too else np.array(codes)
        text = f"codes reach from {min(codes)} to {max(codes)}; {fmt} has codes 0 to {top}"
        refused(lambda x=x: fn(x, fmt), ValueError, text)
    for codes in ([1.5], [True], [1j]):
        x = torch.tensor(codes) if torch_too else np.array(codes)
        refused(lambda x=x: fn(x, fmt), TypeError, "; they must be integers in [0, 2^")
    if not torch_too:
        for wrong in (np.array(["1"]), np.array([None]), "1", None):
            refused(lambda wrong=wrong: fn(wrong, fmt), TypeError, "; they must be integers in [0, 2^")
    fn(torch.zeros(0, dtype=torch.int64) if torch_too else np.zeros(0, np.int64), fmt)


def test_codes_of_64_bits_out_of_range() -> None:
    big = np.array([2**64 - 1], np.uint64)
    refused(
        lambda: P.decode(big, "float32"),
        ValueError,
        f"codes reach from {2**64 - 1} to {2**64 - 1}; float32 has codes 0 to",
    )
    refused(lambda: P.decode(torch.from_numpy(big), "float32"), ValueError, "float32 has codes 0 to 4294967295")
    refused(lambda: P.decode(torch.tensor([-1]), "float64"), ValueError, f"float64 has codes 0 to {2**64 - 1}")
    assert np.isnan(P.decode(big, "float64")).all()


@table(
    (lambda: P.decode([1, 2]), TypeError, "decode needs a format, decode(codes, fmt), unless the codes have a dtype of ml_dtypes"),
    (lambda: P.decode([1, 2], E4M3, "float16"), ValueError, "decode gives float32 or float64, not 'float16'; cast the result, which is exact"),
    (lambda: P.decode([1, 2], E4M3, np.int32), ValueError, "decode gives float32 or float64, not <class 'numpy.int32'>"),
    (lambda: P.decode([1, 2], E4M3, 32), ValueError, "decode gives float32 or float64, not 32"),
    (lambda: P.decode([1, 2], "float64", "float32"), ValueError, "float32 cannot hold every value of float64: use dtype='float64'"),
    (lambda: P.decode([1, 2], "int32", "float32"), ValueError, "float32 cannot hold every value of int32: use dtype='float64'"),
    (lambda: P.decode(np.zeros(2, ml_dtypes.float8_e5m2), E4M3), ValueError, "codes have dtype float8_e5m2, not float8_e4m3fn"),
    (lambda: P.decode(torch.zeros(2).to(torch.float8_e5m2), E4M3), ValueError, "name that format, or pass their bits"),
    (lambda: P.decode(ONE, "float32"), TypeError, "codes have dtype float32; they must be integers in [0, 2^32) of float32"),
    (lambda: P.decode(np.float16([1]), E4M3), TypeError, "P.encode(x, fmt) makes codes of values, and P.from_dtype(x) takes those of a native dtype"),
    (lambda: P.classify(torch.zeros(2).to(torch.float8_e5m2), E4M3), ValueError, "codes have dtype float8_e5m2, not float8_e4m3fn: name that"),
    (lambda: P.pack(np.zeros(2, ml_dtypes.int4), "uint4"), ValueError, "codes have dtype int4, not uint4: name that format"),
    (lambda: P.to_dtype(np.zeros(2, ml_dtypes.float8_e5m2), E4M3), ValueError, "codes have dtype float8_e5m2, not float8_e4m3fn: "),
    (lambda: P.values("float32"), ValueError, "float32 has 2^32 codes; values() lists formats of at most 16 bits"),
    (lambda: P.to_dtype(np.uint8([1]), P.Format("mine", 4, 3)), ValueError, "neither NumPy nor ml_dtypes has a dtype for mine: keep the codes"),
    (lambda: P.to_dtype(torch.tensor([1]), E2M1), ValueError, "torch has no dtype for float4_e2m1fn: keep the codes, or P.decode them"),
    (lambda: P.from_dtype([1.0]), TypeError, "x has no dtype of a named format (list); P.formats() lists them"),
    (lambda: P.from_dtype(np.array([1])), TypeError, "x has no dtype of a named format (int64); P.formats() lists them"),
    (lambda: P.from_dtype(torch.tensor([True])), TypeError, "x has no dtype of a named format (torch.bool)"),
)  # fmt: skip
def test_decoding_and_interchange(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    refused(call, error, text)


def test_codes_of_low_precision_dtypes_are_taken_by_their_bits() -> None:
    native = np.array([-8, 7, -1], ml_dtypes.int4)
    assert P.pack(native, "int4").tolist() == [0x78, 0x0F]
    assert P.to_dtype(native, "int4").tolist() == native.tolist()
    tensor = torch.tensor([1.0, -448]).to(torch.float8_e4m3fn)
    assert P.pack(tensor, E4M3).tolist() == [0x38, 0xFE]
    assert P.classify(tensor, E4M3).tolist() == [2, 2]


def test_an_empty_list_holds_no_wrong_codes() -> None:
    """NumPy calls [] an array of float64."""
    assert P.decode([], E4M3).shape == P.pack([], E2M1).shape == P.classify([], E4M3).shape == (0,)
    assert P.decode([[], []], E4M3).shape == (2, 0)
    refused(
        lambda: P.decode(np.array([]), E4M3), TypeError, "codes have dtype float64; they must be integers in [0, 2^8)"
    )


TAKES_NUMBERS = [P.round_to, P.encode, P.ulp, P.next_up, P.next_down]
EYE = torch.eye(3)
PARTS = [EYE[0], EYE[1, :2]]
NO_STRIDES = {
    "sparse": (EYE.to_sparse, "is torch.sparse_coo: pass {x}.to_dense(), or the values alone as a dense tensor"),
    "compressed": (EYE.to_sparse_csr, "is torch.sparse_csr: pass {x}.to_dense(), or the values alone"),
    "mkldnn": (EYE.to_mkldnn, "is torch._mkldnn: pass {x}.to_dense()"),
    "nested": (lambda: torch.nested.nested_tensor(PARTS), "is nested: pass the parts, {x}.unbind(), or "),
    "jagged": (lambda: torch.nested.nested_tensor(PARTS, layout=torch.jagged), "is nested: pass the parts"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("what", NO_STRIDES)
def test_tensors_without_strides(what: str) -> None:
    make, text = NO_STRIDES[what]
    x = make()
    for fn in TAKES_NUMBERS:
        refused(lambda fn=fn: fn(x, E4M3), TypeError, "the layout of x " + text.format(x="x"))
    if what != "mkldnn":  # which holds floats only
        whole = x.to(torch.int64)
        for fn in TAKES_CODES:
            refused(lambda fn=fn: fn(whole, E4M3), TypeError, "the layout of codes " + text.format(x="codes"))
        for fn in TAKES_NUMBERS:
            refused(lambda fn=fn: fn(whole, E4M3), TypeError, "the layout of x ")
        refused(lambda: P.unpack(x.to(torch.uint8), E2M1, 9), TypeError, "the layout of packed ")
    refused(lambda: P.from_dtype(x), TypeError, "the layout of x ")


def test_two_codes_in_a_byte() -> None:
    x = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    text = (
        "float4_e2m1fn_x2, two codes in each byte: take them apart with P.unpack(x.view(torch.uint8), 'float4_e2m1fn', "
    )
    for fn in TAKES_NUMBERS:
        refused(lambda fn=fn: fn(x, E4M3), TypeError, f"the dtype of x is {text}")
    for fn in (P.decode, P.classify, P.pack):
        refused(lambda fn=fn: fn(x, E2M1), TypeError, f"the dtype of codes is {text}")
    refused(lambda: P.from_dtype(x), TypeError, f"the dtype of x is {text}")
    assert P.unpack(x.view(torch.uint8), E2M1, (4,)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "fn", [*TAKES_CODES, P.from_dtype, P.unpack, P.convert, P.round_to, P.encode, P.ulp, P.stochastic]
)
def test_masks_are_not_lost(fn: Any) -> None:
    masked = np.ma.masked_array(np.uint8([1, 2]), [True, False])
    calls: dict[Any, Callable[[], Any]] = {
        P.from_dtype: lambda: fn(masked.astype(np.float32)),
        P.unpack: lambda: fn(masked, E2M1, 4),
        P.convert: lambda: fn(masked, E4M3, "float16"),
        P.stochastic: lambda: P.encode(np.ones(2), E4M3, rounding=P.stochastic(random_bits=masked, bits=2)),
    }
    refused(
        calls.get(fn, lambda: fn(masked, "int8" if fn is P.to_dtype else E4M3)),
        TypeError,
        "a masked array, whose mask would be lost: pass ",
    )


THREE = np.zeros(3, np.uint8)


@table(
    (lambda: P.pack(np.zeros(2, np.uint16), "float16"), ValueError, "float16 has 16 bits; pack and unpack take formats of 1 to 8 bits"),
    (lambda: P.unpack(THREE, "float16", 1), ValueError, "float16 has 16 bits; pack and unpack take formats of 1 to 8 bits, view wider"),
    (lambda: P.unpack(THREE, E2M1, 7), ValueError, "3 bytes do not hold shape (7,) of float4_e2m1fn: 7 codes of 4 bits take 4 bytes"),
    (lambda: P.unpack(THREE, E2M1, (2, 2)), ValueError, "3 bytes do not hold shape (2, 2) of float4_e2m1fn: 4 codes of 4 bits take 2 bytes"),
    (lambda: P.unpack(torch.zeros(2, dtype=torch.uint8), "e3m2", 4), ValueError, "2 bytes do not hold shape (4,) of float6_e3m2fn: 4 codes of 6 bits"),
    (lambda: P.unpack(THREE, E2M1, (-1,)), ValueError, "shape is (-1,); every dimension must be at least 0"),
    (lambda: P.unpack(THREE, E2M1, 6.0), TypeError, "shape is 6.0; it must be an int or a sequence of ints, each at least 0"),
    (lambda: P.unpack(THREE, E2M1, "6"), TypeError, "shape is '6'; it must be an int or a sequence of ints"),
    (lambda: P.unpack(THREE, E2M1, (2, 3.0)), TypeError, "shape is (2, 3.0); it must be an int or a sequence of ints"),
    (lambda: P.unpack(THREE, E2M1, None), TypeError, "shape is None; it must be an int or a sequence of ints"),
    (lambda: P.unpack(THREE.astype(np.int8), E2M1, 6), TypeError, "packed codes are bytes (uint8), not int8"),
    (lambda: P.unpack([1, 2, 3], E2M1, 6), TypeError, "packed codes are bytes (uint8), not int64"),
    (lambda: P.unpack(torch.zeros(3), E2M1, 6), TypeError, "packed codes are bytes (uint8), not torch.float32"),
    (lambda: P.unpack(None, E2M1, 6), TypeError, "packed codes are bytes (uint8), not object"),
)  # fmt: skip
def test_packing(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    refused(call, error, text)


def test_shapes_of_every_integer_kind() -> None:
    for shape in (6, np.int64(6), (6,), [2, 3], torch.Size([6]), (np.int32(3), 2), np.array([2, 3])):
        assert P.unpack(THREE, E2M1, shape).size == 6
    assert P.unpack(b"\x21", E2M1, 2).tolist() == P.unpack(bytearray(b"\x21"), E2M1, (1, 2)).ravel().tolist() == [1, 2]


def test_counts_of_every_integer_kind() -> None:
    """NumPy's become Python's: theirs overflow when they are shifted."""
    fmt = P.Format("mine", np.int8(5), np.uint8(2), bias=np.int64(15))
    assert (fmt, fmt.max, type(fmt.bits)) == (P.Format("mine", 5, 2), 57344, int)
    assert P.IntFormat("mine", np.int8(30)).max == 2**29 - 1
    rounding = P.stochastic(random_bits=2**31, bits=np.int8(32))
    assert (rounding.bits, P.encode(np.float32([1.0625]), E4M3, rounding=rounding)) == (32, 57)


def test_arguments_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        P.round_to(ONE, E4M3, "nearest_even")  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional argument"):
        P.stochastic(1, 2)  # type: ignore[misc]
