"""What a law is, how it fails, and the list of all laws by family.

A law is a plain function named as a claim (`subnormals_are_kept`). It takes a subject (what is judged) and whatever
its family hands to it, returns nothing when the claim holds, raises `Broken` with the simplest counterexample when it
does not, and `Unsupported` when the subject lacks what the law needs. No law imports pytest or Hypothesis.

>>> from properties.laws import Broken, law
>>> @law("demo", source="arithmetic")
... def one_is_positive(subject):
...     '''One is above zero.'''
...     if not subject > 0:
...         raise Broken(where="x = 1", got=subject, expected="> 0")
>>> one_is_positive.id, one_is_positive.claim
('demo.one_is_positive', 'One is above zero.')
>>> one_is_positive(-1)
Traceback (most recent call last):
properties.laws.Broken: demo.one_is_positive: One is above zero.
  at        x = 1
  got       -1
  expected  > 0
>>> del LAWS["demo"]
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = [
    "LAWS",
    "Broken",
    "Case",
    "Law",
    "Status",
    "Unsupported",
    "Verdict",
    "law",
    "law_id",
    "laws",
    "outcome",
    "staircase",
]


class Broken(AssertionError):
    """A law does not hold: one counterexample, the simplest found, and how often the law failed.

    `where` says the input in words, `input_bits` are its bits for a machine, `got` and `expected` the two answers,
    `notes` further lines (code in binary, neighbours), `wrong` of `of` inputs failed. `fmt` and `rounding` are names,
    "" where they mean nothing. `law` and `claim` are filled in by the `Law` that was called.
    """

    def __init__(
        self,
        *,
        where: str,
        got: object,
        expected: object,
        fmt: str = "",
        rounding: str = "",
        input_bits: tuple[int, ...] = (),
        notes: tuple[str, ...] = (),
        wrong: int = 1,
        of: int = 1,
    ) -> None:
        super().__init__(where)
        self.law = ""
        self.claim = ""
        self.where = where
        self.got = got
        self.expected = expected
        self.fmt = fmt
        self.rounding = rounding
        self.input_bits = input_bits
        self.notes = notes
        self.wrong = wrong
        self.of = of

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: Python's own way calls the class with positional arguments, and here there are none."""
        required = {key: getattr(self, key) for key in ("where", "got", "expected")}
        return functools.partial(type(self), **required), (), self.__dict__

    @property
    def id(self) -> str:
        """The law id with its case, as it is written in a list of expected failures."""
        return law_id(self.law, self.fmt, self.rounding)

    def as_dict(self) -> dict[str, Any]:
        """The counterexample as JSON has it: `got` and `expected` as text; law and case are not repeated."""
        texts = {key: str(getattr(self, key)) for key in ("where", "got", "expected")}
        return texts | {
            "input_bits": list(self.input_bits),
            "notes": list(self.notes),
            "wrong": self.wrong,
            "of": self.of,
        }

    def __str__(self) -> str:
        lines = [f"{self.id}: {self.claim}", f"  at        {self.where}", f"  got       {self.got}"]
        lines += [f"  expected  {self.expected}"]
        lines += [f"  {note}" for note in self.notes]
        if self.of > 1:
            lines += [f"  wrong     {self.wrong} of {self.of}"]
        return "\n".join(lines)


class Unsupported(Exception):
    """The subject does not offer what the law needs; the message says what is missing."""


