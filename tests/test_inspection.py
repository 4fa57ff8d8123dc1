"""`inspect` on files built by hand: what it reads, what it refuses, what it says; and on one real checkpoint."""

from __future__ import annotations

import collections
import importlib.util
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import precision as P
from precision.histogram import Figures, Wanted
from precision.inspection import DEFAULT, Inspection, InspectionError, TensorReport, inspect, rows

BF16 = np.dtype(ml_dtypes.bfloat16)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_raw(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write(path: Path, **tensors: tuple[str, list[int], bytes]) -> Path:
    """A safetensors file of (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = entry(dtype, shape, len(data), len(data) + len(raw))
        data += raw
    return write_raw(path, header, data)


def bf16(*values: float) -> tuple[str, list[int], bytes]:
    return "BF16", [len(values)], np.float32(values).astype(BF16).tobytes()


def by_name(found: Inspection) -> dict[str, TensorReport]:
    return {t.name: t for t in found.tensors}


# --- what is read -----------------------------------------------------------------------------------------------------


def test_every_dtype_of_safetensors_is_read_and_unknown_ones_are_listed(tmp_path):
    floats = {
        "F64": np.float64([1.5, -np.inf]),
        "F32": np.float32([1.5, np.nan]),
        "F16": np.float16([1.5, 0]),
        "BF16": np.float32([1.5, -2]).astype(BF16),
        "F8_E5M2": np.float32([1.5, 57344]).astype(ml_dtypes.float8_e5m2),
        "F8_E4M3": np.float32([1.5, 448]).astype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2FNUZ": np.float32([1.5, 1]).astype(ml_dtypes.float8_e5m2fnuz),
        "F8_E4M3FNUZ": np.float32([1.5, np.nan]).astype(ml_dtypes.float8_e4m3fnuz),
        "F8_E8M0": np.uint8([127, 255]),
    }
    tensors = {name: (name, [2], x.tobytes()) for name, x in floats.items()}
    tensors["F6_E3M2"] = ("F6_E3M2", [2, 2], P.pack(P.encode(np.float32([28, 0, 1, -1]), "e3m2"), "e3m2").tobytes())
    tensors["F6_E2M3"] = ("F6_E2M3", [4], P.pack(P.encode(np.float32([7.5, 0, 1, -1]), "e2m3"), "e2m3").tobytes())
    tensors["F4"] = ("F4", [2, 2], P.pack(P.encode(np.float32([6, 0, 0.5, -0.0]), "e2m1"), "e2m1").tobytes())
    for name in ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"):
        tensors[name] = (name, [1], bytes(1 if name == "BOOL" else int(name[1:]) // 8))
    tensors["C64"] = ("C64", [1], bytes(8))
    tensors["odd"] = ("NEW_7", [5], bytes(13))
    tensors["scalar"] = ("F32", [], np.float32(3).tobytes())
    tensors["empty"] = ("F32", [3, 0], b"")
    found = by_name(inspect(write(tmp_path / "all.safetensors", **tensors)))
    assert len(found) == len(tensors)
    assert {n for n, t in found.items() if t.remark} == {"C64", "odd"}
    assert found["odd"].remark == "not inspected: dtype NEW_7"
    assert {n for n, t in found.items() if not t.inspected and not t.remark} == {
        *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"),
    }
    largest = {"F64": 1.5, "F32": 1.5, "F16": 1.5, "BF16": 2, "F8_E5M2": 57344, "F8_E4M3": 448, "F8_E5M2FNUZ": 1.5}
    largest |= {"F8_E4M3FNUZ": 1.5, "F8_E8M0": 1, "F6_E3M2": 28, "F6_E2M3": 7.5, "F4": 6, "scalar": 3, "empty": 0}
    assert {n: t.amax for n, t in found.items() if t.inspected} == largest
    assert {n for n, t in found.items() if t.nan} == {"F32", "F8_E4M3FNUZ", "F8_E8M0"}
    assert {n for n, t in found.items() if t.infinite} == {"F64"}
    assert (found["F4"].size, found["F4"].nbytes, found["F4"].values, found["F4"].zeros) == (4, 2, 2, 2)
    assert (found["F6_E3M2"].size, found["F6_E3M2"].nbytes, found["F6_E3M2"].zeros) == (4, 3, 1)
    assert (found["empty"].size, found["scalar"].size, found["scalar"].shape) == (0, 1, ())
    assert not found["F8_E8M0"].figures  # scales are counted, not rounded


def test_files_of_the_safetensors_library_are_read(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    x = {"a": torch.randn(5, 3).bfloat16(), "b": torch.randn(7).to(torch.float8_e4m3fn), "c": torch.arange(3)}
    save_file(x, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = by_name(inspect(tmp_path))
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
        "a": ("BF16", (5, 3)),
        "b": ("F8_E4M3", (7,)),
        "c": ("I64", (3,)),
    }
    assert found["a"].amax == x["a"].abs().max().item()


def test_sharded_folder_index_and_shards_give_the_same(tmp_path):
    write(tmp_path / "m-1.safetensors", a=bf16(1, 2), b=bf16(3))
    write(tmp_path / "m-2.safetensors", c=bf16(1e-9, 70000))
    index = tmp_path / "m.safetensors.index.json"
    places = {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for path in (tmp_path, index, [tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors"]):
        found = inspect(path, check=["float16"])
        assert [t.name for t in found.tensors] == ["a", "b", "c"]
        assert [t.name for t in found.overflowing("float16")] == ["c"]
    write(tmp_path / "other.safetensors", d=bf16(1))
    assert inspect(tmp_path).remarks == (
        f"{tmp_path / 'other.safetensors'}: not read, it is not in the index {index.name}",
    )
    index.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "c": "m-2.safetensors"}}))
    assert any("'b' is not in the index" in remark for remark in inspect(index).remarks)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f2", ">f4", ">f8"])
def test_npy_of_any_order_shape_and_byte_order(tmp_path, dtype):
    x = np.linspace(-3, 60000, 24).reshape(2, 3, 4).astype(dtype)
    for i, array in enumerate((x, np.asfortranarray(x), x[0, 0, 1:2].reshape(()), x[:0])):
        np.save(tmp_path / f"x{i}.npy", array)
    found = by_name(inspect(tmp_path, fast=True))
    assert [t.shape for t in found.values()] == [(2, 3, 4), (2, 3, 4), (), (0, 3, 4)]
    assert found["x0"].amax == found["x1"].amax == np.abs(x).max()
    assert found["x0"].dtype == np.dtype(dtype).name


def test_npz_compressed_or_not(tmp_path):
    arrays = {"w": np.float32([1, -2, np.inf]), "n": np.arange(4), "z": np.array([1j]), "h": np.float16([[0.5]])}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    plain, packed = (by_name(inspect(tmp_path / f"{name}.npz")) for name in ("plain", "packed"))
    assert plain.keys() == packed.keys() == arrays.keys()
    assert [t.figures for t in plain.values()] == [t.figures for t in packed.values()]
    assert (plain["w"].amax, plain["w"].infinite, plain["h"].shape) == (2, 1, (1, 1))
    assert (plain["n"].remark, plain["z"].remark) == ("", "not inspected: dtype complex128")


def test_torch_state_dicts_in_any_nesting_and_layout(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tree = {
        "model": collections.OrderedDict(w=base.t(), part=base[1:, ::2], row=base[2], wide=torch.ones(1).expand(1000)),
        "parameter": torch.nn.Parameter(torch.tensor([1.0, -7.0]).bfloat16()),
        "list": [torch.tensor([448.0]).to(torch.float8_e4m3fn), {"deep": torch.tensor(2.5, dtype=torch.float64)}],
        "half": torch.tensor([70000.0]).half(),
        "step": 3,
        "note": "text",
        "ids": torch.arange(3),
        "small": torch.zeros(2, dtype=torch.uint16),
        "sparse": torch.eye(3).to_sparse(),
        "empty": torch.empty(0, 4),
        "fp4": torch.tensor([[0x7, 0x21]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "scales": torch.tensor([127], dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "complex": torch.ones(1, dtype=torch.complex64),
    }
    torch.save(tree, tmp_path / "x.pt")
    found = by_name(inspect(tmp_path / "x.pt"))
    names = [
        "model.w",
        "model.part",
        "model.row",
        "model.wide",
        "parameter",
        "list.0",
        "list.1.deep",
        "half",
        "ids",
        "small",
    ]
    assert list(found) == [*names, "sparse", "empty", "fp4", "scales", "complex"]
    assert (found["model.w"].size, found["model.w"].amax, found["model.w"].zeros) == (24, 23, 1)
    assert (found["model.part"].size, found["model.part"].amax, found["model.part"].shape) == (9, 22, (3, 3))
    figures = found["model.part"].figures[Wanted(P.bfloat16, False)]
    assert figures.signal == int((base[1:, ::2] ** 2).sum())
    assert (found["model.row"].amax, found["model.wide"].size, found["model.wide"].values) == (17, 1000, 1000)
    assert (found["parameter"].dtype, found["parameter"].amax) == ("bfloat16", 7)
    assert (found["list.0"].amax, found["list.1.deep"].amax, found["half"].infinite) == (448, 2.5, 1)
    assert (found["fp4"].shape, found["fp4"].size, found["fp4"].amax, found["fp4"].zeros) == ((1, 4), 4, 6, 1)
    assert {n for n, t in found.items() if t.remark} == {"sparse", "complex"}
    assert (found["ids"].nbytes, found["empty"].size, found["scales"].amax) == (24, 0, 1)


def test_torch_files_are_read_without_torch_and_in_little_memory(tmp_path):
    torch.save({"w": torch.ones(1 << 26, dtype=torch.bfloat16)}, tmp_path / "x.pt")
    code = (
        "import pathlib, sys, precision as P; r = P.inspection.inspect(sys.argv[1]);"
        "print('torch' in sys.modules, 'rich' in sys.modules, r.tensors[0].values);"
        "print(pathlib.Path('/proc/self/status').read_text() if sys.platform == 'linux' else 'VmHWM: 0 kB')"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "x.pt"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"False False {1 << 26}\n")
    peak = re.search(r"VmHWM:\s+(\d+) kB", run.stdout)
    assert peak
    assert int(peak[1]) < 100_000


def test_torch_files_of_the_old_format_are_read_with_a_remark(tmp_path):
    tree = {"w": torch.tensor([1.0, 3.0]).bfloat16(), "n": torch.arange(2), "t": torch.ones(2, 3).t()}
    torch.save(tree, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    found = inspect(tmp_path / "old.pt")
    assert {n: (t.dtype, t.shape, t.amax) for n, t in by_name(found).items()} == {
        "w": ("bfloat16", (2,), 3),
        "n": ("int64", (2,), 0),
        "t": ("float32", (3, 2), 1),
    }
    assert "of torch < 1.6" in found.remarks[0]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_memory_does_not_grow_with_the_file(tmp_path, dtype):
    size = 64 << 20
    chunk = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    chunk = chunk.astype(BF16) if dtype == "BF16" else chunk
    path = tmp_path / "big.safetensors"
    header = json.dumps({"w": entry(dtype, [size // chunk.itemsize], 0, size)}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(size // chunk.nbytes):
            file.write(chunk.tobytes())
    inspect(path, fast=True)  # tables and caches
    tracemalloc.start()
    found = inspect(path, fast=dtype == "F32")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tensors[0].size == size // chunk.itemsize
    assert peak < 12 << 20


def test_structure_is_checked_before_any_data(tmp_path):
    size = 1 << 40  # 1 TB that is not there: a sparse file
    for shard in ("a", "b"):
        path = write_raw(tmp_path / f"{shard}.safetensors", {shard: entry("BF16", [size // 2], 0, size)}, b"")
        try:
            os.truncate(path, path.stat().st_size + size)
        except OSError:
            pytest.skip("this file system has no sparse files of 1 TB")
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors", "lost": "b.safetensors"}}
    (tmp_path / "x.index.json").write_text(json.dumps(index))
    with pytest.raises(InspectionError, match=r"tensor 'lost' should be in b\.safetensors, but no shard has it"):
        inspect(tmp_path)


# --- what is refused --------------------------------------------------------------------------------------------------

GOOD = {"a": entry("BF16", [2], 0, 4), "b": entry("F32", [1], 4, 8)}


def sharded(weight_map: dict[str, str] | object, **shards: bytes | None):
    def build(folder: Path) -> Path:
        for name, cut in shards.items():
            path = write(folder / f"{name}.safetensors", **{name: bf16(1, 2), name * 2: bf16(3)})
            if cut is not None:
                path.write_bytes(path.read_bytes()[: -len(cut)])
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    return build


def tensors(header: object, data: bytes = bytes(8)):
    return lambda folder: write_raw(folder / "x.safetensors", header, data)


def plain(name: str, data: bytes):
    def build(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return build


def numpy_file(cut: int = 0, extra: bytes = b"", array: np.ndarray | None = None):
    def build(folder: Path) -> Path:
        np.save(folder / "x.npy", np.float32([1, 2]) if array is None else array, allow_pickle=True)
        data = (folder / "x.npy").read_bytes()
        (folder / "x.npy").write_bytes(data[: len(data) - cut] + extra)
        return folder / "x.npy"

    return build


def npz_of_objects(folder: Path) -> Path:
    np.savez(folder / "x.npz", o=np.array([{}]), p=np.zeros(2, [("x", "f4"), ("y", "O")]))
    return folder / "x.npz"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.npy")
    return folder / "pipe.npy"


def npz_damaged(folder: Path) -> Path:
    np.savez(folder / "x.npz", w=np.ones(1000))
    data = bytearray((folder / "x.npz").read_bytes())
    data[2000] ^= 255
    (folder / "x.npz").write_bytes(data)
    return folder / "x.npz"


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["INSPECTION_BOMB"],)


def torch_file(tree: object, old: bool = False, cut: int = 0):
    def build(folder: Path) -> Path:
        torch.save(tree, folder / "x.pt", _use_new_zipfile_serialization=not old)
        data = (folder / "x.pt").read_bytes()
        (folder / "x.pt").write_bytes(data[: len(data) - cut])
        return folder / "x.pt"

    return build


def torch_edited(edit: str):
    def build(folder: Path) -> Path:
        torch.save({"w": torch.ones(100)}, folder / "y.pt")
        with zipfile.ZipFile(folder / "y.pt") as source, zipfile.ZipFile(folder / "x.pt", "w") as target:
            for info in source.infolist():
                data = source.read(info)
                if info.filename.endswith("data/0"):
                    if edit == "missing":
                        continue
                    data = data[:-4] if edit == "short" else data
                if info.filename.endswith("data.pkl") and edit == "pickle":
                    data = data[:40]
                if info.filename.endswith("data.pkl") and edit == "nonsense":
                    data = data.replace(b"K\x00", b"]", 1)  # a list where the offset was
                kind = zipfile.ZIP_DEFLATED if edit == "compressed" else zipfile.ZIP_STORED
                target.writestr(info.filename, data, kind)
        return folder / "x.pt"

    return build


def torchscript(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "x.pt", "w") as archive:
        for name in ("x/data.pkl", "x/code/__torch__.py", "x/constants.pkl"):
            archive.writestr(name, b"\x80\x02}.")
    return folder / "x.pt"


def zip_of_text(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    return folder / "x.zip"


FAULTS = {
    "pipe": (pipe, "pipe.npy: neither a file nor a folder, but a pipe or device: save what it gives to a file"),
    "device": (lambda folder: Path(os.devnull), f"{os.devnull}: neither a file nor a folder, but a pipe or device"),
    "missing": (lambda folder: folder / "none.safetensors", "none.safetensors: no such file or folder"),
    "empty_folder": (
        lambda folder: folder,
        "no .safetensors, .npy, .npz, .pt, .pth, .bin or .ckpt file in this folder",
    ),
    "empty_file": (plain("x.safetensors", b""), "is empty (0 bytes)"),
    "text": (
        plain("x.txt", b"hello, this is no tensor"),
        "no tensor file: safetensors, .npy, .npz and torch .pt/.pth are",
    ),
    "not_safetensors": (plain("x.safetensors", b"hello, this is no tensor"), "no plausible length|does not begin with"),
    "short": (plain("x.safetensors", b"\x01\x00"), "does not begin with a plausible length"),
    "git_lfs": (plain("x.safetensors", b"version https://git-lfs.github.com/spec/v1\noid"), "is a Git LFS pointer"),
    "gguf": (plain("x.gguf", b"GGUF\x03\x00\x00\x00"), "a GGUF file, which is not read"),
    "header_truncated": (
        plain("x.safetensors", (999).to_bytes(8, "little") + b"{"),
        "truncated: a header of 999 bytes",
    ),
    "header_json": (tensors(b'{"a": '), "header is broken: no JSON at line 1, column 7: Expecting value"),
    "header_list": (tensors([1, 2]), "header is broken: a JSON object is needed, not a list"),
    "header_latin": (tensors(b'{"\xff": 1}'), "header is broken: byte 2 is no UTF-8 text"),
    "header_entry": (
        tensors({"a": {"dtype": "F32"}}),
        "tensor 'a': the header has no valid dtype, shape and data_offsets",
    ),
    "header_shape": (tensors({"a": entry("F32", [-2], 0, 8)}), "tensor 'a': the header has no valid"),
    "header_order": (tensors({"a": entry("F32", [2], 8, 0)}), "tensor 'a': the header has no valid"),
    "name_twice": (tensors(b'{"a": 1, "a": 2}'), "the name 'a' occurs 2 times"),
    "shape_and_bytes": (
        tensors({"a": entry("BF16", [4], 0, 6)}, bytes(6)),
        r"tensor 'a': BF16 \[4\] takes 8 bytes, its data_offsets hold 6",
    ),
    "half_a_byte": (tensors({"a": entry("F4", [3], 0, 2)}, bytes(2)), r"tensor 'a': F4 \[3\] takes 1.5 bytes"),
    "overlap": (
        tensors({"a": entry("BF16", [3], 0, 6), "b": entry("F32", [1], 4, 8)}),
        "tensor 'b' overlaps tensor 'a' by 2 bytes",
    ),
    "gap": (
        tensors({"a": entry("BF16", [1], 0, 2), "b": entry("F32", [1], 4, 8)}),
        "2 bytes between tensor 'a' and tensor 'b' belong to no tensor",
    ),
    "gap_first": (tensors({"b": entry("F32", [1], 4, 8)}), "4 bytes between the header and tensor 'b'"),
    "trailing": (tensors(GOOD, bytes(11)), "3 trailing bytes after tensor 'b' belong to no tensor"),
    "truncated": (tensors(GOOD, bytes(6)), "truncated: 2 of 8 data bytes are missing, from tensor 'b' on"),
    "no_tensor": (tensors({"__metadata__": {"x": "y"}}, b""), "x.safetensors: holds no tensor"),
    "shard_missing": (
        sharded({"a": "a.safetensors", "aa": "a.safetensors", "b": "b.safetensors"}, a=None),
        r"index.json: shard b.safetensors is missing \(1 tensors\)",
    ),
    "shard_lacks": (
        sharded({"a": "a.safetensors", "aa": "a.safetensors", "c": "a.safetensors"}, a=None),
        "index.json: tensor 'c' should be in a.safetensors, but no shard has it",
    ),
    "shard_other": (
        sharded(
            {"a": "b.safetensors", "aa": "a.safetensors", "b": "b.safetensors", "bb": "b.safetensors"}, a=None, b=None
        ),
        "tensor 'a' should be in b.safetensors, but it is in a.safetensors",
    ),
    "shard_short": (
        sharded({"a": "a.safetensors", "aa": "a.safetensors"}, a=b"12"),
        "a.safetensors: truncated: 2 of 6 data bytes are missing, from tensor 'aa' on",
    ),
    "shard_path": (sharded({"a": "../a.safetensors"}), "shard '../a.safetensors' is not a plain file name"),
    "index_no_map": (sharded([1]), "no index of shards: its weight_map is to be an object of file names"),
    "index_of_numbers": (sharded({"a": 1}), "no index of shards: its weight_map is to be an object of file names"),
    "index_not_json": (plain("x.index.json", b"{"), "x.index.json: no index of shards: no JSON at line 1, column 2"),
    "npy_truncated": (numpy_file(cut=3), r"x.npy: truncated: 3 of 8 bytes are missing \(float32, shape \(2,\)\)"),
    "npy_trailing": (numpy_file(extra=b"123"), "3 trailing bytes after an array of 8 bytes"),
    "npy_header": (plain("x.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr': 1"), "x.npy: the .npy header is broken"),
    "npy_version": (plain("x.npy", b"\x93NUMPY\x09\x00\x76\x00{'descr': 1"), r"version \(9, 0\) is not read"),
    "npy_objects": (numpy_file(array=np.array([{}])), "x.npy: refused: holds pickled Python objects"),
    "npz_objects": (npz_of_objects, "x.npz: refused: holds pickled Python objects"),
    "npz_damaged": (npz_damaged, "x.npz: w.npy is damaged: Bad CRC-32"),
    "torch_truncated": (
        torch_file({"w": torch.ones(99)}, cut=200),
        "x.pt: truncated or broken: File is not a zip file",
    ),
    "torch_objects": (
        torch_file({"w": Bomb()}),
        r"x.pt: refused: the pickle needs (os|posix|nt)\.mkdir.*nothing in it was run",
    ),
    "torch_old_objects": (
        torch_file({"w": Bomb()}, old=True),
        "x.pt: refused: it holds more than tensors .* nothing was run",
    ),
    "torch_old_truncated": (torch_file({"w": torch.ones(99)}, old=True, cut=50), "x.pt: (truncated or broken|refused)"),
    "torch_script": (torchscript, "x.pt: refused: a TorchScript archive"),
    "torch_no_tensor": (torch_file({"epoch": 3}), "x.pt: holds no tensor"),
    "torch_storage_missing": (torch_edited("missing"), "tensor 'w': its storage data/0 is missing"),
    "torch_storage_short": (torch_edited("short"), "tensor 'w' reaches byte 400 of data/0, which has 396"),
    "torch_compressed": (torch_edited("compressed"), "tensor 'w': its storage data/0 is compressed"),
    "torch_pickle": (torch_edited("pickle"), "data.pkl is broken"),
    "torch_nonsense": (torch_edited("nonsense"), "x.pt: "),
    "zip": (zip_of_text, "x.zip: a zip file, but neither .npz nor of torch.save"),
    "pickle": (plain("x.pkl", pickle.dumps({"w": [1.0]})), "x.pkl: refused: a pickle, which is a program"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_that_names_the_file(tmp_path, monkeypatch, fault):
    monkeypatch.setenv("INSPECTION_BOMB", str(tmp_path / "exploded"))
    build, message = FAULTS[fault]
    path = build(tmp_path)
    with pytest.raises(InspectionError) as caught:
        inspect(path)
    assert not (tmp_path / "exploded").exists()
    (line,) = caught.value.faults
    assert str(caught.value) == line
    assert "\n" not in line
    assert str(path) in line
    assert re.search(message if "\\" in message or "|" in message or ".*" in message else re.escape(message), line), (
        line
    )


def test_a_stray_index_hides_no_tensors(tmp_path):
    """Whatever is called *.index.json: only an index of shards is one, unless its name says that it should be."""
    np.save(tmp_path / "w.npy", np.float32([70000]))
    for content in ("", "[]", '{"hello": 1}'):
        (tmp_path / "faiss.index.json").write_text(content)
        found = inspect(tmp_path, check=["float16"])
        assert [t.name for t in found.overflowing("float16")] == ["w"]
        (note,) = found.notes()
        assert note.startswith(f"{tmp_path / 'faiss.index.json'}: no index of shards: ")
        assert note.endswith("; not read")
    (tmp_path / "model.safetensors.index.json").write_text("")
    with pytest.raises(InspectionError, match=r"model\.safetensors\.index\.json: no index of shards"):
        inspect(tmp_path)


def test_pickled_members_are_named_and_the_others_judged(tmp_path):
    np.savez(tmp_path / "x.npz", o=np.array([{}]), w=np.float32([70000]), s=np.array(["text"]))
    found = inspect(tmp_path / "x.npz", check=["float16"])
    assert found.exit_status == 1
    assert found.notes() == [
        "o: not inspected: pickled Python objects, never loaded",
        "s: not inspected: dtype str128",
    ]


@pytest.mark.parametrize("name", ["x.pt", "old.pt", "x.safetensors", "x.npy", "x.npz", "packed.npz"])
def test_damaged_bytes_are_an_inspection_error_or_other_numbers(tmp_path, name):
    w = {"w": torch.ones(20).bfloat16(), "m": [torch.arange(6.0).reshape(2, 3).t()]}
    arrays = {"x": np.ones(5), "y": np.float16([1, 2])}
    {
        "x.pt": lambda: torch.save(w, tmp_path / name),
        "old.pt": lambda: torch.save(w, tmp_path / name, _use_new_zipfile_serialization=False),
        "x.safetensors": lambda: write(tmp_path / name, a=bf16(1, 2), b=("F32", [1], bytes(4))),
        "x.npy": lambda: np.save(tmp_path / name, np.ones((3, 4))),
        "x.npz": lambda: np.savez(tmp_path / name, **arrays),
        "packed.npz": lambda: np.savez_compressed(tmp_path / name, **arrays),
    }[name]()
    good = (tmp_path / name).read_bytes()
    rng = random.Random(0)
    faults: list[str] = []
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        (tmp_path / name).write_bytes(bad)
        try:
            json.dumps(inspect(tmp_path / name).as_dict(), allow_nan=False)
        except InspectionError as error:
            faults += error.faults
    assert len(faults) > 20
    assert all("\n" not in fault and name in fault for fault in faults)


def test_all_faults_of_all_paths_are_told_at_once(tmp_path):
    write_raw(tmp_path / "a.safetensors", {"a": entry("BF16", [3], 0, 6), "b": entry("F32", [1], 4, 8)}, bytes(9))
    with pytest.raises(InspectionError) as caught:
        inspect([tmp_path / "a.safetensors", tmp_path / "none.npz"])
    assert len(caught.value.faults) == 3
    with pytest.raises(InspectionError, match="no path given"):
        inspect([])


def test_a_name_in_two_files_of_a_folder_is_a_fault(tmp_path):
    write(tmp_path / "a.safetensors", w=bf16(1))
    write(tmp_path / "b.safetensors", w=bf16(2))
    with pytest.raises(InspectionError, match=r"b.safetensors: tensor 'w' is also in .*a.safetensors"):
        inspect(tmp_path)
    assert len(inspect([tmp_path / "a.safetensors", tmp_path / "b.safetensors"]).tensors) == 2


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path):
    path = write(tmp_path / "a.safetensors", w=("F32", [1000], bytes(4000)), x=("F32", [1000], bytes(4000)))

    def shrink(done: int, total: int, name: str) -> None:
        os.truncate(path, path.stat().st_size - 100)

    with pytest.raises(InspectionError, match="'x': ended 100 bytes early; it has changed"):
        inspect(path, progress=shrink, fast=True)


# --- what is said -----------------------------------------------------------------------------------------------------


def test_rows_are_what_makes_sense_for_a_format():
    def labels(*args, **kwargs):
        return [(str(fmt), scaled) for fmt, scaled in rows(*args, **kwargs)]

    both = [("float16", False), ("float16", True)]
    assert labels("float16") == labels(["float16"]) == labels(["half", P.float16]) == both
    assert labels(["bfloat16", "int8", "e2m1"]) == [("bfloat16", False), ("int8", True), ("float4_e2m1fn", True)]
    assert labels([], ["int8"]) == [("int8", False), ("int8", True)]
    assert {name for name, _ in labels()} == set(DEFAULT)
    floats = [f for f in P.formats() if isinstance(f, P.Format) and f.bits <= 16 and f.signed]
    assert {name for name, _ in labels("all")} == {f.name for f in floats}
    my7 = P.Format(name="my7", exponent_bits=3, mantissa_bits=3, bias=3, infinities=False, nan="none")
    assert labels([my7]) == [("my7", True)]


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["float9"], "unknown format 'float9'"),
        (["float8_e8m0fnu"], "float8_e8m0fnu is unsigned"),
        (["uint8"], "uint8 is unsigned"),
        (["float64"], "float64 has 64 bits"),
    ],
    ids=["unknown", "scales", "unsigned", "wide"],
)
def test_formats_that_weights_cannot_be_judged_in_are_refused(tmp_path, formats, message):
    path = write(tmp_path / "a.safetensors", w=bf16(1))
    with pytest.raises(ValueError, match=message):
        inspect(path, formats=formats)
    with pytest.raises(ValueError, match=message):
        inspect(path, check=formats)


def test_the_exit_status_is_one_only_where_a_checked_format_overflows(tmp_path):
    path = write(tmp_path / "a.safetensors", w=bf16(70000, 1), v=bf16(200))
    assert inspect(path).exit_status == 0
    assert inspect(path, check="float16").exit_status == 1
    assert inspect(path, check=["bfloat16"]).exit_status == 0
    found = inspect(path, formats=["bfloat16"], check=["int8", "float8_e4m3fn"])
    assert [t.name for t in found.overflowing("int8")] == ["w", "v"]
    assert [t.name for t in found.overflowing("float8_e4m3fn")] == ["w"]
    with pytest.raises(ValueError, match="float16 was not judged unscaled"):
        found.overflowing("float16")
    text = str(inspect(path, check="float16"))
    assert "w  1 of 2 clipped, 70144 > 65504" in text


def test_what_rounds_to_the_largest_value_does_not_overflow(tmp_path):
    np.save(tmp_path / "w.npy", np.float32([65519.996]))
    assert inspect(tmp_path, check="float16").exit_status == 0
    np.save(tmp_path / "w.npy", np.float32([65520]))
    assert inspect(tmp_path, check="float16").exit_status == 1
    np.save(tmp_path / "w.npy", np.float32([np.inf]))  # not finite: counted, but not an overflow
    found = inspect(tmp_path, check="float16")
    assert (found.exit_status, found.tensors[0].infinite) == (0, 1)
    assert "w: 0 NaN, 1 Inf of 1" in str(found)


def test_totals_bytes_and_ranking(tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    x[1] *= 1e-4  # mostly below what E4M3 holds
    x[2, 0] = 1000  # clips
    np.savez(
        tmp_path / "x.npz", fine=x[0], small=x[1], large=x[2], zero=np.zeros(10, np.float32), one=np.ones(1, np.float32)
    )
    found = inspect(tmp_path)
    row, scaled = Wanted(P.float8_e4m3fn, False), Wanted(P.float8_e4m3fn, True)
    assert [t.name for t in found.ranking(row)] == ["large", "small", "fine", "one", "zero"]
    assert found.nbytes(row) == 3011
    assert found.nbytes(scaled) == 3011 + 5 * 4
    assert found.nbytes(Wanted(P.float4_e2m1fn, True)) == 500 * 3 + 5 + 1 + 5 * 4
    assert found.totals[row] == sum((t.figures[row] for t in found.tensors), Figures())
    assert [by_name(found)[n].figures[row].sqnr for n in ("zero", "one")] == ["all zero", "exact"]
    advice = "\n".join(found.advice())
    assert "float8_e4m3fn: overflow in 1 tensor, first large  1 of 1000 clipped, 1000 > 448: use a scale" in advice
    assert re.search(r"float8_e4m3fn: \d+ % of the values become zero in 1 tensor .*, first small: use a scale", advice)
    text = str(found)
    assert "5 float tensors   3011 values   float32 12.0 kB   finite" in text
    assert "tensor scale: absmax, float32 scale" in text
    assert len(found.tables(3)) == 2
    assert [cells[-1] for cells in found.tables(3)[1].rows if cells[0] == "float8_e4m3fn"] == ["large", "small", "fine"]


def test_minus_zero_and_the_shares_of_a_bfloat16_file(tmp_path):
    path = write(tmp_path / "a.safetensors", w=bf16(-1e-9, 1e-9, 0, -0.0, 1))
    (t,) = inspect(path).tensors
    f = t.figures[Wanted(P.float8_e4m3fn, False)]
    assert (t.values, t.zeros, f.to_zero) == (3, 2, 2)
    assert f.to_zero_share == pytest.approx(2 / 3)


def test_one_small_block_and_an_outlier_are_not_hidden_by_a_good_total(tmp_path):
    x = np.full(1000, 1e-3, np.float32)
    x[0] = 1e4
    np.savez(tmp_path / "x.npz", x=x, y=np.ones(1000, np.float32))
    found = inspect(tmp_path, formats=["float8_e4m3fn"])
    scaled = Wanted(P.float8_e4m3fn, True)
    assert found.totals[scaled].sqnr_db > 60
    assert found.ranking(scaled)[0].figures[scaled].to_zero == 999


def test_json_and_csv_hold_every_figure(tmp_path):
    write(
        tmp_path / "a.safetensors",
        w=bf16(70000, 1, float("nan")),
        z=bf16(0),
        n=("I64", [1], bytes(8)),
        o=("X", [1], b""),
    )
    found = inspect(tmp_path, check=["float16"])
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (data["tensors"], data["inspected"], data["values"], data["nan"], data["zeros"]) == (4, 2, 2, 1, 1)
    assert (data["checked"], data["overflows"]) == (["float16"], {"float16": ["w"]})
    half = next(f for f in data["formats"] if f["format"] == "float16" and not f["scaled"])
    assert (half["clipped"], half["overflowing_tensors"], half["worst"]["name"], half["nbytes"]) == (1, 1, "w", 8)
    assert half["clipped_share"] == 0.5
    w, z = data["per_tensor"][:2]
    assert (w["amax"], w["shape"], w["nan"], len(w["formats"])) == (70144, [3], 1, len(found.rows))
    assert z["formats"][0]["sqnr"] == "all zero"
    assert z["formats"][0]["sqnr_db"] is None
    lines = list(found.csv_rows())
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 1 + 2 * len(found.rows) + 2
    cell = dict(zip(lines[0], lines[2], strict=True))
    assert (cell["name"], cell["format"], cell["clipped"], cell["shape"]) == ("w", "float16", 1, "3")
    assert any("o: not inspected: dtype X" in note for note in data["notes"])


def test_progress_ends_at_the_total(tmp_path):
    write(tmp_path / "a.safetensors", w=bf16(1, 2), x=("F32", [300000], bytes(1200000)), n=("I64", [1], bytes(8)))
    seen: list[tuple[int, int, str]] = []
    inspect(tmp_path, progress=lambda *args: seen.append(args))
    assert [s[0] for s in seen] == sorted(s[0] for s in seen)
    assert seen[-1] == (2400004, 2400004, "x")
    assert {s[2] for s in seen} == {"w", "x"}


def test_fast_leaves_out_the_sqnr_of_wide_sources_only(tmp_path):
    write(tmp_path / "a.safetensors", w=("F32", [2], np.float32([70000, 1e-9]).tobytes()), h=bf16(1, 1.01))
    exact, fast = inspect(tmp_path), inspect(tmp_path, fast=True)
    for a, b in zip(exact.tensors, fast.tensors, strict=True):
        for row in exact.rows:
            assert (a.figures[row].clipped, a.figures[row].to_zero) == (b.figures[row].clipped, b.figures[row].to_zero)
    assert by_name(fast)["w"].figures[exact.rows[0]].sqnr == "–"
    assert by_name(fast)["h"].figures == by_name(exact)["h"].figures
    assert "left out (fast)" in str(fast)
    json.dumps(fast.as_dict(), allow_nan=False)


# --- a real checkpoint ------------------------------------------------------------------------------------------------


def test_silero_vad(monkeypatch):
    spec = importlib.util.find_spec("silero_vad")
    if spec is None:
        pytest.skip("the package silero-vad, a real checkpoint, is not installed")
    monkeypatch.chdir(Path(spec.submodule_search_locations[0]) / "data")
    path = Path("silero_vad_16k.safetensors")
    found = inspect(path, check=["float16"])
    assert str(found) in (Path(__file__).parents[1] / "docs" / "inspect.md").read_text(encoding="utf-8")
    assert len(found.tensors) == 15
    assert {t.dtype for t in found.tensors} == {"F32"}
    assert sum(t.size for t in found.tensors) == 309633
    assert not any(t.nan or t.infinite or t.subnormal for t in found.tensors)
    assert found.exit_status == 0
    # Rounding each tensor as a whole, elsewhere.
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for t in found.tensors:
        begin, end = header[t.name]["data_offsets"]
        x = np.frombuffer(raw[8 + length + begin : 8 + length + end], np.float32)
        assert t.amax == np.abs(x).max()
        for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"):
            rounded = np.clip(x, -P.get_format(name).max, P.get_format(name).max)
            rounded = rounded.astype(getattr(ml_dtypes, name, name)).astype(np.float64)
            f = t.figures[Wanted(P.get_format(name), False)]
            assert f.to_zero == np.count_nonzero((rounded == 0) & (x != 0))
            noise = math.fsum((x - rounded) ** 2)
            assert f.sqnr_db == pytest.approx(10 * math.log10(math.fsum(np.float64(x) ** 2) / noise), rel=1e-12)
    scaled = Wanted(P.int8, True)
    worst = found.ranking(scaled)[0]
    assert (worst.name, round(100 * worst.figures[scaled].to_zero_share, 1)) == ("conv4.weight", 95.1)
