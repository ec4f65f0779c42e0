"""`topo-agent kube manifests`: what `kubectl apply` needs."""

from __future__ import annotations

from typing import Any

import click

from topo_agent.commands.answer import give, option
from topo_agent.settings import SETTINGS, values

_PARTS = ("namespace", "settings", "rbac", "policy", "daemonset")
_NAMESPACE = "topo-agent"


@click.command(short_help="Print what `kubectl apply -f -` needs.")
@click.option(
    "--set", "chosen", metavar="KEY=VALUE", multiple=True,
    help="image, namespace, or a setting of the ConfigMap: domain, label-keys, gpu-clique, slice-mode, …",
)  # fmt: skip
@option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
def manifests(chosen: tuple[str, ...], output: str | None) -> None:
    """Print the manifests of daemonset/base: account, rights, admission policy, settings and DaemonSet.

    The same as `kubectl kustomize daemonset/base`, for a quick start without the sources.
    """
    from importlib.resources import files

    folder = files("topo_agent") / "manifests"
    texts = [(folder / f"{part}.yaml").read_text("utf-8") for part in _PARTS]
    if not chosen:
        give("---\n".join(texts), output)
        return
    import yaml

    objects = [one for text in texts for one in yaml.safe_load_all(text)]
    for pair in chosen:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, and this is {pair}")
        objects = [_set(one, key, value) for one in objects]
    give(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120), output)


def _set(said: Any, key: str, value: str) -> Any:
    """One object with one thing changed, and UsageError for a key that nothing here has."""
    if key == "namespace":
        try:
            values.NAMESPACE.read(value)
        except ValueError:
            raise click.UsageError(f"--set namespace: expected {values.NAMESPACE.expected}") from None
        return _moved(said, value)
    if key == "image":
        if said["kind"] == "DaemonSet":
            said["spec"]["template"]["spec"]["containers"][0]["image"] = value
        return said
    if said["kind"] == "ConfigMap":
        if key not in said["data"]:
            raise click.UsageError(f"--set knows image, namespace, {', '.join(said['data'])}, and this is {key}")
        one = next(setting for setting in SETTINGS if setting.name == key)
        try:
            one.kind.read(value)
        except ValueError:
            raise click.UsageError(f"--set {key}: expected {one.kind.expected}, and this is {value}") from None
        said["data"][key] = value
    return said


def _moved(said: Any, namespace: str) -> Any:
    """Everything that names our namespace names another one: the account in the policy, too."""
    if isinstance(said, list):
        return [_moved(one, namespace) for one in said]
    if isinstance(said, str):
        return said.replace(f":{_NAMESPACE}:", f":{namespace}:")
    if not isinstance(said, dict):
        return said
    found = {key: _moved(one, namespace) for key, one in said.items()}
    if found.get("namespace") == _NAMESPACE:
        found["namespace"] = namespace
    if found.get("kind") == "Namespace":
        found["metadata"]["name"] = namespace
    return found
