from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tarry.cli.settings import in_force
from tarry.config import Config, ConfigError, load
from tarry.config.check import is_loopback, token_digest
from tarry.config.fields import fields_of, tables_of, texts_of
from tarry.config.lines import key_lines
from tarry.config.reference import reference
from tarry.config.settings import Http, LedgerSection, TokenSection
from tarry.doors.http.settings import HttpSettings
from tarry.ledger.ledger import LedgerSettings

Toml = Callable[..., str]


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toml:
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "tarry.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def refusal(file: str | None = None, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, environment)
    return str(caught.value)


def test_without_anything_the_defaults_hold(toml: Toml) -> None:
    loaded = load()
    assert loaded.config == Config()
    assert loaded.sources == {}
    assert loaded.file is None
    assert loaded.config.http.host == "127.0.0.1"
    assert loaded.config.http.port == 8080
    assert loaded.config.data == "tarry-data"


def test_later_sources_win_and_each_value_remembers_its_own(toml: Toml) -> None:
    file = toml("data = 'here'\n\n[http]\nport = 1\nhost = '::1'\ndrain_ms = 7\n")
    loaded = load(
        file, {"TARRY_HTTP__PORT": "2", "TARRY_HTTP__HOST": "localhost"}, {"http.port": 3, "data": None}
    )
    http = loaded.config.http
    assert (http.port, http.host, http.drain_ms) == (3, "localhost", 7)
    assert loaded.sources == {
        "data": f"{file}:1",
        "http.port": "command line",
        "http.host": "environment TARRY_HTTP__HOST",
        "http.drain_ms": f"{file}:6",
    }


def test_the_file_is_found_by_argument_then_variable_then_name(toml: Toml) -> None:
    toml("data = '/a'")
    other = toml("data = '/b'", "other.toml")
    third = toml("data = '/c'", "third.toml")
    assert load().config.data == "/a"
    assert load(None, {"TARRY_CONFIG": other}).config.data == "/b"
    assert load(third, {"TARRY_CONFIG": other}).config.data == "/c"
    assert refusal("missing.toml") == "there is no configuration file missing.toml"


def test_paths_in_the_file_are_relative_to_the_file(toml: Toml, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = toml(
        "data = 'd'\n[http]\ntls_cert = 'c.pem'\ntls_key = '/abs/k.pem'\n"
        "[[tokens]]\nname = 'a'\nroles = ['admin']\ntoken_file = 'secret'\n",
        "etc/t.toml",
    )
    config = load(file).config
    folder = tmp_path / "etc"
    assert config.data == str(folder / "d")
    assert config.http.tls_cert == str(folder / "c.pem")
    assert config.http.tls_key == "/abs/k.pem"
    assert config.tokens[0].token_file == str(folder / "secret")
    assert load(None, {"TARRY_DATA": "d"}).config.data == "d"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nprot = 1\n", "tarry.toml:2: unknown key http.prot; did you mean http.port?"),
        ("port = 1\n", "tarry.toml:1: unknown key port; did you mean http.port?"),
        ("[htpp]\nport = 1\n", "tarry.toml:1: unknown key htpp"),
        (
            "[policies.broker]\ntick = 1\n",
            "tarry.toml:2: unknown key policies.broker.tick; did you mean policies.broker.tick_ms?",
        ),
        ("http = 3\n", "tarry.toml:1: http is a table; write [http]"),
        ("[http]\nport = '1'\n", "tarry.toml:2: http.port: expected int, got str"),
        ("[http]\nport = 70000\n", "tarry.toml:2: http.port: expected int <= 65535"),
        ("[http]\nport = 1.5\n", "tarry.toml:2: http.port: expected int, got float"),
        ("[http]\nport = true\n", "tarry.toml:2: http.port: expected int, got bool"),
        ("[log]\nlevel = 'loud'\n", "tarry.toml:2: log.level: invalid enum value 'loud'"),
        ("[http]\ntls_cert = 'c'\n", "tarry.toml:2: http.tls_cert needs http.tls_key beside it"),
        (
            "[http]\ntls_client_ca = 'c'\n",
            "tarry.toml:2: http.tls_client_ca needs http.tls_cert and http.tls_key beside it",
        ),
        (
            "[http]\nhost = '0.0.0.0'\n",
            "tarry.toml:2: http.host = 0.0.0.0 can be reached by others, and there are no tokens",
        ),
        ("[policies.broker]\ntick_ms = 0\n", "tarry.toml:2: policies.broker.tick_ms is not between"),
        (
            "[engine]\nbackoff_min_ms = 5\nbackoff_max_ms = 4\n",
            "tarry.toml:3: engine.backoff_max_ms is less than",
        ),
        ("[engine]\nattempts = 0\n", "tarry.toml:2: engine.attempts must be at least 1"),
        ("[webhook]\nallow = ['not a network!']\n", "tarry.toml:2: webhook: 'not a network!' is neither"),
        ("[webhook]\nca_file = 'none.pem'\n", "tarry.toml:2: webhook.ca_file: there is no file none.pem"),
        ("a = ", "tarry.toml: is not TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(
    toml: Toml, tmp_path: Path, text: Any, said: Any
) -> None:
    file = toml(text)
    assert refusal(file).replace(str(tmp_path) + "/", "").startswith(said)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_bytes(b"data = '\xff'")
    assert refusal(str(file)) == f"{file}: is not UTF-8 text"


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        (
            "TARRY_HTTP_PORT",
            "1",
            "unknown environment variable TARRY_HTTP_PORT; did you mean TARRY_HTTP__PORT?",
        ),
        ("TARRY_XYZZY", "1", "unknown environment variable TARRY_XYZZY"),
        ("TARRY_HTTP__PORT", "many", "environment TARRY_HTTP__PORT: expected int, got str"),
        ("TARRY_HTTP__METRICS_OPEN", "maybe", "environment TARRY_HTTP__METRICS_OPEN: expected bool, got str"),
        ("TARRY_TOKENS", "[{", "environment TARRY_TOKENS: is not JSON"),
        (
            "TARRY_TOKENS",
            '[{"nam": "a"}]',
            "environment TARRY_TOKENS: tokens: object contains unknown field nam",
        ),
        ("TARRY_WEBHOOK__SECRETS", "hunter2", "environment TARRY_WEBHOOK__SECRETS: webhook: "),
    ],
)
def test_a_mistake_in_a_variable_is_named(toml: Toml, variable: Any, text: Any, said: Any) -> None:
    told = refusal(None, {variable: text})
    assert told.startswith(said)
    assert "hunter2" not in told


