"""The names that a description uses for functions -> those functions."""

from __future__ import annotations

from topo_agent.synthesis.expand import near
from topo_agent.synthesis.fields import Place
from topo_agent.synthesis.layout import Layout, Placed


def named(layout: Layout, name: str, place: Place, kind: str = "gpu") -> Placed:
    """The function of a name or an address; Wrong where there is none, or it is of another kind."""
    found = layout.names.get(name) or layout.places.get(name)
    if found is None:
        raise place.wrong(f"there is no function {name!r}{near(name, layout.names)}")
    if kind and (found.spec.kind != kind or found.physfn is not None):
        raise place.wrong(f"{name} is no {kind}")
    return found


def ordered(layout: Layout, driver: str, order: tuple[str, ...], place: Place) -> list[Placed]:
    """The GPUs that a driver has, in the order in which it counts them; in bus order where nothing is said."""
    every = [one for one in layout.of("gpu") if one.spec.part.driver == driver]
    given = [named(layout, name, place) for name in order]
    if order and sorted(map(id, given)) != sorted(map(id, every)):
        raise place.wrong(f"order: expected each of the {len(every)} GPUs of {driver} once")
    return given or every
