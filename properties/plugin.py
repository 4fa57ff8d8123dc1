"""The pytest plugin: judge casts, arithmetic, products and quantizers, and use the laws in one's own tests.

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

from properties.kinds import KINDS, kind_named, kinds
from properties.laws import Case, staircase

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAW = "halfulp law"  # the user property by which reports carry a case to the summary, through xdist, too
_LINE = re.compile(r"(?P<skip>skip\s+)?(?P<pattern>[\w.*?]+(?:\[[\w.*?-]+\])?)")
_UNDRAWN = ("decoding", "stochastic", "accumulators", "extremes")  # families whose laws bring all their inputs
# The fixtures of the suite: the subject of each kind, one case, and the cases of a law in which it should hold.
_FIXTURES = {
    "casts": ("subject", "law_case", "drawn_law"),
    "arithmetic": ("arithmetic", "arithmetic_case", "drawn_arithmetic"),
    "dots": ("dot", "dot_case", "drawn_dot"),
    "quantizers": ("quantizer", "quantizer_case", "drawn_quantizer"),
}


@dataclass(frozen=True)
class Expected:
    """One expected failure: a pattern, whether to skip, why, and whether a law that holds nevertheless is an error."""

    pattern: str
    skip: bool
    reason: str
    strict: bool


class Session:
    """What the options ask for: subjects by kind, their cases, and the failures expected. Made when first needed."""

    def __init__(self, config: pytest.Config) -> None:
        import precision as P
        from properties import cases

        self.spec = _option(config, "subject") or "ours"
        try:
            self.subjects = _subjects(self.spec)
            self.subject = next(iter(self.subjects.values()))
            names = (_option(config, "formats") or "").replace(",", " ").split()
            self.formats = [P.get_format(name) for name in names] or [P.get_format(f) for f in self.subject.formats]
            self.cases: dict[str, list[Case]] = {}
            every: list[str] = []
            known: dict[str, str] = {}
            for kind, subject in self.subjects.items():
                offered = [P.get_format(fmt) for fmt in subject.formats]
                chosen = [fmt for fmt in self.formats if fmt in offered] if self.cases and names else None
                if chosen != []:  # of the first kind all formats must be offered, of others some
                    self.cases[kind] = cases(subject, formats=self.formats if not self.cases else chosen)
                every += [case.id for case in cases(subject)]
                known |= getattr(subject, "findings", {})
            path = _option(config, "xfails_file")
            self.expected = [Expected(pattern, False, reason, False) for pattern, reason in known.items()]
            if path:
                self.expected = [*read_xfails(Path(path), every), *self.expected]
        except (ValueError, TypeError) as wrong:
            raise pytest.UsageError(str(wrong)) from wrong

    def expectation(self, case: Case) -> Expected | None:
        """What is expected of a case that is known to fail; the file goes before the subject's own findings."""
        from properties import matches

        return next((e for e in self.expected if matches(e.pattern, case.id)), None)


def _subjects(spec: str) -> dict[str, Any]:
    """What is to be judged, by kind: of a name all that it stands for."""
    from properties.subjects import UNDER_A_POLICY, load, named

    if ":" in spec:
        thing = load(spec)
        return {kind.name: thing for kind in kinds(thing)}
    found = [kind for kind in KINDS if spec in named(kind) or (spec.startswith("ours/") and kind in UNDER_A_POLICY)]
    return {kind: load(spec, kind) for kind in found} or {"casts": load(spec)}  # which refuses it


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
            "who is judged: ours (the default), ours/POLICY, numpy, ml_dtypes, torch, torchao, gfloat, or yours",
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
def subject(request: pytest.FixtureRequest) -> Any:
    """What --subject names, the codec if it stands for several things: ours unless told otherwise."""
    return _session(request.config).subject


@pytest.fixture(scope="session")
def arithmetic(request: pytest.FixtureRequest) -> Any:
    """The arithmetic that --subject names."""
    return _session(request.config).subjects["arithmetic"]


@pytest.fixture(scope="session")
def dot(request: pytest.FixtureRequest) -> Any:
    """The products of matrices that --subject names."""
    return _session(request.config).subjects["dots"]


@pytest.fixture(scope="session")
def quantizer(request: pytest.FixtureRequest) -> Any:
    """The quantizer that --subject names."""
    return _session(request.config).subjects["quantizers"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Those files of the suite have nothing to judge whose kind the subject is not of."""
    if collection_path.parent != Path(__file__).parent / "suite" or not collection_path.stem.startswith("test_"):
        return None
    return True if collection_path.stem.removeprefix("test_") not in _session(config).cases else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`law_case`: one law in one format and mode. `drawn_law`: one law with all cases in which it should hold."""
    for kind, (_, one, drawn) in _FIXTURES.items():
        if one in metafunc.fixturenames:
            session = _session(metafunc.config)
            metafunc.parametrize(one, [_param(case, session) for case in session.cases.get(kind, [])])
        if drawn in metafunc.fixturenames:
            session = _session(metafunc.config)
            sound: dict[str, list[Case]] = {}
            for case in session.cases.get(kind, []):
                if case.law.id.partition(".")[0] not in _UNDRAWN and session.expectation(case) is None:
                    sound.setdefault(case.law.id, []).append(case)
            metafunc.parametrize(drawn, [pytest.param(found, id=name) for name, found in sorted(sound.items())])


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
        params = callspec.params if callspec is not None else {}
        case = next((params[one] for _, one, _ in _FIXTURES.values() if one in params), None)
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
    headings = {"dots": "laws by product", "quantizers": "laws by scheme"}
    found: dict[str, list[tuple[str, str]]] = {}
    for law, fmt in cells:
        found.setdefault(headings.get(kind_named(law), "laws by format"), []).append((law, fmt))
    for heading in ("laws by format", *headings.values()):
        some = found.get(heading, [])
        if not some:
            continue
        columns = list(dict.fromkeys(fmt for _, fmt in some))
        terminalreporter.section(heading)
        for line in staircase(sorted({law for law, _ in some}), columns, lambda law, fmt: cells.get((law, fmt), " ")):
            terminalreporter.write_line(line)
    if not cells:
        return
    terminalreporter.write_line(
        "+ holds   X broken   x broken as expected   ! holds unexpectedly   - not offered or skipped"
    )
