"""W7: answers that must be JSON of a given form: short records of characters, or of cities out of long documents."""

from __future__ import annotations

import json

from bench.growing_shapes import Answers
from bench.words import Draw
from bench.workload import Conversation, Turn, Workload

DOCUMENT_TOKENS = {"short": 32, "long": 4096}
LIMIT_TOKENS = 256
"""Not scaled: a record has the length that it has."""


def json_records(draw: Draw, *, groups: int = 20, answers: Answers = "short") -> Workload:
    """Records to be filled in from a document of their own; most of their text is forced by the form."""
    schema = json.dumps({"short": _CHARACTER, "long": _CITY}[answers])

    def record() -> Conversation:
        document = draw.text(DOCUMENT_TOKENS[answers])
        asked = Turn(text=f"{document}\nThe record in JSON:\n", output_tokens=LIMIT_TOKENS, json_schema=schema)
        return Conversation(turns=(asked,))

    return Workload(name=f"w7_{answers}", conversations=tuple(record() for _ in range(groups)))


def _record(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


_NAME = {"type": "string", "pattern": "^[A-Za-z ]{1,16}$"}
_CHARACTER = _record(
    {
        "name": _NAME,
        "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
        "blood status": {"enum": ["Pure-blood", "Half-blood", "Muggle-born"]},
        "occupation": {"enum": ["student", "teacher", "auror", "ministry of magic", "death eater", "unknown"]},
        "wand": _record({"wood": _NAME, "core": _NAME, "length": {"type": "integer", "minimum": 1, "maximum": 99}}),
        "alive": {"enum": ["Alive", "Deceased"]},
        "patronus": _NAME,
    }
)
_CITY = _record(
    {
        "name": _NAME,
        "country": _NAME,
        "latitude": {"type": "integer", "minimum": -90, "maximum": 90},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "top 3 landmarks": {"type": "array", "items": _NAME, "minItems": 3, "maxItems": 3},
    }
)
