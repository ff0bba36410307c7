"""deploy/kubernetes: what the chart makes by default; the server runs as the file says, and its probes answer."""

import re
import secrets
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tarry.config import load
from tests.deploy.box import Contained, boxed, image
from tests.deploy.manifests import CHART, FILE, chart_digest
from tests.processes import ROOT

NO_PIPELINE: Final = {"TARRY_PIPELINE__ENABLED": "false", "TARRY_LEDGER__SEGMENT_BYTES": "1048576"}
"""Spark takes its time, and nothing here waits for it."""


def objects() -> dict[str, Any]:
    """Every object of the file, by kind and name."""
    found = [one for one in yaml.safe_load_all(FILE.read_text()) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def template() -> Any:
    return objects()["StatefulSet/tarry"]["spec"]["template"]


def test_the_file_is_what_the_chart_makes_now() -> None:
    told = re.search(r"^# Chart: ([0-9a-f]{64})$", FILE.read_text(), re.MULTILINE)
    assert told is not None
    assert told[1] == chart_digest(), "the chart has changed; type: make manifests"


def test_the_chart_is_for_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_there_is_one_server_on_a_volume_of_its_own_without_rights() -> None:
    spec = objects()["StatefulSet/tarry"]["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    pod = template()["spec"]
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == image()["user"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    drain_ms = load(environment={}).config.http.drain_ms
    assert pod["terminationGracePeriodSeconds"] * 1000 >= 2 * drain_ms + 20_000


def test_names_and_labels_meet() -> None:
    found = objects()
    labels = template()["metadata"]["labels"]
    spec = found["StatefulSet/tarry"]["spec"]
    selectors = [
        spec["selector"]["matchLabels"],
        found["NetworkPolicy/tarry"]["spec"]["podSelector"]["matchLabels"],
        *(one["spec"]["selector"] for name, one in found.items() if name.startswith("Service/")),
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    assert f"Service/{spec['serviceName']}" in found
    (container,) = template()["spec"]["containers"]
    names = {port["name"] for port in container["ports"]}
    served = [
        port["targetPort"]
        for one in found.values()
        if one["kind"] == "Service"
        for port in one["spec"]["ports"]
    ]
    assert set(served) <= names
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in template()["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert mounted == volumes | claims


def test_the_network_policy_keeps_the_inside_closed() -> None:
    policy = objects()["NetworkPolicy/tarry"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] for rule in policy["ingress"])
    blocks = [peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert len(blocks) == 2
    for inside in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"):
        assert inside in blocks[0]["except"]


def _contained(folder: Path, token: str) -> Contained:
    pod = template()["spec"]
    (container,) = pod["containers"]
    made = image()
    (folder / "tarry.toml").write_text(objects()["ConfigMap/tarry"]["data"]["tarry.toml"])
    tokens = folder / "tokens"
    tokens.mkdir()
    (tokens / "operations").write_text(token)
    volumes = {
        "config": folder / "tarry.toml",
        "tokens": tokens,
        "data": folder / "data",
        "tmp": folder / "tmp",
    }
    readable: dict[str, Path] = {}
    writable: dict[str, Path] = {}
    for mount in container["volumeMounts"]:
        (readable if mount.get("readOnly") else writable)[mount["mountPath"]] = volumes[mount["name"]]
    context = pod["securityContext"]
    return Contained(
        container.get("args", made["arguments"]),
        made["environment"] | NO_PIPELINE,
        readable,
        writable,
        f"{context['runAsUser']}:{context['runAsGroup']}",
    )


def test_the_server_runs_as_the_file_says_and_answers_its_probes(tmp_path: Path) -> None:
    token = secrets.token_hex(32)
    pod = template()["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    with boxed(_contained(tmp_path, token), tmp_path) as box:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            box.wait(f"http://127.0.0.1:{ports[asked['port']]}{asked['path']}")
        status = box.status()
        assert status["Uid"].split() == ["10001"] * 4
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        with pytest.raises(OSError, match="Read-only file system"):
            (box.root() / "x").touch()
        url = f"http://127.0.0.1:{ports['http']}"
        message = {"destination": "hello", "payload": "x", "delay": "1h"}
        assert box.ask("POST", f"{url}/v1/messages", message)[0] == 401
        assert box.ask("POST", f"{url}/v1/messages", message, token)[0] == 201
        assert box.ask("GET", f"{url}/metrics")[0] == 200
        assert box.stop(pod["terminationGracePeriodSeconds"]) == 0
