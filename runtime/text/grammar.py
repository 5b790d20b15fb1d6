"""Grammars that an answer must follow: read from the forms in which requests give them, and tried before they run.

A grammar is tried in a thread and for a bounded time: one that is wrong, or would take too long at each token, is
refused. What runs is llguidance (https://github.com/guidance-ai/llguidance), here and beside the sampler.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import orjson
from llguidance import LLMatcher, LLTokenizer, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from wire.errors import Overloaded, Refused
from wire.grammar_tokenizer import UNWRITTEN, grammar_tokenizer, unwritten
from wire.sampling import Grammar

from .tokenizer import Tokenizer

MAX_SOURCE_CHARACTERS = 262_144
MAX_REPETITIONS = 1000
TRIAL_S = 10.0
"""How long a request waits for its grammar to be tried."""

MOST_CPU_S = 1.0
"""The work that building a grammar and finding its first tokens may take: the runner does it again, and where it isn't
done when the prompt is computed, everybody waits."""

_NUM_THREADS = 2
_REMEMBERED = 1024
_SHOWN_CHARACTERS = 300
_WHITESPACE = r"[ \n]{0,16}"
"""Between the parts of JSON: enough to indent it, not enough to go on with for ever."""

_REGEX_FLAW = re.compile(r"regex parse error:.*?^error: ([^\n]+)", re.DOTALL | re.MULTILINE)
"""What is wrong with a pattern, behind a drawing of where."""

_LARK_PART = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|<[^<>\s]+>')
"""What is asked for: a text, a pattern, or a special token by its name; or any of some tokens, by their ids."""

_REGEX_LITERAL = re.compile(r"/((?:\\.|[^/\\\n])+)/")
_PATTERN_TOKEN = re.compile(r"\\.|\{(?P<low>\d{0,9})(?:,(?P<high>\d{0,9}))?\}|.", re.DOTALL)
_REPETITION = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def json_grammar(schema: object, *, field: str) -> Grammar:
    """Any text of JSON that suits `schema` (an object or boolean, or one as text).

    Raises:
        Refused: it is no schema, or a pattern in it repeats too often.
    """
    if isinstance(schema, str | bytes):
        _check_size(len(schema), field)
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise Refused(f"{field} is no JSON: {error}. Send a JSON schema.", field=field) from None
    if not isinstance(schema, dict | bool):
        raise Refused(f"{field} must be a JSON schema, which is an object, got {_shown(schema)}.", field=field)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    try:
        text = orjson.dumps(schema).decode()
    except orjson.JSONEncodeError as error:
        raise Refused(f"{field} is no JSON schema: {error}. Nest it less deeply or mend it.", field=field) from None
    # As text: handed over as an object, one that is nested thousands of times overflows the library's stack.
    try:
        source = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITESPACE})
    except ValueError as error:  # nested less deeply than JSON may be, more deeply than the library reads
        raise Refused(f"{field} is no JSON schema: {error}. Nest it less deeply or mend it.", field=field) from None
    grammar = _grammar(source, field)
    for pattern in _patterns(schema):
        _check_repetitions(pattern, field=field)
    return grammar


def regex_grammar(pattern: str, *, field: str) -> Grammar:
    """Any text that `pattern` matches as a whole.

    Raises:
        Refused: it repeats something too often.
    """
    grammar = _grammar(LLMatcher.grammar_from_regex(pattern), field)
    _check_repetitions(pattern, field=field)
    return grammar


def ebnf_grammar(text: str, *, field: str) -> Grammar:
    """Any text of a context-free grammar, written as Lark's or as llama.cpp's GBNF.

    Raises:
        Refused: it can't be read, or repeats something too often.
    """
    _check_size(len(text), field)
    for literal in _REGEX_LITERAL.findall(text):
        _check_repetitions(literal, field=field)
    for line in text.splitlines():
        product = 1
        for low, high in _REPETITION.findall(_REGEX_LITERAL.sub("", line)):
            product *= max(int(low or 1), int(high or 1), 1)
        if product > MAX_REPETITIONS:
            raise _too_often(line, field)
    try:
        source = LLMatcher.grammar_from_lark(_LARK_PART.sub(_unwritten, any_to_lark(text)))
    except Exception as error:  # the library raises plain Exception
        raise Refused(f"{field} is no grammar: {error}. Mend it.", field=field) from None
    return _grammar(source, field)


def _unwritten(part: re.Match[str]) -> str:
    """The part of a grammar, in which a special token has its name in the tokenizer for grammars."""
    is_name = part[0].startswith("<") and not part[0].startswith("<[")
    return unwritten(part[0]) if is_name else part[0]


def lark_grammar(text: str, *, field: str) -> Grammar:
    """Any text of a grammar that this server has written, in llguidance's Lark.

    Raises:
        Refused: it's longer than a grammar may be.
    """
    return _grammar(LLMatcher.grammar_from_lark(text), field)


def grammars_of(grammar: Grammar) -> list[dict[str, object]]:
    """The grammars in llguidance's list that one source stands for, the first being the one that others serve."""
    if not grammar.source.startswith("{"):
        return [{"lark_grammar": grammar.source}]
    found = orjson.loads(grammar.source)["grammars"]
    assert isinstance(found, list)
    return found


