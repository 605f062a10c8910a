"""Rule files of Prometheus become rules: their SQL says of each device what the expression says, or it is left out."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import promql_parser
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rollup_inputs import append
from sampled import gpu_samples

from ranklake.cli import run as command
from ranklake.lake.query.sql import answer
from ranklake.pipeline.alerts.file import AlertFileError, load_alerts
from ranklake.pipeline.alerts.promql import PromqlError, seconds_of, sql_of
from ranklake.pipeline.alerts.rule_import import import_rules

GROUPS = """
groups:
  - name: gpus
    rules:
      - {record: some, expr: "1"}
      - alert: GPUHighTemperature
        expr: DCGM_FI_DEV_GPU_TEMP > 85
        for: 1h5m
        labels: {severity: warning, team: hardware}
        annotations:
          summary: "GPU {{ $labels.gpu }} is hot"
          runbook_url: https://wiki/hot
      - alert: GPUHighTemperature
        expr: DCGM_FI_DEV_GPU_TEMP > 95
        keep_firing_for: 5m
        labels: {severity: awful}
      - alert: Xid
        expr: increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0
      - alert: Down
        expr: up == 0
"""


def imported(text=GROUPS):
    return import_rules(Path("rules.yaml"), "platform", text)


def test_rules_are_what_a_file_of_alerts_takes():
    """Names, durations, severities, owners, runbooks; each alert that is left out has a line and a reason."""
    result = imported()
    text = result.yaml_text() + '\nreceivers: {a: {url: "env:A"}}\nroutes: [{receivers: [a]}]\nversion: 1\n'
    rules = load_alerts(Path("alerts.yaml"), text).rules
    hot, other = rules["gpu-high-temperature"], rules["gpu-high-temperature-2"]
    assert (hot.severity, hot.owner, hot.for_s, hot.runbook) == ("warning", "hardware", 3900, "https://wiki/hot")
    assert hot.summary == "GPU … is hot"
    assert (other.severity, other.owner, other.for_s, other.summary) == (None, "platform", 0, "GPUHighTemperature")
    assert result.alerts == 4
    assert [(each.line, each.alert, each.reason) for each in result.left_out] == [
        (16, "GPUHighTemperature", "severity 'awful' is not known, so it is 'error'"),
        (15, "GPUHighTemperature", "keep_firing_for is left out: it ends as soon as it does not hold"),
        (18, "Xid", "not translated: increase() of DCGM_FI_DEV_XID_ERRORS, which is no counter"),
        (20, "Down", "not translated: no column of ranklake has up"),
    ]


def test_a_rule_of_the_operator_of_kubernetes_is_read_too():
    spec = json.dumps({"kind": "PrometheusRule", "spec": yaml.safe_load(GROUPS)})
    assert imported(spec).rules == imported().rules


INDENTED = GROUPS.replace("\n", "\n    ")


@pytest.mark.parametrize(
    "text",
    [
        f"# several documents\n---\nkind: Service\n---{GROUPS}---\n",
        f"kind: ConfigMap\ndata:\n  notes: |\n    none\n  gpus.yml: |{INDENTED}\n",
        f"additionalPrometheusRulesMap:\n  gpus:{INDENTED}\n",
        "kind: List\nitems:\n- " + json.dumps({"kind": "PrometheusRule", "spec": yaml.safe_load(GROUPS)}),
        yaml.safe_dump(yaml.safe_load(GROUPS)["groups"][0]["rules"]),
    ],
    ids=["documents", "ConfigMap", "values of Helm", "List", "a list of alerts"],
)
def test_alerts_are_found_wherever_files_of_kubernetes_have_them(text):
    """With the lines of the whole file."""
    result = imported(text)
    assert result.rules == imported().rules
    assert [(each.alert, each.reason) for each in result.left_out] == [
        (each.alert, each.reason) for each in imported().left_out
    ]
    lines = text.splitlines()
    assert all("Down" in lines[each.line - 2] for each in result.left_out if each.alert == "Down" and len(lines) > 20)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("route: {receiver: a}\nreceivers: [{name: a}]", "kind: alertmanager"),
        ("kind: Secret\nstringData:\n  alertmanager.yml: |\n    receivers:\n    - {name: a}\n", "kind: alertmanager"),
        ("{{- if .Values.on }}\ngroups: []\n{{- end }}", "helm template"),
    ],
)
def test_what_cannot_be_imported_says_what_to_do_instead(text, hint):
    with pytest.raises(AlertFileError) as raised:
        imported(text)
    assert hint in raised.value.hint


def test_aliases_that_go_round_or_grow_end():
    assert imported("groups: &all\n- rules: *all\n- *all\n").alerts == 0
    wide = "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{last}'] * 8)}]\n" for last, name in pairwise("abcdefgh")
    )
    with pytest.raises(AlertFileError, match="more than 200,000 items"):
        imported(wide)


def test_sql_is_printed_as_a_text_of_lines(capsys, tmp_path):
    (tmp_path / "rules.yaml").write_text(GROUPS)
    assert command(["alerts", "import", str(tmp_path / "rules.yaml"), "--owner", "o"]) == 0
    assert "    sql: |-\n      SELECT concat_ws" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[]", "groups: 3", "spec: {}", "3"])
def test_what_is_no_rule_file_is_an_error(text):
    with pytest.raises(AlertFileError, match=r"rules\.yaml:1: has no list 'groups'"):
        imported(text)


@pytest.mark.parametrize("text", ["groups:\n- name: x\n  rules: 3\n", "groups: [3]", "groups: []"])
def test_what_holds_no_alerts_gives_no_rules(text):
    result = imported(text)
    assert (result.alerts, result.yaml_text()) == (0, "")


@pytest.fixture
def devices(lake):
    """Give a lake with four devices, whose last samples are of three minutes ago; the fourth's of 22.

    Queries ask for now; everything here is within minutes of it, and nothing near a limit.
    """
    now = datetime.now(UTC)

    def device(number, *, at=now - timedelta(minutes=3), **columns):
        rows = gpu_samples(
            60, device=f"GPU-{number}", start=at - timedelta(seconds=60), incarnation=number, device_index=number
        )
        for place, row in enumerate(rows):
            row |= {name: value[place] if isinstance(value, list) else value for name, value in columns.items()}
        append(lake, "gpu_samples", rows)

    gib = 1 << 30
    device(0, temperature_celsius=[90.0] * 59 + [70.0], memory_used_bytes=79 * gib, memory_free_bytes=gib)
    device(1, temperature_celsius=90.0, ecc_uncorrected_volatile_count=[5] * 30 + [7] * 30, memory_used_bytes=gib)
    device(2, temperature_celsius=None, ecc_uncorrected_volatile_count=[9] * 30 + [1] * 30, gpu_utilization_ratio=0.99)
    device(3, temperature_celsius=99.0, at=now - timedelta(minutes=22))
    return lake


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("DCGM_FI_DEV_GPU_TEMP > 85", "1"),
        ("DCGM_FI_DEV_GPU_TEMP > 65", "01"),
        ("DCGM_FI_DEV_GPU_TEMP < 85", "0"),
        ("max_over_time(DCGM_FI_DEV_GPU_TEMP[5m]) > 85", "01"),
        ("avg_over_time(DCGM_FI_DEV_GPU_TEMP[30s]) < 89.5", "0"),
        ("min_over_time(DCGM_FI_DEV_GPU_TEMP[30s]) <= 70", "0"),
        ("(DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)) * 100 > 95", "0"),
        ("DCGM_FI_DEV_FB_USED == 1024", "1"),
        ("DCGM_FI_DEV_GPU_UTIL > 95", "2"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) > 0", "12"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) >= 2", "1"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10s]) > 0", ""),
        ("rate(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[100s]) >= 0.02", "1"),
        ("delta(DCGM_FI_DEV_GPU_TEMP[30s]) < 0", "0"),
        ("DCGM_FI_DEV_GPU_TEMP > 65 and DCGM_FI_DEV_GPU_UTIL < 60", "01"),
        ("DCGM_FI_DEV_GPU_TEMP > 65 unless DCGM_FI_DEV_ECC_DBE_VOL_TOTAL > 0", "0"),
        ("DCGM_FI_DEV_GPU_TEMP > 85 or DCGM_FI_DEV_GPU_UTIL > 95", "12"),
        ("DCGM_FI_DEV_GPU_UTIL > 95 or DCGM_FI_DEV_GPU_TEMP > 65 and DCGM_FI_DEV_GPU_TEMP > 85", "12"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="0"} > 1', "0"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu=~"0|2", Hostname!="x",} > 1', "02"),
        ('DCGM_FI_DEV_GPU_UTIL{Hostname=~"node"} > 1', ""),
        ("DCGM_FI_DEV_GPU_UTIL{UUID!~'GPU-[01]'} > 1", "2"),
        ("DCGM_FI_DEV_GPU_UTIL - 40 > 50", "2"),
        ("100 - DCGM_FI_DEV_GPU_UTIL < 10 # nearly busy", "2"),
        ("-DCGM_FI_DEV_GPU_UTIL < -9.5e1", "2"),
        ("DCGM_FI_DEV_GPU_TEMP > DCGM_FI_DEV_GPU_UTIL", "01"),
    ],
)
def test_the_query_gives_the_devices_for_which_the_expression_holds(devices, expression, expected):
    """By hand: a value is a device's last within a range; one without a sample of the last minutes is not there."""
    rows = answer(devices, sql_of(expression), limit=100).rows.to_pylist()
    assert sorted(row["subject"] for row in rows) == [f"node1/GPU-{number}" for number in expected]
    assert all(row["run"] == "r1" and row["host"] == "node1" for row in rows)
    assert all(row["message"].startswith("value ") for row in rows)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("avg by (gpu) (DCGM_FI_DEV_GPU_UTIL) > 1", "avg() is not translated"),
        ("sum(DCGM_FI_DEV_POWER_USAGE) > 1", "sum() is not translated"),
        ("DCGM_FI_DEV_GPU_UTIL", "it compares nothing, so each series would be an alert"),
        ("DCGM_FI_DEV_GPU_UTIL > bool 1", "'bool' is not translated"),
        ("DCGM_FI_DEV_GPU_UTIL > 1 > 0", "'>' is not translated"),
        ("DCGM_FI_DEV_GPU_UTIL offset 5m > 1", "'offset' is not translated"),
        ("DCGM_FI_DEV_GPU_UTIL / on(gpu) DCGM_FI_DEV_GPU_TEMP > 1", "'on' is not translated"),
        ("(DCGM_FI_DEV_GPU_UTIL > 1) * 2 > 1", "* needs a number on both sides"),
        ("DCGM_FI_DEV_GPU_UTIL > 1 and DCGM_FI_DEV_GPU_TEMP", "AND needs a comparison on both sides"),
        ('DCGM_FI_DEV_GPU_UTIL{namespace="a"} > 1', "no column of gpu_samples has the label namespace"),
        ("rate(DCGM_FI_DEV_RETIRED_DBE) > 0", "a range such as [5m] is missing after DCGM_FI_DEV_RETIRED_DBE"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[x]) > 0", "'x' is no duration such as 5m"),
        ("1 > 0", "it names no metric"),
        ("", "a metric is missing before 'its end'"),
        ("DCGM_FI_DEV_GPU_UTIL ^ 2 > 1", "'^' is not translated"),
        ("(" * 60 + "1" + ")" * 60 + " > 0", "it is nested too deep"),
        ("x" * 10_001, "it has more than 10,000 characters"),
    ],
)  # fmt: skip
def test_what_does_not_translate_has_a_reason(expression, reason):
    with pytest.raises(PromqlError) as caught:
        sql_of(expression)
    assert str(caught.value) == reason


