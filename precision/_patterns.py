"""Rounding, codes and neighbours as integer arithmetic on bit patterns: the one definition that everything else runs.

A value arrives as the bit pattern of a container (`Layout`: float16, bfloat16, float32 or float64) and is rounded *in
that container*: a format's values are container values whose low bits are zero, so rounding is "add, then clear the low
`s` bits", with the carry walking into the exponent as it should. The number `s` of cleared bits is constant where the
format is normal and grows by one per binade below that. Codes are then a shift of the rounded pattern.

Only integers are used (a conversion of a small integer to its float pattern apart, which is exact and never subnormal),
so flush-to-zero cannot change a bit. Every function takes `ops`, a back end of `_array`, and uses nothing of an array
but Python's integer operators: NumPy, torch, a tracing compiler and a source-code recorder all run the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision._array import FLOAT64, Layout
from precision.formats import AnyFormat, Format, IntFormat

if TYPE_CHECKING:
    from precision.policies import Policy


@dataclass(frozen=True, eq=False)  # `rounding.job` makes one object per description, so identity is enough (and fast)
class Job:
    """What to do to a pattern: round it to `fmt`'s grid ("round"), or that and give the code ("encode").

    "next_up", "next_down" and "ulp" give the neighbour of what was rounded, and the spacing there (see `codec`).

    `mode` is a rounding by name; `random_bits` is the number of random bits of the stochastic one, else 0. "carried" is
    the second half of the stochastic one: the random bits are added already, what is left is to cut, and to overflow.
    `into` is the layout of a rounded result, if it is not that of the input.
    """

    kind: str
    fmt: AnyFormat
    mode: str
    policy: Policy
    random_bits: int = 0
    into: Layout | None = None

    def __call__(self, pattern: Any, layout: Layout, ops: Any, random: Any = None) -> Any:
        rounded, rounded_in = _round(pattern, layout, self, ops, random)
        if self.kind == "encode":
            return _code(rounded, rounded_in, self.fmt, ops)
        into = self.into or layout
        if self.kind == "round":
            return rounded if rounded_in is into else _narrow(rounded, into, ops)
        size = pattern & layout.magnitude
        if self.kind == "ulp":
            result = _spacing(rounded, rounded_in, self.fmt, ops)
        else:
            given = size if rounded_in is layout else _widen(size, layout, ops)
            on_grid = (rounded & rounded_in.magnitude) == given
            if not self.fmt.signed:
                on_grid = on_grid & ((size == 0) | ((pattern & layout.sign) == 0))
            result = _neighbour(rounded, on_grid, self, rounded_in, ops)
        result = result if rounded_in is layout else _narrow(result, layout, ops)
        return ops.where(size >= layout.infinity + int(self.kind != "ulp"), layout.quiet_nan, result)


def holds(layout: Layout, fmt: AnyFormat) -> bool:
    """Whether the container holds every value of the format."""
    digits = fmt.mantissa_bits + isinstance(fmt, Format)
    return (
        digits <= layout.mantissa_bits + 1
        and fmt.emax <= layout.bias
        and fmt.emin - fmt.mantissa_bits >= 1 - layout.bias - layout.mantissa_bits
    )


def aligned(layout: Layout, fmt: AnyFormat) -> bool:
    """Whether the format can be rounded in the container: its values are normal there, or its subnormals the same."""
    smallest_normal = 1 - layout.bias
    return holds(layout, fmt) and (fmt.emin == smallest_normal or fmt.least_parts[1] >= smallest_normal)


def index_bits(layout: Layout, fmt: AnyFormat) -> int:
    """How many mantissa bits of the container decide the rounding, besides one bit for "anything below"."""
    digits = fmt.mantissa_bits + isinstance(fmt, Format)
    return digits + max(0, 1 - layout.bias - fmt.emin)


def _widen(magnitude: Any, layout: Layout, ops: Any) -> Any:
    """The float64 pattern of a non-negative pattern."""
    shift = FLOAT64.mantissa_bits - layout.mantissa_bits
    wide = ops.wide(magnitude)
    normal = (wide << shift) + ((FLOAT64.bias - layout.bias) << FLOAT64.mantissa_bits)
    special = (wide << shift) | FLOAT64.infinity
    scale = layout.bias - 1 + layout.mantissa_bits
    subnormal = ops.float_pattern(wide, FLOAT64) - (scale << FLOAT64.mantissa_bits)
    finite = ops.where(wide >= layout.implicit, normal, ops.where(wide == 0, 0, subnormal))
    return ops.where(wide >= layout.infinity, special, finite)


def _narrow(pattern: Any, layout: Layout, ops: Any) -> Any:
    """The pattern in `layout` of a float64 pattern whose value it holds."""
    shift = FLOAT64.mantissa_bits - layout.mantissa_bits
    a = pattern & FLOAT64.magnitude
    normal = (a - ((FLOAT64.bias - layout.bias) << FLOAT64.mantissa_bits)) >> shift
    special = ((a - FLOAT64.infinity) >> shift) | layout.infinity
    first_normal = (FLOAT64.bias - layout.bias + 1) << FLOAT64.mantissa_bits
    drop = (first_normal - a + FLOAT64.implicit - 1) >> FLOAT64.mantissa_bits  # binades below the first normal one
    drop = shift + ops.where(drop > layout.mantissa_bits + 1, layout.mantissa_bits + 1, ops.where(drop < 0, 0, drop))
    subnormal = ((a & (FLOAT64.implicit - 1)) | FLOAT64.implicit) >> drop
    finite = ops.where(a >= first_normal, normal, ops.where(a == 0, 0, subnormal))
    result = ops.where(a >= FLOAT64.infinity, special, finite)
    return ops.narrow(ops.where(pattern < 0, result | layout.sign, result))


def _round(u: Any, layout: Layout, job: Job, ops: Any, random: Any) -> tuple[Any, Layout]:
    """The pattern of the rounded value, and the container it is in (float64 where `layout` is too small)."""
    fmt, policy, mode, where = job.fmt, job.policy, job.mode, ops.where
    a = u & layout.magnitude
    sign = u & layout.sign
    if isinstance(fmt, Format) and not fmt.signed and policy.negative == "magnitude":
        sign = 0 * a
    negative = sign != 0
    if policy.subnormals in ("flush_inputs", "flush"):
        a = where(a < layout.implicit, 0, a)
    if not aligned(layout, fmt):
        a, layout = _widen(a, layout, ops), FLOAT64
        sign = where(negative, layout.sign, 0 * a)
    elif job.random_bits and layout.width == 32:
        a = ops.wide(a)
    m, top, nan = fmt.mantissa_bits, layout.mantissa_bits, _nan_pattern(fmt, policy, layout)
    least = layout.pattern(*fmt.least_parts)
    limit: Any = layout.pattern(*fmt.max_parts)
    if isinstance(fmt, IntFormat):
        limit = where(negative, layout.pattern(*fmt.min_parts), limit + 0 * a)

    # 1. Round on the grid, continued above max.
    cleared = max(top - m, 0)
    first = fmt.emin + layout.bias  # the exponent field of the format's first normal binade
    s: Any = cleared
    if first > 1:
        below = ((((first << top) | (layout.implicit - 1)) - a) >> top) + (top - m)
        s = where(below < cleared, cleared, where(below > top, top, below))
    result = a
    if (cleared, first) != (0, 1):  # else the container is the format
        # A NaN's carry could leave the integer, which C++ leaves undefined: it goes as infinity, and is replaced below.
        number = where(a > layout.infinity, layout.infinity, a)
        result = _round_at(number, s, negative, job, ops, random, layout.implicit)
    if not fmt.zero:
        result = where(result < least, least, result)
    elif first > 1 or m == 0:
        result = where(a < least, _round_below_least(a, least, negative, layout, job, ops, random), result)
    if policy.subnormals in ("flush_results", "flush") and isinstance(fmt, Format):
        result = where(result < layout.pattern(1, fmt.emin), 0, result)

    # 2. Overflow and infinities.
    infinite: Any = layout.infinity if fmt.infinities else nan if fmt.has_nan else limit
    over = infinite
    if policy.overflow == "saturate" or mode in ("toward_zero", "to_odd"):
        over = limit
    elif mode == "toward_positive":
        over = where(negative, limit, infinite)
    elif mode == "toward_negative":
        over = where(negative, infinite, limit)
    if policy.infinity == "saturate":
        infinite = limit
    finite = a
    result = where(result > limit, over, result)
    if over is not infinite:
        result = where(a == layout.infinity, infinite, result)

    # 3. What the format lacks: zero, negative numbers, -0, NaN.
    if not fmt.zero:
        result = where(a == 0, nan if policy.zero == "nan" and fmt.has_nan else least, result)
    if isinstance(fmt, Format) and not fmt.signed and policy.negative != "magnitude":
        instead = nan if policy.negative == "nan" and fmt.has_nan else 0 if fmt.zero else least
        result = where(negative & (finite != 0), instead, result)
    if isinstance(fmt, Format) and not fmt.signed:
        pass
    elif fmt.has_negative_zero:
        result = result | sign
    else:
        result = where((result == 0) | (result > layout.infinity), result, result | sign)
    return where(a > layout.infinity, _nan(fmt, policy, negative, sign, layout, limit, a, ops), result), layout


def _round_at(a: Any, s: Any, negative: Any, job: Job, ops: Any, random: Any, implicit: int) -> Any:
    """`a` rounded to a multiple of 2^s as an integer; `implicit` is the significand's bit that patterns leave out.

    Where s reaches the implicit bit (the smallest binade, or a format without mantissa bits) the kept significand is 1:
    odd, so a tie goes up, as IEEE 754-2019 4.3.1 has it.
    """
    mode = job.mode
    if mode == "nearest_even":
        increment = ((1 << s) - 1 + (((a | implicit) >> s) & 1)) >> 1
    elif mode == "nearest_away":
        increment = (1 << s) >> 1
    elif mode == "toward_positive":
        increment = ops.where(negative, 0, (1 << s) - 1 + 0 * a)
    elif mode == "toward_negative":
        increment = ops.where(negative, (1 << s) - 1 + 0 * a, 0)
    elif mode == "to_odd":
        # 2^s - 1 more reaches the next multiple from any inexact value; only from an even significand may it.
        increment = ((1 << s) - 1) & ((((a | implicit) >> s) & 1) - 1)
    elif mode == "stochastic":
        # The dropped fraction, cut to n bits, plus the n random bits: their carry is the increment.
        n = job.random_bits
        fixed = isinstance(s, int)
        more = max(s - n, 0) if fixed else ops.where(s > n, s - n, 0)
        fewer = min(s, n) if fixed else ops.where(s > n, n, s)
        return (((a >> more) + (random >> (n - fewer))) >> fewer) << s
    else:
        increment = 0
    return ((a + increment) >> s) << s


class _PlainOps:
    """Python's own integers as a back end."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b


