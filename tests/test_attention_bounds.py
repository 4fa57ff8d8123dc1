"""The error bound: never exceeded by a correct implementation, exceeded by planted bugs, +inf where it claims nothing.

Run as a script, it prints how loose the bound is: `python tests/test_attention_bounds.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

import attention as A
import attention.bounds
from properties.laws import Broken, Unsupported, laws
from properties.laws.attention import looseness
from properties.problems import DTYPES, FAMILIES, Problem, make, problems
from properties.subjects import OurAttention

LAWS = laws("attention")
OUT, LSE = LAWS["out_is_within_the_certain_bound"], LAWS["lse_is_within_the_certain_bound"]
LENGTHS = st.integers(0, 80)
SETTINGS = {
    "seed": st.integers(0, 2**32),
    "dtype": st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    "causal": st.sampled_from([None, "top_left", "bottom_right"]),
    "heads": st.sampled_from([2, 4]),
    "kv_heads": st.sampled_from([1, 2]),
    "queries": LENGTHS,
    "keys": LENGTHS,
    "head_dim": st.integers(1, 40),
    "value_dim": st.integers(1, 40),
}

# --- Never exceeded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(drawn=st.fixed_dictionaries(SETTINGS), tile_q=st.integers(1, 33), tile_k=st.integers(1, 33))
def test_flash_attention_never_leaves_the_certain_bound(family, drawn, tile_q, tile_k):
    problem = make(family, **drawn)
    OUT(OurAttention(tile_q, tile_k), problem)
    LSE(OurAttention(tile_q, tile_k), problem)


def sdpa(backend):
    """torch's own attention on one CPU backend; the flash one wants as many value heads and channels as query ones."""

    def attend(q, k, v, *, causal=None):
        group, value_dim = q.shape[1] // k.shape[1], v.shape[3]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if backend == SDPBackend.FLASH_ATTENTION and value_dim != q.shape[3]:
            v = torch.nn.functional.pad(v, (0, q.shape[3] - value_dim))[..., : q.shape[3]]
        mask = A.causal(causal).materialize(q.shape[2], k.shape[2]) if causal == "bottom_right" else None
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal == "top_left"
            )
        return out[..., :value_dim]

    return attend


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda backend: backend.name)
@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(list(FAMILIES)),
    drawn=st.fixed_dictionaries(SETTINGS | {"queries": st.integers(1, 80), "keys": st.integers(1, 80)}),
)
def test_torch_attention_never_leaves_the_bound_for_unknown_implementations(backend, family, drawn):
    drawn["value_dim"] = min(drawn["value_dim"], drawn["head_dim"])
    OUT(sdpa(backend), make(family, **drawn))


def test_the_likely_bound_is_the_tighter_one_and_holds_for_independent_roundings():
    for dtype, causal in ((d, c) for d in DTYPES for c in (None, "bottom_right")):
        for family in ("normal", "large_logits", "cancellation_in_values"):
            p = make(family, dtype=dtype, causal=causal, queries=40, keys=160, head_dim=64, value_dim=16)
            got = A.flash_attention(p.q, p.k, p.v, mask=p.mask)
            bound = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=64)
            for name in ("out", "lse"):
                certain, likely = getattr(bound.certain, name), getattr(bound.likely, name)
                assert (likely <= certain).all()
                assert ((getattr(got, name) - getattr(p.truth, name)).abs() <= likely).all()
                assert likely.sum() < certain.sum()


# --- What it is as a function -----------------------------------------------------------------------------------------


def test_an_unknown_implementation_is_allowed_more():
    for dtype in DTYPES:
        p = make("normal", dtype=dtype, causal="bottom_right", queries=9, keys=70)
        unknown = A.error_bound(p.q, p.k, p.v, mask=p.mask).certain
        for tile_k in (16, 64):
            known = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=tile_k).certain
            assert (known.out <= unknown.out).all()
            assert (known.lse <= unknown.lse).all()


