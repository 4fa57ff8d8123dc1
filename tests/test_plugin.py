"""The plugin as a stranger uses it: from another folder, with their own subject, with a list of expected failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401 - loaded, like NumPy, before pytester: it unloads what a run in this process has loaded
import pytest

import properties.subjects

ROOT = str(Path(properties.__file__).parents[1])
ONE = ("--pyargs", "properties.suite", "--formats", "float4_e2m1fn")

SUBJECT = """
import precision as P
from properties.subjects import from_function

def away(x, fmt, rounding):  # ties away from zero, and says it is nearest even
    return P.round_to(x, fmt, rounding="nearest_away")

def make():
    return codec

codec = from_function(away, formats=["float4_e2m1fn"], version="0.3", name="mine")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """pytest in another folder, in which the module `adapter` holds a subject with a bug."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(pytester.path / "hypothesis"))
    pytester.makepyfile(adapter=SUBJECT)
    pytester.syspathinsert()

    def call(*args: str, fresh: bool = True) -> pytest.RunResult:
        """In a fresh process, or, to be quick where nothing is judged, in this one."""
        runpytest = pytester.runpytest_subprocess if fresh else pytester.runpytest_inprocess
        return runpytest("-p", "no:cacheprovider", "-p", "properties.plugin", *args)

    return call


def test_a_right_subject_passes_with_header_and_table(run) -> None:
    result = run(*ONE, "--subject", "ml_dtypes", "--hypothesis-profile", "dev")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "laws: subject ml_dtypes *; Hypothesis profile dev",
            "laws: *numpy *, torch *, ml_dtypes *",
            "laws: formats float4_e2m1fn",
            "*laws by format*",
            "* float4_e2m1fn",
            "rounding.float64_is_rounded_once *-",
            "rounding.ties_go_to_even *+",
            "+ holds   X broken *",
        ]
    )


@pytest.mark.parametrize(("subject", "products"), [("numpy", 3), ("torch", 6)])
def test_products_of_matrices_are_judged_by_the_laws_on_them(run, subject: str, products: int) -> None:
    only = ("-k", "test_dots and not drawn") if subject == "torch" else ("--hypothesis-profile", "dev")
    result = run("--pyargs", "properties.suite", "--subject", subject, *only)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            f"laws: subject {subject} *",
            "*laws by product*",
            "accumulators.an_empty_sum_is_zero *+" + " +" * (products - 1),
            "dots.error_is_within_the_certain_bound *+" + " +" * (products - 1),
        ]
    )
    assert "laws by format" not in result.stdout.str()
    assert not set(result.parseoutcomes()) - {"passed", "deselected"}


def test_quantizers_are_judged_by_the_laws_on_them(run) -> None:
    result = run("--pyargs", "properties.suite", "--subject", "torch", "-k", "test_quantizers and not drawn")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*laws by scheme*",
            "extremes.infinities_go_to_the_end_of_their_sign *+ x*",
            "quantizers.no_other_value_is_nearer *+ x +",
            "quantizers.ties_are_broken_as_declared *+",
        ]
    )
    assert "laws by format" not in result.stdout.str()
    assert not set(result.parseoutcomes()) - {"passed", "deselected", "skipped", "xfailed"}


def test_a_wrong_subject_fails_with_the_counterexample_and_no_traceback(run) -> None:
    result = run(*ONE, "--subject", "adapter:codec", "-k", "ties_go_to_even and not drawn")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "laws: subject mine 0.3; *",
            "rounding.ties_go_to_even[[]float4_e2m1fn]: A tie between two neighbours goes to the even one.",
            "  at        x = 0.25 (float32 0x3e800000)",
            "  got       0.5 = 0_00_1",
            "  expected  0.0 = 0_00_0",
            "rounding.ties_go_to_even *X",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "properties/__init__.py" not in result.stdout.str()


def test_expected_failures_and_skips(run, pytester: pytest.Pytester) -> None:
    pytester.maketxtfile(
        xfails="""
        # what we know
        rounding.ties_go_to_even[float4_e2m1fn]   # a ticket
        rounding.agrees_with_*
        rounding.tiny_numbers*[float4_e2m1fn]
        skip rounding.monotone[float4_e2m1fn]
        """
    )
    result = run(
        *ONE, "--subject", "adapter:codec", "--xfails-file", "xfails.txt", "--hypothesis-profile", "dev", "-rx"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["rounding.monotone *-", "rounding.ties_go_to_even *x"])
    result.stdout.fnmatch_lines(["XFAIL *rounding.ties_go_to_even* - a ticket (xfails.txt:2, *"])
    assert result.parseoutcomes()["xfailed"] == 3


def test_an_expected_failure_that_holds_is_an_error(run, pytester: pytest.Pytester) -> None:
    pytester.maketxtfile(xfails="rounding.idempotent[float4_e2m1fn]")
    result = run(*ONE, "--subject", "adapter:codec", "--xfails-file", "xfails.txt", "-k", "idempotent and not drawn")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*XPASS(strict)] listed (xfails.txt:1, a line to delete once the law holds)"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "rounding.idempotent[float8_e4m3fn]",
            "*xfails.txt:1: '*' matches no law of this subject; did you mean rounding.idempotent[[]float4_e2m1fn]?",
        ),
        ("rounding.*[float5]", "*xfails.txt:1: 'rounding.[*][[]float5]' matches no law of this subject*"),
        ("rounding.idempotent [float4_e2m1fn]", "*xfails.txt:1: * is no law id; write family.law[[]format]*"),
        ("test_casts.py::test_law[x]", "*xfails.txt:1: * is no law id; *"),
    ],
)
def test_lines_that_mean_nothing_are_errors(run, pytester: pytest.Pytester, line: str, message: str) -> None:
    pytester.maketxtfile(xfails=line)
    result = run(*ONE, "--subject", "adapter:codec", "--xfails-file", "xfails.txt", fresh=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--subject", "ml_dtype"], "unknown subject 'ml_dtype': did you mean 'ml_dtypes'? known are ours, *"),
        (["--subject", "nowhere:codec"], "subject 'nowhere:codec': module 'nowhere' cannot be imported (*)"),
        (["--subject", "adapter:coder"], "subject 'adapter:coder': 'adapter' has no 'coder'"),
        (["--subject", "math:pi"], "subject 'math:pi' is a float without name, *; see properties.subjects.Codec, *"),
        (
            ["--subject", "adapter:away"],
            "subject 'adapter:away' is a function that takes arguments: wrap a cast, codec = *from_function(away, *",
        ),
        (["--subject", "ours/iee"], "unknown policy 'iee': use one of *"),
        (["--formats", "fp4,fp9"], "unknown format 'fp9': did you mean *"),
        (["--subject", "ml_dtypes", "--formats", "int8"], "ml_dtypes does not offer int8; it offers bfloat16, *"),
        (["--xfails-file", "none.txt"], "--xfails-file: there is no file 'none.txt'"),
    ],
)
def test_wrong_options_are_one_line(run, options: list[str], message: str) -> None:
    result = run("--pyargs", "properties.suite", *options, fresh=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert len([text for text in result.stderr.lines if text]) == 1


def test_ini_keys_and_the_fixture_serve_a_strangers_own_tests(run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nsubject = ours/ieee\n")
    pytester.makepyfile(test_own="def test_it(subject):\n    assert subject.name == 'ours/ieee'\n")
    result = run("test_own.py")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["laws: subject ours/ieee *"])


def test_a_run_without_laws_is_left_alone(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        import sys
        from hypothesis import settings

        def test_it():
            assert "numpy" not in sys.modules
            assert settings.get_profile("default").deadline is not None
            assert settings.get_profile("thorough").max_examples == 2000
        """
    )
    result = run("test_own.py")
    assert result.ret == 0
    assert "laws:" not in result.stdout.str()
    assert "laws by format" not in result.stdout.str()


@pytest.mark.parametrize(
    "module", ["precision", "properties", "properties.plugin", "properties.laws", "properties.laws.casts"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'ml_dtypes', 'hypothesis', 'rich'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ROOT}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
