"""``make published``: every published figure from import to rollup, beside what the software gives.

Exit 1 if a figure is out of its tolerance, if one that is wrong as published matches all the same, or if one could not
be computed that is not known for it.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
from published_data import DATA
from published_figures import Figure, figures

from ranklake.lake.store.lake import Lake

WITHIN, OUT, INCONSISTENT, NOT_COMPUTED, FAILED = (
    "within", "OUT OF TOLERANCE", "inconsistent as published", "not computed", "NOT COMPUTED",
)  # fmt: skip


class Numbers:
    """What the functions of `published_lakes` give, each run once in a lake and a spool of its own below a folder."""

    def __init__(self, data, place):
        self._data, self._place, self._known = data, Path(place), {}

    def of(self, function):
        """Return the numbers, or the error that came instead."""
        if function not in self._known:
            folder = self._place / function.__name__
            folder.mkdir()
            try:
                lake = Lake.create(str(folder / "lake"))
                self._known[function] = function(self._data, lake, folder / "spool")
            except Exception as error:  # noqa: BLE001 - whatever it is, the figure stands there with it
                self._known[function] = error
        return self._known[function]


def computed(figure: Figure, numbers: Numbers) -> float | Exception | None:
    """Return the software's figure, None if it is known to give none, or what went wrong."""
    if figure.unknown:
        return None
    try:
        if figure.compute is not None:
            return float(figure.compute())
        found = numbers.of(figure.of)
        return found if isinstance(found, Exception) else float(found[figure.key])
    except Exception as error:  # noqa: BLE001 - likewise
        return error


def verdict(figure: Figure, found: float | Exception | None) -> tuple[str, str]:
    """Return the verdict, and what there is to say of it."""
    if found is None:
        return NOT_COMPUTED, figure.unknown
    if isinstance(found, Exception):
        return FAILED, f"{type(found).__name__}: {found}".splitlines()[0]
    allowed = figure.tolerance * (abs(figure.published) if figure.relative else 1)
    # What a double leaves of decimals is no deviation.
    matches = abs(found - figure.published) <= allowed + 1e-12 * abs(figure.published)
    if figure.inconsistent:
        return (OUT, "matches, and is wrong as published") if matches else (INCONSISTENT, figure.inconsistent)
    return (WITHIN, "") if matches else (OUT, "")


def number(value: float) -> str:
    """Return a number as people read it."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.7g}"


def line(figure: Figure, found: float | Exception | None, said: str, why: str) -> str:
    """Return a figure's line of the table."""
    tolerance = number(figure.tolerance * (100 if figure.relative else 1)) + (" %" if figure.relative else "")
    tolerance = "exact" if figure.tolerance == 0 else tolerance
    ours = number(found) if isinstance(found, (int, float)) else "-"
    name = f"{figure.group} | {figure.name}"
    told = f"{said}: {why}" if why else said
    return f"{name} | {number(figure.published)} | {ours} | {tolerance} | {told} | {figure.source}"


def summary(counted: dict[str, Counter]) -> list[str]:
    """Return a line a group, and their sum, as a table of Markdown."""
    verdicts = (WITHIN, INCONSISTENT, NOT_COMPUTED, OUT, FAILED)
    names = (*verdicts[:-1], "failed")
    lines = [" | ".join(["| figures of", "", *names]) + " |", "|---|" + "---:|" * (len(names) + 1)]
    total = sum(counted.values(), Counter())
    for group, counter in [*counted.items(), ("**all**", total)]:
        numbers = [counter.total(), *(counter[one] for one in verdicts)]
        lines.append(f"| {group} | " + " | ".join(str(one) for one in numbers) + " |")
    lines[0] = lines[0].replace("figures of |  |", "figures of | figures |")
    return lines


@click.command()
@click.option("--only", default="", metavar="TEXT", help="Figures whose group begins with this.")
def main(only: str) -> None:
    """Print the table and its summary."""
    if not DATA.is_dir():
        click.echo(f"the published data is not there: {DATA}; set RANKLAKE_PUBLISHED_DATA")
        return
    sys.exit(not report(figures(DATA), only))


def report(listed, only="") -> bool:
    """Print the table of figures; return whether all are as they must be."""
    counted: dict[str, Counter] = {}
    print("group | figure | published | computed | tolerance | verdict | source")
    with tempfile.TemporaryDirectory() as place:
        numbers = Numbers(DATA, place)
        for figure in listed:
            if figure.group.startswith(only):
                found = computed(figure, numbers)
                said, why = verdict(figure, found)
                counted.setdefault(figure.group, Counter())[said] += 1
                print(line(figure, found, said, why), flush=True)
    print("", *summary(counted), sep="\n")
    return not any(counter[OUT] or counter[FAILED] for counter in counted.values())


if __name__ == "__main__":
    main()
