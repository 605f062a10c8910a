"""Cloud bills in FOCUS: prices of device-hours equal plain sums, and what is no price is told."""

import csv
import gzip
import json
import random
from collections import defaultdict
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ranklake.cli import run
from ranklake.lake.rollups.focus import BillError, billed_prices, instance_types
from ranklake.lake.rollups.peaks import NoPeak, find_peak
from ranklake.lake.rollups.prices import read_prices

COLUMNS = (
    "BilledCost", "BillingCurrency", "ChargeCategory", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart",
    "CommitmentDiscountStatus", "ConsumedQuantity", "ConsumedUnit", "EffectiveCost", "PricingQuantity", "PricingUnit",
    "SkuMeter", "SkuPriceDetails", "Tags", "x_UsageType",
)  # fmt: skip
P5 = json.dumps({"InstanceType": "p5.48xlarge", "GpuCount": 8})


def charge(**changes):
    """Return a charge of an hour of eight H100 at 98.32 USD."""
    return dict.fromkeys(COLUMNS, "") | {
        "BilledCost": "98.32", "BillingCurrency": "USD", "ChargeCategory": "Usage", "ChargeDescription": "an hour",
        "ChargePeriodStart": "2026-03-01T10:00:00Z", "ChargePeriodEnd": "2026-03-01T11:00:00Z",
        "ConsumedQuantity": "1", "ConsumedUnit": "Hours", "EffectiveCost": "98.32", "SkuPriceDetails": P5,
        "Tags": json.dumps({"pool": "train", "Name": "x"}),
    } | changes  # fmt: skip


def write(path, charges):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(charges)
    return str(path)


def test_prices_are_effective_cost_over_device_hours(tmp_path):
    """Two thousand charges of three types, on demand and by commitment, beside plain sums of fractions."""
    chance = random.Random(1)
    kinds = [("p5.48xlarge", "NVIDIA H100 80GB HBM3", 8), ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 8),
             ("g5.xlarge", "NVIDIA A10G", 1)]  # fmt: skip
    charges, cost, hours = [], defaultdict(Fraction), defaultdict(Fraction)
    for _ in range(2000):
        name, device, count = chance.choice(kinds)
        day, pool = chance.randrange(1, 29), chance.choice(["a", "b"])
        quantity, amount = Fraction(chance.randrange(1, 400), 100), Fraction(chance.randrange(0, 10**6), 10**4)
        charges.append(
            charge(
                ChargePeriodStart=f"2026-03-{day:02}T{chance.randrange(24):02}:00:00Z",
                ChargePeriodEnd=f"2026-03-{day + 1:02}T00:00:00Z",
                ConsumedQuantity=str(float(quantity)), EffectiveCost=str(float(amount)), Tags=json.dumps({"q": pool}),
                SkuPriceDetails="", x_UsageType=f"USE2-BoxUsage:{name}",
                CommitmentDiscountStatus=chance.choice(["", "Used"]),
            )
        )  # fmt: skip
        key = (device, pool, f"2026-03-{day:02}")
        cost[key] += amount
        hours[key] += quantity * count
    done = billed_prices([write(tmp_path / "bill.csv", charges)], instance_types(), "q")
    assert (done.charges, done.priced, done.left_out) == (2000, 2000, {})
    table = {
        (line["device_name"], line["pool"], line["valid_from"]): float(line["price_per_device_hour"])
        for line in done.lines
    }
    assert table.keys() == cost.keys()
    assert all(table[key] == pytest.approx(float(cost[key] / hours[key]), abs=1e-9) for key in cost)


def test_what_is_no_price_is_summed_apart(tmp_path):
    """Unused commitments, taxes, credits, purchases, other services, and usage that cannot be reckoned."""
    charges = [
        charge(), charge(CommitmentDiscountStatus="Unused", EffectiveCost="10"),
        charge(ChargeCategory="Tax", EffectiveCost="2"),
        charge(ChargeCategory="Credit", EffectiveCost="-5.5"), charge(SkuPriceDetails="", SkuMeter="Storage"),
        charge(ConsumedUnit="GB"), charge(EffectiveCost="many"), charge(ChargePeriodEnd="2026-02-01T00:00:00Z"),
        charge(EffectiveCost="NaN"), charge(SkuPriceDetails='{"InstanceType": "xp5.48xlarge"}'),
    ]  # fmt: skip
    done = billed_prices([write(tmp_path / "bill.csv", charges)], instance_types())
    assert [line["price_per_device_hour"] for line in done.lines] == ["12.29"]
    assert {why: float(cost) for (why, _), cost in done.left_out.items()} == {
        "unused commitments": 10, "tax": 2, "credit": -5.5, "usage without devices": 2 * 98.32,
        "usage of devices without a cost, hours or a period": 2 * 98.32,
    }  # fmt: skip


