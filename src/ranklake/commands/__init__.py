"""One module per command; `ranklake.cli` loads each when it is called."""
