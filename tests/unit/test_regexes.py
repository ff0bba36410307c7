"""No regular expression of ours takes long for what a client can send: each is fed what such expressions choke on."""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from itertools import product

import pytest

import tarry.core
import tarry.doors
import tarry.engine
import tarry.outlets
from tarry.core.messages.delivery import Delivery
from tarry.outlets.webhook.event import encode
from tarry.outlets.webhook.settings import WebhookSettings

LENGTH = 16_384
"""As long as a header may be."""

LIMIT_S = 0.5
"""Processor time; a linear expression takes a thousandth of it."""


def patterns() -> Iterator[tuple[str, "re.Pattern[str] | re.Pattern[bytes]"]]:
    for package in (tarry.core, tarry.doors, tarry.engine, tarry.outlets):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    yield f"{found.name}.{name}", value


PATTERNS = dict(patterns())


def texts(pattern: str) -> Iterator[str]:
    """Long repetitions of what the expression speaks of, with an end that it does not expect."""
    letters = sorted({letter for letter in pattern if not letter.isalnum()} | set("a0 /;.+-=,:"))
    for one in letters:
        yield one * LENGTH + "\0"
    for one, other in product("a0", letters):
        yield (one + other) * (LENGTH // 2) + "\0"


def test_there_are_some() -> None:
    assert len(PATTERNS) > 20


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_it_takes_no_time(name: str) -> None:
    pattern = PATTERNS[name]
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    for text in texts(source):
        began_s = time.thread_time()
        if isinstance(pattern.pattern, str):
            pattern.fullmatch(text)
        else:
            pattern.fullmatch(text.encode())
        assert time.thread_time() - began_s < LIMIT_S, text[:20]


@pytest.mark.parametrize("repeated", ["/", "+", "/+", "a/", "json/"])
def test_a_content_type_of_any_length(repeated: str) -> None:
    type_ = repeated * (LENGTH // len(repeated))
    delivery = Delivery("id", "https://example.com/", b"{}", {"content-type": type_}, None, "", 0, 0, 1)
    began_s = time.thread_time()
    encode(delivery, WebhookSettings(mode="structured"), 0)
    assert time.thread_time() - began_s < LIMIT_S
