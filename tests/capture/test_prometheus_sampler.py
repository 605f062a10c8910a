"""Pages in Prometheus' text format: a real exporter's, one as dcgm-exporter writes it, and pages that are none."""

import contextlib
import json
import math
import socket
import string
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import prometheus_client
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ranklake.capture.samplers.dcgm import blank_reason, load_table
from ranklake.capture.samplers.exposition import NotExpositionError, parse
from ranklake.capture.samplers.prometheus import MOST_SERIES, FetchError, PrometheusSampler, fetch, redact_url
from ranklake.capture.samplers.sample import Row, Value
from ranklake.capture.spool.stream_files import StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

HOST = socket.gethostname()
DEVICE = (
    f'gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA H100",Hostname="{HOST}",DCGM_FI_DRIVER_VERSION="570.1"'
)
DCGM = f"""# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{{DEVICE}}} 1755
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{DEVICE}}} 87
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{DEVICE}}} 512
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{{DEVICE}}} 411.5
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{DEVICE}}} 2000
# TYPE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE  gauge
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE {{{DEVICE}}} 0.52
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{DEVICE}}} 31
# TYPE DCGM_FI_DEV_ROW_REMAP_FAILURE gauge
DCGM_FI_DEV_ROW_REMAP_FAILURE{{{DEVICE}}} 0
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{DEVICE}}} 4
DCGM_FI_DEV_MEMORY_TEMP{{{DEVICE}}} 9223372036854775794
DCGM_FI_DEV_SOMETHING_NEW{{{DEVICE}}} 5
DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="GPU-bb",GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",Hostname="elsewhere"}} 10
"""


@contextlib.contextmanager
def serving(answer):
    """Serve pages on loopback by a function of (handler); yield the URL and the paths asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, dict(self.headers)))
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *_):
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.over = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics", asked
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def page(text, status=200, **headers):
    """Return an answer with a page."""

    def answer(handler):
        body = text.encode() if isinstance(text, str) else text
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Pages:
    """A sampler whose pages the test hands over."""

    def __init__(self, holders=dict, url="http://me:pw@127.0.0.1:1/metrics", root="/"):
        self.sampler = PrometheusSampler(url, holders, 15.0, root)
        self.sampler._thread = threading.current_thread()

    def given(self, text, at_s=1):
        """Give a page, or a reason why there is none; return what is sampled."""
        try:
            found = parse(text)
        except NotExpositionError as error:
            found = str(error)
        self.sampler._pages.append((at_s * 10**9, found))
        samples = list(self.sampler.sample(at_s * 10**9))
        schema = arrow_schema(contract("gpu_samples"), segment=True)
        for row in rows(samples):
            pa.array([row], pa.struct([schema.field(name) for name in row]))
        return samples


def rows(samples):
    """Return the rows about devices."""
    return [sample.columns for sample in samples if isinstance(sample, Row) and sample.table == "gpu_samples"]


def events(samples):
    """Return the events, with their attributes."""
    found = [sample.columns for sample in samples if isinstance(sample, Row) and sample.table == "events"]
    return [{**row, "attributes": json.loads(row["attributes"])} for row in found]


def values(samples):
    """Return the metrics."""
    return {sample.metric: (sample.kind, sample.value) for sample in samples if isinstance(sample, Value)}


# ── DCGM ──


def test_a_page_of_dcgm_becomes_rows_in_the_contracts_units():
    """MHz, percent, MiB, mJ and bits; blanks are reasons; a name may have a space behind it."""
    samples = Pages().given(DCGM)
    first, second = rows(samples)
    assert (first["source"], first["device_uuid"], first["device_index"], first["host"]) == ("dcgm", "GPU-aa", 0, HOST)
    assert (first["device_name"], first["driver_version"]) == ("NVIDIA H100", "570.1")
    assert (first["sm_clock_hz"], first["gpu_utilization_ratio"], first["power_watts"]) == (1755e6, 0.87, 411.5)
    assert (first["memory_used_bytes"], first["energy_joules"], first["tensor_active_ratio"]) == (512 << 20, 2.0, 0.52)
    assert (first["clock_event_reasons"], first["row_remap_failure"], first["xid_last"]) == ("sw_power_cap", False, 31)
    assert json.loads(first["unavailable"]) == {"memory_temperature_celsius": "no value"}
    assert "memory_temperature_celsius" not in first
    assert (second["host"], second["mig_gpu_instance"], second["mig_profile"]) == ("elsewhere", 9, "1g.10gb")
    assert values(samples) == {
        'prometheus/DCGM_FI_DEV_SOMETHING_NEW{UUID="GPU-aa",device="nvidia0",gpu="0"}': ("gauge", 5)
    }


def test_xids_are_events_when_they_change():
    """What was there before is not news; a change is, once; and a counter that begins again is told."""
    pages = Pages()
    assert events(pages.given(DCGM, 1)) == []
    changed = DCGM.replace("} 31", "} 79").replace("} 2000", "} 1000")
    found = {row["event"]: row["attributes"] for row in events(pages.given(changed, 2))}
    assert (found["xid"]["xid"], found["xid"]["device_uuid"]) == (79, "GPU-aa")
    assert found["counter_reset"]["columns"] == ["energy_joules"]
    assert events(pages.given(changed, 3)) == []


def test_only_what_is_declared_a_counter_can_begin_again():
    """Neither the time between scrapes, which ends in ``_ns``, nor what the page declares a gauge is a counter."""
    pages = Pages()
    page = DCGM.replace("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter", "")
    for at, text in ((1, page), (10, page), (11, page)):
        assert events(pages.given(text, at)) == []
    gauge = "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION gauge\n" + page.replace("} 2000", "} 1000")
    assert events(pages.given(gauge, 12)) == []
    again = page.replace("} 2000", "} 500")
    (row,) = events(pages.given(again, 13)) if events(pages.given(page, 12)) == [] else ()
    assert row["attributes"]["columns"] == ["energy_joules"]


def test_devices_of_this_host_are_attributed(tmp_path):
    """By the ranks' environment; another host's are not."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/environ").write_text("LOCAL_RANK=0\0")
    first, second = rows(Pages(lambda: {7: StreamName("train", 0, 5, 1)}, root=str(tmp_path)).given(DCGM))
    assert (first["holder_run"], first["holder_rank"], first["holder_count"]) == ("train", 5, 1)
    assert "holder_count" not in second


