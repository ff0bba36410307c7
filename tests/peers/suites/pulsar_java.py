"""Pulsar's Java client from Maven: a program of ours with its retries, dead letters, delays and ack timeouts.

The program is `java/PulsarCases.java`; it uses the names and settings that the client has by itself.
"""

import re
from pathlib import Path
from typing import Final

from tests.peers.pulsar import SEGMENT_BYTES
from tests.peers.suite import Case
from tests.peers.workplace import Door, Workplace

PROGRAM: Final = Path(__file__).parents[1] / "java" / "PulsarCases.java"
_NAME: Final = re.compile(r'cases\.put\("([^"]+)"')
_SAID: Final = re.compile(r"^(PASS|FAIL) (.*)$", re.MULTILINE)

POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>none</groupId><artifactId>none</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId>
<version>{}</version></dependency></dependencies></project>
"""


def read_cases(said: str, names: list[str]) -> list[Case]:
    """The cases in the program's output; one that it says nothing of has failed."""
    told = {}
    for found in _SAID.finditer(said):
        name, _, reason = found[2].partition(": ") if found[1] == "FAIL" else (found[2], "", "")
        told[name] = Case(name, "passed" if found[1] == "PASS" else "failed", reason)
    return [told.get(name, Case(name, "failed", said[-2000:])) for name in names]


class PulsarJava:
    """See `Suite`."""

    name = "pulsar-java"
    title = "Maven's `pulsar-client`: retry, dead letter, delay, ack timeout (our program)"
    version = "4.2.4"
    programs = ("java", "mvn")
    minutes = 3

    def lacking(self) -> str | None:
        """Nothing beyond Java and Maven."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Bring the client, start a server, run the program."""
        folder = workplace.cache / self.version
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pom.xml").write_text(POM.format(self.version))
            copy = ("dependency:copy-dependencies", "-DoutputDirectory=lib")
            workplace.must("mvn", "-q", "-B", *copy, cwd=folder, within_s=900)
            (folder / "complete").touch()
        door = Door("pulsar")
        server = workplace.serve(door.config, TARRY_LEDGER__SEGMENT_BYTES=SEGMENT_BYTES)
        opened = [
            word for one in ("lang", "io") for word in ("--add-opens", f"java.base/java.{one}=ALL-UNNAMED")
        ]
        done = workplace.command(
            "java", "-XX:TieredStopAtLevel=1", *opened, "-cp", f"{folder}/lib/*", PROGRAM,
            f"pulsar://127.0.0.1:{door.port}", server.url, only, within_s=900,
        )  # fmt: skip
        names = [name for name in _NAME.findall(PROGRAM.read_text("utf-8")) if re.search(only, name)]
        return read_cases(done.stdout, names)


SUITE: Final = PulsarJava()
