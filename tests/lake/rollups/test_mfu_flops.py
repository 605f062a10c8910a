"""FLOPs per token and the ratio made of them."""

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ranklake import cli
from ranklake.commands.mfu import mfu
from ranklake.errors import RanklakeError
from ranklake.lake.rollups.flops import (
    CONVENTIONS,
    RECOMPUTE,
    FlopsError,
    GivenPeak,
    Model,
    convention,
    token_flops,
    utilization,
)

GPT3 = Model(params=175e9, layers=96, d_model=12288, seq_len=2048, vocab=51200)
shapes = st.builds(
    Model,
    params=st.floats(1e6, 1e12),
    layers=st.integers(1, 200),
    d_model=st.integers(64, 30000),
    seq_len=st.integers(128, 200_000),
    vocab=st.integers(1000, 300_000),
    flops_per_token=st.floats(1e6, 1e13),
)


def test_matrix_products_are_counted_as_nanogpt_counts_them():
    """GPT-2 small, block 1024: 874,944,921,600 FLOPs a sequence (karpathy/nanoGPT, transformer_sizing.ipynb)."""
    model = Model(layers=12, d_model=768, seq_len=1024, vocab=50257)
    found = token_flops(model, convention("korthikanti"), recompute="none")
    assert found.model * 1024 == 874_944_921_600


def test_equation_3_of_narayanan_is_the_recomputing_form():
    """96·B·s·L·h²·(1 + s/6h + V/16Lh) is model FLOPs plus a second forward pass through the blocks, not the logits."""
    big_l, h, s, v = 96, 12288, 2048, 51200
    found = token_flops(GPT3, convention("narayanan"))
    assert found.recompute == "full"
    assert found.hardware == pytest.approx(96 * big_l * h**2 * (1 + s / (6 * h) + v / (16 * big_l * h)), rel=1e-12)
    assert found.model == pytest.approx(72 * big_l * h**2 * (1 + s / (6 * h) + v / (12 * big_l * h)), rel=1e-12)


def test_korthikanti_reproduces_the_papers_22b_row():
    """From arXiv 2205.05198, table 5: 22B, batch 4, 8 A100, 1.10 s: MFU 41.5 %, HFU 43.7 %."""
    model = Model(layers=48, d_model=6144, seq_len=2048, vocab=51200)
    found = utilization(token_flops(model, convention("korthikanti")), 4 * 2048 / 1.1, 8, GivenPeak(312e12))
    assert found.mfu_ratio == pytest.approx(0.415, abs=0.002)
    assert found.hfu_ratio == pytest.approx(0.437, abs=0.002)


def test_attention_width_may_differ_from_the_models():
    """PaLM 540B has 48 heads of 256 in a model of width 18,432: 45.7 % without attention, 46.2 % with it."""
    palm = Model(params=540.35e9, layers=118, d_model=18432, seq_len=2048, attention_width=48 * 256)
    for name, published in (("6N", 0.457), ("6N+12LHS", 0.462)):
        found = utilization(token_flops(palm, convention(name)), 238_300, 6144, GivenPeak(275e12))
        assert found.mfu_ratio == pytest.approx(published, abs=0.0006)


def test_peak_of_the_wrong_precision_doubles_the_ratio():
    """MLPerf GPT-3 on 512 H100, median step 9.493094 s: 928.91 TFLOP/s are 46.94 % of FP8 and 93.88 % of BF16."""
    flops = token_flops(GPT3, convention("korthikanti"), recompute="none")
    rate = 2048 * 2048 / 9.493094
    of_fp8, of_bf16 = (utilization(flops, rate, 512, GivenPeak(peak)) for peak in (1979e12, 989.5e12))
    assert of_fp8.model_flops_per_s / 1e12 == pytest.approx(928.91, abs=0.005)
    assert (round(100 * of_fp8.mfu_ratio, 2), round(100 * of_bf16.mfu_ratio, 2)) == (46.94, 93.88)
    of_tf32 = utilization(flops, rate, 512, GivenPeak(494.5e12))
    assert of_bf16.reasons == ()
    assert of_tf32.reasons == ("more than the peak was done: it is of another device or number format",)


