"""Where the tensors of a checkpoint are: in a file, an index of shards, or a folder.

`gather` reads headers only, and checks files against each other and against their index: a tensor has one place.
What a file holds is told by `_tensor_files`.

Source: the index that Hugging Face libraries write beside shards (a JSON object whose `weight_map` says which tensor is
in which file).

>>> import numpy as np, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     np.save(pathlib.Path(folder, "w.npy"), np.float16([1, 2]))
...     found = gather(pathlib.Path(folder))
>>> [(t.name, t.dtype, t.shape) for t in found.tensors.values()], found.faults
([('w', 'float16', (2,))], [])
"""

from __future__ import annotations

import collections
from pathlib import Path

from precision._tensor_files import InspectionError, Stored, json_object, tensors_in

__all__ = ["Found", "gather"]


class Found:
    """What `gather` found: tensors by name, remarks on what is odd, and faults, a line each."""

    def __init__(self) -> None:
        self.tensors: dict[str, Stored] = {}
        self.remarks: list[str] = []
        self.faults: list[str] = []

    def read(self, file: Path) -> bool:
        """Add the tensors of one file; whether that went without a fault."""
        before = len(self.faults)
        try:
            for stored in tensors_in(file, self.remarks):
                if stored.name in self.tensors:
                    self.faults.append(f"{file}: tensor {stored.name!r} is also in {self.tensors[stored.name].file}")
                self.tensors[stored.name] = stored
        except InspectionError as error:
            self.faults += error.faults
        return len(self.faults) == before


def _weight_map(file: Path) -> dict[str, str]:
    """Which tensor is in which shard; raises InspectionError where the file does not say so."""
    try:
        places = json_object(file.read_bytes()).get("weight_map")
    except OSError as error:
        raise InspectionError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InspectionError(f"{file}: no index of shards: {error}") from None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise InspectionError(f"{file}: no index of shards: its weight_map is to be an object of file names")
    return places


def _read_index(file: Path, found: Found) -> None:
    """Add the shards of an index, checked against it."""
    try:
        places = _weight_map(file)
    except InspectionError as error:
        found.faults += error.faults
        return
    whole: set[str] = set()
    for shard, tensors in collections.Counter(places.values()).items():
        if Path(shard).name != shard:
            found.faults.append(f"{file}: shard {shard!r} is not a plain file name")
        elif not (file.parent / shard).is_file():
            found.faults.append(f"{file}: shard {shard} is missing ({tensors} tensors)")
        elif found.read(file.parent / shard):
            whole.add(shard)
    for name, shard in places.items():
        stored = found.tensors.get(name)
        if shard in whole and (stored is None or stored.file.name != shard):
            where = "no shard has it" if stored is None else f"it is in {stored.file.name}"
            found.faults.append(f"{file}: tensor {name!r} should be in {shard}, but {where}")
    found.remarks += [
        f"{t.file}: tensor {t.name!r} is not in the index {file.name}"
        for t in found.tensors.values()
        if t.name not in places
    ]


def _indexes(folder: Path, found: Found) -> list[Path]:
    """The indexes of a folder: those whose names say so; else whatever is called *.index.json and is one."""
    every = sorted(folder.glob("*.index.json"))
    for kind in (".safetensors.", ".bin."):
        if named := [p for p in every if kind in p.name]:
            return named
    indexes = []
    for p in every:
        try:
            _weight_map(p)
            indexes.append(p)
        except InspectionError as error:
            found.remarks += [f"{fault}; not read" for fault in error.faults]
    return indexes


def _files(folder: Path) -> list[Path]:
    """The tensor files of a folder: safetensors if there are any, else the others."""
    for suffixes in ((".safetensors",), (".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt")):
        files = sorted(p for p in folder.iterdir() if p.suffix in suffixes and p.is_file())
        if files:
            return files
    return []


def gather(path: Path) -> Found:
    """The tensors of a file, an index of shards, or a folder (its index if it has one), from headers alone.

    Faults are collected, not raised. A tensor name must occur once.
    """
    found = Found()
    if path.is_file():
        if path.suffix == ".json":
            _read_index(path, found)
        else:
            found.read(path)
    elif not path.exists():
        found.faults.append(f"{path}: no such file or folder")
    elif not path.is_dir():
        found.faults.append(f"{path}: neither a file nor a folder, but a pipe or device: save what it gives to a file")
    else:
        indexes = _indexes(path, found)
        files = _files(path)
        if len(indexes) > 1:
            found.faults.append(f"{path}: has {len(indexes)} indexes; give one of {', '.join(p.name for p in indexes)}")
        elif indexes:
            _read_index(indexes[0], found)
            read = {t.file for t in found.tensors.values()}
            if not found.faults:
                found.remarks += [
                    f"{p}: not read, it is not in the index {indexes[0].name}" for p in files if p not in read
                ]
        elif not files:
            found.faults.append(f"{path}: no .safetensors, .npy, .npz, .pt, .pth, .bin or .ckpt file in this folder")
        for file in [] if indexes else files:
            found.read(file)
    if not found.tensors and not found.faults:
        found.faults.append(f"{path}: holds no tensor")
    return found
