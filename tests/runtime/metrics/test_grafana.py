"""The dashboard in docs/ shows what is there, and nothing that is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from runtime.metrics.histograms import HISTOGRAMS
from runtime.metrics.table import SERIES

ROOT = Path(__file__).parents[3]
BOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
LABELS = {series.name: {*series.labels, "model_name", "instance"} for series in SERIES}
for _histogram in HISTOGRAMS:
    _labels = {"model_name", "instance", *([] if _histogram.label is None else [_histogram.label])}
    LABELS |= {f"{_histogram.name}_{part}": _labels for part in ("count", "sum")}
    LABELS[f"{_histogram.name}_bucket"] = _labels | {"le"}


def _expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def _lost(given: object, kept: object, path: str = "") -> list[str]:
    """What of `given` is not, or differently, in `kept`."""
    if isinstance(given, dict):
        others = kept if isinstance(kept, dict) else {}
        return [each for name, value in given.items() for each in _lost(value, others.get(name), f"{path}.{name}")]
    if isinstance(given, list):
        others = kept if isinstance(kept, list) and len(kept) == len(given) else [None] * len(given)
        return [each for i, value in enumerate(given) for each in _lost(value, others[i], f"{path}[{i}]")]
    return [] if given == kept else [path]


def test_grafanas_own_types_take_the_file_and_know_each_of_its_fields() -> None:
    board = json.loads(json.dumps(Dashboard.from_json(BOARD), cls=JSONEncoder))
    assert board["panels"][1]["gridPos"] == BOARD["panels"][1]["gridPos"]
    assert _lost(BOARD, board) == []


@pytest.mark.parametrize("expression", _expressions())
def test_prometheus_own_grammar_takes_every_expression(expression: str) -> None:
    # What Grafana puts in before it asks.
    asked = expression.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$instance", ".*")
    assert "$" not in asked
    promql_parser.parse(asked)


def test_every_expression_names_series_and_labels_that_exist() -> None:
    for expression in _expressions():
        names = re.findall(r"(\w+){", expression)
        assert names
        for name in names:
            assert name in LABELS, f"{name} in {expression}"
        for selected in re.findall(r"{(.*?)}", expression):
            assert set(re.findall(r"(\w+)=", selected)) <= LABELS[names[0]]
        for grouped in re.findall(r"by \((.*?)\)", expression):
            assert set(grouped.replace(" ", "").split(",")) <= LABELS[names[0]], expression


def test_only_counters_have_rates_and_counters_nothing_else() -> None:
    kinds = {series.name: series.kind for series in SERIES}
    for expression in _expressions():
        rated = set(re.findall(r"rate\((\w+){", expression))
        for name in re.findall(r"(\w+){", expression):
            is_counter = kinds.get(name, "counter") == "counter"
            assert (name in rated) == is_counter or name == "axil_ledger_mismatches_total", expression


def test_legends_show_labels_that_their_expressions_keep() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target


def test_there_is_a_panel_for_each_question() -> None:
    shown = {name for expression in _expressions() for name in re.findall(r"(\w+){", expression)}
    assert shown >= {
        "axil_cached_tokens_total",
        "axil_time_to_first_token_seconds_bucket",
        "axil_missed_tokens_total",
        "axil_lost_share_ratio",
        "axil_belt_seconds",
        "axil_session_survival_ratio",
        "axil_idle_sessions",
        "axil_waiting_requests",
        "axil_worst_displacement_tokens",
        "axil_evicted_tokens_total",
        "axil_retractions_total",
        "axil_runner_idle_seconds_total",
        "axil_scheduler_busy_seconds_total",
        "axil_healthy",
    }


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
