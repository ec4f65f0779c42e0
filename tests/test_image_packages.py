"""The lock of the image's Debian packages, against what an apt that is not there offers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from container import base, image, install, packages
from making.apt import Apt, Offered
from making.programs import Failed

A, B, C = "a" * 64, "b" * 64, "c" * 64
OFFERED = {"libc6": ("2.36-9+deb12u13", A), "zlib1g": ("1:1.2.13.dfsg-1", B)}
LOCK = f"# debian bookworm\nlibc6 2.36-9+deb12u13 {A}\nzlib1g 1:1.2.13.dfsg-1 {B}\n"

Offer = Callable[[Mapping[str, tuple[str, str]]], None]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the locks; this machine is Debian 12."""
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    release = {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    for architecture in install.MACHINES:
        (tmp_path / f"packages.{architecture}.lock").write_text(LOCK, encoding="utf-8")
    return tmp_path


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """`offer({name: (version, SHA-256)})`: what apt-get prints, one that can do nothing else."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def prepare(found: Mapping[str, tuple[str, str]]) -> None:
        lines = ["Reading package lists..."]
        for name, (version, sha256) in found.items():
            digest = f" SHA256:{sha256}" if sha256 else " "
            lines.append(f"'http://x/{name}.deb' {name}_{version.replace(':', '%3a')}_amd64.deb 1234{digest}")
        (programs / "answer").write_text("\n".join(lines) + "\n", encoding="utf-8")
        apt = programs / "apt-get"
        apt.write_text(
            f'#!/bin/sh\ncase "$*" in\n*--print-uris*) while read -r one; do echo "$one"; done <{programs}/answer ;;\n'
            "*update) ;;\n*) exit 100 ;;\nesac\n",
            encoding="utf-8",
        )
        apt.chmod(0o755)

    prepare(OFFERED)
    return prepare


def check(found: Mapping[str, tuple[str, str]], *, as_offered: bool = False) -> str:
    offered = [Offered(f"{name}_{version.replace(':', '%3a')}_all.deb", sha) for name, (version, sha) in found.items()]
    return packages.check("amd64", offered, as_offered=as_offered)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """`make image` with these words, on a machine that has the Python it wants and every wheel."""
    monkeypatch.setattr(sys, "argv", ["image", *words])
    monkeypatch.setattr(image, "same_python", lambda _: None)
    image.main()


def test_what_apt_prints_is_understood(offer: Offer, tmp_path: Path) -> None:
    offered = Apt("amd64", tmp_path / "apt").offered(["libc6"])
    assert {one.name: (one.version, one.sha256) for one in offered} == OFFERED
    offer({"libc6": ("1", "")})
    with pytest.raises(Failed, match=r"^apt's lists have no SHA-256 of libc6_1_amd64\.deb$"):
        Apt("amd64", tmp_path / "again").offered(["libc6"])


def test_what_is_pinned_is_taken() -> None:
    assert check(OFFERED) == ""
    assert check(OFFERED, as_offered=True) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {**OFFERED, "zlib1g": ("1:1.3-1", C)},
            "zlib1g 1:1.2.13.dfsg-1 is pinned, and apt offers 1:1.3-1",
        ),
        ({**OFFERED, "libnew": ("7", C)}, "libnew is not pinned, and apt offers 7"),
        ({"libc6": OFFERED["libc6"]}, "zlib1g 1:1.2.13.dfsg-1 is pinned, and nothing needs it"),
    ],
)  # fmt: skip
def test_another_version_fails_unless_asked_for(found: Mapping[str, tuple[str, str]], said: str) -> None:
    hint = "make image ARGS=--update pins what apt offers, make image ARGS=--as-offered takes it this time"
    with pytest.raises(Failed) as raised:
        check(found)
    assert str(raised.value) == f"container/packages.amd64.lock: {said}; {hint}"
    assert check(found, as_offered=True) == f"1 package differs from container/packages.amd64.lock: {said}"


def test_all_that_differ_are_counted_or_named() -> None:
    found = {"libc6": ("2.37", C), "libnew": ("7", C)}
    with pytest.raises(Failed, match=r"lock: libc6 2\.36-9\+deb12u13 is pinned, .* 2\.37 \(and 2 more differ\); "):
        check(found)
    said = check(found, as_offered=True)
    assert said.startswith("3 packages differ from container/packages.amd64.lock: libc6 ")
    assert "libnew is not pinned" in said
    assert "zlib1g 1:1.2.13.dfsg-1 is pinned, and nothing needs it" in said


@pytest.mark.parametrize("as_offered", [False, True])
def test_another_content_of_a_version_is_never_taken(*, as_offered: bool) -> None:
    with pytest.raises(Failed) as raised:
        check({**OFFERED, "libc6": (OFFERED["libc6"][0], C)}, as_offered=as_offered)
    said = f"container/packages.amd64.lock: libc6 2.36-9+deb12u13 is pinned with SHA-256 {A}, and apt offers another"
    assert str(raised.value) == f"{said} content of that version, {C}"


def test_a_lock_of_another_release_pins_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions are not to be had; that is said."""
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_ID": "24.04"})
    said = "container/packages.amd64.lock is of debian bookworm, and this is ubuntu 24.04: what apt offers is taken"
    assert check({"libc6": ("9", C)}) == said


def test_a_lock_that_is_no_text(folder: Path) -> None:
    (folder / "packages.amd64.lock").write_bytes(b"# debian bookworm\n\xff\n")
    with pytest.raises(Failed, match=r"lock:2: .*NAME VERSION SHA256 was expected$"):
        packages.read("amd64")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: '', and a release such as '# debian bookworm' was expected"),
        ("libc6 1\n", "1: 'libc6 1', and a release such as '# debian bookworm' was expected"),
        ("# debian bookworm\nlibc6 1\n", "2: 'libc6 1', and NAME VERSION SHA256 was expected"),
        (f"{LOCK}libc6 2 {C}\n", "4: libc6 is pinned above, and one line for each package was expected"),
        (f"{LOCK}libx 2 {C[1:]}\n", f"4: 'libx 2 {C[1:]}', and NAME VERSION SHA256 was expected"),
    ],
)
def test_a_damaged_lock_is_named_with_its_line(folder: Path, text: str, said: str) -> None:
    (folder / "packages.amd64.lock").write_text(text, encoding="utf-8")
    with pytest.raises(Failed) as raised:
        packages.read("amd64")
    assert str(raised.value) == f"container/packages.amd64.lock:{said}"


