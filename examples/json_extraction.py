"""Fields of a record out of free text: the frame is fixed, so the JSON always parses."""

from __future__ import annotations

import json

import axil

TEXTS = [
    "Maria Lopez, 34, lives in Madrid and works as a nurse.",
    "In Oslo we met Erik Berg, a carpenter of 52 years.",
]


@axil.function
def extract(s: axil.State, text: str) -> dict[str, object]:
    """Name, age and city of the person in a text."""
    s += "Text: Paul Weber is a baker of 41 years from Bern.\n"
    s += 'Record: {"name": "Paul Weber", "age": 41, "city": "Bern"}\n\n'
    s += f'Text: {text}\nRecord: {{"name": "'
    name = s.gen("name", max_tokens=12, stop='"', temperature=0.0)
    s += '", "age": '
    age = s.gen("age", max_tokens=4, dtype=int, temperature=0.0)
    s += ', "city": "'
    city = s.gen("city", max_tokens=8, stop='"', temperature=0.0)
    return {"name": name.get(), "age": age.get(), "city": city.get()}


def main() -> None:
    """Extract a record from each text."""
    for result in extract.run_batch([{"text": text} for text in TEXTS]):
        print(json.dumps(result.value if result.error is None else {"error": str(result.error)}))


if __name__ == "__main__":
    with axil.Engine() as engine, axil.use_backend(engine):
        main()
