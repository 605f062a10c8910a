"""The check kinds, grouped by subject. Each is a `CheckKind` in a module's namespace."""
