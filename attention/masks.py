"""Which keys each query may see: small objects that answer for one pair, for a tile, or for the whole matrix.

A mask is a predicate on (query index, key index, number of queries, number of keys). `materialize` gives the boolean
matrix (True: may see) that the specification uses; `classify` lets a tiled implementation skip tiles nobody may see and
leave tiles everybody may see alone. Masks combine with `&`, `|` and `~`.

Causal masks come in two alignments, which differ when there are not as many queries as keys:

    top_left      1 0 0 0      bottom_right   1 1 1 0       query i sees key j when
    (torch's      1 1 0 0      (FlashAttention 1 1 1 1       top_left:     j <= i
    is_causal)                 since 2.1)                    bottom_right: j <= i + keys - queries

>>> from attention.masks import causal
>>> causal("bottom_right").materialize(2, 4).int().tolist()
[[1, 1, 1, 0], [1, 1, 1, 1]]
>>> (causal("bottom_right") & ~causal("top_left")).materialize(2, 4).int().tolist()
[[0, 1, 1, 0], [0, 0, 1, 1]]
>>> causal("top_left").classify(range(0, 2), range(2, 4), 4, 4)
'empty'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["Alignment", "Mask", "TileKind", "causal", "full", "visible_nonfinite"]

Alignment = Literal["top_left", "bottom_right"]
TileKind = Literal["full", "partial", "empty"]
_OPPOSITE: dict[TileKind, TileKind] = {"full": "empty", "partial": "partial", "empty": "full"}


class Mask(ABC):
    """A rule saying which keys a query may see; immutable, compared by value, holds no tensor of its own.

    Subclasses give `allowed` and `classify`; everything else follows.
    """

    @abstractmethod
    def allowed(self, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int) -> Tensor:
        """Whether `queries[...]` may see `keys[...]`: boolean, the broadcast shape of the two index tensors.

        Raises ValueError when the mask does not fit the lengths (a causal mask without alignment, n_queries != n_keys).
        """

    @abstractmethod
    def classify(self, queries: range, keys: range, n_queries: int, n_keys: int) -> TileKind:
        """What is known of a non-empty tile without looking at its elements.

        "full" (every pair allowed) and "empty" (none) are promises; "partial" is none: look at `allowed`.
        Raises ValueError as `allowed` does.
        """

    def materialize(self, n_queries: int, n_keys: int, device: torch.device | str | None = None) -> Tensor:
        """The boolean matrix (n_queries, n_keys), True where the query may see the key. Raises as `allowed` does."""
        queries = torch.arange(n_queries, device=device).unsqueeze(-1)
        return self.allowed(queries, torch.arange(n_keys, device=device), n_queries, n_keys)

    def __and__(self, other: object) -> Mask:
        """Keys that both masks allow."""
        return _Both(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: object) -> Mask:
        """Keys that either mask allows."""
        return _Not(_Both(_Not(self), _Not(other))) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        """Keys that this mask does not allow."""
        return self.mask if isinstance(self, _Not) else _Not(self)


@dataclass(frozen=True)
class _Full(Mask):
    def allowed(self, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int) -> Tensor:
        return torch.ones_like(queries + keys, dtype=torch.bool)

    def classify(self, queries: range, keys: range, n_queries: int, n_keys: int) -> TileKind:
        return "full"


@dataclass(frozen=True)
class _Causal(Mask):
    alignment: Alignment | None

    def allowed(self, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int) -> Tensor:
        return keys <= queries + self._shift(n_queries, n_keys)

    def classify(self, queries: range, keys: range, n_queries: int, n_keys: int) -> TileKind:
        shift = self._shift(n_queries, n_keys)
        if keys[-1] <= queries[0] + shift:
            return "full"
        return "empty" if keys[0] > queries[-1] + shift else "partial"

    def _shift(self, n_queries: int, n_keys: int) -> int:
        if self.alignment is None and n_queries != n_keys:
            raise ValueError(
                f"causal() with {n_queries} queries and {n_keys} keys is ambiguous: say causal('top_left') (query 0 "
                f"sees key 0 only) or causal('bottom_right') (the last query sees every key)"
            )
        return n_keys - n_queries if self.alignment == "bottom_right" else 0


@dataclass(frozen=True)
class _Both(Mask):
    left: Mask
    right: Mask

    def allowed(self, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int) -> Tensor:
        left = self.left.allowed(queries, keys, n_queries, n_keys)
        return left & self.right.allowed(queries, keys, n_queries, n_keys)

    def classify(self, queries: range, keys: range, n_queries: int, n_keys: int) -> TileKind:
        kinds = {mask.classify(queries, keys, n_queries, n_keys) for mask in (self.left, self.right)}
        return "empty" if "empty" in kinds else "partial" if "partial" in kinds else "full"


@dataclass(frozen=True)
class _Not(Mask):
    mask: Mask

    def allowed(self, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int) -> Tensor:
        return ~self.mask.allowed(queries, keys, n_queries, n_keys)

    def classify(self, queries: range, keys: range, n_queries: int, n_keys: int) -> TileKind:
        return _OPPOSITE[self.mask.classify(queries, keys, n_queries, n_keys)]


def full() -> Mask:
    """Every query sees every key; the same as no mask."""
    return _Full()


def causal(alignment: Alignment | None = None) -> Mask:
    """A query sees no later key; `alignment` says which corner of the matrix the diagonal meets.

    "top_left": query i sees keys 0..i. "bottom_right": the last query sees every key; with fewer keys than queries the
    first queries then see none. None means either, and is refused on use when there are not as many queries as keys.
    Raises ValueError for another alignment.
    """
    if alignment is not None and alignment not in get_args(Alignment):
        raise ValueError(f"causal alignment is {alignment!r}; it must be one of {', '.join(get_args(Alignment))}")
    return _Causal(alignment)


def visible_nonfinite(x: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split keys or values so that a product with masked elements is exact zero: 0 * NaN is NaN, and torch leaks it.

    `x` is (..., keys, dim), `allowed` (queries, keys). Returns `x` with every NaN and infinity replaced by zero, and
    what was taken out as (..., queries, keys, dim), zero where the query may not see the key; None if all was finite.
    Only the second part costs O(queries * keys * dim), and only when it exists.
    """
    finite = x.isfinite()
    if bool(finite.all()):
        return x, None
    zero = x.new_zeros(())
    seen = allowed.unsqueeze(-1) & ~finite.unsqueeze(-3)
    return torch.where(finite, x, zero), torch.where(seen, x.unsqueeze(-3), zero)
