"""Synthetic traces of pipeline-parallel jobs, and a slow simulator of them, event by event: what-if's oracle.

Nothing here is shared with `ranklake.insight.diagnosis`: an operation is a tuple (name, index, stage, dp_rank), and
what it waits for a list of such tuples.
"""

from collections import defaultdict
from statistics import median

import numpy as np
import pyarrow as pa

from ranklake.insight.diagnosis.spans import COLUMNS
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

OVER_DP = {"params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"}
COMPUTES = {"forward-compute", "backward-compute", "gc", "optimizer"}
ENDS = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)
PEERS = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
BASE_US = 1_700_000_000_000_000


def one_f_one_b(stage, stages, microbatches, depth=1):
    """Return (direction, chunk, microbatch) in the order of a stage: forwards to warm up, then one of each.

    With a `depth` above 1 stages begin more micro-batches than they must.
    """
    warm_up = min((stages - stage - 1) * depth, microbatches)
    order = [("forward", 0, at) for at in range(warm_up)]
    for at in range(microbatches - warm_up):
        order += [("forward", 0, warm_up + at), ("backward", 0, at)]
    return order + [("backward", 0, at) for at in range(microbatches - warm_up, microbatches)]


def interleaved(stage, stages, microbatches, chunks):
    """Return the interleaved order (Narayanan et al. 2021): several model chunks a stage."""
    total = microbatches * chunks

    def virtual(at, direction):
        chunk = at // stages % chunks
        microbatch = at // (stages * chunks) * stages + at % stages
        return direction, chunk if direction == "forward" else chunks - 1 - chunk, microbatch

    warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [virtual(at, "forward") for at in range(warm_up)]
    for at in range(total - warm_up):
        order += [virtual(warm_up + at, "forward"), virtual(at, "backward")]
    return order + [virtual(at, "backward") for at in range(total - warm_up, total)]


class Job:
    """The operations of a step and what they wait for, from the order of computes on each stage.

    Parameters
    ----------
    orders
        By stage: (direction, chunk, microbatch) in order.
    dp
        Data-parallel ranks.
    """

    def __init__(self, orders, dp):
        self.orders, self.dp, self.pp = orders, dp, len(orders)
        self.chunks = 1 + max(chunk for order in orders for _, chunk, _ in order)
        self.needs = defaultdict(list)
        self.groups = []
        self.facts = {}
        for stage in range(self.pp):
            for dp_rank in range(dp):
                self._rank(stage, dp_rank)
        self._meet()

    def has_peer(self, name, stage, chunk):
        """Say whether a send or receive is with another chunk, not at the model's end."""
        hop = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}[name]
        return 0 <= chunk * self.pp + stage + hop < self.chunks * self.pp

    def _add(self, name, index, stage, dp_rank, needs, **facts):
        op = (name, index, stage, dp_rank)
        self.needs[op] += [one for one in needs if one is not None]
        self.facts[op] = facts
        return op

    def _rank(self, stage, dp_rank):
        gather = None
        for chunk in range(self.chunks if self.dp > 1 else 0):
            gather = self._add("params-all-gather", chunk, stage, dp_rank, [gather], chunk=chunk)
        last = self._computes(stage, dp_rank)
        for name in ENDS:
            if name == "embedding-grads-all-reduce" and stage not in {0, self.pp - 1}:
                continue
            if name == "grads-reduce-scatter" and self.dp == 1:
                continue
            also = gather if name == "grads-reduce-scatter" else None
            last = self._add(name, 0, stage, dp_rank, [last, also], chunk=0)

    def _computes(self, stage, dp_rank):
        counts, last, same, comms, gathered = defaultdict(int), None, {}, {}, set()
        directions = [direction for direction, _, _ in self.orders[stage]]
        first = directions.index("backward")
        for direction, chunk, microbatch in self.orders[stage]:
            index = counts[direction]
            counts[direction] += 1
            early = [("forward-compute", first - 2, stage, dp_rank)]
            early = early if direction == "backward" and index == 0 and first > 1 else []
            recv, send = f"{direction}-recv", f"{direction}-send"
            needs = [last]
            if self.chunks > 1 or self.has_peer(recv, stage, chunk):
                waits = [comms.get(recv), same.get(direction), *early]
                comms[recv] = self._add(recv, index, stage, dp_rank, waits, peer=self.has_peer(recv, stage, chunk))
                needs.append(comms[recv])
            if direction == "forward" and chunk not in gathered and self.dp > 1:
                gathered.add(chunk)
                needs.append(("params-all-gather", chunk, stage, dp_rank))
            last = same[direction] = self._add(
                f"{direction}-compute", index, stage, dp_rank, needs, chunk=chunk, microbatch=microbatch
            )
            if self.chunks > 1 or self.has_peer(send, stage, chunk):
                waits = [comms.get(send), last, *early]
                comms[send] = self._add(send, index, stage, dp_rank, waits, peer=self.has_peer(send, stage, chunk))
        return last

    def _meet(self):
        grouped = set()
        for dp_rank in range(self.dp):
            for send, (recv, hop) in PEERS.items():
                for stage in range(self.pp):
                    other = (stage + hop) % self.pp
                    sends = [op for op in self._named(send, stage, dp_rank) if self.facts[op]["peer"]]
                    recvs = [op for op in self._named(recv, other, dp_rank) if self.facts[op]["peer"]]
                    self.groups += [{one, two} for one, two in zip(sends, recvs, strict=True)]
            embedding = {op for op in self.needs if op[0] == "embedding-grads-all-reduce" and op[3] == dp_rank}
            self.groups.append(embedding)
        for stage in range(self.pp):
            for name in ("params-all-gather", "grads-reduce-scatter"):
                for index in {op[1] for op in self.needs if op[0] == name and op[2] == stage}:
                    self.groups.append({(name, index, stage, dp_rank) for dp_rank in range(self.dp)})
        self.groups.append({op for op in self.needs if op[0] == "optimizer-clip-main-grad"})
        for group in self.groups:
            grouped |= group
        self.groups += [{op} for op in self.needs if op not in grouped]
        self.group_of = {op: group for group in self.groups for op in group}

    def _named(self, name, stage, dp_rank):
        return sorted(op for op in self.needs if (op[0], op[2], op[3]) == (name, stage, dp_rank))

    def simulate(self, lengths, delays=None):
        """Return starts and ends by operation: one at a time, whichever is ready."""
        starts, ends = {}, {}
        while len(ends) < len(self.needs):
            before = len(starts) + len(ends)
            for op, needs in self.needs.items():
                if op not in starts and all(one in ends for one in needs):
                    ready = max((ends[one] for one in needs), default=0.0)
                    starts[op] = ready + (delays[op] if delays else 0.0)
                group = self.group_of[op]
                if op in starts and op not in ends and all(one in starts for one in group):
                    for one in group:
                        ends[one] = max(starts[two] for two in group) + lengths[one]
            assert len(starts) + len(ends) > before, "they wait for each other"
        return starts, ends

    def step_time(self, lengths):
        """Return when the last optimizer has ended."""
        _, ends = self.simulate(lengths)
        return max(end for op, end in ends.items() if op[0] == "optimizer")


