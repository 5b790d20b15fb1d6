"""Tries a model's template with many chats and shrinks what fails. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from wire.errors import Refused

from .causes import Cause, cause_of
from .conversations import Conversation, random_one, smaller, systematic
from .play import Model
from .rules import RULES, Fork, Rule, broken, clock_fork

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates let a chat's client turn thoughts off."""

_SET_BY_SERVER = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception", "namespace", "range"}
)
_DATES = ("date_string", "date", "current_date", "today")
_FIXED_DATE = "01 Jan 2026"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that is broken for a cause, with the smallest chat found; `variables` of the template make it hold."""

    fork: Fork
    cause: Cause
    num_conversations: int
    variables: Mapping[str, object] | None


@dataclass(slots=True, kw_only=True)
class Report:
    """What was tried and found; `not_taken` counts chats that the template refuses, by its own words."""

    num_conversations: int = 0
    num_turns: int = 0
    not_taken: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def holds(self, rule: Rule) -> bool:
        """Whether no counter-example was found."""
        return all(finding.fork.rule != rule for finding in self.findings)


def lint(model: Model, *, num_random: int, seed: int) -> Report:
    """Try the systematic chats and `num_random` random ones."""
    report = Report()
    found: dict[tuple[Rule, Cause], list[Fork]] = {}
    for conversation in _chats(model, num_random, seed):
        try:
            forks = list(_forks(conversation, model))
        except Refused as refused:
            report.not_taken[refused.message] += 1
            continue
        report.num_conversations += 1
        report.num_turns += len(conversation.turns)
        for key in {(fork.rule, cause_of(fork)): None for fork in forks}:
            found.setdefault(key, []).append(next(fork for fork in forks if (fork.rule, cause_of(fork)) == key))
    for (rule, cause), forks in sorted(found.items(), key=lambda item: list(RULES).index(item[0][0])):
        fork = _smallest(min(forks, key=lambda fork: len(fork.before)), cause, model)
        variables = None if rule == "read" else _cure(fork, model)
        report.findings.append(Finding(fork=fork, cause=cause, num_conversations=len(forks), variables=variables))
    return report


def _chats(model: Model, num_random: int, seed: int) -> Iterator[Conversation]:
    with_tools = model.template.reads_tools and model.form.calls is not None
    with_thoughts = model.form.thoughts is not None
    chats = list(systematic(with_tools=with_tools, with_thoughts=with_thoughts))
    for switch in _SWITCHES:
        if switch in model.template.variables:
            silent = systematic(with_tools=with_tools, with_thoughts=False)
            chats += [replace(each, variables={switch: False}) for each in silent]
    chats += [random_one(f"{seed}:{i}", with_tools=with_tools, with_thoughts=with_thoughts) for i in range(num_random)]
    return (chat for chat in chats if not _opens_thought(chat, model) or chat.always_thinks)


def _opens_thought(conversation: Conversation, model: Model) -> bool:
    """Whether the template begins each answer inside a thought, so that there is always one."""
    if model.form.thoughts is None:
        return False
    try:
        prompt = model.render(conversation.opening() + conversation.asked(0), conversation, asks=True)
    except Refused:
        return False
    return model.form.thoughts.is_open_in(prompt)


def _forks(conversation: Conversation, model: Model) -> Iterator[Fork]:
    yield from broken(conversation, model)
    fork = clock_fork(conversation, model)
    if fork is not None:
        yield fork


def _same(conversation: Conversation, model: Model, rule: Rule, cause: Cause) -> Fork | None:
    """The first fork of the kind in the chat."""
    if not conversation.is_whole or (_opens_thought(conversation, model) and not conversation.always_thinks):
        return None
    try:
        return next(
            (fork for fork in _forks(conversation, model) if fork.rule == rule and cause_of(fork) == cause), None
        )
    except Refused:
        return None


def _smallest(fork: Fork, cause: Cause, model: Model) -> Fork:
    """Leave out whatever the fork doesn't need."""
    while True:
        smaller_ones = (_same(each, model, fork.rule, cause) for each in smaller(fork.conversation))
        found = next((each for each in smaller_ones if each is not None), None)
        if found is None:
            return fork
        fork = found


def _cure(fork: Fork, model: Model) -> Mapping[str, object] | None:
    """A variable of the template that makes all rules hold for the chat."""
    for name in sorted(model.template.variables - _SET_BY_SERVER):
        if name in _SWITCHES or name in fork.conversation.variables:
            continue  # they change what the model does
        for value in (_FIXED_DATE,) if name in _DATES else (True, False):
            variables = {**fork.conversation.variables, name: value}
            try:
                if next(_forks(replace(fork.conversation, variables=variables), model), None) is None:
                    return {name: value}
            except Refused:
                continue
    return None
