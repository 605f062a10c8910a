"""Configuration: ``ranklake.toml``, the environment, and what is wrong with them."""

from ranklake.config.settings import (
    Config,
    ConfigError,
    ConfigFile,
    assembled,
    from_environment,
    load_config,
    read_config,
    variables,
)

__all__ = [
    "Config",
    "ConfigError",
    "ConfigFile",
    "assembled",
    "from_environment",
    "load_config",
    "read_config",
    "variables",
]
