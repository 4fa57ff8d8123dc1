"""The `halfulp` command: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import precision as P
import properties.verification
from properties import silicon
from properties.anatomy import take_apart
from properties.cli import main
from properties.operators import OurDot
from properties.quantizers import OurQuantizer
from properties.subjects import OurAttention, Ours

HOME = Path(properties.__file__).parents[1]


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    """Output to a file is wide, but for COLUMNS, which pytest-xdist's workers have."""
    monkeypatch.delenv("COLUMNS", raising=False)


def run(*arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


def document(*arguments: str, status: int = 0):
    """The JSON document that a command prints."""
    found, out, _ = run(*arguments, "--json")
    assert found == status
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own that finds the same packages."""
    code = f"import sys; sys.path.insert(0, {str(HOME)!r})\n{code}"
    return subprocess.run([sys.executable, "-P", "-c", code], check=False, capture_output=True, text=True, timeout=300)


# --- The command itself -----------------------------------------------------------------------------------------------


def test_version_says_where_the_packages_are():
    status, out, err = run("--version")
    assert (status, err) == (0, "")
    paths = [f"{name:<10} {HOME / name}" for name in ("precision", "attention", "properties")]
    assert out.splitlines() == [f"halfulp {P.__version__}", *paths]


def test_version_and_import_load_nothing_heavy():
    light = python("import properties.cli\nprint({'numpy', 'rich', 'torch'} & set(sys.modules))")
    assert light.stdout == "set()\n", light.stderr
    version = python("from properties.cli import main\nmain(['--version'])\nprint('torch' in sys.modules)")
    assert version.stdout.endswith("False\n"), version.stderr


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=["nothing", "help", "h"])
def test_help_names_every_command(arguments):
    status, out, _ = run(*arguments)
    assert status == 0
    assert all(name in out for name in ("verify", "inspect", "formats", "show", "silicon", "--version"))


REFUSED = {
    "verfy": "halfulp: unknown command 'verfy': did you mean verify? there are verify, inspect, formats, show, silicon;",
    "--frobnicate": "halfulp: No such option: --frobnicate",
    "formats all": "halfulp formats: ",
    "verify --formats float7": "halfulp verify: unknown format 'float7': did you mean ",
    "verify --formats e4m3": "halfulp verify: format 'e4m3' is ambiguous: say float8_e4m3fn ",
    "verify --formats ,": "halfulp verify: an empty list of formats: name some, as in ",
    "verify --jobs 0": "halfulp verify: Invalid value for '--jobs'",
    "verify --deap": "halfulp verify: No such option: --deap",
    "show": "halfulp show: Missing argument 'CODE_OR_VALUE'; see halfulp show --help",
    "show 0x7e": "halfulp show: of which format? add --format, as in --format float8_e4m3fn; halfulp formats lists all",
    "show 0x7e --formt float16": "halfulp show: no such option: --formt; see halfulp show --help",
    "show 1 2 --format float16": "halfulp show: 2 codes or values given (1 2): show takes one",
    "show 0x100 --format int8": "halfulp show: there is no code 0x100: int8 has 8 bits, codes 0x0 to 0xff",
    "show seven --format int8": "halfulp show: 'seven' is neither a code (0x7e, 0b1111110) nor a number (464, -0.0, ",
    "show 1/0 --format int8": "halfulp show: '1/0' is neither a code",
    "show 1e9999 --format int8": "halfulp show: 1e9999 is beyond 1e±5000",
    "show 0x7e --format hoper.float8_e4m3fn": "halfulp show: unknown format 'hoper.float8_e4m3fn': did you mean float8",
    "show 0x_ --format int8": "halfulp show: '0x_' is no code: write 0x7e or 0b1111110",
    "show 1 --format int8 --rounding up": "halfulp show: unknown rounding 'up': there are nearest_even, ",
    "show 1 --format int8 --policy strict": "halfulp show: unknown policy 'strict': there are saturate, ",
    "show 0x1 --format int8 --policy ieee": "halfulp show: 0x1 is a code, which is not rounded: leave out --",
    "inspect": "halfulp inspect: Missing argument",
    "inspect no/such/file": "halfulp inspect: no/such/file: no such file or folder",
    "inspect . --all --formats int8": "halfulp inspect: --formats and --all say different things: give one of them",
    "inspect . --json --csv": "halfulp inspect: --json and --csv are two forms of the same output: give one of them",
    "inspect . --check float8_e8m0fnu": "halfulp inspect: inspect judges signed formats",
    "inspect . --top 0": "halfulp inspect: Invalid value for '--top'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_request_is_one_line(line):
    status, out, err = run(*line.split())
    assert (status, out) == (2, "")
    assert err.startswith(REFUSED[line])
    assert err.count("\n") == 1


def test_an_interrupted_run_is_quiet(monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(properties.verification, "verify", interrupted)
    status, out, err = run("verify", "--json")
    assert (status, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["formats"], ["formats", "--json"], ["show", "0x7e", "--format", "float16"]], ids=str
)
def test_a_closed_pipe_is_quiet(arguments):
    command = (
        f"import sys; sys.path.insert(0, {str(HOME)!r}); from properties.cli import main; sys.exit(main({arguments}))"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_terminal_without_unicode_gets_plain_symbols():
    code = f"import sys; sys.path.insert(0, {str(HOME)!r}); from properties.cli import main; "
    code += "sys.exit(main(['formats']) or main(['verify', '--formats', 'int2', '--jobs', '1']))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"+ holds   X broken   - without" in done.stdout
    assert b"rounding.idempotent +" in b" ".join(done.stdout.split())


# --- formats ----------------------------------------------------------------------------------------------------------


def test_formats_lists_every_format():
    status, out, _ = run("formats")
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines()[1:] if line}
    assert list(rows)[: len(P.FORMATS)] == list(P.FORMATS)
    for fmt in P.formats():
        assert fmt.source in rows[fmt.name]
    assert "448  2^-6" in rows["float8_e4m3fn"]
    assert "> 464" in rows["float8_e4m3fn"]
    assert "≥ 65520" in rows["float16"]


def test_formats_as_json_has_the_facts():
    rows = document("formats")
    assert [row["name"] for row in rows] == list(P.FORMATS)
    for row, fmt in zip(rows, P.formats(), strict=True):
        for name in ("bits", "max", "min", "eps", "overflow_tie", "number_of_values", "source"):
            assert row[name] == getattr(fmt, name), (fmt, name)
    assert rows[0]["overflow_threshold"] == "18014398509481983 × 2^970"  # of float64: beyond its own range


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_draws_a_code():
    status, out, err = run("show", "0x7e", "--format", "float8_e4m3fn")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines() if line] == [
        line.split()
        for line in """
        float8_e4m3fn  0x7e
        sign exponent mantissa
        0    1111     110
        +    2^8      1 + 6/8
        class   normal
        value   448 = 7 × 2^6 = 0x1.cp+8
        above   0x7f = NaN; overflow threshold 464, a tie goes to 0x7e
        below   0x7d = 416; midpoint 432, a tie goes to 0x7e
        format  max 448, overflow > 464, smallest normal 2^-6, subnormal 2^-9, zero ≤ 2^-10
        """.splitlines()
        if line.strip()
    ]


@pytest.mark.parametrize(
    ("code", "fmt", "kind", "value", "above", "below"),
    [
        ("0x7e", "float8_e4m3fn", "normal", 448, (0x7F, "nan", 464, 0x7E), (0x7D, 416, 432, 0x7E)),
        ("0xfe", "float8_e4m3fn", "normal", -448, (0xFD, -416, -432, 0xFE), (0xFF, "nan", -464, 0xFE)),
        ("0b1", "float8_e4m3fn", "subnormal", 2**-9, (2, 2**-8, 3 * 2**-10, 2), (0, 0, 2**-10, 0)),
        ("0x80", "float8_e4m3fn", "zero", -0.0, (1, 2**-9, 2**-10, 0), (0x81, -(2**-9), -(2**-10), 0x80)),
        ("0x7f", "float8_e4m3fn", "nan", "nan", None, None),
        ("0x7b", "float8_e5m2", "normal", 57344, (0x7C, "inf", 61440, 0x7C), (0x7A, 49152, 53248, 0x7A)),
        ("0x7c", "float8_e5m2", "infinity", "inf", None, (0x7B, 57344, 61440, 0x7C)),
        ("0xfc", "float8_e5m2", "infinity", "-inf", (0xFB, -57344, -61440, 0xFC), None),
        ("0x7f", "float8_e4m3fnuz", "normal", 240, (0x80, "nan", 248, 0x80), (0x7E, 224, 232, 0x7E)),
        ("0x80", "float8_e4m3fnuz", "nan", "nan", None, None),
        ("0x7", "float4_e2m1fn", "normal", 6, (None, None, 7, 7), (6, 4, 5, 6)),
        ("0x0", "float8_e8m0fnu", "normal", 2**-127, (1, 2**-126, 3 * 2**-128, 1), None),
        ("0xfe", "float8_e8m0fnu", "normal", 2.0**127, (0xFF, "nan", 1.5 * 2**127, 0xFF), (0xFD, 2.0**126, None, 0xFE)),
        ("0x80", "int8", "normal", -128, (0x81, -127, -127.5, 0x80), (None, None, -128.5, 0x80)),
        ("0x0", "uint4", "zero", 0, (1, 1, 0.5, 0), None),
    ],
)
def test_show_knows_the_neighbours(code, fmt, kind, value, above, below):
    facts = document("show", code, "--format", fmt)
    assert (facts["class"], facts["value"]) == (kind, value)
    if value == 0:
        assert math.copysign(1, facts["value"]) == math.copysign(1, value)
    for side, expected in (("above", above), ("below", below)):
        there = facts[side]
        if expected is None:
            assert there is None
            continue
        assert (there["code"], there["value"], there["tie"]) == (*expected[:2], expected[3]), side
        assert expected[2] is None or there["midpoint"] == expected[2]


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "int4"])
def test_show_has_the_exact_value_of_every_code(fmt):
    for code in range(1 << P.get_format(fmt).bits):
        facts = take_apart(f"{code:#x}", fmt)
        number = P.exact.decode(code, fmt)
        assert facts["code"] == int("".join(facts["fields"].values()), 2) == code
        if number.kind == "finite":
            odd, _, power = re.fullmatch(r"(-?\d+|-(?=2\^)|(?=2\^))( × )?(?:2\^(-?\d+))?", facts["exact"]).groups()
            assert Fraction(odd if odd.strip("-") else f"{odd}1") * Fraction(2) ** int(power or 0) == number.value
            assert float.fromhex(facts["hex"]) == facts["value"] == number.value
            for side, sign in (("above", 1), ("below", -1)):
                there = facts[side]
                if there and isinstance(there["value"], float):
                    assert sign * there["value"] > sign * facts["value"]
                    assert there["midpoint"] == (there["value"] + facts["value"]) / 2


@pytest.mark.parametrize(
    ("text", "fmt", "options", "value", "error"),
    [
        ("464", "float8_e4m3fn", [], 448, -0.5),
        ("464", "float8_e4m3fn", ["--rounding", "nearest_away", "--policy", "ieee"], "nan", None),
        ("465", "float8_e4m3fn", ["--policy", "ieee"], "nan", None),
        ("-0.0", "float8_e5m2", [], -0.0, 0),
        ("-inf", "float8_e5m2", ["--policy", "ieee"], "-inf", None),
        ("-nan", "float4_e2m1fn", ["--policy", "ml_dtypes"], 0, None),
        ("nan", "float4_e2m1fn", [], 6, None),
        ("1/3", "float8_e5m2", [], 0.3125, -1 / 3),
        ("0x1.8p3", "float8_e5m2", [], 12, 0),
        ("1e4000", "bfloat16", [], P.bfloat16.max, None),
        # Just above a tie, by less than float64 can see: rounded once, from what was written.
        ("1.06250000000000000000000000000001", "float8_e4m3fn", [], 1.125, 0.5),
        ("-1.06249999999999999999999999999999", "float8_e4m3fn", [], -1, 0.5),
    ],
)
def test_show_rounds_a_number(text, fmt, options, value, error):
    facts = document("show", text, "--format", fmt, *options)
    assert facts["value"] == value
    assert facts["rounded"]["from"] == text
    assert facts["rounded"]["error_ulp"] == (error if error is None else pytest.approx(error))
    status, out, _ = run("show", text, "--format", fmt, *options)
    assert status == 0
    assert out.startswith(f"{text} rounded {facts['rounded']['rounding']}, policy {facts['rounded']['policy']}: ")


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_holds_on_a_small_format():
    status, out, err = run("verify", "--formats", "e2m1,int2", "--jobs", "1")
    assert status == 0, out
    lines = out.splitlines()
    assert lines[0].split() == ["float4_e2m1fn"]
    assert lines[1].split() == ["|", "int2"]
    assert "rounding.ties_go_to_even" in out
    assert "✗" not in out.replace("✗ broken", "")
    assert lines[-1].startswith("everything holds: ")
    assert any(line.startswith("torch      ") for line in lines)
    assert "100 %" in err
    assert "Traceback" not in err


def test_verify_in_several_processes_as_json():
    code = "from properties.cli import main\nif __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(HOME)!r})\n{code}"]
    arguments = ["verify", "--formats", "float4_e2m1fn,uint2", "--jobs", "2", "--json"]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["found"] == []
    assert set(report["cases"]) == {"holds", "unsupported"}  # some products have no accumulator that a law speaks of
    assert {"halfulp", "python", "numpy", "torch", "ml_dtypes", "cpu", "gpu"} == set(report["environment"])
    modes = len(P.ROUNDINGS)
    assert report["laws"]["rounding.idempotent"]["float4_e2m1fn"]["holds"] % modes == 0
    assert "silicon.casts_are_as_on_the_card" in report["laws"]


def always_up(self, x, fmt, rounding):
    return P.round_to(self._holding(x, fmt), fmt, rounding="toward_positive", policy=self._policy)


def test_verify_finds_a_planted_bug(monkeypatch):
    monkeypatch.setattr(Ours, "round", always_up)
    status, out, err = run("verify", "--formats", "float4_e2m1fn", "--jobs", "1")
    assert status == 1
    assert "casts float4_e2m1fn: rounding.ties_go_to_even is BROKEN" in err
    assert any(line.split() == ["rounding.ties_go_to_even", "✗"] for line in out.splitlines())
    found = out[out.index("ours: rounding.ties_go_to_even[float4_e2m1fn]") :]
    assert "  at        x = " in found
    assert "  got       " in found
    assert "  expected  " in found
    assert " are broken, of " in out.splitlines()[-1]


def test_verify_finds_a_planted_bug_as_json(monkeypatch):
    monkeypatch.setattr(Ours, "round", always_up)
    report = document("verify", "--formats", "uint2", "--jobs", "1", status=1)
    assert not report["ok"]
    first = next(f for f in report["found"] if f["law"] == "rounding.ties_go_to_even")
    assert (first["column"], first["subject"], first["status"]) == ("uint2", "ours", "broken")
    assert first["counterexample"]["input_bits"]
    assert set(first["counterexample"]) == {"where", "got", "expected", "input_bits", "notes", "wrong", "of"}


def test_verify_finds_a_wrong_silicon_bit(monkeypatch):
    right = silicon.recording

    def recording(name):
        return right(name) + right(name).dtype.type(1)

    monkeypatch.setattr(silicon, "recording", recording)
    report = properties.verification.verify(formats=["float4_e2m1fn"], parts=["silicon"])
    assert not report.ok
    assert {r.law for r in report.found} == {"silicon.casts_are_as_on_the_card", "silicon.tables_are_as_on_the_card"}
    assert any("differ from the card" in r.detail for r in report.found)
    assert any("codes differ from the card's, the first is float16 0x0" in r.detail for r in report.found)


def test_verify_finds_wrong_attention(monkeypatch):
    right = OurAttention.__call__

    def late(self, q, k, v, *, scale=None, **options):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return right(self, q, k, v, scale=1.01 * scale, **options)

    monkeypatch.setattr(OurAttention, "__call__", late)
    task = next(t for t in properties.verification.tasks([P.bfloat16]) if t.part == "attention")
    results, _ = task.run()
    report = properties.verification.Report(tuple(results))
    assert report.worst("attention.lse_is_within_the_certain_bound", "bfloat16") == "broken"
    assert report.worst("attention.empty_rows_give_zero_and_minus_infinity", "bfloat16") == "holds"
    assert report.columns() == ["bfloat16"]


def test_work_that_raises_is_a_finding(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no such table")

    monkeypatch.setattr(silicon, "replay", fails)
    report = properties.verification.verify(formats=["float4_e2m1fn"], parts=["silicon"])
    assert [r.detail for r in report.found] == ["RuntimeError: no such table"]
    assert report.worst("silicon.runs", "float4_e2m1fn") == "error"
    assert any("silicon.runs" in line and "✗" in line for line in report.grid())


def test_nothing_at_all_does_not_hold():
    assert not properties.verification.Report(()).ok
    assert properties.verification.Report(()).grid() == []


def test_verify_refuses_what_it_does_not_know():
    with pytest.raises(
        ValueError, match="unknown part 'cast': there are casts, arithmetic, dots, quantizers, silicon, attention, cuda"
    ):
        properties.verification.verify(parts=["cast"])
    with pytest.raises(ValueError, match="jobs is 0; it must be at least 1"):
        properties.verification.verify(jobs=0)


def test_the_work_covers_every_format_policy_recording_and_dtype():
    todo = properties.verification.tasks(P.formats())
    casts = Counter((t.call.args[0], P.get_policy(t.call.args[1], t.call.args[0])) for t in todo if t.part == "casts")
    flush = P.Policy(overflow="infinity", subnormals="flush")
    every = {(f.name, P.get_policy(name, f)) for f in P.formats() for name in P.POLICIES}
    assert set(casts) == every | {
        (f.name, flush) for f in P.formats() if isinstance(f, P.Format) and f is not P.float64
    }
    assert set(casts.values()) == {1}
    recorded = [t.call.args[0] for t in todo if t.part == "silicon"]
    assert sorted(recorded) == sorted([*silicon.casts(), *silicon.tables()])
    arithmetic = {(t.column, t.call.args[1]) for t in todo if t.part == "arithmetic"}
    floats = [f.name for f in P.formats() if isinstance(f, P.Format)]
    assert arithmetic == {(name, policy) for name in floats for policy in ("ieee", "saturate")}
    assert [t.call.args[0] for t in todo if t.part == "dots"] == [p.name for p in OurDot().products]
    assert [t.call.args[0] for t in todo if t.part == "quantizers"] == [s.name for s in OurQuantizer().schemes]
    assert {t.column for t in todo if t.part == "attention"} == {"float16", "bfloat16", "float32"}
    assert not any(t.part == "cuda" for t in todo)
    on_cuda = properties.verification.tasks(P.formats(), cuda=True)
    assert {t.column for t in on_cuda if t.part == "cuda"} == set(P.FORMATS)


def test_deep_work_replays_every_chunk_once():
    todo = properties.verification.tasks([P.float8_e5m2], parts=["silicon"], deep=True)
    chunks = Counter((t.call.args[0], chunk) for t in todo if len(t.call.args) > 1 for chunk in t.call.args[1])
    names = [name for name, row in silicon.casts().items() if row.format == "float8_e5m2"]
    assert set(chunks) == {(name, chunk) for name in names for chunk in range(silicon.CHUNKS)}
    assert set(chunks.values()) == {1}


# --- The CUDA part, on a device that is the CPU and on a real one -----------------------------------------------------


def cuda_results(fmt: str) -> list[properties.verification.Result]:
    task = next(
        t for t in properties.verification.tasks([P.get_format(fmt)], parts=["cuda"], cuda=True) if t.column == fmt
    )
    return task.run()[0]


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float8_e5m2", "int32"])
def test_the_same_bits_hold(fmt, monkeypatch):
    import torch

    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    results = cuda_results(fmt)
    assert [r for r in results if not r.ok] == []
    kinds = {"round_to", "encode", "decode", *(["arithmetic"] if fmt != "int32" else [])}
    products = {"cuda.products_give_the_bits_of_the_cpu"} if fmt != "int32" else set()
    assert {r.law for r in results} == {f"cuda.{kind}_gives_the_bits_of_the_cpu" for kind in kinds} | products
    assert sum("stochastic" in r.case for r in results) == 2


def test_one_other_bit_is_seen(monkeypatch):
    import torch

    def with_another_element(self):
        other = self.clone()
        i = min(100, other.numel() - 1)
        other.view(-1)[i] = 1 if self.dtype.is_floating_point else other.view(-1)[0]
        return other

    monkeypatch.setattr(torch.Tensor, "cuda", with_another_element)
    broken = [r for r in cuda_results("float8_e4m3fn") if not r.ok]
    assert {r.law for r in broken} >= {
        "cuda.round_to_gives_the_bits_of_the_cpu",
        "cuda.encode_gives_the_bits_of_the_cpu",
        "cuda.arithmetic_gives_the_bits_of_the_cpu",
        "cuda.products_give_the_bits_of_the_cpu",
    }
    assert all(r.counterexample["wrong"] == 1 for r in broken if "round_to" in r.law)
    assert "  got       1.0 (torch.float32, 0x3f800000)" in next(r.detail for r in broken if "round_to" in r.law)


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "bfloat16", "int32"])
def test_the_device_gives_the_bits_of_the_cpu(fmt):
    report = properties.verification.verify(formats=[fmt], parts=["cuda"])
    assert report.ok, "\n".join(r.detail for r in report.found)


# --- inspect ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    np.savez(tmp_path / "w.npz", big=np.float32([70000, 1, -2]), small=np.float16([1, 2, 0]), step=np.int64([7]))
    return str(tmp_path / "w.npz")


def test_inspect_prints_the_table(checkpoint):
    status, out, err = run("inspect", checkpoint)
    assert (status, err) == (0, "")
    assert "float8_e4m3fn" in out
    assert "float6_e3m2fn" not in out
    assert "float6_e3m2fn" in run("inspect", checkpoint, "--all")[1]
    only = run("inspect", checkpoint, "--formats", "bf16")[1]
    assert "bfloat16" in only
    assert "float8_e4m3fn" not in only


def test_inspect_says_1_where_a_checked_format_overflows(checkpoint):
    assert run("inspect", checkpoint, "--check", "float16")[0] == 1
    assert run("inspect", checkpoint, "--check", "bfloat16")[0] == 0
    assert (
        run("inspect", checkpoint, "--check", "F8_E4M3")[0] == 1
    )  # as safetensors, and so inspect, writes float8_e4m3fn
    found = document("inspect", checkpoint, "--check", "bfloat16,float16", status=1)
    assert found["overflows"] == {"bfloat16": [], "float16": ["big"]}


def test_inspect_lists_tensors(checkpoint):
    top = run("inspect", checkpoint, "--top", "2")[1]
    assert top == P.inspection.inspect(checkpoint).text(2) + "\n"
    assert top.splitlines()[-1] == run("inspect", checkpoint)[1].splitlines()[-1]  # the advice stays the last word
    assert len([line for line in top.splitlines() if line.startswith("float16 ") and line.endswith("big")]) == 1
    every = run("inspect", checkpoint, "-v")[1]
    assert any(line.split()[:2] == ["step", "1"] and "int64" in line for line in every.splitlines())


def test_inspect_as_csv(checkpoint):
    status, out, _ = run("inspect", checkpoint, "--csv", "--fast")
    assert status == 0
    header, *rows = csv.reader(io.StringIO(out))
    assert {"name", "format", "clipped_share"} <= set(header)
    assert {row[header.index("name")] for row in rows} == {"big", "small", "step"}


def test_inspect_names_every_fault_in_a_line(tmp_path):
    for name in ("a.npy", "b.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    status, out, err = run("inspect", str(tmp_path / "a.npy"), str(tmp_path / "b.safetensors"))
    assert (status, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == ["halfulp inspect"] * 2
    assert "a.npy" in err
    assert "b.safetensors" in err
