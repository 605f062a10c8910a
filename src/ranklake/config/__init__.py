"""Configuration: ``ranklake.toml`` and the environment, and their faults."""

from ranklake.config.settings import (
    Config,
    ConfigError,
    ConfigFile,
    from_environment,
    load_config,
    merge_environment,
    read_config,
    variables,
)

__all__ = [
    "Config",
    "ConfigError",
    "ConfigFile",
    "from_environment",
    "load_config",
    "merge_environment",
    "read_config",
    "variables",
]
