from __future__ import annotations

import time

import pytest

from runtime.doctor.differences import differences
from runtime.doctor.kinds import REMEDY, WHAT, kind_of, masked
from tests.runtime.doctor.chats import SYSTEM


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("2026-03-09T18:00:31Z", "2026-03-09T18:00:35Z", "timestamp"),
        ("18:00", "18:01", "timestamp"),
        ("Monday, March 9, 2026 at 06:00:31 PM", "Monday, March 9, 2026 at 06:00:35 PM", "timestamp"),
        ("1767225600", "1767225655", "timestamp"),
        ("1767225600123", "1767225655456", "timestamp"),
        ("2026-03-09", "2026-03-10", "date"),
        ("09 Mar 2026", "10 Mar 2026", "date"),
        ("Mon", "Tue", "date"),
        ("6fa459ea-ee8a-3ca4-894e-db77e160355e", "16fd2706-8baf-433b-82eb-8c7fada847da", "uuid"),
        ("41", "42", "counter"),
        ("42", "17", "number"),
        ("3.5", "4.25", "number"),
        ("eb6c6", "a91f0", "nonce"),
        ("req_8Zk2pQ", "req_1Ab9xY", "nonce"),
        ("  ", " ", "whitespace"),
        ("a  b", "a b", "whitespace"),
        ("b.py, a.py", "a.py, b.py", "reordered"),
        ("Alice", "Bob", "text"),
    ],
)
def test_what_changes_is_named(one: str, other: str, kind: str) -> None:
    assert kind_of(one, other, line=f"x {one} y") == kind


def test_a_billing_header_is_known_whatever_changes_in_it() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"
    assert kind_of("eb6c6", "a91f0", line=line) == "billing_header"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1" * 1_000_000, "1" * 1_000_001),
        ("9" * 150, "8" * 150),
        ("a" * 1_000_000, "b" * 1_000_000),
        ("1 " * 300_000, "2 " * 300_000),
        ("x-" * 300_000, "x-" * 300_001),
    ],
)
def test_what_clients_make_long_takes_no_time(one: str, other: str) -> None:
    start = time.perf_counter()
    assert kind_of(one, other, line=one) in ("text", "number")
    assert masked(one)
    assert differences(f"{SYSTEM}\n{one}", f"{SYSTEM}\n{other}") != []
    assert time.perf_counter() - start < 60  # where it is not linear, it takes hours


def test_every_kind_has_words_and_a_remedy() -> None:
    assert WHAT.keys() == REMEDY.keys()


def test_texts_with_other_numbers_look_the_same_when_masked() -> None:
    assert masked("turn 41 of eb6c6") == masked("turn 42 of 0aaa9")
    assert masked("turn 41") != masked("tern 41")
