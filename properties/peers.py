"""What the installed libraries do where casts have several answers: the page docs/peers.md, made by running them.

ml_dtypes, torch (on the CPU) and gfloat agree on ordinary numbers. They differ in overflow, infinities, NaN, E8M0, and
in whether float64 and integers are rounded once; some of it has changed between releases. `document` asks the versions
that are installed, so that `python -m properties.peers` says what *your* torch does.

Source of what is right: IEEE 754-2019 4.3, 7.4; OCP OFP8 1.0 section 5; OCP MX 1.0 5.4.1.

>>> cast = dict(casts())["ours, policy torch"]
>>> show(cast(np.float32([465, -0.0, 1e-9]), "float8_e4m3fn"), "float8_e4m3fn")
['448', '-0', '0']
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import precision as P
from properties.laws._grid import critical_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["casts", "document", "followed", "show", "versions"]

Cast = Callable[[Any, str], Any]
"""float32, float64 or int64 arrays and a format's name to codes; None where the library lacks the format."""

PRESETS = ("saturate", "ieee", "torch", "torch_2_11", "ml_dtypes", "onnx", "ptx", "ptx_satfinite")
_GFLOAT = {
    "float16": "binary16",
    "bfloat16": "bfloat16",
    "float8_e5m2": "ocp_e5m2",
    "float8_e4m3fn": "ocp_e4m3",
    "float6_e3m2fn": "ocp_e3m2",
    "float6_e2m3fn": "ocp_e2m3",
    "float4_e2m1fn": "ocp_e2m1",
    "float8_e8m0fnu": "ocp_e8m0",
}


def versions() -> dict[str, str]:
    """The versions that `document` speaks of, without a local suffix; a library that is missing has none."""
    found = {}
    for name in ("numpy", "ml_dtypes", "torch", "gfloat"):
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# --- the casts ------------------------------------------------------------------------------------


def _ml_dtypes(x: Array, name: str) -> Array | None:
    fmt = P.get_format(name)
    if fmt.numpy_dtype is None:
        return None
    with np.errstate(all="ignore"):
        native = x.astype(fmt.numpy_dtype)
    codes: Array = P.from_dtype(native)[0]
    return codes


def _torch(x: Array, name: str) -> Array | None:
    import torch

    fmt = P.get_format(name)
    if fmt.torch_dtype is None:
        return None
    codes: Array = P.from_dtype(torch.from_numpy(np.array(x)).to(fmt.torch_dtype))[0].numpy()
    return codes


def _gfloat(x: Array, name: str) -> Array | None:
    import gfloat
    import gfloat.formats

    if name not in _GFLOAT:
        return None
    info, fmt = getattr(gfloat.formats, f"format_info_{_GFLOAT[name]}"), P.get_format(name)
    saturate = not (fmt.infinities or fmt.has_nan)
    with np.errstate(all="ignore"):
        rounded = gfloat.round_ndarray(info, x.astype(np.float64), gfloat.RoundMode.TiesToEven, saturate)
        if saturate and np.isnan(rounded).any():
            return np.array([-1 if np.isnan(v) else int(gfloat.encode_float(info, float(v))) for v in rounded])
        codes: Array = gfloat.encode_ndarray(info, rounded)
    return codes.astype(np.uint64)


def _ours(policy: str) -> Cast:
    return lambda x, name: P.encode(x, name, policy=policy)


def casts() -> Iterator[tuple[str, Cast]]:
    """Name and function of every library that is installed, then of our presets."""
    present = versions()
    yield from (
        (f"{name} {present[name]}", cast)
        for name, cast in (("ml_dtypes", _ml_dtypes), ("torch", _torch), ("gfloat", _gfloat))
        if name in present
    )
    yield from ((f"ours, policy {policy}", _ours(policy)) for policy in PRESETS)


# --- how results read -----------------------------------------------------------------------------