def test_variables_are_read_by_the_type_of_their_setting(toml: Toml) -> None:
    config = load(
        None,
        {
            "TARRY_HTTP__METRICS_OPEN": "true",
            "TARRY_WEBHOOK__ALLOW": "10.0.0.0/8, ::1",
            "TARRY_WEBHOOK__SECRETS_BY_HOST": '{"example.org": []}',
            "TARRY_POLICIES__BROKER__ACCEPT_PER_SECOND": "1.5",
            "TARRY_TOKENS": '[{"name": "a", "token": "long-enough", "roles": ["admin"]}]',
            "TARRY_URL": "",
            "PATH": "ignored",
        },
    ).config
    assert config.http.metrics_open is True
    assert config.webhook.allow == ("10.0.0.0/8", "::1")
    assert config.webhook.secrets_by_host == {"example.org": ()}
    assert config.policies.broker.accept_per_second == 1.5
    assert config.tokens == (TokenSection(name="a", token="long-enough", roles=("admin",)),)
    assert config.url is None


def test_others_are_served_only_with_tokens(toml: Toml) -> None:
    tokens = '[{"name": "a", "token": "long-enough", "roles": ["produce"], "namespaces": ["a/b"]}]'
    assert load(None, {"TARRY_HTTP__HOST": "0.0.0.0", "TARRY_TOKENS": tokens}).config.http.host == "0.0.0.0"
    assert "add a [[tokens]] table, or listen on 127.0.0.1" in refusal(
        None, {"TARRY_HTTP__HOST": "example.org"}
    )


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example.org")))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("{name='a', roles=['admin']}", "token a: give exactly one of token, token_file and sha256"),
        ("{name='a', roles=['admin'], token='x', sha256='%s'}" % ("0" * 64), "token a: give exactly one of"),
        ("{name='a', roles=[], token='x'}", "tokens: expected array of length >= 1"),
        ("{name='a', roles=['root'], token='x'}", "tokens: invalid enum value 'root'"),
        ("{name='a', roles=['admin'], sha256='zz'}", "tokens: expected str matching regex"),
        ("{name='a', roles=['admin'], token='x', namespaces=['a']}", "token a: a: a namespace is written"),
        ("{name='a', roles=['admin'], token='1234567'}", "token a is shorter than 8 characters"),
        (
            "{name='a', roles=['admin'], token='long-enough'}, {name='a', roles=['admin'], token='also-long'}",
            "two tokens are called a",
        ),
    ],
)
def test_tokens_are_checked(toml: Toml, tokens: Any, said: Any) -> None:
    assert said in refusal(toml(f"tokens = [{tokens}]\n"))


def test_a_token_becomes_its_digest(tmp_path: Path) -> None:
    digest = "87c44b462d0c1a0e5eba111ef57dbbb89defbd0aad3a15766e8daf54cad281bd"
    (tmp_path / "t").write_text("long-enough\n")
    assert token_digest(TokenSection(name="a", token="long-enough", roles=("admin",))) == digest
    assert token_digest(TokenSection(name="a", token_file=str(tmp_path / "t"), roles=("admin",))) == digest
    assert token_digest(TokenSection(name="a", sha256=digest.upper(), roles=("admin",))) == digest
    (tmp_path / "t").write_text("short\n")
    with pytest.raises(ConfigError, match="shorter than 8 characters"):
        token_digest(TokenSection(name="a", token_file=str(tmp_path / "t"), roles=("admin",)))
    (tmp_path / "t").write_text("\n")
    with pytest.raises(ConfigError, match="token a is empty"):
        token_digest(TokenSection(name="a", token_file=str(tmp_path / "t"), roles=("admin",)))
    with pytest.raises(ConfigError, match="cannot be read"):
        token_digest(TokenSection(name="a", token_file=str(tmp_path / "none"), roles=("admin",)))


