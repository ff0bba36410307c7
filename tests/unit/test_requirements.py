"""The ranges that the package declares and the versions that the project locks: one list of names, and each version within its range."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements" / "base.txt").read_text()


def locked() -> dict[str, str]:
    return {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)
    }


def declared() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for name in extras for text in extras[name])]
    return [one for one in map(Requirement, texts) if one.name != "tarry"]


def test_every_dependency_is_locked_within_its_range() -> None:
    versions = locked()
    assert len(declared()) > 20
    for one in declared():
        assert one.specifier.contains(versions[canonicalize_name(one.name)]), one


def test_published_dependencies_are_ranges_with_a_lowest_version() -> None:
    for one in declared():
        operators = {each.operator for each in one.specifier}
        assert ">=" in operators, one
        assert operators <= {">=", "<"}, one


def test_all_names_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - {"all"}