@given(shapes, st.sampled_from(sorted(CONVENTIONS)))
def test_recomputation_never_costs_less(model, name):
    """Hardware FLOPs are at least model FLOPs, under every convention; without recomputation they are equal."""
    chosen = convention(name)
    for kind in RECOMPUTE:
        found = token_flops(model, chosen, recompute=kind)
        if kind == "none":
            assert found.hardware == found.model
        elif found.hardware is None:
            assert found.reason
        else:
            assert found.hardware > found.model


@given(shapes)
def test_full_recomputation_is_one_more_forward_pass(model):
    """Forward is a third of forward plus backward, so N-based hardware FLOPs are 4/3 of model FLOPs."""
    for name in ("6N", "6N+6LHS", "6N+12LHS"):
        found = token_flops(model, convention(name), recompute="full")
        assert math.isclose(found.hardware, found.model * 4 / 3, rel_tol=1e-12)


def test_input_embedding_is_taken_off_n():
    """`without-input-embedding` takes V·h off N where the embedding's size is not given, and that size where it is."""
    base = {"layers": 1, "d_model": 10, "seq_len": 1}
    chosen = convention("6N")
    inferred = token_flops(Model(params=1000, vocab=20, **base), chosen, n_convention="without-input-embedding")
    given_size = Model(params=1000, input_embedding_params=300, **base)
    assert inferred.model == 6 * 800
    assert token_flops(given_size, chosen, n_convention="without-input-embedding").model == 6 * 700
    with pytest.raises(FlopsError, match="input embedding is not known"):
        token_flops(Model(params=1000), chosen, n_convention="without-input-embedding")


def test_active_parameters_replace_n():
    """A mixture of experts is counted by the parameters that a token meets; block counts, which know none, refuse."""
    mixture = Model(params=47e9, active_params=13e9, layers=32, d_model=4096, seq_len=1, vocab=32000)
    assert token_flops(mixture, convention("6N")).model == 6 * 13e9
    with pytest.raises(FlopsError, match="knows no active parameters"):
        token_flops(mixture, convention("narayanan"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("6n + 12lhs", "6N+12LHS"), ("causal", "6N+6LHS"), ("FULL", "6N+12LHS"), ("Narayanan-eq3", "narayanan")],
)
def test_conventions_answer_to_other_spellings(name, expected):
    """Names match in any case and spacing, and by plain words."""
    assert convention(name).name == expected


def test_unknown_or_unserved_conventions_say_what_to_do():
    """A misspelt convention offers the nearest; one that lacks inputs names them all."""
    with pytest.raises(FlopsError, match="did you mean 'causal'"):
        convention("causl")
    with pytest.raises(FlopsError, match="needs layers, d-model, seq-len"):
        token_flops(Model(params=1e9), convention("full"))


def test_unknown_recomputation_is_not_guessed():
    """What a counter saw may or may not hold recomputed work: HFU is unknown then, with the reason."""
    found = token_flops(Model(flops_per_token=1e9), convention("counted"), recompute="full")
    assert found.hardware is None
    assert utilization(found, 10, 1, GivenPeak(1e12)).reasons == (found.reason,)


ARGUMENTS = ["--params", "6658859008", "--layers", "32", "--d-model", "4096", "--seq-len", "2048"]
SPEED = ["--tokens-per-s", "85144", "--gpus", "8"]


def test_calculator_names_convention_and_source():
    """The 7B row of llm-foundry on 8 H100: 46.44 %, with what it was taken against."""
    device = ["--device", "NVIDIA H100 80GB HBM3", "--dtype", "bf16"]
    result = CliRunner().invoke(mfu, [*ARGUMENTS, *SPEED, *device, "--json"])
    facts = json.loads(result.stdout)
    assert facts["mfu_pct"] == pytest.approx(46.44, abs=0.01)
    assert facts["convention"] == "6N+12LHS"
    assert facts["peak_source"] == "table: NVIDIA H100 datasheet"
    text = CliRunner().invoke(mfu, [*ARGUMENTS, *SPEED, *device]).stdout
    assert "46.44 %" in text
    assert "PaLM" in text


