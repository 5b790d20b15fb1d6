"""Conservation and exactly one terminal reply, over random submits, cancels, finishes, steps and flushes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler import intake
from scheduler.config import SchedulerConfig
from tests.scheduler.fake_runner import NO_LOGITS, VOCABULARY, expected_logprobs, expected_output
from tests.scheduler.harness import CLIENT, GRAMMAR, Harness, make_harness
from wire.messages.to_tokenizer import Done
from wire.sampling import Grammar

PREFIXES = [[(7 * i + k) % VOCABULARY for i in range(23)] for k in range(3)]


class SchedulerMachine(RuleBasedStateMachine):
    """Random life of a scheduler on a pool that is too small for its load."""

    harness: Harness

    @initialize(
        page_tokens=st.sampled_from([1, 4, 16]),
        num_tokens=st.sampled_from([64, 96, 160, 1024]),
        overlap=st.booleans(),
        max_running=st.integers(1, 6),
        prefill_tokens=st.sampled_from([1, 3, 16, 8192]),
        policy=st.sampled_from(["longest-prefix", "fcfs", "depth-first"]),
    )
    def start(
        self,
        page_tokens: int,
        num_tokens: int,
        overlap: bool,
        max_running: int,
        prefill_tokens: int,
        policy: str,
    ) -> None:
        config = SchedulerConfig(
            max_running=max_running,
            prefill_tokens=prefill_tokens,
            overlap=overlap,
            policy=policy,
            max_queued_requests=8,
        )
        self.harness = make_harness(num_pages=num_tokens // page_tokens, page_tokens=page_tokens, config=config)
        self.wanted: dict[str, list[int]] = {}
        self.wanted_logprobs: dict[str, list[float]] = {}
        self.num_submitted = 0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        prefix_tokens=st.integers(0, 23),
        suffix=st.lists(st.integers(0, VOCABULARY - 1), max_size=40),
        max_new_tokens=st.integers(0, 30),
        stop=st.lists(st.integers(0, VOCABULARY - 1), max_size=2),
        salt=st.sampled_from(["", "other"]),
        penalty=st.sampled_from([1.0, 1.5]),
        grammar=st.sampled_from([None, GRAMMAR]),
        logprobs_from=st.sampled_from([None, None, 0, 9]),
        priority=st.integers(0, 1),
    )
    def submit(
        self,
        prefix: list[int],
        prefix_tokens: int,
        suffix: list[int],
        max_new_tokens: int,
        stop: list[int],
        salt: str,
        penalty: float,
        grammar: Grammar | None,
        logprobs_from: int | None,
        priority: int,
    ) -> None:
        prompt = prefix[:prefix_tokens] + suffix
        request_id = f"r{self.num_submitted}"
        self.num_submitted += 1
        self.harness.submit(
            request_id,
            prompt,
            max_new_tokens=max_new_tokens,
            stop_token_ids=tuple(stop),
            salt=salt,
            priority=priority,
            repetition_penalty=penalty,
            grammar=grammar,
            prompt_logprobs_from=logprobs_from,
        )
        self.wanted_logprobs[request_id] = [] if logprobs_from is None else expected_logprobs(prompt, logprobs_from)
        self.wanted[request_id] = expected_output(prompt, max_new_tokens=max_new_tokens, stop_token_ids=tuple(stop))

    @rule(data=st.data(), is_finish=st.booleans())
    def cancel_or_finish(self, data: st.DataObject, is_finish: bool) -> None:
        ids = [*self.harness.state.running, *sorted(self.harness.waiting_ids()), "unknown"]
        request_id = data.draw(st.sampled_from(ids))
        end = intake.finish if is_finish else intake.cancel
        self.harness.take(end(self.harness.state, CLIENT, request_id))

    @rule()
    def send(self) -> None:
        self.harness.send_plan()

    @rule()
    def retire(self) -> None:
        if self.harness.sent:
            self.harness.retire()

    @rule()
    def flush(self) -> None:
        self.harness.state.cache.flush()

    @rule(data=st.data())
    def break_a_row(self, data: st.DataObject) -> None:
        rows = list(self.harness.runner.rows)
        if rows:
            self.harness.runner.broken_rows = {data.draw(st.sampled_from(rows))}

    @rule(seconds=st.sampled_from([0.1, 5.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.harness.now_s += seconds

    @invariant()
    def pages_and_rows_are_conserved(self) -> None:
        self.harness.check()

    @invariant()
    def every_request_is_open_or_has_ended_so_that_a_kill_at_any_moment_leaves_each_one_reply(self) -> None:
        if not hasattr(self, "harness"):
            return
        state, terminal = self.harness.state, self.harness.terminal
        open_ids = {*state.running, *self.harness.waiting_ids()}
        assert not open_ids & terminal.keys()
        assert open_ids | terminal.keys() == self.wanted.keys()

    @invariant()
    def outputs_are_those_of_a_run_alone(self) -> None:
        for request_id, output in self.harness.outputs.items():
            assert output == self.wanted[request_id][: len(output)], request_id

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.runner.broken_rows = set()
        self.harness.run()
        self.harness.check()
        cache = self.harness.state.cache
        assert cache.free_pages + cache.evictable_pages == cache.num_pages
        for request_id, wanted in self.wanted.items():
            ended = self.harness.terminal[request_id]
            if not isinstance(ended, Done):
                continue
            assert ended.reason != "broken" or ended.message == NO_LOGITS, f"no row was broken: {ended.message}"
            if ended.reason == "length":
                assert self.harness.outputs.get(request_id, []) == wanted
                assert self.harness.prompt_logprobs[request_id] == self.wanted_logprobs[request_id]


SchedulerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_scheduler_keeps_its_promises = SchedulerMachine.TestCase
