"""The package under Debian's own systemd: installed, tried and removed with the commands of the README."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.labs.apt import CannotStart
from tests.labs.qemu import booted
from tests.labs.service import NODES, Ended, commands, run
from tests.labs.service_guest import GROUP, WATCHDOG


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    try:
        done = booted(run, lambda: tmp_path_factory.mktemp("systemd"))
    except CannotStart as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    print(f"systemd: {done.seconds:.0f} s in all, of them {done.results['booted']:.0f} s to boot")
    return done


def test_the_readme_installs_and_removes_it(ended: Ended) -> None:
    """Every command of the README, in order, word by word; `make deb` was run outside."""
    assert commands()[0] == "make deb"
    assert [one["command"] for one in ended.results["typed"]] == commands()[1:]
    for one in ended.results["typed"]:
        assert one["status"] == 0, one
    said = {one["command"].split()[0]: one["said"] for one in ended.results["typed"]}
    assert "NIC0" in said["wget"]
    assert "Active: active (running)" in said["systemctl"]
    assert 'Status: "' in said["systemctl"]
    print(f"installed and started within {ended.results['typed'][0]['seconds']:.1f} s")


def test_it_is_active_and_tells_the_story(ended: Ended) -> None:
    shown = ended.results["shown"]
    assert (shown["Type"], shown["ActiveState"], shown["SubState"]) == ("notify", "active", "running")
    assert shown["UnitFileState"] == "enabled"
    assert shown["NRestarts"] == "0"
    assert "2 NUMA nodes" in shown["StatusText"]
    assert "1 NIC" in shown["StatusText"]


def test_it_has_no_privilege(ended: Ended) -> None:
    """A user of its own that no file knows, no capability, and no way to any."""
    process = ended.results["process"]
    (user, *others) = {*process["Uid"].split()}
    assert not others
    assert 61184 <= int(user) <= 65519  # systemd's range for DynamicUser
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(process[kind], 16) == 0, kind
    assert (process["NoNewPrivs"], process["Seccomp"]) == ("1", "2")
    ours, of_the_machine = ended.results["user_namespace"]
    assert ours == of_the_machine  # another one is told of no device


def test_it_reads_what_it_must(ended: Ended) -> None:
    devices = {one["address"]: one for one in ended.results["topology"]["devices"] if "address" in one}
    assert {address: devices[address]["numa_node"] for address in NODES} == NODES
    assert devices["0000:11:00.0"]["names"]["netdev"]
    assert devices["0000:21:00.0"]["names"]["nvme"]
    assert ended.results["topology_mode"] == "0o100644"


def test_everybody_reads_the_document(ended: Ended) -> None:
    """Workloads and prologs do, whoever they are."""
    assert json.loads(ended.results["read_by_nobody"]) == ended.results["topology"]


def test_the_document_is_of_a_group(ended: Ended) -> None:
    """Issue 8, point 5: mode and group of topology.json are settable."""
    results = ended.results
    assert results["grouped"] == {"group": GROUP, "mode": "0o100640", "user": int(results["grouped_user"])}
    assert (results["read_by_group"], results["read_by_others"]) == (0, 1)
    assert not [line for line in results["grouped_journal"] if "cannot be written" in line]


def test_a_file_elsewhere(ended: Ended) -> None:
    """With ReadWritePaths=, and the group that may write there."""
    assert "\ntopo_devices{" in ended.results["collected"]


def test_it_hears_the_kernel(ended: Ended) -> None:
    """Events of devices and links reach it: it would say that it polls."""
    journal = ended.results["watchdog_journal"]
    assert any("listening" in line for line in journal)
    assert not [line for line in journal if line.startswith("events:")]


def test_its_pages(ended: Ended) -> None:
    pages = ended.results["pages"]
    assert {status for status, _ in pages.values()} == {200}
    assert json.loads(pages["/topology.json"][1]) == ended.results["topology"]
    metrics = pages["/metrics"][1]
    assert re.search(r'(?m)^topo_nic_info{.*numa_node="0".*pci_bus_id="0000:11:00.0".*} 1', metrics)
    assert re.search(r'(?m)^topo_devices{kind="nvme",state="ok"} 1', metrics)
    assert re.search(r"(?m)^topo_agent_build_info{.*} 1", metrics)


def test_reload(ended: Ended) -> None:
    """SIGHUP: new settings count; bad ones do not, and that is said."""
    results = ended.results
    assert results["reload_good"]["status"] == results["reload_bad"]["status"] == 0
    # systemd's own lines ("Reloaded …") come before or after the agent's
    said = [json.loads(line) for line in results["reload_good"]["journal"] if line.startswith("{")]
    assert any("read anew" in one["message"] for one in said)
    assert any("rescn" in line and "rescan" in line for line in results["reload_bad"]["journal"])
    assert results["after_reloads"]["MainPID"] == results["shown"]["MainPID"]
    assert results["after_reloads"]["ActiveState"] == "active"


def test_the_watchdog(ended: Ended) -> None:
    """Fed while the loop turns; a loop that stands still is killed and started anew."""
    results = ended.results
    fed, anew = results["fed"], results["anew"]
    assert (fed["ActiveState"], fed["NRestarts"], fed["Result"]) == ("active", "0", "success")
    assert (anew["ActiveState"], anew["NRestarts"]) == ("active", "1")
    assert anew["MainPID"] != fed["MainPID"]
    print(f"starved after {results['starved_after']:.1f} s")
    assert results["starved_after"] > WATCHDOG / 3
    assert any("Watchdog timeout" in line for line in results["watchdog_journal"])


def test_an_upgrade_restarts_it(ended: Ended) -> None:
    results = ended.results
    assert results["upgrade"]["status"] == 0, results["upgrade"]
    assert results["upgraded"]["ActiveState"] == "active"
    assert results["upgraded"]["UnitFileState"] == "enabled"
    assert results["upgraded"]["MainPID"] != results["before_upgrade"]["MainPID"]
    assert results["byte_code"] > 300  # compiled anew


def test_it_stops_within_two_seconds(ended: Ended) -> None:
    results = ended.results
    begun, done = (
        int(results["stopped"][f"{name}TimestampMonotonic"]) / 1e6 for name in ("ActiveExit", "InactiveEnter")
    )  # fmt: skip
    print(f"stopped within {done - begun:.1f} s")
    assert 0 < done - begun < 2
    assert (results["stopped"]["ActiveState"], results["stopped"]["Result"]) == ("inactive", "success")
    assert results["left_after_stop"] == []
    assert not results["state_after_stop"]  # /run/topo-agent lives as long as the service


def test_removal_leaves_nothing(ended: Ended) -> None:
    results = ended.results
    assert results["started_again"]["ActiveState"] == "active"  # it ran when it was removed
    assert results["left_after_removal"] == []
    assert results["removed"]["LoadState"] == "not-found"
    assert results["files_left"] == []
