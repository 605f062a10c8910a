"""Megatron's standard output: iterations are found however other ranks' output cut them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported

from ranklake.lake.store import Lake

LINE = (
    " iteration {n:8d}/    1000 | consumed samples: {n:12d} | elapsed time per iteration (ms): 1500.0 | "
    "learning rate: 1.875E-05 | global batch size:  1024 | lm loss: {loss} | loss scale: 12.0 | grad norm: 67.593 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEMORY = (
    "[Rank 43] (after 1 iterations) memory (MB) | allocated: 100.5 | max allocated: 200.0 | reserved: 1.0 | "
    "max reserved: 300.0"
)
TIMERS = "time (ms) | forward-compute: 500.25 | backward-compute: 800.00 | optimizer: 58.73 | batch-generator: 184.79"


def line(n, loss="1.244238E+01"):
    return LINE.format(n=n, loss=loss)


def run(lake, spool, file, text):
    file.write_text(text)
    return imported(lake, spool, "megatron", file, run="r")


def test_steps_scalars_and_memory(lake, spool, tmp_path):
    """An iteration is a step with its loss, phases and times; other figures are scalars under their ranks."""
    head = (
        "using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 8 \n"
    )
    text = (
        head + "[before the start of training step] datetime: 2021-06-10 23:06:14 \n  hidden_size ............ 8192\n"
    )
    text += "\n".join(
        [
            line(1),
            TIMERS,
            MEMORY,
            line(2, "nan"),
            " validation loss at iteration 2 | lm loss value: 5.0E+00 | lm loss PPL: 1.5E+02 | ",
        ]
    )
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.refused) == (2, {})
    first, second = ask(lake, "SELECT * FROM steps ORDER BY step")
    assert (round(first["loss"], 4), round(first["forward_time_s"], 5), first["step_time_s"]) == (12.4424, 0.50025, 1.5)
    assert (second["loss"], second["non_finite"], str(second["ts"])) == (
        None,
        "loss:nan",
        "2021-06-10 23:06:15.500000+00:00",
    )
    memory = ask(lake, "SELECT rank, step, value FROM scalars WHERE metric = 'device/memory_allocated'")
    assert memory == [{"rank": 43, "step": 1, "value": 200.0 * 2**20}]
    assert ask(lake, "SELECT step, value FROM scalars WHERE metric = 'eval/loss'") == [{"step": 2, "value": 5.0}]
    assert ask(lake, "SELECT world_size w, pp_size p FROM runs") == [{"w": 64, "p": 8}]


def test_a_line_in_two_halves(lake, spool, tmp_path):
    """What another rank wrote into an iteration's line is taken out, and its halves are joined."""
    whole = line(5)
    text = f"[x] datetime: 2021-06-10 23:06:14\n{whole[:70]}{MEMORY}\nsome warning\n{whole[70:]}\n{line(6)}{MEMORY}\n"
    done = run(lake, spool, tmp_path / "log", text)
    assert done.refused == {}
    assert [row["step"] for row in ask(lake, "SELECT step FROM steps ORDER BY step")] == [5, 6]
    assert ask(lake, "SELECT count(*) n FROM scalars WHERE rank = 43") == [{"n": 4}]


def test_what_is_lost_is_counted(lake, spool, tmp_path):
    """An iteration whose other half never comes is in quarantine."""
    text = "[x] datetime: 2021-06-10 23:06:14\n" + line(1) + "\n" + line(2)[:60] + "\n" + line(3) + "\n"
    done = run(lake, spool, tmp_path / "log", text)
    assert (done.rows["steps"], done.refused) == (2, {"an iteration that other output cut off": 1})


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 330), st.sampled_from(["", "\n", MEMORY, "NCCL", "\n| x |\n"])), max_size=12))
def test_cut_anywhere(tmp_path_factory, cuts):
    """However lines are cut, each iteration is a step or refused, and no step is made up."""
    place = tmp_path_factory.mktemp("log")
    text = "[x] datetime: 2021-06-10 23:06:14\n"
    for number, (at, noise) in enumerate(cuts, 1):
        whole = line(number)
        text += whole[:at] + noise + whole[at:] + "\n"
    lake = Lake.create(str(place / "lake"))
    run(lake, place / "spool", place / "log", text + line(99) + "\n")
    steps = [row["step"] for row in ask(lake, "SELECT step FROM steps")]
    assert 99 in steps
    assert len(steps) == len(set(steps))
