"""Requests to the API server, each with its own deadline and one line for what goes wrong. The only importer of
kubernetes, which finds the server, trusts its certificate and keeps the token fresh.

Bodies are plain JSON: the models of the library cost memory and seconds, and a version of them knows not every field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, cast

from topo_agent.host import Json
from topo_agent.publishers.kube.answers import MOST, Kind, Object, Trouble, short
from topo_agent.publishers.kube.watching import Watch

MANAGER = "topo-agent"
"""Who owns what is applied (field manager, and user agent)."""

INSTALL = "the kubernetes library is missing: pip install 'topo-agent[kubernetes]'"

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""An Accept header: of an object its metadata is enough, and a node's images are long."""

_CONNECT, _READ = 5.0, 30.0  # seconds
_SILENT = 180.0  # seconds: an open watch gets a bookmark about every minute


class Client:
    """One API server. Nothing is retried here: whoever asks knows better how soon."""

    def __init__(self, *, kubeconfig: str = "", context: str = "") -> None:
        """Trouble where there is nothing to go by. In a pod its service account, elsewhere a kubeconfig."""
        try:
            import urllib3
            from kubernetes.client import Configuration
            from kubernetes.client.rest import RESTClientObject
        except ImportError:
            raise Trouble("config", INSTALL) from None
        self._urllib3 = urllib3
        self._configuration = _configured(Configuration(), kubeconfig, context)
        self._pool = RESTClientObject(self._configuration).pool_manager
        self._watches = 0  # each has a connection of its own: what else is asked closes its own behind it
        self.requests: dict[tuple[str, str], int] = {}

    @property
    def host(self) -> str:
        return str(self._configuration.host)

    def get(self, path: str, *, accept: str = "application/json", field: str = "") -> Object:
        """One object, or a list of those that `field` selects."""
        return self._whole("GET", path, {"fieldSelector": field} if field else {}, {"Accept": accept})

    def apply(self, path: str, body: Object, *, dry_run: bool = False, manager: str = MANAGER) -> Object:
        """Server-side apply, never forced. Trouble of kind "conflict" carries the server's Status as its answer."""
        return self._write("PATCH", path, body, "application/apply-patch+yaml", manager, dry_run=dry_run)

    def merge(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        """What the body says, and nothing else, by the server's own rules for lists (strategic merge patch)."""
        return self._write("PATCH", path, body, "application/strategic-merge-patch+json", dry_run=dry_run)

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        return self._write("POST", path, body, dry_run=dry_run)

    def update(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        """The whole object; of another resourceVersion than it says is a conflict."""
        return self._write("PUT", path, body, dry_run=dry_run)

    def delete(self, path: str, *, uid: str, dry_run: bool = False) -> None:
        """The object of that uid; what is gone already is gone."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if dry_run:
            body["dryRun"] = ["All"]
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            self._whole("DELETE", path, {}, headers, json.dumps(body).encode())
        except Trouble as error:
            if error.kind not in ("not_found", "conflict"):
                raise

    def _write(
        self,
        verb: str,
        path: str,
        body: Object,
        kind: str = "application/json",
        manager: str = MANAGER,
        *,
        dry_run: bool,
    ) -> Object:
        """Strictly: a field that the server does not know is an error."""
        query = {"dryRun": "All"} if dry_run else {}
        query |= {"fieldManager": manager, "fieldValidation": "Strict"}
        headers = {"Accept": "application/json", "Content-Type": kind}
        return self._whole(verb, path, query, headers, json.dumps(body).encode())

    def watch(self, path: str, *, field: str, version: str, seconds: int, accept: str = METADATA) -> Watch:
        """An open watch of the objects that `field` selects, from the version on."""
        query = {
            "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds),
        }  # fmt: skip
        query |= {"fieldSelector": field} if field else {}
        answer = self._request("GET", path, query, {"Accept": accept}, None, read=_SILENT)
        if answer.status != 200:
            raise self._refused(answer, "WATCH")
        self._count("WATCH", "200")
        self._watches += 1
        return Watch(answer, self._troubled, self._over)

    def _over(self) -> None:
        self._watches -= 1

    # One request

    def _whole(
        self, verb: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None = None
    ) -> Object:
        answer = self._request(verb, path, query, headers, body)
        if not 200 <= answer.status < 300:
            raise self._refused(answer, verb)
        self._count(verb, str(answer.status))
        said = self._read(answer)
        if not isinstance(said, dict):
            raise Trouble("server", f"{self.host}: expected an object, and {path} is none: {self._way()}")
        return said

    def _request(
        self, verb: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None,
        *, read: float = _READ,
    ) -> Any:  # fmt: skip
        from urllib.parse import urlencode

        everything = {"User-Agent": MANAGER, **headers, **self._credentials()}
        if self._watches:
            everything["Connection"] = "close"
        try:
            return self._pool.request(
                verb, f"{self.host}{path}?{urlencode(query)}" if query else f"{self.host}{path}",
                headers=everything, body=body, preload_content=False, retries=False, redirect=False,
                timeout=self._urllib3.Timeout(connect=_CONNECT, read=read),
            )  # fmt: skip
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            self._count(verb, "none")
            raise self._troubled(error) from None

    def _credentials(self) -> dict[str, str]:
        """Read anew each time: a token of a pod is replaced every hour."""
        try:
            found = self._configuration.auth_settings().values()
            return {str(one["key"]): str(one["value"]).strip() for one in found if one.get("in") == "header"}
        except Exception as error:  # noqa: BLE001 a plugin of the kubeconfig may fail in any way
            raise Trouble("unauthorized", f"{self.host}: no credentials: {short(error)}") from None

    def _read(self, answer: Any) -> Json:
        try:
            text = answer.read(MOST + 1)
            answer.release_conn()
            return cast("Json", json.loads(text)) if len(text) <= MOST else None
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._troubled(error) from None
        except (ValueError, RecursionError):
            return None

    def _refused(self, answer: Any, verb: str) -> Trouble:
        """What a status that is no success means, in one line."""
        status = int(answer.status)
        self._count(verb, str(status))
        said = self._read(answer)
        message = str(said.get("message", "")) if isinstance(said, dict) else ""
        told = f"{self.host}: {status}{': ' + short(message) if message else ''}"
        if status == 404 and not message:
            return Trouble("not_found", f"{told}: the API server does not know this kind of object")
        if status == 407 or (not message and status not in (429, 500, 503, 504)):
            return Trouble("server", f"{told} from something that is no API server: {self._way()}")
        after = _seconds(answer.headers.get("Retry-After"))
        if status == 401:
            return Trouble(
                "unauthorized", f"{told}: the token is expired or unknown there; log in again, and compare the clocks"
            )
        kinds: dict[int, Kind] = {403: "forbidden", 404: "not_found", 409: "conflict", 410: "gone", 429: "busy"}
        kind = kinds.get(status, "server" if status >= 500 else "refused")
        return Trouble(kind, told, retry_after=after, answer=said)

    def _troubled(self, error: Exception) -> Trouble:
        """No answer at all."""
        text = str(error)
        if "not yet valid" in text or "has expired" in text:
            return Trouble("unreachable", f"{self.host}: its certificate is not valid now: is the clock right?")
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return Trouble(
                "unreachable", f"{self.host}: its certificate is not signed by the CA of the kubeconfig: {self._way()}"
            )
        if isinstance(error, self._urllib3.exceptions.ProxyError):
            return Trouble("unreachable", f"{self.host}: the proxy does not let it through: {self._way()}")
        if isinstance(error, (self._urllib3.exceptions.ReadTimeoutError, TimeoutError)):
            return Trouble("unreachable", f"{self.host}: no answer in time")
        return Trouble("unreachable", f"{self.host}: cannot be reached: {_reason(error)}{self._by()}")

    def _way(self) -> str:
        """What may stand between."""
        proxy = self._configuration.proxy
        return f"is the proxy {proxy} in the way? NO_PROXY exempts a server" if proxy else "is a proxy in the way?"

    def _by(self) -> str:
        return f" (through the proxy {self._configuration.proxy})" if self._configuration.proxy else ""

    def _count(self, verb: str, code: str) -> None:
        self.requests[verb, code] = self.requests.get((verb, code), 0) + 1


def _configured(configuration: Any, kubeconfig: str, context: str) -> Any:
    """In a pod, and where nobody names a kubeconfig, the service account."""
    from kubernetes import config
    from kubernetes.config import ConfigException

    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    try:
        if not named and not context and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                config_file=named or None, context=context or None, client_configuration=configuration,
                persist_config=False,
            )  # fmt: skip
    except (ConfigException, OSError) as error:
        where = named or ("the service account" if os.environ.get("KUBERNETES_SERVICE_HOST") else "~/.kube/config")
        raise Trouble("config", f"{where}: no way to a cluster: {short(error)}; name one with --kubeconfig") from None
    except Exception as error:  # noqa: BLE001 YAML that is none, and what else a reader of files may raise
        raise Trouble("config", f"{named or '~/.kube/config'}: expected a kubeconfig: {short(error)}") from None
    return configuration


def _reason(error: Exception) -> str:
    """`"[Errno 111] Connection refused"` out of what urllib3 wraps around it."""
    return short(str(error).rpartition(": ")[2] or type(error).__name__)


def _seconds(text: str | None) -> float | None:
    """`Retry-After: 7`; an hour at most."""
    return min(float(text), 3600.0) if text is not None and text.isascii() and text.isdigit() else None
