"""Values that nobody chooses who wishes the server well: at the edges, beyond them, and far too many."""

import json
import random
import time
from typing import Any, Final

EDGES: Final = (0, 1, 2, 7, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 47) - 2, (1 << 47) - 1, 1 << 47,
                (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**30)  # fmt: skip
FLOATS: Final = (0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 1e3, 1e308, -0.0, -1.0, float("inf"), float("nan"))
LETTERS: Final = (
    "a",
    "é",
    "\u0000",
    "\ud7ff",
    "\U0001f600",
    "\n",
    " ",
    "/",
    ";",
    "%",
    "+",
    "\u202e",
    "json/",
)
TENANTS: Final = ("public/default", "public/other", "shop/orders")
MAX_DELAY_MS: Final = 100 * 366 * 86_400_000


class Values:
    """A seeded source of such values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, of: float) -> bool:
        """True in this share of the cases."""
        return self.random.random() < of

    def one(self, *choices: Any) -> Any:
        """One of these."""
        return self.random.choice(choices)

    def integer(self) -> int:
        """Any whole number."""
        value = self.one(*EDGES, self.random.randrange(100_000))
        return -value if self.chance(0.1) else int(value)

    def number(self) -> float:
        """Any number."""
        return float(self.one(*FLOATS, self.random.random() * 1000))

    def soon_ms(self) -> int:
        """A delay that ends within the campaign."""
        return self.random.randrange(3_000)

    def delay_ms(self) -> int:
        """A delay of any length that may be, or not."""
        if self.chance(0.6):
            return self.soon_ms()
        return int(self.one(MAX_DELAY_MS, MAX_DELAY_MS - 1, MAX_DELAY_MS + 1, 3_600_000, self.integer()))

    def instant_ms(self) -> int:
        """A due instant: past, near, far, or none that can be."""
        now_ms = time.time_ns() // 1_000_000
        return int(
            self.one(
                0, 1, now_ms - 10**11, now_ms, now_ms + self.soon_ms(), now_ms + MAX_DELAY_MS, self.integer()
            )
        )

    def text(self, most: int = 300) -> str:
        """Any text, at times a long one."""
        length = self.one(0, 1, 3, self.random.randrange(1, most + 1), most)
        letter = self.one(*LETTERS)
        return str(letter * length)[:length]

    def name(self) -> str:
        """A short and good name."""
        return f"n{self.random.randrange(6)}"

    def topic(self) -> str:
        """A topic, nearly always a good one."""
        if self.chance(0.05):
            return self.text(2_100)
        return f"persistent://{self.one(*TENANTS)}/{self.name()}"

    def headers(self) -> dict[str, str]:
        """Headers: none, a few, or as many as fit."""
        count = self.one(0, 0, 0, 1, 3, 64, 65)
        return {
            self.one(f"h{n}", "content-type", f"ce-{n}", self.text(60)): self.text(self.one(10, 300, 16_000))
            for n in range(count)
        }

    def payload(self) -> str:
        """A payload, seldom a large one."""
        return self.text(self.one(10, 10, 1_000, 100_000 if self.chance(0.1) else 10))

    def data(self, most: int = 300) -> bytes:
        """Bytes of any kind."""
        return self.random.randbytes(self.one(0, 1, 5, self.random.randrange(1, most + 1)))

    def mutated(self, data: bytes) -> bytes:
        """Bytes like these, with some of them changed, left out, or too many."""
        changed = bytearray(data)
        for _ in range(self.one(1, 1, 3, 30)):
            at = self.random.randrange(len(changed) + 1)
            match self.random.randrange(4):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << self.random.randrange(8)
                case 1:
                    del changed[at : at + self.one(1, 4, 100)]
                case 2:
                    changed[at:at] = self.data(20)
                case _:
                    changed[at : at + 4] = self.one(b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff")
        return bytes(changed)

    def document(self) -> bytes:
        """JSON of any shape, or nearly."""
        deep = self.one(50, 900, 3_000, 100_000)
        text = json.dumps(self.text(self.one(10, 3_000)))
        return bytes(
            self.one(
                text.encode(), b"null", b"[]", b"{}", b"-0.0", b"", b"{", b'{"a":1,"a":2}', b"\xff\xfe", b'"\\ud800"',
                b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"9" * self.one(20, 400, 5_000),
                b"[" + b",".join([b"1e400", b"-1e-400", b"1.7976931348623157e308"]) + b"]",
                b"[" + b",".join([text.encode()] * self.one(3, 1_000)) + b"]",
                json.dumps({f"k{n}": n for n in range(self.one(3, 2_000))}).encode(),
                json.dumps({"total": self.integer(), "name": self.text(50), "list": [self.integer(), [], {}]}).encode(),
            )
        )  # fmt: skip

    def some(self, **fields: Any) -> dict[str, Any]:
        """A random choice of these fields; each is a function that makes its value."""
        return {name: make() for name, make in fields.items() if self.chance(0.4)}

    def policy(self) -> dict[str, Any]:
        """A policy of extremes."""
        return self.some(
            delayed_delivery=lambda: self.chance(0.8),
            tick_ms=self.integer,
            slot_ms=self.integer,
            max_delay_ms=self.integer,
            max_pending_per_owner=self.integer,
            accept_per_second=self.number,
            send_per_second=self.number,
            command_per_second=self.number,
            message_ttl_ms=self.integer,
            retention_ms=self.integer,
            retention_bytes=self.integer,
            backlog_bytes=self.integer,
            backlog_ms=self.integer,
        )
