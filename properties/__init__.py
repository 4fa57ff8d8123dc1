"""Laws that number formats, casts, arithmetic, products, quantizers and attention obey, for us and for anyone else.

A *subject* (`properties.subjects`) is judged by *laws* (`properties.laws`): plain functions, each named as a claim. Run
them from here, from pytest (`pytest --pyargs properties.suite --subject mylib.adapter:codec`) or with `halfulp verify`.

>>> import numpy as np
>>> import properties
>>> def truncate(x, fmt, rounding):  # a cast somebody wrote
...     return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
>>> mine = properties.from_function(truncate, formats=["bfloat16"], policy="ieee")
>>> properties.check("rounding.ties_go_to_even", mine, max_examples=0)
Traceback (most recent call last):
properties.laws.Broken: rounding.ties_go_to_even[bfloat16]: A tie between two neighbours goes to the even one.
  at        x = 1.01171875 (float32 0x3f818000)
  got       1.0078125 = 0_01111111_0000001
  expected  1.015625 = 0_01111111_0000010
  neighbours 1.0078125 = 0_01111111_0000001 and 1.015625 = 0_01111111_0000010
  wrong     32638 of 65278

Importing this package loads neither torch nor ml_dtypes nor Hypothesis.
"""

from __future__ import annotations

import difflib
import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from properties.kinds import KINDS, given, kind_named, kind_of, kinds
from properties.laws import Broken, Case, Law, Unsupported, Verdict, laws, outcome

if TYPE_CHECKING:
    from precision.formats import AnyFormat
    from properties.laws.casts import critical_inputs
    from properties.operators import Arithmetic, Dot
    from properties.quantizers import Quantizer
    from properties.subjects import Codec, from_function, load

__all__ = [
    "CAST_FAMILIES",
    "Broken",
    "Case",
    "Law",
    "Unsupported",
    "Verdict",
    "cases",
    "check",
    "critical_inputs",
    "from_function",
    "inputs",
    "judge",
    "laws",
    "load",
    "matches",
    "verdict",
]

CAST_FAMILIES = KINDS["casts"].families
"""The families of laws that a codec is judged by."""

