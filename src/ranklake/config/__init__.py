"""Configuration: ``ranklake.toml``, the environment, and what is wrong with them."""

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
