"""Standard and tiled attention: the laws over drawn shapes, tiles and data, what is refused, and the masks."""

from __future__ import annotations

import contextlib
import decimal
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention as A
from attention.masks import Mask
from properties.laws import Unsupported, laws
from properties.problems import DTYPES, FAMILIES, make
from properties.subjects import OurAttention

LAWS = laws("attention")
INTS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def bits(x):
    return x.contiguous().view(INTS[x.dtype])


def standard(q, k, v, *, causal=None, scale=None):
    return A.standard_attention(q, k, v, mask=A.causal(causal) if causal else None, scale=scale)


LENGTHS, WIDTHS = st.integers(0, 80), st.integers(1, 40)


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 2))
    causal = draw(st.sampled_from([None, "top_left", "bottom_right"]))
    return make(
        draw(st.sampled_from(list(FAMILIES))),
        seed=draw(st.integers(0, 2**32)),
        dtype=draw(st.sampled_from(list(DTYPES))),
        causal=causal,
        scale=draw(st.sampled_from([None, None, None, 0.3, 0, -0.7])),
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.sampled_from([1, 1, 2, 3])),
        kv_heads=kv_heads,
        queries=draw(LENGTHS),
        keys=draw(LENGTHS),
        head_dim=draw(WIDTHS),
        value_dim=draw(WIDTHS),
    )


tiles = st.integers(1, 33)


def check(law, subject, problem, *excuses):
    """The law holds, or does not apply for one of these reasons."""
    with contextlib.suppress(Unsupported):
        try:
            law(subject, problem)
        except Unsupported as reason:
            if not any(excuse in str(reason) for excuse in excuses):
                pytest.fail(f"unsupported: {reason}")
            raise


@pytest.mark.parametrize("law", LAWS.values(), ids=str)
@settings(max_examples=40, deadline=None)
@given(problem=problems(), tile_q=tiles, tile_k=tiles)
def test_flash_attention_obeys(law, problem, tile_q, tile_k):
    check(law, OurAttention(tile_q, tile_k), problem, "is not causal")


@pytest.mark.parametrize("law", LAWS.values(), ids=str)
@settings(max_examples=15, deadline=None)
@given(problem=problems())
def test_standard_attention_obeys(law, problem):
    check(law, standard, problem, "is not causal", "takes no tile_q= and tile_k=")


# --- The specification is anchored outside torch and against torch ----------------------------------------------------


def test_standard_attention_in_fifty_digits():
    """The formulas in decimal arithmetic, on the stored inputs; float64 agrees to 2^-50."""
    problem = make("large_logits", causal="bottom_right", queries=3, keys=5, head_dim=4, value_dim=3, kv_heads=2)
    out, lse = A.standard_attention(problem.q, problem.k, problem.v, mask=problem.mask, precision=torch.float64)
    with decimal.localcontext(prec=50):
        for head, i in itertools.product(range(2), range(3)):
            q, k, v = (
                [[decimal.Decimal(x) for x in row] for row in t[0, head].tolist()]
                for t in (problem.q, problem.k, problem.v)
            )
            keys = range(i + 2 + 1)
            weights = [(sum(a * b for a, b in zip(q[i], k[j], strict=True)) / 2).exp() for j in keys]
            total = sum(weights)
            assert lse[0, head, i].item() == pytest.approx(float(total.ln()), rel=2**-50)
            for c in range(3):
                exact = sum(w * v[j][c] for w, j in zip(weights, keys, strict=True)) / total
                assert out[0, head, i, c].item() == pytest.approx(float(exact), rel=2**-48, abs=2**-48)


@pytest.mark.parametrize("causal", [None, "top_left"])
def test_standard_attention_agrees_with_torch_in_float64(causal):
    problem = make("normal", dtype="float64", causal=causal, queries=17, keys=23, heads=4, kv_heads=2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(
            problem.q, problem.k, problem.v, is_causal=causal is not None, enable_gqa=True
        )
    assert ((problem.truth.out - expected).abs() <= problem.bound().out).all()


# --- Results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attend", [A.standard_attention, A.flash_attention])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_result_has_the_dtype_of_the_inputs_and_an_lse_of_at_least_float32(attend, dtype):
    problem = make("normal", dtype=dtype, batch=2, heads=6, kv_heads=2, queries=3, keys=5, value_dim=7)
    result = attend(problem.q, problem.k, problem.v)
    assert isinstance(result, A.AttentionResult)
    assert result.out.shape == (2, 6, 3, 7)
    assert result.lse.shape == (2, 6, 3)
    assert result.out.dtype == DTYPES[dtype]
    assert result.lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)


