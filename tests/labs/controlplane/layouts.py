"""What public sources say of machines that are described in fixtures/, typed once more: no program is asked for it.

The head of each fixtures/*/machine.yaml names the sources, and what is inferred.
"""

from __future__ import annotations

Pairs = list[tuple[str, str]]


def addresses(text: str) -> list[str]:
    """`"1b 29.1 / 0008:01"`: domain 0000, device 00 and function 0 are left out; the slash is between the sockets."""
    found = []
    for word in text.replace("/", " ").split():
        domain, _, rest = word.rpartition(":")
        bus, _, function = rest.partition(".")
        found.append(f"{domain or '0000'}:{bus}:00.{function or '0'}")
    return found


def pairs(gpus: str, nics: str) -> Pairs:
    return list(zip(addresses(gpus), addresses(nics), strict=True))


# Each GPU and the NIC on its root; half of them are on NUMA node 0, the other half on node 1.
RAILS: dict[str, Pairs] = {
    "dgx-h100": pairs("1b 43 52 61 / 9d c3 d1 df", "18 40 4f 5e / 9a c0 ce dc"),
    # The buses of the GPUs are those of the description: no source prints them.
    "xe9680-h200": pairs("19 3b 4c 5d / 9b bb cb db", "1a 3c 4d 5e / 9c bc cc dc"),
    "mi300x": pairs("05 2b 5b 65 / 7d a5 d5 e7", "09 23 53 69 / 8f 9c cd f1"),
}

# Storage cards of a DGX H100, of node 0 and of node 1: no GPU is on their roots.
STORAGE = (addresses("29.0 29.1"), addresses("aa.0 aa.1"))

# Beside the NIC of 9b in an XE9680.
BLUEFIELD = addresses("9d.0 9d.1")

# A tray of GB200: every device has a root of its own. The BlueFields are 0006:03 and 0016:03.
TRAY = (addresses("0008:01 0009:01"), addresses("0018:01 0019:01"))
TRAY_NICS = (addresses("0000:03 0002:03 0006:03.0 0006:03.1"), addresses("0010:03 0012:03 0016:03"))
TRAY_RAILS = [*zip(TRAY[0], TRAY_NICS[0], strict=False), *zip(TRAY[1], TRAY_NICS[1], strict=False)]

# Everything on bus 00; 03 is the paravirtual NIC.
FLAT = (["0000:00:05.0", "0000:00:06.0"], ["0000:00:03.0", "0000:00:07.0"])
