"""LangChain's ChatOpenAI, `llm` or Ollama's client on the server at the given URL: answers, streams, tools, forms.

Runs where they are installed, and alone. The server needs a chat template that takes tools. Ends with an error at the
first thing that is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from ollama import Client, ResponseError

CITY = {"type": "string", "enum": ["Paris", "Rome"]}
WEATHER = {
    "title": "weather",
    "description": "The weather in a city.",
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": WEATHER}}


def main() -> None:
    server, client = sys.argv[1:]
    url = f"{server}/v1"
    with urllib.request.urlopen(f"{url}/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    CLIENTS[client](url, model)


def langchain(url: str, model: str, *, uses_responses: bool = False) -> None:
    """A question, the same one streamed, a forced call whole and streamed, its result, a forced form."""
    chat = ChatOpenAI(
        base_url=url, api_key="none", model=model, temperature=0, max_tokens=40, use_responses_api=uses_responses
    )
    answer = chat.invoke("What is gravity?")
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in chat.stream("What is gravity?")) == answer.text
    forced = chat.bind_tools([TOOL], tool_choice="weather")
    called = forced.invoke("Is it warm in Rome?")
    (call,) = called.tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in CITY["enum"]
    chunks: list[Any] = list(forced.stream("Is it warm in Rome?"))
    assert sum(chunks[1:], chunks[0]).tool_calls[0]["args"] == call["args"]
    history = [HumanMessage("Is it warm in Rome?"), called, ToolMessage("Sunny.", tool_call_id=call["id"])]
    after = chat.bind_tools([TOOL]).invoke(history)
    assert after.usage_metadata["input_token_details"]["cache_read"] > 0, "the first turn was cached"
    assert chat.with_structured_output(WEATHER).invoke("A trip to Rome.")["city"] in CITY["enum"]


def llm(url: str, model: str) -> None:
    """A question whole and streamed."""
    with tempfile.TemporaryDirectory() as directory:
        entry = {"model_id": "axil", "model_name": model, "api_base": url}
        (Path(directory) / "extra-openai-models.yaml").write_text(json.dumps([entry]))
        command = [str(Path(sys.executable).with_name("llm")), "-m", "axil", "What is gravity?", "--no-log"]
        command += ["-o", "max_tokens", "20", "-o", "temperature", "0"]
        environment = {**os.environ, "LLM_USER_PATH": directory, "OPENAI_API_KEY": "none"}
        answers = [
            subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=True).stdout
            for more in ([], ["--no-stream"])
        ]
    assert answers[0].strip() == answers[1].strip() != ""


def ollama(url: str, model: str) -> None:
    """The model's card, a chat whole and streamed, a prompt, a forced form, and what is not offered."""
    client = Client(host=url.removesuffix("/v1"))
    assert [card.model for card in client.list().models] == [model]
    assert "tools" in (client.show(model).capabilities or ())
    wish: dict[str, Any] = {"model": model, "options": {"temperature": 0, "num_predict": 20}}
    question = [{"role": "user", "content": "What is gravity?"}]
    answer = client.chat(**wish, messages=question)
    assert answer.message.content
    assert (answer.done_reason, answer.eval_count) == ("length", 20)
    parts = list(client.chat(**wish, messages=question, stream=True))
    assert "".join(part.message.content or "" for part in parts) == answer.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert client.generate(**wish, prompt="What is gravity?").response == answer.message.content
    assert client.generate(**wish, prompt="Gravity is", raw=True).response
    forced = client.chat(**wish, messages=question, tools=[TOOL], format=WEATHER)
    assert json.loads(forced.message.content or "")["city"] in CITY["enum"]
    try:
        client.embed(model, "x")
    except ResponseError as error:
        assert error.status_code == 400
        assert "not offered" in error.error
    else:
        raise AssertionError("there are no embeddings")


CLIENTS = {
    "langchain": langchain,
    "langchain-responses": partial(langchain, uses_responses=True),
    "llm": llm,
    "ollama": ollama,
}

if __name__ == "__main__":
    main()
