"""The pure parts of `make peers`: reading outputs, reasons, stored results and the page. No suite is run here."""

from pathlib import Path

import pytest

from tests.peers.__main__ import all_suites
from tests.peers.daprd import settings_of
from tests.peers.gotest import read_cases, read_list
from tests.peers.page import BEGIN, END, PAGE, rewritten, tables
from tests.peers.pulsar import run_each
from tests.peers.reasons import FOLDER, Reason, pattern_for, read_reasons, reasons_of, unexplained, unused
from tests.peers.results import load_all, save, stored
from tests.peers.suite import Case
from tests.peers.suites import complement, dapr, matrix_js_sdk, pulsar_java
from tests.peers.suites.h2spec import read_report
from tests.peers.workplace import Workplace, missing

OUTPUT = """\
=== RUN   TestWhole
--- PASS: TestWhole (0.01s)
=== RUN   TestParts
=== RUN   TestParts/one
=== RUN   TestParts/two
    x_test.go:1: no
--- FAIL: TestParts (0.02s)
    --- PASS: TestParts/one (0.01s)
    --- FAIL: TestParts/two (0.01s)
=== RUN   TestLeft
--- SKIP: TestLeft (0.00s)
=== RUN   TestHangs
panic: test timed out after 1s
"""


def test_go_tests_are_read_with_their_verdicts() -> None:
    found = {case.name: case.outcome for case in read_cases(OUTPUT)}
    assert found == {
        "TestWhole": "passed",
        "TestParts": "failed",
        "TestLeft": "skipped",
        "TestHangs": "failed",
    }


def test_parts_of_go_tests_count_in_place_of_the_whole() -> None:
    found = {case.name: case.outcome for case in read_cases(OUTPUT, subtests=True)}
    assert found["TestParts/one"] == "passed"
    assert found["TestParts/two"] == "failed"
    assert "TestParts" not in found
    assert found["TestWhole"] == "passed"


def test_what_is_said_of_a_failure_is_kept_and_of_others_not() -> None:
    said = {case.name: case.said for case in read_cases(OUTPUT)}
    assert "timed out" in said["TestHangs"]
    assert said["TestWhole"] == ""


def test_cases_of_the_javascript_program_are_read_among_what_else_it_says() -> None:
    said = """\
a warning of the library
{"name":"good","passed":true}
{"name":"bad","passed":false,"said":"AssertionError"}
{"other":1}
"""
    assert matrix_js_sdk.read_cases(said) == [
        Case("good", "passed"),
        Case("bad", "failed", "AssertionError"),
    ]
    assert matrix_js_sdk.read_cases("") == []


def test_each_case_of_complement_has_a_name_of_its_own() -> None:
    names = [name for name, _ in complement.cases()]
    assert len(names) == len(set(names)) == 17


def test_cases_of_the_java_program_are_read_and_silence_is_a_failure() -> None:
    said = "x\nPASS one\nFAIL two: Error: why\n"
    cases = pulsar_java.read_cases(said, ["one", "two", "three"])
    assert [(case.name, case.outcome) for case in cases] == [
        ("one", "passed"), ("two", "failed"), ("three", "failed"),
    ]  # fmt: skip
    assert cases[1].said == "Error: why"


def test_a_case_that_fails_among_others_is_judged_alone() -> None:
    tries: dict[str, int] = {}

    def one(name: str) -> list[Case]:
        tries[name] = tries.get(name, 0) + 1
        return [Case(name, "passed" if name == "good" or (tries[name] > 1 and name == "shy") else "failed")]

    assert [case.outcome for case in run_each(["good", "shy", "bad"], one)] == ["passed", "passed", "failed"]
    assert tries == {"good": 1, "shy": 2, "bad": 2}


def test_benchmarks_are_no_tests() -> None:
    assert read_list("TestA\nBenchmarkB\nExampleC\nTest_d\nok pkg 0.1s\n") == ["TestA", "Test_d"]


def test_a_report_of_h2spec_is_read_with_its_sections() -> None:
    report = """<testsuites><testsuite package="http2/5.1"><testcase classname="idle"></testcase>
    <testcase classname="closed"><error>GOAWAY</error></testcase></testsuite>
    <testsuite package="hpack/2.3"><testcase classname="index"><skipped/></testcase></testsuite></testsuites>"""
    assert read_report(report) == [
        Case("http2/5.1/1: idle", "passed"),
        Case("http2/5.1/2: closed", "failed", "GOAWAY"),
        Case("hpack/2.3/1: index", "skipped"),
    ]


def test_a_reason_has_a_kind_and_a_sentence() -> None:
    found = read_reasons('[failed]\n"TestTxn*" = "outside: no transactions"\n')
    assert found == {"TestTxn*": Reason("outside", "no transactions")}
    for line in ("no transactions", "outside", "outside:", "strange: it is"):
        with pytest.raises(ValueError, match="TestA"):
            read_reasons(f'[failed]\nTestA = "{line}"\n')


def test_a_name_goes_before_a_pattern_and_brackets_are_letters() -> None:
    reasons = {"T*": Reason("outside", "a"), "Tx": Reason("client", "b"), "b[1]": Reason("outside", "c")}
    assert pattern_for("Tx", reasons) == "Tx"
    assert pattern_for("Ty", reasons) == "T*"
    assert pattern_for("b[1]", reasons) == "b[1]"
    assert pattern_for("b1", reasons) is None
    assert unexplained(["Tx", "z", "Ty"], reasons) == ["z"]
    assert unused(["Tx", "z"], reasons) == ["T*", "b[1]"]