@pytest.mark.parametrize("attend", [A.standard_attention, A.flash_attention])
@pytest.mark.parametrize("zero", ["batch", "heads", "queries", "keys", "head_dim", "value_dim"])
def test_any_size_may_be_zero(attend, zero):
    problem = make("normal", **{"kv_heads": 2, zero: 0} | ({"kv_heads": 0} if zero == "heads" else {}))
    out, lse = attend(problem.q, problem.k, problem.v)
    assert out.shape == (*problem.q.shape[:3], problem.v.shape[3])
    if zero == "keys":
        assert (bits(out) == 0).all()
        assert (lse == -math.inf).all()
    if zero == "head_dim":
        assert (lse - math.log(37)).abs().max() < 1e-6
    bound = A.error_bound(problem.q, problem.k, problem.v, tile_k=64).certain
    assert bound.out.shape == out.shape
    assert bound.lse.shape == lse.shape


@pytest.mark.parametrize("attend", [A.standard_attention, A.flash_attention])
def test_strides_do_not_matter(attend):
    problem = make("normal", dtype="bfloat16", batch=2, heads=4, kv_heads=4)
    plain = attend(problem.q, problem.k, problem.v)
    permuted = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in (problem.q, problem.k, problem.v)]
    gaps = [torch.nn.functional.pad(x, (0, 3, 0, 1))[:, :, :-1, :-3] for x in (problem.q, problem.k, problem.v)]
    for inputs in (permuted, gaps):
        for got, expected in zip(attend(*inputs), plain, strict=True):
            assert torch.equal(bits(got), bits(expected))


def test_nan_where_it_is_visible_stays_in_its_rows_and_columns():
    problem = make("normal", queries=8, keys=8, heads=1, causal="top_left")
    for attend in (A.standard_attention, A.flash_attention):
        q, k, v = problem.q.clone(), problem.k.clone(), problem.v.clone()
        q[0, 0, 2, 5] = k[0, 0, 6, 0] = v[0, 0, 4, 3] = math.nan
        out, lse = attend(q, k, v, mask=A.causal())
        expected = torch.zeros(8, 8, dtype=torch.bool)
        expected[2] = expected[6:] = expected[4:, 3] = True
        assert torch.equal(out[0, 0].isnan(), expected)
        assert lse[0, 0].isnan().nonzero().squeeze(-1).tolist() == [2, 6, 7]


def test_scores_of_minus_infinity_count_as_unseen():
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([[[[-math.inf], [2.0]]]]), torch.tensor([[[[5.0], [3.0]]]])
    for attend in (A.standard_attention, A.flash_attention):
        assert [x.item() for x in attend(q, k, v)] == [3.0, 2.0]
        out, lse = attend(q, k[:, :, :1], v[:, :, :1])
        assert (out.item(), lse.item()) == (0.0, -math.inf)


def test_tiles_outside_the_mask_are_skipped_and_full_ones_left_alone():
    class Watched(Mask):
        def __init__(self):
            self.inner, self.looked_at, self.kinds = A.causal("top_left"), [], []

        def allowed(self, queries, keys, n_queries, n_keys):
            self.looked_at.append((int(queries[0, 0]), int(keys[0])))
            return self.inner.allowed(queries, keys, n_queries, n_keys)

        def classify(self, queries, keys, n_queries, n_keys):
            self.kinds.append(self.inner.classify(queries, keys, n_queries, n_keys))
            return self.kinds[-1]

    mask = Watched()
    k = torch.full((1, 1, 9, 2), math.nan)
    k[:, :, :6] = 1  # would be seen from the skipped tiles
    out, _ = A.flash_attention(torch.ones(1, 1, 6, 2), k, k, mask=mask, tile_q=3, tile_k=3)
    assert out.isfinite().all()
    assert mask.looked_at == [(0, 0), (3, 3)]
    assert mask.kinds[1:] == ["partial", "empty", "empty", "full", "partial", "empty"]


