from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.fakes import Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
