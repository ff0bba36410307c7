"""Pulsar's own Java programs, fetched by Maven into `.cache/` once; tests that need them are skipped where that fails."""

import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[3] / ".cache" / "pulsar-java"
FETCH_WITHIN_S = 900
RUN_WITHIN_S = 300

TOOLS = ("org.apache.pulsar", "pulsar-client-tools", "4.0.8")
"""`pulsar-admin`: the newest one that is published apart from the server."""
CLIENT = ("org.apache.pulsar", "pulsar-client", "4.2.4")

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>none</groupId><artifactId>none</artifactId><version>1</version>
<dependencies><dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency></dependencies>
</project>
"""


def class_path(artifact: tuple[str, str, str]) -> str:
    """Where the classes of an artifact and of all that it needs are."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("Java and Maven are not at hand")
    folder = CACHE / f"{artifact[1]}-{artifact[2]}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM.format(*artifact))
        fetched = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            cwd=folder, capture_output=True, text=True, timeout=FETCH_WITHIN_S, check=False,
        )  # fmt: skip
        if fetched.returncode:
            pytest.skip(f"Maven cannot fetch {artifact[1]}: {fetched.stdout[-300:]}")
        (folder / "complete").touch()
    return f"{folder}/lib/*"


def command(classes: str, *arguments: str) -> list[str]:
    """The command line of a program of Java's."""
    options = ["-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    options += ["--add-opens", "java.base/java.io=ALL-UNNAMED"]
    return ["java", *options, "-cp", classes, *arguments]


def need_compiler() -> None:
    """Skip a test whose program is compiled when it is run."""
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("this Java has no compiler")


def java(classes: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of Java's to its end; what it says on standard error is where it was said, in its output."""
    return subprocess.run(
        command(classes, *arguments),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_WITHIN_S, check=False,
    )  # fmt: skip
