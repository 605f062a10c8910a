-- Grain: a team of runs, that which sent the most first. Segments are counted as they came in: what was removed since is
-- in it, and how well the lake packs rows is not.
SELECT coalesce(r.team, 'not recorded') AS team, count(DISTINCT s.run) AS runs, sum(s.rows_stored) AS rows_stored,
  sum(s.bytes) AS sent_bytes
FROM segments AS s LEFT JOIN (SELECT run, max(team) AS team FROM runs GROUP BY run) AS r ON r.run = s.run
WHERE s.run IS NOT NULL
GROUP BY 1 ORDER BY sent_bytes DESC, team LIMIT {most}
