from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.fakes import byte_tokenizer
from wire.grammar_tokenizer import grammar_tokenizer, unwritten

PIECES = ["<unk>", "<s>", "a", "b", "<", "s", ">"]


def _tokenizer(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    tokenizer.add_tokens(["aa"])
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_tokenizer(adds_bos=True),
        _tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="<unk>")),
        _tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=0)),
        _tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], unk_token="<unk>")),
    ],
)
def test_no_text_is_a_special_token_and_all_else_is_as_it_was(tokenizer: Tokenizer) -> None:
    renamed = Tokenizer.from_str(grammar_tokenizer(tokenizer.to_str()))
    for text in ("ab", "aab", "a\N{EURO SIGN}b", "<a>"):
        encoded = [each.encode(text, add_special_tokens=False).ids for each in (renamed, tokenizer)]
        assert encoded[0] == encoded[1]
    special = tokenizer.token_to_id("<s>")
    assert renamed.token_to_id(unwritten("<s>")) == special
    assert special in tokenizer.encode("a<s>b", add_special_tokens=False).ids
    ids = renamed.encode("a<s>b", add_special_tokens=False).ids
    assert ids == [i for part in "a<s>b" for i in tokenizer.encode(part, add_special_tokens=False).ids]
