"""`tools/commit-message.py`, the hook that holds commits to what CONTRIBUTING says of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.processes import ROOT

TOOL = ROOT / "tools" / "commit-message.py"
GOOD = "Ledger: one writer\n\nTwo of them could not agree on the order.\n"


def check(folder: Path, message: str) -> tuple[int, str]:
    """The exit code of the hook for a message, and what it says."""
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message, "utf-8")
    done = subprocess.run([sys.executable, TOOL, file], capture_output=True, text=True, check=False)
    assert not done.stdout
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        "x" * 72 + "\n\nwhy",
        # By characters, not bytes.
        "ü" * 72 + "\n\nwhy",
        "\n# Please enter the message\n" + GOOD + "# On branch main\n",
        GOOD + "\nCo-authored-by: Ann <ann@example.org>\n",
        "Merge branch 'main' into topic\n",
        'Revert "Ledger: one writer"\n',
        "fixup! Ledger: one writer\n",
    ],
)
def test_a_good_message_passes(tmp_path: Path, message: str) -> None:
    assert check(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", "empty"),
        ("# Please enter the message\n", "empty"),
        ("Ledger: one writer\n", "no body"),
        ("Ledger: one writer\n\n# why\n", "no body"),
        ("Ledger: one writer\n\nCo-authored-by: Ann <ann@example.org>\n", "no body"),
        ("x" * 73 + "\n\nwhy\n", "has 73 characters; at most 72"),
        ("Ledger: one writer\nwhy\n", "second line is not empty"),
        # With `git commit --verbose` the change follows.
        ("Ledger: one writer\n\n# ------------------------ >8 ------------------------\ndiff\n", "no body"),
    ],
)
def test_a_bad_message_is_told_what_is_wrong(tmp_path: Path, message: str, said: str) -> None:
    code, told = check(tmp_path, message)
    assert code == 1
    assert said in told


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    assert check(tmp_path, "x" * 80)[1].count("\n") == 2


def test_pre_commit_calls_it_at_the_right_stage() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    assert hooks["message"]["stages"] == ["commit-msg"]
    assert (ROOT / hooks["message"]["entry"]) == TOOL
    # `pre-commit install` alone would leave that stage out.
    assert set(config["default_install_hook_types"]) == {"pre-commit", "commit-msg"}
    assert all(hook.get("stages") == ["pre-commit"] for name, hook in hooks.items() if name != "message")
