-- Grain: one row per rank that recorded spans: what share of its steps the phases directly in them are. Input: spans.
-- Phases within phases, and what ran beside the step's thread, are in the phases around or on streams of their own.
SELECT step.rank, sum(parts.duration_ns) / sum(CAST(step.duration_ns AS DOUBLE)) AS phases_ratio
FROM (SELECT * FROM spans WHERE run = $run AND kind = 'step') AS step
JOIN (
  SELECT incarnation, parent_id, sum(CAST(duration_ns AS DOUBLE)) AS duration_ns
  FROM spans
  WHERE run = $run AND kind <> 'step' AND stream IS NULL
  GROUP BY incarnation, parent_id
) AS parts ON parts.incarnation = step.incarnation AND parts.parent_id = step.span_id
GROUP BY step.rank
ORDER BY step.rank
