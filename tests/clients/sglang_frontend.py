"""Programs of sglang's own frontend on the server at the given URL. Runs where sglang is installed, and alone."""

from __future__ import annotations

import sys

import sglang as sgl
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
from sglang.lang.choices import greedy_token_selection, token_length_normalized, unconditional_likelihood_normalized

METHODS = {
    "token length": token_length_normalized,
    "greedy": greedy_token_selection,
    "unconditional": unconditional_likelihood_normalized,
}


@sgl.function
def answered(s, question):  # noqa: ANN001, ANN201 - sglang traces it
    s += f"Q: {question}\nA:"
    s += sgl.gen("answer", max_tokens=6, stop="\n", temperature=0)


@sgl.function
def chosen(s, method):  # noqa: ANN001, ANN201
    s += "The capital of France is the city of" + sgl.select("city", [" Paris", " mud"], choices_method=METHODS[method])


@sgl.function
def forked(s):  # noqa: ANN001, ANN201
    s += "Facts:"
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch += f" {i}." + sgl.gen("fact", max_tokens=3, temperature=0)
    branches.join()
    s += "".join(branch["fact"] for branch in branches)


@sgl.function
def formed(s):  # noqa: ANN001, ANN201
    s += "The year is " + sgl.gen("year", regex=r"(19|20)[0-9]{2}", max_tokens=8, temperature=0)
    s += ", and 2 + 2 = " + sgl.gen_int("sum", max_tokens=4, temperature=0)


def main(url: str) -> None:
    """Run them all; whatever is not as it should be raises."""
    backend = RuntimeEndpoint(url)
    sgl.set_default_backend(backend)
    state = answered.run(question="What is the capital of France?")
    assert "Paris" in state["answer"], state["answer"]
    assert state.get_meta_info("answer")["prompt_tokens"] > 5
    for method in METHODS:
        assert chosen.run(method=method)["city"] == " Paris", method
    assert forked.run().text().startswith("Facts:")
    state = formed.run()
    assert len(state["year"]) == 4, state["year"]
    assert int(state["sum"]) >= 0, state["sum"]
    questions = [f"How much is {i} and {i}?" for i in range(6)]
    singly = [answered.run(question=question)["answer"] for question in questions]
    batch = answered.run_batch([{"question": question} for question in questions], num_threads=3)
    assert [state["answer"] for state in batch] == singly
    streamed = answered.run(question="What is the capital of France?", stream=True)
    assert "Paris" in "".join(streamed.text_iter("answer"))
    backend.flush_cache()
    backend.start_profile()
    backend.stop_profile()
    assert backend.get_server_info()["max_total_num_tokens"] > 0


if __name__ == "__main__":
    main(sys.argv[1])
