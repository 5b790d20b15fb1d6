"""The tokenizer with which grammars are followed, where they are tried and where tokens are chosen.

A model's own takes text that spells a special token for that token, which no grammar means that asks for text. So here
special tokens have names that no text has. Knows no grammar.
"""

from __future__ import annotations

import msgspec

UNWRITTEN = "\N{SYMBOL FOR NULL}"
"""A character that nobody writes in the midst of such a name. It's printable: so messages show it as it is."""


def unwritten(name: str) -> str:
    """The name of a special token in this tokenizer; one in angle brackets keeps them, as Lark wants it."""
    return name[:1] + UNWRITTEN + name[1:]


def grammar_tokenizer(tokenizer_json: str) -> str:
    """The text of a `tokenizer.json` with special tokens of other names, and the same ids for all other text."""
    tokenizer = msgspec.json.decode(tokenizer_json)
    special = [token for token in tokenizer["added_tokens"] if token["special"]]
    names = {token["content"]: unwritten(token["content"]) for token in special}
    for token in special:
        token["content"] = names[token["content"]]
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return msgspec.json.encode(tokenizer).decode()