def test_the_table_names_what_the_contract_does():
    """Each of DCGM's names in the contract is in the table, or is a label's; each column is the contract's."""
    columns = {column.name: column for column in contract("gpu_samples").columns}
    table = load_table()
    assert {mapped.column for mapped in table.values()} <= columns.keys()
    for name, column in columns.items():
        for other in column.aka:
            if other.startswith("DCGM_FI_") and column.id >= 41:
                assert table[other].column == name
    factors = {"%": 0.01, "MiB": 1 << 20, "MHz": 1e6, "mJ": 1e-3}
    assert all(mapped.factor == factors.get(mapped.unit, 1) for mapped in table.values())


def test_numbers_that_no_column_holds_are_no_values():
    """They cost their column, not the row: beyond 64 bits, as bits and as a device's number."""
    text = f"DCGM_FI_DEV_FB_USED{{{DEVICE}}} 1e30\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{DEVICE}}} 1e300\n"
    other = 'DCGM_FI_DEV_SM_CLOCK{gpu="99999999999999999999",UUID="GPU-cc"} 5\n'
    first, second = rows(Pages().given(text + f"DCGM_FI_DEV_SM_CLOCK{{{DEVICE}}} 1755\n" + other))
    assert (first["memory_used_bytes"], first["sm_clock_hz"]) == (None, 1755e6)
    assert json.loads(first["unavailable"]) == dict.fromkeys(
        ["memory_used_bytes", "clock_event_reasons"], "out of range"
    )
    assert (second["device_index"], second["sm_clock_hz"]) == (None, 5e6)


@pytest.mark.parametrize(
    ("value", "why"),
    [(0x7FFFFFF0, "no value"), (0x7FFFFFF2, "not supported"), (140737488355331.0, "not permitted"), (5.0, ""),
     (float(0x7FFFFFFFFFFFFFF1), "no value"), (math.nan, "not a number"), (math.inf, "not a number")],
)  # fmt: skip
def test_dcgms_blanks_are_no_values(value, why):
    """As dcgm_structs.h has them."""
    assert blank_reason(value) == why


# ── any page ──


def test_a_real_exporters_page_is_read(place):
    """prometheus_client's own server: values are its own, through the thread and HTTP."""
    registry = prometheus_client.CollectorRegistry()
    gauge = prometheus_client.Gauge("queue_depth", "Depth.", ["name"], registry=registry)
    counter = prometheus_client.Counter("read_bytes", "Bytes.", registry=registry)
    histogram = prometheus_client.Histogram("wait_seconds", "Wait.", buckets=[1, 2], registry=registry)
    gauge.labels('a"b\\c\nd').set(3.5)
    counter.inc(7)
    histogram.observe(1.5)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    sampler = PrometheusSampler(f"http://127.0.0.1:{server.server_port}/metrics", dict, 15.0)
    try:
        samples = []
        deadline = time.monotonic() + 120
        while not samples:
            assert time.monotonic() < deadline
            samples = list(sampler.sample(time.monotonic_ns()))
    finally:
        sampler.close()
        server.shutdown()
        server.server_close()
        thread.join()
    found = values(samples)
    assert found["prometheus/read_bytes_total"] == ("counter", 7)
    assert found['prometheus/wait_seconds_bucket{le="2.0"}'] == ("counter", 1)
    assert found["prometheus/wait_seconds_sum"] == ("counter", 1.5)
    assert not any("queue_depth" in name for name in found)  # its label has a line break: no name for a metric
    assert [row["event"] for row in events(samples)] == ["series_left_out"]


