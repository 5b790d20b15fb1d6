"""What does the next turn of a long chat cost the tokenizer process, beside tokenising the whole chat?

A chat grows from 12,000 to about 80,000 tokens in 30 turns; its text are modules of the standard library. Each turn:
milliseconds from the body's bytes to the prompt's token ids (JSON, chat template, tokenisation, of which only what is
new is done) and of the tokenizers library tokenising all of it. Then once more, with other text, through HTTP:
the processor time of all threads of a tokenizer process for one whole request with an answer of two tokens, between a
client and a scheduler that is played. Uses the embedded model's tokenizer and template.
    python -m bench.chat_turns
"""

from __future__ import annotations

import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import tokenizers
import uvloop

from bench import results, summary
from bench.client import connected
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.lone_tokenizer import PlayedScheduler, cpu_time_s, lone_tokenizer
from bench.summary import Failure
from runtime.model_files import resolve_model
from runtime.text.template import ChatTemplate, load_template
from runtime.text.tokenizer import ModelFiles, Tokenizer

FIRST_CHARACTERS = 44_000
ANSWER_CHARACTERS = 800
RESULT_CHARACTERS = 7_500
TURNS = 30
LATE_TURNS = 5
ANSWER_STEPS = 2
TIMEOUT_S = 60.0

Message = dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.chat_turns", __doc__)
    parser.add_argument("--repeats", type=count, default=3, help="chats, each of other text (default: 3)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    pieces = _text()
    rows: dict[str, dict[str, float]] = {}
    with lone_tokenizer() as (url, scheduler):
        for i in range(1, args.repeats + 1):
            rows[f"chat {i}"] = _chat(pieces) | {"process_cpu_ms": uvloop.run(_asked(pieces, url, scheduler))}
    figures = {name: statistics.median(row[name] for row in rows.values()) for name in rows["chat 1"]}
    print(summary.table({**rows, "median": figures}))
    results.write(args.json, figures, results.command_line("bench.chat_turns"))
    return 0


def _chat(text: Iterator[str]) -> dict[str, float]:
    """Figures of one chat from its first turn to its last, with a tokenizer that knows nothing yet."""
    directory = Path(resolve_model(None).tokenizer_dir)
    tokenizer, files = Tokenizer.load(directory), ModelFiles.read(directory)
    source = load_template(directory, files.tokenizer_config, None)
    assert source is not None, "the embedded model has a chat template"
    template = ChatTemplate(source, tokenizer.special_tokens)
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    turns_s, num_tokens = [], []
    for chat in _turns(text):
        body = orjson.dumps({"messages": chat})
        started_s = time.perf_counter()
        prompt = template.render(orjson.loads(body)["messages"], add_generation_prompt=True, variables={})
        token_ids = tokenizer.encode_chat(prompt)
        turns_s.append(time.perf_counter() - started_s)
        num_tokens.append(len(token_ids))
    started_s = time.perf_counter()
    whole = library.encode_batch_fast([prompt], add_special_tokens=False)[0].ids
    whole_s = time.perf_counter() - started_s
    assert token_ids.tolist() == whole, "the ids of the chat's new part, behind the known ones, are those of the whole"
    return {
        "last_turn_tokens": num_tokens[-1],
        "new_tokens": num_tokens[-1] - num_tokens[-2],
        "last_turns_ms": statistics.median(turns_s[-LATE_TURNS:]) * 1000,
        "slowest_turn_ms": max(turns_s[1:]) * 1000,
        "library_whole_ms": whole_s * 1000,
    }


async def _asked(text: Iterator[str], url: str, scheduler: PlayedScheduler) -> float:
    """Milliseconds of a tokenizer process for a late turn of a chat."""
    costs_s = []
    async with connected(url, None) as client:
        for chat in _turns(text):
            scheduler.begin(num_streams=1, num_steps=ANSWER_STEPS)
            before_s = cpu_time_s(scheduler.process_id)
            answer = await client.chat(chat, max_tokens=ANSWER_STEPS, timeout_s=TIMEOUT_S)
            costs_s.append(cpu_time_s(scheduler.process_id) - before_s)
            if isinstance(answer, Failure):
                raise CannotMeasure(f"a turn failed: {answer.kind}: {answer.detail}")
    return statistics.median(costs_s[-LATE_TURNS:]) * 1000


def _turns(text: Iterator[str]) -> Iterator[list[Message]]:
    """What is sent in each turn of a chat."""
    chat: list[Message] = [{"role": "system", "content": _take(text, FIRST_CHARACTERS)}]
    for _ in range(TURNS):
        chat.append({"role": "user", "content": _take(text, RESULT_CHARACTERS)})
        yield chat
        chat.append({"role": "assistant", "content": _take(text, ANSWER_CHARACTERS)})


def _text() -> Iterator[str]:
    """The standard library's modules, largest first, over and over."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda path: -path.stat().st_size)
    while True:
        for path in paths:
            yield path.read_text(encoding="utf-8", errors="replace")


def _take(text: Iterator[str], num_characters: int) -> str:
    """So many characters, from the next module on."""
    taken = ""
    while len(taken) < num_characters:
        taken += next(text)
    return taken[:num_characters]


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
