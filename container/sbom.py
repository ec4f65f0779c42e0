"""What an image holds, as CycloneDX 1.6 in JSON: read from its files, whatever they came from."""

from __future__ import annotations

import datetime as dt
import json
import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_string
from typing import Any
from urllib.parse import quote

from making.programs import Failed

_SPDX = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MPL-2.0", "PSF-2.0"}
_STATUS = re.compile(r"var/lib/dpkg/(status$|status\.d/[^/]+$)")
_METADATA = re.compile(r".*\.(dist|egg)-info/METADATA$")

Component = dict[str, Any]


def listed(files: Iterable[tuple[tarfile.TarInfo, bytes]], version: str, architecture: str, when: int) -> str:
    """The same files make the same text."""
    found = {entry.name: content.decode("utf-8", "replace") for entry, content in files if _wanted(entry.name)}
    system = _system(found)
    debian = sorted(_debian(found, system), key=_name)
    python = sorted(_python(found), key=_name)
    base: Component = {
        "type": "operating-system",
        "bom-ref": "system",
        "name": system["ID"],
        "version": system.get("VERSION_ID", ""),
        "description": system.get("PRETTY_NAME", ""),
    }
    components = [base, *debian, *python]
    image: Component = {
        "type": "container",
        "bom-ref": "topo-agent",
        "name": "topo-agent",
        "version": version,
        "purl": f"pkg:oci/topo-agent@{version}?arch={architecture}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    said: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(when, dt.timezone.utc).isoformat(),
            "component": image,
        },
        "components": components,
        "dependencies": [{"ref": "topo-agent", "dependsOn": [one["bom-ref"] for one in components]}],
    }
    said["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(said, sort_keys=True))}"
    return json.dumps(said, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _wanted(path: str) -> bool:
    return bool(
        path.endswith("os-release")
        or _STATUS.match(path)
        or _METADATA.match(path)
        or re.match(r"usr/share/doc/[^/]+/copyright$", path)
    )


def _system(found: Mapping[str, str]) -> dict[str, str]:
    release = found.get("etc/os-release") or found.get("usr/lib/os-release") or ""
    system = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', release))
    if "ID" not in system:
        raise Failed("etc/os-release of the base: a line ID=… was expected, as it says whose packages are in the image")
    return system


def _name(component: Component) -> str:
    return str(component["name"])


def _debian(found: Mapping[str, str], system: Mapping[str, str]) -> Iterator[Component]:
    distribution = f"{system['ID']}-{system.get('VERSION_ID', '')}"
    for path, text in found.items():
        for stanza in re.split(r"\n\n+", text.strip()) if _STATUS.match(path) else ():
            said = dict(re.findall(r"(?m)^([\w-]+): (.*)$", stanza))
            # Other images have checksums in status.d, too, and packages that left their settings in status.
            if "Package" not in said or said.get("Status", "installed").rpartition(" ")[2] != "installed":
                continue
            name, version = said["Package"], said["Version"]
            source = (said.get("Source") or name).partition(" ")[0]
            purl = f"pkg:deb/{system['ID']}/{quote(name)}@{quote(version, safe='')}?arch={said['Architecture']}"
            purl += f"&distro={distribution}"
            component: Component = {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "properties": [{"name": "topo-agent:debian:source", "value": source}],
            }
            licences = _debian_licences(found, (name, source))
            if licences:
                component["licenses"] = [{"license": {"name": one}} for one in licences]
            yield component


def _debian_licences(found: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """The short names of a copyright file in Debian's format; older files are prose, and nothing is made of them."""
    text = next((one for name in names if (one := found.get(f"usr/share/doc/{name}/copyright"))), "")
    if not re.match(r"(?i)format:", text.lstrip()):
        return []
    return sorted({one.strip() for one in re.findall(r"(?m)^License:[ \t]*(\S.*)$", text)})


def _python(found: Mapping[str, str]) -> Iterator[Component]:
    for path, text in found.items():
        if not _METADATA.match(path):
            continue
        said = message_from_string(text)
        name = re.sub(r"[-_.]+", "-", said["Name"]).lower()
        purl = f"pkg:pypi/{name}@{said['Version']}"
        component: Component = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": said["Version"],
            "purl": purl,
        }
        licences = _python_licences(said["License-Expression"], said["License"], said.get_all("Classifier") or [])
        if licences:
            component["licenses"] = licences
        yield component


def _python_licences(expression: str | None, words: str | None, classifiers: Iterable[str]) -> list[Component]:
    if expression:
        return [{"license": {"id": expression}}] if expression in _SPDX else [{"expression": expression}]
    if words and "\n" not in words.strip() and len(words) < 100:
        return [{"license": {"name": words.strip()}}]
    found = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    return [{"license": {"name": one}} for one in found]
