"""`kube manifests`, daemonset/ and the settings of the agent: the same things under the same names."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_cli import run
from topo_agent.settings import SETTINGS

ROOT = Path(__file__).parents[1]
BASE = ROOT / "daemonset" / "base"
PACKAGE = ROOT / "agent" / "topo_agent" / "manifests"
OVERLAYS = sorted(path.name for path in (ROOT / "daemonset" / "overlays").iterdir())


def objects(text: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(text)]


def printed(*arguments: str) -> list[dict[str, Any]]:
    done = run("kube", "manifests", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return objects(done.stdout)


def of(kind: str, some: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in some if one["kind"] == kind)
    return found


def test_the_package_has_the_base() -> None:
    parts = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted(parts) == sorted(path.name for path in PACKAGE.iterdir())
    for name in parts:
        assert (PACKAGE / name).read_text() == (BASE / name).read_text(), f"cp daemonset/base/{name} {PACKAGE}"


def test_printed_is_what_kustomize_builds() -> None:
    built = objects(kustomize(BASE))
    key = lambda one: (one["kind"], one["metadata"]["name"])  # noqa: E731 one line
    assert sorted(printed(), key=key) == sorted(built, key=key)


def test_every_setting_of_the_config_map_is_one_of_the_agent() -> None:
    data = of("ConfigMap", printed())["data"]
    by_name = {one.name: one for one in SETTINGS}
    for name, text in data.items():
        by_name[name].kind.read(text)
    container = of("DaemonSet", printed())["spec"]["template"]["spec"]["containers"][0]
    named = {one["name"] for one in container["env"]}
    assert named <= {one.variable for one in SETTINGS}
    assert {by_name[name].variable for name in data} <= named


def test_what_the_pod_may_do() -> None:
    pod = of("DaemonSet", printed())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    hosts = {one["name"] for one in pod["volumes"] if "hostPath" in one}
    assert all(one["readOnly"] for one in container["volumeMounts"] if one["name"] in hosts)


def test_set() -> None:
    found = printed("--set", "image=example.com/a@sha256:0", "--set", "namespace=wiring", "--set", "domain=example.com")
    assert of("DaemonSet", found)["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/a@sha256:0"
    assert of("Namespace", found)["metadata"]["name"] == "wiring"
    assert of("ConfigMap", found)["data"]["domain"] == "example.com"
    text = yaml.safe_dump_all(found)
    assert "system:serviceaccount:wiring:topo-agent" in text
    assert "namespace: topo-agent" not in text


@pytest.mark.parametrize("wrong", ["image", "colour=red", "slice-mode=some", "namespace=A"])
def test_set_what_is_not_there(wrong: str) -> None:
    done = run("kube", "manifests", "--set", wrong)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_build(name: str) -> None:
    built = objects(kustomize(ROOT / "daemonset" / "overlays" / name))
    pod = of("DaemonSet", built)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert {one["kind"] for one in built} >= {"ValidatingAdmissionPolicy", "DaemonSet", "ConfigMap"}


def kustomize(folder: Path) -> str:
    from tests.labs.apt import CannotStart
    from tests.labs.controlplane.programs import tool

    try:
        kubectl = tool("kubectl", "kubectl")
    except CannotStart as error:
        pytest.skip(str(error))
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return done.stdout
