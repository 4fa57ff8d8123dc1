"""Laws of attention: what any implementation must return, judged by a proven bound or, where claimed, by bits.

Each law is called as `law(subject, problem)`: what is judged is a `properties.subjects.Attention`, on what a
`properties.problems.Problem`. A law about lse, causality or tiles raises Unsupported when the subject returns no lse or
takes no tile size, or nothing is causal. "Bit for bit" leaves out the sign of zero and the payload of NaN.

Sources: `attention.bounds` for the bound; the rules written down in `attention.reference` for empty rows and NaN.

>>> from properties.laws import laws
>>> from properties.problems import make
>>> from properties.subjects import OurAttention
>>> ours, problem = OurAttention(), make("normal", dtype="bfloat16", queries=5, keys=9, causal="bottom_right")
>>> laws("attention")["out_is_within_the_certain_bound"](ours, problem)
>>> late = lambda q, k, v, causal: ours(q, k, v, causal=causal, scale=1.01 / q.shape[-1] ** 0.5)
>>> laws("attention")["lse_is_within_the_certain_bound"](late, problem)  # doctest: +ELLIPSIS
Traceback (most recent call last):
properties.laws.Broken: attention.lse_is_within_the_certain_bound[bfloat16]: ...
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attention as A
from properties.laws import Broken, Unsupported, law

if TYPE_CHECKING:
    from properties.problems import Problem
    from properties.subjects import Attention

__all__ = ["looseness"]

# --- Asking and refusing ----------------------------------------------------------------------------------------------


def _run(subject: Attention, problem: Problem, **more: Any) -> tuple[Tensor, Tensor | None]:
    """The subject's answer, its shapes checked; lse is None where it returns none."""
    answer = subject(problem.q, problem.k, problem.v, **problem.options, **more)
    out, lse = (answer, None) if isinstance(answer, Tensor) else answer
    rows = problem.q.shape[:3]
    for name, x, shape in (("out", out, (*rows, problem.v.shape[3])), ("lse", lse, rows)):
        if x is not None and tuple(x.shape) != tuple(shape):
            where = f"{name} of {problem}"
            raise Broken(
                where=where, got=f"shape {tuple(x.shape)}", expected=f"shape {tuple(shape)}", fmt=problem.dtype
            )
    return out, lse


def _with_lse(subject: Attention, problem: Problem) -> tuple[Tensor, Tensor]:
    out, lse = _run(subject, problem)
    if lse is None:
        raise Unsupported("the subject returns no lse")
    return out, lse


def _causal(problem: Problem) -> Problem:
    if problem.causal is None:
        raise Unsupported("a law about causal masks, and this problem is not causal")
    return problem


def _tile_k(subject: Attention) -> int | None:
    """The tile size it is judged by, if it says so."""
    return getattr(subject, "tile_k", None)


def _bound(subject: Attention, problem: Problem) -> A.Bounds:
    return problem.bound(_tile_k(subject))


def _require(
    good: Tensor, problem: Problem, what: str, got: Tensor, expected: Tensor, limit: Tensor | None = None
) -> None:
    """Raise Broken for the element furthest out unless all of `good`; `limit` is how far it may be from `expected`."""
    if bool(good.all()):
        return
    if limit is None:
        index = tuple(int(i) for i in (~good).nonzero()[0])
        text, notes = f"{expected[index].item()!r}, bit for bit", tuple[str, ...]()
    else:
        ratio = ((got.double() - expected.double()).abs() / limit).nan_to_num(math.inf, math.inf)
        ratio = torch.where(good, -1.0, ratio)
        flat = int(ratio.argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ratio.shape))
        text = f"{expected[index].item()!r} \u00b1 {limit[index].item():.3g}"
        notes = (f"error     {ratio[index].item():.4g} times what is allowed",)
    where = f"{what}[{', '.join(map(str, index))}] of {problem}"
    wrong, of = int((~good).sum()), good.numel()
    raise Broken(
        where=where, got=repr(got[index].item()), expected=text, fmt=problem.dtype, notes=notes, wrong=wrong, of=of
    )


def _require_within(problem: Problem, what: str, got: Tensor, expected: Tensor, limit: Tensor) -> None:
    """|got - expected| <= limit; equal infinities are equal, and a limit of +inf claims nothing."""
    near = (got.double() - expected.double()).abs() <= limit
    _require(near | (got == expected) | (limit == math.inf), problem, what, got, expected, limit)


def _require_same(problem: Problem, what: str, got: Tensor, expected: Tensor) -> None:
    """The same bits, but for the sign of zero and the payload of NaN."""
    _require((got == expected) | (got.isnan() & expected.isnan()), problem, what, got, expected)


# --- Laws -------------------------------------------------------------------------------------------------------------

_BOUND = "attention.bounds"


@law("attention", source=_BOUND)
def out_is_within_the_certain_bound(subject: Attention, problem: Problem) -> None:
    """The output differs from the exact one by no more than the proven bound, element by element."""
    out, _ = _run(subject, problem)
    _require_within(problem, "out", out, problem.truth.out, _bound(subject, problem).out)


