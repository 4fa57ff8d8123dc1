"""What a machine proves: every law on our own numbers and attention, run in parallel, and the report of what was found.

`verify` runs seven parts and returns a `Report`:

* casts: all laws of `properties.laws.casts` in every format and mode, under every policy that has a name and flushing;
* arithmetic: all laws of `properties.laws.arithmetic` in every format and mode, and to nearest under saturation;
* dots: all laws on products of matrices, on accumulators of every order and every tensor core that differs;
* quantizers: all laws on quantizers, scales and extremes, in schemes of every kind (`properties.quantizers`);
* silicon: the casts recorded on a real GPU (`properties.silicon`), a few chunks of each, or all 2^32 inputs;
* attention: all laws of `properties.laws.attention` on every family of data in float16, bfloat16 and float32;
* cuda, where there is a device: casts, arithmetic and products give the CPU's bits, attention keeps its bounds.

Importing this module loads neither NumPy nor torch: the work is described in one process and done in others.

>>> from properties.verification import verify
>>> report = verify(formats=["float4_e2m1fn"], parts=["silicon"])
>>> report.ok, report.laws()
(True, ['silicon.casts_are_as_on_the_card', 'silicon.tables_are_as_on_the_card'])
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from properties.kinds import KINDS
from properties.laws import Status, Verdict, law_id, laws, outcome, staircase

if TYPE_CHECKING:
    from torch import Tensor

    from precision.formats import AnyFormat
    from precision.policies import Policy

__all__ = ["PARTS", "Report", "Result", "Task", "environment", "tasks", "verify"]

PARTS = ("casts", "arithmetic", "dots", "quantizers", "silicon", "attention", "cuda")
"""What `verify` runs, in this order."""

ATTENTION_DTYPES = ("float16", "bfloat16", "float32")
_COMPILED = ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn")  # each costs seconds of compiler
_CUDA_PROCESSES = 8  # each holds a CUDA context of some hundred megabytes
_WRITTEN = tuple(family for kind in KINDS.values() for family in kind.families)
_FAMILIES = (*_WRITTEN, *(part for part in PARTS if part not in _WRITTEN))  # as the table has them
_FREED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Result:
    """What came of one law in one case.

    `column` is the format (of attention: the dtype) it is shown under, `case` the law id with its case, `subject` whose
    casts under which policy; `detail` says what was found, `counterexample` the same for a machine.
    """

    part: str
    law: str
    column: str
    case: str
    subject: str
    status: Status
    detail: str = ""
    counterexample: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.status in ("holds", "unsupported")


@dataclass(frozen=True)
class Task:
    """A piece of work that another process can do: the results of one part in one column."""

    part: str
    column: str
    call: Callable[[], list[Result]]

    def run(self) -> tuple[list[Result], float]:
        """The results and the seconds it took; what the work itself raises becomes a result, too."""
        start = time.perf_counter()
        try:
            results = self.call()
        except Exception as error:  # noqa: BLE001 - one broken piece must not hide the others
            law, detail = f"{self.part}.runs", f"{type(error).__name__}: {error}"
            results = [Result(self.part, law, self.column, law_id(law, self.column), "ours", "error", detail)]
        return results, time.perf_counter() - start


@dataclass(frozen=True)
class Report:
    """All results of a run, with the environment they were found in; `seconds` is what the run took."""

    results: tuple[Result, ...]
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    deep: bool = False

    @functools.cached_property
    def found(self) -> tuple[Result, ...]:
        """The results that are broken, or whose work raised."""
        return tuple(r for r in self.results if not r.ok)

    @property
    def ok(self) -> bool:
        """Whether everything holds, and there was something to hold."""
        return not self.found and any(r.status == "holds" for r in self.results)

    @functools.cached_property
    def cells(self) -> dict[tuple[str, str], Counter[Status]]:
        """How many cases of a law in a column have each status."""
        cells: dict[tuple[str, str], Counter[Status]] = {}
        for r in self.results:
            cells.setdefault((r.law, r.column), Counter())[r.status] += 1
        return cells

    def laws(self, *parts: str) -> list[str]:
        """The laws of these parts (all if none is named), those on numbers in the order they are written in."""
        names = dict.fromkeys(r.law for r in self.results if r.part in (parts or PARTS))
        written = {law.id: i for family in _WRITTEN for i, law in enumerate(laws(family).values())}
        return sorted(names, key=lambda name: (_FAMILIES.index(name.partition(".")[0]), written.get(name, 0)))

    def columns(self, *parts: str) -> list[str]:
        """The formats or dtypes of these parts, in table order."""
        from precision.formats import FORMATS

        order = list(FORMATS)
        names = dict.fromkeys(r.column for r in self.results if r.part in (parts or PARTS))
        return sorted(names, key=lambda name: (name.partition(" ")[2], order.index(name.partition(" ")[0])))

    def worst(self, law: str, column: str) -> Status | None:
        """The worst status of a law in a column: None where it has no meaning there."""
        cell = self.cells.get((law, column), Counter[Status]())
        ranked: tuple[Status, ...] = ("broken", "error", "holds", "unsupported")
        return next((status for status in ranked if cell[status]), None)

    def grid(self, *parts: str, symbols: str = "✓✗–", gap: str = " ") -> list[str]:
        """Laws by columns, one symbol each for "holds", "broken" and "not offered, or without a meaning here"."""
        mark = {"holds": symbols[0], "broken": symbols[1], "error": symbols[1]}

        def symbol(law: str, column: str) -> str:
            return mark.get(self.worst(law, column) or "", symbols[2])

        return staircase(self.laws(*parts), self.columns(*parts), symbol, gap=gap)

    def summary(self) -> str:
        """One line: what holds, or how much is broken."""
        count = Counter(r.status for r in self.results)
        of = f"{len(self.laws())} laws in {sum(count.values()) - count['unsupported']} cases"
        if self.ok:
            return f"everything holds: {of}, {self.seconds:.0f} s"
        broken = len({r.law for r in self.found})
        return f"{len(self.found)} cases of {broken} laws are broken, of {of}, {self.seconds:.0f} s"

    def as_dict(self) -> dict[str, Any]:
        """Everything for JSON: a cell of the table counts its cases by status, findings are given in full."""
        return {
            "ok": self.ok,
            "deep": self.deep,
            "seconds": round(self.seconds, 3),
            "environment": self.environment,
            "cases": dict(Counter(r.status for r in self.results)),
            "laws": {
                law: {column: dict(self.cells[law, column]) for column in self.columns() if (law, column) in self.cells}
                for law in self.laws()
            },
            "found": [asdict(result) for result in self.found],
        }


def environment() -> dict[str, str]:
    """The versions and hardware that results were found with; imports torch, to ask for the GPU."""
    import torch

    import precision as P

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    gpu = "none"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        gpu = f"{torch.cuda.get_device_name()} (sm_{major}{minor}), CUDA {torch.version.cuda}"
    return {
        "halfulp": P.__version__,
        "python": f"{platform.python_version()} ({platform.platform()})",
        "numpy": version("numpy"),
        "torch": str(torch.__version__),
        "ml_dtypes": version("ml_dtypes"),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "gpu": gpu,
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# --- What is to be done -----------------------------------------------------------------------------------------------


def tasks(
    formats: Sequence[AnyFormat], *, parts: Iterable[str] = PARTS, deep: bool = False, cuda: bool = False
) -> list[Task]:
    """All the work, cut into pieces of some seconds; `cuda` says whether there is a device.

    `deep` adds 2^20 drawn inputs and float64 ones to every cast under the default policy, 2^16 drawn operands to the
    arithmetic of formats over 8 bits, all 2^32 inputs of every recorded cast, ten times as many matrices and attention
    problems.
    """
    import precision as P
    from properties import silicon
    from properties.operators import OurDot
    from properties.quantizers import OurQuantizer

    names = [fmt.name for fmt in formats]
    dtypes = [name for name in ATTENTION_DTYPES if name in names]
    todo: list[Task] = []
    if "casts" in parts:
        for fmt in formats:
            for name, policy in _judged(fmt).items():
                call = functools.partial(_casts, fmt.name, policy, deep and name == "saturate")
                todo.append(Task("casts", fmt.name, call))
    if "arithmetic" in parts:
        for fmt in formats:
            if isinstance(fmt, P.Format):
                for policy, modes in (("ieee", P.ROUNDINGS), ("saturate", ("nearest_even",))):
                    call = functools.partial(_arithmetic, fmt.name, policy, modes, deep)
                    todo.append(Task("arithmetic", fmt.name, call))
    if "dots" in parts:
        products = [product for product in OurDot().products if product.a.name in names]
        todo += [Task("dots", p.a.name, functools.partial(_dots, p.name, deep)) for p in products]
    if "quantizers" in parts:
        schemes = [scheme for scheme in OurQuantizer().schemes if scheme.element.name in names]
        todo += [Task("quantizers", s.element.name, functools.partial(_quantizers, s.name, deep)) for s in schemes]
    if "silicon" in parts:
        every = range(silicon.CHUNKS)
        for name, row in silicon.casts().items():
            if row.format in names:
                cuts = [every[i : i + 64] for i in every[::64]] if deep else [silicon.key_chunks(name)]
                todo += [Task("silicon", row.format, functools.partial(_silicon, name, tuple(cut))) for cut in cuts]
        for name, row in silicon.tables().items():
            if row.format in names:
                todo.append(Task("silicon", row.format, functools.partial(_silicon_table, name)))
    if "attention" in parts:
        todo += [
            Task("attention", dtype, functools.partial(_attention, dtype, seed, dtype))
            for seed in range(0, 160 if deep else 16, 4)  # a problem set takes four seeds
            for dtype in dtypes
        ]
    if "cuda" in parts and cuda:
        todo += [Task("cuda", fmt.name, functools.partial(_cuda, fmt.name)) for fmt in formats]
        todo += [Task("cuda", name, functools.partial(_compiled, name)) for name in _COMPILED if name in names]
        if "attention" in parts:
            for dtype in dtypes:
                column = f"{dtype} (cuda)"
                todo.append(Task("attention", column, functools.partial(_attention, dtype, 0, column, "cuda")))
    return todo


def _judged(fmt: AnyFormat) -> dict[str, Any]:
    """The policies that casts are judged under: those with a name, and flushing, which no name has.

    What is flushed are the subnormals of float32 inputs, too, so not of formats that only float64 holds.
    """
    import precision as P

    flushing = {"flush": P.Policy(overflow="infinity", subnormals="flush")}
    flushes = isinstance(fmt, P.Format) and fmt.mantissa_bits <= 23
    return {name: name for name in _policies(fmt)} | (flushing if flushes else {})


def _policies(fmt: AnyFormat) -> dict[str, Any]:
    """The named policies that differ in a format."""
    import precision as P

    found: dict[Any, str] = {}
    for name in P.POLICIES:
        found.setdefault(P.get_policy(name, fmt), name)
    return {name: policy for policy, name in found.items()}


def _casts(fmt: str, policy: Policy | str, deep: bool) -> list[Result]:
    import properties
    from properties.subjects import Ours

    subject = Ours(policy)
    return [_result("casts", v, fmt, subject.name) for v in properties.judge(subject, formats=[fmt], deep=deep)]


def _result(part: str, v: Verdict, column: str, subject: str) -> Result:
    example = v.counterexample.as_dict() if v.counterexample else None
    return Result(part, v.law, column, v.id, subject, v.status, v.detail, example)


def _arithmetic(fmt: str, policy: str, modes: Sequence[str], deep: bool) -> list[Result]:
    import properties
    from properties.operators import OurArithmetic

    subject = OurArithmetic(policy)
    judged = properties.judge(subject, formats=[fmt], roundings=modes, deep=deep)
    return [_result("arithmetic", v, fmt, subject.name) for v in judged]


def _dots(product: str, deep: bool) -> list[Result]:
    import properties
    from properties.operators import OurDot

    subject = OurDot()
    subject.products = [p for p in subject.products if p.name == product]
    fmt = subject.products[0].a.name
    return [_result("dots", v, fmt, subject.name) for v in properties.judge(subject, formats=[fmt], deep=deep)]


def _quantizers(scheme: str, deep: bool) -> list[Result]:
    import properties
    from properties.quantizers import OurQuantizer

    subject = OurQuantizer()
    subject.schemes = [s for s in subject.schemes if s.name == scheme]
    fmt = subject.schemes[0].element.name
    return [_result("quantizers", v, fmt, subject.name) for v in properties.judge(subject, formats=[fmt], deep=deep)]


def _silicon(name: str, chunks: tuple[int, ...]) -> list[Result]:
    from properties import silicon

    replay, law = silicon.replay(name, chunks), "silicon.casts_are_as_on_the_card"
    wrong = None if replay.ok else {"recording": name, "chunks": list(replay.mismatching_chunks)}
    status: Status = "holds" if replay.ok else "broken"
    fmt = silicon.casts()[name].format
    return [Result("silicon", law, fmt, law_id(law, name), "ours", status, "" if replay.ok else str(replay), wrong)]


def _silicon_table(name: str) -> list[Result]:
    from properties import silicon

    wrong, law = silicon.replay_table(name).tolist(), "silicon.tables_are_as_on_the_card"
    row = silicon.tables()[name]
    if not wrong:
        return [Result("silicon", law, row.format, law_id(law, name), "ours", "holds")]
    detail = f"{name}: {len(wrong)} codes differ from the card's, the first is {row.source} {wrong[0]:#x}"
    found = {"recording": name, "inputs": wrong[:16]}
    return [Result("silicon", law, row.format, law_id(law, name), "ours", "broken", detail, found)]


def _attention(dtype: str, seed: int, column: str, device: str = "") -> list[Result]:
    from properties.problems import problems
    from properties.subjects import OurAttention

    ours = OurAttention(device=device)
    results = []
    for problem in problems((dtype,), seed):
        for law in laws("attention").values():
            status, detail, broken = outcome(functools.partial(law, ours, problem))
            if status == "error":
                detail = f"{problem}: {detail}"
            example = broken.as_dict() if broken else None
            results.append(
                Result("attention", law.id, column, law_id(law.id, dtype), ours.name, status, detail, example)
            )
    return results


# --- CUDA: the bits of the CPU ----------------------------------------------------------------------------------------


def _cuda(fmt: str) -> list[Result]:
    """Rounding and encoding in every mode and policy and from every input dtype, and decoding, on the device."""
    import numpy as np
    import torch

    import precision as P
    from properties.laws.casts import critical_inputs, random_inputs

    f = P.get_format(fmt)
    base = "float64" if f.mantissa_bits > 23 else "float32"  # a narrower one does not hold the values
    x = torch.from_numpy(np.concatenate([critical_inputs(fmt, base), random_inputs(1 << 14, base)]))
    draws = torch.from_numpy(np.random.default_rng(0).integers(0, 256, x.numel()))
    jobs: list[tuple[Any, str]] = [(rounding, policy) for policy in _policies(f) for rounding in P.ROUNDINGS]
    jobs += [(P.stochastic(random_bits=draws, bits=8), "saturate")]
    results = [_on_both(kind, x, fmt, *job) for job in jobs for kind in ("round_to", "encode")]
    others = [torch.from_numpy(np.array(critical_inputs(fmt, dtype))) for dtype in ("float16", "float32", "float64")]
    others += [torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)]
    integers = random_inputs(1 << 14, np.float64).view(np.int64) >> (np.arange(1 << 14) % 64)
    others += [torch.from_numpy(integers)]
    results += [_on_both("encode", other, fmt, "nearest_even", "saturate") for other in others]
    codes = P.encode(x.numpy(), f)
    if f.bits <= 16:
        codes = np.arange(1 << f.bits).astype(codes.dtype)
    results.append(_on_both("decode", torch.from_numpy(codes), fmt, "", ""))
    return [*results, *_operations_on_both(fmt), *_products_on_both(fmt)]


def _operations_on_both(fmt: str) -> list[Result]:
    """Arithmetic on tensors, in two modes."""
    import numpy as np
    import torch

    import precision as P
    from properties.laws.arithmetic import operands

    if not isinstance(P.get_format(fmt), P.Format):
        return []
    law, results = "cuda.arithmetic_gives_the_bits_of_the_cpu", []
    x = [torch.from_numpy(np.array(row)) for row in operands(fmt)]
    for name, arity in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("sqrt", 1), ("fma", 3)):
        for mode in ("nearest_even", "toward_negative"):
            on_device, here = [t.cuda() for t in x[:arity]], x[:arity]
            got, expected = (getattr(P, name)(*some, fmt, rounding=mode) for some in (on_device, here))

            def where(i: int, name: str = name, arity: int = arity) -> str:
                return f"{name}({', '.join(repr(row[i].item()) for row in x[:arity])})"

            results.append(_compared(law, fmt, law_id(law, fmt, mode), "ours/ieee on cuda", where, expected, got))
    return results


def _products_on_both(fmt: str) -> list[Result]:
    """Products of matrices on tensors."""
    import numpy as np
    import torch

    from properties.laws.dots import matrices
    from properties.operators import OurDot

    law, ours, results = "cuda.products_give_the_bits_of_the_cpu", OurDot(), []
    matmul: Any = ours.matmul  # its protocol is that of NumPy arrays; ours takes tensors, too
    for product in ours.products:
        if product.a.name != fmt:
            continue
        for x in matrices(product):
            a, b = (torch.from_numpy(np.array(y, np.float32)) for y in x[:2])
            got, expected = matmul(a.cuda(), b.cuda(), product), matmul(a, b, product)

            def where(i: int, x: Any = x) -> str:
                return f"element {i} of the product of {x.a.shape} and {x.b.shape} matrices, {x.family}"

            results.append(_compared(law, fmt, law_id(law, product.name), "ours on cuda", where, expected, got))
    return results


def _compiled(fmt: str) -> list[Result]:
    """Rounding and encoding inside torch.compile(fullgraph=True)."""
    import numpy as np
    import torch

    from properties.laws.casts import critical_inputs

    if importlib.util.find_spec("triton") is None:
        law = "cuda.compiled_round_to_gives_the_bits_of_the_cpu"
        return [Result("cuda", law, fmt, law_id(law, fmt), "ours on cuda", "unsupported", "triton is not installed")]
    x = torch.from_numpy(np.array(critical_inputs(fmt, "float32")))
    return [
        _on_both(kind, x, fmt, rounding, policy, compiled=True)
        for kind, rounding, policy in (("round_to", "nearest_even", "saturate"), ("encode", "toward_positive", "ieee"))
    ]


def _on_both(kind: str, x: Tensor, fmt: str, rounding: Any, policy: str, *, compiled: bool = False) -> Result:
    """Whether a function of `precision` gives the same bits for the tensor on the CPU and on the device."""
    import torch

    import precision as P

    law = f"cuda.{'compiled_' if compiled else ''}{kind}_gives_the_bits_of_the_cpu"
    mode = rounding if isinstance(rounding, str) else rounding.name
    case, subject = law_id(law, fmt, mode), f"ours/{policy} on cuda" if policy else "ours on cuda"

    def call(tensor: Tensor) -> Tensor:
        how = {} if kind == "decode" else {"rounding": rounding, "policy": policy}
        if isinstance(rounding, P.Rounding):
            bits = rounding.random_bits.to(tensor.device)
            how["rounding"] = P.stochastic(random_bits=bits, bits=rounding.bits)
        result: Tensor = getattr(P, kind)(tensor, fmt, **how)
        return result

    expected = call(x)
    try:
        got = (torch.compile(call, fullgraph=True) if compiled else call)(x.cuda()).cpu()
    except Exception as error:  # noqa: BLE001 - one case must not hide the others
        return Result("cuda", law, fmt, case, subject, "error", f"{case}: {type(error).__name__}: {error}")
    dtype = str(x.dtype).removeprefix("torch.")
    return _compared(law, fmt, case, subject, lambda i: f"x = {x[i].item()!r} ({dtype})", expected, got)


def _compared(
    law: str, fmt: str, case: str, subject: str, where: Callable[[int], str], expected: Tensor, got: Tensor
) -> Result:
    """Whether two tensors have the same bits; `where(i)` says what element i is the result of."""
    import torch

    expected, got = expected.reshape(-1), got.cpu().reshape(-1)
    size = expected.element_size()
    words = [t.contiguous().view(torch.uint8).reshape(-1, t.element_size()) for t in (expected, got)]
    wrong = (words[0] != words[1]).any(1).nonzero().reshape(-1) if expected.dtype == got.dtype else torch.arange(1)
    if not wrong.numel():
        return Result("cuda", law, fmt, case, subject, "holds")
    i = int(wrong[0])
    bits = [int.from_bytes(bytes(w[i].tolist()), "little") for w in words] if expected.dtype == got.dtype else [0, 0]
    detail = (
        f"{case}: {subject} differs from the CPU\n"
        f"  at        {where(i)}\n"
        f"  got       {got[i].item()!r} ({got.dtype}, {bits[1]:#0{2 + 2 * size}x})\n"
        f"  expected  {expected[i].item()!r} ({expected.dtype}, {bits[0]:#0{2 + 2 * size}x})\n"
        f"  wrong     {wrong.numel()} of {expected.numel()}"
    )
    example = {"where": where(i), "got": bits[1], "expected": bits[0]}
    example |= {"wrong": wrong.numel(), "of": expected.numel()}
    return Result("cuda", law, fmt, case, subject, "broken", detail, example)


# --- Doing it ---------------------------------------------------------------------------------------------------------

Progress = Callable[[int, int, Task, Sequence[Result], float], None]


def verify(
    *,
    formats: Iterable[AnyFormat | str] | None = None,
    parts: Iterable[str] = PARTS,
    deep: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Run all laws on this machine, in `jobs` processes (1: in this one), and report what came of each.

    `formats` are all by default; attention runs in those dtypes that are among them. `progress(done, total, task,
    results, seconds)` is called after each task. Raises ValueError for unknown formats and parts and for jobs below 1.
    """
    import precision as P

    chosen = list(dict.fromkeys(P.get_format(fmt) for fmt in (P.FORMATS if formats is None else formats)))
    parts = tuple(parts)
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r}: there are {', '.join(PARTS)}")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    start = time.perf_counter()
    where = environment()
    todo = tasks(chosen, parts=parts, deep=deep, cuda=where["gpu"] != "none")
    results: list[Result] = []
    for done, (task, found, seconds) in enumerate(_finished(todo, jobs), 1):
        results += found
        if progress is not None:
            progress(done, len(todo), task, found, seconds)
    return Report(tuple(results), where, time.perf_counter() - start, deep)


def _finished(todo: Sequence[Task], jobs: int) -> Iterator[tuple[Task, list[Result], float]]:
    """The tasks with their results, as they finish."""
    if jobs == 1:
        for task in todo:
            yield task, *task.run()
        return
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("spawn")  # a forked child can use neither CUDA nor torch's threads
    before = set(multiprocessing.active_children())
    waiting: dict[Future[tuple[list[Result], float]], Task] = {}
    pools = []
    try:
        for on_cuda, most in ((False, jobs), (True, min(jobs, _CUDA_PROCESSES))):
            lane = [task for task in todo if (task.part == "cuda" or task.column.endswith("(cuda)")) == on_cuda]
            if lane:
                pools.append(ProcessPoolExecutor(min(most, len(lane)), context, _start_worker))
                waiting |= {pools[-1].submit(task.run): task for task in lane}
        for future in as_completed(waiting):
            yield waiting[future], *future.result()
    except BaseException:  # interrupted: nobody waits for what is still running
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    for pool in pools:
        pool.shutdown()


def _start_worker() -> None:
    """One thread a process, set before NumPy and torch are loaded; Ctrl-C is the parent's affair."""
    os.environ |= _FREED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
