"""Other people's linters on what Tarry publishes. Each is also shown something that it must refuse."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tarry.doors.http.openapi import build_document
from tests.deploy.linters import FOLDER, linter, refusal, said
from tests.deploy.manifests import AT, CHART, FILE, rendered
from tests.processes import ROOT

DEPLOY: Final = ROOT / "deploy"
EVERYTHING: Final = {
    "image": {"tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
    "tokenSecret": "secret",
    "tokens": [{"name": "orders", "roles": ["produce", "consume"], "namespaces": ["shop/orders"]}],
    "doors": {"matrix": True, "pulsar": True, "dapr": True},
    "pipeline": False,
    "config": '[log]\nlevel = "debug"\n',
    "storage": {"size": "1Ti", "className": "fast"},
    "resources": {"limits": {"memory": "8Gi"}},
    "openMetrics": False,
    "networkPolicy": {
        "clients": [],
        "scrapers": [],
        "webhooks": False,
        "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "kafka"}}}]}],
    },
    "podAnnotations": {"example.org/team": "orders"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    ]}}},
}  # fmt: skip
"""Every value of the chart in another way than by default."""


def kubeconform(text: str, version: str) -> Any:
    """Kubeconform's verdict on each object, by Kubernetes' own schemas."""
    schemas = f"{FOLDER}/schemas/v{version}.0-local-strict/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = (linter("kubeconform"), "-strict", "-schema-location", schemas, "-output", "json", "-verbose")
    # The comment before the first object counts as an empty one.
    return [one for one in json.loads(said(*command, stdin=text))["resources"] if one["kind"]]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The chart with every value set."""
    values = tmp_path_factory.mktemp("chart") / "values.yaml"
    values.write_text(yaml.safe_dump(EVERYTHING))
    return said(linter("helm"), "template", "tarry", CHART, *AT, "--values", values)


def test_every_value_is_set_in_another_way() -> None:
    assert set(EVERYTHING) == set(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_manifest_is_what_the_chart_makes() -> None:
    assert FILE.read_text() == rendered(linter("helm"))


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    told = said(linter("helm"), "lint", "--strict", CHART, *AT)
    assert "[WARNING]" not in told


@pytest.mark.parametrize(
    "wrong", ["doors.kafka=true", "tokens[0].namespaces=x", "tokens[0].roles={root}", "storage=big"]
)
def test_the_chart_refuses_values_that_mean_nothing(wrong: str) -> None:
    assert "values don't meet the specifications" in refusal(
        linter("helm"), "template", "tarry", CHART, *AT, "--set", wrong
    )


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_every_object_is_one_of_kubernetes(everything: str, version: str) -> None:
    for text, count in ((FILE.read_text(), 5), (everything, 5)):
        found = kubeconform(text, version)
        assert [one["status"] for one in found] == ["statusValid"] * count, found
    wrong = FILE.read_text().replace("replicas: 1", "replicas: one")
    schemas = f"{FOLDER}/schemas/v{version}.0-local-strict/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    assert "replicas" in refusal(linter("kubeconform"), "-strict", "-schema-location", schemas, stdin=wrong)


def test_every_value_of_the_chart_comes_through(everything: str) -> None:
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(everything) if one}
    ports = {port["name"]: port["port"] for port in found["Service", "tarry"]["spec"]["ports"]}
    assert ports == {"http": 8080, "matrix": 8008, "pulsar": 6650, "dapr-http": 3500, "dapr-grpc": 50001}
    spec = found["StatefulSet", "tarry"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["containers"][0]["image"] == "tarry:1.2.3"
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"disk": "ssd"}, [{"operator": "Exists"}])
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    config = found["ConfigMap", "tarry"]["data"]["tarry.toml"]
    assert 'namespaces = ["shop/orders"]' in config
    assert config.endswith('\n\n[log]\nlevel = "debug"\n')
    assert spec["template"]["metadata"]["annotations"]["example.org/team"] == "orders"
    policy = found["NetworkPolicy", "tarry"]["spec"]
    assert "ingress" in policy["policyTypes"][0].lower()
    assert not policy["ingress"]


def test_compose_can_read_its_file(tmp_path: Path) -> None:
    file = DEPLOY / "compose" / "compose.yaml"
    read = json.loads(said(linter("compose-spec"), "--format", "json", file, folder=file.parent))
    assert set(read["services"]) == {"tarry", "prometheus", "grafana"}
    assert read["services"]["tarry"]["stop_grace_period"] == "60s"
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(file.read_text().replace("read_only: true", "readonly: true"))
    assert "readonly" in refusal(linter("compose-spec"), wrong)


def test_each_alert_is_raised_by_its_fault_and_none_by_a_healthy_server(tmp_path: Path) -> None:
    rules = DEPLOY / "prometheus" / "tarry.rules.yaml"
    promtool = linter("promtool")
    said(promtool, "check", "rules", rules)
    said(promtool, "test", "rules", "tests.yaml", folder=rules.parent)
    for name in ("tarry.rules.yaml", "tests.yaml"):
        (tmp_path / name).write_text((rules.parent / name).read_text().replace("> 300", "> 30000"))
    assert "TarryBehind" in refusal(promtool, "test", "rules", "tests.yaml", folder=tmp_path)


def test_prometheus_can_read_its_configuration(tmp_path: Path) -> None:
    for file in (DEPLOY / "compose" / "prometheus.yml", DEPLOY / "prometheus" / "tarry.rules.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    assert "SUCCESS: 1 rule files found" in said(
        linter("promtool"), "check", "config", tmp_path / "prometheus.yml"
    )


def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana" / "tarry.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__\w+", "5m", one)}
        for number, one in enumerate(expressions)
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    said(linter("promtool"), "check", "rules", file)


def test_spectral_finds_nothing_in_the_openapi_document(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text('extends: ["spectral:oas"]\n')
    spectral = linter("spectral")
    document = json.loads(build_document("1.0.0", is_open=False))
    for name, ruled in (("good.json", document), ("bad.json", document | {"servers": []})):
        (tmp_path / name).write_text(json.dumps(ruled))
    command = (spectral, "lint", "--ruleset", tmp_path / "rules.yaml", "--fail-severity", "hint")
    said(*command, tmp_path / "good.json")
    assert "oas3-api-servers" in refusal(*command, tmp_path / "bad.json")