def test_it_does_not_depend_on_how_many_rows_are_held_at_once(monkeypatch):
    p = make("normal", dtype="bfloat16", causal="bottom_right", heads=4, kv_heads=2, queries=9, keys=20)
    together = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=8)
    monkeypatch.setattr(attention.bounds, "_ELEMENTS", 1)
    apart = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=8)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.out, other.out, rtol=1e-12, atol=0)
        torch.testing.assert_close(one.lse, other.lse, rtol=1e-12, atol=0)


def test_rows_without_keys_have_bound_zero():
    p = make("normal", causal="bottom_right", queries=6, keys=4)
    for bounds in A.error_bound(p.q, p.k, p.v, mask=p.mask):
        assert (bounds.out[:, :, :2] == 0).all()
        assert (bounds.lse[:, :, :2] == 0).all()
        assert (bounds.out[:, :, 2:] > 0).all()


def test_constant_values_are_not_charged_for_score_errors():
    """Scores in the thousands leave float32 weights uncertain by percents, and constant values by roundings only."""
    p = make("equal_logits", scale=1e3)
    constant = A.error_bound(p.q, p.k, torch.ones_like(p.v), scale=1e3, tile_k=64).certain.out
    varying = A.error_bound(p.q, p.k, p.v, scale=1e3, tile_k=64).certain.out
    assert constant.max() < 1e-4
    assert varying.max() > 1e-2


def test_scores_beyond_the_accumulator_s_resolution_leave_the_output_among_the_values():
    """Scores of 1e9 in float32 say nothing about the weights, and still the output is one of the values."""
    p = make("normal", scale=1e9)
    bound = A.error_bound(p.q, p.k, p.v, scale=1e9, tile_k=64).certain
    values = p.values.unsqueeze(2)
    assert (bound.out > 0.1).any()
    assert (bound.out <= 1.001 * (values.amax(3) - values.amin(3)) + 1e-3).all()
    assert (bound.lse < 1e5).all()


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_is_claimed_of_rows_and_columns_with_non_finite_inputs(where, value):
    p = make("normal", causal="top_left", queries=8, keys=8, heads=1, value_dim=4)
    clean = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=4).certain
    getattr(p, where)[0, 0, 5, 3] = value
    bound = A.error_bound(p.q, p.k, p.v, mask=p.mask, tile_k=4).certain
    unclaimed = torch.zeros(8, 4, dtype=torch.bool)
    if where == "v":
        unclaimed[5:, 3] = True
    else:
        unclaimed[5 if where == "q" else slice(5, None)] = True
    assert torch.equal(bound.out[0, 0] == math.inf, unclaimed)
    assert torch.equal(bound.lse[0, 0] == math.inf, unclaimed.all(-1))
    assert torch.equal(bound.out[0, 0][~unclaimed], clean.out[0, 0][~unclaimed])


@pytest.mark.parametrize(
    ("q", "k", "v", "out", "lse"),
    [(1e20, 1e19, 1.0, False, False), (1.0, 1.0, 1e38, False, True), (1.0, 1.0, 1e37, True, True)],
    ids=["scores overflow", "sum of values overflows", "in range"],
)
def test_overflow_of_the_accumulator_is_outside_the_domain(q, k, v, out, lse):
    q, k, v = (torch.full((1, 1, 4, 4), x) for x in (q, k, v))
    bound = A.error_bound(q, k, v, tile_k=64).certain
    assert bool(bound.out.isfinite().all()) is out
    assert bool(bound.lse.isfinite().all()) is lse


# --- Planted bugs -----------------------------------------------------------------------------------------------------

TILE = 8


def truncated(x):
    """float32 to bfloat16 by cutting off, as a cast that drops the low half does."""
    return (x.view(torch.int32) & -0x10000).view(torch.float32)


