from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.template_lint.causes import cause_of
from runtime.template_lint.conversations import TOOLS, Answer, Conversation, Turn, random_one, smaller, systematic
from runtime.template_lint.lint import Report, lint
from runtime.template_lint.play import Model, play
from runtime.template_lint.report import all_hold, as_json, as_text
from runtime.template_lint.rules import broken
from runtime.text.pieces import Call
from tests.runtime.template_lint.templates import (
    ALWAYS_THINKING,
    CHATML,
    DEEPSEEK_R1,
    GEMMA,
    GEMMA_2,
    GEMMA_2_UNTRIMMED,
    HERMES,
    HERMES_WITHOUT_CALLS,
    LAST_SYSTEM_FIRST,
    LLAMA,
    LLAMA_3,
    MISTRAL,
    MISTRAL_7B,
    OPEN_ALWAYS,
    PLAIN_LINES,
    QWEN_3,
    QWEN_3_PRESERVING,
    QWEN_3_WITH_EMPTY_THOUGHTS,
    model_of,
)

EXAMPLES = Path(__file__).parents[3] / "examples"
CALLS = (Call("get_weather", '{"city": "Rome", "days": 2}'), Call("list_files", "{}"))


def _found(model: Model) -> dict[tuple[str, str], dict[str, object] | None]:
    """What is broken for which causes, with the variables that cure it."""
    report = lint(model, num_random=30, seed=1)
    return {
        (finding.fork.rule, finding.cause): None if finding.variables is None else dict(finding.variables)
        for finding in report.findings
    }


@pytest.mark.parametrize(
    ("source", "special", "eos"),
    [
        (HERMES, CHATML, "<|im_end|>"),
        ((EXAMPLES / "tools.jinja").read_text("utf-8"), CHATML, "<|im_end|>"),
        (ALWAYS_THINKING, CHATML, "<|im_end|>"),
        (GEMMA_2_UNTRIMMED, GEMMA, "<end_of_turn>"),
        (LLAMA_3.replace(" | TRIM", "").replace("strftime_now('%d %b %Y')", "'26 Jul 2024'"), LLAMA, "<|eot_id|>"),
    ],
    ids=["hermes", "example", "always thinking", "gemma untrimmed", "llama with a fixed date"],
)
def test_of_a_template_that_only_appends_all_rules_hold(source: str, special: tuple[str, ...], eos: str) -> None:
    assert _found(model_of(source, special, eos=eos)) == {}


def test_reasoning_that_is_dropped_costs_the_tool_calls_before_the_last_question() -> None:
    found = _found(model_of(QWEN_3, CHATML, eos="<|im_end|>"))
    assert found == {
        ("history", "reasoning"): None,
        ("history", "generation_prompt"): None,  # the empty thought of enable_thinking=false
        ("answer", "reasoning"): None,
    }


def test_an_empty_thought_that_only_the_last_answer_has_is_told_in_front_of_text_and_of_calls() -> None:
    found = _found(model_of(QWEN_3_WITH_EMPTY_THOUGHTS, CHATML, eos="<|im_end|>"))
    assert found.keys() == {
        ("history", "reasoning"),
        ("history", "generation_prompt"),
        ("answer", "reasoning"),
        ("answer", "generation_prompt"),
    }


def test_a_system_message_in_the_middle_that_takes_the_first_ones_place_is_told() -> None:
    assert _found(model_of(LAST_SYSTEM_FIRST, GEMMA, eos="<end_of_turn>")).keys() == {("history", "notes")}


def test_a_thought_that_the_prompt_opens_and_the_history_lacks_costs_each_turn_from_its_answer_on() -> None:
    report = lint(model_of(DEEPSEEK_R1, CHATML, eos="<|im_end|>"), num_random=10, seed=1)
    found = {(each.fork.rule, each.cause): each.fork for each in report.findings}
    assert found.keys() == {("history", "generation_prompt")}
    fork = found["history", "generation_prompt"]
    assert fork.before[fork.at_character :] == "<think>\n"
    assert len(fork.conversation.turns) == 2


