"""summerwind/h2spec: the conformance tests of HTTP/2, against the gRPC port, from the Go module proxy."""

import re
from typing import Final
from xml.etree import ElementTree

from tests.peers.suite import Case, Outcome
from tests.peers.workplace import Door, Workplace
from tests.processes import free_port

MODULE: Final = "github.com/summerwind/h2spec/cmd/h2spec"
METHOD: Final = "/dapr.proto.runtime.v1.Dapr/GetMetadata"
"""The path that it asks for. It does not speak gRPC, so that every request of it is refused."""


class H2Spec:
    """See `Suite`."""

    name = "h2spec"
    title = "summerwind/h2spec, on the gRPC port"
    version = "v2.2.1+incompatible"
    programs = ("go",)
    minutes = 1

    def lacking(self) -> str | None:
        """Nothing beyond Go."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Build it, and run all of it: the cases take a few seconds."""
        workplace.must(
            "go", "install", f"{MODULE}@{self.version}", env={"GOBIN": str(workplace.cache)}, within_s=1800
        )
        port = free_port()
        workplace.serve(Door("dapr", grpc_port=port).config)
        report = workplace.folder / "report.xml"
        said = workplace.command(
            workplace.cache / "h2spec", "--port", str(port), "--path", METHOD, "--timeout", "5", "--junit-report", report
        )  # fmt: skip
        if not report.exists():
            raise RuntimeError(f"h2spec wrote no report: {said.stdout[-2000:]}")
        return [case for case in read_report(report.read_text("utf-8")) if re.search(only, case.name)]


def read_report(text: str) -> list[Case]:
    """The cases of a report in JUnit's form, by the section that they test and their number in it."""
    cases: list[Case] = []
    for suite in ElementTree.fromstring(text).iter("testsuite"):
        for number, one in enumerate(suite.iter("testcase"), 1):
            name = f"{suite.get('package')}/{number}: {one.get('classname')}"
            cases.append(Case(name, _outcome(one), "".join(one.itertext()).strip()))
    return cases


def _outcome(one: ElementTree.Element) -> Outcome:
    if one.find("skipped") is not None:
        return "skipped"
    return "passed" if one.find("failure") is None and one.find("error") is None else "failed"


SUITE: Final = H2Spec()
