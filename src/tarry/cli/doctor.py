"""`doctor`: looks at everything that Tarry needs and says what is fine and what to do."""

import os

import typer

from tarry.cli import show
from tarry.cli.finding import CheckResult
from tarry.cli.options import ConfigFile, JsonOption, Url
from tarry.config import Config, ConfigError, load
from tarry.config.server import server_url

STYLES = {"ok": "green", "note": "yellow", "bad": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(doctor)


def doctor(json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Check what Tarry needs here: data folder, disk, clock, Java, ports, server, homeserver, brokers, configuration.

    Each line is ok, or says what to do. The exit code is 1 if something is bad.
    """
    # Late: the checks know the data folder, and that knows more than the other commands need.
    from tarry.cli.checks import check_all

    findings = []
    try:
        loaded = load(config, os.environ)
        settings = loaded.config
        findings.append(CheckResult("configuration", "ok", str(loaded.file or "defaults")))
    except ConfigError as error:
        settings = Config()
        findings.append(
            CheckResult("configuration", "bad", f"{error} (the rest is checked with the defaults)")
        )
    findings.extend(check_all(settings, url or server_url(settings)))
    for finding in findings:
        if json:
            show.as_json(finding._asdict())
        else:
            mark = f"[{STYLES[finding.level]}]{finding.level:4}[/]"
            show.out.print(f"{mark}  {finding.about:14}", end="")
            show.out.print(finding.text, markup=False, soft_wrap=True)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)
