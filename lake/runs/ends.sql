-- Grain: one row per rank's bad ending of an attempt, in the order in which they happened. Input: events. Times are by the
-- clocks of the ranks' own hosts; that of a rank that died without a word is the last thing seen of it.
SELECT attempt, rank, event, ts, step, attributes,
  count(*) OVER (PARTITION BY attempt, event) AS ranks
FROM (
  SELECT attempt, rank, event, min(ts) AS ts, min(step) AS step, first_value(attributes ORDER BY ts) AS attributes
  FROM events
  WHERE run = $run AND event IN ('abandoned', 'failure', 'preemption')
  GROUP BY attempt, rank, event
) AS endings
ORDER BY attempt, ts, rank
LIMIT {most}
