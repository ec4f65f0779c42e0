"""An image as an OCI archive: made of layers, or read. https://github.com/opencontainers/image-spec"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

_IMAGE = "application/vnd.oci.image"


class Image(NamedTuple):
    config: dict[str, Any]
    layers: list[bytes]  # tar, the lowest first
    sizes: list[int]  # of each in the archive


def packed(layers: Iterable[bytes], config: Mapping[str, Any], name: str) -> bytes:
    """The archive of an image of that name. `config`: architecture and what is to be run."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"{_IMAGE}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    described = [blob("layer.v1.tar", one) for one in layers]
    rootfs = {"type": "layers", "diff_ids": [one["digest"] for one in described]}
    whole = {"created": "1970-01-01T00:00:00Z", "os": "linux", **config, "rootfs": rootfs}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_IMAGE}.manifest.v1+json",
        "config": blob("config.v1+json", _json(whole)),
        "layers": described,
    }
    # The first annotation is for containerd, the other for those that follow the specification.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    top = {**blob("manifest.v1+json", _json(manifest)), "annotations": names}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [top]}),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    return tar((entry(path), content) for path, content in sorted(files.items()))


def archived(layout: Path, name: str) -> bytes:
    """The archive of a folder that holds one image, with that name."""
    files = {str(path.relative_to(layout)): path.read_bytes() for path in layout.rglob("*") if path.is_file()}
    index = json.loads(files["index.json"])
    (top,) = index["manifests"]
    top["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    files["index.json"] = _json(index)
    return tar((entry(path), content) for path, content in sorted(files.items()))


def read(archive: Path) -> Image:
    with tarfile.open(archive) as files:

        def blob(described: Mapping[str, Any]) -> bytes:
            return _member(files, "blobs/" + str(described["digest"]).replace(":", "/"))

        (top,) = json.loads(_member(files, "index.json"))["manifests"]
        manifest = json.loads(blob(top))
        layers = [blob(one) for one in manifest["layers"]]
        plain = [gzip.decompress(one) if one[:2] == b"\x1f\x8b" else one for one in layers]
        return Image(json.loads(blob(manifest["config"])), plain, [one["size"] for one in manifest["layers"]])


def name(archive: Path) -> str:
    with tarfile.open(archive) as files:
        (top,) = json.loads(_member(files, "index.json"))["manifests"]
        return str(top["annotations"]["org.opencontainers.image.ref.name"])


def _member(files: tarfile.TarFile, path: str) -> bytes:
    return cast("IO[bytes]", files.extractfile(path)).read()


def tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Owners and times are those that the entries say, and by default root and 1970."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as out:
        for described, content in entries:
            described.size = len(content)
            out.addfile(described, io.BytesIO(content))
    return made.getvalue()


def files(layers: Iterable[bytes]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """What a container of these layers sees, sorted by path: a later layer's file is in the place of an earlier one's.

    None of ours takes files away.
    """
    seen: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as entries:
            for one in entries:
                content = entries.extractfile(one) if one.isreg() else None
                seen[one.name.strip("/")] = (one, content.read() if content else b"")
    yield from (seen[path] for path in sorted(seen))


def entry(path: str, mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(path)
    found.mode = mode
    return found


def _json(said: object) -> bytes:
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
