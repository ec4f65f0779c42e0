"""What NVML knows of the links of one GPU: NVLinks, and those to its CPU (C2C)."""

from __future__ import annotations

from functools import partial

from topo_agent.host import Json
from topo_agent.host.nvml_calls import INVALID, Handle, answer_of, answered, call, field_value, name_of, text_of
from topo_agent.host.nvml_structs import PciInfo

_LINKS_AT_MOST = 64  # twice what nvml.h allows today (36); drivers end the loop themselves

# nvml.h NVML_FI_DEV_…
_SPEED, _STATE = 164, 165
_C2C_LINKS, _C2C_STATUS, _C2C_MBPS = 170, 171, 172


def nvlinks(handle: Handle, *, older: bool) -> Json:
    """Link 0 upward until the driver says that there is no such link."""
    links: list[Json] = []
    for link in range(_LINKS_AT_MOST):
        answers = _nvlink(handle, link, older=older)
        if all(isinstance(answer, dict) for answer in answers.values()):
            invalid = {"error": name_of(INVALID)}
            if answers["p2p"] == invalid or answers["state"] == invalid:
                return links
            if link == 0:
                return answers["p2p"]
        links.append({"link": link, **answers})
    return links


def _nvlink(handle: Handle, link: int, *, older: bool) -> dict[str, Json]:
    """Since Hopper a link may sleep, which only the field tells (0 down, 1 up, 2 asleep, 3 no traffic)."""
    return {
        "state": answer_of("nvmlDeviceGetNvLinkState", handle, link)
        if older
        else answered(lambda: field_value(handle, _STATE, link)),
        "version": answer_of("nvmlDeviceGetNvLinkVersion", handle, link),
        "p2p": answer_of("nvmlDeviceGetNvLinkCapability", handle, link, 0),
        "speed_mbps": answered(lambda: field_value(handle, _SPEED, link)),
        "remote_type": answer_of("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        "remote_bdf": answered(lambda: _remote(handle, link)),
    }


def _remote(handle: Handle, link: int) -> Json:
    info = PciInfo.from_buffer_copy(call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
    return text_of(bytes(info.busId))


def c2c(handle: Handle) -> Json:
    """The links between this GPU and its CPU: how many, how many of them active, and what one of them carries."""
    count = field_value(handle, _C2C_LINKS)
    if not isinstance(count, int) or not count:
        return {"count": count}
    states = [answered(partial(field_value, handle, _C2C_STATUS, link)) for link in range(min(count, _LINKS_AT_MOST))]
    refused = next((state for state in states if isinstance(state, dict)), None)
    return {
        "count": count,
        "active": states.count(1) if refused is None else refused,
        "max_mbps": answered(lambda: field_value(handle, _C2C_MBPS, 0)),
    }
