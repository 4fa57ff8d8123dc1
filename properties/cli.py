"""The `halfulp` command: prove this machine, inspect checkpoints, look at formats and codes.

    halfulp verify                                  every law on our numbers and attention, on this machine
    halfulp inspect model.safetensors               what each format would cost a checkpoint
    halfulp formats                                 every format in one table
    halfulp show 0x7e --format float8_e4m3fn        the bits, value, neighbours and thresholds of a code
    halfulp silicon                                 what this GPU's casts and matrix instructions do, bit for bit

Exit status: 0 what was asked holds, 1 something was found, 2 the request was wrong, or a file cannot be inspected (one
line on standard error for each fault: what was given, what is allowed, the remedy), 130 interrupted, 141 the reader of
the output went away. Every command has `--json`: one document on standard output and nothing else there; progress goes
to standard error, as a bar on a terminal and as lines elsewhere.

This module parses and prints; what is printed is computed elsewhere. Importing it loads neither NumPy nor torch.

>>> from properties.cli import main
>>> main(["show", "464", "--format", "float8_e4m3fn", "--rounding", "toward_negative"])  # doctest: +ELLIPSIS
464 rounded toward_negative, policy saturate: 448, an error of -0.5 ulp
<BLANKLINE>
float8_e4m3fn  0x7e
...
>>> main(["show", "0x7e"])  # the line goes to standard error
2
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from precision.formats import AnyFormat
    from properties.verification import Report, Result, Task

__all__ = ["main"]

Draw = Callable[[int, int, str], None]


class Refused(Exception):
    """A wrong request: what was given, what is allowed, the remedy; a line each if there are several."""


class _Commands(TyperGroup):
    """Says which commands there are when one is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names; raises Refused if there is none."""
        name, known = args[0], list(self.commands)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise Refused(f"unknown command {name!r}: {hint}there are {', '.join(known)}; see halfulp --help")
        return super().resolve_command(ctx, args)


# A command parses its arguments and returns what is to be done: typer has handlers of its own for what goes wrong while
# it parses, and none of them may stand between the work and `main`.
app = typer.Typer(cls=_Commands, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
Work = Callable[[], int]
# ClickException, of click or of the copy of it in newer typers.
_UsageError: Any = typer.BadParameter.__mro__[2]

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
FormatsOption = Annotated[
    list[str] | None, typer.Option("--formats", metavar="A,B", help="Only these formats (halfulp formats lists all).")
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and return the exit status, as the module's docstring lists them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")  # ≥ and × are no reason to fail
    arguments = sys.argv[1:] if argv is None else list(argv)
    command = next((f"halfulp {name}" for name in arguments[:1] if name in _commands()), "halfulp")
    try:
        todo = app(args=arguments, prog_name="halfulp", standalone_mode=False)
        status = int(todo() if callable(todo) else todo or 0)
        sys.stdout.flush()
    except Refused as refused:
        return _refuse(command, str(refused))
    except _UsageError as wrong:  # its message is a sentence that does not say what to do
        return _refuse(command, f"{' '.join(wrong.format_message().split()).rstrip('.')}; see {command} --help")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 141
    return status


def _refuse(command: str, text: str) -> int:
    for line in text.splitlines():
        print(f"{command}: {line}", file=sys.stderr)
    return 2


def _commands() -> list[str]:
    return [str(command.name) for command in app.registered_commands]


@app.callback(invoke_without_command=True)
def _halfulp(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Version and where the packages are.")] = False,
) -> None:
    """Low-precision numbers, bit for bit; laws to prove them; attention judged by proven bounds."""
    if version:
        import importlib.util

        import precision as P

        print(f"halfulp {P.__version__}")
        for name in ("precision", "attention", "properties"):  # the names are common: say whose they are
            spec = importlib.util.find_spec(name)
            print(f"{name:<10} {Path(spec.origin).parent if spec and spec.origin else 'not found'}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


# --- Asking and printing ----------------------------------------------------------------------------------------------


def _console(*, stderr: bool = False, least: int = 0) -> Console:
    """A console that is wide where it is no terminal, has `least` columns, and lets a closed pipe be noticed."""
    from rich.console import Console

    class Plain(Console):
        """Leaves a broken pipe to `main`: rich would exit with status 1, which here means that something was found."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    columns = shutil.get_terminal_size().columns if stream.isatty() or "COLUMNS" in os.environ else 240
    return Plain(file=stream, width=max(columns, least), highlight=False, emoji=False, markup=False)


