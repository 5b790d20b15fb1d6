from __future__ import annotations

import json
import random
import uuid

import pytest

from runtime.doctor.diagnose import diagnose
from runtime.doctor.diagnosis import Diagnosis, merged, told, without_text
from runtime.doctor.prompts import SeenPrompt
from tests.runtime.doctor.chats import NAMES, SYSTEM, TOOLS, prompt, tool


def _found(prompts: list[SeenPrompt]) -> list[tuple[str, str]]:
    """Place and kind of all findings, in the order of their places."""
    return [(each.place, each.kind) for group in diagnose(prompts).groups for each in group.findings]


def test_a_chat_that_grows_has_nothing() -> None:
    assert _found([prompt(i) for i in range(8)]) == []


def test_many_chats_of_one_client_have_nothing() -> None:
    words = ("parser", "lexer", "linker", "loader", "printer")
    prompts = [prompt(i, question=f"Mend the {word}.", turns=0) for i, word in enumerate(words)]
    diagnosis = diagnose(prompts)
    assert [group.requests for group in diagnosis.groups] == [5]
    assert diagnosis.groups[0].findings == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (lambda i: f"Now: 2026-03-09 18:{i:02}:31", "timestamp"),
        (lambda i: f"Session: {uuid.UUID(int=random.Random(i).getrandbits(128))}", "uuid"),
        (lambda i: f"Request {i}", "counter"),
        (lambda i: f"x-anthropic-billing-header: cc_version=2.1.1.7b4; cch={i * 7919 + 65536:05x};", "billing_header"),
        (lambda i: f"Trace {random.Random(i).getrandbits(40):010x}", "nonce"),
    ],
)
def test_a_line_that_is_new_in_each_turn_is_found(line: object, kind: str) -> None:
    assert callable(line)
    prompts = [prompt(i, system=f"{line(i)}\n{SYSTEM}") for i in range(6)]
    assert _found(prompts) == [("system", kind)]


def test_what_it_costs_is_everything_behind_it_in_each_turn() -> None:
    def prompts(place: str) -> list[SeenPrompt]:
        at_front, at_end = ("{}\n" + SYSTEM, SYSTEM + "\n{}")
        form = at_front if place == "front" else at_end
        return [prompt(i, system=form.format(f"Now: 2026-03-09 18:{i:02}:31")) for i in range(6)]

    front, end = diagnose(prompts("front")), diagnose(prompts("end"))
    (finding,) = front.groups[0].findings
    assert (finding.changed, finding.of, finding.scope) == (5, 5, "turn")
    assert finding.tokens_before < 5
    total = sum(each.tokens for each in prompts("front")[:-1])
    assert finding.lost_tokens == pytest.approx(total, rel=0.05)
    assert front.groups[0].lost_tokens == finding.lost_tokens
    assert end.groups[0].lost_tokens < front.groups[0].lost_tokens


def test_rates_are_told_for_a_day() -> None:
    prompts = [prompt(i, system=f"Now: 18:{i:02}\n{SYSTEM}") for i in range(6)]
    body = told(diagnose(prompts, token_s=0.001))
    group = body["groups"][0]  # type: ignore[index]
    a_day = group["lost_tokens"] * 86400 / 50
    assert group["lost_tokens_a_day"] == round(a_day)
    assert group["lost_seconds_a_day"] == pytest.approx(a_day / 1000, abs=0.1)


def test_a_reordered_tool_list_is_found() -> None:
    def shuffled(i: int) -> list[dict[str, object]]:
        return [tool(name) for name in NAMES[i % 4 :] + NAMES[: i % 4]]

    assert _found([prompt(i, tools=shuffled(i)) for i in range(6)]) == [("tools", "tool_order")]


def test_a_rotating_tool_list_is_found() -> None:
    prompts = [prompt(i, tools=[each for k, each in enumerate(TOOLS) if k != i % 4]) for i in range(8)]
    assert _found(prompts) == [("tools", "tool_set")]


def test_reordered_keys_are_found() -> None:
    def with_keys(i: int) -> list[dict[str, object]]:
        return [tool("stat", **dict([("a", 1), ("b", 2)][:: 1 if i % 2 else -1])), *TOOLS]

    assert _found([prompt(i, tools=with_keys(i)) for i in range(6)]) == [("tools", "key_order")]


def test_a_time_in_a_tools_description_is_found() -> None:
    prompts = [prompt(i, tools=[tool("now", default=f"18:{i:02}:00"), *TOOLS]) for i in range(6)]
    assert _found(prompts) == [("tool now", "timestamp")]


def test_whitespace_that_changes_is_found() -> None:
    prompts = [prompt(i, system=SYSTEM.replace("Rule kind: be", f"Rule kind:{' ' * (i + 2)}be")) for i in range(6)]
    assert _found(prompts) == [("system", "whitespace")]


def test_a_time_in_the_first_message_of_a_chat_is_found() -> None:
    prompts = [prompt(i, question=f"It is 2026-03-09 18:{i:02}.\nMend the parser, please.") for i in range(6)]
    assert _found(prompts) == [("message 1 (user)", "timestamp")]


def test_chats_whose_oldest_messages_are_left_out_are_found() -> None:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

    def cut(i: int) -> SeenPrompt:
        whole = prompt(i, turns=8 + i)
        for message, word in zip(whole.messages[1:], words, strict=False):
            assert isinstance(message, dict)
            message["content"] += f" This is {word}."
        return SeenPrompt(tools=TOOLS, messages=[*whole.messages[:1], *whole.messages[2 * i + 1 :]], at_s=whole.at_s)

    assert _found([cut(i) for i in range(6)]) == [("message 1", "trimmed")]


