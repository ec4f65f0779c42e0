"""What rtnetlink knows of interfaces and sysfs does not, as a plain document. The only importer of pyroute2.

docs/schema/netlink-document.json describes it. Nothing is decided here.
"""

from __future__ import annotations

from typing import Any, Protocol

from topo_agent.host import Json, Unavailable


class _Attributes(Protocol):
    """A netlink message, as far as it is asked here: pyroute2 has no types."""

    def get_attr(self, name: str) -> Any: ...

    def get_attrs(self, name: str) -> list[Any]: ...


def links() -> Json:
    """`{"links": [{"name": "eth0.100", "kind": "vlan", "vlan_id": 100, "altnames": […]}, …]}`, sorted by name.

    Unavailable where the kernel refuses. Interface numbers and counters are left out: they differ at every boot.
    """
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as rtnetlink:
            found = [_link(message) for message in rtnetlink.get_links()]
    except PermissionError as error:
        raise Unavailable("not_permitted", str(error)) from None
    except (OSError, NetlinkError) as error:
        raise Unavailable("driver_error", str(error)) from None
    return {"links": [*sorted(found, key=lambda link: str(link["name"]))]}


class LinkEvents:
    """A socket that hears when an interface changes: up, down, renamed, stacked. A wake-up and no fact."""

    def __init__(self) -> None:
        """Unavailable where the kernel refuses."""
        from pyroute2.netlink.rtnl import RTMGRP_LINK
        from pyroute2.netlink.rtnl.iprsocket import IPRSocket

        try:
            self._socket = IPRSocket()
            self._socket.bind(groups=RTMGRP_LINK)
        except OSError as error:
            raise Unavailable("not_permitted", f"no socket for link events: {error}") from None

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def heard(self) -> list[str]:
        """`["RTM_NEWLINK eth0", …]`, of one reading."""
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            return [f"{one['event']} {one.get_attr('IFLA_IFNAME')}" for one in self._socket.get()]
        except (OSError, NetlinkError) as error:
            return [f"some were lost ({error})"]

    def close(self) -> None:
        self._socket.close()


def _link(message: _Attributes) -> dict[str, Json]:
    """Every answer that is there; include/uapi/linux/if_link.h names them."""
    link: dict[str, Json] = {"name": message.get_attr("IFLA_IFNAME")}
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    if kind:
        link["kind"] = kind
    if kind == "vlan":
        link["vlan_id"] = _of(info.get_attr("IFLA_INFO_DATA"), "IFLA_VLAN_ID")
    names = message.get_attr("IFLA_PROP_LIST")
    if names:
        link["altnames"] = [*sorted(str(name) for name in names.get_attrs("IFLA_ALT_IFNAME"))]
    address = message.get_attr("IFLA_PERM_ADDRESS")
    if address:
        link["perm_address"] = address
    return link


def _of(attributes: _Attributes | None, name: str) -> Json:
    value = attributes.get_attr(name) if attributes else None
    return value if isinstance(value, int | str) else None