def round_integer(magnitude: int, drop: int, negative: bool, job: Job, random: int | None) -> int:
    """A Python integer's magnitude rounded to a multiple of 2^drop, whatever its size."""
    return int(_round_at(magnitude, drop, negative, job, _PlainOps, random, 0))


def _round_below_least(a: Any, least: int, negative: Any, layout: Layout, job: Job, ops: Any, random: Any) -> Any:
    """What a value between 0 and the smallest one becomes: 0 or the smallest."""
    mode = job.mode
    half = layout.pattern(1, job.fmt.least_parts[1] - 1)
    if mode == "nearest_even":
        up = a > half
    elif mode == "nearest_away":
        up = a >= half
    elif mode in ("toward_zero", "carried"):
        return 0
    elif mode == "stochastic":
        top, n = layout.mantissa_bits, job.random_bits
        exponent = ops.where(a < layout.implicit, 1, a >> top)
        significand = ops.where(a < layout.implicit, 0, layout.implicit) | (a & (layout.implicit - 1))
        drop = (
            (job.fmt.emin + layout.bias + top - job.fmt.mantissa_bits) - exponent - n
        )  # may be negative: then shift up
        drop = ops.where(drop > 62, 62, drop)
        right, left = ops.where(drop < 0, 0, drop), ops.where(drop < 0, 0 - drop, 0)
        up = (((significand >> right) << left) + random) >= (1 << n)
    elif mode == "to_odd":
        up = a > 0
    else:
        up = (a > 0) & (negative if mode == "toward_negative" else (negative == 0))
    return ops.where(up, least, 0 * a)


