"""The documents' code blocks are run (tests/e2e/test_documents.py) or say why not; what they name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from tests.code_blocks import DOCUMENTS, LANGUAGES, ROOT, Block, all_blocks, looks_like


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: block.place)
def test_a_code_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.place}: write ```{LANGUAGES[-1]} where it is no code"
    if block.language == "console":
        assert block.commands


def test_there_are_blocks_that_are_run() -> None:
    run = {block.language for block in all_blocks() if block.why_not_run is None}
    assert run >= {"python", "console"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_mark_stands_right_above_a_block(document: Path) -> None:
    text = document.read_text("utf-8")
    marks = len(re.findall(r"<!-- not run", text))
    assert marks == len(re.findall(r"^<!-- not run: .+ -->\n```[a-z]", text, re.MULTILINE))


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.language == "yaml"], ids=lambda b: b.place)
def test_yaml_is_yaml(block: Block) -> None:
    assert yaml.safe_load(block.code)


def test_a_pod_is_given_longer_to_end_than_open_requests_to_finish() -> None:
    (block,) = [block for block in all_blocks() if "terminationGracePeriodSeconds" in block.code]
    pod = yaml.safe_load(block.code)
    (container,) = pod["containers"]
    waited_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = float(container["args"][container["args"].index("--drain-seconds") + 1])
    assert waited_s + drain_s + 5 <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module) is not None, module
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target


def test_an_ellipsis_stands_for_anything_and_nothing_else_does() -> None:
    assert looks_like('{"a":…,"b":2}', '{"a":{"x":1},"b":2}\n')
    assert not looks_like('{"a":…,"b":2}', '{"a":1,"b":3}')
    assert not looks_like("a.c", "abc")