def _number(value: float) -> str:
    """Short and exact: powers of two below 2^-6 and above 2^20 as such, zero with its sign."""
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    fraction, exponent = math.frexp(abs(value)) if math.isfinite(value) else (0.0, 0)
    if fraction == 0.5 and not -6 <= exponent - 1 <= 20:
        return f"{'-' if value < 0 else ''}2^{exponent - 1}"
    return f"{value:.10g}"


def show(codes: Any, name: str) -> list[str]:
    """The values of codes as text; a NaN of at most 8 bits with its code (-1 stands for a NaN that has none)."""
    fmt = P.get_format(name)
    texts = []
    exact = codes.reshape(-1).tolist() if isinstance(codes, np.ndarray | np.generic) else list(codes)
    for code in exact:
        if not 0 <= code < 1 << fmt.bits:
            texts.append("NaN, no code" if code == -1 else f"wrapped ({code})")
            continue
        value = float(P.decode(code, fmt, "float64"))
        texts.append((f"NaN {code:#04x}" if fmt.bits <= 8 else "NaN") if value != value else _number(value))
    return texts


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- the questions --------------------------------------------------------------------------------

_NAN = float("nan")
_SPECIAL = (math.inf, -math.inf, _NAN, -_NAN, -0.0)
# Per format: the tie at the overflow threshold, the first float32 beyond, a large one, the specials, a tiny negative.
_EDGES = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn")  # fmt: skip


def _edges(name: str) -> tuple[list[str], Array]:
    fmt = P.get_format(name)
    threshold = np.float32(float(fmt.overflow_threshold))
    tiny = -np.float32(fmt.smallest_subnormal) / np.float32(4)
    x = np.array([threshold, np.nextafter(threshold, np.float32(np.inf)), 3e38 if fmt.bits < 16 else 3.4028235e38,
                  *_SPECIAL, tiny], np.float32)  # fmt: skip
    head = [f"tie {_number(float(threshold))}", "next float32", "3e38" if fmt.bits < 16 else "float32 max"]
    return [*head, "+inf", "-inf", "NaN", "-NaN", "-0", f"{_number(float(tiny))}"], x


def _edge_table(name: str) -> str:
    head, x = _edges(name)
    answers: dict[tuple[str, ...], list[str]] = {}
    for who, cast in casts():
        codes = cast(x, name)
        if codes is not None:
            answers.setdefault(tuple(show(codes, name)), []).append(who)
    return _table(["", *head], [["; ".join(_merged(who)), *texts] for texts, who in answers.items()])


def _merged(who: list[str]) -> list[str]:
    """Our presets with one answer in one phrase."""
    theirs = [w for w in who if not w.startswith("ours")]
    ours = [w.removeprefix("ours, policy ") for w in who if w.startswith("ours")]
    return theirs + ([f"ours: {', '.join(ours)}"] if ours else [])


_ONCE: tuple[tuple[str, Any, str], ...] = (
    ("bfloat16", 1 + 2**-8 + 2**-40, "1 + 2^-8 + 2^-40"),
    ("float16", 1 + 2**-11 + 2**-40, "1 + 2^-11 + 2^-40"),
    ("float16", 63343.99805, "63343.99805"),
    ("float8_e4m3fn", 1.0625 + 2**-40, "1.0625 + 2^-40"),
    ("float8_e5m2", 1.125 + 2**-40, "1.125 + 2^-40"),
    ("float6_e2m3fn", 1.0625 + 2**-40, "1.0625 + 2^-40"),
    ("float4_e2m1fn", 1.25 + 2**-40, "1.25 + 2^-40"),
    ("bfloat16", 2**25 + 2**17 + 1, "int64 2^25 + 2^17 + 1"),
    ("bfloat16", 2**24 + 2**16 + 1, "int64 2^24 + 2^16 + 1"),
    ("float16", 2**11 + 1, "int64 2^11 + 1 (a tie)"),
)


def _double_rounding() -> str:
    rows = []
    theirs = [(who, cast) for who, cast in casts() if not who.startswith("ours")]
    for name, number, text in _ONCE:
        x = np.array([number])
        right = show(P.encode(x, name), name)[0]
        row = [text, name, right]
        for _, cast in theirs:
            codes = cast(x, name)
            got = "" if codes is None else show(codes, name)[0]
            row.append(got if got in ("", right) else f"**{got}**")
        rows.append(row)
    return _table(["input", "format", "right, and ours", *(who for who, _ in theirs)], rows)