def test_parquet_gzip_and_long_periods_give_the_same(tmp_path):
    """A month in one charge is its days, at one price: one line."""
    month = charge(ChargePeriodStart="2026-03-01T00:00:00Z", ChargePeriodEnd="2026-04-01T00:00:00Z",
                   ConsumedQuantity="744", EffectiveCost="73150.08")  # fmt: skip
    plain = write(tmp_path / "bill.csv", [month])
    (tmp_path / "bill.csv.gz").write_bytes(gzip.compress((tmp_path / "bill.csv").read_bytes()))
    typed = {name: pa.array([month[name]]) for name in COLUMNS} | {
        "EffectiveCost": pa.array([73150.08]), "ConsumedQuantity": pa.array([744.0]),
        "Tags": pa.array([[("pool", "train")]], pa.map_(pa.string(), pa.string())),
        "ChargePeriodStart": pa.array([1772323200 * 10**6], pa.timestamp("us", "UTC")),
        "ChargePeriodEnd": pa.array([1775001600 * 10**6], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    pq.write_table(pa.table(typed), tmp_path / "bill.parquet")
    lines = [
        billed_prices([str(path)], instance_types(), "pool").lines
        for path in (plain, tmp_path / "bill.csv.gz", tmp_path / "bill.parquet")
    ]
    assert lines[0] == lines[1] == lines[2]
    wanted = {"pool": "train", "price_per_device_hour": "12.29", "valid_from": "2026-03-01", "valid_to": "2026-04-01"}
    assert [{name: line[name] for name in wanted} for line in lines[0]] == [wanted]


def test_the_command_writes_a_table_that_costs_are_reckoned_with(tmp_path, capsys):
    """And says what is no price; a bill without any exits 1."""
    bill = write(tmp_path / "bill.csv", [charge(), charge(ChargeCategory="Tax")])
    table = tmp_path / "prices.csv"
    assert run(["prices", bill, "--out", str(table), "--pool-tag", "pool"]) == 0
    assert "1 prices of 1 of 2 charges" in capsys.readouterr().out
    (price,) = read_prices(str(table))
    assert (str(price.price), price.pool, price.currency) == ("12.29", "train", "USD")
    assert run(["prices", write(tmp_path / "none.csv", [charge(ChargeCategory="Tax")]), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["left_out"][0]["why"] == "tax"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("x.csv", "a,b\n1,2\n", "is no bill in FOCUS"),
        ("x.csv", b"PAR1xxxx", "cannot be read"),
        ("x.csv", b"\x1f\x8b\x08\x00", "cannot be read"),
        ("x.csv", b"\xff\xfeB\x00i\x00", "cannot be read"),
        ("gone.csv", None, "cannot be read"),
    ],
)
def test_what_is_no_bill_is_one_line(tmp_path, name, text, what):
    """Of whatever bytes."""
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BillError, match=what) as error:
        billed_prices([str(tmp_path / name)], instance_types())
    assert "\n" not in str(error.value)


def test_two_currencies_of_one_device_are_refused(tmp_path):
    """They would be added up, else."""
    bill = write(tmp_path / "bill.csv", [charge(), charge(BillingCurrency="EUR")])
    with pytest.raises(BillError, match="prices in USD and EUR on 2026-03-01"):
        billed_prices([bill], instance_types())


def test_instance_types_of_ones_own(tmp_path):
    """They come on top; the packaged ones have devices that peaks are known of."""
    (tmp_path / "types.csv").write_text("instance_type,device_name,devices\nacme.8x,NVIDIA H100 80GB HBM3,8\n")
    types = instance_types(str(tmp_path / "types.csv"))
    assert types["acme.8x"] == ("NVIDIA H100 80GB HBM3", 8)
    assert not [name for name, (device, _) in types.items() if isinstance(find_peak(device, "float16"), NoPeak)]
    (tmp_path / "types.csv").write_text("instance_type,device_name,devices\nacme.8x,,8\n")
    with pytest.raises(BillError, match="no instance type"):
        instance_types(str(tmp_path / "types.csv"))