def test_no_lock(folder: Path) -> None:
    (folder / "packages.amd64.lock").unlink()
    with pytest.raises(Failed, match=r"^container/packages\.amd64\.lock: not there; make image ARGS=--update writes"):
        check(OFFERED)


def test_make_image_fails_in_one_line(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is fetched or built."""
    offer({**OFFERED, "libc6": ("2.37", C)})
    with pytest.raises(SystemExit) as raised:
        run(monkeypatch, "-o", str(tmp_path / "dist"))
    said = str(raised.value)
    assert said.startswith(f"image: container/packages.{install.own_architecture()}.lock: libc6 2.36-9+deb12u13 is")
    assert "\n" not in said
    assert not (tmp_path / "dist").exists()


def test_as_offered_goes_on_and_says_so(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer({**OFFERED, "libc6": ("2.37", C)})
    with pytest.raises(SystemExit, match="apt-get install"):  # to fetch them: this apt does not
        run(monkeypatch, "--as-offered")
    own = install.own_architecture()
    assert capsys.readouterr().err.startswith(f"image: 1 package differs from container/packages.{own}.lock: libc6 ")


def test_an_update_pins_what_apt_offers(
    offer: Offer, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer({"zlib1g": OFFERED["zlib1g"], "libc6": ("2.37", C)})
    run(monkeypatch, "--update")
    locks = [folder / f"packages.{architecture}.lock" for architecture in install.MACHINES]
    assert capsys.readouterr().out.split() == [*map(str, locks)]
    expected = f"# debian bookworm\nlibc6 2.37 {C}\nzlib1g 1:1.2.13.dfsg-1 {B}\n"
    assert [one.read_text(encoding="utf-8") for one in locks] == [expected, expected]
    assert check({"zlib1g": OFFERED["zlib1g"], "libc6": ("2.37", C)}) == ""


@pytest.mark.parametrize("architecture", install.MACHINES)
def test_the_locks_pin_what_the_image_is_made_of(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "FOLDER", Path(packages.__file__).parent)
    pinned = packages.read(architecture).packages
    assert {*base.RUNTIME, *base.BUILD} <= pinned.keys()
    assert {*base.NOT_NEEDED} <= pinned.keys()