@law("attention", source=_BOUND)
def lse_is_within_the_certain_bound(subject: Attention, problem: Problem) -> None:
    """The log-sum-exp is natural and differs from the exact one by no more than the proven bound."""
    _, lse = _with_lse(subject, problem)
    _require_within(problem, "lse", lse, problem.truth.lse, _bound(subject, problem).lse)


@law("attention", source=f"softmax is symmetric in its terms; {_BOUND}")
def order_of_keys_does_not_matter(subject: Attention, problem: Problem) -> None:
    """Reversing keys and values together, all visible, changes the result by no more than two bounds."""
    straight = problem.replace("all keys visible", causal=None)
    turned = straight.replace("keys reversed", k=straight.k.flip(2), v=straight.v.flip(2))
    limit = _bound(subject, straight)
    (out, lse), (other_out, other_lse) = _run(subject, turned), _run(subject, straight)
    _require_within(turned, "out", out, other_out, 2 * limit.out)
    if lse is not None and other_lse is not None:
        _require_within(turned, "lse", lse, other_lse, 2 * limit.lse)


@law("attention", source="the softmax of one score is 1")
def a_single_visible_key_gives_its_value(subject: Attention, problem: Problem) -> None:
    """A query that sees one key gets exactly that key's value row, bit for bit."""
    if problem.k.shape[2]:
        alone = problem.replace("first key only", k=problem.k[:, :, :1], v=problem.v[:, :, :1], causal=None)
        out, _ = _run(subject, alone)
        _require_same(alone, "out", out, alone.values.to(out.dtype).expand_as(out))
    rows = problem.allowed.sum(-1) == 1
    if bool(rows.any()):
        out, _ = _run(subject, problem)
        key = problem.allowed[rows].int().argmax(-1)
        _require_same(problem, "out of rows with one key", out[:, :, rows], problem.values[:, :, key].to(out.dtype))


