"""The real scheduler and tree against the naive ones, on random workloads and with memory to spare."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from tests.scheduler.fake_runner import VOCABULARY
from tests.scheduler.harness import Harness, make_harness
from tests.scheduler.naive import Asked, NaiveScheduler, NaiveTree, answer, first_choices, whole_pages
from wire.messages.to_tokenizer import Done

# No more requests than the siblings that are looked at for a copy, so that none is overlooked.
MOST_REQUESTS = 8

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
REQUESTS = st.lists(
    st.tuples(PROMPTS, st.integers(0, 6), st.sampled_from(["", "", "other"])), min_size=1, max_size=MOST_REQUESTS
)
PAGES = st.sampled_from([1, 2, 4, 16])


def named(requests: list[tuple[list[int], int, str]]) -> list[Asked]:
    return [Asked(f"r{i}", tuple(prompt), most, salt) for i, (prompt, most, salt) in enumerate(requests)]


def roomy(page_tokens: int, **flags: int | str | bool) -> Harness:
    config = SchedulerConfig(**flags)  # type: ignore[arg-type]
    return make_harness(num_pages=2048, page_tokens=page_tokens, config=config)


def submit(harness: Harness, asked: Asked) -> None:
    harness.submit(asked.name, list(asked.prompt), max_new_tokens=asked.max_new_tokens, salt=asked.salt)


@settings(deadline=None)
@given(requests=REQUESTS, page_tokens=PAGES)
def test_one_after_the_other_finds_and_answers_the_same_as_the_naive_one(
    requests: list[tuple[list[int], int, str]], page_tokens: int
) -> None:
    harness, naive = roomy(page_tokens), NaiveScheduler(VOCABULARY)
    for asked in named(requests):
        submit(harness, asked)
        harness.run()
        naive.run(asked)
        ended = harness.terminal[asked.name]
        assert isinstance(ended, Done) and ended.reason == "length"
        assert ended.reuse is not None and ended.reuse.cached_tokens == naive.hits[asked.name]
        assert harness.outputs.get(asked.name, []) == naive.outputs[asked.name]


@settings(deadline=None)
@given(
    requests=REQUESTS,
    page_tokens=PAGES,
    max_running=st.integers(1, 4),
    prefill_tokens=st.sampled_from([1, 3, 16, 8192]),
    overlap=st.booleans(),
    policy=st.sampled_from(["longest-prefix", "fcfs"]),
    gaps=st.lists(st.integers(0, 4), min_size=MOST_REQUESTS, max_size=MOST_REQUESTS),
)
def test_together_they_find_what_is_known_when_they_start_and_each_ends_once_with_the_naive_answer(
    requests: list[tuple[list[int], int, str]],
    page_tokens: int,
    max_running: int,
    prefill_tokens: int,
    overlap: bool,
    policy: str,
    gaps: list[int],
) -> None:
    harness = roomy(page_tokens, max_running=max_running, prefill_tokens=prefill_tokens, overlap=overlap, policy=policy)
    all_asked = named(requests)
    watch = Watch(harness, {asked.name: asked for asked in all_asked}, page_tokens)
    for asked, gap in zip(all_asked, gaps, strict=False):
        submit(harness, asked)
        for _ in range(gap):
            watch.step()
    while len(harness.terminal) < len(all_asked):
        watch.step()
    for asked in all_asked:
        ended = harness.terminal[asked.name]
        assert isinstance(ended, Done) and ended.reason == "length"
        assert harness.outputs.get(asked.name, []) == answer(asked, vocabulary=VOCABULARY)


@settings(deadline=None)
@given(
    requests=REQUESTS,
    later=REQUESTS,
    page_tokens=PAGES,
    policy=st.sampled_from(["longest-prefix", "fcfs"]),
)
def test_the_next_to_run_has_the_longest_cached_prefix_or_came_first(
    requests: list[tuple[list[int], int, str]],
    later: list[tuple[list[int], int, str]],
    page_tokens: int,
    policy: str,
) -> None:
    all_asked = named([*requests, *later][:MOST_REQUESTS])
    harness, tree = roomy(page_tokens, max_running=1, policy=policy), NaiveTree()
    waiting = {asked.name: asked for asked in all_asked}
    for asked in all_asked:
        submit(harness, asked)
    while waiting:
        made = harness.send_plan()
        for admission in made.admissions if made else ():
            wanted = {next(iter(waiting))}
            if policy == "longest-prefix":
                wanted = first_choices(list(waiting.values()), tree, page_tokens=page_tokens)
            assert admission.request_id in wanted
            asked = waiting.pop(admission.request_id)
            known = [*asked.prompt, *answer(asked, vocabulary=VOCABULARY)]
            tree.add(asked.salt, known[: NaiveScheduler.known_tokens(asked)])
        if harness.sent:
            harness.retire()


class Watch:
    """Steps a harness and compares what each request finds at its start with what is known then."""

    def __init__(self, harness: Harness, asked: dict[str, Asked], page_tokens: int) -> None:
        self.harness = harness
        self.asked = asked
        self.page_tokens = page_tokens
        self.started: list[str] = []

    def step(self) -> None:
        made = self.harness.send_plan()
        for admission in made.admissions if made else ():
            self.compare(self.asked[admission.request_id], admission.num_cached_tokens)
            self.started.append(admission.request_id)
        if self.harness.sent:
            self.harness.retire()

    def compare(self, asked: Asked, cached_tokens: int) -> None:
        """At least what has ended and the whole pages of prompts that started before; at most all that is known."""
        certain, possible = NaiveTree(), NaiveTree()
        for name in self.started:
            other = self.asked[name]
            told = [*other.prompt, *self.harness.outputs.get(name, [])]
            if name in self.harness.terminal:
                certain.add(other.salt, told[: NaiveScheduler.known_tokens(other)])
                possible.add(other.salt, told[: NaiveScheduler.known_tokens(other)])
            else:
                certain.add(other.salt, other.prompt[: whole_pages(len(other.prompt), self.page_tokens)])
                possible.add(other.salt, told)
        least, most = certain.hit(asked.salt, asked.prompt), possible.hit(asked.salt, asked.prompt)
        assert whole_pages(least, self.page_tokens) <= cached_tokens <= most