_E8M0 = (
    (0.0, "0"),
    (-1.0, "-1"),
    (2.0**-149, "2^-149"),
    (2.0**-127, "2^-127, exact"),
    (2.0**-127 + 2.0**-149, "2^-127 + 2^-149"),
    (1.25 * 2.0**-127, "1.25 · 2^-127"),
    (1.5 * 2.0**-127, "1.5 · 2^-127"),
    (1.25, "1.25"),
    (1.5, "1.5, a tie"),
    (3.0, "3, a tie"),
    (12.0, "12, a tie"),
    (1.5 * 2.0**127, "1.5 · 2^127"),
    (3.4028234663852886e38, "float32 max"),
    (math.inf, "inf"),
    (_NAN, "NaN"),
)


def _e8m0() -> str:
    x = np.array([value for value, _ in _E8M0], np.float32)
    columns: dict[tuple[str, ...], list[str]] = {}
    for who, cast in casts():
        if (codes := cast(x, "float8_e8m0fnu")) is not None:
            columns.setdefault(tuple(show(codes, "float8_e8m0fnu")), []).append(who)
    up = tuple(show(P.encode(x, "float8_e8m0fnu", rounding="toward_positive"), "float8_e8m0fnu"))
    columns.setdefault(up, []).append("ours, policy saturate with rounding toward_positive")
    rows = [[text, *(answers[i] for answers in columns)] for i, (_, text) in enumerate(_E8M0)]
    return _table(["input", *("; ".join(_merged(who)) for who in columns.values())], rows)


def _integers() -> str:
    """int4 and int8: rounding, the ends, NaN."""
    import torch

    numbers = [2.5, 3.5, -2.5, 7.6, 8.0, -9.0, 127.5, 300.0, math.inf, -math.inf, _NAN]
    x = np.array(numbers, np.float32)
    head = ["", *("NaN" if v != v else _number(v) for v in numbers)]
    with np.errstate(all="ignore"):
        int4 = show(_ml_dtypes(x, "int4"), "int4")
    fake = torch.fake_quantize_per_tensor_affine(torch.from_numpy(x), 1.0, 0, -128, 127)
    quantized = [int(v) for v in fake.tolist()]
    present = versions()
    rows = [
        ["ours, int4", *show(P.encode(x, "int4"), "int4")],
        [f"ml_dtypes {present['ml_dtypes']}, int4", *int4],
        ["ours, int8", *show(P.encode(x, "int8"), "int8")],
        [f"torch {present['torch']}, fake_quantize_per_tensor_affine to int8, scale 1", *map(str, quantized)],
    ]
    return _table(head, rows)


def _inputs(name: str) -> Array:
    """All high halves with six low ones, and critical inputs: about 400 000 float32."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    critical = critical_inputs(name).view(np.uint32)
    if critical.size > 40_000:
        critical = np.random.default_rng(0).choice(critical, 40_000, replace=False)
    return np.unique(np.concatenate([(high[:, None] | low).ravel(), critical])).view(np.float32)


def _agreement() -> str:
    rows = []
    theirs = [(who, cast) for who, cast in casts() if not who.startswith("ours")]
    for fmt in P.formats():
        if not isinstance(fmt, P.Format) or fmt.bits > 16:
            continue
        x = _inputs(fmt.name)
        with np.errstate(all="ignore"):
            nan = np.isnan(x)
        row = [fmt.name, f"{x.size:,}".replace(",", " ")]
        for who, cast in theirs:
            codes = cast(x[~nan], fmt.name)
            library = who.split()[0]
            if codes is None:
                row.append("")
                continue
            policy = followed(library)
            ours = P.encode(x[~nan], fmt, policy=policy)
            both_nan = _is_nan(codes, fmt) & _is_nan(ours, fmt)
            differ = int(((codes != ours) & ~both_nan).sum())
            row.append(f"{policy}: " + ("all equal" if not differ else f"{differ} differ"))
        rows.append(row)
    return _table(["format", "float32 inputs", *(who for who, _ in theirs)], rows)


def _is_nan(codes: Array, fmt: P.Format) -> Array:
    """Where codes are NaN; what is no code of the format is not."""
    possible = codes < (1 << fmt.bits)
    nan: Array = possible & (P.classify(np.where(possible, codes, 0), fmt) == P.CLASSES.index("nan"))
    return nan


def followed(library: str) -> str:
    """The preset that a library follows, in the version that is installed."""
    if library == "torch":
        release = tuple(int(part) for part in versions()["torch"].split(".")[:2])
        return "torch" if release >= (2, 12) else "torch_2_11"
    return {"ml_dtypes": "ml_dtypes", "gfloat": "ieee"}[library]


# --- the page -------------------------------------------------------------------------------------

_PAGE = """\
# What other libraries do with the same casts

