"""Results of parts, kept as JSON, one file each: a part can be measured again without the others."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.figures import Figures
from bench.plan import Plan
from bench.processes import ROOT


@dataclass(frozen=True)
class Result:
    """The result of one part."""

    part: str
    plan: Plan
    began_at: str
    """In UTC."""
    took_s: float
    command: str
    commit: str
    machine: list[tuple[str, str]]
    """The machine that it ran on."""
    figures: Figures

    def save(self, folder: Path) -> None:
        """Keep it, in the place of an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "part": self.part,
            "began_at": self.began_at,
            "took_s": round(self.took_s, 1),
            "command": self.command,
            "commit": self.commit,
            "machine": self.machine,
            "plan": asdict(self.plan),
            "skipped": self.figures.skipped,
            "notes": self.figures.notes,
            "figures": {
                who: {what: [_rounded(value) for value in found] for what, found in measured.items()}
                for who, measured in self.figures.values().items()
            },
        }
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        (folder / f"{self.part}.json").write_text(text + "\n")

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read one that was kept."""
        kept = json.loads(file.read_text())
        figures = Figures(kept["figures"])
        figures.skipped, figures.notes = kept["skipped"], kept["notes"]
        return cls(
            kept["part"],
            Plan.of(kept["plan"]),
            kept["began_at"],
            kept["took_s"],
            kept["command"],
            kept["commit"],
            [(name, value) for name, value in kept["machine"]],
            figures,
        )


def load_all(folder: Path, order: Sequence[str]) -> list[Result]:
    """Every result that is there, in the order of the parts."""
    return [Result.load(file) for name in order if (file := folder / f"{name}.json").exists()]


def commit() -> str:
    """The commit that is measured; with a plus if the code has been changed since."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "src", "bench/*.py", "bench/peers")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def now() -> str:
    """The time, for the head of the report."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _rounded(value: float) -> float:
    """Six digits that count are more than a measurement has."""
    return float(f"{value:.6g}")
