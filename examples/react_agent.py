"""An agent that thinks, acts and observes; each step resends everything, and computes only what is new."""

from __future__ import annotations

import axil

PRICES = {"apple": 3, "bread": 5, "milk": 2}


def look_up(product: str) -> str:
    """The tool: what a product costs. It may block; programs call it through `axil.blocking`."""
    return f"{product} costs {PRICES[product]}"


@axil.function
def agent(s: axil.State, question: str, max_steps: int) -> str:
    """The agent's answer to a question about prices."""
    s += "You find out what things cost. You may look up apple, bread or milk.\n"
    s += "Question: What costs more, milk or bread?\nThought: I need both prices.\nLook up: milk\n"
    s += "Result: milk costs 2\nThought: Now the other.\nLook up: bread\nResult: bread costs 5\nAnswer: bread\n\n"
    s += f"Question: {question}\n"
    for step in range(max_steps):
        s += "Thought:" + axil.gen(f"thought{step}", max_tokens=16, stop="\n", temperature=0.0)
        s += "\nLook up: "
        product = s.select(f"product{step}", list(PRICES)).get()
        s += f"\nResult: {axil.blocking(look_up, product)}\n"
    s += "Answer:"
    return s.gen("answer", max_tokens=8, stop="\n", temperature=0.0).get().strip()


def main() -> None:
    """Ask the agent one question."""
    result = agent.run("What costs more, an apple or bread?", max_steps=2)
    print(result.text())
    print(result.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
