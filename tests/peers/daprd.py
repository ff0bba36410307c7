"""A stand-in for the program `daprd`: takes its flags and becomes a Tarry server whose Dapr door does what they say.

Suites that start sidecars by themselves are given a script that runs this module. Flags for what the door does not have
(mTLS, metrics, actors, …) are passed over, so that the cases which need these fail by themselves.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.processes import ROOT, SMALL, environment

SAME: Final = {
    "app-id": "APP_ID",
    "app-port": "APP_PORT",
    "app-protocol": "APP_PROTOCOL",
    "dapr-http-port": "PORT",
    "dapr-grpc-port": "GRPC_PORT",
    "config": "CONFIG",
    "enable-app-health-check": "APP_HEALTH_CHECK",
    "app-health-check-path": "APP_HEALTH_CHECK_PATH",
    "app-health-probe-timeout": "APP_HEALTH_TIMEOUT_MS",
    "app-health-threshold": "APP_HEALTH_THRESHOLD",
    "disable-init-endpoints": "DISABLE_INIT_ENDPOINTS",
}
"""Flags and the settings of the door that mean the same."""


def settings_of(flags: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a Tarry server, for a sidecar's flags and the variables that it reads."""
    given: dict[str, list[str]] = {}
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        given.setdefault(name, []).append(value)
    door = {SAME[name]: values[-1] for name, values in given.items() if name in SAME}
    # Zero is said by those who do not mean to check at all.
    if door.get("APP_HEALTH_THRESHOLD") == "0":
        del door["APP_HEALTH_THRESHOLD"]
    if seconds := int(given.get("app-health-probe-interval", ["0"])[-1]):
        door["APP_HEALTH_INTERVAL_MS"] = str(seconds * 1000)
    if paths := given.get("resources-path"):
        door["RESOURCES_PATH"] = ",".join(paths)
    for variable, key in (("APP_API_TOKEN", "APP_TOKEN"), ("NAMESPACE", "NAMESPACE")):
        if variable in variables:
            door[key] = variables[variable]
    return {f"TARRY_DOORS__DAPR__{name}": value for name, value in (door | {"ENABLED": "true"}).items()}


def script(path: Path) -> Path:
    """Write the program; it needs nothing of its caller's environment."""
    path.write_text(
        "#!/bin/sh\n"
        f'export TMPDIR="{path.parent}" PYTHONPATH="{ROOT}:{ROOT / "src"}" PATH="{os.environ["PATH"]}"\n'
        f'exec "{sys.executable}" -m tests.peers.daprd "$@"\n'
    )
    path.chmod(0o755)
    return path


def main() -> None:
    """Become the server; its data lie in the folder of the script."""
    folder = Path(tempfile.mkdtemp(prefix="data-"))
    file = folder / "tarry.toml"
    file.write_text(SMALL)
    command = [sys.executable, "-m", "tarry", "serve", "--config", str(file)]
    command += ["--data", str(folder / "data"), "--port", "0"]
    variables = environment() | settings_of(sys.argv[1:], os.environ)
    # daprd logs to its standard output, and suites look for lines there.
    os.dup2(1, 2)
    os.execve(sys.executable, command, variables)


if __name__ == "__main__":
    main()