def _print_json(document: Any) -> int:
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))
    return 0


def _format(name: str) -> AnyFormat:
    """The format of a name; raises Refused for an unknown one."""
    import precision as P

    try:
        return P.get_format(name)
    except ValueError as wrong:
        raise Refused(str(wrong).replace("P.formats()", "halfulp formats")) from wrong


def _formats(given: Sequence[str] | None) -> list[AnyFormat] | None:
    """The formats of an option that takes "a,b" and may be repeated; None where it was not given."""
    if given is None:
        return None
    names = _names(given)
    if not names:
        raise Refused("an empty list of formats: name some, as in float8_e4m3fn,bfloat16; halfulp formats lists all")
    return [_format(name) for name in names]


@contextlib.contextmanager
def _bar() -> Iterator[Draw | None]:
    """A function (done, total, what) that draws a progress bar on standard error: None where that is no terminal."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    percent, what = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}")
    with Progress(BarColumn(), percent, TimeElapsedColumn(), what, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)


def _encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")  # a stream without one holds text
    except UnicodeEncodeError:
        return False
    return True


# --- halfulp verify ---------------------------------------------------------------------------------------------------

_SHOWN = 20  # findings that are printed in full; --json has all


@app.command("verify")
def _verify_command(
    formats: FormatsOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="More inputs, and all 2^32 of every recorded cast.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes.", show_default="CPUs")] = None,
    as_json: JsonOption = False,
) -> Work:
    """Prove this machine: all laws on casts, recorded GPU bits, attention and, where there is one, the CUDA device."""

    def work() -> int:
        from concurrent.futures.process import BrokenProcessPool

        from properties import verification

        chosen, processes = _formats(formats), jobs or _cpus()
        try:
            with _bar() as draw:
                progress = _Lines(processes).finished if draw is None else functools.partial(_draw_task, draw)
                found = verification.verify(formats=chosen, deep=deep, jobs=processes, progress=progress)
        except BrokenProcessPool as died:
            raise Refused(f"one of {processes} processes died, perhaps for want of memory: use fewer --jobs") from died
        if as_json:
            _print_json(found.as_dict())
        else:
            _print_report(found)
        return 0 if found.ok else 1

    return work


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _draw_task(draw: Draw, done: int, total: int, task: Task, results: Sequence[Result], seconds: float) -> None:
    draw(done, total, f"{task.part} {task.column}")


class _Lines:
    """Progress where there is no terminal: a line at every tenth of the work, and for whatever is found."""

    def __init__(self, processes: int) -> None:
        self.start, self.cases, self.tenth = time.monotonic(), 0, 0
        print(f"halfulp verify: {processes} process{'es' * (processes > 1)}", file=sys.stderr, flush=True)

    def finished(self, done: int, total: int, task: Task, results: Sequence[Result], seconds: float) -> None:
        """Called after each task."""
        self.cases += len(results)
        for law in dict.fromkeys(r.law for r in results if not r.ok):
            print(f"{task.part} {task.column}: {law} is BROKEN", file=sys.stderr, flush=True)
        if 10 * done // total > self.tenth:
            self.tenth = 10 * done // total
            took = time.monotonic() - self.start
            text = f"{100 * done // total:3d} %  {took:4.0f} s  {self.cases} cases, now {task.part} {task.column}"
            print(text, file=sys.stderr, flush=True)


def _print_report(found: Report) -> None:
    from rich.text import Text

    console = _console()
    symbols = "✓✗–" if _encodable("✓✗–") else "+X-"
    numbers, attention = ("casts", "arithmetic", "dots", "quantizers", "silicon", "cuda"), ("attention",)
    widest = max(map(len, found.laws()), default=0) + 2 * len(found.columns(*numbers))
    for parts in (numbers, attention):
        for line in found.grid(*parts, symbols=symbols, gap=" " if widest < console.width else ""):
            text = Text(line)
            for symbol, style in zip(symbols, ("green", "bold red", "dim"), strict=True):
                text.highlight_words([symbol], style)
            console.print(text, soft_wrap=True)
        console.print()
    console.print(f"{symbols[0]} holds   {symbols[1]} broken   {symbols[2]} without a meaning there, or not offered\n")
    first: dict[tuple[str, str], Result] = {}
    for result in found.found:
        first.setdefault((result.law, result.column), result)
    for result in list(first.values())[:_SHOWN]:
        console.print(Text(f"{result.subject}: {result.detail}\n", "red"), soft_wrap=True)
    if len(first) > _SHOWN:
        console.print(f"... and {len(first) - _SHOWN} more; --json lists all\n")
    for name, value in found.environment.items():
        console.print(f"{name:<10} {value}", soft_wrap=True)
    console.print(Text(f"\n{found.summary()}", "bold green" if found.ok else "bold red"), soft_wrap=True)


# --- halfulp inspect --------------------------------------------------------------------------------------------------


@app.command("inspect")
def _inspect_command(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="safetensors, .npy, .npz, .pt, an index, or a folder.")
    ],
    formats: FormatsOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every signed float format of at most 16 bits.")] = False,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="A,B", help="Exit status 1 if a value overflows in these.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="No SQNR of float32 and float64: one pass.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Worst tensors to list for each format.")] = 1,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every tensor.")] = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A row for each tensor and format.")] = False,
) -> Work:
    """What each format would cost a checkpoint: overflow, underflow, accuracy and bytes, tensor by tensor."""
    if every and formats is not None:
        raise Refused("--formats and --all say different things: give one of them")
    if as_json and as_csv:
        raise Refused("--json and --csv are two forms of the same output: give one of them")

    def work() -> int:
        from precision import inspection

        wanted, checked = "all" if every else _formats(formats) or "default", _formats(check) or []
        try:
            with _bar() as draw:
                progress = draw or _Seldom()
                found = inspection.inspect(paths, formats=wanted, check=checked, fast=fast, progress=progress)
        except (ValueError, OSError) as wrong:  # files and formats that cannot be inspected, a line each
            raise Refused(str(wrong)) from wrong
        if as_json:
            _print_json(found.as_dict())
        elif as_csv:
            import csv

            csv.writer(sys.stdout, lineterminator="\n").writerows(found.csv_rows())
        else:
            print(found.text(top), *([found.listing()] if verbose else []), sep="\n\n")
        return found.exit_status

    return work


class _Seldom:
    """Progress where there is no terminal: a line every ten seconds."""

    def __init__(self) -> None:
        self.next = time.monotonic() + 10

    def __call__(self, done: int, total: int, what: str) -> None:
        if time.monotonic() >= self.next:
            self.next += 10
            print(f"{100 * done // max(total, 1):3d} %  {what}", file=sys.stderr, flush=True)


# --- halfulp formats --------------------------------------------------------------------------------------------------


@app.command("formats")
def _formats_command(as_json: JsonOption = False) -> Work:
    """Every format: bits, range, spacing, thresholds, special codes, source."""
    return _list_formats_as_json if as_json else _list_formats


def _list_formats_as_json() -> int:
    import precision as P
    from properties.anatomy import format_facts

    return _print_json([format_facts(fmt) for fmt in P.formats()])


def _list_formats() -> int:
    from rich.table import Table

    import precision as P
    from properties.anatomy import format_facts, overflow, short

    console = _console(least=120)
    columns = ["name", "bits", "e/m", "bias", "max", "normal", "subnormal", "eps", "overflow", "Inf", "NaN", "source"]
    if console.width < 192:
        columns.pop()
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.no_wrap, column.justify = True, "right" if column.header in ("bits", "bias", "max") else "left"
    for f in P.formats():
        facts = format_facts(f)
        fields = f"{facts['exponent_bits']}/{facts['mantissa_bits']}" if "bias" in facts else "–"
        subnormal = "–" if f.smallest_subnormal == f.smallest_normal else short(f.smallest_subnormal)
        numbers = (short(f.max), short(f.smallest_normal), subnormal, short(f.eps), overflow(f))
        special = ("yes" if f.infinities else "–", facts["nan"].replace("none", "–").replace("_", " "))
        row = (f.name, str(f.bits), fields, str(facts.get("bias", "–")), *numbers, *special, f.source)
        table.add_row(*row[: len(columns)])
    console.print(table)
    console.print("\nnormal, subnormal: the smallest ones. overflow: what rounds beyond max in nearest even.")
    return 0


# --- halfulp show -----------------------------------------------------------------------------------------------------

_SIGNED_WORD = re.compile(r"-(inf|nan)", re.IGNORECASE)


@app.command("show", context_settings={"ignore_unknown_options": True})  # -0.0 and -inf are values
def _show_command(
    what: Annotated[list[str], typer.Argument(metavar="CODE_OR_VALUE", help="0x7e or 0b1111110; 464, -0.0, nan, 1/3.")],
    fmt: Annotated[str | None, typer.Option("--format", metavar="NAME", help="Its format.")] = None,
    rounding: Annotated[str | None, typer.Option("--rounding", help="How a value is rounded [nearest_even].")] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Where rounding has no answer [saturate].")] = None,
    as_json: JsonOption = False,
) -> Work:
    """Draw a code: its bits, class, exact value, neighbours, midpoints and the format's thresholds.

    0x7e and 0b1111110 are codes. Anything else is a number, which is rounded to the format first.
    """
    unknown = [text for text in what if re.match(r"--?[A-Za-z]", text) and not _SIGNED_WORD.match(text)]
    if unknown:
        raise Refused(f"no such option: {unknown[0]}; see halfulp show --help")
    if len(what) > 1:
        raise Refused(f"{len(what)} codes or values given ({' '.join(what)}): show takes one")
    if fmt is None:
        raise Refused("of which format? add --format, as in --format float8_e4m3fn; halfulp formats lists all")
    name, text = fmt, what[0]

    def work() -> int:
        from properties import anatomy

        fmt = _format(name)
        try:
            facts = anatomy.take_apart(text, fmt, rounding=rounding, policy=policy)
        except ValueError as wrong:
            raise Refused(str(wrong).replace("rounding= and policy=", "--rounding and --policy")) from wrong
        return _print_json(facts) if as_json else _print_facts(facts, fmt)

    return work


def _print_facts(facts: dict[str, Any], fmt: AnyFormat) -> int:
    from rich.text import Text

    from properties.anatomy import decimal, overflow, short

    console = _console()
    width = -(-fmt.bits // 4) + 2

    def coded(code: int | None, value: Any) -> str:
        return "nothing" if code is None else f"{code:#0{width}x} = {decimal(float(value))}"

    def line(name: str, text: str) -> None:
        console.print(Text(f"{name:<10} ", "dim").append(Text(text, "default")), soft_wrap=True)

    value, rounded = float(facts["value"]), facts["rounded"]
    if rounded:
        off = {None: "", 0.0: ", exactly"}.get(rounded["error_ulp"], f", an error of {rounded['error_ulp'] or 0:g} ulp")
        how = f"rounded {rounded['rounding']}, policy {rounded['policy']}"
        console.print(f"{rounded['from']} {how}: {decimal(value)}{off}\n", soft_wrap=True)
    console.print(Text(f"{fmt}  {facts['code']:#0{width}x}", "bold"))
    console.print()
    for drawn in _drawing(facts, fmt):
        console.print(drawn, soft_wrap=True)
    console.print()
    line("class", facts["class"])
    forms = [decimal(value), *(str(facts[key]) for key in ("exact", "hex") if value and facts[key])]
    line("value", " = ".join(form for i, form in enumerate(forms) if i == 0 or form not in forms[0]))
    for side in ("above", "below"):
        there = facts[side]
        if there is None:
            line(side, "nothing")
            continue
        edge = there["value"] in (None, "nan", "inf", "-inf") or math.isinf(value)
        text = f"{coded(there['code'], there['value'])}; {'overflow threshold' if edge else 'midpoint'}"
        line(side, f"{text} {there['midpoint_text']}, a tie goes to {there['tie']:#0{width}x}")
    limits = f"max {short(fmt.max)}, overflow {overflow(fmt)}, smallest normal {short(fmt.smallest_normal)}"
    if fmt.smallest_subnormal != fmt.smallest_normal:
        limits += f", subnormal {short(fmt.smallest_subnormal)}"
    if fmt.underflow_threshold is not None:
        limits += f", zero ≤ {short(fmt.underflow_threshold)}"
    line("format", limits)
    return 0


_COLOURS = {"sign": "red", "exponent": "green", "mantissa": "cyan", "bits": "cyan"}


def _drawing(facts: dict[str, Any], fmt: AnyFormat) -> list[Text]:
    """Three lines: the names of the fields, their bits, what they mean."""
    from rich.text import Text

    from properties.anatomy import meaning

    fields: dict[str, str] = facts["fields"]
    rows = [(part, bits, meaning(part, bits, facts["class"], fmt), _COLOURS[part]) for part, bits in fields.items()]
    lines = [Text("  ") for _ in range(3)]
    for *texts, colour in rows:
        width = max(map(len, texts)) + 2
        for text, drawn, style in zip(texts, lines, ("dim", f"bold {colour}", colour), strict=True):
            drawn.append(f"{text:<{width}}", style)
    return lines


# --- halfulp silicon --------------------------------------------------------------------------------------------------


@app.command("silicon")
def _silicon_command(
    instructions: Annotated[
        list[str] | None, typer.Option("--instructions", metavar="A,B", help='Only these; "wgmma*" is a pattern.')
    ] = None,
    outputs: Annotated[str, typer.Option("--outputs", metavar="N", help="Of each instruction, at least; 1e9.")] = "1e7",
    matrix: Annotated[bool, typer.Option("--mma/--no-mma", help="Matrix instructions.")] = True,
    casts: Annotated[bool, typer.Option("--casts/--no-casts", help="All 2^32 inputs of each cast.")] = True,
    products: Annotated[bool, typer.Option("--products/--no-products", help="Products of torch's libraries.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of the operands.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.npz", help="[silicon-<gpu>.npz]")] = None,
    given: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE.npz", help="Judge this; needs no GPU.")
    ] = None,
    as_json: JsonOption = False,
) -> Work:
    """Record what this machine's GPU does, judge every bit by the emulator, and write a recording to judge again."""
    try:
        count = int(float(outputs))
    except (ValueError, OverflowError):
        raise Refused(f"--outputs is {outputs!r}; it is a whole number, as in 1000000 or 1e9") from None
    wanted = None if instructions is None else _names(instructions)
    if not matrix and wanted:
        raise Refused(f"--no-mma leaves out what --instructions names ({', '.join(wanted)}): give one of them")
    if given is not None and (out is not None or instructions is not None):
        raise Refused("--replay judges what a recording holds: leave out --out and --instructions")

    def work() -> int:
        from properties import recorder

        written: Path | None = None
        try:
            with _bar() as draw:
                progress = draw or _Seldom()
                if given is not None:
                    found = recorder.replay(recorder.Recording.load(given), progress=progress)
                else:
                    card = recorder.ThisGpu(recorder.find())
                    found = recorder.record(
                        card,
                        instructions=wanted if matrix else (),
                        outputs=count,
                        cast=casts,
                        product=products,
                        seed=seed,
                        progress=progress,
                    )
            if given is None:
                written = out or Path(f"silicon-{re.sub('[^a-z0-9]+', '-', found.environment['gpu'].lower())}.npz")
                found.save(written)
        except OSError as wrong:
            raise Refused(f"{wrong.filename}: {wrong.strerror}") from wrong
        except (recorder.Unavailable, ValueError) as wrong:
            raise Refused(str(wrong)) from wrong
        if as_json:
            _print_json(found.as_dict() | ({} if written is None else {"written": str(written)}))
        else:
            print(found.text())
            if written is not None:
                print(f"\nwritten: {written} and {written.with_suffix('.json')}; halfulp silicon --replay {written}")
        return 0 if found.ok else 1

    return work


def _names(given: Sequence[str]) -> list[str]:
    """The items of an option that takes "a,b" and may be repeated."""
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main())
