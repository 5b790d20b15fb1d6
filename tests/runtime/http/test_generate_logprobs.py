from __future__ import annotations

import aiohttp

from tests.fakes import Script, Server, text_ids
from tests.runtime.http.asking import generate


async def test_logprobs_are_triples(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    answer = await generate(http, text="x", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True)
    meta = answer["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 104, "h"], [-0.5, 105, "i"]]
    assert meta["output_top_logprobs"][0] == [[-0.5, 104, "h"], [-2.0, 65, "A"]]
    assert meta["output_token_logprobs_length"] == 2
    without = await generate(http, text="x", return_logprob=True)
    assert without["meta_info"]["output_token_logprobs"][0] == [-0.5, 104, None]


async def test_logprobs_of_a_prompt_and_of_chosen_ids(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    wish = {
        "return_logprob": True,
        "top_logprobs_num": 1,
        "token_ids_logprob": [66, 67],
        "return_text_in_logprobs": True,
    }
    answer = await generate(http, text="abc", logprob_start_len=0, **wish)
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 97, "a"], [-0.5, 98, "b"], [-0.5, 99, "c"]]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 98, "b"]], [[-0.5, 99, "c"]]]
    assert meta["input_token_ids_logprobs"] == [None, *[[[-66.0, 66, "B"], [-67.0, 67, "C"]]] * 2]
    assert meta["output_token_logprobs"] == [[-0.5, 104, "h"], [-0.5, 105, "i"]]
    assert meta["output_token_ids_logprobs"] == [[[-66.0, 66, "B"], [-67.0, 67, "C"]]] * 2
    later = (await generate(http, text="abc", logprob_start_len=2, **wish))["meta_info"]
    assert later["input_token_logprobs"] == [[-0.5, 99, "c"]]
    none = (await generate(http, text="abc", logprob_start_len=-1, **wish))["meta_info"]
    assert none["input_token_logprobs"] == []
    without = (await generate(http, text="abc", logprob_start_len=0, token_ids_logprob=[5]))["meta_info"]
    assert "input_token_logprobs" not in without


async def test_a_prompt_is_scored_without_a_token_of_output(server: Server, http: aiohttp.ClientSession) -> None:
    answers = await generate(
        http,
        text=["ab", "xyz"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=[1, 0],
        token_ids_logprob=[[5], None],
    )
    metas = [answer["meta_info"] for answer in answers]
    assert [[one[1] for one in meta["input_token_logprobs"]] for meta in metas] == [[98], [120, 121, 122]]
    assert metas[0]["input_token_ids_logprobs"] == [[[-5.0, 5, None]]]
    assert "input_token_ids_logprobs" not in metas[1]
    assert all(meta["output_token_logprobs"] == [] for meta in metas)


async def test_logprobs_without_tokens_are_those_of_the_prompt(server: Server, http: aiohttp.ClientSession) -> None:
    # sglang's frontend asks so for the likelihood of a choice by itself
    wish = {"input_ids": [[5, 6], [7]], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    answers = await generate(http, **wish)
    told = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    assert [[entry[:2] for entry in each] for each in told] == [[[None, 5], [-0.5, 6]], [[None, 7]]]
    (first, _) = await generate(http, **wish, logprob_start_len=-1)
    assert first["meta_info"]["input_token_logprobs"] == []
