"""The tokens of a future: found without a row, and indistinguishable from each other and from anything."""

import itertools

from tarry.core.messages.ids import Ids
from tarry.doors.matrix.futures_tokens import TokenAction, Tokens

IDS = Ids(bytes(range(32)))
ACTIONS: list[TokenAction] = ["send", "cancel", "refresh"]


def test_a_token_says_its_action_and_its_message() -> None:
    tokens = Tokens(IDS)
    for seq, fire_at_ms in ((1, 1), (5, 1_700_000_000_000), ((1 << 47) - 1, (1 << 47) - 1)):
        id_ = IDS.make(seq, fire_at_ms)
        for action in ACTIONS:
            assert tokens.read(tokens.make(action, id_)) == (action, id_)
            # A server that starts again makes and reads the same ones.
            assert Tokens(Ids(bytes(range(32)))).read(tokens.make(action, id_)) == (action, id_)


def test_tokens_look_like_one_another() -> None:
    tokens = Tokens(IDS)
    made = {
        (action, seq): tokens.make(action, IDS.make(seq, 1_700_000_000_000))
        for action in ACTIONS
        for seq in range(1, 300)
    }
    assert len(set(made.values())) == len(made)
    assert {len(token) for token in made.values()} == {32}
    assert set("".join(made.values())) == set("0123456789abcdef")
    for action in ACTIONS:
        # Whatever place of the token one looks at, each digit is about as frequent as the others.
        for place in range(32):
            digits = [made[action, seq][place] for seq in range(1, 300)]
            assert max(digits.count(digit) for digit in set(digits)) < 60
    # Those of one message have no more in common than those of two.
    for one, other in itertools.combinations(ACTIONS, 2):
        alike = sum(
            a == b for seq in range(1, 300) for a, b in zip(made[one, seq], made[other, seq], strict=True)
        )
        assert alike < 299 * 32 / 8


def test_what_is_not_a_token_is_none() -> None:
    tokens = Tokens(IDS)
    id_ = IDS.make(7, 1_700_000_000_000)
    token = tokens.make("send", id_)
    flipped = f"{int(token[0], 16) ^ 1:x}{token[1:]}"
    for other in (
        id_,
        flipped,
        token.upper(),
        token[:-1],
        token + "0",
        "",
        "g" * 32,
        "0" * 32,
        "..",
        "é" * 16,
    ):
        assert tokens.read(other) is None
    assert Tokens(Ids(bytes(32))).read(token) is None
    # And a token is no delay id.
    assert IDS.read(token) is None
