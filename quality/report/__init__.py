"""The state of quality, as facts that pages and programs show: by table, check and partition, with the SQL of each."""
