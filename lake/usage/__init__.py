"""Who uses which columns: the log of queries, without what was asked of them or what they gave."""
