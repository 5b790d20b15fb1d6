"""Chats of a made-up coding agent, for the doctor's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.doctor.prompts import SeenPrompt

RULES = "\n".join(f"Rule {name}: be {name} in all that you do." for name in ("brief", "kind", "exact", "calm", "quick"))
SYSTEM = f"You are an agent that mends programs.\n{RULES}\nThat is all."
NAMES = ("find", "read", "run", "write")


def tool(name: str, **more: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, **more}
    return {"type": "function", "function": {"name": name, "description": f"Will {name}.", "parameters": parameters}}


TOOLS = tuple(map(tool, NAMES))


def prompt(
    i: int,
    *,
    system: str = SYSTEM,
    tools: Sequence[Mapping[str, object]] = TOOLS,
    question: str = "Mend the parser, please.",
    turns: int | None = None,
    salt: str = "",
) -> SeenPrompt:
    """The i-th request, ten seconds after the one before; turn i of one chat, unless `turns` says otherwise."""
    messages: list[dict[str, object]] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for turn in range(i if turns is None else turns):
        messages.append({"role": "assistant", "content": f"Step {turn} is made."})
        messages.append({"role": "user", "content": f"Go on after step {turn}."})
    return SeenPrompt(tools=tools, messages=messages, at_s=1000.0 + 10 * i, num_tokens=None, salt=salt)