def job(dp, pp, microbatches, chunks=1, depth=1):
    """Return a job in 1F1B order, interleaved if there are several chunks."""
    if chunks == 1:
        return Job([one_f_one_b(stage, pp, microbatches, depth) for stage in range(pp)], dp)
    return Job([interleaved(stage, pp, microbatches, chunks) for stage in range(pp)], dp)


def record(of, steps, draw_us, delay_us=lambda: 0):
    """Return by step what a job recorded: starts and durations, whole microseconds, by operation.

    Parameters
    ----------
    draw_us
        Called with an operation and a step for its own length.
    delay_us
        Called for each launch delay.
    """
    recorded = []
    for step in range(steps):
        lengths = {op: draw_us(op, step) for op in of.needs}
        starts, ends = of.simulate(lengths, {op: delay_us() for op in of.needs})
        recorded.append(({op: int(at) for op, at in starts.items()}, {op: int(ends[op] - starts[op]) for op in starts}))
    return recorded


def spans_of(of, recorded, rng=None):
    """Return rows of `COLUMNS` in random order."""
    facts = [
        {
            "rank": op[3] + of.dp * op[2],
            "ts": BASE_US + number * 100_000_000 + starts[op],
            "name": op[0],
            "kind": "phase" if op[0] in COMPUTES else "collective",
            "step": number + 10,
            "duration_ns": durations[op] * 1000,
            "microbatch": of.facts[op].get("microbatch"),
            "dp_rank": op[3],
            "pp_rank": op[2],
            "model_chunk": of.facts[op].get("chunk"),
        }
        for number, (starts, durations) in enumerate(recorded)
        for op in starts
    ]
    order = np.arange(len(facts)) if rng is None else rng.permutation(len(facts))
    schema = arrow_schema(contract("spans"))
    full = [{"incarnation": 1, "segment": 0, "slot": slot, **facts[at]} for slot, at in enumerate(order.tolist())]
    rows = [{name: row.get(name) for name in COLUMNS} for row in full]
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in COLUMNS]))


class Oracle:
    """The analysis of what a job recorded, in plain Python."""

    def __init__(self, of, recorded):
        self.of = of
        self.own = [self._own(*one) for one in recorded]
        by_name = defaultdict(list)
        for lengths in self.own:
            for op, length in lengths.items():
                by_name[op[0]].append(length)
        self.ideal = {
            name: sum(found) / len(found) if name in COMPUTES else float(median(found))
            for name, found in by_name.items()
        }
        self.ideal_time = of.step_time({op: self.ideal[op[0]] for op in of.needs})
        self.no_delay = self.times(lambda op: True)

    def _own(self, starts, durations):
        lengths = {}
        for op, duration in durations.items():
            group = self.of.group_of[op]
            meets = len(group) > 1 or op[0] in OVER_DP
            latest = max(starts[one] for one in group) if meets else starts[op]
            lengths[op] = max(starts[op] + duration - latest, 0) * 1000.0
        return lengths

    def times(self, keeps):
        """Return step times where the operations that `keeps` says keep their own lengths."""
        return [
            self.of.step_time({op: lengths[op] if keeps(op) else self.ideal[op[0]] for op in self.of.needs})
            for lengths in self.own
        ]

    def slowdown(self, keeps):
        """Return the mean of `times` over the ideal."""
        return mean(self.times(keeps)) / self.ideal_time

    def share(self, ideal):
        """Return M of the operations that `ideal` says."""
        lost = mean(self.no_delay) - self.ideal_time
        return (mean(self.no_delay) - mean(self.times(lambda op: not ideal(op)))) / lost if lost else None


def mean(values):
    return sum(values) / len(values)


def part(name):
    """Return what slowdowns of an operation are told under."""
    return f"{name.partition('-')[0]}-pp-comm" if name.endswith(("-send", "-recv")) else name
