import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tarry.serve.datafolder import DataFolder, DataFolderError, explain, owner_pid


def test_a_new_folder_is_private_and_gets_a_key_once(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataFolder.open(path) as folder:
        key = folder.id_key()
        assert len(key) == 32
        assert folder.id_key() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "id.key").stat().st_mode) == 0o600
    assert sorted(p.name for p in path.iterdir()) == ["id.key", "lock"]
    with DataFolder.open(path) as again:
        assert again.id_key() == key


def test_only_one_owns_it(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path):
        assert owner_pid(tmp_path) == os.getpid()
        with pytest.raises(
            DataFolderError, match=f"in use by the server with pid {os.getpid()}; stop that one"
        ):
            DataFolder.open(tmp_path)
    assert owner_pid(tmp_path) is None
    DataFolder.open(tmp_path).close()


def test_a_killed_owner_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; from tarry.serve.datafolder import DataFolder;"
        "f = DataFolder.open(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    env = os.environ | {"PYTHONPATH": "src"}
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        assert owner_pid(tmp_path) == owner.pid
        with pytest.raises(DataFolderError, match=f"pid {owner.pid}"):
            DataFolder.open(tmp_path)
        owner.kill()
        owner.wait()
    DataFolder.open(tmp_path).close()


def test_a_missing_key_beside_a_ledger_is_refused(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path) as folder:
        folder.ledger.mkdir()
        (folder.ledger / "segment").write_bytes(b"x")
        with pytest.raises(DataFolderError, match=r"id\.key is missing but the folder holds a ledger"):
            folder.id_key()
        assert not (tmp_path / "id.key").exists()


def test_a_key_belongs_to_one_ledger(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path) as folder:
        folder.check_key(b"one ledger")
        folder.check_key(b"one ledger")
        with pytest.raises(DataFolderError, match="do not belong together: were two backups mixed"):
            folder.check_key(b"another")
        (tmp_path / "id.key").write_bytes(b"k" * 32)
        with pytest.raises(DataFolderError, match=r"id\.key and the ledger do not belong together"):
            folder.check_key(b"one ledger")


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "id.key").write_bytes(b"short")
    with (
        DataFolder.open(tmp_path) as folder,
        pytest.raises(DataFolderError, match="holds 5 bytes and not 32"),
    ):
        folder.id_key()


def test_a_half_written_key_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "id.key.new").write_bytes(b"half")
    with DataFolder.open(tmp_path) as folder:
        assert len(folder.id_key()) == 32


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(DataFolderError, match="is not a folder"):
        DataFolder.open(tmp_path / "f")
    with pytest.raises(DataFolderError, match="is not a folder"):
        DataFolder.open(tmp_path / "f" / "g")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EROFS, "read-only file system"),
        (errno.ENOSPC, "no space left"),
        (errno.EACCES, "may not be used by this user"),
        (errno.EIO, "the disk reports an error"),
        (errno.ELOOP, os.strerror(errno.ELOOP)),
    ],
)
def test_what_the_system_says_is_explained(number: Any, said: Any) -> None:
    assert said in explain(Path("/d"), OSError(number, os.strerror(number)))
