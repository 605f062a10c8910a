"""Run info: who a run is, what people say of it, and how it shows itself."""

from typing import TYPE_CHECKING

from ranklake.capture.provenance.annotations import Summary, Tags
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.training.parts import RowParts
from ranklake.segments.segment import readable_name

if TYPE_CHECKING:
    from ranklake.capture.training.recording import Recording


class RunInfo:
    """What can be read of a run. `ranklake.capture.training.run.Run` adds what can be recorded.

    Attributes
    ----------
    launch
        Who this process is, as far as it is known.
    rows
        The parts that every run has.
    recording
        None for a run that records nothing.
    """

    launch: Launch
    rows: RowParts
    recording: "Recording | None"

    @property
    def name(self) -> str:
        """The run's name, the same on all ranks."""
        return self.launch.run

    @property
    def readable_name(self) -> str:
        """A name for people, made of `name`, such as ``brisk-otter-417``; `rename` gives another."""
        return readable_name(self.launch.run)

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Ranks in the run."""
        return self.launch.world_size

    @property
    def attempt(self) -> int:
        """Restart number of the run."""
        return self.launch.attempt

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self.rows.sink.enabled

    def gaps(self) -> dict[str, dict[str, int]]:
        """Return what this process could not record so far: rows by table and reason."""
        counts: dict[str, dict[str, int]] = {}
        for (table, reason), rows in sorted(self.rows.sink.gaps.totals().items()):
            counts.setdefault(table, {})[reason] = rows
        return counts

    def rename(self, name: object) -> None:
        """Give the run a name for people, beside the one by which rows are kept; the last one counts.

        Call it on one rank.
        """
        self.rows.annotations.add("name", value=name)

    @property
    def tags(self) -> Tags:
        """The run's tags: ``run.tags.add("baseline", stage="ablation")``, ``run.tags.remove("baseline")``.

        Call it on one rank; `ranklake runs --tag` finds them. Tags of artifacts are `tag`'s.
        """
        return self.rows.annotations.tags

    def note(self, text: object) -> None:
        """Add a note, free text of up to 8,192 characters, redacted as log lines are. Call it on one rank."""
        self.rows.annotations.add("note", value=text)

    @property
    def summary(self) -> Summary:
        """Summary of the run: ``run.summary["best_loss"] = 1.93``. Numbers or texts; set them on one rank."""
        return self.rows.annotations.summary

    def __dir__(self) -> list[str]:
        """Return what a training script may call, without the parts that the run is made of."""
        return sorted(name for name in dir(type(self)) if not name.startswith("_"))

    @property
    def _state(self) -> str:
        if self.recording is None:
            return "records nothing"
        return "closed" if self.rows.sink.is_closed else "records"

    def __repr__(self) -> str:
        where = f"attempt {self.attempt}, rank {self.rank} of {self.world_size}"
        return f"<run {self.name} ({self.readable_name}), {where}: {self._state}>"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with what is missing. Names of runs and tables hold no markup."""
        missing = ", ".join(f"{sum(rows.values()):,} of {table}" for table, rows in self.gaps().items())
        facts = {
            "run": f"{self.name} ({self.readable_name})",
            "attempt, rank": f"{self.attempt}, {self.rank} of {self.world_size}",
            "state": self._state,
            "rows that could not be recorded": missing or "none",
            "look at it": f"ranklake show {self.name}",
        }
        body = "".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
        return f"<table>{body}</table>"
