"""Few-shot classification of many reviews: the examples are computed once for the whole batch."""

from __future__ import annotations

import axil

EXAMPLES = [
    ("The battery died after a week.", "negative"),
    ("Arrived early and works like a charm.", "positive"),
    ("I would buy it again without thinking twice.", "positive"),
    ("The handle broke on the first day.", "negative"),
]

REVIEWS = [
    "My daughter loves it, we use it every day.",
    "Cheap plastic, and the colour is not the one in the picture.",
    "Does exactly what it says.",
    "It stopped charging and nobody answers my letters.",
]


@axil.function
def classify(s: axil.State, review: str) -> str:
    """The mood of a review."""
    s += "Say for each review whether it is positive or negative.\n\n"
    for text, mood in EXAMPLES:
        s += f"Review: {text}\nMood: {mood}\n\n"
    s += f"Review: {review}\nMood:"
    return s.select("mood", [" positive", " negative"]).get().strip()


def main() -> None:
    """Classify all reviews and say what the shared examples have saved."""
    batch = classify.run_batch([{"review": review} for review in REVIEWS])
    for review, result in zip(REVIEWS, batch, strict=True):
        print(f"{result.value:9} {review}")
    print(batch.report)


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
