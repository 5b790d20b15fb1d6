"""A chat of several turns: each turn computes only what is new."""

from __future__ import annotations

import axil

QUESTIONS = ["Name a fruit that is yellow.", "And one that is red?", "Which of the two is sweeter?"]


@axil.function
def chat(s: axil.State, questions: list[str]) -> None:
    """Ask one question after the other."""
    s += axil.system("You answer in one short sentence.")
    for i, question in enumerate(questions):
        s += axil.user(question)
        s += axil.assistant(axil.gen(f"answer{i}", max_tokens=24, temperature=0.0))


def main() -> None:
    """Chat, and show how much of each prompt came from the cache."""
    result = chat.run(QUESTIONS)
    for message in result.messages():
        print(f"{message['role']:9} {message['content']}")
    for i in range(len(QUESTIONS)):
        meta = result.meta(f"answer{i}")
        print(f"turn {i}: {meta.prompt_tokens} tokens in, {meta.cached_tokens} of them cached")


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
