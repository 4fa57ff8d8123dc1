"""Problems to judge attention by: the kinds of data that have broken kernels, and what is known of the answer.

`FAMILIES` has a function for each kind, `make` draws a `Problem` from one by a seed, `problems` is a fixed selection of
all of them. A problem knows its exact answer and how far from it a subject may be; that needs float64 and is computed
when first asked for.

Sources: `attention.reference` for the answer, `attention.bounds` for the distance; the failures that the families are
after are named with them.

>>> from properties.problems import make
>>> problem = make("large_logits", seed=1, dtype="bfloat16", queries=5, keys=9, causal="bottom_right")
>>> print(problem)
large_logits, seed 1 bfloat16 q=(1, 2, 5, 16) k=(1, 1, 9, 16) v=(1, 1, 9, 8) causal=bottom_right
>>> bool((problem.bound().out < 0.1).all())
True
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import attention as A
from attention.masks import Alignment

__all__ = ["DTYPES", "FAMILIES", "Dims", "Problem", "make", "problems"]

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Problem:
    """One input of attention, with what is known of the answer; `name` says where it comes from."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: Alignment | None = None
    scale: float | None = None
    name: str = "given data"

    def __str__(self) -> str:
        shapes = " ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", self.q), ("k", self.k), ("v", self.v)))
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        return f"{self.name} {self.dtype} {shapes}{options}"

    @property
    def dtype(self) -> str:
        """The name of the inputs' dtype."""
        return str(self.q.dtype).removeprefix("torch.")

    @property
    def options(self) -> dict[str, Any]:
        """What the subject is passed beside the tensors."""
        return {name: x for name, x in (("causal", self.causal), ("scale", self.scale)) if x is not None}

    @property
    def mask(self) -> A.Mask | None:
        """The mask as an object."""
        return A.causal(self.causal) if self.causal else None

    @functools.cached_property
    def allowed(self) -> Tensor:
        """Which keys each query may see, (queries, keys)."""
        return (self.mask or A.full()).materialize(self.q.shape[2], self.k.shape[2], self.q.device)

    @functools.cached_property
    def truth(self) -> A.AttentionResult:
        """The answer in float64."""
        return A.standard_attention(self.q, self.k, self.v, mask=self.mask, scale=self.scale, precision=torch.float64)

    @property
    def values(self) -> Tensor:
        """v in float64, repeated for every query head."""
        return self.v.double().repeat_interleave(self.q.shape[1] // max(self.v.shape[1], 1), 1)

    def bound(self, tile_k: int | None = None) -> A.Bounds:
        """How far a subject may be from `truth`; for float64 inputs plus how far `truth` itself may be off."""
        bounds = [self._bound(tile_k)] + ([self._bound(None)] if self.dtype == "float64" else [])
        return A.Bounds(*(torch.stack(parts).sum(0) for parts in zip(*bounds, strict=True)))

    def _bound(self, tile_k: int | None) -> A.Bounds:
        if tile_k not in self._bounds:
            found = A.error_bound(self.q, self.k, self.v, mask=self.mask, scale=self.scale, tile_k=tile_k)
            self._bounds[tile_k] = found.certain
        return self._bounds[tile_k]

    @functools.cached_property
    def _bounds(self) -> dict[int | None, A.Bounds]:
        return {}

    def replace(self, what: str, **changes: Any) -> Problem:
        """The same problem but for some fields; `what` is added to its name."""
        return dataclasses.replace(self, name=f"{self.name}, {what}", **changes)


# --- Data -------------------------------------------------------------------------------------------------------------


class Dims(NamedTuple):
    """The sizes of a problem."""

    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    queries: int = 19
    keys: int = 37
    head_dim: int = 16
    value_dim: int = 8


class _Setting(NamedTuple):
    shift: int  # the last key that query i may see is i + shift
    tiny: float  # smallest subnormal of the dtype


Triple = tuple[Tensor, Tensor, Tensor]
Family = Callable[[Tensor, Tensor, Tensor, _Setting], Triple]

# Name -> what it makes of normally distributed q, k and v in float64.
FAMILIES: dict[str, Family] = {}


def _family(function: Family) -> Family:
    FAMILIES[function.__name__] = function
    return function


def _signs(x: Tensor) -> Tensor:
    """+1, -1, +1 ... along the length."""
    return (1.0 - 2.0 * (torch.arange(x.shape[2]) % 2)).unsqueeze(-1).double()


@_family
def normal(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """N(0, 1)."""
    return q, k, v


@_family
def large_logits(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Scores of standard deviation 6: a few keys share the weight."""
    return 6 * q, k, v


@_family
def huge_logits(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Scores of standard deviation 60: one key takes all, differences beyond the range of exp."""
    return 60 * q, k, v


@_family
def increasing_logits(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Every key beats the ones before it: the running maximum changes in every tile."""
    steps = 0.4 * torch.arange(k.shape[2]).double().unsqueeze(-1)
    return torch.ones_like(q), (steps / max(q.shape[-1], 1) ** 0.5).expand_as(k), v


@_family
def equal_logits(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """One query and one key, repeated: every weight is the same, every row rounds alike."""
    return q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k), v


@_family
def equal_queries(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """One query, repeated."""
    return q[:, :, :1].expand_as(q), k, v


@_family
def one_hot(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """A query matches every head_dim-th key by a score of 40 and the others by 0."""
    channels = torch.arange(q.shape[-1])
    hot = [(torch.arange(x.shape[2]).unsqueeze(-1) % max(q.shape[-1], 1) == channels).double() for x in (q, k)]
    return 40 * hot[0].expand_as(q), q.shape[-1] ** 0.5 * hot[1].expand_as(k), v


@_family
def heavy_tails(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Log-normal sizes, up to the range of float16."""
    q, k, v = (x.sign() * (rate * x.abs()).exp() / 4 for x, rate in ((q, 1.5), (k, 1.5), (v, 2.5)))
    return q, k, v.clamp(-6e4, 6e4)


@_family
def outlier_channel(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """One channel of queries and keys is 20 times the others, as in trained models."""
    louder = torch.ones(q.shape[-1]).double()
    louder[:1] = 20
    return q * louder, k * louder, v


@_family
def cancellation_in_values(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Values of +1000 and -1000 in turn around the signal."""
    return q, k, v + 1000 * _signs(v)


@_family
def cancellation_in_scores(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Channels in pairs whose large products cancel."""
    q, k = 30 * q, 30 * k
    half = q.shape[-1] // 2
    q[..., half : 2 * half], k[..., half : 2 * half] = q[..., :half], 1 / 30 - k[..., :half]
    return q, k, v


@_family
def constant_values(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """All keys have the same value row."""
    return q, k, v[:, :, :1].expand_as(v)


@_family
def tiny_values(q: Tensor, k: Tensor, v: Tensor, setting: _Setting) -> Triple:
    """Values are a few times the smallest subnormal."""
    return q, k, 20 * v * setting.tiny


@_family
def tiny_scores(q: Tensor, k: Tensor, v: Tensor, setting: _Setting) -> Triple:
    """Queries are subnormal, products underflow."""
    return 20 * q * setting.tiny, k, v


@_family
def low_rank_one_signed(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Rank one queries and keys, positive values: roundings of the probabilities add up (arXiv 2510.04212)."""
    return q[..., :1].expand_as(q), k[..., :1].expand_as(k), v.abs()


@_family
def alternating_signs(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Keys and values change sign from key to key."""
    return 2 * q.abs(), k.abs() * _signs(k), v.abs() * _signs(v)


@_family
def zeros(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Nothing but zeros."""
    return 0 * q, 0 * k, 0 * v


@_family
def very_negative_logits(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """All scores below -100: a padded key scored 0 takes all the weight, exp(-lse) overflows."""
    return q.abs() + 6, -(k.abs() + 6) * 3, v


@_family
def small_integers(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """Integers up to 8: products and sums are exact."""
    return (2 * q).round(), (2 * k).round(), (2 * v).round()


@_family
def spotlight(q: Tensor, k: Tensor, v: Tensor, setting: _Setting) -> Triple:
    """Positions turn slowly, so a query weighs the keys around its causal boundary most, on either side of it."""

    def turning(x: Tensor, first: int) -> Tensor:
        angle = 0.3 * (torch.arange(x.shape[2]).double() + first)
        turned = 0.1 * x
        turned[..., :2] += 2.8 * x.shape[-1] ** 0.25 * torch.stack([angle.cos(), angle.sin()], -1)[:, : x.shape[-1]]
        return turned

    return turning(q, setting.shift), turning(k, 0), v


@_family
def loud_last_key(q: Tensor, k: Tensor, v: Tensor, _: _Setting) -> Triple:
    """The last key has a score about 8 above the others, for every query."""
    direction = max(q.shape[-1], 1) ** -0.25
    k[:, :, -1:] = 4 * direction
    return q + 2 * direction, k, v


def make(
    family: str,
    *,
    seed: int = 0,
    dtype: str = "float32",
    causal: Alignment | None = None,
    scale: float | None = None,
    **dims: int,
) -> Problem:
    """A problem of this family: the same for the same arguments; `dims` are the fields of `Dims`.

    Numbers are drawn in float64 and rounded to `dtype` by nearest even. Raises ValueError for an unknown name.
    """
    for what, given, known in (("family", family, FAMILIES), ("dtype", dtype, DTYPES)):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}: there are {', '.join(known)}")
    d = Dims(**dims)
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (d.batch, d.heads, d.queries, d.head_dim),
        (d.batch, d.kv_heads, d.keys, d.head_dim),
        (d.batch, d.kv_heads, d.keys, d.value_dim),
    )
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    info = torch.finfo(DTYPES[dtype])
    setting = _Setting(d.keys - d.queries if causal == "bottom_right" else 0, info.smallest_normal * info.eps)
    q, k, v = (x.to(DTYPES[dtype]).contiguous() for x in FAMILIES[family](q, k, v, setting))
    return Problem(q, k, v, causal, scale, f"{family}, seed {seed}")


def problems(dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32"), seed: int = 0) -> Iterator[Problem]:
    """Every family in every dtype, full and causal with both alignments, more keys than queries and the other way."""
    for family in FAMILIES:
        for dtype in dtypes:
            yield make(family, seed=seed, dtype=dtype, heads=4, kv_heads=2)
            yield make(family, seed=seed + 1, dtype=dtype, causal="top_left", queries=33, keys=33)
            yield make(family, seed=seed + 2, dtype=dtype, causal="bottom_right", queries=9, keys=70)
            yield make(family, seed=seed + 3, dtype=dtype, causal="bottom_right", queries=23, keys=7)
