-- Grain: one row: segments that came since {since_date}, that no rows were read from, because their bytes could not be
-- read, or because a rule refused them, and that nothing has put right since. Input: segments, of the rows that {condition}
-- keeps.
SELECT count(*) FILTER (WHERE unreadable NOT LIKE '{refused}%') AS unreadable,
  count(*) FILTER (WHERE unreadable LIKE '{refused}%') AS refused
FROM segments
WHERE unreadable IS NOT NULL AND date >= DATE '{since_date}' AND {condition}
