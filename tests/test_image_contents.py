"""The list of what is in an image, for bases that are not ours."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest

from container import sbom
from making.programs import Failed

RELEASE = {"etc/os-release": 'ID=debian\nVERSION_ID="12"\n'}


def listed(files: Mapping[str, str]) -> dict[str, Any]:
    entries = [(tarfile.TarInfo(path), text.encode()) for path, text in files.items()]
    components = json.loads(sbom.listed(entries, "1.0", "amd64", 0))["components"]
    return {one["name"]: one["version"] for one in components}


def test_checksums_beside_the_status_of_a_package() -> None:
    """As images without dpkg have them."""
    package = {
        "var/lib/dpkg/status.d/tzdata": "Package: tzdata\nVersion: 2025b-0\nArchitecture: all\n",
        "var/lib/dpkg/status.d/tzdata.md5sums": "0123456789abcdef0123456789abcdef  usr/share/zoneinfo/UTC\n",
    }
    assert listed(RELEASE | package) == {"debian": "12", "tzdata": "2025b-0"}


def test_a_package_that_left_its_settings_is_not_there() -> None:
    status = "\n".join(
        f"Package: {name}\nStatus: {status}\nVersion: 1\nArchitecture: all\n"
        for name, status in (("here", "install ok installed"), ("gone", "deinstall ok config-files"))
    )
    assert listed(RELEASE | {"var/lib/dpkg/status": status}) == {"debian": "12", "here": "1"}


def test_a_base_that_does_not_say_what_it_is() -> None:
    with pytest.raises(Failed, match=r"^etc/os-release of the base: a line ID=… was expected"):
        listed({"etc/passwd": ""})
