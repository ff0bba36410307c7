"""A private Synapse: its files below one folder, the command that runs it, and its users.

    environment/        the virtual environment
    homeserver.yaml     made once; may be edited
    listener.yaml       where it listens and who may send: made again at each start
    signing.key, registration.yaml, shared-secret
                        secrets, made once, readable by the owner alone
    log.yaml, synapse.log, homeserver.db, media/

It listens on loopback, keeps everything in SQLite, and speaks to no other homeserver.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tarry.homeserver import registration
from tarry.homeserver.files import write_secret

SERVER_NAME: Final = "localhost"
ENVIRONMENT: Final = "environment"
REGISTRATION: Final = "registration.yaml"
ADDRESS: Final = "address"
_SECRET: Final = "shared-secret"  # noqa: S105 - the name of a file
_HTTP_TIMEOUT_S: Final = 30


class UserError(Exception):
    """A user could not be registered. The text says why."""


class PrivateSynapse:
    """The files of one private Synapse."""

    def __init__(self, folder: Path, server_name: str = SERVER_NAME) -> None:
        self.folder = folder.absolute()
        self.server_name = server_name

    @property
    def registration(self) -> Path:
        """How it knows Tarry."""
        return self.folder / REGISTRATION

    @property
    def environment(self) -> Path:
        """Where it is installed."""
        return self.folder / ENVIRONMENT

    def prepare(self, port: int, door_url: str | None, extra: Mapping[str, Any] | None = None) -> None:
        """Make missing files, and write anew where Synapse listens and where the door is.

        Without a `door_url` the door is told of nothing. `extra` is added to the configuration that is made once.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._once("signing.key", f"ed25519 a_{secrets.token_hex(2)} {_unpadded(secrets.token_bytes(32))}\n")
        self._once(_SECRET, secrets.token_urlsafe(32))
        self._once("log.yaml", yaml.safe_dump(self._logging()))
        self._once("homeserver.yaml", yaml.safe_dump({**self._settings(), **(extra or {})}, sort_keys=False))
        self._register(door_url)
        listener: dict[str, Any] = {
            "listeners": [
                {
                    "port": port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    # The door is in front of it.
                    "x_forwarded": True,
                    "resources": [{"names": ["client"], "compress": False}],
                }
            ],
        }
        if door_url is not None:
            listener["public_baseurl"] = f"{door_url}/"
        write_secret(self.folder / "listener.yaml", yaml.safe_dump(listener, sort_keys=False), replace=True)
        write_secret(self.folder / ADDRESS, f"http://127.0.0.1:{port}", replace=True)

    def command(self, interpreter: Path) -> list[str]:
        """The command that runs it, in the foreground."""
        files = (str(self.folder / name) for name in ("homeserver.yaml", "listener.yaml"))
        options = [word for file in files for word in ("--config-path", file)]
        return [str(interpreter), "-m", "synapse.app.homeserver", *options]

    def address(self) -> str:
        """Where it listens, or last did; `FileNotFoundError` if it was never started."""
        return (self.folder / ADDRESS).read_text(encoding="utf-8")

    def register(self, name: str, password: str, *, admin: bool = False) -> dict[str, Any]:
        """Make a user, through the admin API that the shared secret opens; gives what a login would."""
        url = f"{self.address()}/_synapse/admin/v1/register"
        nonce = _ask(url)["nonce"]
        secret = (self.folder / _SECRET).read_text(encoding="utf-8")
        signed = "\0".join((nonce, name, password, "admin" if admin else "notadmin"))
        mac = hmac.new(secret.encode(), signed.encode(), hashlib.sha1).hexdigest()
        return _ask(url, {"nonce": nonce, "username": name, "password": password, "admin": admin, "mac": mac})

    def _once(self, name: str, text: str) -> None:
        try:
            write_secret(self.folder / name, text)
        except FileExistsError:
            pass

    def _register(self, door_url: str | None) -> None:
        """The registration: its tokens stay, its address follows the door."""
        try:
            found = registration.read(self.registration)
        except FileNotFoundError:
            registration.write(self.registration, registration.fresh(self.server_name, door_url))
            return
        if found.get("url") != door_url:
            registration.write(self.registration, {**found, "url": door_url}, replace=True)

    def _settings(self) -> dict[str, Any]:
        folder = self.folder
        return {
            "server_name": self.server_name,
            "report_stats": False,
            "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
            "media_store_path": str(folder / "media"),
            "signing_key_path": str(folder / "signing.key"),
            "log_config": str(folder / "log.yaml"),
            "registration_shared_secret_path": str(folder / _SECRET),
            "macaroon_secret_key": secrets.token_urlsafe(32),
            "form_secret": secrets.token_urlsafe(32),
            "enable_registration": False,
            "allow_guest_access": False,
            "app_service_config_files": [str(self.registration)],
            # Private: it asks nobody's keys and speaks to no other homeserver.
            "trusted_key_servers": [],
            "federation_domain_whitelist": [],
            "presence": {"enabled": False},
        }

    def _logging(self) -> dict[str, Any]:
        file = {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "line",
            "filename": str(self.folder / "synapse.log"),
            "maxBytes": 10_000_000,
            "backupCount": 2,
        }
        return {
            "version": 1,
            "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
            "handlers": {"file": file},
            "root": {"level": "WARNING", "handlers": ["file"]},
            "disable_existing_loggers": False,
        }


def run(synapse: PrivateSynapse, interpreter: Path) -> None:
    """Become that Synapse: this process is replaced, so that whoever watches it watches Synapse."""
    command = synapse.command(interpreter)
    os.chdir(synapse.folder)
    # Tarry's own packages are not to be found from there.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TARRY_"))
    }
    os.execve(command[0], command, environment)  # noqa: S606 - our own command, without a shell


def _unpadded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _ask(url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as response:  # noqa: S310
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise UserError(_reason(error)) from None
    except OSError as error:
        raise UserError(
            f"{url} does not answer ({getattr(error, 'reason', error)}); is `tarry up` running?"
        ) from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the homeserver answers {error.code}"