def _nan_pattern(fmt: AnyFormat, policy: Policy, layout: Layout) -> int:
    if policy.nan.startswith("all_ones") and isinstance(fmt, Format) and fmt.nan == "ieee":
        return layout.infinity | (((1 << fmt.mantissa_bits) - 1) << (layout.mantissa_bits - fmt.mantissa_bits))
    return layout.quiet_nan


def _nan(fmt: AnyFormat, policy: Policy, negative: Any, sign: Any, layout: Layout, limit: Any, a: Any, ops: Any) -> Any:
    """The pattern of what a NaN becomes."""
    if fmt.has_nan:
        pattern = _nan_pattern(fmt, policy, layout)
        return pattern | sign if policy.nan.endswith("signed") and fmt.has_negative_zero else pattern
    missing = policy.missing_nan or ("zero" if isinstance(fmt, IntFormat) else "max")
    if missing == "max":
        return layout.pattern(*fmt.max_parts)
    if missing == "opposite_zero" and fmt.has_negative_zero:
        return ops.where(negative, 0 * a, layout.sign)
    return 0 * a if fmt.zero else layout.pattern(*fmt.least_parts)


def _code(pattern: Any, layout: Layout, fmt: AnyFormat, ops: Any) -> Any:
    """The code of a pattern that is a value of the format."""
    m, top, where = fmt.mantissa_bits, layout.mantissa_bits, ops.where
    first = fmt.emin + layout.bias
    a = pattern & layout.magnitude
    negative = (pattern & layout.sign) != 0
    if first > 1 and fmt.zero:
        # A subnormal's significand stands at the top of the container's; move it to where the code has it.
        exponent = a >> top
        significand = (a & (layout.implicit - 1)) | where(exponent > 0, layout.implicit, 0 * a)
        drop = (first + top - m) - exponent
        drop = where(drop > top + 1, top + 1, where(drop < -1, -1, drop))
        code = (significand << 1) >> (drop + 1)  # -1: an integer format's min may have one bit more than the container
        if isinstance(fmt, Format):
            normal = (a >> (top - m)) - ((first - 1) << m)
            code = where(a < layout.pattern(1, fmt.emin), code, normal)
    else:
        code = (a >> (top - m)) - ((first - 1 + (not fmt.zero)) << m)
    if isinstance(fmt, IntFormat):
        return where(negative, 0 - code, code) & ((1 << fmt.bits) - 1)
    if fmt.infinities:
        code = where(a == layout.infinity, fmt.max_code + 1, code)
    if fmt.nan == "ieee":
        code = where(a > layout.infinity, ((a - layout.infinity) >> (top - m)) + (fmt.max_code + 1), code)
    elif fmt.has_nan:
        code = where(a > layout.infinity, fmt.quiet_nan_code, code)
    if not fmt.signed:
        return code
    # The sign bit of a code as wide as the integers that hold it is their own sign bit: a negative constant.
    signed = code | (fmt.sign_mask if fmt.bits < layout.width else -fmt.sign_mask)
    if fmt.nan == "negative_zero":
        return where(negative & (a <= layout.infinity), signed, code)
    return where(negative, signed, code)


