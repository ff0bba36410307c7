"""Checks of `tarry doctor`. Each looks at one thing and says what it found and what to do.

A check changes nothing that lasts, and never fails itself: what it cannot find out is a finding too.
"""

import ctypes
import os
import re
import resource
import shutil
import ssl
import stat
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tarry.cli.finding import CheckResult
from tarry.cli.neighbours import check_neighbours
from tarry.cli.ports import check_ports, listens
from tarry.client.blocking import Client
from tarry.config import Config
from tarry.config.server import client_tls
from tarry.core.errors import TarryError
from tarry.index.progress import Progress, read_progress
from tarry.serve.datafolder import ID_KEY, LEDGER, PIPELINE, explain, owner_pid

SYNCS: Final = 30
SLOW_SYNC_MS: Final = 20.0
LOW_SPACE_BYTES: Final = 1 << 30
FEW_FILES: Final = 4096
JAVA_AT_LEAST: Final = 17
CLOCK_BACK_S: Final = 2.0
_TIME_ERROR: Final = 5


def check_all(config: Config, url: str) -> Iterator[CheckResult]:
    """Everything, one after another. `url` is where the server is looked for."""
    folder = Path(config.data)
    key_file = config.cluster.id_key_file
    yield from check_folder(folder, Path(key_file) if key_file else None)
    yield from check_tables(config)
    yield check_sync(folder)
    if config.ledger.log == "kafka":
        yield from check_shared_log(config)
    yield check_clock()
    yield from check_clock_since(folder / LEDGER, time.time())
    yield check_open_files()
    yield check_java()
    if config.pipeline.enabled or (folder / PIPELINE).is_dir():
        yield check_pipeline(folder / PIPELINE, time.time_ns() // 1_000_000)
    yield from check_ports(config, owner_pid(folder))
    tls = client_tls(config)
    yield check_server(url, config.token, owner_pid(folder), tls)
    yield from check_warnings(url, config.token, tls)
    yield from check_neighbours(config)


def check_shared_log(config: Config) -> Iterator[CheckResult]:
    """The log of a ledger that several servers share."""
    try:
        from tarry.cli.shared_log import check_log
    except ImportError as error:
        yield CheckResult("ledger log", "bad", f"{error.name} is not installed: pip install 'tarry[kafka]'")
        return
    yield from check_log(config)


def check_folder(folder: Path, key_file: Path | None = None) -> Iterator[CheckResult]:
    """The data folder: there, writable, whose, its key, and how much room there is."""
    about = "data folder"
    if key_file is not None and not folder.exists():
        yield from _check_key(folder, key_file)
    if not folder.exists():
        parent = _existing(folder)
        if os.access(parent, os.W_OK):
            yield CheckResult(about, "ok", f"{folder} is not there yet; the server makes it")
        else:
            yield CheckResult(
                about, "bad", f"{folder} cannot be made in {parent}; change its owner, or set `data`"
            )
        return
    if not folder.is_dir():
        yield CheckResult(about, "bad", f"{folder} is not a folder; set `data` to one")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield CheckResult(
            about, "bad", f"{folder} cannot be written by this user; change its owner, or set `data`"
        )
        return
    pid = owner_pid(folder)
    owner = "no server uses it" if pid is None else f"in use by the server with pid {pid}"
    yield CheckResult(about, "ok", f"{folder}: {owner}")
    yield from _check_key(folder, key_file)
    free = shutil.disk_usage(folder).free
    enough = free >= LOW_SPACE_BYTES
    advice = "" if enough else "; free some, or new messages will be refused"
    yield CheckResult("disk space", "ok" if enough else "bad", f"{free / 1e9:.1f} GB free{advice}")


def _check_key(folder: Path, key_file: Path | None) -> Iterator[CheckResult]:
    key = key_file or folder / ID_KEY
    try:
        mode = key.stat().st_mode
    except FileNotFoundError:
        if key_file is not None:
            yield CheckResult(
                "id key", "bad", f"there is no {key}: put the key there that all servers of this ledger have"
            )
            return
        ledger = folder / LEDGER
        if ledger.is_dir() and any(ledger.iterdir()):
            yield CheckResult("id key", "bad", f"{key} is missing; bring it back from a backup")
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield CheckResult("id key", "bad", f"{key} can be read by others; chmod 600 {key}")
    else:
        yield CheckResult("id key", "ok", "only its owner can read it")


def check_tables(config: Config) -> Iterator[CheckResult]:
    """Whether others may read the messages in the tables, where these are not in the data folder, which is closed."""
    tables = Path(config.tables())
    if "://" in config.tables() or tables.is_relative_to(os.path.abspath(config.data)):
        return
    for table in sorted(tables.glob("*")):
        if table.is_dir() and table.stat().st_mode & stat.S_IRWXO:
            yield CheckResult(
                "tables", "note", f"everybody on this machine can read {table}; chmod o-rwx {table}"
            )


def check_sync(folder: Path) -> CheckResult:
    """How long the disk takes to make a small write durable: every answer waits for one."""
    about = "disk sync"
    where = _existing(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=where, prefix=".doctor-") as file:
            # As the ledger does it: into space that is already filled.
            file.write(bytes(4096 * SYNCS))
            file.flush()
            os.fsync(file.fileno())
            took_ms = [_timed_sync_ms(file.fileno(), number * 4096) for number in range(SYNCS)]
    except OSError as error:
        return CheckResult(about, "bad", explain(where, error))
    middle_ms = statistics.median(took_ms)
    text = f"{middle_ms:.2f} ms (median of {SYNCS}, worst {max(took_ms):.1f} ms)"
    if middle_ms > SLOW_SYNC_MS:
        return CheckResult(
            about, "note", f"{text}: slow, and every answer waits for one; use a faster disk for `data`"
        )
    return CheckResult(about, "ok", text)


def _timed_sync_ms(descriptor: int, offset: int) -> float:
    began = time.perf_counter()
    os.pwrite(descriptor, os.urandom(512), offset)
    os.fdatasync(descriptor)
    return (time.perf_counter() - began) * 1000


def check_clock() -> CheckResult:
    """Messages are due by the wall clock: it should be right, and go at the pace of real time."""
    about = "clock"
    built_s = Path(__file__).stat().st_mtime
    now_s, steady_s = time.time(), time.monotonic()
    if now_s < built_s - 86_400:
        return CheckResult(about, "bad", "the clock is behind the age of this program; set it")
    time.sleep(0.05)
    drift_ms = abs((time.time() - now_s) - (time.monotonic() - steady_s)) * 1000
    if drift_ms > 10:
        return CheckResult(
            about,
            "bad",
            f"the clock jumped by {drift_ms:.0f} ms while it was watched; look at the time service",
        )
    if _is_unsynchronised():
        return CheckResult(about, "note", "no time service keeps it right; install one, such as chrony")
    return CheckResult(about, "ok", "synchronised")


def check_clock_since(ledger: Path, now_s: float) -> Iterator[CheckResult]:
    """The clock against the last instant that the ledger was written at: it has been set back, or was ahead then."""
    if not ledger.is_dir():
        return
    with os.scandir(ledger) as files:
        written_s = max((file.stat().st_mtime for file in files), default=0.0)
    if written_s > now_s + CLOCK_BACK_S:
        yield CheckResult(
            "clock",
            "bad",
            f"{written_s - now_s:.0f} s behind its reading when {ledger} was written; set it, or due messages wait so long",
        )


def _is_unsynchronised() -> bool:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # `struct timex`; all zero only asks.
        return bool(libc.adjtimex(ctypes.create_string_buffer(512)) == _TIME_ERROR)
    except (OSError, AttributeError):
        return False


def check_open_files() -> CheckResult:
    """Connections are open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return CheckResult(
            "open files", "note", f"{hard} at most, which bounds connections; raise it (ulimit -Hn)"
        )
    return CheckResult("open files", "ok", "unlimited" if hard == resource.RLIM_INFINITY else f"up to {hard}")


def check_java() -> CheckResult:
    """The pipeline runs on Java; deliveries do not wait for it."""
    about = "java"
    advice = f"the pipeline needs {JAVA_AT_LEAST} or later: apt-get install default-jre-headless"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return CheckResult(about, "note", f"not found; {advice}")
    try:
        told = subprocess.run(  # noqa: S603 - the operator's own Java
            [program, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult(about, "note", f"{program} does not run ({error}); {advice}")
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', told.stderr + told.stdout)
    if found is None:
        return CheckResult(about, "note", f"{program} does not tell its version; {advice}")
    if int(found[1]) < JAVA_AT_LEAST:
        return CheckResult(about, "note", f"{found[1]} is too old; {advice}")
    return CheckResult(about, "ok", f"version {found[1]}")


def check_pipeline(folder: Path, now_ms: int) -> CheckResult:
    """Whether the pipeline runs and how far it is; deliveries do not wait for it."""
    about = "pipeline"
    progress = read_progress(folder)
    if progress is None:
        return CheckResult(about, "note", "has not run yet; `tarry up` runs it, or `tarry pipeline`")
    if progress.is_up(now_ms) and progress.state == "starting" and is_alive(progress.pid):
        return CheckResult(about, "ok", f"starting, pid {progress.pid}; deliveries do not wait for it")
    if progress.is_up(now_ms) and is_alive(progress.pid):
        lag = (
            f"{progress.lag} records behind for {progress.behind_ms / 1000:.0f} s"
            if progress.lag
            else "up to date"
        )
        return CheckResult(
            about, "ok", f"{progress.state}, pid {progress.pid}; {lag}{_last_commit(progress, now_ms)}"
        )
    failure = f"; its last error: {progress.failure}" if progress.state == "failed" else ""
    return CheckResult(
        about,
        "note",
        f"does not run{failure}{_last_commit(progress, now_ms)}; start it with `tarry pipeline`",
    )


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; a pid of 0 is one that is not known, and taken to run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to somebody else.
        return True
    return True


def _last_commit(progress: Progress, now_ms: int) -> str:
    if not progress.last_commit_at_ms:
        return ""
    return f"; last commit {max(0, now_ms - progress.last_commit_at_ms) / 1000:.0f} s ago, up to seq {progress.cursor}"


def check_server(
    url: str, token: str | None, pid: int | None, tls: ssl.SSLContext | None = None
) -> CheckResult:
    """Whether the server answers, is ready, and is the one of the data folder, whose pid is given if there is one."""
    about = "server"
    address = urlsplit(url)
    elsewhere = address.hostname not in ("127.0.0.1", "::1", "localhost")
    ours = elsewhere or (pid is not None and address.port is not None and listens(pid, address.port))
    try:
        with Client(url, token, tls=tls, timeout_s=5.0, retry_for_s=0.0) as client:
            if client.ready() and ours:
                return CheckResult(about, "ok", f"{url} is ready")
            if client.ready():
                return CheckResult(
                    about, "note", f"{url} is ready, but is not the server of this data folder"
                )
            return CheckResult(about, "bad", f"{url} answers but is not ready; curl {url}/readyz says why")
    except TarryError:
        return CheckResult(about, "note", f"none answers at {url}; start it with `tarry up`")


def check_warnings(url: str, token: str | None, tls: ssl.SSLContext | None = None) -> Iterator[CheckResult]:
    """The warnings of a server that is ready."""
    try:
        with Client(url, token, tls=tls, timeout_s=5.0, retry_for_s=0.0) as client:
            yield from (CheckResult("server", "note", warning) for warning in client.warnings())
    except TarryError:
        return


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = folder.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path
