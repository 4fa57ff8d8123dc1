"""A code taken apart: its fields, class, exact value, neighbours and midpoints; and how such numbers are written.

`take_apart` reads what a person types (a code, or a number that is rounded once, from exactly what was written) and
returns everything there is to know of the code as plain data, as JSON has it; `format_facts` does so for a format.
`exact`, `decimal` and `short` write numbers for people, `json_number` for machines.

Source: `precision.exact` for values and ties, `precision.codec` for neighbours and classes.

>>> from properties.anatomy import take_apart
>>> facts = take_apart("464", "float8_e4m3fn")
>>> facts["code"], facts["fields"], facts["exact"], facts["rounded"]["error_ulp"]
(126, {'sign': '0', 'exponent': '1111', 'mantissa': '110'}, '7 × 2^6', -0.5)
>>> facts["above"]  # a threshold stands for the midpoint: nothing finite follows
{'code': 127, 'value': 'nan', 'midpoint': 464.0, 'midpoint_text': '464', 'tie': 126}
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

import precision as P
from precision.formats import AnyFormat

__all__ = ["decimal", "exact", "format_facts", "json_number", "meaning", "overflow", "short", "take_apart"]


def take_apart(
    text: str, fmt: AnyFormat | str, *, rounding: str | None = None, policy: str | None = None
) -> dict[str, Any]:
    """What there is to know of the code that a text means in a format: plain data, as JSON has it.

    0x7e and 0b1111110 are codes. Anything else is a number (464, -0.0, 1e-3, 1/3, 0x1.8p3, inf, nan) of any length,
    which is rounded once; `rounding` is "nearest_even" and `policy` "saturate" unless given, and say all about ties,
    overflow, NaN and signed zeros. Keys: format, code, fields (bits by name), class, value, exact (n × 2^k), hex, below
    and above (see `_neighbour`; None where there is nothing to say), rounded (None for a code; `error_ulp` is None
    where it has no meaning), limits (`format_facts`). Raises ValueError for a text that is neither, a code that the
    format does not have, unknown names, and a code with a rounding or policy.
    """
    fmt = P.get_format(fmt)
    code, rounded = _code(text, fmt), None
    if code is None:
        code, rounded = _rounded(text, fmt, rounding or "nearest_even", policy or "saturate")
    elif rounding or policy:
        raise ValueError(f"{text} is a code, which is not rounded: leave out rounding= and policy=, or give a number")
    return _facts(code, fmt) | {"rounded": rounded, "limits": format_facts(fmt)}


def _code(text: str, fmt: AnyFormat) -> int | None:
    """The code that is written as 0x... or 0b..., None for anything else; raises ValueError if there is none."""
    if not re.fullmatch(r"0[xX][0-9a-fA-F_]+|0[bB][01_]+", text):
        return None
    try:
        code = int(text, 0)
    except ValueError as wrong:  # 0x_ and the like
        raise ValueError(f"{text!r} is no code: write 0x7e or 0b1111110") from wrong
    if code >> fmt.bits:
        raise ValueError(f"there is no code {text}: {fmt} has {fmt.bits} bits, codes 0x0 to {(1 << fmt.bits) - 1:#x}")
    return code


def _parsed(text: str) -> Fraction | float:
    """A number as written, exactly; a float where a Fraction would lose something: -0.0, inf, nan."""
    wrong = f"{text!r} is neither a code (0x7e, 0b1111110) nor a number (464, -0.0, 1e-3, 1/3, 0x1.8p3, inf, nan)"
    number: float | Decimal
    try:
        if re.fullmatch(r"[+-]?0[xX].*", text):
            number = float.fromhex(text)
        elif "/" in text:
            return Fraction(text)
        else:
            number = Decimal(text)
            if not number or not number.is_finite():
                number = float(text)
    except (ArithmeticError, ValueError) as error:
        raise ValueError(wrong) from error
    if isinstance(number, Decimal) and abs(number.adjusted()) > 5000:  # as a fraction it would fill the memory
        raise ValueError(f"{text} is beyond 1e±5000, where no format has anything to show: give a number within")
    return number if isinstance(number, float) and (not number or not math.isfinite(number)) else Fraction(number)


def _rounded(text: str, fmt: AnyFormat, rounding: str, policy: str) -> tuple[int, dict[str, Any]]:
    """The code of a number, rounded once from what was written, and how far off it is."""
    for what, given, known in (("rounding", rounding, P.ROUNDINGS), ("policy", policy, P.POLICIES)):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}: there are {', '.join(known)}")
    x = _parsed(text)
    code: int = P.exact.round(x, fmt, rounding=rounding, policy=policy)
    value, error = P.exact.decode(code, fmt), None
    if value.kind == "finite" and (isinstance(x, Fraction) or math.isfinite(x)):
        clamped = float(min(max(Fraction(x), Fraction(fmt.min)), Fraction(fmt.max)))
        spacings = (value.value - Fraction(x)) / Fraction(float(P.ulp(clamped, fmt)))
        error = float(spacings) if abs(spacings) < 2**1000 else None  # beyond all floats: nobody counts ulps there
    return code, {"from": text, "rounding": rounding, "policy": policy, "error_ulp": error}


def _facts(code: int, fmt: AnyFormat) -> dict[str, Any]:
    """What there is to know of a code, as JSON has it."""
    value = float(P.decode(np.uint64(code), fmt, "float64"))
    digits, finite = f"{code:0{fmt.bits}b}", math.isfinite(value)
    cuts = {"bits": fmt.bits}
    if isinstance(fmt, P.Format):
        cuts = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "mantissa": fmt.mantissa_bits}
    at, drawn = 0, {}
    for part, size in cuts.items():
        if size:
            drawn[part] = digits[at : at + size]
        at += size
    return {
        "format": fmt.name,
        "code": code,
        "fields": drawn,
        "class": P.CLASSES[int(P.classify(np.uint64(code), fmt))],
        "value": json_number(value),
        "exact": exact(Fraction(value)) if finite else None,
        "hex": re.sub(r"\.?0*p", "p", value.hex()) if finite else None,
        "below": _neighbour(code, value, fmt, up=False),
        "above": _neighbour(code, value, fmt, up=True),
    }


def _neighbour(code: int, value: float, fmt: AnyFormat, *, up: bool) -> dict[str, Any] | None:
    """The next value in a direction with its code, the midpoint on the way, and the code that a tie there goes to.

    Beyond the last finite value the threshold of overflow stands for the midpoint, and the value is NaN or missing
    where the next code is NaN or there is none. None if there is nothing to say.
    """
    there = float((P.next_up if up else P.next_down)(np.float64(value), fmt))
    moved, outward = there != value, up or fmt.signed
    if math.isnan(value) or (math.isinf(value) and not moved):
        return None
    found: dict[str, Any] = {"code": None, "value": None}
    if moved:
        found = {"code": int(P.encode(np.float64(there), fmt, policy="ieee")), "value": json_number(there)}
    elif outward and code + 1 < 1 << fmt.bits and np.isnan(P.decode(np.uint64(code + 1), fmt)):
        found = {"code": code + 1, "value": "nan"}
    if moved and math.isfinite(there) and math.isfinite(value):
        middle = (Fraction(value) + Fraction(there)) / 2
    elif outward:
        top = Fraction(fmt.overflow_threshold)
        middle = top if max(value, there) > 0 else Fraction(fmt.min) - (top - Fraction(fmt.max))
    else:
        return None
    tie = P.exact.round(middle, fmt, policy="ieee")
    return found | {"midpoint": json_number(middle), "midpoint_text": decimal(middle), "tie": tie}


def meaning(part: str, bits: str, kind: str, fmt: AnyFormat) -> str:
    """What the bits of one field say in a code of a class: "-", "2^8", "1 + 6/8"; "" where they say nothing."""
    field = int(bits, 2)
    if part == "bits":
        return "two's complement" if fmt.signed else "unsigned"
    if part == "sign":
        return "-" if field else "+"
    if kind in ("nan", "infinity"):
        return decimal(float("nan" if kind == "nan" else "inf")) if part == "exponent" else ""
    subnormal = kind in ("zero", "subnormal")
    if part == "exponent":
        return f"2^{fmt.emin if subnormal else field + fmt.emin - int(fmt.zero)}"
    return f"{int(not subnormal)} + {field}/{1 << len(bits)}"


def format_facts(fmt: AnyFormat) -> dict[str, Any]:
    """All facts of a format, as JSON has them; a threshold that no float64 holds is written out."""
    written = {f.name: getattr(fmt, f.name) for f in fields(fmt) if f.init}
    facts = {"bits": fmt.bits, "infinities": fmt.infinities, "nan": "none"} | written
    for name in ("max", "min", "smallest_normal", "smallest_subnormal", "eps", "overflow_threshold", "overflow_tie"):
        facts[name] = json_number(getattr(fmt, name))
    facts["underflow_threshold"] = json_number(fmt.underflow_threshold)
    return facts | {"number_of_values": fmt.number_of_values}


def overflow(fmt: AnyFormat) -> str:
    """What overflows in nearest even, as "> 464", or "≥ 65520" where the tie does so, too."""
    return f"{'≥' if fmt.overflow_tie == 'overflows' else '>'} {short(fmt.overflow_threshold)}"


# --- Numbers as text --------------------------------------------------------------------------------------------------


def json_number(x: Any) -> Any:
    """A number as JSON can hold it: text for NaN, infinities and fractions that are no float64."""
    if isinstance(x, Fraction):
        return float(x) if abs(x) < 2**1023 and Fraction(float(x)) == x else exact(x)
    return x if not isinstance(x, float) or math.isfinite(x) else str(x)


def exact(x: Fraction) -> str:
    """A dyadic fraction as n × 2^k with an odd n."""
    if x == 0:
        return "0"
    numerator = abs(x.numerator)
    power = (numerator & -numerator).bit_length() - 1
    odd, power = numerator >> power, power - (x.denominator.bit_length() - 1)
    sign = "-" if x < 0 else ""
    if power == 0:
        return f"{sign}{odd}"
    return f"{sign}2^{power}" if odd == 1 else f"{sign}{odd} × 2^{power}"


def short(x: float | Fraction) -> str:
    """A number in a few characters: small and huge powers of two as such."""
    fraction = Fraction(x)
    power = exact(fraction)
    if power.startswith("2^") and not 1 <= fraction < 2**20:
        return power
    return f"{Decimal(fraction.numerator) / Decimal(fraction.denominator):.{11 if fraction < 10**10 else 6}g}"


def decimal(x: Fraction | float) -> str:
    """A number in decimal with all its digits, or as n × 2^k where they are many."""
    if not isinstance(x, Fraction):
        if not math.isfinite(x) or x == 0:
            return {"nan": "NaN", "0.0": "0", "-0.0": "-0"}.get(str(x), str(x))
        x = Fraction(x)
    with localcontext(prec=2000):  # a float64 has up to 767 digits
        written = (Decimal(x.numerator) / Decimal(x.denominator)).normalize()
        if len(written.as_tuple().digits) > 20:
            return f"{exact(x)} ≈ {written:.6g}"
        return f"{written:f}" if -7 < written.adjusted() < 20 else f"{written:e}"