def test_a_salt_for_each_request_is_found() -> None:
    assert _found([prompt(i, salt=f"s{i}") for i in range(6)]) == [("cache_salt", "salt")]
    assert _found([prompt(i, salt=f"user {i % 2}") for i in range(6)]) == []


def test_what_salts_cost_is_what_prompts_have_in_common_and_in_the_sum() -> None:
    words = ("alpha", "beta", "gamma", "delta")
    prompts = [prompt(i, salt=f"s{i}", question=f"{words[i]}?", turns=0, tools=()) for i in range(4)]
    (group,) = diagnose(prompts).groups
    (finding,) = group.findings
    assert (finding.changed, finding.of) == (3, 3)
    assert group.lost_tokens == finding.lost_tokens == pytest.approx(3 * len(SYSTEM) / 4, rel=0.1)
    timed = [prompt(i, salt=f"s{i}", system=f"{SYSTEM}\nIt is 18:{i:02}:31.\n{SYSTEM}") for i in range(4)]
    (group,) = diagnose(timed).groups
    assert [finding.kind for finding in group.findings] == ["salt", "timestamp"]
    assert group.lost_tokens == sum(finding.lost_tokens for finding in group.findings)


def _raw(text: str, i: int = 0, *, salt: str = "") -> SeenPrompt:
    return SeenPrompt(tools=(), messages=[{"role": "prompt", "content": text}], salt=salt, at_s=1000.0 + 10 * i)


def test_what_salts_cost_raw_prompts_is_how_they_begin_and_nothing_is_no_finding() -> None:
    words = ("alpha", "beta", "gamma", "delta")
    (group,) = diagnose([_raw(f"{SYSTEM}\n{word}", i, salt=word) for i, word in enumerate(words)]).groups
    (finding,) = group.findings
    assert group.lost_tokens == finding.lost_tokens == pytest.approx(3 * len(SYSTEM) / 4, rel=0.1)
    assert _found([_raw(f"{word} is a letter that Greeks know", salt=word) for word in words]) == []


def test_raw_prompts_are_of_one_kind_where_they_begin_alike_and_are_titled_by_that() -> None:
    prompts = [_raw("The capital of France is"), _raw("The capital of Spain is"), _raw("def gcd(a, b):\n    return")]
    prompts += [_raw("Now add up what the till has seen today: 5")] * 2
    groups = merged([diagnose(prompts)]).groups
    assert {(group.title, group.requests) for group in groups} == {
        ("The capital of…", 2),
        ("def gcd(a, b):", 1),
        ("Now add up what the till has seen today: 5", 2),
    }


def test_a_sum_has_only_what_is_told() -> None:
    edited = ("the parser", "a lexer", "my linker", "one loader", "our printer", "his tool")
    prompts = [prompt(i, turns=2) for i in range(6)]
    for i, (each, word) in enumerate(zip(prompts, edited, strict=True)):
        each.messages[2]["content"] = f"I mend {word}."  # type: ignore[index]
        each.messages[3]["content"] = f"It is 18:{i:02}:31. " + "Go on. " * 30  # type: ignore[index]
    (group,) = diagnose(prompts).groups
    (finding,) = group.findings
    assert group.lost_tokens == finding.lost_tokens


def test_what_is_new_in_each_chat_only_is_told_as_such() -> None:
    names = ("Alice", "Bob", "Carol", "Dave")
    prompts = [
        prompt(turn, system=f"You talk to {name}.\n{SYSTEM}", question=f"I am {name}, help.")
        for name in names
        for turn in range(3)
    ]
    (finding,) = diagnose(prompts).groups[0].findings
    assert (finding.scope, finding.place, finding.changed, finding.of) == ("conversation", "system", 3, 3)


def test_a_front_that_was_seen_before_costs_nothing() -> None:
    names = ("Alice", "Bob")
    prompts = [
        prompt(i, system=f"You talk to {names[i % 2]}.\n{SYSTEM}", question=f"Thing {chr(97 + i)}?", turns=0)
        for i in range(10)
    ]
    assert _found(prompts) == []


def test_clients_are_told_apart() -> None:
    other = "A poet speaks here, in verse only, and never of programs."
    prompts = [prompt(i) for i in range(4)]
    prompts += [prompt(i, system=f"{other}\n18:{i:02}:00\n{other}", tools=()) for i in range(4)]
    diagnosis = diagnose(prompts)
    assert [(group.requests, len(group.findings)) for group in diagnosis.groups] == [(4, 1), (4, 0)]


def test_nothing_at_all_is_a_diagnosis_too() -> None:
    assert told(diagnose([])) == {"requests": 0, "window_s": 0.0, "seconds_per_token": None, "groups": []}


def _ill() -> Diagnosis:
    return diagnose([prompt(i, system=f"Now: 18:{i:02}:00, secret words\n{SYSTEM}") for i in range(6)])


def test_without_text_there_is_none_of_it() -> None:
    shown = json.dumps(told(without_text(_ill())))
    assert "secret" not in shown
    assert "18:0" not in shown
    assert "Now" not in shown
    assert "Now: " in json.dumps(told(_ill()))


def test_the_findings_of_several_tokenizers_are_one() -> None:
    one, other = _ill(), _ill()
    both = merged([one, other])
    (group,) = both.groups
    (finding,) = group.findings
    assert (both.requests, group.requests, finding.changed, finding.of) == (12, 12, 10, 10)
    assert group.lost_tokens == 2 * one.groups[0].lost_tokens