def choice_grammar(choices: Sequence[str], *, field: str) -> Grammar:
    """One of `choices`.

    Raises:
        Refused: there are none, or one is empty.
    """
    if not choices or not all(choices):
        raise Refused(f"{field} must hold at least one choice, and none that is empty.", field=field)
    alternatives = " | ".join(orjson.dumps(choice).decode() for choice in choices)
    return _grammar(LLMatcher.grammar_from_lark(f"start: {alternatives}"), field)


def tags_grammar(text: str, *, field: str) -> Grammar:
    """Free text in which each of the triggers begins a structure: `{"structures": [{begin, schema, end}], "triggers"}`.

    Raises:
        Refused: it isn't of that form.
    """
    _check_size(len(text), field)
    try:
        given = msgspec.json.decode(text, type=_Tags)
        tags = [
            StructTag(
                trigger=next(trigger for trigger in given.triggers if structure.begin.startswith(trigger)),
                begin=structure.begin,
                grammar=structure.schema,
                end=structure.end,
            )
            for structure in given.structures
        ]
    except StopIteration:
        raise Refused(f"each begin in {field} must start with one of its triggers.", field=field) from None
    except (msgspec.ValidationError, msgspec.DecodeError, AssertionError, RecursionError) as error:
        raise Refused(
            f"{field} must hold structures (begin, schema, end) and triggers: {error}.", field=field
        ) from None
    if not tags:
        raise Refused(f"{field} must hold at least one structure.", field=field)
    for structure in given.structures:
        for pattern in _patterns(structure.schema):
            _check_repetitions(pattern, field=field)
    return _grammar(LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False)), field)


class GrammarTrial:
    """Tries grammars with the model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
        self._room = asyncio.Semaphore(2 * _NUM_THREADS)
        self._open: dict[str, asyncio.Task[str]] = {}
        self._known: OrderedDict[bytes, str] = OrderedDict()  # by a digest: sources may be long

    async def tried(self, grammar: Grammar) -> Grammar:
        """Give the grammar as the runner needs it.

        Raises:
            Refused: it is wrong or too complex, or this model has no token to end an answer with.
            Overloaded: others are being tried and take their time.
        """
        if not self._model.eos_token_ids:
            raise Refused(
                f"{grammar.field} can't be used: this model has no end-of-sequence token.", field=grammar.field
            )
        digest = hashlib.blake2b(grammar.source.encode("utf-8", "surrogatepass")).digest()
        error = self._known.get(digest)
        if error is None:
            error = await asyncio.shield(self._begun(digest, grammar.source))
            self._known.setdefault(digest, error)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        if error:
            raise Refused(f"{grammar.field} can't be followed: {error}. Mend or simplify it.", field=grammar.field)
        return msgspec.structs.replace(grammar, eos_token_ids=tuple(self._model.eos_token_ids))

    def prepare(self) -> None:
        """Make the vocabulary's tables, which takes half a second in which nothing else runs."""
        if self._model.eos_token_ids:
            self._prepared()

    def _prepared(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                grammar_tokenizer(self._model.to_json()), eos_token=list(self._model.eos_token_ids)
            )
        return self._tokenizer

    def _begun(self, digest: bytes, source: str) -> asyncio.Task[str]:
        """The trial of a grammar, which all requests that bring the same one at the same time share."""
        trial = self._open.get(source)
        if trial is None:
            trial = self._open[source] = asyncio.create_task(self._trial(self._prepared(), digest, source))
            trial.add_done_callback(lambda ended: self._close(source, ended))
        return trial

    def _close(self, source: str, trial: asyncio.Task[str]) -> None:
        del self._open[source]
        if not trial.cancelled():
            trial.exception()  # whoever waited for it may have gone

    async def _trial(self, tokenizer: LLTokenizer, digest: bytes, source: str) -> str:
        """What is wrong with a grammar; empty when nothing is."""
        try:
            async with asyncio.timeout(TRIAL_S):
                await self._room.acquire()
        except TimeoutError:
            raise Overloaded("other requests' grammars are being tried. Try again later.") from None
        work = asyncio.get_running_loop().run_in_executor(self._threads, _try, tokenizer, source)
        work.add_done_callback(lambda ended: self._ended(digest, ended))
        try:
            return await asyncio.wait_for(asyncio.shield(work), TRIAL_S)
        except TimeoutError:
            return f"it took more than {TRIAL_S:g} s to try it"

    def _ended(self, digest: bytes, work: asyncio.Future[str]) -> None:
        """Where nobody has waited so long, as on a machine that was busy, its outcome counts from now on."""
        self._room.release()
        if not work.cancelled() and work.exception() is None:
            self._known[digest] = work.result()


