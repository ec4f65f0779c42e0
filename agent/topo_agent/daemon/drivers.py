"""A machine whose driver is not heard: not yet, or no more. For the scanner, which keeps the driver's last answers."""

from __future__ import annotations

from time import monotonic

from topo_agent.diagnostics import NOT_HERE, Unknown
from topo_agent.host import Host, Json, Through, Unavailable, as_object, as_objects
from topo_agent.sources.gpu import bus_id

_DRIVER = "nvml"  # the document
_AGAIN = 5.0  # seconds


class NotYet(Through):
    """A machine without what its driver says, as long as that is being asked."""

    def document(self, name: str) -> Json:
        if name == _DRIVER:
            raise Unavailable("timeout", "the NVIDIA driver is still being asked")
        return super().document(name)


class Lasting:
    """What the driver said last. It stands in for the driver while that hangs or fails, for so many seconds.

    A GPU that has left the bus ends it: what the driver said is not true any more.
    """

    def __init__(self) -> None:
        self._answer: Json = None
        self._heard = 0.0  # when, by the monotonic clock
        self._took = 0.0  # seconds until it was there
        self._failing: float | None = None  # since when there is no other answer
        self._hung = 0  # how often it has not answered in time since then
        self.silent = ""
        """Why the driver did not answer in this scan; empty where it did, or where there is none."""

    @property
    def age(self) -> float:
        """Seconds since it gave the answers that stand in for those of this scan; 0 where none do."""
        return monotonic() - self._heard if self.silent and self._answer is not None else 0.0

    def patience(self, most: float) -> float:
        """Seconds that it gets. One that hung has a few times what it took, for devices that come and go meanwhile are
        told after that; and twice as many the next time, for one that starts anew takes longer.
        """
        if not self._hung or self._answer is None:
            return most
        return min(most, (_AGAIN + 3 * self._took) * 2.0 ** min(self._hung - 1, 10))

    def around(self, host: Host, seconds: float) -> Host:
        """The same machine, for one scan."""
        self.silent = ""
        return _Remembering(host, self, seconds)

    def heard(self, answer: Json, began: float) -> Json:
        self._answer, self._heard, self._failing = answer, monotonic(), None
        self._took, self._hung = self._heard - began, 0
        return answer

    def missed(self, missing: Unavailable, host: Host, seconds: float) -> Json:
        """Its last answers; Unavailable as it came where there are none, or not any more."""
        now = monotonic()
        if missing.reason in NOT_HERE:
            self._answer, self._failing = None, None
            raise missing
        self.silent = str(missing).replace(" (--timeout)", "")  # it may have had less
        self._hung += missing.reason == Unknown.TIMEOUT.value
        if self._failing is None:
            self._failing = now
        if now >= self._failing + seconds or not self._on_bus(host):
            self._answer = None
        if self._answer is None:
            raise missing
        return self._answer

    def _on_bus(self, host: Host) -> bool:
        """Every GPU that it tells of."""
        told = [bus_id(one.get("bdf")) for one in as_objects(as_object(self._answer).get("gpus"))]
        here = {*host.names("sys/bus/pci/devices")}
        return all(str(address) in here for address in told if address is not None)


class _Remembering(Through):
    def __init__(self, host: Host, lasting: Lasting, seconds: float) -> None:
        super().__init__(host)
        self._lasting, self._seconds = lasting, seconds

    def document(self, name: str) -> Json:
        if name != _DRIVER:
            return super().document(name)
        began = monotonic()
        try:
            answer = super().document(name)
        except Unavailable as missing:
            return self._lasting.missed(missing, self._host, self._seconds)
        return self._lasting.heard(answer, began)
