"""The tensors in one file: safetensors, .npy, .npz and torch's formats, told by the first bytes, from headers alone.

`tensors_in` checks a header against the size of the file and gives every tensor as a `Stored`: what it is, and a stream
of its codes through a small buffer of the caller. Nothing in a file is executed, and torch is loaded only for its file
format of before version 1.6.

Sources: the safetensors format (8-byte little-endian length, JSON header, data without holes, at most 10^8 bytes of
header); NumPy's NEP 1; the zip layout of torch.save (data.pkl, data/<key>, byteorder), and the rule of its
weights_only=True, that a pickle may ask for tensors and plain containers only.

>>> import numpy as np, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     np.savez(file := pathlib.Path(folder, "w.npz"), a=np.float16([1, 2]), b=np.int8([3]))
...     [(t.name, t.dtype, t.shape, list(t.blocks(np.empty(64, np.uint8)))) for t in tensors_in(file, [])]
[('a', 'float16', (2,), [array([15360, 16384], dtype=uint16)]), ('b', 'int8', (1,), [])]
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import math
import pickle
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from precision.codec import from_dtype, unpack
from precision.formats import FORMATS, Format
from precision.histogram import Codes

__all__ = ["BUFFER", "InspectionError", "Stored", "json_object", "tensors_in"]

BUFFER = 3 << 17
"""Bytes of a buffer for `Stored.blocks`: whole numbers of codes of 4, 6, 8, 16, 32 and 64 bits."""

_MAX_HEADER = 100_000_000

# What each dtype of safetensors stands for: a format, or None for what is only listed; and its bits.
_SAFETENSORS: dict[str, tuple[str | None, int]] = {
    "F64": ("float64", 64), "F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16),
    "F8_E5M2": ("float8_e5m2", 8), "F8_E4M3": ("float8_e4m3fn", 8), "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F6_E3M2": ("float6_e3m2fn", 6), "F6_E2M3": ("float6_e2m3fn", 6), "F4": ("float4_e2m1fn", 4),
    "BOOL": (None, 8), "U8": (None, 8), "I8": (None, 8), "U16": (None, 16), "I16": (None, 16),
    "U32": (None, 32), "I32": (None, 32), "U64": (None, 64), "I64": (None, 64),
}  # fmt: skip
_LISTED = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_LISTED |= {name for name, (fmt, _) in _SAFETENSORS.items() if fmt is None}
_TORCH_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_OBJECTS = "object"  # the dtype of arrays that are pickled
_TORCH_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2)  # the magic number that torch < 1.6 wrote first

# What a parser of a broken file may raise.
_DAMAGE = (ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, RecursionError,
           RuntimeError, TypeError, ValueError, pickle.UnpicklingError, struct.error, tokenize.TokenError,
           zipfile.BadZipFile, zlib.error)  # fmt: skip

Buffer = npt.NDArray[np.uint8]
Source = Callable[[], contextlib.AbstractContextManager[Any]]


class InspectionError(ValueError):
    """Files that cannot be inspected: `faults` has one line for each fault, naming the file and the tensor."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