def kernel(bug):
    """A small kernel in the style of a GPU one, keys padded to whole tiles, with one bug, or none for ""."""

    def attend(q, k, v, *, causal=None, scale=None, tile_q=TILE, tile_k=TILE):
        heads, kv_heads, (queries, keys), dtype = q.shape[1], k.shape[1], (q.shape[2], k.shape[2]), q.dtype
        if bug == "zero scale taken for none given":
            scale = scale or None
        if scale is None:
            scale = 1 / math.sqrt(q.shape[3] + (bug == "scale 1/sqrt(d+1)"))
        heads_of = (
            torch.arange(heads) % kv_heads if bug == "wrong GQA head" else torch.arange(heads) * kv_heads // heads
        )
        q, k, v = q.float(), k.float()[:, heads_of], v.float()[:, heads_of]
        if bug == "last key counted twice":
            k, v = (torch.cat([x, x[:, :, -1:]], 2) for x in (k, v))
        if bug == "last V row shifted":
            v = torch.cat([v[:, :, :-1], v[:, :, -2:-1] if keys > 1 else 0 * v], 2)
        i, j = torch.arange(queries).unsqueeze(-1), torch.arange(k.shape[2])
        visible = torch.ones(queries, k.shape[2], dtype=torch.bool)
        if causal:
            shift = keys - queries if causal == "bottom_right" and bug != "top_left for bottom_right" else 0
            shift += {"one future key": 1, "causal off by one": -1}.get(bug, 0)
            visible = j.clamp(max=keys - 1) <= i + shift
        padding = -k.shape[2] % tile_k
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (k, v))
        visible = torch.nn.functional.pad(visible, (0, padding), value=bug == "unmasked padding")

        m = q.new_full(q.shape[:3], -math.inf)
        total, o = torch.zeros_like(m), q.new_zeros(*m.shape, v.shape[3])
        for start in range(0, k.shape[2], tile_k):
            part = slice(start, start + tile_k)
            seen = visible[:, part]
            s = q @ k[:, :, part].mT * scale
            if bug == "scores rounded to bfloat16":
                s = s.bfloat16().float()
            s = torch.where(seen, s, -math.inf)
            new = torch.maximum(m, s.amax(-1))
            base = torch.where(new == -math.inf, 0.0, new)
            p = torch.exp((s - base.unsqueeze(-1)) * (1.44 / math.log2(math.e) if bug == "log2(e) = 1.44" else 1))
            alpha = torch.exp(m - base)
            total = (total if bug == "rescale of l skipped" else alpha * total) + p.sum(-1)
            p = truncated(p) if bug == "P truncated" else p.to(dtype).float()
            if bug == "NaN times zero":
                add = p @ v[:, :, part]
            else:
                add = torch.where(seen.unsqueeze(-1), p.unsqueeze(-1) * v[:, :, None, part], 0).sum(-2)
            o = (o if bug == "rescale of o skipped" else alpha.unsqueeze(-1) * o) + add
            m = new
        divisor = total if bug == "empty row NaN" else torch.where(total == 0, 1.0, total)
        out = o / divisor.unsqueeze(-1)
        lse = m + total.log()
        if bug == "lse in base 2":
            lse = lse / math.log(2)
        if bug == "lse of an empty row 0":
            lse = torch.where(lse == -math.inf, 0.0, lse)
        return out.to(dtype), lse

    return attend


def probabilities_cut_by_most():
    """All weights but one just below 0.5 (1 + 2^-7), which truncation to bfloat16 takes to 0.5: a bias of 2^-7."""
    k = torch.tensor([[-0.6875, 0.45]]).repeat(200, 1)
    k[0] = 0
    v = (1 + torch.arange(64) / 64).expand(200, 64).clone()
    q, k, v = (x.bfloat16().expand(1, 1, *x.shape) for x in (torch.tensor([[1.0, 2.0**-8]]), k, v))
    return Problem(q, k, v, scale=1.0, name="weights just below 0.5 (1 + 2^-7)")


