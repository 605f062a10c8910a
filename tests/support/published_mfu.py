"""MFU, HFU and TFLOP/s of published rows, from their own inputs, through the command and the functions behind it."""

import json

from click.testing import CliRunner

from ranklake.commands.mfu import mfu
from ranklake.lake.rollups.flops import Model, convention, token_flops


def _command(*words):
    done = CliRunner().invoke(mfu, [str(word) for word in words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def utilization_of(convention_name, shape, **options):
    """Return what the calculator says: shape and options are its options, with underscores."""
    words = ["--convention", convention_name, "--json"]
    for name, value in {**shape, **options}.items():
        words += ["--" + name.replace("_", "-"), value]
    return _command(*words)


def llm_foundry(file):
    """Return each row of the file with ``mfu_pct`` and ``hfu_pct``."""
    return _command("--rows", file, "--format", "json")


def bigscience(file):
    """Return each row with the TFLOP/s of one GPU, hardware's, by equation 3, and what the product says of it."""
    stated = [
        "--published",
        "published_tflops_per_gpu",
        "--published-as",
        "hardware_tflops_per_gpu",
        "--tolerance",
        0.02,
    ]
    return _command("--rows", file, "--format", "json", "--convention", "narayanan", "--recompute", "full", *stated)


def bridge_tflops(row):
    """Return the model TFLOP/s of one GPU, causal, without the input embedding."""
    model = Model(
        params=float(row["params_excl_input_embedding"]),
        input_embedding_params=0,
        layers=int(row["n_layers"]),
        d_model=int(row["d_model"]),
        seq_len=int(row["seq_len"]),
    )
    flops = token_flops(model, convention("causal"), n_convention="without-input-embedding")
    return flops.model * float(row["tokens_per_s_per_gpu"]) / 1e12


def tpu_recipe(row):
    """Return TFLOP/s of a chip, without the input embedding: of attention in full, of all or of active parameters."""
    shape = {name: row[name] for name in ("n_layers", "d_model", "vocab", "seq_len")}
    shape["layers"] = shape.pop("n_layers")
    options = {"tokens_per_s": float(row["tokens_per_s_per_gpu"]) * int(row["gpus"]), "gpus": row["gpus"]}
    options["peak_flops"] = float(row["peak_flops_per_gpu"])
    if "n_params" in row:
        shape |= {"params": row["n_params"], "n_convention": "without-input-embedding"}
        shape |= {"active_params": row["active_params"]} if "active_params" in row else {}
        found = utilization_of("6N+12LHS", shape, **options)
    else:
        found = utilization_of("narayanan", shape, **options, recompute="none")
    return found["model_flops_per_s_per_device"] / 1e12


def maxtext_pct(row):
    """Return the utilization of a chip in %, of the FLOP/s that a row states."""
    speed = {name.replace("n_gpus", "gpus"): row[name] for name in ("tokens_per_s", "n_gpus")}
    options = {"flops_per_token": float(row["flops_per_token"]), "device": row["gpu"], "dtype": row["precision"]}
    return utilization_of("counted", {}, **speed, **options)["mfu_pct"]


def _nanogpt(given):
    shape = {"layers": 12, "d_model": 768, "seq_len": 1024, "vocab": 50_257}
    speed = {"tokens_per_s": given.get("seqs_per_iter", 1) * 1024 / given.get("iter_s", 1)}
    found = utilization_of("narayanan", shape, **speed, peak_flops=given.get("peak", 312e12), recompute="none")
    return {"flops_per_seq": found["model_flops_per_token"] * 1024, "mfu_pct": found["mfu_pct"]}


def _of_tflops(given):
    """Divide TFLOP/s that the row states by its peak."""
    n = given["n_gpu"]
    options = {"flops_per_token": given["tflops_per_gpu"] * 1e12, "tokens_per_s": n, "gpus": n}
    found = utilization_of("counted", {}, **options, peak_flops=given["peak_tf"] * 1e12)
    return {
        "pct_peak": found["mfu_pct"],
        "mfu_pct": found["mfu_pct"],
        "aggregate_pflops": found["model_flops_per_s_per_device"] * n / 1e15,
    }


def _korthikanti(given):
    shape = {"layers": given["L"], "d_model": given["h"], "seq_len": given["s"], "vocab": given["v"]}
    speed = {"tokens_per_s": given["B"] * given["s"] / given["iter_s"], "gpus": given["n_gpu"]}
    return utilization_of("korthikanti", shape, **speed, peak_flops=given["peak"], recompute="selective")


def _palm(given):
    shape = {"params": given["N"], "layers": given["L"], "d_model": 18_432, "seq_len": given["T"]}
    options = {"tokens_per_s": given["tokens_per_s"], "gpus": given["n_chip"], "peak_flops": given["peak"]}
    heads = {"heads": given["H"], "head_dim": given["Q"]}
    return {
        "mfu_no_attn": utilization_of("6N", shape, **options)["mfu_pct"],
        "mfu": utilization_of("6N+12LHS", shape, **options, **heads)["mfu_pct"],
    }


def _full_attention(given):
    shape = {"params": given["N_excl_emb"], "layers": given["L"], "d_model": given["h"], "seq_len": given["s"]}
    speed = given.get("tps_per_gpu") or given.get("tps_per_chip")
    found = utilization_of("6N+12LHS", shape, tokens_per_s=speed, peak_flops=given.get("peak", 1e15))
    return {"mfu_pct": found["mfu_pct"], "tflops_per_gpu": found["model_flops_per_s_per_device"] / 1e12}


LISTED = {
    "nanogpt": _nanogpt,
    "narayanan21": _of_tflops,
    "korthikanti22": _korthikanti,
    "palm": _palm,
    "llama3": _of_tflops,
    "torchtitan": _full_attention,
    "megatron": _full_attention,
    "maxtext": _full_attention,
}
"""How to compute a row of published_mfu_rows.json, by the first word of its id."""