def _line(error: BaseException) -> str:
    """The first sentence of an error."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].split(". ")[0].rstrip(".")[:300]


def json_object(text: bytes) -> dict[str, Any]:
    """A JSON object; a name that occurs twice is refused, of which Python's json would keep the last.

    Raises ValueError saying what it is instead.
    """
    try:
        found = json.loads(text.decode(), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is needed, not a {type(found).__name__}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in collections.Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"the name {name!r} occurs {times} times")
    return dict(pairs)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file; `fmt` is None where the values are not inspected.

    `blocks(buffer)` streams its codes, in any order, as 1-D arrays of an unsigned dtype of the format's width.
    A block is overwritten by the next one. Raises InspectionError where the file has changed or is damaged.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    fmt: Format | None = None
    blocks: Callable[[Buffer], Iterator[Codes]] = field(default=lambda buffer: iter(()), repr=False, compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def remark(self) -> str:
        """Why a tensor is not inspected; empty for those that are, and for integers."""
        if self.fmt or self.dtype in _LISTED:
            return ""
        what = "pickled Python objects, never loaded" if self.dtype == _OBJECTS else f"dtype {self.dtype}"
        return f"not inspected: {what}"


def _format(name: str | None) -> Format | None:
    fmt = FORMATS.get(name or "")
    return fmt if isinstance(fmt, Format) else None


def _stream(source: Source, where: str, nbytes: int, fmt: Format, swap: bool, buffer: Buffer) -> Iterator[Codes]:
    """The codes of `nbytes` bytes of an opened source; `swap`: they are in the other byte order."""
    width = f"u{max(fmt.bits // 8, 1)}"
    left = nbytes
    with source() as opened:
        while left:
            part = buffer[: min(left, buffer.size // 24 * 24)]
            done = 0
            while done < part.size:
                got = opened.readinto(part.data[done:])
                if not got:
                    raise InspectionError(
                        f"{where}: ended {left - done} bytes early; it has changed since its header was read"
                    )
                done += got
            left -= part.size
            codes = unpack(part, fmt, part.size * 8 // fmt.bits) if fmt.bits < 8 else part.view(width)
            yield codes.byteswap(inplace=True) if swap else codes


@contextlib.contextmanager
def _region(file: Path, offset: int) -> Iterator[Any]:
    """A file from an offset on."""
    with file.open("rb", buffering=0) as opened:
        opened.seek(offset)
        yield opened


@contextlib.contextmanager
def _member(file: Path, name: str, offset: int = 0) -> Iterator[Any]:
    """A member of a zip file from an offset on, decompressed on the way."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(name) as opened:
            opened.read(offset)
            yield opened
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InspectionError(f"{file}: {name} is damaged: {_line(error)}") from None


def _strided(array: npt.NDArray[Any], buffer: Buffer) -> Iterator[Codes]:
    """The elements of an array of any strides and byte order."""
    native = array.dtype.newbyteorder("=")
    size = max(buffer.size // native.itemsize, 1)
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    with np.nditer(array, flags, ["readonly"], native, casting="equiv", buffersize=size) as parts:
        for part in parts:
            yield np.array(part)  # a copy: the iterator's buffer must not outlive it in a caller's hands


# --- safetensors ------------------------------------------------------------------------------------------------------


def _safetensors(file: Path, size: int) -> list[Stored]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > _MAX_HEADER:
            raise InspectionError(f"{file}: no safetensors file: it does not begin with a plausible length of a header")
        if length > size - 8:
            raise InspectionError(
                f"{file}: truncated: a header of {length} bytes is announced, {size - 8} bytes follow"
            )
        text = opened.read(length)
    try:
        entries = {name: entry for name, entry in json_object(text).items() if name != "__metadata__"}
    except _DAMAGE as error:
        raise InspectionError(f"{file}: the safetensors header is broken: {_line(error)}") from None
    faults: list[str] = []
    extents: list[tuple[int, int, Stored]] = []
    for name, entry in entries.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if (
                not isinstance(dtype, str)
                or any(type(n) is not int or n < 0 for n in (*shape, begin, end))
                or begin > end
            ):
                raise ValueError
        except _DAMAGE:
            faults.append(
                f"{file}: tensor {name!r}: the header has no valid dtype, shape and data_offsets: {str(entry)[:200]}"
            )
            continue
        fmt, bits = _SAFETENSORS.get(dtype, (None, 0))
        if bits and math.prod(shape) * bits != (end - begin) * 8:
            need = f"{math.prod(shape) * bits / 8:.15g}"
            have = f"its data_offsets hold {end - begin}"
            faults.append(f"{file}: tensor {name!r}: {dtype} {list(shape)} takes {need} bytes, {have}")
        stored = Stored(name, file, dtype, shape, end - begin, found := _format(fmt))
        if found is not None:
            source = partial(_region, file, 8 + length + begin)
            stream = partial(_stream, source, f"{file}: tensor {name!r}", end - begin, found, sys.byteorder == "big")
            stored = Stored(name, file, dtype, shape, end - begin, found, stream)
        extents.append((begin, end, stored))
    if len(extents) == len(entries):
        faults += _layout_faults(file, extents, size - 8 - length)
    if faults:
        raise InspectionError(*faults)
    return [stored for _, _, stored in extents]


def _layout_faults(file: Path, extents: list[tuple[int, int, Stored]], have: int) -> Iterator[str]:
    """Overlaps, holes, missing and trailing bytes of data; the format allows none."""
    cursor, before = 0, "the header"
    last = max((end for _, end, _ in extents), default=0)
    for begin, end, stored in sorted(extents, key=lambda extent: extent[:2]):
        if begin > cursor:
            yield f"{file}: {begin - cursor} bytes between {before} and tensor {stored.name!r} belong to no tensor"
        elif begin < min(cursor, end):
            yield f"{file}: tensor {stored.name!r} overlaps {before} by {min(cursor, end) - begin} bytes"
        if cursor <= have < end:
            yield f"{file}: truncated: {last - have} of {last} data bytes are missing, from tensor {stored.name!r} on"
        if end > cursor:
            cursor, before = end, f"tensor {stored.name!r}"
    if have > last:
        yield f"{file}: {have - last} trailing bytes after {before} belong to no tensor"


# --- NumPy ------------------------------------------------------------------------------------------------------------


def _npy(
    name: str, file: Path, where: str, source: Callable[[int], contextlib.AbstractContextManager[Any]], size: int
) -> Stored:
    """One array in .npy format: `size` bytes that `source(offset)` opens."""
    try:
        with source(0) as opened:
            version = np.lib.format.read_magic(opened)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} is not read, 1.0 and 2.0 are")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(opened)
            start = opened.tell()
    except InspectionError:
        raise
    except _DAMAGE as error:
        raise InspectionError(f"{where}: the .npy header is broken: {_line(error)}") from None
    if dtype.hasobject:
        return Stored(name, file, _OBJECTS, shape, size - start)
    nbytes = math.prod(shape) * dtype.itemsize
    if size - start != nbytes:
        what = f"truncated: {nbytes - size + start} of {nbytes} bytes are missing" if size - start < nbytes else (
            f"{size - start - nbytes} trailing bytes after an array of {nbytes} bytes"
        )  # fmt: skip
        raise InspectionError(f"{where}: {what} ({dtype.name}, shape {shape})")
    fmt = _format(dtype.name)
    if fmt is None:
        return Stored(name, file, dtype.name, shape, nbytes)
    swap = not dtype.isnative
    return Stored(
        name, file, dtype.name, shape, nbytes, fmt, partial(_stream, partial(source, start), where, nbytes, fmt, swap)
    )


