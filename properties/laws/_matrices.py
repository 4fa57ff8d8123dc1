"""The yardstick of the laws on products of matrices: matrices that matter, exact products, how a failure reads.

Products are computed in Python's integers, so nothing here rounds.

>>> import numpy as np
>>> exact_product(np.array([[0.5, 3.0]]), np.array([[2.0**-60], [1.0]]))[0][0, 0] == (3 << 61) + 1
True
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import precision as P
from properties.laws import Broken
from properties.laws._grid import answer, rounded_size, same, values_of, wide
from properties.laws._operations import dtype_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision.formats import AnyFormat
    from properties.operators import Dot, Product

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


class Matrices(NamedTuple):
    """a (M, K) and b (K, N), float64 values of the formats of a product, and what kind of numbers they are."""

    a: Floats
    b: Floats
    family: str


FAMILIES = ("normal", "uniform", "coarse", "wide", "cancelling", "swamped", "tiny", "special")
"""Kinds of numbers; "wide" draws all finite codes evenly, "coarse" are multiples of 1/4, "special" has Inf and NaN."""

_SHAPES = ((2, 43, 2), (3, 11, 5), (4, 24, 3), (5, 21, 4), (1, 16, 7), (6, 130, 2), (3, 67, 3))


def matrices(product: Product, *, each: int = 1, seed: int = 0) -> list[Matrices]:
    """Pairs of matrices of every family, `each` of a family; K from 11 to 43, and to 130 if there are several."""
    random = np.random.default_rng(seed)
    shapes = _SHAPES[:4] if each == 1 else _SHAPES
    found = []
    for i, family in enumerate(FAMILIES):
        for j in range(each):
            m, k, n = shapes[(i + j) % len(shapes)]
            a, b = _numbers(family, product.a, (m, k), random), _numbers(family, product.b, (k, n), random)
            if family == "cancelling":
                half = k // 2
                a[:, half : 2 * half] = _opposite(a[:, :half], product.a)
                b[half : 2 * half] = b[:half]
            found.append(Matrices(a, b, family))
    return found


def _numbers(family: str, fmt: AnyFormat, shape: tuple[int, int], random: np.random.Generator) -> Floats:
    scale = 40.0 if isinstance(fmt, P.IntFormat) else 1.0
    if family in ("wide", "special"):
        x = values_of(random.integers(0, 1 << fmt.bits, shape, np.uint64), fmt)
        with np.errstate(invalid="ignore"):
            x = x if family == "special" else np.where(np.isfinite(x), x, 1.0)
        if family == "special" and isinstance(fmt, P.Format):
            some = [value for value, has in ((np.inf, fmt.infinities), (np.nan, fmt.has_nan)) if has]
            x[0, : len(some)] = some
        return x
    if family == "tiny":
        multiples = random.integers(0, 8, shape).astype(np.float64) * fmt.smallest_subnormal
        return _opposite_some(fit(multiples, fmt), fmt, random)
    if family == "swamped":
        x = np.full(shape, fit(np.array([scale], np.float64), fmt)[0])
        x[0, 0] = 2.0 ** ((fmt.emax - 1) // 2) if isinstance(fmt, P.Format) else fmt.max
        return x
    if family == "uniform":
        return fit(scale * np.asarray(random.random(shape)), fmt)
    if family == "coarse":
        return fit(random.integers(-7, 8, shape) / 4 * scale, fmt)
    return fit(scale * random.standard_normal(shape), fmt)


def fit(x: Floats, fmt: AnyFormat) -> Floats:
    """The nearest values of a format, clipped; without sign where it has none."""
    size = np.minimum(rounded_size(x, fmt, "nearest_even"), fmt.max)
    return np.where(np.signbit(x) & (size != 0), -size, size) if fmt.signed else size


def _opposite(x: Floats, fmt: AnyFormat) -> Floats:
    return np.where((x != 0) & (x > fmt.min), -x, x) if fmt.signed else x


def _opposite_some(x: Floats, fmt: AnyFormat, random: np.random.Generator) -> Floats:
    return np.where(random.integers(0, 2, x.shape) == 0, x, _opposite(x, fmt))


def _integers(x: Floats) -> tuple[NDArray[np.object_], int]:
    """Finite numbers as Python integers, times one power of two."""
    fraction, exponent = np.frexp(x)
    whole = np.ldexp(fraction, 53).astype(np.int64)
    zeros = np.where(whole == 0, 63, np.frexp((whole & -whole).astype(np.float64))[1] - 1)
    low = int(np.where(whole == 0, 1 << 12, exponent - 53 + zeros).min(initial=0))
    shift = exponent - 53 - low
    numbers = [int(n) << int(s) if s >= 0 else int(n) >> int(-s) for n, s in zip(whole.flat, shift.flat, strict=True)]
    return np.array(numbers, dtype=object).reshape(x.shape), low


def exact_product(a: Floats, b: Floats) -> tuple[NDArray[np.object_], NDArray[np.object_], int]:
    """Integers S and T, and e: the exact products of finite matrices are S * 2^e, those of their magnitudes T * 2^e."""
    (left, e), (right, f) = _integers(a), _integers(b)
    if a.shape[1] == 0:
        zero = np.full((a.shape[0], b.shape[1]), 0, dtype=object)
        return zero, zero, 0
    return left @ right, np.abs(left) @ np.abs(right), e + f


def fraction(n: int, e: int) -> Fraction:
    return Fraction(n << e) if e >= 0 else Fraction(n, 1 << -e)


# --- Asking, and how a failure reads ----------------------------------------------------------------------------------


def multiply(subject: Dot, product: Product, a: Any, b: Any) -> Floats:
    """What the subject makes of two matrices, given as copies, in a dtype that holds them."""
    given: list[Any] = []
    for x, fmt in ((a, product.a), (b, product.b)):
        dtype = dtype_of(fmt) if isinstance(fmt, P.Format) else np.float32 if fmt.bits <= 24 else np.float64
        with np.errstate(all="ignore"):
            given.append(np.array(x, dtype))
    got = wide(answer(subject.matmul(given[0], given[1], product)))
    shape = (given[0].shape[0], given[1].shape[1])
    if got.shape != shape:
        where = f"a of shape {given[0].shape} times b of shape {given[1].shape}"
        raise Broken(where=where, got=f"shape {got.shape}", expected=f"shape {shape}", fmt=product.name)
    return got


def require(right: Bools, product: Product, x: Matrices, got: Floats, expected: Any, *notes: str) -> None:
    """Raise Broken for an element of the fewest terms, unless `right` is all true."""
    if right.all():
        return
    terms = ((x.a[:, :, None] != 0) & (x.b != 0)).sum(1)
    i, j = np.unravel_index(int(np.where(right, 1 << 30, terms).argmin()), right.shape)
    want = expected if isinstance(expected, str) else expected[i, j]
    raise Broken(
        where=_terms(x, int(i), int(j)),
        got=repr(float(got[i, j])),
        expected=want if isinstance(want, str) else repr(float(want)),
        fmt=product.name,
        notes=notes,
        wrong=int((~right).sum()),
        of=right.size,
    )


def _terms(x: Matrices, i: int, j: int) -> str:
    """The terms of one element, with their columns where zeros stand between them; of many the first."""
    a, b = x.a[i].tolist(), x.b[:, j].tolist()
    columns = [k for k, (u, v) in enumerate(zip(a, b, strict=True)) if u != 0 and v != 0]
    text = " + ".join(f"{a[k]!r} * {b[k]!r}" for k in columns[:4])
    if len(columns) > 4:
        text += f" + ... ({len(columns)} terms that are not zero)"
    elif columns and columns != list(range(len(columns))):
        text += f" (column{'s' * (len(columns) > 1)} {', '.join(map(str, columns))})"
    place = f"element [{i}, {j}] of a product of {x.a.shape} and {x.b.shape} matrices, {x.family}: " if x.family else ""
    return f"{place}{text or 'no terms but zeros'}"


def judge(subject: Dot, product: Product, x: Matrices, expected: Floats, *notes: str) -> None:
    """Require exactly `expected`."""
    got = multiply(subject, product, x.a, x.b)
    require(same(got, expected), product, x, got, expected, *notes)


def _rows(*rows: tuple[list[float], list[float], float]) -> tuple[Matrices, Floats]:
    """One sum for each (left factors, right factors, expected): as the diagonal of a product; zeros fill up."""
    k = max(len(left) for left, _, _ in rows)
    a, b = np.zeros((len(rows), k)), np.zeros((k, len(rows)))
    for i, (left, right, _) in enumerate(rows):
        a[i, : len(left)], b[: len(right), i] = left, right
    return Matrices(a, b, ""), np.array([expected for *_, expected in rows])


def judge_rows(subject: Dot, product: Product, *rows: tuple[list[float], list[float], float]) -> None:
    """Require what is expected of each sum, computed for itself and together with the others."""
    for some in (rows, *((row,) for row in rows)):
        x, expected = _rows(*some)
        got = multiply(subject, product, x.a, x.b)
        right = np.ones(got.shape, bool)
        np.fill_diagonal(right, same(np.diagonal(got).copy(), expected))
        table = np.zeros(got.shape)
        np.fill_diagonal(table, expected)
        require(right, product, x, got, table)
