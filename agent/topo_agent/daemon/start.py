"""Puts the agent together: what wakes it, what it offers and where, and the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from topo_agent.daemon import memory
from topo_agent.daemon.counts import Counts, together
from topo_agent.daemon.dranet import Webhook
from topo_agent.daemon.features import Features
from topo_agent.daemon.known import Known
from topo_agent.daemon.kube import Labels
from topo_agent.daemon.log import Log
from topo_agent.daemon.loop import Loop, Waker
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.offer import Offer
from topo_agent.daemon.settled import node_name, settled
from topo_agent.host import Unavailable
from topo_agent.publishers.http import Server, Tls
from topo_agent.settings import Settings

if TYPE_CHECKING:
    from topo_agent.daemon.events import Events
    from topo_agent.daemon.slices import Slices

_KINDS = 2  # of events: of devices, and of links
_FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/topo-agent"


def start(
    settings: Settings, *, source: str | None, reload: Callable[[], Settings], environment: Mapping[str, str]
) -> None:
    """Runs until it is told to stop. OSError with the address where it cannot listen."""
    memory.take_little()
    log = Log(settings.log_format, journal="JOURNAL_STREAM" in environment)
    counts = Counts()
    wakers = [*_wakers(log)] if source is None else []
    labels, slices = _labels(settings, log), _slices(settings, log)
    if isinstance(labels, Labels) and slices is not None:
        labels.made = slices.carrier_made
    events = _events(settings, log)
    publishers = [one for one in (labels, slices, events) if one is not None]
    offer = Offer(
        lambda: together([counts.families(), *(one.families() for one in publishers)]),
        time.monotonic,
        slices.findings if slices else list,
    )
    notify = Notify(environment)
    known = Known(
        settings,
        log=log,
        offer=offer,
        counts=counts,
        labels=labels,
        slices=slices,
        findings=events.read if events else lambda _: None,
        notify=notify,
    )
    loop = Loop(
        settings,
        source=source,
        log=log,
        known=known,
        offer=offer,
        counts=counts,
        wakers=[*wakers, *_mapping(settings, [labels, slices], log)],
        polling=source is not None or len(wakers) < _KINDS,
        reload=reload,
        notify=notify,
    )
    servers = [Server(settings.listen, offer.pages, tls=_tls(settings), told=lambda wrong: _certificates(log, wrong))]
    if settings.dranet_socket:
        webhook = Webhook(offer, settings.domain)
        servers.append(Server([f"unix:{settings.dranet_socket}"], webhook.pages, calls=webhook.calls))
    with ExitStack() as started:
        for server in servers:
            server.start()
            started.callback(server.stop)
        for address in (one for server in servers for one in server.addresses):
            log.note("listening", str(address))
        for one in publishers:
            one.start()
            started.callback(one.stop)
        loop.run()


def _wakers(log: Log) -> Iterator[Waker]:
    """Where the kernel does not tell, the clock has to do, and that is said."""
    from topo_agent.host.netlink import LinkEvents
    from topo_agent.host.uevents import Uevents

    for kind, what in ((Uevents, "devices"), (LinkEvents, "links")):
        try:
            yield kind()
        except Unavailable as error:
            log.trouble("events", f"none of {what} will come ({error}): looking every minute instead")


def _labels(settings: Settings, log: Log) -> Labels | Features | None:
    """Nothing of Kubernetes is imported where no labels are wanted."""
    if settings.labels == "off":
        return None
    chosen = settled(settings)
    if settings.labels == "nfd-file":
        return Features(settings.nfd_file or _FEATURES, chosen.name, chosen.keys, log)
    from topo_agent.publishers.kube.client import Client

    return Labels(chosen, lambda: Client(kubeconfig=settings.kubeconfig, context=settings.context), log)


def _slices(settings: Settings, log: Log) -> Slices | None:
    if settings.slice_mode == "off":
        return None
    from topo_agent.daemon.planned import Form
    from topo_agent.daemon.slices import Slices
    from topo_agent.publishers.kube.client import Client

    chosen = settled(settings)
    form = Form(chosen.name, settings.domain, settings.slice_mode, settings.slice_vfs, chosen.carrier)
    return Slices(form, lambda: Client(kubeconfig=settings.kubeconfig, context=settings.context), log)


def _events(settings: Settings, log: Log) -> Events | None:
    if not (settings.events or settings.node_condition):
        return None
    from topo_agent.daemon.events import Events, Told
    from topo_agent.publishers.kube.client import Client

    told = Told(node_name(settings), settings.events, settings.node_condition)
    return Events(told, lambda: Client(kubeconfig=settings.kubeconfig, context=settings.context), log)


def _mapping(settings: Settings, publishers: list[Labels | Features | Slices | None], log: Log) -> Iterator[Waker]:
    """What changes where this node stands: its file, and how the node is called in it."""
    if settings.mapping and any(publishers):
        from topo_agent.host.inotify import FileEvents

        yield from (one.named for one in publishers if one is not None)
        try:
            yield FileEvents(settings.mapping)
        except Unavailable as error:
            log.trouble("events", f"changes of {settings.mapping} are seen at the next rescan: {error}")


def _certificates(log: Log, wrong: str | None) -> None:
    if wrong is None:
        log.note("tls", "new certificates, used from now on")
    else:
        log.trouble("tls", f"{wrong}; the last ones stay")


def _tls(settings: Settings) -> Tls | None:
    if not settings.tls_certificate:
        return None
    return Tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
