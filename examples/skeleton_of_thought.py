"""Skeleton of thought: the points first, then all of them written out at the same time."""

from __future__ import annotations

import axil

TOPICS = ["the soil", "the water", "the light"]


@axil.function
def article(s: axil.State, subject: str, points: list[str]) -> None:
    """An article whose paragraphs are written side by side."""
    s += f"A short guide to {subject}. It covers {', '.join(points)}.\n"
    paragraphs = s.fork(len(points))
    paragraphs += lambda i: (
        f"\n{i + 1}. About {points[i]}:" + axil.gen("text", max_tokens=20, stop="\n", temperature=0.0)
    )
    paragraphs.join("text")
    s += "\n\nIn short:" + axil.gen("summary", max_tokens=16, stop="\n", temperature=0.0)


def main() -> None:
    """Write an article."""
    result = article.run("growing tomatoes", TOPICS)
    print(result.text())
    print(result.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