def _neighbour(rounded: Any, on_grid: Any, job: Job, layout: Layout, ops: Any) -> Any:
    """The pattern of the next value above (or below) what was rounded up (or down): it, or one step more if `on_grid`.

    A step changes the lowest bit that rounding keeps; its carry walks into the exponent.
    """
    fmt, where, up = job.fmt, ops.where, job.kind == "next_up"
    a, least = rounded & layout.magnitude, layout.pattern(*fmt.least_parts)
    side = (rounded & layout.sign) != 0
    side = side & (a != 0) if up else side | (a == 0)  # whether the step is among negative numbers, -0 included
    limit: Any = layout.pattern(*fmt.max_parts)
    if isinstance(fmt, IntFormat):
        limit = where(side, layout.pattern(*fmt.min_parts) + 0 * a, limit)
    elif not fmt.signed and not up:
        limit = where(side, 0 * a, limit)
    top = layout.mantissa_bits
    first = fmt.emin + layout.bias

    def step(size: Any) -> Any:
        fixed = max(top - fmt.mantissa_bits, 0)
        if first <= 1:
            return 1 << fixed
        below = ((((first << top) | (layout.implicit - 1)) - size) >> top) + fixed
        return 1 << where(below < fixed, fixed, where(below > top, top, below))

    beyond = layout.infinity if fmt.infinities and (fmt.signed or up) else limit
    inside = where(a < limit, a, 0 * a)  # a step from a NaN could leave the integer
    outward = where(a >= limit, beyond, where(a == 0, least, inside + step(inside)))
    inward = where(a == least, 0 if fmt.zero else least, where(a == layout.infinity, limit, a - step(a - 1)))
    moved = where(side == (0 if up else 1), outward, inward)
    moved = where(side, moved | layout.sign, moved)
    if not fmt.has_negative_zero:
        moved = where((moved & layout.magnitude) == 0, 0, moved)
    return where(on_grid, moved, rounded)


