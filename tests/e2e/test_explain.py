"""A scripted session on a real server: each request must be told the right cause of its miss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server, wait_until
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.e2e

POOL_TOKENS = 6000
TEMPLATE = """\
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages if message.role == 'user' -%}
{%- set ns.last_user = messages.index(message) -%}
{%- endfor -%}
{%- if tools -%}[tools]{%- for tool in tools -%}{{ tool | tojson }};{%- endfor -%}{%- endif -%}
{%- for message in messages -%}
[{{ message.role }}]
{%- if message.reasoning_content and loop.index0 > ns.last_user -%}
<think>{{ message.reasoning_content }}</think>
{%- endif -%}
{{ message.content }}[end]
{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""
RULES = "You help with ships, harbours and tides. Be brief, be exact, and say what you do not know."
NAMES = ("tide_table", "harbour_map", "ship_register")
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"Looks into the {name}.", "parameters": {"type": "object"}},
    }
    for name in NAMES
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two tokenizers, and keys."""
    directory = tmp_path_factory.mktemp("guarded")
    model = write_tiny_model(directory / "model", context_tokens=4096)
    server = Server(
        directory, str(model), "--dtype", "float32", "--max-total-tokens", str(POOL_TOKENS),
        "--tokenizer-workers", "2", "--api-key", "user", "--admin-api-key", "admin",
    )  # fmt: skip
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("explain")
    template = directory / "template.jinja"
    template.write_text(TEMPLATE)
    model = write_tiny_model(directory / "model", context_tokens=4096)
    server = Server(
        directory, str(model), "--dtype", "float32", "--max-total-tokens", str(POOL_TOKENS),
        "--chat-template", str(template), "--log-misses", "1",
    )  # fmt: skip
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def chat(server: Server, rid: str, messages: list[dict[str, Any]], **more: object) -> Any:  # noqa: ANN401 - any JSON
    """Have one token of an answer; returns what is told of the cache."""
    body = {"rid": rid, "messages": messages, "max_tokens": 1, "explain_cache": True, **more}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    (told,) = reply.json["cache"]
    # The same, whoever asks later.
    later = server.get(f"/requests/{rid}").json["cache"]
    assert {key: value for key, value in later.items() if key != "belt"} == {
        key: value for key, value in told.items() if key != "belt"
    } or told["miss"]["cause"] == "evicted"
    return told


def said(role: str, content: str, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_each_request_of_a_session_is_told_its_cause(server: Server) -> None:
    server.post("/flush_cache", {})
    clock = "It is 12:00:0{} o'clock.\n" + RULES

    first = chat(server, "first", [said("system", clock.format(1)), said("user", "When is high water?")])
    assert first["miss"]["cause"] in ("never_seen", "evicted")

    stamped = chat(server, "stamped", [said("system", clock.format(2)), said("user", "When is high water?")])
    miss = stamped["miss"]
    assert (miss["cause"], miss["part"], miss["change"]) == ("client_changed", "system", "edited")
    assert miss["relative"] == "first"
    assert miss["given"].startswith("2 o'clock")
    assert miss["expected"].startswith("1 o'clock")
    assert miss["position"] == stamped["cached_tokens"] == len("[system]It is 12:00:0")
    assert miss["missed_tokens"] == stamped["prompt_tokens"] - stamped["cached_tokens"]
    start, end = miss["part_tokens"]
    assert (start, end) == (0, len("[system]" + clock.format(2) + "[end]"))

    question = [said("user", "Which ships are in?")]
    assert chat(server, "tools", question, tools=TOOLS)["miss"]["cause"] == "never_seen"
    turned = chat(server, "turned", question, tools=[TOOLS[1], TOOLS[0], TOOLS[2]])
    miss = turned["miss"]
    assert (miss["cause"], miss["part"], miss["change"]) == ("client_changed", "tools", "reordered")

    story = [said("user", "A story of a long voyage. " * 20)]
    chat(server, "story", story)
    salted = chat(server, "salted", story, cache_salt="tenant")
    assert (salted["miss"]["cause"], salted["miss"]["namespace"], salted["cached_tokens"]) == ("namespace", "salt", 0)
    goes_on = chat(server, "goes-on", [*story, said("assistant", "?"), said("user", "And then?")])
    assert goes_on["cached_tokens"] >= len("[user]" + "A story of a long voyage. " * 20)
    assert goes_on["session"]["num_requests"] == 2
    assert 0 <= goes_on["session"]["survival"] <= 1

    thought = said("assistant", "Let me look.", reasoning_content="The register knows that best of all.")
    result = said("tool", "Three ships.", tool_call_id="1")
    call = [said("user", "How many ships?"), thought, result]
    assert chat(server, "call", call)["miss"]["cause"] == "never_seen"
    dropped = chat(server, "dropped", [*call, said("assistant", "Three."), said("user", "Thanks!")])
    miss = dropped["miss"]
    assert (miss["cause"], miss["change"]) == ("template_changed", "dropped_reasoning")
    assert miss["part"] == "message 1"
    assert miss["expected"].startswith("<think>")
    assert miss["given"].startswith("Let me look")

    edited = chat(server, "edited", [said("user", "How many big ships?"), thought, result, said("user", "Thanks!")])
    miss = edited["miss"]
    assert (miss["cause"], miss["part"], miss["change"]) == ("client_changed", "message 0", "edited")

    for word in ("water", "timber", "canvas"):
        chat(server, f"filler-{word}", [said("user", f"{word} " * 270)])
    evicted = chat(server, "story-again", story)
    miss = evicted["miss"]
    assert miss["cause"] == "evicted"
    assert miss["evicted"]["made_room_for"].startswith("filler")
    assert miss["evicted"]["ago_s"] > 0 < miss["evicted"]["idle_s"]

    causes = {
        line.partition('cause="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in server.get("/metrics").body.decode().splitlines()
        if line.startswith("axil_cache_misses_total{")
    }
    assert set(causes) == {"never_seen", "client_changed", "template_changed", "namespace", "evicted"}
    assert causes["client_changed"] == 3
    assert causes["template_changed"] == causes["namespace"] == 1
    assert "cause=client_changed" in server.log
    assert "part=tools change=reordered" in server.log
    assert "o'clock" not in server.log, "a prompt is in the log"


def test_a_reply_explains_itself_on_every_api_when_it_is_asked_to(server: Server) -> None:
    server.post("/flush_cache", {})
    text = "The harbour master counts the boats. " * 3
    server.generate(text, max_new_tokens=1)
    plain = server.post("/generate", {"text": text + "And?", "sampling_params": {"max_new_tokens": 1}})
    assert "X-Axil-Cache" not in plain.headers
    assert "cache" not in plain.json["meta_info"]
    asked = server.post(
        "/generate", {"text": text[:-4] + "ships. Or?", "sampling_params": {"max_new_tokens": 1}, "explain_cache": True}
    )
    told = asked.json["meta_info"]["cache"]
    assert told["miss"]["cause"] == "never_seen"
    assert told["cached_tokens"] == told["miss"]["position"] == asked.json["meta_info"]["cached_tokens"]
    assert asked.headers["X-Axil-Cache"].startswith(f"prompt={told['prompt_tokens']}, cached={told['cached_tokens']}, ")
    assert "cause=never_seen" in asked.headers["X-Axil-Cache"]
    assert told["belt"]["belt_s"] > 0
    assert f"belt={told['belt']['belt_s']:.3f}" in asked.headers["X-Axil-Cache"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_the_head_of_a_stream_has_it_too(server: Server, path: str) -> None:
    wish: dict[str, object] = {"stream": True, "max_tokens": 2, "messages": [said("user", "Hello, harbour!")]}
    if path == "/v1/completions":
        wish = {"stream": True, "max_tokens": 2, "prompt": "Hello, harbour!"}
    if path == "/v1/responses":
        wish = {"stream": True, "max_output_tokens": 2, "input": "Hello, harbour!"}
    reply = server.post(path, wish, {"X-Axil-Explain": "1"})
    assert reply.status == 200
    assert "prompt=" in reply.headers["X-Axil-Cache"]
    assert "X-Axil-Cache" not in server.post(path, wish).headers


def test_the_messages_api_has_the_diagnostics_of_its_clients(server: Server) -> None:
    server.post("/flush_cache", {})
    wish = {"max_tokens": 1, "messages": [said("user", "When is high water?")], "diagnostics": {}}
    first = server.post("/v1/messages", wish | {"system": f"It is 12:01. {RULES}"}).json
    assert first["diagnostics"]["cache_miss_reason"]["type"] == "unavailable"
    again = wish | {"system": f"It is 12:02. {RULES}", "diagnostics": {"previous_message_id": first["id"]}}
    reason = server.post("/v1/messages", again).json["diagnostics"]["cache_miss_reason"]
    assert reason["type"] == "system_changed"
    assert reason["cache_missed_input_tokens"] > len(RULES)
    assert reason["axil"]["change"] == "edited"
    unknown = server.post("/v1/messages", again | {"diagnostics": {"previous_message_id": "msg_0"}}).json
    assert unknown["diagnostics"]["cache_miss_reason"] == {"type": "previous_message_not_found"}
    assert "diagnostics" not in server.post("/v1/messages", {**wish, "diagnostics": None}).json


def test_the_last_requests_are_listed_and_one_that_is_not_there_is_404(server: Server) -> None:
    server.post(
        "/generate", {"text": "listed", "rid": "listed-1", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    )
    row = server.get("/requests?limit=1").json["requests"][0]
    assert (row["id"], row["state"], row["prompt_tokens"], row["output_tokens"]) == ("listed-1", "length", 6, 2)
    assert row["cause"] == "never_seen"
    assert row["latency_s"] >= row["first_token_s"] > 0
    assert server.get("/requests/nobody").status == 404
    for wrong in ("none", "0", "-1", "9" * 5000):
        assert server.get(f"/requests?limit={wrong}").status == 400


def test_each_session_is_told_its_own_chance_to_survive(server: Server) -> None:
    server.post("/flush_cache", {})
    talk = [said("user", "Tell me of the lighthouse, its keeper, and the winter storm.")]
    chat(server, "talk-1", talk)
    again = server.post(
        "/v1/chat/completions",
        {"rid": "talk-2", "max_tokens": 1, "messages": [*talk, said("assistant", "?"), said("user", "More.")]},
        {"X-Axil-Explain": "1"},
    )
    chance = server.get("/requests/talk-2").json["cache"]["session"]
    assert chance["num_requests"] == 2
    assert f"survival={chance['survival']:.3f}" in again.headers["X-Axil-Cache"]
    session = server.get("/belt").json["sessions"][0]
    assert (session["request_id"], session["num_requests"]) == ("talk-2", 2)
    assert session["tokens_in_cache"] > 0
    nodes = server.get("/tree").json["nodes"]
    through = [server.get(f"/belt?page={page}").json["sessions"] for page in nodes["page"] if page >= 0]
    assert "talk-2" in {each["request_id"] for sessions in through for each in sessions}
    assert server.metric("axil_idle_sessions") >= 0
    assert server.get("/belt?page=-1").status == 400


def test_all_that_the_dashboard_shows_is_in_a_scrape(server: Server) -> None:
    def scraped() -> set[str]:
        lines = server.get("/metrics").body.decode().splitlines()
        return {line.partition("{")[0].partition(" ")[0] for line in lines}

    server.generate("What is not held by a request is there to be evicted.", max_new_tokens=1)
    board = (Path(__file__).parents[2] / "docs/grafana.json").read_text("utf-8")
    shown = set(re.findall(r"\b(axil_\w+){", board))
    assert len(shown) > 30
    wait_until(lambda: shown <= scraped(), "the scheduler's next figures")


USER, ADMIN = {"Authorization": "Bearer user"}, {"Authorization": "Bearer admin"}


def ask(server: Server, rid: str, text: str, **more: object) -> None:
    wish = {"text": text, "rid": rid, "sampling_params": {"max_new_tokens": 1}, **more}
    assert server.post("/generate", wish, USER).status == 200


def test_what_tells_of_other_clients_is_for_the_admin_key_whichever_tokenizer_is_asked(guarded: Server) -> None:
    secret = "The safe of the harbour office opens with 4-8-15."
    ask(guarded, "owner", secret)
    ask(guarded, "guesser", secret.replace("4-8-15", "0-0-00"))
    ask(guarded, "other-salt", secret, cache_salt="tenant")
    for _ in range(8):  # each connection may come to either tokenizer
        shown = guarded.get("/requests/guesser", ADMIN).json["cache"]["miss"]
        hidden = guarded.get("/requests/guesser", USER).json["cache"]["miss"]
        assert shown["expected"].startswith("4-8-15")
        assert shown["relative"] == "owner"
        assert not {"expected", "given", "expected_ids", "given_ids", "relative"} & set(hidden)
        assert hidden["position"] == shown["position"] == secret.index("4-8-15")
        assert guarded.get("/requests/other-salt", ADMIN).json["cache"]["miss"]["cause"] == "namespace"
        other = guarded.get("/requests/other-salt", USER).json
        assert (other["cause"], other["cache"]["miss"]["cause"]) == ("never_seen", "never_seen")
        rows = {row["id"]: row["cause"] for row in guarded.get("/requests", USER).json["requests"]}
        assert {"owner", "guesser", "other-salt"} <= set(rows)
        assert rows["other-salt"] == "never_seen"
    assert guarded.get("/requests").status == guarded.get("/requests/owner").status == 401


def test_a_change_is_told_as_such_whichever_tokenizer_had_the_chat_before(guarded: Server) -> None:
    clock = "It is 12:00:{:02} at the harbour office. " + RULES
    for i in range(8):  # each connection may come to either tokenizer
        wish = {
            "rid": f"clock-{i}",
            "max_tokens": 1,
            "explain_cache": True,
            "messages": [said("system", clock.format(i)), said("user", "When is high water?")],
        }
        reply = guarded.post("/v1/chat/completions", wish, ADMIN)
        assert reply.status == 200, reply.body
        miss = reply.json["cache"][0]["miss"]
        if i:
            assert (miss["cause"], miss["part"], miss["change"]) == ("client_changed", "system", "edited"), i
        assert guarded.get(f"/requests/clock-{i}", USER).json["cache"]["miss"]["cause"] == miss["cause"]


def test_the_answer_before_is_known_whichever_tokenizer_gave_it(guarded: Server) -> None:
    wish = {"max_tokens": 1, "messages": [said("user", "When is low water?")], "diagnostics": {}}
    previous: dict[str, object] = {}
    for _ in range(8):
        body = guarded.post("/v1/messages", wish | {"diagnostics": previous}, USER).json
        reason = body["diagnostics"]["cache_miss_reason"]
        assert reason is None or reason["type"] != "previous_message_not_found"
        previous = {"previous_message_id": body["id"]}
