"""Many questions about one document: the document is computed once, however many ask at the same time."""

from __future__ import annotations

import axil

DOCUMENT = (
    "The lighthouse of Kap Arkona was built in 1827 by Karl Friedrich Schinkel. It is 19 metres high and made of "
    "brick. A second tower, 35 metres high, was built beside it in 1902. The old tower is a museum today. From its "
    "platform one sees the island of Hiddensee and, on clear days, the Danish island of Moen."
)

QUESTIONS = [
    "When was the old lighthouse built?",
    "How high is the second tower?",
    "What is the old tower today?",
]


@axil.function
def answer(s: axil.State, question: str) -> str:
    """A short answer from the document."""
    s += axil.system(f"Answer from this document.\n\n{DOCUMENT}")
    s += axil.user(question)
    s += axil.assistant(axil.gen("answer", max_tokens=24, temperature=0.0))
    return str(s["answer"])


def main() -> None:
    """Answer all questions at the same time, and say what sharing the document has saved."""
    batch = answer.run_batch([{"question": question} for question in QUESTIONS])
    for question, result in zip(QUESTIONS, batch, strict=True):
        print(f"{question}\n  {result.value}")
    print(batch.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
