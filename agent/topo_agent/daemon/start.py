"""Puts the agent together: what wakes it, what it offers and where, and the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from topo_agent.daemon import malloc
from topo_agent.daemon.counts import Counts
from topo_agent.daemon.log import Log
from topo_agent.daemon.loop import Loop, Waker
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.offer import Offer
from topo_agent.host import Unavailable
from topo_agent.publishers.http import Server, Tls
from topo_agent.settings import Settings


def start(
    settings: Settings, *, source: str | None, reload: Callable[[], Settings], environment: Mapping[str, str]
) -> None:
    """Runs until it is told to stop. OSError with the address where it cannot listen."""
    malloc.large_ones_go_back()
    log = Log(settings.log_format, journal="JOURNAL_STREAM" in environment)
    counts = Counts()
    offer = Offer(counts.families, time.monotonic)
    loop = Loop(
        settings,
        source=source,
        log=log,
        offer=offer,
        counts=counts,
        wakers=[*_wakers(log)] if source is None else [],
        reload=reload,
        notify=Notify(environment),
    )
    server = Server(settings.listen, offer.pages, tls=_tls(settings))
    server.start()
    try:
        for address in server.addresses:
            log.note("listening", str(address))
        loop.run()
    finally:
        server.stop()


def _wakers(log: Log) -> Iterator[Waker]:
    """Where the kernel does not tell, the clock has to do, and that is said."""
    from topo_agent.host.netlink import LinkEvents
    from topo_agent.host.uevents import Uevents

    for kind, what in ((Uevents, "devices"), (LinkEvents, "links")):
        try:
            yield kind()
        except Unavailable as error:
            log.trouble("events", f"none of {what} will come ({error}): looking every minute instead")


def _tls(settings: Settings) -> Tls | None:
    if not settings.tls_certificate:
        return None
    return Tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
