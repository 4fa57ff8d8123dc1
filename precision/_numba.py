"""The table lookup of `_engine` as one compiled loop: the optional `fast` extra (numba)."""

from __future__ import annotations

from typing import Any

import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _loop(u: Any, table: Any, shift: Any, mask: Any, out: Any) -> None:
    for i in range(u.size):
        x = u[i]
        out[i] = table[(x | ((x & mask) + mask)) >> shift]


def gather(u: np.ndarray[Any, Any], table: np.ndarray[Any, Any], shift: int, out: np.ndarray[Any, Any]) -> None:
    """out[i] = table[u[i] >> shift, its last bit OR-ed with everything shifted out]."""
    _loop(u, table, u.dtype.type(shift), u.dtype.type((1 << shift) - 1), out)