def test_autocast_and_lowered_precision_change_no_bit():
    problem = make("normal", queries=64, keys=64, head_dim=64)
    before = torch.get_float32_matmul_precision()
    try:
        for attend in (A.standard_attention, A.flash_attention):
            plain = attend(problem.q, problem.k, problem.v)
            with torch.autocast("cpu", torch.bfloat16):
                cast = attend(problem.q, problem.k, problem.v)
            torch.set_float32_matmul_precision("medium")
            lowered = attend(problem.q, problem.k, problem.v)
            assert torch.get_float32_matmul_precision() == "medium"
            torch.set_float32_matmul_precision("highest")
            for got in (cast, lowered):
                assert torch.equal(bits(got.out), bits(plain.out))
                assert torch.equal(bits(got.lse), bits(plain.lse))
    finally:
        torch.set_float32_matmul_precision(before)


# --- Gradients of the specification -----------------------------------------------------------------------------------


def test_standard_attention_is_differentiable():
    problem = make("normal", dtype="float64", causal="bottom_right", queries=3, keys=5, head_dim=3, value_dim=2)
    inputs = [x.requires_grad_() for x in (problem.q, problem.k, problem.v)]
    assert torch.autograd.gradcheck(lambda *x: A.standard_attention(*x, mask=problem.mask), inputs)


@pytest.mark.parametrize(("causal", "queries"), [("bottom_right", 6), ("top_left", 2)])
def test_empty_rows_and_masked_nan_have_no_gradient(causal, queries):
    problem = make("normal", causal=causal, queries=queries, keys=4, heads=1)
    k, v = problem.k.clone(), problem.v.clone()
    k[:, :, 2:], v[:, :, 2:] = math.nan, math.nan
    inputs = [x.requires_grad_() for x in (problem.q, k, v)]
    out, lse = A.standard_attention(*inputs, mask=problem.mask)
    seen = problem.allowed.sum(-1)
    (out[:, :, seen <= 2].sum() + lse[:, :, (seen == 1) | (seen == 2)].sum()).backward()
    dq, dk, dv = (x.grad[0, 0] for x in inputs)
    assert (dq[seen == 0] == 0).all()
    assert dq[seen <= 2].isfinite().all()
    assert (dq[seen == 2] != 0).any()
    if causal == "top_left":  # otherwise the last rows see NaN, and 0 * NaN is NaN there
        assert dk[:2].isfinite().all()
        assert dv[:2].isfinite().all()
        assert (dk[2:] == 0).all()
        assert (dv[2:] == 0).all()


def test_flash_attention_refuses_to_record_gradients():
    q = torch.ones(1, 1, 2, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"no backward yet .* use standard_attention"):
        A.flash_attention(q, q, q)
    with torch.no_grad():
        assert A.flash_attention(q, q, q).out.shape == (1, 1, 2, 2)


# --- Masks ------------------------------------------------------------------------------------------------------------