def _spacing(pattern: Any, layout: Layout, fmt: AnyFormat, ops: Any) -> Any:
    """The pattern of the grid's spacing at a value: 2^(its exponent - mantissa_bits), that of subnormals at least."""
    top = layout.mantissa_bits
    if isinstance(fmt, IntFormat):
        return layout.pattern(1, 0) + 0 * pattern
    first = fmt.emin + layout.bias
    exponent = (pattern & layout.magnitude) >> top
    exponent = ops.where(exponent < first, first, exponent) - fmt.mantissa_bits
    subnormal = 1 << ops.where(exponent < 1, exponent - 1 + top, 0)
    return ops.where(exponent < 1, subnormal, exponent << top)


def decode(code: Any, fmt: AnyFormat, layout: Layout, ops: Any) -> Any:
    """The pattern in `layout`, which must hold the format, of an integer code."""
    if layout.bits == 16 or not aligned(layout, fmt):
        return _narrow(decode(ops.wide(code), fmt, FLOAT64, ops), layout, ops)
    m, top, where = fmt.mantissa_bits, layout.mantissa_bits, ops.where
    first = fmt.emin + layout.bias
    if isinstance(fmt, IntFormat):
        negative = (code & fmt.sign_mask) != 0
        a = where(negative, (1 << fmt.bits) - code, code)
        a = where(a == 0, 0, ops.float_pattern(a, layout))
        return where(negative, a | layout.sign, a)
    negative = (code & (fmt.sign_mask if fmt.bits < layout.width else -fmt.sign_mask)) != 0
    magnitude = code & ((1 << (fmt.exponent_bits + m)) - 1)
    a = (magnitude << (top - m)) + ((first - 1 + (not fmt.zero)) << top)
    if first > 1 and fmt.zero:
        scale = (fmt.emin - m) << top if fmt.emin >= m else -((m - fmt.emin) << top)
        subnormal = where(magnitude == 0, 0, ops.float_pattern(magnitude, layout) + scale)
        a = where(magnitude < (1 << m), subnormal, a)
    if fmt.infinities:
        a = where(magnitude == fmt.max_code + 1, layout.infinity, a)
    if fmt.nan == "ieee":
        a = where(magnitude > fmt.max_code + 1, ((magnitude - (fmt.max_code + 1)) << (top - m)) | layout.quiet_nan, a)
    elif fmt.nan == "all_ones":
        a = where(magnitude == (fmt.quiet_nan_code or 0), layout.quiet_nan, a)
    if not fmt.signed:
        return a
    a = where(negative, a | layout.sign, a)
    return where(code == fmt.sign_mask, layout.quiet_nan, a) if fmt.nan == "negative_zero" else a


def classify(code: Any, fmt: AnyFormat, ops: Any) -> Any:
    """The class of a code as an index into `codec.CLASSES`: zero, subnormal, normal, infinity, nan."""
    where = ops.where
    if isinstance(fmt, IntFormat):
        return where(code == 0, 0, 2)
    magnitude = code & ((1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1)
    kind = where(magnitude == 0, 0, where(magnitude < 1 << fmt.mantissa_bits, 1, 2)) if fmt.zero else 2
    kind = where(magnitude > fmt.max_code, 4, kind)
    if fmt.infinities:
        kind = where(magnitude == fmt.max_code + 1, 3, kind)
    return where(code == fmt.sign_mask, 4, kind) if fmt.nan == "negative_zero" else kind