def test_counters_go_on_where_they_began_again():
    """As what is counted did; gauges are as they are, and NaN changes nothing."""
    pages = Pages()
    text = "# TYPE a_total counter\na_total {}\n# TYPE g gauge\ng {}\n"
    found = [values(pages.given(text.format(value, value), 1))["prometheus/a_total"][1] for value in (5, 9, 2, 4, 1)]
    assert found == [5, 9, 11, 13, 14]
    assert values(pages.given(text.format(3, 3)))["prometheus/g"] == ("gauge", 3)
    assert math.isnan(values(pages.given(text.format("NaN", 1)))["prometheus/a_total"][1])
    assert values(pages.given(text.format(4, 1)))["prometheus/a_total"][1] == 17


def test_series_are_bounded_and_secrets_in_labels_stay_out():
    """Too many are left out, and told once; a label under a telling name has no value."""
    pages = Pages()
    text = "".join(f'm{{n="{number}"}} 1\n' for number in range(MOST_SERIES + 5))
    samples = pages.given(text)
    assert len(values(samples)) == MOST_SERIES
    assert events(samples)[0]["attributes"]["series"] == 5
    assert events(pages.given(text, 2)) == []
    assert values(pages.given('m{n="new"} 1\n', 3)).keys() == {'prometheus/m{n="new"}'}  # the others are gone
    (name,) = values(Pages().given('m{api_key="f3a9c27b1d8e4f60a5b7"} 1\n'))
    assert "f3a9c27b1d8e4f60a5b7" not in name


NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
LABELS = st.dictionaries(
    NAMES.filter(lambda name: not name.startswith("__")),  # which are reserved
    st.text(string.printable.replace("\r", "").replace("\x0b", "").replace("\x0c", ""), max_size=8),
    max_size=3,
)
NUMBERS = st.one_of(st.floats(), st.integers(-(10**6), 10**6))


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, LABELS, NUMBERS), min_size=1, max_size=5))
def test_it_reads_what_their_parser_reads(samples):
    """Names, labels and values of pages made at random are the same to prometheus_client's parser."""

    def escaped(text):
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    def line(name, labels, value):
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"

    text = "".join(line(*sample) for sample in samples)
    theirs = [
        (s.name, s.labels, float(s.value)) for family in text_string_to_metric_families(text) for s in family.samples
    ]
    ours = [(s.name, s.labels, s.value) for s in parse(text).samples]
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))


@pytest.mark.parametrize(
    "text",
    ["", "<html><body>Sign in</body></html>\n", '{"status": "ok"}\n', "# only a comment\n", "a 1", "a{b=1} 2\n",
     'a{b="c} 2\n', "a\n", "a 1 2 3\n", "a x\n", "1a 2\n", 'a{b="c",b="d"} 1\n', "a 0x10\n", "a 1_0\n"],
)  # fmt: skip
def test_what_is_no_page_is_refused(text):
    """As a reason, that does not say what stands there; nothing of it is recorded, and it is told once."""
    with pytest.raises(NotExpositionError):
        parse(text)
    pages = Pages()
    (told,) = events(pages.given(text, 1))
    assert told["event"] == "sampler_unavailable"
    assert "http://127.0.0.1:1/metrics" in told["message"]
    assert "pw" not in told["message"]
    assert pages.given(text, 2) == []
    assert [row["event"] for row in events(pages.given("a 1\n", 3))] == ["sampler_available"]


# ── HTTP ──


def test_credentials_go_to_the_server_and_nowhere_else():
    """As basic authentication; what is shown of a URL has none, nor its query."""
    with serving(page("a 1\n")) as (url, asked):
        secret = url.replace("http://", "http://me:pw%40x@") + "?token=abc"
        assert fetch(secret) == "a 1\n"
        assert asked[0][0] == "/metrics?token=abc"
        assert asked[0][1]["Authorization"] == "Basic bWU6cHdAeA=="
        assert redact_url(secret) == url
        assert redact_url(f"{url}/hf_{'Zq8Xr3KpW1' * 3}/token=hunter2") == f"{url}/[redacted]/token=[redacted]"


def _hang(handler):
    handler.server.over.wait()


def _drip(handler):
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.over.is_set():
        handler.wfile.write(b"a 1\n")
        handler.wfile.flush()
        time.sleep(0.05)


def _cut(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"a 1\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (page("no", 503), "answers 503"),
        (page("", 302, Location="http://127.0.0.1:1/"), "redirects elsewhere"),
        (page("a" * 5000), "more than 4096 bytes"),
        (page(b"\xff\xfe"), "not text"),
        (_cut, "truncated"),
        (_hang, "no answer in 0.3 s"),
        (_drip, "no answer in 0.3 s"),
    ],
    ids=["fails", "redirects", "is huge", "is binary", "is cut", "hangs", "drips"],
)
def test_a_server_that_behaves_badly_is_a_reason(answer, why):
    """In few words, within the time limit."""
    with serving(answer) as (url, _), pytest.raises(FetchError, match=why):
        fetch(url, timeout_s=0.3, most_bytes=4096)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "nonsense", "http://", "http://[", ""])
def test_only_http_is_asked(url):
    """A URL of another kind is refused, by the sampler as a reason."""
    with pytest.raises(FetchError):
        fetch(url)


def test_nobody_there_is_a_reason():
    """With the system's words for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    with pytest.raises(FetchError, match="Connection refused"):
        fetch(url)