def test_causal_alignments():
    assert A.causal("top_left").materialize(3, 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert A.causal("bottom_right").materialize(3, 4).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert A.causal("bottom_right").materialize(3, 2).int().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert torch.equal(A.causal().materialize(3, 3), torch.ones(3, 3).tril().bool())
    assert A.full().materialize(2, 3).all()


MASKS = st.recursive(
    st.sampled_from([A.full(), A.causal("top_left"), A.causal("bottom_right")]),
    lambda masks: st.one_of(
        st.builds(lambda a, b: a & b, masks, masks),
        st.builds(lambda a, b: a | b, masks, masks),
        st.builds(lambda a: ~a, masks),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(mask=MASKS, n=st.integers(1, 12), m=st.integers(1, 12), tile_q=st.integers(1, 5), tile_k=st.integers(1, 5))
def test_tiles_keep_what_they_promise(mask, n, m, tile_q, tile_k):
    whole = mask.materialize(n, m)
    for i, j in itertools.product(range(0, n, tile_q), range(0, m, tile_k)):
        rows, columns = range(i, min(i + tile_q, n)), range(j, min(j + tile_k, m))
        part = whole[i : rows.stop, j : columns.stop]
        kind = mask.classify(rows, columns, n, m)
        assert kind in ("full", "partial", "empty")
        assert part.all() or kind != "full"
        assert not part.any() or kind != "empty"


@settings(max_examples=30, deadline=None)
@given(a=MASKS, b=MASKS, n=st.integers(0, 6), m=st.integers(0, 6))
def test_masks_combine_like_sets(a, b, n, m):
    x, y = a.materialize(n, m), b.materialize(n, m)
    assert torch.equal((a & b).materialize(n, m), x & y)
    assert torch.equal((a | b).materialize(n, m), x | y)
    assert torch.equal((~a).materialize(n, m), ~x)
    assert ~~a == a


@settings(max_examples=30, deadline=None)
@given(mask=MASKS, queries=st.integers(0, 20), keys=st.integers(0, 20), tile_q=tiles, tile_k=tiles)
def test_flash_attention_with_any_mask_stays_within_the_bound(mask, queries, keys, tile_q, tile_k):
    p = make("spotlight", queries=queries, keys=keys)
    exact = A.standard_attention(p.q, p.k, p.v, mask=mask, precision=torch.float64)
    got = A.flash_attention(p.q, p.k, p.v, mask=mask, tile_q=tile_q, tile_k=tile_k)
    bound = A.error_bound(p.q, p.k, p.v, mask=mask, tile_k=tile_k).certain
    for value, true, limit in zip(got, exact, bound, strict=True):
        assert ((value == true) | ((value - true).abs() <= limit)).all()


# --- What is refused --------------------------------------------------------------------------------------------------

X = torch.zeros(2, 4, 3, 8)
REFUSED = {
    "q is a list; it must be a torch tensor": (TypeError, {"q": [1.0]}),
    "v has shape .3, 8.; it must have 4 axes": (ValueError, {"v": X[0, 0]}),
    "k is torch.int64; it must be one of torch.float16": (TypeError, {"k": X.long()}),
    "q is torch.float32 but v is torch.float64; convert": (TypeError, {"v": X.double()}),
    "q is on cpu but k is on meta; move": (ValueError, {"k": X.to("meta")}),
    "q has batch 2 but k has 1; expand": (ValueError, {"k": X[:1]}),
    "q has head_dim 8 but k has 7; they must be equal": (ValueError, {"k": X[..., 1:]}),
    "k has 4 heads but v has 2; they must be equal": (ValueError, {"v": X[:, :2]}),
    "k has length 3 but v has 2; they must be equal": (ValueError, {"v": X[:, :, :2]}),
    "q has 4 heads and k has 3; the first must be a multiple": (ValueError, {"k": X[:, :3], "v": X[:, :3]}),
    "q has 4 heads and k has 0; the first must be a multiple": (ValueError, {"k": X[:, :0], "v": X[:, :0]}),
    "mask is a Tensor; it must be a Mask, such as causal": (TypeError, {"mask": torch.ones(3, 3)}),
    "scale is a str; it must be a number or None": (TypeError, {"scale": "1"}),
    "scale is nan; it must be finite": (ValueError, {"scale": math.nan}),
    "with 3 queries and 2 keys is ambiguous: say causal.'top_left'": (
        ValueError,
        {"k": X[:, :, 1:], "v": X[:, :, 1:], "mask": A.causal()},
    ),
}
TILED = {
    "tile_q is a float; it must be an int": (TypeError, {"tile_q": 8.0}),
    "tile_k is 0; it must be at least 1": (ValueError, {"tile_k": 0}),
    "implementation is 'cuda'; it must be one of eager": (ValueError, {"implementation": "cuda"}),
}


@pytest.mark.parametrize(("message", "case"), REFUSED.items(), ids=lambda x: x[:30] if isinstance(x, str) else "")
def test_inputs_that_do_not_fit_are_refused(message, case):
    error, changes = case
    for function in (A.standard_attention, A.flash_attention, A.error_bound):
        with pytest.raises(error, match=message):
            function(**({"q": X, "k": X, "v": X} | changes))


@pytest.mark.parametrize(("message", "case"), TILED.items(), ids=lambda x: x[:30] if isinstance(x, str) else "")
def test_tiles_that_cannot_be_are_refused(message, case):
    error, changes = case
    with pytest.raises(error, match=message):
        A.flash_attention(X, X, X, **changes)


def test_other_wrong_words_are_refused():
    with pytest.raises(ValueError, match="causal alignment is 'left'; it must be one of top_left, bottom_right"):
        A.causal("left")
    with pytest.raises(ValueError, match=r"precision is .*float16; it must be torch"):
        A.standard_attention(X, X, X, precision=torch.float16)
    with pytest.raises(ValueError, match="tile_k is -1; it must be at least 1"):
        A.error_bound(X, X, X, tile_k=-1)
    with pytest.raises(TypeError, match="unsupported operand"):
        A.causal() & 1
    with pytest.raises(ValueError, match="unknown family 'gauss': there are normal"):
        make("gauss")