HARD = [probabilities_cut_by_most(), *problems(("bfloat16", "float32"))]
BUGS = {  # bug -> a law that must notice
    "scale 1/sqrt(d+1)": OUT,
    "last key counted twice": OUT,
    "last V row shifted": OUT,
    "unmasked padding": OUT,
    "one future key": OUT,
    "causal off by one": OUT,
    "rescale of l skipped": OUT,
    "rescale of o skipped": OUT,
    "P truncated": OUT,
    "scores rounded to bfloat16": OUT,
    "log2(e) = 1.44": OUT,
    "top_left for bottom_right": OUT,
    "wrong GQA head": OUT,
    "empty row NaN": OUT,
    "lse in base 2": LSE,
    "lse of an empty row 0": LSE,
    "zero scale taken for none given": LAWS["zero_scale_gives_the_mean"],
    "NaN times zero": LAWS["nan_behind_the_mask_does_not_leak"],
}
# Every law, and a bug that it, too, must notice.
LAW_BUGS = {
    "out_is_within_the_certain_bound": "scale 1/sqrt(d+1)",
    "lse_is_within_the_certain_bound": "rescale of l skipped",
    "order_of_keys_does_not_matter": "last key counted twice",
    "a_single_visible_key_gives_its_value": "unmasked padding",
    "causal_rows_do_not_depend_on_later_keys": "one future key",
    "nan_behind_the_mask_does_not_leak": "NaN times zero",
    "tile_size_does_not_matter": "rescale of o skipped",
    "shared_heads_equal_repeated_heads": "wrong GQA head",
    "constant_values_give_that_constant": "rescale of l skipped",
    "zero_scale_gives_the_mean": "last V row shifted",
    "empty_rows_give_zero_and_minus_infinity": "empty row NaN",
    "lse_is_between_the_maximum_and_log_n_more": "lse in base 2",
    "out_is_among_the_visible_values": "rescale of o skipped",
}


def broken_by(law, subject):
    """The first problem that breaks the law, or None."""
    for problem in HARD:
        try:
            law(subject, problem)
        except Broken as broken:
            return broken
        except Unsupported:
            pass
    return None


@pytest.mark.parametrize(("bug", "law"), BUGS.items(), ids=lambda x: x if isinstance(x, str) else "")
def test_planted_bug_is_caught(bug, law):
    broken = broken_by(law, kernel(bug))
    assert broken is not None
    assert broken.claim == law.claim
    assert broken.wrong >= 1


@pytest.mark.parametrize("law", LAWS.values(), ids=str)
def test_law_can_be_broken_and_is_not_without_a_bug(law):
    assert broken_by(law, kernel(LAW_BUGS[law.id.partition(".")[2]])) is not None
    assert broken_by(law, kernel("")) is None


def test_a_broken_law_says_where_by_how_much_and_of_what():
    with pytest.raises(Broken) as caught:
        OUT(kernel("unmasked padding"), make("very_negative_logits", dtype="bfloat16", keys=13, queries=2, heads=1))
    text = str(caught.value)
    assert text.startswith("attention.out_is_within_the_certain_bound[bfloat16]: The output differs")
    assert "out[0, 0, " in text
    assert "very_negative_logits, seed 0 bfloat16 q=(1, 1, 2, 16) k=(1, 1, 13, 16) v=(1, 1, 13, 8)" in text
    assert "times what is allowed" in text
    assert " of 16" in text


def test_an_answer_of_the_wrong_shape_is_broken_and_a_missing_lse_unsupported():
    problem = make("normal")
    with pytest.raises(Broken, match="out of normal"):
        OUT(lambda q, k, v: q[:, :, 1:], problem)
    with pytest.raises(Unsupported, match="no lse"):
        LSE(lambda q, k, v: v, problem.replace("square", q=problem.k, causal=None))


# --- Looseness --------------------------------------------------------------------------------------------------------


def print_looseness():
    """Largest bound over largest error for every family and dtype: 1 would be tight, inf is exact data."""
    columns = ("out certain", "out likely", "lse certain", "lse likely")
    print(f"{'family':24}{'dtype':10}{'mask':14}" + "".join(f"{name:>13}" for name in columns))
    for family in FAMILIES:
        for dtype in ("float32", "bfloat16", "float16"):
            for causal in (None, "bottom_right"):
                problem = make(family, dtype=dtype, causal=causal, queries=96, keys=320, head_dim=64, value_dim=64)
                ratios = looseness(OurAttention(), problem)
                print(f"{family:24}{dtype:10}{causal or 'full':14}" + "".join(f"{ratios[n]:13.4g}" for n in columns))


def test_looseness_is_printed_for_one_family(monkeypatch, capsys):
    monkeypatch.setattr(f"{__name__}.FAMILIES", {"normal": FAMILIES["normal"]})
    print_looseness()
    assert capsys.readouterr().out.count("normal") == 6


if __name__ == "__main__":
    print_looseness()
