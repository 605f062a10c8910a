"""Documentation is true: its commands run, its links lead somewhere, its Python compiles."""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from receivers import serve
from segments import phase_rows, put_segment, step_rows

from ranklake.cli import SUMMARIES, cli, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("lake/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    if ".venv" not in path.parts
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = (
    *("ranklake demo", "ranklake calibrate", "make demo", "make test", "pip install"),
    *(f"ranklake migrate {verb} rollouts" for verb in ("new", "plan", "apply")),
    *("ranklake migrate new steps kl_ref", "ranklake alerts import rules.yaml"),
)
"""What the end-to-end tests run, CI, make package, and, of an operator's own tables, columns and files,
`test_own_migrations`, `test_added_columns` and `test_alert_import`."""

HERE = re.compile(
    r"(?!.*(--output .*\.(svg|png)|--page))"  # the engine of pictures stays
    r"ranklake ((sql|catalog|incidents|mfu|roles|what-if|runs|show|media|compare|plot|trace|watch|tag|share)\b[^|&;<>]*"
    r"|(status|lineage|migrate|audit|verify-artifact|artifacts|import|otlp|rollup)\b[^|&;<>*?$]*"
    r"|alerts (test|list)\b[^|&;<>*?$]*"
    r"|grants (list|review)\b[^|&;<>*?$]*"
    r"|retain (plan|list|explain|lint|new|test|simulate|holds?)\b[^|&;<>*?$]*)$"
)
"""Commands that start no processes and read no terminal."""

MAY_FIND = re.compile(r"ranklake slo( |$)")
"""Commands that exit 1 for what they find: rows of March came late, which is an alert for some minutes."""


def blocks(language):
    for page in PAGES:
        for found, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if found == language:
                yield page.relative_to(ROOT), text


COMMANDS = [
    (page, command)
    for command, page in {
        line.split("#")[0].strip(): page  # a command that more than one page gives is run once
        for page, text in blocks("sh")
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith(("#", *ELSEWHERE))
    }.items()
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give an environment with a spool of two ranks, a lake, and a run that records as long as the tests run."""
    place = tmp_path_factory.mktemp("docs")
    for rank in range(2):
        put_segment(place / "spool", step_rows(40, rank=rank, incarnation=7 + rank))
        put_segment(place / "spool", phase_rows(40, rank=rank, incarnation=7 + rank), "spans")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")},
        "RANKLAKE_LAKE": str(place / "lake"),
        "RANKLAKE_SPOOL": str(place / "spool"),
        "RANKLAKE_LOCAL_SPOOL": str(place / "local"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    script = (
        "import numpy\n"
        "from ranklake import capture\n"
        "with capture.start(run='docs') as run, run.checkpoint('step-80.pt', step=80) as out:\n"
        "    out.write_bytes(b'weights')\n"
        "    run.media('generated', 'Once upon a time', step=9)\n"
        "    run.media('attention', numpy.eye(4))"
    )
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=place, check=True, capture_output=True)
    subprocess.run(["ranklake", "ingest"], env=environment, cwd=place, check=True, capture_output=True)
    script = (
        "import sys\n"
        "from ranklake import capture\n"
        "with capture.start(run='gpt-7b', samplers='off') as run:\n"
        "    with run.step(0): run.log(loss=1.0)\n"
        "    print(flush=True); sys.stdin.read()"
    )
    apart = {name: value for name, value in environment.items() if name != "RANKLAKE_SPOOL"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    recorder = [sys.executable, "-c", script]
    with serve() as receiver, subprocess.Popen(recorder, env=apart, cwd=place, **pipes) as recording:
        environment["RANKLAKE_ALERTS_URL"] = receiver.url.replace("http", "json")
        recording.stdout.readline()
        yield place, environment


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}: {command}" for page, command in COMMANDS])
def test_documented_commands_run(place, page, command):
    """Every command line of every page exits 0 (or, for a check that may find something, 1) and says something."""
    folder, environment = place
    if HERE.match(command):
        status, out, error = run_here(command, folder, environment)
    else:
        done = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=280,  # of 300 that a test may take: a machine that others use is slow, not wrong
            check=False,
        )
        status, out, error = done.returncode, done.stdout, done.stderr
    allowed = (0, 1) if MAY_FIND.match(command) else (0,)
    assert status in allowed, f"{page}: {command}\n{out}{error}"
    assert out


def run_here(command, folder, environment):
    """Run a command in this process: there are dozens, and to start Python costs most of each."""
    out, error = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            main(shlex.split(command)[1:])
        except SystemExit as end:
            return end.code or 0, out.getvalue(), error.getvalue()
    return 0, out.getvalue(), error.getvalue()


def test_documented_python_compiles():
    """Python blocks are Python."""
    for _, text in blocks("python"):
        ast.parse(text)


def test_links_lead_somewhere():
    """Relative links of every page name something that exists."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_no_page_holds_half_a_merge():
    """Nothing of a merge's markers is left in a page."""
    for page in PAGES:
        assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_lines_of_prose_are_at_most_120_characters():
    """A page is read in a terminal and in a diff, too; tables and code may be as wide as they are."""
    too_long = [
        f"{page.relative_to(ROOT)}: {line[:60]}"
        for page in PAGES
        for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
        if len(line) > 120 and not line.startswith(("|", "    "))
    ]
    assert not too_long, too_long


@pytest.mark.slow
def test_the_guide_of_imported_runs_ends_with_its_figures(tmp_path):
    """Followed from the first command to the last, the guide gives MFU, devices and a price to a run that had none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
    environment |= {"RANKLAKE_LAKE": str(tmp_path / "lake"), "RANKLAKE_SPOOL": str(tmp_path / "spool")}
    page = (ROOT / "docs/imported-runs.md").read_text(encoding="utf-8")
    commands = [line for language, text in FENCE.findall(page) if language == "sh" for line in text.splitlines()]
    said = {}
    for command in commands:
        if command.startswith("printf"):
            subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
            continue
        status, out, error = run_here(command, tmp_path, environment)
        assert status == 0, f"{command}\n{out}{error}"
        said[command] = out
    summary, cost = list(said.values())[-2:]
    assert "NVIDIA H100 80GB HBM3" in summary
    device_s = 256 * 10
    assert f"{device_s}" in cost.replace(",", "")
    assert "1.7777" in cost
    assert "0.035" in summary, "1.767e14 of 989.4e12 x 5 s"


NAMED = re.compile(r"\b(rp|rh|er|hold)-[0-9a-f]{12,}")
STEP = re.compile(r"^```(\w+)\n(.*?)^```|^    (ranklake [^\n]*)$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_guide_of_governance_is_true_to_its_end(tmp_path):
    """From an empty folder each command of the guide does what it says, in its order, with the names that came up."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
    pages = [ROOT / "docs" / name for name in ("governance.md", "archive.md", "erasure.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    page = text.replace("/srv/ranklake/", f"{tmp_path}/")
    steps = []
    for language, text, command in STEP.findall(page):
        steps += [command] if command else text.splitlines() if language == "sh" else []
        if language == "toml" and text.lstrip().startswith(("[lake]", "[retention]")):
            steps.append(f"echo {shlex.quote(text)} | tee -a ranklake.toml")
    names, said = {}, []
    for command in steps:
        if command.startswith("ranklake retain new") and (tmp_path / "policies").exists():
            continue  # a page that may be read alone repeats it
        if not command.startswith("ranklake"):
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            subprocess.run(["bash", "-c", command], env=environment | {"PATH": path}, cwd=tmp_path, check=True)
            continue
        for kind, name in names.items():
            command = command.replace(f"{kind}-…", name)  # noqa: PLW2901 - the reader does so, too
        file = next((str(path) for path in tmp_path.glob("evidence/*.json")), "")
        day = datetime.now(UTC).date() + timedelta(days=30)
        typed = command.replace("evidence/….json", file).replace(" DATE ", f" {day} ")
        status, out, error = run_here(typed, tmp_path, environment)
        assert status == 0, f"{command}\n{out}{error}"
        said.append((command, out))
        if re.search(r" (plan|hold)\b", command):
            names |= {found[1]: found[0] for found in NAMED.finditer(out)}
    told = "".join(out for _, out in said)
    for wanted in ("debug-logs", "the audit log is whole", "no data is left", "the certificate is valid"):
        assert wanted in told
    assert sum("removed" in out for command, out in said if "retain apply" in command) == 2


def test_every_command_is_listed_and_documented():
    """Each command that ``ranklake --help`` lists is there; README or docs/ name each of them."""
    assert all(cli.get_command(None, name).name for name in SUMMARIES)
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [name for name in SUMMARIES if f"ranklake {name}" not in told]
