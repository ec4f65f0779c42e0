"""Metric families as plain data -> the text that Prometheus scrapes. The only module that imports prometheus_client.

Text 0.0.4, or OpenMetrics 1.0.0 where the `Accept` header asks for it. Text 0.0.4 knows neither info nor stateset:
there both are gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, cast

from prometheus_client import exposition as text
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from topo_agent.host import Json

Form = Literal["text", "openmetrics"]

_TYPES: dict[Form, tuple[str, str]] = {
    "text": ("text/plain", "0.0.4"),
    "openmetrics": ("application/openmetrics-text", "1.0.0"),
}


class _Families(Collector):
    """What prometheus_client's writers take."""

    def __init__(self, families: Iterable[Json]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield _metric(cast("dict[str, Any]", family))


def exposition(families: Iterable[Json], accept: str = "") -> tuple[bytes, str]:
    """(body, content type) for views.metrics.families and an `Accept` header."""
    form = negotiate(accept)
    collector = _Families(families)
    write: Any = openmetrics.generate_latest if form == "openmetrics" else text.generate_latest
    media, version = _TYPES[form]
    return write(collector), f"{media}; version={version}; charset=utf-8"


def _metric(family: dict[str, Any]) -> Metric:
    name, said = family["name"], family["help"]
    samples = [(dict(labels), number) for labels, number in family["samples"]]
    labels = list(samples[0][0]) if samples else []
    if family["kind"] == "info":
        info = InfoMetricFamily(name, said)
        for told, _ in samples:
            info.add_metric([], told)
        return info
    if family["kind"] == "stateset":
        states = StateSetMetricFamily(name, said, labels=[label for label in labels if label != name])
        for told, number in samples:
            states.add_metric([value for label, value in told.items() if label != name], {told[name]: bool(number)})
        return states
    make = CounterMetricFamily if family["kind"] == "counter" else GaugeMetricFamily
    numbers = make(name, said, labels=labels, unit=family["unit"])
    for told, number in samples:
        numbers.add_metric([told[label] for label in labels], number)
    return numbers


def negotiate(accept: str) -> Form:
    """`"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"` -> `"openmetrics"`.

    Which of the two has the higher q; the most specific range that names it counts (RFC 9110, 12.5.1). Where they
    are equal it is OpenMetrics if its name was said, so that `*/*` is text. Where nothing fits it is text, too: a
    scraper can do more with that than with status 406.
    """
    ranges = [found for part in accept.split(",") if (found := _range(part)) is not None]
    wanted, named = _quality(ranges, "openmetrics")
    plain, _ = _quality(ranges, "text")
    return "openmetrics" if wanted > plain or (named and wanted == plain > 0) else "text"


Range = tuple[str, str, float]  # type, version ("" is any), q


def _range(part: str) -> Range | None:
    """`" text/plain; version=0.0.4;q=0.5"` -> `("text/plain", "0.0.4", 0.5)`; None for what is no media range."""
    media, *parameters = (word.strip().lower() for word in part.split(";"))
    said = {key.strip(): value.strip().strip('"') for key, _, value in (one.partition("=") for one in parameters)}
    try:
        quality = float(said.get("q", "1"))
    except ValueError:
        return None
    return (media, said.get("version", ""), quality) if "/" in media and 0 <= quality <= 1 else None


def _quality(ranges: Iterable[Range], form: Form) -> tuple[float, bool]:
    """(q of the most specific range that takes this form, whether that range names its type)."""
    media, version = _TYPES[form]
    found = [
        ((media == type_, bool(asked), type_ != "*/*"), quality)
        for type_, asked, quality in ranges
        if type_ in (media, f"{media.partition('/')[0]}/*", "*/*") and asked in ("", version)
    ]
    (named, _, _), quality = max(found, default=((False, False, False), 0.0))
    return quality, named
