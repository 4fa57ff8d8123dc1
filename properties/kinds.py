"""The kinds of things that can be judged: by which laws, in which cases, on which inputs.

A subject is of every kind whose method it has: `round` makes a codec of it, `apply` an arithmetic, `matmul` products of
matrices, `fake_quantize` a quantizer. `properties.cases`, `judge` and `check` and the pytest plugin ask here for what
differs.

Importing this module loads neither NumPy nor Hypothesis.

>>> list(KINDS), kind_of("rounding.monotone").name
(['casts', 'arithmetic', 'dots', 'quantizers'], 'casts')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from properties.laws import Case, laws

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from precision.formats import AnyFormat

__all__ = ["KINDS", "Kind", "given", "kind_named", "kind_of", "kinds"]


class Kind(NamedTuple):
    """One kind: its name, as "no law on casts ..." has it, the families of its laws, and the method it is known by.

    Laws of the families `own` bring their inputs and are called with None for them.
    `cases(subject, fmt, modes)` are the laws with their cases in a format; `inputs(subject, case, deep, seed)` is what
    a law is called with, one after the other, `drawn(case)` the strategy of more; `call(case, subject, x)` calls it.
    """

    name: str
    families: tuple[str, ...]
    own: tuple[str, ...]
    method: str
    cases: Callable[[Any, AnyFormat, Sequence[str]], list[Case]]
    inputs: Callable[[Any, Case, bool, int], list[Any]]
    drawn: Callable[[Case], SearchStrategy[Any]]
    call: Callable[[Case, Any, Any], None]


# --- Casts ------------------------------------------------------------------------------------------------------------


def _casts(subject: Any, fmt: AnyFormat, modes: Sequence[str]) -> list[Case]:
    found = [Case(law, fmt, "") for law in laws("decoding").values()]
    for mode in modes:
        families = ("stochastic",) if mode == "stochastic" else ("rounding", "encoding")
        those = [law for family in families for law in laws(family).values()]
        found += [Case(law, fmt, mode) for law in those if law.applies(fmt, mode, subject.policy(fmt))]
    return found


def _cast_inputs(subject: Any, case: Case, deep: bool, seed: int) -> list[Any]:
    """The critical ones and some drawn evenly over bit patterns (2^20 if deep, else 2^12).

    One array per float dtype that the subject claims; of formats over 8 bits only the first dtype, unless deep.
    """
    import numpy as np

    from properties.laws.casts import critical_inputs, random_inputs

    claimed = [dtype for dtype in getattr(subject, "inputs", ("float32",)) if dtype.startswith("float")]
    if case.fmt.bits > 8 and not deep:
        claimed = claimed[:1]
    count = 1 << (20 if deep else 12)
    return [np.concatenate([critical_inputs(case.fmt, d), random_inputs(count, d, seed=seed)]) for d in claimed]


def _drawn_cast(case: Case) -> SearchStrategy[Any]:
    from properties import strategies

    return strategies.inputs(case.fmt)


def _call_cast(case: Case, subject: Any, x: Any) -> None:
    if x is None:
        case.law(subject, case.fmt)
    else:
        case.law(subject, case.fmt, case.rounding, x)


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def _arithmetic(subject: Any, fmt: AnyFormat, modes: Sequence[str]) -> list[Case]:
    those, policy = laws("arithmetic").values(), subject.policy(fmt)
    return [Case(law, fmt, mode) for mode in modes for law in those if law.applies(fmt, mode, policy)]


def _operands(subject: Any, case: Case, deep: bool, seed: int) -> list[Any]:
    """Those that matter, and some drawn evenly over codes."""
    from properties.laws.arithmetic import operands

    return [operands(case.fmt, count=1 << (16 if deep else 10), seed=seed)]


def _drawn_operands(case: Case) -> SearchStrategy[Any]:
    from properties import strategies

    return strategies.operands(case.fmt)


def _call_arithmetic(case: Case, subject: Any, x: Any) -> None:
    case.law(subject, case.fmt, case.rounding, x)


# --- Products of matrices ---------------------------------------------------------------------------------------------


def _dots(subject: Any, fmt: AnyFormat, modes: Sequence[str]) -> list[Case]:
    products = [product for product in subject.products if product.a == fmt]
    those = [law for family in ("dots", "accumulators") for law in laws(family).values()]
    return [Case(law, product, "") for product in products for law in those if law.applies(product)]


def _matrices(subject: Any, case: Case, deep: bool, seed: int) -> list[Any]:
    """Pairs of matrices of every family."""
    from properties.laws.dots import matrices

    return matrices(case.fmt, each=16 if deep else 1, seed=seed)


def _drawn_matrices(case: Case) -> SearchStrategy[Any]:
    from properties import strategies

    return strategies.matrices(case.fmt)


def _call_on_case(case: Case, subject: Any, x: Any) -> None:
    case.law(subject, case.fmt, x)


# --- Quantizers -------------------------------------------------------------------------------------------------------

_OF_QUANTIZERS = ("quantizers", "scales", "extremes")


def _quantizers(subject: Any, fmt: AnyFormat, modes: Sequence[str]) -> list[Case]:
    schemes = [scheme for scheme in subject.schemes if scheme.element == fmt]
    those = [law for family in _OF_QUANTIZERS for law in laws(family).values()]
    return [Case(law, scheme, "") for scheme in schemes for law in those if law.applies(scheme)]


def _rows(subject: Any, case: Case, deep: bool, seed: int) -> list[Any]:
    """Matrices of every family."""
    from properties.laws.quantizers import matrices

    return matrices(case.fmt, each=16 if deep else 1, seed=seed)


def _drawn_rows(case: Case) -> SearchStrategy[Any]:
    from properties import strategies

    return strategies.rows(case.fmt)


_EVERY = (
    Kind(
        "casts",
        ("decoding", "encoding", "rounding", "stochastic"),
        ("decoding",),
        "round",
        _casts,
        _cast_inputs,
        _drawn_cast,
        _call_cast,
    ),
    Kind("arithmetic", ("arithmetic",), (), "apply", _arithmetic, _operands, _drawn_operands, _call_arithmetic),
    Kind(
        "dots", ("dots", "accumulators"), ("accumulators",), "matmul", _dots, _matrices, _drawn_matrices, _call_on_case
    ),
    Kind("quantizers", _OF_QUANTIZERS, ("extremes",), "fake_quantize", _quantizers, _rows, _drawn_rows, _call_on_case),
)
KINDS = {kind.name: kind for kind in _EVERY}


def kind_named(law_id: str) -> str:
    """The name of the kind that a law judges, by its id: casts for what is no law's."""
    family = law_id.partition(".")[0]
    return next((kind.name for kind in _EVERY if family in kind.families), "casts")


def kind_of(law_id: str) -> Kind:
    """The kind that a law judges, by its id."""
    return KINDS[kind_named(law_id)]


def given(case: Case, xs: Iterable[Any]) -> Iterable[Any]:
    """What its law is called with, of the inputs `xs`: None, once, where it brings its own."""
    family = case.law.id.partition(".")[0]
    return [None] if family in kind_of(family).own else xs


def kinds(subject: object) -> list[Kind]:
    """The kinds that a subject is of."""
    return [kind for kind in _EVERY if callable(getattr(subject, kind.method, None))]