def _with_later_keys(problem: Problem, what: str, k: float, v: float) -> tuple[Problem, Tensor]:
    """Other keys and values from where the middle query stops seeing on, and the rows that see none of them."""
    first = int(problem.allowed[problem.q.shape[2] // 2].sum()) if problem.q.shape[2] else 0
    keys, values = problem.k.clone(), problem.v.clone()
    keys[:, :, first:], values[:, :, first:] = k, v
    return problem.replace(f"{what} from key {first} on", k=keys, v=values), ~problem.allowed[:, first:].any(-1)


def _rows_do_not_change(subject: Attention, problem: Problem, changed: Problem, rows: Tensor) -> None:
    (out, lse), (other_out, other_lse) = _run(subject, changed), _run(subject, problem)
    _require_same(changed, "out of rows before it", out[:, :, rows], other_out[:, :, rows])
    if lse is not None and other_lse is not None:
        _require_same(changed, "lse of rows before it", lse[:, :, rows], other_lse[:, :, rows])


@law("attention", source="causality; the kernels' own promise")
def causal_rows_do_not_depend_on_later_keys(subject: Attention, problem: Problem) -> None:
    """Changing keys and values that a row may not see changes no bit of that row."""
    _rows_do_not_change(subject, problem, *_with_later_keys(_causal(problem), "keys of 1 and values of 7", 1.0, 7.0))


@law("attention", source="attention.reference; the torch report pytorch#101967")
def nan_behind_the_mask_does_not_leak(subject: Attention, problem: Problem) -> None:
    """NaN in keys and values that a row may not see changes no bit of that row."""
    _rows_do_not_change(subject, problem, *_with_later_keys(_causal(problem), "NaN", math.nan, math.nan))


@law("attention", source=_BOUND)
def tile_size_does_not_matter(subject: Attention, problem: Problem) -> None:
    """Any two tile sizes give results no further apart than the sum of their bounds."""
    if not {"tile_q", "tile_k"} <= inspect.signature(subject).parameters.keys():
        raise Unsupported("the subject takes no tile_q= and tile_k=")
    base, base_limit = _run(subject, problem), _bound(subject, problem)
    for tile_q, tile_k in ((64, 64), (16, 8), (7, 33)):
        out, lse = _run(subject, problem, tile_q=tile_q, tile_k=tile_k)
        limit = problem.bound(None if _tile_k(subject) is None else tile_k)
        what = f"with tiles of {tile_q} by {tile_k}: "
        _require_within(problem, f"{what}out", out, base[0], limit.out + base_limit.out)
        if lse is not None and base[1] is not None:
            _require_within(problem, f"{what}lse", lse, base[1], limit.lse + base_limit.lse)


@law("attention", source="Ainslie et al. 2023 (arXiv 2305.13245): query head h uses key head h // group")
def shared_heads_equal_repeated_heads(subject: Attention, problem: Problem) -> None:
    """Fewer key and value heads give the same bits as repeating each for its group of query heads."""
    group = problem.q.shape[1] // max(problem.k.shape[1], 1)
    k, v = (x.repeat_interleave(group, 1) for x in (problem.k, problem.v))
    repeated = problem.replace("heads repeated", k=k, v=v)
    (out, lse), (other_out, other_lse) = _run(subject, problem), _run(subject, repeated)
    _require_same(problem, "out", out, other_out)
    if lse is not None and other_lse is not None:
        _require_same(problem, "lse", lse, other_lse)


@law("attention", source=f"weights sum to 1; {_BOUND}")
def constant_values_give_that_constant(subject: Attention, problem: Problem) -> None:
    """If all values of a column are equal, that is the output, within the bound."""
    if problem.k.shape[2]:
        constant = problem.replace("values constant", v=problem.v[:, :, :1].expand_as(problem.v).contiguous())
        out, _ = _run(subject, constant)
        seen = constant.allowed.any(-1).unsqueeze(-1)
        _require_within(constant, "out", out, constant.values[:, :, :1] * seen, _bound(subject, constant).out)


@law("attention", source=f"softmax of equal scores; {_BOUND}")
def zero_scale_gives_the_mean(subject: Attention, problem: Problem) -> None:
    """With scale 0 a query gets the mean of the values it sees and lse is the logarithm of their number."""
    flat = problem.replace("scale 0", scale=0.0)
    out, lse = _run(subject, flat)
    limit = _bound(subject, flat)
    count = flat.allowed.sum(-1).double()
    mean = flat.allowed.double() @ flat.values / count.clamp(min=1).unsqueeze(-1)
    _require_within(flat, "out", out, mean, limit.out)
    if lse is not None:
        _require_within(flat, "lse", lse, count.log().expand(lse.shape), limit.lse)


@law("attention", source="attention.reference")
def empty_rows_give_zero_and_minus_infinity(subject: Attention, problem: Problem) -> None:
    """A query that sees no key gets out 0 and lse -inf."""
    cases = [problem]
    if problem.causal == "bottom_right" and problem.q.shape[2] > 1:
        keys = slice(min(problem.k.shape[2], problem.q.shape[2] // 2))
        cases.append(problem.replace("fewer keys than queries", k=problem.k[:, :, keys], v=problem.v[:, :, keys]))
    for case in cases:
        rows = ~case.allowed.any(-1)
        if bool(rows.any()):
            out, lse = _run(subject, case)
            out = out[:, :, rows]
            _require_same(case, "out of empty rows", out, torch.zeros_like(out))
            if lse is not None:
                lse = lse[:, :, rows]
                _require_same(case, "lse of empty rows", lse, torch.full_like(lse, -math.inf))


@law("attention", source=f"n terms, the largest of them 1; {_BOUND}")
def lse_is_between_the_maximum_and_log_n_more(subject: Attention, problem: Problem) -> None:
    """The log-sum-exp of n scores is at least the largest and at most ln n above it, within the bound."""
    _, lse = _with_lse(subject, problem)
    if not problem.k.shape[2]:
        return
    group = problem.q.shape[1] // max(problem.k.shape[1], 1)
    keys = problem.k.double().repeat_interleave(group, 1)
    scale = problem.q.shape[3] ** -0.5 if problem.scale is None else problem.scale
    scores = torch.where(problem.allowed, problem.q.double() @ keys.mT * scale, -math.inf)
    low = scores.amax(-1)
    high = low + problem.allowed.sum(-1).double().log()
    clamped = torch.minimum(torch.maximum(lse.double(), low), high)
    _require_within(problem, "lse", lse, clamped, _bound(subject, problem).lse)


@law("attention", source=f"weights are positive and sum to 1; {_BOUND}")
def out_is_among_the_visible_values(subject: Attention, problem: Problem) -> None:
    """The output lies between the smallest and the largest value the query sees, within the bound."""
    out, _ = _run(subject, problem)
    if not problem.k.shape[2]:
        return
    seen = problem.allowed.unsqueeze(-1)
    values = problem.values.unsqueeze(-3)
    low, high = torch.where(seen, values, math.inf).amin(-2), torch.where(seen, values, -math.inf).amax(-2)
    clamped = torch.minimum(torch.maximum(out.double(), low), high)
    rows = problem.allowed.any(-1)
    limit = _bound(subject, problem).out[:, :, rows]
    _require_within(problem, "out of rows with keys", out[:, :, rows], clamped[:, :, rows], limit)


def looseness(subject: Attention, problem: Problem) -> dict[str, float]:
    """Largest bound over largest error, for out and lse, certain and likely: how much the bound gives away.

    NaN where the subject returns no lse; +inf where it makes no error.
    """
    out, lse = _run(subject, problem)
    k_tile, mask, scale = _tile_k(subject), problem.mask, problem.scale
    bound = A.error_bound(problem.q, problem.k, problem.v, mask=mask, scale=scale, tile_k=k_tile)
    rows = problem.allowed.any(-1)
    ratios = {}
    for kind, bounds in (("certain", bound.certain), ("likely", bound.likely)):
        for name, got, true, limit in zip(("out", "lse"), (out, lse), problem.truth, bounds, strict=True):
            if got is None or not got[:, :, rows].numel():
                ratios[f"{name} {kind}"] = math.nan
                continue
            error = (got.double() - true)[:, :, rows].abs().amax()
            ratios[f"{name} {kind}"] = float(limit[:, :, rows].amax() / error) if error > 0 else math.inf
    return ratios
