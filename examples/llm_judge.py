"""A judge who looks at a text from several sides at the same time and then sums up."""

from __future__ import annotations

import axil

SIDES = ["clarity", "grammar", "originality"]

ESSAY = (
    "The sea was quiet that morning. Nobody had gone out yet, and the boats lay on the sand like sleeping animals. "
    "An old man mended a net and hummed a tune that only he remembered."
)


@axil.function
def judge(s: axil.State, essay: str) -> str:
    """A verdict on an essay: good or bad."""
    s += axil.system("You are a fair judge of essays.")
    s += axil.user(f"Here is an essay.\n\n{essay}")
    s += axil.assistant("I have read it.")
    sides = s.fork(len(SIDES))
    for side, branch in zip(SIDES, sides, strict=True):
        branch += axil.user(f"Judge its {side} in one sentence.")
        branch += axil.assistant(axil.gen("note", max_tokens=24, stop="\n", temperature=0.0))
    sides.join()
    notes = "\n".join(f"{side}: {note}" for side, note in zip(SIDES, s["note"], strict=True))
    s += axil.user(f"The notes:\n{notes}\nIs the essay good or bad?")
    with s.assistant():
        s += "It is "
        verdict = s.select("verdict", ["good", "bad"])
    return verdict.get()


def main() -> None:
    """Judge one essay."""
    result = judge.run(ESSAY)
    for side, note in zip(SIDES, result["note"], strict=True):
        print(f"{side}: {note}")
    print(f"verdict: {result.value} {result.meta('verdict').scores}")
    print(result.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
