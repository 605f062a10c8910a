"""The table of dense peaks and how names are found in it."""

import csv
from importlib.resources import files

import pytest

from ranklake.lake.rollups import peaks
from ranklake.lake.rollups.peaks import DTYPES, NoPeak, Peak, devices, find_peak, name_key, peak_rows


def rows():
    return list(csv.DictReader(files(peaks.__package__).joinpath("peaks.csv").read_text().splitlines()))


def test_every_peak_has_a_source_and_a_device():
    """No number without a source; every device has a peak and every peak a device, once."""
    table = rows()
    keys = [(row["device"], row["dtype"]) for row in table]
    assert len(keys) == len(set(keys))
    assert {row["device"] for row in table} == {item.name for item in devices()}
    for row in table:
        assert row["source"].strip()
        assert row["as_published"].strip()
        assert row["dtype"] in DTYPES
        assert row["engine"] in {"tensor", "matrix", "vector"}


def test_dense_is_what_was_published_after_sparsity_and_boards():
    """Half of a number with sparsity; a board's number divided by its devices."""
    scale = {"TFLOPS": 1e12, "TOPS": 1e12, "PFLOPS": 1e15, "POPS": 1e15}
    checked = 0
    for row in rows():
        number, unit, *rest = row["as_published"].split()
        words = " ".join(rest)
        if "half the rate" in words:
            continue
        expected = float(number) * scale[unit.rstrip(";,")]
        expected /= 2 if "with sparsity" in words else 1
        for count, text in ((8, "per 8 GPUs"), (72, "per 72 GPUs"), (2, "of two GCDs")):
            expected /= count if text in words else 1
        assert float(row["dense_flops_per_s"]) == pytest.approx(expected, rel=1e-9), row
        checked += 1
    assert checked > 150


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5e12),
        ("NVIDIA H100 PCIe", "bf16", 756.5e12),
        ("NVIDIA H200", "torch.bfloat16", 989.5e12),
        ("NVIDIA H200 NVL", "bf16", 835.5e12),
        ("NVIDIA L40S", "bf16", 362.05e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA A10", "fp16", 125e12),
        ("NVIDIA A10G", "fp16", 70e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA RTX A6000", "bf16", 154.85e12),
        ("Tesla V100-SXM2-32GB", "float16", 125e12),
        ("NVIDIA B200", "fp4", 9000e12),
        ("NVIDIA GB200", "bf16", 2500e12),
        ("TPU v5 lite", "bf16", 197e12),
        ("AMD Instinct MI300X", "fp8", 2614.9e12),
    ],
)
def test_names_that_libraries_confuse(name, dtype, expected):
    """Names as drivers report them give their own device's dense peak."""
    assert find_peak(name, dtype).flops_per_s == expected


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("NVIDIA H100X", "bf16", "no peak is known of a device called 'NVIDIA H100X'"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", "no peak is known"),
        ("AMD EPYC 7763", "float32", "no peak is known"),
        ("", "bf16", "no peak is known"),
        ("NVIDIA A100-SXM4-80GB", "fp8", "has no published dense peak in float8"),
        ("Tesla V100-SXM2-16GB", "bf16", "has no published dense peak in bfloat16"),
        ("NVIDIA H200", "bf17", "unknown number format 'bf17'; did you mean 'bf16'?"),
        ("H100", "bf16", "H100 SXM or H100 PCIe or H100 NVL; name the form factor"),
    ],
)
def test_unknown_is_no_number_and_a_reason(name, dtype, reason):
    """Partitions of a GPU, CPUs, formats that a device lacks, family names: no peak, and why."""
    found = find_peak(name, dtype)
    assert isinstance(found, NoPeak)
    assert reason in found.reason
    assert isinstance(find_peak(name, dtype), NoPeak)


def test_form_factor_settles_a_family_name():
    """`H100` is three devices; with the form factor it is one. `A100` is two of the same peak, so it needs none."""
    assert find_peak("H100", "bf16", "sxm").flops_per_s == 989.5e12
    assert find_peak("H100", "bf16", "PCIe").flops_per_s == 756.5e12
    assert find_peak("A100", "bf16").flops_per_s == 312e12
    assert "there is SXM, PCIe, NVL" in find_peak("H100", "bf16", "OAM").reason


def test_no_part_of_a_name_is_a_name():
    """Dropping or adding a word or letter of a driver's name never finds a device of another peak."""
    for device in devices():
        for name in device.names:
            for other in (name[:-1], name + "S", name + " X", f"X {name}"):
                found = find_peak(other, "bf16")
                if isinstance(found, Peak):
                    assert name_key(other) in {name_key(word) for word in found.device.names}


def test_rows_for_sql_agree_with_the_lookup():
    """The rows that SQL joins on give what the lookup gives, for every name and word, once."""
    table = peak_rows()
    assert len({(row["name_key"], row["dtype"]) for row in table}) == len(table)
    for row in table:
        assert find_peak(row["name_key"], row["dtype"]).flops_per_s == row["flops_per_s"]
