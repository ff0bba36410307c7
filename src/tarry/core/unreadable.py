"""The errors with which JSON from outside can fail to be read: another syntax or shape, no UTF-8, nested too deeply.

Whoever reads what others wrote catches all of them. The last is easily forgotten, because its kind is that of an error in
the program: a document of a few kilobytes is nested more deeply than the interpreter's stack.
"""

from typing import Final

from msgspec import MsgspecError

UNREADABLE: Final = (MsgspecError, UnicodeDecodeError, RecursionError)