def test_a_thought_that_the_prompt_opens_may_stay_as_it_was_generated() -> None:
    report = lint(model_of(OPEN_ALWAYS, CHATML, eos="<|im_end|>"), num_random=10, seed=1)
    (finding,) = report.findings
    assert not finding.fork.conversation.sends_thoughts
    assert "have clients send reasoning_content back" in as_text(report, model="open", allowed=())


def test_a_variable_of_the_template_that_cures_it_is_found() -> None:
    found = _found(model_of(QWEN_3_PRESERVING, CHATML, eos="<|im_end|>"))
    assert found["history", "reasoning"] == {"preserve_thinking": True}
    assert found["answer", "reasoning"] == {"preserve_thinking": True}


def test_a_date_in_the_system_prompt_is_told_with_how_often_it_changes() -> None:
    model = model_of(LLAMA_3.replace(" | TRIM", ""), LLAMA, eos="<|eot_id|>")
    report = lint(model, num_random=0, seed=0)
    (finding,) = report.findings
    assert (finding.fork.rule, finding.cause, finding.fork.every) == ("clock", "time", "day")
    assert finding.variables == {"date_string": "01 Jan 2026"}
    assert finding.fork.before[: finding.fork.at_character].endswith("Today Date: 1")


def test_a_clock_with_seconds_is_told_as_such() -> None:
    source = LLAMA_3.replace(" | TRIM", "").replace("%d %b %Y", "%H:%M:%S")
    (finding,) = lint(model_of(source, LLAMA, eos="<|eot_id|>"), num_random=0, seed=0).findings
    assert finding.fork.every == "second"


def test_tools_and_system_prompt_that_move_to_the_last_question_and_ids_of_calls_are_told_apart() -> None:
    found = _found(model_of(MISTRAL_7B, MISTRAL, eos="</s>"))
    assert found.keys() == {("history", "tools"), ("history", "system"), ("answer", "call_ids")}


@pytest.mark.parametrize(
    ("source", "special", "eos"),
    [
        (GEMMA_2, GEMMA, "<end_of_turn>"),
        (LLAMA_3.replace("TRIM", "trim").replace("strftime_now('%d %b %Y')", "'26 Jul 2024'"), LLAMA, "<|eot_id|>"),
    ],
    ids=["gemma", "llama"],
)
def test_whitespace_that_is_cut_off_answers_is_told(source: str, special: tuple[str, ...], eos: str) -> None:
    assert _found(model_of(source, special, eos=eos)).keys() == {("answer", "whitespace")}


def test_a_space_that_only_the_history_has_in_front_of_answers_is_told() -> None:
    found = _found(model_of(PLAIN_LINES, (), eos="</s>"))
    assert found.keys() == {("answer", "generation_prompt")}


def test_equal_text_that_is_cut_into_other_tokens_is_told() -> None:
    source = PLAIN_LINES.replace("': '", "':'")
    assert _found(model_of(source, (), eos="</s>")) == {}
    found = _found(model_of(source, (), eos="</s>", joined=":A"))  # of `assistant:` and `Answer`
    assert found.keys() == {("history", "tokens")}


def test_a_call_that_the_parser_does_not_read_is_told() -> None:
    source = HERMES.replace('"name": "', '"function": "')
    assert ("read", "parser") in _found(model_of(source, CHATML, eos="<|im_end|>"))


@pytest.mark.parametrize(
    ("example", "form"),
    [
        ("<tool_call><function=NAME></function></tool_call>", "qwen3_coder"),
        ("[func_name1(params)]", "pythonic"),
        ('{"name": function name, "parameters": dictionary}', "llama"),
    ],
)
def test_calls_that_the_template_leaves_out_are_taken_to_be_written_in_the_models_form(example: str, form: str) -> None:
    source = HERMES_WITHOUT_CALLS.replace("CALLS", example)
    model = model_of(source, CHATML, eos="<|im_end|>")
    assert model.form.call_form_name == form
    chat = Conversation(tools=TOOLS, turns=(Turn(question="Where?", answer=Answer(calls=CALLS)),))
    (exchange, *_) = play(chat, model)
    assert [piece for piece in exchange.read if isinstance(piece, Call)] == list(CALLS)