_LAZY = {"critical_inputs": "laws.casts", "from_function": "subjects", "load": "subjects"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def matches(pattern: str, law_id: str) -> bool:
    """Whether a pattern means a law id: * is anything, ? one character, and all else, brackets included, itself."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), law_id) is not None


def cases(
    subject: Codec | Arithmetic | Dot | Quantizer,
    *,
    formats: Iterable[AnyFormat | str] | None = None,
    roundings: Iterable[str] | None = None,
    only: str = "*",
) -> list[Case]:
    """Every law in every format and mode in which the subject makes it meaningful, format by format.

    `formats` and `roundings` narrow what the subject offers, `only` is a pattern on law ids without their case
    ("rounding.*"). Raises ValueError for a format or mode that the subject does not offer, for empty ones, and where
    `only` means no law or none that has a meaning for the subject: there is always something to judge.
    """
    import precision as P

    mine = kinds(subject)
    about = " or ".join(kind.name for kind in mine)
    every = [law for kind in mine for family in kind.families for law in laws(family).values()]
    if not any(matches(only, law.id) for law in every):
        near = difflib.get_close_matches(only, [law.id for law in every], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no law on {about} is called {only!r}: {hint}there are {', '.join(law.id for law in every)}")
    offered = [P.get_format(fmt) for fmt in subject.formats]
    chosen = offered if formats is None else [P.get_format(fmt) for fmt in formats]
    if not chosen:
        raise ValueError(f"no format to judge {subject.name} in: name some, or let the subject offer some")
    for fmt in chosen:
        if fmt not in offered:
            raise ValueError(f"{subject.name} does not offer {fmt}; it offers {', '.join(map(str, offered))}")
    wanted = None if roundings is None else list(roundings)
    if wanted == []:
        raise ValueError(f"no rounding to judge {subject.name} in: name some, or leave roundings out")
    of = getattr(subject, "roundings", lambda fmt: ("nearest_even",))
    modes_offered = {mode for fmt in offered for mode in of(fmt)}
    for mode in wanted or ():
        if mode not in modes_offered:
            raise ValueError(
                f"{subject.name} does not offer rounding {mode!r}; it offers {', '.join(sorted(modes_offered))}"
            )
    found: list[Case] = []
    for fmt in chosen:
        modes = [mode for mode in of(fmt) if wanted is None or mode in wanted]
        for kind in mine:
            found += kind.cases(subject, fmt, modes)
    kept = [case for case in found if matches(only, case.law.id)]
    if not kept:
        modes = sorted(modes_offered if wanted is None else wanted)
        raise ValueError(
            f"{only} has no meaning for {subject.name} in {', '.join(map(str, chosen))}, modes {', '.join(modes)}, "
            "under its policy: ask for another law, or for formats and modes in which it has one"
        )
    return kept


def inputs(
    subject: Codec | Arithmetic | Dot | Quantizer, case: Case, *, deep: bool = False, seed: int = 0
) -> list[Any]:
    """What a law is called with in a case, one after the other: all that matter and some drawn at random from `seed`.

    For casts: arrays of inputs, one for each dtype that the subject claims; for arithmetic: operands of shape (3, n);
    for dots: pairs of matrices; for quantizers: matrices. Many more if `deep`.
    """
    return kind_of(case.law.id).inputs(subject, case, deep, seed)


def verdict(case: Case, subject: Codec | Arithmetic | Dot | Quantizer, xs: Iterable[Any]) -> Verdict:
    """Whether one law holds in one case on all of `xs`; what the subject raises becomes the verdict "error"."""
    start, call = time.perf_counter(), kind_of(case.law.id).call

    def check_all() -> None:
        for x in given(case, xs):
            call(case, subject, x)

    found = outcome(check_all)
    return Verdict(case.law.id, str(case.fmt), case.rounding, *found, time.perf_counter() - start)


def judge(
    subject: Codec | Arithmetic | Dot | Quantizer,
    *,
    formats: Iterable[AnyFormat | str] | None = None,
    roundings: Iterable[str] | None = None,
    only: str = "*",
    deep: bool = False,
    seed: int = 0,
    progress: Callable[[int, int, Case], None] | None = None,
) -> Iterator[Verdict]:
    """Judge a subject by all laws of its kind; yields one `Verdict` per law, format and mode, as they are found.

    The inputs are every critical one of each format and some random patterns from `seed`, many if `deep`.
    `progress(done, total, case)` is called before each. Raises as `cases` does, before the first verdict.
    """
    todo = cases(subject, formats=formats, roundings=roundings, only=only)

    def run() -> Iterator[Verdict]:
        current, xs = None, list[Any]()
        for done, case in enumerate(todo):
            if progress is not None:
                progress(done, len(todo), case)
            if (of := (kind_of(case.law.id).name, case.fmt)) != current:
                current, xs = of, inputs(subject, case, deep=deep, seed=seed)
            yield verdict(case, subject, xs)

    return run()


def check(
    law: Law | str,
    subject: Codec | Arithmetic | Dot | Quantizer | str,
    *,
    formats: Iterable[AnyFormat | str] | None = None,
    roundings: Iterable[str] | None = None,
    max_examples: int = 100,
) -> None:
    """Check one law, without pytest: raises Broken with the simplest counterexample, or returns.

    `law` is a law or its id, `subject` one of its kind or what `load` takes. In every format and mode that the subject
    offers: first the inputs that matter, then `max_examples` that Hypothesis draws near ties and over all patterns.
    Raises Unsupported where the subject lacks what the law needs in every case, ValueError for an unknown name.
    """
    from properties.subjects import load

    name = law if isinstance(law, str) else law.id
    judged = load(subject, kind_named(name)) if isinstance(subject, str) else subject
    todo = cases(judged, formats=formats, roundings=roundings, only=name)
    unsupported: list[Unsupported] = []
    for case in todo:
        try:
            _check_case(case, judged, max_examples)
        except Unsupported as lacking:
            unsupported.append(lacking)
    if todo and len(unsupported) == len(todo):
        raise unsupported[0]


def _check_case(case: Case, subject: Codec | Arithmetic | Dot | Quantizer, max_examples: int) -> None:
    kind = kind_of(case.law.id)
    family = case.law.id.partition(".")[0]
    for x in [None] if family in kind.own else inputs(subject, case):
        kind.call(case, subject, x)
    if max_examples and family not in kind.own:
        import hypothesis

        @hypothesis.settings(max_examples=max_examples, deadline=None, database=None)
        @hypothesis.given(kind.drawn(case))
        def drawn(x: Any) -> None:
            kind.call(case, subject, x)

        drawn()
