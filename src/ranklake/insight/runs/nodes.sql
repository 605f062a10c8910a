-- Grain: one row per attempt and rank of a run of several ranks, or of some of them. Input: ranks. A node is a host; nodes
-- are numbered from 0 by the lowest rank on each, as launchers number them. node: NULL where no host was recorded.
SELECT run, attempt, rank, node, node_count, local_rank, first_rank, last_rank, rank_count, device_name, host, pid
FROM (
  SELECT *, max(node) OVER (PARTITION BY run, attempt) + 1 AS node_count
  FROM (
    SELECT *, CASE WHEN host IS NOT NULL
      THEN CAST(dense_rank() OVER (PARTITION BY run, attempt, host IS NULL ORDER BY first_rank) AS BIGINT) - 1 END AS node
    FROM (
      SELECT *,
        min(rank) OVER (PARTITION BY run, attempt, host) AS first_rank,
        max(rank) OVER (PARTITION BY run, attempt, host) AS last_rank,
        count(*) OVER (PARTITION BY run, attempt, host) AS rank_count
      FROM (
        SELECT run, attempt, rank,
          last_value(host ORDER BY ts) AS host,
          last_value(pid ORDER BY ts) AS pid,
          last_value(local_rank ORDER BY ts) AS local_rank,
          last_value(device_name ORDER BY ts) AS device_name
        FROM ranks
        WHERE {runs}
        GROUP BY run, attempt, rank
      ) AS known
    ) AS together
  ) AS numbered
) AS counted
WHERE {ranks}
ORDER BY run, attempt, rank