<!-- Written by `properties.peers.document`: change that, then `python -m properties.peers > docs/peers.md`. -->

Made by running {versions}, on the CPU. Ask the versions that you have with

```
python -m properties.peers
```

Where a table has a row or column for several, they gave the same results. `ours: saturate, ieee` are presets of
`P.Policy`; each choice of a preset can be made separately. What is compared here is asserted in `tests/agree`.

## Who agrees on which numbers

Round to nearest even, all 65 536 high halves of float32 with six low halves each, and every value and midpoint of the
format with its neighbours (of 16-bit formats, 40 000 of them). Each library is compared with the preset that it
follows. NaN is left out as an input, and as a result one NaN equals another.

{agreement}

What differs is E8M0, below. NaN codes: ml_dtypes' are those of the policy `ml_dtypes`, except that NumPy's float16
keeps upper payload bits. torch's are those of the policy `torch` in its 8-bit formats; in float16 it keeps upper
payload bits, and in bfloat16 a contiguous tensor gives other NaN codes than a strided one (0xffff and 0x7fc0 where this
was run), depending on the processor. gfloat's are negative with all bits set.

## Overflow, infinities, NaN and zero

The inputs are float32: the tie at the overflow threshold, the next number up, a large one, specials, and minus a
quarter of the smallest value. All answers are legal: OCP OFP8 defines a saturating and a non-saturating conversion, and
OCP MX leaves NaN into FP6 and FP4 to the implementation.

{edges}

## float64 and integers: one rounding or two

A cast through float32 rounds twice: a number just above a tie becomes the tie, and the tie goes to even. ml_dtypes'
arrays and torch do this (ml_dtypes' *scalar* constructors of 8-bit and smaller types do not; NumPy's own float16 does
not). In bold: not the nearest value.

{once}

## E8M0: a scale without zero, sign and mantissa

OCP MX defines the codes 2^(code-127), and 255 for NaN; how to convert is not said. By IEEE 754-2019 4.3.1 a tie
between two odd significands (here every significand is 1) goes up. Between 2^-127 and 2^-126 float32 is subnormal, and
ml_dtypes and torch take the leading bit for one half: everything in between becomes 2^-126, though below 1.5 · 2^-127
the nearest is 2^-127. gfloat sends ties to the even code, and wraps codes of what it leaves off the format.

{e8m0}

## Integers

ml_dtypes' int4 truncates and wraps, as casts to integers in C do. torch's fake_quantize sends NaN to the lowest level.

{integers}
"""


def document() -> str:
    """The page docs/peers.md, by running what is installed (about ten seconds)."""
    found = versions()
    edges = "\n\n".join(f"### {name}\n\n{_edge_table(name)}" for name in _EDGES)
    return _PAGE.format(
        versions=", ".join(f"{name} {version}" for name, version in found.items()),
        agreement=_agreement(),
        edges=edges,
        once=_double_rounding(),
        e8m0=_e8m0(),
        integers=_integers(),
    )


if __name__ == "__main__":
    print(document(), end="")
