"""The kernel's text formats: expected values from its documentation and from text of real machines."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.paper import mask
from topo_agent.ids import cpulist as as_cpulist
from topo_agent.sources import parse


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3\n", {0, 1, 2, 3}),
        ("0\n", {0}),
        ("0-2,33-34,45,72-73\n", {0, 1, 2, 33, 34, 45, 72, 73}),  # traps 2: hwloc 48amd64-4pa2n6c-sparse
        ("0,8,250-255\n", {0, 8, 250, 251, 252, 253, 254, 255}),  # traps 3: POWER9
        ("0-3\n\0", {0, 1, 2, 3}),  # traps 1: ten of hwloc's 42 trees
        ("0-3\0\n", {0, 1, 2, 3}),
        ("\n", set()),  # traps 3, 6: a node without CPUs
        ("", set()),
        ("\0", set()),
        ("0-238,240-255", {*range(256)} - {239}),  # traps 15: ASUS ESC8000A
        ("1,3,5,7,9,11,13,15,17,19,21,23", {*range(1, 24, 2)}),  # traps 12
    ],
)
def test_cpulist(text: str, cpus: set[int]) -> None:
    assert parse.cpulist(text) == cpus


@pytest.mark.parametrize(
    "text",
    [
        "0-4294967295",  # traps 24: four billion CPUs
        "4294967295",
        "999999",
        "3-1",
        "-1",
        "0-",
        "-",
        "0--3",
        "0,,1",
        ",",
        "0-3,",
        "0x0",
        "a",
        "1_000",  # traps 24: int() takes it
        "١٢",  # traps 24: so are Arabic digits
        "0-1-2",
        "+1",
        "1.0",
        "0 1",
        "all",
        "(efault)",  # traps 25
    ],
)
def test_no_cpulist(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        parse.cpulist(text)


def test_the_largest_machine_that_linux_can_be_built_for() -> None:
    # arch/x86/Kconfig: NR_CPUS_RANGE_END is 8192 with CPUMASK_OFFSTACK
    assert len(parse.cpulist("0-8191")) == 8192


@given(st.frozensets(st.integers(0, 8191), max_size=300))
def test_cpulist_round_trip(cpus: frozenset[int]) -> None:
    assert parse.cpulist(as_cpulist(cpus)) == cpus
    assert parse.cpulist(as_cpulist(cpus) + "\n\0") == cpus


@given(st.frozensets(st.integers(0, 8191), max_size=300))
def test_cpulist_as_the_kernel_writes_it(cpus: frozenset[int]) -> None:
    """Documentation/admin-guide/cputopology.rst and lib/bitmap-str.c %*pbl: ascending, ranges merged, no overlap."""
    numbers = [[int(word) for word in part.split("-")] for part in as_cpulist(cpus).split(",") if part]
    assert all(len(part) == 1 or part[0] < part[1] for part in numbers)
    assert all(before[-1] + 1 < after[0] for before, after in pairwise(numbers))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("f\n", {0, 1, 2, 3}),
        ("00000001,00000000", {32}),
        ("0000,00000011,11111111", {0, 4, 8, 12, 16, 20, 24, 28, 32, 36}),  # traps 9: a shorter first group
        ("0xf", {0, 1, 2, 3}),  # traps 9, 28: hwloc 40intel64-4n10c+pci-conflicts
        ("00000000,00000000,00000000,00000000\n", set()),  # traps 8: node 16 of the 128-CPU ia64
        ("ffffffff,ffffffff", {*range(64)}),
        ("3,00000000,00000003\0", {0, 1, 64, 65}),
        ("FF", {*range(8)}),
    ],
)
def test_cpumask(text: str, cpus: set[int]) -> None:
    assert parse.cpumask(text) == cpus


@pytest.mark.parametrize("text", ["", "\n", "g", "-1", "1 1", "1,,1", ",1", "123456789", "0x", "0x1,0x1", "١", "0-3"])
def test_no_cpumask(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        parse.cpumask(text)


@given(st.frozensets(st.integers(0, 1023)))
def test_cpumask_round_trip(cpus: frozenset[int]) -> None:
    assert parse.cpumask(mask(cpus, 1024)) == cpus


PARSERS: list[Callable[[str], object]] = [
    parse.clean,
    parse.decimal,
    parse.count,
    parse.hexadecimal,
    parse.cpulist,
    parse.cpumask,
    parse.numbers,
    parse.link_speed,
    parse.link_width,
    parse.uevent,
    lambda text: parse.meminfo(text, "MemTotal"),
    parse.size,
]

_NEARLY = st.text("0123456789abcdefxX-,_ .:=\n\0KMGTkBs/GTPCIe٣²", max_size=40)


@pytest.mark.parametrize("parser", PARSERS)
@given(text=st.one_of(_NEARLY, st.text(max_size=60)))
def test_any_text_is_a_value_or_a_value_error(parser: Callable[[str], object], text: str) -> None:
    said = ""
    try:
        parser(text)
    except ValueError as error:
        said = str(error)
    assert len(said) < 200, "the sentence goes into a diagnostic"


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "text", ["9" * 65_536, "f," * 32_768, "0-9," * 16_000, "f" * 8 + ",ffffffff" * 2000, " 1" * 32_768, "A:" * 32_768]
)
def test_a_whole_file_of_nonsense_is_quick(parser: Callable[[str], object], text: str) -> None:
    """Recordings are untrusted, and a file has up to 64 KiB."""
    began = time.process_time()
    with suppress(ValueError):
        parser(text)
    assert time.process_time() - began < 2


def test_a_list_names_no_more_cpus_than_there_can_be() -> None:
    """64 KiB of "0-65535," name 500 million; the kernel names no CPU twice (lib/bitmap-str.c)."""
    with pytest.raises(ValueError, match="CPUs"):
        parse.cpulist(",".join(["0-65535"] * 3))


def test_a_list_of_four_billion_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="CPUs"):
        parse.cpulist("0-4294967295")
    with pytest.raises(ValueError, match="CPUs"):
        parse.cpumask("f" * 60_000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_many_lists_take_little_memory() -> None:
    """Each of a thousand files of a hostile recording may hold another list, of seven bytes."""
    tracemalloc.start()
    for last in range(65_000, 65_004):
        with suppress(ValueError):
            parse.cpulist(f"7-{last}")
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / 4 * 1024 < 1 << 30, "what the 1024 places of the cache may hold in all"


@pytest.mark.parametrize(
    ("text", "value"), [("-1\n", -1), ("128", 128), ("0\n\0", 0), ("268435456\n", 268435456), (" 7 ", 7), ("007", 7)]
)
def test_decimal(text: str, value: int) -> None:
    assert parse.decimal(text) == value


@pytest.mark.parametrize(
    "text", ["", "\n", "1_000", "١٢", "0x1", "1.0", "--1", "+1", "1 2", "Unknown", "(efault)", "1e3"]
)
def test_no_decimal(text: str) -> None:
    with pytest.raises(ValueError, match="no decimal"):
        parse.decimal(text)


def test_a_count_is_not_negative() -> None:
    assert parse.count("0\n") == 0
    with pytest.raises(ValueError, match="negative"):
        parse.count("-1")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0x15b3\n", 0x15B3), ("10DE", 0x10DE), ("60400", 0x060400), ("0x120000\n", 0x120000), ("101e", 0x101E)],
)  # traps 59 (uevent: no zeros in front), 85 (no 0x)
def test_hexadecimal(text: str, value: int) -> None:
    assert parse.hexadecimal(text, 24) == value


@pytest.mark.parametrize(
    "text", ["", "0x", "-1", "1_0", "g", "0x0x1", "١", "f" * 17]
)  # traps 24: int("-1", 16) succeeds
def test_no_hexadecimal(text: str) -> None:
    with pytest.raises(ValueError, match="no hexadecimal"):
        parse.hexadecimal(text)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("10 21\n", (10, 21)),
        (" 10 21\n", (10, 21)),  # traps 14: drivers/base/node.c before the first online node
        ("16 22 10 16 16 16 16 16\n\0", (16, 22, 10, 16, 16, 16, 16, 16)),  # traps 2
        ("255\n", (255,)),
        ("", ()),
    ],
)
def test_numbers(text: str, row: tuple[int, ...]) -> None:
    assert parse.numbers(text) == row


@pytest.mark.parametrize("text", ["10 -1", "10,21", "10 a", "10 1_0"])
def test_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"negative|no decimal"):
        parse.numbers(text)


@pytest.mark.parametrize(
    ("text", "gts"),
    [
        # drivers/pci/probe.c pci_speed_string, as of Linux 6.12
        ("2.5 GT/s PCIe\n", 2.5),
        ("5.0 GT/s PCIe\n", 5.0),
        ("8.0 GT/s PCIe\n", 8.0),
        ("16.0 GT/s PCIe\n", 16.0),
        ("32.0 GT/s PCIe\n", 32.0),
        ("64.0 GT/s PCIe\n", 64.0),
        # traps 64: Linux before 5.7
        ("2.5 GT/s", 2.5),
        ("5 GT/s", 5.0),
        ("8 GT/s", 8.0),
        ("16 GT/s", 16.0),
        # traps 63
        ("Unknown\n", None),
        ("Unknown speed\n", None),
    ],
)
def test_link_speed(text: str, gts: float | None) -> None:
    assert parse.link_speed(text) == gts


@pytest.mark.parametrize(
    "text", ["", "0 GT/s", "0.0 GT/s PCIe", "8", "8 Gb/s", "GT/s", "-8 GT/s", "8..0 GT/s", "nan GT/s", "inf GT/s"]
)
def test_no_link_speed(text: str) -> None:
    with pytest.raises(ValueError, match="no link speed"):
        parse.link_speed(text)


@pytest.mark.parametrize(
    ("text", "width"), [("16\n", 16), ("1", 1), ("12", 12), ("32", 32), ("0\n", None), ("63", None), ("255\n", None)]
)
def test_link_width(text: str, width: int | None) -> None:
    """Traps 63 (0 and 255: no link) and 70 (63: a lost device answers all ones)."""
    assert parse.link_width(text) == width


@pytest.mark.parametrize("text", ["3", "-1", "64", "x16", "", "Unknown"])
def test_no_link_width(text: str) -> None:
    with pytest.raises(ValueError, match=r"no link width|no decimal"):
        parse.link_width(text)


def test_uevent() -> None:
    """Traps 59: as the kernel prints it for an A100 with nothing bound, no leading zeros."""
    text = "PCI_CLASS=30200\nPCI_ID=10DE:20B0\nPCI_SUBSYS_ID=10DE:144E\nPCI_SLOT_NAME=0000:0f:00.0\nMODALIAS=pci:v=x\n"
    found = parse.uevent(text + "rubbish\n\0")
    assert found["PCI_CLASS"] == "30200"
    assert found["PCI_ID"] == "10DE:20B0"
    assert found["MODALIAS"] == "pci:v=x"
    assert "DRIVER" not in found
    assert "rubbish" not in found


def test_meminfo() -> None:
    # drivers/base/node.c node_read_meminfo
    text = "Node 1 MemTotal:       67108864 kB\nNode 1 MemFree:        12 kB\n"
    assert parse.meminfo(text, "MemTotal") == 64 * 2**30
    assert parse.meminfo(text, "MemFree") == 12 * 1024
    assert (
        parse.meminfo("MemTotal:              0 kB\n", "MemTotal") == 0
    )  # proc/meminfo; traps 7: a node without memory


@pytest.mark.parametrize(
    "text", ["", "Node 1 MemTotal: -1 kB", "Node 1 MemTotal: 1 MB", "Node 1 MemTotal:", "MemTotalX: 1 kB"]
)
def test_no_meminfo(text: str) -> None:
    with pytest.raises(ValueError, match="no line MemTotal"):
        parse.meminfo(text, "MemTotal")


@pytest.mark.parametrize(
    ("text", "size"), [("32K\n", 32 * 1024), ("1024K", 2**20), ("260M", 260 * 2**20), ("7", 7), ("2G", 2**31)]
)
def test_size(text: str, size: int) -> None:
    assert parse.size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1K", "1.5M", "1T", "32 K", "32k"])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse.size(text)
