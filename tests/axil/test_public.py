import subprocess
import sys
from pathlib import Path

import pytest

import axil
from wire.sampling import SamplingParams

ROOT = Path(axil.__file__).parent.parent


def test_importing_axil_loads_nothing_that_an_engine_needs() -> None:
    code = (
        "import sys, axil; dir(axil)\n"
        "print(sorted({'runtime', 'wire', 'numpy', 'zmq', 'aiohttp', 'tokenizers', 'msgspec'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "[]\n", result.stderr


def test_an_engine_loads_no_torch_into_its_caller() -> None:
    code = "import sys, axil; axil.Engine; print(sorted({'torch', 'transformers', 'aiohttp'} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "[]\n", result.stderr


def test_the_sampling_parameters_are_those_of_the_messages() -> None:
    assert axil.SamplingParams is SamplingParams


def test_an_answers_form_is_forced_by_the_names_that_requests_have() -> None:
    forms = [
        axil.json_schema({"type": "object"}),
        axil.regex("[0-9]+"),
        axil.choice(["a", "b"]),
        axil.ebnf('start: "a"'),
    ]
    assert [form.field for form in forms] == ["json_schema", "regex", "choice", "ebnf"]
    assert axil.json_schema('{"type":"object"}') == axil.json_schema({"type": "object"})
    with pytest.raises(axil.AxilError, match="json_schema is no JSON"):
        axil.json_schema("{")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Enigne"):
        _ = axil.Enigne


def test_python_m_axil_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "axil", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == f"axil {axil.__version__}\n"
