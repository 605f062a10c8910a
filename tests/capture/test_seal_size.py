"""How many bytes of object storage an event takes, on what a real training records."""

import itertools
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded import read_segment

from ranklake import capture
from ranklake.capture.sealing.segment_bytes import parquet_bytes
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.load import contract
from ranklake.segments.segment import IDENTITY

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

STEPS = 300
VALUES = 20
MOST_BYTES = 6.0


def train(run, log):
    """Train the demo's model, made smaller, on the demo's text for `STEPS` steps; log twenty real values in each."""
    from ranklake.demo.train import Shape, SmallGpt, corpus

    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(3)
    shape = Shape(context=16, layers=2, heads=2, width=24)
    model, text = SmallGpt(shape), corpus()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watched = dict(itertools.islice(((n, p) for n, p in model.named_parameters() if p.dim() > 1), (VALUES - 2) // 2))
    for number in range(STEPS):
        with run.step(number, tokens=8 * shape.context):
            starts = torch.randint(len(text) - shape.context - 1, (8,), generator=generator).tolist()
            window = torch.stack([text[start : start + shape.context + 1] for start in starts])
            loss = model(window[:, :-1], window[:, 1:])
            loss.backward()
            values = {f"grad_norm/{name}": parameter.grad.norm().item() for name, parameter in watched.items()}
            values |= {f"weight_norm/{name}": parameter.detach().norm().item() for name, parameter in watched.items()}
            values |= {"train/perplexity": loss.exp().item(), "train/logit_scale": model.norm.weight.norm().item()}
            optimizer.step()
            optimizer.zero_grad()
            assert len(values) == VALUES
            log(run, number, values)


def by_mapping(run, number, values):
    """Log all at one moment."""
    run.log(values, step=number)


def by_handles(run, number, values):
    """Log each at its own moment."""
    for name, value in values.items():
        run.scalar(name).add(value, number)


@pytest.fixture(scope="module", params=[by_mapping, by_handles])
def segment(request, tmp_path_factory):
    """Give the one segment of scalars of a real run, logged in either way: a file's path."""
    folder = tmp_path_factory.mktemp("size")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more get in each other's way in so small a model
    with capture.start(run="size", spool=folder / "spool", local_dir=folder / "local", seal_every_s=3600) as run:
        train(run, request.param)
    torch.set_num_threads(threads)
    (path,) = folder.glob("spool/segments/*/scalars/*.parquet")
    return path


def tell(request, capsys, size, rows):
    """Print what was measured."""
    with capsys.disabled():
        print(f"\n  {request.node.name}: {size:,} bytes / {rows:,} rows = {size / rows:.2f} bytes a scalar")


def timed(rows, *, repeat):
    """Return rows with the times of a machine at rest: a step a second, and values 3 to 8 us apart or at one moment.

    A busy machine's own times are less even, and take more bytes.
    """
    rng = random.Random(5)
    starts = {step: 1_700_000_000_000_000 + step * 1_000_000 + rng.randint(0, 20_000) for step in range(STEPS)}
    times = []
    for step in rows["step"].to_pylist():
        times.append(starts[step])
        starts[step] += 0 if repeat else rng.randint(3, 8)
    ts = pa.array(times, pa.timestamp("us", "UTC")).cast(rows.schema.field("ts").type)
    return rows.set_column(rows.schema.get_field_index("ts"), rows.schema.field("ts"), ts)


def test_a_scalar_takes_at_most_six_bytes(segment, request, capsys):
    """All bytes of the segment, footer and all, over its rows: 6,000, which is a minute of five steps a second."""
    rows, size = pq.read_metadata(segment).num_rows, segment.stat().st_size
    assert rows == STEPS * VALUES
    tell(request, capsys, size, rows)
    assert size / rows <= MOST_BYTES


@pytest.mark.parametrize(("steps", "most"), [(60, 6.8), (12, 16.0)])
def test_small_segments_cost_little_more(segment, steps, most, request, capsys):
    """A minute of one step a second, and of one in five seconds: what does not grow with the rows is about 2 kB."""
    footer, whole = read_segment(segment.read_bytes())
    every = conform(whole, contract("scalars"), segment=True).drop_columns(list(IDENTITY))
    some = every.filter(pa.compute.less(every["step"], steps))
    assert some.num_rows == steps * VALUES
    repeat = len(every["ts"].unique()) < every.num_rows / 2
    some = timed(some, repeat=repeat)
    size = len(parquet_bytes(some, footer, times_repeat=repeat))
    tell(request, capsys, size, some.num_rows)
    assert size / some.num_rows <= most


def test_columns_that_say_nothing_are_left_out(segment):
    """What is NULL throughout, and what the name says, is not there; what else is required is, in file or footer."""
    names = set(pq.ParquetFile(pa.BufferReader(segment.read_bytes())).schema_arrow.names)
    names.update(*read_segment(segment.read_bytes())[0].constants.values())
    required = {field.name for field in arrow_schema(contract("scalars")) if not field.nullable}
    assert required - {*IDENTITY, "date", "ingest_plan"} <= names
    assert names.isdisjoint({*IDENTITY, "agg_count", "agg_mean", "value_flag", "weight"})
    assert {"metric", "step", "value"} <= names
