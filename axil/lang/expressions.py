"""What may be added to a state: text, calls, choices and turns of a chat. Only values; nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypedDict, TypeVar, Unpack, get_args, overload

import msgspec

from wire.names import near

from .backend import Role, Wish
from .errors import Unsupported, WrongUse

T = TypeVar("T", covariant=True)
D = TypeVar("D", str, int, float, bool)

Method = Literal["token-length-normalized", "greedy-token", "unconditional-normalized"]

DEFAULT_METHOD: Method = "token-length-normalized"

DEFAULT_MAX_TOKENS = 128
"""Tokens of an answer whose call doesn't say how many."""

_FORMS: dict[type | None, str] = {
    int: r" ?[-+]?[0-9]{1,18}[^0-9]?",
    float: r" ?[-+]?[0-9]{1,18}([.][0-9]{1,18})?[^0-9]?",
    bool: r" ?([Tt]rue|[Ff]alse|[Yy]es|[Nn]o)",
}
"""What the answer to a call with a `dtype` looks like. A model ends a number by what it writes behind it."""

_OF_ONE_CALL = ("name", "max_tokens", "n", "dtype", "choices", "choices_method")
"""What `gen` takes besides `Options`."""


class Expression:
    """A piece of a program; pieces and strings are joined by `+`."""

    __slots__ = ()

    def __add__(self, other: Expression | str) -> Joined:
        return Joined((*_parts(self), *_parts(other)))

    def __radd__(self, other: str) -> Joined:
        return Joined((*_parts(other), *_parts(self)))


@dataclass(frozen=True, slots=True)
class Text(Expression):
    """Constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class Joined(Expression):
    """Pieces one after the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Gen(Expression, Generic[T]):
    """A call: the model writes on, and its answer becomes the variable `name` (None: no variable)."""

    name: str | None
    wish: Wish
    dtype: type | None


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """A choice: the likeliest of `choices` as a continuation; it becomes the variable `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: Method


@dataclass(frozen=True, slots=True)
class TurnBegin(Expression):
    """A turn of `role` begins."""

    role: Role


@dataclass(frozen=True, slots=True)
class TurnEnd(Expression):
    """The open turn of `role` ends."""

    role: Role


class Options(TypedDict, total=False):
    """What a call may say about how its tokens are chosen; what it leaves out the backend chooses.

    `logprobs` counts the likely tokens to tell for each position, 0 the chosen one only (see `state.meta(name)`).
    `regex` and `json_schema` force the answer's form.
    """

    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: dict[int, float] | None
    seed: int | None
    ignore_eos: bool | None
    regex: str | None
    json_schema: str | dict[str, object] | None
    logprobs: int | None


@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    dtype: type[D],
    **options: Unpack[Options],
) -> Gen[D]: ...


@overload
def gen(  # type: ignore[overload-overlap]  # an n that is no literal may be 1, and gives a list of one
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    n: Literal[1] = 1,
    **options: Unpack[Options],
) -> Gen[str]: ...


@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    n: int,
    **options: Unpack[Options],
) -> Gen[list[str]]: ...


@overload
def gen(name: str | None = None, *, choices: Sequence[str], choices_method: Method = DEFAULT_METHOD) -> Select: ...


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    n: int = 1,
    dtype: type | None = None,
    choices: Sequence[str] | None = None,
    choices_method: Method = DEFAULT_METHOD,
    **options: Unpack[Options],
) -> Gen[Any] | Select:
    """Let the model write on; its answer becomes the variable `name` and part of the text.

    `dtype` (str, int, float, bool) turns the answer into that type, and gives it that form where the backend can. With
    `n` above 1 the variable is a list of `n` answers, and the text goes on with the first. `choices` makes it a
    `select`.
    """
    for option in options.keys() - Options.__annotations__.keys():
        known = (*_OF_ONE_CALL, *Options.__annotations__)
        raise TypeError(f"gen has no option {option!r}{near(option, known)}")
    if choices is not None:
        if max_tokens is not None or n != 1 or dtype is not None or options:
            raise WrongUse("with choices, gen takes choices_method only; nothing is sampled.", field="choices")
        return select(name, choices, method=choices_method)
    if dtype not in (None, str, int, float, bool):
        raise WrongUse(f"dtype must be str, int, float or bool, got {dtype!r}.", field="dtype")
    if n < 1 or (n > 1 and dtype is not None):
        raise WrongUse(f"n must be at least 1, and 1 with a dtype; got {n}.", field="n")
    wish = _wish(DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens, n, likely_regex=_FORMS.get(dtype), **options)
    return Gen(name, wish, dtype)


def checked_defaults(**options: Unpack[Options]) -> dict[str, Any]:
    """Turn options into the fields of a `Wish` that they set.

    Raises:
        TypeError: there is no such option for a whole program.
    """
    for name in options.keys() - Options.__annotations__.keys():
        of_gen = ": it belongs into each gen(…)" if name in _OF_ONE_CALL else None
        meant = of_gen or near(name, ("backend", "stream", *Options.__annotations__))
        raise TypeError(f"using has no option {name!r}{meant}")
    wish = _wish(0, 1, **options)
    empty = Wish(max_tokens=0)
    return {name: value for name in wish.__struct_fields__ if (value := getattr(wish, name)) != getattr(empty, name)}


def _wish(
    max_tokens: int,
    n: int,
    *,
    stop: str | Sequence[str] = (),
    stop_regex: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    logit_bias: dict[int, float] | None = None,
    regex: str | None = None,
    json_schema: str | dict[str, object] | None = None,
    logprobs: int | None = None,
    **options: Any,  # noqa: ANN401 - named and typed by `Options`, passed on as they are
) -> Wish:
    if regex is not None and json_schema is not None:
        raise WrongUse("regex and json_schema can't both force the answer's form; give one.", field="json_schema")
    if isinstance(json_schema, dict):
        json_schema = msgspec.json.encode(json_schema).decode()
    return Wish(
        max_tokens=max_tokens,
        n=n,
        stop=_strings(stop),
        stop_regex=_strings(stop_regex),
        stop_token_ids=tuple(stop_token_ids),
        logit_bias=tuple((logit_bias or {}).items()),
        regex=regex,
        json_schema=json_schema,
        num_top_logprobs=logprobs,
        **options,
    )


def select(name: str | None, choices: Sequence[str], *, method: Method = DEFAULT_METHOD) -> Select:
    """Append the likeliest of `choices`; it becomes the variable `name`.

    `token-length-normalized`: the highest mean logprob per token. `greedy-token`: the one whose first token is the
    likeliest, ties by the next. `unconditional-normalized`: the highest sum of logprobs less that of the choice with
    nothing before it.
    """
    if isinstance(choices, str) or len(choices) == 0:
        raise WrongUse(f"choices must be a list of at least one string, got {choices!r}.", field="choices")
    if any(not isinstance(choice, str) or not choice for choice in choices):
        raise WrongUse("each of choices must be a string that isn't empty.", field="choices")
    if len(set(choices)) < len(choices):
        raise WrongUse("choices holds the same string twice.", field="choices")
    if method not in get_args(Method):
        raise WrongUse(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.", field="method")
    return Select(name, tuple(choices), method)


def system(content: Expression | str | None = None) -> Expression:
    """A system turn that holds `content`."""
    return _turn("system", content)


def user(content: Expression | str | None = None) -> Expression:
    """A user's turn that holds `content`."""
    return _turn("user", content)


