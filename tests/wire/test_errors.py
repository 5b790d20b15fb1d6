import pytest

from wire.errors import BY_CODE, AxilError, Broken, Overloaded, counted


@pytest.mark.parametrize(("code", "cls"), BY_CODE.items())
def test_an_error_travels_by_its_code(code: str, cls: type[AxilError]) -> None:
    error = cls("what happened")
    assert (error.code, error.message, str(error)) == (code, "what happened", "what happened")
    assert 400 <= error.status < 600


def test_the_code_of_an_error_of_ours_is_that_of_a_broken_request() -> None:
    assert BY_CODE["internal_error"] is Broken


def test_an_overloaded_server_says_when_to_come_back() -> None:
    assert Overloaded("full", retry_after_s=7).retry_after_s == 7


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(number, "token") for number in (0, 1, 2000)] == ["0 tokens", "1 token", "2000 tokens"]
