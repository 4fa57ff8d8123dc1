"""The pytest plugin: judge a cast from the command line, and use the laws in one's own tests.

    pytest --pyargs properties.suite --subject ml_dtypes
    pytest --pyargs properties.suite --subject mylib.adapter:codec --formats float8_e4m3fn --xfails-file xfails.txt

It gives every test run the fixture `subject` and the Hypothesis profiles `dev` (20 examples) and `thorough` (2000)
beside Hypothesis' own `default` and `ci`; header and table appear only where laws are run. Loading it imports neither
NumPy, torch nor a subject.

A file of expected failures has one law id a line, as they are printed: `rounding.idempotent[float8_e4m3fn]` (nearest
even) or `rounding.idempotent[float8_e4m3fn-toward_zero]`. `*` and `?` are wildcards, brackets are literal, `#` starts
a comment, and `skip ` before an id skips the test instead of running it. A line that is malformed or matches no law of
the subject is an error, and so is a law in the file that holds.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from properties.laws import Case, laws, staircase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from properties.subjects import Codec

_LAW = "halfulp law"  # the user property by which reports carry a case to the summary, through xdist, too
_LINE = re.compile(r"(?P<skip>skip\s+)?(?P<pattern>[\w.*?]+(?:\[[\w*?-]+\])?)")
_DRAWN_FAMILIES = ("rounding", "encoding")


@dataclass(frozen=True)
class Expected:
    """One expected failure: a pattern, whether to skip, why, and whether a law that holds nevertheless is an error."""

    pattern: str
    skip: bool
    reason: str
    strict: bool


class Session:
    """What the options ask for: the subject, its cases, and the failures expected of it. Made when first needed."""

    def __init__(self, config: pytest.Config) -> None:
        import precision as P
        from properties import cases
        from properties.subjects import load

        self.spec = _option(config, "subject") or "ours"
        try:
            self.subject: Codec = load(self.spec)
            names = (_option(config, "formats") or "").replace(",", " ").split()
            every = cases(self.subject)
            self.formats = [P.get_format(name) for name in names] or [P.get_format(f) for f in self.subject.formats]
            self.cases = cases(self.subject, formats=self.formats)
            path = _option(config, "xfails_file")
            known: Mapping[str, str] = getattr(self.subject, "findings", {})
            self.expected = [Expected(pattern, False, reason, False) for pattern, reason in known.items()]
            if path:
                self.expected = [*read_xfails(Path(path), [case.id for case in every]), *self.expected]
        except (ValueError, TypeError) as wrong:
            raise pytest.UsageError(str(wrong)) from wrong

    def expectation(self, case: Case) -> Expected | None:
        """What is expected of a case that is known to fail; the file goes before the subject's own findings."""
        from properties import matches

        return next((e for e in self.expected if matches(e.pattern, case.id)), None)


