"""The tokens of a future: each stands for one action on one message, and shows neither.

A token is what an id is, the encryption of where the message is (`tarry.core.messages.ids`), under a key of its own and with a
mark for the action inside. So tokens need no row, survive a restart, stay the same while the future is refreshed, and
nobody without the key can tell a token to send from one to refresh, or find a second one from a first.
"""

from typing import Final, Literal

from tarry.core.messages.ids import Ids

TokenAction = Literal["send", "cancel", "refresh"]

_MARKS: Final[dict[TokenAction, int]] = {"send": 1, "cancel": 2, "refresh": 3}
_PURPOSE: Final = "matrix-futures"


class Tokens:
    """Makes tokens and reads them back."""

    def __init__(self, ids: Ids) -> None:
        key = ids.secret(_PURPOSE)
        self._ids = ids
        self._by_action = {action: Ids(key, mark) for action, mark in _MARKS.items()}

    def make(self, action: TokenAction, id_: str) -> str:
        """The token for an action on the message of this id."""
        place = self._ids.read(id_)
        assert place is not None, "the engine gives only ids that it can read"
        return self._by_action[action].make(*place)

    def read(self, token: str) -> tuple[TokenAction, str] | None:
        """The action and the id of the message that a token stands for; None if it is not one of ours."""
        for action, tokens in self._by_action.items():
            place = tokens.read(token)
            if place is not None:
                return action, self._ids.make(*place)
        return None