def test_calculator_of_an_unknown_device_gives_no_number():
    """An unknown device is a warning and no ratio: never another device's peak."""
    result = CliRunner().invoke(mfu, [*ARGUMENTS, *SPEED, "--device", "NVIDIA H100X", "--json"])
    facts = json.loads(result.stdout)
    assert facts["mfu_ratio"] is None
    assert "H100X" in facts["reasons"][0]
    assert result.stderr.startswith("warning: ")


def test_rows_pass_through_and_gain_their_utilization(tmp_path):
    """Columns of the file stay; a row without peak or with an ambiguous device has empty cells and the reason."""
    header = "model,n_layers,d_model,seq_len,n_gpus,gpu,precision,n_params,tokens_per_s,activation_checkpointing\n"
    known = "7b,32,4096,2048,8,NVIDIA H100 80GB HBM3,amp_bf16,6658859008,85144,False\n"
    vague = "7b,32,4096,2048,8,h100_80gb,amp_bf16,6658859008,85144,\n"
    path = tmp_path / "rows.csv"
    path.write_text(header + known + vague)
    result = CliRunner().invoke(mfu, ["--rows", str(path), "--format", "json"])
    first, second = json.loads(result.stdout)
    assert (first["model"], first["hfu_pct"]) == ("7b", first["mfu_pct"])
    assert first["mfu_pct"] == pytest.approx(46.44, abs=0.01)
    assert second["mfu_pct"] is None
    assert "H100 SXM or H100 PCIe" in second["mfu_reason"]
    assert "row 2" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_layers,d_model\n1,2\n", "rows.csv:1: no column 'n_params'"),
        (
            "n_params,n_layers,d_model,seq_len,n_gpus,tokens_per_s\n1e9,2,3,4,5,fast\n",
            "rows.csv:2: tokens_per_s is 'fast'",
        ),
        ("n_params,n_layers,d_model,seq_len,n_gpus,tokens_per_s\n1e9,2\n", "rows.csv:2: the row does not have 6 cells"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path, text, message):
    """A missing column, a cell that is no number, a short row: file, line and what."""
    path = tmp_path / "rows.csv"
    path.write_text(text)
    result = CliRunner().invoke(mfu, ["--rows", str(path)])
    assert isinstance(result.exception, RanklakeError)
    assert message in str(result.exception)


