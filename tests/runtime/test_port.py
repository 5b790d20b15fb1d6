from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.config import HttpConfig
from runtime.port import bound, reserved

TWO = HttpConfig(port=0, tokenizer_workers=2)


def test_several_tokenizers_share_one_port_that_is_chosen_once() -> None:
    with reserved(TWO) as config, bound(config) as one, bound(config) as other:
        one.listen()
        other.listen()
        assert one.getsockname() == other.getsockname() == ("127.0.0.1", config.port)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_port_on_which_tokenizers_listen_is_refused_to_another_launch(num_workers: int) -> None:
    with reserved(TWO) as config, bound(config) as one:
        one.listen()
        mine = replace(config, tokenizer_workers=num_workers)
        with (
            pytest.raises(OSError, match=f"port {config.port} .* is taken by another process"),
            reserved(mine) as same,
            bound(same),
        ):
            pass


def test_a_single_tokenizer_takes_its_port_itself() -> None:
    with reserved(HttpConfig(port=0)) as config:
        assert config.port == 0
