"""The rules of the house that no linter knows; every message says what to do."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import axil
from runtime.docs import documents
from runtime.embedded_model import REQUIREMENT

ROOT = Path(__file__).parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "radix": {"wire"},
    "scheduler": {"radix", "wire"},
    "model_runner": {"wire"},
    "runtime": {"wire", "radix", "scheduler", "model_runner"},
    "axil": {"wire", "runtime"},
}
TORCH_HOME = "model_runner"
TORCH = {"torch", "torchvision", "transformers", "triton", "flashinfer"}
BAGS = {"utils", "util", "helpers", "common", "misc"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything imported anywhere in the file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module


def public_definitions(body: list[ast.stmt], *, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            if "overload" in {ast.unparse(decorator) for decorator in node.decorator_list}:
                continue
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, prefix=f"{prefix}{node.name}.")


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_run_one_way(package: str) -> None:
    for path in sources(package):
        for head in {name.partition(".")[0] for name in imports(path)} & MAY_IMPORT.keys():
            assert head in {package, *MAY_IMPORT[package]}, (
                f"{path}: {package} may not import {head}; move what both need to wire/, or pass it as a parameter"
            )


def test_torch_is_imported_in_model_runner_only() -> None:
    for package in MAY_IMPORT.keys() - {TORCH_HOME}:
        for path in sources(package):
            heads = {name.partition(".")[0] for name in imports(path)} & TORCH
            assert not heads, f"{path}: {heads} load torch, which belongs to {TORCH_HOME}/"


def test_every_package_of_ours_is_known_to_these_rules_and_to_the_guard() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench", "examples"}
    assert packages == MAY_IMPORT.keys(), "add the new package to MAY_IMPORT, with the arrows that it may have"
    assert {"axil", *axil.origin.PACKAGES} == MAY_IMPORT.keys(), "add the new package to axil/origin.py"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in included} == MAY_IMPORT.keys(), "list the new package in pyproject.toml"


def test_no_module_is_a_bag_of_this_and_that() -> None:
    for path in sources(*MAY_IMPORT, "tests", "bench"):
        assert path.stem not in BAGS, f"{path}: name the module for what it is about"


def test_every_public_name_has_a_docstring() -> None:
    for path in sources(*MAY_IMPORT):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path}: say what the module is for, and what it does not know"
        for name, node in public_definitions(tree.body):
            assert ast.get_docstring(node), f"{path}: {name} needs a docstring, or a leading underscore"


def test_inner_packages_export_nothing_from_their_init() -> None:
    for package in MAY_IMPORT.keys() - {"axil"}:
        path = ROOT / package / "__init__.py"
        assert len(ast.parse(path.read_text()).body) == 1, f"{path}: a docstring only; import from the owning module"


def test_all_is_what_axil_exports() -> None:
    for name in axil.__all__:
        assert getattr(axil, name, None) is not None, f"axil.__all__ promises {name}, which is not there"
    public = {name for name, value in vars(axil).items() if not name.startswith("_") and not is_module(value)}
    assert set(axil.__all__) - {"__version__"} == public, "add the name to axil.__all__, or give it an underscore"


def test_open_ends_name_their_issue() -> None:
    word = "TO" + "DO"
    for path in sources(*MAY_IMPORT, "tests", "bench"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            bad = re.search(r"#.*(\bFIX" + rf"ME\b|\bXXX\b|\b{word}\b(?!\(#\d+\): ))", line)
            assert not bad, f"{path}:{number}: write `{word}(#123): …` with the number of an open issue"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_generated_documents_are_current(path: Path) -> None:
    assert path.exists(), f"{path} is missing: run `make docs`"
    assert path.read_text() == documents()[path], f"{path} is stale: run `make docs` and look at the difference"


def test_versions_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert axil.__version__ == project["project"]["version"]
    assert REQUIREMENT in (ROOT / "constraints.txt").read_text().splitlines()


def is_module(value: object) -> bool:
    return isinstance(value, ModuleType)
