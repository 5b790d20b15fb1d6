from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from model_runner.kernels.cpu import Isa
from model_runner.kernels.library import Library
from model_runner.kernels.linear import Format, LinearKernels, PackedWeight
from model_runner.kernels.ops import KernelOps
from model_runner.linears import KernelLinears, LinearShape, parts
from model_runner.model_config import parse_model_config
from model_runner.models.decoder import Decoder
from model_runner.models.registry import make_model, shape_of
from model_runner.weights import load_weights, stored_types

from .bed import Bed
from .conftest import EMBEDDED_CONFIG

DOWN = "model.layers.0.mlp.down_proj.weight"


def _linears(
    library: Library, quantize: str, stored: Mapping[str, str] | None = None, dtype: torch.dtype = torch.float32
) -> KernelLinears:
    return KernelLinears(LinearKernels(library), dtype, quantize=quantize, stored=stored)


@pytest.mark.parametrize(
    ("quantize", "names", "stored", "expected"),
    [
        ("none", [DOWN], {}, "float32"),
        ("none", [DOWN], {DOWN: "Q4_1"}, "int4/32"),
        ("none", [DOWN], {DOWN: "Q8_0"}, "int8/32"),
        ("none", [DOWN], {DOWN: "Q6_K"}, "float32"),
        ("none", ["a", "b"], {"a": "Q4_1", "b": "Q4_0"}, "int4/32"),
        ("none", ["a", "b"], {"a": "Q4_1", "b": "Q8_0"}, "float32"),
        ("none", ["a", "b"], {"a": "Q4_1"}, "float32"),
        ("int8", [DOWN], {}, "int8-a8"),
        ("int8", [DOWN], {DOWN: "Q4_0"}, "int4/32-a8"),
        ("int8", [DOWN], {DOWN: "Q8_0"}, "int8-a8"),
        ("int4", [DOWN], {}, "int4/32-a8"),
        ("int4", [DOWN], {DOWN: "Q8_0"}, "int4/32-a8"),
        ("int4", ["lm_head.weight"], {}, "int8-a8"),
        ("int4", ["lm_head.weight"], {"lm_head.weight": "Q8_0"}, "int8-a8"),
    ],
)
def test_weights_are_held_as_the_flag_and_the_file_say(
    library: Library, quantize: str, names: list[str], stored: dict[str, str], expected: str
) -> None:
    weight = _linears(library, quantize, stored).make(LinearShape(names, 8, 64))
    assert weight.kind.name == expected


def test_more_columns_than_32_bits_hold_the_sum_of_are_not_held_in_8_bits(library: Library) -> None:
    made = _linears(library, "int8").make(LinearShape([DOWN], 1, 1 << 18))
    assert made.kind.name == "float32"
    made.write(0, torch.full((1, 1 << 18), 1.0))
    assert float(made(torch.full((1, 1 << 18), 1.0))) == 1 << 18


@pytest.mark.parametrize(("isa", "suffix"), [(Isa.AVX2, ""), (Isa.AVX512, "-a16")])
def test_in_bfloat16_blocks_are_kept_and_tokens_are_rounded_to_it_where_the_cpu_multiplies_it(
    library: Library, isa: Isa, suffix: str
) -> None:
    library = Library(isa, library.handle)
    for stored, expected in (("Q4_1", "int4/32" + suffix), ("Q8_0", "int8/32" + suffix), ("Q6_K", "bfloat16")):
        linears = _linears(library, "none", {DOWN: stored}, torch.bfloat16)
        assert linears.make(LinearShape([DOWN], 8, 64)).kind.name == expected
    linears = _linears(library, "int8", {DOWN: "Q8_0"}, torch.bfloat16)
    assert linears.make(LinearShape([DOWN], 8, 64)).kind.name == "int8-a8"


def test_what_cannot_be_quantised_stays_in_float32_and_is_named(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        weight = _linears(library, "int8").make(LinearShape([DOWN], 8, 40))
    assert weight.kind.format is Format.FLOAT32
    assert DOWN in caplog.text and "40 inputs are no multiple of 32" in caplog.text


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_a_gguf_file_are_held_exactly(library: Library, kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((37, 96)).astype(np.float32)
    quantised = gguf.quantize(values, getattr(gguf.GGMLQuantizationType, kind))
    expected = torch.from_numpy(gguf.dequantize(quantised, getattr(gguf.GGMLQuantizationType, kind)))
    weight = _linears(library, "none", {"a": kind, "b": kind}).make(LinearShape(["a", "b"], 37, 96))
    first, second = (part for part, _ in parts(weight, [20, 17]))
    assert kind in first.gguf_types
    first.write_gguf(0, quantised[:11], kind)
    first.write_gguf(11, quantised[11:20], kind)
    second.write_gguf(0, quantised[20:], kind)
    assert torch.equal(weight.rows(torch.arange(37), torch.float32), expected)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(weight(x), x @ expected.T, atol=1e-4)


def _embedded(library: Library, path: Path, quantize: str) -> Decoder:
    config = parse_model_config(EMBEDDED_CONFIG)
    linears = _linears(library, quantize, stored_types(path, config, shape_of(config)))
    model = make_model(config, torch.float32, KernelOps(library), linears)
    load_weights(model, path, lambda done, total: None)
    return model


PROMPT = range(1000, 1600, 7)


@pytest.mark.e2e
def test_the_embedded_model_runs_from_its_own_blocks_and_roughly_so_with_bytes(
    library: Library, embedded: Decoder, embedded_path: Path
) -> None:
    with torch.inference_mode():
        expected = Bed(embedded).all_logits(PROMPT)
        model = _embedded(library, embedded_path, "none")
        held = [model.head, *(layer.down for layer in model.layers)]
        assert all(isinstance(weight, PackedWeight) and weight.kind.group_columns == 32 for weight in held)
        logits = Bed(model, library=library).all_logits(PROMPT)
        assert torch.allclose(logits, expected, atol=2e-3)
        rounded = Bed(_embedded(library, embedded_path, "int4"), library=library).all_logits(PROMPT)
    assert 0.01 < (rounded - expected).abs().mean() < 1.0
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
