"""The house itself: one wheel of three typed packages, light imports, true examples, one place for each fact."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attention
import precision
import properties

ROOT = Path(__file__).parents[1]
PACKAGES = ("attention", "precision", "properties")
OPTIONAL = {"gfloat", "matplotlib", "numba", "triton"}  # a module that needs one of these may fail to import
SOURCES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*"))
    if path.is_file()
    and path.suffix != ".npz"
    and not {"__pycache__", "build", "dist", "site"} & set(path.parts[len(ROOT.parts) :])
    and all(part == ".ci" or part == ".gitignore" or part[0] != "." for part in path.parts[len(ROOT.parts) :])
}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distribution() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("halfulp")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("halfulp is not installed: this is a bare checkout")


@pytest.mark.parametrize("package", [attention, precision, properties], ids=lambda package: package.__name__)
def test_package_is_typed(package):
    assert (Path(package.__file__).parent / "py.typed").is_file()


def test_packages_come_from_one_place():
    """Another distribution's `attention` or `properties`, or half of a checkout, would be tested in our stead."""
    homes = {Path(package.__file__).parents[1] for package in (attention, precision, properties)}
    assert len(homes) == 1, f"packages from different places: {homes}"


def test_version_is_said_once():
    version = project()["version"]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
    again = [name for name, path in SOURCES.items() if f'version__ = "{version}"' in path.read_text(errors="replace")]
    assert not again, f"the version is in pyproject.toml; it is repeated in {again}"


def test_installed_version_is_this_one():
    assert distribution().version == precision.__version__ == project()["version"]


def test_wheel_holds_the_packages_and_nothing_else():
    files = [path.as_posix() for path in distribution().files or ()]
    if any(name.endswith(".pth") for name in files):
        pytest.skip("halfulp is installed as editable: its files are the checkout's")
    top = {name.split("/")[0] for name in files if not name.startswith("..")}
    assert top - {f"halfulp-{project()['version']}.dist-info"} == set(PACKAGES)
    kept = {name for name in files if not name.endswith(".pyc")}
    shipped = {name for name in SOURCES if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    shipped |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "properties" / "data").glob("*.npz")}
    assert shipped <= kept, f"not in the wheel: {sorted(shipped - kept)}"


def test_plugin_has_the_name_of_its_module():
    """Otherwise `pytest_plugins = ["properties.plugin"]` beside an installed halfulp registers it twice."""
    (name, module), *others = project()["entry-points"]["pytest11"].items()
    assert name == module == "properties.plugin"
    assert not others


def loads(*modules: str) -> set[str]:
    """The top-level modules outside the standard library that importing these brings into a fresh process."""
    code = f"""if True:
        import sys
        before = set(sys.modules)
        import {", ".join(modules)}
        after = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(*(after - set(sys.stdlib_module_names)))"""
    home = Path(precision.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(home)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in run.stdout.split() if not name.startswith("_")}


def test_importing_precision_loads_numpy_only():
    assert loads("precision") == {"precision", "numpy"}


def test_importing_the_plugin_loads_nothing_heavy():
    """It is imported in every pytest run of an environment that has halfulp."""
    heavy = {"attention", "gfloat", "matplotlib", "ml_dtypes", "numba", "rich", "torch", "triton", "typer"}
    assert not loads("properties", "properties.plugin") & heavy


def modules() -> list[str]:
    found = [*PACKAGES]
    for package in (attention, precision, properties):
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [name for name in found if not name.startswith("properties.suite") and not name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {missing.name}")
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("page", ["README.md", "docs/accumulation.md", "docs/quantization.md", "docs/tensor_cores.md"])
def test_examples_in_pages(page):
    failures, tried = doctest.testfile(str(ROOT / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failures == 0


def test_torch_is_pinned_in_one_place():
    pins = [name for name, path in SOURCES.items() if re.search(r"\btorch==\d", path.read_text(errors="replace"))]
    assert pins == ["constraints/cpu.txt"]
    assert re.fullmatch(r"torch==[\d.]+\n", (ROOT / "constraints" / "cpu.txt").read_text())


def test_readme_names_both_commands():
    readme = (ROOT / "README.md").read_text()
    assert "python -m pip install tox && tox -e verify" in readme
    assert re.search(r"python -m pip install tox && tox\s", readme)


# Written in two parts, so that this file does not mention them either.
@pytest.mark.parametrize(
    "word",
    ["".join(parts) for parts in (("pypi", ".org"), ("python", "hosted"), ("npmjs", ".com"), ("download.", "pytorch"))]
    + [re.escape("../" + "shared"), r"(?<![\w.])/" + r"work\b", "this " + "session"],
)
def test_nothing_mentions_a_place_of_one_machine(word):
    """What is installed comes from where pip is told to look, and the project stands without its neighbours."""
    found = [name for name, path in SOURCES.items() if re.search(word, path.read_text(errors="replace"), re.IGNORECASE)]
    assert not found, f"{word!r} is mentioned in {found}"
