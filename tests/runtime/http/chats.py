"""A model that thinks and calls tools, for the tests of the routes that tell of it."""

from __future__ import annotations

from tests.fakes import END_OF_TURN, FakeScheduler, Script, text_ids
from wire.messages.to_scheduler import Submit

TOOL_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<tools>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}</tools>"
    "{% endif %}{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined %}"
    "{{ enable_thinking }}:{% endif %}{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom\u00e9"}}\n</tool_call>'
LONG_CALL = CALL.replace("Rom\u00e9", "Rom\u00e9" * 100)
THOUGHT = "<think>\nWhere?\n</think>\n\n"


def answers(scheduler: FakeScheduler, *texts: str) -> None:
    """Have the model say these texts, one after another; the last one again and again."""
    left = list(texts)

    def script(_: Submit) -> Script:
        text = left.pop(0) if len(left) > 1 else left[0]
        return Script([*text_ids(text), END_OF_TURN], cached_tokens=3)

    scheduler.script = script


def submits(scheduler: FakeScheduler) -> list[Submit]:
    """What has been submitted so far."""
    return [message for message in scheduler.received if isinstance(message, Submit)]


def prompt_text(submit: Submit) -> str:
    """The text of a submitted prompt, special tokens aside."""
    ids = [int.from_bytes(submit.token_ids[i : i + 4], "little") for i in range(0, len(submit.token_ids), 4)]
    return bytes(token_id for token_id in ids if token_id < 256).decode()
