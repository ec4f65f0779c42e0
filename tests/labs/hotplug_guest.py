"""Runs inside the guest of the hot-plug lab: starts the agent, watches the kernel and the agent, writes results.json.

Only what Python itself has, and uevents.py: an independent witness. Each latency is from the last uevent of a burst, by
the guest's clock, until /metrics and topology.json say what is true.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.labs.uevents import Uevents

PAGE = "http://127.0.0.1:19738"
STATE = "/run/topo-agent"
BY_HAND = 45

uevents = Uevents()


def got(path: str) -> str:
    with urllib.request.urlopen(PAGE + path, timeout=10) as answer:  # noqa: S310 our own address
        return str(answer.read().decode())


def until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """When it became true; the results so far are written where it does not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if true():
                return time.monotonic()
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise TimeoutError(what)


def written() -> set[str]:
    """PCI addresses of NICs and drives in topology.json of the state directory."""
    with open(f"{STATE}/topology.json", encoding="utf-8") as file:
        document = json.load(file)
    return {one["address"] for one in document["devices"] if one.get("kind") in ("nic", "nvme")}


def shown() -> set[str]:
    """Those on /metrics."""
    lines = got("/metrics").splitlines()
    found = {line.split('pci_bus_id="')[1].split('"')[0] for line in lines if line.startswith("topo_nic_info{")}
    drives = [line for line in lines if line.startswith('topo_devices{kind="nvme",state="ok"}')]
    if any(float(line.split()[1]) for line in drives):
        found.add(sys.argv[2])  # there is one drive, and drives are counted and not named
    return found


def own() -> dict[str, float]:
    """What the agent costs: the least of some looks, for a connection that just ends counts as well, or a scan."""
    looks = []
    for _ in range(12):
        time.sleep(0.7)
        looks.append(look())
    return {name: min(one[name] for one in looks) for name in looks[0]}


def look() -> dict[str, float]:
    """What the agent says that it costs."""
    told = {}
    for line in got("/metrics").splitlines():
        for name in ("open_descriptors", "threads", "memory_bytes"):
            if line.startswith(f"topo_agent_{name} "):
                told[name] = float(line.split()[1])
    return told


def latency(gone: set[str], back: set[str], what: str) -> float:
    """Seconds from the last uevent until `gone` are nowhere and `back` are in both places."""

    def right(found: set[str]) -> bool:
        return not gone & found and back <= found

    def true() -> bool:
        # An answer costs the agent time, so it is asked when its file is right.
        return right(written()) and right(shown())

    return until(true, 60, what) - uevents.last


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def stacked() -> dict[str, Any]:
    """A VLAN and a bond, made with ip; found in the document with what only netlink tells."""
    nic = min(os.listdir("/sys/bus/pci/devices/" + sys.argv[1] + "/net"))
    other = next(name for name in os.listdir("/sys/class/net") if name.startswith("eth") and name != nic)
    for command in (
        f"link set {nic} up",
        f"link add link {nic} name lab.100 type vlan id 100",
        "link add name labbond type bond",
        f"link set {other} down",
        f"link set {other} master labbond",
    ):
        subprocess.run(["ip", *command.split()], check=True)

    def there() -> dict[str, Any]:
        document = json.loads(got("/topology.json"))
        return {one["id"]: one for one in document["devices"] if one["id"] in ("net:lab.100", "net:labbond")}

    found: dict[str, Any] = {}

    def both() -> bool:
        """A scan in between finds the bond with nothing below it."""
        found.update(there())
        return len(found) == 2 and bool(found["net:labbond"].get("lower"))

    until(both, 30, "the VLAN and the bond")
    return found


def main() -> None:
    results: dict[str, Any] = {"qmp": [], "by_hand": []}
    agent = subprocess.Popen(
        [sys.executable, "-m", "topo_agent", "run", "--rescan", "1h", "--state-dir", STATE, "--log-format", "json"]
    )
    try:
        lab(results)
        started = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        results["status"] = agent.wait(20)
        results["stop_seconds"] = time.monotonic() - started
    except BaseException as error:
        results["error"] = repr(error)
        agent.kill()
        raise
    finally:
        write("/out/results.json", json.dumps(results))


def lab(results: dict[str, Any]) -> None:
    both = sys.argv[1:3]
    pair = set(both)
    until(lambda: got("/readyz") == "ok\n", 60, "ready")
    until(lambda: pair <= written() & shown(), 60, "both devices")
    print("lab: ready", flush=True)
    for cycle in range(int(sys.argv[3])):
        # The host unplugs both over QMP: first the last of them has to leave /sys.
        until(lambda: not pair & {*os.listdir("/sys/bus/pci/devices")}, 90, "unplugged")
        gone = latency(pair, set(), "gone")
        print(f"lab: gone {cycle}", flush=True)
        until(lambda: pair <= {*os.listdir("/sys/bus/pci/devices")}, 90, "plugged")
        results["qmp"].append([gone, latency(set(), pair, "back")])
        print(f"lab: back {cycle}", flush=True)
    results["stacked"] = stacked()
    for cycle in range(BY_HAND):
        one = both[cycle % 2]
        write(f"/sys/bus/pci/devices/{one}/remove", "1")
        gone = latency({one}, set(), "removed")
        write("/sys/bus/pci/rescan", "1")
        results["by_hand"].append([gone, latency(set(), {one}, "found again")])
        if cycle == 4:
            results["early"] = own()
    results["late"] = own()
    results["changes"] = len(open(f"{STATE}/history.jsonl", encoding="utf-8").read().splitlines())  # noqa: SIM115


main()
