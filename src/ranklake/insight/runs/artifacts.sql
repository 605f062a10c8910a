-- Grain: one row per action on an artifact, latest first. Input: artifacts.
SELECT attempt, ts, name, kind, action, step, bytes, sha256, duration_ns, blocking_ns, tag, verified, exception_type
FROM artifacts
WHERE run = $run
ORDER BY ts DESC, name, action
LIMIT {most}