WORDS = st.sampled_from(
    [
        *("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "(", ")", ">", "+", "-", "and", "or", "unless", "1"),
        *("{gpu='0'}", "increase", "[5m]", "{", "}", ",", "'", "\\", ";", "--", "by", "$x", "bool", "rate("),
    ]
)


@given(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_translates_or_is_refused(expression):
    """Nothing else is raised, and no text reaches the query but numbers, and labels within quotes."""
    try:
        sql = sql_of(expression)
    except PromqlError:
        return
    promql_parser.parse(expression)  # raises for what is no PromQL
    assert ";" not in sql
    assert "--" not in sql


def test_a_quote_in_a_label_stays_in_its_text(devices):
    sql = sql_of("DCGM_FI_DEV_GPU_UTIL{gpu=\"x' OR '1'='1\"} > 1")
    assert answer(devices, sql, limit=9).rows.num_rows == 0


def test_durations():
    assert [seconds_of(text) for text in ("5m", "1h30m", "2d", "500ms")] == [300, 5400, 172_800, 0.5]
    for text in ("5", "m", "5 m", ""):
        with pytest.raises(PromqlError):
            seconds_of(text)


def test_the_command_prints_rules_to_paste_and_what_is_left_out(tmp_path, capsys):
    path = tmp_path / "rules.yaml"
    path.write_text(GROUPS)
    assert command(["alerts", "import", str(path), "--owner", "platform"]) == 0
    out = capsys.readouterr().out
    assert set(yaml.safe_load(out)["rules"]) == {"gpu-high-temperature", "gpu-high-temperature-2"}
    assert "# line 20: Down: not translated: no column of ranklake has up" in out
    assert out.endswith("# 2 rules of 4 alerts\n")
    assert command(["alerts", "import", str(path), "--owner", "platform", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alerts"] == 4