class _Structure(msgspec.Struct):
    begin: str
    end: str
    schema: dict[str, object] = {}


class _Tags(msgspec.Struct):
    structures: list[_Structure]
    triggers: list[str]


def _try(tokenizer: LLTokenizer, source: str) -> str:
    began_s = time.thread_time()
    matcher = LLMatcher(tokenizer, source, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if (took_s := time.thread_time() - began_s) > MOST_CPU_S:
        return f"to build it takes {took_s:.1f} s of work, and at most {MOST_CPU_S:g} s are allowed"
    error = str(matcher.get_error()).replace(UNWRITTEN, "")
    if flaw := _REGEX_FLAW.search(error):
        return f"error in the pattern: {flaw[1]}"[:_SHOWN_CHARACTERS]
    return " ".join(error.split())[:_SHOWN_CHARACTERS]


def _grammar(source: str, field: str) -> Grammar:
    _check_size(len(source), field)
    return Grammar(source=source, field=field)


def _check_size(num_characters: int, field: str) -> None:
    """Refuse what is too long before anything is done with it: this runs where all requests' events do."""
    if num_characters > MAX_SOURCE_CHARACTERS:
        raise Refused(
            f"{field} has {num_characters:,} characters; at most {MAX_SOURCE_CHARACTERS:,} are allowed. Shorten it.",
            field=field,
        )


def _patterns(schema: object) -> list[str]:
    """All regular expressions in a schema."""
    found: list[str] = []
    stack: list[object] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            pattern = item.get("pattern")
            found += [pattern] if isinstance(pattern, str) else []
            named = item.get("patternProperties")
            found += list(named) if isinstance(named, dict) else []
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return found


def _check_repetitions(pattern: str, *, field: str) -> None:
    """Refuse what would be unrolled into a huge machine; any other flaw llguidance finds itself. O(characters)."""
    if "{" in pattern and _most_repetitions(pattern) > MAX_REPETITIONS:
        raise _too_often(pattern, field)


def _most_repetitions(pattern: str) -> int:
    """How often the part of a pattern that is repeated most is repeated, by all that stand around it together."""
    groups = [1]
    latest = 1
    class_at: int | None = None
    for token in _PATTERN_TOKEN.finditer(pattern):
        text = token[0]
        if class_at is not None:
            if text == "]" and pattern[class_at : token.start()] not in ("[", "[^"):
                class_at = None
        elif text == "(":
            groups.append(1)
            latest = 1
        elif text == ")" and len(groups) > 1:
            latest = groups.pop()
        elif text[0] == "{" and len(text) > 2:
            latest *= max(int(token["low"] or 1), int(token["high"] or 1))
        elif text not in "*+?":
            latest = 1
            class_at = token.start() if text == "[" else None
        groups[-1] = max(groups[-1], latest)
    return max(groups)


def _too_often(what: str, field: str) -> Refused:
    return Refused(
        f"{field} repeats something more than {MAX_REPETITIONS:,} times ({_shown(what)}). Repeat it less often.",
        field=field,
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