ROWS = "n_layers,d_model,seq_len,n_gpus,gpu,precision,n_params,tokens_per_s,activation_checkpointing\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            ROWS + "32,4096,2048,0.5,H100 SXM,bf16,7e9,1e5,true\n",
            "r.csv:2: n_gpus is '0.5', not a whole number above 0",
        ),
        (ROWS + "32.5,4096,2048,8,H100 SXM,bf16,7e9,1e5,true\n", "n_layers is '32.5', not a whole number above 0"),
        (ROWS, "no rows are under the header"),
        (ROWS.encode() + b"\xff\n", "not UTF-8"),
    ],
)
def test_rows_that_are_none(tmp_path, capsys, content, said):
    """A file of rows that cannot be calculated is one line, and no number."""
    (tmp_path / "r.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.run(["mfu", "--rows", str(tmp_path / "r.csv")]) == 2
    told = capsys.readouterr()
    assert (told.out, said in told.err, told.err.count("\n")) == ("", True, 1)


def test_rows_of_a_spreadsheet(tmp_path, capsys):
    """A byte order mark in front of the header is none of its first name."""
    (tmp_path / "r.csv").write_text("\ufeff" + ROWS + "32,4096,2048,64,A100 SXM,bf16,7e9,1e5,true\n")
    assert cli.run(["mfu", "--rows", str(tmp_path / "r.csv"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["mfu_pct"] == 22.6468


@pytest.mark.parametrize(
    "options", [["--params", "nan"], ["--params", "inf"], ["--params", "1e9", "--active-params", "2e9"]]
)
def test_numbers_that_are_none(capsys, options):
    """Neither what is no number, nor more active parameters than there are, gives an MFU."""
    assert cli.run(["mfu", *options, "--tokens-per-s", "1e5", "--convention", "6N", "--device", "A100 SXM"]) == 2
    assert capsys.readouterr().out == ""


def test_rows_need_what_their_convention_uses(tmp_path):
    """By equation 3 no parameters; for a count neither layers nor width; speed in any of three ways."""
    by_shape = "nlayers,nhidden,vocab_size,seq_len,n_gpus,gbs,sec_per_iter,peak_flops_per_gpu\n"
    counted = "flops_per_token,gpus,tokens_per_s_per_gpu,peak_flops_per_gpu\n6e9,4,25000,3e14\n"
    shape = {"layers": 10, "d_model": 1024, "seq_len": 2048, "vocab": 50_000}
    (tmp_path / "a.csv").write_text(f"{by_shape}10,1024,50000,2048,8,64,2,3e14\n")
    (tmp_path / "b.csv").write_text(counted)
    (row,) = asked(tmp_path / "a.csv", "--convention", "narayanan")
    one = token_flops(Model(**shape), convention("narayanan"))
    assert row["mfu_pct"] == pytest.approx(100 * one.model * 64 * 2048 / 2 / 8 / 3e14, abs=1e-4)
    (row,) = asked(tmp_path / "b.csv", "--convention", "counted")
    assert (row["mfu_pct"], row["model_tflops_per_gpu"]) == (50, 150)
    (tmp_path / "c.csv").write_text("n_layers,d_model,seq_len,n_gpus\n10,1024,2048,8\n")
    done = CliRunner().invoke(mfu, ["--rows", str(tmp_path / "c.csv"), "--convention", "narayanan"])
    assert "no column 'vocab'" in str(done.exception)


def asked(path, *options):
    """Return the rows that the command gives of a file."""
    done = CliRunner().invoke(mfu, ["--rows", str(path), "--format", "json", *map(str, options)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_rows_that_are_not_what_they_say(tmp_path):
    """A stated figure is compared, absolutely or as a share; rows that disagree are flagged, and its column is kept."""
    rows = "flops_per_token,n_gpus,tokens_per_s,peak_flops_per_gpu,mfu_pct\n"
    path = tmp_path / "rows.csv"
    path.write_text(rows + "".join(f"6e9,1,25000,3e14,{cell}\n" for cell in ("50.00", "50.4", "", "51")))
    found = asked(path, "--convention", "counted", "--published", "mfu_pct", "--tolerance", "0.5")
    words = ["within tolerance", "within tolerance", "not computed", "inconsistent as published"]
    assert [row["published_verdict"] for row in found] == words
    assert [row["published_difference"] for row in found] == [0, pytest.approx(-0.4), None, -1]
    assert ([row["mfu_pct"] for row in found], found[3]["given_mfu_pct"]) == ([50] * 4, "51")
    found = asked(path, "--convention", "counted", "--published", "mfu_pct", "--tolerance", "0.5%")
    assert [row["published_verdict"] for row in found] == [words[0], words[3], words[2], words[3]]
    done = CliRunner().invoke(
        mfu, ["--rows", str(path), "--convention", "counted", "--published", "mfu_pct", "--tolerance", "0.5"]
    )
    assert "row 4: inconsistent as published: mfu_pct is 50.0, -1 of what is stated" in done.stderr
    assert "1 of 4 rows are inconsistent as published" in done.stderr
    done = CliRunner().invoke(mfu, ["--rows", str(path), "--convention", "counted", "--published", "mfu_ptc"])
    assert "did you mean 'mfu_pct'?" in str(done.exception)