def _npz(file: Path, archive: zipfile.ZipFile) -> list[Stored]:
    result: list[Stored] = []
    faults: list[str] = []
    for info in archive.infolist():
        source = partial(_member, file, info.filename)
        try:
            where = f"{file}: {info.filename}"
            result.append(_npy(info.filename.removesuffix(".npy"), file, where, source, info.file_size))
        except InspectionError as error:
            faults += error.faults
    if faults:
        raise InspectionError(*faults)
    return result


# --- torch ------------------------------------------------------------------------------------------------------------


class _View(NamedTuple):
    """A tensor as it is pickled: a strided view of the storage data/<key>. Offset and strides count elements."""

    dtype: str
    key: str = ""
    offset: int = 0
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()

    def dense(self) -> bool:
        """Whether it covers a stretch of its storage, each element once, in whatever order."""
        expected = 1
        for stride, n in sorted((s, n) for s, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != expected:
                return False
            expected *= n
        return True


class _Dict(dict[Any, Any]):
    """A dict that takes the attributes that pickled state dicts set (`_metadata`)."""


def _view(storage: _View, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _View:
    return _View(storage.dtype, storage.key, index(offset), tuple(map(index, shape)), tuple(map(index, stride)))


def _view_of_dtype(
    storage: _View, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, dtype: str, *_: Any
) -> _View:
    return _view(storage._replace(dtype=dtype), offset, shape, stride)


# What a pickled global becomes: inert data in place of the class or function.
_GLOBALS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _view,
    ("torch._utils", "_rebuild_tensor_v2"): _view,
    ("torch._utils", "_rebuild_tensor_v3"): _view_of_dtype,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    ("collections", "OrderedDict"): lambda *_: _Dict(),
    ("collections", "defaultdict"): lambda *_: _Dict(),
    ("torch", "Size"): lambda items=(): tuple(items),
    ("torch", "device"): lambda *_: None,
    ("torch.serialization", "_get_layout"): lambda *_: None,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin1"),
}


class _RefusedError(pickle.UnpicklingError):
    """A pickle wants more than tensors in plain containers."""


class _Structure(pickle.Unpickler):
    """Reads the structure of a torch file and nothing else: a global is inert data from the table above, or refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _GLOBALS:
            return _GLOBALS[module, name]
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _TORCH_STORAGES.get(name, name)
        if module == "torch" and name.islower():  # a dtype, layout or quantization scheme: its name will do
            return name
        if module == "torch._utils" and name.startswith("_rebuild_"):  # sparse, quantized, …
            return lambda *_: _View(name.removeprefix("_rebuild_").replace("_", " "))
        raise _RefusedError(f"the pickle needs {module}.{name}, and only tensors in plain containers are read")

    def persistent_load(self, pid: Any) -> _View:
        kind, dtype, key, *_ = pid
        if kind != "storage":
            raise _RefusedError(f"the pickle refers to a {kind!r}, not to a storage")
        return _View(dtype, key)


def _leaves(item: Any, name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """The tensors in nested dicts, lists and tuples, under dotted names."""
    if isinstance(item, kind):
        yield name, item
    elif isinstance(item, dict | list | tuple):
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            yield from _leaves(value, f"{name}.{key}" if name else str(key), kind)


def _torch(file: Path, archive: zipfile.ZipFile, pickled: str) -> list[Stored]:
    members = {info.filename: info for info in archive.infolist()}
    prefix = pickled.removesuffix("data.pkl")
    if prefix + "constants.pkl" in members:
        raise InspectionError(
            f"{file}: refused: a TorchScript archive, which is a program; save the model's state_dict"
        )
    try:
        tree = _Structure(io.BytesIO(archive.read(pickled))).load()
        views = list(_leaves(tree, "", _View))
        order = archive.read(prefix + "byteorder").decode() if prefix + "byteorder" in members else "little"
    except _RefusedError as error:
        raise InspectionError(f"{file}: refused: {_line(error)}; nothing in it was run") from None
    except _DAMAGE as error:
        raise InspectionError(f"{file}: {pickled} is broken: {_line(error)}") from None
    result: list[Stored] = []
    faults: list[str] = []
    with file.open("rb") as opened:
        for name, view in views:
            try:
                info = members.get(f"{prefix}data/{view.key}")
                result.append(_torch_tensor(name, file, view, info, opened, order != sys.byteorder))
            except InspectionError as error:
                faults += error.faults
            except _DAMAGE as error:
                faults.append(f"{file}: tensor {name!r} is broken: {_line(error)}")
    if faults:
        raise InspectionError(*faults)
    return result


def _torch_tensor(name: str, file: Path, view: _View, info: zipfile.ZipInfo | None, opened: Any, swap: bool) -> Stored:
    packed = view.dtype == "float4_e2m1fn_x2"  # two codes in a byte, and the shape counts bytes
    shape = (*view.shape[:-1], 2 * view.shape[-1]) if packed and view.shape else view.shape
    fmt = _format("float4_e2m1fn" if packed else view.dtype)
    if fmt is None:
        nbytes = math.prod(shape) * np.dtype(view.dtype).itemsize if view.dtype in _LISTED else 0
        return Stored(name, file, view.dtype, shape, nbytes)
    where = f"{file}: tensor {name!r}"
    size, count = max(fmt.bits // 8, 1), math.prod(view.shape)
    if count == 0:
        return Stored(name, file, view.dtype, shape, 0, fmt)
    if info is None or info.compress_type != zipfile.ZIP_STORED:
        raise InspectionError(f"{where}: its storage data/{view.key} is {'compressed' if info else 'missing'}")
    last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True))
    if view.offset < 0 or min(view.stride, default=0) < 0 or (last + 1) * size > info.file_size:
        raise InspectionError(
            f"{where} reaches byte {(last + 1) * size} of data/{view.key}, which has {info.file_size}"
        )
    opened.seek(info.header_offset)
    local = opened.read(30)  # the local header has lengths of its own: torch pads it, to align the data
    if local[:4] != b"PK\x03\x04":
        raise InspectionError(f"{where}: there is no zip entry where data/{view.key} should be")
    start = info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30])) + view.offset * size
    stream = partial(_stream, partial(_region, file, start), where, count * size, fmt, swap)
    if not view.dense():
        stream = partial(_torch_strided, file, start, view, fmt, swap)
    return Stored(name, file, view.dtype, shape, count * size, fmt, stream)


def _torch_strided(file: Path, start: int, view: _View, fmt: Format, swap: bool, buffer: Buffer) -> Iterator[Codes]:
    dtype = np.dtype(f"u{max(fmt.bits // 8, 1)}")
    strides = tuple(s * dtype.itemsize for s in view.stride)
    mapped = np.memmap(file, np.uint8, "r")
    array: Any = np.ndarray(view.shape, dtype.newbyteorder("S") if swap else dtype, mapped, start, strides)
    for part in _strided(array, buffer):
        yield unpack(part, fmt, part.size * 8 // fmt.bits) if fmt.bits < 8 else part


def _torch_legacy(file: Path) -> list[Stored]:
    """The format of torch before 1.6, one pickle stream: loaded whole, by torch."""
    try:
        import torch
    except ImportError:
        raise InspectionError(
            f"{file}: a file of torch < 1.6, which takes torch to read; it is not installed"
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InspectionError(
            f"{file}: refused: it holds more than tensors in plain containers; nothing was run"
        ) from None
    except _DAMAGE as error:
        raise InspectionError(f"{file}: truncated or broken: {_line(error)}") from None
    result: list[Stored] = []
    for name, tensor in _leaves(tree, "", torch.Tensor):
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        fmt = _format(dtype)
        if fmt is None or tensor.layout is not torch.strided:
            result.append(Stored(name, file, dtype if fmt is None else str(tensor.layout), shape, 0))
        else:
            codes = from_dtype(tensor.detach())[0].numpy().view(f"u{fmt.bits // 8}")
            result.append(Stored(name, file, dtype, shape, codes.nbytes, fmt, partial(_strided, codes)))
    return result


# --- any of them ---------------------------------------------------------------------------------------------------


def tensors_in(file: Path, remarks: list[str]) -> list[Stored]:
    """The tensors of a file; what is odd about it is added to `remarks`.

    Raises InspectionError with a line for each fault.
    """
    try:
        return _opened(file, remarks)
    except InspectionError:
        raise
    except _DAMAGE as error:
        raise InspectionError(f"{file}: truncated or broken: {_line(error)}") from None
    except OSError as error:
        raise InspectionError(f"{file}: cannot be read: {error.strerror or error}") from None


def _opened(file: Path, remarks: list[str]) -> list[Stored]:
    """The tensors of a file, whose kind its first bytes tell."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(32)
    if size == 0:
        raise InspectionError(f"{file}: is empty (0 bytes)")
    if head.startswith(b"version https://git-lfs"):
        raise InspectionError(f"{file}: is a Git LFS pointer, not the file itself; `git lfs pull` fetches it")
    if head.startswith(b"GGUF"):
        raise InspectionError(f"{file}: a GGUF file, which is not read; give the checkpoint it was made from")
    if head.startswith(b"\x93NUMPY"):
        return _plain(file, [_npy(file.stem, file, str(file), partial(_region, file), size)])
    if head.startswith(b"PK"):
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            pickled = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
            if pickled:
                return _torch(file, archive, min(pickled, key=len))
            if names and all(name.endswith(".npy") for name in names):
                return _plain(file, _npz(file, archive))
        raise InspectionError(f"{file}: a zip file, but neither .npz nor of torch.save")
    if head.startswith(_TORCH_LEGACY):
        remarks.append(f"{file}: of torch < 1.6, loaded as a whole; have it streamed by saving it again")
        return _torch_legacy(file)
    if file.suffix == ".safetensors" or head[8:9] == b"{":
        return _safetensors(file, size)
    if head.startswith(b"\x80"):
        raise InspectionError(
            f"{file}: refused: a pickle, which is a program; save tensors with torch.save or safetensors"
        )
    raise InspectionError(f"{file}: no tensor file: safetensors, .npy, .npz and torch .pt/.pth are read")


def _plain(file: Path, found: list[Stored]) -> list[Stored]:
    """The arrays of NumPy, unless there is no plain one."""
    if found and all(stored.dtype == _OBJECTS for stored in found):
        raise InspectionError(
            f"{file}: refused: holds pickled Python objects, which are never loaded; save plain arrays"
        )
    return found
