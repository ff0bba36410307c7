"""The command line: `tarry`. Each group of commands is a module; they speak to the server as clients do."""

from tarry.cli.app import main

__all__ = ["main"]