def assistant(content: Expression | str | None = None) -> Expression:
    """An assistant's turn that holds `content`, usually a `gen`."""
    return _turn("assistant", content)


def system_begin() -> Expression:
    """A system turn begins; what is added next stands in it."""
    return TurnBegin("system")


def system_end() -> Expression:
    """The system turn ends."""
    return TurnEnd("system")


def user_begin() -> Expression:
    """A user's turn begins; what is added next stands in it."""
    return TurnBegin("user")


def user_end() -> Expression:
    """The user's turn ends."""
    return TurnEnd("user")


def assistant_begin() -> Expression:
    """An assistant's turn begins; what is added next stands in it."""
    return TurnBegin("assistant")


def assistant_end() -> Expression:
    """The assistant's turn ends."""
    return TurnEnd("assistant")


def image(source: object) -> NoReturn:
    """Refuse: axil serves text models."""
    raise Unsupported("images can't be given: axil serves models of text only. Describe the image in words.")


def flat(expression: Expression | str) -> tuple[Expression, ...]:
    """The single pieces of an expression, in order.

    >>> flat("a" + gen("x") + "b")[0]
    Text(text='a')
    """
    return _parts(expression)


def _parts(expression: Expression | str) -> tuple[Expression, ...]:
    if isinstance(expression, str):
        return (Text(format(expression)),)
    if isinstance(expression, Joined):
        return expression.parts
    if isinstance(expression, Expression):
        return (expression,)
    raise WrongUse(f"only text and axil's expressions can be added to a state, got {type(expression).__name__}.")


def _turn(role: Role, content: Expression | str | None) -> Expression:
    inner = () if content is None else _parts(content)
    return Joined((TurnBegin(role), *inner, TurnEnd(role)))


def _strings(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
