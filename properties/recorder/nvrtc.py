"""This machine's NVIDIA GPU through what torch brings along: NVRTC compiles, the driver loads and launches.

Neither nvcc nor a CUDA header is needed. A kernel is CUDA C++ text with inline PTX, compiled for exactly this GPU:
"sm_90a" on Hopper, whose `wgmma` belongs to no other architecture. A GPU newer than the compiler gets the newest PTX
that the compiler knows, which the driver compiles.

Source: NVIDIA, NVRTC 13.0 documentation, and CUDA driver API reference, Module Management and Execution Control. A
kernel that the compiler or the GPU refuses raises `Unavailable`, which says what is needed.

>>> from properties.recorder.nvrtc import Unavailable, find
>>> try:
...     print("there is one:", bool(find().architecture))
... except Unavailable as missing:
...     print("there is none:", "CUDA" in str(missing))  # doctest: +ELLIPSIS
there is ...: True
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Compiler", "Gpu", "Kernel", "Unavailable", "compiler", "find"]

ARCHITECTURES = {(7, 0): "volta", (7, 2): "volta", (7, 5): "turing", (8, 9): "ada"}
"""Names of compute capabilities; those that are missing go by their major version."""
_MAJOR = {8: "ampere", 9: "hopper", 10: "blackwell", 12: "rtx_blackwell"}


class Unavailable(Exception):
    """What this machine lacks for what was asked, in one line."""


# --- The compiler -----------------------------------------------------------------------------------------------------


class Compiler:
    """NVRTC: CUDA C++ text to machine code. Works without a GPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise Unavailable(f"{function}: {self._library.nvrtcGetErrorString(code).decode()}")

    def architectures(self) -> list[int]:
        """The compute capabilities that it knows, as 10 * major + minor, ascending."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return sorted(found)

    def target(self, capability: tuple[int, int]) -> str:
        """What to compile for: "sm_90a" and the like, "compute_..." (PTX) where the GPU is newer than the compiler."""
        number, known = 10 * capability[0] + capability[1], self.architectures()
        if number not in known:
            return f"compute_{max([n for n in known if n <= number], default=known[0])}"
        return f"sm_{number}{'a' if number >= 90 else ''}"

    def compile(self, source: str, target: str) -> bytes:
        """Machine code, or PTX for a "compute_..." target; raises Unavailable with the compiler's first error."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"halfulp.cu", 0, None, None)
        try:
            option = (ctypes.c_char_p * 1)(f"--gpu-architecture={target}".encode())
            if self._library.nvrtcCompileProgram(program, 1, option):
                raise Unavailable(f"NVRTC {self.version[0]}.{self.version[1]} refuses: {self._first_error(program)}")
            kind = "PTX" if target.startswith("compute") else "CUBIN"
            self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
            image = ctypes.create_string_buffer(size.value)
            self._call(f"nvrtcGet{kind}", program, image)
            return image.raw
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _first_error(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, log)
        lines = [" ".join(line.split()) for line in log.value.decode(errors="replace").splitlines()]
        return next((line for line in lines if "error" in line), " ".join(lines)[:200])


@functools.cache
def compiler() -> Compiler:
    """The NVRTC that torch's CUDA build brings along, or one on the library path; raises Unavailable."""
    import torch

    if torch.version.cuda is None:
        raise Unavailable(f"torch {torch.__version__} is no CUDA build: install one (see pytorch.org) for the compiler")
    major = torch.version.cuda.partition(".")[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    for candidate in (*_installed(name), Path(name)):
        with contextlib.suppress(OSError):
            return open_compiler(candidate)
    raise Unavailable(f"{name} is not found: torch's CUDA wheels bring it, as does the package nvidia-cuda-nvrtc")


def open_compiler(library: Path) -> Compiler:
    """NVRTC from a file; it looks for its second library, with the built-in functions, among those already loaded."""
    for builtins in sorted(library.parent.glob("*nvrtc-builtins*")) if library.is_absolute() else ():
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins))
    return Compiler(ctypes.CDLL(str(library)))


def _installed(name: str) -> Iterator[Path]:
    """Where torch's wheels put the library."""
    roots: list[Path] = []
    for package in ("torch", "nvidia"):
        spec = importlib.util.find_spec(package)
        roots += [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    for root in roots:
        for pattern in (f"lib/{name}", f"*/lib/{name}", f"*/bin/{name}", f"*/bin/x86_64/{name}"):
            yield from sorted(root.glob(pattern))


# --- The device -------------------------------------------------------------------------------------------------------


class Kernel:
    """A kernel on the device. Launches are asynchronous, on torch's current stream, like those of torch itself."""

    def __init__(self, image: bytes, entry: str) -> None:
        self._driver = _driver()
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self._driver.cuModuleLoadData(ctypes.byref(self._module), image))
        _check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, entry.encode()))

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int) -> None:
        """Launch. Tensors are passed as pointers, integers as unsigned 32 bits."""
        import torch

        values = [
            ctypes.c_uint32(argument) if isinstance(argument, int) else ctypes.c_void_p(argument.data_ptr())
            for argument in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(self._driver.cuLaunchKernel(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None))


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as missing:
        raise Unavailable(f"NVIDIA's CUDA driver is not installed: {missing}") from missing


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise Unavailable(f"the CUDA driver refuses: {(text.value or b'unknown error').decode()} (code {code})")


@dataclass(frozen=True)
class Gpu:
    """The current CUDA device: `capability` 9.0 is (9, 0), `architecture` "hopper", `driver` NVIDIA's version."""

    name: str
    capability: tuple[int, int]
    driver: str

    @property
    def architecture(self) -> str:
        """The name that the tensor-core models go by; "sm_..." for one without a name here."""
        major, minor = self.capability
        return ARCHITECTURES.get(self.capability) or _MAJOR.get(major) or f"sm_{major}{minor}"

    def compile(self, source: str, entry: str = "run") -> Kernel:
        """The kernel `entry` of CUDA C++ text, on this device; raises Unavailable if anything refuses it."""
        nvrtc = compiler()
        return Kernel(nvrtc.compile(source, nvrtc.target(self.capability)), entry)


def find() -> Gpu:
    """The current CUDA device of torch; raises Unavailable, which says what is missing."""
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        build = f"torch {torch.__version__}"
        raise Unavailable(
            f"no CUDA device: {build} sees none; it takes an NVIDIA GPU, its driver and a CUDA build of torch"
        )
    torch.empty(1, device="cuda")  # makes the context that the driver's functions work in
    return Gpu(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), _driver_version())


def _driver_version() -> str:
    """NVIDIA's version through its management library, else the CUDA version that the driver stands for."""
    text, number = ctypes.create_string_buffer(96), ctypes.c_int()
    names: Iterable[str] = ("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1",)
    for name in names:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            if library.nvmlInit_v2() == 0 and library.nvmlSystemGetDriverVersion(text, len(text)) == 0:
                return text.value.decode()
    _check(_driver().cuDriverGetVersion(ctypes.byref(number)))
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
