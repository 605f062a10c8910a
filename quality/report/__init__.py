"""The state of quality as facts for pages and programs: by table, check and partition, each with its SQL."""
