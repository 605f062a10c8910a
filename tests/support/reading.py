"""Every command that reads a lake, as it is run over rows of any values."""

READING = (
    *("status", "status --json", "doctor --json", "runs", "runs --json", "runs --sort loss"),
    *("show r1", "show r2 --json", "show sweep-3", "compare r1 r2", "plot r1 loss", "plot r1 step_time_s --with r2"),
    *("trace r1 --step 0 --out {out}/trace.json", "media r1", "media r2", "series loss", "series loss --distributions"),
    *("what-if r1", "what-if r2 --json", "metric show", "catalog", "catalog steps", "catalog sizes", "catalog refresh"),
    *("catalog changes", "retain plan --as-of 2030-01-01 --by ann", "retain cost", "retain list", "erase find r1"),
    *("audit show", "audit verify", "grants list", "migrate plan", "verify-artifact --all", "approvals show"),
    *("quality held", "quality why", "quality why --json", "slo", "alerts list", "check --incidents"),
    *("check --backtest 30d", "report --out {out}/site", "report record"),
)
