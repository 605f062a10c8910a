-- Grain: one row per rank's bad ending of an attempt, in the order in which they happened. Input: events. Times are by the
-- clocks of the ranks' own hosts; that of a rank that died without a word is the last thing seen of it. What ended a thread
-- alone ended no attempt. step: that it was in, as its event says; last_step: the last that the rank recorded, from {steps}.
-- follows: the rank whose death or failure began it, for those that ended at most {within_s} s later.
-- ending: the event; 'stopped' for a rank that was asked to end then: a consequence, and no preemption of the run.
SELECT attempt, rank, event, ts, step, last_step, attributes, ranks, after_s, follows,
  CASE WHEN event = 'preemption' AND follows IS NOT NULL THEN 'stopped' ELSE event END AS ending
FROM (
  SELECT *, CASE WHEN first_event <> 'preemption' AND rank <> first_rank AND after_s <= {within_s} THEN first_rank END
    AS follows
  FROM (
    SELECT attempt, rank, event, ts, step, last_step, attributes,
      count(*) OVER (PARTITION BY attempt, event) AS ranks,
      first_value(rank) OVER (PARTITION BY attempt ORDER BY ts, rank) AS first_rank,
      first_value(event) OVER (PARTITION BY attempt ORDER BY ts, rank) AS first_event,
      date_part('epoch', ts) - min(date_part('epoch', ts)) OVER (PARTITION BY attempt) AS after_s
    FROM (
      SELECT attempt, rank, event, min(ts) AS ts, min(step) AS step, first_value(attributes ORDER BY ts) AS attributes
      FROM events
      WHERE run = $run AND (event IN ('abandoned', 'interruption', 'preemption')
        OR event = 'failure' AND coalesce(attributes, '') NOT LIKE '%"thread":%')
      GROUP BY attempt, rank, event
    ) AS endings
    LEFT JOIN (
      SELECT attempt, rank, max(step) AS last_step
      FROM {steps}
      WHERE run = $run
      GROUP BY attempt, rank
    ) AS recorded USING (attempt, rank)
  ) AS placed
) AS ordered
ORDER BY attempt, ts, rank
LIMIT {most}
