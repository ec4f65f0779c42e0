"""Runs inside the guest, as a service of its systemd: installs the agent, tries it, removes it -> results.json."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNIT = "topo-agent.service"
SETTINGS = Path("/etc/topo-agent/topo-agent.toml")
STATE = Path("/run/topo-agent")
DROP_IN = Path("/run/systemd/system/topo-agent.service.d/lab.conf")
WATCHDOG = 10  # seconds
NOBODY = 65534
GROUP = "adm"  # as slurm elsewhere
COLLECTOR = Path("/var/lib/collector")  # as that of node_exporter elsewhere
LISTEN = "http://127.0.0.1:19738"


def uptime() -> float:
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


def say(what: str) -> None:
    print(f"lab: {uptime():.0f} s: {what}", flush=True)


def typed(command: str) -> dict[str, Any]:
    """As a user types it."""
    started = time.monotonic()
    done = subprocess.run(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - started
    say(f"{command}: status {done.returncode} after {seconds:.1f} s")
    if done.returncode:
        print(done.stdout, flush=True)
    return {"command": command, "status": done.returncode, "said": done.stdout, "seconds": seconds}


def show() -> dict[str, str]:
    names = "LoadState,ActiveState,SubState,StatusText,MainPID,NRestarts,Result,UnitFileState,Type"
    names += ",ActiveExitTimestampMonotonic,InactiveEnterTimestampMonotonic"
    done = subprocess.run(
        ["systemctl", "show", UNIT, "--property", names], capture_output=True, text=True, check=True
    )  # fmt: skip
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def journal() -> list[str]:
    """Lines of the unit: what the agent said, and what systemd said of it, in no order between the two."""
    subprocess.run(["journalctl", "--sync"], check=True)
    words = ["journalctl", "--unit", UNIT, "--output", "cat", "--no-pager"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s; {show()}; {journal()[-20:]}")
        time.sleep(0.3)


def page(path: str) -> tuple[int, str]:
    with urllib.request.urlopen(LISTEN + path, timeout=30) as answer:  # noqa: S310 it is http
        return answer.status, answer.read().decode()


def status_of(pid: str) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return {key: " ".join(value.split()) for key, value in (line.split(":", 1) for line in text.splitlines())}


def running() -> list[str]:
    """Processes that are of the agent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if re.search(r"topo_agent|bin/topo-agent", line):
            found.append(line)
    return found


def started(results: dict[str, Any]) -> None:
    """It runs; as whom, and what it offers."""
    until(lambda: "topology:" in "\n".join(journal()), 60, "the first scan")
    results["shown"] = show()
    pid = results["shown"]["MainPID"]
    results["process"] = status_of(pid)
    results["user_namespace"] = [os.readlink(f"/proc/{one}/ns/user") for one in (pid, "self")]
    results["processes"] = running()
    # A second scan adds what drivers say, and may come between two questions.
    until(lambda: 'topo_agent_scans_total{result="ok"} 0' not in page("/metrics")[1], 60, "a whole scan")
    results["pages"] = {path: page(path) for path in ("/", "/metrics", "/healthz", "/readyz", "/topology.json")}
    file = STATE / "topology.json"
    results["topology"] = json.loads(file.read_text(encoding="utf-8"))
    results["topology_mode"] = oct(file.stat().st_mode)
    done = subprocess.run(["cat", file], capture_output=True, text=True, check=False, user=NOBODY, extra_groups=[])
    results["read_by_nobody"] = done.stdout or done.stderr


def reloaded(results: dict[str, Any]) -> None:
    """SIGHUP with good settings, then with bad ones."""
    before = SETTINGS.read_text(encoding="utf-8")
    results["reload_good"] = reload(f'{before}log-format = "json"\n', "read anew")
    results["reload_bad"] = reload(f"{before}rescn = 1\n", "rescn")
    SETTINGS.write_text(before, encoding="utf-8")
    results["after_reloads"] = show()


def reload(settings: str, expected: str) -> dict[str, Any]:
    SETTINGS.write_text(settings, encoding="utf-8")
    seen = len(journal())
    done = typed(f"systemctl reload {UNIT}")
    until(lambda: expected in "\n".join(journal()[seen:]), 30, expected)
    return done | {"journal": journal()[seen:]}


