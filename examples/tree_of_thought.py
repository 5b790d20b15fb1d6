"""Tree of thought: several plans, several solutions of each, and a vote; every branch shares its trunk."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import axil

QUESTION = "Anna has 3 boxes with 4 apples each. She eats 2 apples. How many apples are left?"


@axil.function
def solve(s: axil.State, question: str, num_branches: int) -> int:
    """The answer that most branches come to."""
    s += f"Question: {question}\n"
    plans = s.fork(num_branches)
    plans += lambda i: f"Plan {i + 1}:" + axil.gen("plan", max_tokens=16, stop="\n", temperature=0.7, seed=i)
    answers = []
    for plan in plans:
        solutions = plan.fork(num_branches)
        for i, solution in enumerate(solutions):
            solution += "\nSolution:" + axil.gen("steps", max_tokens=24, stop="\n", temperature=0.7, seed=i)
            solution += "\nThe answer is a number. It is "
            answers.append(solution.gen("answer", max_tokens=8, dtype=int, temperature=0.0))
    votes: Counter[int] = Counter()
    for answer in answers:
        with suppress(axil.ProgramError):  # a branch may give no number
            votes[answer.get()] += 1
    return votes.most_common(1)[0][0] if votes else 0


def main() -> None:
    """Solve one question and say what the shared trunk has saved."""
    result = solve.run(QUESTION, num_branches=2)
    print(f"{QUESTION}\nThe branches vote for {result.value}.")
    print(result.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
