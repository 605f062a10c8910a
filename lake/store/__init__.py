"""The store of a lake: files, configuration, contracts, keys, and errors of stores that cannot be used."""