def test_lines_of_keys() -> None:
    text = (
        "a = 1\n[t]\n b . 'c' = 2\ntext = '''\nnot = 'a key'\n'''\n[[many]]\nx=1\n[[many]]\nx=2\n"
        '[ t."u" ]\nlist = [\n  1,\n]\none = """same line"""\nlast = 3\n'
    )
    lines = key_lines(text)
    assert lines == {
        "a": 1, "t": 2, "t.b.c": 3, "t.text": 4, "many": 7, "many.x": 8, "t.u": 11, "t.u.list": 12,
        "t.u.one": 15, "t.u.last": 16,
    }  # fmt: skip


def test_what_is_passed_on_has_the_same_names_and_defaults_there() -> None:
    ledger, passed = LedgerSection(), LedgerSettings()
    assert {f: getattr(ledger, f) for f in passed.__struct_fields__} == {
        f: getattr(passed, f) for f in passed.__struct_fields__
    }
    http, door = Http(), HttpSettings()
    shared = set(http.__struct_fields__) & set(door.__struct_fields__)
    assert {"body_timeout_ms", "max_body_bytes", "ack_timeout_ms", "metrics_open"} <= shared
    assert {f: getattr(http, f) for f in shared} == {f: getattr(door, f) for f in shared}


def test_every_setting_of_ours_is_explained() -> None:
    for name, table in tables_of().items():
        if table.__module__ == "tarry.config.settings":
            texts = texts_of(table)
            own = {f.rpartition(".")[2] for f in fields_of() if f.rpartition(".")[0] == name}
            assert own <= set(texts), name


def test_variables_are_unambiguous() -> None:
    variables = [field.variable for field in fields_of().values()]
    assert len(variables) == len(set(variables))
    assert "TARRY_CONFIG" not in variables


def test_the_reference_is_what_the_code_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    # To bring it up to date: python -m tarry.config.reference > docs/configuration.md
    assert page.read_text() == reference()


def test_the_example_in_the_reference_is_a_configuration(toml: Toml, tmp_path: Path) -> None:
    example = reference().partition("```toml\n")[2].partition("```")[0]
    assert load(toml(example)).config.tokens[1].namespaces == ("shop/orders",)


def test_settings_of_spark_keep_their_dotted_names(toml: Toml) -> None:
    expected = {"spark.executor.memory": "4g", "spark.executor.cores": "2", "spark.ui.enabled": "true"}
    for text in (
        '[pipeline]\nspark.executor.memory = "4g"\nspark.executor.cores = 2\nspark.ui.enabled = true\n',
        '[pipeline.spark]\n"spark.executor.memory" = "4g"\nexecutor.cores = 2\n"ui.enabled" = true\n',
    ):
        assert load(toml(text)).config.pipeline.spark == expected
    variable = (
        '{"spark.executor.memory": "4g", "spark": {"executor.cores": 2}, "spark.ui": {"enabled": true}}'
    )
    toml("")
    assert load(None, {"TARRY_PIPELINE__SPARK": variable}).config.pipeline.spark == expected


def test_tables_may_be_a_folder_beside_the_file_or_an_address(toml: Toml, tmp_path: Path) -> None:
    assert load(toml("[pipeline]\ntables = 'here'\n")).config.pipeline.tables == str(tmp_path / "here")
    assert load(toml("[pipeline]\ntables = 's3://bucket/x'\n")).config.pipeline.tables == "s3://bucket/x"


def test_the_pipeline_has_one_token_and_a_server_is_an_address(toml: Toml) -> None:
    assert "give one of" in refusal(toml("[pipeline]\ntoken = 'a'\ntoken_file = 'b'\n"))
    assert "http://host:8080" in refusal(toml("[pipeline]\nserver = 'host'\n"))
    toml("")
    secret = load(None, {"TARRY_PIPELINE__STORAGE_OPTIONS": '{"AWS_SECRET_ACCESS_KEY": "hush"}'})
    assert secret.config.pipeline.storage_options == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in str(in_force(secret))


def test_proxies_that_are_trusted_are_addresses_or_networks(toml: Toml) -> None:
    matrix = "[doors.matrix]\nenabled = true\ntrusted_proxies = ['127.0.0.1', '{}']\n"
    for fine in ("10.1.2.3/8", "::1", "2001:db8::/32"):
        load(toml(matrix.format(fine)))
    for wrong in ("proxy.example.org", "10.0.0.0/33", ""):
        assert "doors.matrix.trusted_proxies" in refusal(toml(matrix.format(wrong)))
