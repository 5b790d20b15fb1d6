"""`/v1/score`: probabilities of given tokens behind query and item."""

from __future__ import annotations

import math
from typing import Any

import aiohttp
import pytest

from tests.fakes import Server, text_ids
from wire.messages.to_scheduler import Submit

from .chats import prompt_text, submits


async def _score(http: aiohttp.ClientSession, status: int = 200, **body: object) -> Any:  # noqa: ANN401 - JSON
    async with http.post("/v1/score", json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_each_item_gets_the_probability_of_each_token(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await _score(http, query="Is it ", items=["red", "blue"], label_token_ids=[1, 3])
    # The fake scheduler gives every chosen token minus its id as logprob.
    assert answer["scores"] == [[pytest.approx(math.exp(-1)), pytest.approx(math.exp(-3))]] * 2
    assert answer["object"] == "scoring"
    assert answer["usage"]["prompt_tokens"] == len("Is it redIs it blue")
    first, second = submits(server.scheduler)
    assert (prompt_text(first), prompt_text(second)) == ("Is it red", "Is it blue")
    assert (first.sampling.max_new_tokens, first.sampling.logprob_ids) == (1, (1, 3))


async def test_scores_can_sum_to_one_and_items_stand_first(server: Server, http: aiohttp.ClientSession) -> None:
    wish = {"query": text_ids("b"), "items": [text_ids("a")], "label_token_ids": [1, 3]}
    answer = await _score(http, **wish, apply_softmax=True, item_first=True)
    (scores,) = answer["scores"]
    assert sum(scores) == pytest.approx(1)
    assert scores[0] / scores[1] == pytest.approx(math.exp(2))
    (submit,) = submits(server.scheduler)
    assert isinstance(submit, Submit)
    assert prompt_text(submit) == "ab"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"items": []}, "items is empty"),
        ({"items": [[1]]}, "items must be texts when query is a text"),
        ({"query": [1], "items": ["x"]}, "items must be texts when query is a text"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [999]}, "label_token_ids holds the token id 999"),
        ({"items": ["x" * 5000]}, "items has"),
        ({"model": "other"}, "not served here"),
    ],
)
async def test_what_can_not_be_scored_is_named(
    http: aiohttp.ClientSession, changed: dict[str, object], words: str
) -> None:
    body = {"query": "a", "items": ["b"], "label_token_ids": [1], **changed}
    answer = await _score(http, 404 if "model" in changed else 400, **body)
    assert words in answer["error"]["message"]
