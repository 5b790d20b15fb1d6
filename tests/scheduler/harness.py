"""The scheduler's pure parts wired to a `FakeRunner`, with a clock of its own."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from radix.cache import Namespace
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.leaders import FOLLOW_S
from scheduler.leave import fail_stalled
from scheduler.plan import plan
from scheduler.request import ClientId
from scheduler.settle import settle
from scheduler.state import Limits, Reply, State, make_state
from tests.scheduler.fake_runner import VOCABULARY, FakeRunner
from wire.messages.encoding import bytes_to_ids, ids_to_bytes, split_entries, unpack_logprobs
from wire.messages.to_runner import StepPlan
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Done, Refused, Reuse, StepTokens, Tokens
from wire.sampling import Grammar, SamplingParams

CLIENT = ClientId(b"client")
GRAMMAR = Grammar(source="start: x", field="regex")
DOCUMENT = [(i * i + 3) % 50 for i in range(400)]
"""A prompt for tests that share one."""


@dataclass(slots=True)
class Harness:
    state: State
    runner: FakeRunner
    sent: deque[StepPlan] = field(default_factory=deque)
    outputs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_logprobs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    reuses: dict[str, Reuse] = field(default_factory=dict)
    terminal: dict[str, Done | Refused] = field(default_factory=dict)
    now_s: float = 0.0

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        *,
        max_new_tokens: int | None = 4,
        stop_token_ids: tuple[int, ...] = (),
        salt: str = "",
        priority: int = 0,
        **more: Any,  # noqa: ANN401 - sampling parameters of any type
    ) -> None:
        sampling = SamplingParams(
            max_new_tokens=max_new_tokens, temperature=0.0, seed=0, stop_token_ids=stop_token_ids, **more
        )
        message = Submit(
            request_id=request_id, token_ids=ids_to_bytes(prompt), sampling=sampling, salt=salt, priority=priority
        )
        self.take(intake.submit(self.state, CLIENT, message, now_s=self.now_s))

    def expect_outputs_of(self, num_tokens: int) -> None:
        """As if many requests had ended after so many tokens."""
        for _ in range(500):
            self.state.output_length.observe(Namespace("fake", None, ""), num_tokens, is_cut=False)

    def send_plan(self) -> StepPlan | None:
        depth = 2 if self.state.config.overlap else 1
        if len(self.state.in_flight) >= depth:
            return None
        made = plan(self.state, now_s=self.now_s)
        if made is not None:
            self.sent.append(made)
        return made

    def retire(self) -> None:
        result = self.runner.execute(self.sent.popleft())
        self.now_s += result.elapsed_s
        self.take(settle(self.state, result))

    def run(self, *, max_steps: int = 2000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            while self.send_plan() is not None:
                pass
            if self.sent:
                self.retire()
                continue
            ended = fail_stalled(self.state)
            self.take(ended)
            if not self.state.waiting:
                assert not self.state.running
                return
            assert ended, f"{len(self.state.waiting)} requests wait and no plan is made"
        raise AssertionError(f"{len(self.state.waiting)} requests still wait after {max_steps} steps")

    def take(self, replies: list[Reply]) -> None:
        for reply in replies:
            assert reply.client == CLIENT
            match reply.message:
                case Tokens() as tokens:
                    assert tokens.request_id not in self.terminal, "tokens after the end"
                    token_ids = bytes_to_ids(tokens.token_ids)
                    self.outputs[tokens.request_id] += token_ids
                    assert [unpack_logprobs(entry)[0] for entry in tokens.logprobs] in ([], token_ids)
                    self.num_logprobs[tokens.request_id] += len(tokens.logprobs)
                    entries = split_entries(tokens.prompt_logprobs, tokens.num_prompt_logprobs)
                    self.prompt_logprobs[tokens.request_id] += [unpack_logprobs(entry)[0] for entry in entries]
                    if tokens.reuse is not None:
                        assert tokens.request_id not in self.reuses, "reuse figures were told twice"
                        self.reuses[tokens.request_id] = tokens.reuse
                case StepTokens() as step:
                    for request_id, token_id in zip(step.request_ids, bytes_to_ids(step.token_ids), strict=True):
                        assert request_id not in self.terminal, "tokens after the end"
                        self.outputs[request_id].append(token_id)
                case Done() | Refused() as ended:
                    assert ended.request_id not in self.terminal, f"{ended.request_id} ended twice"
                    self.terminal[ended.request_id] = ended
                case other:
                    raise AssertionError(f"unexpected message {other}")

    def waiting_ids(self) -> set[str]:
        return {request.request_id for request in self.state.waiting}

    def check(self) -> None:
        self.state.cache.check()
        state = self.state
        open_rows = {running.row for running in state.running.values()}
        assert len(open_rows) == len(state.running)
        assert sorted([*open_rows, *state.free_rows]) == list(range(state.config.max_running))
        assert not self.waiting_ids() & set(state.running)
        for row, running in [*state.prefilling.items(), *state.decoding.items()]:
            assert running.row == row
            assert running.is_live
        assert not state.prefilling.keys() & state.decoding.keys()
        assert state.promised_pages == sum(running.promised_pages for running in state.running.values())


def make_harness(
    *,
    num_pages: int = 64,
    page_tokens: int = 4,
    context_tokens: int = 10_000,
    config: SchedulerConfig | None = None,
) -> Harness:
    limits = Limits(
        model_fingerprint="fake",
        context_tokens=context_tokens,
        vocabulary=VOCABULARY,
        pool_tokens=num_pages * page_tokens,
    )
    state = make_state(config or SchedulerConfig(max_running=8), limits, page_tokens=page_tokens)
    return Harness(state, FakeRunner(num_pages, page_tokens))


def run_past_a_silent_leader(harness: Harness) -> None:
    """Run `r0` and those that wait for its pages: the next one begins once none has come for `FOLLOW_S`, not before."""
    harness.send_plan()
    harness.now_s += 0.9 * FOLLOW_S
    assert harness.send_plan() is None
    harness.now_s += 0.1 * FOLLOW_S
    harness.send_plan()
    assert set(harness.state.running) == {"r0", "r1"}
    harness.run()


def chunk_lengths(plan: StepPlan) -> list[int]:
    """The tokens of each chunk of a plan."""
    return [len(bytes_to_ids(chunk.token_ids)) for chunk in plan.chunks]