@dataclass(frozen=True)
class Law:
    """One claim: `id` is "family.name", `claim` its sentence, `source` where it comes from, `function` the check.

    `applies` says, before anything runs, whether the claim has a meaning in a case; its arguments are the family's.
    """

    id: str
    claim: str
    source: str
    function: Callable[..., None]
    applies: Callable[..., bool] = lambda *_: True

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Check the claim; raises Broken (with this law's id in it) or Unsupported."""
        try:
            self.function(*args, **kwargs)
        except Broken as broken:
            broken.law, broken.claim = self.id, self.claim
            raise

    def __str__(self) -> str:
        return self.id


class Case(NamedTuple):
    """One law in one format and mode ("" where a law knows no mode)."""

    law: Law
    fmt: Any
    rounding: str

    @property
    def id(self) -> str:
        """The law id with its case, as it is written in a list of expected failures."""
        return law_id(self.law.id, str(self.fmt), self.rounding)


Status = Literal["holds", "broken", "unsupported", "error"]


def outcome(check: Callable[[], None]) -> tuple[Status, str, Broken | None]:
    """What comes of a check: its status, what was found in words, and the counterexample if the law is broken."""
    try:
        check()
    except Broken as broken:
        return "broken", str(broken), broken
    except Unsupported as unsupported:
        return "unsupported", str(unsupported), None
    except Exception as error:  # noqa: BLE001 - whatever the subject raises
        return "error", f"{type(error).__name__}: {error}", None
    return "holds", "", None


@dataclass(frozen=True)
class Verdict:
    """What came of one law on one case: "holds", "broken", "unsupported" or "error" (the subject itself raised)."""

    law: str
    fmt: str
    rounding: str
    status: Status
    detail: str = ""
    counterexample: Broken | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was found: the law holds, or the subject does not offer what it needs."""
        return self.status in ("holds", "unsupported")

    @property
    def id(self) -> str:
        """The law id with its case, as it is written in a list of expected failures."""
        return law_id(self.law, self.fmt, self.rounding)


def law_id(law: str, fmt: str = "", rounding: str = "") -> str:
    """`rounding.idempotent[float8_e4m3fn]`; a mode other than the default is added: `…[float8_e4m3fn-toward_zero]`."""
    case = "-".join(part for part in (fmt, "" if rounding == "nearest_even" else rounding) if part)
    return f"{law}[{case}]" if case else law


def staircase(
    laws: Iterable[str], columns: Sequence[str], symbol: Callable[[str, str], str], *, gap: str = " "
) -> list[str]:
    """A table of laws by formats in lines: `symbol(law, column)` is one character, the headings go down in steps.

    >>> for line in staircase(["rounding.monotone"], ["float16", "int8"], lambda law, fmt: "+" if "f" in fmt else "-"):
    ...     print(line)
                      float16
                      | int8
    rounding.monotone + -
    """
    laws = list(laws)
    width = max(map(len, laws), default=0) + 1
    lines = [f"{'':{width}}{f'|{gap}' * depth}{name}" for depth, name in enumerate(columns)]
    return lines + [f"{law:{width}}{gap.join(symbol(law, name) for name in columns)}" for law in laws]


# Family -> law name -> law, in the order written. A family is filled when its module is imported: see `laws`.
LAWS: dict[str, dict[str, Law]] = {}

# Where the laws of a family are written.
_MODULES = {
    "decoding": "casts",
    "encoding": "casts",
    "rounding": "casts",
    "stochastic": "casts",
    "arithmetic": "arithmetic",
    "dots": "dots",
    "accumulators": "accumulators",
    "quantizers": "quantizers",
    "scales": "scales",
    "extremes": "scales",
    "attention": "attention",
}


def law(
    family: str, *, source: str, applies: Callable[..., bool] = lambda *_: True
) -> Callable[[Callable[..., None]], Law]:
    """Register the decorated function as the law `family.<its name>`; the claim is its docstring's first paragraph."""

    def register(function: Callable[..., None]) -> Law:
        claim = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
        made = Law(f"{family}.{function.__name__}", claim, source, function, applies)
        LAWS.setdefault(family, {})[function.__name__] = made
        return made

    return register


def laws(family: str) -> Mapping[str, Law]:
    """All laws of a family by name, importing the module they are written in.

    Raises ValueError for an unknown family, with those there are.
    """
    if family in _MODULES:
        importlib.import_module(f"{__name__}.{_MODULES[family]}")
    if family not in LAWS:
        raise ValueError(f"unknown family of laws {family!r}: there are {', '.join(_MODULES)}")
    return LAWS[family]
