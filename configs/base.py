"""Every setting of a run with its default. Other files in this folder change what they need.

The settings stand in `rlboost_jax/settings/`, and docs/reference/settings.md lists them.
Any value can be set from the command line: `--config.learner.prompts_per_step=128`.
"""

import dataclasses
import typing
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import FROM_PRESET, is_section, settings_of


def get_config() -> ConfigDict:
    return _defaults(RunConfig)


def _defaults(record: Any) -> ConfigDict:
    config = ConfigDict()
    settings = {setting.name: setting for setting in settings_of(record)}
    for field in dataclasses.fields(record):
        if is_section(field.type):
            config[field.name] = _defaults(field.type)
            continue
        setting = settings[field.name]
        if setting.default is FROM_PRESET:
            kind = str if typing.get_origin(setting.kind) is typing.Literal else setting.kind
            config[field.name] = placeholder(kind)
        else:
            config[field.name] = setting.default
    return config