def read_xfails(path: Path, ids: Iterable[str]) -> list[Expected]:
    """The expected failures of a file.

    Raises ValueError naming the file and line of anything malformed or matching none of `ids`, and for a missing file.
    """
    from properties import matches

    known = list(ids)
    if not path.is_file():
        raise ValueError(f"--xfails-file: there is no file {str(path)!r}")
    found: list[Expected] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line, _, comment = (part.strip() for part in text.partition("#"))
        if not line:
            continue
        parsed = _LINE.fullmatch(line)
        if parsed is None:
            raise ValueError(
                f"{path}:{number}: {line!r} is no law id; write family.law[format] or family.law[format-rounding]"
            )
        pattern = parsed["pattern"]
        if not any(matches(pattern, known_id) for known_id in known):
            near = difflib.get_close_matches(pattern, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{path}:{number}: {pattern!r} matches no law of this subject{hint}")
        reason = f"{comment or 'listed'} ({path.name}:{number}, a line to delete once the law holds)"
        found.append(Expected(pattern, bool(parsed["skip"]), reason, True))
    return found


def _option(config: pytest.Config, name: str) -> str | None:
    value: str | None = config.getoption(name) or config.getini(name) or None
    return value


def _asked_for(config: pytest.Config) -> bool:
    """Whether this run is about laws: an option says so, or the suite is what is run."""
    named = any(_option(config, name) for name in ("subject", "formats", "xfails_file"))
    return named or any(re.search(r"properties[./\\]suite", str(arg)) for arg in config.args)


_SESSION = pytest.StashKey[Session]()


def _session(config: pytest.Config) -> Session:
    if _SESSION not in config.stash:
        config.stash[_SESSION] = Session(config)
    return config.stash[_SESSION]


def pytest_addoption(parser: pytest.Parser) -> None:
    """--subject, --formats and --xfails-file, and the ini keys of the same names."""
    group = parser.getgroup("properties", "laws on number formats (halfulp)")
    for name, meta, text in (
        (
            "subject",
            "NAME|MODULE:OBJECT",
            "whose casts are judged: ours (the default), ours/POLICY, ml_dtypes, torch, gfloat, or yours",
        ),
        ("formats", "NAME,...", "only these formats (default: all that the subject offers)"),
        ("xfails_file", "FILE", "law ids that are expected to fail, one a line"),
    ):
        group.addoption(f"--{name.replace('_', '-')}", dest=name, metavar=meta, default=None, help=text)
        parser.addini(name, text, default="")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Profiles always; the subject only where laws are run."""
    _register_profiles()
    if _asked_for(config):
        _session(config)  # a wrong option is one line before anything runs


def _register_profiles() -> None:
    """Before Hypothesis' own plugin looks for the profile that --hypothesis-profile names.

    Hypothesis' default and ci profiles are left alone, since they rule a stranger's other tests, too; the suite's own
    tests switch the deadline off themselves. A profile of the same name that a conftest.py registered stays.
    """
    from hypothesis import errors, settings

    for name, examples in (("dev", 20), ("thorough", 2000)):
        try:
            settings.get_profile(name)
        except errors.InvalidArgument:
            settings.register_profile(name, max_examples=examples, deadline=None)


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Who is judged and with what: a pasted log is a complete report."""
    if not _asked_for(config):
        return []
    session = _session(config)
    profile = "default"
    if "hypothesis" in sys.modules:
        from hypothesis import settings

        profile = settings.get_current_profile_name()
    seed = config.getoption("--hypothesis-seed", None)
    drawing = f"Hypothesis profile {profile}{f', seed {seed}' if seed else ''}"
    return [
        f"laws: subject {session.subject.name} {session.subject.version}; {drawing}",
        f"laws: {', '.join(_version(package) for package in ('halfulp', 'numpy', 'torch', 'ml_dtypes'))}",
        f"laws: formats {' '.join(map(str, session.formats))}",
    ]


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Codec:
    """The codec that --subject names: ours unless told otherwise."""
    return _session(request.config).subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`law_case`: one law in one format and mode. `drawn_law`: one law with all cases in which it should hold."""
    if "law_case" in metafunc.fixturenames:
        session = _session(metafunc.config)
        metafunc.parametrize("law_case", [_param(case, session) for case in session.cases])
    if "drawn_law" in metafunc.fixturenames:
        session = _session(metafunc.config)
        sound: dict[str, list[Case]] = {law.id: [] for family in _DRAWN_FAMILIES for law in laws(family).values()}
        for case in session.cases:
            if case.law.id in sound and session.expectation(case) is None:
                sound[case.law.id].append(case)
        metafunc.parametrize("drawn_law", [pytest.param(found, id=name) for name, found in sound.items() if found])


def _param(case: Case, session: Session) -> Any:
    expected = session.expectation(case)
    marks: list[pytest.MarkDecorator] = []
    if expected is not None:
        mark = pytest.mark.skip(reason=expected.reason) if expected.skip else None
        marks = [mark or pytest.mark.xfail(reason=expected.reason, strict=expected.strict)]
    return pytest.param(case, id=case.id, marks=marks)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tag the tests of laws for the summary."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("law_case") if callspec is not None else None
        if isinstance(case, Case):
            item.user_properties.append((_LAW, f"{case.law.id} {case.fmt}"))


_SYMBOLS = {"passed": "+", "failed": "X", "error": "X", "xfailed": "x", "xpassed": "!", "skipped": "-"}
_WORST = "+-x!X"  # a cell shows the worst of its modes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of laws by format."""
    cells: dict[tuple[str, str], str] = {}
    for outcome, symbol in _SYMBOLS.items():
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == _LAW:
                    law, _, fmt = value.partition(" ")
                    cells[law, fmt] = max(cells.get((law, fmt), "+"), symbol, key=_WORST.index)
    if not cells:
        return
    formats = list(dict.fromkeys(fmt for _, fmt in cells))
    terminalreporter.section("laws by format")
    for line in staircase(sorted({law for law, _ in cells}), formats, lambda law, fmt: cells.get((law, fmt), " ")):
        terminalreporter.write_line(line)
    terminalreporter.write_line(
        "+ holds   X broken   x broken as expected   ! holds unexpectedly   - not offered or skipped"
    )
