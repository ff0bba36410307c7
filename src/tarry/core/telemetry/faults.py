"""How an error that nobody expected is told: by its kind and its places in the code.

Never by its text, which may hold what somebody sent: a payload, an id, a token.
"""

import traceback


def told(error: BaseException) -> str:
    """An error for a log: `KeyError at` and a line for each place, the innermost last."""
    places = traceback.walk_tb(error.__traceback__)
    lines = [f"  {frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in places]
    return "\n".join((f"{type(error).__name__} at", *lines))