def test_one_suites_result_leaves_the_others(tmp_path: Path) -> None:
    cases = [Case("a", "passed"), Case("c", "failed", "long"), Case("b", "failed"), Case("d", "skipped")]
    first, second = stored("one", "One", "1.0", cases), stored("two", "Two", "2", cases[:1])
    save(first, tmp_path)
    save(second, tmp_path)
    save(stored("two", "Two", "2", cases[:2]), tmp_path)
    kept = load_all(tmp_path)
    assert kept[0] == first
    assert kept[0].failed == ["b", "c"]
    assert (kept[0].passed, kept[0].skipped) == (1, 1)
    assert (kept[1].passed, kept[1].failed) == (1, ["c"])


def test_the_page_has_a_row_for_each_suite_and_a_line_for_each_failure() -> None:
    results = [stored("one", "One", "1.0", [Case("a|b", "failed"), Case("c", "failed"), Case("d", "passed")])]
    shown = tables(results, lambda _: {"a*": Reason("better", "why")})
    assert "| One | 1.0 | 1 | 2 | 0 |" in shown
    assert "| `a\\|b` | better | why |" in shown
    assert "| `c` | **none** | unexplained |" in shown
    page = rewritten(f"before\n{BEGIN}\nold\n{END}\nafter\n", results)
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert rewritten(page, results) == page


def test_a_page_without_marks_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="marks"):
        rewritten("mine", [])


def test_the_page_is_what_the_stored_results_and_reasons_say() -> None:
    page = PAGE.read_text("utf-8")
    assert page == rewritten(page, load_all()), "type: python -m tests.peers --page"


def test_every_stored_failure_has_its_reason() -> None:
    for one in load_all():
        assert unexplained(one.failed, reasons_of(one.name)) == [], one.name


def test_results_and_reasons_belong_to_suites() -> None:
    names = {suite.name for suite in all_suites()}
    assert {one.name for one in load_all()} <= names
    assert {path.stem for path in FOLDER.glob("*.toml")} <= names
    assert len(names) == len(all_suites())


def test_a_command_that_takes_too_long_ends_with_all_it_started() -> None:
    with Workplace("unit") as workplace:
        done = workplace.command("sh", "-c", "echo begun; sleep 60 & wait", within_s=0.5)
        folder = workplace.folder
    assert done.returncode == -9
    assert done.stdout == "begun\n"
    assert not folder.exists()
    assert missing(["sh", "no-such-program"]) == ["no-such-program"]


def test_a_sidecars_flags_become_settings_of_the_door() -> None:
    flags = [
        "--app-id=shop", "--app-port=4000", "--app-protocol=grpc", "--dapr-http-port=1", "--dapr-grpc-port=2",
        "--resources-path=/a", "--resources-path=/b", "--config=/c", "--enable-app-health-check=true",
        "--app-health-check-path=/well", "--app-health-probe-interval=3", "--app-health-threshold=0",
        "--disable-init-endpoints=subscribe,config", "--enable-mtls=false", "--enable-profiling",
    ]  # fmt: skip
    found = settings_of(flags, {"APP_API_TOKEN": "secret", "NAMESPACE": "eu", "HOME": "/root"})
    assert {name.removeprefix("TARRY_DOORS__DAPR__"): value for name, value in found.items()} == {
        "ENABLED": "true", "APP_ID": "shop", "APP_PORT": "4000", "APP_PROTOCOL": "grpc", "PORT": "1", "GRPC_PORT": "2",
        "RESOURCES_PATH": "/a,/b", "CONFIG": "/c", "APP_HEALTH_CHECK": "true", "APP_HEALTH_CHECK_PATH": "/well",
        "APP_HEALTH_INTERVAL_MS": "3000", "DISABLE_INIT_ENDPOINTS": "subscribe,config", "APP_TOKEN": "secret",
        "NAMESPACE": "eu",
    }  # fmt: skip


DAPRS_OUTPUT = """\
=== RUN   Test_Integration
=== RUN   Test_Integration/build_binaries
=== RUN   Test_Integration/daprd/pubsub/good
=== RUN   Test_Integration/daprd/pubsub/good/run
=== RUN   Test_Integration/daprd/pubsub/bad
=== RUN   Test_Integration/daprd/pubsub/bad/run
=== RUN   Test_Integration/daprd/pubsub/bad/run/a_part
    bad.go:7:
        \tError Trace:\tbad.go:7
        \tError:      \tNot equal
        \tTest:       \tTest_Integration/daprd/pubsub/bad/run/a_part
=== RUN   Test_Integration/daprd/pubsub/hung
--- FAIL: Test_Integration (1.56s)
    --- PASS: Test_Integration/build_binaries (0.00s)
    --- PASS: Test_Integration/daprd/pubsub/good (1.00s)
        --- PASS: Test_Integration/daprd/pubsub/good/run (1.00s)
    --- FAIL: Test_Integration/daprd/pubsub/bad (1.00s)
        --- FAIL: Test_Integration/daprd/pubsub/bad/run (1.00s)
            --- FAIL: Test_Integration/daprd/pubsub/bad/run/a_part (1.00s)
"""


def test_cases_of_daprs_suite_are_counted_without_their_parts() -> None:
    cases = dapr.read_cases(DAPRS_OUTPUT)
    assert [(one.name, one.outcome) for one in cases] == [
        ("daprd/pubsub/good", "passed"),
        ("daprd/pubsub/bad", "failed"),
        ("daprd/pubsub/hung", "failed"),
    ]
    assert "Not equal" in cases[1].said