def grouped(results: dict[str, Any]) -> None:
    """`state-group` and `textfile`, with the drop-in that docs/daemon.md asks for."""
    before = SETTINGS.read_text(encoding="utf-8")
    words = f'state-group = "{GROUP}"\nstate-mode = "0640"\ntextfile = "{COLLECTOR}/topo-agent.prom"\n'
    SETTINGS.write_text(before + words, encoding="utf-8")
    COLLECTOR.mkdir()
    shutil.chown(COLLECTOR, group=GROUP)
    COLLECTOR.chmod(0o775)
    DROP_IN.parent.mkdir(parents=True)
    lines = f"SupplementaryGroups={GROUP}\nReadWritePaths={COLLECTOR}\n"
    DROP_IN.write_text(f"[Service]\n{lines}", encoding="utf-8")
    typed("systemctl daemon-reload")
    seen = len(journal())
    typed(f"systemctl restart {UNIT}")
    file = STATE / "topology.json"
    until(file.exists, 60, "topology.json of a group")
    found = file.stat()
    results["grouped"] = {"group": file.group(), "mode": oct(found.st_mode), "user": found.st_uid}
    results["grouped_user"] = status_of(show()["MainPID"])["Uid"].split()[0]
    results["read_by_group"], results["read_by_others"] = (
        subprocess.run(["cat", file], capture_output=True, check=False, user=NOBODY, extra_groups=groups).returncode
        for groups in ([found.st_gid], [])
    )
    collected = COLLECTOR / "topo-agent.prom"
    until(collected.exists, 60, "the file for a collector")
    results["collected"] = collected.read_text(encoding="utf-8")
    results["grouped_journal"] = journal()[seen:]
    SETTINGS.write_text(before, encoding="utf-8")
    DROP_IN.unlink()
    typed("systemctl daemon-reload")


def starved(results: dict[str, Any]) -> None:
    """A loop that stands still."""
    DROP_IN.write_text(f"[Service]\nWatchdogSec={WATCHDOG}\n", encoding="utf-8")
    typed("systemctl daemon-reload")
    typed(f"systemctl restart {UNIT}")
    time.sleep(1.5 * WATCHDOG)  # it is fed meanwhile
    results["fed"] = show()
    pid = int(results["fed"]["MainPID"])
    stopped = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    until(lambda: show()["Result"] == "watchdog", 4 * WATCHDOG, "the watchdog")
    results["starved_after"] = time.monotonic() - stopped
    until(lambda: show()["ActiveState"] == "active", 60, "started anew")
    results["anew"] = show()
    results["watchdog_journal"] = journal()
    DROP_IN.unlink()
    typed("systemctl daemon-reload")


def upgraded(results: dict[str, Any]) -> None:
    """The same package once more: dpkg takes it for an upgrade."""
    results["before_upgrade"] = show()
    results["upgrade"] = typed("dpkg --install dist/topo-agent_*.deb")
    results["upgraded"] = show()
    results["byte_code"] = len([*Path("/usr/lib/topo-agent").rglob("*.pyc")])


def stopped(results: dict[str, Any]) -> None:
    results["stop"] = typed(f"systemctl stop {UNIT}")
    results["stopped"] = show()
    results["left_after_stop"] = running()
    results["state_after_stop"] = STATE.exists()
    typed(f"systemctl start {UNIT}")
    results["started_again"] = show()


def removed(results: dict[str, Any]) -> None:
    results["left_after_removal"] = running()
    results["removed"] = show()
    places = ("/usr/lib/topo-agent", "/usr/bin/topo-agent", "/etc/topo-agent", "/etc/default/topo-agent",
              "/usr/share/doc/topo-agent", "/lib/systemd/system/topo-agent.service", "/run/topo-agent",
              "/etc/systemd/system/multi-user.target.wants/topo-agent.service")  # fmt: skip
    results["files_left"] = [path for path in places if os.path.lexists(path)]


def main() -> None:
    results: dict[str, Any] = {"booted": uptime(), "typed": []}
    commands = json.loads(Path("/commands.json").read_text(encoding="utf-8"))
    say("systemd has started the lab")
    try:
        for command in commands:
            if "purge" in command:
                for part in (started, reloaded, grouped, starved, upgraded, stopped):
                    say(part.__name__)
                    part(results)
            results["typed"].append(typed(command))
        removed(results)
    except Exception:  # noqa: BLE001 whatever it is, it is told outside
        results["error"] = traceback.format_exc()
    results["ended"] = uptime()
    Path("/out/results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
