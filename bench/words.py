"""Texts of words drawn by a seed: common words, which most vocabularies hold as one token each."""

from __future__ import annotations

import random

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education foot boy age policy music market sense
road effect action field heart paper space table sound light voice stone river tree bird fish horse summer
winter spring garden bridge window kitchen corner letter picture paint color shape circle square metal glass
wood gold silver iron cloth bread milk sugar salt fruit apple orange green blue black white brown yellow
simple early quick strong heavy quiet bright clear empty narrow broad deep high short long young fresh clean
warm cold small large great little common special public private local open final recent strange modern
ancient walk talk listen write read build carry follow bring begin finish travel return answer learn teach
watch wait move turn hold keep stand fall rise grow break cut draw drive fly sing play sleep dream wonder
hope trust help save spend share cross reach pass serve cover enter leave choose discover explain measure
collect protect balance increase reduce
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())


class Draw:
    """A seed's stream of texts and choices; `scale` shortens every text and every answer."""

    def __init__(self, *, seed: int, scale: float = 1.0) -> None:
        self.random = random.Random(seed)
        self._scale = scale

    def tokens(self, count: float, *, at_least: int = 1) -> int:
        """A number of tokens, scaled."""
        return max(at_least, round(count * self._scale))

    def text(self, count: float, *, less: int = 0) -> str:
        """As many words as `count` tokens are when scaled, but for the `less` that the caller writes around them."""
        return words(self.random, self.tokens(count) - less)


def words(draw: random.Random, count: int) -> str:
    """`count` words, but at least one."""
    return " ".join(draw.choices(WORDS, k=max(1, count)))


def text_of(num_tokens: int, *, seed: int) -> str:
    """Words that make about `num_tokens` tokens; another seed shares nothing with it."""
    return words(random.Random(seed), num_tokens)