def test_the_counter_example_is_as_small_as_it_gets() -> None:
    report = lint(model_of(MISTRAL_7B, MISTRAL, eos="</s>"), num_random=30, seed=2)
    conversations = {(each.fork.rule, each.cause): each.fork.conversation for each in report.findings}
    moved = conversations["history", "system"]
    assert (len(moved.turns), moved.tools) == (2, ())
    with_ids = conversations["answer", "call_ids"]
    assert (len(with_ids.turns), with_ids.system, len(with_ids.turns[0].answer.calls)) == (2, "", 1)


def test_the_fork_is_where_the_tokens_part_and_the_cost_is_what_was_computed_behind_it() -> None:
    report = lint(model_of(GEMMA_2, GEMMA, eos="<end_of_turn>"), num_random=0, seed=0)
    fork = report.findings[0].fork
    assert fork.ids_before[: fork.at] == fork.ids_after[: fork.at]
    assert fork.ids_before[fork.at] != fork.ids_after[fork.at]
    assert fork.before[fork.at_character :] == " \n"
    assert fork.lost_tokens == 2


def _report() -> Report:
    return lint(model_of(GEMMA_2, GEMMA, eos="<end_of_turn>"), num_random=0, seed=0)


def test_the_report_tells_turns_fork_cost_and_remedy() -> None:
    text = as_text(_report(), model="gemma", allowed=())
    for words in ("answer   what was", "BROKEN", "fork      at token", "turn 1", "turn 2", "costs     2 of", "trim"):
        assert words in text
    assert "System role not supported" in text


def test_the_report_in_json_has_the_chat() -> None:
    body = json.loads(as_json(_report(), model="gemma", allowed=()))
    assert body["holds"] is False
    assert body["rules"] == {"history": True, "answer": False, "read": True, "clock": True}
    (finding,) = body["findings"]
    assert [message["role"] for message in finding["messages"]] == ["user", "assistant", "user", "assistant"]
    assert (finding["cause"], finding["lost_tokens"], finding["before"]) == ("whitespace", 2, " \n")


@pytest.mark.parametrize("allowed", ["whitespace", "answer"])
def test_what_is_allowed_is_shown_and_no_failure(allowed: str) -> None:
    report = _report()
    assert not all_hold(report, ["clock"])
    assert all_hold(report, [allowed])
    assert "(allowed)" in as_text(report, model="gemma", allowed=[allowed])


def test_random_chats_are_the_same_for_a_seed_and_whole() -> None:
    chats = [random_one(f"7:{i}", with_tools=True, with_thoughts=True) for i in range(50)]
    assert chats == [random_one(f"7:{i}", with_tools=True, with_thoughts=True) for i in range(50)]
    assert all(chat.is_whole for chat in chats)
    assert any(len(turn.answer.calls) > 1 for chat in chats for turn in chat.turns)


def test_the_systematic_chats_have_everything() -> None:
    chats = list(systematic(with_tools=True, with_thoughts=True))
    assert all(chat.is_whole for chat in chats)
    answers = [turn.answer for chat in chats for turn in chat.turns]
    assert any(len(answer.calls) > 1 for answer in answers)
    assert any(answer.thought and answer.calls for answer in answers)
    assert any(turn.note for chat in chats for turn in chat.turns)
    assert {chat.sends_thoughts for chat in chats} == {True, False}


def test_shrinking_ends_and_keeps_what_fails() -> None:
    model = model_of(GEMMA_2, GEMMA, eos="<end_of_turn>")
    chat = next(
        chat for chat in systematic(with_tools=False, with_thoughts=False) if "gap" in chat.turns[0].answer.text
    )

    def fails(each: Conversation) -> bool:
        return each.is_whole and any(cause_of(fork) == "whitespace" for fork in broken(each, model))

    steps = 0
    while (less := next(filter(fails, smaller(chat)), None)) is not None:
        chat, steps = less, steps + 1
        assert steps < 50
    assert len(chat.turns) == 2
